/*
 * Binding and placing of weights. A placement is one contiguous piece of a file and the pointer that will point to it
 * when it is placed. A fused tensor of experts has many placements.
 */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/ep.h"
#include "kernels/formats.h"

#define ALIGN 256
#define COPY_PIECE ((size_t)64 << 20)
#define REPORT_NS 500000000ull
#define BLOCK 128 /* of F8 scales */

typedef struct placement {
    const void *src;
    size_t bytes, align; /* in the file; of one value */
    size_t items;        /* > 0: convert this many values of `from` to `to`, F32 or BF16 */
    sl_dtype from, to;
    const float *scale; /* of F8 blocks, in the file; or NULL */
    int64_t cols;
    const sl_row_map *map; /* or NULL; then rows of the result and bytes of a row of the file */
    int64_t rows;
    size_t row_bytes;
    const void **dst;
} placement;

typedef struct loader {
    sl_backend *be;
    sl_checkpoint *ck;
    const sl_model_config *c;
    const sl_model_opts *o;
    sl_weights *w;
    sl_err *err;
    placement *places;
    size_t n, cap;
    bool elsewhere; /* what is bound now belongs to another rank: checked, not placed */
    int32_t expert; /* of what is bound now, as in sl_ck_tensor */
} loader;

static sl_status add_place(loader *l, const void *src, size_t bytes, size_t align, const void **dst)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1024;
        placement *grown = realloc(l->places, cap * sizeof *grown);
        if (!grown)
            return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for the list of weights");
        l->places = grown;
        l->cap = cap;
    }
    l->places[l->n++] = (placement){.src = src, .bytes = bytes, .align = align, .dst = dst};
    l->w->bytes += bytes;
    return SL_OK;
}

static bool weight_dtype(sl_st_dtype d, bool f8, sl_dtype *out)
{
    switch (d) {
    case SL_ST_F32:
        *out = SL_F32;
        return true;
    case SL_ST_BF16:
        *out = SL_BF16;
        return true;
    case SL_ST_F16:
        *out = SL_F16;
        return true;
    case SL_ST_F8_E4M3:
        *out = SL_F8_E4M3;
        return f8;
    default:
        return false;
    }
}

static sl_status find(loader *l, const char *name, sl_ck_tensor **out)
{
    *out = sl_checkpoint_find(l->ck, name);
    if (!*out)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s is missing", sl_checkpoint_dir(l->ck), name);
    (*out)->used = true;
    (*out)->expert = l->expert;
    return SL_OK;
}

/* The first of the names that the checkpoint has, of names that are separated by |; the first one if it has none. */
static void choose_name(const loader *l, const char *prefix, const char *names, char *out, size_t cap)
{
    for (const char *at = names;; at += strcspn(at, "|") + 1) {
        int n = (int)strcspn(at, "|");
        snprintf(out, cap, "%s%.*s", prefix, n, at);
        if (sl_checkpoint_find(l->ck, out))
            return;
        if (!at[n])
            break;
    }
    snprintf(out, cap, "%s%.*s", prefix, (int)strcspn(names, "|"), names);
}

/* Finds a tensor and checks that its shape is dims[rank]. */
static sl_status want(loader *l, const char *name, const int64_t *dims, int32_t rank, bool f8,
                      sl_ck_tensor **out, sl_dtype *dtype)
{
    SL_TRY(find(l, name, out));
    const sl_st_tensor *t = (*out)->t;
    char have[128] = "", need[128] = "";
    bool same = t->rank == rank;
    for (int32_t i = 0; i < rank; i++)
        same = same && t->shape[i] == dims[i];
    if (!same) {
        for (int32_t i = 0, at = 0; i < t->rank && at < 100; i++)
            at += snprintf(have + at, sizeof have - (size_t)at, i ? ",%lld" : "%lld", (long long)t->shape[i]);
        for (int32_t i = 0, at = 0; i < rank && at < 100; i++)
            at += snprintf(need + at, sizeof need - (size_t)at, i ? ",%lld" : "%lld", (long long)dims[i]);
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: shape [%s], the config asks for [%s]",
                       sl_st_label((*out)->file), name, have, need);
    }
    if (!weight_dtype(t->dtype, f8, dtype))
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: dtype %s is not allowed here",
                       sl_st_label((*out)->file), name, sl_st_dtype_name(t->dtype));
    return SL_OK;
}

