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

/* What workers count: made here, in the prefix tree, restored to a sequence, found damaged when that was tried. */
typedef enum {
    SL_SNAPSHOT_MADE,
    SL_SNAPSHOT_KEPT,
    SL_SNAPSHOT_RESTORED,
    SL_SNAPSHOT_DAMAGED,
    SL_SNAPSHOT_EVENTS
} sl_snapshot_event;
extern const char *const sl_snapshot_event_names[SL_SNAPSHOT_EVENTS];

/* Pages of one snapshot; 0: no layer keeps a state. */
int32_t sl_snapshot_pages(const sl_geometry *g);

/*
 * Where the snapshots of a request are in the list of pages that a decode worker reserves for it (RESERVED, PREFILL):
 *
 *     | pages of the tokens | end: after all tokens | kept: after the last full page | prefix: after the matched pages |
 *
 * The writer fills the first three; `end` is where the decode worker continues, and is free after that. `kept` enters the prefix
 * tree with the page that it follows. `prefix` is what the tree has, for the writer to read. Both sides derive this from the
 * same three numbers, so it is not in the messages, and without states the list is that of the tokens.
 */
typedef struct sl_snapshot_places {
    int32_t pages;             /* of the tokens */
    int32_t end, kept, prefix; /* index of the first page; -1: there is none */
    int32_t kept_tokens;       /* after which `kept` is made */
    int32_t written;           /* pages [matched, written) are the writer's */
    int32_t n;                 /* pages in all */
} sl_snapshot_places;

/* snapshot: sl_snapshot_pages(). matched: full pages, which leave at least one token to compute. */
sl_snapshot_places sl_snapshot_place(int32_t snapshot, int32_t n_tokens, int32_t matched);
/* The most pages that a request of n_tokens tokens has in such a list. */
static inline int64_t sl_snapshot_most_pages(int32_t snapshot, int64_t n_tokens)
{
    return (n_tokens + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS + 3 * (int64_t)snapshot;
}
/* Pages between two snapshots of one request that stay: they take half as much memory as the pages between them. */
static inline int32_t sl_snapshot_distance(int32_t snapshot)
{
    return 2 * snapshot;
}
/* Pages between two snapshots that are made while a request decodes, of which the next one takes the place of most: what is copied is at
 * most eight times what the step writes of rows. */
static inline int32_t sl_snapshot_pace(int32_t snapshot)
{
    return (snapshot + 7) / 8;
}
/*
 * The next position, greater than pos, at which a prompt of n_tokens tokens gets a snapshot, so that a chunk ends there: at its end,
 * after its last full page that leaves a token to compute, and before that at distances at which snapshots take half as much
 * memory as the pages between them. snapshot 0: the end.
 */
int32_t sl_snapshot_stop(int32_t snapshot, int32_t n_tokens, int32_t pos);

/* Names the first n tokens of a request with this seed; n need not be whole pages. */
sl_key sl_snapshot_key(sl_key seed, const int32_t *tokens, int32_t n);
/* The key of the last page of a snapshot of n pages after the page with this key: where that is, the snapshot is whole. */
sl_key sl_snapshot_page_key(sl_key key, int32_t n);
/* Whether these are the tokens of a page of a snapshot. */
static inline bool sl_snapshot_has(const int32_t *tokens)
{
    return tokens[0] < 0;
}
/* The tokens under which a snapshot of n pages is kept: out[n * 64], none of which a text can have. */
void sl_snapshot_tokens(int32_t n, int32_t *out);

/*
 * The most tokens, whole pages and less than n, after which the tree has a snapshot of a request that begins with tokens[n];
 * 0: there is none, or no layer keeps a state.
 */
int32_t sl_snapshot_find(const sl_store *s, const sl_geometry *g, sl_key seed, const int32_t *tokens,
                         int32_t n);

/* ---- leases of snapshots. Owner of the store ---- */

/* Pins the pages of the first n tokens, whole pages, and the snapshot after them, which are the last ones of the lease.
 * SL_ERR_NOT_FOUND: the tree does not have all of them. SL_ERR_NO_MEMORY. */
sl_status sl_snapshot_lease(sl_store *s, int32_t snapshot, uint64_t tenant, sl_key seed,
                            const int32_t *tokens, int32_t n, sl_lease **out);
/* Pages for one snapshot, which no other lease has. SL_ERR_EXHAUSTED, SL_ERR_NO_MEMORY. */
sl_status sl_snapshot_room(sl_store *s, int32_t snapshot, uint64_t tenant, sl_key seed, sl_lease **out);
/*
 * The snapshot in the pages of l, of sl_snapshot_room(), is that after the first n tokens, whole pages, which `of` has published:
 * it enters the tree. Ends l, of which nothing is pinned any more. Without memory, or when these pages have left the tree, the
 * snapshot is given up, which is false.
 */
bool sl_snapshot_publish(sl_lease *l, const sl_lease *of, const int32_t *tokens, int32_t n);

/* Byte `at` of the snapshot in these pages of the arena, counted from the beginning of the record; returns how many bytes
 * follow there without a gap. */
int64_t sl_snapshot_run(const sl_arena *a, const int32_t *pages, int64_t at, uint8_t **out);
/* The states are in the pages: writes the record, and zeros to the end of the last page. */
void sl_snapshot_seal(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key);
/* Whether the pages hold the undamaged snapshot after these tokens. SL_ERR_CORRUPT with the reason: it may not be used. */
sl_status sl_snapshot_check(const sl_arena *a, const int32_t *pages, int32_t tokens, sl_key key, sl_err *err);

#endif
