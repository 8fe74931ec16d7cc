/*
 * Page keys: one 128-bit key for each full page of tokens. A key depends on the key of the page before it, so equal
 * keys mean equal tokens from the first token on. The first key depends on a seed, which says who may share pages: only
 * requests of one seed have keys in common. The router derives the seed from the model's fingerprint, the tenant and
 * the client's salt (kvstore/domain.h) and sends it with the request. Router and workers use these functions.
 */
#ifndef SL_KVSTORE_PAGE_KEY_H
#define SL_KVSTORE_PAGE_KEY_H

#include "base/hash.h"

/* Tokens of a page. The same number as SL_PAGE_TOKENS of kernels/params.h, which the router does not include. */
#define SL_KEY_PAGE_TOKENS 64

/* The key of a page of SL_KEY_PAGE_TOKENS tokens; prev is the key of the page before it, or the seed. */
sl_key sl_page_key(sl_key prev, const int32_t *tokens);
/* Keys of all full pages of tokens[0..n): writes n / 64 keys and returns their number. */
size_t sl_page_keys(sl_key seed, const int32_t *tokens, size_t n, sl_key *out);

#endif
