/* Shapes of cache and the registries of formats and policies; see cache.h. A new format is a row of its table. */
#include "kernels/cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formats.h"
#include "kernels/row_codec.h"

/* ---- row formats ---- */

enum { MAX_HEADS = 1024, MAX_LATENT = 4096, MAX_ROPE = 1024, MAX_INDEX_DIM = 1024 };

static sl_cache_part part(const char *name, sl_dtype dtype, int32_t count)
{
    sl_cache_part p = {.dtype = dtype, .per = SL_PER_TOKEN, .count = count};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

/* One unit per token, shared by all heads. */
static sl_status mla_plane(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err)
{
    if (d->latent < 1 || d->latent > MAX_LATENT)
        return sl_fail(err, SL_ERR_INVALID, "row format %s: kv_lora_rank %d is not in 1..%d", d->rows->name,
                       d->latent, MAX_LATENT);
    if (d->rope < 0 || d->rope > MAX_ROPE)
        return sl_fail(err, SL_ERR_INVALID, "qk_rope_head_dim %d is not in 0..%d", d->rope, MAX_ROPE);
    *out = (sl_cache_plane){.scope = SL_SCOPE_REQUEST, .heads = 1, .unit_tokens = 1};
    return SL_OK;
}

static void add_part(sl_cache_plane *p, sl_cache_part one)
{
    if (one.count > 0)
        p->parts[p->n_parts++] = one;
}

static sl_status latent_plane(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err)
{
    const sl_row_codec *c = sl_row_codec_of(d->rows->format);
    SL_TRY(mla_plane(d, out, err));
    add_part(out, part("latent", c->values, d->latent));
    if (c->group)
        add_part(out, part("scale", SL_F32, (d->latent + c->group - 1) / c->group));
    add_part(out, part("rope", c->rope, d->rope));
    return SL_OK;
}

static int32_t heads_in_row(const sl_cache_dims *d)
{
    return d->row_scope == SL_SCOPE_KV_HEAD ? 1 : d->kv_heads;
}

/* One unit per token with the keys and values of all KV heads, or what the selection wants instead. */
static sl_status gqa_plane(const sl_cache_dims *d, sl_dtype dtype, sl_cache_plane *out, sl_err *err)
{
    if (d->kv_heads < 1 || d->kv_heads > MAX_HEADS)
        return sl_fail(
            err, SL_ERR_INVALID,
            "row format %s stores keys and values by head, but the model's number of KV heads is %d",
            d->rows->name, d->kv_heads);
    if (d->head_dim < 2 || d->head_dim > MAX_ROPE || d->head_dim % 2)
        return sl_fail(err, SL_ERR_INVALID, "head_dim %d is odd or not in 2..%d", d->head_dim, MAX_ROPE);
    bool by_head = d->row_scope == SL_SCOPE_KV_HEAD;
    *out = (sl_cache_plane){.scope = by_head ? SL_SCOPE_KV_HEAD : SL_SCOPE_REQUEST,
                            .heads = by_head ? d->kv_heads : 1,
                            .unit_tokens = d->row_tokens > 0 ? d->row_tokens : 1};
    add_part(out, part("k", dtype, heads_in_row(d) * d->head_dim));
    add_part(out, part("v", dtype, heads_in_row(d) * d->head_dim));
    return SL_OK;
}

/* Zeros up to a multiple of `align` bytes, as sl_gqa_row_bytes() has them. */
static sl_status fill_up(sl_cache_plane *p, int32_t align)
{
    const int32_t more = (int32_t)(-sl_cache_unit_bytes(p) & (align - 1));
    add_part(p, (sl_cache_part){.name = "fill", .dtype = SL_I8, .per = SL_PER_OPEN_UNIT, .count = more});
    return SL_OK;
}

static sl_status heads_plane(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err)
{
    const sl_row_codec *c = sl_row_codec_of(d->rows->format);
    SL_TRY(gqa_plane(d, c->values, out, err));
    if (c->group) {
        add_part(out, part("scale_k", SL_F32, heads_in_row(d)));
        add_part(out, part("scale_v", SL_F32, heads_in_row(d)));
    }
    return fill_up(out, c->align);
}

static const sl_row_format_desc rows[] = {
    {"mla_f32", "latent and RoPE part as float32", SL_ROW_MLA_F32, SL_ATTN_MLA, latent_plane},
    {"mla_bf16", "latent and RoPE part as bf16", SL_ROW_MLA_BF16, SL_ATTN_MLA, latent_plane},
    {"mla_fp8", "latent as e4m3 with a power-of-two scale per 128 values, RoPE part as bf16", SL_ROW_MLA_FP8,
     SL_ATTN_MLA, latent_plane},
    {"gqa_f32", "keys and values of all KV heads as float32", SL_ROW_GQA_F32, SL_ATTN_GQA, heads_plane},
    {"gqa_bf16", "keys and values of all KV heads as bf16", SL_ROW_GQA_BF16, SL_ATTN_GQA, heads_plane},
    {"gqa_fp8", "keys and values as e4m3 with a power-of-two scale per token and head", SL_ROW_GQA_FP8,
     SL_ATTN_GQA, heads_plane},
};
static const char *const row_names[] = {"mla_f32",  "mla_bf16", "mla_fp8", "gqa_f32",
                                        "gqa_bf16", "gqa_fp8",  NULL};

/* ---- other formats and policies ---- */

static const sl_index_format_desc indexes[] = {
    {"plain", "float32 keys and scores, no Hadamard transform", SL_INDEX_PLAIN},
    {"official", "Hadamard transform, then e4m3 with a power-of-two scale per key", SL_INDEX_OFFICIAL},
};
static const char *const index_names[] = {"plain", "official", NULL};

static const sl_evict_policy_desc policies[] = {
    {"lru", "the least recently used row", SL_EVICT_LRU},
    {"clock", "the next row, in a circle, that was not used since the hand last passed it", SL_EVICT_CLOCK},
};
static const char *const policy_names[] = {"lru", "clock", NULL};

/* A registry is three functions over a table and its list of names; tests/unit/kernels/test_cache.c checks that the two
 * agree. */
#define REGISTRY(type, table, names, field, enumeration)                                                     \
    const type##_desc *type##_find(const char *name)                                                         \
    {                                                                                                        \
        for (size_t i = 0; name && i < SL_COUNT(table); i++)                                                 \
            if (strcmp(table[i].name, name) == 0)                                                            \
                return &table[i];                                                                            \
        return NULL;                                                                                         \
    }                                                                                                        \
    const char *const *type##_names(void)                                                                    \
    {                                                                                                        \
        return names;                                                                                        \
    }                                                                                                        \
    const char *type##_name(enumeration v)                                                                   \
    {                                                                                                        \
        for (size_t i = 0; i < SL_COUNT(table); i++)                                                         \
            if (table[i].field == v)                                                                         \
                return table[i].name;                                                                        \
        return "?";                                                                                          \
    }

REGISTRY(sl_row_format, rows, row_names, format, sl_row_format)
REGISTRY(sl_index_format, indexes, index_names, format, sl_index_format)
REGISTRY(sl_evict_policy, policies, policy_names, policy, sl_evict_policy)

const sl_row_format_desc *sl_row_format_of(sl_row_format f)
{
    return (unsigned)f < SL_COUNT(rows) ? &rows[f] : NULL;
}

/* ---- shapes ---- */

/* A key for each unit of tokens that is complete. */
static sl_status pooled_plane(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err)
{
    if (d->index_unit < 1 || SL_PAGE_TOKENS % d->index_unit)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "an index key of %d tokens: a page of %d tokens is no multiple of them", d->index_unit,
                       SL_PAGE_TOKENS);
    *out = (sl_cache_plane){.name = "index",
                            .format = "pooled",
                            .role = SL_PLANE_INDEX,
                            .scope = SL_SCOPE_REQUEST,
                            .indexed_only = true,
                            .heads = 1,
                            .unit_tokens = d->index_unit,
                            .n_parts = 1};
    out->parts[0] = part("key", SL_F32, d->index_dim);
    out->parts[0].per = SL_PER_CLOSED_UNIT;
    return SL_OK;
}

