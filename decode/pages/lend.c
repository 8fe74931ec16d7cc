/* See lend.h. */
#include "decode/pages/lend.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static const uint64_t MS = 1000000;
enum { LEASES = 256, SHARE = 4, MAX_MS = 60000 };

typedef struct lent {
    struct lent *next;
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
} lent;

/* A question that waits for a load. */
typedef struct question {
    struct question *next;
    sl_wmsg *m; /* LEASE_ASK */
} question;

struct sl_lends {
    sl_pages_env *e;
    sl_damage *damage;
    lent *list;
    question *waits;
    uint64_t seen; /* sl_cascade_changes() when these questions were looked at last */
    sl_lend_stats st;
};

sl_lends *sl_lends_new(sl_pages_env *e, sl_damage *damage)
{
    sl_lends *s = calloc(1, sizeof *s);
    if (s)
        *s = (sl_lends){.e = e, .damage = damage};
    return s;
}

static void release(sl_lends *s, lent *l)
{
    if (l->reading) { /* the checker reads its pages */
        l->over = true;
        return;
    }
    lent **at = &s->list;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    s->st.leases--;
    s->st.pages_now -= l->n;
    sl_lease_release(l->lease, true);
    free(l->labels);
    free(l);
}

static lent *find(const sl_lends *s, uint32_t ep_serial, uint64_t id)
{
    for (lent *l = s->list; l; l = l->next) {
        if (l->id == id && l->ep_serial == ep_serial)
            return l;
    }
    return NULL;
}

/* l NULL: nothing is lent. */
static void answer(sl_lends *s, const sl_wmsg *m, const lent *l)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    sl_msg r = {.type = SL_MSG_LEASE};
    r.lease = (sl_msg_lease){
        .lease = a->lease, .ms = l ? l->ms : 0, .lent = (uint32_t)(s->st.pages_now - (l ? l->n : 0))};
    if (l) {
        _Static_assert(sizeof(int32_t) == sizeof(uint32_t), "page numbers");
        r.lease.pages = (uint32_t *)(uintptr_t)(sl_lease_pages(l->lease) + l->first);
        r.lease.n_pages = (size_t)l->n;
        r.lease.labels = (sl_blob){l->labels, (size_t)l->n * sl_cascade_label_bytes(s->e->geo)};
    }
    sl_worker_tell_peer(s->e->worker, m->ep_serial, &r);
}

/* How many pages may be lent now. */
static int32_t room(const sl_lends *s)
{
    int32_t most = sl_arena_pages(s->e->arena) / SHARE;
    most = most < 1 ? 1 : most;
    bool closed = *s->e->draining || s->st.leases == LEASES;
    return closed || s->st.pages_now >= most ? 0 : most - s->st.pages_now;
}

/* Pins what this question gets; NULL: nothing. */
static lent *lend(sl_lends *s, const sl_wmsg *m)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    int32_t n = (int32_t)(a->keys.len / sizeof(sl_key)), most = s->e->o->lend || a->wait ? room(s) : 0;
    n = n < most ? n : most;
    sl_key *keys = n ? malloc((size_t)n * sizeof *keys) : NULL;
    lent *l = keys ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        free(keys);
        return NULL;
    }
    memcpy(keys, a->keys.data, (size_t)n * sizeof *keys);
    sl_status st = sl_store_lease_keys(s->e->store, a->seed, keys, n, &l->first, &l->lease);
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
    l->next = s->list;
    s->list = l;
    s->st.leases++;
    s->st.pages_now += l->n;
    return l;
}

/* Everything of the labels but the checksums. */
static bool make_labels(sl_lends *s, lent *l)
{
    size_t bytes = sl_cascade_label_bytes(s->e->geo);
    l->labels = calloc((size_t)l->n, bytes);
    for (int32_t i = 0; l->labels && i < l->n; i++) {
        sl_store_page p = sl_store_describe(s->e->store, sl_lease_pages(l->lease)[l->first + i]);
        sl_cascade_label_write(&p, l->labels + (size_t)i * bytes);
    }
    return l->labels != NULL;
}

/* Answers now, or when the checker has read the checksums. Owns m. */
static void handle(sl_lends *s, sl_wmsg *m)
{
    lent *l = lend(s, m);
    sl_check *k = l && make_labels(s, l)
                      ? sl_check_new(SL_CHECK_READ, sl_lease_pages(l->lease) + l->first, l->n, l)
                      : NULL;
    (*(k ? &s->st.granted : &s->st.refused))++;
    if (!k) {
        if (l)
            release(s, l);
        answer(s, m, NULL);
        sl_wmsg_free(m);
        return;
    }
    l->reading = true;
    k->tag = CHECK_LEND;
    k->m = m;
    sl_checker_post(s->e->checker, k);
}

/* ---- questions that wait for a load ---- */

/* The place of the question in the list, or of the end. */
static question **waiting(sl_lends *s, uint32_t ep_serial, uint64_t id)
{
    question **at = &s->waits;
    while (*at && ((*at)->m->ep_serial != ep_serial || (*at)->m->msg.lease_ask.lease != id))
        at = &(*at)->next;
    return at;
}

/* Takes the question out of the list. */
static sl_wmsg *take(sl_lends *s, question **at)
{
    question *w = *at;
    sl_wmsg *m = w->m;
    *at = w->next;
    s->st.waiting--;
    free(w);
    return m;
}

/* Whether the first page is not here, but may be soon. */
static bool may_come(const sl_lends *s, const sl_msg_lease_ask *a)
{
    sl_key first;
    memcpy(&first, a->keys.data, sizeof first);
    return a->wait && s->e->cascade && !*s->e->draining && !sl_store_has_key(s->e->store, a->seed, first) &&
           sl_cascade_may_load(s->e->cascade, a->seed, first);
}

