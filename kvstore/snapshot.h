/*
 * Snapshots: the states of fixed size that some layers keep of a request (sl_layer_state of kernels/cache.h), as they are
 * after its first `tokens` tokens, in host memory.
 *
 * Rows of a prefix can be used by every request that begins with it; a state cannot be cut, so a request can continue only
 * where a snapshot was made: at the end of a prompt, where the worker that computed it hands it over, and at the end of
 * chosen full pages, for other requests. A prefix without a snapshot is computed again.
 *
 * A snapshot is a record of 64 bytes and the states of the layers, one after the other. It lies in pages of the arena, of
 * which all 64 tokens count, so everything that moves, checks, stores and counts pages does so with snapshots, whatever it
 * knows of them. In the prefix tree and in the tiers they continue the page after which the snapshot was made, with tokens
 * that no text has (sl_snapshot_tokens). So they are found by the same keys, pinned by the same leases, and evicted before
 * that page.
 *
 *     pages of a request:     | 0 .. 63 | 64 .. 127 | 128 .. 140 |
 *     chains of the tree:       K0 ------ K1 ------- (never published, not full)
 *                                 \          `------ S0 -- S1        snapshot after 128 tokens, of two pages
 *
 * The record has the number of tokens, a key that names them (sl_snapshot_key), and a checksum, so a snapshot of another
 * request or position, or a damaged one, is refused: a state is never restored in silence where it does not belong.
 *
 * Threads: pages that a call reads or writes belong to the caller; sl_snapshot_find() the owner of the store. Nothing is owned.
 */
#ifndef SL_KVSTORE_SNAPSHOT_H
#define SL_KVSTORE_SNAPSHOT_H

#include "kvstore/arena.h"
#include "kvstore/store.h"

enum { SL_SNAPSHOT_HEADER = 64 };

/* Pages of one snapshot; 0: no layer keeps a state. */
int32_t sl_snapshot_pages(const sl_geometry *g);
/* Names the first n tokens of a request with this seed; n need not be whole pages. */
sl_key sl_snapshot_key(sl_key seed, const int32_t *tokens, int32_t n);
/* The tokens under which a snapshot of n pages is kept: out[n * 64], none of which a text can have. */
void sl_snapshot_tokens(int32_t n, int32_t *out);

/*
 * The most tokens, whole pages and less than n, after which the tree has a snapshot of a request that begins with tokens[n];
 * 0: there is none, or no layer keeps a state.
 */
int32_t sl_snapshot_find(const sl_store *s, const sl_geometry *g, sl_key seed, const int32_t *tokens,
                         int32_t n);

/* Byte `at` of the snapshot in these pages of the arena, counted from the beginning of the record; returns how many bytes
 * follow there without a gap. */
int64_t sl_snapshot_run(const sl_arena *a, const int32_t *pages, int64_t at, uint8_t **out);
/* The states are in the pages: writes the record, and zeros to the end of the last page. */
void sl_snapshot_seal(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key);
/* Whether the pages hold the undamaged snapshot after these tokens. SL_ERR_CORRUPT with the reason: it may not be used. */
sl_status sl_snapshot_check(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key, sl_err *err);

#endif
