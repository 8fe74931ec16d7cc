/*
 * See pull.h: the tier, on the engine thread.
 *
 *   lease    entered when                  left when
 *   -------  ----------------------------  -----------------------------------------------------------------------------
 *   asking   exists with a source          the transport thread has the answer: leased, or freed without a lease
 *   leased   the owner has granted pages   release, or its time ends soon: ending
 *   ending                                 its last get has ended: LEASE_END, freed
 *
 * Any number of gets is in flight under one lease. Requests that need no other worker are answered at the next poll.
 */
#include "decode/pages/pull.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"

static const uint64_t MS = 1000000;
enum {
    KNOWN = 64,      /* workers whose speed is remembered */
    PAUSE_MS = 1000, /* after the first failure of a worker */
    PAUSE_MAX_MS = 30000,
    LATE_MS = 1000,      /* a step that is cancelled after this time counts as a failure of the worker */
    MARGIN_MS = 500,     /* a lease that ends earlier than this is not used for a new get */
    RATE_BYTES = 1 << 16 /* gets of fewer bytes say nothing about the rate */
};

const char *const sl_pull_miss_names[SL_PULL_REASONS] = {"absent", "cost", "peer", "late"};

/* What is remembered about a worker, in this session with its router. */
typedef struct known {
    uint64_t epoch, used_ns; /* epoch 0: unused */
    sl_pull_rate bytes_per_s, ask_s;
    uint64_t pause_until_ns;
    uint32_t pause_ms;
} known;

typedef struct pull_tier {
    sl_tier base;
    sl_pull_env env;
    int event; /* eventfd: readable while requests are complete */
    SL_LIST(sl_tier_req) done;
    sl_pull *pulls; /* all, also those that are away */
    uint64_t next_id;
    bool closing;
    known known[KNOWN];
    sl_pull_rate all; /* of every worker */
    sl_pull_stats st;
    uint64_t hits, failed;
} pull_tier;

static known *know(pull_tier *t, const sl_tier_source *s, uint64_t now)
{
    known *oldest = &t->known[0];
    for (int i = 0; i < KNOWN; i++) {
        known *k = &t->known[i];
        if (k->epoch == s->epoch)
            return k;
        if (k->used_ns < oldest->used_ns)
            oldest = k;
    }
    *oldest = (known){.epoch = s->epoch, .used_ns = now};
    return oldest;
}

static void complete(pull_tier *t, sl_tier_req *r)
{
    sl_list_push(&t->done, r);
    eventfd_write(t->event, 1);
}

/* All keys from `from` on have this result. */
static void fill(sl_tier_req *r, int32_t from, sl_status st)
{
    for (int32_t i = from; i < r->n; i++)
        r->results[i] = st;
}

static void missed(pull_tier *t, sl_pull_miss why, int32_t pages)
{
    t->st.misses[why] += (uint64_t)pages;
}

/* ---- leases ---- */

static void get_free(sl_pull_get *g)
{
    free(g->local);
    free(g->remote);
    free(g);
}

static void pull_free(sl_pull *p)
{
    free(p->keys);
    free(p->pages);
    free(p->labels);
    free(p);
}

static void forget(pull_tier *t, sl_pull *p)
{
    sl_pull **at = &t->pulls;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pull_free(p);
}

/* Ends the lease, now or when its last get has ended. It is not away. */
static void end_lease(pull_tier *t, sl_pull *p)
{
    p->ending = true;
    if (p->gets)
        return;
    if (p->granted && !p->lost)
        t->env.end(t->env.ctx, p);
    forget(t, p);
}

