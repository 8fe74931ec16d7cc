/*
 * The pages of a decode worker: its host store, the cascade to its storage tiers, and the events that tell the router what
 * is cached. All three are the product's; the arena has addresses without memory, and the tiers keep no rows.
 *
 * The cascade asks the owner for checksums. Here they are zeros, and only the time to compute them counts.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/disk_format.h"
#include "simulate/sim_impl.h"

/* ---- checksums ---- */

typedef struct sums {
    sl_sim_worker *w;
    sl_cascade_job *job;
    int32_t n;
    bool check;
} sums;

static void on_sums(void *arg, uint64_t number)
{
    sums *k = arg;
    sl_sim_worker *w = k->w;
    (void)number;
    if (k->check) {
        sl_cascade_checked(w->decode.cascade, k->job, NULL, 0);
    } else {
        uint32_t *crc = calloc((size_t)k->n * (size_t)w->s->geometry.n_layers, sizeof *crc);
        sl_cascade_sums(w->decode.cascade, k->job, crc);
        free(crc);
    }
    free(k);
    sl_sim_pages_turn(w);
}

static bool ask(sl_sim_worker *w, sl_cascade_job *job, int32_t n, bool check)
{
    sums *k = malloc(sizeof *k);
    if (!k)
        return false;
    *k = (sums){w, job, n, check};
    sl_sim_after(w->s, sl_sim_move_ns(n * w->s->page_bytes, w->s->c->checksum_gb_per_s), on_sums, k, 0);
    return true;
}

static bool read_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n)
{
    (void)pages;
    return ask(ctx, job, n, false);
}

static bool check_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    (void)pages;
    (void)crc;
    return ask(ctx, job, n, true);
}

/* ---- events of the store ---- */

static void write_key(sl_wr *w, sl_key k)
{
    sl_wr_u64(w, k.lo);
    sl_wr_u64(w, k.hi);
}

static void send_events(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    if (!d->stored.len && !d->removed.len)
        return;
    m.kv_events = (sl_msg_kv_events){.sequence = ++d->kv_sequence,
                                     .stored = {d->stored.data, d->stored.len},
                                     .removed = {d->removed.data, d->removed.len}};
    sl_sim_tell(w, &m);
    d->stored.len = d->removed.len = 0;
}

/* In one message the removals come first, so a page that was stored and removed since needs two messages. */
static void on_event(void *ctx, sl_store_event ev, const sl_store_page *p)
{
    sl_sim_worker *w = ctx;
    sl_sim_decode *d = &w->decode;
    sl_key none = {0};
    if (ev == SL_STORE_STORED) {
        write_key(&d->stored, sl_key_eq(p->prev, p->seed) ? none : p->prev);
        write_key(&d->stored, p->key);
    } else if (ev == SL_STORE_REMOVED) {
        if (d->stored.len)
            send_events(w);
        write_key(&d->removed, p->key);
    }
}

/* What the routers are told of the disk, as decode/pages/holdings.c does it: keys without parents and tokens. */
static void tell_disk(sl_sim_worker *w, const sl_key *keys, int32_t n, bool stored)
{
    const sl_key none = {0};
    sl_wr list;
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    sl_wr_init(&list);
    for (int32_t i = 0; i < n; i++) {
        if (stored)
            write_key(&list, none);
        write_key(&list, keys[i]);
    }
    send_events(w); /* one sequence of numbers for all media */
    m.kv_events.sequence = ++w->decode.kv_sequence;
    m.kv_events.medium = SL_MEDIUM_DISK;
    *(stored ? &m.kv_events.stored : &m.kv_events.removed) = (sl_blob){list.data, list.len};
    sl_sim_tell(w, &m);
    sl_wr_free(&list);
}

static bool is_disk(const sl_sim_worker *w, int tier)
{
    return w->decode.disk && tier == 0;
}