/* Takes m if the question has to wait. */
static bool wait_for_load(sl_lends *s, sl_wmsg *m)
{
    if (s->st.waiting == LEASES || !may_come(s, &m->msg.lease_ask))
        return false;
    question *w = calloc(1, sizeof *w);
    if (!w)
        return false;
    *w = (question){s->waits, m};
    s->waits = w;
    s->st.waiting++;
    return true;
}

void sl_lend_ask(sl_lends *s, sl_wmsg *m)
{
    const sl_msg_lease_ask *a = &m->msg.lease_ask;
    if (find(s, m->ep_serial, a->lease) || *waiting(s, m->ep_serial, a->lease)) {
        sl_pages_stale(s->e, "lease_ask", a->lease);
        sl_wmsg_free(m);
    } else if (!wait_for_load(s, m)) {
        handle(s, m);
    }
}

/* Pages were loaded, or a load has ended. */
static void ask_again(sl_lends *s)
{
    for (question **at = &s->waits; *at;) {
        if (may_come(s, &(*at)->m->msg.lease_ask))
            at = &(*at)->next;
        else
            handle(s, take(s, at));
    }
}

/* ---- the end of a lease ---- */

void sl_lend_damaged(sl_lends *s, const sl_wmsg *m)
{
    const sl_msg_lease_damaged *a = &m->msg.lease_damaged;
    lent *l = find(s, m->ep_serial, a->lease);
    bool fits = l && !l->reading && !l->doubted && (uint64_t)a->first + a->count <= (uint64_t)l->n;
    if (!fits) {
        sl_pages_stale(s->e, "lease_damaged", a->lease);
        return;
    }
    l->doubted = true;
    if (!sl_checker_seals(s->e->checker)) /* kvstore.verify is off: nothing here says what the page was */
        return;
    sl_check *k =
        sl_check_new(SL_CHECK_VERIFY, sl_lease_pages(l->lease) + l->first + a->first, (int32_t)a->count, l);
    if (!k)
        return;
    l->reading = true;
    k->tag = CHECK_LEND;
    sl_checker_post(s->e->checker, k);
}

void sl_lend_checked(sl_lends *s, sl_check *k)
{
    lent *l = k->owner;
    if (k->what == SL_CHECK_VERIFY) {
        l->reading = false;
        sl_damage_of_lease(s->damage, k, l->lease);
        if (l->over)
            release(s, l);
        sl_check_free(k);
        return;
    }
    size_t layers = (size_t)s->e->geo->n_layers, bytes = sl_cascade_label_bytes(s->e->geo);
    l->reading = false;
    bool fits = !l->over && k->n_crc == (size_t)l->n * layers;
    for (int32_t i = 0; fits && i < l->n; i++)
        sl_cascade_label_sums(l->labels + (size_t)i * bytes, k->crc + (size_t)i * layers,
                              s->e->geo->n_layers);
    if (!fits) {
        if (!l->over)
            answer(s, k->m, NULL);
        release(s, l);
    } else {
        answer(s, k->m, l);
        free(l->labels);
        l->labels = NULL;
        l->end_ns = sl_now_ns() + l->ms * MS;
        s->st.pages += (uint64_t)l->n;
    }
    sl_check_free(k);
}

void sl_lend_end(sl_lends *s, const sl_wmsg *m)
{
    lent *l = find(s, m->ep_serial, m->msg.lease_end.lease);
    question **w = waiting(s, m->ep_serial, m->msg.lease_end.lease);
    if (l)
        release(s, l);
    else if (*w)
        sl_wmsg_free(take(s, w));
    else
        sl_pages_stale(s->e, "lease_end", m->msg.lease_end.lease);
}

void sl_lend_reader_gone(sl_lends *s, uint32_t ep_serial)
{
    for (lent *l = s->list, *next; l; l = next) {
        next = l->next;
        if (l->ep_serial == ep_serial)
            release(s, l);
    }
    for (question **at = &s->waits; *at;) {
        if ((*at)->m->ep_serial == ep_serial)
            sl_wmsg_free(take(s, at));
        else
            at = &(*at)->next;
    }
}

uint64_t sl_lend_tick(sl_lends *s, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    if (s->waits && s->seen != sl_cascade_changes(s->e->cascade))
        ask_again(s);
    s->seen = s->e->cascade ? sl_cascade_changes(s->e->cascade) : 0;
    for (lent *l = s->list; l; l = l->next) {
        sl_reader_mail *f = now >= l->end_ns ? calloc(1, sizeof *f) : NULL;
        if (f) {
            sl_log(SL_LOG_WARN, "decode", "lease_expired", "worker_id=%u pages=%d ms=%u", l->reader, l->n,
                   l->ms);
            s->st.expired++;
            f->mail.kind = DM_READER_FENCE;
            f->ep_serial = l->ep_serial;
            sl_worker_post(s->e->worker, &f->mail);
            l->end_ns = UINT64_MAX; /* DM_READER_GONE follows, whatever the reader does */
        }
        due = l->end_ns < due ? l->end_ns : due;
    }
    return due;
}

void sl_lends_free(sl_lends *s)
{
    if (!s)
        return;
    while (s->waits)
        sl_wmsg_free(take(s, &s->waits));
    while (s->list) {
        s->list->reading = false;
        release(s, s->list);
    }
    free(s);
}

void sl_lend_stats_get(const sl_lends *s, sl_lend_stats *out)
{
    *out = s->st;
}