static sl_pull *pull_new(pull_tier *t, const sl_tier_req *r, int32_t n)
{
    sl_pull *p = calloc(1, sizeof *p);
    size_t k = (size_t)n;
    if (!p)
        return NULL;
    p->keys = malloc(k * sizeof *p->keys);
    if (!p->keys) {
        pull_free(p);
        return NULL;
    }
    memcpy(p->keys, r->keys, k * sizeof *p->keys);
    p->id = ++t->next_id;
    p->source = *r->source;
    p->n = n;
    p->lease_ms = r->lease_ms > t->env.lease_ms ? r->lease_ms : t->env.lease_ms;
    p->label_bytes = t->env.label_bytes;
    p->next = t->pulls;
    t->pulls = p;
    return p;
}

/* ---- exists ---- */

static bool is_cheaper(pull_tier *t, const known *k, int32_t pages, uint32_t lent, uint64_t now)
{
    double rate = sl_pull_rate_get(&k->bytes_per_s, now);
    const sl_pull_cost c = {.pages = pages,
                            .lent = (int32_t)lent,
                            .page_bytes = (double)t->env.page_bytes,
                            .ask_s = sl_pull_rate_get(&k->ask_s, now),
                            .bytes_per_s = rate > 0 ? rate : sl_pull_rate_get(&t->all, now),
                            .tokens_per_s = t->env.prefill_rate(t->env.ctx)};
    return pages >= t->env.min_pages && sl_pull_is_cheaper(&c);
}

static void exists(pull_tier *t, sl_tier_req *r)
{
    uint64_t now = sl_now_ns();
    int32_t n = r->source ? r->source->pages : 0;
    n = n < r->n ? n : r->n;
    known *k = n > 0 ? know(t, r->source, now) : NULL;
    sl_pull *p = NULL;
    sl_pull_miss why = SL_PULL_ABSENT;
    if (k && now < k->pause_until_ns)
        why = SL_PULL_PEER;
    else if (k && !is_cheaper(t, k, n, 0, now))
        why = SL_PULL_COST;
    else if (k)
        p = pull_new(t, r, n);
    if (p) {
        k->used_ns = now;
        t->st.asks++;
        missed(t, SL_PULL_ABSENT, r->n - n);
        p->req = r;
        p->away = true;
        p->asked_ns = now;
        t->env.ask(t->env.ctx, p);
        return;
    }
    missed(t, why, n > 0 ? n : 0);
    fill(r, 0, SL_ERR_NOT_FOUND);
    complete(t, r);
}

static void note_failure(pull_tier *t, known *k, const sl_pull *p, sl_status st, uint64_t asked_ns)
{
    if (st == SL_ERR_CANCELLED && sl_now_ns() - asked_ns < LATE_MS * MS)
        return; /* the request has ended; the worker is not at fault */
    k->pause_ms = !k->pause_ms ? PAUSE_MS : 2 * k->pause_ms > PAUSE_MAX_MS ? PAUSE_MAX_MS : 2 * k->pause_ms;
    k->pause_until_ns = sl_now_ns() + k->pause_ms * MS;
    t->failed++;
    sl_log(SL_LOG_WARN, "decode", "pull_failed",
           "worker_id=%u address=%s status=%s pages=%d pause_ms=%u reason=\"the pages are computed\"",
           p->source.worker, p->source.address, sl_status_name(st), p->n, k->pause_ms);
}

void sl_pull_asked(sl_tier *base, sl_pull *p)
{
    pull_tier *t = (pull_tier *)base;
    sl_tier_req *r = p->req;
    uint64_t now = sl_now_ns();
    known *k = know(t, &p->source, now);
    p->req = NULL;
    p->away = false;
    p->end_ns = now + p->lease_ms * MS;
    if (p->status == SL_OK) {
        sl_pull_rate_add(&k->ask_s, (double)(now - p->asked_ns) / 1e9, now);
        k->pause_ms = 0;
    } else {
        p->granted = 0;
        note_failure(t, k, p, p->status, p->asked_ns);
    }
    int32_t granted = p->granted;
    sl_pull_miss why = p->status == SL_OK ? SL_PULL_ABSENT : SL_PULL_PEER;
    if (granted && !is_cheaper(t, k, granted, p->lent, now)) {
        granted = 0;
        why = SL_PULL_COST;
    }
    if (p->status == SL_ERR_CANCELLED || (r->cancelled && !granted))
        why = SL_PULL_LATE;
    missed(t, why, p->n - granted);
    for (int32_t i = 0; i < granted; i++)
        r->results[i] = SL_OK;
    fill(r, granted,
         p->status == SL_OK || p->status == SL_ERR_CANCELLED ? (p->status ? p->status : SL_ERR_NOT_FOUND)
                                                             : SL_ERR_IO);
    if (!granted || r->cancelled)
        end_lease(t, p);
    complete(t, r);
}

