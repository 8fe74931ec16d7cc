/*
 * Shipment: moves the rows of one request (one PREFILL, one attempt) to the decode worker. Transport thread.
 *
 *                 START             peer is up
 *     WAITING ───────────▶ CONNECTING ──────┬─────────▶ PULLING ──────────┐
 *                                           │                             ▼
 *                                           └──────────────────────────▶ SENDING ──▶ FLUSHING ──▶ OVER ──▶ freed
 *                                                                                                  ▲
 *     every state before OVER: failure, abort, deadline, router or peer lost ──▶ DRAINING ─────────┘
 *
 *     of a prefetch:  WAITING ──▶ CONNECTING ──▶ LEASING ◀──▶ PULLING,  LEASING ──▶ HOLDING,  every state ──▶ DRAINING ──▶ OVER
 *
 *     state       holds                          left by                                          to
 *     WAITING     the message                    mail START: the engine has leased own pages      CONNECTING
 *     CONNECTING  + own pages                    pump: the peer is up; it sends PAGES_ASK         PULLING
 *                                                pump: the peer is up, nothing to pull            SENDING
 *     PULLING     + gets in flight, chunks       pump: all got, PAGES_CRC has come; mail PULLED   SENDING
 *     SENDING     + puts and copies in flight    pump: FINISH came, all posted; it posts a flush  FLUSHING
 *     FLUSHING    + puts, copies, one flush      pump: all completed; COMMIT, PREFILLED           OVER
 *     LEASING     + own pages                    message LEASE with pages                         PULLING
 *                                                pump: LEASE without pages, or all are there      HOLDING
 *     PULLING     + gets in flight, a lease      pump: all got; it sends LEASE_END and CHUNK      LEASING
 *     HOLDING     + own pages                    mail FINISH                                      DRAINING
 *     DRAINING    what was posted before,        pump: all completed and flushed, or the          OVER
 *                 a flush after it               connection is closed; DRAINED or FAILED
 *     OVER        nothing                        mail RELEASE, the engine's answer to END         (freed)
 *
 * Rules:
 *
 * - Events (mails, messages, completions, the clock, the state of the peer) only record what happened and put the
 *   shipment on the list of runnable shipments. They post and send nothing for it. START and LEASE also change the state, as the
 *   table says.
 * - Pages are pulled in chunks (prefill.h: pull_chunk_bytes), so that the engine compares the first ones and moves them to its device
 *   while the gets of the next ones are in flight. A chunk is handed to the engine (mail CHUNK) when its gets have completed and its
 *   checksums are known; chunks are handed over in their order. PULLED comes after the last one, when no get is in flight: from then
 *   on the engine may write to the pages that did not arrive.
 * - The pump (sl_ship_tick) gives turns to the runnable shipments; only the pump posts, sends, and enters any other
 *   state. So no callback enters the machine while it runs.
 * - A failure or an abort is recorded in `ending`, in any state. A later failure does not replace the first one; an abort
 *   replaces a failure. The pump then moves the shipment to DRAINING, whatever its state is.
 * - Deadlines: before DRAINING that of the request (SL_ERR_DEADLINE); in DRAINING drain_ms, after which the connection is
 *   closed by force. Closing cancels the operations in flight, so DRAINING always ends.
 * - A prefetch (prefetch.c) sends no row and answers the router nothing. It ends through DRAINING also when it has succeeded; there it
 *   ends the lease that it holds, when no get is in flight.
 * - There is one way out: only over() in shipment_end.c enters OVER. It posts END; from then on the shipment accesses
 *   no pages on either side. RELEASE frees the job with everything in it (sl_ship_free).
 * - DRAINED is never sent too early: `unflushed` says that puts were posted that no completed flush covers. If the
 *   connection is lost with such puts, DRAINED is not sent to the router; the fence of the decode worker decides
 *   (docs/protocol.md).
 */
#ifndef SL_PREFILL_SHIPMENT_H
#define SL_PREFILL_SHIPMENT_H

#include "base/msg.h"
#include "prefill/cursor.h"
#include "worker/worker.h"

