/*
 * The tensors of one linear weight. The form follows from the tensors that are there, and must be one that the config
 * names; see docs/checkpoints.md for the table of names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"
#include "model/weights_impl.h"

enum { NAME = SL_ST_MAX_NAME + 32 };

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

static void take(const sl_loader *l, sl_ck_tensor *t)
{
    t->used = true;
    t->expert = l->expert;
}

static sl_status find(const sl_loader *l, const char *name, sl_ck_tensor **out)
{
    *out = sl_checkpoint_find(l->ck, name);
    if (!*out)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s is missing", sl_checkpoint_dir(l->ck), name);
    take(l, *out);
    return SL_OK;
}

/* The tensor `base` + `part`, or NULL. */
static sl_ck_tensor *part_of(const sl_loader *l, const char *base, const char *part)
{
    char name[NAME];
    snprintf(name, sizeof name, "%s%s", base, part);
    return sl_checkpoint_find(l->ck, name);
}

static void shape_text(char *out, size_t size, const int64_t *dims, int32_t rank)
{
    out[0] = '\0';
    for (size_t i = 0, at = 0; i < (size_t)rank && at < size - 28; i++)
        at += (size_t)snprintf(out + at, size - at, i ? ",%lld" : "%lld", (long long)dims[i]);
}

static sl_status check_shape(const sl_loader *l, const sl_ck_tensor *e, const int64_t *dims, int32_t rank)
{
    const sl_st_tensor *t = e->t;
    char have[128], need[128];
    bool same = t->rank == rank;
    for (int32_t i = 0; i < rank; i++)
        same = same && t->shape[i] == dims[i];
    if (same)
        return SL_OK;
    shape_text(have, sizeof have, t->shape, t->rank);
    shape_text(need, sizeof need, dims, rank);
    return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: shape [%s], the config asks for [%s]",
                   sl_st_label(e->file), t->name, have, need);
}

static sl_status bad_dtype(const sl_loader *l, const sl_ck_tensor *e)
{
    return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: dtype %s is not allowed here",
                   sl_st_label(e->file), e->t->name, sl_st_dtype_name(e->t->dtype));
}

/* Finds a tensor and checks that its shape is dims[rank]. */
static sl_status want(const sl_loader *l, const char *name, const int64_t *dims, int32_t rank, bool f8,
                      sl_ck_tensor **out, sl_dtype *dtype)
{
    SL_TRY(find(l, name, out));
    SL_TRY(check_shape(l, *out, dims, rank));
    return weight_dtype((*out)->t->dtype, f8, dtype) ? SL_OK : bad_dtype(l, *out);
}

/* ---- multipliers ---- */

/* Memory for n values, which lives until the load ends. */
static sl_status room_for_floats(sl_loader *l, int64_t n, float **out)
{
    float *v = malloc(sizeof(float) * (size_t)n), **grown = realloc(l->made, sizeof *grown * (l->n_made + 1));
    if (grown)
        l->made = grown;
    if (!v || !grown) {
        free(v);
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for converted values of weights");
    }
    l->made[l->n_made++] = v;
    *out = v;
    return SL_OK;
}

/* A copy of n values as float32. */
static sl_status floats_of(sl_loader *l, const sl_ck_tensor *e, int64_t n, const float **out)
{
    const uint8_t *codes = e->t->data;
    sl_dtype from = SL_F32;
    float *v;
    SL_TRY(room_for_floats(l, n, &v));
    *out = v;
    if (weight_dtype(e->t->dtype, false, &from))
        sl_load_f32(from, e->t->data, 0, n, v);
    else
        for (int64_t i = 0; i < n; i++)
            v[i] = sl_e8m0_to_f32(codes[i]);
    return SL_OK;
}

/* Places multipliers that were converted: *at is in l->made. */
static bool is_made(const sl_loader *l, const void *at)
{
    return l->n_made > 0 && l->made[l->n_made - 1] == at;
}

/* The multipliers of the blocks of an F8 weight, in the type that the ops read. */
static sl_status block_scales(sl_loader *l, const sl_ck_tensor *s, int64_t n, const float **out)
{
    switch (s->t->dtype) {
    case SL_ST_F32:
        *out = s->t->data;
        return SL_OK;
    case SL_ST_BF16:
    case SL_ST_F8_E8M0:
        return floats_of(l, s, n, out);
    default:
        return sl_fail(l->err, SL_ERR_INVALID,
                       "%s: tensor %s: dtype %s, a scale must be F32, BF16 or F8_E8M0", sl_st_label(s->file),
                       s->t->name, sl_st_dtype_name(s->t->dtype));
    }
}

