/* See tier.h. A request changes the index when it is made; its `done` runs when the device would have ended it. */
#include "simulate/tier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/disk_index.h"

typedef struct pending {
    struct pending *next;
    sl_tier_req *req;
    uint64_t end_ns;
} pending;

/* The pages of one store, which several tiers may have in common. */
typedef struct store {
    int refs;
    sl_disk_index index;
    uint8_t *labels; /* [n_slots][label_bytes] */
    uint64_t batch, generation;
} store;

typedef struct sim_tier {
    sl_tier base;
    sl_sim_tier_opts o;
    store *pages;
    int event;    /* never readable: the owner polls by time */
    sl_key *gone; /* [n_gone], room for cap_gone: evicted, and not reported yet */
    int32_t n_gone, cap_gone;
    pending *queue; /* in the order of their ends */
    sl_tier_stats st;
} sim_tier;

/* ---- pages that are given up ---- */

static void on_evicted(void *ctx, sl_key key, double unused_s, double age_s)
{
    (void)unused_s;
    (void)age_s;
    sim_tier *t = ctx;
    if (!t->o.evicted)
        return;
    if (t->n_gone == t->cap_gone) {
        t->cap_gone = t->cap_gone ? 2 * t->cap_gone : 64;
        t->gone = realloc(t->gone, (size_t)t->cap_gone * sizeof *t->gone);
        SL_CHECK(t->gone, "out of memory");
    }
    t->gone[t->n_gone++] = key;
}

static void report_gone(sim_tier *t)
{
    if (t->n_gone)
        t->o.evicted(t->o.evicted_ctx, t->gone, t->n_gone);
    t->n_gone = 0;
}

/* ---- one page ---- */

static uint8_t *label_of(sim_tier *t, int64_t slot)
{
    return t->pages->labels + (size_t)slot * t->o.label_bytes;
}

static void *span_of(const sl_tier_page *p)
{
    return p->spans[p->n_spans - 1].iov_base;
}

static sl_status get(sim_tier *t, const sl_tier_req *r, int32_t i)
{
    int64_t slot = sl_disk_index_find(&t->pages->index, r->keys[i]);
    if (slot < 0) {
        t->st.misses++;
        return SL_ERR_NOT_FOUND;
    }
    memcpy(span_of(&r->pages[i]), label_of(t, slot), t->o.label_bytes);
    sl_disk_index_touch(&t->pages->index, slot);
    t->st.hits++;
    return SL_OK;
}

static sl_status exists(sim_tier *t, const sl_tier_req *r, int32_t i)
{
    int64_t slot = sl_disk_index_find(&t->pages->index, r->keys[i]);
    if (slot < 0)
        return SL_ERR_NOT_FOUND;
    if (r->lease_ms)
        sl_disk_index_lease(&t->pages->index, slot, sl_now_ns() + r->lease_ms * 1000000ull);
    return SL_OK;
}

static sl_status set(sim_tier *t, const sl_tier_req *r, int32_t i)
{
    int64_t slot = sl_disk_index_find(&t->pages->index, r->keys[i]);
    if (slot >= 0) {
        sl_disk_index_touch(&t->pages->index, slot);
        return SL_OK;
    }
    if (t->o.second_use && !sl_disk_index_admit(&t->pages->index, r->keys[i])) {
        t->st.not_stored_admission++;
        return SL_AGAIN;
    }
    slot = sl_disk_index_claim(&t->pages->index, r->keys[i], 0, t->pages->batch);
    if (slot < 0) {
        t->pages->index.evicted = on_evicted;
        t->pages->index.evicted_ctx = t; /* of several tiers with these pages, the one that stores */
        int64_t segment =
            sl_disk_index_recycle(&t->pages->index, 0, t->pages->batch, sl_now_ns(), ++t->pages->generation);
        if (segment >= 0)
            sl_disk_index_open(&t->pages->index, segment);
        slot = segment < 0 ? -1 : sl_disk_index_claim(&t->pages->index, r->keys[i], 0, t->pages->batch);
    }
    if (slot < 0) {
        t->st.not_stored_room++;
        return SL_ERR_EXHAUSTED;
    }
    memcpy(label_of(t, slot), span_of(&r->pages[i]), t->o.label_bytes);
    sl_disk_index_publish(&t->pages->index, slot);
    t->st.sets++;
    return SL_OK;
}

static sl_status drop(sim_tier *t, const sl_tier_req *r, int32_t i)
{
    int64_t slot = sl_disk_index_find(&t->pages->index, r->keys[i]);
    if (slot < 0)
        return SL_ERR_NOT_FOUND;
    sl_disk_index_drop(&t->pages->index, slot);
    return SL_OK;
}

/* ---- requests ---- */

/* When the device has ended a request that moves this number of pages. */
static uint64_t end_of(sim_tier *t, sl_tier_op op, int32_t moved)
{
    sl_sim_busy *b = t->o.busy;
    uint64_t now = sl_now_ns(), *until = op == SL_TIER_GET ? &b->read_until_ns : &b->write_until_ns;
    if (op != SL_TIER_GET && op != SL_TIER_SET)
        return now + (uint64_t)(t->o.exists_us * 1e3);
    double bytes = moved * t->o.page_bytes,
           rate = op == SL_TIER_GET ? t->o.device.read_gb_per_s : t->o.device.write_gb_per_s;
    double ns = sl_sim_move_ns(bytes, rate);
    *(op == SL_TIER_GET ? &b->read_ns : &b->write_ns) += ns;
    *(op == SL_TIER_GET ? &t->st.bytes_read : &t->st.bytes_written) += (uint64_t)bytes;
    *until = (*until > now ? *until : now) + (uint64_t)ns;
    return *until + (uint64_t)(t->o.device.us * 1e3);
}

