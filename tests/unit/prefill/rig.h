/*
 * Rig for shipments: one thread, in which the test replaces everything around the machine. The worker core and the
 * transport are doubles (rig.c defines their functions, so neither is linked): what the machine posts and sends is
 * recorded, and completes when the test says so, with the status that the test gives. The test is also the engine: it
 * sends START, LAYER, FINISH and answers END by RELEASE. Arenas, page maps, checksums, the direct mapping and the
 * copier are the real ones.
 *
 * The doubles fail the test when the machine posts or sends from inside a callback, or posts on an endpoint that is
 * being closed.
 */
#ifndef SL_TEST_PREFILL_RIG_H
#define SL_TEST_PREFILL_RIG_H

#include <check.h>

#include "prefill/path.h"
#include "prefill/peer.h"

enum { RIG_ROUTER = 3 }; /* the session in which the shipments come */
enum { RIG_LAYERS = 3, RIG_TOKENS = 200, RIG_PAGES = 4, RIG_PULLED = 2 /* pages, of a pulling shipment */ };
enum { RIG_AHEAD = 3 }; /* pages of a prefetch */

/* DIRECT: copies by the transport thread; COPIER: by the copier's thread; GPU: puts from two device pools. */
typedef enum { RIG_STAGING, RIG_GPU, RIG_DIRECT, RIG_COPIER, RIG_PATHS } rig_path;
/* Of the paths, only the copier's has a second thread for ThreadSanitizer to watch. */
#if defined(__SANITIZE_THREAD__)
enum { RIG_FIRST_PATH = RIG_COPIER };
#else
enum { RIG_FIRST_PATH = RIG_STAGING };
#endif
typedef enum { OP_PUT, OP_GET, OP_FLUSH } rig_op_kind;

typedef struct rig_op {
    rig_op_kind kind;
    sl_tp_done_fn *done;
    void *cookie;
    uint8_t *local, *remote;
    size_t bytes;
} rig_op;

/* What was sent, to the router or to the peer, and what the engine was told. */
typedef struct rig_seen {
    int prefilled, failed, drained;                        /* router */
    int hello, commit, peer_drained, asked;                /* peer */
    int leases, lease_ends;                                /* peer */
    uint64_t lease;                                        /* of the last LEASE_ASK */
    int lease_keys;                                        /* pages that it asks for */
    int told_new, told_pulled, told_stop, told_end, freed; /* engine */
    int chunks, chunk_pages;                               /* that the engine was told of, in their order */
    int chunks_bad; /* of them, those with another checksum than the decode worker's */
    sl_msg_failed why;
    bool commit_ok; /* its checksums are those of the landing pages */
} rig_seen;

typedef struct rig {
    rig_path path;
    sl_prefill *p;
    sl_prefill_job *job; /* of the last rig_begin; NULL after RELEASE */
    sl_arena *here, *there;
    sl_direct_host *host;
    rig_op op[4096]; /* posted and not completed */
    int n_ops;
    bool in_callback, close_asked, peer_up;
    bool unflushed;      /* puts were posted and no completed flush covers them */
    bool full;           /* posts are answered by SL_AGAIN */
    sl_status refuse;    /* posts are answered by this, when it is not SL_OK */
    rig_op_kind refused; /* posts of this kind */
    sl_wep *ep;
    uint32_t serial;
    uint64_t now; /* of the next tick */
    rig_seen seen;
    sl_prefill_step *step;
} rig;

extern rig r;
/* When it is set, the mails to the engine thread go there, after they were counted. */
extern void (*rig_engine)(sl_wmail *m);
/* Of the page keys. */
extern const sl_key rig_seed;

void rig_open(rig_path path);
/* Fails the test when anything is left. */
void rig_close(void);

/* PREFILL with RIG_TOKENS tokens, of which the decode worker has `matched` pages. deadline_ms 0: none. */
void rig_begin(uint32_t matched, uint32_t deadline_ms);
/* PREFETCH of the same prompt, of which the decode worker loads RIG_AHEAD pages. */
void rig_begin_prefetch(void);
/* LEASE of the next n pages, the answer to the last LEASE_ASK. right: with the labels of these pages. */
void rig_lease(int n, bool right);
/* START: `own` pages are in the own cache. */
void rig_start(int32_t own);
void rig_peer_up(void);
void rig_layer(int32_t layer, int32_t first, int32_t end);
void rig_finish(void);
/* PAGES_CRC with right or with wrong checksums; without any, because the ticket is not held any more. */
void rig_pages_crc(bool right);
void rig_no_pages_crc(void);
/* What the engine finds out until PULLED: all pulled pages are there, and the checker finds their checksums right. */
bool rig_pulled_right(void);

/* Mails, then one tick, then the engine's mails (END stays unanswered). */
void rig_tick(void);
/* The oldest operation, or all of them. SL_OK moves the bytes. */
void rig_complete(sl_status st);
void rig_complete_all(sl_status st);
/* Does what the transport does: cancels what is in flight, then calls `closed`. */
void rig_closed(void);
/* How many turns a loop waits for a state: without the copier's thread every turn gets somewhere, with it a turn waits
 * 100 us, and the thread may get no processor for seconds. */
int rig_patience(void);
/* Ticks and completes with SL_OK until the shipment is over, and answers END. */
void rig_settle(void);

#endif
