/*
 * Matrix product of the CPU backend: tasks are panels of a few weight rows; a panel is converted to float32
 * once (unless it is float32 already) and multiplied with every token by canonical dots (vec.h). Neither
 * panels nor threads nor the number of tokens can change a bit, because every (row, token) pair is summed on
 * its own.
 */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

#define PANEL 8

typedef struct ctx {
    sl_cpu *c;
    const sl_matmul *m;
} ctx;

void sl_quant_acts(float *x, int32_t n, float *scale)
{
    for (int32_t g = 0; g < sl_fp8_groups(n); g++) {
        int32_t at = g * SL_FP8_GROUP, len = n - at < SL_FP8_GROUP ? n - at : SL_FP8_GROUP;
        float s = sl_scale_act(sl_amax(x + at, len)), inv = 1.0f / s;

        for (int32_t i = at; i < at + len; i++)
            x[i] = sl_e4m3_to_f32(sl_f32_to_e4m3(x[i] * inv));
        scale[g] = s;
    }
}

size_t sl_matmul_scratch(const sl_weight *w, int32_t tokens)
{
    return 4 * PANEL * ((size_t)w->in + (size_t)tokens);
}

/* acc over the groups of the weight, or 128 inputs if these are more: dot * (s_x * s_w) each. */
static void panel_groups(const sl_matmul *m, sl_dot_job *j, int64_t r0)
{
    const float *panel = j->w, *x = j->x;
    const int32_t rows = j->rows, step = m->w->group < SL_FP8_GROUP ? m->w->group : SL_FP8_GROUP;
    float *out = j->out;

    j->rows = 1;
    for (int32_t at = 0; at < m->w->in; at += step) {
        j->n = m->w->in - at < step ? m->w->in - at : step;
        j->x = x + at;
        j->scale_x = m->scale_x + at / SL_FP8_GROUP;
        for (int32_t r = 0; r < rows; r++) {
            j->w = panel + r * j->ld_w + at;
            j->out = out + r;
            j->scale_w = sl_weight_multiplier(m->w, r0 + r, at / m->w->group);
            sl_vec_dots(j);
        }
    }
}

/* acc over groups of 128 inputs: dot * (s_x * s_w) each. */
static void panel_fp8(const sl_matmul *m, sl_dot_job *j, int64_t r0)
{
    const float *panel = j->w, *x = j->x;
    int32_t groups = sl_fp8_groups(m->w->in);
    int32_t rows = j->rows;
    float *out = j->out;

    for (int64_t i = 0; i < (int64_t)j->tokens * j->ld_out; i++)
        out[i] = 0;
    j->acc = true;
    j->ld_scale_x = groups;
    if (m->w->scale_type != SL_SCALE_BLOCKS) {
        panel_groups(m, j, r0);
        return;
    }
    for (int32_t g = 0; g < groups; g++) {
        int32_t at = g * SL_FP8_GROUP;

        j->n = m->w->in - at < SL_FP8_GROUP ? m->w->in - at : SL_FP8_GROUP;
        j->x = x + at;
        j->scale_x = m->scale_x + g;
        for (int32_t r = 0; r < rows;) { /* a panel may cross into the next 128 output rows */
            int64_t block = (r0 + r) / SL_FP8_GROUP;
            int32_t n = (int32_t)((block + 1) * SL_FP8_GROUP - (r0 + r));

            j->rows = n < rows - r ? n : rows - r;
            j->w = panel + r * j->ld_w + at;
            j->out = out + r;
            j->scale_w = m->w->scale[block * groups + g];
            sl_vec_dots(j);
            r += j->rows;
        }
    }
}

static void panel(const sl_matmul *m, int64_t r0, int32_t rows, float *scratch)
{
    const sl_weight *w = m->w;
    float *tile = scratch, *conv = scratch + (int64_t)PANEL * m->tokens;
    sl_dot_job j = {.w = conv, .x = m->x, .out = tile, .ld_w = w->in, .ld_x = m->ld_x, .ld_out = PANEL};

    j.rows = rows;
    j.tokens = m->tokens;
    j.n = w->in;
    if (w->dtype == SL_F32)
        j.w = (const float *)w->data + r0 * w->in;
    else if (m->scale_x || sl_weight_plain(w))
        sl_load_f32(w->dtype, w->data, r0 * w->in, (int64_t)rows * w->in, conv);
    else
        for (int32_t r = 0; r < rows; r++)
            sl_weight_load_row(w, r0 + r, SL_F32, conv + (int64_t)r * w->in);
    if (m->scale_x)
        panel_fp8(m, &j, r0);
    else
        sl_vec_dots(&j);
    for (int32_t t = 0; t < m->tokens; t++)
        sl_store_f32(m->out_dtype, tile + (int64_t)t * PANEL, rows, m->out, t * m->ld_out + r0);
}

static void panels(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *x = arg;
    float *scratch = sl_cpu_own(x->c, worker);

    for (int64_t i = first; i < first + count; i++) {
        int64_t left = x->m->w->out - i * PANEL;

        panel(x->m, i * PANEL, left < PANEL ? (int32_t)left : PANEL, scratch);
    }
}

void sl_matmul_run(sl_cpu *c, const sl_matmul *m)
{
    ctx x = {c, m};
    int64_t items = (m->w->out + PANEL - 1) / PANEL;

    sl_cpu_for(c, items, (int64_t)m->w->in * (1 + m->tokens) * PANEL / 16, panels, &x);
}