/* The scale of an F8 tensor of `experts` matrices (0: not fused); or checks that another tensor has none. */
static sl_status find_blocks(sl_loader *l, const sl_ck_tensor *of, const char *sname, int64_t experts,
                             int64_t rows, int64_t cols, const float **out)
{
    sl_ck_tensor *s = sl_checkpoint_find(l->ck, sname);
    *out = NULL;
    if (of->t->dtype != SL_ST_F8_E4M3) {
        if (s)
            return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: %s is %s, which has no scale",
                           sl_st_label(s->file), sname, of->t->name, sl_st_dtype_name(of->t->dtype));
        return SL_OK;
    }
    int64_t r = (rows + SL_F8_BLOCK - 1) / SL_F8_BLOCK, k = (cols + SL_F8_BLOCK - 1) / SL_F8_BLOCK;
    int64_t flat[2] = {r, k}, fused[3] = {experts, r, k};
    SL_TRY(find(l, sname, &s));
    SL_TRY(experts ? check_shape(l, s, fused, 3) : check_shape(l, s, flat, 2));
    return block_scales(l, s, (experts ? experts : 1) * r * k, out);
}

/* The form of the config for these multipliers [rows][groups], or an error that names them. */
static sl_status find_form(const sl_loader *l, const sl_ck_tensor *s, int64_t rows, int64_t cols,
                           sl_weight *w)
{
    const sl_quantisation *q = &l->c->quant;
    const sl_st_tensor *t = s->t;
    for (int32_t i = 0; i < q->n; i++) {
        const sl_weight_form *f = &q->forms[i];
        const bool floats = f->scale_type == SL_SCALE_BF16 || f->scale_type == SL_SCALE_F32;
        const bool is = w->scale_type == SL_SCALE_BF16 || w->scale_type == SL_SCALE_F32;
        const int64_t groups = f->group ? (cols + f->group - 1) / f->group : 1;
        if (f->dtype != w->dtype || (floats ? !is : f->scale_type != w->scale_type) || t->rank != 2 ||
            t->shape[0] != rows || t->shape[1] != groups)
            continue;
        w->group = f->group ? f->group : (int32_t)((cols + 127) / 128 * 128);
        return SL_OK;
    }
    char have[128];
    shape_text(have, sizeof have, t->shape, t->rank);
    return sl_fail(l->err, SL_ERR_INVALID,
                   "%s: tensor %s: %s [%s] are not the scales of a weight [%lld,%lld] in one of the %d forms "
                   "that quantization_config names",
                   sl_st_label(s->file), t->name, sl_st_dtype_name(t->dtype), have, (long long)rows,
                   (long long)cols, q->n);
}

static bool scale_type_of(sl_st_dtype d, bool half_floats, sl_scale_type *out)
{
    switch (d) {
    case SL_ST_F32:
        *out = SL_SCALE_F32;
        return !half_floats;
    case SL_ST_BF16:
        *out = SL_SCALE_BF16;
        return !half_floats;
    case SL_ST_F16: /* converted */
        *out = SL_SCALE_F32;
        return !half_floats;
    case SL_ST_F8_E4M3:
        *out = SL_SCALE_E4M3;
        return half_floats;
    case SL_ST_U8:
    case SL_ST_F8_E8M0:
        *out = SL_SCALE_E8M0;
        return half_floats;
    default:
        return false;
    }
}

/* Describes the multipliers of groups of `w`, whose dtype is set. */
static sl_status group_scales(sl_loader *l, const char *name, int64_t rows, int64_t cols, sl_weight *w)
{
    sl_ck_tensor *s;
    SL_TRY(find(l, name, &s));
    if (!scale_type_of(s->t->dtype, w->dtype == SL_F4_E2M1, &w->scale_type))
        return bad_dtype(l, s);
    SL_TRY(find_form(l, s, rows, cols, w));
    w->multiplier = s->t->data;
    return s->t->dtype == SL_ST_F16 ? floats_of(l, s, s->t->shape[0] * s->t->shape[1], &w->scale) : SL_OK;
}

