/*
 * Mailbox: the only way in which threads give work to each other. Many producers, one consumer; the messages of one
 * producer arrive in their order.
 *
 * Messages are intrusive nodes. They belong to the sender until they are posted, to the mailbox until they are taken,
 * then to the receiver. Post never blocks and never allocates. The consumer either polls sl_mailbox_fd() in its event
 * loop (when it is readable, it calls sl_mailbox_ack() and then takes until NULL) or blocks in sl_mailbox_wait().
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
/* Blocks until there may be a message or timeout_ms have passed (-1: no limit). */
void sl_mailbox_wait(sl_mailbox *mb, int timeout_ms);
/* As sl_mailbox_wait(), and returns when fd is readable (-1: no such descriptor). */
void sl_mailbox_wait_or(sl_mailbox *mb, int fd, int timeout_ms);
/* An eventfd that is readable while there may be messages. */
int sl_mailbox_fd(const sl_mailbox *mb);
void sl_mailbox_ack(sl_mailbox *mb);

#endif
