/*
 * Audit: a job that goes over all pages of a worker's cache while requests are served, either to verify or to remove them. It
 * is begun and asked about by CACHE_ASK (inspect.c); a worker has one at a time. Engine thread.
 *
 *   verify, host     the pages of the prefix tree, some at a time, are held and read by the checker, which compares them with
 *                    their kept checksums. A damaged page leaves the tree, and the requests that use it begin again
 *                    (damage.c)
 *   verify, tier     pages are read into memory of the job, where the tier has verified its own checksum; then the label must
 *                    be that of the key, and the checker compares the rows with the checksums that were kept when they were
 *                    computed. A damaged page is removed from the tier
 *   drop             the keys of the tier are listed and removed
 *
 *   step     waits for                      then
 *   -------  -----------------------------  -----------------------------------------------------------
 *   PAUSE    the time that the rate allows  HOST or READ or REMOVE, or the next place, or the end
 *   HOST     the checker                    PAUSE
 *   READ     the tier (get)                 COMPARE, when a page has arrived; else PAUSE
 *   COMPARE  the checker, page by page      REMOVE, when a page is wrong; else PAUSE
 *   REMOVE   the tier (remove)              PAUSE
 *
 * Bounds: one batch in flight, BATCH_MS of the rate in host memory and BATCH_BYTES from a tier; the memory for a tier is
 * allocated when the job begins with it. Pages that enter while the job runs may not be visited. A cancelled job ends when its
 * batch has come back. While the worker drains the job is cancelled.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"

enum {
    BATCH_MS = 20,
    BATCH_PAGES = 64,
    BATCH_BYTES = 8 << 20,
    DEFAULT_RATE = 200 << 20, /* bytes per second */
};
static const uint64_t MS = 1000000, SECOND = 1000000000;

typedef enum { PAUSE, HOST, READ, COMPARE, REMOVE } audit_step;

struct sl_audit {
    sl_decode *d;
    sl_cache_action action;
    sl_cache_state state;
    int place, only; /* inspect.c; only: SL_INSPECT_ALL or the one place */
    uint64_t rate, began_ns, ended_ns, due_ns;
    audit_step step;
    bool cancelled, closing;
    uint64_t done, total, damaged, unreadable, gone, bytes;
    sl_key bad[SL_CACHE_DAMAGED_MAX]; /* the first damaged pages */
    int32_t n_bad;

    uint64_t cursor; /* in the tier */
    int32_t host_at; /* in host memory */
    int32_t n;       /* pages of the batch */
    sl_store_entry host[BATCH_PAGES];
    /* a batch of a tier */
    sl_key keys[BATCH_PAGES];
    sl_status results[BATCH_PAGES];
    sl_tier_req req;
    int32_t room, waiting; /* pages that fit the memory; jobs at the checker */
    sl_arena *memory;      /* of `room` pages; NULL: not verifying a tier */
    uint8_t *labels;       /* [room][label bytes] */
    uint32_t *crc;         /* [room][layers] */
    struct iovec *spans;   /* [room][spans + 1] */
    sl_tier_page pages[BATCH_PAGES];
};

static void free_memory(sl_audit *a)
{
    sl_arena_destroy(a->memory);
    free(a->labels);
    free(a->crc);
    free(a->spans);
    a->memory = NULL;
    a->labels = NULL;
    a->crc = NULL;
    a->spans = NULL;
}

static sl_tier *tier_of(const sl_audit *a)
{
    return sl_cascade_tier_at(a->d->pages.cascade, a->place - 1);
}

static void end(sl_audit *a, sl_cache_state how)
{
    a->state = how;
    a->ended_ns = sl_now_ns();
    free_memory(a);
    sl_log(SL_LOG_INFO, "decode", "cache_job_ended",
           "action=%s state=%s pages=%" PRIu64 " damaged=%" PRIu64 " unreadable=%" PRIu64,
           sl_cache_action_name(a->action), sl_cache_state_name(how), a->done, a->damaged, a->unreadable);
}

static void found_damaged(sl_audit *a, sl_key key)
{
    a->damaged++;
    if (a->n_bad < SL_CACHE_DAMAGED_MAX)
        a->bad[a->n_bad++] = key;
}

/* A batch of this number of bytes has ended: the next one begins when the rate allows. */
static void pause_for(sl_audit *a, uint64_t bytes)
{
    uint64_t now = sl_now_ns(), wait = (uint64_t)((double)bytes / (double)a->rate * (double)SECOND);
    a->step = PAUSE;
    a->bytes += bytes;
    a->due_ns = (now > a->due_ns + SECOND ? now : a->due_ns) + wait;
}

