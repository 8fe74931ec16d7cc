/*
 * Places of scores (SL_GROUP_UNION) and the lists that top-k makes of them, for generated scores with many ties, NaN, both
 * zeros and infinities: compared with counting, and with a union that is made step by step from its description.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/group.h"
#include "tests/unit/run_suite.h"

enum { MOST = 700, HEADS = 8, ROUNDS = 60 };

static uint64_t state;

static uint32_t next(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

/* kind 0: all different; 1: few values; 2: few values and those that are not numbers. */
static float score(uint32_t kind)
{
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-42f, -1e-42f};
    if (kind == 2 && next(3) == 0)
        return odd[next(SL_COUNT(odd))];
    return kind ? (float)next(5) - 2 : ((float)next(1 << 24) - (1 << 23)) / 4096;
}

/* Whether block i of these scores is before block j. */
static bool before(const float *x, int32_t i, int32_t j)
{
    if (isnan(x[i]) || isnan(x[j]))
        return isnan(x[i]) == isnan(x[j]) ? i < j : isnan(x[j]);
    return x[i] > x[j] || (x[i] == x[j] && i < j);
}

static int32_t place(const float *x, int32_t n, int32_t i)
{
    int32_t p = 0;
    for (int32_t j = 0; j < n; j++)
        p += j != i && before(x, j, i);
    return p;
}

START_TEST(places_are_those_of_counting)
{
    static float x[MOST], got[MOST];
    for (int round = 0; round < ROUNDS; round++) {
        state = (uint64_t)(_i * ROUNDS + round);
        const int32_t n = 1 + (int32_t)next(round < 8 ? 4 : MOST);
        uint32_t *own = malloc(16 * (size_t)n); /* exactly, for AddressSanitizer */
        for (int32_t i = 0; i < n; i++)
            x[i] = score((uint32_t)_i);
        memcpy(got, x, sizeof got);
        sl_group_places(got, n, own);
        free(own);
        for (int32_t i = 0; i < n; i++)
            ck_assert_msg(got[i] == (float)-place(x, n, i), "block %d of %d has place %g, not %d", i, n,
                          (double)-got[i], place(x, n, i));
    }
}
END_TEST

/* In turn, place by place, the blocks of all heads, until there are k; of one place the smaller blocks. */
static void unite(float (*x)[MOST], int32_t heads, int32_t n, int32_t k, bool *in)
{
    int32_t have = 0;
    memset(in, 0, (size_t)n);
    for (int32_t p = 0; have < k; p++) {
        bool at[MOST] = {false};
        for (int32_t h = 0; h < heads; h++)
            for (int32_t i = 0; i < n; i++)
                at[i] |= place(x[h], n, i) == p;
        for (int32_t i = 0; i < n && have < k; i++)
            if (at[i] && !in[i])
                in[i] = true, have++;
    }
}

/* The list that top-k makes of the scores of one token whose list has these heads. */
static void list_of(sl_backend *be, float (*x)[MOST], int32_t heads, int32_t n, int32_t k, int32_t *ids)
{
    static float each[MOST], scores[MOST];
    static uint32_t own[4 * MOST];
    const int32_t seq = 0, pos = n - 1;
    const sl_seq_tables seqs = {.n_tokens = 1, .n_seqs = 1, .ld = 1, .token_seq = &seq, .token_pos = &pos};
    const sl_topk_params p = {
        .scores = scores, .seqs = &seqs, .ids = ids, .token_count = 1, .k = k, .ld_scores = n, .ld_ids = k};
    sl_err err = {0};
    for (int32_t h = 0; h < heads; h++) {
        memcpy(each, x[h], sizeof each);
        sl_group_add(SL_GROUP_UNION, 0, each, n, h == 0, own, scores);
    }
    ck_assert_msg(sl_be_run(be, SL_OP_TOPK, &p, &err) == SL_OK, "%s", err.text);
}

START_TEST(lists_unite_the_shares_of_heads)
{
    static float x[HEADS][MOST];
    static bool want[MOST];
    static int32_t ids[MOST];
    sl_backend *be = NULL;
    sl_err err = {0};
    ck_assert_msg(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, &err) == SL_OK, "%s",
                  err.text);
    for (int round = 0; round < ROUNDS; round++) {
        state = (uint64_t)(_i * ROUNDS + round + 1000);
        const int32_t n = 2 + (int32_t)next(90), heads = 1 + (int32_t)next(HEADS),
                      k = 1 + (int32_t)next((uint32_t)n - 1);
        for (int32_t h = 0; h < heads; h++)
            for (int32_t i = 0; i < n; i++)
                x[h][i] = h > 0 && next(4) == 0 ? x[0][i] : score((uint32_t)_i); /* some agree */
        unite(x, heads, n, k, want);
        list_of(be, x, heads, n, k, ids);
        for (int32_t j = 0; j < k; j++)
            ck_assert_msg(ids[j] >= 0 && want[ids[j]] && (j == 0 || ids[j] > ids[j - 1]),
                          "entry %d of %d is %d", j, k, ids[j]);
        for (int32_t h = 0; h < heads; h++)
            for (int32_t i = 0; i < n; i++)
                ck_assert_msg(want[i] || place(x[h], n, i) >= k / heads,
                              "head %d has not its share: block %d", h, i);
    }
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("group");
    TCase *tc = tcase_create("union");

    tcase_add_loop_test(tc, places_are_those_of_counting, 0, 3);
    tcase_add_loop_test(tc, lists_unite_the_shares_of_heads, 0, 3);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
