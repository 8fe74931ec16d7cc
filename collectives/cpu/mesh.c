/*
 * How ranks on several hosts become a group: the connections of sockets.h.
 *
 *   rank 0     listens at the address of its host that sl_comm_found() was given; the invitation names it
 *   rank r     listens at the address of its host from which it reaches rank 0, and connects with rank 0
 *   rank 0     sends ROLL, who has joined, and when all have, ADDRESS of every rank
 *   rank r     connects with the ranks 1 .. r - 1, accepts those above, and sends READY to rank 0
 *   rank 0     sends GO when all are ready, so no rank uses the group before every rank has all its connections
 *
 * Who connects sends a hello and gets an answer (dial.c, door.c). Nothing listens once the group is formed. One thread
 * does all this without blocking; it looks at every connection whenever any has news, because a group forms seldom.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "collectives/cpu/mesh.h"

/* `own` of the invitation. */
typedef struct invitation {
    sl_key secret;
    uint64_t half_bytes;
    uint32_t port;
    int32_t family;
    char host[SL_COMM_HOST_MAX];
} invitation;
_Static_assert(sizeof(invitation) <= SL_COMM_OWN_BYTES, "an invitation must fit");
_Static_assert(SL_COMM_RANKS_MAX <= 64, "a rank is a bit of sl_comm_note.joined");

/* ---- found and join ---- */

static sl_comm_mesh *new_mesh(void)
{
    sl_comm_mesh *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->listener = -1;
    m->family = AF_UNSPEC;
    m->instance = sl_random_u64();
    for (int i = 0; i < SL_COMM_GUESTS; i++)
        m->guest[i].fd = -1;
    for (int32_t q = 0; q < SL_COMM_RANKS_MAX; q++)
        m->dial[q][SL_COMM_DATA].fd = m->dial[q][SL_COMM_NOTICES].fd = -1;
    return m;
}

void sl_comm_mesh_free(sl_comm_mesh *m)
{
    if (!m)
        return;
    sl_comm_shut(&m->listener);
    for (int i = 0; i < SL_COMM_GUESTS; i++)
        sl_comm_shut(&m->guest[i].fd);
    for (int32_t q = 0; q < SL_COMM_RANKS_MAX; q++)
        for (int w = 0; w < SL_COMM_WIRES; w++)
            sl_comm_shut(&m->dial[q][w].fd);
    free(m);
}

sl_status sl_comm_mesh_found(sl_comm_sockets *c, const char *host, uint8_t *own, sl_err *err)
{
    invitation v = {.secret = {sl_random_u64(), sl_random_u64()}, .half_bytes = c->cpu.half_bytes};
    struct sockaddr_storage a;
    socklen_t len;

    if (strlen(host) >= sizeof v.host)
        return sl_fail(err, SL_ERR_INVALID, "comm: the address %.40s... of rank 0 is too long", host);
    c->mesh = new_mesh();
    if (!c->mesh || c->bell < 0)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory or no descriptors");
    SL_TRY(sl_comm_resolve(host, AF_UNSPEC, &a, &len, err));
    SL_TRY(sl_comm_listen(c->mesh, a, len, host, err));
    c->secret = v.secret;
    c->joined = 1;
    v.port = c->mesh->port;
    v.family = c->mesh->family;
    snprintf(v.host, sizeof v.host, "%s", host);
    memcpy(own, &v, sizeof v);
    return SL_OK;
}

/* Tells rank 0 why this rank does not join. */
static sl_status send_refusal(sl_comm_sockets *c)
{
    sl_comm_dial *d = &c->mesh->dial[0][SL_COMM_NOTICES];
    struct pollfd p = {.events = POLLOUT};

    sl_comm_dial_begin(c, 0, SL_COMM_NOTICES);
    p.fd = d->fd;
    if (!atomic_load(&c->broken) && poll(&p, 1, (int)c->cpu.base.opts.deadline_ms) > 0)
        sl_comm_dial_ask(c, 0, SL_COMM_NOTICES);
    return SL_ERR_REFUSED;
}

sl_status sl_comm_mesh_join(sl_comm_sockets *c, const uint8_t *own, const char *refusal, sl_err *err)
{
    invitation v;
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof a;
    sl_comm_mesh *m = c->mesh = new_mesh();

    memcpy(&v, own, sizeof v);
    if (!m || c->bell < 0)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory or no descriptors");
    c->secret = v.secret;
    c->cpu.half_bytes = v.half_bytes;
    c->link[0].port = v.port & 0xffff;
    snprintf(c->link[0].host, sizeof c->link[0].host, "%.*s", (int)sizeof v.host - 1, v.host);
    m->family = v.family;
    m->refusal = refusal;
    if (refusal)
        return send_refusal(c);
    sl_comm_dial_begin(c, 0, SL_COMM_DATA);
    SL_TRY(sl_comm_sockets_broken(c, err));
    /* At the address from which it reaches rank 0, where the others can reach it. */
    if (getsockname(m->dial[0][SL_COMM_DATA].fd, (struct sockaddr *)&a, &len) != 0)
        return sl_fail(err, SL_ERR_IO, "comm: the address of this rank: %s", strerror(errno));
    SL_TRY(sl_comm_listen(m, a, len, "the address of this rank", err));
    sl_comm_dial_turn(c);
    return sl_comm_sockets_broken(c, err);
}

/* ---- form ---- */

static bool absent(const sl_comm_sockets *c, int32_t q)
{
    return !(c->joined >> q & 1);
}

static bool apart(const sl_comm_sockets *c, int32_t q)
{
    return !sl_comm_connected(c, q);
}

static bool unready(const sl_comm_sockets *c, int32_t q)
{
    return !c->link[q].ready;
}

