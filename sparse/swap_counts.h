/*
 * What the device counted about hot rows (hits, misses, evictions, tail hits; the times of gathers), on the host.
 *
 * The device counts in 32 bits for each layer, slot and list, and sets the counters of a slot to zero when the slot gets another
 * request. The host reads them by copies that are enqueued like all other work, so that reading waits for nothing: a reading is
 * taken into the sums when it has arrived. At most SL_SWAP_READINGS are in flight; the next one then waits for the device.
 * Sums have 64 bits. Threads: one owner, that of the backend.
 */
#ifndef SL_SPARSE_SWAP_COUNTS_H
#define SL_SPARSE_SWAP_COUNTS_H

#include "kernels/backend.h"
#include "kernels/params.h"
#include "sparse/sparse.h"

enum {
    SL_SWAP_COUNTERS = 4, /* of a layer, slot and list */
    SL_SWAP_READINGS = 8,
    SL_SWAP_ALL = -2, /* every slot */
};

typedef struct sl_swap_counts_opts {
    const uint32_t *device; /* [layers][slots][lists][SL_SWAP_COUNTERS], and after it sl_swap_clock[clocks] */
    int32_t layers, slots, lists;
    int64_t clocks;
} sl_swap_counts_opts;

typedef struct sl_swap_counts sl_swap_counts;

/* Bytes that a reading copies. */
uint64_t sl_swap_counts_bytes(const sl_swap_counts_opts *o);
sl_status sl_swap_counts_create(sl_backend *be, const sl_swap_counts_opts *o, sl_swap_counts **out,
                                sl_err *err);
void sl_swap_counts_destroy(sl_swap_counts *c);

/* Enqueues a reading. What the caller enqueues next sets the device's counters of this slot to zero, and the slot's own sums begin
 * again. SL_SWAP_ALL: of every slot, whose sums go on; -1: of none. */
sl_status sl_swap_counts_mark(sl_swap_counts *c, int32_t slot, sl_err *err);
/* Takes in the readings that have arrived, and starts one if none is in flight. Waits for nothing. */
sl_status sl_swap_counts_peek(sl_swap_counts *c, sl_err *err);
/* Waits for the device and takes in everything that it has counted. */
sl_status sl_swap_counts_settle(sl_swap_counts *c, sl_err *err);

/* The sums of what has been taken in: of a layer since create, of a slot since its last mark. */
sl_coord_counters sl_swap_counts_layer(const sl_swap_counts *c, int32_t layer);
sl_coord_counters sl_swap_counts_slot(const sl_swap_counts *c, int32_t slot);
/* The time that gathers took, and the part during which the main stream waited, in nanoseconds since create. */
void sl_swap_counts_times(const sl_swap_counts *c, uint64_t *taken_ns, uint64_t *waited_ns);

#endif