/* ---- host memory ---- */

static void begin_host(sl_audit *a)
{
    sl_decode *d = a->d;
    int64_t most = (int64_t)(a->rate * BATCH_MS / 1000) / d->geo->page_bytes;
    most = most < 1 ? 1 : most > BATCH_PAGES ? BATCH_PAGES : most;
    a->n = sl_store_list(d->role.store, &a->host_at, a->host, (int32_t)most);
    if (!a->n)
        return;
    int32_t pages[BATCH_PAGES];
    for (int32_t i = 0; i < a->n; i++)
        pages[i] = a->host[i].page;
    sl_check *k = sl_check_new(SL_CHECK_VERIFY, pages, a->n, a);
    if (!k) {
        a->unreadable += (uint64_t)a->n;
        a->done += (uint64_t)a->n;
        return;
    }
    for (int32_t i = 0; i < a->n; i++)
        sl_store_hold_page(d->role.store, pages[i]);
    k->tag = CHECK_AUDIT;
    a->step = HOST;
    sl_checker_post(&d->role.checker, k);
}

static void host_checked(sl_audit *a, const sl_check *k)
{
    sl_decode *d = a->d;
    for (int32_t b = 0; b < k->n_damaged; b++) {
        for (int32_t i = 0; i < a->n; i++) {
            if (a->host[i].page != k->damaged[b])
                continue;
            found_damaged(a, a->host[i].key);
            sl_counter_add(d->role.metrics.damaged_verified, 1);
            sl_damage_found(d, a->host[i].page, a->host[i].seed, a->host[i].key);
        }
    }
    for (int32_t i = 0; i < a->n; i++)
        sl_store_unhold(d->role.store, a->host[i].page);
    a->done += (uint64_t)a->n;
    pause_for(a, (uint64_t)a->n * (uint64_t)d->geo->page_bytes);
}

/* ---- a tier ---- */

static bool make_memory(sl_audit *a)
{
    const sl_geometry *g = a->d->geo;
    sl_err err = {0};
    int64_t room = BATCH_BYTES / g->page_bytes;
    room = room < 1 ? 1 : room > BATCH_PAGES ? BATCH_PAGES : room;
    sl_arena_opts o = {
        .bytes = (uint64_t)(room * g->page_bytes), .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    if (sl_arena_create(g, &o, &a->memory, &err) != SL_OK)
        return false;
    size_t n = (size_t)room, per_page = (size_t)sl_arena_n_spans(a->memory) + 1,
           label = sl_cascade_label_bytes(g);
    a->room = (int32_t)room;
    a->labels = malloc(n * label);
    a->crc = malloc(n * (size_t)g->n_layers * sizeof *a->crc);
    a->spans = malloc(n * per_page * sizeof *a->spans);
    if (!a->labels || !a->crc || !a->spans)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct iovec *s = a->spans + i * per_page;
        sl_arena_spans(a->memory, (int32_t)i, s);
        s[per_page - 1] = (struct iovec){a->labels + i * label, label};
        a->pages[i] = (sl_tier_page){s, (int32_t)per_page};
    }
    return true;
}

static void submit(sl_audit *a, audit_step step, sl_tier_op op, sl_tier_done_fn *done)
{
    a->step = step;
    a->req = (sl_tier_req){.op = op,
                           .n = a->n,
                           .keys = a->keys,
                           .pages = op == SL_TIER_GET ? a->pages : NULL,
                           .results = a->results,
                           .not_a_use = true,
                           .done = done,
                           .cookie = a};
    SL_CHECK(sl_tier_submit(tier_of(a), &a->req) == SL_OK, "%d keys", a->n);
}

static void on_removed(sl_tier_req *req, sl_status st)
{
    sl_audit *a = req->cookie;
    (void)st;
    if (a->closing)
        return;
    for (int32_t i = 0; i < a->n; i++) {
        if (a->results[i] == SL_OK)
            sl_holdings_gone(a->d, a->place - 1, &a->keys[i], 1);
        if (a->action == SL_CACHE_DROP && a->results[i] != SL_ERR_CANCELLED) {
            a->done++;
            a->gone += a->results[i] == SL_ERR_NOT_FOUND;
            a->unreadable += a->results[i] < 0 && a->results[i] != SL_ERR_NOT_FOUND;
        }
    }
    pause_for(a, 0);
}