typedef struct sl_prefill sl_prefill;
typedef struct sl_prefill_job sl_prefill_job;
typedef struct sl_decode_peer sl_decode_peer;
typedef struct sl_pull_chunk sl_pull_chunk;
typedef struct sl_ship_path sl_ship_path;

typedef enum {
    SHIP_WAITING,
    SHIP_CONNECTING,
    SHIP_PULLING,
    SHIP_SENDING,
    SHIP_FLUSHING,
    SHIP_LEASING,
    SHIP_HOLDING,
    SHIP_DRAINING,
    SHIP_OVER
} sl_ship_state;

/* Why a shipment ends early; SHIP_NOT_ENDING while no failure or abort is recorded. */
typedef enum { SHIP_NOT_ENDING, SHIP_FAILED, SHIP_ABORTED } sl_ship_cause;

typedef struct sl_ship_ending {
    sl_ship_cause cause;
    sl_status status; /* with SHIP_FAILED: this and the next two */
    bool retryable;
    char reason[300];
} sl_ship_ending;

typedef struct sl_shipment {
    sl_prefill *owner;
    sl_prefill_job *next, *prev; /* all shipments of the worker */
    struct {
        sl_prefill_job *next, **pprev; /* pprev is NULL while it is not in a list */
    } run;
    sl_ship_state state;
    sl_ship_ending ending;
    sl_decode_peer *peer; /* NULL after its connection was closed */
    sl_page_map map;      /* set when CONNECTING ends; its device fields are those of the open layer */
    sl_ship_cursor cursor;
    uint32_t *crc;      /* [shipped pages][layers], filled while layers are opened, sent in COMMIT */
    uint32_t in_flight; /* gets, puts, flushes and batches of copies that have not completed */
    bool unflushed;     /* puts were posted that no completed flush covers */
    uint64_t bytes;     /* number of bytes shipped */
    /* PULLING */
    /* of a prefetch: pages before it are here; else: gets of pages before it are posted, then those of a snapshot */
    int32_t at;
    sl_pull_chunk *chunk; /* whose gets are being posted; of a prefetch: what the lease covers */
    sl_pull_chunk *arriving,
        **last_arriving; /* in order: their gets are posted; the engine was not told of them yet */
    /* [pull_end - own_matched][layers]: the checksums that the decode worker keeps for them */
    uint32_t *sums;
    bool answered;      /* PAGES_CRC has come; sums is NULL if it had none */
    uint64_t lease;     /* of a prefetch, asked for or held; 0: none */
    uint64_t first_ns;  /* when the first row was posted; 0: none */
    uint64_t finish_ns; /* time of FINISH, after which no piece is added; 0: not yet */
    uint64_t drain_deadline_ns;
} sl_shipment;

/* A list of jobs linked by ship.run, first in, first out. A zeroed list is empty. */
typedef struct sl_ship_list {
    sl_prefill_job *head, **tail;
} sl_ship_list;

/* ---- what comes from the router, the engine and the copier (shipment_mail.c) ---- */

/* PREFILL, or PREFETCH. Takes m. */
void sl_ship_new(sl_prefill *p, sl_wmsg *m);
/* ABORT of a router. If there is no such shipment, or it is OVER, DRAINED is sent at once. */
void sl_ship_abort(sl_prefill *p, uint32_t router, uint64_t rid, uint32_t attempt);
/* Mails of the engine and of the copier. */
void sl_ship_mail(sl_prefill *p, sl_wmail *m);
/* Unlinks and frees the job; called for RELEASE, and after the transport thread has ended. */
void sl_ship_free(sl_prefill *p, sl_prefill_job *j);

/* ---- events, which only record (shipment_events.c) ---- */

