/* Synthetic models and the ops that make them: the same seed gives the same bits, drawn lists have the documented
 * properties, a rank has its part of the experts. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/synth.h"
#include "model/families/dsa/dsa.h"
#include "model/model_impl.h"
#include "model/synthetic.h"
#include "tests/unit/run_suite.h"

static sl_backend *be;
static sl_err err;

static void setup(void)
{
    sl_backend_opts o = {.threads = 2};
    ck_assert_int_eq(sl_backend_create("cpu", &o, &be, &err), SL_OK);
}

static void teardown(void)
{
    sl_backend_destroy(be);
}

static sl_model *make(int32_t ranks, uint64_t seed)
{
    sl_model_config cfg;
    sl_model *m = NULL;
    sl_model_opts mo = {.index_format = SL_INDEX_OFFICIAL,
                        .row_format = SL_ROW_MLA_FP8,
                        .act = SL_BF16,
                        .max_tokens = 4,
                        .max_logit_rows = 4,
                        .max_context = 256};
    sl_synthetic_opts so = {.ranks = ranks, .seed = seed};
    ck_assert_int_eq(sl_synthetic_config("tiny", 0, &cfg, &err), SL_OK);
    ck_assert_msg(sl_model_synthetic(be, &cfg, &mo, &so, &m, &err) == SL_OK, "%s", err.text);
    return m;
}

START_TEST(same_seed_same_bits)
{
    sl_model *a = make(2, 7), *b = make(2, 7), *c = make(2, 8);
    uint64_t n = sl_model_weight_bytes(a);
    ck_assert_uint_eq(n, sl_model_weight_bytes(b));
    ck_assert_int_eq(memcmp(a->weights.block, b->weights.block, n), 0);
    ck_assert_int_ne(memcmp(a->weights.block, c->weights.block, n), 0);
    ck_assert(!sl_key_eq(sl_model_fingerprint(a), sl_model_fingerprint(c)));
    sl_model_destroy(a);
    sl_model_destroy(b);
    sl_model_destroy(c);
}
END_TEST

START_TEST(the_cache_is_latent)
{
    sl_model_config cfg;
    sl_cache_dims d;
    ck_assert_int_eq(sl_synthetic_config("deepseek_v32", 0, &cfg, &err), SL_OK);
    sl_model_cache_dims(&cfg, SL_ROW_MLA_BF16, SL_INDEX_PLAIN, &d);
    ck_assert(d.latent == 512 && d.rope == 64 && d.kv_heads == 0 && d.head_dim == 0);
    ck_assert(d.index_dim == 128 && d.index_heads == 64 && d.index_topk == 2048);
    memset(cfg.layer_has_indexer, 0, sizeof cfg.layer_has_indexer);
    sl_model_cache_dims(&cfg, SL_ROW_MLA_BF16, SL_INDEX_PLAIN, &d);
    ck_assert(d.latent == 512 && d.index_dim == 0 && d.index_heads == 0 && d.index_topk == 0);
}
END_TEST

/* Of GLM-5.2's layers 57 read the list of a layer before them, three of them in a row. */
START_TEST(layers_share_lists)
{
    sl_model_config cfg;
    int32_t own = 0;
    ck_assert_int_eq(sl_synthetic_config("glm_5_2", 0, &cfg, &err), SL_OK);
    ck_assert_int_eq(cfg.n_layers, 78);
    for (int32_t l = 0; l < cfg.n_layers; l++) {
        ck_assert(cfg.layer_has_indexer[l] == (l < 3 || l % 4 == 2));
        own += cfg.layer_has_indexer[l];
    }
    ck_assert_int_eq(own, 21);
}
END_TEST

