/*
 * DeepSeek-V4 against Hugging Face transformers, through the engine: logits within 1e-4 and the same greedy tokens; and bits that
 * do not depend on chunks, on residency, on the threads, on what pages and states held before. The
 * goldens are made by tests/golden/model/make_v4.py; run from the repository's root. tests/e2e/test_families.py has the clusters.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"
#define TOLERANCE 1e-4

static const char *const cases[] = {GOLDEN "v4-flash", GOLDEN "v4-odd", GOLDEN "v4-bf16",
                                    GOLDEN "v4-released", GOLDEN "v4-thirds"};

enum { CONTEXT = 512, GREEDY = GOLDEN_GREEDY };

static void open_case(fix *f, const char *dir, sl_dtype act, int threads)
{
    fix_opts o = {.dir = dir,
                  .rows = act == SL_F32 ? SL_ROW_GQA_F32 : SL_ROW_GQA_BF16,
                  .act = act,
                  .threads = threads,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 3,
                  .max_hot = 1,
                  .hot_rows = CONTEXT,
                  .tail_rows = 3,
                  .algorithm = "dense",
                  .plain_acts = act == SL_F32};
    fix_open(f, &o);
}

static double one_prompt(fix *f, const sl_safetensors *g, int i, int32_t chunk)
{
    const float *golden = golden_part(g, i, "logits")->data;
    double worst = 0;
    fix_run r = {0};
    fix_text want;
    golden_read(g, i, &want);
    fix_text t = want;
    fix_seq_open(f, &r, SL_RESIDENT, 0, t.n + GREEDY);
    const float *logits = fix_feed(f, &r, &t, t.n, chunk);
    for (int32_t v = 0; v < f->cfg->vocab_size; v++)
        worst = fmax(worst, fabs((double)logits[v] - (double)golden[v]));
    for (int32_t k = t.n; k < want.n + GREEDY; k++) {
        int32_t id = fix_argmax(f, logits);
        ck_assert_msg(id == want.ids[k], "prompt %d of %d tokens: greedy token %d is %d, the golden %d", i,
                      want.n, k - want.n, id, want.ids[k]);
        t.ids[k] = id;
        t.n = k + 1;
        logits = fix_feed(f, &r, &t, t.n, 1);
    }
    fix_seq_close(f, &r, false);
    return worst;
}

START_TEST(equals_transformers)
{
    fix f;
    open_case(&f, cases[_i], SL_F32, 1);
    sl_safetensors *g = golden_open(cases[_i]);
    double worst = 0;
    int prompts = 0;
    for (; golden_part(g, prompts, "ids"); prompts++)
        worst = fmax(worst, one_prompt(&f, g, prompts, prompts % 2 ? CONTEXT : 48));
    printf("%s: %d prompts, largest difference %.2g\n", cases[_i], prompts, worst);
    ck_assert_int_ge(prompts, 3);
    ck_assert_double_le(worst, TOLERANCE);
    sl_st_close(g);
    fix_close(&f);
}
END_TEST

/* The hash of the logits after every token from the prompt's last one on. spill: the sequence becomes hierarchical after the
 * prompt. used: the pages and the state belonged to another text before. */
