/* See audit.h. */
#include "decode/pages/audit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    BATCH_MS = 20,
    BATCH_PAGES = 64,
    BATCH_BYTES = 8 << 20,
    DEFAULT_RATE = 200 << 20, /* bytes per second */
};
static const uint64_t MS = 1000000, SECOND = 1000000000;

typedef enum { PAUSE, HOST, READ, COMPARE, REMOVE } audit_step;

/* The last job. */
typedef struct job {
    bool begun; /* there was one */
    sl_cache_action action;
    sl_cache_state state;
    int place, only; /* inspect.c; only: SL_PLACES_ALL or the one place */
    uint64_t rate, began_ns, ended_ns, due_ns;
    audit_step step;
    bool cancelled, closing;
    uint64_t done, total, damaged, unreadable, gone, bytes;
    sl_key bad[SL_CACHE_DAMAGED_MAX]; /* the first damaged pages */
    int32_t n_bad;
} job;

/* The batch in flight. */
typedef struct batch {
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
} batch;

struct sl_audit {
    const sl_pages_env *e;
    sl_damage *damage;
    sl_holdings *holdings;
    job j;
    batch b;
};

sl_audit *sl_audit_new(const sl_pages_env *e, sl_damage *damage, sl_holdings *holdings)
{
    sl_audit *a = calloc(1, sizeof *a);
    if (a)
        *a = (sl_audit){.e = e, .damage = damage, .holdings = holdings};
    return a;
}

static void free_memory(sl_audit *a)
{
    sl_arena_destroy(a->b.memory);
    free(a->b.labels);
    free(a->b.crc);
    free(a->b.spans);
    a->b.memory = NULL;
    a->b.labels = NULL;
    a->b.crc = NULL;
    a->b.spans = NULL;
}

static sl_tier *tier_of(const sl_audit *a)
{
    return sl_cascade_tier_at(a->e->cascade, a->j.place - 1);
}

static void end(sl_audit *a, sl_cache_state how)
{
    a->j.state = how;
    a->j.ended_ns = sl_now_ns();
    free_memory(a);
    sl_log(SL_LOG_INFO, "decode", "cache_job_ended",
           "action=%s state=%s pages=%" PRIu64 " damaged=%" PRIu64 " unreadable=%" PRIu64,
           sl_msg_cache_action_name(a->j.action), sl_msg_cache_state_name(how), a->j.done, a->j.damaged,
           a->j.unreadable);
}

static void found_damaged(sl_audit *a, sl_key key)
{
    a->j.damaged++;
    if (a->j.n_bad < SL_CACHE_DAMAGED_MAX)
        a->j.bad[a->j.n_bad++] = key;
}

/* A batch of this number of bytes has ended: the next one begins when the rate allows. */
static void pause_for(sl_audit *a, uint64_t bytes)
{
    uint64_t now = sl_now_ns(), wait = (uint64_t)((double)bytes / (double)a->j.rate * (double)SECOND);
    a->j.step = PAUSE;
    a->j.bytes += bytes;
    a->j.due_ns = (now > a->j.due_ns + SECOND ? now : a->j.due_ns) + wait;
}

/* ---- host memory ---- */

static void begin_host(sl_audit *a)
{
    const sl_pages_env *e = a->e;
    int64_t most = (int64_t)(a->j.rate * BATCH_MS / 1000) / e->geo->page_bytes;
    most = most < 1 ? 1 : most > BATCH_PAGES ? BATCH_PAGES : most;
    a->b.n = sl_store_list(e->store, &a->b.host_at, a->b.host, (int32_t)most);
    if (!a->b.n)
        return;
    int32_t pages[BATCH_PAGES];
    for (int32_t i = 0; i < a->b.n; i++)
        pages[i] = a->b.host[i].page;
    sl_check *k = sl_check_new(SL_CHECK_VERIFY, pages, a->b.n, a);
    if (!k) {
        a->j.unreadable += (uint64_t)a->b.n;
        a->j.done += (uint64_t)a->b.n;
        return;
    }
    for (int32_t i = 0; i < a->b.n; i++)
        sl_store_hold_page(e->store, pages[i]);
    k->tag = CHECK_AUDIT;
    a->j.step = HOST;
    sl_checker_post(e->checker, k);
}