/* Finds the scale of an F8 tensor, or checks that another tensor has none. */
static sl_status want_scale(loader *l, const char *name, const sl_ck_tensor *of, int64_t experts,
                            int64_t rows, int64_t cols, const float **out)
{
    char sname[SL_ST_MAX_NAME + 32];
    snprintf(sname, sizeof sname, "%s_scale_inv", name);
    sl_ck_tensor *s = sl_checkpoint_find(l->ck, sname);
    *out = NULL;
    if (of->t->dtype != SL_ST_F8_E4M3) {
        if (s)
            return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: %s is %s, which has no scale",
                           sl_st_label(s->file), sname, name, sl_st_dtype_name(of->t->dtype));
        return SL_OK;
    }
    int64_t r = (rows + BLOCK - 1) / BLOCK, k = (cols + BLOCK - 1) / BLOCK;
    int64_t flat[2] = {r, k}, fused[3] = {experts, r, k};
    sl_dtype d;
    SL_TRY(experts ? want(l, sname, fused, 3, false, &s, &d) : want(l, sname, flat, 2, false, &s, &d));
    if (d != SL_F32)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: dtype %s, a scale must be F32",
                       sl_st_label(s->file), sname, sl_st_dtype_name(s->t->dtype));
    *out = s->t->data;
    return SL_OK;
}

static size_t scale_bytes(int64_t rows, int64_t cols)
{
    return (size_t)((rows + BLOCK - 1) / BLOCK * ((cols + BLOCK - 1) / BLOCK)) * sizeof(float);
}

static sl_status place_weight(loader *l, const void *data, const float *scale, sl_dtype dtype, int64_t rows,
                              int64_t cols, sl_weight *out)
{
    *out = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = dtype};
    if (l->elsewhere)
        return SL_OK;
    size_t size = sl_dtype_size(dtype);
    SL_TRY(add_place(l, data, (size_t)(rows * cols) * size, size, &out->data));
    if (!scale)
        return SL_OK;
    return add_place(l, scale, scale_bytes(rows, cols), sizeof(float), (const void **)&out->scale);
}

/* A [rows][cols] tensor of any weight dtype. */
static sl_status bind_matrix(loader *l, const char *name, int64_t rows, int64_t cols, bool f8, sl_weight *out)
{
    int64_t dims[2] = {rows, cols};
    sl_ck_tensor *t;
    sl_dtype dtype;
    const float *scale;
    SL_TRY(want(l, name, dims, 2, f8, &t, &dtype));
    SL_TRY(want_scale(l, name, t, 0, rows, cols, &scale));
    return place_weight(l, t->t->data, scale, dtype, rows, cols, out);
}

static sl_status bind_vector(loader *l, const char *name, int64_t n, bool floats, sl_weight *out)
{
    sl_ck_tensor *t;
    sl_dtype dtype;
    SL_TRY(want(l, name, &n, 1, false, &t, &dtype));
    SL_TRY(place_weight(l, t->t->data, NULL, dtype, n, 1, out));
    if (floats && dtype != SL_F32) {
        l->places[l->n - 1].items = (size_t)n;
        l->places[l->n - 1].from = dtype;
        l->places[l->n - 1].to = SL_F32;
        out->dtype = SL_F32;
    }
    return SL_OK;
}

