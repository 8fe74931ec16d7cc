/*
 * Mail between the threads of a decode worker. The rooms below decode/ share it: connections (link/) on the transport thread,
 * tickets and pages on the engine thread, and the checker (worker/checker.h).
 */
#ifndef SL_DECODE_MAIL_MAIL_H
#define SL_DECODE_MAIL_MAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/worker.h"

enum {
    /* transport -> engine */
    DM_MSG = 1,     /* sl_wmsg from a router, or from a writer (worker_id) */
    DM_CONNECTED,   /* sl_fence: this writer has received the memory key */
    DM_FENCED,      /* sl_fence: nothing that this writer sends can reach the arena any more */
    DM_ROUTER_UP,   /* sl_note */
    DM_ROUTER_DOWN, /* sl_note */
    DM_READER_GONE, /* sl_reader_mail: no get of this connection can read the arena any more */
    DM_PULL_ASKED,  /* sl_pull: the lease, or why there is none (pull.h) */
    DM_PULL_GOT,    /* sl_pull_get: its pages are here, or why not */
    /* checker -> engine */
    DM_CHECKED, /* sl_check */
    /* engine -> transport */
    DM_FENCE,        /* sl_fence: close the connections of this writer, then answer DM_FENCED */
    DM_READER_FENCE, /* sl_reader_mail: close this connection, then answer DM_READER_GONE */
    DM_PULL_ASK,     /* sl_pull: answered by DM_PULL_ASKED */
    DM_PULL_GET,     /* sl_pull_get: answered by DM_PULL_GOT */
    DM_PULL_CANCEL,  /* sl_pull_cancel */
};

/* A writer as one router names it. A prefill worker that serves several routers is a writer of each, with a connection
 * for each, so that a fence or the loss of a router touches requests of that router only. */
typedef struct sl_writer {
    uint32_t router, id;
} sl_writer;

typedef struct sl_fence {
    sl_wmail mail;
    sl_writer writer;
} sl_fence;

typedef struct sl_note {
    sl_wmail mail;
    uint32_t router;
} sl_note;

/* The connection of a reader (lend.c). */
typedef struct sl_reader_mail {
    sl_wmail mail;
    uint32_t ep_serial;
} sl_reader_mail;

typedef struct sl_pull_cancel {
    sl_wmail mail;
    uint64_t id;
} sl_pull_cancel;

/* Tags of the checker's jobs that belong to the cascade, to leases and to an audit. Those of tickets are their sl_ticket_job. */
enum { CHECK_CASCADE = 16, CHECK_LEND, CHECK_AUDIT };

static inline bool sl_writer_eq(sl_writer a, sl_writer b)
{
    return a.router == b.router && a.id == b.id;
}

#endif
