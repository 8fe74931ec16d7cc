/* The quantiser, and the writing of checkpoints; see quant_tools.h. */
#include "quant_tools.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ct_list *qt_list, *qt_whole;
char qt_dir[256], qt_dir_whole[256];

static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

static bool chosen(const form *f, const ct_tensor *t)
{
    bool expert = strstr(t->name, ".mlp.experts.") != NULL,
         linear = ends(t->name, "_proj.weight") || ends(t->name, "wq_b.weight") ||
                  ends(t->name, "wk.weight") || ends(t->name, "with_mqa.weight");
    int layer = -1;
    if (!linear || t->rank != 2 || ends(t->name, "weights_proj.weight") || t->shape[1] % 8)
        return false;
    (void)sscanf(t->name, "model.layers.%d", &layer);
    switch (f->which) {
    case EXPERTS:
        return expert;
    case NO_ATTENTION:
        return !strstr(t->name, "self_attn");
    case EVEN_EXPERTS_LAYERS:
        return expert && layer % 2 == 0;
    case DOWN_ONLY:
        return expert && ends(t->name, "down_proj.weight");
    default:
        return true;
    }
}

/* ---- the quantiser ---- */

static uint16_t to_bf16(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return (uint16_t)((u + 0x8000) >> 16);
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float v;
    memcpy(&v, &u, 4);
    return v;
}

/* A positive float as f16 by search of its 2^15 codes' fields: mantissa 10 bits, no subnormals. */
static uint16_t to_f16(float v)
{
    int e;
    float m = frexpf(v, &e);
    return (uint16_t)((e + 14) << 10 | ((int)(m * 2048) - 1024));
}

static float from_f16(uint16_t h)
{
    return ldexpf((float)(1024 + (h & 1023)), (h >> 10) - 25);
}

/* The value of a positive e4m3 code. */
static float e4m3(int code)
{
    int e = code >> 3, m = code & 7;
    return e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
}

static int to_e4m3(float v)
{
    int best = 1;
    for (int c = 1; c < 127; c++)
        if (fabsf(e4m3(c) - fabsf(v)) < fabsf(e4m3(best) - fabsf(v)))
            best = c;
    return best;
}

static int nearest_half(float v)
{
    int best = 0;
    for (int c = 1; c < 8; c++)
        if (fabsf(e2m1[c] - fabsf(v)) < fabsf(e2m1[best] - fabsf(v)))
            best = c;
    return best | (v < 0) << 3;
}

typedef struct job {
    const form *f;
    float *w; /* [rows][cols]; becomes what the codes stand for */
    int64_t rows, cols, group, groups;
    uint8_t *codes, *scales; /* packed; in the stored type */
    float global;
} job;

static float largest(const float *w, int64_t n)
{
    float m = 1e-6f;
    for (int64_t i = 0; i < n; i++)
        m = fmaxf(m, fabsf(w[i]));
    return m;
}

/* Stores the scale of a group whose largest magnitude is `top`, and returns what a reader takes for it. */
static float store_scale(const job *j, int64_t i, float top)
{
    float s = top / (j->f->kind == INT4 ? 7.0f : j->f->kind == F8_CHANNEL ? 448.0f : 6.0f);
    uint16_t h;
    int e;
    switch (j->f->kind) {
    case INT4:
    case F8_CHANNEL:
        h = j->f->scale == SL_ST_BF16 ? to_bf16(s) : to_f16(s);
        if (j->f->scale == SL_ST_F32)
            memcpy(j->scales + 4 * i, &s, 4);
        else
            memcpy(j->scales + 2 * i, &h, 2);
        return j->f->scale == SL_ST_F32 ? s : j->f->scale == SL_ST_BF16 ? from_bf16(h) : from_f16(h);
    case NVFP4:
    case NVFP4_MODELOPT:
        j->scales[i] = (uint8_t)to_e4m3(s / j->global);
        return e4m3(j->scales[i]) * j->global;
    default: /* a power of two */
        (void)frexpf(j->f->kind == F8_POWERS ? top / 448.0f : s, &e);
        j->scales[i] = (uint8_t)(e + 127);
        return ldexpf(1, e);
    }
}

