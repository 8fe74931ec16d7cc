/*
 * Steps of several tokens of a sequence, and tokens that are taken back, for every algorithm of the registry: each stream
 * appends 1 to 5 tokens per step, of which some are wrong drafts, in batches with single tokens, parts of prompts, resident
 * and hierarchical sequences. The logits of every token up to the first wrong one have the bits of steps of one token;
 * after a truncation everything has the bits of a sequence that never had the tokens, and so have the pages in host memory.
 * Hot rows are as few as the union of the lists may be, and stale rows are NaN. Run from the repository's root.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "sparse/channels.h"
#include "tests/unit/run_suite.h"

enum { CONTEXT = 400, LENGTH = 390, MOST = 5, STREAMS = 4, LAYERS = 16 };

enum { MOST_STEPS = 130 }; /* of each kind, 2,860 in all */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEPS = 30 }; /* and more where these evicted nothing or took back no page */
#else
enum { STEPS = MOST_STEPS };
#endif

/* list: tokens of the longest list, 0: the model's index_topk; block: tokens of a row. */
typedef struct kind {
    fix_opts o;
    int32_t list, block;
} kind;

#define MODEL(name) "tests/golden/model/" name
#define MLA(name, r, i, a)                                                                                   \
    .dir = MODEL(name), .rows = SL_ROW_MLA_##r, .index = SL_INDEX_##i, .act = a, .algorithm = "dsa"
#define GQA(name, r, a, algo) .dir = MODEL(name), .rows = SL_ROW_GQA_##r, .act = a, .algorithm = algo

static const kind kinds[] = {
    {{MLA("ds-yarn", F32, PLAIN, SL_F32)}, 0, 1},
    {{MLA("ds-yarn", FP8, OFFICIAL, SL_BF16), .policy = SL_EVICT_CLOCK, .graphs = SL_GRAPHS_PAD, .groups = 3},
     0,
     1},
    {{MLA("glm-share", BF16, OFFICIAL, SL_BF16), .policy = SL_EVICT_CLOCK, .layout = SL_LAYOUT_LAYER_FIRST},
     0,
     1},
    {{MLA("ds-fp8", FP8, PLAIN, SL_F32), .graphs = SL_GRAPHS_PAD}, 0, 1},
    {{GQA("m3-lists", F32, SL_F32, "msa")}, 20, 4},
    {{.dir = MODEL("ds-odd"), .rows = SL_ROW_MLA_F32, .act = SL_F32, .algorithm = "dense"}, CONTEXT, 1},
    {{GQA("llama-odd", F32, SL_F32, "dense"), .graphs = SL_GRAPHS_PAD}, CONTEXT, 1},
    {{GQA("qwen2-mha", BF16, SL_BF16, "streaming_llm"), .gates = {.sink_tokens = 4, .recent_tokens = 20},
      .policy = SL_EVICT_CLOCK},
     24,
     1},
    {{GQA("qwen3-norms", FP8, SL_BF16, "skip_softmax"), .select = {.skip_factor = 10}}, CONTEXT, 1},
    {{GQA("llama-odd", BF16, SL_BF16, "xattention"), .select = {.list_mass = 0.3f}, .graphs = SL_GRAPHS_PAD},
     CONTEXT,
     1},
    {{GQA("llama-odd", F32, SL_F32, "quest"), .select = {.token_budget = 48, .block_tokens = 16}}, 48, 16},
    {{GQA("qwen3-norms", BF16, SL_BF16, "quest"),
      .select = {.token_budget = 32, .block_tokens = 8, .bounds_typed = true, .bounds = SL_I8},
      .policy = SL_EVICT_CLOCK, .graphs = SL_GRAPHS_PAD, .groups = 3},
     32,
     8},
    {{GQA("llama-rope3", FP8, SL_BF16, "quest"),
      .select = {.token_budget = 40, .block_tokens = 1, .shared_lists = true, .reduce = SL_GROUP_MEAN},
      .graphs = SL_GRAPHS_PAD},
     40,
     1},
    {{GQA("qwen2-mha", F32, SL_F32, "double_sparsity"), .select = {.token_budget = 40, .heavy_channels = 3}},
     40,
     1},
    {{GQA("llama-odd", BF16, SL_BF16, "snapkv"),
      .select = {.prompt_budget = 30, .window = 8, .output_tokens = 12}, .graphs = SL_GRAPHS_PAD},
     42,
     1},
    {{GQA("qwen3-norms", F32, SL_F32, "rocket_kv"),
      .select =
          {.prompt_budget = 40, .window = 8, .top_pages = 8, .retained_page = 4, .kt_type = SL_KT_BF16}},
     32,
     1},
    {{GQA("qwen2-mha", FP8, SL_BF16, "rocket_kv"),
      .select = {.prompt_budget = 40, .window = 8, .top_pages = 12, .retained_page = 2},
      .graphs = SL_GRAPHS_PAD},
     24,
     1},
    {{GQA("llama-rope3", BF16, SL_BF16, "cluster_kv"),
      .select = {.token_budget = 30, .cluster_tokens = 8, .cluster_window = 9, .window_nlist = 3, .niter = 4},
      .gates = {.sink_tokens = 4}, .graphs = SL_GRAPHS_PAD},
     39,
     1},
    {{GQA("llama-odd", F32, SL_F32, "pq_cache"),
      .select = {.token_budget = 50,
                 .n_subvec = 2,
                 .n_subbits = 3,
                 .recent_ratio = 0.1f,
                 .niter = 3,
                 .reduce = SL_GROUP_SOFTMAX},
      .gates = {.sink_tokens = 8}, .graphs = SL_GRAPHS_PAD},
     50,
     1},
    {{GQA("qwen4-ngram", F32, SL_F32, "pooled")}, 36, 4},
    {{GQA("qwen4-odd", BF16, SL_BF16, "pooled"), .policy = SL_EVICT_CLOCK, .graphs = SL_GRAPHS_PAD}, 18, 2},
    {{GQA("v4-flash", F32, SL_F32, "dense"), .graphs = SL_GRAPHS_PAD}, CONTEXT, 1},
    {{GQA("v4-odd", BF16, SL_BF16, "dense")}, CONTEXT, 1},
};

