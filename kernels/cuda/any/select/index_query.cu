/*
 * Index queries: RoPE, and for the official convention Hadamard and fp8, whose scale is multiplied into the head
 * weight. There are two kernels, which give the same bits:
 *
 *   | shape                                    | kernel                                                        |
 *   |------------------------------------------|---------------------------------------------------------------|
 *   | any                                      | one warp per head, in shared memory                           |
 *   | official, bf16, 128 values, 64 rotated   | eight lanes per head, 16 values per lane in registers;        |
 *   |                                          | four of the seven Hadamard steps need no other lane           |
 *
 * For the second kernel 22 us of memory traffic and 28 us of instructions were predicted for 4,096 tokens; it takes
 * 42.5 us, and the cause of the difference is unknown (docs/bench/notes-select.md).
 */
#include "kernels/cuda/any/select/index_key.cuh"

#define DIM 128
#define ROPE 64
#define EACH 16 /* values per lane */

__global__ static void index_query_kernel(sl_index_query_params p, float head_scale, float dim_scale)
{
    __shared__ float rows[4][SL_INDEX_DIM_MAX];
    float *v = rows[threadIdx.x >> 5];
    int lane = threadIdx.x & 31;
    int64_t th = blockIdx.x * (int64_t)4 + (threadIdx.x >> 5), q0 = th * p.dim;
    sl_index_vec c = {p.dim, p.rope, p.interleaved, p.format == SL_INDEX_OFFICIAL, p.act};

    if (th >= (int64_t)p.tokens * p.heads)
        return;
    int pos = p.pos[th / p.heads];
    for (int i = lane; i < p.dim; i += 32) {
        v[i] = sl_ld(p.q, q0 + i, p.act);
        if (c.official)
            v[i] = sl_bf16r(v[i]);
    }
    __syncwarp();
    sl_index_rope(v, p.cos_sin + (int64_t)(pos < 0 ? 0 : pos) * p.rope, c);
    float w = __fmul_rn(p.wproj[th], head_scale);
    if (c.official) {
        sl_index_hadamard(v, p.dim);
        float s = sl_index_scale(v, p.dim);
        w = __fmul_rn(w, s);
        for (int i = lane; i < p.dim; i += 32)
            ((uint8_t *)p.q_out)[q0 + i] = sl_e4m3(v[i] / s);
    } else {
        for (int i = lane; i < p.dim; i += 32)
            ((float *)p.q_out)[q0 + i] = v[i];
    }
    if (lane == 0)
        p.weights[th] = __fmul_rn(w, dim_scale);
}

/* Rounds both to bf16 with one conversion instruction. */
__device__ static inline void round_pair(float &a, float &b)
{
    __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    uint32_t u = *(uint32_t *)&h;

    a = __uint_as_float(u << 16);
    b = __uint_as_float(u & 0xffff0000u);
}

/* cos and sin for this lane's values. A pair is within one lane, or shared with the lane two further on; in the second
 * case the sin of the pair's first value is stored negated. */
template <bool INTER>
__device__ static inline void load_angles(const float *cs, int sub, float (&c)[EACH], float (&s)[EACH])
{
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int j = INTER ? (sub & 3) * (EACH / 2) + i / 2 : (sub & 1) * EACH + i;
        float2 v = ((const float2 *)cs)[j];
        c[i] = v.x;
        s[i] = INTER || sub & 2 ? v.y : -v.y;
    }
}

/* As sl_rotate(): the first of a pair becomes a c - b s, the second a s + b c. */
template <bool INTER>
__device__ static inline void rotate(float (&v)[EACH], int sub, const float (&c)[EACH],
                                     const float (&s)[EACH])
{
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        float a = v[i], b = v[i + 1], x, y;
        if (INTER) {
            sl_rotate(a, b, c[i], s[i], &x, &y);
        } else {
            x = __fadd_rn(__fmul_rn(a, c[i]), __fmul_rn(__shfl_xor_sync(0xffffffffu, a, 2), s[i]));
            y = __fadd_rn(__fmul_rn(b, c[i + 1]), __fmul_rn(__shfl_xor_sync(0xffffffffu, b, 2), s[i + 1]));
        }
        round_pair(x, y);
        v[i] = sub < ROPE / EACH ? x : a;
        v[i + 1] = sub < ROPE / EACH ? y : b;
    }
}

