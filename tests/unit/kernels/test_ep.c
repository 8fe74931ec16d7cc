/*
 * Expert parallelism has the bits of SL_OP_MOE: for every number of ranks, even and uneven splits, every dtype, padding
 * and missing choices. The ranks are played by one process, which copies the blocks; the exchanges themselves are
 * tested in comm/.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comm.h"
#include "kernels/ep.h"
#include "tests/unit/kernels/cf.h"
#include "tests/unit/run_suite.h"

enum { MOST = 6, TOKENS = 23, TOP_K = 4, INTER = 40 };

typedef struct config {
    int32_t hidden, experts;
    sl_dtype gate, up, down, act;
    bool fp8_acts;
} config;

static const config configs[] = {
    {96, 16, SL_F32, SL_F32, SL_F32, SL_F32, false},
    {256, 8, SL_BF16, SL_BF16, SL_BF16, SL_BF16, false},
    {300, 10, SL_F8_E4M3, SL_F8_E4M3, SL_F8_E4M3, SL_BF16, true},
    {131, 7, SL_F8_E4M3, SL_F8_E4M3, SL_BF16, SL_F32, true},
    {256, 6, SL_F8_E4M3, SL_BF16, SL_F8_E4M3, SL_BF16, true}, /* rows travel unquantised */
    {128, 8, SL_F8_E4M3, SL_F8_E4M3, SL_F8_E4M3, SL_BF16, false},
};

/* One rank's side of both exchanges. */
typedef struct side {
    uint8_t *send, *recv, *results, *back;
    int32_t send_count[MOST], recv_count[MOST], result_count[MOST], back_count[MOST];
    int32_t ids[TOKENS * TOP_K], seq[TOKENS], tokens;
    float weights[TOKENS * TOP_K];
    uint8_t *x, *out, *want;
} side;

static sl_backend *be;
static const config *cfg;
static sl_weight gate[16], up[16], down[16];
static int32_t first[MOST + 1];
static side sides[MOST];
static cf_run memory; /* owns the weights */

static void run(sl_op op, const void *params)
{
    sl_err err = {{0}};
    sl_status st = sl_be_run(be, op, params, &err);

    ck_assert_msg(st == SL_OK, "%s: %s", sl_op_name(op), err.text);
}

static bool quantised(void)
{
    return cfg->fp8_acts && cfg->gate == SL_F8_E4M3 && cfg->up == SL_F8_E4M3;
}

static sl_ep_layout layout_of(int32_t rank, int32_t ranks)
{
    return (sl_ep_layout){.first = first,
                          .rank = rank,
                          .ranks = ranks,
                          .cap = TOKENS,
                          .hidden = cfg->hidden,
                          .top_k = TOP_K,
                          .act = cfg->act,
                          .quantised = quantised()};
}

static uint8_t *zeroed(size_t bytes)
{
    uint8_t *p = aligned_alloc(256, (bytes + 255) / 256 * 256);

    ck_assert_ptr_nonnull(p);
    memset(p, 0xff, bytes);
    return p;
}

/* Tokens of a rank: choices ascending with gaps and -1, some tokens padding; another number on every rank. */
static void fill_side(side *s, int32_t rank, int32_t ranks)
{
    sl_ep_layout l = layout_of(rank, ranks);
    size_t act = sl_dtype_size(cfg->act), row = (size_t)cfg->hidden * act;
    size_t block = (size_t)sl_ep_row_bytes(&l) * TOKENS,
           results = (size_t)sl_ep_result_bytes(&l) * (size_t)sl_ep_result_cap(&l);

    s->tokens = rank == 1 ? 0 : TOKENS - 3 * rank;
    s->send = zeroed(block * (size_t)ranks);
    s->recv = zeroed(block * (size_t)ranks);
    s->results = zeroed(results * (size_t)ranks);
    s->back = zeroed(results * (size_t)ranks);
    s->x = zeroed(row * TOKENS);
    s->out = zeroed(row * TOKENS);
    s->want = zeroed(row * TOKENS);
    for (int32_t t = 0; t < TOKENS; t++) {
        int32_t n = 0;

        s->seq[t] = t % 7 == 5 ? -1 : t;
        for (int32_t e = 0; e < cfg->experts; e++) {
            int32_t left = cfg->experts - e, wanted = TOP_K - n;

            if (wanted > 0 && (int32_t)(cf_hash(5, rank * 1000 + t * 20 + e) % (uint64_t)left) < wanted)
                s->ids[t * TOP_K + n++] = e;
        }
        if (t % 4 == 1)
            s->ids[t * TOP_K + TOP_K - 1] = -1;
        for (int32_t k = 0; k < TOP_K; k++)
            s->weights[t * TOP_K + k] = 0.6f + 0.5f * cf_uniform(6, rank * 1000 + t * TOP_K + k);
        for (int32_t i = 0; i < cfg->hidden; i++) {
            float v = 2 * cf_uniform(7, ((int64_t)rank * TOKENS + t) * cfg->hidden + i);
            uint32_t bits;

            memcpy(&bits, &v, 4);
            if (cfg->act == SL_F32)
                memcpy(s->x + (size_t)t * row + 4 * (size_t)i, &bits, 4);
            else
                memcpy(s->x + (size_t)t * row + 2 * (size_t)i, (uint8_t *)&bits + 2, 2);
        }
    }
}

