/*
 * What placement knows of the workers, as the candidates of a policy: their loads, the parts of a prompt that they hold or
 * could fetch, and the speeds that they have measured. policies/policy.h has the formula that weighs these.
 *
 * Copies. A decode worker may fetch pages from the host memory of another one, its source. So when the owner of a prefix has
 * more requests than it can begin soon, placing elsewhere costs the transfer instead of the computation, and afterwards the
 * directory knows two owners: popular prefixes spread by themselves, one copy for each worker whose requests need it. Bounds:
 * PULLS_MAX requests fetch from one worker at a time and share its measured speed, and no source is named where computing is
 * faster than twice the transfer.
 */
#include "router/core/core_impl.h"

#include <stdlib.h>

#include "kvstore/page_key.h"
#include "kvstore/snapshot.h"

enum { PULLS_MAX = 8, SNAPSHOTS = 64 /* that are looked for in what a worker has of a prompt */ };
static const double PEER_RATE = 1e9; /* bytes per second, until a worker has measured its own */
static const double ALIKE = 2;       /* factor between speeds of prefill that count as equal */
static const double PER_PROMPT = 2, MUCH_FASTER = 2;

static uint32_t spare_pages(const sl_member *w)
{
    return w->has_load ? w->load.free_pages + w->load.cached_pages : w->total_pages;
}

/* Tokens per second, the mean of the prefill workers that have measured it. */
static double mean_prefill_rate(const sl_router *r)
{
    double sum = 0, n = 0;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && sl_role_does(w->role, SL_ROLE_PREFILL) && w->state == SL_MEMBER_READY &&
            w->load.prefill_rate) {
            sum += w->load.prefill_rate;
            n++;
        }
    }
    return n ? sum / n : SL_COST_PREFILL_RATE;
}

/* Tokens of prompts that a worker is to compute, by its report or by what was placed, whichever is more. */
static uint64_t queued_tokens(const sl_member *w)
{
    uint64_t reported = w->has_load ? w->load.queued_tokens : 0;
    return w->account.tokens > reported ? w->account.tokens : reported;
}

/* A worker of role both has its prompts as a part of its load. Where there is one, those that wait for the prefill workers
 * are a part of each decode worker's load. */
static void find_prefill_queue(const sl_router *r, sl_estimate *e)
{
    bool any = false;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->state != SL_MEMBER_READY)
            continue;
        e->both |= w->role == SL_ROLE_BOTH;
        if (w->role != SL_ROLE_PREFILL || (any && queued_tokens(w) >= e->prefill_queue))
            continue;
        any = true;
        e->prefill_queue = queued_tokens(w);
    }
}

/* The two workers that hold most of the prompt in host memory: the second is for the first one. */
static void find_owners(sl_router *r, sl_estimate *e)
{
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->state != SL_MEMBER_READY || w->place == SL_DIRECTORY_NONE ||
            w->account.pulls >= PULLS_MAX)
            continue;
        uint32_t pages = e->held[w->place].host;
        for (int i = 0; i < 2 && pages; i++) {
            if (pages < e->owned[i] ||
                (pages == e->owned[i] && e->owner[i] && w->account.pulls >= e->owner[i]->account.pulls))
                continue;
            if (!i) {
                e->owner[1] = e->owner[0];
                e->owned[1] = e->owned[0];
            }
            e->owner[i] = w;
            e->owned[i] = pages;
            break;
        }
    }
}

/* ---- snapshots of states ---- */

typedef struct positions {
    const sl_request *q;
    int32_t snapshot;
    sl_key *key; /* [n_keys], of the snapshot after each page; zero: not computed yet */
} positions;

static sl_key snapshot_key(const positions *p, uint32_t pages)
{
    sl_key *k = &p->key[pages - 1];
    if (!(k->lo | k->hi))
        *k = sl_snapshot_page_key(p->q->keys.v[pages - 1], p->snapshot);
    return *k;
}

/* The most pages, of the first `reach` ones that the worker has, after which it has a snapshot. */
static uint32_t last_snapshot(const sl_router *r, const sl_member *w, const positions *p, uint32_t reach)
{
    for (uint32_t at = reach; at && reach - at < SNAPSHOTS; at--) {
        for (int m = 0; m < SL_MEDIUM_COUNT; m++)
            if (sl_directory_has(r->directory, w->place, (sl_medium)m, snapshot_key(p, at)))
                return at;
    }
    return 0;
}

