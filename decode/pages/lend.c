/*
 * Lending: leases on pages of this worker's host store, which other workers read by get: decode workers
 * (decode/pages/pull.h is their side), and prefill workers that fetch a prefix while other pages of the prompt are still
 * being loaded (prefill/prefetch.c). Engine thread.
 *
 *   state     entered when             left when
 *   --------  -----------------------  ------------------------------------------------------------------------------
 *   waiting   LEASE_ASK with `wait`,   a load has brought the first page -> reading; no load may bring it any more: the
 *             a load may bring the     answer is that no page is lent; LEASE_END or DM_READER_GONE -> forgotten
 *             first page
 *   reading   LEASE_ASK, pages pinned  the checker has returned their kept checksums: LEASE is sent -> lent
 *   lent      LEASE is sent            LEASE_END -> released; end of its time -> the reader's connection is closed by
 *                                      force; DM_READER_GONE -> released
 *
 * The pages of a lease are pinned: they are neither evicted nor written, also when the cache is flushed. A lease is released
 * in two cases only: its reader says that no get is in flight, or its connection is closed by force and the transport has
 * reported it, after which no get of that reader can read here. The end of its time alone releases nothing.
 *
 * LEASE_DAMAGED: the reader found that pages do not have their kept checksums. The reader is not believed: the checker verifies
 * these pages here, once for each lease, and those that are damaged leave the prefix tree, so that no other request and no
 * other reader gets them. A page that the transport damaged is right here and stays.
 *
 * Bounds: LEASES, as many questions that wait, and one in SHARE pages of the store, so that readers do not take the memory of
 * running requests. While the worker drains it lends nothing; its end waits for the leases.
 */
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
enum { LEASES = 256, SHARE = 4, MAX_MS = 60000 };

struct sl_lent {
    sl_lent *next;
    uint64_t id;
    uint32_t reader; /* its id */
    uint32_t ep_serial;
    sl_lease *lease;
    int32_t first, n; /* pages of the lease that are lent */
    uint8_t *labels;  /* [n][label_bytes]; freed when they are sent */
    uint32_t ms;
    uint64_t end_ns;    /* or when the reader is fenced next */
    bool reading, over; /* reading: the checker reads its pages; over: to be released when it has answered */
    bool doubted;       /* LEASE_DAMAGED has come */
};

/* A question that waits for a load. */
struct sl_lend_wait {
    sl_lend_wait *next;
    sl_wmsg *m; /* LEASE_ASK */
};

static void release(sl_decode *d, sl_lent *l)
{
    if (l->reading) { /* the checker reads its pages */
        l->over = true;
        return;
    }
    sl_lent **at = &d->pages.lend.list;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    d->pages.lend.n--;
    d->pages.lend.pages -= l->n;
    sl_lease_release(l->lease, true);
    free(l->labels);
    free(l);
}

static sl_lent *find(const sl_decode *d, uint32_t ep_serial, uint64_t id)
{
    for (sl_lent *l = d->pages.lend.list; l; l = l->next) {
        if (l->id == id && l->ep_serial == ep_serial)
            return l;
    }
    return NULL;
}

/* l NULL: nothing is lent. */
static void answer(sl_decode *d, const sl_wmsg *m, const sl_lent *l)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    sl_msg r = {.type = SL_MSG_LEASE};
    r.lease = (sl_msg_lease){
        .lease = a->lease, .ms = l ? l->ms : 0, .lent = (uint32_t)(d->pages.lend.pages - (l ? l->n : 0))};
    if (l) {
        _Static_assert(sizeof(int32_t) == sizeof(uint32_t), "page numbers");
        r.lease.pages = (uint32_t *)(uintptr_t)(sl_lease_pages(l->lease) + l->first);
        r.lease.n_pages = (size_t)l->n;
        r.lease.labels = (sl_blob){l->labels, (size_t)l->n * sl_cascade_label_bytes(d->geo)};
    }
    sl_worker_tell_peer(d->worker, m->ep_serial, &r);
}

/* How many pages may be lent now. */
static int32_t room(const sl_decode *d)
{
    int32_t most = sl_arena_pages(d->o.role.arena) / SHARE;
    most = most < 1 ? 1 : most;
    bool closed = d->role.draining || d->pages.lend.n == LEASES;
    return closed || d->pages.lend.pages >= most ? 0 : most - d->pages.lend.pages;
}