/* A block of 64 keys, then (official) their scales. */
static sl_status index_plane(const sl_cache_dims *d, sl_cache_plane *out, sl_err *err)
{
    if (d->index_dim < 1 || d->index_dim > MAX_INDEX_DIM)
        return sl_fail(err, SL_ERR_INVALID, "index_head_dim %d is not in 1..%d", d->index_dim, MAX_INDEX_DIM);
    if (d->index_unit)
        return pooled_plane(d, out, err);
    bool official = d->index_format == SL_INDEX_OFFICIAL;
    *out = (sl_cache_plane){.name = "index",
                            .role = SL_PLANE_INDEX,
                            .scope = SL_SCOPE_REQUEST,
                            .indexed_only = true,
                            .heads = 1,
                            .unit_tokens = SL_PAGE_TOKENS};
    snprintf(out->format, sizeof out->format, "%s", sl_index_format_name(d->index_format));
    add_part(out, part("key", official ? SL_F8_E4M3 : SL_F32, d->index_dim));
    if (official)
        add_part(out, part("scale", SL_F32, 1));
    return SL_OK;
}

sl_status sl_cache_shape_make(const sl_cache_dims *d, sl_cache_shape *out, sl_err *err)
{
    sl_cache_shape s = {.n_planes = 1};
    sl_cache_plane *r = &s.planes[SL_CACHE_ROWS];
    if (!d->rows)
        return sl_fail(err, SL_ERR_INVALID, "cache: the row format is unknown");
    if ((unsigned)d->index_format >= SL_COUNT(indexes))
        return sl_fail(err, SL_ERR_INVALID, "cache: index format %d is unknown", (int)d->index_format);
    SL_TRY(d->rows->plane(d, r, err));
    r->role = SL_PLANE_ROWS;
    snprintf(r->name, sizeof r->name, "rows");
    snprintf(r->format, sizeof r->format, "%s", d->rows->name);
    if (d->index_dim)
        SL_TRY(index_plane(d, &s.planes[s.n_planes++], err));
    SL_TRY(sl_cache_shape_check(&s, err));
    *out = s;
    return SL_OK;
}

