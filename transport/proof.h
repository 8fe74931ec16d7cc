/*
 * Proofs that a process knows the cluster's secret: HMAC-SHA256 over data of both sides, so that the secret itself is
 * never sent and a proof cannot be used for another connection. ucx/door.c and ucx/endpoint.c describe which side
 * proves what. Any thread.
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
/* Compares in a time that does not depend on the position of a difference. */
bool sl_proof_equal(const uint8_t a[SL_PROOF_BYTES], const uint8_t b[SL_PROOF_BYTES]);
/* Writes unpredictable bytes, which are different in every call. */
void sl_proof_nonce(uint8_t out[SL_PROOF_BYTES]);

#endif
