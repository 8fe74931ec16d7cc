/*
 * Placing of weights: a tensor stays in the mapped file where the backend can read it there, else it is copied into one
 * block, converted if need be.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/formats.h"
#include "model/weights_impl.h"

#define ALIGN 256
#define COPY_PIECE ((size_t)64 << 20)
#define REPORT_NS 500000000ull

sl_status sl_place(sl_loader *l, const void *src, size_t bytes, size_t align, const void **dst)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1024;
        sl_placement *grown = realloc(l->places, cap * sizeof *grown);
        if (!grown)
            return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for the list of weights");
        l->places = grown;
        l->cap = cap;
    }
    l->places[l->n++] = (sl_placement){.src = src, .bytes = bytes, .align = align, .dst = dst};
    l->w->bytes += bytes;
    return SL_OK;
}

static size_t multiplier_bytes(const sl_weight *w)
{
    int64_t rows = (w->out + SL_F8_BLOCK - 1) / SL_F8_BLOCK, cols = (w->in + SL_F8_BLOCK - 1) / SL_F8_BLOCK;
    if (w->scale_type == SL_SCALE_BLOCKS)
        return w->scale ? (size_t)(rows * cols) * sizeof(float) : 0;
    return (size_t)(w->out * sl_weight_groups(w)) * sl_scale_size(w->scale_type);
}

/*
 * Absorption defines kv_b for its values rounded to BF16 when activations are BF16 (kernels/params.h); the conversion
 * happens once instead of in every step.
 */
static sl_status place_as_bf16(sl_loader *l, const sl_weight *stored, sl_weight *out)
{
    *out = (sl_weight){.out = stored->out, .in = stored->in, .dtype = SL_BF16};
    SL_TRY(sl_place(l, stored->data, (size_t)sl_dtype_bytes(stored->dtype, (int64_t)stored->out * stored->in),
                    1, &out->data));
    sl_placement *p = &l->places[l->n - 1];
    p->items = (size_t)stored->out * (size_t)stored->in;
    p->to = SL_BF16;
    p->weight = *stored;
    return SL_OK;
}

sl_status sl_weights_place_one(sl_loader *l, const sl_weight *stored, sl_weight *out)
{
    const size_t size = sl_dtype_size(stored->dtype), more = multiplier_bytes(stored);
    *out = *stored;
    out->data = NULL, out->scale = NULL;
    if (l->elsewhere)
        return SL_OK;
    if (l->to_bf16 && stored->scale)
        return place_as_bf16(l, stored, out);
    SL_TRY(sl_place(l, stored->data, (size_t)sl_dtype_bytes(stored->dtype, (int64_t)stored->out * stored->in),
                    size ? size : 1, &out->data));
    return more ? sl_place(l, stored->scale, more, sl_scale_size(stored->scale_type),
                           (const void **)&out->scale)
                : SL_OK;
}

/* Whether the ops can read the bytes where the file is mapped. */
static bool stays(const sl_loader *l, const sl_placement *p)
{
    return (sl_backend_caps(l->be) & SL_BE_UNIFIED) && !p->items && !p->map &&
           (uintptr_t)p->src % p->align == 0;
}

size_t sl_placed_bytes(const sl_placement *p)
{
    if (p->map)
        return p->items ? (size_t)p->rows * sl_dtype_size(p->to) : (size_t)p->rows * p->row_bytes;
    return p->items ? p->items * sl_dtype_size(p->to) : p->bytes;
}

static void report(const sl_loader *l, uint64_t done, uint64_t *last_ns, bool end)
{
    uint64_t now = sl_now_ns();
    if (!l->o->progress || (!end && now - *last_ns < REPORT_NS))
        return;
    *last_ns = now;
    l->o->progress(l->o->progress_ctx, done, l->w->bytes);
}

