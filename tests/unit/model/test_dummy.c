/*
 * Models of random weights (sl_model_opts.dummy): every family has them; a rank of a group has the bits that one process
 * has, of its own experts and of everything else; the fingerprint is that of no checkpoint; files of weights are not
 * needed and not looked at; what cannot be made is refused.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_tools.h"
#include "model/checkpoint.h"
#include "model/model_impl.h"
#include "tests/unit/run_suite.h"

/* Latent attention without and with quantisation, IndexShare, and dense models with KV heads. */
static const char *const dirs[] = {
    "models/tiny-v32",
    "tests/golden/model/ds-fp8",
    "tests/golden/model/glm-share",
    "tests/golden/model/llama-bf16",
    "tests/golden/model/qwen2-g7",
    "tests/golden/model/qwen3-norms",
};

static sl_backend *be;
static sl_err err;

static void setup(void)
{
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 2}, &be, &err), SL_OK);
}

static void teardown(void)
{
    sl_backend_destroy(be);
}

/* The options of one process, with the formats that "auto" stands for. */
static sl_model_opts opts_of(const char *dir)
{
    sl_model_config c;
    sl_model_opts o = {.max_tokens = 4, .max_logit_rows = 4, .max_context = 128, .dummy = true};
    ck_assert_msg(sl_model_config_load(dir, &c, &err) == SL_OK, "%s", err.text);
    sl_dtype stored = sl_model_dummy_dtype(&c);
    o.act = sl_model_auto_act(stored);
    sl_model_auto_formats(&c, stored, &o.index_format, &o.row_format);
    return o;
}

static sl_model *load(const char *dir, const sl_model_opts *o)
{
    sl_model *m = NULL;
    ck_assert_msg(sl_model_load(be, dir, o, &m, &err) == SL_OK, "%s", err.text);
    return m;
}

static void same_bits(const sl_weight *a, const sl_weight *b)
{
    ck_assert(a->out == b->out && a->in == b->in && a->dtype == b->dtype && !a->scale == !b->scale);
    ck_assert(!a->data == !b->data);
    if (!a->data)
        return;
    ck_assert_mem_eq(a->data, b->data, (size_t)a->out * (size_t)a->in * sl_dtype_size(a->dtype));
    if (a->scale)
        ck_assert_mem_eq(a->scale, b->scale,
                         sizeof(float) * (size_t)((a->out + 127) / 128) * (size_t)((a->in + 127) / 128));
}

static void same_expert(const sl_weight *rank, const sl_weight *one, bool own)
{
    ck_assert(own == (rank->data != NULL));
    ck_assert(rank->out == one->out && rank->in == one->in && rank->dtype == one->dtype);
    if (own)
        same_bits(rank, one);
}

static void same_as_one(const sl_model *rank, const sl_model *one)
{
    const sl_weights *r = &rank->weights, *o = &one->weights;
    const sl_model_config *c = &one->config;
    int32_t first[SL_COMM_RANKS_MAX + 1];
    sl_ep_split(c->moe.n_routed, r->ranks, first);
    for (int i = 0; i < SL_MODEL_SLOTS; i++)
        same_bits(&r->w[i], &o->w[i]);
    for (int32_t l = 0; l < c->n_layers; l++) {
        for (int i = 0; i < SL_LAYER_SLOTS; i++)
            same_bits(&r->layers[l].w[i], &o->layers[l].w[i]);
        for (int32_t e = 0; c->layer_is_moe[l] && e < c->moe.n_routed; e++) {
            bool own = e >= first[r->rank] && e < first[r->rank + 1];
            same_expert(&r->layers[l].gate[e], &o->layers[l].gate[e], own);
            same_expert(&r->layers[l].up[e], &o->layers[l].up[e], own);
            same_expert(&r->layers[l].down[e], &o->layers[l].down[e], own);
        }
    }
}

START_TEST(ranks_have_the_bits_of_one_process)
{
    sl_model_opts o = opts_of(dirs[_i]);
    sl_model *one = load(dirs[_i], &o);
    uint64_t all, part;
    int32_t experts = one->config.moe.n_routed;
    ck_assert_int_eq(sl_model_placed_bytes(dirs[_i], &o, &all, &err), SL_OK);
    ck_assert_uint_ge(all, sl_model_weight_bytes(one));
    for (o.ranks = 2; o.ranks <= 3; o.ranks++)
        for (o.rank = 0; o.rank < o.ranks; o.rank++) {
            sl_model *m = load(dirs[_i], &o);
            same_as_one(m, one);
            ck_assert(sl_key_eq(sl_model_fingerprint(m), sl_model_fingerprint(one)));
            ck_assert_int_eq(sl_model_placed_bytes(dirs[_i], &o, &part, &err), SL_OK);
            ck_assert_uint_ge(part, sl_model_weight_bytes(m));
            ck_assert(experts ? part < all : part == all);
            sl_model_destroy(m);
        }
    sl_model_destroy(one);
}
END_TEST

