/*
 * Parts of a state of fixed size: places, bytes and refusals, over shapes that are made at random; and the shapes that
 * kernels/layer_state.h states of the ops, next to the bytes that the ops themselves change.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cache.h"
#include "kernels/delta.h"
#include "kernels/entries.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"
#include "kernels/turns.h"
#include "tests/unit/run_suite.h"

static uint32_t rnd_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

static const sl_dtype types[] = {SL_F32, SL_BF16, SL_I32};

static sl_layer_state made(uint64_t *seed, int32_t n)
{
    sl_layer_state s = {.format = "made"};

    for (int32_t i = 0; i < n; i++) {
        const sl_dtype t = types[rnd_below(seed, SL_COUNT(types))];
        const int32_t least = (int32_t)sl_dtype_size(t), align = least << rnd_below(seed, 3);
        char name[SL_STATE_NAME];
        snprintf(name, sizeof name, "part %d", i);
        sl_layer_state_add(&s, name, t, rnd_below(seed, 2) ? align : 0, 1 + rnd_below(seed, 9),
                           1 + rnd_below(seed, 9), 1 + rnd_below(seed, 9));
    }
    return s;
}

/* Parts follow each other, at multiples of their alignment, as close as that allows; the last one ends the state. */
START_TEST(places)
{
    uint64_t seed = 11;

    for (int k = 0; k < 500; k++) {
        sl_err err = {0};
        const int32_t n = 1 + (int32_t)rnd_below(&seed, SL_STATE_PARTS);
        const sl_layer_state s = made(&seed, n);
        int64_t end = 0;

        ck_assert_msg(sl_layer_state_check("class", SL_LAYER_STATE, 0, &s, &err) == SL_OK, "%s", err.text);
        for (int32_t i = 0; i < n; i++) {
            const int64_t at = sl_layer_state_at(&s, i);
            ck_assert(at >= end && at - end < s.parts[i].align && at % s.parts[i].align == 0);
            end = at + sl_state_part_bytes(&s.parts[i]);
        }
        ck_assert_int_eq(end, s.bytes);
    }
}
END_TEST

static const char *spoil(sl_layer_state *s, int i)
{
    switch (i) {
    case 0:
        return s->bytes++, "the parts of its state have";
    case 1:
        return s->parts[1].shape[2]++, "the parts of its state have";
    case 2:
        return s->parts[0].shape[1] = 0, "part 0 of its state has";
    case 3:
        return s->parts[1].shape[0] = s->parts[1].shape[1] = 1ll << 32, "part 1 of its state has";
    case 4:
        return s->parts[0].shape[0] = -1, "part 0 of its state has";
    case 5:
        return s->parts[1].name[0] = 0, "has no name";
    case 6:
        return memset(s->parts[1].name, 'x', SL_STATE_NAME), "has no name";
    case 7:
        return s->parts[1].align = 3, "an alignment of 3";
    case 8:
        return s->parts[0].align = 2 * SL_STATE_PART_ALIGN, "an alignment of 32";
    case 9:
        return s->parts[0].align = 0, "an alignment of 0";
    case 10:
        return s->parts[1].dtype = SL_I4, "has type";
    case 11:
        return s->parts[1].dtype = (sl_dtype)99, "has type";
    case 12:
        return s->n_parts = -1, "a state of -1 parts";
    default:
        for (int k = s->n_parts; k <= SL_STATE_PARTS; k++)
            sl_layer_state_add(s, "one more", SL_F32, 0, 1, 1, 1);
        return "a state of 5 parts";
    }
}

START_TEST(refused)
{
    uint64_t seed = 12;
    sl_layer_state s = made(&seed, 2);
    sl_err err = {0};
    const char *says = spoil(&s, _i);

    ck_assert_int_eq(sl_layer_state_check("class", SL_LAYER_STATE, 0, &s, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, says) && strstr(err.text, "class"), "%s", err.text);
}
END_TEST

/* The part of these shapes has the bytes that the op keeps versions of. */
static void same(sl_op op, const void *params, sl_dtype t, int64_t a, int64_t b, int64_t c)
{
    const sl_state_part p = {"part", t, 4, {a, b, c}};

    ck_assert_int_eq(sl_op_state_bytes(op, params), sl_state_part_bytes(&p));
}

START_TEST(ops)
{
    uint64_t seed = 13;

    for (int k = 0; k < 200; k++) {
        const int32_t x = 2 + (int32_t)rnd_below(&seed, 9), y = 1 + (int32_t)rnd_below(&seed, 9),
                      z = 1 + (int32_t)rnd_below(&seed, 9), log2 = (int32_t)rnd_below(&seed, 5);
        const float gate = 0;

        same(SL_OP_CONV, &(sl_conv_params){.taps = x, .dilation = y, .channels = z}, SL_F32, (x - 1) * y, z,
             1);
        same(SL_OP_DELTA, &(sl_delta_params){.value_heads = x, .key_dim = y, .value_dim = z}, SL_F32, x, y,
             z);
        same(SL_OP_NGRAM, &(sl_ngram_params){.order = x}, SL_I32, x - 1, 1, 1);
        same(SL_OP_POOL_APPEND, &(sl_pool_append_params){.dim = y, .unit_log2 = log2}, SL_F32, 1, 1 << log2,
             y);
        same(SL_OP_POOL_APPEND, &(sl_pool_append_params){.dim = y, .unit_log2 = log2, .gate = &gate}, SL_F32,
             2, 1 << log2, y);
        same(SL_OP_RING_STORE, &(sl_ring_store_params){.window = x, .dim = y, .dtype = SL_BF16}, SL_BF16, x,
             y, 1);
        same(SL_OP_ENTRIES_APPEND, &(sl_entries_append_params){.rate = x, .dim = y}, SL_F32, 3, y, 1);
        same(SL_OP_ENTRIES_APPEND, &(sl_entries_append_params){.rate = x, .dim = y, .overlap = true}, SL_F32,
             2 * x, 2, 2 * y);
    }
    ck_assert_int_eq(sl_op_state_bytes(SL_OP_LINEAR, &(sl_linear_params){0}), 0);
    /* An op that changes states and is not above would be a part without a stated shape. */
    for (int op = 0; op < SL_OP_COUNT; op++) {
        static const sl_op known[] = {SL_OP_CONV,        SL_OP_DELTA,          SL_OP_NGRAM,
                                      SL_OP_POOL_APPEND, SL_OP_ENTRIES_APPEND, SL_OP_RING_STORE};
        bool in = false;
        for (size_t i = 0; i < SL_COUNT(known); i++)
            in = in || known[i] == (sl_op)op;
        ck_assert_msg(sl_op_has_state((sl_op)op) == in, "%s", sl_op_name((sl_op)op));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layer_state");
    TCase *t = tcase_create("parts");

    tcase_add_test(t, places);
    tcase_add_loop_test(t, refused, 0, 14);
    tcase_add_test(t, ops);
    suite_add_tcase(s, t);
    return run_suite(s);
}