/* One positive float32 of a tensor of one value. */
static sl_status one_float(const sl_loader *l, const char *base, const char *part, float *out)
{
    char name[NAME];
    sl_ck_tensor *t;
    snprintf(name, sizeof name, "%s%s", base, part);
    SL_TRY(find(l, name, &t));
    if (t->t->dtype != SL_ST_F32 || t->t->bytes != sizeof *out)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: not one F32 value", sl_st_label(t->file),
                       name);
    memcpy(out, t->t->data, sizeof *out);
    if (!(*out > 0 && *out <= 3.4e38f))
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: %g is no positive scale", sl_st_label(t->file),
                       name, (double)*out);
    return SL_OK;
}

/* ---- weights ---- */

static sl_status place(sl_loader *l, sl_weight *w, sl_weight *out)
{
    const bool half = w->dtype == SL_I4 || w->dtype == SL_F4_E2M1;
    if (half || w->dtype == SL_F8_E4M3)
        w->acts_as_given = half ? l->c->quant.half_acts != 1 : l->c->quant.f8_acts == -1;
    const bool made = is_made(l, w->scale);
    const size_t before = l->n;
    SL_TRY(sl_weights_place_one(l, w, out));
    if (made && !l->to_bf16 && l->n == before + 2) { /* the multipliers are not in a file: they are copied */
        sl_placement *p = &l->places[l->n - 1];
        p->items = p->bytes / sizeof(float);
        p->from = p->to = SL_F32;
    }
    return SL_OK;
}

/* weight_shape, of packed weights: [rows, cols]. */
static sl_status check_packed_shape(const sl_loader *l, const char *base, int64_t rows, int64_t cols)
{
    sl_ck_tensor *t = part_of(l, base, "weight_shape");
    int64_t v[2] = {0, 0};
    if (!t)
        return SL_OK;
    take(l, t);
    if (t->t->dtype == SL_ST_I64 && t->t->bytes == 16)
        memcpy(v, t->t->data, sizeof v);
    if (t->t->dtype == SL_ST_I32 && t->t->bytes == 8) {
        int32_t small[2];
        memcpy(small, t->t->data, sizeof small);
        v[0] = small[0], v[1] = small[1];
    }
    if (v[0] != rows || v[1] != cols)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: [%lld,%lld], the config asks for [%lld,%lld]",
                       sl_st_label(t->file), t->t->name, (long long)v[0], (long long)v[1], (long long)rows,
                       (long long)cols);
    return SL_OK;
}

static sl_status refuse_part(const sl_loader *l, const char *base, const char *part, const char *why)
{
    const sl_ck_tensor *t = part_of(l, base, part);
    if (!t)
        return SL_OK;
    return sl_fail(l->err, SL_ERR_UNSUPPORTED, "%s: tensor %s: %s are not supported", sl_st_label(t->file),
                   t->t->name, why);
}

/* Weights of half bytes: `data` holds them, `scale` names their multipliers, global the tensor with that of all; divides:
 * the values are divided by it. */
static sl_status bind_half(sl_loader *l, const char *base, sl_ck_tensor *data, const char *scale,
                           bool divides, int64_t rows, int64_t cols, sl_weight *out)
{
    const bool words = data->t->dtype == SL_ST_I32;
    const int32_t per = words ? 8 : 2;
    const int64_t dims[2] = {rows, cols / per};
    sl_weight w = {.data = data->t->data, .out = (int32_t)rows, .in = (int32_t)cols};
    char name[NAME];
    take(l, data);
    w.dtype = words ? SL_I4 : SL_F4_E2M1;
    if (cols % per)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "%s: tensor %s: %lld inputs are no multiple of %d",
                       sl_st_label(data->file), data->t->name, (long long)cols, per);
    SL_TRY(refuse_part(l, base, "weight_zero_point", "zero points (asymmetric weights)"));
    SL_TRY(refuse_part(l, base, "weight_g_idx", "inputs in another order than the groups"));
    SL_TRY(check_shape(l, data, dims, 2));
    SL_TRY(check_packed_shape(l, base, rows, cols));
    snprintf(name, sizeof name, "%s%s", base, scale);
    SL_TRY(group_scales(l, name, rows, cols, &w));
    if (w.scale_type == SL_SCALE_E4M3) {
        SL_TRY(one_float(l, base, divides ? "weight_global_scale" : "weight_scale_2", &w.global));
        w.global = divides ? 1.0f / w.global : w.global;
    }
    return place(l, &w, out);
}

/* A tensor of bytes that holds half bytes: its multipliers have one of three names. */
static sl_status bind_bytes(sl_loader *l, const char *base, sl_ck_tensor *data, int64_t rows, int64_t cols,
                            sl_weight *out)
{
    static const char *const names[] = {"weight_scale", "weight_scale_inv", "scale"};
    size_t i = 0;
    while (i + 1 < SL_COUNT(names) && !part_of(l, base, names[i]))
        i++;
    return bind_half(l, base, data, part_of(l, base, names[i]) ? names[i] : names[0], false, rows, cols, out);
}

