/*
 * Checksums of the rows of an arena (kernels/rowsum.h), with which the swap-in compares every row that it copies from host
 * memory to the device. kvstore.verify rows.
 *
 * Rows are those of tokens, and the units of blocks of a layer that may be swapped in like rows (engine/blocks.h): of its first plane of
 * blocks, if its rows fit the copies of the swap-in. Both are complete when their page is full.
 *
 * They are a plane of their own next to the arena: 4 bytes for each row and layer (for each 2 KiB of longer rows). No other
 * process reads or writes it: pages have the same bytes, on the wire and in storage tiers, with and without it, so workers
 * with and without it work together, and whoever can write into the arena of this worker from outside cannot make a checksum
 * fit.
 *
 *   layout    layer -> rows of tokens, units of blocks -> page -> block of the page -> KV head -> part, so that the
 *             entries of miss_src of SL_OP_GATHER are places in it, and the checksums of one layer take few host pages
 *   made      when a page is full and sealed (kvstore/seal.h), from the bytes that the seal is made of or was compared with
 *   forgotten when a page is given to a request that will write rows into it; until it is sealed again its rows have none
 *
 * So a row is compared from the time at which its page is sealed. Not compared are the rows of the page that a request is still
 * filling; the device has their newest tail_rows, and fetches older ones only after that page is full.
 *
 * Threads: making is for the owner of the seals, forgetting for the owner of the store, at the same time for different
 * pages; the device may read all the time. The arena is borrowed.
 */
#ifndef SL_KVSTORE_ROW_SUMS_H
#define SL_KVSTORE_ROW_SUMS_H

#include "kvstore/arena.h"

typedef struct sl_row_sums sl_row_sums;

/* Bytes of memory that this takes for an arena of n_pages pages. */
uint64_t sl_row_sums_bytes(const sl_geometry *g, int64_t n_pages);

/* At first no row has a checksum. SL_ERR_NO_MEMORY. */
sl_status sl_row_sums_create(const sl_arena *arena, sl_row_sums **out, sl_err *err);
void sl_row_sums_destroy(sl_row_sums *s);
/* All of the memory, for those who make it readable to a device. */
void *sl_row_sums_base(const sl_row_sums *s);
uint64_t sl_row_sums_size(const sl_row_sums *s);
/* Those of a layer's rows of tokens, or of its units of blocks: sl_row_check.sums; NULL: it has none. */
const uint32_t *sl_row_sums_layer(const sl_row_sums *s, int32_t layer);
const uint32_t *sl_row_sums_blocks(const sl_row_sums *s, int32_t layer);

/* Makes those of all rows of a full page from its present bytes. */
void sl_row_sums_make(sl_row_sums *s, int32_t page);
/* The rows of these pages have none any more. */
void sl_row_sums_forget(sl_row_sums *s, const int32_t *pages, int32_t n);

#endif
