/*
 * The two ways in which a linear layer of many tokens with fp8 weights in blocks of 128 x 128 can be multiplied: the library's
 * block-scaled product, and the own kernel (kernels/cuda/sm90/dense). Both get the same quantised tokens, and their bits must
 * be equal. It says for which shapes the library's way is worth its place (kernels/paths.c).
 *
 *   block_scales            needs a GPU of compute capability 9.0
 *
 * Method: each way runs CALLS times between two events, the ways in turn, ROUNDS times; medians. Weights of successive calls are
 * different ones, so they come from device memory. CSV: outputs,inputs,tokens,library_us,own_us,own_to_library,bits. Exit code 1:
 * bits differ; 77: no such GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/instance.h"
#include "kernels/cuda/sm90/dense/linear.h"
#include "kernels/synth.h"

enum { CALLS = 24, ROUNDS = 9, WARM = 2, COPIES = 3, GROUP = 128, MOST_TOKENS = 4096, MOST_IN = 7168 };

typedef struct bench {
    sl_backend *be;
    sl_cuda *cu;
    uint8_t *weights, *x;
    float *w_scale, *x_scale;
    void *out[2];
    cudaEvent_t from, to;
    sl_err err;
} bench;

typedef struct shape {
    int32_t out, in;
} shape;

/* One range of k each: queries of V3.2 on a whole card and one of eight, gate and up of its dense layers, index queries; the last
 * two are not of a model. */
static const shape shapes[] = {{24576, 1536}, {32768, 1536}, {18432, 7168},
                               {8192, 1536},  {16384, 1024}, {16384, 4096}};
static const int32_t token_counts[] = {260, 512, 1024, 2048, 4096};

static sl_status memory(bench *b, size_t bytes, void *out)
{
    return sl_be_alloc(b->be, SL_MEM_DEVICE, bytes, out, &b->err);
}

static sl_status random_values(bench *b, void *to, int64_t n, sl_dtype dtype, float mean, float spread,
                               uint64_t seed)
{
    const int32_t cols = 1 << 12;
    sl_random_params r = {.out = to,
                          .rows = (int32_t)(n / cols),
                          .cols = cols,
                          .dtype = dtype,
                          .mean = mean,
                          .spread = spread,
                          .seed = seed};

    return sl_be_run(b->be, SL_OP_RANDOM, &r, &b->err);
}

static sl_status set_up(bench *b)
{
    const int64_t w = (int64_t)COPIES * 18432 * 7168, x = (int64_t)MOST_TOKENS * MOST_IN, scales = 1 << 20;

    SL_TRY(memory(b, (size_t)w, &b->weights));
    SL_TRY(memory(b, (size_t)x, &b->x));
    SL_TRY(memory(b, (size_t)scales * 4, &b->w_scale));
    SL_TRY(memory(b, (size_t)scales * 4, &b->x_scale));
    for (int i = 0; i < 2; i++)
        SL_TRY(memory(b, (size_t)MOST_TOKENS * 32768 * 2, &b->out[i]));
    SL_TRY(random_values(b, b->weights, w, SL_F8_E4M3, 0, 200, 1));
    SL_TRY(random_values(b, b->x, x, SL_F8_E4M3, 0, 200, 2));
    SL_TRY(random_values(b, b->w_scale, scales, SL_F32, 0.001f, 0.0005f, 3));
    SL_TRY(random_values(b, b->x_scale, scales, SL_F32, 0.001f, 0.0005f, 4));
    SL_TRY(SL_CU(cudaEventCreate(&b->from), &b->err));
    return SL_CU(cudaEventCreate(&b->to), &b->err);
}

static const uint8_t *weight(const bench *b, const shape *s, int copy)
{
    return b->weights + (int64_t)(copy % COPIES) * s->out * s->in;
}

static sl_status library(bench *b, const shape *s, int32_t tokens, int copy)
{
    const sl_cuda_gemm g = {.a = weight(b, s, copy),
                            .b = b->x,
                            .d = b->out[0],
                            .a_scale = b->w_scale,
                            .b_scale = b->x_scale,
                            .lda = s->in,
                            .ldb = s->in,
                            .ldd = s->out,
                            .m = s->out,
                            .n = tokens,
                            .k = s->in,
                            .batch = 1,
                            .a_transposed = true,
                            .in = SL_F8_E4M3,
                            .out = SL_BF16};

    return sl_cuda_gemm_run(b->cu, &g, &b->err);
}

