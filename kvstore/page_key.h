/*
 * Page keys: one 128-bit key per full page of tokens, chained, so that equal keys mean equal tokens from the first on.
 * The chain starts from a seed, which says who may share pages: only requests of one seed have keys in common. The
 * router derives it from the model's fingerprint, the tenant and the client's salt (router/core/share.h) and sends it
 * with the request. Router and workers use this one function.
 */
#ifndef SL_KVSTORE_PAGE_KEY_H
#define SL_KVSTORE_PAGE_KEY_H

#include "base/hash.h"

/* Tokens of a page (the same number as SL_PAGE_TOKENS of kernels/params.h, which the router does not
 * include). */
#define SL_KEY_PAGE_TOKENS 64

/* Key of one page of SL_KEY_PAGE_TOKENS tokens after the page with key prev (the seed for the first). */
sl_key sl_page_key(sl_key prev, const int32_t *tokens);
/* Keys of all full pages of tokens[0..n): writes n / 64 keys and returns their number. */
size_t sl_page_keys(sl_key seed, const int32_t *tokens, size_t n, sl_key *out);

#endif
