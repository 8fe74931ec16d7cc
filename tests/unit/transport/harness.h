/*
 * What the conformance tests share: the variants under test, starting and stopping a peer, and a client that
 * collects what its transport tells it.
 */
#ifndef TESTS_UNIT_TRANSPORT_HARNESS_H
#define TESTS_UNIT_TRANSPORT_HARNESS_H

#include <check.h>
#include <pthread.h>
#include <sys/types.h>

#include "tests/unit/transport/peer.h"

typedef struct variant {
    const char *name, *transport, *tls;
    bool process; /* the peer is another process */
} variant;

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
    sl_transport *tp; /* of a thread peer, for sl_loopback_kill */
} peer;

typedef struct client {
    sl_transport *tp;
    sl_tp_ep *ep; /* the latest connected */
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
/* As SIGKILL for a process; sl_loopback_kill for a loopback thread. */
void peer_kill(peer *p);
/* After DO_QUIT was sent, or after peer_kill. */
void peer_join(peer *p);

void client_open(client *c, const variant *v);
void client_open_with(client *c, const variant *v, sl_tp_options o);
/* Connects and waits until it is up. */
void client_connect(client *c, const peer *p);
void client_send(client *c, peer_command cmd, const void *data, size_t n);
uint64_t client_ask(client *c, peer_command cmd);
/* Fetches the arena's key. */
sl_tp_rkey *client_key(client *c);
void client_close(client *c);
/* Tells the peer to quit, closes everything, joins. */
void client_finish(client *c, peer *p);
/* For completions: counts into the client. */
void client_done(void *cookie, sl_status st);
/* Progress, sleeping in between, until *counter >= want; fails the test after ms. */
bool client_wait(client *c, const int *counter, int want, int ms);
void client_run(client *c, int ms);

bool variant_is_loopback(const variant *v);
/* Runs the tests, each within 120 s, as a suite of that name; what main returns. */
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
/* Posts one put, running progress while the transport says it is full. */
void putter_put(putter *t, size_t from, size_t n, uint64_t to);

#endif
