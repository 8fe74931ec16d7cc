/* The harness of cf.h: memory with guards, deterministic numbers, repetition for timing, and collection of the
 * outputs. The comparison of the outputs of two runs is in cf_compare.c. */
#include "tests/unit/kernels/cf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/ref.h"

#define GUARD 256
#define GUARD_BYTE 0xa5

/* ---- numbers ---- */

uint64_t cf_hash(uint32_t stream, int64_t i)
{
    uint64_t z = (uint64_t)i * 0x9e3779b97f4a7c15u + ((uint64_t)stream << 32 | stream) * 0xd1342543de82ef95u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float cf_uniform(uint32_t stream, int64_t i)
{
    return (float)((double)(cf_hash(stream, i) >> 40) * 0x1p-23 - 1.0);
}

/* ---- memory ---- */

void cf_fail(cf_run *r, const char *fmt, ...)
{
    va_list ap;

    if (r->st != SL_OK)
        return;
    r->st = SL_ERR_CORRUPT;
    va_start(ap, fmt);
    vsnprintf(r->err.text, sizeof(r->err.text), fmt, ap);
    va_end(ap);
}

static void *alloc(cf_run *r, sl_mem_kind kind, const void *host, size_t bytes)
{
    uint8_t guard[GUARD];
    void *p = NULL;

    if (r->st != SL_OK)
        return NULL;
    if (r->n_buffers == CF_MAX_BUFFERS) {
        cf_fail(r, "a case uses too many buffers");
        return NULL;
    }
    r->st = sl_be_alloc(r->memory, kind, bytes + GUARD, &p, &r->err);
    if (r->st != SL_OK)
        return NULL;
    r->buffers[r->n_buffers++] = (cf_buffer){p, kind, bytes};
    memset(guard, GUARD_BYTE, sizeof(guard));
    if (host)
        r->st = sl_be_copy(r->memory, p, host, bytes, &r->err);
    else
        r->st = sl_be_fill(r->memory, p, 0xff, bytes, &r->err);
    if (r->st == SL_OK)
        r->st = sl_be_copy(r->memory, (uint8_t *)p + bytes, guard, sizeof(guard), &r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->memory, &r->err); /* host may be a temporary */
    return p;
}

void *cf_mem(cf_run *r, const void *host, size_t bytes)
{
    return alloc(r, SL_MEM_DEVICE, host, bytes);
}

void *cf_host_mem(cf_run *r, const void *host, size_t bytes)
{
    return alloc(r, SL_MEM_HOST, host, bytes);
}

void cf_put(cf_run *r, void *dst, const void *host, size_t bytes)
{
    if (r->st == SL_OK)
        r->st = sl_be_copy(r->memory, dst, host, bytes, &r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->memory, &r->err);
}

void cf_get(cf_run *r, void *host, const void *src, size_t bytes)
{
    if (r->st == SL_OK)
        r->st = sl_be_copy(r->memory, host, src, bytes, &r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->memory, &r->err);
}

static void *must(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    SL_CHECK(p != NULL, "out of memory");
    return p;
}

void *cf_temp(cf_run *r, size_t bytes)
{
    void *p = NULL;

    SL_CHECK(r->n_buffers < CF_MAX_BUFFERS);
    p = calloc(1, bytes + GUARD);
    SL_CHECK(p != NULL, "out of memory");
    memset((uint8_t *)p + bytes, GUARD_BYTE, GUARD);
    r->buffers[r->n_buffers++] = (cf_buffer){p, (sl_mem_kind)-1, bytes};
    return p;
}

static void check_guards(cf_run *r)
{
    uint8_t guard[GUARD];

    for (int i = 0; i < r->n_buffers && r->st == SL_OK; i++) {
        const cf_buffer *b = &r->buffers[i];

        if ((int)b->kind == -1)
            memcpy(guard, (uint8_t *)b->ptr + b->bytes, GUARD);
        else
            cf_get(r, guard, (uint8_t *)b->ptr + b->bytes, GUARD);
        for (int k = 0; k < GUARD && r->st == SL_OK; k++)
            if (guard[k] != GUARD_BYTE)
                cf_fail(r, "something was written %d bytes after the end of buffer %d of %zu bytes", k, i,
                        b->bytes);
    }
}

void cf_release(cf_run *r)
{
    for (int i = 0; i < r->n_buffers; i++) {
        if ((int)r->buffers[i].kind == -1)
            free(r->buffers[i].ptr);
        else
            sl_be_free(r->memory, r->buffers[i].kind, r->buffers[i].ptr);
    }
    for (int i = 0; i < r->n_outputs; i++) {
        free(r->outputs[i].data);
        free(r->outputs[i].offsets);
    }
    memset(r, 0, sizeof(*r));
}

/* ---- inputs ---- */

/* Test values are small, so overflow is not handled. */
static uint16_t f16(float v)
{
    int e, m;

    frexp(fabs((double)v), &e);
    if (e < -13)
        e = -13;
    m = (int)nearbyint(ldexp(fabs((double)v), 11 - e));
    if (m == 2048) {
        m = 1024;
        e++;
    }
    return (uint16_t)((v < 0 ? 0x8000 : 0) | (m < 1024 ? m : (e + 14) << 10 | (m - 1024)));
}

static void encode(sl_dtype dtype, float v, uint8_t *out)
{
    uint16_t h;

    switch (dtype) {
    case SL_F32:
        memcpy(out, &v, 4);
        break;
    case SL_BF16:
        h = sl_f32_to_bf16(v);
        memcpy(out, &h, 2);
        break;
    case SL_F16:
        h = f16(v);
        memcpy(out, &h, 2);
        break;
    case SL_F8_E4M3:
        *out = sl_f32_to_e4m3(v);
        break;
    case SL_I32:
    case SL_I8:
    case SL_I4:
    case SL_F4_E2M1:
        SL_CHECK(false);
    }
}

void *cf_matrix(cf_run *r, uint32_t stream, int64_t first, int64_t rows, int64_t cols, int64_t ld,
                sl_dtype dtype, float scale)
{
    size_t e = sl_dtype_size(dtype), bytes = (size_t)rows * (size_t)ld * e;
    uint8_t *host = must(bytes);
    void *p;

    memset(host, 0xff, bytes); /* padding between rows is NaN */
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            encode(dtype, scale * cf_uniform(stream, (first + i) * 1000003 + k),
                   host + (size_t)(i * ld + k) * e);
    p = cf_mem(r, host, bytes);
    free(host);
    return p;
}

int64_t cf_form_bytes(int64_t form, int64_t rows, int64_t in)
{
    const int64_t group = form >> 8, multipliers = group ? (in + group - 1) / group : 0;

    return rows * (sl_dtype_bytes(cf_form_dtype(form), in) +
                   multipliers * (int64_t)sl_scale_size((sl_scale_type)(form >> 4 & 15)));
}

/* Multiplier i of a weight with groups, around `scale`. */
static void put_multiplier(const sl_weight *w, uint32_t stream, int64_t i, float scale, uint8_t *out)
{
    const float v = scale * (1.0f + 0.5f * cf_uniform(stream, i));
    const uint16_t half = sl_f32_to_bf16(v);
    int e;

    switch (w->scale_type) {
    case SL_SCALE_BF16:
        memcpy(out + 2 * i, &half, 2);
        break;
    case SL_SCALE_E8M0:
        (void)frexpf(v, &e);
        out[i] = (uint8_t)(127 + e + (int)(cf_hash(stream, i) % 5) - 3);
        break;
    case SL_SCALE_E4M3:
        out[i] = (uint8_t)(0x30 + cf_hash(stream, i) % 24); /* 0.5 to 3.75 */
        break;
    default:
        memcpy(out + 4 * i, &v, 4);
    }
}

/* Random codes, all of which are values, and multipliers that give the variance of the other weights. */
static sl_weight weight_of_groups(cf_run *r, uint32_t stream, int32_t out, int32_t in, int64_t form)
{
    sl_weight w = {
        .out = out, .in = in, .dtype = cf_form_dtype(form), .scale_type = (sl_scale_type)(form >> 4 & 15)};
    const float scale = 1.7f / sqrtf((float)in) /
                        (w.dtype == SL_I4        ? 8.0f
                         : w.dtype == SL_F8_E4M3 ? 300.0f
                                                 : 5.0f);
    const int64_t bytes = (int64_t)out * sl_dtype_bytes(w.dtype, in);

    w.group = (int32_t)(form >> 8);
    w.global = w.scale_type == SL_SCALE_E4M3 ? scale / 1.5f : 0;
    if (w.dtype == SL_F8_E4M3) {
        w.data = cf_matrix(r, stream, 0, out, in, in, w.dtype, 300.0f);
    } else {
        uint8_t *codes = must((size_t)bytes);

        for (int64_t i = 0; i < bytes; i++)
            codes[i] = (uint8_t)cf_hash(stream, i);
        w.data = cf_mem(r, codes, (size_t)bytes);
        free(codes);
    }
    const int64_t n = out * sl_weight_groups(&w);
    uint8_t *multipliers = must((size_t)n * 4);

    for (int64_t i = 0; i < n; i++)
        put_multiplier(&w, stream + 1000, i, scale, multipliers);
    w.multiplier = cf_mem(r, multipliers, (size_t)n * sl_scale_size(w.scale_type));
    free(multipliers);
    return w;
}

sl_weight cf_weight(cf_run *r, uint32_t stream, int32_t out, int32_t in, int64_t form)
{
    const sl_dtype dtype = cf_form_dtype(form);
    sl_weight w = {.out = out, .in = in, .dtype = dtype};
    float scale = 1.7f / sqrtf((float)in);

    if (form >> 4)
        return weight_of_groups(r, stream, out, in, form);
    int64_t groups = (in + 127) / 128, blocks = (out + 127) / 128;

    if (dtype != SL_F8_E4M3) {
        w.data = cf_matrix(r, stream, 0, out, in, in, dtype, scale);
        return w;
    }
    float *scales = must(sizeof(float) * (size_t)(groups * blocks));

    for (int64_t i = 0; i < groups * blocks; i++)
        scales[i] = scale / 300.0f * (1.0f + 0.5f * cf_uniform(stream + 1000, i));
    w.data = cf_matrix(r, stream, 0, out, in, in, dtype, 300.0f);
    w.scale = cf_mem(r, scales, sizeof(float) * (size_t)(groups * blocks));
    free(scales);
    return w;
}

float *cf_cos_sin(cf_run *r, int32_t max_pos, int32_t rope)
{
    size_t n = (size_t)max_pos * (size_t)rope;
    float *host = must(4 * n), *p;

    for (int32_t pos = 0; pos < max_pos; pos++)
        for (int32_t i = 0; i < rope / 2; i++) {
            double angle = pos * pow(10000.0, -2.0 * i / rope);

            host[(size_t)pos * (size_t)rope + 2 * (size_t)i] = (float)cos(angle);
            host[(size_t)pos * (size_t)rope + 2 * (size_t)i + 1] = (float)sin(angle);
        }
    p = cf_mem(r, host, 4 * n);
    free(host);
    return p;
}

/* ---- ops ---- */

static sl_status run_op(cf_run *r, sl_op op, const void *params)
{
    if (r->be)
        return sl_be_run(r->be, op, params, &r->err);
    ref_run(op, params);
    return SL_OK;
}

#define BATCH 20 /* calls between two looks at the clock */

/* BATCH calls as a graph where there are graphs, so that launching them costs nothing. */
static sl_graph *capture(cf_run *r, sl_op op, void *params)
{
    sl_graph *g = NULL;

    if (!(sl_backend_caps(r->be) & SL_BE_GRAPHS) || sl_be_capture_begin(r->be, NULL) != SL_OK)
        return NULL;
    for (int i = 0; i < BATCH; i++)
        if (sl_be_run(r->be, op, params, NULL) != SL_OK)
            break;
    return sl_be_capture_end(r->be, &g, NULL) == SL_OK ? g : NULL;
}

static uint64_t timed_calls(cf_run *r, sl_op op, void *params, void (*advance)(void *params, int i),
                            int calls, int *call)
{
    uint64_t start = sl_now_ns();

    for (int i = 0; i < calls && r->st == SL_OK; i++) {
        if (advance)
            advance(params, ++*call);
        r->st = run_op(r, op, params);
    }
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->be, &r->err);
    return sl_now_ns() - start;
}

