/* Cold times of the ops that read weights, at decode sizes: fp8 linear layers, routed experts; see cold.c. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/synth.h"
#include "tests/bench/cold.h"

enum { MOST = 72, POOL = 420 << 20, SCALES = 1 << 16 };

static struct dense {
    uint8_t *weights;
    int64_t bytes;
    float *scales;
    void *x, *out;
} in;

static void make(cold *c, int64_t bytes, int64_t x, int64_t out)
{
    in.bytes = bytes;
    in.weights = cold_random(c, bytes, SL_F8_E4M3, 0, 200);
    in.scales = cold_random(c, SCALES, SL_F32, 0.001f, 0.0005f);
    in.x = cold_random(c, MOST * x, SL_BF16, 0, 1.7f);
    in.out = cold_mem(c, (size_t)MOST * (size_t)out * 2);
}

static void setup_linear(cold *c)
{
    make(c, c->o.tiny ? 1 << 20 : POOL, c->o.tiny ? 256 : 16384, c->o.tiny ? 384 : 24576);
}

/* a: outputs, inputs, tokens */
static void linear(cold *c, const cold_shape *a)
{
    int32_t out = c->o.tiny ? 384 : a->a[0], inputs = c->o.tiny ? 256 : a->a[1], tokens = a->a[2];
    int64_t each = (int64_t)out * inputs, places = in.bytes / each;
    int32_t rounds = cold_rounds(c, (double)each, 40);
    char text[64];
    double us;

    for (int32_t i = 0; i < rounds; i++) {
        sl_linear_params p = {.x = in.x,
                              .w = {.data = in.weights + i % places * each,
                                    .scale = in.scales,
                                    .out = out,
                                    .in = inputs,
                                    .dtype = SL_F8_E4M3},
                              .out = in.out,
                              .tokens = tokens,
                              .ld_x = inputs,
                              .ld_out = out,
                              .fp8_acts = true,
                              .act = SL_BF16,
                              .out_dtype = SL_BF16};
        cold_add(c, SL_OP_LINEAR, &p, sizeof p);
    }
    us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%d x %d of %d tokens", out, inputs, tokens);
    cold_report(c, a, "linear", text, us, (double)each + 2.0 * tokens * (out + inputs),
                2.0 * (double)each * tokens, COLD_FP8, 0);
}

enum { EXPERTS = 32, TOP = 8, HIDDEN = 7168, INTER = 2048 };

static void setup_moe(cold *c)
{
    int64_t each = c->o.tiny ? 256 * 128 : (int64_t)HIDDEN * INTER;

    make(c, 3 * each * (c->o.tiny ? TOP : EXPERTS), c->o.tiny ? 256 : HIDDEN, c->o.tiny ? 256 : HIDDEN);
}

/* Chooses TOP experts for each token, one from each eighth; experts that no token chose are not read. */
static int32_t *choices(cold *c, int32_t tokens, int32_t experts, int32_t *touched)
{
    int32_t *ids = cold_host(c, sizeof *ids * MOST * TOP), span = experts / TOP, *at;
    bool used[EXPERTS] = {false};

    *touched = 0;
    for (int32_t i = 0; i < tokens * TOP && ids; i++) {
        ids[i] = i % TOP * span + (int32_t)cold_below(c, (uint32_t)span);
        *touched += !used[ids[i]];
        used[ids[i]] = true;
    }
    at = cold_put(c, ids, sizeof *ids * MOST * TOP);
    free(ids);
    return at;
}

/* Forms of experts: fp8 with blocks, int4 with bf16 scales of 128 and e4m3 inputs, the same with bf16 inputs, MXFP4 with
 * e4m3 inputs, NVFP4 with bf16 inputs. */
static const struct {
    const char *name;
    sl_dtype dtype;
    sl_scale_type scale_type;
    int32_t group;
    bool as_given;
} forms[] = {{"fp8", SL_F8_E4M3, SL_SCALE_BLOCKS, 0, false},
             {"int4, e4m3 inputs", SL_I4, SL_SCALE_BF16, 128, false},
             {"int4, bf16 inputs", SL_I4, SL_SCALE_BF16, 128, true},
             {"mxfp4, e4m3 inputs", SL_F4_E2M1, SL_SCALE_E8M0, 32, false},
             {"nvfp4, bf16 inputs", SL_F4_E2M1, SL_SCALE_E4M3, 16, true}};

/* The memory of an fp8 weight holds one in 4 bits, and from its middle on the multipliers. */
static sl_weight expert(int32_t f, const uint8_t *data, const float *scales, int32_t out, int32_t inputs)
{
    sl_weight w = {.data = data,
                   .out = out,
                   .in = inputs,
                   .dtype = forms[f].dtype,
                   .scale_type = forms[f].scale_type,
                   .group = forms[f].group,
                   .global = 1,
                   .acts_as_given = forms[f].as_given};
    if (f == 0)
        w.scale = scales;
    else
        w.multiplier = data + (int64_t)out * inputs / 2;
    return w;
}