static void on_tier_stored(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    if (is_disk(ctx, tier))
        tell_disk(ctx, keys, n, true);
}

static void on_tier_gone(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    if (is_disk(ctx, tier))
        tell_disk(ctx, keys, n, false);
}

/* ---- turns ---- */

static void on_due(void *arg, uint64_t number)
{
    sl_sim_worker *w = arg;
    if (w->decode.tick_ns != number)
        return; /* an earlier one was made since */
    w->decode.tick_ns = UINT64_MAX;
    sl_sim_pages_turn(w);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One turn of the cascade, and of the requests whose wait ends in it. Returns when the next one is due. */
static uint64_t turn(sl_sim_worker *w)
{
    sl_cascade *c = w->decode.cascade;
    for (;;) {
        uint64_t due = sl_cascade_tick(c, w->s->now_ns);
        sl_cascade_news news;
        bool any = false;
        while (sl_cascade_next(c, &news)) {
            any = true;
            if (news.ended)
                sl_sim_decode_loaded(news.w);
        }
        if (!any)
            return due;
    }
}

void sl_sim_pages_turn(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    sl_sim *s = w->s;
    if (d->cascade) {
        uint64_t due = turn(w);
        due = earlier(due, d->disk ? sl_sim_tier_due(d->disk) : UINT64_MAX);
        due = earlier(due, d->shared ? sl_sim_tier_due(d->shared) : UINT64_MAX);
        due = due < s->now_ns ? s->now_ns : due;
        if (due < d->tick_ns) {
            d->tick_ns = due;
            sl_sim_after(s, (double)(due - s->now_ns), on_due, w, due);
        }
    }
    send_events(w);
    sl_sim_beat(w);
}

/* ---- life ---- */

typedef struct tier_plan {
    double bytes;
    const sl_sim_device *device;
    double exists_us;
    sl_sim_busy *busy;
    sl_tier *same_as;
    const char *name;           /* of its keys in the costs */
    const sl_tier_opts *report; /* whom it tells what it gives up; NULL: it does not */
} tier_plan;

static sl_status open_tier(sl_sim_worker *w, const tier_plan *p, sl_tier **out, sl_err *err)
{
    sl_sim *s = w->s;
    if (!(p->device->read_gb_per_s > 0) || !(p->device->write_gb_per_s > 0))
        return sl_fail(err, SL_ERR_INVALID, "costs: %s.read_gb_per_s and %s.write_gb_per_s are needed",
                       p->name, p->name);
    sl_disk_store form = {.page_bytes = (uint64_t)s->page_bytes}; /* a shared store is divided like a disk */
    form.slots_per_segment = sl_disk_slots_of(&form, (uint64_t)p->bytes, 0);
    uint64_t segments = sl_disk_segments_in(&form, (uint64_t)p->bytes);
    sl_sim_tier_opts o = {.pages = segments * form.slots_per_segment,
                          .page_bytes = s->page_bytes,
                          .label_bytes = sl_cascade_label_bytes(&s->geometry),
                          .segment_pages = form.slots_per_segment,
                          .second_use = s->o.cfg->kvstore.write == SL_CFG_WRITE_SECOND,
                          .device = *p->device,
                          .exists_us = p->exists_us,
                          .busy = p->busy,
                          .evicted = p->report ? p->report->evicted : NULL,
                          .evicted_ctx = p->report ? p->report->evicted_ctx : NULL,
                          .same_as = p->same_as};
    return sl_sim_tier_open(&o, out, err);
}

static sl_status open_tiers(sl_sim_worker *w, sl_err *err)
{
    sl_sim_decode *d = &w->decode;
    sl_sim *s = w->s;
    const sl_sim_costs *c = s->c;
    sl_tier_opts report = {0};
    tier_plan disk = {(double)s->o.disk_bytes, &c->disk, 0, &d->disk_busy, NULL, "disk", &report};
    tier_plan shared = {c->shared_bytes, &c->shared, c->shared.us, &s->shared_busy,
                        s->shared,       "shared",   NULL};
    if (s->o.disk_bytes) {
        d->listener = sl_cascade_listen(&report);
        if (!d->listener)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        SL_TRY(open_tier(w, &disk, &d->disk, err));
    }
    if (s->o.shared)
        SL_TRY(open_tier(w, &shared, &d->shared, err));
    s->shared = s->shared ? s->shared : d->shared;
    return SL_OK;
}

static sl_status open_cascade(sl_sim_worker *w, sl_err *err)
{
    static const sl_cascade_policy policies[] = {[SL_CFG_WRITE_THROUGH] = SL_CASCADE_WRITE_THROUGH,
                                                 [SL_CFG_WRITE_SELECTIVE] = SL_CASCADE_WRITE_SELECTIVE,
                                                 [SL_CFG_WRITE_SECOND] = SL_CASCADE_WRITE_THROUGH,
                                                 [SL_CFG_WRITE_BACK] = SL_CASCADE_WRITE_BACK};
    sl_sim_decode *d = &w->decode;
    sl_sim *s = w->s;
    sl_cascade_tier tiers[2];
    double chunk = (32 << 20) / s->page_bytes;
    int n = 0;
    sl_cascade_tier as = {.policy = policies[s->o.cfg->kvstore.write],
                          .load_timeout_ms = (uint32_t)sl_config_load_timeout_ms(s->o.cfg)};
    for (int i = 0; i < 2; i++) {
        as.tier = i ? d->shared : d->disk;
        as.listener = i ? NULL : d->listener;
        if (as.tier)
            tiers[n++] = as;
    }
    if (!n)
        return SL_OK;
    sl_cascade_opts o = {.store = d->store,
                         .arena = d->arena,
                         .calls = {.ctx = w,
                                   .read_sums = read_sums,
                                   .check_sums = check_sums,
                                   .stored = on_tier_stored,
                                   .gone = on_tier_gone},
                         .chunk_pages = chunk < 1 ? 1 : (int32_t)chunk};
    sl_status st = sl_cascade_create(&o, tiers, n, &d->cascade);
    if (st != SL_OK)
        d->disk = d->shared = NULL; /* they are closed */
    return st == SL_OK ? SL_OK : sl_fail(err, st, "out of memory or descriptors");
}

sl_status sl_sim_pages_open(sl_sim_worker *w, sl_err *err)
{
    sl_sim_decode *d = &w->decode;
    sl_sim *s = w->s;
    double pages = (double)s->o.host_bytes / s->page_bytes;
    sl_store_opts so = {.n_pages = pages < 1 << 29 ? (int32_t)pages : 1 << 29,
                        .prefix_cache = s->o.cfg->kvstore.share != SL_CFG_SHARE_NONE,
                        .event = on_event,
                        .event_ctx = w};
    sl_arena_opts ao = {.no_memory = true, .numa_node = -1};
    d->tick_ns = UINT64_MAX;
    sl_wr_init(&d->stored);
    sl_wr_init(&d->removed);
    SL_TRY(sl_store_create(&so, &d->store, err));
    ao.bytes = (uint64_t)so.n_pages * (uint64_t)s->geometry.page_bytes;
    SL_TRY(sl_arena_create(&s->geometry, &ao, &d->arena, err));
    SL_TRY(open_tiers(w, err));
    return open_cascade(w, err);
}

void sl_sim_pages_close(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    if (d->cascade) {
        sl_cascade_destroy(d->cascade);
    } else { /* it could not be opened */
        sl_cascade_tier disk = {.tier = d->disk, .listener = d->listener};
        sl_cascade_tier_close(&disk);
        sl_tier_close(d->shared);
    }
    sl_arena_destroy(d->arena);
    sl_store_destroy(d->store);
    sl_wr_free(&d->stored);
    sl_wr_free(&d->removed);
}
