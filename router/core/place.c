/*
 * Placement: the queue says whose turn it is (attempts that start again first, then clients in turn), and that request
 * gets the workers that the policy picks among those with room. A worker has room while fewer requests are on it than
 * its batch holds (a quarter more on decode workers, so that prefill runs ahead of the batch) and it did not just
 * answer EXHAUSTED. A request without room stops the scan: none overtakes it while it waits.
 *
 * While a request reserves, it is not in the queue, and the next ones may take the pages it needs. So a long prompt
 * could be refused again and again while short ones pass. aside.c sets a worker aside for it. Requests without room on a
 * worker set aside do not stop the scan.
 *
 * A worker of role both is chosen like a decode worker, with the prompts that wait for it as a part of its load, and
 * computes the prompt itself: it is both members of the attempt, and no prefill worker is chosen. A decode worker is a
 * candidate only while a prefill worker has room; the shortest queue of a prefill worker is then a part of its load.
 *
 * A worker that leaves gets requests only while no other of its role is ready (leaving.c).
 *
 * Placing only books and adds effects, so it may run anywhere.
 */
#include <string.h>

#include "router/core/core_impl.h"

enum { MAX_CANDIDATES = 1024 };

static uint32_t room(const sl_member *w)
{
    if (sl_role_does(w->role, SL_ROLE_DECODE))
        return w->max_batch + (w->max_batch + 3) / 4;
    return 4 * w->max_batch; /* prefill: a short queue on the worker hides the round trip */
}

static void count_choice(sl_router *r, const sl_request *q, const sl_candidate *c)
{
    const sl_policy *policy = r->queue.policy;
    const sl_pick_request req = {.n_tokens = (uint32_t)q->n_tokens};
    bool prefix = policy->by_prefix && policy->by_prefix(r->queue.policy_options, &req, c);
    sl_counter_add(policy == &sl_policy_round_robin ? r->stats.placement.by_order
                   : prefix                         ? r->stats.placement.by_prefix
                                                    : r->stats.placement.by_load,
                   1);
}

/* ---- choosing ---- */

static bool takes(const sl_member *w, const sl_request *q, uint64_t now)
{
    uint32_t own = sl_role_does(w->role, SL_ROLE_DECODE) ? q->aside.decode : q->aside.prefill;
    if (own ? own != w->id : w->set_aside || q->deaths.alone)
        return false;
    return w->account.requests < (q->deaths.alone ? 1 : room(w)) && now >= w->blocked_until_ns;
}

/* The roles of one step of choosing, as a set of bits. */
#define ONE(role) (1u << (role))

/* The members of these roles with room, by id, so that a recorded trace does not depend on the order of the list. The one to
 * avoid is left out and returned in *avoided. The newest member is the first of the list: at[] is filled from its end, so
 * that members nearly always come in their order. */
static size_t collect(sl_router *r, const sl_request *q, unsigned roles, uint32_t avoid, uint64_t now,
                      sl_member **at, sl_member **avoided)
{
    size_t n = 0;
    *avoided = NULL;
    for (sl_member *w = r->cluster.members; w && n < MAX_CANDIDATES; w = w->next) {
        if (!(roles & ONE(w->role)) || !sl_member_serves(r, w, q) || !takes(w, q, now))
            continue;
        if (w->id == avoid || (w->role == SL_ROLE_BOTH && w->id == q->avoid_prefill)) {
            *avoided = w;
            continue;
        }
        size_t k = MAX_CANDIDATES - ++n;
        for (; k + 1 < MAX_CANDIDATES && at[k + 1]->id < w->id; k++)
            at[k] = at[k + 1];
        at[k] = w;
    }
    memmove(at, at + MAX_CANDIDATES - n, n * sizeof *at);
    return n;
}

/* The decode worker may fetch pages of q from another one. */
static void set_source(sl_router *r, const sl_estimate *e, sl_request *q, const sl_member *d,
                       const sl_candidate *c)
{
    uint32_t pages;
    sl_member *owner = c->peer_tokens ? sl_estimate_owner(e, d, &pages) : NULL;
    if (!owner)
        return;
    q->attempt.source = owner->id;
    q->attempt.source_pages = pages;
    owner->account.pulls++;
    sl_counter_add(r->stats.placement.copies, 1);
}

void sl_placement_source(const sl_member *owner, uint32_t pages, sl_msg_source *out)
{
    *out = (sl_msg_source){.worker = owner->id, .epoch = owner->epoch, .pages = pages};
    memcpy(out->addr, owner->listen, sizeof out->addr);
}

void sl_placement_fetched(sl_router *r, sl_request *q)
{
    sl_member *w = sl_member_find(r, q->attempt.source);
    q->attempt.source = q->attempt.source_pages = 0;
    if (w)
        w->account.pulls--;
}