int64_t sl_cache_part_bytes(const sl_cache_plane *p, int32_t i)
{
    const sl_cache_part *t = &p->parts[i];
    int64_t bytes = t->count * (int64_t)sl_dtype_size(t->dtype);
    return t->per == SL_PER_TOKEN ? bytes * sl_cache_segment_tokens(p) : bytes;
}

int64_t sl_cache_unit_bytes(const sl_cache_plane *p)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < p->n_parts; i++)
        bytes += sl_cache_part_bytes(p, i);
    return bytes;
}

int32_t sl_cache_page_units(const sl_cache_plane *p)
{
    return p->heads * (SL_PAGE_TOKENS / sl_cache_segment_tokens(p));
}

int64_t sl_cache_page_bytes(const sl_cache_plane *p)
{
    return sl_cache_page_units(p) * sl_cache_unit_bytes(p);
}

int32_t sl_cache_units(const sl_cache_plane *p, int32_t tokens)
{
    return p->heads * (tokens / p->unit_tokens + (tokens % p->unit_tokens != 0));
}

int32_t sl_cache_find_name(const sl_cache_shape *s, const char *name)
{
    for (int32_t i = 0; i < s->n_planes; i++)
        if (strcmp(s->planes[i].name, name) == 0)
            return i;
    return -1;
}

int32_t sl_cache_find(const sl_cache_shape *s, sl_plane_role role)
{
    for (int32_t i = 0; i < s->n_planes; i++)
        if (s->planes[i].role == role)
            return i;
    return -1;
}

/* ---- checks ---- */

enum { MAX_COUNT = 1 << 20 };

static sl_status check_part(const sl_cache_plane *p, const sl_cache_part *t, sl_err *err)
{
    if (!t->name[0] || !memchr(t->name, 0, sizeof t->name))
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: a part has no name", p->name);
    if ((unsigned)t->dtype > SL_I8 || (unsigned)t->per > SL_PER_CLOSED_UNIT)
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: dtype %d or kind %d of part %s is unknown",
                       p->name, (int)t->dtype, (int)t->per, t->name);
    if (t->count < 1 || t->count > MAX_COUNT)
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: %d elements of part %s, 1..%d are possible",
                       p->name, t->count, t->name, MAX_COUNT);
    return SL_OK;
}

