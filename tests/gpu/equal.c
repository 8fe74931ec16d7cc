/*
 * Shows that hierarchical decode has the bits of resident decode. The logits of the whole engine are compared bit by
 * bit, with a model of random weights, the dimensions of a published model (few layers, few experts) and contexts of up
 * to 16K.
 *
 *   equal [--backend cpu|cuda] [--kind NAME] [--tiny] [--steps N] [--seed N] [--variant TEXT] [--streams N]
 *         [--context N]
 *
 * --kind: model and algorithm, of the table in equal_kinds.h: dsa (the default, DeepSeek-V3.2's dimensions), quest,
 * "quest int8", "quest shared", double_sparsity, snapkv, rocket_kv, streaming_llm, dense, skip_softmax, xattention, cluster_kv, pq_cache (dimensions of Llama 3.1 8B and
 * Qwen3 8B);
 * "gqa": all of these except dsa, one after another.
 *
 * First the reference: every stream is decoded resident, op by op, alone in its batch, and a hash of the logits of
 * every position is kept. Then the same texts are decoded in many variants of:
 *
 *   | hot rows | from the longest selection to four times that, or another number in every layer                  |
 *   | eviction | both policies                                                                                     |
 *   | steps    | as graphs, or op by op                                                                            |
 *   | drafts   | 1 to 5 tokens of a stream in a step, of which some are wrong and are taken back                  |
 *   | streams  | they join, are left out of steps, leave, are retracted and return from their host pages, or begin |
 *   |          | resident and are spilled                                                                          |
 *
 * All stale rows are NaN: on the device (victims before they are replaced, slots and pages when they are freed) and in
 * the host pages after a stream's end. A position fails if its logits differ or are not finite.
 *
 * On a GPU this is the proof with real dimensions; with --tiny on the CPU the same program is one of the unit tests.
 * Exit code 77: no such backend here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/gpu/equal_kinds.h"

enum { DRAFTS = 5 }; /* most tokens of a stream in a step of a variant with drafts */

typedef struct stream {
    int32_t prompt, *ids, *pages, n_pages;
    sl_key *want; /* [steps]: hash of the logits after token prompt + i */
    sl_seq *seq;
    bool hot;
    int32_t done; /* tokens decoded in this variant */
    int32_t right,
        tokens[DRAFTS]; /* of the running step: its tokens, of which the first ones are the text's */
} stream;

typedef struct world {
    options o;
    const kind *k;
    const sl_algo_desc *algorithm;
    sl_select_options select;
    sl_channels channels; /* of double_sparsity, with the values in channel_of */
    int32_t channel_of[LAYERS * MOST_KV_HEADS * CHANNELS];
    int32_t longest; /* tokens of the longest selection */
    sl_backend *be;
    sl_model_config cfg;
    sl_model *model;
    sl_arena *arena;
    sl_engine *engine;
    sl_geometry geo;
    int32_t context, chunk;
    stream s[STREAMS];
    uint64_t random;
    uint64_t compared;
    sl_err err;
} world;

typedef struct variant {
    const char *name;
    int32_t factor; /* hot rows as a multiple of the longest selection; 0: another number in every layer */
    int32_t tail;
    sl_evict_policy policy;
    sl_graph_use graphs;
    bool motion, whole; /* motion: streams join and leave; whole: all the steps of --steps */
    int32_t groups;     /* other than 0: only for algorithms that select group by group */
    bool drafts;
} variant;