/* ---- a text, and what its pages contain ---- */

typedef struct stream {
    fix_text want;
    uint32_t crc[LENGTH / SL_PAGE_TOKENS][LAYERS];
    fix_run run;
    int32_t prompt;
    bool open, hot;
} stream;

static fix f;
static stream streams[STREAMS];
static int truncated, crossed; /* tokens taken back; of these, such that had begun a page */
static uint64_t rng;

static uint64_t roll(uint64_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return rng % n;
}

static bool has_states(void)
{
    return sl_engine_state_bytes(f.engine) > 0;
}

static bool selects_prompts(void)
{
    return f.eo.algorithm->prompt != NULL;
}

static void must(sl_status st, const sl_err *err)
{
    if (st != SL_OK)
        ck_abort_msg("%s", err->text);
}

static uint32_t crc_of(const stream *s, int32_t page, int32_t layer)
{
    return sl_arena_page_crc(f.arena, s->run.pages[page], layer, SL_PAGE_TOKENS);
}

/* The stream's text in steps of one token. */
static void make_text(stream *s, int i)
{
    /* pages that can leave others out, for algorithms whose prompts have lists of pages */
    *s = (stream){.prompt = 70 + 17 * i + (f.eo.algorithm->prompt_lists ? 2 * SL_PAGE_TOKENS : 0)};
    fix_prompt(&f, &s->want, s->prompt, 900 + (uint64_t)i);
    fix_prompt_open(&f, &s->run, SL_RESIDENT, 0, LENGTH, s->prompt);
    fix_feed(&f, &s->run, &s->want, s->prompt - 1, f.o.max_tokens);
    fix_greedy(&f, &s->run, &s->want, LENGTH);
    for (int32_t p = 0; p < LENGTH / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < f.cfg->n_layers; l++)
            s->crc[p][l] = crc_of(s, p, l);
    fix_seq_close(&f, &s->run, false);
}