static sl_status check_plane(const sl_cache_shape *s, int32_t i, sl_err *err)
{
    const sl_cache_plane *p = &s->planes[i];
    if (!p->name[0] || !memchr(p->name, 0, sizeof p->name) || !memchr(p->format, 0, sizeof p->format))
        return sl_fail(err, SL_ERR_INVALID, "cache plane %d has no name", i);
    for (int32_t k = 0; k < i; k++)
        if (strcmp(s->planes[k].name, p->name) == 0)
            return sl_fail(err, SL_ERR_INVALID, "cache plane %s exists twice", p->name);
    if ((unsigned)p->role > SL_PLANE_BLOCKS || (p->role == SL_PLANE_ROWS) != (i == SL_CACHE_ROWS))
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: role %d; plane 0 and no other holds rows",
                       p->name, (int)p->role);
    if ((p->role == SL_PLANE_ROWS || p->role == SL_PLANE_BLOCKS) && p->indexed_only)
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: every layer of its class has rows", p->name);
    if ((unsigned)p->scope > SL_SCOPE_KV_HEAD)
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: scope %d is neither the request nor a KV head",
                       p->name, (int)p->scope);
    if (p->heads < 1 || p->heads > MAX_HEADS || (p->scope == SL_SCOPE_REQUEST && p->heads != 1))
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: %d heads", p->name, p->heads);
    if (p->unit_tokens < 1 || p->unit_tokens > SL_CACHE_UNIT_MAX ||
        (SL_PAGE_TOKENS % p->unit_tokens && p->unit_tokens % SL_PAGE_TOKENS))
        return sl_fail(
            err, SL_ERR_INVALID,
            "cache plane %s: a unit of %d tokens is neither a whole fraction nor a whole multiple of a "
            "page of %d, or it is above %d",
            p->name, p->unit_tokens, SL_PAGE_TOKENS, SL_CACHE_UNIT_MAX);
    if (p->n_parts < 1 || p->n_parts > SL_CACHE_PARTS)
        return sl_fail(err, SL_ERR_INVALID, "cache plane %s: %d parts, 1..%d are possible", p->name,
                       p->n_parts, SL_CACHE_PARTS);
    for (int32_t k = 0; k < p->n_parts; k++)
        SL_TRY(check_part(p, &p->parts[k], err));
    return SL_OK;
}

sl_status sl_cache_shape_check(const sl_cache_shape *s, sl_err *err)
{
    if (s->n_planes < 1 || s->n_planes > SL_CACHE_PLANES)
        return sl_fail(err, SL_ERR_INVALID, "cache: %d planes, 1..%d are possible", s->n_planes,
                       SL_CACHE_PLANES);
    for (int32_t i = 0; i < s->n_planes; i++)
        SL_TRY(check_plane(s, i, err));
    return SL_OK;
}

const char *sl_layer_kind_name(sl_layer_kind k)
{
    static const char *const kinds[] = {"tokens", "blocks", "ring", "state"};
    return (unsigned)k < SL_COUNT(kinds) ? kinds[k] : "?";
}

sl_status sl_layer_state_check(const char *name, sl_layer_kind kind, int32_t window, const sl_layer_state *s,
                               sl_err *err)
{
    const bool alone = kind == SL_LAYER_RING || kind == SL_LAYER_STATE;
    if ((unsigned)kind > SL_LAYER_STATE)
        return sl_fail(err, SL_ERR_INVALID, "layer class %s: kind %d is unknown", name, (int)kind);
    if (s->bytes < alone || s->bytes > SL_STATE_BYTES_MAX)
        return sl_fail(err, SL_ERR_INVALID,
                       "layer class %s: a state of %" PRId64 " bytes, %d..%d are possible for %s", name,
                       s->bytes, (int)alone, SL_STATE_BYTES_MAX, sl_layer_kind_name(kind));
    if (!memchr(s->format, 0, sizeof s->format) || (s->format[0] != 0) != (s->bytes > 0))
        return sl_fail(err, SL_ERR_INVALID, "layer class %s: a state has a format, and nothing else has",
                       name);
    SL_TRY(sl_layer_state_check_parts(name, s, err));
    if (window < (kind == SL_LAYER_RING) || window > SL_CACHE_UNIT_MAX || (window > 0 && s->bytes == 0) ||
        (window > 0 && kind == SL_LAYER_STATE))
        return sl_fail(err, SL_ERR_INVALID, "layer class %s: a ring of %d tokens in a layer of kind %s", name,
                       window, sl_layer_kind_name(kind));
    return SL_OK;
}

static sl_status differs(const sl_cache_plane *p, const char *field, int64_t mine, int64_t theirs,
                         sl_err *err)
{
    return sl_fail(err, SL_ERR_REFUSED, "cache plane %s: %s differs: %" PRId64 " here, %" PRId64 " there",
                   p->name, field, mine, theirs);
}

static sl_status named(const sl_cache_plane *p, const char *field, const char *mine, const char *theirs,
                       sl_err *err)
{
    return sl_fail(err, SL_ERR_REFUSED, "cache plane %s: %s differs: %s here, %s there", p->name, field, mine,
                   theirs);
}

static sl_status same_part(const sl_cache_plane *p, const sl_cache_part *a, const sl_cache_part *b,
                           sl_err *err)
{
    if (strcmp(a->name, b->name) != 0)
        return named(p, "part", a->name, b->name, err);
    if (a->count != b->count)
        return differs(p, a->name, a->count, b->count, err);
    if (a->dtype != b->dtype || a->per != b->per)
        return sl_fail(err, SL_ERR_REFUSED, "cache plane %s: element type of part %s differs", p->name,
                       a->name);
    return SL_OK;
}