/* Pins what this question gets; NULL: nothing. */
static sl_lent *lend(sl_decode *d, const sl_wmsg *m)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    int32_t n = (int32_t)(a->keys.len / sizeof(sl_key)), most = d->o.lend || a->wait ? room(d) : 0;
    n = n < most ? n : most;
    sl_key *keys = n ? malloc((size_t)n * sizeof *keys) : NULL;
    sl_lent *l = keys ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        free(keys);
        return NULL;
    }
    memcpy(keys, a->keys.data, (size_t)n * sizeof *keys);
    sl_status st = sl_store_lease_keys(d->role.store, a->seed, keys, n, &l->first, &l->lease);
    free(keys);
    if (st != SL_OK) {
        free(l);
        return NULL;
    }
    l->id = a->lease;
    l->reader = m->worker_id;
    l->ep_serial = m->ep_serial;
    l->n = sl_lease_n_pages(l->lease) - l->first;
    l->ms = a->ms < MAX_MS ? a->ms : MAX_MS;
    l->end_ns = UINT64_MAX;
    l->next = d->pages.lend.list;
    d->pages.lend.list = l;
    d->pages.lend.n++;
    d->pages.lend.pages += l->n;
    return l;
}

/* Everything of the labels but the checksums. */
static bool make_labels(sl_decode *d, sl_lent *l)
{
    size_t bytes = sl_cascade_label_bytes(d->geo);
    l->labels = calloc((size_t)l->n, bytes);
    for (int32_t i = 0; l->labels && i < l->n; i++) {
        sl_store_page p = sl_store_describe(d->role.store, sl_lease_pages(l->lease)[l->first + i]);
        sl_cascade_label_write(&p, l->labels + (size_t)i * bytes);
    }
    return l->labels != NULL;
}

/* Answers now, or when the checker has read the checksums. Owns m. */
static void handle(sl_decode *d, sl_wmsg *m)
{
    sl_lent *l = lend(d, m);
    sl_check *k = l && make_labels(d, l)
                      ? sl_check_new(SL_CHECK_READ, sl_lease_pages(l->lease) + l->first, l->n, l)
                      : NULL;
    sl_counter_add(k ? d->report.m.lend.granted : d->report.m.lend.refused, 1);
    if (!k) {
        if (l)
            release(d, l);
        answer(d, m, NULL);
        sl_wmsg_free(m);
        return;
    }
    l->reading = true;
    k->tag = CHECK_LEND;
    k->m = m;
    sl_checker_post(&d->role.checker, k);
}

/* ---- questions that wait for a load ---- */

/* The place of the question in the list, or of the end. */
static sl_lend_wait **waiting(sl_decode *d, uint32_t ep_serial, uint64_t id)
{
    sl_lend_wait **at = &d->pages.lend.waits;
    while (*at && ((*at)->m->ep_serial != ep_serial || (*at)->m->msg.lease_ask.lease != id))
        at = &(*at)->next;
    return at;
}

/* Takes the question out of the list. */
static sl_wmsg *take(sl_decode *d, sl_lend_wait **at)
{
    sl_lend_wait *w = *at;
    sl_wmsg *m = w->m;
    *at = w->next;
    d->pages.lend.n_waits--;
    free(w);
    return m;
}

/* Whether the first page is not here, but may be soon. */
static bool may_come(const sl_decode *d, const sl_msg_lease_ask *a)
{
    sl_key first;
    memcpy(&first, a->keys.data, sizeof first);
    return a->wait && d->pages.cascade && !d->role.draining &&
           !sl_store_has_key(d->role.store, a->seed, first) &&
           sl_cascade_may_load(d->pages.cascade, a->seed, first);
}

/* Takes m if the question has to wait. */
static bool wait_for_load(sl_decode *d, sl_wmsg *m)
{
    if (d->pages.lend.n_waits == LEASES || !may_come(d, &m->msg.lease_ask))
        return false;
    sl_lend_wait *w = calloc(1, sizeof *w);
    if (!w)
        return false;
    *w = (sl_lend_wait){d->pages.lend.waits, m};
    d->pages.lend.waits = w;
    d->pages.lend.n_waits++;
    return true;
}

void sl_lend_ask(sl_decode *d, sl_wmsg *m)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    if (find(d, m->ep_serial, a->lease) || *waiting(d, m->ep_serial, a->lease)) {
        sl_ticket_stale(d, "lease_ask", a->lease, 0);
        sl_wmsg_free(m);
    } else if (!wait_for_load(d, m)) {
        handle(d, m);
    }
}

/* Pages were loaded, or a load has ended. */
static void ask_again(sl_decode *d)
{
    for (sl_lend_wait **at = &d->pages.lend.waits; *at;) {
        if (may_come(d, &(*at)->m->msg.lease_ask))
            at = &(*at)->next;
        else
            handle(d, take(d, at));
    }
}

