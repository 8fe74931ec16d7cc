/*
 * Guards of long jobs; see guard.h.
 */
#include "base/guard.h"

#include <stdlib.h>

enum { FIRST = 64 };

sl_status sl_guard_take(sl_guard *g, uint64_t bytes, sl_err *err)
{
    if (!g || !bytes)
        return SL_OK;
    if (!g->hold) {
        g->held += bytes;
        return SL_OK;
    }
    if (g->hold(g, g->held + bytes))
        return SL_OK;
    g->refused = g->held + bytes;
    return sl_guard_refused(g, err);
}

sl_status sl_guard_refused(const sl_guard *g, sl_err *err)
{
    if (g->most && g->refused > g->most)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "the request takes at least %lu bytes of memory, of %lu that the server has for all "
                       "requests (router.max_request_bytes)",
                       (unsigned long)g->refused, (unsigned long)g->most);
    return sl_fail(err, SL_ERR_EXHAUSTED,
                   "the server holds too many bytes of requests (router.max_request_bytes); try again later");
}

void sl_guard_give(sl_guard *g, uint64_t bytes)
{
    if (!g || !bytes)
        return;
    uint64_t left = g->held > bytes ? g->held - bytes : 0;
    if (g->hold)
        g->hold(g, left);
    else
        g->held = left;
}

sl_status sl_guard_check(const sl_guard *g, sl_err *err)
{
    return g && __atomic_load_n(&g->stop, __ATOMIC_RELAXED)
               ? sl_fail(err, SL_ERR_CANCELLED, "no caller waits for the result any more")
               : SL_OK;
}

void sl_guard_stop(sl_guard *g)
{
    __atomic_store_n(&g->stop, true, __ATOMIC_RELAXED);
}

sl_status sl_guard_grow(sl_guard *g, void **p, size_t *cap, size_t need, size_t element, sl_err *err)
{
    if (need <= *cap)
        return SL_OK;
    size_t most = *cap + *cap / 2 > need ? *cap + *cap / 2 : need;
    most = most < FIRST ? FIRST : most;
    SL_TRY(sl_guard_take(g, (uint64_t)(most - *cap) * element, err));
    void *q = realloc(*p, most * element);
    if (!q) {
        sl_guard_give(g, (uint64_t)(most - *cap) * element);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    *p = q;
    *cap = most;
    return SL_OK;
}
