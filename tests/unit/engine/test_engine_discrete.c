/*
 * The engine on a device whose memory the host cannot access and whose work completes later (discrete.h). So what a GPU requires of the
 * engine and the coordinator is tested on any machine.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "discrete.h"
#include "fix.h"
#include "tests/unit/run_suite.h"

#define YARN "tests/golden/model/ds-yarn"
#define SHARE "tests/golden/model/glm-share"
#define LLAMA "tests/golden/model/llama-rope3"

static fix f;
static fix_text ref, text;

/* WHOLE: hot rows for a whole context. From SELECTS_ONCE on, kinds that select at the end of a prompt. */
enum { KINDS = 10, SELECTS_ONCE = 6, WHOLE = 300 };

/* Latent rows with and without shared lists, then grouped-query attention: lists per KV head of blocks and of tokens,
 * lists by position, no lists at all where sequences are resident, and lists of what a prompt keeps, and lists by clusters and by
 * codes, some of which are made when a request is longer than its prompt. */
static fix_opts kind_of(int i)
{
    fix_opts o = {.dir = YARN};
    if (i == 1)
        o.dir = SHARE, o.rows = SL_ROW_MLA_FP8, o.index = SL_INDEX_OFFICIAL;
    if (i < 2)
        return o;
    o = (fix_opts){
        .dir = LLAMA, .rows = SL_ROW_GQA_BF16, .act = SL_BF16, .algorithm = "quest", .hot_rows = 64};
    o.select = (select_params){.token_budget = 64, .block_tokens = i == 2 ? 16 : 1};
    if (i == 4)
        o.algorithm = "streaming_llm", o.hot_rows = 44,
        o.gates = (sl_gates){.sink_tokens = 4, .recent_tokens = 40};
    if (i == 5)
        o.algorithm = "skip_softmax", o.hot_rows = WHOLE, o.select.skip_factor = 60;
    if (i >= SELECTS_ONCE)
        o.select = (select_params){.prompt_budget = 64, .window = 16};
    if (i == 6)
        o.algorithm = "snapkv", o.hot_rows = 84, o.select.output_tokens = 20;
    if (i == 7)
        o.algorithm = "rocket_kv", o.hot_rows = 40, o.select.retained_page = 4, o.select.top_pages = 10;
    if (i >= 8)
        o.select = (select_params){.token_budget = 48, .niter = 3};
    if (i == 8)
        o.algorithm = "cluster_kv", o.hot_rows = 64, o.select.cluster_tokens = 4,
        o.select.cluster_window = 16, o.select.window_nlist = 3;
    if (i == 9)
        o.algorithm = "pq_cache", o.hot_rows = 48, o.select.n_subbits = 3, o.select.recent_ratio = 0.25f;
    return o;
}

typedef struct watch {
    int32_t next;
} watch;

static void on_layer(void *ctx, int32_t layer)
{
    watch *w = ctx;
    MUST(layer == w->next);
    w->next++;
}

START_TEST(same_bits_without_shared_memory)
{
    fix_opts o = kind_of(_i);
    o.max_hot = 1, o.tail_rows = 3, o.max_context = WHOLE;
    fix_open(&f, &o);
    fix_reference(&f, &ref, 150, 220, 21);
    fix_close(&f);

    o.wrap = discrete_wrap;
    fix_open(&f, &o);
    fix_run r = {0};
    const int32_t from =
        _i >= SELECTS_ONCE ? 150 : 149; /* the prompt must be complete before it is spilled */
    text = ref, text.n = from + 1;
    memset(text.logits, 0, sizeof text.logits);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, 150, 150);
    fix_feed(&f, &r, &text, 100, 40);
    fix_seq_close(&f, &r, true); /* prefix reuse: copies to the device */
    fix_prompt_open(&f, &r, SL_RESIDENT, 100, 150, 150);
    fix_feed(&f, &r, &text, from, 30);
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
    fix_greedy(&f, &r, &text, 190);
    fix_seq_close(&f, &r, true); /* what was selected at the prompt's end is in the pages */
    fix_prompt_open(&f, &r, SL_HIERARCHICAL, 189, 220, 150);
    fix_greedy(&f, &r, &text, 220);
    for (int32_t i = from; i < 220; i++)
        MUST(text.ids[i] == ref.ids[i] && sl_key_eq(text.logits[i], ref.logits[i]));
    sl_engine_stats s;
    sl_engine_stats_get(f.engine, &s);
    ck_assert_uint_gt(s.misses, 0);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* Batches of every size while sequences join, leave and grow into longer contexts, with fewer graphs than
 * shapes. */