/* The minimum of several batches, each of which is long compared with the clock's resolution. */
static void time_op(cf_run *r, sl_op op, void *params, void (*advance)(void *params, int i))
{
    int call = 0, calls;
    uint64_t took = timed_calls(r, op, params, advance, 1, &call), spent = 0, best = UINT64_MAX;
    sl_graph *g = advance ? NULL : capture(r, op, params);

    calls = g || took < 1000000 ? BATCH : took < 20000000 ? 4 : 1;
    for (int round = 0; round < 200 && r->st == SL_OK && (round < 3 || spent < 200000000u); round++) {
        if (g) {
            uint64_t start = sl_now_ns();

            r->st = sl_be_graph_launch(r->be, g, &r->err);
            if (r->st == SL_OK)
                r->st = sl_be_sync(r->be, &r->err);
            took = sl_now_ns() - start;
        } else {
            took = timed_calls(r, op, params, advance, calls, &call);
        }
        spent += took;
        best = took < best ? took : best;
    }
    r->ns = (double)best / calls;
    sl_graph_destroy(g);
}

void cf_op_steps(cf_run *r, sl_op op, void *params, void (*advance)(void *params, int i))
{
    if (r->st != SL_OK)
        return;
    r->st = run_op(r, op, params);
    if (r->st == SL_OK && r->be)
        r->st = sl_be_sync(r->be, &r->err);
    if (r->st == SL_OK && r->perf && r->be)
        time_op(r, op, params, advance);
}

