/*
 * Mailbox: the only way threads hand work to each other. Many producers, one consumer, FIFO per producer.
 *
 * Messages are intrusive nodes owned by the sender until posted, by the mailbox until taken, then by the
 * receiver. Post never blocks and never allocates. The consumer either polls sl_mailbox_fd() in its event
 * loop (call sl_mailbox_ack() when readable, then take until NULL) or blocks in sl_mailbox_wait().
 */
#ifndef SL_BASE_MAILBOX_H
#define SL_BASE_MAILBOX_H

#include "base/status.h"

typedef struct sl_mail {
    struct sl_mail *next; /* owned by the mailbox while posted */
} sl_mail;

typedef struct sl_mailbox sl_mailbox;

sl_status sl_mailbox_create(sl_mailbox **out);
/* Destroys an empty mailbox to which no thread posts any more; NULL is allowed. */
void sl_mailbox_destroy(sl_mailbox *mb);
void sl_mailbox_post(sl_mailbox *mb, sl_mail *mail);
/* Next message or NULL. Consumer thread only. */
sl_mail *sl_mailbox_take(sl_mailbox *mb);
/* Blocks until a message may be there or timeout_ms passed (-1 = no limit). */
void sl_mailbox_wait(sl_mailbox *mb, int timeout_ms);
/* eventfd, readable while messages may be waiting. */
int sl_mailbox_fd(const sl_mailbox *mb);
void sl_mailbox_ack(sl_mailbox *mb);

#endif