/* F8 with multipliers by another name than weight_scale_inv: of blocks, or of outputs. */
static sl_status bind_f8(sl_loader *l, const char *base, const sl_ck_tensor *data, const char *scale,
                         sl_weight *w, sl_weight *out)
{
    const int64_t rows = w->out, cols = w->in;
    const sl_ck_tensor *s = part_of(l, base, scale);
    char name[NAME];
    snprintf(name, sizeof name, "%s%s", base, scale);
    if (s->t->rank == 2 && s->t->shape[0] == rows && s->t->shape[1] == 1 && rows > 1)
        SL_TRY(group_scales(l, name, rows, cols, w));
    else
        SL_TRY(find_blocks(l, data, name, 0, rows, cols, &w->scale));
    return place(l, w, out);
}

static sl_status bind_whole(sl_loader *l, const char *name, const char *base, int64_t rows, int64_t cols,
                            bool f8, sl_weight *out)
{
    static const char *const others[] = {"weight_scale", "scale"};
    const int64_t dims[2] = {rows, cols};
    sl_weight w = {.out = (int32_t)rows, .in = (int32_t)cols};
    char scale[NAME];
    sl_ck_tensor *t;
    SL_TRY(want(l, name, dims, 2, f8, &t, &w.dtype));
    w.data = t->t->data;
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    for (size_t i = 0; base[0] && w.dtype == SL_F8_E4M3 && i < SL_COUNT(others); i++)
        if (!sl_checkpoint_find(l->ck, scale) && part_of(l, base, others[i]))
            return bind_f8(l, base, t, others[i], &w, out);
    SL_TRY(find_blocks(l, t, scale, 0, rows, cols, &w.scale));
    return place(l, &w, out);
}

sl_status sl_bind_matrix(sl_loader *l, const char *name, int64_t rows, int64_t cols, bool quantised,
                         sl_weight *out)
{
    static const char tail[] = ".weight";
    const size_t n = strlen(name), m = sizeof tail - 1;
    char base[NAME] = "", packed[NAME + sizeof "weight_packed"];
    if (quantised && n > m && strcmp(name + n - m, tail) == 0)
        snprintf(base, sizeof base, "%.*s", (int)(n - m + 1), name);
    sl_ck_tensor *p = base[0] ? part_of(l, base, "weight_packed") : NULL,
                 *t = sl_checkpoint_find(l->ck, name);
    if (p && (p->t->dtype == SL_ST_I32 || p->t->dtype == SL_ST_U8))
        return bind_half(l, base, p, "weight_scale", true, rows, cols, out);
    if (p)
        return bad_dtype(l, p);
    if (base[0] && t && (t->t->dtype == SL_ST_U8 || t->t->dtype == SL_ST_I8))
        return bind_bytes(l, base, t, rows, cols, out);
    if (base[0] && !t && part_of(l, base, "weight_scale")) { /* then the weight has another name */
        snprintf(packed, sizeof packed, "%sweight_packed", base);
        return find(l, packed, &t);
    }
    return bind_whole(l, name, base, rows, cols, quantised, out);
}

sl_status sl_bind_vector(sl_loader *l, const char *name, int64_t n, sl_weight *out)
{
    sl_weight w = {.out = (int32_t)n, .in = 1};
    sl_ck_tensor *t;
    SL_TRY(want(l, name, &n, 1, false, &t, &w.dtype));
    w.data = t->t->data;
    return sl_weights_place_one(l, &w, out);
}

sl_status sl_bind_floats(sl_loader *l, const char *name, const int64_t *dims, int32_t rank, float plus,
                         sl_weight *out)
{
    sl_weight w = {.out = (int32_t)dims[0], .in = (int32_t)(rank > 1 ? dims[rank - 1] : 1)};
    sl_ck_tensor *t;
    SL_TRY(want(l, name, dims, rank, false, &t, &w.dtype));
    w.data = t->t->data;
    SL_TRY(sl_weights_place_one(l, &w, out));
    if (w.dtype != SL_F32 || plus != 0) {
        sl_placement *p = &l->places[l->n - 1];
        p->items = (size_t)w.out * (size_t)w.in;
        p->from = w.dtype, p->to = SL_F32, p->plus = plus;
        out->dtype = SL_F32;
    }
    return SL_OK;
}