static void host_checked(sl_audit *a, const sl_check *k)
{
    const sl_pages_env *e = a->e;
    for (int32_t b = 0; b < k->n_damaged; b++) {
        for (int32_t i = 0; i < a->b.n; i++) {
            if (a->b.host[i].page != k->damaged[b])
                continue;
            found_damaged(a, a->b.host[i].key);
            sl_damage_of_page(a->damage, a->b.host[i].page, a->b.host[i].seed, a->b.host[i].key);
        }
    }
    for (int32_t i = 0; i < a->b.n; i++)
        sl_store_unhold(e->store, a->b.host[i].page);
    a->j.done += (uint64_t)a->b.n;
    pause_for(a, (uint64_t)a->b.n * (uint64_t)e->geo->page_bytes);
}

/* ---- a tier ---- */

static bool make_memory(sl_audit *a)
{
    const sl_geometry *g = a->e->geo;
    sl_err err = {0};
    int64_t room = BATCH_BYTES / g->page_bytes;
    room = room < 1 ? 1 : room > BATCH_PAGES ? BATCH_PAGES : room;
    sl_arena_opts o = {
        .bytes = (uint64_t)(room * g->page_bytes), .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    if (sl_arena_create(g, &o, &a->b.memory, &err) != SL_OK)
        return false;
    size_t n = (size_t)room, per_page = (size_t)sl_arena_n_spans(a->b.memory) + 1,
           label = sl_cascade_label_bytes(g);
    a->b.room = (int32_t)room;
    a->b.labels = malloc(n * label);
    a->b.crc = malloc(n * (size_t)g->n_layers * sizeof *a->b.crc);
    a->b.spans = malloc(n * per_page * sizeof *a->b.spans);
    if (!a->b.labels || !a->b.crc || !a->b.spans)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct iovec *s = a->b.spans + i * per_page;
        sl_arena_spans(a->b.memory, (int32_t)i, s);
        s[per_page - 1] = (struct iovec){a->b.labels + i * label, label};
        a->b.pages[i] = (sl_tier_page){s, (int32_t)per_page};
    }
    return true;
}

static void submit(sl_audit *a, audit_step step, sl_tier_op op, sl_tier_done_fn *done)
{
    a->j.step = step;
    a->b.req = (sl_tier_req){.op = op,
                             .n = a->b.n,
                             .keys = a->b.keys,
                             .pages = op == SL_TIER_GET ? a->b.pages : NULL,
                             .results = a->b.results,
                             .not_a_use = true,
                             .done = done,
                             .cookie = a};
    SL_CHECK(sl_tier_submit(tier_of(a), &a->b.req) == SL_OK, "%d keys", a->b.n);
}

static void on_removed(sl_tier_req *req, sl_status st)
{
    sl_audit *a = req->cookie;
    (void)st;
    if (a->j.closing)
        return;
    for (int32_t i = 0; i < a->b.n; i++) {
        if (a->b.results[i] == SL_OK)
            sl_holdings_gone(a->holdings, a->j.place - 1, &a->b.keys[i], 1);
        if (a->j.action == SL_CACHE_DROP && a->b.results[i] != SL_ERR_CANCELLED) {
            a->j.done++;
            a->j.gone += a->b.results[i] == SL_ERR_NOT_FOUND;
            a->j.unreadable += a->b.results[i] < 0 && a->b.results[i] != SL_ERR_NOT_FOUND;
        }
    }
    pause_for(a, 0);
}

/* All pages of the batch have been compared: the wrong ones leave the tier. */
static void compared(sl_audit *a)
{
    uint64_t bytes = (uint64_t)a->b.n * (uint64_t)a->e->geo->page_bytes;
    int32_t wrong = 0;
    for (int32_t i = 0; i < a->b.n; i++) {
        if (a->b.results[i] == SL_ERR_CORRUPT)
            a->b.keys[wrong++] = a->b.keys[i];
    }
    pause_for(a, bytes);
    a->b.n = wrong;
    if (wrong)
        submit(a, REMOVE, SL_TIER_REMOVE, on_removed);
}

