/* The owner's side of the events. See events.h. */
#include "events/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "events/events_impl.h"

struct sl_events {
    sl_events_shared shared;
    sl_publisher *publisher;
    sl_events_form form;
    int dp_rank;
    bool resend_all;
    size_t queue_bytes;
    char medium[SL_MEDIUM_COUNT][32];
    sl_wr body, payload; /* events of the present batch; a whole batch */
    uint32_t n_events;
    uint64_t sequence; /* of the next batch */
    bool lost;         /* a batch was dropped since all pages were published */
    bool all;          /* all pages are being published */
    uint64_t all_ns;   /* when they were last; 0: never */
};

/* ---- batches ---- */

/* The present batch, with its number; NULL: it is lost. */
static sl_events_batch *take_batch(sl_events *e)
{
    sl_wr *p = &e->payload;
    p->len = 0;
    sl_events_write_head(p, (double)sl_wall_ns() / 1e9, e->n_events);
    for (size_t i = 0; i < e->body.len; i++)
        sl_wr_u8(p, e->body.data[i]);
    sl_events_write_tail(p, e->dp_rank);
    sl_events_batch *b = p->bad || e->body.bad ? NULL : sl_events_batch_new(e->sequence, p->data, p->len);
    e->sequence++;
    e->n_events = 0;
    e->body.len = 0;
    e->body.bad = p->bad = false;
    return b;
}

void sl_events_flush(sl_events *e)
{
    if (!e->n_events)
        return;
    sl_events_shared *s = &e->shared;
    sl_events_batch *b = take_batch(e);
    bool fits = e->all || atomic_load(&s->queued_bytes) <= e->queue_bytes;
    if (b && fits) {
        atomic_fetch_add(&s->queued_bytes, b->n);
        sl_mailbox_post(s->inbox, &b->link);
        return;
    }
    if (b)
        sl_events_batch_release(b);
    sl_counter_add(s->lost_queue, 1);
    e->lost = true;
}

static void added(sl_events *e)
{
    if (++e->n_events >= SL_EVENTS_BATCH_EVENTS)
        sl_events_flush(e);
}

bool sl_events_has_medium(const sl_events *e, sl_medium medium)
{
    return e->medium[medium][0] != 0;
}

void sl_events_stored(sl_events *e, sl_medium medium, const sl_events_block *block)
{
    sl_events_block b = *block;
    b.medium = e->medium[medium];
    sl_events_write_stored(&e->body, e->form, &b);
    added(e);
}

void sl_events_removed(sl_events *e, sl_medium medium, uint64_t hash)
{
    sl_events_write_removed(&e->body, e->form, hash, e->medium[medium]);
    added(e);
}

void sl_events_cleared(sl_events *e)
{
    sl_events_write_cleared(&e->body, e->form);
    added(e);
}

/* ---- all pages ---- */

bool sl_events_wants_all(sl_events *e, uint64_t now_ns)
{
    sl_events_shared *s = &e->shared;
    bool asked = e->resend_all && atomic_load(&s->subscribed);
    bool caught_up = atomic_load(&s->queued_bytes) <= e->queue_bytes / 2;
    bool due = !e->all_ns || now_ns - e->all_ns >= SL_EVENTS_ALL_MS * 1000000ull;
    return (asked || e->lost) && caught_up && due;
}

void sl_events_all_begin(sl_events *e, uint64_t now_ns)
{
    sl_events_flush(e);
    atomic_store(&e->shared.subscribed, false);
    e->lost = false;
    e->all = true;
    e->all_ns = now_ns;
    sl_counter_add(e->shared.all, 1);
    sl_events_cleared(e);
}

void sl_events_all_end(sl_events *e)
{
    sl_events_flush(e);
    e->all = false;
}

/* ---- open and close ---- */

static void find_metrics(sl_events_shared *s, sl_metrics *m)
{
    static const char lost[] = "sluice_kv_event_batches_lost_total";
    s->published = sl_metrics_counter(m, "sluice_kv_event_batches_published_total", NULL);
    s->replayed = sl_metrics_counter(m, "sluice_kv_event_batches_replayed_total", NULL);
    s->all = sl_metrics_counter(m, "sluice_kv_event_resends_total", NULL);
    s->lost_queue = sl_metrics_counter(m, lost, SL_LABELS("queue"));
    s->lost_subscriber = sl_metrics_counter(m, lost, SL_LABELS("subscriber"));
    s->lost_replay = sl_metrics_counter(m, lost, SL_LABELS("replay"));
    s->buffered = sl_metrics_gauge(m, "sluice_kv_event_buffer_bytes", NULL);
}

static sl_status open_parts(sl_events *e, const sl_events_opts *o, sl_err *err)
{
    e->form = o->form;
    e->dp_rank = o->dp_rank;
    e->resend_all = o->resend_all;
    e->queue_bytes = o->queue_bytes ? o->queue_bytes : SL_EVENTS_QUEUE_BYTES;
    for (int i = 0; i < SL_MEDIUM_COUNT; i++)
        snprintf(e->medium[i], sizeof e->medium[i], "%s", o->medium[i] ? o->medium[i] : "");
    find_metrics(&e->shared, o->metrics);
    sl_status st = sl_mailbox_create(&e->shared.inbox);
    if (st != SL_OK)
        return sl_fail(err, st, "cannot create a mailbox");
    return sl_publisher_open(o, &e->shared, &e->publisher, err);
}

static void free_all(sl_events *e)
{
    sl_mailbox_destroy(e->shared.inbox);
    sl_wr_free(&e->body);
    sl_wr_free(&e->payload);
    free(e);
}

sl_status sl_events_open(const sl_events_opts *opts, sl_events **out, sl_err *err)
{
    sl_events *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_wr_init(&e->body);
    sl_wr_init(&e->payload);
    sl_status st = open_parts(e, opts, err);
    if (st != SL_OK) {
        free_all(e);
        return st;
    }
    sl_events_cleared(e); /* whatever a process before this one has told is not true any more */
    sl_events_flush(e);
    *out = e;
    return SL_OK;
}

void sl_events_close(sl_events *e)
{
    if (!e)
        return;
    sl_events_cleared(e);
    e->all = true; /* the last batch is not dropped */
    sl_events_flush(e);
    sl_publisher_close(e->publisher);
    free_all(e);
}
