/*
 * The implementation of collectives over sockets, for ranks on several hosts: the group's life, and its rounds. The
 * design is in sockets.h, the collectives are those of rounds.c.
 */
#include "collectives/cpu/sockets.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"

#define YIELDS 20 /* looks at the sockets before the first sleep */

static sl_comm_sockets *of(sl_comm *c)
{
    return (sl_comm_sockets *)c;
}

/* ---- a round ---- */

static size_t frame_bytes(const sl_comm_sockets *c)
{
    return offsetof(sl_comm_frame, head.count) + sizeof(int32_t) * (size_t)c->cpu.base.opts.ranks;
}

static bool all_sent(const sl_comm_sockets *c, int32_t q)
{
    return c->link[q].sent == frame_bytes(c) + c->link[q].out.bytes;
}

static bool all_got(const sl_comm_sockets *c, int32_t q)
{
    const sl_comm_link *l = &c->link[q];

    return l->got >= frame_bytes(c) && l->got == frame_bytes(c) + l->in.bytes;
}

/* This round does not have everything from and for this rank yet. */
static bool unfinished(const sl_comm_sockets *c, int32_t q)
{
    return q != sl_comm_sockets_rank(c) && !(all_sent(c, q) && all_got(c, q));
}

static void sockets_begin(sl_comm_cpu *cpu)
{
    sl_comm_sockets *c = of(&cpu->base);

    for (int32_t q = 0; q < cpu->base.opts.ranks; q++) {
        sl_comm_link *l = &c->link[q];

        l->sent = l->got = 0;
        cpu->half[q] = c->halves + (size_t)q * cpu->half_bytes;
        cpu->head[q] = q == cpu->base.opts.rank ? &c->own : &l->in.head;
    }
}

/* What can be sent now. A rank that takes nothing any more is noticed where its data end. */
static void send_some(sl_comm_sockets *c, int32_t q)
{
    sl_comm_link *l = &c->link[q];
    size_t head = frame_bytes(c);
    const uint8_t *span = c->cpu.half[sl_comm_sockets_rank(c)] + l->out.at;

    while (!all_sent(c, q)) {
        struct iovec part[2] = {{(uint8_t *)&l->out + l->sent, head - l->sent}, {(void *)span, l->out.bytes}};
        struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
        ssize_t n;

        if (l->sent >= head) {
            part[0] = (struct iovec){(void *)(span + (l->sent - head)), l->out.bytes - (l->sent - head)};
            m.msg_iovlen = 1;
        }
        n = sendmsg(l->fd[SL_COMM_DATA], &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            l->sent += (size_t)n;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
        else if (errno != EINTR)
            l->sent = head + l->out.bytes;
    }
}

/* Whether the frame is of this round and its span within a half. */
static bool check_frame(sl_comm_sockets *c, int32_t q)
{
    const sl_comm_frame *f = &c->link[q].in;

    if (f->round == c->cpu.round && f->at <= c->cpu.half_bytes && f->bytes <= c->cpu.half_bytes - f->at)
        return true;
    sl_comm_sockets_break(c, SL_ERR_PEER, q, "%s sent what is no round of this group",
                          sl_comm_name(c, q).text);
    c->link[q].data_ended = true;
    return false;
}

static void receive_some(sl_comm_sockets *c, int32_t q)
{
    sl_comm_link *l = &c->link[q];
    size_t head = frame_bytes(c);

    while (!all_got(c, q) && !l->data_ended) {
        bool in_head = l->got < head;
        uint8_t *to =
            in_head ? (uint8_t *)&l->in + l->got : c->cpu.half[q] + (size_t)l->in.at + (l->got - head);
        size_t want = in_head ? head - l->got : (size_t)l->in.bytes - (l->got - head);
        ssize_t n = recv(l->fd[SL_COMM_DATA], to, want, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            l->data_ended = true;
            return;
        }
        l->got += (size_t)n;
        if (in_head && l->got == head && !check_frame(c, q))
            return;
    }
}

/* Whether the round is complete. */
static bool move(sl_comm_sockets *c)
{
    bool complete = true;

    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++) {
        if (!unfinished(c, q))
            continue;
        send_some(c, q);
        receive_some(c, q);
        complete = complete && !unfinished(c, q);
    }
    return complete;
}

