/*
 * The projections to latent space and from it: q_absorb (RoPE of q_pe, q_nope @ W_UK per head) and v_up (o @ W_UV^T
 * per head). With bf16 activations and a kv_b of bf16 or fp8 both are batched products over heads in cuBLASLt (o is
 * rounded to bf16 first). Otherwise a plain kernel computes one output per thread, with sums in ascending order. An
 * fp8 kv_b is first converted to bf16 in scratch, which is exactly the definition of its values. With the
 * dimensions of V3.2 the conversion moves 50 MB per call, so a caller that runs many steps should keep kv_b as
 * bf16.
 */
#include "kernels/cuda/common.cuh"
#include "kernels/scratch.h"

#define GROUP 128

__device__ static float kv_b_at(const sl_weight &w, int64_t row, int64_t col, sl_dtype act)
{
    float v = sl_ld(w.data, row * w.in + col, w.dtype);

    if (!w.scale)
        return v;
    return sl_actr(__fmul_rn(v, sl_multiplier(w, row, col)), act);
}

/* ql[t][h][lora + j] = rope(q[t][h][nope + j]); one block per token, its threads cover heads x pairs. */
__global__ static void rope_kernel(sl_q_absorb_params p)
{
    int64_t t = blockIdx.x;
    int half = p.rope / 2, pos = max(p.pos[t], 0);
    const float *cs = p.cos_sin + (int64_t)pos * p.rope;

    for (int i = threadIdx.x; i < p.heads * half; i += blockDim.x) {
        int64_t h = i / half, j = i % half, q0 = (t * p.heads + h) * (p.nope + p.rope) + p.nope + 2 * j;
        float *out = (float *)p.ql + (t * p.heads + h) * (p.lora + p.rope) + p.lora + 2 * j, a, b;
        sl_rotate(sl_ld(p.q, q0, p.act), sl_ld(p.q, q0 + 1, p.act), cs[2 * j], cs[2 * j + 1], &a, &b);
        out[0] = sl_actr(a, p.act);
        out[1] = sl_actr(b, p.act);
    }
}

__global__ static void q_absorb_plain(sl_q_absorb_params p)
{
    int64_t th = blockIdx.x, h = th % p.heads;

    for (int c = threadIdx.x; c < p.lora; c += blockDim.x) {
        float acc = 0;
        for (int d = 0; d < p.nope; d++)
            acc = fmaf(sl_ld(p.q, th * (p.nope + p.rope) + d, p.act),
                       kv_b_at(p.kv_b, h * (p.nope + p.v) + d, c, p.act), acc);
        ((float *)p.ql)[th * (p.lora + p.rope) + c] = acc;
    }
}

/* Converts an fp8 weight to bf16, 16 values per thread; the length of a row is a multiple of 16. */
__global__ static void dequantise_kernel(sl_weight w, int64_t chunks, uint4 *out)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int per_row = w.in / 16;

    if (i >= chunks)
        return;
    int64_t row = i / per_row, col = i % per_row * 16;
    float s = w.scale[row / GROUP * ((w.in + GROUP - 1) / GROUP) + col / GROUP];
    union {
        uint4 v;
        uint8_t b[16];
    } in;
    union {
        uint4 v[2];
        __nv_bfloat16 b[16];
    } res;
    in.v = ((const uint4 *)w.data)[i];
#pragma unroll
    for (int k = 0; k < 16; k++)
        res.b[k] = __float2bfloat16_rn(__fmul_rn(sl_e4m3f(in.b[k]), s));
    out[2 * i] = res.v[0], out[2 * i + 1] = res.v[1];
}

/* *kv_b = the weight as bf16: the weight itself, or a copy in scratch; *rest = `more` further bytes of scratch,
 * 256-byte aligned. */
static sl_status as_bf16(sl_cuda *cu, const sl_weight *w, size_t more, const void **kv_b, void **rest,
                         sl_err *err)
{
    const int64_t n = (int64_t)w->out * w->in;
    const size_t own = sl_absorb_scratch(w);
    void *mem = NULL;

    if (own + more)
        SL_TRY(sl_cuda_scratch(cu, own + more, &mem, err));
    *kv_b = own ? mem : w->data;
    *rest = (uint8_t *)mem + own;
    if (!own)
        return SL_OK;
    return SL_LAUNCH(cu, dequantise_kernel, (sl_launch{dim3(sl_ceil_div(n / 16, 256)), 256}), err, *w, n / 16,
                     (uint4 *)mem);
}