/* Quantises values [first, end) of row r with scale s. */
static void store_values(const job *j, int64_t r, int64_t first, int64_t end, float s)
{
    for (int64_t k = first; k < end; k++) {
        float *v = &j->w[r * j->cols + k], q = *v / s;
        int64_t at = r * j->cols + k;
        if (j->f->kind == F8_CHANNEL || j->f->kind == F8_POWERS) {
            int c = to_e4m3(q);
            j->codes[at] = (uint8_t)(c | (q < 0) << 7);
            *v = (q < 0 ? -e4m3(c) : e4m3(c)) * s;
            continue;
        }
        int c = nearest_half(q);
        if (j->f->kind == INT4) {
            int n = (int)lrintf(q);
            n = n < -8 ? -8 : n > 7 ? 7 : n;
            c = n + 8;
            *v = (float)n * s;
        } else {
            *v = (c & 8 ? -e2m1[c & 7] : e2m1[c & 7]) * s;
        }
        j->codes[at / 2] |= (uint8_t)(c << (at % 2 * 4));
    }
}

static void quantise(job *j)
{
    /* weight_scale_2 of ModelOpt multiplies; compressed-tensors stores the inverse of what multiplies */
    j->global = largest(j->w, j->rows * j->cols) / (6.0f * 448.0f);
    if (j->f->kind == NVFP4)
        j->global = 1.0f / (1.0f / j->global);
    if (j->f->kind == F8_POWERS) {
        for (int64_t b = 0; b < (j->rows + 127) / 128 * j->groups; b++) {
            int64_t r0 = b / j->groups * 128, k0 = b % j->groups * 128;
            float s = store_scale(j, b, 0.3f + 0.1f * (float)(b % 3));
            for (int64_t r = r0; r < j->rows && r < r0 + 128; r++)
                store_values(j, r, k0, k0 + 128 < j->cols ? k0 + 128 : j->cols, s);
        }
        return;
    }
    for (int64_t i = 0; i < j->rows * j->groups; i++) {
        int64_t r = i / j->groups, k = i % j->groups * j->group,
                end = k + j->group < j->cols ? k + j->group : j->cols;
        store_values(j, r, k, end, store_scale(j, i, largest(j->w + r * j->cols + k, end - k)));
    }
}

/* ---- checkpoints ---- */

static void add(const char *base, const char *part, sl_st_dtype d, int64_t rows, int64_t cols,
                const void *data)
{
    char name[260];
    snprintf(name, sizeof name, "%s%s", base, part);
    ct_tensor *t = ct_add(qt_list, name, d, rows, cols);
    memcpy(t->data, data, t->bytes);
}

/* Replaces a weight of `qt_list` by its quantised form, and that of `qt_whole` by the dequantised values. */
static void replace(const form *f, const char *name)
{
    const ct_tensor *t = ct_find(qt_list, name);
    job j = {.f = f, .rows = t->shape[0], .cols = t->shape[1]};
    const bool f8 = f->kind == F8_CHANNEL || f->kind == F8_POWERS,
               nv = f->kind == NVFP4 || f->kind == NVFP4_MODELOPT;
    char base[200];
    j.group = f->group < 0 ? (strstr(name, "up_proj") ? 32 : 64) : f->group ? f->group : j.cols;
    j.groups = (j.cols + j.group - 1) / j.group;
    j.w = (float *)(void *)ct_find(qt_whole, name)->data;
    j.codes = calloc((size_t)(j.rows * j.cols), 1);
    j.scales = calloc((size_t)(j.rows * j.groups), 4);
    quantise(&j);
    snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - strlen("weight")), name);
    ct_remove(qt_list, name);
    const int64_t shape[2] = {j.rows, j.cols};
    const float inverse = 1.0f / j.global;
    const sl_st_dtype scale = f->kind == MXFP4 ? SL_ST_U8 : nv ? SL_ST_F8_E4M3 : f->scale;
    if (f8 || f->kind == MXFP4_BYTES || f->kind == NVFP4_MODELOPT)
        add(base, "weight",
            f8                       ? SL_ST_F8_E4M3
            : f->kind == MXFP4_BYTES ? SL_ST_I8
                                     : SL_ST_U8,
            j.rows, f8 ? j.cols : j.cols / 2, j.codes);
    else if (f->kind == INT4)
        add(base, "weight_packed", SL_ST_I32, j.rows, j.cols / 8, j.codes);
    else
        add(base, "weight_packed", SL_ST_U8, j.rows, j.cols / 2, j.codes);
    add(base,
        f->kind == F8_POWERS     ? "weight_scale_inv"
        : f->kind == MXFP4_BYTES ? "scale"
                                 : "weight_scale",
        scale, f->kind == F8_POWERS ? (j.rows + 127) / 128 : j.rows, j.groups, j.scales);
    if (f->kind == INT4)
        add(base, "weight_shape", SL_ST_I64, 2, 0, shape);
    if (f->kind == NVFP4) {
        add(base, "weight_global_scale", SL_ST_F32, 1, 0, &inverse);
        add(base, "input_global_scale", SL_ST_F32, 1, 0, &inverse);
    }
    if (f->kind == NVFP4_MODELOPT) {
        add(base, "weight_scale_2", SL_ST_F32, 1, 0, &j.global);
        add(base, "input_scale", SL_ST_F32, 1, 0, &j.global);
    }
    free(j.codes);
    free(j.scales);
}

