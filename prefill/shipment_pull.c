/*
 * See shipment.h: shipments of requests in PULLING. The pages are got chunk by chunk, each under a count of its own gets, because
 * gets of one connection need not complete in their order. The kept checksums of all of them are asked for at the beginning, so that
 * the answer comes while the gets are in flight.
 */
#include <stdlib.h>
#include <string.h>

#include "prefill/path.h"
#include "prefill/prefill_impl.h"

enum { DEFAULT_CHUNK = 32 << 20 };

sl_pull_chunk *sl_shipment_pull_chunk_new(const sl_prefill *p, sl_prefill_job *j, int32_t first, int32_t end)
{
    size_t n_crc = (size_t)(end - first) * (size_t)p->geo->n_layers;
    sl_pull_chunk *c = calloc(1, sizeof *c + n_crc * sizeof c->crc[0]);
    if (!c)
        return NULL;
    c->mail.kind = PM_CHUNK;
    c->job = j;
    c->first = first;
    c->end = end;
    sl_page_read_begin(&c->read, &j->ship.map, first, end);
    return c;
}

void sl_ship_ask_sums(sl_prefill_job *j)
{
    sl_msg m = {.type = SL_MSG_PAGES_ASK};
    m.pages_ask = (sl_msg_pages_ask){.rid = j->rid,
                                     .attempt = j->attempt,
                                     .ticket = j->msg->ticket,
                                     .first = (uint32_t)j->own_matched,
                                     .count = (uint32_t)(j->pull_end - j->own_matched)};
    sl_wep_send(j->ship.peer->remote.ep, &m);
}

static sl_prefill_job *asked(sl_prefill *p, uint32_t router, const sl_msg_pages_crc *m)
{
    sl_prefill_job *j = p->ships;
    while (j && (j->prefetch || j->router != router || j->rid != m->rid || j->attempt != m->attempt))
        j = j->ship.next;
    return j && !sl_ship_ends(j) && j->ship.state == SHIP_PULLING && !j->ship.answered &&
                   (int32_t)m->first == j->own_matched
               ? j
               : NULL;
}

void sl_ship_pages_crc(sl_prefill *p, uint32_t router, const sl_msg_pages_crc *m)
{
    sl_prefill_job *j = asked(p, router, m);
    if (!j) {
        sl_counter_add(p->c.stale, 1);
        return;
    }
    size_t n = (size_t)(j->pull_end - j->own_matched) * (size_t)p->geo->n_layers;
    if (m->n_crc == n)
        j->ship.sums = malloc(n * sizeof *j->ship.sums);
    if (j->ship.sums)
        memcpy(j->ship.sums, m->crc, n * sizeof *j->ship.sums);
    j->ship.answered = true;
    sl_ship_runnable(p, j);
}

/* Hands the chunks that have arrived to the engine, in their order. */
static void hand_over(sl_prefill *p, sl_prefill_job *j)
{
    size_t layers = (size_t)p->geo->n_layers;
    for (sl_pull_chunk *c; j->ship.sums && (c = j->ship.arriving) && !c->in_flight;) {
        j->ship.arriving = c->next;
        if (c->first < j->pull_end)
            memcpy(c->crc, j->ship.sums + (size_t)(c->first - j->own_matched) * layers,
                   (size_t)(c->end - c->first) * layers * sizeof c->crc[0]);
        sl_mailbox_post(p->role.inbox, &c->mail.link);
    }
}

static void all_posted(sl_prefill_job *j)
{
    sl_pull_chunk *c = j->ship.chunk;
    if (!j->ship.arriving)
        j->ship.last_arriving = &j->ship.arriving;
    *j->ship.last_arriving = c;
    j->ship.last_arriving = &c->next;
    j->ship.chunk = NULL;
}

/* Pages are left to get: those of the prefix, and after them those of the snapshot that follows it. */
static bool more(const sl_prefill_job *j)
{
    return j->ship.at < j->pull_end || (j->ship.at == j->pull_end && !j->prefetch && j->at.prefix >= 0);
}

/* Begins the next chunk. False: the shipment has failed. */
static bool begin_chunk(sl_prefill *p, sl_prefill_job *j)
{
    uint64_t bytes = p->o.pull_chunk_bytes ? p->o.pull_chunk_bytes : DEFAULT_CHUNK;
    uint64_t pages = bytes / (uint64_t)p->geo->page_bytes, left = (uint64_t)(j->pull_end - j->ship.at);
    int32_t first = j->ship.at, n = (int32_t)(pages < 1 ? 1 : pages < left ? pages : left);
    if (first == j->pull_end) {
        j->ship.chunk = sl_shipment_pull_chunk_new(p, j, j->at.prefix, j->at.n);
        n = 1;
    } else {
        j->ship.chunk = sl_shipment_pull_chunk_new(p, j, first, first + n);
    }
    j->ship.at = first + n;
    if (j->ship.chunk)
        return true;
    sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
    return false;
}

/* Nothing is left to get, or the decode worker does not hold the pages any more: the engine is told when no get is in flight. */
static sl_ship_turn end_pull(sl_prefill *p, sl_prefill_job *j)
{
    if (j->ship.in_flight || !j->ship.answered)
        return SHIP_IDLE;
    j->pull_ok = j->ship.sums != NULL;
    j->ship.state = SHIP_SENDING;
    sl_mailbox_post(p->role.inbox, &sl_job_mail_of(j, PM_PULLED)->link);
    return SHIP_MOVED;
}

/* SL_INPROGRESS: all gets of the chunk are posted. */
static sl_status post_get(sl_prefill *p, sl_prefill_job *j)
{
    const sl_decode_peer *d = j->ship.peer;
    sl_span s;
    if (!j->ship.chunk)
        return SL_INPROGRESS;
    if (!sl_ship_has_window(d))
        return SL_AGAIN;
    if (!sl_page_read_next(&j->ship.chunk->read, &s))
        return SL_INPROGRESS;
    sl_status st = d->path->get(p, j, &s);
    if (st == SL_AGAIN)
        sl_page_read_hold(&j->ship.chunk->read, &s);
    return st;
}

sl_ship_turn sl_ship_pull(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->ship.peer || j->ship.peer->remote.state != SL_REMOTE_UP)
        return SHIP_IDLE;
    hand_over(p, j);
    if (j->ship.answered && !j->ship.sums && !j->prefetch) {
        if (j->ship.chunk)
            sl_page_read_stop(&j->ship.chunk->read);
        return end_pull(p, j);
    }
    if (!j->ship.chunk && more(j) && !begin_chunk(p, j))
        return SHIP_IDLE;
    sl_status st = post_get(p, j);
    if (st != SL_INPROGRESS)
        return sl_ship_turn_of(p, j, st);
    if (j->prefetch)
        return sl_ship_leased_all_got(p, j);
    if (!j->ship.chunk)
        return end_pull(p, j);
    all_posted(j);
    return SHIP_MOVED; /* the next turn begins the next chunk, or hands over what has arrived already */
}

void sl_ship_pull_free(sl_prefill_job *j)
{
    for (sl_pull_chunk *c; (c = j->ship.arriving);) {
        j->ship.arriving = c->next;
        free(c);
    }
    free(j->ship.chunk);
    free(j->ship.sums);
}
