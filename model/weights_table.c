/*
 * Tables that stay in host memory (sl_table_spec): rows by hashed ids, of which a step reads a few. A table of a large model has a
 * hundred gigabytes, in hundreds of tensors; where the backend's memory is the host's, nothing is copied.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"
#include "kernels/ngram.h"
#include "model/weights_impl.h"

/* A table in the files. */
typedef struct sl_bound_table {
    int32_t layer, n;
    sl_st_dtype dtype;
    const void *shards[SL_NGRAM_SHARDS_MAX];
    int64_t ends[SL_NGRAM_SHARDS_MAX];
    int64_t cols;
} sl_bound_table;

static bool float_type(sl_st_dtype d, sl_dtype *out)
{
    *out = d == SL_ST_F32 ? SL_F32 : d == SL_ST_BF16 ? SL_BF16 : SL_F16;
    return d == SL_ST_F32 || d == SL_ST_BF16 || d == SL_ST_F16;
}

static sl_status add_shard(const sl_loader *l, sl_bound_table *b, sl_ck_tensor *t)
{
    sl_dtype type;
    if (t->t->rank != 2 || t->t->shape[1] != b->cols || t->t->shape[0] < 1 ||
        !float_type(t->t->dtype, &type) || (b->n > 0 && t->t->dtype != b->dtype))
        return sl_fail(l->err, SL_ERR_INVALID,
                       "%s: tensor %s: not rows of %lld values in F32, BF16 or F16, all shards in the same",
                       sl_st_label(t->file), t->t->name, (long long)b->cols);
    t->used = true, t->expert = SL_CK_COMMON;
    b->dtype = t->t->dtype;
    b->shards[b->n] = t->t->data;
    b->ends[b->n] = (b->n ? b->ends[b->n - 1] : 0) + t->t->shape[0];
    b->n++;
    l->w->table_bytes += t->t->bytes;
    return SL_OK;
}

static int64_t number(const sl_placement *p, int64_t i)
{
    int64_t v;
    memcpy(&v, (const uint8_t *)p->src + 8 * i, sizeof v);
    return v;
}

/* Where the file has what will be placed at an address. */
static const sl_placement *source_of(const sl_loader *l, const sl_weight *w)
{
    for (size_t i = l->n; i > 0; i--)
        if (l->places[i - 1].dst == &w->data)
            return &l->places[i - 1];
    return NULL;
}

/* Every hash must be a row of the table. */
static sl_status check_parts(const sl_loader *l, const sl_table_spec *s, const sl_bound_table *b,
                             const char *name)
{
    const sl_weight *w = l->w->layers[b->layer].w;
    const sl_placement *sizes = source_of(l, &w[s->sizes]), *offsets = source_of(l, &w[s->offsets]);
    const int64_t rows = b->ends[b->n - 1];
    for (int64_t i = 0; sizes && offsets && i < w[s->sizes].out; i++) {
        const int64_t size = number(sizes, i), at = number(offsets, i);
        if (size < 1 || at < 0 || at > rows || size > rows - at)
            return sl_fail(l->err, SL_ERR_INVALID,
                           "%s: tensor %s: part %lld has %lld rows from row %lld on, the table has %lld",
                           sl_checkpoint_dir(l->ck), name, (long long)i, (long long)size, (long long)at,
                           (long long)rows);
    }
    return SL_OK;
}

sl_status sl_bind_table(sl_loader *l, const sl_table_spec *s, int32_t layer)
{
    char name[160];
    sl_bound_table *grown = realloc(l->tables, (l->n_tables + 1) * sizeof *grown);
    if (!grown)
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for the list of tables");
    l->tables = grown;
    sl_bound_table *b = &grown[l->n_tables++];
    b->layer = layer, b->n = 0, b->cols = s->cols(l->c);
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, s->name);
    sl_ck_tensor *t = sl_checkpoint_find(l->ck, name);
    if (t)
        SL_TRY(add_shard(l, b, t));
    while (!t && b->n < SL_NGRAM_SHARDS_MAX) {
        snprintf(name, sizeof name, "model.layers.%d.%s.shard_%d.weight", layer, s->name, b->n);
        sl_ck_tensor *shard = sl_checkpoint_find(l->ck, name);
        if (!shard)
            break;
        SL_TRY(add_shard(l, b, shard));
    }
    if (b->n == 0)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s is missing", sl_checkpoint_dir(l->ck), name);
    return check_parts(l, s, b, name);
}

