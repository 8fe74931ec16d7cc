/*
 * The queue and placement. The queue is FIFO (attempts that start again go to its front); its head gets the
 * workers that the policy picks among those with room. A worker has room while fewer requests are on it than
 * its batch holds (a quarter more on decode workers, so that prefill runs ahead of the batch) and it did not
 * just say EXHAUSTED. A head without room stops the scan: nobody overtakes, nobody starves.
 */
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/core_impl.h"

enum { MAX_CANDIDATES = 1024 };

void sl_queue_push(sl_request *g, bool front)
{
    sl_router *r = g->r;
    g->in_queue = true;
    r->queued += !g->held;
    g->q_prev = front ? NULL : r->queue_tail;
    g->q_next = front ? r->queue_head : NULL;
    if (g->q_prev)
        g->q_prev->q_next = g;
    else
        r->queue_head = g;
    if (g->q_next)
        g->q_next->q_prev = g;
    else
        r->queue_tail = g;
}

void sl_queue_remove(sl_request *g)
{
    sl_router *r = g->r;
    if (!g->in_queue)
        return;
    g->in_queue = false;
    r->queued -= !g->held;
    if (g->q_prev)
        g->q_prev->q_next = g->q_next;
    else
        r->queue_head = g->q_next;
    if (g->q_next)
        g->q_next->q_prev = g->q_prev;
    else
        r->queue_tail = g->q_prev;
    g->q_next = g->q_prev = NULL;
}

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

static void describe(const sl_member *w, const sl_request *g, sl_candidate *c)
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
    c->matched_tokens = (uint32_t)(sl_keyset_match(w->prefix, g->keys, g->n_keys) * SL_KEY_PAGE_TOKENS);
}

/* The worker of this role for g, or NULL when none has room. */
static sl_member *choose(sl_router *r, sl_request *g, uint8_t role, uint32_t avoid, uint64_t now)
{
    sl_member *at[MAX_CANDIDATES];
    sl_candidate c[MAX_CANDIDATES];
    size_t n = 0;
    sl_member *avoided = NULL;
    for (sl_member *w = r->workers; w && n < MAX_CANDIDATES; w = w->next) {
        if (!w->id || w->role != role || w->state != SL_MEMBER_READY || w->placed >= room(w) ||
            now < w->blocked_until_ns)
            continue;
        if (w->id == avoid) {
            avoided = w;
            continue;
        }
        size_t k = n++; /* by id, so that a trace does not depend on the order of the list */
        for (; k && at[k - 1]->id > w->id; k--)
            at[k] = at[k - 1];
        at[k] = w;
    }
    if (!n)
        return avoided; /* better the one that failed than nobody */
    for (size_t i = 0; i < n; i++)
        describe(at[i], g, &c[i]);
    sl_pick_request req = {(uint32_t)g->n_tokens, r->picks};
    size_t i = r->policy->pick(&r->policy_opts, &req, c, n);
    SL_CHECK(i < n, "policy %s chose %zu of %zu", r->policy->name, i, n);
    if (role == SL_ROLE_DECODE)
        sl_counter_add(r->policy == &sl_policy_round_robin ? r->stats.by_order
                       : r->policy == &sl_policy_cache_aware && c[i].matched_tokens &&
                               (double)c[i].matched_tokens > r->o.cache_threshold * (double)g->n_tokens
                           ? r->stats.by_prefix
                           : r->stats.by_load,
                       1);
    return at[i];
}

void sl_place_all(sl_router *r)
{
    if (r->placing) {
        r->place_again = true;
        return;
    }
    r->placing = true;
    do {
        r->place_again = false;
        uint64_t now = sl_now_ns();
        for (sl_request *g = r->queue_head, *next; g; g = next) {
            next = g->q_next;
            if (g->held || now < g->not_before_ns || !r->have_identity)
                continue;
            if (sl_request_keys(g)) {
                sl_request_fail(g, SL_ERR_NO_MEMORY, "out of memory");
                break; /* the list may have changed */
            }
            sl_member *d = choose(r, g, SL_ROLE_DECODE, g->avoid_decode, now);
            sl_member *p = d ? choose(r, g, SL_ROLE_PREFILL, g->avoid_prefill, now) : NULL;
            if (!p)
                break;
            r->picks++;
            sl_request_place(g, p, d, now);
        }
    } while (r->place_again && r->queue_head);
    r->placing = false;
    r->place_again = false;
}