static void page_checked(sl_audit *a, const sl_check *k)
{
    int32_t i = k->pages[0];
    if (k->bad) {
        a->b.results[i] = SL_ERR_CORRUPT;
        found_damaged(a, a->b.keys[i]);
    }
    if (!--a->b.waiting)
        compared(a);
}

/* What the tier has returned is right as far as the tier knows. False: it is another page, or there is no memory. */
static bool compare(sl_audit *a, int32_t i)
{
    const sl_geometry *g = a->e->geo;
    uint32_t *crc = a->b.crc + (size_t)i * (size_t)g->n_layers;
    if (!sl_cascade_label_read(a->b.labels + (size_t)i * sl_cascade_label_bytes(g), a->b.keys[i], crc,
                               g->n_layers))
        return false;
    sl_check *k = sl_check_new(SL_CHECK_KEEP, &i, 1, a);
    if (!k)
        return true; /* not compared; the next load of the page compares it */
    k->tag = CHECK_AUDIT;
    k->arena = a->b.memory;
    k->expect = crc;
    k->compare = true;
    a->b.waiting++;
    sl_checker_post(a->e->checker, k);
    return true;
}

static void on_read(sl_tier_req *req, sl_status st)
{
    sl_audit *a = req->cookie;
    (void)st;
    if (a->j.closing)
        return;
    a->j.step = COMPARE;
    a->b.waiting = 1; /* this function */
    for (int32_t i = 0; i < a->b.n; i++) {
        if (a->b.results[i] == SL_ERR_CANCELLED)
            continue;
        a->j.done++;
        bool forgotten = a->b.results[i] == SL_ERR_CORRUPT; /* by the tier */
        if (a->b.results[i] == SL_OK && !compare(a, i))
            a->b.results[i] = SL_ERR_CORRUPT;
        if (a->b.results[i] == SL_ERR_CORRUPT)
            found_damaged(a, a->b.keys[i]);
        if (forgotten)
            a->b.results[i] = SL_ERR_NOT_FOUND;
        else
            a->j.gone += a->b.results[i] == SL_ERR_NOT_FOUND;
        a->j.unreadable += a->b.results[i] == SL_ERR_IO;
    }
    if (!--a->b.waiting)
        compared(a);
}

static void begin_tier(sl_audit *a)
{
    int32_t most = a->j.action == SL_CACHE_VERIFY ? a->b.room : BATCH_PAGES;
    a->b.n = sl_tier_list(tier_of(a), &a->b.cursor, a->b.keys, most);
    if (a->b.n && a->j.action == SL_CACHE_VERIFY)
        submit(a, READ, SL_TIER_GET, on_read);
    else if (a->b.n)
        submit(a, REMOVE, SL_TIER_REMOVE, on_removed);
}

/* ---- the job ---- */

static uint64_t pages_at(const sl_pages_env *e, int place)
{
    if (!place) {
        sl_store_stats s;
        sl_store_stats_get(e->store, &s);
        return (uint64_t)s.cached; /* and those of running requests, which come and go */
    }
    sl_tier_stats t;
    sl_tier_get_stats(sl_cascade_tier_at(e->cascade, place - 1), &t);
    return t.pages;
}

static bool can_verify(const sl_pages_env *e, int place)
{
    return place ? sl_pages_places_can_list(e, place) : sl_checker_seals(e->checker);
}

/* Goes to the next place from `place` on; false: there is none. */
static bool enter(sl_audit *a, int place)
{
    int last = a->j.only == SL_PLACES_ALL ? sl_pages_places_n(a->e) - 1 : a->j.only;
    while (place <= last && !can_verify(a->e, place))
        place++;
    if (place > last)
        return false;
    a->j.place = place;
    a->b.cursor = 0;
    a->b.host_at = 0;
    a->j.total += pages_at(a->e, place);
    if (place && a->j.action == SL_CACHE_VERIFY && !a->b.memory && !make_memory(a)) {
        free_memory(a);
        return false;
    }
    return true;
}