static sl_status bind_rows(loader *l, const sl_tensor_spec *s, const char *name, int64_t rows, sl_weight *out)
{
    if (s->kind == SL_K_VECTOR || s->kind == SL_K_FLOATS)
        return bind_vector(l, name, rows, s->kind == SL_K_FLOATS, out);
    return bind_matrix(l, name, rows, s->cols(l->c), s->kind == SL_K_LINEAR, out);
}

/* Whether no row leaves its block, so that the scales of F8 blocks stay as they are. */
static bool keeps_blocks(const loader *l, const sl_row_map *map, int64_t rows)
{
    bool kept = map->file_rows(l->c) == rows;
    for (int64_t r = 0; kept && r < rows; r++)
        kept = map->row_of(l->c, r) / BLOCK == r / BLOCK;
    return kept;
}

/* The tensor that was bound last, of all rows of the file, becomes its rows in another order, or some of them. */
static sl_status bind_map(loader *l, const sl_tensor_spec *s, const char *name, const sl_row_map *map,
                          sl_weight *out)
{
    int64_t rows = s->rows(l->c), file_rows = map->file_rows(l->c);
    bool f8 = out->dtype == SL_F8_E4M3;
    placement *p = &l->places[l->n - (f8 ? 2 : 1)];
    if (f8 && !keeps_blocks(l, map, rows))
        return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                       "%s: tensor %s: its rows must be reordered beyond the F8 blocks of %d rows",
                       sl_checkpoint_dir(l->ck), name, BLOCK);
    p->map = map, p->rows = rows, p->row_bytes = p->bytes / (size_t)file_rows;
    l->w->bytes -= p->bytes - p->row_bytes * (size_t)rows;
    out->out = (int32_t)rows;
    return SL_OK;
}

static sl_status bind_spec(loader *l, const sl_tensor_spec *s, const char *name, const sl_row_map *map,
                           sl_weight *out)
{
    SL_TRY(bind_rows(l, s, name, map ? map->file_rows(l->c) : s->rows(l->c), out));
    return map ? bind_map(l, s, name, map, out) : SL_OK;
}

/* Whether another rank of the group holds routed expert e. */
static bool is_elsewhere(const loader *l, int32_t e)
{
    const sl_weights *w = l->w;
    return e < w->expert_first[w->rank] || e >= w->expert_first[w->rank + 1];
}

/* One of the two fused expert tensors, [experts][parts * rows][cols], cut into its experts and parts. */
static sl_status bind_fused(loader *l, const char *name, int parts, int64_t rows, int64_t cols,
                            sl_weight *const *outs)
{
    int64_t e = l->c->n_routed_experts, dims[3] = {e, parts * rows, cols};
    sl_ck_tensor *t;
    sl_dtype dtype;
    const float *scale;
    l->expert = SL_CK_FUSED;
    SL_TRY(want(l, name, dims, 3, true, &t, &dtype));
    SL_TRY(want_scale(l, name, t, e, parts * rows, cols, &scale));
    if (scale && parts > 1 && rows % BLOCK)
        return sl_fail(
            l->err, SL_ERR_UNSUPPORTED,
            "%s: tensor %s: an F8 block would contain rows of gate and of up: %lld is no multiple of %d",
            sl_st_label(t->file), name, (long long)rows, BLOCK);
    const uint8_t *data = t->t->data;
    for (int64_t i = 0; i < e * parts; i++) {
        l->elsewhere = is_elsewhere(l, (int32_t)(i / parts));
        SL_TRY(place_weight(l, data, scale, dtype, rows, cols, &outs[i % parts][i / parts]));
        data += (size_t)(rows * cols) * sl_dtype_size(dtype);
        if (scale)
            scale += scale_bytes(rows, cols) / sizeof(float);
    }
    l->elsewhere = false;
    l->expert = SL_CK_COMMON;
    return SL_OK;
}

