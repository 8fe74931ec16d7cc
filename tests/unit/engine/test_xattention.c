/*
 * xattention through the real engine. Every list of every page of a prompt is compared with a restatement of the definition in double
 * precision, which reads the keys from the host pages and shares no code with the op or the algorithm; lists of everything give the
 * bits of dense attention; and the bits do not depend on chunks, threads, the batch, residency, slot reuse or prefix reuse. A step
 * that divides a page of a prompt is refused, and changes nothing. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "strategies.h"
#include "tests/unit/run_suite.h"
#include "witness.h"

enum {
    CONTEXT = 640,
    PROMPT = 570,
    LENGTH = 590,
    PAGE = SL_PAGE_TOKENS,
    WHOLE = PROMPT / PAGE * PAGE,
    PAGES = CONTEXT / PAGE,
    STRIP = 16,
    STRIPS = PAGE / STRIP
};

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
static const float masses[] = {0.3f, 0.6f, 0.85f, 0.05f};

enum { RUNS = 6 };

static fix_opts opts_of(int i)
{
    const sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    return (fix_opts){.dir = models[i % (int)SL_COUNT(models)],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = CONTEXT,
                      .max_context = CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = CONTEXT,
                      .tail_rows = 3,
                      .layout = (sl_layout)(i % 3),
                      .select = {.list_mass = masses[(i + i / 4) % (int)SL_COUNT(masses)]},
                      .algorithm = "xattention"};
}

/* ---- the definition ---- */

static witness *watched;
static int64_t n_shorter; /* lists that leave pages out */

static double product(const float *q, const float *k, int32_t dim)
{
    double sum = 0;
    for (int32_t i = 0; i < dim; i++)
        sum += (double)q[i] * (double)k[i];
    return sum;
}

/* The sum over 16 places of the products of a strip of queries, of one head, with a strip of keys read backwards. */
static double strip_product(const sl_attn_call *c, int32_t t, int32_t head, int32_t strip, int32_t layer,
                            int32_t kv_head)
{
    const int32_t dim = c->gqa.attn.dim, heads = c->gqa.attn.heads;
    double sum = 0;
    for (int32_t r = 0; r < STRIP; r++) {
        float k[WITNESS_MAX_DIM];
        witness_key(watched, layer, strip * STRIP + STRIP - 1 - r, kv_head, k);
        sum += product(c->gqa.attn.q + ((int64_t)(t + r) * heads + head) * dim, k, dim);
    }
    return sum;
}

/* Adds the softmax of n values to the sums of their pages. */
static void add_weights(const double *a, int32_t n, double *scores)
{
    double most = -INFINITY, all = 0;
    for (int32_t j = 0; j < n; j++)
        most = fmax(most, a[j]);
    for (int32_t j = 0; j < n; j++)
        all += exp(a[j] - most);
    for (int32_t j = 0; j < n; j++)
        scores[j / STRIPS] += exp(a[j] - most) / all;
}

/* How much the 64 tokens from step token t on, page b of their sequence, attend to pages 0 .. b. */
static void score_pages(const sl_attn_call *c, int32_t t, int32_t b, int32_t kv_head, double *scores)
{
    const int32_t group = c->gqa.attn.heads / c->gqa.attn.kv_heads;
    memset(scores, 0, (size_t)(b + 1) * sizeof *scores);
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int32_t m = 0; m < STRIPS; m++) {
            const int32_t n = STRIPS * b + m + 1;
            double a[PAGES * STRIPS];
            for (int32_t j = 0; j < n; j++)
                a[j] = (double)c->gqa.attn.scale / STRIP *
                       strip_product(c, t + m * STRIP, h, j, c->layer, kv_head);
            add_weights(a, n, scores);
        }
}

/* Whether the gates say that page p is in every list of page b. */
static bool is_forced(int32_t p, int32_t b)
{
    const sl_gates *g = &watched->f->o.gates;
    const int32_t sinks = g->sink_tokens > 1 ? g->sink_tokens : 1,
                  recent = g->recent_tokens > 1 ? g->recent_tokens : 1;
    return p * PAGE < sinks || (p + 1) * PAGE > (b + 1) * PAGE - recent;
}

