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
    if (c->rope.mscale_all_dim != 0) {
        double m = mscale(c->rope.factor, c->rope.mscale_all_dim);
        scale *= m * m;
    }
    c->attn.softmax_scale = (float)scale;
    if (c->rope.attention_factor == 0) {
        bool both = c->rope.mscale != 0 && c->rope.mscale_all_dim != 0;
        c->rope.attention_factor =
            both ? mscale(c->rope.factor, c->rope.mscale) / mscale(c->rope.factor, c->rope.mscale_all_dim)
                 : mscale(c->rope.factor, 1.0);
    }
}

static void finish_plain(sl_model_config *c, double scale)
{
    c->attn.softmax_scale = (float)scale;
}

/* The dimension whose frequency makes `rotations` turns within the original context. */
static double correction_dim(const sl_model_config *c, double rotations)
{
    return c->attn.qk_rope_head_dim * log(c->rope.original_max / (rotations * 2 * M_PI)) /
           (2 * log(c->rope.theta));
}

static float period(const sl_model_config *c, int32_t j)
{
    return (float)pow((float)c->rope.theta, (float)(2 * j) / (float)c->attn.qk_rope_head_dim);
}

static void plain_frequencies(const sl_model_config *c, float *out)
{
    for (int32_t j = 0; j < c->attn.qk_rope_head_dim / 2; j++)
        out[j] = 1.0f / period(c, j);
}

static void yarn_frequencies(const sl_model_config *c, float *out)
{
    int32_t dim = c->attn.qk_rope_head_dim;
    double low = correction_dim(c, c->rope.beta_fast), high = correction_dim(c, c->rope.beta_slow);
    low = fmax(c->rope.truncate ? floor(low) : low, 0);
    high = fmin(c->rope.truncate ? ceil(high) : high, dim - 1);
    if (low == high)
        high += 0.001;
    for (int32_t j = 0; j < dim / 2; j++) {
        float ramp = ((float)j - (float)low) / (float)(high - low);
        float keep = 1.0f - fminf(fmaxf(ramp, 0.0f), 1.0f);
        float stretched = 1.0f / ((float)c->rope.factor * period(c, j));
        out[j] = stretched * (1.0f - keep) + 1.0f / period(c, j) * keep;
    }
}

static void llama3_frequencies(const sl_model_config *c, float *out)
{
    float original = (float)c->rope.original_max, factor = (float)c->rope.factor;
    float low = (float)c->rope.low_freq, high = (float)c->rope.high_freq;
    for (int32_t j = 0; j < c->attn.qk_rope_head_dim / 2; j++) {
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
    SL_CHECK((unsigned)c->rope.type < SL_COUNT(types), "rope type %d", (int)c->rope.type);
    types[c->rope.type].finish(c, pow(c->attn.qk_nope_head_dim + c->attn.qk_rope_head_dim, -0.5));
}

void sl_rope_frequencies(const sl_model_config *c, float *out)
{
    SL_CHECK((unsigned)c->rope.type < SL_COUNT(types), "rope type %d", (int)c->rope.type);
    types[c->rope.type].frequencies(c, out);
}

void sl_rope_table(const sl_model_config *c, int32_t first, int32_t count, float *out)
{
    enum { MAX_HALF = 1 << 11 }; /* half the largest qk_rope_head_dim a config may have */
    float freq[MAX_HALF];
    int32_t half = c->attn.qk_rope_head_dim / 2;
    SL_CHECK(half <= MAX_HALF, "rope half %d", half);
    sl_rope_frequencies(c, freq);
    for (int32_t p = 0; p < count; p++) {
        for (int32_t j = 0; j < half; j++, out += 2) {
            float angle = (float)(first + p) * freq[j];
            out[0] = (float)(cos(angle) * c->rope.attention_factor);
            out[1] = (float)(sin(angle) * c->rope.attention_factor);
        }
    }
}
