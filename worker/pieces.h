/*
 * Pieces: computes the byte ranges that are copied when tokens [first, end) of one layer move from one arena to
 * another, whose layout may differ. It is pure arithmetic on two geometries, for puts (local to remote) and gets
 * (remote to local).
 *
 * Ranges that are adjacent on both sides are merged into one span: a whole page of a layer is one span if both arenas
 * are page_first, and consecutive pages are one span if both are layer_first. In device memory only ranges of one plane are.
 */
#ifndef SL_WORKER_PIECES_H
#define SL_WORKER_PIECES_H

#include "engine/device.h"

/* Both sides of a request: its page i is lpages[i] in the local arena and rpages[i] in the remote one. Borrowed. */
typedef struct sl_page_map {
    const sl_geometry *local, *remote; /* compatible */
    uint8_t *local_base;
    uint64_t remote_base;
    int64_t local_n, remote_n; /* numbers of pages of the arenas */
    const int32_t *lpages;
    const uint32_t *rpages;
    /* Tokens of the request; 0: the end of each range counts as the end of the request. The metadata of the last unit,
     * which is not full, moves with the range that ends there (sl_unit_walk). */
    int32_t n_tokens;
    /* When dev is set, the local side is device memory, dev[layer], with these pages instead of lpages; but for planes that
     * exist in host pages only (sl_cache_plane.host_only), which are read from the arena as without dev. */
    const sl_device_layer *dev;
    const int32_t *dev_rows, *dev_index;
} sl_page_map;

typedef struct sl_span {
    uint8_t *local;
    uint64_t remote;
    int64_t bytes;
    bool device; /* local is device memory */
    /* With `device`: of this plane's pool. Pools are allocations of their own, which no copy may reach across. */
    int32_t plane;
} sl_span;

typedef struct sl_pieces {
    const sl_page_map *map;
    sl_host_plane local[SL_CACHE_PLANES];
    sl_host_plane remote[SL_CACHE_PLANES]; /* base is an address in the other process */
    int32_t layer, first, end;             /* tokens first .. end - 1 */
    int32_t page, plane;
    sl_unit_walk walk; /* over this page and plane */
    bool by_page, done;
    sl_span ahead; /* read from the raw walk, but not yet part of a yielded span; bytes 0: none */
} sl_pieces;

/* Starts the walk over tokens [first, end) of a layer. map is borrowed until the walk has ended. */
void sl_pieces_init(sl_pieces *it, const sl_page_map *map, int32_t layer, int32_t first, int32_t end);
/* What is left of a span after its first `done` bytes. */
static inline sl_span sl_pieces_rest(sl_span s, int64_t done)
{
    s.local += done, s.remote += (uint64_t)done, s.bytes -= done;
    return s;
}

/* True if one copy may take bytes of both local sides: the arena is one allocation, and so is each pool of a device. */
bool sl_pieces_same_memory(const sl_span *a, const sl_span *b);
/* The next span; false at the end. */
bool sl_pieces_next(sl_pieces *it, sl_span *out);

#endif
