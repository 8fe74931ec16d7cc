/*
 * The room as a whole: makes its parts and joins them, hands on what comes in, and collects what requests have to be told.
 * See pages.h.
 */
#include "decode/pages/pages.h"

#include <stdlib.h>

#include "decode/pages/audit.h"
#include "decode/pages/changes.h"
#include "decode/pages/damage.h"
#include "decode/pages/holdings.h"
#include "decode/pages/inspect.h"
#include "decode/pages/lend.h"
#include "decode/pages/loading.h"
#include "decode/pages/prefetch.h"
#include "decode/pages/publish.h"
#include "decode/pages/sessions.h"
#include "decode/pages/workers.h"

struct sl_pages {
    sl_pages_env e;
    sl_sessions *sessions;
    sl_changes *changes;
    sl_publish *publish;
    sl_holdings *holdings;
    sl_damage *damage;
    sl_lends *lends;
    sl_prefetches *prefetches;
    sl_loads *loads;
    sl_audit *audit;
    sl_workers workers;
    uint64_t now_ns; /* of the last tick */
};

/* ---- what the cascade wants of its owner ---- */

static bool post_check(const sl_pages *p, sl_check *k)
{
    if (!k)
        return false;
    k->tag = CHECK_CASCADE;
    sl_checker_post(p->e.checker, k);
    return true;
}

static bool read_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n)
{
    return post_check(ctx, sl_check_new(SL_CHECK_READ, pages, n, job));
}

static bool check_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    sl_check *k = sl_check_new(SL_CHECK_KEEP, pages, n, job);
    if (k) {
        k->expect = crc;
        k->compare = true;
    }
    return post_check(ctx, k);
}

static void cascade_checked(const sl_pages *p, sl_check *k)
{
    if (k->what == SL_CHECK_READ)
        sl_cascade_sums(p->e.cascade, k->owner, k->n_crc ? k->crc : NULL);
    else
        sl_cascade_checked(p->e.cascade, k->owner, k->damaged, k->n_damaged);
    sl_check_free(k);
}

static void on_stored(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    sl_holdings_stored(((sl_pages *)ctx)->holdings, tier, keys, n);
}

static void on_gone(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    sl_holdings_gone(((sl_pages *)ctx)->holdings, tier, keys, n);
}

static void on_held(void *ctx, int tier, const sl_store_page *page)
{
    sl_publish_held(((sl_pages *)ctx)->publish, tier, page);
}

/* ---- creation and end ---- */

/* Of a load. 0: the default. */
static int32_t chunk_pages(const sl_pages_env *e)
{
    uint64_t pages = e->o->load_chunk_bytes / (uint64_t)e->geo->page_bytes, most = 1 << 10;
    if (!e->o->load_chunk_bytes)
        return 0;
    return (int32_t)(pages < 1 ? 1 : pages > most ? most : pages);
}