static void late(sl_comm_sockets *c)
{
    uint32_t ms = c->cpu.base.opts.deadline_ms;
    int32_t rank = sl_comm_sockets_rank(c), first;
    char names[160];

    if (!sl_comm_connected(c, 0)) {
        sl_comm_sockets_break(c, SL_ERR_TIMEOUT, 0, "%s did not answer within %u ms, says rank %d",
                              sl_comm_name(c, 0).text, ms, rank);
        return;
    }
    if (c->mesh->refused) {
        sl_comm_sockets_break(c, SL_ERR_REFUSED, -1, "%s", c->mesh->why);
        return;
    }
    first = sl_comm_names(c, absent, names, sizeof names);
    if (first >= 0) {
        sl_comm_sockets_break(c, SL_ERR_TIMEOUT, first, "%s has not joined within %u ms, says rank %d", names,
                              ms, rank);
        return;
    }
    first = sl_comm_names(c, rank == 0 ? unready : apart, names, sizeof names);
    sl_comm_sockets_break(c, SL_ERR_TIMEOUT, first, "%s was not connected with %s within %u ms", names,
                          rank == 0 ? "every other rank" : sl_comm_name(c, rank).text, ms);
}

static void tell_addresses(sl_comm_sockets *c)
{
    for (int32_t q = 1; q < c->cpu.base.opts.ranks; q++) {
        sl_comm_note note = {.kind = SL_COMM_NOTE_ADDRESS, .rank = q, .port = c->link[q].port};

        snprintf(note.text, sizeof note.text, "%s", c->link[q].host);
        sl_comm_note_all(c, &note);
    }
}

/* A rank that is lost before it is ready. The others are told by rank 0. */
static void check_lost(sl_comm_sockets *c)
{
    bool zero = sl_comm_sockets_rank(c) == 0;

    for (int32_t q = 0; q < (zero ? c->cpu.base.opts.ranks : 1); q++) {
        const sl_comm_link *l = &c->link[q];

        if (l->notices_ended && !(zero && l->ready))
            sl_comm_sockets_break(c, SL_ERR_PEER, q,
                                  l->left ? "%s has left the group" : "%s was lost: its process has ended",
                                  sl_comm_name(c, q).text);
    }
}

/* Rank 0: all ranks have come, but some do not fit. */
static void check_refused(sl_comm_sockets *c)
{
    uint64_t come = c->joined | c->mesh->refused;

    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
        if (!(come >> q & 1))
            return;
    if (c->mesh->refused)
        sl_comm_sockets_break(c, SL_ERR_REFUSED, -1, "%s", c->mesh->why);
}

/* The steps after all connections of this rank stand. Whether the group is formed. */
static bool finish(sl_comm_sockets *c)
{
    bool zero = sl_comm_sockets_rank(c) == 0, first = !c->mesh->told;

    c->mesh->told = true;
    if (first && zero)
        tell_addresses(c);
    else if (first)
        sl_comm_note_send(c, 0, &(sl_comm_note){.kind = SL_COMM_NOTE_READY});
    if (!zero) /* a rank that was faster may have broken the group since: the first collective tells */
        return c->go || atomic_load(&c->broken);
    for (int32_t q = 1; q < c->cpu.base.opts.ranks; q++)
        if (!c->link[q].ready)
            return false;
    sl_comm_note_all(c, &(sl_comm_note){.kind = SL_COMM_NOTE_GO});
    return true;
}

/* Everything that can be done now. Whether the group is formed. */
static bool turn(sl_comm_sockets *c)
{
    bool all = true;

    sl_comm_door_turn(c);
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
        sl_comm_notes_read(c, q);
    sl_comm_dial_turn(c); /* addresses may have come */
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++)
        all = all && sl_comm_connected(c, q);
    if (all && finish(c))
        return true;
    check_lost(c);
    if (sl_comm_sockets_rank(c) == 0)
        check_refused(c);
    return false;
}

static void sleep_until_news(sl_comm_sockets *c, uint64_t end)
{
    const sl_comm_mesh *m = c->mesh;
    struct pollfd p[2 + SL_COMM_GUESTS + (SL_COMM_WIRES + 1) * SL_COMM_RANKS_MAX];
    nfds_t n = 0;
    uint64_t now = sl_now_ns();

    p[n++] = (struct pollfd){c->bell, POLLIN, 0};
    p[n++] = (struct pollfd){m->listener, POLLIN, 0};
    for (int i = 0; i < SL_COMM_GUESTS; i++)
        p[n++] = (struct pollfd){m->guest[i].fd, POLLIN, 0};
    for (int32_t q = 0; q < c->cpu.base.opts.ranks; q++) {
        const sl_comm_link *l = &c->link[q];

        p[n++] = (struct pollfd){l->notices_ended ? -1 : l->fd[SL_COMM_NOTICES], POLLIN, 0};
        for (int w = 0; w < SL_COMM_WIRES; w++)
            p[n++] = (struct pollfd){m->dial[q][w].fd, m->dial[q][w].asked ? POLLIN : POLLOUT, 0};
    }
    (void)poll(p, n, end > now ? (int)((end - now) / 1000000 + 1) : 0);
}

sl_status sl_comm_mesh_form(sl_comm_sockets *c, sl_err *err)
{
    uint64_t end = sl_now_ns() + c->cpu.base.opts.deadline_ms * 1000000ull;

    for (;;) {
        if (turn(c))
            break;
        SL_TRY(sl_comm_sockets_broken(c, err));
        if (sl_now_ns() > end)
            late(c);
        SL_TRY(sl_comm_sockets_broken(c, err));
        sleep_until_news(c, end);
    }
    sl_comm_mesh_free(c->mesh);
    c->mesh = NULL;
    return SL_OK;
}
