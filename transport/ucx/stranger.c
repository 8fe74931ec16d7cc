/*
 * UCX transport, strangers: connections at this process's door (door.c) that have not been admitted.
 *
 * A stranger gets no answer until it has sent a whole KNOCK. It occupies UX_DOOR_MAX bytes of memory and one
 * of UX_MAX_STRANGERS places until its first wrong byte, its deadline, or until UX_MAX_STRANGERS strangers
 * have arrived after it. Without a secret (sl_tp_options.secret) every program that speaks the protocol is admitted;
 * with one, only a caller that proves that it knows it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <sys/resource.h>

#include "base/log.h"
#include "transport/ucx/ucx_impl.h"

enum { LOG_EVERY_NS = 1000000000, ACCEPT_MAX = 64 /* callers per progress call */ };

void ux_stranger_refuse(ux_transport *tp, ux_knock *k, const char *cause)
{
    ux_door *d = &tp->door;
    uint64_t now = sl_now_ns();
    char peer[SL_TP_ADDRESS_MAX], bytes[2 * 16 + 1] = "";
    tp->stats.refused_connects++;
    if (k->got && now >= d->logged_ns + LOG_EVERY_NS) {
        for (size_t i = 0; i < k->got && i < 16; i++)
            snprintf(bytes + 2 * i, 3, "%02x", k->in[i]);
        sl_tp_address_text(&k->peer, peer, sizeof peer);
        sl_log(SL_LOG_WARN, "ucx", "turned_away", "peer=%s cause=\"%s\" began=%s total=%llu", peer, cause,
               bytes, (unsigned long long)tp->stats.refused_connects);
        d->logged_ns = now;
    }
    ux_knock_free(tp, k);
}

static bool say(ux_knock *k, const ux_door_msg *m)
{
    uint8_t out[UX_DOOR_MAX];
    size_t n = ux_door_write(m, out);
    if (send(k->fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n)
        return true;
    sl_log(SL_LOG_DEBUG, "ucx", "door", "cause=\"an answer could not be written\"");
    return false;
}

static void turn_away(ux_transport *tp, ux_knock *k, ux_door_status status, const char *text,
                      const char *cause)
{
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_ANSWER, .status = (uint16_t)status};
    snprintf(m.text, sizeof m.text, "%s", text);
    say(k, &m);
    ux_stranger_refuse(tp, k, cause);
}

/* The address of the door as the caller sees it, which the proofs cover. */
static bool door_address(const ux_knock *k, struct sockaddr_storage *door)
{
    socklen_t len = sizeof *door;
    memset(door, 0, sizeof *door);
    return getsockname(k->fd, (struct sockaddr *)door, &len) == 0;
}

static void challenge(ux_transport *tp, ux_knock *k)
{
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_CHALLENGE};
    sl_proof_nonce(k->door_nonce);
    memcpy(m.nonce, k->door_nonce, sizeof m.nonce);
    k->challenged = true;
    k->got = 0; /* the next message is the proof */
    if (!say(k, &m))
        ux_stranger_refuse(tp, k, "a challenge could not be written");
}

static void let_in(ux_transport *tp, ux_knock *k)
{
    ux_door_msg m = {
        .version = UX_DOOR_VERSION, .kind = UX_DOOR_ANSWER, .status = UX_DOOR_COME_IN, .port = tp->door.port};
    uint8_t session[SL_PROOF_BYTES] = {0};
    struct sockaddr_storage door;
    if (ux_has_secret(tp)) {
        if (!door_address(k, &door)) {
            ux_stranger_refuse(tp, k, "the address of the door is unknown");
            return;
        }
        ux_door_prove(tp, k, UX_PROOF_DOOR, &k->from, &door, m.proof);
        ux_door_prove(tp, k, UX_PROOF_SESSION, &k->from, &door, session);
    }
    if (ux_door_admit(tp, &k->from, session) != SL_OK) {
        turn_away(tp, k, UX_DOOR_BUSY, "too many are connecting to it", "too many connect at once");
        return;
    }
    say(k, &m);
    ux_knock_free(tp, k);
}