/* Ascending, with the forced pages; the others are the best ones, and no more of them than the share needs. */
static void check_list(const int32_t *ids, int32_t ld, int32_t b, const double *scores)
{
    const double mass = (double)watched->f->o.select.list_mass;
    double all = 0, kept = 0, least = INFINITY, most = 0;
    bool in[PAGES] = {false};
    int32_t n = 0;
    for (; n < ld && ids[n] >= 0; n++) {
        MUST(ids[n] <= b && (n == 0 || ids[n] > ids[n - 1]));
        in[ids[n]] = true;
    }
    for (int32_t i = n; i < ld; i++)
        MUST(ids[i] == -1);
    n_shorter += n < b + 1;
    for (int32_t p = 0; p <= b; p++) {
        all += scores[p], kept += in[p] ? scores[p] : 0;
        MUST(in[p] || !is_forced(p, b));
        if (in[p] && !is_forced(p, b))
            least = fmin(least, scores[p]);
        if (!in[p])
            most = fmax(most, scores[p]);
    }
    const double slack = 1e-4 * all;
    MUST(most <= least + slack);
    MUST(kept >= mass * all - slack);
    MUST(isinf(least) || kept - least < mass * all + slack);
}

/* A token of a whole page from page 2 on has the list of its page, unless all of its pages are forced; every other one has none. */
static sl_status seen_lists(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                            sl_gqa_prompt_lists *out, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t kv_heads = c->gqa.attn.kv_heads;
    SL_TRY(sl_algo_xattention.prompt_lists(a, call, first, count, out, err));
    for (int32_t t = first; t < first + count; t++) {
        const int32_t pos = c->seqs->token_pos[t], list = out->of ? out->of[t - first] : -1;
        double scores[PAGES];
        const bool selects = pos >= 2 * PAGE && pos < WHOLE;
        MUST(list < 0 || selects);
        for (int32_t p = 0; selects && list < 0 && p <= pos / PAGE; p++)
            MUST(is_forced(p, pos / PAGE));
        if (list < 0 || pos % PAGE) {
            MUST(list < 0 || list == out->of[t - first - 1]);
            continue;
        }
        for (int32_t h = 0; h < kv_heads; h++) {
            score_pages(c, t, pos / PAGE, h, scores);
            check_list(out->pages + ((int64_t)list * kv_heads + h) * out->ld, out->ld, pos / PAGE, scores);
            watched->lists++;
        }
    }
    return SL_OK;
}

