/*
 * Page geometry and the arena: the host memory that holds every page of this process.
 *
 * A page is 64 tokens, all layers, of each layer the planes of its class (kernels/cache.h): rows of tokens, index keys and
 * an algorithm's metadata in the layers that select; or rows of blocks; or nothing, in a layer that keeps a state alone.
 * Layouts differ only in strides:
 *
 *   layout        order in memory, outermost first      contiguous
 *   ------------  ------------------------------------  ----------------------------------------------------
 *   page_first    page -> layer -> plane -> units       a page; one write ships the rows of a layer of a page
 *   layer_first   layer -> plane -> page -> units       the rows of all pages of a layer
 *   page_head     page -> plane -> unit -> layer        the rows of all layers of a token
 *
 * In every layout the units of the KV heads of one block of tokens are adjacent.
 *
 * The arena is allocated once, by mmap: with huge pages if there are any, bound to a NUMA node, and locked. Too little
 * memory is an error at start. A shared arena is a memfd instead of anonymous memory; it has no name in the file
 * system, so nothing is left when the process is killed. The arena owns only the memory; the store decides who uses
 * which page (kvstore/store.h). Threads: create and destroy on one thread; addresses are constant and may be used from
 * any thread.
 */
#ifndef SL_KVSTORE_ARENA_H
#define SL_KVSTORE_ARENA_H

#include <sys/uio.h>

#include "base/hash.h"
#include "base/wire.h"
#include "kernels/cache.h"

#define SL_GEOMETRY_MAX_LAYERS 256

typedef enum { SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_HEAD } sl_layout;

/* A class of layers. Layers that make no selection of their own, and so have no index keys, are a class of their own. */
typedef struct sl_geometry_class {
    char name[SL_CACHE_NAME];
    sl_layer_kind kind;
    uint8_t planes; /* bit p: its layers have plane p of the shape */
    int32_t window;
    sl_layer_state state;
} sl_geometry_class;

typedef struct sl_geometry {
    sl_key fingerprint; /* of model and numeric convention: other pages never match */
    sl_layout layout;
    int32_t n_layers;
    /* the planes of all classes; plane 0 are the rows of tokens, even if no layer has them */
    sl_cache_shape shape;
    int32_t n_classes; /* in the order of the first layer of each */
    sl_geometry_class classes[SL_LAYER_CLASSES];
    uint8_t layer_class[SL_GEOMETRY_MAX_LAYERS];
    int64_t page_bytes;  /* of a page: all planes, all layers */
    int64_t state_bytes; /* of a request: the states of all layers, which are in no page */
} sl_geometry;

typedef struct sl_geometry_opts {
    sl_key fingerprint;
    sl_layout layout;
    const sl_cache_shape *shape;
    int32_t n_layers;
    const bool *has_indexer; /* [n_layers]; NULL: no layer has one */
    /* What the family states: classes[n_classes], whose planes are added to the shape, and the class of each layer,
     * [n_layers]. n_classes 0: every layer has the shape's planes. */
    const sl_layer_class *classes;
    int32_t n_classes;
    const uint8_t *layer_class;
} sl_geometry_opts;

/* SL_ERR_INVALID names the field whose value is not possible. The shape and the classes are copied. */
sl_status sl_geometry_make(const sl_geometry_opts *opts, sl_geometry *out, sl_err *err);
static inline const sl_geometry_class *sl_geometry_class_of(const sl_geometry *g, int32_t layer)
{
    return &g->classes[g->layer_class[layer]];
}
static inline bool sl_geometry_has(const sl_geometry *g, int32_t layer, int32_t plane)
{
    return sl_geometry_class_of(g, layer)->planes >> plane & 1;
}
/* Device bytes of one layer's state of one request; 0: it keeps none. */
static inline uint64_t sl_geometry_state_device(const sl_geometry *g, int32_t layer)
{
    const int64_t bytes = sl_geometry_class_of(g, layer)->state.bytes;
    return (uint64_t)((bytes + SL_STATE_ALIGN - 1) / SL_STATE_ALIGN * SL_STATE_ALIGN);
}
/* Bytes of one layer in a page; 0: the layer keeps a state alone. */
int64_t sl_geometry_layer_bytes(const sl_geometry *g, int32_t layer);
/* As it travels in HELLO and PEER_WELCOME. */
void sl_geometry_write(const sl_geometry *g, sl_wr *w);
/* SL_ERR_CORRUPT: the bytes are not those of a geometry that can be; err names what is wrong. */
sl_status sl_geometry_read(const void *bytes, size_t n, sl_geometry *out, sl_err *err);
/* SL_OK: pages may be copied between the two; their layouts may differ. SL_ERR_REFUSED: the first plane or field that
 * differs, with both values. */