void cf_op(cf_run *r, sl_op op, const void *params)
{
    uint8_t copy[512];

    SL_CHECK(sl_op_params_size(op) <= sizeof(copy));
    memcpy(copy, params, sl_op_params_size(op));
    cf_op_steps(r, op, copy, NULL);
}

void cf_work(cf_run *r, double bytes, double ops, sl_dtype ops_dtype, double link_bytes)
{
    r->bytes = bytes;
    r->ops = ops;
    r->ops_dtype = ops_dtype;
    r->link_bytes = link_bytes;
}

void cf_refused(cf_run *r, sl_op op, const void *params, sl_status st, const char *field)
{
    sl_err err = {0};
    sl_status got;

    if (r->st != SL_OK || !r->be)
        return;
    got = sl_be_run(r->be, op, params, &err);
    if (got == SL_OK)
        got = sl_be_sync(r->be, &err); /* data-dependent failures of asynchronous backends */
    if (got == SL_ERR_UNSUPPORTED && strstr(err.text, "backend has no such op")) {
        r->st = got, r->err = err;
        return;
    }
    if (got != st)
        cf_fail(r, "%s: expected %s about %s, got %s (%s)", sl_op_name(op), sl_status_name(st), field,
                sl_status_name(got), err.text);
    else if (!strstr(err.text, field))
        cf_fail(r, "%s: the error \"%s\" does not mention %s", sl_op_name(op), err.text, field);
}