/* A worker can use what it has of a prompt up to the last snapshot only, so nothing else counts as cached. */
static void end_at_snapshots(const sl_router *r, const sl_request *q, const sl_directory_match *held)
{
    const uint32_t most = q->n_tokens ? (uint32_t)((q->n_tokens - 1) / SL_KEY_PAGE_TOKENS) : 0;
    positions p = {.q = q, .snapshot = sl_snapshot_pages(&r->cluster.geometry)};
    if (!p.snapshot || !q->keys.n)
        return;
    p.key = calloc(q->keys.n, sizeof *p.key);
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->place == SL_DIRECTORY_NONE)
            continue;
        uint32_t reach = held[w->place].local + held[w->place].shared;
        reach = reach < most ? reach : most;
        sl_directory_cut(r->directory, w->place, p.key ? last_snapshot(r, w, &p, reach) : 0);
    }
    free(p.key);
}

void sl_estimate_begin(sl_router *r, const sl_request *q, sl_estimate *e)
{
    *e = (sl_estimate){.held = sl_directory_lookup(r->directory, q->keys.v, q->keys.n),
                       .token_bytes = (double)r->cluster.geometry.page_bytes / SL_KEY_PAGE_TOKENS,
                       .prefill_rate = mean_prefill_rate(r),
                       .stay_s = r->queue.stay_s,
                       .compute = r->queue.compute};
    end_at_snapshots(r, q, e->held);
    if (r->o.placement.sources)
        find_owners(r, e);
    find_prefill_queue(r, e);
}

sl_member *sl_estimate_owner(const sl_estimate *e, const sl_member *w, uint32_t *pages)
{
    int i = e->owner[0] == w;
    *pages = e->owned[i];
    return e->owner[i];
}

/*
 * The owner has the first `pages` pages of the prompt. What the worker has itself is not fetched, except pages on its disk if
 * the memory of other workers was measured as much faster; its cascade decides in the same way (kvstore/cascade.h).
 */
static void describe_peer(const sl_estimate *e, const sl_directory_match *m, const sl_msg_load *l,
                          uint32_t pulls, uint32_t pages, sl_candidate *c)
{
    uint32_t reach = m->local + m->shared, all = pages > reach ? pages : reach, disk = m->disk;
    c->peer_rate = (l->peer_rate ? (double)l->peer_rate : PEER_RATE) / (1 + pulls);
    if (l->disk_rate && l->peer_rate && c->peer_rate > MUCH_FASTER * (double)l->disk_rate) {
        uint32_t beyond = pages < m->local ? m->local - pages : 0;
        disk = beyond < disk ? beyond : disk;
    }
    c->peer_tokens = (all - (m->local - m->disk) - disk - m->shared) * SL_KEY_PAGE_TOKENS;
    if (2 * sl_candidate_pull_seconds(c, e->token_bytes) > c->peer_tokens / e->prefill_rate)
        c->peer_tokens = 0;
    else
        c->disk_tokens = disk * SL_KEY_PAGE_TOKENS;
}

/* What this rank of a group has to do in a step: `requests` of policy.h. */
static void describe_context(const sl_member *w, sl_candidate *c)
{
    uint32_t idle = spare_pages(w), active = w->total_pages > idle ? w->total_pages - idle : 0;
    c->context_tokens = (uint64_t)active * SL_KEY_PAGE_TOKENS;
    if (c->context_tokens < w->account.context)
        c->context_tokens = w->account.context;
}

static void describe_load(const sl_member *w, sl_candidate *c)
{
    *c = (sl_candidate){.worker = w->id, .placed = w->account.requests};
    if (w->has_load) {
        c->running = w->load.running;
        c->waiting = w->load.waiting;
        c->queued_tokens = w->load.queued_tokens;
    }
    c->free_pages = spare_pages(w);
    c->total_pages = w->total_pages;
    if (w->rank.next && sl_role_does(w->role, SL_ROLE_DECODE))
        describe_context(w, c);
}

static double slowest_rank(const sl_member *w)
{
    double most = 0;
    for (const sl_member *o = w->rank.next; o; o = o->rank.next == w->rank.next ? NULL : o->rank.next) {
        sl_candidate c;
        describe_load(o, &c);
        double now = sl_candidate_requests(&c);
        most = now > most ? now : most;
    }
    return most;
}