/* Sleeps until a socket that this round needs is ready, a notice has come, or the deadline is over; reads notices. */
static void sleep_until_ready(sl_comm_sockets *c, uint64_t end)
{
    int32_t ranks = c->cpu.base.opts.ranks;
    uint64_t now = sl_now_ns(), ms = end > now ? (end - now) / 1000000 + 1 : 0;
    struct pollfd p[2 * SL_COMM_RANKS_MAX + 1];

    for (int32_t q = 0; q < ranks; q++) {
        const sl_comm_link *l = &c->link[q];
        short wanted = 0;

        if (unfinished(c, q))
            wanted = (short)((all_sent(c, q) ? 0 : POLLOUT) | (all_got(c, q) || l->data_ended ? 0 : POLLIN));
        p[2 * q] = (struct pollfd){wanted ? l->fd[SL_COMM_DATA] : -1, wanted, 0};
        p[2 * q + 1] = (struct pollfd){l->notices_ended ? -1 : l->fd[SL_COMM_NOTICES], POLLIN, 0};
    }
    p[2 * ranks] = (struct pollfd){c->bell, POLLIN, 0};
    if (poll(p, 2 * (nfds_t)ranks + 1, (int)ms) <= 0)
        return;
    for (int32_t q = 0; q < ranks; q++)
        if (p[2 * q + 1].revents)
            sl_comm_notes_read(c, q);
}

/* Looks for ranks whose data will never be complete. */
static void check_ranks(sl_comm_sockets *c)
{
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++) {
        const sl_comm_link *l = &c->link[q];

        if (!unfinished(c, q) || !l->data_ended)
            continue;
        if (l->left)
            sl_comm_sockets_break(c, SL_ERR_PEER, q, "%s has left the group", sl_comm_name(c, q).text);
        else if (l->notices_ended)
            sl_comm_sockets_break(c, SL_ERR_PEER, q, "%s was lost: its process has ended",
                                  sl_comm_name(c, q).text);
    }
}

static void late(sl_comm_sockets *c)
{
    char names[160];
    int32_t first = sl_comm_names(c, unfinished, names, sizeof names);

    sl_comm_sockets_break(c, SL_ERR_TIMEOUT, first, "%s did not arrive within %u ms, says rank %d", names,
                          c->cpu.base.opts.deadline_ms, sl_comm_sockets_rank(c));
}

static void post(sl_comm_sockets *c)
{
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++) {
        c->link[q].out = (sl_comm_frame){
            .round = c->cpu.round, .at = c->cpu.span[q].at, .bytes = c->cpu.span[q].bytes, .head = c->own};
    }
}

/* The deadline is over. This process may have been stopped itself: what has come meanwhile counts. */
static void give_up(sl_comm_sockets *c)
{
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
        sl_comm_notes_read(c, q);
    if (!move(c))
        late(c); /* no effect if a notice has broken the group */
}

static sl_status sockets_meet(sl_comm_cpu *cpu, sl_err *err)
{
    sl_comm_sockets *c = of(&cpu->base);
    uint64_t end = 0;

    SL_TRY(sl_comm_sockets_broken(c, err));
    post(c);
    for (int32_t i = 0; !move(c); i++) {
        if (i < YIELDS) {
            sched_yield();
            continue;
        }
        SL_TRY(sl_comm_sockets_broken(c, err));
        if (end == 0)
            end = sl_now_ns() + cpu->base.opts.deadline_ms * 1000000ull;
        check_ranks(c);
        if (sl_now_ns() > end)
            give_up(c);
        SL_TRY(sl_comm_sockets_broken(c, err));
        sleep_until_ready(c, end);
    }
    return SL_OK;
}

static sl_status sockets_break(sl_comm_cpu *cpu, sl_status st, int32_t lost, const char *cause, sl_err *err)
{
    sl_comm_sockets_break(of(&cpu->base), st, lost, "%s", cause);
    return sl_comm_sockets_broken(of(&cpu->base), err);
}

