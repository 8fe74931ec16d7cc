/* The serving side of the conformance tests; see peer.h. */
#include "tests/unit/transport/peer.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

typedef struct server {
    sl_transport *tp;
    uint8_t *arena;
    sl_tp_mem *mem;
    bool quit;
} server;

/* An endless stream of puts to a client, a few in flight at a time, each from its own piece of the arena. */
enum { HAMMERS = 4 };

typedef struct hammer hammer;

typedef struct hammer_lane {
    hammer *h;
    uint8_t *source;
} hammer_lane;

struct hammer {
    server *s;
    sl_tp_ep *ep;
    sl_tp_rkey *rkey;
    uint64_t remote, bytes;
    uint8_t round;
    int pending;
    bool dead, gets;
    hammer_lane lanes[HAMMERS];
};

size_t blast_size(uint32_t index)
{
    static const size_t sizes[] = {0, 1, 17, 100, 5000, 9000, 70000, 300000, 8u << 20, 64, 3, 1u << 20};
    return sizes[index % SL_COUNT(sizes)];
}

void pattern_fill(void *p, size_t n, uint64_t seed)
{
    uint8_t *b = p;
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < n; i += 8) { /* whole words: byte by byte took a third of the time under TSan */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        if (n - i >= 8)
            memcpy(b + i, &x, 8);
        else
            memcpy(b + i, &x, n - i);
    }
}

bool pattern_check(const void *p, size_t n, uint64_t seed)
{
    uint8_t *want = malloc(n + 1);
    SL_CHECK(want != NULL, "no memory");
    pattern_fill(want, n, seed);
    bool same = n == 0 || memcmp(p, want, n) == 0;
    free(want);
    return same;
}

static void free_payload(void *cookie, sl_status st)
{
    (void)st;
    free(cookie);
}

static void *copy_of(const void *p, size_t n)
{
    void *c = malloc(n + 1);
    SL_CHECK(c != NULL, "no memory");
    if (n)
        memcpy(c, p, n);
    return c;
}

static void reply(sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, void *owned, size_t n)
{
    if (sl_tp_send(ep, id, header, hn, owned, n, owned ? free_payload : NULL, owned) != SL_OK)
        free(owned);
}

static void reply_value(sl_tp_ep *ep, uint32_t tag, uint64_t value)
{
    peer_command r = {.tag = tag, .a = value};
    reply(ep, AM_VALUE, &r, sizeof r, NULL, 0);
}

static void reply_key(server *s, sl_tp_ep *ep)
{
    uint8_t *buf = malloc(SL_TP_RKEY_MAX);
    size_t n = 0;
    peer_key k = {.base = (uintptr_t)s->arena, .bytes = PEER_ARENA};
    SL_CHECK(buf && sl_tp_rkey_pack(s->mem, buf, SL_TP_RKEY_MAX, &n) == SL_OK, "key");
    reply(ep, AM_KEY, &k, sizeof k, buf, n);
}

static void blast(sl_tp_ep *ep, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t size = blast_size(i);
        void *p = malloc(size + 1);
        SL_CHECK(p != NULL, "no memory");
        pattern_fill(p, size, i);
        reply(ep, AM_BLAST, &i, sizeof i, p, size);
    }
}

static void hammer_more(hammer_lane *lane);

static void hammered(void *cookie, sl_status st)
{
    hammer_lane *lane = cookie;
    hammer *h = lane->h;
    h->pending--;
    if (st != SL_OK)
        h->dead = true;
    if (!h->dead)
        hammer_more(lane);
    if (h->dead && h->pending == 0) {
        sl_tp_rkey_release(h->rkey);
        free(h);
    }
}

static void hammer_more(hammer_lane *lane)
{
    hammer *h = lane->h;
    h->round = h->round == 255 ? 1 : h->round + 1;
    memset(lane->source, h->round, h->bytes);
    sl_status st =
        h->gets ? sl_tp_get(h->ep, lane->source, h->s->mem, h->bytes, h->remote, h->rkey, hammered, lane)
                : sl_tp_put(h->ep, lane->source, h->s->mem, h->bytes, h->remote, h->rkey, hammered, lane);
    if (st == SL_OK)
        h->pending++;
    else
        h->dead = true;
}