static sl_status bind_experts(loader *l, int32_t layer)
{
    const sl_model_config *c = l->c;
    sl_layer_weights *lw = &l->w->layers[layer];
    int64_t inter = c->moe_intermediate_size, hidden = c->hidden_size;
    char name[128], down[128];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    snprintf(down, sizeof down, "model.layers.%d.mlp.experts.down_proj", layer);
    if (sl_checkpoint_find(l->ck, name)) {
        sl_weight *both[2] = {lw->gate, lw->up}, *one[1] = {lw->down};
        SL_TRY(bind_fused(l, name, 2, inter, hidden, both));
        return bind_fused(l, down, 1, hidden, inter, one);
    }
    for (int32_t e = 0; e < c->n_routed_experts; e++) {
        static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
        sl_weight *outs[] = {&lw->gate[e], &lw->up[e], &lw->down[e]};
        l->elsewhere = is_elsewhere(l, e);
        l->expert = e;
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e, parts[p]);
            SL_TRY(bind_matrix(l, name, p < 2 ? inter : hidden, p < 2 ? hidden : inter, true, outs[p]));
        }
    }
    l->elsewhere = false;
    l->expert = SL_CK_COMMON;
    return SL_OK;
}

static sl_status bind_moe(loader *l, int32_t layer)
{
    sl_layer_weights *lw = &l->w->layers[layer];
    SL_TRY(bind_experts(l, layer));
    lw->quantised = true;
    for (int32_t e = 0; e < l->c->n_routed_experts; e++)
        lw->quantised = lw->quantised && lw->gate[e].dtype == SL_F8_E4M3 && lw->up[e].dtype == SL_F8_E4M3;
    return SL_OK;
}

/*
 * Converts the F8 weight that was bound last to BF16 at load: its values times their scales, rounded. This is how
 * absorption defines kv_b when activations are BF16 (kernels/params.h); the conversion happens once instead of in every
 * step.
 */
static void keep_as_bf16(loader *l, sl_weight *w)
{
    placement *p = &l->places[l->n - 2];
    p->items = (size_t)w->out * (size_t)w->in;
    p->from = SL_F8_E4M3, p->to = SL_BF16;
    p->scale = l->places[l->n - 1].src;
    p->cols = w->in;
    l->w->bytes -= l->places[--l->n].bytes;
    w->dtype = SL_BF16;
}

static sl_status bind_layer(loader *l, const sl_family *f, int32_t layer)
{
    char name[128], prefix[32];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    for (size_t i = 0; i < f->n_layer_tensors; i++) {
        const sl_tensor_spec *s = &f->layer_tensors[i];
        if (!sl_when_holds(s->when, l->c, layer))
            continue;
        choose_name(l, prefix, s->name, name, sizeof name);
        sl_weight *w = &l->w->layers[layer].w[s->slot];
        SL_TRY(bind_spec(l, s, name, f->row_map ? f->row_map(l->c, s->slot) : NULL, w));
        if ((s->flags & SL_SPEC_ABSORBED) && w->dtype == SL_F8_E4M3 && l->o->act == SL_BF16)
            keep_as_bf16(l, w);
    }
    return l->c->layer_is_moe[layer] ? bind_moe(l, layer) : SL_OK;
}

static sl_status alloc_tables(loader *l)
{
    const sl_model_config *c = l->c;
    size_t moe = 0, e = (size_t)c->n_routed_experts;
    for (int32_t i = 0; i < c->n_layers; i++)
        moe += c->layer_is_moe[i];
    l->w->rank = l->o->rank;
    l->w->ranks = l->o->ranks > 1 ? l->o->ranks : 1;
    if (moe && l->w->ranks > c->n_routed_experts)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: %d ranks share %d routed experts, every rank needs one",
                       sl_checkpoint_dir(l->ck), l->w->ranks, c->n_routed_experts);
    sl_ep_split(c->n_routed_experts, l->w->ranks, l->w->expert_first);
    l->w->layers = calloc((uint32_t)c->n_layers, sizeof *l->w->layers);
    l->w->experts = calloc(moe ? moe * e * 3 : 1, sizeof *l->w->experts);
    if (!l->w->layers || !l->w->experts)
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for the tables of %d layers", c->n_layers);
    sl_weight *next = l->w->experts;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!c->layer_is_moe[i])
            continue;
        l->w->layers[i].gate = next;
        l->w->layers[i].up = next + e;
        l->w->layers[i].down = next + 2 * e;
        next += 3 * e;
    }
    return SL_OK;
}

