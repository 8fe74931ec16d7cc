/*
 * The profile of kernels/backend.h: a mark before every op and one at the end. Asynchronous backends keep the marks
 * in their stream (desc->mark); for the others the host's clock is read.
 */
#include "kernels/backend_impl.h"

#include <stdlib.h>

#include "base/log.h"

struct sl_profile {
    int32_t n, capacity;
    sl_op_time *ops; /* [capacity]; until the end, ns of op i is the time of its mark */
    bool stopped;    /* a mark failed */
};

static sl_status mark(sl_backend *be, sl_profile *p, int32_t i, sl_err *err)
{
    if (be->desc->mark)
        return be->desc->mark(be, i, err);
    if (i < p->capacity)
        p->ops[i].ns = (double)sl_now_ns();
    return SL_OK;
}

sl_status sl_be_profile_begin(sl_backend *be, int32_t capacity, sl_err *err)
{
    if (be->profile || capacity < 1)
        return sl_fail(err, SL_ERR_INVALID, "profile: already on, or capacity %d", capacity);
    sl_profile *p = calloc(1, sizeof *p);
    if (p)
        p->ops = calloc((size_t)capacity, sizeof *p->ops);
    if (!p || !p->ops) {
        free(p);
        return sl_fail(err, SL_ERR_NO_MEMORY, "profile: out of memory");
    }
    p->capacity = capacity;
    be->profile = p;
    return SL_OK;
}

void sl_profile_op(sl_backend *be, sl_op op, const void *params)
{
    sl_profile *p = be->profile;
    const sl_linear_params *l = params;

    if (p->n == p->capacity || p->stopped)
        return;
    p->stopped = mark(be, p, p->n, NULL) != SL_OK;
    p->ops[p->n].op = op;
    p->ops[p->n].rows = p->ops[p->n].cols = 0;
    for (; op == SL_OP_LINEAR && l; l = l->next)
        p->ops[p->n].rows += l->w.out, p->ops[p->n].cols = l->w.in;
    p->n += !p->stopped;
}

/* Turns the marks into times: of every op until the next mark, of the last one until now. */
static sl_status read_times(sl_backend *be, sl_profile *p, sl_err *err)
{
    double end = (double)sl_now_ns();
    SL_TRY(mark(be, p, p->n, err));
    SL_TRY(sl_be_sync(be, err));
    for (int32_t i = 0; i < p->n; i++) {
        if (be->desc->mark_ns)
            SL_TRY(be->desc->mark_ns(be, i, &p->ops[i].ns, err));
        else
            p->ops[i].ns = (i + 1 < p->n ? p->ops[i + 1].ns : end) - p->ops[i].ns;
    }
    return SL_OK;
}

sl_status sl_be_profile_end(sl_backend *be, sl_op_time **out, int32_t *n, sl_err *err)
{
    sl_profile *p = be->profile;
    if (!p)
        return sl_fail(err, SL_ERR_INVALID, "profile: is not on");
    sl_status st = read_times(be, p, err);
    be->profile = NULL;
    if (st == SL_OK) {
        *out = p->ops, *n = p->n;
        p->ops = NULL;
    }
    free(p->ops);
    free(p);
    return st;
}