/* Copies the shards one after the other, which become one. */
static void copy_shards(sl_bound_table *b, uint8_t **next)
{
    sl_dtype type;
    (void)float_type(b->dtype, &type);
    const size_t row = (size_t)b->cols * sl_dtype_size(type);
    const void *first = *next;
    for (int32_t i = 0; i < b->n; i++) {
        const size_t bytes = (size_t)(b->ends[i] - (i ? b->ends[i - 1] : 0)) * row;
        memcpy(*next, b->shards[i], bytes);
        *next += bytes;
    }
    b->ends[0] = b->ends[b->n - 1], b->shards[0] = first, b->n = 1;
}

static bool stays(const sl_loader *l, const sl_bound_table *b)
{
    sl_dtype type;
    (void)float_type(b->dtype, &type);
    bool aligned = true;
    for (int32_t i = 0; i < b->n; i++)
        aligned = aligned && (uintptr_t)b->shards[i] % sl_dtype_size(type) == 0;
    return aligned && (sl_backend_caps(l->be) & SL_BE_UNIFIED);
}

static sl_status place_table(sl_loader *l, const sl_bound_table *b)
{
    sl_host_table *t = &l->w->layers[b->layer].table;
    const size_t pointers = sizeof(void *) * (size_t)b->n, ends = sizeof(int64_t) * (size_t)b->n;
    t->n_shards = b->n, t->rows = b->ends[b->n - 1];
    (void)float_type(b->dtype, &t->dtype);
    SL_TRY(sl_be_alloc(l->be, SL_MEM_DEVICE, pointers + ends, (void **)&t->shards, l->err));
    t->shard_rows = (int64_t *)(void *)((uint8_t *)t->shards + pointers);
    SL_TRY(sl_be_copy(l->be, (void *)t->shards, (const void *)b->shards, pointers, l->err));
    SL_TRY(sl_be_copy(l->be, t->shard_rows, b->ends, ends, l->err));
    return sl_be_sync(l->be, l->err);
}

sl_status sl_weights_place_tables(sl_loader *l)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < l->n_tables; i++) {
        sl_dtype type;
        const sl_bound_table *b = &l->tables[i];
        (void)float_type(b->dtype, &type);
        if (!stays(l, b))
            bytes += (uint64_t)b->ends[b->n - 1] * (uint64_t)b->cols * sl_dtype_size(type) + 256;
    }
    if (bytes)
        SL_TRY(sl_be_alloc(l->be, SL_MEM_HOST, bytes, &l->w->tables, l->err));
    uint8_t *next = l->w->tables;
    for (size_t i = 0; i < l->n_tables; i++) {
        if (!stays(l, &l->tables[i])) {
            next = (uint8_t *)(((uintptr_t)next + 255) & ~(uintptr_t)255);
            copy_shards(&l->tables[i], &next);
        }
        SL_TRY(place_table(l, &l->tables[i]));
    }
    return SL_OK;
}

void sl_end_tables(sl_loader *l)
{
    free(l->tables);
    l->tables = NULL, l->n_tables = 0;
}

void sl_free_tables(sl_weights *w)
{
    for (int32_t i = 0; w->layers && i < w->n_layers; i++)
        if (w->layers[i].table.shards)
            sl_be_free(w->be, SL_MEM_DEVICE, (void *)w->layers[i].table.shards);
    if (w->tables)
        sl_be_free(w->be, SL_MEM_HOST, w->tables);
}
