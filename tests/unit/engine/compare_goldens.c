/*
 * Compares checkpoints with the answers of transformers that lie next to them, through the engine and with the model's own
 * selection: logits within 1e-4 and the same greedy tokens, once resident and in chunks of 48 tokens, once with the whole prompt in one
 * step and rows on the host afterwards, where the model has rows to keep there. For checkpoints that are made and not kept
 * (tests/golden/model/vary.py): compare_goldens DIR... Without a name, those of two families, as a test of the program itself.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/choose.h"
#include "golden.h"
#include "tests/unit/run_suite.h"

#define TOLERANCE 1e-4

enum { CONTEXT = 768 };

static const char *dirs[1024] = {"tests/golden/model/qwen4-ngram", "tests/golden/model/hy4-share"};
static int n_dirs = 2;

/* Hot rows that hold one selection and hardly more. */
static int32_t smallest_hot(const sl_model_config *c)
{
    return c->entries.window || c->index.topk == 0 ? CONTEXT : c->index.topk + c->index.unit;
}

static void open_case(fix *f, const char *dir, bool hierarchical)
{
    sl_model_config c;
    sl_err err = {0};
    const sl_algo_desc *algorithm;
    ck_assert_msg(sl_model_config_load(dir, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_choose_algorithm("auto", &c, &algorithm, &err) == SL_OK, "%s", err.text);
    const bool latent = c.attn.kv_lora_rank > 0;
    fix_opts o = {.dir = dir,
                  .rows = latent ? SL_ROW_MLA_F32 : SL_ROW_GQA_F32,
                  .act = SL_F32,
                  .threads = hierarchical ? 2 : 1,
                  .max_tokens = CONTEXT,
                  .max_context = c.max_context < CONTEXT ? c.max_context : CONTEXT,
                  .max_seqs = 2,
                  .max_hot = 1,
                  .hot_rows = smallest_hot(&c),
                  .tail_rows = 2,
                  .algorithm = algorithm->name,
                  .plain_acts = true};
    fix_open(f, &o);
}

static double difference(const fix *f, const float *got, const float *want)
{
    double worst = 0;
    for (int32_t v = 0; v < f->cfg->vocab_size; v++)
        worst = fmax(worst, fabs((double)got[v] - (double)want[v]));
    return worst;
}

static double one_prompt(fix *f, const sl_safetensors *g, int i, bool hierarchical)
{
    const sl_st_tensor *ids = golden_part(g, i, "ids"), *greedy = golden_part(g, i, "greedy");
    const int32_t n = (int32_t)ids->shape[0], more = (int32_t)greedy->shape[0];
    fix_run r = {0};
    fix_text t = {.n = n};
    sl_err err = {0};
    memcpy(t.ids, ids->data, (size_t)n * 4);
    memcpy(t.ids + n, greedy->data, (size_t)more * 4);
    fix_seq_open(f, &r, SL_RESIDENT, 0, n + more);
    const float *logits = fix_feed(f, &r, &t, n, hierarchical ? CONTEXT : 48);
    const double worst = difference(f, logits, golden_part(g, i, "logits")->data);
    if (hierarchical)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = n; k < n + more; k++) {
        ck_assert_msg(fix_argmax(f, logits) == t.ids[k],
                      "%s, prompt %d of %d tokens: greedy token %d is %d, not %d", f->o.dir, i, n, k - n,
                      fix_argmax(f, logits), t.ids[k]);
        t.n = k + 1;
        logits = fix_feed(f, &r, &t, t.n, 1);
    }
    fix_seq_close(f, &r, false);
    return worst;
}

START_TEST(equals_transformers)
{
    const char *dir = dirs[_i / 2];
    const bool hierarchical = _i % 2 != 0;
    fix f;
    double worst = 0;
    int prompts = 0;
    open_case(&f, dir, hierarchical);
    sl_safetensors *g = golden_open(dir);
    for (; golden_part(g, prompts, "ids"); prompts++)
        worst = fmax(worst, one_prompt(&f, g, prompts, hierarchical));
    printf("%s, %s: %d prompts, largest difference %.2g\n", dir, hierarchical ? "hierarchical" : "resident",
           prompts, worst);
    ck_assert_int_ge(prompts, 1);
    ck_assert_msg(worst <= TOLERANCE, "%s: logits differ by %g", dir, worst);
    sl_st_close(g);
    fix_close(&f);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("compare goldens");
    TCase *t = tcase_create("goldens");
    if (argc > 1)
        n_dirs = 0;
    for (int i = 1; i < argc && n_dirs < (int)SL_COUNT(dirs); i++)
        dirs[n_dirs++] = argv[i];
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, equals_transformers, 0, 2 * n_dirs);
    suite_add_tcase(s, t);
    return run_suite(s);
}
