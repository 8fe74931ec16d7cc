/*
 * Llama 3: frequencies whose wavelength is short against the original context are kept, long ones are divided by the
 * factor, with a transition between two bounds.
 *
 * YaRN: a frequency that makes many turns within the original context is kept, one that makes few is divided by the
 * factor, and between the two limits a linear ramp mixes both. The correction of the softmax temperature is part of the
 * attention scale (mscale_all_dim); cos and sin are multiplied by the ratio mscale / mscale_all_dim only.
 */
#include "model/rope.h"

#include <math.h>

static double mscale(double factor, double m)
{
    return factor <= 1 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}

/* The softmax scale, which YaRN corrects for the longer context, and the factor of cos and sin. */
static void finish_yarn(sl_model_config *c, double scale)
{
    if (c->rope_mscale_all_dim != 0) {
        double m = mscale(c->rope_factor, c->rope_mscale_all_dim);
        scale *= m * m;
    }
    c->softmax_scale = (float)scale;
    if (c->rope_attention_factor == 0) {
        bool both = c->rope_mscale != 0 && c->rope_mscale_all_dim != 0;
        c->rope_attention_factor =
            both ? mscale(c->rope_factor, c->rope_mscale) / mscale(c->rope_factor, c->rope_mscale_all_dim)
                 : mscale(c->rope_factor, 1.0);
    }
}

static void finish_plain(sl_model_config *c, double scale)
{
    c->softmax_scale = (float)scale;
}

/* The dimension whose frequency makes `rotations` turns within the original context. */
static double correction_dim(const sl_model_config *c, double rotations)
{
    return c->qk_rope_head_dim * log(c->rope_original_max / (rotations * 2 * M_PI)) /
           (2 * log(c->rope_theta));
}

static float period(const sl_model_config *c, int32_t j)
{
    return (float)pow((float)c->rope_theta, (float)(2 * j) / (float)c->qk_rope_head_dim);
}

static void plain_frequencies(const sl_model_config *c, float *out)
{
    for (int32_t j = 0; j < c->qk_rope_head_dim / 2; j++)
        out[j] = 1.0f / period(c, j);
}

static void yarn_frequencies(const sl_model_config *c, float *out)
{
    int32_t dim = c->qk_rope_head_dim;
    double low = correction_dim(c, c->rope_beta_fast), high = correction_dim(c, c->rope_beta_slow);
    low = fmax(c->rope_truncate ? floor(low) : low, 0);
    high = fmin(c->rope_truncate ? ceil(high) : high, dim - 1);
    if (low == high)
        high += 0.001;
    for (int32_t j = 0; j < dim / 2; j++) {
        float ramp = ((float)j - (float)low) / (float)(high - low);
        float keep = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        float stretched = 1.0f / ((float)c->rope_factor * period(c, j));
        out[j] = stretched * (1.0f - keep) + 1.0f / period(c, j) * keep;
    }
}

static void llama3_frequencies(const sl_model_config *c, float *out)
{
    float original = (float)c->rope_original_max, factor = (float)c->rope_factor;
    float low = (float)c->rope_low_freq, high = (float)c->rope_high_freq;
    for (int32_t j = 0; j < c->qk_rope_head_dim / 2; j++) {
        float freq = 1.0f / period(c, j), wavelength = (float)(2 * M_PI) / freq;
        if (wavelength < original / high) {
            out[j] = freq;
        } else if (wavelength > original / low) {
            out[j] = freq / factor;
        } else {
            float keep = (original / wavelength - low) / (high - low);
            out[j] = (1.0f - keep) * (freq / factor) + keep * freq;
        }
    }
}

/* The config reader refuses every other type (config_rope.c). */
static const struct {
    void (*finish)(sl_model_config *c, double scale);
    void (*frequencies)(const sl_model_config *c, float *out);
} types[] = {
    [SL_ROPE_PLAIN] = {finish_plain, plain_frequencies},
    [SL_ROPE_YARN] = {finish_yarn, yarn_frequencies},
    [SL_ROPE_LLAMA3] = {finish_plain, llama3_frequencies},
};

void sl_rope_finish_config(sl_model_config *c)
{
    SL_CHECK((unsigned)c->rope_type < SL_COUNT(types), "rope type %d", (int)c->rope_type);
    types[c->rope_type].finish(c, pow(c->qk_nope_head_dim + c->qk_rope_head_dim, -0.5));
}

void sl_rope_frequencies(const sl_model_config *c, float *out)
{
    SL_CHECK((unsigned)c->rope_type < SL_COUNT(types), "rope type %d", (int)c->rope_type);
    types[c->rope_type].frequencies(c, out);
}

void sl_rope_table(const sl_model_config *c, int32_t first, int32_t count, float *out)
{
    enum { MAX_HALF = 1 << 11 }; /* half the largest qk_rope_head_dim a config may have */
    float freq[MAX_HALF];
    int32_t half = c->qk_rope_head_dim / 2;
    SL_CHECK(half <= MAX_HALF, "rope half %d", half);
    sl_rope_frequencies(c, freq);
    for (int32_t p = 0; p < count; p++) {
        for (int32_t j = 0; j < half; j++, out += 2) {
            float angle = (float)(first + p) * freq[j];
            out[0] = (float)(cos(angle) * c->rope_attention_factor);
            out[1] = (float)(sin(angle) * c->rope_attention_factor);
        }
    }
}

sl_rope_config sl_rope_of(const sl_model_config *c)
{
    return (sl_rope_config){.theta = c->rope_theta,
                            .factor = c->rope_factor,
                            .beta_fast = c->rope_beta_fast,
                            .beta_slow = c->rope_beta_slow,
                            .low_freq = c->rope_low_freq,
                            .high_freq = c->rope_high_freq,
                            .attention_factor = c->rope_attention_factor,
                            .original_max = c->rope_original_max,
                            .type = c->rope_type,
                            .truncate = c->rope_truncate};
}

void sl_rope_set(sl_model_config *c, const sl_rope_config *r)
{
    c->rope_theta = r->theta, c->rope_factor = r->factor;
    c->rope_beta_fast = r->beta_fast, c->rope_beta_slow = r->beta_slow;
    c->rope_low_freq = r->low_freq, c->rope_high_freq = r->high_freq;
    c->rope_attention_factor = r->attention_factor;
    c->rope_original_max = r->original_max, c->rope_type = r->type, c->rope_truncate = r->truncate;
}