static void check_pages(const stream *s)
{
    for (int32_t p = 0; p < LENGTH / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < f.cfg->n_layers; l++)
            if (crc_of(s, p, l) != s->crc[p][l])
                ck_abort_msg("stream %d: layer %d of page %d has other bytes", (int)(s - streams), l, p);
}

/* ---- streams begin, pause and are spilled ---- */

/* Opens it, with the whole pages that it has kept. */
static void begin(stream *s)
{
    const int32_t cached = s->run.n_pages * SL_PAGE_TOKENS;
    s->hot = cached > 0 && roll(2);
    fix_prompt_open(&f, &s->run, s->hot ? SL_HIERARCHICAL : SL_RESIDENT, cached, cached, s->prompt);
    s->open = true;
}

static void drop_pages(stream *s, int32_t keep)
{
    while (s->run.n_pages > keep)
        f.free_pages[f.n_free++] = s->run.pages[--s->run.n_pages];
}

static void shake(stream *s)
{
    sl_err err = {0};
    const int32_t len = sl_engine_seq_len(s->run.seq), whole = len / SL_PAGE_TOKENS;
    const bool prompt_ends = len >= s->prompt || !selects_prompts();
    switch (roll(30)) {
    case 0: /* pauses: whole pages stay, unless the prompt's end or the states must be computed again */
        fix_seq_close(&f, &s->run, true);
        drop_pages(s, has_states() || (selects_prompts() && whole * SL_PAGE_TOKENS < s->prompt) ? 0 : whole);
        s->open = false;
        break;
    case 1:
    case 2:
    case 3:
        if (s->hot || !prompt_ends)
            break;
        must(sl_engine_seq_spill(f.engine, s->run.seq, &err), &err);
        s->hot = true;
    }
}

/* ---- steps ---- */

typedef struct turn {
    stream *s;
    int32_t tokens[CONTEXT], n, right; /* the first `right` tokens are the text's */
    int32_t from;
} turn;

/* n tokens from len on, or more, so that no page that lies in the prompt is divided where the algorithm refuses that. */
static int32_t whole_pages(int32_t prompt, int32_t len, int32_t n)
{
    const int32_t unit = sl_engine_prompt_unit(f.engine), whole = prompt - prompt % unit;
    return len + n < whole ? (len + n + unit - 1) / unit * unit - len : n;
}

/* Tokens of the text, and after them drafts that are wrong. */
static void choose_tokens(turn *t, stream *s)
{
    const int32_t len = sl_engine_seq_len(s->run.seq), left = LENGTH - len, rest = s->prompt - len;
    int32_t most = !s->hot && rest > 0 ? 40 : MOST;
    if (selects_prompts() && rest > 0 && rest < most)
        most = rest;
    *t = (turn){.s = s, .from = len, .n = 1 + (int32_t)roll((uint64_t)most)};
    t->n = whole_pages(s->prompt, len, t->n < left ? t->n : left);
    const bool drafts = roll(4) != 0 && (!selects_prompts() || rest <= 0);
    t->right = drafts ? (int32_t)roll((uint64_t)t->n + 1) : t->n;
    if (has_states() && t->right < t->n - MOST) /* further back they are not kept */
        t->right = t->n - MOST;
    for (int32_t k = 0; k < t->n; k++) {
        const int32_t is = s->want.ids[len + k], off = 1 + (int32_t)roll((uint64_t)f.cfg->vocab_size - 1);
        t->tokens[k] = k < t->right ? is : (is + off) % f.cfg->vocab_size;
    }
}

