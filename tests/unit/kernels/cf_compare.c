/* The harness of cf.h: whether two runs of a case left the same outputs, within what each kind of output allows. */
#include "tests/unit/kernels/cf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/formats.h"

static float element(cf_kind kind, const uint8_t *row, size_t i)
{
    float f;
    uint16_t h;

    switch (kind) {
    case CF_F32:
        memcpy(&f, row + 4 * i, 4);
        return f;
    case CF_BF16:
        memcpy(&h, row + 2 * i, 2);
        return sl_bf16_to_f32(h);
    default:
        return sl_e4m3_to_f32(row[i]);
    }
}

static bool same_numbers(const cf_output *o, const uint8_t *a, const uint8_t *b, char *why, size_t cap)
{
    size_t n = o->row_bytes / (o->kind == CF_F32 ? 4 : 2);
    double largest = 0;

    for (size_t i = 0; i < n; i++)
        if (isfinite(element(o->kind, a, i)))
            largest = fmax(largest, fabs((double)element(o->kind, a, i)));
    for (size_t i = 0; i < n; i++) {
        double x = (double)element(o->kind, a, i), y = (double)element(o->kind, b, i);
        double limit = o->tol * largest + (o->kind == CF_BF16 ? fabs(x) * 0x1p-7 : 0) + 1e-37;

        if (isnan(x) && isnan(y))
            continue;
        if (x == y || fabs(x - y) <= limit)
            continue;
        snprintf(why, cap, "element %zu is %.9g, not %.9g (difference %.3g, limit %.3g)", i, y, x,
                 fabs(x - y), limit);
        return false;
    }
    return true;
}

/* Codes in order of value, so that neighbours differ by one. */
static int ordinal(uint8_t code)
{
    return code & 0x80 ? -(code & 0x7f) : code & 0x7f;
}

static bool same_codes(const uint8_t *a, const uint8_t *b, size_t n, char *why, size_t cap)
{
    size_t off = 0;

    for (size_t i = 0; i < n; i++) {
        int d = abs(ordinal(a[i]) - ordinal(b[i]));

        if (d > 1) {
            snprintf(why, cap, "e4m3 value %zu is %#x, not %#x", i, b[i], a[i]);
            return false;
        }
        off += d == 1;
    }
    if (off > n / 100 + 1) {
        snprintf(why, cap, "%zu of %zu e4m3 values are neighbours of the right ones", off, n);
        return false;
    }
    return true;
}

static bool same_row(const cf_output *o, const uint8_t *a, const uint8_t *b, bool exact, char *why,
                     size_t cap)
{
    if (memcmp(a, b, o->row_bytes) == 0)
        return true;
    if (!exact && (o->kind == CF_F32 || o->kind == CF_BF16))
        return same_numbers(o, a, b, why, cap);
    if (!exact && o->kind == CF_FP8 && !o->byte_exact)
        return same_codes(a, b, o->row_bytes, why, cap);
    if (!exact && o->kind == CF_ROW_FP8 && !o->byte_exact) {
        size_t lora = (size_t)o->tol, scales = (lora + 127) / 128 * 4;
        cf_output rope = {.kind = CF_BF16, .tol = 1e-6, .row_bytes = o->row_bytes - lora - scales};

        if (memcmp(a + lora, b + lora, scales) == 0)
            return same_codes(a, b, lora, why, cap) &&
                   same_numbers(&rope, a + lora + scales, b + lora + scales, why, cap);
        snprintf(why, cap, "the scales differ");
        return false;
    }
    for (size_t i = 0; i < o->row_bytes; i++)
        if (a[i] != b[i]) {
            snprintf(why, cap, "byte %zu is %#x, not %#x", i, b[i], a[i]);
            break;
        }
    return false;
}

bool cf_compare(const cf_run *want, const cf_run *got, bool exact, char *why, size_t cap)
{
    bool slice = want->first != got->first || want->n != got->n;

    if (want->n_outputs != got->n_outputs || want->n_outputs == 0) {
        snprintf(why, cap, "%d outputs, expected %d", got->n_outputs, want->n_outputs);
        return false;
    }
    for (int i = 0; i < want->n_outputs; i++) {
        const cf_output *w = &want->outputs[i], *g = &got->outputs[i];
        int64_t shift = slice ? got->first - want->first : 0;

        if (slice && !w->per_token)
            continue;
        if ((!slice && w->rows != g->rows) || w->row_bytes != g->row_bytes) {
            snprintf(why, cap, "%s has another shape", w->what);
            return false;
        }
        for (int64_t k = 0; k < g->rows; k++) {
            char detail[256] = "";

            if (same_row(w, w->data + (size_t)(k + shift) * w->row_bytes, g->data + (size_t)k * w->row_bytes,
                         exact, detail, sizeof(detail)))
                continue;
            snprintf(why, cap, "%s, row %ld: %s", w->what, (long)(k + shift), detail);
            return false;
        }
    }
    return true;
}