/* Of two experts, of two layers, of two tensors: not the same numbers again. */
START_TEST(tensors_differ)
{
    sl_model_opts o = opts_of(dirs[0]);
    sl_model *m = load(dirs[0], &o);
    const sl_layer_weights *l = m->weights.layers;
    const sl_weight *w[] = {&l[1].gate[0], &l[1].gate[1], &l[1].up[0], &l[2].gate[0], &l[1].down[0]};
    for (size_t i = 0; i < SL_COUNT(w); i++)
        for (size_t k = 0; k < i; k++)
            ck_assert_int_ne(memcmp(w[i]->data, w[k]->data, 256), 0);
    sl_model_destroy(m);
}
END_TEST

START_TEST(the_fingerprint_is_that_of_no_checkpoint)
{
    sl_model_opts o = opts_of(dirs[0]), other = o, real = o;
    sl_key k, print, prints[3];
    sl_model *m = load(dirs[0], &o);
    ck_assert_int_eq(sl_model_identify(dirs[0], &o, &k, &err), SL_OK);
    ck_assert(sl_key_eq(k, sl_model_fingerprint(m)));
    sl_model_destroy(m);
    real.dummy = false;
    ck_assert_int_eq(sl_model_identify(dirs[0], &real, &print, &err), SL_OK);
    ck_assert(!sl_key_eq(k, print));
    other.row_format = SL_ROW_MLA_F32;
    ck_assert_int_eq(sl_model_identify(dirs[0], &other, &print, &err), SL_OK);
    ck_assert(!sl_key_eq(k, print));
    ck_assert_int_eq(sl_model_identify("tests/golden/model/ds-yarn", &o, &print, &err), SL_OK);
    ck_assert(!sl_key_eq(k, print));

    o.ranks = real.ranks =
        3; /* a rank with real weights has another print than rank 0 of random ones expects */
    ck_assert_int_eq(sl_model_identify_ranks(dirs[0], &o, &k, prints, &err), SL_OK);
    for (o.rank = 0; o.rank < 3; o.rank++) {
        real.rank = o.rank;
        ck_assert_int_eq(sl_model_identify_rank(dirs[0], &o, &print, &err), SL_OK);
        ck_assert(sl_key_eq(print, prints[o.rank]));
        ck_assert_int_eq(sl_model_identify_rank(dirs[0], &real, &print, &err), SL_OK);
        ck_assert(!sl_key_eq(print, prints[o.rank]));
    }
}
END_TEST

/* A directory with config.json alone, and then with a file of weights that is damaged. */
START_TEST(no_weights_are_read)
{
    char dir[256], path[300];
    sl_model_opts o = opts_of(dirs[1]), real = o;
    sl_key was, is;
    ck_assert_int_eq(sl_model_identify(dirs[1], &o, &was, &err), SL_OK);
    ct_mkdir(dir);
    ct_copy(dirs[1], dir, "config.json");
    real.dummy = false;
    ck_assert_int_eq(sl_model_identify(dir, &real, &is, &err), SL_ERR_NOT_FOUND);
    for (int i = 0; i < 2; i++) {
        sl_model *m = load(dir, &o);
        ck_assert(sl_key_eq(was, sl_model_fingerprint(m)));
        sl_model_destroy(m);
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        FILE *f = fopen(path, "w");
        ck_assert(f && fputs("no weights", f) >= 0 && fclose(f) == 0);
    }
    ck_assert_int_ne(sl_model_identify(dir, &real, &is, &err), SL_OK);
    ct_rmdir(dir);
}
END_TEST

START_TEST(refusals)
{
    sl_model *m = NULL;
    sl_key k[SL_COMM_RANKS_MAX], whole;
    uint64_t bytes;
    sl_model_opts o = opts_of(dirs[1]), off = o;
    o.ranks = 5;
    ck_assert_int_eq(sl_model_load(be, dirs[1], &o, &m, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "5 ranks share 4 routed experts"), "%s", err.text);
    ck_assert_int_eq(sl_model_identify_ranks(dirs[1], &o, &whole, k, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_model_identify_rank(dirs[1], &o, k, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_model_placed_bytes(dirs[1], &o, &bytes, &err), SL_ERR_INVALID);
    off.fp8_acts = SL_FP8_ACTS_OFF;
    ck_assert_int_eq(sl_model_load(be, dirs[1], &off, &m, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_model_load(be, "tests/golden", &off, &m, &err), SL_ERR_INVALID);
    off.fp8_acts = SL_FP8_ACTS_AUTO;
    ck_assert_int_eq(sl_model_load(be, "tests/golden", &off, &m, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_null(m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dummy");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, ranks_have_the_bits_of_one_process, 0, SL_COUNT(dirs));
    tcase_add_test(t, tensors_differ);
    tcase_add_test(t, the_fingerprint_is_that_of_no_checkpoint);
    tcase_add_test(t, no_weights_are_read);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return run_suite(s);
}