/* Finds every tensor of the model and decides where each is placed. The caller frees what was allocated, also after an
 * error. */
static sl_status bind_all(loader *l, const sl_family *f)
{
    l->expert = SL_CK_COMMON;
    SL_TRY(alloc_tables(l));
    for (size_t i = 0; i < f->n_model_tensors; i++) {
        const sl_tensor_spec *s = &f->model_tensors[i];
        char name[128];
        choose_name(l, "", s->name, name, sizeof name);
        if (s->slot != SL_T_HEAD || !l->c->tie_word_embeddings)
            SL_TRY(bind_spec(l, s, name, NULL, &l->w->w[s->slot]));
    }
    for (int32_t i = 0; i < l->c->n_layers; i++)
        SL_TRY(bind_layer(l, f, i));
    for (size_t i = 0; i < sl_checkpoint_count(l->ck); i++) {
        const sl_ck_tensor *t = sl_checkpoint_at(l->ck, i);
        if (!t->used && !sl_family_ignores(f, l->c, t->t->name))
            return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s is not part of a %s model of this config",
                           sl_st_label(t->file), t->t->name, f->model_type);
    }
    return SL_OK;
}

/* Whether the ops can read the bytes where the file is mapped. */
static bool stays(const loader *l, const placement *p)
{
    return (sl_backend_caps(l->be) & SL_BE_UNIFIED) && !p->items && !p->map &&
           (uintptr_t)p->src % p->align == 0;
}

static size_t placed_bytes(const placement *p)
{
    if (p->map)
        return p->items ? (size_t)p->rows * sl_dtype_size(p->to) : (size_t)p->rows * p->row_bytes;
    return p->items ? p->items * sl_dtype_size(p->to) : p->bytes;
}

static void report(const loader *l, uint64_t done, uint64_t *last_ns, bool end)
{
    uint64_t now = sl_now_ns();
    if (!l->o->progress || (!end && now - *last_ns < REPORT_NS))
        return;
    *last_ns = now;
    l->o->progress(l->o->progress_ctx, done, l->w->bytes);
}

/* One row of an F8 weight with block scales. */
static void row_to_bf16(const placement *p, int64_t row, float *tmp, uint16_t *out)
{
    const float *scale = p->scale + row / BLOCK * ((p->cols + BLOCK - 1) / BLOCK);
    sl_load_f32(p->from, p->src, row * p->cols, p->cols, tmp);
    for (int64_t i = 0; i < p->cols; i++)
        out[i] = sl_f32_to_bf16(tmp[i] * scale[i / BLOCK]);
}

static sl_status copy_converted(loader *l, const placement *p, void *dst)
{
    bool half = p->to == SL_BF16;
    size_t bytes = placed_bytes(p);
    void *all = malloc(bytes);
    float *row = half ? malloc((size_t)p->cols * sizeof *row) : NULL;
    sl_status rc = SL_OK;
    if (!all || (half && !row))
        rc = sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory to convert weights");
    for (int64_t r = 0; half && rc == SL_OK && r < (int64_t)p->items / p->cols; r++)
        row_to_bf16(p, r, row, (uint16_t *)all + r * p->cols);
    if (!half && rc == SL_OK)
        sl_load_f32(p->from, p->src, 0, (int64_t)p->items, all);
    if (rc == SL_OK)
        rc = sl_be_copy(l->be, dst, all, bytes, l->err);
    if (rc == SL_OK)
        rc = sl_be_sync(l->be, l->err);
    free(row);
    free(all);
    return rc;
}