/* ---- outputs ---- */

static cf_output *add_output(cf_run *r, const char *what, const void *ptr, int64_t rows, size_t row_bytes,
                             cf_kind kind, double tol)
{
    SL_CHECK(r->n_outputs < CF_MAX_OUTPUTS);
    cf_output *o = &r->outputs[r->n_outputs++];

    /* The reference determines the bytes of quantised values. Between two backends the last bit of a norm may
     * differ, which can change a quantised value to the neighbouring code. */
    *o = (cf_output){.byte_exact = r->be == NULL,
                     .what = what,
                     .kind = kind,
                     .tol = tol,
                     .rows = rows,
                     .row_bytes = row_bytes,
                     .at = ptr};
    return o;
}

void cf_out(cf_run *r, const char *what, const void *ptr, int64_t rows, size_t row_bytes, size_t pitch,
            cf_kind kind, double tol)
{
    add_output(r, what, ptr, rows, row_bytes, kind, tol)->pitch = pitch;
}

void cf_out_tokens(cf_run *r, const char *what, const void *ptr, size_t row_bytes, cf_kind kind, double tol)
{
    cf_output *o = add_output(r, what, ptr, r->n, row_bytes, kind, tol);

    o->pitch = row_bytes;
    o->per_token = true;
}

void cf_out_at(cf_run *r, const char *what, const void *ptr, const size_t *offsets, size_t row_bytes,
               cf_kind kind, double tol)
{
    cf_output *o = add_output(r, what, ptr, r->n, row_bytes, kind, tol);

    o->per_token = true;
    o->offsets = must(sizeof(size_t) * (size_t)r->n);
    memcpy(o->offsets, offsets, sizeof(size_t) * (size_t)r->n);
}

