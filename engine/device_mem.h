/*
 * Device memory of an engine: what it has allocated, which is counted, and what the objects of its sequences hold.
 *
 * Sequences hold objects of a few kinds (sl_dpool_kind), which are known by numbers: a row of the tables with its states, a hot
 * slot, an index page, a page of rows. Without a pool every number has memory of its own from the start. With one (device_pool.h)
 * the numbers stand for addresses, and an object has memory while it is held. The smallest free number is taken first, so that what
 * is held lies close together, in few units of a pool.
 *
 * Only device_mem.c knows the lists of numbers, and what is done with a pool. Threads: the engine's.
 */
#ifndef SL_ENGINE_DEVICE_MEM_H
#define SL_ENGINE_DEVICE_MEM_H

#include "engine/device_pool.h"

typedef struct sl_dmem sl_dmem;

/* pool_bytes 0: without a pool. poison: testing: memory of objects that is new is filled with NaN. Errors: those of
 * sl_dpool_create(). */
sl_status sl_dmem_create(sl_backend *be, uint64_t pool_bytes, bool poison, sl_dmem **out, sl_err *err);
void sl_dmem_destroy(
    sl_dmem *m); /* with the pool; what was allocated without it is freed before. NULL: nothing */

/* An allocation that is counted, to be freed with sl_be_free(). */
sl_status sl_dmem_alloc(sl_dmem *m, uint64_t bytes, void **out, sl_err *err);
/* The same, or an allocation in memory of the host, which is not counted. */
sl_status sl_dmem_alloc_in(sl_dmem *m, sl_mem_kind kind, uint64_t bytes, void **out, sl_err *err);
/* Counts what others have allocated for the engine. */
void sl_dmem_count(sl_dmem *m, uint64_t bytes);
/* Bytes that were counted, the pool among them. */
uint64_t sl_dmem_bytes(const sl_dmem *m);

/* Memory, or with a pool addresses, of the objects of a kind, `bytes` each, from *out on, in `all` bytes that objects of other kinds can
 * be in: `also` says where these begin. Freed with sl_dmem_free_objects(). */
sl_status sl_dmem_objects(sl_dmem *m, sl_dpool_kind kind, int64_t bytes, int64_t all, uint8_t **out,
                          sl_err *err);
sl_status sl_dmem_also(sl_dmem *m, sl_dpool_kind kind, const uint8_t *at, int64_t bytes, sl_err *err);
void sl_dmem_free_objects(sl_dmem *m, uint8_t *base); /* NULL: nothing */

/* The numbers 0 .. n - 1 of a kind, all of them free; once for each kind. */
sl_status sl_dmem_numbers(sl_dmem *m, sl_dpool_kind kind, int32_t n, sl_err *err);
int32_t sl_dmem_n(const sl_dmem *m, sl_dpool_kind kind);
int32_t sl_dmem_n_free(const sl_dmem *m, sl_dpool_kind kind);
/* n numbers, which must be free, and memory for what has them; all or none. SL_ERR_EXHAUSTED: the pool has not enough. */
sl_status sl_dmem_take(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n, sl_err *err);
/* Gives back what has the n numbers, which become -1. */
void sl_dmem_give(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n);
/* Takes one number, with memory also from n held objects of another kind; these lose it, and keep their numbers until
 * sl_dmem_give_numbers(). Without a pool they keep both. After an error they are what they were. */
sl_status sl_dmem_exchange(sl_dmem *m, sl_dpool_kind kind, int32_t *number, sl_dpool_kind of,
                           const int32_t *numbers, int32_t n, sl_err *err);
void sl_dmem_give_numbers(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n);

/* Objects of a kind that there is room for now; of a pool, without what lies at the edges of units. */
int64_t sl_dmem_room(const sl_dmem *m, sl_dpool_kind kind);
/* The pool, to be read; NULL: there is none. */
const sl_dpool *sl_dmem_pool(const sl_dmem *m);

#endif
