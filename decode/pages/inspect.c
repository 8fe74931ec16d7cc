/* See inspect.h. */
#include "decode/pages/inspect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLACE_SHIFT = 56,
    TIER_PARTS =
        8, /* at most this many times SL_CACHE_PAGES_MAX keys of a tier are compared with a prefix in one part */
};

/* The place of this name, SL_PLACES_ALL for "". SL_ERR_INVALID, SL_ERR_UNSUPPORTED. */
static sl_status place_of(const sl_pages_env *e, const char *tier, int *out, sl_err *err)
{
    *out = SL_PLACES_ALL;
    if (!tier[0])
        return SL_OK;
    for (int p = 0; p < sl_pages_places_n(e); p++) {
        if (strcmp(sl_pages_places_name(e, p), tier) != 0)
            continue;
        if (!sl_pages_places_can_list(e, p))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "tier: %s cannot list its pages, because other processes share them", tier);
        *out = p;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID, "tier: this worker has no tier %s", tier);
}

static void tell_job(const sl_pages_env *e, const sl_audit *audit, uint32_t router, uint64_t ask,
                     sl_status st, const char *reason)
{
    sl_key keys[SL_CACHE_DAMAGED_MAX];
    sl_msg m = {.type = SL_MSG_CACHE_JOB};
    memset(&m.cache_job, 0, sizeof m.cache_job);
    m.cache_job.ask = ask;
    m.cache_job.status = st;
    snprintf(m.cache_job.reason, sizeof m.cache_job.reason, "%.399s", reason);
    sl_audit_describe(audit, &m.cache_job, keys);
    sl_worker_tell_router(e->worker, router, &m);
}

/* ---- lists ---- */

static bool begins_with(sl_key key, const sl_msg_cache_ask *q)
{
    int n = q->prefix_bits, lo = n > 64 ? n - 64 : 0, hi = n - lo;
    uint64_t high = hi ? (key.hi ^ q->prefix.hi) >> (64 - hi) : 0,
             low = lo ? (key.lo ^ q->prefix.lo) >> (64 - lo) : 0;
    return !(high | low);
}

static void put_page(sl_wr *w, sl_key key, uint32_t tokens, uint32_t flags, uint64_t age_ms)
{
    sl_wr_u64(w, key.lo);
    sl_wr_u64(w, key.hi);
    sl_wr_u32(w, tokens);
    sl_wr_u32(w, flags);
    sl_wr_u64(w, age_ms);
}

/* The next part of host memory; returns the position of the one after it, 0: there is none. */
static uint64_t list_host(const sl_pages_env *e, const sl_msg_cache_ask *q, uint64_t at, sl_wr *w)
{
    sl_store_entry page[SL_CACHE_PAGES_MAX];
    int32_t cursor = at > INT32_MAX ? -1 : (int32_t)at, n = cursor < 0 ? 0 : (int32_t)q->most;
    n = n ? sl_store_list(e->store, &cursor, page, n) : 0;
    uint64_t now = sl_now_ns();
    for (int32_t i = 0; i < n; i++) {
        uint64_t idle = page[i].pinned || now < page[i].used_ns ? 0 : now - page[i].used_ns;
        if (begins_with(page[i].key, q))
            put_page(w, page[i].key, ((uint32_t)page[i].before + 1) * SL_PAGE_TOKENS,
                     page[i].pinned ? SL_CACHE_IN_USE : 0, idle / 1000000);
    }
    return cursor > 0 ? (uint64_t)cursor : 0;
}

static uint64_t list_tier(const sl_pages_env *e, const sl_msg_cache_ask *q, int tier, uint64_t at, sl_wr *w)
{
    sl_key keys[SL_CACHE_PAGES_MAX];
    int32_t found = 0, most = (int32_t)q->most;
    for (int part = 0; part < TIER_PARTS && found < most; part++) {
        int32_t n = sl_tier_list(sl_cascade_tier_at(e->cascade, tier), &at, keys, most - found);
        if (!n)
            return 0;
        for (int32_t i = 0; i < n; i++) {
            if (!begins_with(keys[i], q))
                continue;
            put_page(w, keys[i], 0, 0, UINT64_MAX);
            found++;
        }
    }
    return at;
}

static void list(const sl_pages_env *e, const sl_audit *audit, uint32_t router, const sl_msg_cache_ask *q,
                 int only)
{
    sl_wr w;
    uint64_t at = q->cursor & ((1ull << PLACE_SHIFT) - 1), next;
    uint64_t place = q->cursor  ? q->cursor >> PLACE_SHIFT
                     : only > 0 ? (uint64_t)only
                                : 0,
             places = (uint64_t)sl_pages_places_n(e);
    sl_msg m = {.type = SL_MSG_CACHE_PAGES};
    memset(&m.cache_pages, 0, sizeof m.cache_pages);
    m.cache_pages.ask = q->ask;
    sl_wr_init(&w);
    while (place < places && !sl_pages_places_can_list(e, (int)place))
        place++;
    if (place < places) {
        snprintf(m.cache_pages.tier, sizeof m.cache_pages.tier, "%s", sl_pages_places_name(e, (int)place));
        next = place ? list_tier(e, q, (int)place - 1, at, &w) : list_host(e, q, at, &w);
        if (next)
            m.cache_pages.cursor = place << PLACE_SHIFT | next;
        else if (only == SL_PLACES_ALL && place + 1 < places)
            m.cache_pages.cursor = (place + 1) << PLACE_SHIFT;
    }
    m.cache_pages.pages = (sl_blob){w.data, w.len};
    if (w.bad)
        tell_job(e, audit, router, q->ask, SL_ERR_NO_MEMORY, "the worker is out of memory");
    else
        sl_worker_tell_router(e->worker, router, &m);
    sl_wr_free(&w);
}

void sl_inspect_ask(const sl_pages_env *e, sl_audit *audit, const sl_wmsg *m)
{
    const sl_msg_cache_ask *q = &m->msg.cache_ask;
    sl_err err = {0};
    int place;
    sl_status st = place_of(e, q->tier, &place, &err);
    if (st == SL_OK && q->action == SL_CACHE_LIST) {
        list(e, audit, m->router, q, place);
        return;
    }
    if (st == SL_OK && (q->action == SL_CACHE_VERIFY || q->action == SL_CACHE_DROP))
        st = sl_audit_begin(audit, (sl_cache_action)q->action, place, q->rate, &err);
    else if (st == SL_OK && q->action == SL_CACHE_CANCEL)
        sl_audit_cancel(audit);
    tell_job(e, audit, m->router, q->ask, st, err.text);
}
