/*
 * The table of ops (kernels/ops.h) at run time: names, sizes, checks, and on how much an op would work.
 */
#include "kernels/backend_impl.h"
#include "kernels/blocks.h"
#include "kernels/bounds.h"
#include "kernels/check.h"
#include "kernels/clusters.h"
#include "kernels/codes.h"
#include "kernels/entries.h"
#include "kernels/ep.h"
#include "kernels/gqa.h"
#include "kernels/labels.h"
#include "kernels/streams.h"
#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"
#include "kernels/retained.h"
#include "kernels/sample.h"
#include "kernels/synth.h"
#include "kernels/turns.h"
#include "kernels/window.h"

enum { ITEMS_COUNT, ITEMS_SEQS, ITEMS_ALWAYS };

static const struct {
    const char *name, *text;
    size_t size;
    int items;
    size_t items_at; /* offset of the field that says it */
    void (*check)(sl_chk *c, const void *params);
} op_rows[SL_OP_COUNT] = {
#define X(op, name, items, field, text)                                                                      \
    [SL_OP_##op] = {                                                                                         \
        #name,        text, sizeof(sl_##name##_params), ITEMS_##items, offsetof(sl_##name##_params, field),  \
        sl_chk_##name},
    SL_OPS(X)
#undef X
};

const char *sl_op_name(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT ? op_rows[op].name : op == SL_OP_COUNT ? "collective" : "unknown";
}

const char *sl_op_text(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT ? op_rows[op].text : "";
}

size_t sl_op_params_size(sl_op op)
{
    return (unsigned)op < SL_OP_COUNT ? op_rows[op].size : 0;
}

static sl_status check(sl_op op, const void *params, bool pointers, size_t align, sl_err *err)
{
    sl_chk c = {.op = sl_op_name(op), .err = err, .st = SL_OK, .pointers = pointers, .align = align};

    if ((unsigned)op >= SL_OP_COUNT)
        return sl_fail(err, SL_ERR_INVALID, "op %d does not exist", (int)op);
    if (!params)
        return sl_fail(err, SL_ERR_INVALID, "%s: params is NULL", c.op);
    op_rows[op].check(&c, params);
    return c.st;
}

sl_status sl_op_check(sl_op op, const void *params, size_t align, sl_err *err)
{
    return check(op, params, true, align, err);
}

sl_status sl_op_check_shape(sl_op op, const void *params, sl_err *err)
{
    return check(op, params, false, 1, err);
}

int64_t sl_op_items(sl_op op, const void *params)
{
    const uint8_t *at = (const uint8_t *)params + op_rows[op].items_at;
    const sl_seq_tables *seqs;

    switch (op_rows[op].items) {
    case ITEMS_COUNT:
        return *(const int32_t *)(const void *)at;
    case ITEMS_SEQS:
        seqs = *(const sl_seq_tables *const *)(const void *)at;
        return seqs ? seqs->n_tokens : 1; /* NULL: the check of pointers reports it */
    default:
        return 1;
    }
}
