/*
 * Remote keys as bytes: the key of an implementation, wrapped with the address range that it covers and a
 * checksum. Pure functions, any thread. The bytes come from peers: unwrap checks lengths, overflow and
 * checksum; it cannot tell whether the key was issued.
 */
#ifndef SL_TRANSPORT_RKEY_H
#define SL_TRANSPORT_RKEY_H

#include "base/status.h"

typedef struct sl_tp_rkey_view {
    uint64_t base, bytes;
    const void *blob; /* points into the input */
    size_t blob_bytes;
} sl_tp_rkey_view;

/* Writes the wrapped key; *len receives its length. Errors: TOO_LARGE (more than cap), NO_MEMORY. */
sl_status sl_tp_rkey_wrap(uint64_t base, uint64_t bytes, const void *blob, size_t blob_bytes, void *buf,
                          size_t cap, size_t *len);
/* Reads a wrapped key; the result borrows from buf. Errors: CORRUPT. */
sl_status sl_tp_rkey_unwrap(const void *buf, size_t len, sl_tp_rkey_view *out, sl_err *err);

#endif
