/*
 * The unit of cache: what a layer keeps for every cached token. Geometry, arena, wire form, residency, plan and
 * selectors read a sl_cache_shape; only the functions and kernels of a row format know the contents of a unit.
 *
 *   shape   planes of one layer: plane 0 holds the rows that attention reads, the others what selection reads
 *   plane   a page of 64 tokens is cut into units of unit_tokens tokens and, with scope KV_HEAD, of one KV head each
 *   unit    its parts one after the other; a part holds `count` elements for every token, or for the unit as a whole
 *
 *   plane            heads  unit_tokens  parts
 *   rows, mla_fp8        1            1  latent e4m3 x 512 | scale f32 x 4 | rope bf16 x 64
 *   index, official      1           64  key e4m3 x 128 (64 times) | scale f32 x 1 (64 times)
 *   rows, gqa_bf16       1            1  k bf16 x 1024 | v bf16 x 1024
 *   rows by KV head      8           16  k bf16 x 128 (16 times) | v bf16 x 128 (16 times)
 *   bounds of blocks     8           16  min bf16 x 128 (once) | max bf16 x 128 (once)
 *   pooled entries       1          128  state f32 x 1024 (once, open) | entry bf16 x 512 (once, closed)
 *
 * A unit is a whole fraction or a whole multiple of a page. A larger one has a segment in each of its pages, all of the
 * same bytes; a unit within a page is its own only segment. Every page can therefore be copied, checked and reused
 * without knowing where in the request it lies:
 *
 *   part of               in the segment of each page
 *   every token           the page's own tokens
 *   the unit, open        the value over the unit's tokens up to the page's end, so that a prefix that ends with any
 *                         page can be continued
 *   the unit, closed      the value in the page that closes the unit; zero in the unit's earlier pages
 *
 * The rows of hierarchical sequences are swapped in unit by unit, and so are the blocks of a class of which a token reads few
 * (sl_layer_class.chosen); all other planes are on the device whole.
 *
 * Not every layer keeps the same. The configuration of a model says the class of each layer (sl_layer_class):
 *
 *   class    what a layer of the class keeps                                  for how long
 *   tokens   the planes above: a row for every token, and what selects      as long as the page
 *   blocks   planes of the class's own, whose units appear when they are    as long as the page
 *            complete, for example one entry for 4 or 128 tokens
 *   ring     the last `window` tokens, in a state of fixed size             one request; snapshots
 *   state    a state of fixed size, for example of a recurrence             one request; snapshots
 *
 * Layers of the first two classes may keep a state in addition. What counts bytes sums over the classes of the layers:
 * planes are in pages (kvstore/arena.h), states are not; how a state is kept in host memory says kvstore/snapshot.h.
 *
 * Registries of the choices that this room owns: row formats, index formats and victim policies. A configuration
 * carries the name; whoever sets something up resolves it here. Each find returns NULL for an unknown name
 * (sl_fail_unknown() of base/status.h makes the message); each names list ends with NULL and is in the order of the
 * enumeration.
 *
 * Everything here is a plain value, constant or pure; any thread.
 */
#ifndef SL_KERNELS_CACHE_H
#define SL_KERNELS_CACHE_H

#include "kernels/bounds.h"
#include "kernels/retained.h"
#include "kernels/params.h"
#include "kernels/window.h"
#include "kernels/layer_state.h"

enum {
    SL_CACHE_PLANES = 6,
    SL_CACHE_PARTS = 6,
    SL_CACHE_NAME = 16,
    SL_CACHE_ROWS = 0, /* the plane of rows */
    SL_CACHE_UNIT_MAX = 1024 * SL_PAGE_TOKENS
};

/* When the bytes of a part are valid. */
typedef enum {
    SL_PER_TOKEN,     /* `count` elements for every token, valid with the token */
    SL_PER_OPEN_UNIT, /* for the unit, valid from its first token on and rewritten with each further one */
    /* for the unit, valid as soon as its last token exists, and never changed afterwards; in the unit's earlier
     * pages it is zero, and valid as soon as that page is full */
    SL_PER_CLOSED_UNIT,
} sl_part_per;

typedef struct sl_cache_part {
    char name[SL_CACHE_NAME];
    sl_dtype dtype;
    sl_part_per per;
    int32_t count;
} sl_cache_part;

/* Who shares one list of selected units. */
typedef enum { SL_SCOPE_REQUEST, SL_SCOPE_KV_HEAD, SL_SCOPE_QUERY_HEAD } sl_list_scope;

typedef enum {
    SL_PLANE_ROWS,   /* what attention reads */
    SL_PLANE_INDEX,  /* the index keys of the model itself */
    SL_PLANE_META,   /* metadata of a sparse algorithm */
    SL_PLANE_BLOCKS, /* units of a class of layers without rows of tokens (sl_layer_class) */
} sl_plane_role;