static void collect(cf_run *r)
{
    for (int i = 0; i < r->n_outputs && r->st == SL_OK; i++) {
        cf_output *o = &r->outputs[i];

        o->data = must((size_t)o->rows * o->row_bytes);
        if (!o->offsets && o->pitch == o->row_bytes) {
            cf_get(r, o->data, o->at, (size_t)o->rows * o->row_bytes);
            continue;
        }
        for (int64_t k = 0; k < o->rows; k++)
            cf_get(r, o->data + (size_t)k * o->row_bytes,
                   o->at + (o->offsets ? o->offsets[k] : (size_t)k * o->pitch), o->row_bytes);
    }
}

void cf_execute(cf_run *r, const cf_case *c, sl_backend *be, sl_backend *memory, int64_t first, int64_t n,
                bool perf)
{
    memset(r, 0, sizeof(*r));
    r->be = be;
    r->memory = memory;
    r->first = first;
    r->n = n;
    r->perf = perf;
    c->fn(r, c->a);
    if (r->st == SL_OK && !perf)
        collect(r);
    if (r->st == SL_OK)
        check_guards(r);
}

/* ---- one case ---- */

/* Slices show that numbers do not depend on the batch. Sanitizers look at memory: there, few slices have every index. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ALWAYS_FEW = 1 };
#else
enum { ALWAYS_FEW = 0 };
#endif

static bool few_slices(const cf_case *c)
{
    return ALWAYS_FEW || c->flags & CF_FEW;
}

static sl_status verdict(const cf_run *r, const char *who, char *why, size_t cap)
{
    snprintf(why, cap, "%s: %s: %s", who, sl_status_name(r->st), r->err.text);
    return r->st;
}

static sl_status check_slices(const cf_case *c, const cf_run *whole, sl_backend *tested, int64_t size,
                              char *why, size_t cap)
{
    for (int64_t first = 0; first < c->a[0]; first += size) {
        int64_t n = first + size <= c->a[0] ? size : c->a[0] - first;
        char detail[384] = "";
        cf_run r;
        sl_status st = SL_OK;

        if (few_slices(c) && first > 0 && first + size < c->a[0])
            continue;
        cf_execute(&r, c, tested, tested, first, n, false);
        if (r.st != SL_OK) {
            st = verdict(&r, "slice", why, cap);
        } else if (!cf_compare(whole, &r, true, detail, sizeof(detail))) {
            snprintf(why, cap, "tokens %ld.. in a batch of %ld differ from the same in %ld: %s", (long)first,
                     (long)n, (long)c->a[0], detail);
            st = SL_ERR_CORRUPT;
        }
        cf_release(&r);
        if (st != SL_OK)
            return st;
    }
    return SL_OK;
}

sl_status cf_check(const cf_case *c, sl_backend *tested, sl_backend *twin, sl_backend *memory, char *why,
                   size_t cap)
{
    cf_run got, want;
    sl_status st = SL_OK;

    cf_execute(&got, c, tested, tested, 0, c->a[0], false);
    if (got.st != SL_OK) {
        st = verdict(&got, "tested", why, cap);
        cf_release(&got);
        return st;
    }
    cf_execute(&want, c, twin, twin ? twin : memory, 0, c->a[0], false);
    if (want.st != SL_OK)
        st = verdict(&want, twin ? "twin" : "reference", why, cap);
    else if (got.n_outputs && !cf_compare(&want, &got, false, why, cap))
        st = SL_ERR_CORRUPT;
    cf_release(&want);
    if (st == SL_OK && (c->flags & CF_SPLIT)) {
        st = check_slices(c, &got, tested, 1, why, cap);
        if (st == SL_OK && c->a[0] > 3)
            st = check_slices(c, &got, tested, 3, why, cap);
        if (st == SL_OK && few_slices(c) && c->a[0] > 1)
            st = check_slices(c, &got, tested, c->a[0] / 2, why, cap);
    }
    cf_release(&got);
    return st;
}
