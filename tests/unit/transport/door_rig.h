/*
 * Shared by the tests of the door (test_door_messages, test_door_secret, test_door): a server that listens on loopback,
 * raw sockets for strangers, and a check that the server still admits an ordinary peer. The test creates the server
 * with door_open and frees it with client_close. Everything runs on the test's thread.
 */
#ifndef TESTS_UNIT_TRANSPORT_DOOR_RIG_H
#define TESTS_UNIT_TRANSPORT_DOOR_RIG_H

#include "tests/unit/transport/harness.h"
#include "transport/ucx/door_msg.h"
#include "transport/ucx/gate.h"

enum { DOOR_TIMEOUT_MS = 700 }; /* connect_timeout_ms of the servers */

extern const variant door_variant;
/* The secret of door_open and of the peer in door_serves; NULL: without one. A test that sets it sets it back to
 * NULL. */
extern const char *door_secret;
/* Whether a server of door_open encrypts messages; the peer of door_serves does not. */
extern bool door_encrypts;

/* Opens a server on 127.0.0.1; address gets SL_TP_ADDRESS_MAX bytes. */
void door_open(client *server, char *address);
uint16_t door_port(const char *address);
/* A socket connected to a port of this host, or -1 with errno; waits at most ms. */
int door_dial(uint16_t port, int ms);
/* Writes a greeting to buf, which holds UX_DOOR_MAX bytes; returns its length. */
size_t door_knock_sample(uint8_t *buf);
/* Runs progress for ms, and sleeps in between; at least once. */
void door_run(client *c, int ms);
/* Connections that the server has refused so far. */
uint64_t door_refused(const client *c);
/* Another instance, with the server's secret, connects to the server, is admitted, and disconnects. */
void door_serves(client *server, const char *address);
/*
 * Some kernels accept socket filters only from a process with CAP_NET_ADMIN; the transport then runs without gates, and
 * this returns false and prints the reason.
 */
bool door_filters_taken(void);
/* Every listening TCP port of this process, those of UCX included. */
ux_gate_ports door_listening(void);
/* Whether a listening port is one of UCX's: it is not the door's, and did not listen before the server was opened. */
bool door_port_is_ucx(uint16_t port, const ux_gate_ports *before, const char *address);

#endif