/* Begins the next batch, or ends the job. */
static void advance(sl_audit *a)
{
    if (a->j.cancelled) {
        end(a, SL_CACHE_CANCELLED);
        return;
    }
    if (!a->j.place && a->b.host_at >= 0) {
        begin_host(a);
        return;
    }
    if (a->j.place) {
        begin_tier(a);
        if (a->j.step != PAUSE)
            return;
    }
    if (!enter(a, a->j.place + 1))
        end(a, SL_CACHE_DONE);
}

sl_status sl_audit_begin(sl_audit *a, sl_cache_action action, int place, uint64_t rate, sl_err *err)
{
    const sl_pages_env *e = a->e;
    if (a->j.state == SL_CACHE_RUNNING && a->j.begun)
        return sl_fail(err, SL_ERR_REFUSED, "a %s is running: wait for its end, or cancel it",
                       sl_msg_cache_action_name(a->j.action));
    if (*e->draining)
        return sl_fail(err, SL_ERR_REFUSED, "the worker is draining");
    if (action == SL_CACHE_VERIFY && place == 0 && !can_verify(e, 0))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "kvstore.verify is off: no checksums of pages in host memory are kept");
    a->b = (batch){0};
    a->j = (job){.begun = true,
                 .action = action,
                 .state = SL_CACHE_RUNNING,
                 .only = place,
                 .rate = rate ? rate : DEFAULT_RATE,
                 .began_ns = sl_now_ns()};
    bool host = action == SL_CACHE_DROP && !place;
    if (host) { /* pages that requests use stay with them */
        a->j.done = a->j.total = pages_at(e, 0);
        sl_store_flush(e->store);
    }
    if (host || !enter(a, place == SL_PLACES_ALL ? 0 : place))
        end(a, SL_CACHE_DONE);
    return SL_OK;
}

static bool runs(const sl_audit *a)
{
    return a->j.begun && a->j.state == SL_CACHE_RUNNING;
}

void sl_audit_cancel(sl_audit *a)
{
    if (!runs(a) || a->j.cancelled)
        return;
    a->j.cancelled = true;
    a->j.due_ns = 0;
    if (a->j.step == READ || a->j.step == REMOVE)
        sl_tier_cancel(tier_of(a), &a->b.req);
}

void sl_audit_describe(const sl_audit *a, sl_msg_cache_job *out, sl_key keys[SL_CACHE_DAMAGED_MAX])
{
    const job *j = &a->j;
    if (!j->begun)
        return;
    out->action = (uint8_t)j->action;
    out->state = (uint8_t)j->state;
    strncpy(out->tier, sl_pages_places_name(a->e, j->place), sizeof out->tier - 1);
    out->done = j->done;
    out->total = j->total;
    out->damaged = j->damaged;
    out->unreadable = j->unreadable;
    out->gone = j->gone;
    out->bytes = j->bytes;
    out->ms = ((runs(a) ? sl_now_ns() : j->ended_ns) - j->began_ns) / MS;
    memcpy(keys, j->bad, (size_t)j->n_bad * sizeof *keys);
    out->keys = (sl_blob){(const uint8_t *)keys, (size_t)j->n_bad * sizeof *keys};
}

void sl_audit_checked(sl_audit *a, sl_check *k)
{
    if (k->what == SL_CHECK_VERIFY)
        host_checked(a, k);
    else
        page_checked(a, k);
    sl_check_free(k);
}

uint64_t sl_audit_tick(sl_audit *a, uint64_t now)
{
    if (!runs(a))
        return UINT64_MAX;
    if (*a->e->draining)
        sl_audit_cancel(a);
    if (a->j.step == PAUSE && now >= a->j.due_ns)
        advance(a);
    return runs(a) && a->j.step == PAUSE ? a->j.due_ns : UINT64_MAX;
}

void sl_audit_stop(sl_audit *a)
{
    if (a)
        a->j.closing = true;
}

void sl_audit_free(sl_audit *a)
{
    if (!a)
        return;
    free_memory(a);
    free(a);
}