/* ---- the group ---- */

static const sl_comm_rounds rounds = {.begin = sockets_begin, .meet = sockets_meet, .brk = sockets_break};

static void sockets_destroy(sl_comm *base)
{
    sl_comm_sockets *c = of(base);

    if (!atomic_load(&c->broken))
        sl_comm_note_all(c, &(sl_comm_note){.kind = SL_COMM_NOTE_LEFT});
    sl_comm_mesh_free(c->mesh);
    for (int32_t q = 0; q < SL_COMM_RANKS_MAX; q++)
        for (int w = 0; w < SL_COMM_WIRES; w++)
            if (c->link[q].fd[w] >= 0)
                close(c->link[q].fd[w]);
    if (c->bell >= 0)
        close(c->bell);
    if (c->halves)
        munmap(c->halves, c->cpu.half_bytes * (size_t)base->opts.ranks);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static sl_comm_sockets *new_comm(const sl_comm_opts *opts)
{
    sl_comm_sockets *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->cpu.base.opts = *opts;
    c->cpu.base.lost = -1;
    c->cpu.rounds = &rounds;
    for (int32_t q = 0; q < SL_COMM_RANKS_MAX; q++)
        c->link[q].fd[SL_COMM_DATA] = c->link[q].fd[SL_COMM_NOTICES] = -1;
    pthread_mutex_init(&c->lock, NULL);
    c->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c;
}

/* Once half_bytes is known. Pages that no round uses are never there. */
static sl_status make_halves(sl_comm_sockets *c, sl_err *err)
{
    size_t bytes = c->cpu.half_bytes * (size_t)c->cpu.base.opts.ranks;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: cannot map %zu bytes for the rounds: %s", bytes,
                       strerror(errno));
    c->halves = p;
    return SL_OK;
}

static sl_status sockets_found(sl_backend *be, const sl_comm_opts *opts, uint8_t *own, sl_comm **out,
                               sl_err *err)
{
    sl_comm_sockets *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    c->cpu.half_bytes = sl_comm_half_bytes(opts);
    st = make_halves(c, err);
    if (st == SL_OK)
        st = sl_comm_mesh_found(c, opts->sockets_at, own, err);
    if (st != SL_OK) {
        sockets_destroy(&c->cpu.base);
        return st;
    }
    *out = &c->cpu.base;
    return SL_OK;
}

static sl_status sockets_join(sl_backend *be, const sl_comm_opts *opts, const uint8_t *own,
                              const char *refusal, sl_comm **out, sl_err *err)
{
    sl_comm_sockets *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    st = sl_comm_mesh_join(c, own, refusal, err);
    if (st == SL_OK)
        st = make_halves(c, err);
    if (st != SL_OK) {
        sockets_destroy(&c->cpu.base);
        return st;
    }
    *out = &c->cpu.base;
    return SL_OK;
}

static sl_status sockets_form(sl_comm *c, sl_err *err)
{
    return sl_comm_mesh_form(of(c), err);
}

static void sockets_abort(sl_comm *c)
{
    sl_comm_sockets_break(of(c), SL_ERR_CANCELLED, -1, "aborted by rank %d", c->opts.rank);
}

static sl_status sockets_state(sl_comm *c, sl_err *err)
{
    for (int32_t q = 0; q < c->opts.ranks; q++)
        sl_comm_notes_read(of(c), q);
    return sl_comm_sockets_broken(of(c), err);
}

const sl_comm_desc sl_comm_over_sockets = {
    .name = "sockets",
    .found = sockets_found,
    .join = sockets_join,
    .form = sockets_form,
    .destroy = sockets_destroy,
    .abort = sockets_abort,
    .state = sockets_state,
    .barrier = sl_comm_cpu_barrier,
    .all_gather = sl_comm_cpu_all_gather,
    .broadcast = sl_comm_cpu_broadcast,
    .all_to_all = sl_comm_cpu_all_to_all,
    .library = sl_comm_cpu_library,
};