/* As sl_index_hadamard(); a multiplication by 1 or -1 does not round. */
__device__ static inline void hadamard(float (&v)[EACH], int sub, float norm)
{
#pragma unroll
    for (int h = 1; h < EACH; h <<= 1)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (!(i & h)) {
                float x = v[i], y = v[i + h];
                v[i] = __fadd_rn(x, y);
                v[i + h] = __fsub_rn(x, y);
            }
#pragma unroll
    for (int h = 1; h < DIM / EACH; h <<= 1) {
        float sign = sub & h ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            v[i] = __fmaf_rn(v[i], sign, __shfl_xor_sync(0xffffffffu, v[i], h));
    }
#pragma unroll
    for (int i = 0; i < EACH; i += 2) {
        v[i] = __fmul_rn(v[i], norm);
        v[i + 1] = __fmul_rn(v[i + 1], norm);
        round_pair(v[i], v[i + 1]);
    }
}

/* A warp computes four heads of a token at a time, `rounds` times. */
template <bool INTER>
__global__ static void __launch_bounds__(256)
    index_query_lanes(sl_index_query_params p, int rounds, float head_scale, float dim_scale, float norm)
{
    int lane = threadIdx.x & 31, sub = lane & 7, parts = p.heads / (4 * rounds);
    int64_t warp = blockIdx.x * (int64_t)8 + (threadIdx.x >> 5), t = warp / parts;

    if (t >= p.tokens)
        return;
    int64_t th = t * p.heads + warp % parts * (4 * rounds) + lane / 8;
    int pos = p.pos[t];
    float c[EACH], s[EACH];
    const uint4 *in = (const uint4 *)p.q + th * (DIM / 8) + sub * 2;
    uint4 next[2] = {in[0], in[1]};
    load_angles<INTER>(p.cos_sin + (int64_t)(pos < 0 ? 0 : pos) * ROPE, sub, c, s);
    for (int r = 0; r < rounds; r++, th += 4) {
        const uint32_t u[8] = {next[0].x, next[0].y, next[0].z, next[0].w,
                               next[1].x, next[1].y, next[1].z, next[1].w};
        float v[EACH], amax = 0, w = p.wproj[th];
        uint32_t out[4];
        if (r + 1 < rounds) {
            in += 4 * (DIM / 8);
            next[0] = in[0];
            next[1] = in[1];
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[2 * i] = __uint_as_float(u[i] << 16);
            v[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
        rotate<INTER>(v, sub, c, s);
        hadamard(v, sub, norm);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            amax = fmaxf(amax, fabsf(v[i]));
        for (int o = 1; o < 8; o <<= 1)
            amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, o));
        float scale = sl_scale_act_d(amax), by = 1.0f / scale; /* exact, because scale is a power of two */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(v[4 * i] * by, v[4 * i + 1] * by),
                                                   __NV_SATFINITE, __NV_E4M3),
                     hi = __nv_cvt_float2_to_fp8x2(make_float2(v[4 * i + 2] * by, v[4 * i + 3] * by),
                                                   __NV_SATFINITE, __NV_E4M3);
            out[i] = lo | hi << 16;
        }
        ((uint4 *)p.q_out)[th * (DIM / 16) + sub] = make_uint4(out[0], out[1], out[2], out[3]);
        if (sub == 0)
            p.weights[th] = __fmul_rn(__fmul_rn(__fmul_rn(w, head_scale), scale), dim_scale);
    }
}

static sl_status run_index_query(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_query_params *p = (const sl_index_query_params *)params;
    int64_t n = (int64_t)p->tokens * p->heads;
    float head_scale = (float)(1.0 / sqrt((double)p->heads)), dim_scale = (float)(1.0 / sqrt((double)p->dim));

    if (p->dim > SL_INDEX_DIM_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: index_query: dim %d exceeds %d", p->dim,
                       SL_INDEX_DIM_MAX);
    if (sl_path_index_query(p) == SL_QUERY_LANES) {
        int rounds = p->heads % 16 == 0 && p->tokens >= 256 ? 4 : 1;
        void (*kernel)(sl_index_query_params, int, float, float, float) =
            p->interleaved ? index_query_lanes<true> : index_query_lanes<false>;
        return SL_LAUNCH(sl_cuda_of(be), kernel, (sl_launch{dim3(sl_ceil_div(n, 4 * rounds * 8)), 256}), err,
                         *p, rounds, head_scale, dim_scale, dim_scale);
    }
    return SL_LAUNCH(sl_cuda_of(be), index_query_kernel, (sl_launch{dim3(sl_ceil_div(n, 4)), 128}), err, *p,
                     head_scale, dim_scale);
}

const sl_op_impl sl_cuda_index_query = {.run = run_index_query};