/* All pages of the batch have been compared: the wrong ones leave the tier. */
static void compared(sl_audit *a)
{
    uint64_t bytes = (uint64_t)a->n * (uint64_t)a->d->geo->page_bytes;
    int32_t wrong = 0;
    for (int32_t i = 0; i < a->n; i++) {
        if (a->results[i] == SL_ERR_CORRUPT)
            a->keys[wrong++] = a->keys[i];
    }
    pause_for(a, bytes);
    a->n = wrong;
    if (wrong)
        submit(a, REMOVE, SL_TIER_REMOVE, on_removed);
}

static void page_checked(sl_audit *a, const sl_check *k)
{
    int32_t i = k->pages[0];
    if (k->bad) {
        a->results[i] = SL_ERR_CORRUPT;
        found_damaged(a, a->keys[i]);
    }
    if (!--a->waiting)
        compared(a);
}

/* What the tier has returned is right as far as the tier knows. False: it is another page, or there is no memory. */
static bool compare(sl_audit *a, int32_t i)
{
    const sl_geometry *g = a->d->geo;
    uint32_t *crc = a->crc + (size_t)i * (size_t)g->n_layers;
    if (!sl_cascade_label_read(a->labels + (size_t)i * sl_cascade_label_bytes(g), a->keys[i], crc,
                               g->n_layers))
        return false;
    sl_check *k = sl_check_new(SL_CHECK_KEEP, &i, 1, a);
    if (!k)
        return true; /* not compared; the next load of the page compares it */
    k->tag = CHECK_AUDIT;
    k->arena = a->memory;
    k->expect = crc;
    k->compare = true;
    a->waiting++;
    sl_checker_post(&a->d->role.checker, k);
    return true;
}

static void on_read(sl_tier_req *req, sl_status st)
{
    sl_audit *a = req->cookie;
    (void)st;
    if (a->closing)
        return;
    a->step = COMPARE;
    a->waiting = 1; /* this function */
    for (int32_t i = 0; i < a->n; i++) {
        if (a->results[i] == SL_ERR_CANCELLED)
            continue;
        a->done++;
        bool forgotten = a->results[i] == SL_ERR_CORRUPT; /* by the tier */
        if (a->results[i] == SL_OK && !compare(a, i))
            a->results[i] = SL_ERR_CORRUPT;
        if (a->results[i] == SL_ERR_CORRUPT)
            found_damaged(a, a->keys[i]);
        if (forgotten)
            a->results[i] = SL_ERR_NOT_FOUND;
        else
            a->gone += a->results[i] == SL_ERR_NOT_FOUND;
        a->unreadable += a->results[i] == SL_ERR_IO;
    }
    if (!--a->waiting)
        compared(a);
}

static void begin_tier(sl_audit *a)
{
    int32_t most = a->action == SL_CACHE_VERIFY ? a->room : BATCH_PAGES;
    a->n = sl_tier_list(tier_of(a), &a->cursor, a->keys, most);
    if (a->n && a->action == SL_CACHE_VERIFY)
        submit(a, READ, SL_TIER_GET, on_read);
    else if (a->n)
        submit(a, REMOVE, SL_TIER_REMOVE, on_removed);
}

/* ---- the job ---- */

static uint64_t pages_at(const sl_decode *d, int place)
{
    if (!place) {
        sl_store_stats s;
        sl_store_stats_get(d->role.store, &s);
        return (uint64_t)s.cached; /* and those of running requests, which come and go */
    }
    sl_tier_stats t;
    sl_tier_get_stats(sl_cascade_tier_at(d->pages.cascade, place - 1), &t);
    return t.pages;
}

static bool can_verify(const sl_decode *d, int place)
{
    return place ? sl_inspect_can_list(d, place) : sl_checker_seals(&d->role.checker);
}

/* Goes to the next place from `place` on; false: there is none. */
static bool enter(sl_audit *a, int place)
{
    int last = a->only == SL_INSPECT_ALL ? sl_inspect_places(a->d) - 1 : a->only;
    while (place <= last && !can_verify(a->d, place))
        place++;
    if (place > last)
        return false;
    a->place = place;
    a->cursor = 0;
    a->host_at = 0;
    a->total += pages_at(a->d, place);
    if (place && a->action == SL_CACHE_VERIFY && !a->memory && !make_memory(a)) {
        free_memory(a);
        return false;
    }
    return true;
}