/* ---- the end of a lease ---- */

void sl_lend_damaged(sl_decode *d, const sl_wmsg *m)
{
    const sl_msg_lease_damaged *a = &m->msg.lease_damaged;
    sl_lent *l = find(d, m->ep_serial, a->lease);
    bool fits = l && !l->reading && !l->doubted && (uint64_t)a->first + a->count <= (uint64_t)l->n;
    if (!fits) {
        sl_ticket_stale(d, "lease_damaged", a->lease, 0);
        return;
    }
    l->doubted = true;
    if (!sl_checker_seals(&d->role.checker)) /* kvstore.verify is off: nothing here says what the page was */
        return;
    sl_check *k =
        sl_check_new(SL_CHECK_VERIFY, sl_lease_pages(l->lease) + l->first + a->first, (int32_t)a->count, l);
    if (!k)
        return;
    l->reading = true;
    k->tag = CHECK_LEND;
    sl_checker_post(&d->role.checker, k);
}

void sl_lend_checked(sl_decode *d, sl_check *k)
{
    sl_lent *l = k->owner;
    if (k->what == SL_CHECK_VERIFY) {
        l->reading = false;
        sl_damage_verified_lent(d, k, l->lease);
        if (l->over)
            release(d, l);
        sl_check_free(k);
        return;
    }
    size_t layers = (size_t)d->geo->n_layers, bytes = sl_cascade_label_bytes(d->geo);
    l->reading = false;
    bool fits = !l->over && k->n_crc == (size_t)l->n * layers;
    for (int32_t i = 0; fits && i < l->n; i++)
        sl_cascade_label_sums(l->labels + (size_t)i * bytes, k->crc + (size_t)i * layers, d->geo->n_layers);
    if (!fits) {
        if (!l->over)
            answer(d, k->m, NULL);
        release(d, l);
    } else {
        answer(d, k->m, l);
        free(l->labels);
        l->labels = NULL;
        l->end_ns = sl_now_ns() + l->ms * MS;
        sl_counter_add(d->report.m.lend.pages, (uint64_t)l->n);
    }
    sl_check_free(k);
}

void sl_lend_end(sl_decode *d, const sl_wmsg *m)
{
    sl_lent *l = find(d, m->ep_serial, m->msg.lease_end.lease);
    sl_lend_wait **w = waiting(d, m->ep_serial, m->msg.lease_end.lease);
    if (l)
        release(d, l);
    else if (*w)
        sl_wmsg_free(take(d, w));
    else
        sl_ticket_stale(d, "lease_end", m->msg.lease_end.lease, 0);
}

void sl_lend_reader_gone(sl_decode *d, uint32_t ep_serial)
{
    for (sl_lent *l = d->pages.lend.list, *next; l; l = next) {
        next = l->next;
        if (l->ep_serial == ep_serial)
            release(d, l);
    }
    for (sl_lend_wait **at = &d->pages.lend.waits; *at;) {
        if ((*at)->m->ep_serial == ep_serial)
            sl_wmsg_free(take(d, at));
        else
            at = &(*at)->next;
    }
}

uint64_t sl_lend_tick(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    if (d->pages.lend.waits && d->pages.lend.seen != sl_cascade_changes(d->pages.cascade))
        ask_again(d);
    d->pages.lend.seen = d->pages.cascade ? sl_cascade_changes(d->pages.cascade) : 0;
    for (sl_lent *l = d->pages.lend.list; l; l = l->next) {
        sl_reader_mail *f = now >= l->end_ns ? calloc(1, sizeof *f) : NULL;
        if (f) {
            sl_log(SL_LOG_WARN, "decode", "lease_expired", "worker_id=%u pages=%d ms=%u", l->reader, l->n,
                   l->ms);
            sl_counter_add(d->report.m.lend.expired, 1);
            f->mail.kind = DM_READER_FENCE;
            f->ep_serial = l->ep_serial;
            sl_worker_post(d->worker, &f->mail);
            l->end_ns = UINT64_MAX; /* DM_READER_GONE follows, whatever the reader does */
        }
        due = l->end_ns < due ? l->end_ns : due;
    }
    return due;
}

void sl_lend_free_all(sl_decode *d)
{
    while (d->pages.lend.waits)
        sl_wmsg_free(take(d, &d->pages.lend.waits));
    while (d->pages.lend.list) {
        d->pages.lend.list->reading = false;
        release(d, d->pages.lend.list);
    }
}