static void submit(sl_tier *base, sl_tier_req *r)
{
    static sl_status (*const ops[])(sim_tier *, const sl_tier_req *, int32_t) = {
        [SL_TIER_EXISTS] = exists, [SL_TIER_GET] = get, [SL_TIER_SET] = set, [SL_TIER_REMOVE] = drop};
    sim_tier *t = (sim_tier *)base;
    uint64_t sets = t->st.sets;
    int32_t moved = 0;
    t->pages->batch++;
    for (int32_t i = 0; i < r->n; i++) {
        r->results[i] = ops[r->op](t, r, i);
        moved += r->results[i] == SL_OK;
    }
    moved = r->op == SL_TIER_SET ? (int32_t)(t->st.sets - sets) : moved; /* some were there already */
    pending *p = malloc(sizeof *p), **at = &t->queue;
    SL_CHECK(p, "out of memory");
    *p = (pending){.req = r, .end_ns = end_of(t, r->op, moved)};
    while (*at && (*at)->end_ns <= p->end_ns)
        at = &(*at)->next;
    p->next = *at;
    *at = p;
}

static void cancel(sl_tier *base, sl_tier_req *r)
{
    (void)base; /* it ends when the device has ended it */
    r->cancelled = true;
}

static void finish_first(sim_tier *t)
{
    pending *p = t->queue;
    sl_tier_req *r = p->req;
    t->queue = p->next;
    free(p);
    for (int32_t i = 0; r->cancelled && i < r->n; i++)
        r->results[i] = SL_ERR_CANCELLED;
    r->done(r, r->cancelled ? SL_ERR_CANCELLED : SL_OK);
}

static int poll_tier(sl_tier *base)
{
    sim_tier *t = (sim_tier *)base;
    int n = 0;
    report_gone(t);
    for (; t->queue && t->queue->end_ns <= sl_now_ns(); n++)
        finish_first(t);
    return n;
}

static void release(sl_tier *base, const sl_key *keys, int32_t n)
{
    sim_tier *t = (sim_tier *)base;
    for (int32_t i = 0; i < n; i++) {
        int64_t slot = sl_disk_index_find(&t->pages->index, keys[i]);
        if (slot >= 0)
            sl_disk_index_lease(&t->pages->index, slot, 0);
    }
}

static int fd(const sl_tier *base)
{
    return ((const sim_tier *)base)->event;
}

static void health(sl_tier *base, sl_tier_health *out)
{
    (void)base;
    *out = (sl_tier_health){.state = SL_TIER_HEALTHY};
}

static void stats(sl_tier *base, sl_tier_stats *out)
{
    sim_tier *t = (sim_tier *)base;
    *out = t->st;
    out->pages = t->pages->index.pages;
    out->evictions = t->pages->index.evictions;
    out->bytes = (uint64_t)((double)t->pages->index.pages * t->o.page_bytes);
    out->capacity_bytes = (uint64_t)((double)t->pages->index.n_slots * t->o.page_bytes);
}

static void store_unref(store *p)
{
    if (!p || --p->refs > 0)
        return;
    sl_disk_index_free(&p->index);
    free(p->labels);
    free(p);
}

static void close_tier(sl_tier *base)
{
    sim_tier *t = (sim_tier *)base;
    for (pending *p = t->queue; p; p = p->next)
        p->req->cancelled = true;
    while (t->queue)
        finish_first(t);
    if (t->event >= 0)
        close(t->event);
    store_unref(t->pages);
    free(t->gone);
    free(t);
}

static const sl_tier_ops sim_ops = {.name = "simulated",
                                    .description = "pages without rows, in virtual time",
                                    .close = close_tier,
                                    .fd = fd,
                                    .submit = submit,
                                    .cancel = cancel,
                                    .release = release,
                                    .poll = poll_tier,
                                    .health = health,
                                    .stats = stats};

static store *store_make(const sl_sim_tier_opts *o)
{
    uint32_t per_segment = o->segment_pages ? o->segment_pages : 1;
    const sl_disk_store form = {.page_bytes = (uint64_t)o->page_bytes, .slots_per_segment = per_segment};
    store *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->refs = 1;
    if (sl_disk_index_init(&p->index, &form, o->pages / per_segment, NULL) == SL_OK &&
        (p->labels = malloc(p->index.n_slots * o->label_bytes)))
        return p;
    store_unref(p);
    return NULL;
}

sl_status sl_sim_tier_open(const sl_sim_tier_opts *o, sl_tier **out, sl_err *err)
{
    if (!o->same_as && o->pages / (o->segment_pages ? o->segment_pages : 1) == 0)
        return sl_fail(err, SL_ERR_INVALID, "a tier of %lu pages has no room for a segment of %u", o->pages,
                       o->segment_pages);
    sim_tier *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    *t = (sim_tier){.base.ops = &sim_ops, .o = *o, .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    t->pages = o->same_as ? ((sim_tier *)o->same_as)->pages : store_make(o);
    if (t->pages && o->same_as)
        t->pages->refs++;
    if (t->pages && t->event >= 0) {
        *out = &t->base;
        return SL_OK;
    }
    close_tier(&t->base);
    return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory or descriptors for a tier of %lu pages", o->pages);
}

uint64_t sl_sim_tier_due(const sl_tier *base)
{
    const sim_tier *t = (const sim_tier *)base;
    return t->queue ? t->queue->end_ns : UINT64_MAX;
}