/* ---- get ---- */

/* The place of this key in the lease, -1: it is not covered. hint: where it probably is. */
static int32_t place(const sl_pull *p, sl_key key, int32_t hint)
{
    if (hint < p->granted && sl_key_eq(p->keys[hint], key))
        return hint;
    for (int32_t i = 0; i < p->granted; i++) {
        if (sl_key_eq(p->keys[i], key))
            return i;
    }
    return -1;
}

/* A lease that covers this key and may still be used, or NULL. */
static sl_pull *covering(const pull_tier *t, sl_key key, uint64_t now)
{
    for (sl_pull *p = t->pulls; p; p = p->next) {
        bool open = !p->away && !p->ending && !p->lost && now + MARGIN_MS * MS < p->end_ns;
        if (open && place(p, key, 0) >= 0)
            return p;
    }
    return NULL;
}

static sl_pull_get *get_new(int32_t n)
{
    sl_pull_get *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->local = malloc((size_t)n * sizeof *g->local);
    g->remote = malloc((size_t)n * sizeof *g->remote);
    if (g->local && g->remote)
        return g;
    get_free(g);
    return NULL;
}

/* The pages of the request that the lease covers become g's, and their labels are written: those bytes are here already. */
static void collect(const pull_tier *t, const sl_pull *p, sl_tier_req *r, sl_pull_get *g)
{
    for (int32_t i = 0, at = -1; i < r->n; i++) {
        at = place(p, r->keys[i], at + 1);
        int32_t page = at >= 0 ? sl_arena_page_at(t->env.arena, r->pages[i].spans[0].iov_base) : -1;
        const struct iovec *label = &r->pages[i].spans[r->pages[i].n_spans - 1];
        bool fits = page >= 0 && label->iov_len == p->label_bytes;
        r->results[i] = fits ? SL_INPROGRESS : SL_ERR_NOT_FOUND;
        if (!fits)
            continue;
        g->local[g->n] = page;
        g->remote[g->n++] = p->pages[at];
        memcpy(label->iov_base, p->labels + (size_t)at * p->label_bytes, p->label_bytes);
    }
}

static void get(pull_tier *t, sl_tier_req *r)
{
    uint64_t now = sl_now_ns();
    sl_pull *p = covering(t, r->keys[0], now);
    sl_pull_get *g = p ? get_new(r->n) : NULL;
    if (!g) {
        missed(t, SL_PULL_ABSENT, r->n);
        fill(r, 0, SL_ERR_NOT_FOUND);
        complete(t, r);
        return;
    }
    collect(t, p, r, g);
    missed(t, SL_PULL_ABSENT, r->n - g->n);
    if (!g->n) {
        get_free(g);
        complete(t, r);
        return;
    }
    g->id = ++t->next_id;
    g->lease = p;
    g->req = r;
    g->asked_ns = now;
    g->next = p->gets;
    p->gets = g;
    t->env.get(t->env.ctx, g);
}

static void measure(pull_tier *t, const sl_pull_get *g, known *k, uint64_t now)
{
    double rate = (double)g->bytes * 1e9 / (double)(g->ns ? g->ns : 1);
    t->st.pages += (uint64_t)g->n;
    t->st.bytes += g->bytes;
    t->st.ns += g->ns;
    if (g->bytes < RATE_BYTES)
        return;
    sl_pull_rate_add(&k->bytes_per_s, rate, now);
    sl_pull_rate_add(&t->all, rate, now);
}