/* Rows in another order. Of a tensor that is converted the rows are single values, which become float32. */
static sl_status copy_mapped(loader *l, const placement *p, void *dst)
{
    uint8_t *all = malloc(placed_bytes(p));
    if (!all)
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory to reorder weights");
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t from = p->map->row_of(l->c, r);
        if (p->items)
            sl_load_f32(p->from, p->src, from, 1, (float *)(void *)all + r);
        else
            memcpy(all + (size_t)r * p->row_bytes, (const uint8_t *)p->src + (size_t)from * p->row_bytes,
                   p->row_bytes);
    }
    sl_status rc = sl_be_copy(l->be, dst, all, placed_bytes(p), l->err);
    if (rc == SL_OK)
        rc = sl_be_sync(l->be, l->err);
    free(all);
    return rc;
}

static sl_status copy_plain(loader *l, const placement *p, uint8_t *dst, uint64_t done, uint64_t *last_ns)
{
    sl_status rc = SL_OK;
    for (size_t at = 0; rc == SL_OK && at < p->bytes; at += COPY_PIECE) {
        size_t n = p->bytes - at < COPY_PIECE ? p->bytes - at : COPY_PIECE;
        rc = sl_be_copy(l->be, dst + at, (const uint8_t *)p->src + at, n, l->err);
        report(l, done + at, last_ns, false);
    }
    return rc;
}

static sl_status place_all(loader *l)
{
    size_t total = 0;
    uint64_t done = 0, last_ns = sl_now_ns();
    for (size_t i = 0; i < l->n; i++)
        if (!stays(l, &l->places[i]))
            total += (placed_bytes(&l->places[i]) + ALIGN - 1) / ALIGN * ALIGN;
    sl_status rc = total ? sl_be_alloc(l->be, SL_MEM_DEVICE, total, &l->w->block, l->err) : SL_OK;
    if (rc != SL_OK)
        return sl_fail_in(l->err, rc, "%s: %zu bytes of weights", sl_checkpoint_dir(l->ck), total);
    uint8_t *next = l->w->block;
    for (size_t i = 0; rc == SL_OK && i < l->n; i++) {
        placement *p = &l->places[i];
        *p->dst = p->src;
        if (!stays(l, p)) {
            *p->dst = next;
            rc = p->map     ? copy_mapped(l, p, next)
                 : p->items ? copy_converted(l, p, next)
                            : copy_plain(l, p, next, done, &last_ns);
            next += (placed_bytes(p) + ALIGN - 1) / ALIGN * ALIGN;
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

sl_status sl_weights_load(sl_backend *be, sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, sl_weights *out, sl_err *err)
{
    sl_weights w = {.be = be};
    loader l = {.be = be, .ck = ck, .c = c, .o = o, .w = &w, .err = err};
    sl_status rc = bind_all(&l, f);
    if (rc == SL_OK)
        rc = place_all(&l);
    free(l.places);
    if (rc != SL_OK) {
        sl_weights_free(&w);
        return rc;
    }
    if (c->tie_word_embeddings)
        w.w[SL_T_HEAD] = w.w[SL_T_EMBED];
    *out = w;
    return SL_OK;
}

sl_status sl_weights_find(sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, uint64_t *bytes, sl_err *err)
{
    sl_weights w = {0};
    loader l = {.ck = ck, .c = c, .o = o, .w = &w, .err = err};
    sl_status rc = bind_all(&l, f);
    if (bytes)
        *bytes = 0;
    for (size_t i = 0; bytes && i < l.n; i++)
        *bytes += placed_bytes(&l.places[i]);
    free(l.places);
    sl_weights_free(&w);
    return rc;
}

void sl_weights_free(sl_weights *w)
{
    if (w->block)
        sl_be_free(w->be, SL_MEM_DEVICE, w->block);
    free(w->experts);
    free(w->layers);
    *w = (sl_weights){0};
}