/* With more ranks, a rank has fewer routed experts; everything else has the same size. */
START_TEST(a_rank_holds_its_part)
{
    sl_model *one = make(1, 7), *four = make(4, 7);
    const sl_model_config *c = sl_model_get_config(one);
    uint64_t expert =
        3ull * (uint64_t)c->hidden_size * (uint64_t)c->moe.intermediate_size +
        4ull * 3 * (uint64_t)(c->hidden_size / 128) * (uint64_t)(c->moe.intermediate_size / 128);
    uint64_t moe_layers = (uint64_t)c->n_layers - 1;
    ck_assert_int_eq(four->local_experts, 4);
    ck_assert_uint_eq(sl_model_weight_bytes(one) - sl_model_weight_bytes(four), 12 * expert * moe_layers);
    sl_model_destroy(one);
    sl_model_destroy(four);
}
END_TEST

/* Values of a linear weight have variance 1 / in, dequantised. */
START_TEST(magnitudes)
{
    sl_model *m = make(1, 7);
    const sl_weight *w = &m->weights.layers[1].w[SL_DSA_O];
    const uint8_t *q = w->data;
    double sum = 0;
    int64_t n = (int64_t)w->out * w->in;
    ck_assert_int_eq(w->dtype, SL_F8_E4M3);
    for (int64_t i = 0; i < n; i++) {
        int e = q[i] >> 3 & 15, f = q[i] & 7;
        double v = (e ? ldexp(8 + f, e - 10) : ldexp(f, -9)) *
                   (double)w->scale[i / w->in / 128 * ((w->in + 127) / 128) + i % w->in / 128];
        sum += v * v;
    }
    ck_assert_double_eq_tol(sum / (double)n * w->in, 1, 0.3);
    sl_model_destroy(m);
}
END_TEST

