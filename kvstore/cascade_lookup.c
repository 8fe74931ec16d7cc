/*
 * Which tier has the pages of a load: the lookup (cascade_load.c), and in which order the tiers are asked.
 */
#include <stdlib.h>

#include "base/log.h"
#include "kvstore/cascade_impl.h"

static const uint64_t MS = 1000000;
enum {
    LEASE_MS = 10000,     /* at least, in a tier, from the lookup until the read begins */
    RATE_BYTES = 1 << 20, /* reads of fewer bytes say more about latency */
    RATE_MS =
        30000 /* how long a measured speed counts: a tier that is not asked any more is not measured any more */
};

bool sl_cascade_usable(const sl_cascade *c, int tier, sl_cascade_miss *why)
{
    sl_tier_health h;
    *why = SL_MISS_LATE;
    if (c->tiers[tier].n_late)
        return false;
    sl_tier_get_health(c->tiers[tier].t.tier, &h);
    *why = SL_MISS_IO;
    return h.state != SL_TIER_FAILED;
}

/* Names the other worker that may have the leading ones of these pages. */
static void give_advice(sl_cascade_job *j)
{
    const sl_cascade_load *l = j->load;
    j->advice = l->advice;
    j->advice.seed = l->seed;
    j->advice.pages = 0;
    while (j->advice.pages < j->n && l->first + j->which[j->advice.pages] < l->advice.pages)
        j->advice.pages++;
    j->req.source = &j->advice;
}

void sl_cascade_load_submit(sl_cascade_job *j, sl_tier_op op, sl_tier_done_fn *done)
{
    sl_cascade_slot *s = &j->c->tiers[j->tier];
    uint32_t lease = s->t.load_timeout_ms;
    if (!j->load->asked_ns[j->tier])
        j->load->asked_ns[j->tier] = sl_now_ns();
    j->req = (sl_tier_req){.op = op,
                           .n = j->n,
                           .keys = j->keys,
                           .pages = j->asked,
                           .lease_ms = lease > LEASE_MS ? lease : LEASE_MS,
                           .results = j->answers,
                           .done = done,
                           .cookie = j};
    if (op == SL_TIER_EXISTS)
        give_advice(j);
    SL_CHECK(sl_tier_submit(s->t.tier, &j->req) == SL_OK, "%d keys", j->n);
}

/* The pages that will be read are the leading ones that some tier has. */
static void land(sl_cascade_load *l)
{
    int32_t hits = 0;
    int32_t have = sl_store_match(l->c->o.store, l->seed, l->tokens, (l->first + l->n) * PAGE + 1);
    while (hits < l->n && l->source[hits] >= 0)
        hits++;
    l->reading = true;
    l->from = have - l->first; /* the tree may have changed since the lookup */
    l->limit = hits;
    if (l->from < 0)
        l->from = l->limit = 0; /* what this load continues has left the tree */
    l->begun = l->published = l->from;
    l->c->changes++;
    for (sl_cascade_waiter *w = l->waiters; w; w = w->next)
        sl_cascade_tell_begun(l, w);
}

static sl_cascade_job *make_lookup(sl_cascade_load *l, int tier, int32_t n)
{
    sl_cascade_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    *j = (sl_cascade_job){.c = l->c,
                          .state = LOAD_LOOKUP,
                          .tier = tier,
                          .load = l,
                          .keys = malloc((size_t)n * sizeof *j->keys),
                          .which = malloc((size_t)n * sizeof *j->which),
                          .answers = malloc((size_t)n * sizeof *j->answers)};
    if (!j->keys || !j->which || !j->answers) {
        sl_cascade_job_free(j);
        return NULL;
    }
    for (int32_t i = 0; i < l->n; i++) {
        if (l->source[i] < 0) {
            j->keys[j->n] = l->keys[i];
            j->which[j->n++] = i;
        }
    }
    return j;
}

static void on_looked_up(sl_tier_req *req, sl_status st);

static bool is_faster(const sl_cascade *c, int tier, int than, uint64_t now)
{
    const sl_cascade_slot *a = &c->tiers[tier], *b = &c->tiers[than];
    bool known = a->rate_bytes > RATE_BYTES && b->rate_bytes > RATE_BYTES &&
                 now - a->reads_due_ns < RATE_MS * MS && now - b->reads_due_ns < RATE_MS * MS;
    return known && a->st.read_rate > SL_CASCADE_FASTER * b->st.read_rate;
}

/* The order of the tiers as it was given, but much faster ones before. */
void sl_cascade_load_order(sl_cascade_load *l)
{
    for (int t = 0; t < l->c->n_tiers; t++) {
        int at = t;
        for (; at && is_faster(l->c, t, l->order[at - 1], l->start_ns); at--)
            l->order[at] = l->order[at - 1];
        l->order[at] = (uint8_t)t;
    }
}

int sl_cascade_load_place(const sl_cascade_load *l, int tier)
{
    int at = 0;
    while (l->order[at] != tier)
        at++;
    return at;
}

void sl_cascade_look_up(sl_cascade_load *l, int at)
{
    for (; at < l->c->n_tiers; at++) {
        int32_t n = 0, tier = l->order[at];
        sl_cascade_miss why;
        for (int32_t i = 0; i < l->n; i++)
            n += l->source[i] < 0;
        if (!n)
            break;
        if (sl_cascade_needs_advice(l->c, tier) && l->advice.pages <= l->first)
            continue;
        bool usable = sl_cascade_usable(l->c, tier, &why);
        sl_cascade_job *j = usable ? make_lookup(l, tier, n) : NULL;
        if (j) {
            j->next = l->jobs;
            l->jobs = j;
            sl_cascade_load_submit(j, SL_TIER_EXISTS, on_looked_up);
            return;
        }
        for (int32_t i = 0; i < l->n; i++)
            if (l->source[i] < 0)
                sl_cascade_missed(l, tier, i, usable ? SL_MISS_ROOM : why);
    }
    land(l);
}

static void on_looked_up(sl_tier_req *req, sl_status st)
{
    sl_cascade_job *j = req->cookie;
    sl_cascade_load *l = j->load;
    bool given_up = j->late || l->woken;
    int tier = j->tier;
    if (j->c->closing)
        return;
    for (int32_t k = 0; k < j->n; k++) {
        int32_t i = j->which[k];
        if (st == SL_OK && j->answers[k] == SL_OK && !given_up) {
            l->seen[tier * l->n + i] = SEEN_HAS;
            l->source[i] = (int8_t)tier;
        } else if (!given_up) {
            sl_cascade_missed(l, tier, i, j->answers[k] == SL_ERR_IO ? SL_MISS_IO : SL_MISS_ABSENT);
        }
    }
    if (given_up)
        sl_tier_release(j->c->tiers[tier].t.tier, j->keys, j->n);
    j->c->tiers[tier].n_late -= j->late;
    sl_cascade_job_unlink(&l->jobs, j);
    sl_cascade_job_free(j);
    if (!given_up)
        sl_cascade_look_up(l, sl_cascade_load_place(l, tier) + 1);
    sl_cascade_load_advance(l);
}