/* The logits of the tokens that have only the text's tokens before them, themselves included. */
static void check_logits(const turn *t, const sl_step_item *it)
{
    for (int32_t k = 0; k < it->want_logits; k++) {
        const int32_t at = t->n - it->want_logits + k;
        const sl_key want = t->s->want.logits[t->from + at];
        const float *logits = it->logits + (int64_t)k * f.cfg->vocab_size;
        for (int32_t v = 0; v < f.cfg->vocab_size; v++)
            MUST(logits[v] == logits[v]);
        if (at < t->right && want.lo && !sl_key_eq(want, fix_hash(&f, logits)))
            ck_abort_msg("stream %d differs at position %d, token %d of %d", (int)(t->s - streams),
                         t->from + at, at, t->n);
    }
}

/* Takes back the wrong tokens, and from time to time right ones too. */
static void settle(const turn *t)
{
    sl_err err = {0};
    stream *s = t->s;
    const bool fewer = roll(6) == 0 && (!selects_prompts() || t->from >= s->prompt);
    int32_t keep = fewer ? (int32_t)roll((uint64_t)t->right + 1) : t->right;
    keep = has_states() && keep < t->n - MOST ? t->n - MOST : keep;
    const int32_t len = t->from + keep;
    if (keep < t->n) {
        must(sl_engine_seq_truncate(f.engine, s->run.seq, len, &err), &err);
        truncated += t->n - keep;
        crossed += (t->from + t->n - 1) / SL_PAGE_TOKENS > (len > 0 ? len - 1 : 0) / SL_PAGE_TOKENS;
    }
    MUST(sl_engine_seq_len(s->run.seq) == len);
    if (len < LENGTH) {
        shake(s);
        return;
    }
    check_pages(s);
    fix_seq_close(&f, &s->run, false);
    s->open = false;
}

static void one_step(void)
{
    static turn turns[STREAMS];
    sl_step_item items[STREAMS];
    sl_err err = {0};
    int n = 0;
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &streams[i];
        if (!s->open && roll(3) == 0)
            begin(s);
        if (!s->open || roll(6) == 0)
            continue;
        turn *t = &turns[n];
        choose_tokens(t, s);
        fix_grow(&f, &s->run, t->from + t->n);
        items[n++] = (sl_step_item){.seq = s->run.seq,
                                    .tokens = t->tokens,
                                    .n_tokens = t->n,
                                    .want_logits = t->n > MOST ? (int32_t)roll(2)
                                                   : roll(3)   ? t->n
                                                               : (int32_t)roll((uint64_t)t->n + 1)};
    }
    if (n == 0)
        return;
    must(sl_engine_step(f.engine, items, n, NULL, &err), &err);
    for (int i = 0; i < n; i++) {
        MUST(!items[i].want_logits == !items[i].logits);
        check_logits(&turns[i], &items[i]);
    }
    for (int i = 0; i < n; i++)
        settle(&turns[i]);
}

/* ---- tests ---- */

static sl_channels channels;

/* Any table of channels will do. */
static void make_channels(const char *dir)
{
    static int32_t of[1 << 12];
    sl_model_config cfg;
    sl_err err = {0};
    must(sl_model_config_load(dir, &cfg, &err), &err);
    const int32_t n = cfg.n_layers * cfg.attn.n_kv_heads * cfg.attn.v_head_dim;
    ck_assert_int_le(n, (int)SL_COUNT(of));
    for (int32_t i = 0; i < n; i++)
        of[i] = i % cfg.attn.v_head_dim;
    channels = (sl_channels){.n_layers = cfg.n_layers,
                             .kv_heads = cfg.attn.n_kv_heads,
                             .head_dim = cfg.attn.v_head_dim,
                             .count = cfg.attn.v_head_dim,
                             .hash = 1,
                             .of = of};
}

static void open_kind(const kind *k)
{
    fix_opts o = k->o;
    const int32_t spare = (MOST - 1 + k->block - 1) / k->block;
    o.threads = 1, o.max_seqs = o.max_hot = STREAMS, o.max_tokens = o.max_context = CONTEXT;
    o.item_tokens = MOST;
    o.tail_rows = (2 * spare + 1) * k->block;
    sl_model_config cfg;
    sl_err err = {0};
    must(sl_model_config_load(o.dir, &cfg, &err), &err);
    o.hot_rows = MOST * (k->list ? k->list : cfg.index.topk);
    o.hot_rows = o.hot_rows < CONTEXT ? o.hot_rows : CONTEXT;
    if (strcmp(o.algorithm, "double_sparsity") == 0) {
        make_channels(o.dir);
        o.select.channels = &channels;
    }
    fix_open(&f, &o);
    ck_assert_int_le(f.cfg->n_layers, LAYERS);
}