static void hammer_start(server *s, sl_tp_ep *ep, const peer_command *c, const void *key, size_t n)
{
    hammer *h = calloc(1, sizeof *h);
    sl_err err = {0};
    SL_CHECK(h != NULL, "no memory");
    *h = (hammer){.s = s, .ep = ep, .remote = c->a, .bytes = c->b, .gets = c->c != 0};
    SL_CHECK(sl_tp_rkey_unpack(ep, key, n, &h->rkey, &err) == SL_OK, "%s", err.text);
    for (int i = 0; i < HAMMERS; i++) {
        h->lanes[i] = (hammer_lane){.h = h, .source = s->arena + (size_t)i * h->bytes};
        hammer_more(&h->lanes[i]);
    }
}

static void on_command(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                       const void *data, size_t bytes)
{
    server *s = arg;
    peer_command c;
    (void)id;
    SL_CHECK(header_bytes == sizeof c, "command");
    memcpy(&c, header, sizeof c);
    switch ((peer_verb)c.verb) {
    case DO_ECHO:
        reply(ep, AM_ECHO, &c, sizeof c, copy_of(data, bytes), bytes);
        break;
    case DO_KEY:
        reply_key(s, ep);
        break;
    case DO_CRC:
        reply_value(ep, c.tag, sl_crc32c(0, s->arena + c.a, c.b));
        break;
    case DO_FILL:
        pattern_fill(s->arena + c.a, c.b, c.c);
        reply_value(ep, c.tag, 0);
        break;
    case DO_BLAST:
        blast(ep, (uint32_t)c.a);
        break;
    case DO_HAMMER:
        hammer_start(s, ep, &c, data, bytes);
        break;
    case DO_SLEEP:
        usleep((useconds_t)(c.a * 1000));
        break;
    case DO_CLOSE:
        sl_tp_close(ep, (sl_tp_close_mode)c.a);
        break;
    case DO_QUIT:
        s->quit = true;
        break;
    }
}

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    (void)arg;
    (void)ep;
    (void)peer;
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)arg;
    (void)st;
    (void)why;
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void serve_loop(server *s, const atomic_bool *stop)
{
    while (!s->quit && !(stop && atomic_load(stop))) {
        if (sl_tp_progress(s->tp) > 0 || sl_tp_arm(s->tp) != SL_OK)
            continue;
        struct pollfd p = {.fd = sl_tp_event_fd(s->tp), .events = POLLIN};
        poll(&p, 1, 500);
    }
}

int peer_serve(const char *transport, const sl_tp_options *base,
               void (*ready)(void *arg, const char *address), void *arg,
               void (*made)(void *arg, sl_transport *tp), const atomic_bool *stop)
{
    server s = {.arena = calloc(1, PEER_ARENA)};
    sl_tp_options o = *base;
    sl_err err = {0};
    char address[SL_TP_ADDRESS_MAX];
    o.events = (sl_tp_events){.arg = &s, .accepted = on_accepted, .failed = on_failed};
    sl_status st = s.arena ? sl_transport_create(transport, &o, &s.tp, &err) : SL_ERR_NO_MEMORY;
    if (st == SL_OK)
        st = sl_tp_mem_register(s.tp, s.arena, PEER_ARENA, SL_TP_HOST, SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE,
                                &s.mem, &err);
    if (st == SL_OK)
        st = sl_tp_handle(s.tp, AM_COMMAND, on_command, &s);
    if (st == SL_OK)
        st = sl_tp_listen(s.tp, "127.0.0.1", 0, address, sizeof address, &err);
    if (st == SL_OK) {
        if (made)
            made(arg, s.tp);
        ready(arg, address);
        serve_loop(&s, stop);
    } else {
        fprintf(stderr, "peer: %s: %s\n", sl_status_name(st), err.text);
    }
    sl_tp_destroy(s.tp);
    free(s.arena);
    return st == SL_OK ? 0 : 1;
}