/* Begins the next batch, or ends the job. */
static void advance(sl_audit *a)
{
    if (a->cancelled) {
        end(a, SL_CACHE_CANCELLED);
        return;
    }
    if (!a->place && a->host_at >= 0) {
        begin_host(a);
        return;
    }
    if (a->place) {
        begin_tier(a);
        if (a->step != PAUSE)
            return;
    }
    if (!enter(a, a->place + 1))
        end(a, SL_CACHE_DONE);
}

sl_status sl_audit_begin(sl_decode *d, sl_cache_action action, int place, uint64_t rate, sl_err *err)
{
    sl_audit *a = d->pages.audit;
    if (a && a->state == SL_CACHE_RUNNING)
        return sl_fail(err, SL_ERR_REFUSED, "a %s is running: wait for its end, or cancel it",
                       sl_cache_action_name(a->action));
    if (d->role.draining)
        return sl_fail(err, SL_ERR_REFUSED, "the worker is draining");
    if (action == SL_CACHE_VERIFY && place == 0 && !can_verify(d, 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "kvstore.verify is off: no checksums of pages in host memory are kept");
    if (!a)
        a = d->pages.audit = calloc(1, sizeof *a);
    if (!a)
        return sl_fail(err, SL_ERR_NO_MEMORY, "the worker is out of memory");
    *a = (sl_audit){.d = d,
                    .action = action,
                    .state = SL_CACHE_RUNNING,
                    .only = place,
                    .rate = rate ? rate : DEFAULT_RATE,
                    .began_ns = sl_now_ns()};
    bool host = action == SL_CACHE_DROP && !place;
    if (host) { /* pages that requests use stay with them */
        a->done = a->total = pages_at(d, 0);
        sl_store_flush(d->role.store);
    }
    if (host || !enter(a, place == SL_INSPECT_ALL ? 0 : place))
        end(a, SL_CACHE_DONE);
    return SL_OK;
}

void sl_audit_cancel(sl_decode *d)
{
    sl_audit *a = d->pages.audit;
    if (!a || a->state != SL_CACHE_RUNNING || a->cancelled)
        return;
    a->cancelled = true;
    a->due_ns = 0;
    if (a->step == READ || a->step == REMOVE)
        sl_tier_cancel(tier_of(a), &a->req);
}

void sl_audit_describe(const sl_decode *d, sl_msg_cache_job *out, sl_key keys[SL_CACHE_DAMAGED_MAX])
{
    const sl_audit *a = d->pages.audit;
    if (!a)
        return;
    out->action = (uint8_t)a->action;
    out->state = (uint8_t)a->state;
    strncpy(out->tier, sl_inspect_place_name(d, a->place), sizeof out->tier - 1);
    out->done = a->done;
    out->total = a->total;
    out->damaged = a->damaged;
    out->unreadable = a->unreadable;
    out->gone = a->gone;
    out->bytes = a->bytes;
    out->ms = ((a->state == SL_CACHE_RUNNING ? sl_now_ns() : a->ended_ns) - a->began_ns) / MS;
    memcpy(keys, a->bad, (size_t)a->n_bad * sizeof *keys);
    out->keys = (sl_blob){(const uint8_t *)keys, (size_t)a->n_bad * sizeof *keys};
}

void sl_audit_checked(sl_decode *d, sl_check *k)
{
    sl_audit *a = d->pages.audit;
    if (k->what == SL_CHECK_VERIFY)
        host_checked(a, k);
    else
        page_checked(a, k);
    sl_check_free(k);
}

uint64_t sl_audit_tick(sl_decode *d, uint64_t now)
{
    sl_audit *a = d->pages.audit;
    if (!a || a->state != SL_CACHE_RUNNING)
        return UINT64_MAX;
    if (d->role.draining)
        sl_audit_cancel(d);
    if (a->step == PAUSE && now >= a->due_ns)
        advance(a);
    return a->state == SL_CACHE_RUNNING && a->step == PAUSE ? a->due_ns : UINT64_MAX;
}

void sl_audit_stop(sl_decode *d)
{
    if (d->pages.audit)
        d->pages.audit->closing = true;
}

void sl_audit_free(sl_decode *d)
{
    if (!d->pages.audit)
        return;
    free_memory(d->pages.audit);
    free(d->pages.audit);
    d->pages.audit = NULL;
}
