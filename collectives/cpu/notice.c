/*
 * The group over sockets as a whole: its cause when it is broken, and the notices that make all ranks know it. See
 * sockets.h. sl_comm_sockets_break() is what sl_comm_abort() calls, so it may run in any thread; everything else
 * here runs in the thread of the backend.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "collectives/cpu/sockets.h"

sl_comm_who sl_comm_name(const sl_comm_sockets *c, int32_t rank)
{
    const sl_comm_link *l = &c->link[rank];
    sl_comm_who w;

    if (l->port)
        snprintf(w.text, sizeof w.text, strchr(l->host, ':') ? "rank %d at [%s]:%u" : "rank %d at %s:%u",
                 rank, l->host, l->port);
    else
        snprintf(w.text, sizeof w.text, "rank %d", rank);
    return w;
}

int32_t sl_comm_names(const sl_comm_sockets *c, bool (*missing)(const sl_comm_sockets *c, int32_t rank),
                      char *out, size_t cap)
{
    int32_t first = -1;
    size_t at = 0;

    out[0] = '\0';
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++) {
        if (q == sl_comm_sockets_rank(c) || !missing(c, q))
            continue;
        if (at < cap)
            at += (size_t)snprintf(out + at, cap - at, first < 0 ? "%s" : ", %s", sl_comm_name(c, q).text);
        first = first < 0 ? q : first;
    }
    return first;
}

/* ---- the cause ---- */

/* The buffer of SL_COMM_NOTICES has room for all notices of a group, so a rank to which one cannot be sent has ended. Half
 * a notice must not be followed by another one. */
static void send_note(const sl_comm_link *l, const sl_comm_note *note)
{
    int fd = l->fd[SL_COMM_NOTICES];

    if (fd >= 0 && send(fd, note, sizeof *note, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)sizeof *note)
        (void)shutdown(fd, SHUT_WR);
}

/* The first cause stays. */
static void break_with(sl_comm_sockets *c, sl_status st, int32_t lost, const char *cause)
{
    sl_comm_note note = {.kind = SL_COMM_NOTE_BROKEN, .status = st, .lost = lost};
    uint64_t one = 1;

    snprintf(note.text, sizeof note.text, "%s", cause);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->broken)) {
        c->status = st;
        c->lost = lost;
        memcpy(c->cause, note.text, sizeof c->cause);
        atomic_store(&c->broken, true);
        for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
            send_note(&c->link[q], &note);
        (void)!write(c->bell, &one, sizeof one);
    }
    pthread_mutex_unlock(&c->lock);
}

void sl_comm_sockets_break(sl_comm_sockets *c, sl_status st, int32_t lost, const char *fmt, ...)
{
    char cause[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(cause, sizeof cause, fmt, args);
    va_end(args);
    break_with(c, st, lost, cause);
}

sl_status sl_comm_sockets_broken(sl_comm_sockets *c, sl_err *err)
{
    sl_status st;

    if (!atomic_load_explicit(&c->broken, memory_order_acquire))
        return SL_OK;
    pthread_mutex_lock(&c->lock);
    c->cpu.base.lost = c->lost;
    st = sl_fail(err, c->status, "comm: %s", c->cause);
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* ---- notices ---- */

void sl_comm_note_send(sl_comm_sockets *c, int32_t rank, const sl_comm_note *note)
{
    pthread_mutex_lock(&c->lock);
    send_note(&c->link[rank], note);
    pthread_mutex_unlock(&c->lock);
}

void sl_comm_note_all(sl_comm_sockets *c, const sl_comm_note *note)
{
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
        sl_comm_note_send(c, q, note);
}

static void on_address(sl_comm_sockets *c, const sl_comm_note *n)
{
    if (n->rank < 1 || n->rank >= c->cpu.base.opts.ranks || c->link[n->rank].port)
        return;
    snprintf(c->link[n->rank].host, sizeof c->link[0].host, "%.*s", SL_COMM_HOST_MAX - 1, n->text);
    c->link[n->rank].port = n->port & 0xffff;
}

static void on_note(sl_comm_sockets *c, int32_t from, sl_comm_note *n)
{
    n->text[sizeof n->text - 1] = '\0';
    switch (n->kind) {
    case SL_COMM_NOTE_BROKEN:
        break_with(c, n->status < 0 ? (sl_status)n->status : SL_ERR_PEER,
                   n->lost >= 0 && n->lost < c->cpu.base.opts.ranks ? n->lost : -1, n->text);
        break;
    case SL_COMM_NOTE_LEFT:
        c->link[from].left = true;
        break;
    case SL_COMM_NOTE_READY:
        c->link[from].ready = true;
        break;
    case SL_COMM_NOTE_GO:
        c->go = c->go || from == 0;
        break;
    case SL_COMM_NOTE_ROLL:
        if (from == 0)
            c->joined = n->joined;
        break;
    case SL_COMM_NOTE_ADDRESS:
        if (from == 0)
            on_address(c, n);
        break;
    default:
        sl_comm_sockets_break(c, SL_ERR_PEER, from, "%s sent what is no notice of a group",
                              sl_comm_name(c, from).text);
    }
}

void sl_comm_notes_read(sl_comm_sockets *c, int32_t rank)
{
    sl_comm_link *l = &c->link[rank];

    while (l->fd[SL_COMM_NOTICES] >= 0 && !l->notices_ended) {
        ssize_t n = recv(l->fd[SL_COMM_NOTICES], (uint8_t *)&l->note + l->note_got,
                         sizeof l->note - l->note_got, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            l->notices_ended = true;
            return;
        }
        l->note_got += (size_t)n;
        if (l->note_got < sizeof l->note)
            continue;
        l->note_got = 0;
        on_note(c, rank, &l->note);
    }
}