static double expert_bytes(int32_t f, int64_t values)
{
    const double multiplier =
        forms[f].group ? (double)values / forms[f].group * (f == 1 || f == 2 ? 2 : 1) : 0;

    return f == 0 ? (double)values : (double)values / 2 + multiplier;
}

/* a: tokens, experts of this worker, form */
static void moe(cold *c, const cold_shape *a)
{
    static sl_weight gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    int32_t tokens = c->o.tiny ? 2 : a->a[0], n = c->o.tiny ? TOP : a->a[1],
            hidden = c->o.tiny ? 256 : HIDDEN, f = a->a[2], inter = c->o.tiny ? 128 : INTER,
            rounds = c->o.tiny ? 2 : 6, touched = 0;
    int64_t each = (int64_t)hidden * inter;
    sl_moe_params p = {.x = in.x,
                       .gate = gate,
                       .up = up,
                       .down = down,
                       .out = in.out,
                       .tokens = tokens,
                       .hidden = hidden,
                       .inter = inter,
                       .experts = n,
                       .top_k = TOP,
                       .fp8_acts = true,
                       .act = SL_BF16};
    double us, bytes = 0;
    char text[80];

    for (int32_t e = 0; e < n; e++) {
        gate[e] = expert(f, in.weights + 3 * e * each, in.scales + 1000 * e, inter, hidden);
        up[e] = expert(f, in.weights + (3 * e + 1) * each, in.scales + 1000 * e + 300, inter, hidden);
        down[e] = expert(f, in.weights + (3 * e + 2) * each, in.scales + 1000 * e + 600, hidden, inter);
    }
    p.weights = cold_random(c, (int64_t)tokens * TOP, SL_F32, 0.12f, 0.1f);
    p.workspace_bytes = sl_moe_workspace_bytes(tokens, hidden, inter, n, TOP);
    p.workspace = cold_mem(c, p.workspace_bytes);
    for (int32_t i = 0; i < rounds; i++) {
        p.expert_ids = choices(c, tokens, n, &touched);
        bytes += 3.0 * expert_bytes(f, each) * touched / rounds;
        cold_add(c, SL_OP_MOE, &p, sizeof p);
    }
    us = cold_time(c, rounds);
    snprintf(text, sizeof text, "%d tokens x %d of %d experts, %s", tokens, TOP, n, forms[f].name);
    cold_report(c, a, "moe", text, us, bytes, 6.0 * (double)each * tokens * TOP,
                forms[f].as_given ? COLD_BF16 : COLD_FP8, 0);
}

static const cold_shape linear_shapes[] = {
    {{1536, 7168, 1}, 12.2, 0},  {{1536, 7168, 16}, 10.1, 0},  {{1536, 7168, 64}, 8.9, 0},
    {{24576, 1536, 1}, 14.0, 0}, {{24576, 1536, 16}, 14.1, 0}, {{24576, 1536, 64}, 13.5, 0},
    {{576, 7168, 1}, 9.6, 0},    {{576, 7168, 16}, 9.8, 0},    {{576, 7168, 64}, 8.7, 0},
    {{7168, 16384, 1}, 38.7, 0}, {{7168, 16384, 16}, 35.4, 0}, {{7168, 16384, 64}, 35.3, 0},
    {{4096, 7168, 1}, 17.1, 0},  {{4096, 7168, 16}, 15.2, 0},  {{4096, 7168, 64}, 11.6, 0},
    {{7168, 2048, 1}, 7.0, 0},   {{7168, 2048, 16}, 6.9, 0},   {{7168, 2048, 64}, 6.2, 0},
};
static const cold_shape moe_shapes[] = {
    {{1, 32}, 0, 0},     {{16, 16}, 0, 0},    {{20, 32}, 0, 0},    {{64, 32}, 0, 0},    {{20, 32, 1}, 0, 0},
    {{20, 32, 2}, 0, 0}, {{20, 32, 3}, 0, 0}, {{20, 32, 4}, 0, 0}, {{70, 32, 0}, 0, 0}, {{70, 32, 1}, 0, 0},
    {{70, 32, 2}, 0, 0}, {{70, 32, 3}, 0, 0}, {{70, 32, 4}, 0, 0}};

const cold_group cold_dense_groups[] = {
    {"linear", setup_linear, linear, linear_shapes, SL_COUNT(linear_shapes)},
    {"moe", setup_moe, moe, moe_shapes, SL_COUNT(moe_shapes)},
    {0},
};