/* Fails the shipments of this session. */
void sl_ship_router_down(sl_prefill *p, uint32_t router);
/* The connection of the peer is up, or has been closed; then the shipments forget the peer. */
void sl_ship_peer_up(sl_prefill *p, const sl_decode_peer *d);
void sl_ship_peer_closed(sl_prefill *p, const sl_decode_peer *d);
/* Records a failure: nothing more is posted, and FAILED is sent when it has drained, unless it is aborted. */
void sl_ship_fail(sl_prefill *p, sl_prefill_job *j, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Records a failure of all shipments to this peer. */
void sl_ship_fail_peer(sl_prefill *p, const sl_decode_peer *d, sl_status st, const char *why);
/* An operation or a batch was posted to the peer of the shipment; the other function: it has completed. */
void sl_ship_posted(sl_prefill_job *j);
void sl_ship_completed(sl_prefill_job *j, sl_decode_peer *d);
/* PAGES_CRC from a peer that this router has introduced (shipment_pull.c). */
void sl_ship_pages_crc(sl_prefill *p, uint32_t router, const sl_msg_pages_crc *m);
/* LEASE from this peer (shipment_lease.c). */
void sl_ship_leased(sl_prefill *p, const sl_decode_peer *d, const sl_msg_lease *m);

/* ---- the pump (shipment_pump.c) ---- */

/*
 * Handles the deadlines of shipments and peers, then gives turns. Returns the time (ns) of the next call, which is
 * `now` if something was posted.
 */
uint64_t sl_ship_tick(sl_prefill *p, uint64_t now);

/* ---- shared by the files of the machine ---- */

/* What one turn of a shipment did. */
typedef enum {
    SHIP_IDLE,    /* it waits for an event */
    SHIP_BLOCKED, /* the transport or the window is full: next turn in the pump's next run */
    SHIP_MOVED,   /* it entered another state: next turn in this run */
    SHIP_POSTED,  /* it posted something: next turn in this run */
} sl_ship_turn;

/* The lists of shipments: at the end of one; out of the one that it is in; the first, taken out, or NULL. */
void sl_ship_list_put(sl_ship_list *l, sl_prefill_job *j);
void sl_ship_list_out(sl_ship_list *l, sl_prefill_job *j);
sl_prefill_job *sl_ship_list_first(sl_ship_list *l);
void sl_ship_runnable(sl_prefill *p, sl_prefill_job *j);
bool sl_ship_ends(const sl_prefill_job *j); /* it ends early, or it is OVER */
const char *sl_ship_state_name(sl_ship_state s);

/* shipment_post.c: turns in SENDING; whether the connection takes another operation; the turn of a post with this status. */
sl_ship_turn sl_ship_send(sl_prefill *p, sl_prefill_job *j);
bool sl_ship_has_window(const sl_decode_peer *d);
sl_ship_turn sl_ship_turn_of(sl_prefill *p, sl_prefill_job *j, sl_status st);

/* shipment_pull.c: begins PULLING for a request; turns in it; the event PAGES_CRC is there, too. */
void sl_ship_ask_sums(sl_prefill_job *j);
sl_ship_turn sl_ship_pull(sl_prefill *p, sl_prefill_job *j);
/* A chunk without checksums; NULL: out of memory. */
sl_pull_chunk *sl_shipment_pull_chunk_new(const sl_prefill *p, sl_prefill_job *j, int32_t first, int32_t end);
void sl_ship_pull_free(sl_prefill_job *j);

/* shipment_lease.c: makes a PREFILL of its pages from the PREFETCH (false: malformed, or out of memory); turns of prefetches in
 * LEASING, and in PULLING when all gets are posted; the last message of one that drains. */
bool sl_ship_prefetch_msg(sl_prefill *p, sl_wmsg *m);
sl_ship_turn sl_ship_ask_lease(sl_prefill *p, sl_prefill_job *j);
sl_ship_turn sl_ship_leased_all_got(sl_prefill *p, sl_prefill_job *j);
void sl_ship_lease_drained(sl_prefill_job *j);

/* shipment_end.c: turns in FLUSHING and DRAINING, and the flush that both need. */
sl_ship_turn sl_ship_finish(sl_prefill *p, sl_prefill_job *j);
sl_ship_turn sl_ship_drain(sl_prefill *p, sl_prefill_job *j);
void sl_ship_begin_draining(sl_prefill *p, sl_prefill_job *j);
/* Posts a flush. SL_AGAIN: not possible now. */
sl_status sl_ship_post_flush(sl_prefill_job *j);
/* Sends DRAINED to the router, also as the answer to ABORT. */
void sl_ship_tell_drained(sl_prefill *p, uint32_t router, uint64_t rid, uint32_t attempt);

#endif