START_TEST(graphs_have_the_bits_of_single_ops)
{
    enum { N = 6, FROM = 40, TO = 70 };
    static fix_text want[N], got[N];
    fix_opts o = kind_of(_i);
    o.max_seqs = o.max_hot = N, o.tail_rows = 3, o.max_context = 1300;
    if (o.hot_rows == WHOLE)
        o.hot_rows = o.max_context;
    fix_open(&f, &o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], i == 2 ? 1000 : FROM + 3 * i, i == 2 ? 1000 + TO - FROM : TO + 3 * i,
                      30 + (uint64_t)i);
    fix_close(&f);

    o.wrap = discrete_wrap, o.max_graphs = 4, o.groups = _i == 1 ? 3 : 1;
    fix_open(&f, &o);
    int made = 0;
    fix_run r[N] = {0};
    discrete.launches = discrete.stream_waits = 0;
    for (int i = 0; i < N; i++)
        got[i] = want[i], got[i].n = 0;
    for (int s = 0; s < TO - FROM - 1; s++) {
        sl_step_item items[N];
        int who[N], n = 0;
        for (int i = 0; i < N; i++) {
            int32_t prompt = i == 2 ? 1000 : FROM + 3 * i;
            if (!r[i].seq && s / 3 >= i) { /* they join one after the other */
                fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, prompt, prompt);
                fix_feed(&f, &r[i], &got[i], prompt, 128);
                if (i % 2 == 0)
                    ck_assert_int_eq(sl_engine_seq_spill(f.engine, r[i].seq, NULL), SL_OK);
            }
            if (!r[i].seq || (s + i) % 5 == 0)
                continue;
            int32_t at = sl_engine_seq_len(r[i].seq);
            fix_grow(&f, &r[i], at + 1);
            who[n] = i;
            items[n++] = (sl_step_item){
                .seq = r[i].seq, .tokens = want[i].ids + at, .n_tokens = 1, .want_logits = (s + i) % 4 != 0};
        }
        if (n == 0)
            continue;
        sl_err err = {0};
        ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
        for (int k = 0; k < n; k++) {
            int32_t at = sl_engine_seq_len(r[who[k]].seq) - 1;
            MUST(!items[k].logits == !items[k].want_logits);
            if (items[k].logits && !sl_key_eq(fix_hash(&f, items[k].logits), want[who[k]].logits[at]))
                ck_abort_msg("sequence %d differs at %d, batch of %d", who[k], at, n);
        }
        made = made > discrete.tapes ? made : discrete.tapes;
    }
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_int_eq(made, 4); /* never more than allowed, so graphs were replaced */
    ck_assert_uint_gt(st.graph_captures, 4);
    ck_assert_uint_eq(st.graph_steps, (uint64_t)discrete.launches);
    ck_assert_int_gt(discrete.launches, 10);
    ck_assert(_i == 1 ? discrete.stream_waits > 100 : discrete.stream_waits == 0);
    /* by the device's clock; here a gather on the side stream runs when the main stream waits for it */
    ck_assert(st.swap_ns > 0 && st.swap_exposed_ns > 0 && st.swap_ns >= st.swap_exposed_ns);
    ck_assert(st.swap_ns < st.step_ns && st.attend_ns == 0);
    ck_assert_uint_ge(st.decode_steps, st.graph_steps);
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
    ck_assert_int_eq(discrete.tapes, 0);
}
END_TEST

/* Decode steps of 1 to 3 tokens of each sequence, of which the last ones may be wrong and are taken back: as graphs that
 * are launched again with other runs, and with hot rows in groups. */