START_TEST(equals_definition)
{
    static const sl_gates gates[] = {{0}, {.sink_tokens = 65, .recent_tokens = 70}, {.recent_tokens = 64}};
    static sl_algo_desc witnessed;
    fix f;
    fix_run r = {0};
    fix_text t;
    witness w = {.f = &f, .run = &r};
    fix_opts o = opts_of(_i);
    witnessed = sl_algo_xattention, witnessed.prompt_lists = seen_lists;
    watched = &w, n_shorter = 0;
    o.desc = &witnessed, o.gates = gates[_i % (int)SL_COUNT(gates)];
    fix_open(&f, &o);
    fix_prompt(&f, &t, LENGTH, 77 + (uint64_t)_i);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
    fix_feed(&f, &r, &t, LENGTH, _i % 2 ? CONTEXT : 200);
    ck_assert_int_ge(w.lists, (int64_t)f.cfg->n_layers * f.cfg->attn.n_kv_heads * (WHOLE / PAGE - 4));
    ck_assert_int_gt(n_shorter, w.lists / 4);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* ---- the same bits on every way ---- */

/* The hashes of the logits from the prompt's last token on. */
static void hashes(fix *f, fix_run *r, fix_text *t, int32_t from, int32_t chunk, sl_key *out)
{
    for (int32_t n = from; n <= LENGTH; n++)
        out[n] = fix_hash(f, fix_feed(f, r, t, n, n == from ? chunk : 1));
}

static void same(const sl_key *a, const sl_key *b, int32_t from, const char *what)
{
    for (int32_t n = from; n <= LENGTH; n++)
        ck_assert_msg(sl_key_eq(a[n], b[n]), "%s: logits differ after token %d", what, n);
}

/* Resident, the prompt in one step. */
static void reference(const fix_opts *o, uint64_t seed, sl_key *out, sl_engine_stats *s)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    fix_prompt(&f, &t, LENGTH, seed);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
    hashes(&f, &r, &t, PROMPT, CONTEXT, out);
    if (s)
        sl_engine_stats_get(f.engine, s);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

/* With 0 and 1 there are no lists; with a share of nearly 1 there are lists, of all pages. */
START_TEST(everything_is_dense)
{
    static const float whole[] = {0, 1, 0.99999f};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    sl_engine_stats s;
    fix_opts o = opts_of(_i);
    o.algorithm = "dense", o.select = (select_params){0};
    reference(&o, 3, want, NULL);
    for (size_t i = 0; i < SL_COUNT(whole); i++) {
        o = opts_of(_i), o.select.list_mass = whole[i];
        reference(&o, 3, got, &s);
        same(want, got, PROMPT, "dense");
        ck_assert_int_eq(s.tiles > 0, i == 2);
        ck_assert_uint_eq(s.tiles_skipped, 0);
    }
    o = opts_of(_i);
    reference(&o, 3, got, &s);
    ck_assert_uint_gt(s.tiles_skipped, 0);
    ck_assert_uint_lt(s.tiles_skipped, s.tiles);
    ck_assert(!sl_key_eq(want[PROMPT], got[PROMPT])); /* otherwise the tests show nothing */
}
END_TEST

/* Gates under which no page can be left out. */
START_TEST(gates_leave_nothing_out)
{
    static const int32_t layers[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const sl_gates gates[] = {{.min_tokens = CONTEXT},
                              {.sink_tokens = CONTEXT},
                              {.recent_tokens = CONTEXT},
                              {.sink_tokens = CONTEXT / 2, .recent_tokens = CONTEXT / 2},
                              {.dense_layers = layers}};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    sl_model_config m;
    fix_opts o = opts_of(0);
    ck_assert_int_eq(sl_model_config_load(o.dir, &m, NULL), SL_OK);
    ck_assert_int_le(m.n_layers, (int)SL_COUNT(layers));
    o.algorithm = "dense", o.select = (select_params){0};
    reference(&o, 4, want, NULL);
    for (size_t i = 0; i < SL_COUNT(gates); i++) {
        o = opts_of(0), o.gates = gates[i];
        o.gates.n_dense_layers = gates[i].dense_layers ? m.n_layers : 0;
        reference(&o, 4, got, NULL);
        same(want, got, PROMPT, "gates");
    }
}
END_TEST

/* Chunks of whole pages, and chunks that reach beyond the prompt's end, as when a request is computed again with the tokens that it
 * had generated. */
START_TEST(chunks_and_threads_do_not_matter)
{
    static const int32_t chunks[] = {64, 128, 192, 7}, to[] = {PROMPT, PROMPT, LENGTH - 3, PROMPT + 2};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    reference(&o, 5, want, NULL);
    for (size_t k = 0; k < SL_COUNT(chunks); k++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        o.threads = 1 + (int)k % 2;
        fix_open(&f, &o);
        fix_prompt(&f, &t, LENGTH, 5);
        fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
        hashes(&f, &r, &t, to[k], chunks[k], got);
        same(want, got, to[k], "chunks");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1], other[LENGTH + 1];
    sl_err err = {0};
    fix f;
    fix_opts o = opts_of(_i);
    reference(&o, 9, want, NULL);
    fix_open(&f, &o);
    for (int round = 0; round < 2; round++) {
        fix_run r = {0};
        fix_text t;
        fix_prompt(&f, &t, LENGTH, round ? 9 : 1234);
        fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
        fix_feed(&f, &r, &t, PROMPT, 128);
        ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
        hashes(&f, &r, &t, PROMPT + 1, 1, round ? got : other);
        fix_seq_close(&f, &r, false);
    }
    same(want, got, PROMPT + 1, "hierarchical");
    fix_close(&f);
}
END_TEST

/* Whole pages of another prompt that begins alike are continued; and pages of the whole prompt are opened as a decode worker does,
 * hierarchical at once, also with tokens after the prompt. */
START_TEST(pages_of_others_are_continued)
{
    static const int32_t cuts[] = {64, 192, WHOLE, PROMPT, PROMPT + 9};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    reference(&o, 31, want, NULL);
    for (size_t k = 0; k < SL_COUNT(cuts); k++) {
        const bool whole = cuts[k] >= PROMPT;
        const int32_t theirs = whole ? PROMPT : cuts[k] + 40, from = whole ? cuts[k] + 1 : PROMPT;
        fix f;
        fix_run r = {0};
        fix_text t;
        fix_open(&f, &o);
        fix_prompt(&f, &t, LENGTH, 31);
        fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, theirs);
        fix_feed(&f, &r, &t, whole ? cuts[k] : theirs, CONTEXT);
        fix_seq_close(&f, &r, true);
        fix_prompt_open(&f, &r, whole && k % 2 ? SL_HIERARCHICAL : SL_RESIDENT, cuts[k], LENGTH, PROMPT);
        hashes(&f, &r, &t, from, 128, got);
        same(want, got, from, "pages");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}
END_TEST

/* Two prompts that are being computed, a resident and a hierarchical request, in any order, in the same steps. */
START_TEST(the_batch_does_not_matter)
{
    enum { N = 4 };
    static const int32_t begin[N] = {0, 192, PROMPT + 3, PROMPT + 5};
    static sl_key want[N][LENGTH + 1];
    static fix_text t[N];
    fix f;
    fix_run r[N] = {0};
    sl_step_item items[N];
    sl_err err = {0};
    fix_opts o = opts_of(_i);
    o.max_seqs = N, o.max_tokens = 2 * CONTEXT;
    for (int i = 0; i < N; i++)
        reference(&o, 41 + (uint64_t)i, want[i], NULL);
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        fix_prompt(&f, &t[i], LENGTH, 41 + (uint64_t)i);
        fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, LENGTH, PROMPT);
        if (begin[i])
            fix_feed(&f, &r[i], &t[i], begin[i], 64);
    }
    ck_assert_msg(sl_engine_seq_spill(f.engine, r[3].seq, &err) == SL_OK, "%s", err.text);
    for (int32_t step = 0; step < 10; step++) {
        for (int k = 0; k < N; k++) {
            const int i = (k + step) % N;
            const int32_t at = sl_engine_seq_len(r[i].seq), left = PROMPT - at, chunk = i ? 64 : 128;
            items[k] = (sl_step_item){.seq = r[i].seq,
                                      .tokens = t[i].ids + at,
                                      .n_tokens = left < 1       ? 1
                                                  : left < chunk ? left
                                                                 : chunk,
                                      .want_logits = true};
        }
        ck_assert_msg(sl_engine_step(f.engine, items, N, NULL, &err) == SL_OK, "%s", err.text);
        for (int k = 0; k < N; k++) {
            const int i = (k + step) % N;
            const int32_t len = sl_engine_seq_len(r[i].seq);
            ck_assert_msg(len < PROMPT || sl_key_eq(fix_hash(&f, items[k].logits), want[i][len]),
                          "request %d differs after token %d", i, len);
        }
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

/* Steps that divide a page are refused with the reason, and the sequence continues as if there had been none. */
START_TEST(a_divided_page_is_refused)
{
    static const int32_t bad[] = {1, 63, 65, 100, WHOLE - 1};
    sl_key want[LENGTH + 1];
    fix f;
    fix_run r = {0};
    fix_text t;
    sl_err err = {0};
    fix_opts o = opts_of(0);
    reference(&o, 6, want, NULL);
    fix_open(&f, &o);
    ck_assert_int_eq(sl_engine_prompt_unit(f.engine), PAGE);
    fix_prompt(&f, &t, LENGTH, 6);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, PROMPT);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_step_item it = {.seq = r.seq, .tokens = t.ids, .n_tokens = bad[i], .want_logits = true};
        ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, "divides a page of 64"), "%s", err.text);
        ck_assert_int_eq(sl_engine_seq_len(r.seq), 0);
    }
    ck_assert(sl_key_eq(fix_hash(&f, fix_feed(&f, &r, &t, PROMPT, 256)), want[PROMPT]));
    fix_seq_close(&f, &r, false);
    /* A cached prefix that ends inside a page of the prompt cannot be continued. */
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, LENGTH, 100);
    fix_feed(&f, &r, &t, 100, CONTEXT);
    fix_seq_close(&f, &r, true);
    fix_prompt_open(&f, &r, SL_RESIDENT, 100, LENGTH, PROMPT);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids + 100, .n_tokens = PROMPT - 100, .want_logits = true};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "a step of tokens 100 to 569 of a prompt of 570 tokens divides a page"),
                  "%s", err.text);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