static void free_side(side *s)
{
    free(s->send);
    free(s->recv);
    free(s->results);
    free(s->back);
    free(s->x);
    free(s->out);
    free(s->want);
}

/* SL_OP_MOE; padding tokens have no experts. */
static void whole(side *s)
{
    sl_moe_params p = {.x = s->x,
                       .expert_ids = s->ids,
                       .weights = s->weights,
                       .gate = gate,
                       .up = up,
                       .down = down,
                       .out = s->want,
                       .tokens = s->tokens,
                       .hidden = cfg->hidden,
                       .inter = INTER,
                       .experts = cfg->experts,
                       .top_k = TOP_K,
                       .fp8_acts = cfg->fp8_acts,
                       .act = cfg->act};
    int32_t ids[TOKENS * TOP_K];

    memcpy(ids, s->ids, sizeof ids);
    for (int32_t i = 0; i < TOKENS * TOP_K; i++)
        if (s->seq[i / TOP_K] < 0)
            ids[i] = -1;
    p.expert_ids = ids;
    p.workspace_bytes = sl_moe_workspace_bytes(TOKENS, cfg->hidden, INTER, cfg->experts, TOP_K);
    p.workspace = zeroed(p.workspace_bytes);
    run(SL_OP_MOE, &p);
    free(p.workspace);
}

/* What sl_comm_all_to_all() does. placed: the blocks are where they belong, only the counts are missing. */
static void exchange(int32_t ranks, size_t block, bool back, bool placed)
{
    for (int32_t from = 0; from < ranks; from++)
        for (int32_t to = 0; to < ranks; to++) {
            side *a = &sides[from], *b = &sides[to];

            if (back) {
                if (!placed)
                    memcpy(b->back + (size_t)from * block, a->results + (size_t)to * block, block);
                b->back_count[from] = a->result_count[to];
            } else {
                if (!placed)
                    memcpy(b->recv + (size_t)from * block, a->send + (size_t)to * block, block);
                b->recv_count[from] = a->send_count[to];
            }
        }
}

/* Where rank r writes its blocks: sl_ep_send_params.to. */
static void *const *places(int32_t r, int32_t ranks, size_t block, bool back, void **to)
{
    for (int32_t q = 0; q < ranks; q++)
        to[q] = (back ? sides[q].back : sides[q].recv) + (size_t)r * block;
    return to;
}

static void spread(int32_t ranks, bool placed)
{
    void *to[MOST];
    sl_ep_layout l = layout_of(0, ranks);
    size_t block = (size_t)sl_ep_row_bytes(&l) * TOKENS,
           results = (size_t)sl_ep_result_bytes(&l) * (size_t)sl_ep_result_cap(&l);

    for (int32_t r = 0; r < ranks; r++) {
        side *s = &sides[r];
        sl_ep_send_params p = {.layout = layout_of(r, ranks),
                               .x = s->x,
                               .expert_ids = s->ids,
                               .token_seq = s->seq,
                               .send = s->send,
                               .send_count = s->send_count,
                               .tokens = s->tokens,
                               .to = placed ? places(r, ranks, block, false, to) : NULL};

        run(SL_OP_EP_SEND, &p);
    }
    exchange(ranks, block, false, placed);
    for (int32_t r = 0; r < ranks; r++) {
        side *s = &sides[r];
        sl_ep_experts_params p = {.layout = layout_of(r, ranks),
                                  .recv = s->recv,
                                  .recv_count = s->recv_count,
                                  .gate = gate + first[r],
                                  .up = up + first[r],
                                  .down = down + first[r],
                                  .send = s->results,
                                  .send_count = s->result_count,
                                  .inter = INTER,
                                  .fp8_acts = cfg->fp8_acts,
                                  .to = placed ? places(r, ranks, results, true, to) : NULL};

        run(SL_OP_EP_EXPERTS, &p);
    }
    exchange(ranks, results, true, placed);
    for (int32_t r = 0; r < ranks; r++) {
        side *s = &sides[r];
        sl_ep_sum_params p = {layout_of(r, ranks), s->back, s->back_count, s->ids,
                              s->weights,          s->seq,  s->out,        s->tokens};

        run(SL_OP_EP_SUM, &p);
    }
}