START_TEST(graphs_of_several_tokens)
{
    enum { N = 4, FROM = 40, TO = 90, MOST = 3 };
    static fix_text want[N];
    fix_opts o = kind_of(_i);
    const int32_t block = _i == 2 ? 16 : 1, spare = (MOST - 1 + block - 1) / block;
    o.max_seqs = o.max_hot = N, o.tail_rows = (2 * spare + 1) * block, o.max_context = 700;
    o.hot_rows = o.hot_rows == WHOLE ? o.max_context : o.hot_rows ? MOST * o.hot_rows : MOST * 16;
    fix_open(&f, &o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], FROM + 3 * i, TO + 3 * i, 60 + (uint64_t)i);
    fix_close(&f);

    o.wrap = discrete_wrap, o.item_tokens = MOST, o.groups = _i == 1 ? 3 : 1;
    fix_open(&f, &o);
    fix_run r[N] = {0};
    int again = 0; /* steps of several tokens of a sequence that were one launch */
    discrete.launches = discrete.stream_waits = 0;
    for (int i = 0; i < N; i++) {
        text = want[i], text.n = 0;
        fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, FROM + 3 * i, FROM + 3 * i);
        fix_feed(&f, &r[i], &text, FROM + 3 * i, 128);
        if (i % 2 == 0)
            ck_assert_int_eq(sl_engine_seq_spill(f.engine, r[i].seq, NULL), SL_OK);
    }
    for (int s = 0; s < 40; s++) {
        sl_step_item items[N];
        int32_t tokens[N][MOST], right[N];
        int who[N], n = 0, before = discrete.launches;
        for (int i = 0; i < N; i++) {
            /* shapes of as many tokens: four sequences of one, and two of two */
            const int32_t at = sl_engine_seq_len(r[i].seq),
                          count = s % 4 > 1 ? 1 + (s / 2 + i) % MOST : 1 + s % 4;
            if (at + count > TO + 3 * i || (s % 4 > 1 && (s + i) % 5 == 0) || (s % 4 == 1 && i > 1))
                continue;
            right[n] = (s + i) % 3 ? (count + 1) / 2 : count;
            for (int32_t k = 0; k < count; k++)
                tokens[n][k] = (want[i].ids[at + k] + (k < right[n] ? 0 : 1 + s)) % f.cfg->vocab_size;
            fix_grow(&f, &r[i], at + count);
            who[n] = i;
            items[n] =
                (sl_step_item){.seq = r[i].seq, .tokens = tokens[n], .n_tokens = count, .want_logits = count};
            n++;
        }
        if (n == 0)
            continue;
        sl_err err = {0};
        ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
        bool several = false;
        for (int k = 0; k < n; k++) {
            const int32_t at = sl_engine_seq_len(r[who[k]].seq) - items[k].n_tokens;
            several |= items[k].n_tokens > 1;
            for (int32_t j = 0; j < right[k]; j++)
                if (!sl_key_eq(fix_hash(&f, items[k].logits + (int64_t)j * f.cfg->vocab_size),
                               want[who[k]].logits[at + j]))
                    ck_abort_msg("sequence %d differs at %d, token %d of %d", who[k], at + j, j,
                                 items[k].n_tokens);
            ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r[who[k]].seq, at + right[k], NULL), SL_OK);
        }
        again += several && discrete.launches > before;
    }
    ck_assert_int_gt(again, 5);
    ck_assert(_i == 1 ? discrete.stream_waits > 30 : discrete.stream_waits == 0);
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

static void on_capture(void *ctx, int32_t n, int32_t of)
{
    int32_t *seen = ctx;
    ck_assert_int_eq(n, *seen + 1);
    ck_assert_int_le(n, of);
    *seen = n;
}

/* Capturing ahead changes no cache, and then no step is run op by op. */
START_TEST(graphs_can_be_captured_ahead)
{
    fix_opts o = {
        .dir = YARN, .max_seqs = 3, .max_hot = 1, .tail_rows = 3, .max_context = 1300, .wrap = discrete_wrap};
    fix_open(&f, &o);
    fix_run r = {0};
    int32_t seen = 0;
    sl_engine_stats a, b;
    fix_prompt(&f, &text, 40, 5);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 60);
    fix_feed(&f, &r, &text, 39, 40);
    ck_assert_int_eq(sl_engine_capture(f.engine, 100, 1300, on_capture, &seen, NULL), SL_OK);
    sl_engine_stats_get(f.engine, &a);
    ck_assert_int_eq(seen, 6); /* batches of 1, 2, 3 up to 1024 and up to 1300 tokens */
    ck_assert_uint_eq(a.graph_captures, 6);
    ck_assert_uint_eq(a.hits + a.misses + a.tail_hits, 0);
    fix_greedy(&f, &r, &text, 60);
    ref = text, ref.n = 40;
    sl_engine_stats_get(f.engine, &b);
    ck_assert_uint_eq(b.graph_captures, 6);
    ck_assert_uint_eq(b.graph_steps, b.decode_steps - a.decode_steps);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    o.wrap = NULL;
    fix_open(&f, &o);
    r = (fix_run){0};
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 60);
    fix_greedy(&f, &r, &ref, 60);
    for (int32_t i = 39; i < 60; i++)
        MUST(ref.ids[i] == text.ids[i]);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* A decode step of the first n sequences, whose logits are those of `want`. */
