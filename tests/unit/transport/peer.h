/*
 * The other side of the conformance tests: a small server that does what messages tell it to do. It runs in a thread
 * (any transport) or as a process of its own (transport_peer), so that it can be killed.
 */
#ifndef TESTS_UNIT_TRANSPORT_PEER_H
#define TESTS_UNIT_TRANSPORT_PEER_H

#include <stdatomic.h>

#include "transport/transport.h"

enum { PEER_ARENA = 64 << 20 };

/* Message ids: a command, and its answers. */
enum { AM_COMMAND = 1, AM_ECHO = 2, AM_KEY = 3, AM_VALUE = 4, AM_BLAST = 5 };

typedef enum {
    DO_ECHO,  /* AM_ECHO with the same header and payload */
    DO_KEY,   /* AM_KEY: header peer_key, payload the packed key of the arena */
    DO_CRC,   /* AM_VALUE: CRC32C of arena[a, a+b) */
    DO_FILL,  /* fills arena[a, a+b) from seed c; AM_VALUE 0 */
    DO_BLAST, /* sends `a` messages AM_BLAST with the sizes of blast_size(); header: index, payload: pattern */
    DO_HAMMER, /* payload is our key: puts b bytes to address a without end, first byte counting up; c: gets */
    DO_SLEEP,  /* runs no progress for a milliseconds */
    DO_CLOSE,  /* closes this endpoint: a = sl_tp_close_mode */
    DO_QUIT,
} peer_verb;

typedef struct peer_command {
    uint32_t verb, tag;
    uint64_t a, b, c;
} peer_command;

typedef struct peer_key {
    uint64_t base, bytes;
} peer_key;

/* Serves until DO_QUIT, or until *stop (may be NULL) is set, which it checks at least once per second; passes its
 * address to ready(). Returns 0, or 1 with a line on stderr. */
int peer_serve(const char *transport, const sl_tp_options *base,
               void (*ready)(void *arg, const char *address), void *arg,
               void (*made)(void *arg, sl_transport *tp), const atomic_bool *stop);

/* Size of blast message `index`: from empty to large, so that eager and rendezvous alternate. */
size_t blast_size(uint32_t index);
/* Deterministic bytes. */
void pattern_fill(void *p, size_t n, uint64_t seed);
bool pattern_check(const void *p, size_t n, uint64_t seed);

#endif