static sl_status own(bench *b, const shape *s, int32_t tokens, int copy)
{
    const sl_linear_params p = {.w = {.data = weight(b, s, copy),
                                      .scale = b->w_scale,
                                      .out = s->out,
                                      .in = s->in,
                                      .dtype = SL_F8_E4M3},
                                .out = b->out[1],
                                .tokens = tokens,
                                .ld_x = s->in,
                                .ld_out = s->out,
                                .fp8_acts = true,
                                .act = SL_BF16,
                                .out_dtype = SL_BF16};

    return sl_cuda_linear_few(b->cu, &p, 1, b->x, b->x_scale, tokens, &b->err);
}

static sl_status timed(bench *b, int way, const shape *s, int32_t tokens, float *us)
{
    float ms;

    SL_TRY(SL_CU(cudaEventRecord(b->from, b->cu->stream), &b->err));
    for (int i = 0; i < CALLS; i++)
        SL_TRY(way == 0 ? library(b, s, tokens, i) : own(b, s, tokens, i));
    SL_TRY(SL_CU(cudaEventRecord(b->to, b->cu->stream), &b->err));
    SL_TRY(SL_CU(cudaEventSynchronize(b->to), &b->err));
    SL_TRY(SL_CU(cudaEventElapsedTime(&ms, b->from, b->to), &b->err));
    *us = ms * 1000 / CALLS;
    return SL_OK;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Both ways have run with the same copy of the weight last. */
static sl_status compare(bench *b, const shape *s, int32_t tokens, bool *equal)
{
    const size_t bytes = (size_t)s->out * (size_t)tokens * 2;
    uint8_t *host = malloc(2 * bytes);
    sl_status st;

    if (!host)
        return sl_fail(&b->err, SL_ERR_NO_MEMORY, "%zu bytes", 2 * bytes);
    st = sl_be_copy(b->be, host, b->out[0], bytes, &b->err);
    if (st == SL_OK)
        st = sl_be_copy(b->be, host + bytes, b->out[1], bytes, &b->err);
    if (st == SL_OK)
        st = sl_be_sync(b->be, &b->err);
    *equal = st == SL_OK && memcmp(host, host + bytes, bytes) == 0;
    free(host);
    return st;
}

static sl_status measure(bench *b, const shape *s, int32_t tokens, bool *equal)
{
    float us[2][ROUNDS];

    for (int r = -WARM; r < ROUNDS; r++)
        for (int way = 0; way < 2; way++)
            SL_TRY(timed(b, way, s, tokens, &us[way][r < 0 ? 0 : r]));
    for (int way = 0; way < 2; way++)
        qsort(us[way], ROUNDS, sizeof us[way][0], by_value);
    SL_TRY(compare(b, s, tokens, equal));
    printf("%d,%d,%d,%.1f,%.1f,%.3f,%s\n", s->out, s->in, tokens, (double)us[0][ROUNDS / 2],
           (double)us[1][ROUNDS / 2], (double)us[1][ROUNDS / 2] / (double)us[0][ROUNDS / 2],
           *equal ? "equal" : "DIFFER");
    fflush(stdout);
    return SL_OK;
}

int main(void)
{
    static bench b;
    sl_backend_opts opts = {0};
    sl_status st = sl_backend_create("cuda", &opts, &b.be, &b.err);
    bool all = true;

    if (st == SL_OK) {
        b.cu = sl_cuda_of(b.be);
        st = b.cu->gpu.wgmma ? set_up(&b) : sl_fail(&b.err, SL_ERR_UNSUPPORTED, "the GPU has no wgmma");
    }
    if (st == SL_OK)
        printf("# %s\noutputs,inputs,tokens,library_us,own_us,own_to_library,bits\n",
               sl_backend_describe(b.be));
    for (size_t i = 0; i < SL_COUNT(shapes) && st == SL_OK; i++)
        for (size_t j = 0; j < SL_COUNT(token_counts) && st == SL_OK; j++) {
            bool equal = false;
            st = measure(&b, &shapes[i], token_counts[j], &equal);
            all &= equal;
        }
    if (st != SL_OK)
        fprintf(stderr, "block_scales: %s\n", b.err.text);
    if (b.be)
        sl_backend_destroy(b.be);
    return st == SL_ERR_UNSUPPORTED ? 77 : st == SL_OK && all ? 0 : 1;
}
