/*
 * Bodies with Content-Encoding: gzip (RFC 1952): one member or several, one directly after the other.
 *
 * They are inflated twice, the first time only to count: a body that inflates to more than the limit, is damaged, or ends early is
 * refused before memory is taken for it, whatever it says of its size.
 *
 * Threads: any; it takes long, so the caller is on the pool.
 */
#ifndef SL_ROUTER_HTTP_GUNZIP_H
#define SL_ROUTER_HTTP_GUNZIP_H

#include <stddef.h>

#include "base/guard.h"

/*
 * *out: what the n bytes inflate to, malloc'ed: *len bytes, and a zero byte after them. Of the guard it keeps *len + 1 bytes.
 * Errors, in which the guard holds what it held: INVALID (no gzip, a checksum or length that differs, an end that is missing, bytes
 * after the end), TOO_LARGE (more than `most` bytes, or than there ever is memory for), EXHAUSTED, NO_MEMORY, CANCELLED.
 */
sl_status sl_gunzip(const char *in, size_t n, size_t most, sl_guard *g, char **out, size_t *len, sl_err *err);

#endif
