/*
 * Llama, Qwen 2 and Qwen 3 against Hugging Face transformers, through the engine with dense attention: logits within
 * 1e-4, the same greedy tokens; and bits that do not depend on chunks, on rows being resident, or on the threads. The
 * goldens are made by tests/golden/model/make_gqa.py; run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "strategies.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"
#define TOLERANCE 1e-4

static const char *const cases[] = {
    GOLDEN "llama-rope3", GOLDEN "llama-odd",   GOLDEN "llama-bf16", GOLDEN "qwen2-g7",   GOLDEN "qwen2-mha",
    GOLDEN "qwen2-yarn",  GOLDEN "qwen3-norms", GOLDEN "qwen3-d256", GOLDEN "qwen3-yarn",
};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

enum { CONTEXT = 256, GREEDY = GOLDEN_GREEDY };

static void open_case(fix *f, const char *dir, sl_row_format rows, int threads)
{
    fix_opts o = {.dir = dir,
                  .rows = rows,
                  .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                  .threads = threads,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 2,
                  .max_hot = 1,
                  .hot_rows = CONTEXT,
                  .tail_rows = 3,
                  .algorithm = "dense"};
    fix_open(f, &o);
}

START_TEST(equals_transformers)
{
    fix f;
    open_case(&f, cases[_i], SL_ROW_GQA_F32, 1);
    sl_safetensors *g = golden_open(cases[_i]);
    double worst = 0;
    int prompts = 0;
    for (; golden_part(g, prompts, "ids"); prompts++) {
        fix_run r = {0};
        fix_text want;
        golden_read(g, prompts, &want);
        fix_text t = want;
        const float *golden = golden_part(g, prompts, "logits")->data;
        fix_seq_open(&f, &r, SL_RESIDENT, 0, t.n + GREEDY);
        const float *logits = fix_feed(&f, &r, &t, t.n, 48);
        for (int32_t v = 0; v < f.cfg->vocab_size; v++)
            worst = fmax(worst, fabs((double)logits[v] - (double)golden[v]));
        for (int32_t k = t.n; k < want.n + GREEDY; k++) {
            int32_t id = fix_argmax(&f, logits);
            ck_assert_msg(id == want.ids[k], "prompt %d: greedy token %d is %d, the golden %d", prompts,
                          k - want.n, id, want.ids[k]);
            t.ids[k] = id;
            t.n = k + 1;
            logits = fix_feed(&f, &r, &t, t.n, 1);
        }
        fix_seq_close(&f, &r, false);
    }
    printf("%s: %d prompts, largest difference %.2g\n", cases[_i], prompts, worst);
    ck_assert_int_ge(prompts, 3);
    ck_assert_double_le(worst, TOLERANCE);
    sl_st_close(g);
    fix_close(&f);
}
END_TEST

/* The hash of the logits after every token from the prompt's last one on. spill: the rows move to the host after the
 * prompt. */
static void hashes(fix *f, const fix_text *want, int32_t chunk, bool spill, sl_key *out)
{
    fix_run r = {0};
    fix_text t = *want;
    sl_err err = {0};
    fix_seq_open(f, &r, SL_RESIDENT, 0, want->n + GREEDY);
    out[0] = fix_hash(f, fix_feed(f, &r, &t, want->n, chunk));
    if (spill)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = 1; k <= GREEDY; k++) {
        t.n = want->n + k;
        out[k] = fix_hash(f, fix_feed(f, &r, &t, t.n, 1));
    }
    fix_seq_close(f, &r, false);
}

/* The same bits in one chunk, in chunks of 1 and 7, with another number of threads, and hierarchical. */
START_TEST(bits_do_not_depend_on_the_way)
{
    static const struct {
        int32_t chunk;
        bool spill;
        int threads;
    } ways[] = {{CONTEXT, false, 1}, {1, false, 1}, {7, false, 2}, {64, true, 1}};
    const char *dir = cases[_i / (int)SL_COUNT(formats)];
    sl_row_format rows = formats[_i % (int)SL_COUNT(formats)];
    sl_safetensors *g = golden_open(dir);
    sl_key first[GREEDY + 1], now[GREEDY + 1];
    fix_text t;
    golden_read(g, golden_last(g), &t);
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        fix f;
        open_case(&f, dir, rows, ways[w].threads);
        hashes(&f, &t, ways[w].chunk, ways[w].spill, w ? now : first);
        for (int32_t k = 0; w && k <= GREEDY; k++)
            ck_assert_msg(memcmp(&now[k], &first[k], sizeof now[k]) == 0,
                          "%s, %s: way %zu differs after token %d", dir, sl_row_format_name(rows), w, k);
        fix_close(&f);
    }
    sl_st_close(g);
}
END_TEST

/* A row format of another kind of attention is refused at load. */
START_TEST(refuses_other_rows)
{
    static const struct {
        const char *dir, *says;
        sl_row_format rows;
    } c[] = {{GOLDEN "llama-odd", "row format mla_fp8 does not store keys and values", SL_ROW_MLA_FP8},
             {GOLDEN "ds-odd", "row format gqa_bf16 does not store latent rows", SL_ROW_GQA_BF16}};
    sl_backend_opts bo = {.threads = 1};
    sl_model_opts mo = {.row_format = c[_i].rows, .act = SL_F32, .max_tokens = 8, .max_logit_rows = 1};
    sl_backend *be;
    sl_model *m;
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    ck_assert_int_eq(sl_model_load(be, c[_i].dir, &mo, &m, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, c[_i].dir) && strstr(err.text, c[_i].says), "%s", err.text);
    sl_backend_destroy(be);
}
END_TEST

/* A checkpoint whose rows cannot be of the wanted kind is refused, and so is a selection by an indexer. */
START_TEST(refusals)
{
    fix f;
    sl_err err = {0};
    sl_geometry geo;
    open_case(&f, cases[0], SL_ROW_GQA_F32, 1);
    sl_cache_dims d = sl_engine_cache_dims(f.cfg, SL_ROW_MLA_BF16, SL_INDEX_PLAIN);
    ck_assert_int_eq(
        sl_engine_geometry(f.cfg, &d, &sl_algo_dense, SL_LAYOUT_PAGE_FIRST, (sl_key){1, 1}, &geo, &err),
        SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "mla_bf16") && strstr(err.text, "kv_lora_rank"), "%s", err.text);
    sl_engine *e;
    sl_engine_opts eo = f.eo;
    eo.algorithm = &sl_algo_dsa;
    ck_assert_int_eq(sl_engine_create(f.be, f.model, f.arena, &eo, &e, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "dsa") && strstr(err.text, "indexer"), "%s", err.text);
    eo = f.eo;
    eo.hot_rows = CONTEXT - 1;
    ck_assert_int_eq(sl_engine_create(f.be, f.model, f.arena, &eo, &e, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "hot_rows"), "%s", err.text);
    fix_close(&f);
}
END_TEST

Suite *gqa_suite(void)
{
    Suite *s = suite_create("engine/gqa");
    TCase *t = tcase_create("gqa");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, equals_transformers, 0, SL_COUNT(cases));
    add_variants(t, bits_do_not_depend_on_the_way, (int)(SL_COUNT(cases) * SL_COUNT(formats)));
    tcase_add_loop_test(t, refuses_other_rows, 0, 2);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return s;
}