START_TEST(refusals)
{
    sl_model_config cfg;
    sl_model *m = NULL;
    sl_model_opts mo = {.act = SL_BF16, .max_tokens = 1};
    sl_synthetic_opts so = {.ranks = 3};
    ck_assert_int_eq(sl_synthetic_config("nothing", 0, &cfg, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_synthetic_config("tiny", 99, &cfg, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_synthetic_config("tiny", 2, &cfg, &err), SL_OK);
    ck_assert_int_eq(cfg.n_layers, 2);
    ck_assert_int_eq(sl_model_synthetic(be, &cfg, &mo, &so, &m, &err), SL_ERR_INVALID);
    ck_assert_ptr_null(m);
}
END_TEST

enum { K = 64, SPAN = 4096 };

static void draw(int32_t *ids, uint32_t keep, int32_t seq, int32_t pos, int32_t from)
{
    sl_seq_tables s = {.n_tokens = 1, .n_seqs = 8, .ld = 1024, .token_seq = &seq, .token_pos = &pos};
    sl_draw_params p = {.ids = ids,
                        .seqs = &s,
                        .keep = &keep,
                        .k = K,
                        .ld_ids = K + 2,
                        .span = SPAN,
                        .from_pos = from,
                        .layer = 3};
    ck_assert_msg(sl_be_run(be, SL_OP_DRAW, &p, &err) == SL_OK, "%s", err.text);
}

START_TEST(drawn_lists)
{
    static const struct {
        uint32_t keep;
        double overlap;
    } rows[] = {{0, 1.0 / 64}, {55706, 0.85}, {64880, 0.99}};
    for (size_t r = 0; r < SL_COUNT(rows); r++) {
        int32_t a[K + 2], b[K + 2];
        double same = 0, steps = 200;
        for (int32_t pos = 5000; pos < 5000 + (int32_t)steps; pos++) {
            draw(a, rows[r].keep, 2, pos, 0);
            draw(b, rows[r].keep, 2, pos + 1, 0);
            for (int32_t i = 0; i < K; i++) {
                ck_assert_int_eq(a[i] / (SPAN / K), i); /* one in each part: ascending, distinct, in range */
                same += a[i] == b[i];
            }
            ck_assert_int_eq(a[K], -1);
            ck_assert_int_eq(a[K + 1], -1);
        }
        ck_assert_double_eq_tol(same / steps / K, rows[r].overlap, 0.02);
    }
}
END_TEST

START_TEST(drawn_lists_leave_alone)
{
    int32_t a[K + 2], b[K + 2];
    memset(a, 7, sizeof a);
    memset(b, 7, sizeof b);
    draw(a, 0, 2, 4000, 4001);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    draw(a, 0, -1, 0, 0); /* padding */
    for (int32_t i = 0; i < K + 2; i++)
        ck_assert_int_eq(a[i], -1);
}
END_TEST

/* Every list of a token has numbers of its own, the first one those of a token with one list; each turns over at the
 * given rate. */
START_TEST(drawn_lists_of_heads)
{
    enum { LISTS = 4, W = K + 2, STEPS = 100 };
    int32_t a[2][LISTS][W], one[W], seq = 2, same = 0, alike = 0;
    uint32_t keep = 55706;
    for (int32_t pos = 5000; pos < 5000 + STEPS; pos++) {
        for (int32_t i = 0; i < 2; i++) {
            int32_t at = pos + i;
            sl_seq_tables s = {.n_tokens = 1, .n_seqs = 8, .ld = 1024, .token_seq = &seq, .token_pos = &at};
            sl_draw_params p = {.ids = a[i][0],
                                .seqs = &s,
                                .keep = &keep,
                                .k = K,
                                .ld_ids = W,
                                .span = SPAN,
                                .layer = 3,
                                .lists = LISTS};
            ck_assert_msg(sl_be_run(be, SL_OP_DRAW, &p, &err) == SL_OK, "%s", err.text);
        }
        draw(one, keep, 2, pos, 0);
        ck_assert_mem_eq(one, a[0][0], sizeof one);
        for (int32_t l = 0; l < LISTS; l++) {
            ck_assert(a[0][l][K] == -1 && a[0][l][K + 1] == -1);
            for (int32_t i = 0; i < K; i++) {
                ck_assert_int_eq(a[0][l][i] / (SPAN / K), i);
                same += a[0][l][i] == a[1][l][i];
                alike += l > 0 && a[0][l][i] == a[0][0][i];
            }
        }
    }
    ck_assert_double_eq_tol((double)same / (STEPS * LISTS * K), 0.85, 0.02);
    ck_assert_double_eq_tol((double)alike / (STEPS * (LISTS - 1) * K), 1.0 / 64, 0.03);
}
END_TEST

START_TEST(profile_times_ops)
{
    float x[64], y[64] = {0};
    sl_random_params p = {
        .out = x, .rows = 8, .cols = 8, .dtype = SL_F32, .mean = 2, .spread = 0.5f, .seed = 1};
    sl_add_params add = {.x = x, .y = y, .tokens = 8, .dim = 8, .act = SL_F32};
    sl_op_time *ops = NULL;
    int32_t n = 0;
    ck_assert_int_eq(sl_be_profile_end(be, &ops, &n, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_be_profile_begin(be, 2, &err), SL_OK);
    ck_assert_int_eq(sl_be_profile_begin(be, 2, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_be_run(be, SL_OP_RANDOM, &p, &err), SL_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(sl_be_run(be, SL_OP_ADD, &add, &err), SL_OK);
    ck_assert_int_eq(sl_be_profile_end(be, &ops, &n, &err), SL_OK);
    ck_assert_int_eq(n, 2); /* no more than there is room for */
    ck_assert_int_eq(ops[0].op, SL_OP_RANDOM);
    ck_assert_int_eq(ops[1].op, SL_OP_ADD);
    for (int32_t i = 0; i < n; i++)
        ck_assert(ops[i].ns >= 0 && ops[i].ns < 1e9);
    for (int i = 0; i < 64; i++)
        ck_assert(x[i] >= 1.5f && x[i] < 2.5f);
    free(ops);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("synthetic");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, same_seed_same_bits);
    tcase_add_test(t, the_cache_is_latent);
    tcase_add_test(t, layers_share_lists);
    tcase_add_test(t, a_rank_holds_its_part);
    tcase_add_test(t, magnitudes);
    tcase_add_test(t, refusals);
    tcase_add_test(t, drawn_lists);
    tcase_add_test(t, drawn_lists_leave_alone);
    tcase_add_test(t, drawn_lists_of_heads);
    tcase_add_test(t, profile_times_ops);
    suite_add_tcase(s, t);
    return run_suite(s);
}
