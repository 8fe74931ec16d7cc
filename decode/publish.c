/*
 * Tells other programs' routers which pages this worker has (events/events.h). Engine thread.
 *
 * Subscribers are not authenticated, so only what may be known to everybody is told: pages of requests without a salt, where
 * everybody shares (kvstore.share: all). The others are not published at all: without their tokens another router could not
 * use them, and with them it would read the prompts.
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
    sl_events_opts o = {.endpoint = endpoint,
                        .replay_endpoint = replay,
                        .topic = topic,
                        .form = cfg->events.zmq.form == SL_CFG_EVENTS_ARRAY ? SL_EVENTS_ARRAY : SL_EVENTS_MAP,
                        .medium = {[SL_MEDIUM_HOST] = cfg->events.zmq.medium_host},
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
    return sl_key_eq(p->seed, d->e.open_seed) && (p->seed.lo | p->seed.hi);
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

void sl_publish_event(sl_decode *d, sl_store_event ev, const sl_store_page *page)
{
    if (!d->o.events || (page && !is_open(d, page)))
        return;
    if (ev == SL_STORE_STORED)
        stored(d, SL_MEDIUM_HOST, page);
    else if (ev == SL_STORE_REMOVED)
        sl_events_removed(d->o.events, SL_MEDIUM_HOST, page->key.lo);
    else
        sl_events_cleared(d->o.events);
}

static void walked(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    sl_publish_event(ctx, ev, page);
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
    sl_events_all_begin(e, now);
    if (sl_store_walk(d->role.store, walked, d) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_events_all_end(e);
}

void sl_publish_begin(sl_decode *d)
{
    if (d->o.events)
        d->e.open_seed = sl_share_seed_of_everybody(d->geo->fingerprint);
}
