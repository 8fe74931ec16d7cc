/* See publish.h. */
#include "decode/pages/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "decode/pages/told.h"
#include "kvstore/domain.h"
#include "kvstore/snapshot.h"

struct sl_publish {
    const sl_pages_env *e;
    sl_events *events; /* NULL: off */
    sl_key open_seed;  /* of the pages that everybody may be told of */
    sl_told told;      /* pages on disk that subscribers have been told of */
};

sl_status sl_publish_open(const sl_config *cfg, const sl_worker_launch *launch, sl_metrics *metrics,
                          sl_events **out, sl_err *err)
{
    const sl_events_worker w = {.index = launch->index < 0 ? 0 : launch->index,
                                .name = launch->name,
                                .model = cfg->model.served_name,
                                .metrics = metrics};
    return sl_events_open_configured(sl_config_part(cfg, &sl_events_table), &w, out, err);
}

sl_publish *sl_publish_new(const sl_pages_env *e, sl_events *events)
{
    sl_publish *u = calloc(1, sizeof *u);
    if (!u) {
        sl_events_close(events);
        return NULL;
    }
    *u = (sl_publish){.e = e, .events = events};
    if (events)
        u->open_seed = sl_share_seed_of_everybody(e->geo->fingerprint);
    return u;
}

void sl_publish_free(sl_publish *u)
{
    if (!u)
        return;
    sl_events_close(u->events);
    sl_told_clear(&u->told);
    free(u);
}

/* Whether everybody may know this page. No text has those of a snapshot. */
static bool is_open(const sl_publish *u, const sl_store_page *p)
{
    return !sl_snapshot_has(p->tokens) && sl_key_eq(p->seed, u->open_seed) && (p->seed.lo | p->seed.hi);
}

static void stored(sl_publish *u, sl_medium medium, const sl_store_page *p)
{
    sl_events_block b = {.hash = p->key.lo,
                         .parent = p->prev.lo,
                         .first = sl_key_eq(p->prev, p->seed),
                         .tokens = p->tokens,
                         .n_tokens = SL_PAGE_TOKENS};
    sl_events_stored(u->events, medium, &b);
}

/* Whether pages on disk are told at all. */
static bool tells_disk(const sl_publish *u)
{
    return u->events && sl_events_has_medium(u->events, SL_MEDIUM_DISK);
}

void sl_publish_held(sl_publish *u, int tier, const sl_store_page *page)
{
    if (tells_disk(u) && is_open(u, page) && sl_pages_places_local(u->e, tier) &&
        sl_told_add(&u->told, page->key.lo))
        stored(u, SL_MEDIUM_DISK, page);
}

void sl_publish_gone(sl_publish *u, const sl_key *keys, int32_t n)
{
    for (int32_t i = 0; u->events && i < n; i++) {
        if (sl_told_remove(&u->told, keys[i].lo))
            sl_events_removed(u->events, SL_MEDIUM_DISK, keys[i].lo);
    }
}

void sl_publish_event(sl_publish *u, sl_store_event ev, const sl_store_page *page)
{
    if (!u->events || (page && !is_open(u, page)))
        return;
    if (ev == SL_STORE_STORED)
        stored(u, SL_MEDIUM_HOST, page);
    else if (ev == SL_STORE_REMOVED)
        sl_events_removed(u->events, SL_MEDIUM_HOST, page->key.lo);
    else {
        sl_events_cleared(u->events); /* of every medium */
        sl_told_clear(&u->told);
    }
}

/* All pages are published anew: what was known of pages on disk before. */
typedef struct resend {
    sl_publish *u;
    sl_told before;
} resend;

static void walked(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    resend *r = ctx;
    sl_publish_event(r->u, ev, page);
    if (sl_told_has(&r->before, page->key.lo) && sl_told_add(&r->u->told, page->key.lo))
        stored(r->u, SL_MEDIUM_DISK, page);
}

void sl_publish_turn(sl_publish *u)
{
    sl_events *e = u->events;
    if (!e)
        return;
    sl_events_flush(e);
    uint64_t now = sl_now_ns();
    if (!sl_events_wants_all(e, now))
        return;
    resend r = {u, u->told};
    u->told = (sl_told){0};
    sl_events_all_begin(e, now);
    if (sl_store_walk(u->e->store, walked, &r) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_events_all_end(e);
    sl_told_clear(&r.before);
}