static sl_status run_q_absorb(sl_backend *be, const void *params, sl_err *err)
{
    const sl_q_absorb_params *p = (const sl_q_absorb_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_cuda_gemm g = {};
    void *rest;

    SL_TRY(SL_LAUNCH(cu, rope_kernel, (sl_launch{dim3(p->tokens), 256}), err, *p));
    if (sl_path_q_absorb(p) == SL_ABSORB_PLAIN) {
        return SL_LAUNCH(cu, q_absorb_plain, (sl_launch{dim3(sl_blocks((int64_t)p->tokens * p->heads)), 128}),
                         err, *p);
    }
    SL_TRY(as_bf16(cu, &p->kv_b, 0, &g.a, &rest, err));
    g.b = p->q, g.d = p->ql;
    g.lda = p->lora, g.ldb = (int64_t)p->heads * (p->nope + p->rope),
    g.ldd = (int64_t)p->heads * (p->lora + p->rope);
    g.stride_a = (int64_t)(p->nope + p->v) * p->lora, g.stride_b = p->nope + p->rope,
    g.stride_d = p->lora + p->rope;
    g.m = p->lora, g.n = p->tokens, g.k = p->nope, g.batch = p->heads;
    g.in = SL_BF16, g.out = SL_F32;
    return sl_cuda_gemm_run(cu, &g, err);
}

const sl_op_impl sl_cuda_q_absorb = {.run = run_q_absorb};

__global__ static void v_up_plain(sl_v_up_params p)
{
    int64_t th = blockIdx.x, h = th % p.heads;

    for (int d = threadIdx.x; d < p.v; d += blockDim.x) {
        float acc = 0;
        for (int c = 0; c < p.lora; c++)
            acc = fmaf(p.o[th * p.lora + c], kv_b_at(p.kv_b, h * (p.nope + p.v) + p.nope + d, c, p.act), acc);
        sl_st(p.out, th * p.v + d, acc, p.act);
    }
}

/* n4: the number of values / 4; four values per thread. */
__global__ static void to_bf16_kernel(const float4 *x, uint2 *y, int64_t n4)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;

    if (i >= n4)
        return;
    float4 v = x[i];
    __nv_bfloat162 lo = __floats2bfloat162_rn(v.x, v.y), hi = __floats2bfloat162_rn(v.z, v.w);
    y[i] = make_uint2(*(uint32_t *)&lo, *(uint32_t *)&hi);
}

static sl_status run_v_up(sl_backend *be, const void *params, sl_err *err)
{
    const sl_v_up_params *p = (const sl_v_up_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    int64_t n = (int64_t)p->tokens * p->heads * p->lora;
    sl_cuda_gemm g = {};
    void *o;

    if (sl_path_v_up(p) == SL_ABSORB_PLAIN) {
        return SL_LAUNCH(cu, v_up_plain, (sl_launch{dim3(sl_blocks((int64_t)p->tokens * p->heads)), 128}),
                         err, *p);
    }
    SL_TRY(as_bf16(cu, &p->kv_b, (size_t)n * 2, &g.a, &o, err));
    SL_TRY(SL_LAUNCH(cu, to_bf16_kernel, (sl_launch{dim3(sl_ceil_div(n / 4, 256)), 256}), err,
                     (const float4 *)p->o, (uint2 *)o, n / 4));
    g.a = (const __nv_bfloat16 *)g.a + (int64_t)p->nope * p->lora, g.b = o, g.d = p->out;
    g.lda = p->lora, g.ldb = (int64_t)p->heads * p->lora, g.ldd = (int64_t)p->heads * p->v;
    g.stride_a = (int64_t)(p->nope + p->v) * p->lora, g.stride_b = p->lora, g.stride_d = p->v;
    g.m = p->v, g.n = p->tokens, g.k = p->lora, g.batch = p->heads, g.a_transposed = true;
    g.in = SL_BF16, g.out = SL_BF16;
    return sl_cuda_gemm_run(cu, &g, err);
}

const sl_op_impl sl_cuda_v_up = {.run = run_v_up};