void sl_pull_got(sl_tier *base, sl_pull_get *g)
{
    pull_tier *t = (pull_tier *)base;
    sl_pull *p = g->lease;
    sl_tier_req *r = g->req;
    uint64_t now = sl_now_ns();
    known *k = know(t, &p->source, now);
    bool cancelled = g->status == SL_ERR_CANCELLED;
    sl_status st = g->status == SL_OK || cancelled ? g->status : SL_ERR_IO;
    sl_pull_get **at = &p->gets;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    for (int32_t i = 0; i < r->n; i++)
        r->results[i] = r->results[i] == SL_INPROGRESS ? st : r->results[i];
    if (st == SL_OK) {
        measure(t, g, k, now);
    } else {
        bool first = !p->lost; /* one failure of a connection is one failure of the worker */
        p->lost |= !cancelled;
        missed(t, cancelled ? SL_PULL_LATE : SL_PULL_PEER, g->n);
        if (first)
            note_failure(t, k, p, g->status, g->asked_ns);
    }
    get_free(g);
    if (p->ending || p->lost)
        end_lease(t, p);
    complete(t, r);
}

/* ---- remove ---- */

/* Tells the owners that among these pages some arrived damaged. Nothing is removed here: the answer of the tier is that it
 * does not have them. */
static void tell_owners(pull_tier *t, sl_tier_req *r)
{
    for (const sl_pull *p = t->pulls; p; p = p->next) {
        int32_t first = INT32_MAX, last = -1;
        for (int32_t i = 0, at = -1; i < r->n && !p->away && !p->lost; i++) {
            at = place(p, r->keys[i], at + 1);
            first = at >= 0 && at < first ? at : first;
            last = at > last ? at : last;
        }
        if (last >= 0)
            t->env.damaged(t->env.ctx, p, first, last - first + 1);
    }
    fill(r, 0, SL_ERR_NOT_FOUND);
    complete(t, r);
}

/* ---- the interface ---- */

static sl_status p_open(const sl_tier_opts *opts, sl_tier **out, sl_err *err)
{
    (void)opts;
    (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "tier workers: is opened by a decode worker");
}

static void p_submit(sl_tier *base, sl_tier_req *r)
{
    pull_tier *t = (pull_tier *)base;
    if (t->closing) {
        r->cancelled = true;
        fill(r, 0, SL_ERR_CANCELLED);
        complete(t, r);
        return;
    }
    switch (r->op) {
    case SL_TIER_EXISTS:
        exists(t, r);
        return;
    case SL_TIER_GET:
        get(t, r);
        return;
    case SL_TIER_REMOVE:
        tell_owners(t, r);
        return;
    case SL_TIER_SET:
        fill(r, 0, SL_ERR_UNSUPPORTED);
        complete(t, r);
        return;
    }
}

/* A request that is complete already gets SL_ERR_CANCELLED in poll. */
static void p_cancel(sl_tier *base, sl_tier_req *r)
{
    pull_tier *t = (pull_tier *)base;
    r->cancelled = true;
    for (const sl_pull *p = t->pulls; p; p = p->next) {
        if (p->req == r)
            t->env.cancel(t->env.ctx, p->id);
        for (const sl_pull_get *g = p->gets; g; g = g->next) {
            if (g->req == r)
                t->env.cancel(t->env.ctx, g->id);
        }
    }
}

static void p_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    pull_tier *t = (pull_tier *)base;
    for (sl_pull *p = t->pulls, *next; p; p = next) {
        next = p->next;
        bool covers = false;
        for (int32_t i = 0; i < n && !covers && !p->away; i++)
            covers = place(p, keys[i], i) >= 0;
        if (covers)
            end_lease(t, p);
    }
}