static void describe_decode(const sl_estimate *e, const sl_member *w, sl_candidate *c)
{
    const sl_msg_load *l = &w->load;
    c->prefill_rate = e->prefill_rate;
    c->disk_rate = (double)l->disk_rate;
    c->shared_rate = (double)l->shared_rate;
    c->request_s = w->max_batch ? e->stay_s / w->max_batch : 0;
    c->slowest = w->rank.next ? slowest_rank(w) : 0;
    if (w->place == SL_DIRECTORY_NONE)
        return;
    const sl_directory_match *m = &e->held[w->place];
    /* Pages of the disk may be among those of host memory; the sum is what counts. */
    c->matched_tokens = (m->local - m->disk) * SL_KEY_PAGE_TOKENS;
    c->disk_tokens = m->disk * SL_KEY_PAGE_TOKENS;
    c->shared_tokens = m->shared * SL_KEY_PAGE_TOKENS;
    uint32_t pages;
    const sl_member *owner = sl_estimate_owner(e, w, &pages);
    if (owner)
        describe_peer(e, m, l, owner->account.pulls, pages, c);
}

/* A worker's speed changes with the lengths of its last prompts; only a difference of more than that is taken for a property
 * of its machine. */
static double prefill_rate(const sl_estimate *e, const sl_member *w)
{
    double own = w->load.prefill_rate;
    bool alike = !own || (own < e->prefill_rate * ALIKE && own > e->prefill_rate / ALIKE);
    return alike ? e->prefill_rate : own;
}

uint64_t sl_estimate_compute(const sl_estimate *e, const sl_request *q, uint32_t matched)
{
    uint32_t have = matched > e->given_tokens ? matched : e->given_tokens;
    return have < q->n_tokens ? q->n_tokens - have : 1;
}

/* In a cluster with workers of role both, in addition to what describes a worker that decodes: the prompts that wait. */
static void describe_prompts(const sl_estimate *e, const sl_member *w, sl_candidate *c)
{
    bool both = w->role == SL_ROLE_BOTH;
    c->queued_tokens = both ? queued_tokens(w) : e->prefill_queue;
    c->prefill_rate = both ? prefill_rate(e, w) : e->prefill_rate;
    c->token_s = 1 / c->prefill_rate;
}

/*
 * A prefill worker computes the shortest prompt first and gives long ones a share, so a prompt neither waits for all tokens
 * there, nor does it leave the others alone: each prompt there either comes first or is delayed. Therefore a prompt costs
 * its tokens and PER_PROMPT times those of a mean one. The factor was found with the simulator: on two traces, busy and
 * idle, 0 to 8 were tried; higher ones let the longest prompts wait longer.
 */
static void describe_prefill(const sl_estimate *e, const sl_member *w, const sl_request *q, sl_candidate *c)
{
    c->queued_tokens = queued_tokens(w);
    c->prefill_rate = prefill_rate(e, w);
    c->token_s = 1 / c->prefill_rate;
    c->request_s = PER_PROMPT * e->compute * c->token_s;
    if (w->prefix)
        c->matched_tokens = (uint32_t)(sl_keyset_match(w->prefix, q->keys.v, q->keys.n) * SL_KEY_PAGE_TOKENS);
}

void sl_estimate_candidate(const sl_estimate *e, const sl_member *w, const sl_request *q, sl_candidate *c)
{
    describe_load(w, c);
    if (sl_role_does(w->role, SL_ROLE_DECODE))
        describe_decode(e, w, c);
    else
        describe_prefill(e, w, q, c);
    if (e->both && sl_role_does(w->role, SL_ROLE_DECODE))
        describe_prompts(e, w, c);
}

enum { SMOOTHING = 32 };

static void smooth(double *mean, double value)
{
    *mean = *mean ? *mean + (value - *mean) / SMOOTHING : value;
}

void sl_estimate_stayed(sl_router *r, uint64_t ns)
{
    smooth(&r->queue.stay_s, (double)ns / 1e9);
}

void sl_estimate_computes(sl_router *r, uint64_t tokens)
{
    smooth(&r->queue.compute, (double)tokens);
}
