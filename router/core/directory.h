/*
 * Directory: which decode worker holds which page in which medium, as far as the workers have reported (KV_EVENTS). One
 * table for all workers: a page that many hold is stored once, and one walk over the keys of a prompt gives the result for every
 * worker. A wrong directory only reduces speed, because the workers themselves determine which pages they have.
 *
 * Place: the number of a worker in the directory, small and reused. Pages of SL_MEDIUM_SHARED belong to no worker: what one
 * has reported every worker can read, and it stays when that worker is lost.
 *
 * Memory is bounded by max_bytes, 1.7 MiB, and 4 bytes for each page of the longest prompt; it is allocated as
 * pages are reported. A page takes 24 bytes divided by the load of its hash table (3/8 to 3/4), so 32 to 64 bytes;
 * the third and later holders of a page take 16 bytes for each 6. When the table is full, the page is forgotten
 * that was not looked up for the longest time, approximately (a clock with one bit for each page).
 *
 * A worker that leaves, or whose medium is cleared, costs nothing at that moment: its pages are not found any more, and
 * sl_directory_sweep() removes them in small steps.
 *
 * Threads: one owner. Ownership: the directory owns its tables; results of sl_directory_lookup() are valid until the next
 * call of any function.
 */
#ifndef SL_ROUTER_DIRECTORY_H
#define SL_ROUTER_DIRECTORY_H

#include "base/hash.h"
#include "base/msg.h"

typedef struct sl_directory sl_directory;

/* No worker: accepted by every function, which then does nothing. */
#define SL_DIRECTORY_NONE UINT32_MAX

/*
 * What one worker has of a prompt, in pages from the first one on:
 *
 *   host     leading pages in its host memory
 *   local    leading pages in its host memory or on its disk; disk: those of them that are only on the disk
 *   shared   pages after the local ones that follow in the shared store
 */
typedef struct sl_directory_match {
    uint32_t host, local, disk, shared;
} sl_directory_match;

typedef struct sl_directory_stats {
    uint64_t pages;                 /* different ones */
    uint64_t held[SL_MEDIUM_COUNT]; /* pages by medium, each once for every worker that holds it */
    uint64_t bytes;                 /* memory, of the tables and of everything else */
    uint64_t lookups, lookup_pages; /* calls, and pages that they looked for */
    uint64_t forgotten;             /* pages forgotten because the table was full */
} sl_directory_stats;

/* max_bytes: at least 1 MiB. */
sl_status sl_directory_create(size_t max_bytes, sl_directory **out);
void sl_directory_destroy(sl_directory *d);

/* A place for a worker that holds nothing yet. SL_DIRECTORY_NONE: out of memory, or 4,096 workers are there. */
uint32_t sl_directory_join(sl_directory *d);
/* The worker is lost: its host memory and its disk are forgotten. */
void sl_directory_leave(sl_directory *d, uint32_t place);

/* Does nothing when out of memory, or when the key is zero. `place` is not used with SL_MEDIUM_SHARED. */
void sl_directory_add(sl_directory *d, uint32_t place, sl_medium medium, sl_key key);
void sl_directory_remove(sl_directory *d, uint32_t place, sl_medium medium, sl_key key);
/* The worker has dropped everything of this medium. SL_MEDIUM_SHARED: nothing, because others may still use it. */
void sl_directory_clear(sl_directory *d, uint32_t place, sl_medium medium);

/* For keys[0..n) of one prompt: an array by place. */
const sl_directory_match *sl_directory_lookup(sl_directory *d, const sl_key *keys, size_t n);
/* Of what a worker has of the prompt of the last lookup, only the first `pages` pages are of use. The results stay valid. */
void sl_directory_cut(sl_directory *d, uint32_t place, uint32_t pages);
bool sl_directory_has(const sl_directory *d, uint32_t place, sl_medium medium, sl_key key);
/* Pages of one worker in one medium. */
size_t sl_directory_count(const sl_directory *d, uint32_t place, sl_medium medium);

/* Removes pages of workers that have left, a small part of the table in each call; called at every tick. */
void sl_directory_sweep(sl_directory *d);
void sl_directory_get_stats(const sl_directory *d, sl_directory_stats *out);

#endif