START_TEST(steps_of_several_tokens_that_are_taken_back)
{
    sl_engine_stats before, after;
    open_kind(&kinds[_i]);
    rng = 7000 + (uint64_t)_i; /* so a new kind is the last one: the others keep their numbers */
    truncated = crossed = 0;
    for (int i = 0; i < STREAMS; i++)
        make_text(&streams[i], i);
    const int32_t pages = f.n_free;
    sl_engine_stats_get(f.engine, &before);
    const bool evicts =
        f.cfg->index.topk > 0 && f.eo.hot_rows < CONTEXT; /* the others read few different rows */
    after = before;
    for (int i = 0;
         i < STEPS || (i < MOST_STEPS && (crossed == 0 || (evicts && after.evictions == before.evictions)));
         i++) {
        one_step();
        sl_engine_stats_get(f.engine, &after);
    }
    ck_assert_int_gt(truncated, STEPS / 2);
    ck_assert_int_gt(crossed, 0);
    if (strcmp(kinds[_i].o.dir, MODEL("v4-odd"))) { /* whose entries are not swapped in */
        ck_assert_uint_gt(after.misses, before.misses);
        ck_assert_uint_gt(after.tail_hits, before.tail_hits);
    }
    if (evicts)
        ck_assert_uint_gt(after.evictions, before.evictions);
    if (f.eo.graphs == SL_GRAPHS_PAD)
        ck_assert_uint_gt(after.decode_steps, before.decode_steps + STEPS / 20);
    for (int i = 0; i < STREAMS; i++) {
        if (streams[i].open)
            fix_seq_close(&f, &streams[i].run, true);
        drop_pages(&streams[i], 0);
    }
    ck_assert_int_eq(f.n_free, pages);
    fix_close(&f);
}
END_TEST

START_TEST(every_algorithm_is_here)
{
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++) {
        bool found = false;
        for (size_t i = 0; i < SL_COUNT(kinds); i++)
            found |= strcmp(kinds[i].o.algorithm, (*a)->name) == 0;
        ck_assert_msg(found, "no kind with %s", (*a)->name);
    }
}
END_TEST

/*
 * Wrong tokens overwrite the oldest rows of the tail. All tokens of a step are wrong and taken back, at every place of a short text,
 * of which every row and entry is still selected; the one token of the next step must not read what lies there now.
 */
START_TEST(rows_that_wrong_tokens_replaced)
{
    enum { SHORT = 80, BEGIN = 5 };
    sl_err err = {0};
    fix_run r = {0};
    fix_text t = {0};
    open_kind(&kinds[_i]);
    if (selects_prompts())
        goto done;
    fix_prompt(&f, &t, BEGIN + 1, 77);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, SHORT);
    fix_feed(&f, &r, &t, BEGIN, BEGIN);
    fix_greedy(&f, &r, &t, SHORT);
    fix_seq_close(&f, &r, false);
    fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, SHORT);
    for (int32_t at = 0; at < SHORT - MOST; at++) {
        int32_t wrong[MOST];
        for (int32_t k = 0; k < MOST; k++)
            wrong[k] = (t.ids[at + k] + 1 + k) % f.cfg->vocab_size;
        sl_step_item it = {.seq = r.seq, .tokens = wrong, .n_tokens = MOST};
        must(sl_engine_step(f.engine, &it, 1, NULL, &err), &err);
        must(sl_engine_seq_truncate(f.engine, r.seq, at, &err), &err);
        it = (sl_step_item){.seq = r.seq, .tokens = t.ids + at, .n_tokens = 1, .want_logits = 1};
        must(sl_engine_step(f.engine, &it, 1, NULL, &err), &err);
        if (at >= BEGIN && !sl_key_eq(t.logits[at], fix_hash(&f, it.logits)))
            ck_abort_msg("other logits after token %d", at);
    }
    fix_seq_close(&f, &r, false);