/* The values of a whole placement as `to`, in `all`. row: memory for one row of a weight. */
static void convert(const sl_placement *p, float *row, void *all)
{
    if (p->weight.data)
        for (int64_t r = 0; r < p->weight.out; r++) {
            sl_weight_load_row(&p->weight, r, SL_BF16, row);
            sl_store_f32(p->to, row, p->weight.in, all, r * p->weight.in);
        }
    else
        sl_load_f32(p->from, p->src, 0, (int64_t)p->items, all);
    for (size_t i = 0; p->plus != 0 && i < p->items; i++)
        ((float *)all)[i] += p->plus;
}

static sl_status copy_converted(sl_loader *l, const sl_placement *p, void *dst)
{
    size_t bytes = sl_placed_bytes(p);
    void *all = malloc(bytes);
    float *row = malloc((size_t)(p->weight.data ? p->weight.in : 1) * sizeof *row);
    sl_status rc = SL_OK;
    if (!all || !row)
        rc = sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory to convert weights");
    else
        convert(p, row, all);
    if (rc == SL_OK)
        rc = sl_be_copy(l->be, dst, all, bytes, l->err);
    if (rc == SL_OK)
        rc = sl_be_sync(l->be, l->err);
    free(row);
    free(all);
    return rc;
}

/* Rows in another order. Of a tensor that is converted the rows are single values, which become float32. */
static sl_status copy_mapped(sl_loader *l, const sl_placement *p, void *dst)
{
    uint8_t *all = malloc(sl_placed_bytes(p));
    if (!all)
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory to reorder weights");
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t from = p->map->row_of(l->c, r);
        if (p->items) {
            sl_load_f32(p->from, p->src, from, 1, (float *)(void *)all + r);
            ((float *)(void *)all)[r] += p->plus;
        } else
            memcpy(all + (size_t)r * p->row_bytes, (const uint8_t *)p->src + (size_t)from * p->row_bytes,
                   p->row_bytes);
    }
    sl_status rc = sl_be_copy(l->be, dst, all, sl_placed_bytes(p), l->err);
    if (rc == SL_OK)
        rc = sl_be_sync(l->be, l->err);
    free(all);
    return rc;
}

static sl_status copy_plain(sl_loader *l, const sl_placement *p, uint8_t *dst, uint64_t done,
                            uint64_t *last_ns)
{
    sl_status rc = SL_OK;
    for (size_t at = 0; rc == SL_OK && at < p->bytes; at += COPY_PIECE) {
        size_t n = p->bytes - at < COPY_PIECE ? p->bytes - at : COPY_PIECE;
        rc = sl_be_copy(l->be, dst + at, (const uint8_t *)p->src + at, n, l->err);
        report(l, done + at, last_ns, false);
    }
    return rc;
}

sl_status sl_weights_place_all(sl_loader *l)
{
    size_t total = 0;
    uint64_t done = 0, last_ns = sl_now_ns();
    for (size_t i = 0; i < l->n; i++)
        if (!stays(l, &l->places[i]))
            total += (sl_placed_bytes(&l->places[i]) + ALIGN - 1) / ALIGN * ALIGN;
    sl_status rc = total ? sl_be_alloc(l->be, SL_MEM_DEVICE, total, &l->w->block, l->err) : SL_OK;
    if (rc != SL_OK)
        return sl_fail_in(l->err, rc, "%s: %zu bytes of weights", sl_checkpoint_dir(l->ck), total);
    uint8_t *next = l->w->block;
    for (size_t i = 0; rc == SL_OK && i < l->n; i++) {
        sl_placement *p = &l->places[i];
        *p->dst = p->src;
        if (!stays(l, p)) {
            *p->dst = next;
            rc = p->map     ? copy_mapped(l, p, next)
                 : p->items ? copy_converted(l, p, next)
                            : copy_plain(l, p, next, done, &last_ns);
            next += (sl_placed_bytes(p) + ALIGN - 1) / ALIGN * ALIGN;
        }
        done += p->bytes;
        report(l, done, &last_ns, false);
    }
    if (rc == SL_OK)
        rc = sl_be_sync(l->be, l->err);
    if (rc == SL_OK)
        report(l, done, &last_ns, true);
    return rc;
}