static sl_status open_cascade(sl_pages *p, sl_pages_opts *o, sl_err *err)
{
    sl_cascade_opts c = {.store = p->e.store,
                         .arena = p->e.arena,
                         .calls = {.ctx = p,
                                   .read_sums = read_sums,
                                   .check_sums = check_sums,
                                   .stored = on_stored,
                                   .gone = on_gone,
                                   .held = on_held},
                         .chunk_pages = chunk_pages(&p->e)};
    if (o->pull)
        SL_TRY(sl_workers_open(&p->workers, &p->e, o, err));
    int n = o->n_tiers;
    o->n_tiers = 0;
    if (n && sl_cascade_create(&c, o->tiers, n, &p->e.cascade) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return SL_OK;
}

static bool make_parts(sl_pages *p, sl_pages_opts *o)
{
    sl_pages_env *e = &p->e;
    sl_events *events = o->events;
    o->events = NULL;
    p->publish = sl_publish_new(e, events);
    p->sessions = sl_sessions_new(e);
    p->changes = sl_changes_new(e, p->sessions);
    p->holdings = sl_holdings_new(e, p->sessions, p->publish);
    p->damage = sl_damage_new(e);
    p->lends = sl_lends_new(e, p->damage);
    p->prefetches = sl_prefetches_new(e);
    p->loads = sl_loads_new(e, p->prefetches);
    p->audit = sl_audit_new(e, p->damage, p->holdings);
    return p->publish && p->sessions && p->changes && p->holdings && p->damage && p->lends && p->prefetches &&
           p->loads && p->audit;
}

void sl_pages_opts_close(sl_pages_opts *o)
{
    sl_events_close(o->events);
    o->events = NULL;
    while (o->n_tiers)
        sl_cascade_tier_close(&o->tiers[--o->n_tiers]);
}

sl_status sl_pages_create(const sl_pages_worker *w, sl_pages **out, sl_err *err)
{
    sl_pages *p = calloc(1, sizeof *p);
    if (!p) {
        sl_pages_opts_close(w->o);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    p->e = (sl_pages_env){.o = w->o,
                          .store = w->store,
                          .arena = w->arena,
                          .geo = sl_arena_geometry(w->arena),
                          .runner = w->runner,
                          .checker = w->checker,
                          .draining = w->draining};
    sl_status st =
        make_parts(p, w->o) ? open_cascade(p, w->o, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_pages_opts_close(w->o); /* nothing is left, unless this has failed */
    if (st != SL_OK)
        sl_pages_destroy(p);
    else
        *out = p;
    return st;
}

void sl_pages_threads(sl_pages *p, sl_worker *w)
{
    p->e.worker = w;
}

void sl_pages_destroy(sl_pages *p)
{
    if (!p)
        return;
    sl_lends_free(p->lends);
    sl_loads_free(p->loads);
    sl_prefetches_free(p->prefetches);
    sl_audit_stop(p->audit);
    sl_cascade_destroy(p->e.cascade);
    sl_audit_free(p->audit);
    sl_damage_free(p->damage);
    sl_holdings_free(p->holdings);
    sl_changes_free(p->changes);
    sl_sessions_free(p->sessions);
    sl_publish_free(p->publish);
    free(p);
}

/* ---- requests ---- */

bool sl_pages_wait(sl_pages *p, uint64_t number, uint32_t router, const sl_msg_reserve *r)
{
    return sl_loads_wait(p->loads, number, router, r);
}

void sl_pages_leave(sl_pages *p, uint64_t number)
{
    sl_loads_leave(p->loads, number);
}

int32_t sl_pages_waiting(const sl_pages *p)
{
    return sl_loads_waiting(p->loads);
}

void sl_pages_aborted(sl_pages *p, uint32_t router, uint64_t rid)
{
    sl_prefetch *f = sl_prefetch_find(p->prefetches, router, rid);
    if (f)
        sl_prefetch_finish(p->prefetches, f, SL_PREFETCH_CANCELLED);
}

void sl_pages_prompt_took(sl_pages *p, int64_t tokens, uint64_t ns)
{
    sl_workers_prompt_took(&p->workers, tokens, ns);
}

int32_t sl_pages_to_verify(const sl_pages_event *ev, int32_t matched)
{
    bool fresh = ev && ev->loaded < ev->loaded_end && matched <= ev->loaded_end;
    return fresh && ev->loaded < matched ? ev->loaded : matched;
}

bool sl_pages_next(sl_pages *p, sl_pages_event *out)
{
    sl_cascade_news news;
    *out = (sl_pages_event){.kind = SL_PAGES_DAMAGED};
    if (sl_damage_next(p->damage, &out->page, &out->dropped))
        return true;
    while (p->e.cascade && sl_cascade_next(p->e.cascade, &news)) {
        if (news.w->kind == SL_WAITER_REQUEST && sl_loads_news(p->loads, &news, out))
            return true;
        if (news.w->kind == SL_WAITER_PREFETCH && news.ended)
            sl_prefetch_loaded(p->prefetches, news.w);
    }
    return sl_loads_next(p->loads, p->now_ns, out);
}

/* ---- messages, mail, jobs ---- */

bool sl_pages_msg(sl_pages *p, sl_wmsg *m)
{
    switch (m->msg.type) {
    case SL_MSG_LEASE_ASK:
        sl_lend_ask(p->lends, m);
        return true;
    case SL_MSG_PREFETCH:
        sl_prefetch_begin(p->prefetches, m);
        return true;
    case SL_MSG_LEASE_END:
        sl_lend_end(p->lends, m);
        break;
    case SL_MSG_LEASE_DAMAGED:
        sl_lend_damaged(p->lends, m);
        break;
    case SL_MSG_CACHE_ASK:
        sl_inspect_ask(&p->e, p->audit, m);
        break;
    case SL_MSG_FLUSH_CACHE:
        sl_store_flush(p->e.store);
        break;
    case SL_MSG_KV_RESYNC:
        sl_changes_resync(p->changes, m->router);
        sl_holdings_begin(p->holdings, m->router);
        break;
    default:
        return false;
    }
    sl_wmsg_free(m);
    return true;
}

bool sl_pages_mail(sl_pages *p, sl_wmail *m)
{
    switch (m->kind) {
    case DM_PULL_ASKED:
        sl_pull_asked(p->workers.tier, (sl_pull *)m);
        return true;
    case DM_PULL_GOT:
        sl_pull_got(p->workers.tier, (sl_pull_get *)m);
        return true;
    case DM_READER_GONE:
        sl_lend_reader_gone(p->lends, ((sl_reader_mail *)m)->ep_serial);
        free(m);
        return true;
    default:
        return false;
    }
}

bool sl_pages_checked(sl_pages *p, sl_check *k)
{
    switch (k->tag) {
    case CHECK_CASCADE:
        cascade_checked(p, k);
        return true;
    case CHECK_LEND:
        sl_lend_checked(p->lends, k);
        return true;
    case CHECK_AUDIT:
        sl_audit_checked(p->audit, k);
        return true;
    default:
        return false;
    }
}

void sl_pages_store_event(sl_pages *p, sl_store_event ev, const sl_store_page *page)
{
    sl_changes_event(p->changes, ev, page);
    sl_publish_event(p->publish, ev, page);
}

/* ---- sessions and turns ---- */

void sl_pages_router_up(sl_pages *p, uint32_t router)
{
    sl_changes_tell(p->changes); /* to the other sessions; this one begins with the whole tree */
    sl_sessions_begin(p->sessions, router);
    sl_changes_resync(p->changes, router);
    sl_holdings_begin(p->holdings, router);
}

void sl_pages_router_down(sl_pages *p, uint32_t router)
{
    sl_prefetch_cancel(p->prefetches, &router);
    sl_sessions_end(p->sessions, router);
    sl_holdings_end(p->holdings, router);
    if (!sl_sessions_any(p->sessions))
        sl_changes_forget(p->changes);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t tick_tiers(sl_pages *p, uint64_t now)
{
    if (*p->e.draining) {
        sl_prefetch_cancel(p->prefetches, NULL);
        sl_cascade_finish(p->e.cascade);
    }
    uint64_t due = sl_cascade_tick(p->e.cascade, now);
    due = earlier(due, sl_loads_due(p->loads));
    due = earlier(due, sl_prefetch_tick(p->prefetches, now));
    return sl_holdings_tick(p->holdings) ? now : due;
}

uint64_t sl_pages_tick(sl_pages *p, uint64_t now)
{
    p->now_ns = now;
    uint64_t due = UINT64_MAX;
    if (p->e.cascade)
        due = tick_tiers(p, now);
    due = earlier(due, sl_audit_tick(p->audit, now));
    return earlier(due, sl_lend_tick(p->lends, now));
}

void sl_pages_turn(sl_pages *p)
{
    sl_changes_tell(p->changes);
    sl_publish_turn(p->publish);
}

bool sl_pages_idle(const sl_pages *p)
{
    sl_lend_stats lend;
    sl_lend_stats_get(p->lends, &lend);
    return !lend.leases && !sl_loads_waiting(p->loads) && (!p->e.cascade || sl_cascade_idle(p->e.cascade));
}

int sl_pages_fd(const sl_pages *p)
{
    return p->e.cascade ? sl_cascade_fd(p->e.cascade) : -1;
}

void sl_pages_stats_get(const sl_pages *p, sl_pages_stats *out)
{
    *out = (sl_pages_stats){.stale = p->e.stale};
    sl_lend_stats_get(p->lends, &out->lend);
    sl_prefetch_stats_get(p->prefetches, &out->prefetch);
    sl_damage_stats_get(p->damage, &out->damage);
    if (p->workers.tier)
        sl_pull_stats_get(p->workers.tier, &out->pull);
}

const sl_cascade *sl_pages_cascade(const sl_pages *p)
{
    return p->e.cascade;
}