typedef struct sl_cache_plane {
    char name[SL_CACHE_NAME];   /* distinct within a shape */
    char format[SL_CACHE_NAME]; /* contents of another format never match */
    /* Hash of further parameters on which the contents depend, for example those of an algorithm; 0: there are none. */
    uint64_t stamp;
    sl_plane_role role;
    sl_list_scope scope; /* REQUEST: a unit holds all heads, heads is 1. KV_HEAD: units of one head each */
    bool indexed_only;   /* only in layers with an indexer of the model; otherwise in every layer */
    bool host_only;      /* only in host pages, without a device pool; not a part of the wire form */
    int32_t heads;       /* KV heads that have units of their own */
    int32_t unit_tokens; /* divides SL_PAGE_TOKENS, or is its multiple; at most SL_CACHE_UNIT_MAX */
    int32_t n_parts;
    sl_cache_part parts[SL_CACHE_PARTS];
} sl_cache_plane;

typedef struct sl_cache_shape {
    int32_t n_planes;
    sl_cache_plane planes[SL_CACHE_PLANES];
} sl_cache_shape;

typedef enum { SL_LAYER_TOKENS, SL_LAYER_BLOCKS, SL_LAYER_RING, SL_LAYER_STATE } sl_layer_kind;

enum {
    SL_CLASS_PLANES = 2,  /* planes of a class's own */
    SL_MODEL_CLASSES = 4, /* classes that a family states */
    SL_LAYER_CLASSES = 8  /* of a geometry, where layers with and without index keys are told apart */
};

/* What happens to the value of an open unit (SL_PER_OPEN_UNIT) of a class's own planes when tokens are taken back. */
typedef enum {
    SL_OPEN_STAYS, /* it cannot be taken back: truncation is refused */
    SL_OPEN_KEPT,  /* the family keeps what it was before each token (sl_layer_plane.open) */
    SL_OPEN_ADDED, /* a token adds to it, and nothing reads what it has added before that token exists again */
} sl_open_use;

/* A class of layers, as a model family states it. */
typedef struct sl_layer_class {
    char name[SL_CACHE_NAME];
    sl_layer_kind kind;
    int32_t n_planes; /* of kind BLOCKS: at least one, with role BLOCKS; of other kinds 0 */
    sl_cache_plane planes[SL_CLASS_PLANES];
    sl_open_use open;
    /* Units of the first plane that a token reads at most, by a list; then those of hierarchical sequences are swapped in, if units
     * are fractions of a page, in powers of two. 0: it may read all, so they are on the device whole. */
    int32_t chosen;
    int32_t window; /* tokens of a ring; 0: there is none */
    sl_layer_state state;
} sl_layer_class;

const char *sl_layer_kind_name(sl_layer_kind k);
/* Whether a layer of this kind can keep such a state and ring; SL_ERR_INVALID says what is wrong. */
sl_status sl_layer_state_check(const char *name, sl_layer_kind kind, int32_t window, const sl_layer_state *s,
                               sl_err *err);

/* Tokens of a segment: those of the unit, but at most those of a page. */
static inline int32_t sl_cache_segment_tokens(const sl_cache_plane *p)
{
    return p->unit_tokens < SL_PAGE_TOKENS ? p->unit_tokens : SL_PAGE_TOKENS;
}
/* The page of the request that holds the unit's last token; *segment is the number of the unit's segment in that
 * page. */
static inline int32_t sl_cache_unit_page(const sl_cache_plane *p, int32_t unit, int32_t *segment)
{
    int64_t last = ((int64_t)unit + 1) * p->unit_tokens - 1;
    *segment = (int32_t)(last % SL_PAGE_TOKENS) / sl_cache_segment_tokens(p);
    return (int32_t)(last / SL_PAGE_TOKENS);
}
/* In this order: bytes of a part in one segment, of a segment, and of all segments of a page; and the number of
 * segments of a page, over all heads. */
int64_t sl_cache_part_bytes(const sl_cache_plane *p, int32_t part);
int64_t sl_cache_unit_bytes(const sl_cache_plane *p);
int64_t sl_cache_page_bytes(const sl_cache_plane *p);
int32_t sl_cache_page_units(const sl_cache_plane *p);
/* The number of units, over all heads, that hold `tokens` consecutive tokens of which the first one begins a unit. */
int32_t sl_cache_units(const sl_cache_plane *p, int32_t tokens);
/* The first plane of this role, -1: none. */
int32_t sl_cache_find(const sl_cache_shape *s, sl_plane_role role);
/* The plane of this name, -1: none. */
int32_t sl_cache_find_name(const sl_cache_shape *s, const char *name);
/* SL_ERR_INVALID names the plane and the field whose value is impossible. */
sl_status sl_cache_shape_check(const sl_cache_shape *s, sl_err *err);
/* SL_OK, or SL_ERR_REFUSED naming the first plane and field that differ and both values. */
sl_status sl_cache_shape_compatible(const sl_cache_shape *mine, const sl_cache_shape *theirs, sl_err *err);

