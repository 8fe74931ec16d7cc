/*
 * Calibration of a trained checkpoint: the order of the channels in the file is that of a restatement of the definition,
 * with queries as attention gets them and keys decoded from the host pages of an engine of its own. Run from the
 * repository's root.
 */
#include "local/calibrate.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/choose.h"
#include "kernels/gqa.h"
#include "model/tokenizer.h"
#include "sparse/budgets.h"
#include "tests/unit/engine/fix.h"
#include "tests/unit/run_suite.h"

#define MODEL "models/facts-llama"
enum { LAYERS = 6, HEADS = 2, DIM = 64, BLOCK = 40, BLOCKS = 3 };

static const char text[] =
    "The code of the polished hammer is 6227. The code of the square cabinet is 3532. The river is wide and the road is "
    "long. The code of the heavy lamp is 8153. The code of the narrow window is 1044. What is the code of the square "
    "cabinet? The code of the old clock is 7310. The road is dry. The code of the green chair is 4471. The lake is deep. "
    "What is the code of the heavy lamp? The code of the small table is 9023. The wind is cold.";

static void files(char *in, char *out)
{
    snprintf(in, 64, "/tmp/sl-calibrate-%d.txt", (int)getpid());
    snprintf(out, 64, "/tmp/sl-calibrate-%d.json", (int)getpid());
    FILE *f = fopen(in, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* ---- the definition ---- */

static const fix *seen_fix;
static const fix_run *seen_run;
static double sums[LAYERS][HEADS][DIM];
static sl_algo_desc witnessed;

static sl_status witnessed_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_dense.create(be, d, out, err));
    (*out)->desc = &witnessed;
    return SL_OK;
}

static sl_status witnessed_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                    int32_t *ids, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(seen_fix->arena);
    const int32_t layer = call->attn->layer, heads = call->attn->gqa.attn.heads, group = heads / HEADS;
    const sl_host_plane h = sl_geometry_plane(g, sl_arena_base(seen_fix->arena),
                                              sl_arena_pages(seen_fix->arena), layer, SL_CACHE_ROWS);
    for (int32_t t = first; t < first + count; t++)
        for (int32_t head = 0; head < heads; head++) {
            const int32_t pos = call->attn->seqs->token_pos[t];
            const float *q = call->attn->gqa.attn.q + ((int64_t)t * heads + head) * DIM;
            float k[DIM], v[DIM];
            sl_gqa_row_decode(SL_ROW_GQA_BF16, HEADS, DIM,
                              h.base + seen_run->pages[pos / SL_PAGE_TOKENS] * h.page_stride +
                                  pos % SL_PAGE_TOKENS * h.row_stride,
                              head / group, k, v);
            for (int32_t i = 0; i < DIM; i++)
                sums[layer][head / group][i] += fabs((double)q[i]) * fabs((double)k[i]);
        }
    return sl_algo_dense.retrieve(a, call, first, count, ids, err);
}

static void measure(void)
{
    fix f;
    fix_opts o = {
        .dir = MODEL, .rows = SL_ROW_GQA_BF16, .act = SL_BF16, .max_context = 128, .desc = &witnessed};
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    witnessed = sl_algo_dense;
    witnessed.reads_all = false; /* or it would not be asked for lists */
    witnessed.create = witnessed_create, witnessed.retrieve = witnessed_retrieve;
    ck_assert_int_eq(sl_tokenizer_load(MODEL, &tok, &err), SL_OK);
    ck_assert_int_eq(sl_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n, &err), SL_OK);
    ck_assert_uint_ge(n, BLOCK * BLOCKS);
    ck_assert_uint_lt(n, BLOCK * (BLOCKS + 1));
    fix_open(&f, &o);
    for (int b = 0; b < BLOCKS; b++) {
        fix_run r = {0};
        fix_text t = {.n = BLOCK};
        memcpy(t.ids, ids + b * BLOCK, BLOCK * sizeof *ids);
        seen_fix = &f, seen_run = &r;
        fix_seq_open(&f, &r, SL_RESIDENT, 0, BLOCK);
        fix_feed(&f, &r, &t, BLOCK, 17);
        fix_seq_close(&f, &r, false);
    }
    fix_close(&f);
    free(ids);
    sl_tokenizer_destroy(tok);
}