static void hashes(fix *f, const fix_text *want, int32_t chunk, bool spill, bool used, sl_key *out)
{
    fix_run r = {0};
    fix_text t = *want, other = {.n = want->n};
    sl_err err = {0};
    for (int32_t i = 0; used && i < other.n; i++)
        other.ids[i] = want->ids[other.n - 1 - i];
    if (used) {
        fix_seq_open(f, &r, SL_RESIDENT, 0, want->n + GREEDY);
        fix_feed(f, &r, &other, other.n, CONTEXT);
        fix_seq_close(f, &r, false);
        r = (fix_run){0};
    }
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

START_TEST(bits_do_not_depend_on_the_way)
{
    static const struct {
        int32_t chunk;
        bool spill, used;
        int threads;
    } ways[] = {{CONTEXT, false, false, 1},
                {1, false, true, 1},
                {7, false, false, 2},
                {64, true, true, 1},
                {23, true, false, 2}};
    const sl_dtype act = _i % 2 ? SL_BF16 : SL_F32;
    sl_safetensors *g = golden_open(cases[_i / 2]);
    sl_key first[GREEDY + 1], now[GREEDY + 1];
    fix_text t;
    golden_read(g, golden_last(g), &t);
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        fix f;
        open_case(&f, cases[_i / 2], act, ways[w].threads);
        hashes(&f, &t, ways[w].chunk, ways[w].spill, ways[w].used, w ? now : first);
        for (int32_t k = 0; w && k <= GREEDY; k++)
            ck_assert_msg(memcmp(&now[k], &first[k], sizeof now[k]) == 0,
                          "%s: way %zu differs after token %d", cases[_i / 2], w, k);
        fix_close(&f);
    }
    sl_st_close(g);
}
END_TEST

/* An algorithm would have nothing to select from, and a model without pages has no entries. */
START_TEST(refusals)
{
    fix f;
    open_case(&f, cases[0], SL_F32, 1);
    sl_engine_opts eo = f.eo;
    eo.algorithm = &sl_algo_streaming_llm;
    fix_refused(&f, &eo, SL_ERR_UNSUPPORTED, "no layer of the model has rows of tokens");
    fix_close(&f);
}
END_TEST

/* A copy of the file in which the bytes of a table of experts are others. */
static void write_table(const char *to, const char *from, const sl_st_tensor *t, int64_t id)
{
    char path[320];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    FILE *in = fopen(path, "rb");
    ck_assert_ptr_nonnull(in);
    uint8_t *all = malloc(t->bytes + (8u << 20));
    ck_assert_ptr_nonnull(all);
    n = fread(all, 1, 8u << 20, in);
    fclose(in);
    uint8_t *at = memmem(all, n, t->data, t->bytes);
    ck_assert_ptr_nonnull(at);
    memcpy(at + 8 * 5, &id, sizeof id);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    FILE *out = fopen(path, "wb");
    ck_assert(out && fwrite(all, 1, n, out) == n && fclose(out) == 0);
    free(all);
}

/* A table that names an expert that is none is refused with the tensor's name. */
START_TEST(tables_of_experts)
{
    static const int64_t ids[] = {8, -1, INT64_C(1) << 32, INT64_MIN, 7};
    char dir[] = "/tmp/v4-XXXXXX", path[320], command[640];
    sl_safetensors *st;
    sl_backend_opts bo = {.threads = 1};
    sl_model_opts mo = {
        .row_format = SL_ROW_GQA_F32, .act = SL_F32, .max_tokens = 8, .max_logit_rows = 1, .max_context = 64};
    sl_backend *be;
    sl_err err = {0};
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(command, sizeof command, "cp %s/config.json %s", cases[0], dir);
    ck_assert_int_eq(system(command), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", cases[0]);
    ck_assert_int_eq(sl_st_open(path, &st, &err), SL_OK);
    const sl_st_tensor *t = sl_st_find(st, "layers.1.ffn.gate.tid2eid");
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    for (size_t i = 0; i < SL_COUNT(ids); i++) {
        sl_model *m = NULL;
        write_table(dir, cases[0], t, ids[i]);
        sl_status rc = sl_model_load(be, dir, &mo, &m, &err);
        ck_assert_int_eq(rc, ids[i] == 7 ? SL_OK : SL_ERR_INVALID);
        ck_assert(rc == SL_OK || strstr(err.text, "layers.1.ffn.gate.tid2eid"));
        sl_model_destroy(m);
    }
    sl_backend_destroy(be);
    sl_st_close(st);
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/v4");
    TCase *t = tcase_create("v4");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, equals_transformers, 0, SL_COUNT(cases));
    add_variants(t, bits_do_not_depend_on_the_way, 2 * SL_COUNT(cases));
    tcase_add_test(t, refusals);
    tcase_add_test(t, tables_of_experts);
    suite_add_tcase(s, t);
    return run_suite(s);
}