static void heard_knock(ux_transport *tp, ux_knock *k, const ux_door_msg *m)
{
    if (!m->port) {
        ux_stranger_refuse(tp, k, "a knock without a port");
    } else if (tp->destroying || !tp->opts.events.accepted) {
        turn_away(tp, k, UX_DOOR_NOBODY_IN, "it accepts no connections", "connections are not accepted");
    } else {
        k->from = k->peer;
        ux_set_port(&k->from, m->port);
        memcpy(k->caller_nonce, m->nonce, sizeof k->caller_nonce);
        if (ux_has_secret(tp))
            challenge(tp, k);
        else
            let_in(tp, k);
    }
}

static void heard_proof(ux_transport *tp, ux_knock *k, const ux_door_msg *m)
{
    uint8_t right[SL_PROOF_BYTES];
    struct sockaddr_storage door;
    if (door_address(k, &door)) {
        ux_door_prove(tp, k, UX_PROOF_CALLER, &k->from, &door, right);
        if (sl_proof_equal(right, m->proof)) {
            let_in(tp, k);
            return;
        }
    }
    turn_away(tp, k, UX_DOOR_NO_PROOF, "cluster.secret_file: another secret, or an address is translated",
              "a wrong proof of the cluster's secret");
}

/* Handles a complete message from a stranger. */
static void heard(ux_transport *tp, ux_knock *k, const ux_door_msg *m)
{
    if (m->version != UX_DOOR_VERSION && m->kind == UX_DOOR_KNOCK) {
        char text[64];
        snprintf(text, sizeof text, "the door speaks version %d, the caller %u", UX_DOOR_VERSION, m->version);
        turn_away(tp, k, UX_DOOR_OTHER_VERSION, text, "another version");
    } else if (m->version == UX_DOOR_VERSION && m->kind == UX_DOOR_KNOCK && !k->challenged) {
        heard_knock(tp, k, m);
    } else if (m->version == UX_DOOR_VERSION && m->kind == UX_DOOR_PROOF && k->challenged) {
        heard_proof(tp, k, m);
    } else {
        ux_stranger_refuse(tp, k, k->challenged ? "not a proof" : "not a knock");
    }
}

void ux_stranger_hear(ux_transport *tp, ux_knock *k)
{
    bool gone;
    ux_door_msg m;
    const char *why;
    if (!ux_knock_read(k, &gone)) {
        if (gone)
            ux_stranger_refuse(tp, k, "closed in the middle of the greeting");
        return;
    }
    ux_door_parsed parsed = ux_door_parse(k->in, k->got, &m, &why);
    if (parsed == UX_DOOR_WHOLE)
        heard(tp, k, &m);
    else if (parsed == UX_DOOR_FOREIGN)
        ux_stranger_refuse(tp, k, why);
}

static ux_knock *oldest_stranger(ux_door *d)
{
    ux_knock *k = d->last;
    while (k && k->ep)
        k = k->prev;
    return k;
}

/* No descriptor is free for a caller: closes that of the oldest stranger; if there is none, pauses accepting. */
static void out_of_descriptors(ux_transport *tp)
{
    ux_door *d = &tp->door;
    ux_knock *k = oldest_stranger(d);
    if (k) {
        ux_stranger_refuse(tp, k, "no descriptors are left");
        return;
    }
    ux_door_pause(tp);
    sl_log(SL_LOG_WARN, "ucx", "door", "cause=\"no descriptors are left for callers\"");
}

/* Of few descriptors a quarter: UCX ends a process in which it gets none. */
static unsigned most_strangers(void)
{
    struct rlimit files;
    const bool few = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < UX_MAX_STRANGERS;
    return few ? (unsigned)(files.rlim_cur / 4) : UX_MAX_STRANGERS;
}

int ux_stranger_accept(ux_transport *tp)
{
    ux_door *d = &tp->door;
    for (int n = 0; n < ACCEPT_MAX; n++) {
        struct sockaddr_storage peer = {0};
        socklen_t len = sizeof peer;
        int fd = accept4(d->listen_fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                out_of_descriptors(tp);
            return n;
        }
        if (d->strangers && d->strangers >= most_strangers())
            ux_stranger_refuse(tp, oldest_stranger(d), "too many strangers");
        ux_knock *k = ux_knock_new(tp, fd, NULL, EPOLLIN);
        if (!k) {
            close(fd);
            continue;
        }
        k->peer = peer;
        k->deadline_ns = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 1000000u;
        ux_deadline(tp, k->deadline_ns);
        ux_stranger_hear(tp, k); /* often the whole greeting has arrived already */
    }
    return ACCEPT_MAX;
}
