/*
 * One pool of device memory for everything that sequences hold: their states, hot rows, index pages and pages of rows.
 * Each kind keeps its addresses, in spaces that are as large as all of the memory (kernels/space.h); memory moves between them in
 * units. So a load of many short requests has many states, one of few long requests many pages, from the same memory.
 *
 * An object of a kind (a page, a slot, the states of a row) has a part in one or more spaces. It has memory while it is held. A unit
 * that several objects touch has memory while one of them is held. A unit of which nothing is held any more keeps its memory until
 * another needs it, so that a steady load maps nothing.
 *
 * There is never more memory in use than the units that the pool was made with: all are there from the start.
 * Threads: the engine's.
 */
#ifndef SL_ENGINE_DEVICE_POOL_H
#define SL_ENGINE_DEVICE_POOL_H

#include "kernels/space.h"

typedef enum { SL_DPOOL_STATES, SL_DPOOL_HOT, SL_DPOOL_INDEX, SL_DPOOL_ROWS, SL_DPOOL_KINDS } sl_dpool_kind;

/* "states", "hot", "index", "rows"; then NULL. */
extern const char *const sl_dpool_kind_names[SL_DPOOL_KINDS + 1];

typedef struct sl_dpool sl_dpool;

typedef struct sl_dpool_stats {
    uint64_t unit, total, used; /* bytes: of a unit, of all units, of those of which something is held */
    uint64_t moved; /* units that were taken from where nothing was held any more, since the start */
} sl_dpool_stats;

/* A pool of bytes / unit units. poison: testing: memory that comes anew is filled with NaN. SL_ERR_DEVICE_MEMORY: less is there, or
 * not even one unit; SL_ERR_UNSUPPORTED: the backend has no spaces. */
sl_status sl_dpool_create(sl_backend *be, uint64_t bytes, bool poison, sl_dpool **out, sl_err *err);
void sl_dpool_destroy(sl_dpool *p); /* with all spaces; nothing is held, nothing uses them. NULL: nothing */
/* A space of this many bytes; it belongs to the pool. */
sl_status sl_dpool_space(sl_dpool *p, uint64_t bytes, uint8_t **base, sl_err *err);
/* Object i of the kind has the bytes [at + i * bytes, at + (i + 1) * bytes); `at` lies in a space of the pool. Before the first
 * object of the kind is taken. */
sl_status sl_dpool_part(sl_dpool *p, sl_dpool_kind kind, const uint8_t *at, int64_t bytes, sl_err *err);
/* Objects that are not held get memory, all or none of them. SL_ERR_EXHAUSTED: there are not enough units; nothing has changed. */
sl_status sl_dpool_take(sl_dpool *p, sl_dpool_kind kind, const int32_t *objects, int32_t n, sl_err *err);
void sl_dpool_give(sl_dpool *p, sl_dpool_kind kind, const int32_t *objects, int32_t n);
/* Bytes of an object, in all its parts. */
uint64_t sl_dpool_object_bytes(const sl_dpool *p, sl_dpool_kind kind);
/* Bytes that nothing holds. Objects at the edges of units may need more than their own bytes. */
uint64_t sl_dpool_free(const sl_dpool *p);
void sl_dpool_stats_get(const sl_dpool *p, sl_dpool_stats *out);

#endif
