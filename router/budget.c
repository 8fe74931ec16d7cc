/* See budget.h. */
#include "router/budget.h"

#include <string.h>

enum {
    KEYLESS_PART = 16,
    REQUEST_BYTES = 2048, /* of a request without its lists */
    TOKEN_BYTES = 5,      /* with the key of its page */
    STOP_COPIES = 4,      /* the string, and its table of two bytes each */
    BIAS_COPIES = 2,      /* the list, and the message to the workers */
    GRAMMAR_COPIES = 2    /* likewise */
};

uint64_t sl_front_most(const sl_router_opts *o)
{
    return o->front.max_request_bytes - o->front.max_request_bytes / 8;
}

bool sl_front_hold(sl_router *r, uint64_t *held, uint64_t bytes)
{
    const sl_router_opts *o = sl_router_options(r);
    uint64_t *all = &sl_router_budget(r)->held, most = o->front.max_request_bytes;
    sl_gauge *gauge = sl_router_get_stats(r)->fronts.request_bytes;
    if (bytes > SL_FRONT_SMALL)
        most = sl_front_most(o);
    uint64_t now = __atomic_load_n(all, __ATOMIC_RELAXED), next;
    do {
        next = now - *held + bytes;
        if (bytes > *held && next > most)
            return false;
    } while (!__atomic_compare_exchange_n(all, &now, next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    sl_gauge_add(gauge, (double)bytes - (double)*held);
    *held = bytes;
    return true;
}

sl_status sl_front_hold_spec(sl_router *r, uint64_t *held, uint64_t bytes, const sl_request_spec *s,
                             sl_guard *from, sl_err *err)
{
    const uint64_t all = bytes + sl_front_spec_bytes(s), most = sl_front_most(sl_router_options(r));
    uint64_t ids = 0;
    for (size_t i = 0; i < s->n_prompts; i++)
        ids += s->prompts[i].n * sizeof(int32_t);
    sl_guard_give(from, ids); /* the same memory, of another owner */
    if (all > most)
        return sl_fail(
            err, SL_ERR_TOO_LARGE,
            "%u choices of each of %zu prompts take %lu bytes of memory, of %lu that the server has for all requests "
            "(router.max_request_bytes)",
            s->n, s->n_prompts, (unsigned long)all, (unsigned long)most);
    return sl_front_hold(r, held, all) ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, SL_FRONT_NO_ROOM);
}

bool sl_front_hold_keyless(sl_router *r, uint64_t *held, uint64_t bytes)
{
    uint64_t *all = &sl_router_budget(r)->keyless, before = *held;
    if (bytes > before &&
        *all - before + bytes > sl_router_options(r)->front.max_request_bytes / KEYLESS_PART)
        return false;
    if (!sl_front_hold(r, held, bytes))
        return false;
    *all += *held - before;
    return true;
}

uint64_t sl_front_spec_bytes(const sl_request_spec *s)
{
    uint64_t tokens = 0, stops = 0;
    for (size_t i = 0; i < s->n_prompts; i++)
        tokens += s->prompts[i].n;
    for (size_t i = 0; i < s->n_stops; i++)
        stops += strlen(s->stops[i]);
    uint64_t each = REQUEST_BYTES + STOP_COPIES * stops +
                    BIAS_COPIES * sizeof(sl_logit_bias) * s->sampling.n_bias +
                    GRAMMAR_COPIES * s->sampling.n_grammar;
    return (tokens * TOKEN_BYTES + each * s->n_prompts) * s->n;
}
