/*
 * Shared by the conformance tests: the variants under test, starting and stopping a peer, and a client that counts the
 * events and completions of its transport.
 */
#ifndef TESTS_UNIT_TRANSPORT_HARNESS_H
#define TESTS_UNIT_TRANSPORT_HARNESS_H

#include <check.h>
#include <pthread.h>
#include <sys/types.h>

#include "tests/unit/transport/peer.h"

typedef struct variant {
    const char *name, *transport, *tls;
    bool process; /* the peer is a separate process */
    bool encrypt; /* messages are encrypted, with HARNESS_SECRET */
} variant;

#define HARNESS_SECRET "the secret of the conformance tests"

extern const variant variants[];
extern const int n_variants;

typedef struct peer {
    const variant *v;
    char address[SL_TP_ADDRESS_MAX];
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool up;
    atomic_bool stop;
    sl_transport *tp; /* of a peer in a thread, for sl_loopback_kill */
} peer;

typedef struct client {
    sl_transport *tp;
    sl_tp_ep *ep; /* the endpoint connected last */
    int connected, accepted, failed, closed;
    sl_status connect_status, fail_status;
    char why[160];
    /* answers */
    int echoes, keys, values, blasts;
    peer_command echo_header, value;
    uint8_t *echo;
    size_t echo_bytes;
    peer_key key;
    uint8_t key_bytes[SL_TP_RKEY_MAX];
    size_t key_len;
    bool blast_ok;
    /* completions */
    int done, done_ok;
    sl_status last_done;
    bool close_on_fail;
} client;

void peer_start(peer *p, const variant *v);
/* Kills the peer: SIGKILL for a process, sl_loopback_kill for a thread of loopback. */
void peer_kill(peer *p);
/* Waits for the peer's end, after DO_QUIT was sent or after peer_kill. */
void peer_join(peer *p);

void client_open(client *c, const variant *v);
void client_open_with(client *c, const variant *v, sl_tp_options o);
/* Connects and waits until the connection is established. */
void client_connect(client *c, const peer *p);
void client_send(client *c, peer_command cmd, const void *data, size_t n);
uint64_t client_ask(client *c, peer_command cmd);
/* Gets the key of the peer's arena. */
sl_tp_rkey *client_key(client *c);
void client_close(client *c);
/* Tells the peer to quit, closes everything, and waits for the peer's end. */
void client_finish(client *c, peer *p);
/* A completion callback that counts in the client. */
void client_done(void *cookie, sl_status st);
/* Runs progress, and sleeps in between, until *counter >= want; the test fails after ms. */
bool client_wait(client *c, const int *counter, int want, int ms);
void client_run(client *c, int ms);

bool variant_is_loopback(const variant *v);
/* Runs the tests as a suite of that name, each within 120 s; returns what main returns. */
int harness_run(const char *suite, TCase *tests);

/* Registered memory of the client, and the key of the peer's arena. */
typedef struct putter {
    client *c;
    sl_tp_rkey *rkey;
    sl_tp_mem *mem;
    uint8_t *buf;
    size_t bytes;
} putter;

void putter_open(putter *t, client *c, size_t bytes);
void putter_close(putter *t);
/* Posts one put; runs progress as long as the transport reports that it is full. */
void putter_put(putter *t, size_t from, size_t n, uint64_t to);

#endif
