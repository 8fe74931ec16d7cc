/*
 * Tells other programs' routers which pages this worker has (events/events.h). Engine thread.
 *
 * Subscribers are not authenticated, so only what may be known to everybody is told: pages of requests without a salt, where
 * everybody shares (kvstore.share: all). The others are not published at all: without their tokens another router could not
 * use them, and with them it would read the prompts.
 *
 * Pages on disk are told with their tokens, as the format requires. The worker knows the tokens when it writes a page and when
 * a request loads it, but not of the other pages that a restart has found, and it keeps none of them. So after AllBlocksCleared
 * a page on disk is told again when it is also in host memory, or else when it is written or loaded next.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "decode/decode_impl.h"
#include "kvstore/domain.h"

/* The endpoint of this worker; "" stays "". */
static sl_status endpoint_of(const char *key, const char *configured, int index,
                             char out[SL_EVENTS_ENDPOINT_MAX], sl_err *err)
{
    out[0] = 0;
    if (!configured[0])
        return SL_OK;
    sl_status st = sl_events_endpoint(configured, index, out, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "%s", key);
}

sl_status sl_publish_open(const sl_config *cfg, const sl_worker_launch *launch, sl_metrics *metrics,
                          sl_events **out, sl_err *err)
{
    char endpoint[SL_EVENTS_ENDPOINT_MAX], replay[SL_EVENTS_ENDPOINT_MAX], topic[256], host[64] = "";
    int index = launch->index < 0 ? 0 : launch->index;
    *out = NULL;
    if (!cfg->events.zmq.endpoint[0])
        return SL_OK;
    SL_TRY(endpoint_of("events.zmq.endpoint", cfg->events.zmq.endpoint, index, endpoint, err));
    SL_TRY(endpoint_of("events.zmq.replay_endpoint", cfg->events.zmq.replay_endpoint, index, replay, err));
    gethostname(host, sizeof host - 1);
    if (!sl_events_topic(cfg->events.zmq.topic, launch->name, cfg->model.served_name, host, topic,
                         sizeof topic))
        return sl_fail(err, SL_ERR_INVALID, "events.zmq.topic: is too long with the names filled in");
    sl_events_opts o = {
        .endpoint = endpoint,
        .replay_endpoint = replay,
        .topic = topic,
        .form = cfg->events.zmq.form == SL_CFG_EVENTS_ARRAY ? SL_EVENTS_ARRAY : SL_EVENTS_MAP,
        .medium =
            {[SL_MEDIUM_HOST] = cfg->events.zmq.medium_host, [SL_MEDIUM_DISK] = cfg->events.zmq.medium_disk},
        .hwm = cfg->events.zmq.hwm,
        .buffer_steps = (size_t)cfg->events.zmq.buffer_steps,
        .buffer_bytes = cfg->events.zmq.buffer_bytes,
        .resend_all = cfg->events.zmq.resend_all,
        .metrics = metrics};
    return sl_events_open(&o, out, err);
}

/* Whether everybody may know this page. */
static bool is_open(const sl_decode *d, const sl_store_page *p)
{
    return sl_key_eq(p->seed, d->pages.publish.open_seed) && (p->seed.lo | p->seed.hi);
}

static void stored(sl_decode *d, sl_medium medium, const sl_store_page *p)
{
    sl_events_block b = {.hash = p->key.lo,
                         .parent = p->prev.lo,
                         .first = sl_key_eq(p->prev, p->seed),
                         .tokens = p->tokens,
                         .n_tokens = SL_PAGE_TOKENS};
    sl_events_stored(d->o.events, medium, &b);
}

/* Whether pages on disk are told at all. */
static bool tells_disk(const sl_decode *d)
{
    return d->o.events && sl_events_has_medium(d->o.events, SL_MEDIUM_DISK);
}

void sl_publish_held(void *ctx, int tier, const sl_store_page *page)
{
    sl_decode *d = ctx;
    if (tells_disk(d) && is_open(d, page) && sl_holdings_local(d, tier) &&
        sl_told_add(&d->pages.publish.told, page->key.lo))
        stored(d, SL_MEDIUM_DISK, page);
}

void sl_publish_gone(sl_decode *d, const sl_key *keys, int32_t n)
{
    for (int32_t i = 0; d->o.events && i < n; i++) {
        if (sl_told_remove(&d->pages.publish.told, keys[i].lo))
            sl_events_removed(d->o.events, SL_MEDIUM_DISK, keys[i].lo);
    }
}

void sl_publish_event(sl_decode *d, sl_store_event ev, const sl_store_page *page)
{
    if (!d->o.events || (page && !is_open(d, page)))
        return;
    if (ev == SL_STORE_STORED)
        stored(d, SL_MEDIUM_HOST, page);
    else if (ev == SL_STORE_REMOVED)
        sl_events_removed(d->o.events, SL_MEDIUM_HOST, page->key.lo);
    else {
        sl_events_cleared(d->o.events); /* of every medium */
        sl_told_clear(&d->pages.publish.told);
    }
}

/* All pages are published anew: what was known of pages on disk before. */
typedef struct resend {
    sl_decode *d;
    sl_told before;
} resend;

static void walked(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    resend *r = ctx;
    sl_publish_event(r->d, ev, page);
    if (sl_told_has(&r->before, page->key.lo) && sl_told_add(&r->d->pages.publish.told, page->key.lo))
        stored(r->d, SL_MEDIUM_DISK, page);
}

void sl_publish_turn(sl_decode *d)
{
    sl_events *e = d->o.events;
    if (!e)
        return;
    sl_events_flush(e);
    uint64_t now = sl_now_ns();
    if (!sl_events_wants_all(e, now))
        return;
    resend r = {d, d->pages.publish.told};
    d->pages.publish.told = (sl_told){0};
    sl_events_all_begin(e, now);
    if (sl_store_walk(d->role.store, walked, &r) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_events_all_end(e);
    sl_told_clear(&r.before);
}

void sl_publish_begin(sl_decode *d)
{
    if (d->o.events)
        d->pages.publish.open_seed = sl_share_seed_of_everybody(d->geo->fingerprint);
}
