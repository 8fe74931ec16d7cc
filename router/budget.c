/* See budget.h. */
#include "router/budget.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum {
    KEYLESS_PART = 16,
    SMALL_PART = 16,      /* of one client's small holders, while they arrive */
    LARGE_SHARE = 4,      /* its larger ones leave one of this many to the others */
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

/* ---- parts of clients ---- */

struct sl_part {
    sl_part *next;
    uint64_t small, large; /* held by holders of at most SL_FRONT_SMALL bytes, and by larger ones */
    char client[SL_CLIENT_MAX];
};

/* Where the part of the client is, or would be. */
static sl_part **part_at(sl_router *r, const char *client)
{
    sl_budget *b = sl_router_budget(r);
    const sl_key k = sl_hash_chain((sl_key){0, 0}, client, strlen(client));
    sl_part **at = &b->parts[sl_key_place(k) % SL_COUNT(b->parts)];
    while (*at && strcmp((*at)->client, client))
        at = &(*at)->next;
    return at;
}

static uint64_t *sum_of(sl_part *p, uint64_t bytes)
{
    return bytes > SL_FRONT_SMALL ? &p->large : &p->small;
}

static bool part_allows(const sl_router_opts *o, const sl_part *p, uint64_t before, uint64_t bytes)
{
    const uint64_t all = o->front.max_request_bytes;
    if (bytes <= before)
        return true;
    if (bytes <= SL_FRONT_SMALL)
        return p->small - before + bytes <= all / SMALL_PART;
    const uint64_t others = p->large - (before > SL_FRONT_SMALL ? before : 0);
    return !others || others + bytes <= all - all / LARGE_SHARE;
}

bool sl_front_hold_part(sl_router *r, const char *client, uint64_t *held, uint64_t *part, uint64_t bytes)
{
    sl_part **at = part_at(r, client), *p = *at;
    if (!p) {
        if (!bytes)
            return sl_front_hold(r, held, 0);
        p = calloc(1, sizeof *p);
        if (!p)
            return false;
        snprintf(p->client, sizeof p->client, "%s", client);
        *at = p;
    }
    const bool fits = part_allows(sl_router_options(r), p, *part, bytes) && sl_front_hold(r, held, bytes);
    if (fits) {
        *sum_of(p, *part) -= *part;
        *sum_of(p, bytes) += bytes;
        *part = bytes;
    }
    if (!p->small && !p->large) {
        *at = p->next;
        free(p);
    }
    return fits;
}

void sl_front_leave_part(sl_router *r, const char *client, uint64_t *part)
{
    sl_part **at = part_at(r, client), *p = *at;
    if (p && *part) {
        *sum_of(p, *part) -= *part;
        if (!p->small && !p->large) {
            *at = p->next;
            free(p);
        }
    }
    *part = 0;
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