/*
 * The valid bytes of tokens [begin, end) in one page of one plane, as runs of contiguous bytes. The walk goes
 * segment by segment, within it head by head, within it part by part; a whole segment is one run, and with `dense`
 * so are neighbouring whole segments. A run begins `at` bytes into segment `unit` of the page and of head `head`.
 * Metadata of a full segment belongs to the range of tokens that fills the segment; metadata of a segment that is
 * not full belongs to the range that ends the request (`last`). Therefore no byte is given twice when a request is
 * walked range by range.
 */
typedef struct sl_unit_walk {
    const sl_cache_plane *plane;
    int32_t begin, end;
    bool last;  /* nothing of the request follows `end` */
    bool dense; /* the units of the page are contiguous in memory: unit by unit, within it head by head */
    int32_t unit, head, part;
    int32_t n_units;        /* segments of one head */
    int64_t unit_bytes, at; /* at: where `part` begins */
} sl_unit_walk;

typedef struct sl_unit_run {
    int32_t unit, head;
    int64_t at, bytes;
} sl_unit_run;

void sl_unit_walk_init(sl_unit_walk *w, const sl_cache_plane *p, int32_t begin, int32_t end, bool last,
                       bool dense);
/* Gives the next run; false when there is none. */
bool sl_unit_walk_next(sl_unit_walk *w, sl_unit_run *out);

/*
 * Options of a sparse algorithm, on which the shape and the contents of a cache may depend: the struct that the algorithm's
 * own table describes (sl_algo_desc.options), here only bytes. `set` false: the defaults of that table. A plain value.
 * sl_choose_selection() (engine/choose.h) makes one from the configuration.
 */
enum { SL_SELECT_BYTES = 640 };
typedef struct sl_select_options {
    /* Of the rows' plane: hash of all that the rows depend on in addition to the model; 0: nothing. */
    uint64_t stamp;
    bool set;
    _Alignas(8) unsigned char values[SL_SELECT_BYTES];
} sl_select_options;

/* What a model family states about its cache; a row format reads the fields that it needs. */
typedef struct sl_cache_dims {
    const struct sl_row_format_desc *rows;
    sl_index_format index_format;
    int32_t latent, rope;                       /* MLA: kv_lora_rank, qk_rope_head_dim */
    int32_t kv_heads, head_dim;                 /* attention with keys and values by head */
    int32_t query_heads;                        /* a multiple of kv_heads; not a part of the cache */
    int32_t index_dim, index_heads, index_topk; /* 0: the model has no indexer */
    /* Index keys that select blocks: the tokens of a block (0: they select tokens), and how many of the newest blocks are always
     * selected. index_topk counts tokens all the same. */
    int32_t index_block, index_local;
    int32_t
        index_unit; /* tokens of an index key (kernels/pooled.h); 0: every token has one, in index_format */
    /* What a sparse algorithm selects (sl_algo_cache_shape() sets it): the tokens of a row, 0 for one, and whether
     * every KV head has rows of its own. A format that cannot divide its rows in this way leaves them whole. */
    sl_list_scope row_scope;
    int32_t row_tokens;
    sl_select_options select; /* read by the sparse algorithm only */
    /* The classes of the model's layers, sl_model_config.layer_class counts them. None: every layer has rows of tokens. */
    int32_t n_classes;
    sl_layer_class classes[SL_MODEL_CLASSES];
} sl_cache_dims;

/* Makes the plane of rows and, if index_dim is set, the plane of the model's index keys. A selector adds planes of
 * its own. */
sl_status sl_cache_shape_make(const sl_cache_dims *d, sl_cache_shape *out, sl_err *err);

typedef struct sl_row_format_desc {
    const char *name, *description;
    sl_row_format format;
    sl_attn_kind attn; /* the attention that reads such rows */
    /* Fills the plane of rows, except its name, format and role. */
    sl_status (*plane)(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err);
} sl_row_format_desc;

const sl_row_format_desc *sl_row_format_find(const char *name);
const char *const *sl_row_format_names(void);
/* "?" for a number that is no format. */
const char *sl_row_format_name(sl_row_format f);
const sl_row_format_desc *sl_row_format_of(sl_row_format f); /* NULL for a number that is no format */

typedef struct sl_index_format_desc {
    const char *name, *description;
    sl_index_format format;
} sl_index_format_desc;

const sl_index_format_desc *sl_index_format_find(const char *name);
const char *const *sl_index_format_names(void);
const char *sl_index_format_name(sl_index_format f);

/* Which hot row is replaced by a missing one (SL_OP_RESOLVE). */
typedef struct sl_evict_policy_desc {
    const char *name, *description;
    sl_evict_policy policy;
} sl_evict_policy_desc;

const sl_evict_policy_desc *sl_evict_policy_find(const char *name);
const char *const *sl_evict_policy_names(void);
const char *sl_evict_policy_name(sl_evict_policy p);

#endif