/* The index of the member for q among at[0..n), and the candidates. */
static size_t pick(sl_router *r, sl_request *q, const sl_estimate *e, sl_member **at, size_t n,
                   sl_candidate *c)
{
    for (size_t i = 0; i < n; i++)
        sl_estimate_candidate(e, at[i], q, &c[i]);
    sl_pick_request req = {(uint32_t)q->n_tokens, r->queue.picks, e->token_bytes, e->given_tokens};
    size_t i = r->queue.policy->pick(r->queue.policy_options, &req, c, n);
    SL_CHECK(i < n, "policy %s chose %zu of %zu", r->queue.policy->name, i, n);
    return i;
}

/*
 * Chooses the members for q; false: no member has room. A member that failed it is better than none. The decode member
 * is chosen first: what it has of the prompt, no prefill worker computes. One of role both is the prefill member, too.
 * *compute: the tokens that are left for it.
 */
static bool choose(sl_router *r, sl_request *q, uint64_t now, sl_member **prefill, sl_member **decode,
                   uint64_t *compute)
{
    sl_member *at[2][MAX_CANDIDATES], *avoided[2];
    sl_candidate c[MAX_CANDIDATES];
    size_t n_prefill = collect(r, q, ONE(SL_ROLE_PREFILL), q->avoid_prefill, now, at[1], &avoided[1]);
    unsigned roles = ONE(SL_ROLE_BOTH) | (n_prefill || avoided[1] ? ONE(SL_ROLE_DECODE) : 0);
    size_t n_decode = collect(r, q, roles, q->avoid_decode, now, at[0], &avoided[0]);
    *decode = avoided[0];
    *prefill = avoided[1];
    if (!n_decode && !avoided[0])
        return false;
    sl_estimate e;
    sl_estimate_begin(r, q, &e);
    if (n_decode) {
        size_t i = pick(r, q, &e, at[0], n_decode, c);
        *decode = at[0][i];
        e.given_tokens = c[i].matched_tokens + c[i].disk_tokens + c[i].shared_tokens + c[i].peer_tokens;
        count_choice(r, q, &c[i]);
        set_source(r, &e, q, *decode, &c[i]);
    }
    *compute = sl_estimate_compute(&e, q, 0);
    if ((*decode)->role == SL_ROLE_BOTH) {
        *prefill = *decode;
    } else if (n_prefill) {
        size_t i = pick(r, q, &e, at[1], n_prefill, c);
        *prefill = at[1][i];
        *compute = sl_estimate_compute(&e, q, c[i].matched_tokens);
    }
    return true;
}

/* Places q; false: no member has room for it. */
static bool place(sl_router *r, sl_request *q, uint64_t now)
{
    if (sl_request_update_keys(q, r->cluster.fingerprint)) {
        sl_request_fail(r, q, SL_ERR_NO_MEMORY, "out of memory");
        return true;
    }
    sl_aside_update(r, q);
    sl_member *p, *d;
    uint64_t compute;
    if (!choose(r, q, now, &p, &d, &compute))
        return false;
    r->queue.picks++;
    q->aside.refused_at += q->aside.refused_at != 0; /* its own placement does not count */
    q->attempt.placed_ns = now;
    sl_request_event ev = {.kind = SL_EVENT_PLACED, .now_ns = now};
    ev.placed.prefill = p->id;
    ev.placed.decode = d->id;
    ev.placed.tokens = compute;
    sl_estimate_computes(r, compute);
    sl_request_apply(r, q, &ev);
    return true;
}

void sl_places(const sl_router *r, uint32_t *free_places, uint32_t *places)
{
    uint64_t all[2] = {0}, unused[2] = {0};
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->state != SL_MEMBER_READY)
            continue;
        static const sl_role works[] = {SL_ROLE_PREFILL, SL_ROLE_DECODE};
        for (int i = 0; i < 2; i++) {
            if (!sl_role_does(w->role, works[i]))
                continue;
            all[i] += room(w);
            unused[i] += w->account.requests < room(w) && !w->set_aside ? room(w) - w->account.requests : 0;
        }
    }
    *places = (uint32_t)(all[0] < all[1] ? all[0] : all[1]);
    *free_places = (uint32_t)(unused[0] < unused[1] ? unused[0] : unused[1]);
}

void sl_queue_place(sl_router *r)
{
    r->queue.dirty = false;
    if (!r->cluster.have_identity)
        return;
    uint64_t now = sl_now_ns();
    sl_request *q, *next = sl_queue_next_again(r, NULL, now);
    bool stopped = false;
    while ((q = next)) {
        next = sl_queue_next_again(r, q, now); /* placing removes q */
        bool own = q->aside.decode || q->deaths.alone;
        if ((own || !stopped) && !place(r, q, now))
            stopped |= !own;
    }
    while (!stopped && (q = sl_queue_next(r, now))) {
        if (!place(r, q, now))
            break;
    }
    sl_prefetch_waiting(r);
}
