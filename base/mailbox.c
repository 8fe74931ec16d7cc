/*
 * An intrusive lock-free MPSC queue (producers swap the tail, the consumer follows the links from the head, past a stub
 * node) with an eventfd for a consumer that sleeps.
 *
 * A wake-up costs a system call, so it is left out while the consumer is certainly awake: `armed` is true from the
 * moment when a take has found nothing until a producer clears it and writes the eventfd. Each side first publishes and
 * then reads the word of the other side, both with seq_cst, so a message is either seen by the take or signalled by the
 * post. While a producer is interrupted between swap and link, the queue looks empty; that producer signals after the
 * link.
 *
 * The queue has no bound, since senders are bounded by the objects that they own, and messages of different producers
 * have no order.
 */
#include "base/mailbox.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef _Atomic(sl_mail *) mail_link;

/* sl_mail.next is a plain pointer in the public struct; all accesses to it go through this function. */
static mail_link *link_of(sl_mail *m)
{
    return (mail_link *)&m->next;
}

struct sl_mailbox {
    _Alignas(64) mail_link tail; /* producers */
    _Alignas(64) sl_mail *head;  /* consumer */
    sl_mail stub;
    _Alignas(64) atomic_bool armed; /* the consumer may sleep: post must signal */
    int fd;
};

sl_status sl_mailbox_create(sl_mailbox **out)
{
    sl_mailbox *mb = aligned_alloc(_Alignof(sl_mailbox), sizeof *mb);
    if (!mb)
        return SL_ERR_NO_MEMORY;
    mb->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (mb->fd < 0) {
        free(mb);
        return SL_ERR_IO;
    }
    mb->stub.next = NULL;
    mb->head = &mb->stub;
    atomic_init(&mb->tail, &mb->stub);
    atomic_init(&mb->armed, true);
    *out = mb;
    return SL_OK;
}

void sl_mailbox_destroy(sl_mailbox *mb)
{
    if (!mb)
        return;
    close(mb->fd);
    free(mb);
}

static void push(sl_mailbox *mb, sl_mail *mail)
{
    atomic_store_explicit(link_of(mail), NULL, memory_order_relaxed);
    sl_mail *prev = atomic_exchange_explicit(&mb->tail, mail, memory_order_acq_rel);
    atomic_store_explicit(link_of(prev), mail, memory_order_seq_cst);
}

void sl_mailbox_post(sl_mailbox *mb, sl_mail *mail)
{
    push(mb, mail);
    if (!atomic_load(&mb->armed) || !atomic_exchange(&mb->armed, false))
        return;
    uint64_t one = 1;
    ssize_t n;
    do
        n = write(mb->fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static sl_mail *pop(sl_mailbox *mb)
{
    sl_mail *head = mb->head;
    sl_mail *next = atomic_load(link_of(head));
    if (head == &mb->stub) {
        if (!next)
            return NULL;
        mb->head = next;
        head = next;
        next = atomic_load(link_of(head));
    }
    if (next) {
        mb->head = next;
        return head;
    }
    if (head != atomic_load(&mb->tail))
        return NULL; /* a producer is between swap and link; it will signal */
    push(mb, &mb->stub);
    next = atomic_load(link_of(head));
    if (!next)
        return NULL;
    mb->head = next;
    return head;
}

sl_mail *sl_mailbox_take(sl_mailbox *mb)
{
    sl_mail *m = pop(mb);
    if (m)
        return m;
    /* From now on producers signal; a second look finds a message that was posted before its producer could
     * see that. */
    atomic_store(&mb->armed, true);
    return pop(mb);
}

void sl_mailbox_wait_or(sl_mailbox *mb, int fd, int timeout_ms)
{
    atomic_store(&mb->armed, true); /* needed when the caller has not taken until NULL */
    sl_mail *head = mb->head;
    if (atomic_load(link_of(head)) || head != &mb->stub)
        return;
    struct pollfd p[2] = {{.fd = mb->fd, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    if (poll(p, 2, timeout_ms) > 0 && p[0].revents)
        sl_mailbox_ack(mb);
}

void sl_mailbox_wait(sl_mailbox *mb, int timeout_ms)
{
    sl_mailbox_wait_or(mb, -1, timeout_ms);
}

int sl_mailbox_fd(const sl_mailbox *mb)
{
    return mb->fd;
}

void sl_mailbox_ack(sl_mailbox *mb)
{
    uint64_t count;
    ssize_t n = read(mb->fd, &count, sizeof count);
    (void)n; /* EAGAIN: there was no signal */
}
