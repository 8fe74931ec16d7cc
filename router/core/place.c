/*
 * Placement: the requests at the head of the queue get the workers that the policy picks among those with room. A
 * worker has room while fewer requests are on it than its batch holds (a quarter more on decode workers, so that
 * prefill runs ahead of the batch) and it did not just answer EXHAUSTED. A head without room stops the scan: no
 * request overtakes it.
 *
 * Placing only books and adds effects, so it may run anywhere.
 */
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/core_impl.h"

enum { MAX_CANDIDATES = 1024 };

static uint32_t room(const sl_member *w)
{
    if (w->role == SL_ROLE_DECODE)
        return w->max_batch + (w->max_batch + 3) / 4;
    return 4 * w->max_batch; /* prefill: a short queue there hides the round trip */
}

static uint32_t spare_pages(const sl_member *w)
{
    return w->has_load ? w->load.free_pages + w->load.cached_pages : w->total_pages;
}

static void describe(const sl_member *w, const sl_request *q, sl_candidate *c)
{
    *c = (sl_candidate){.worker = w->id, .placed = w->placed};
    if (w->has_load) {
        c->running = w->load.running;
        c->waiting = w->load.waiting;
        c->queued_tokens = w->load.queued_tokens;
    }
    if (w->role == SL_ROLE_PREFILL && w->placed_tokens > c->queued_tokens)
        c->queued_tokens = w->placed_tokens;
    c->free_pages = spare_pages(w);
    c->total_pages = w->total_pages;
    c->matched_tokens = (uint32_t)(sl_keyset_match(w->prefix, q->keys, q->n_keys) * SL_KEY_PAGE_TOKENS);
}

static void count_choice(sl_router *r, const sl_request *q, const sl_candidate *c)
{
    const sl_policy *policy = r->queue.policy;
    bool prefix = policy == &sl_policy_cache_aware && c->matched_tokens &&
                  (double)c->matched_tokens > r->o.cache_threshold * (double)q->n_tokens;
    sl_counter_add(policy == &sl_policy_round_robin ? r->stats.by_order
                   : prefix                         ? r->stats.by_prefix
                                                    : r->stats.by_load,
                   1);
}

/* The members of a role with room, by id, so that a recorded trace does not depend on the order of the list. The one to
 * avoid is left out and returned in *avoided. */
static size_t collect(sl_router *r, uint8_t role, uint32_t avoid, uint64_t now, sl_member **at,
                      sl_member **avoided)
{
    size_t n = 0;
    *avoided = NULL;
    for (sl_member *w = r->cluster.members; w && n < MAX_CANDIDATES; w = w->next) {
        if (!w->id || w->role != role || w->state != SL_MEMBER_READY || w->placed >= room(w) ||
            now < w->blocked_until_ns)
            continue;
        if (w->id == avoid) {
            *avoided = w;
            continue;
        }
        size_t k = n++;
        for (; k && at[k - 1]->id > w->id; k--)
            at[k] = at[k - 1];
        at[k] = w;
    }
    return n;
}

/* The member of this role for q, or NULL when none has room. */
static sl_member *choose(sl_router *r, sl_request *q, uint8_t role, uint32_t avoid, uint64_t now)
{
    sl_member *at[MAX_CANDIDATES], *avoided;
    sl_candidate c[MAX_CANDIDATES];
    size_t n = collect(r, role, avoid, now, at, &avoided);
    if (!n)
        return avoided; /* the one that failed is better than none */
    for (size_t i = 0; i < n; i++)
        describe(at[i], q, &c[i]);
    sl_pick_request req = {(uint32_t)q->n_tokens, r->queue.picks};
    size_t i = r->queue.policy->pick(&r->queue.policy_opts, &req, c, n);
    SL_CHECK(i < n, "policy %s chose %zu of %zu", r->queue.policy->name, i, n);
    if (role == SL_ROLE_DECODE)
        count_choice(r, q, &c[i]);
    return at[i];
}

/* False: no member has room for q. */
static bool place(sl_router *r, sl_request *q, uint64_t now)
{
    if (sl_request_update_keys(q, r->cluster.fingerprint)) {
        sl_request_fail(r, q, SL_ERR_NO_MEMORY, "out of memory");
        return true;
    }
    sl_member *d = choose(r, q, SL_ROLE_DECODE, q->avoid_decode, now);
    sl_member *p = d ? choose(r, q, SL_ROLE_PREFILL, q->avoid_prefill, now) : NULL;
    if (!p)
        return false;
    r->queue.picks++;
    sl_request_event ev = {.kind = SL_EVENT_PLACED, .now_ns = now};
    ev.placed.prefill = p->id;
    ev.placed.decode = d->id;
    sl_request_apply(r, q, &ev);
    return true;
}

void sl_queue_place(sl_router *r)
{
    r->queue.dirty = false;
    if (!r->cluster.have_identity)
        return;
    uint64_t now = sl_now_ns();
    for (sl_request *q = r->queue.head, *next; q; q = next) {
        next = q->q_next; /* placing removes q; a failure may only add to the front or unhold others */
        if (!q->held && now >= q->not_before_ns && !place(r, q, now))
            return;
    }
}