sl_status sl_bind_longs(sl_loader *l, const char *name, int64_t n, sl_weight *out)
{
    sl_ck_tensor *t;
    SL_TRY(find(l, name, &t));
    SL_TRY(check_shape(l, t, &n, 1));
    if (t->t->dtype != SL_ST_I64)
        return bad_dtype(l, t);
    *out = (sl_weight){.out = (int32_t)n, .in = 1, .dtype = SL_I32}; /* no op reads the type */
    return sl_place(l, t->t->data, t->t->bytes, sizeof(int64_t), &out->data);
}

static int64_t whole_number(const sl_st_tensor *t, int64_t i)
{
    int32_t small = 0;
    int64_t large = 0;
    if (t->dtype == SL_ST_I64) {
        memcpy(&large, (const uint8_t *)t->data + 8 * i, sizeof large);
        return large;
    }
    memcpy(&small, (const uint8_t *)t->data + 4 * i, sizeof small);
    return small;
}

/* The numbers travel in memory of floats, whose bits are copied. */
sl_status sl_bind_expert_ids(sl_loader *l, const char *name, int64_t rows, int64_t cols, sl_weight *out)
{
    const int64_t dims[2] = {rows, cols}, n = rows * cols;
    sl_ck_tensor *t;
    float *v;
    SL_TRY(find(l, name, &t));
    SL_TRY(check_shape(l, t, dims, 2));
    if (t->t->dtype != SL_ST_I64 && t->t->dtype != SL_ST_I32)
        return bad_dtype(l, t);
    SL_TRY(room_for_floats(l, n, &v));
    for (int64_t i = 0; i < n; i++) {
        const int64_t id = whole_number(t->t, i);
        const int32_t small = (int32_t)id;
        if (id < 0 || id >= l->c->moe.n_routed)
            return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s: %lld is none of %d routed experts",
                           sl_st_label(t->file), name, (long long)id, l->c->moe.n_routed);
        memcpy(&v[i], &small, sizeof small);
    }
    *out = (sl_weight){.out = (int32_t)rows, .in = (int32_t)cols, .dtype = SL_I32};
    SL_TRY(sl_place(l, v, sizeof *v * (size_t)n, sizeof *v, &out->data));
    l->places[l->n - 1].items = (size_t)n;
    l->places[l->n - 1].from = l->places[l->n - 1].to = SL_F32;
    return SL_OK;
}

bool sl_is_elsewhere(const sl_loader *l, int32_t e)
{
    const sl_weights *w = l->w;
    return e < w->expert_first[w->rank] || e >= w->expert_first[w->rank + 1];
}

sl_status sl_bind_fused(sl_loader *l, const char *name, int parts, int64_t rows, int64_t cols,
                        sl_weight *const *outs)
{
    int64_t e = l->c->moe.n_routed, dims[3] = {e, parts * rows, cols};
    const int64_t blocks = (rows + SL_F8_BLOCK - 1) / SL_F8_BLOCK * ((cols + SL_F8_BLOCK - 1) / SL_F8_BLOCK);
    sl_weight w = {.out = (int32_t)rows, .in = (int32_t)cols};
    char scale[NAME];
    sl_ck_tensor *t;
    l->expert = SL_CK_FUSED;
    SL_TRY(want(l, name, dims, 3, true, &t, &w.dtype));
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    SL_TRY(find_blocks(l, t, scale, e, parts * rows, cols, &w.scale));
    if (w.scale && is_made(l, w.scale))
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "%s: tensor %s: fused experts need scales in F32",
                       sl_st_label(t->file), name);
    if (w.scale && parts > 1 && rows % SL_F8_BLOCK)
        return sl_fail(
            l->err, SL_ERR_UNSUPPORTED,
            "%s: tensor %s: an F8 block would contain rows of gate and of up: %lld is no multiple of %d",
            sl_st_label(t->file), name, (long long)rows, SL_F8_BLOCK);
    w.data = t->t->data;
    for (int64_t i = 0; i < e * parts; i++) {
        sl_weight one = w;
        l->elsewhere = sl_is_elsewhere(l, (int32_t)(i / parts));
        one.data = (const uint8_t *)w.data + (size_t)(i * rows * cols) * sl_dtype_size(w.dtype);
        one.scale = w.scale ? w.scale + i * blocks : NULL;
        SL_TRY(place(l, &one, &outs[i % parts][i / parts]));
    }
    l->elsewhere = false;
    l->expert = SL_CK_COMMON;
    return SL_OK;
}