static const variant variants[] = {
    {"topk, graphs", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, true, 0, false},
    {"topk, op by op", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_OFF, true, false, 0, false},
    {"topk, lru, graphs", 1, 8, SL_EVICT_LRU, SL_GRAPHS_AUTO, true, false, 0, false},
    {"topk, padded", 1, 1, SL_EVICT_CLOCK, SL_GRAPHS_PAD, true, false, 0, false},
    {"2 x topk, graphs", 2, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, false, 0, false},
    {"4 x topk, graphs", 4, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, true, 0, false},
    {"by layer, graphs", 0, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, false, 0, false},
    {"topk, all the time", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, false, false, 0, false},
    {"topk, 2 groups", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, false, 2, false},
    {"topk, 3 groups", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, false, true, 3, false},
    {"topk, 5 groups", 1, 64, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, false, 5, false},
    {"3 groups, op by op", 0, 64, SL_EVICT_LRU, SL_GRAPHS_PAD, true, false, 3, false},
    {"drafts, graphs", 1, 192, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, true, false, 0, true},
    {"drafts, op by op", 1, 192, SL_EVICT_LRU, SL_GRAPHS_OFF, true, false, 0, true},
    {"drafts, 2 groups", 2, 192, SL_EVICT_CLOCK, SL_GRAPHS_AUTO, false, false, 2, true},
};

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((call) != SL_OK) {                                                                               \
            printf("%s: %s\n", #call, w->err.text);                                                          \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

static uint32_t roll(world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(w->random >> 33) % n;
}

/* ---- making ---- */

static bool make_model(world *w)
{
    sl_model_opts mo = {.index_format = SL_INDEX_OFFICIAL,
                        .row_format = w->k->row,
                        .act = SL_BF16,
                        .max_tokens = w->chunk,
                        .max_logit_rows = w->o.streams * DRAFTS,
                        .max_context = w->context};
    sl_synthetic_opts so = {.ranks = 1, .seed = w->o.seed};
    TRY(kind_config(w->k, w->o.tiny, &w->cfg, &w->err));
    TRY(sl_model_synthetic(w->be, &w->cfg, &mo, &so, &w->model, &w->err));
    w->cfg = *sl_model_get_config(w->model);
    w->algorithm = sl_algo_find(w->k->algorithm);
    some_channels(&w->cfg, &w->channels, w->channel_of);
    w->select = select_of(w->k, w->algorithm, w->o.tiny, &w->channels);
    w->longest = longest_of(w->k, &w->cfg, w->o.tiny, w->context);
    return true;
}

static bool make_arena(world *w)
{
    int32_t per = sl_pages_for(w->context);
    sl_cache_dims cache = sl_engine_cache_dims(&w->cfg, w->k->row, SL_INDEX_OFFICIAL);
    cache.select = w->select;
    TRY(sl_engine_geometry(&w->cfg, &cache, w->algorithm, w->k->layout, sl_model_fingerprint(w->model),
                           &w->geo, &w->err));
    sl_arena_opts ao = {.bytes = (uint64_t)w->o.streams * (uint64_t)per * (uint64_t)w->geo.page_bytes,
                        .huge_pages = SL_OFF,
                        .lock = SL_OFF,
                        .numa_node = -1};
    TRY(sl_arena_create(&w->geo, &ao, &w->arena, &w->err));
    memset(sl_arena_base(w->arena), 0xff, sl_arena_bytes(w->arena));
    /* The pages of a stream are neither next to each other nor in order. */
    for (int32_t i = 0; i < w->o.streams; i++) {
        w->s[i].pages = calloc((size_t)per, sizeof *w->s[i].pages);
        w->s[i].n_pages = per;
        for (int32_t p = 0; w->s[i].pages && p < per; p++)
            w->s[i].pages[p] = (per - 1 - p) * w->o.streams + (i + p) % w->o.streams;
    }
    return true;
}

/* Makes prompts whose lengths are from a fifth of the context to nearly all of the context. */
static void make_texts(world *w)
{
    for (int32_t i = 0; i < w->o.streams; i++) {
        stream *s = &w->s[i];
        int32_t most = w->context - w->o.steps, least = w->context / 5 < most / 2 ? w->context / 5 : most / 2;
        s->prompt = least + (int32_t)((int64_t)(most - least) * i / (w->o.streams - 1));
        s->ids = calloc((size_t)(s->prompt + w->o.steps), sizeof *s->ids);
        s->want = calloc((size_t)w->o.steps, sizeof *s->want);
        for (int32_t t = 0; s->ids && t < s->prompt + w->o.steps; t++)
            s->ids[t] = (int32_t)roll(w, (uint32_t)w->cfg.vocab_size);
    }
}

/* factor as in variant; < 0: only resident. */
static bool open_engine(world *w, const variant *v, int32_t factor)
{
    int32_t by_layer[LAYERS] = {0};
    int64_t pages = (int64_t)w->o.streams * w->s[0].n_pages;
    int64_t hot = (int64_t)w->longest * (factor > 0 ? factor : 1) * (v->drafts ? DRAFTS : 1);
    if (v->drafts && hot > w->context)
        hot = w->context;
    sl_engine_opts eo = {.algorithm = w->algorithm,
                         .select = w->select,
                         .gates = gates_of(w->k, w->o.tiny),
                         .max_seqs = w->o.streams,
                         .max_hot_seqs = factor < 0 ? 0 : w->o.streams,
                         .max_step_tokens = w->chunk,
                         .max_context = w->context,
                         .max_item_tokens = v->drafts ? DRAFTS : 1,
                         .hot_rows = (int32_t)hot,
                         .tail_rows = v->tail,
                         .policy = v->policy,
                         .index_pages = pages,
                         .row_pages = pages,
                         .groups = v->groups,
                         .graphs = v->graphs,
                         .max_graphs = v->drafts ? 0 : 12, /* few, so that some are given up */
                         .poison = true};
    if (factor == 0) {
        by_layer[1] = SL_HOT_RESIDENT, by_layer[2] = 3 * w->longest, by_layer[3] = w->longest + 5;
        eo.hot_rows_layer = by_layer;
    }
    TRY(sl_engine_create(w->be, w->model, w->arena, &eo, &w->engine, &w->err));
    return true;
}

static void close_engine(world *w)
{
    for (int32_t i = 0; i < w->o.streams; i++) {
        if (w->s[i].seq)
            sl_engine_seq_close(w->engine, w->s[i].seq);
        w->s[i].seq = NULL;
    }
    sl_engine_destroy(w->engine);
    w->engine = NULL;
}

/* ---- steps ---- */

/* Makes the host rows after token n of a stream NaN. */
static void poison_host(world *w, const stream *s, int32_t n)
{
    for (int32_t l = 0; l < w->cfg.n_layers; l++) {
        sl_host_plane h =
            sl_geometry_plane(&w->geo, sl_arena_base(w->arena), sl_arena_pages(w->arena), l, SL_CACHE_ROWS);
        for (int32_t p = n / SL_PAGE_TOKENS; p < s->n_pages; p++)
            poison_page(&w->geo, &h, s->pages[p], p == n / SL_PAGE_TOKENS ? n % SL_PAGE_TOKENS : 0);
    }
}

static bool open_stream(world *w, stream *s, bool hot, int32_t cached)
{
    s->hot = hot;
    TRY(sl_engine_seq_open(w->engine, hot ? SL_HIERARCHICAL : SL_RESIDENT, s->pages, s->n_pages, cached, s,
                           &s->seq, &w->err));
    TRY(sl_engine_seq_prompt(w->engine, s->seq, s->prompt, &w->err));
    return true;
}

static sl_key hash_of(const world *w, const float *logits, bool *finite)
{
    *finite = true;
    for (int32_t i = 0; i < w->cfg.vocab_size; i++)
        *finite &= isfinite(logits[i]) != 0;
    return sl_hash_chain((sl_key){1, 2}, logits, (size_t)w->cfg.vocab_size * sizeof *logits);
}

static bool prefill(world *w, stream *s)
{
    for (int32_t at = 0; at < s->prompt;) {
        int32_t n = s->prompt - at < w->chunk ? s->prompt - at : w->chunk;
        sl_step_item it = {.seq = s->seq, .tokens = s->ids + at, .n_tokens = n};
        TRY(sl_engine_step(w->engine, &it, 1, NULL, &w->err));
        at += n;
    }
    return true;
}

/* The first step after the prompt computes token `prompt` of the text: its logits are want[0]. */
static bool reference(world *w)
{
    static const variant plain = {"reference", 1, 1, SL_EVICT_CLOCK, SL_GRAPHS_OFF, false, true, 0, false};
    if (!open_engine(w, &plain, -1))
        return false;
    for (int32_t i = 0; i < w->o.streams; i++) {
        stream *s = &w->s[i];
        if (!open_stream(w, s, false, 0) || !prefill(w, s))
            return false;
        for (int32_t k = 0; k < w->o.steps; k++) {
            sl_step_item it = {
                .seq = s->seq, .tokens = s->ids + s->prompt + k, .n_tokens = 1, .want_logits = true};
            bool finite;
            TRY(sl_engine_step(w->engine, &it, 1, NULL, &w->err));
            s->want[k] = hash_of(w, it.logits, &finite);
            if (!finite || (k > 0 && sl_key_eq(s->want[k], s->want[k - 1]))) {
                printf(
                    "the reference has logits that are not finite or do not change, at step %d of stream %d\n",
                    k, i);
                return false;
            }
        }
        sl_engine_seq_close(w->engine, s->seq);
        s->seq = NULL;
    }
    close_engine(w);
    return true;
}

/* One random event that may happen to a stream between two steps. */
static bool shake(world *w, stream *s)
{
    switch (roll(w, 60)) {
    case 0: /* retracted: its host pages stay */
        sl_engine_seq_close(w->engine, s->seq);
        s->seq = NULL;
        break;
    case 1:
    case 2:
        if (!s->hot)
            TRY(sl_engine_seq_spill(w->engine, s->seq, &w->err));
        s->hot = true;
        break;
    }
    return true;
}

/* The logits of the tokens that are the text's, of those that were wanted; the other tokens are taken back. */
static bool compare(world *w, const variant *v, const sl_step_item *items, stream **who, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        stream *s = who[i];
        for (int32_t k = 0; k < s->right; k++, s->done++) {
            const float *logits = items[i].logits + (int64_t)k * w->cfg.vocab_size;
            bool finite = true;
            if (!items[i].want_logits)
                continue;
            if (!sl_key_eq(hash_of(w, logits, &finite), s->want[s->done]) || !finite) {
                printf("FAILED %s: stream %d (%s) differs at position %d, its step %d, token %d of %d, batch "
                       "of %d\n",
                       v->name, (int)(s - w->s), s->hot ? "hierarchical" : "resident", s->prompt + s->done,
                       s->done, k, items[i].n_tokens, n);
                return false;
            }
            w->compared++;
        }
        if (v->drafts)
            TRY(sl_engine_seq_truncate(w->engine, s->seq, s->prompt + s->done, &w->err));
    }
    return true;
}

/* The tokens of a stream in this step: one of the text, or with drafts several, of which the last ones may be wrong. */
static int32_t choose_tokens(world *w, const variant *v, stream *s, int32_t most)
{
    int32_t left = most - s->done, n = v->drafts ? 1 + (int32_t)roll(w, DRAFTS) : 1;
    n = n < left ? n : left;
    s->right = v->drafts && roll(w, 3) ? (int32_t)roll(w, (uint32_t)n + 1) : n;
    for (int32_t k = 0; k < n; k++) {
        int32_t is = s->ids[s->prompt + s->done + k], off = 1 + (int32_t)roll(w, 999);
        s->tokens[k] = k < s->right ? is : (is + off) % w->cfg.vocab_size;
    }
    return n;
}

static bool step(world *w, const variant *v, int32_t most)
{
    sl_step_item items[STREAMS];
    stream *who[STREAMS];
    int32_t n = 0;
    bool any = !v->motion || roll(w, 8) != 0; /* in some steps no stream asks for logits */
    for (int32_t i = 0; i < w->o.streams; i++) {
        stream *s = &w->s[i];
        if (s->done >= most)
            continue;
        if (!s->seq && v->motion && roll(w, 10))
            continue;
        if (!s->seq && !open_stream(w, s, !v->motion || roll(w, 4) != 0, s->prompt + s->done))
            return false;
        if (v->motion && roll(w, 7) == 0) /* this stream is left out of the step */
            continue;
        who[n] = s;
        sl_step_item it = {.seq = s->seq, .tokens = s->tokens, .n_tokens = choose_tokens(w, v, s, most)};
        it.want_logits = any && (!v->motion || roll(w, 6) != 0) ? it.n_tokens : 0;
        items[n++] = it;
    }
    if (n == 0)
        return true;
    TRY(sl_engine_step(w->engine, items, n, NULL, &w->err));
    if (!compare(w, v, items, who, n))
        return false;
    for (int32_t i = 0; i < n; i++) {
        if (who[i]->done >= most) {
            sl_engine_seq_close(w->engine, who[i]->seq);
            who[i]->seq = NULL;
        } else if (v->motion && !shake(w, who[i])) {
            return false;
        }
    }
    return true;
}

static bool left(const world *w, int32_t most)
{
    for (int32_t i = 0; i < w->o.streams; i++)
        if (w->s[i].done < most)
            return true;
    return false;
}

static bool run_variant(world *w, const variant *v)
{
    int32_t most = v->whole || *w->o.variant ? w->o.steps : (w->o.steps + 6) / 7;
    sl_engine_stats st;
    uint64_t before = w->compared, t0 = sl_now_ns();
    if (!open_engine(w, v, v->factor))
        return false;
    for (int32_t i = 0; i < w->o.streams; i++) {
        w->s[i].done = 0;
        poison_host(w, &w->s[i], w->s[i].prompt);
    }
    if (v->motion)
        TRY(sl_engine_capture(w->engine, w->o.streams, w->context / 2, NULL, NULL, &w->err));
    while (left(w, most))
        if (!step(w, v, most))
            return false;
    sl_engine_stats_get(w->engine, &st);
    printf("ok %-20s %5llu steps (%llu of them one graph, %llu captured), %llu logits equal, %llu hits, %llu "
           "misses, "
           "%llu evictions, step %.0f us, host %.1f us, %.1f s\n",
           v->name, (unsigned long long)st.steps, (unsigned long long)st.graph_steps,
           (unsigned long long)st.graph_captures, (unsigned long long)(w->compared - before),
           (unsigned long long)st.hits, (unsigned long long)st.misses, (unsigned long long)st.evictions,
           (double)st.step_ns / 1e3 / (double)st.steps, (double)st.host_ns / 1e3 / (double)st.steps,
           (double)(sl_now_ns() - t0) / 1e9);
    fflush(stdout);
    /* With groups a part of the swap-in time is hidden; steps of several tokens may be large enough to get groups by default. Without
     * groups, or where ops run in order, all of that time is waiting time. */
    bool hides = (v->groups > 1 || v->drafts) && (sl_backend_caps(w->be) & SL_BE_ASYNC);
    bool clock = st.swap_ns > 0 && st.swap_ns < st.step_ns && st.swap_exposed_ns <= st.swap_ns &&
                 (hides || st.swap_exposed_ns == st.swap_ns);
    printf("   swap %.0f us a step, %.0f waited for\n", (double)st.swap_ns / 1e3 / (double)st.steps,
           (double)st.swap_exposed_ns / 1e3 / (double)st.steps);
    bool all = !*w->o.variant && w->o.streams == STREAMS; /* else it may be too short for what follows */
    bool fits =
        st.index_pages_free == (int64_t)w->o.streams * w->s[0].n_pages && st.hot_slots_free == w->o.streams;
    bool graphs = !all || v->graphs != SL_GRAPHS_AUTO || !(sl_backend_caps(w->be) & SL_BE_GRAPHS) ||
                  st.graph_steps > (v->drafts ? 0 : st.steps / 2);
    if (!fits || !graphs || !clock || (st.misses == 0 && (!v->drafts || st.tail_hits == 0)) ||
        (all && v->factor == 1 && !v->drafts && w->k->evicts && st.evictions == 0)) {
        printf("FAILED %s: %s\n", v->name,
               !fits     ? "device pages were lost"
               : !graphs ? "hardly any step was a graph"
               : !clock  ? "the time of swap-in does not add up"
                         : "nothing was swapped in");
        return false;
    }
    close_engine(w);
    return true;
}

static bool run_all(world *w)
{
    if (!make_model(w) || !make_arena(w))
        return false;
    make_texts(w);
    uint64_t t0 = sl_now_ns();
    if (!reference(w))
        return false;
    printf("reference: %d streams of %d to %d tokens, %d steps each, %.1f s\n", w->o.streams, w->s[0].prompt,
           w->s[w->o.streams - 1].prompt, w->o.steps, (double)(sl_now_ns() - t0) / 1e9);
    bool any = false;
    for (size_t i = 0; i < SL_COUNT(variants); i++) {
        const variant *v = &variants[i];
        if (!strstr(v->name, w->o.variant) || (v->groups && !w->algorithm->groupable) ||
            (v->factor != 1 && w->longest >= w->context))
            continue;
        if (!run_variant(w, v))
            return false;
        any = true;
    }
    return any;
}

static bool run_kind(sl_backend *be, const options *o, const kind *k)
{
    world w = {.o = *o, .be = be, .k = k, .random = o->seed};
    if (!set_lengths(&w.o, k)) {
        printf("FAILED %s: %d steps do not fit a context of %d tokens\n", k->name, w.o.steps, w.o.context);
        return false;
    }
    w.context = w.o.context;
    w.chunk = w.o.tiny ? 64 : 1024;
    printf("%s, %s: %s\n", sl_backend_describe(be), k->name, w.o.tiny ? k->tiny : k->preset);
    bool ok = run_all(&w);
    if (w.engine)
        close_engine(&w);
    sl_arena_destroy(w.arena);
    sl_model_destroy(w.model);
    for (int32_t i = 0; i < STREAMS; i++) {
        free(w.s[i].ids);
        free(w.s[i].want);
        free(w.s[i].pages);
    }
    printf("%s: %llu logits compared bit by bit, %s\n", ok ? "ok" : "FAILED", (unsigned long long)w.compared,
           k->name);
    return ok;
}

int main(int argc, char **argv)
{
    options o;
    sl_backend *be;
    sl_err err = {0};
    bool ok = true, any = false;
    if (!parse(argc, argv, &o)) {
        fprintf(
            stderr,
            "usage: equal [--backend cpu|cuda] [--kind NAME] [--tiny] [--steps N] [--seed N] [--variant TEXT] "
            "[--streams N] [--context N]\n");
        return 2;
    }
    sl_log_init(SL_LOG_WARN, false, "equal");
    if (sl_backend_create(o.backend, &(sl_backend_opts){0}, &be, &err) != SL_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    for (size_t i = 0; i < SL_COUNT(kinds) && ok; i++) {
        bool gqa = strcmp(o.kind, "gqa") == 0 && kinds[i].row >= SL_ROW_GQA_F32;
        if (!gqa && strcmp(o.kind, kinds[i].name) != 0)
            continue;
        any = true;
        ok = run_kind(be, &o, &kinds[i]);
    }
    sl_backend_destroy(be);
    return ok && any ? 0 : 1;
}