/* config.json of the form's source: as it is without quantisation, and with that of the form. */
static char *config_of(const form *f, const char *quantisation)
{
    char path[300], *text = calloc(1, 1 << 16), *out = calloc(1, 1 << 16);
    snprintf(path, sizeof path, "%s/config.json", f->from);
    FILE *file = fopen(path, "rb");
    ck_assert(file && text && out);
    ck_assert_uint_gt(fread(text, 1, (1 << 16) - 1, file), 0);
    fclose(file);
    char *old = strstr(text, "\"quantization_config\": {");
    if (old) /* its only nested part is a list */
        memmove(old, strchr(old, '}') + 2, strlen(strchr(old, '}') + 2) + 1);
    snprintf(out, 1 << 16, "{%s%s%s%s", quantisation ? "\"quantization_config\":" : "",
             quantisation ? quantisation : "", quantisation ? "," : "", strchr(text, '{') + 1);
    free(text);
    return out;
}

void qt_write_config(const form *f, const char *to, const char *quantisation)
{
    char *text = config_of(f, quantisation);
    ct_write_text(to, "config.json", text);
    free(text);
}

void qt_begin(const form *f)
{
    char path[300];
    qt_list = calloc(1, sizeof *qt_list);
    qt_whole = calloc(1, sizeof *qt_whole);
    ck_assert(qt_list && qt_whole);
    ct_mkdir(qt_dir);
    ct_mkdir(qt_dir_whole);
    snprintf(path, sizeof path, "%s/model.safetensors", f->from);
    ct_read(qt_list, path);
    ct_read(qt_whole, path);
    qt_write_config(f, qt_dir, f->config);
    qt_write_config(f, qt_dir_whole, strcmp(f->from, DS) == 0 ? NULL : f->config);
}

/* In the checkpoint with F8, experts become F32 in both lists before they are quantised. */
static void widen(const char *name)
{
    ct_list *const both[] = {qt_list, qt_whole};
    char scale[200];
    snprintf(scale, sizeof scale, "%s_scale_inv", name);
    for (int i = 0; i < 2; i++) {
        const ct_tensor *old = ct_find(both[i], name);
        const int64_t rows = old->shape[0], cols = old->shape[1];
        if (old->dtype == SL_ST_F32)
            return;
        ct_remove(both[i], name);
        ct_remove(both[i], scale);
        ct_tensor *t = ct_add(both[i], name, SL_ST_F32, rows, cols);
        for (int64_t k = 0; k < rows * cols; k++) {
            float v = 0.1f * sinf((float)(k * 7 % 1013));
            memcpy(t->data + 4 * k, &v, 4);
        }
    }
}

void qt_make(const form *f)
{
    char(*names)[160] = calloc(CT_MAX, sizeof *names);
    size_t n = 0;
    for (size_t i = 0; i < qt_list->n; i++)
        if (chosen(f, &qt_list->t[i]))
            snprintf(names[n++], sizeof *names, "%s", qt_list->t[i].name);
    ck_assert_uint_gt(n, 0);
    for (size_t i = 0; i < n; i++) {
        widen(names[i]);
        replace(f, names[i]);
    }
    free(names);
    ct_write(qt_list, 0, qt_list->n, qt_dir, "model.safetensors", 0);
    ct_write(qt_whole, 0, qt_whole->n, qt_dir_whole, "model.safetensors", 0);
}

void qt_end(void)
{
    ct_rmdir(qt_dir);
    ct_rmdir(qt_dir_whole);
    ct_free(qt_list);
    ct_free(qt_whole);
    free(qt_list);
    free(qt_whole);
}