static const sl_channels *calibrated(const sl_calibrate_opts *o)
{
    sl_calibrate_result r;
    sl_model_config m;
    const sl_channels *c = NULL;
    sl_err err = {0};
    ck_assert_msg(sl_calibrate(o, &r, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(r.tokens, BLOCK * BLOCKS);
    ck_assert_int_eq(sl_model_config_load(MODEL, &m, &err), SL_OK);
    const sl_algo_model of = sl_choose_model(&m);
    ck_assert_msg(sl_channels_load(o->output, &of, &c, &err) == SL_OK, "%s", err.text);
    ck_assert(c->n_layers == LAYERS && c->kv_heads == HEADS && c->head_dim == DIM && c->count == DIM);
    return c;
}

START_TEST(the_order_is_that_of_the_definition)
{
    char in[64], out[64];
    files(in, out);
    sl_calibrate_opts o = {.dir = MODEL,
                           .text_path = in,
                           .output = out,
                           .type = "qk",
                           .block_tokens = BLOCK,
                           .max_tokens = 1000,
                           .threads = 1};
    const sl_channels *c = calibrated(&o);
    measure();
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i + 1 < DIM; i++) {
                const int32_t *of = c->of + (l * HEADS + h) * DIM;
                const double a = sums[l][h][of[i]], b = sums[l][h][of[i + 1]];
                MUST(a > 0 && a >= b * (1 - 1e-9));
            }
    o.type = "k";
    ck_assert_ptr_ne(c, calibrated(&o));
    unlink(in);
    unlink(out);
}
END_TEST

/* Budgets: what shares one has 1 on average, no list has less than an even fifth, and duo has as many of either kind as was asked. */
START_TEST(budgets_are_divided)
{
    char in[64], out[64];
    files(in, out);
    sl_calibrate_opts o = {.dir = MODEL,
                           .text_path = in,
                           .output = out,
                           .block_tokens = BLOCK * BLOCKS,
                           .max_tokens = 1000,
                           .threads = 1,
                           .budget = 16,
                           .retrieval = 0.25};
    for (o.method = 0; sl_budgets_methods[o.method]; o.method++) {
        sl_calibrate_result r;
        sl_model_config m;
        const sl_budgets *b = NULL;
        sl_err err = {0};
        double all = 0;
        int many = 0;
        ck_assert_msg(sl_calibrate(&o, &r, &err) == SL_OK, "%s", err.text);
        ck_assert_int_eq(sl_model_config_load(MODEL, &m, &err), SL_OK);
        const sl_algo_model of = sl_choose_model(&m);
        ck_assert_msg(sl_budgets_load(out, &of, &b, &err) == SL_OK, "%s", err.text);
        for (int l = 0; l < LAYERS; l++) {
            const double x = (double)b->share[l * HEADS], y = (double)b->share[l * HEADS + 1];
            many += isinf(x) + isinf(y);
            all += isinf(x + y) ? 0 : x + y;
            MUST(o.method == SL_BUDGETS_DUO ? (x == 0 || isinf(x)) && (y == 0 || isinf(y))
                                            : x >= 0.2 && y >= 0.2);
            MUST(o.method != SL_BUDGETS_HEAD || fabs(x + y - 2) < 2e-3);
            MUST(o.method != SL_BUDGETS_LAYER || x == y);
        }
        MUST(o.method == SL_BUDGETS_DUO ? many == LAYERS * HEADS / 4 : fabs(all - LAYERS * HEADS) < 2e-2);
    }
    unlink(in);
    unlink(out);
}
END_TEST

static void refused(const sl_calibrate_opts *o, sl_status want, const char *says)
{
    sl_calibrate_result r;
    sl_err err = {0};
    ck_assert_int_eq(sl_calibrate(o, &r, &err), want);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say %s", err.text, says);
    ck_assert_int_ne(access(o->output, F_OK), 0); /* nothing was written */
}

START_TEST(refusals)
{
    char in[64], out[64], says[160];
    files(in, out);
    sl_calibrate_opts good = {.dir = MODEL,
                              .text_path = in,
                              .output = out,
                              .type = "qk",
                              .block_tokens = 512,
                              .max_tokens = 1000,
                              .threads = 1};
    snprintf(says, sizeof says, "%s: ", in);
    refused(&good, SL_ERR_INVALID, says);
    refused(&good, SL_ERR_INVALID, "tokens are too few to calibrate on, a block has 512");
    sl_calibrate_opts o = good;
    o.block_tokens = 1 << 20;
    refused(&o, SL_ERR_INVALID, "blocks of 1048576 tokens exceed the model's context of 8192");
    o = good, o.dir = "models/tiny-v32";
    refused(&o, SL_ERR_UNSUPPORTED, "models/tiny-v32: a model of family deepseek_v32 has no KV heads");
    o = good, o.text_path = "/nowhere/text";
    refused(&o, SL_ERR_NOT_FOUND, "/nowhere/text");
    unlink(in);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("local/calibrate");
    TCase *c = tcase_create("calibrate");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, the_order_is_that_of_the_definition);
    tcase_add_test(c, budgets_are_divided);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return run_suite(s);
}