sl_status sl_geometry_compatible(const sl_geometry *mine, const sl_geometry *theirs, sl_err *err);

/* The registry of layouts: by name (NULL: unknown), all names (ends with NULL), the name of one ("?": no layout). */
typedef struct sl_layout_desc {
    const char *name, *description;
    sl_layout layout;
} sl_layout_desc;

const sl_layout_desc *sl_layout_find(const char *name);
const char *const *sl_layout_names(void);
const char *sl_layout_name(sl_layout l);

/*
 * One plane of one layer in an arena, local or remote, of n_pages pages at address base. row_stride is the distance
 * from one segment, with the units of all its heads, to the next one (kernels/cache.h). The result's base is NULL when
 * the layer does not have this plane.
 */
sl_host_plane sl_geometry_plane(const sl_geometry *g, uint8_t *base, int64_t n_pages, int32_t layer,
                                int32_t plane);

/* Bytes of one unit of rows. Bytes of the model's index keys in a page of one layer; 0: the model has none. */
static inline int64_t sl_geometry_row_bytes(const sl_geometry *g)
{
    return sl_cache_unit_bytes(&g->shape.planes[SL_CACHE_ROWS]);
}

static inline int64_t sl_geometry_index_bytes(const sl_geometry *g)
{
    int32_t p = sl_cache_find(&g->shape, SL_PLANE_INDEX);
    return p < 0 ? 0 : sl_cache_page_bytes(&g->shape.planes[p]);
}

/* The plane of the model's index keys, as sl_geometry_plane(). */
static inline sl_host_plane sl_geometry_index_plane(const sl_geometry *g, uint8_t *base, int64_t n_pages,
                                                    int32_t layer)
{
    return sl_geometry_plane(g, base, n_pages, layer, sl_cache_find(&g->shape, SL_PLANE_INDEX));
}

typedef enum { SL_AUTO, SL_ON, SL_OFF } sl_switch;

typedef struct sl_arena_opts {
    uint64_t bytes; /* upper bound; n_pages = bytes / page_bytes */
    sl_switch huge_pages, lock;
    int numa_node;  /* -1: no binding */
    bool shared;    /* backed by a memfd that other processes may map (worker/direct.h) */
    bool no_memory; /* addresses only, which must not be read or written: for the simulator */
} sl_arena_opts;

typedef struct sl_arena sl_arena;

/* SL_ERR_NO_MEMORY names the requested size, the free memory of the machine, and the configuration key to change. */
sl_status sl_arena_create(const sl_geometry *g, const sl_arena_opts *opts, sl_arena **out, sl_err *err);
void sl_arena_destroy(sl_arena *a);
const sl_geometry *sl_arena_geometry(const sl_arena *a);
uint8_t *sl_arena_base(const sl_arena *a);
uint64_t sl_arena_bytes(const sl_arena *a);
int32_t sl_arena_pages(const sl_arena *a);
/* The memfd of a shared arena, whose first byte is that of page 0; -1: the arena is private. The arena closes it. */
int sl_arena_fd(const sl_arena *a);
/* For the log at start: "256.0 MiB, 4181 pages of 62.7 KiB, page_first, huge pages 2M, numa node 0, locked". */
const char *sl_arena_describe(const sl_arena *a);

/*
 * The bytes of one page as spans, in an order that does not depend on whether the layout is page_first or layer_first: layer
 * by layer, plane by plane. page_head has another order. The spans together have geometry.page_bytes bytes. Every page has
 * the same number of them: sl_arena_n_spans().
 */
int32_t sl_arena_n_spans(const sl_arena *a);
void sl_arena_spans(const sl_arena *a, int32_t page, struct iovec *out);
/* Number of the page whose first span begins at this address; -1: there is none. */
int32_t sl_arena_page_at(const sl_arena *a, const uint8_t *address);
/* Identity of a page's bytes in that order, without the model's fingerprint: pages may be exchanged with whoever has the
 * same. False: out of memory. */
bool sl_geometry_format(const sl_geometry *g, sl_key *out);

/* CRC32C of one layer of one page: the valid bytes of the first n_tokens tokens, plane by plane, in the order of
 * sl_unit_walk. It does not depend on the layout. */
uint32_t sl_arena_page_crc(const sl_arena *a, int32_t page, int32_t layer, int32_t n_tokens);

#endif
