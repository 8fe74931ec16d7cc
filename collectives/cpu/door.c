/*
 * Connections that come to this rank while a group forms: who is a rank, and who is turned away. See mesh.h.
 *
 * A connection that brings anything but a hello of this group is closed and logged. One that brings nothing stays until
 * the group has formed, and the oldest goes when there are too many, so it delays no rank.
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "collectives/cpu/mesh.h"

static void turn_away(sl_comm_guest *g, const char *why)
{
    sl_log(SL_LOG_WARN, "comm", "stranger", "peer=%s reason=\"%s\"", g->host, why);
    sl_comm_shut(&g->fd);
}

static void tell_roll(sl_comm_sockets *c)
{
    sl_comm_note note = {.kind = SL_COMM_NOTE_ROLL, .joined = 1};

    for (int32_t q = 1; q < c->cpu.base.opts.ranks; q++)
        note.joined |= sl_comm_connected(c, q) ? 1ull << q : 0;
    c->joined = note.joined;
    sl_comm_note_all(c, &note);
}

static void welcome(sl_comm_sockets *c, sl_comm_guest *g)
{
    const sl_comm_hello *h = &g->hello;
    sl_comm_link *l = &c->link[h->from];
    bool first = l->fd[SL_COMM_DATA] < 0 && l->fd[SL_COMM_NOTICES] < 0;
    sl_comm_hello answer = {.kind = SL_COMM_WELCOME, .wire = h->wire, .to = h->from};

    if (l->fd[h->wire] >= 0 || (!first && l->instance != h->instance)) {
        answer.kind = SL_COMM_TAKEN;
        snprintf(answer.text, sizeof answer.text, "rank %d is taken by another process, at %s", h->from,
                 l->host);
        (void)sl_comm_say(c, g->fd, answer);
        turn_away(g, answer.text);
        return;
    }
    sl_comm_prepare(g->fd, h->wire);
    if (!sl_comm_say(c, g->fd, answer)) {
        turn_away(g, "its connection ended with its hello");
        return;
    }
    l->instance = h->instance;
    l->port = h->port & 0xffff;
    memcpy(l->host, g->host, sizeof l->host);
    sl_comm_take(c, h->from, h->wire, g->fd);
    g->fd = -1;
    if (sl_comm_sockets_rank(c) == 0 && sl_comm_connected(c, h->from))
        tell_roll(c);
}

/* A rank does not fit. The others learn it when all have come, as over shared memory; one that is too many, at once. */
static void refused(sl_comm_sockets *c, const sl_comm_hello *h)
{
    if (h->from > 0 && h->from < c->cpu.base.opts.ranks) {
        c->mesh->refused |= 1ull << h->from;
        snprintf(c->mesh->why, sizeof c->mesh->why, "%s", h->text);
    } else {
        sl_comm_sockets_break(c, SL_ERR_REFUSED, -1, "%s", h->text);
    }
}

static void hear(sl_comm_sockets *c, sl_comm_guest *g)
{
    const sl_comm_hello *h = &g->hello;

    if (!sl_comm_genuine(c, &g->hello)) {
        turn_away(g, "what it sent is no hello of this group");
    } else if (h->kind == SL_COMM_REFUSAL && sl_comm_sockets_rank(c) == 0) {
        refused(c, h);
        sl_comm_shut(&g->fd);
    } else if (h->kind == SL_COMM_HELLO && h->from > sl_comm_sockets_rank(c) &&
               h->from < c->cpu.base.opts.ranks) {
        welcome(c, g);
    } else {
        turn_away(g, "it is no rank that connects with this one");
    }
}

static void read_guests(sl_comm_sockets *c)
{
    for (int i = 0; i < SL_COMM_GUESTS; i++) {
        sl_comm_guest *g = &c->mesh->guest[i];

        if (g->fd < 0)
            continue;
        if (!sl_comm_read(g->fd, &g->hello, sizeof g->hello, &g->got))
            turn_away(g, "it left without a hello");
        else if (g->got == sizeof g->hello)
            hear(c, g);
    }
}

/* The place of a new guest. If there is none, what the others have sent is read first. */
static sl_comm_guest *place_for(sl_comm_sockets *c)
{
    sl_comm_mesh *m = c->mesh;
    sl_comm_guest *g = &m->guest[0];

    for (int look = 0; look < 2; look++) {
        g = &m->guest[0];
        for (int i = 0; i < SL_COMM_GUESTS && g->fd >= 0; i++)
            if (m->guest[i].fd < 0 || m->guest[i].number < g->number)
                g = &m->guest[i];
        if (g->fd < 0)
            return g;
        if (look == 0)
            read_guests(c);
    }
    turn_away(g, "too many connections have sent no hello");
    return g;
}

static void accept_guests(sl_comm_sockets *c)
{
    sl_comm_mesh *m = c->mesh;

    for (;;) {
        struct sockaddr_storage a;
        socklen_t len = sizeof a;
        int fd = accept4(m->listener, (struct sockaddr *)&a, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
        sl_comm_guest *g;

        if (fd < 0)
            return;
        g = place_for(c);
        *g = (sl_comm_guest){.fd = fd, .number = ++m->guests};
        if (getnameinfo((struct sockaddr *)&a, len, g->host, sizeof g->host, NULL, 0, NI_NUMERICHOST) != 0)
            snprintf(g->host, sizeof g->host, "unknown");
    }
}

void sl_comm_door_turn(sl_comm_sockets *c)
{
    accept_guests(c);
    read_guests(c);
}