static void step_of(fix_run *r, const fix_text *want, int n)
{
    sl_step_item items[4];
    for (int i = 0; i < n; i++) {
        const int32_t at = sl_engine_seq_len(r[i].seq);
        fix_grow(&f, &r[i], at + 1);
        items[i] =
            (sl_step_item){.seq = r[i].seq, .tokens = want[i].ids + at, .n_tokens = 1, .want_logits = 1};
    }
    ck_assert_int_eq(sl_engine_submit(f.engine, items, n, NULL, NULL), SL_OK);
    sl_engine_stats before, after;
    sl_engine_stats_get(f.engine, &before);
    ck_assert_int_eq(sl_engine_collect(f.engine, NULL), SL_OK);
    sl_engine_stats_get(f.engine, &after);
    ck_assert_uint_eq(after.graph_captures,
                      before.graph_captures); /* nothing is captured before the tokens are there */
    for (int i = 0; i < n; i++)
        ck_assert(sl_key_eq(fix_hash(&f, items[i].logits), want[i].logits[sl_engine_seq_len(r[i].seq) - 1]));
}

static uint64_t captures(void)
{
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    return st.graph_captures;
}

/* A new shape is captured with the step after it. A smaller batch for a few steps runs in the graph of the larger one, and gets its
 * own when it stays. */
START_TEST(shapes_are_captured_when_it_pays)
{
    enum { N = 4, FROM = 20, TO = 80 };
    static fix_text want[N];
    fix_run r[N] = {0};
    fix_opts o = {.dir = YARN, .max_seqs = N, .max_hot = 1, .tail_rows = 3, .max_context = 1300};
    fix_open(&f, &o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], FROM + i, TO + i, 90 + (uint64_t)i);
    fix_close(&f);
    o.wrap = discrete_wrap;
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        text = want[i], text.n = 0;
        fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, FROM + i, FROM + i);
        fix_feed(&f, &r[i], &text, FROM + i, 128);
    }
    uint64_t made = captures();
    step_of(r, want, 4);
    ck_assert_uint_eq(captures(), made);
    discrete.launches = 0;
    for (int k = 1; k <= 16; k++) {
        step_of(r, want, 2); /* the first of them captures the shape of four */
        ck_assert_int_eq(discrete.launches, k);
        ck_assert_uint_eq(captures(), made + 1);
    }
    step_of(r, want, 2); /* op by op */
    step_of(r, want, 2);
    ck_assert_uint_eq(captures(), made + 2);
    ck_assert_int_eq(discrete.launches, 17);
    step_of(r, want, 1);
    step_of(r, want, 4);
    for (int k = 0; k < 3; k++) {
        step_of(r, want, 1);
        step_of(r, want, 2);
    }
    ck_assert_uint_eq(captures(), made + 2);
    ck_assert_int_eq(discrete.launches, 25);
    ck_assert(!sl_engine_wants_rest(f.engine));
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

START_TEST(layers_are_reported_in_order_when_done)
{
    fix_opts o = {.dir = YARN, .max_context = 300, .wrap = discrete_wrap};
    fix_open(&f, &o);
    fix_run r = {0};
    fix_prompt(&f, &text, 200, 22);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 200);
    for (int32_t at = 0; at < 200; at += 50) {
        watch w = {0};
        sl_step_hooks hooks = {.ctx = &w, .layer_done = on_layer};
        sl_step_item it = {.seq = r.seq, .tokens = text.ids + at, .n_tokens = 50};
        discrete.pending_queries = 0;
        ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, &hooks, NULL), SL_OK);
        ck_assert_int_eq(w.next, f.cfg->n_layers);
        ck_assert_int_eq(discrete.pending_queries, 3 * f.cfg->n_layers); /* each was waited for */
    }
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/discrete");
    TCase *c = tcase_create("discrete");
    tcase_set_timeout(c, 100);
    add_variants(c, same_bits_without_shared_memory, KINDS);
    tcase_add_test(c, layers_are_reported_in_order_when_done);
    add_variants(c, graphs_have_the_bits_of_single_ops, KINDS);
    add_variants(c, graphs_of_several_tokens, KINDS);
    tcase_add_test(c, shapes_are_captured_when_it_pays);
    tcase_add_test(c, graphs_can_be_captured_ahead);
    suite_add_tcase(s, c);
    return run_suite(s);
}
