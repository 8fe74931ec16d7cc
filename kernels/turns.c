/* See turns.h: which part of a state each op changes, and the turns of a step. */
#include <string.h>

#include "base/log.h"
#include "kernels/backend_impl.h"
#include "kernels/check.h"
#include "kernels/delta.h"
#include "kernels/entries.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"
#include "kernels/turns.h"

enum { PARAMS_MAX = 512 };

static int64_t conv_bytes(const void *params)
{
    const sl_conv_params *p = params;
    return 4 * (int64_t)(p->taps - 1) * p->dilation * p->channels;
}

static int64_t delta_bytes(const void *params)
{
    const sl_delta_params *p = params;
    return 4 * (int64_t)p->value_heads * p->key_dim * p->value_dim;
}

static int64_t ngram_bytes(const void *params)
{
    const sl_ngram_params *p = params;
    return 4 * (int64_t)(p->order - 1);
}

static int64_t pool_bytes(const void *params)
{
    const sl_pool_append_params *p = params;
    return 4 * ((int64_t)p->dim << p->unit_log2) * (p->gate ? 2 : 1);
}

static int64_t open_bytes(const void *params)
{
    const sl_entries_append_params *p = params;
    return sl_entries_open_bytes(p->rate, p->dim, p->overlap);
}

static int64_t ring_bytes(const void *params)
{
    const sl_ring_store_params *p = params;
    return (int64_t)p->window * p->dim * (int64_t)sl_dtype_size(p->dtype);
}

#define ROW(op, name, state, stride, bytes)                                                                  \
    [SL_OP_##op] = {bytes, offsetof(sl_##name##_params, seqs), offsetof(sl_##name##_params, state),          \
                    offsetof(sl_##name##_params, stride)}

/* The ops that change states: what they change, and where their parameters say so. */
static const struct {
    int64_t (*bytes)(const void *params); /* NULL: another op */
    size_t seqs_at, state_at, stride_at;
} rows[SL_OP_COUNT] = {
    ROW(CONV, conv, state, state_stride, conv_bytes),
    ROW(DELTA, delta, state, state_stride, delta_bytes),
    ROW(NGRAM, ngram, state, state_stride, ngram_bytes),
    ROW(POOL_APPEND, pool_append, state, state_stride, pool_bytes),
    ROW(ENTRIES_APPEND, entries_append, open, open_stride, open_bytes),
    ROW(RING_STORE, ring_store, ring, ring_stride, ring_bytes),
};

bool sl_op_has_state(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT && rows[op].bytes;
}

int64_t sl_op_state_bytes(sl_op op, const void *params)
{
    return sl_op_has_state(op) ? rows[op].bytes(params) : 0;
}

static const sl_seq_tables **seqs_of(sl_op op, void *params)
{
    return (const sl_seq_tables **)(void *)((uint8_t *)params + rows[op].seqs_at);
}

const sl_turns *sl_op_turns(sl_op op, const void *params)
{
    if (!sl_op_has_state(op) || !params)
        return NULL;
    const sl_seq_tables *s =
        *(const sl_seq_tables *const *)(const void *)((const uint8_t *)params + rows[op].seqs_at);
    return s ? s->turns : NULL;
}

/* The op's part of the states of the turn's sequences, to version k. */
static sl_status keep(sl_backend *be, sl_op op, const void *params, const sl_seq_tables *turn, int64_t to,
                      sl_err *err)
{
    uint8_t *state = *(uint8_t *const *)(const void *)((const uint8_t *)params + rows[op].state_at);
    const sl_state_keep_params p = {
        .seqs = turn,
        .from = state,
        .to = state + to,
        .stride = *(const int64_t *)(const void *)((const uint8_t *)params + rows[op].stride_at),
        .bytes = rows[op].bytes(params)};
    return sl_be_run(be, SL_OP_STATE_KEEP, &p, err);
}

sl_status sl_run_turns(sl_backend *be, sl_op op, const void *params, const sl_turns *turns, sl_err *err)
{
    _Alignas(16) uint8_t mine[PARAMS_MAX];
    const size_t size = sl_op_params_size(op);
    SL_CHECK(size <= sizeof mine, "parameters of %zu bytes", size);
    memcpy(mine, params, size);
    sl_seq_tables turn = **seqs_of(op, mine);
    turn.turns = NULL;
    *seqs_of(op, mine) = &turn;
    for (int32_t i = 0; i < turns->n; i++) {
        const int32_t k = turns->n - i; /* tokens from this turn on */
        turn.token_seq = turns->token_seq + (int64_t)i * turn.n_tokens;
        if (k <= turns->kept)
            SL_TRY(keep(be, op, mine, &turn, k * turns->stride, err));
        SL_TRY(sl_be_run(be, op, mine, err));
    }
    return SL_OK;
}

void sl_chk_state_keep(sl_chk *c, const void *params)
{
    const sl_state_keep_params *p = params;

    sl_chk_seqs(c, p->seqs);
    sl_chk_need(c, p->bytes >= 1 && p->stride >= p->bytes, "stride",
                "is less than the bytes that are copied");
    sl_chk_ptr(c, "from", p->from, 1);
    sl_chk_ptr(c, "to", p->to, 1);
}