static sl_status same_plane(const sl_cache_plane *a, const sl_cache_plane *b, sl_err *err)
{
    if (strcmp(a->name, b->name) != 0)
        return named(a, "name", a->name, b->name, err);
    if (strcmp(a->format, b->format) != 0)
        return named(a, "format", a->format, b->format, err);
    const struct {
        const char *field;
        int64_t mine, theirs;
    } numbers[] = {
        {"role", a->role, b->role},
        {"scope", a->scope, b->scope},
        {"indexed_only", a->indexed_only, b->indexed_only},
        {"heads", a->heads, b->heads},
        {"unit_tokens", a->unit_tokens, b->unit_tokens},
        {"parts", a->n_parts, b->n_parts},
        {"stamp", (int64_t)a->stamp, (int64_t)b->stamp},
    };
    for (size_t i = 0; i < SL_COUNT(numbers); i++)
        if (numbers[i].mine != numbers[i].theirs)
            return differs(a, numbers[i].field, numbers[i].mine, numbers[i].theirs, err);
    for (int32_t i = 0; i < a->n_parts; i++)
        SL_TRY(same_part(a, &a->parts[i], &b->parts[i], err));
    return SL_OK;
}

sl_status sl_cache_shape_compatible(const sl_cache_shape *mine, const sl_cache_shape *theirs, sl_err *err)
{
    for (int32_t i = 0; i < mine->n_planes && i < theirs->n_planes; i++)
        SL_TRY(same_plane(&mine->planes[i], &theirs->planes[i], err));
    if (mine->n_planes != theirs->n_planes)
        return sl_fail(err, SL_ERR_REFUSED, "number of cache planes differs: %d here, %d there",
                       mine->n_planes, theirs->n_planes);
    return SL_OK;
}

/* ---- walk ---- */

void sl_unit_walk_init(sl_unit_walk *w, const sl_cache_plane *p, int32_t begin, int32_t end, bool last,
                       bool dense)
{
    const int32_t size = sl_cache_segment_tokens(p);
    *w = (sl_unit_walk){.plane = p,
                        .begin = begin,
                        .end = end,
                        .last = last,
                        .dense = dense || size == SL_PAGE_TOKENS,
                        .unit = begin / size,
                        .n_units = begin < end ? (end + size - 1) / size : 0,
                        .unit_bytes = sl_cache_unit_bytes(p)};
}

static void next_unit(sl_unit_walk *w)
{
    w->part = 0, w->at = 0;
    if (++w->head == w->plane->heads)
        w->head = 0, w->unit++;
}

/* The valid bytes of one part, for tokens `from` to `to` - 1 of a segment. */
static sl_unit_run part_run(const sl_unit_walk *w, int32_t from, int32_t to)
{
    const sl_cache_part *t = &w->plane->parts[w->part];
    int64_t each = t->count * (int64_t)sl_dtype_size(t->dtype);
    sl_unit_run r = {.unit = w->unit, .head = w->head, .at = w->at};
    if (t->per == SL_PER_TOKEN)
        r.at += from * each, r.bytes = (to - from) * each;
    else if (to == sl_cache_segment_tokens(w->plane) || (w->last && t->per == SL_PER_OPEN_UNIT))
        r.bytes = each;
    return r;
}

bool sl_unit_walk_next(sl_unit_walk *w, sl_unit_run *out)
{
    const int32_t size = sl_cache_segment_tokens(w->plane);
    while (w->unit < w->n_units) {
        int32_t base = w->unit * size, from = w->begin > base ? w->begin - base : 0;
        int32_t to = w->end - base < size ? w->end - base : size;
        if (from == 0 && to == size) {
            /* neighbouring segments that are whole too */
            int32_t n = w->dense ? w->end / size - w->unit : 0;
            *out = (sl_unit_run){.unit = w->unit, .head = w->head, .bytes = w->unit_bytes};
            if (n > 0)
                out->bytes *= (int64_t)n * w->plane->heads, w->unit += n;
            else
                next_unit(w);
            return true;
        }
        *out = part_run(w, from, to);
        w->at += sl_cache_part_bytes(w->plane, w->part);
        if (++w->part == w->plane->n_parts)
            next_unit(w);
        if (out->bytes)
            return true;
    }
    return false;
}
