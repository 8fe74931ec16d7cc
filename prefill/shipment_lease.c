/*
 * See shipment.h: shipments of prefetches (prefetch.c), which fetch pages under leases of the decode worker (decode/pages/lend.c) and
 * send nothing. They begin with PREFETCH of the router; LEASE is the event that contains the page numbers.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/cascade.h"
#include "prefill/prefill_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

bool sl_ship_prefetch_msg(sl_prefill *p, sl_wmsg *m)
{
    sl_msg_prefetch r = m->msg.prefetch;
    size_t n = r.source.pages;
    if (!n || n > (r.n_tokens - 1) / PAGE || (int64_t)r.n_tokens > p->o.role.runner->max_context)
        return false;
    uint32_t *pages = calloc(n, sizeof *pages);
    if (!pages)
        return false;
    m->msg = (sl_msg){.type = SL_MSG_PREFILL};
    m->msg.prefill = (sl_msg_prefill){.rid = r.rid,
                                      .attempt = r.attempt,
                                      .decode_worker = r.source.worker,
                                      .decode_epoch = r.source.epoch,
                                      .n_prompt = (uint32_t)n * PAGE,
                                      .tokens = r.tokens,
                                      .n_tokens = n * PAGE,
                                      .matched_pages = (uint32_t)n,
                                      .pages = pages,
                                      .n_pages = n,
                                      .seed = r.seed};
    memcpy(m->msg.prefill.decode_addr, r.source.addr, sizeof r.source.addr);
    return true;
}

/* Asks for the pages that come next, after those of the last lease were fetched. */
sl_ship_turn sl_ship_ask_lease(sl_prefill *p, sl_prefill_job *j)
{
    sl_decode_peer *d = j->ship.peer;
    if (!d || d->remote.state != SL_REMOTE_UP || j->ship.lease)
        return SHIP_IDLE;
    if (j->ship.at == j->pull_end) {
        j->ship.state = SHIP_HOLDING;
        sl_mailbox_post(p->role.inbox, &sl_job_mail_of(j, PM_PULLED)->link);
        return SHIP_IDLE;
    }
    sl_msg m = {.type = SL_MSG_LEASE_ASK};
    m.lease_ask = (sl_msg_lease_ask){.lease = j->ship.lease = ++p->last_lease,
                                     .ms = 2 * p->o.drain_ms,
                                     .seed = j->msg->seed,
                                     .keys = {(const uint8_t *)(j->keys + j->ship.at),
                                              (size_t)(j->pull_end - j->ship.at) * sizeof *j->keys},
                                     .wait = 1};
    sl_wep_send(d->remote.ep, &m);
    return SHIP_IDLE;
}

/* Whether page i of the prompt is what this label says: its key alone could belong to other tokens. */
static bool label_fits(const sl_prefill_job *j, int32_t i, const uint8_t *label, size_t bytes,
                       uint8_t *scratch)
{
    sl_store_page want = {.key = j->keys[i],
                          .seed = j->msg->seed,
                          .prev = i ? j->keys[i - 1] : j->msg->seed,
                          .tokens = j->msg->tokens + (size_t)i * PAGE};
    sl_cascade_label_write(&want, scratch);
    return memcmp(label, scratch, bytes) == 0;
}

/* Takes page numbers and checksums over; NULL: they are wrong, or out of memory. */
static sl_pull_chunk *adopt(const sl_prefill *p, sl_prefill_job *j, const sl_msg_lease *m)
{
    size_t layers = (size_t)p->geo->n_layers, bytes = sl_cascade_label_bytes(p->geo),
           sums = layers * sizeof(uint32_t);
    int32_t first = j->ship.at, n = (int32_t)m->n_pages;
    if (m->n_pages > (size_t)(j->pull_end - first) || m->labels.len != m->n_pages * bytes)
        return NULL;
    sl_pull_chunk *c = sl_shipment_pull_chunk_new(p, j, first, first + n);
    uint8_t *scratch = malloc(bytes);
    bool fits = c && scratch;
    for (int32_t i = 0; fits && i < n; i++) {
        const uint8_t *label = m->labels.data + (size_t)i * bytes;
        fits = m->pages[i] < (uint64_t)j->ship.peer->remote.n_pages &&
               label_fits(j, first + i, label, bytes - sums, scratch);
        j->m->msg.prefill.pages[first + i] = fits ? m->pages[i] : 0;
        memcpy(c->crc + (size_t)i * layers, label + bytes - sums, sums);
    }
    free(scratch);
    if (!fits) {
        free(c);
        return NULL;
    }
    return c;
}

static sl_prefill_job *asked(const sl_prefill *p, const sl_decode_peer *d, uint64_t lease)
{
    sl_prefill_job *j = p->ships;
    while (j && (j->ship.peer != d || j->ship.lease != lease))
        j = j->ship.next;
    return j && j->ship.state == SHIP_LEASING && !sl_ship_ends(j) ? j : NULL;
}

void sl_ship_leased(sl_prefill *p, const sl_decode_peer *d, const sl_msg_lease *m)
{
    sl_prefill_job *j = m->lease ? asked(p, d, m->lease) : NULL;
    if (!j) { /* an ended one: LEASE_END was sent, or will be */
        sl_counter_add(p->c.stale, 1);
        return;
    }
    sl_ship_runnable(p, j);
    if (!m->n_pages) { /* no other page comes */
        j->ship.lease = 0;
        j->pull_end = j->ship.at;
        return;
    }
    j->ship.chunk = adopt(p, j, m);
    if (!j->ship.chunk)
        sl_ship_fail(p, j, SL_ERR_CORRUPT, false, "the lease is not of the pages that were asked for");
    else
        j->ship.state = SHIP_PULLING;
}

static void end_lease(sl_prefill_job *j)
{
    sl_msg m = {.type = SL_MSG_LEASE_END};
    m.lease_end.lease = j->ship.lease;
    sl_wep_send(j->ship.peer->remote.ep, &m);
    j->ship.lease = 0;
}

sl_ship_turn sl_ship_leased_all_got(sl_prefill *p, sl_prefill_job *j)
{
    sl_pull_chunk *c = j->ship.chunk;
    if (j->ship.in_flight)
        return SHIP_IDLE;
    end_lease(j);
    j->ship.chunk = NULL;
    j->ship.at = c->end;
    j->ship.state = SHIP_LEASING;
    sl_mailbox_post(p->role.inbox, &c->mail.link);
    return SHIP_MOVED;
}

void sl_ship_lease_drained(sl_prefill_job *j)
{
    if (j->ship.lease && j->ship.peer && j->ship.peer->remote.state == SL_REMOTE_UP)
        end_lease(j);
    j->ship.lease = 0;
}
