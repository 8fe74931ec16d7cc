/*
 * Proofs that a process knows the cluster's secret: HMAC-SHA256 over data of both sides, so that the secret itself never
 * travels and a proof is of no use for another connection. Who proves what to whom is in ucx/door.c and ucx/endpoint.c.
 * Any thread.
 */
#ifndef SL_TRANSPORT_PROOF_H
#define SL_TRANSPORT_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SL_PROOF_BYTES = 32 };

/* out = HMAC-SHA256(secret, label, a zero byte, the n bytes of data). The label says what is proved. */
void sl_proof_make(const char *secret, const char *label, const void *data, size_t n,
                   uint8_t out[SL_PROOF_BYTES]);
/* In a time that does not depend on where they differ. */
bool sl_proof_equal(const uint8_t a[SL_PROOF_BYTES], const uint8_t b[SL_PROOF_BYTES]);
/* Unpredictable bytes, different every time. */
void sl_proof_nonce(uint8_t out[SL_PROOF_BYTES]);

#endif