START_TEST(latent_rows_have_no_kv_heads)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 512, .rope = 64};
    sl_cache_shape shape;
    sl_err err = {0};
    ck_assert_int_eq(sl_algo_cache_shape(&sl_algo_xattention, &d, &shape, &err), SL_ERR_UNSUPPORTED);
    ck_assert_str_eq(
        err.text,
        "sparse algorithm xattention: selects by the keys of KV heads, which rows of mla_bf16 do not have");
}
END_TEST

Suite *xattention_suite(void)
{
    Suite *s = suite_create("engine/xattention");
    TCase *c = tcase_create("xattention");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, RUNS);
    tcase_add_loop_test(c, everything_is_dense, 0, 2);
    tcase_add_test(c, gates_leave_nothing_out);
    tcase_add_loop_test(c, chunks_and_threads_do_not_matter, 1, 3);
    tcase_add_loop_test(c, hierarchical_equals_resident, 0, 1);
    tcase_add_loop_test(c, pages_of_others_are_continued, 2, 3);
    tcase_add_loop_test(c, the_batch_does_not_matter, 1, 2);
    tcase_add_test(c, a_divided_page_is_refused);
    tcase_add_test(c, latent_rows_have_no_kv_heads);
    suite_add_tcase(s, c);
    return s;
}