/* Leases whose time ends soon are given back: the owner would close the connection. */
static void end_old(pull_tier *t)
{
    uint64_t now = sl_now_ns();
    for (sl_pull *p = t->pulls, *next; p; p = next) {
        next = p->next;
        if (!p->away && !p->ending && now + MARGIN_MS * MS >= p->end_ns)
            end_lease(t, p);
    }
}

static int p_poll(sl_tier *base)
{
    pull_tier *t = (pull_tier *)base;
    sl_tier_req *todo = t->done.head;
    eventfd_t count;
    int n = 0;
    eventfd_read(t->event, &count);
    sl_list_init(&t->done); /* requests that callbacks add wait for the next poll */
    while (todo) {
        sl_tier_req *r = todo;
        todo = r->next; /* done may free the request */
        r->done(r, r->cancelled ? SL_ERR_CANCELLED : SL_OK);
        n++;
    }
    end_old(t);
    return n;
}

/* The transport thread has ended, or will not answer any more: what is away does not come back. */
static void p_close(sl_tier *base)
{
    pull_tier *t = (pull_tier *)base;
    t->closing = true;
    for (sl_pull *p = t->pulls; p; p = p->next) {
        for (sl_pull_get *g; (g = p->gets);) {
            p->gets = g->next;
            complete(t, g->req);
            fill(g->req, 0, SL_ERR_CANCELLED);
            get_free(g);
        }
        if (p->req) {
            fill(p->req, 0, SL_ERR_CANCELLED);
            complete(t, p->req);
        }
    }
    for (sl_tier_req *r = t->done.head; r; r = r->next)
        r->cancelled = true;
    while (t->done.head)
        p_poll(base);
    while (t->pulls)
        forget(t, t->pulls);
    close(t->event);
    free(t);
}

static int p_fd(const sl_tier *base)
{
    return ((const pull_tier *)base)->event;
}

static void p_health(sl_tier *base, sl_tier_health *out)
{
    (void)base; /* a worker that fails is left alone for a time; the others are not affected */
    *out = (sl_tier_health){.state = SL_TIER_HEALTHY};
}

static void p_stats(sl_tier *base, sl_tier_stats *out)
{
    const pull_tier *t = (const pull_tier *)base;
    sl_pull_stats now;
    sl_pull_stats_get(base, &now);
    *out = (sl_tier_stats){.hits = now.pages,
                           .misses = now.misses[SL_PULL_ABSENT],
                           .leased = (uint64_t)now.leased_pages,
                           .bytes_read = now.bytes,
                           .io_errors = t->failed};
}

static bool p_damage(sl_tier *base, sl_key key)
{
    (void)base;
    (void)key;
    return false;
}

static const sl_tier_ops ops = {.name = "workers",
                                .description = "host memory of other decode workers",
                                .needs_source = true,
                                .has_owners = true,
                                .open = p_open,
                                .close = p_close,
                                .fd = p_fd,
                                .submit = p_submit,
                                .cancel = p_cancel,
                                .release = p_release,
                                .poll = p_poll,
                                .health = p_health,
                                .stats = p_stats,
                                .damage = p_damage};

sl_status sl_pull_open(const sl_pull_env *env, sl_tier **out, sl_err *err)
{
    pull_tier *t = calloc(1, sizeof *t);
    int event = t ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (event < 0) {
        free(t);
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier workers: out of memory or descriptors");
    }
    *t = (pull_tier){.base.ops = &ops, .env = *env, .event = event};
    sl_list_init(&t->done);
    *out = &t->base;
    return SL_OK;
}

void sl_pull_stats_get(const sl_tier *base, sl_pull_stats *out)
{
    const pull_tier *t = (const pull_tier *)base;
    *out = t->st;
    out->rate = (uint64_t)t->all.value;
    for (const sl_pull *p = t->pulls; p; p = p->next) {
        if (p->away) /* it belongs to the other thread */
            continue;
        out->leases++;
        out->leased_pages += p->granted;
    }
}

bool sl_pull_idle(const sl_tier *base)
{
    const pull_tier *t = (const pull_tier *)base;
    return !t->pulls;
}
