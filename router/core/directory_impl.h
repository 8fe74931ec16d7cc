/*
 * Inside router/core/: the directory's data, for its two files. directory_table.c has the hash table: where a page is, its
 * holders, and which page is forgotten when the table is full. directory.c has what the holders stand for: places of workers
 * and their media, and the lookup of a prompt.
 */
#ifndef SL_ROUTER_DIRECTORY_IMPL_H
#define SL_ROUTER_DIRECTORY_IMPL_H

#include <stdbool.h>

#include "router/core/directory.h"

enum {
    SHARD_BITS = 10,
    SHARDS = 1 << SHARD_BITS,
    PLACES_MAX = 4096,
    IDS = 65536,
    SHARED_ID = 1, /* 0: no holder */
    IN_ENTRY = 2,
    IN_NODE = 6,
    NO_PLACE = 0xffff,
};
#define SEEN (1u << 31) /* in entry.more: looked up, or reported once more, since the clock's hand passed */

typedef struct sl_dir_entry {
    sl_key key; /* zeros: empty */
    uint16_t who[IN_ENTRY];
    uint32_t more; /* number of the first node, 0: none; with SEEN */
} sl_dir_entry;

typedef struct sl_dir_node {
    uint16_t who[IN_NODE];
    uint32_t next;
} sl_dir_node;

typedef struct sl_dir_shard {
    sl_dir_entry *at;
    uint32_t cap, count, hand;
} sl_dir_shard;

struct sl_directory {
    sl_dir_shard shard[SHARDS];
    uint32_t cap_max;  /* of a shard */
    sl_dir_node *node; /* [node_cap]; the first one is not used */
    uint32_t node_cap, node_used, node_free, node_max;
    uint16_t place_of[IDS]; /* NO_PLACE: retired or never given */
    uint8_t medium_of[IDS];
    uint32_t count_of[IDS];
    uint16_t id_of[PLACES_MAX][SL_MEDIUM_SHARED]; /* 0: the place is free */
    uint32_t places;                              /* places that were ever given are below */
    uint32_t ids;                                 /* so are numbers of holders */
    uint16_t *unused;                             /* [n_unused] numbers that may be given again */
    uint32_t n_unused;
    struct {
        uint16_t id;
        uint64_t free_at; /* value of `swept` */
    } * retired;          /* a ring, oldest first */
    uint32_t retired_at, n_retired;
    uint64_t swept; /* shards, ever */
    sl_directory_match *match;
    uint32_t *run; /* [run_cap] scratch: pages in shared stores without a gap from here on */
    size_t run_cap;
    sl_directory_stats stats;
};

/* A step through the holders of e. They fill the entry, then the nodes, without a gap. */
typedef struct sl_dir_walk {
    uint16_t *who; /* the holder; NULL after the last */
    uint32_t node, i;
} sl_dir_walk;

/* ---- directory_table.c ---- */

static inline bool sl_directory_empty(sl_key k)
{
    return !(k.lo | k.hi);
}

/* The shard in which the entry of the key is, or would be. */
sl_dir_shard *sl_directory_shard(const sl_directory *d, sl_key key);
/* The entry of the key, or NULL. */
sl_dir_entry *sl_directory_find(const sl_directory *d, sl_key key);
/* The entry of the key, made if there is none; NULL: out of memory. */
sl_dir_entry *sl_directory_entry(sl_directory *d, sl_key key);
/* Removes the entry at this position; another one may be there afterwards. */
void sl_directory_delete(sl_directory *d, sl_dir_shard *s, uint32_t hole);
/* The next holder of e; false after the last. */
bool sl_directory_step(const sl_directory *d, sl_dir_entry *e, sl_dir_walk *w);
/* e gets the holder, unless it has it; it keeps what it has when out of memory. */
void sl_directory_hold(sl_directory *d, sl_dir_entry *e, uint16_t id);
/* Moves the last holder to *hole; frees the node that becomes empty. */
void sl_directory_drop(sl_directory *d, sl_dir_entry *e, uint16_t *hole);
/* Drops the holders of e whose numbers are retired. */
void sl_directory_drop_retired(sl_directory *d, sl_dir_entry *e);
/* Fetches the entry of the key into the processor's cache. */
void sl_directory_prefetch(const sl_directory *d, sl_key key);

#endif