static void weights_of(sl_weight *w, uint32_t stream, int32_t out, int32_t in, sl_dtype dtype)
{
    for (int32_t e = 0; e < cfg->experts; e++)
        w[e] = cf_weight(&memory, stream + (uint32_t)e, out, in, dtype);
}

START_TEST(equals_one_process)
{
    int32_t ranks = 1 + _i / 2 % MOST; /* every second time the rows are placed */

    cfg = &configs[_i / 2 / MOST];
    memory = (cf_run){.be = be, .memory = be};
    weights_of(gate, 100, INTER, cfg->hidden, cfg->gate);
    weights_of(up, 200, INTER, cfg->hidden, cfg->up);
    weights_of(down, 300, cfg->hidden, INTER, cfg->down);
    ck_assert_msg(memory.st == SL_OK, "%s", memory.err.text);
    sl_ep_split(cfg->experts, ranks, first);
    ck_assert_int_eq(first[ranks], cfg->experts);
    for (int32_t r = 0; r < ranks; r++) {
        ck_assert_int_ge(first[r + 1] - first[r], cfg->experts / ranks);
        ck_assert_int_le(first[r + 1] - first[r], cfg->experts / ranks + 1);
        fill_side(&sides[r], r, ranks);
        whole(&sides[r]);
    }
    spread(ranks, _i % 2);
    for (int32_t r = 0; r < ranks; r++) {
        size_t n = (size_t)sides[r].tokens * (size_t)cfg->hidden * sl_dtype_size(cfg->act);

        ck_assert_msg(memcmp(sides[r].out, sides[r].want, n) == 0, "rank %d of %d differs, config %d", r,
                      ranks, _i / 2 / MOST);
        free_side(&sides[r]);
    }
    cf_release(&memory);
}
END_TEST

/* Padding and tokens without experts send nothing; a rank gets a token once, however many of its experts are there. */
START_TEST(sends_what_is_needed)
{
    static float x[4 * 8];
    int32_t ids[] = {0, 1, 2, 3, 0, 1, -1, -1, -1, -1, -1, -1, 4, 5, 6, 7}, seq[] = {0, 0, 0, -1}, count[2];
    static uint8_t send[2 * 4 * 64];
    sl_ep_send_params p = {
        .x = x, .expert_ids = ids, .token_seq = seq, .send = send, .send_count = count, .tokens = 4};

    sl_ep_split(8, 2, first);
    p.layout = (sl_ep_layout){.first = first, .ranks = 2, .cap = 4, .hidden = 8, .top_k = 4, .act = SL_F32};
    ck_assert_int_le(sl_ep_row_bytes(&p.layout), 64);
    run(SL_OP_EP_SEND, &p);
    ck_assert_int_eq(count[0], 2);
    ck_assert_int_eq(count[1], 0);
    p.tokens = 0;
    run(SL_OP_EP_SEND, &p);
    ck_assert_int_eq(count[0], 0);
}
END_TEST

START_TEST(refuses)
{
    int32_t ids[] = {0, 8}, count[2];
    static float x[8];
    static uint8_t send[2 * 64];
    sl_err err = {{0}};
    sl_ep_send_params p = {.x = x, .expert_ids = ids, .send = send, .send_count = count, .tokens = 1};

    sl_ep_split(8, 2, first);
    p.layout = (sl_ep_layout){.first = first, .ranks = 2, .cap = 1, .hidden = 8, .top_k = 2, .act = SL_F32};
    ck_assert_int_eq(sl_be_run(be, SL_OP_EP_SEND, &p, &err), SL_ERR_INVALID); /* expert 8 of 8 */
    ids[1] = 7;
    p.tokens = 2;
    ck_assert_int_eq(sl_be_run(be, SL_OP_EP_SEND, &p, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "tokens"));
    p.tokens = 1;
    sl_ep_split(1, 2, first);
    ck_assert_int_eq(sl_be_run(be, SL_OP_EP_SEND, &p, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "without experts"));
    sl_ep_split(8, 2, first);
    p.to = (void *const[]){send, NULL};
    ck_assert_int_eq(sl_be_run(be, SL_OP_EP_SEND, &p, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "to has a block that is NULL"));
}
END_TEST

static void open_backend(void)
{
    sl_err err = {{0}};

    ck_assert_msg(sl_backend_create("cpu", &(sl_backend_opts){.threads = 2}, &be, &err) == SL_OK, "%s",
                  err.text);
}

static void close_backend(void)
{
    sl_backend_destroy(be);
}

int main(void)
{
    Suite *s = suite_create("ep");
    TCase *t = tcase_create("ops");

    tcase_add_checked_fixture(t, open_backend, close_backend);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, equals_one_process, 0, 2 * (int)SL_COUNT(configs) * MOST);
    tcase_add_test(t, sends_what_is_needed);
    tcase_add_test(t, refuses);
    suite_add_tcase(s, t);
    return run_suite(s);
}