done:
    fix_close(&f);
}
END_TEST

/* One item of n tokens, with logits of `want`. */
static sl_status step_of(fix_run *r, int32_t n, int32_t want, sl_err *err)
{
    static const int32_t tokens[CONTEXT];
    sl_step_item it = {.seq = r->seq, .tokens = tokens, .n_tokens = n, .want_logits = want};
    return sl_engine_step(f.engine, &it, 1, NULL, err);
}

static void refused(sl_status st, sl_status want, const sl_err *err, const char *says)
{
    ck_assert_int_eq(st, want);
    ck_assert_msg(strstr(err->text, says) != NULL, "\"%s\" does not say %s", err->text, says);
}

START_TEST(what_is_refused)
{
    sl_err err = {0};
    fix_run r = {0};
    open_kind(&kinds[0]);
    sl_engine_opts eo = f.eo;
    eo.hot_rows--;
    fix_refused(&f, &eo, SL_ERR_INVALID, "longest selections of 5 tokens");
    eo = f.eo, eo.tail_rows--;
    fix_refused(&f, &eo, SL_ERR_INVALID, "5 tokens of a sequence in one step need 9");
    eo = f.eo, eo.max_item_tokens = SL_RUN_TOKENS_MAX + 1;
    fix_refused(&f, &eo, SL_ERR_INVALID, "max_item_tokens");
    fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, 100);
    refused(step_of(&r, MOST + 1, 1, &err), SL_ERR_UNSUPPORTED, &err, "made for 5");
    refused(step_of(&r, 3, 4, &err), SL_ERR_INVALID, &err, "last 4 of 3");
    must(step_of(&r, 5, 5, &err), &err);
    must(step_of(&r, 3, 0, &err), &err);
    refused(sl_engine_seq_truncate(f.engine, r.seq, 4, &err), SL_ERR_INVALID, &err, "5 are older");
    refused(sl_engine_seq_truncate(f.engine, r.seq, 9, &err), SL_ERR_INVALID, &err, "cannot have 9");
    must(sl_engine_seq_truncate(f.engine, r.seq, 6, &err), &err);
    must(sl_engine_seq_truncate(f.engine, r.seq, 5, &err), &err);
    ck_assert_int_eq(sl_engine_seq_len(r.seq), 5);
    fix_seq_close(&f, &r, false);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 100); /* a spill keeps only a short tail */
    must(step_of(&r, 50, 1, &err), &err);
    must(sl_engine_seq_spill(f.engine, r.seq, &err), &err);
    refused(sl_engine_seq_truncate(f.engine, r.seq, 45, &err), SL_ERR_INVALID, &err, "46 are older");
    must(sl_engine_seq_truncate(f.engine, r.seq, 46, &err), &err);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    fix_opts o = kinds[0].o; /* an engine for steps of one token */
    o.max_hot = 1, o.tail_rows = 1;
    fix_open(&f, &o);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 100);
    must(step_of(&r, 3, 1, &err), &err);
    refused(sl_engine_seq_truncate(f.engine, r.seq, 2, &err), SL_ERR_UNSUPPORTED, &err, "one token");
    fix_seq_close(&f, &r, false);
    fix_seq_open(&f, &r, SL_HIERARCHICAL, 0, 100);
    refused(step_of(&r, 2, 1, &err), SL_ERR_UNSUPPORTED, &err, "made for 1");
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("several");
    TCase *c = tcase_create("several");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, steps_of_several_tokens_that_are_taken_back, 0, SL_COUNT(kinds));
    tcase_add_test(c, every_algorithm_is_here);
    tcase_add_loop_test(c, rows_that_wrong_tokens_replaced, 0, SL_COUNT(kinds));
    tcase_add_test(c, what_is_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
