/*
 * The recurrence of delta-rule layers, and the norm of its output. One thread block per value head of a sequence, one thread per column of
 * its state, which it keeps in registers while it goes through the sequence's tokens; so a decode step reads and writes each state
 * once, and a prompt never between its tokens. A column needs no other: q, k and the decay are in shared memory. States of more
 * than 128 rows stay in global memory.
 *
 * Limit: 64 KB of state for a head of 128 x 128, both ways: 64 requests of 32 heads read and write 268 MB in a layer, 59 us at
 * 4.58 TB/s. A prompt's token costs about 520 instructions of a warp, and a head's tokens follow each other.
 */
#include "kernels/cuda/any/state/runs.cuh"

struct delta_shared {
    float q[SL_DELTA_DIM_MAX], k[SL_DELTA_DIM_MAX], decay[SL_DELTA_DIM_MAX];
};

__device__ static inline float decay_of(const sl_delta_params &p, float gate, float bias, float a)
{
    float z = __fadd_rn(gate, bias);

    return expf(p.bound < 0 ? p.bound * sl_sigmoid(a * z) : -a * (z > 20 ? z : log1pf(expf(z))));
}

/* One warp: out = x / sqrt(sum of squares + 1e-6) * by. */
__device__ static inline void unit_length(const float *x, int n, float by, float *out)
{
    int lane = threadIdx.x & 31;
    float sum = 0;

    for (int i = lane; i < n; i += 32)
        sum += x[i] * x[i];
    float inv = 1.0f / sqrtf(sl_warp_sum(sum) + 1e-6f);
    for (int i = lane; i < n; i += 32)
        out[i] = x[i] * inv * by;
}

/* What all columns of head h need of token t. At least two warps. */
__device__ static inline void load_token(const sl_delta_params &p, int64_t t, int h, float a,
                                         delta_shared *sh)
{
    int dk = p.key_dim, from = h / (p.value_heads / p.key_heads) * dk, warp = threadIdx.x >> 5;
    int64_t head = t * p.value_heads + h;

    __syncthreads();
    if (warp == 0)
        unit_length(p.q + t * p.ld_q + from, dk, rsqrtf((float)dk), sh->q);
    else if (warp == 1)
        unit_length(p.k + t * p.ld_k + from, dk, 1, sh->k);
    for (int i = threadIdx.x; i < dk; i += blockDim.x)
        sh->decay[i] = p.by_channel ? decay_of(p, p.gate[head * dk + i], p.dt_bias[(int64_t)h * dk + i], a)
                                    : decay_of(p, p.gate[head], p.dt_bias[h], a);
    __syncthreads();
}

/* Values of shared memory are read for this number of rows at a time: the compiler would read them all ahead, and spill. */
#define AT_ONCE 16
#define FENCE() asm volatile("" ::: "memory")

/* S^T k of the column, after the decay. */
template <int ROWS> __device__ static inline float read_state(float (&row)[ROWS], const delta_shared &sh)
{
    float read = 0;

#pragma unroll
    for (int i0 = 0; i0 < ROWS; i0 += AT_ONCE) {
#pragma unroll
        for (int i = i0; i < i0 + AT_ONCE; i++) {
            row[i] *= sh.decay[i];
            read = fmaf(row[i], sh.k[i], read);
        }
        FENCE();
    }
    return read;
}

/* The output of the token, after u has been added. */
template <int ROWS>
__device__ static inline float add_token(float (&row)[ROWS], const delta_shared &sh, float u)
{
    float out = 0;

#pragma unroll
    for (int i0 = 0; i0 < ROWS; i0 += AT_ONCE) {
#pragma unroll
        for (int i = i0; i < i0 + AT_ONCE; i++) {
            row[i] = fmaf(sh.k[i], u, row[i]);
            out = fmaf(row[i], sh.q[i], out);
        }
        FENCE();
    }
    return out;
}

/* A column between registers and memory; rows from dk on are zero. */
template <int ROWS>
__device__ static inline void load_column(float (&row)[ROWS], const float *from, int dk, int dv, bool is)
{
#pragma unroll
    for (int i0 = 0; i0 < ROWS; i0 += AT_ONCE) {
#pragma unroll
        for (int i = i0; i < i0 + AT_ONCE; i++, from += dv)
            row[i] = is && i < dk ? *from : 0;
        FENCE();
    }
}

template <int ROWS>
__device__ static inline void store_column(const float (&row)[ROWS], float *to, int dk, int dv, bool is)
{
#pragma unroll
    for (int i0 = 0; i0 < ROWS; i0 += AT_ONCE) {
#pragma unroll
        for (int i = i0; i < i0 + AT_ONCE; i++, to += dv)
            if (is && i < dk)
                *to = row[i];
        FENCE();
    }
}

/* ROWS: most rows of a state, all in registers. */
template <int ROWS>
__global__ static void __launch_bounds__(256)
    delta_kernel(sl_delta_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ delta_shared sh;
    int t = blockIdx.x, h = blockIdx.y, j = threadIdx.x, dk = p.key_dim, dv = p.value_dim, seq, pos;
    float row[ROWS];

    if (!sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, 1))
        return;
    float *state = (float *)(p.state + seq * p.state_stride) + (int64_t)h * dk * dv + j, a = expf(p.a_log[h]);
    load_column(row, state, dk, dv, j < dv);
    for (int i = dk + threadIdx.x; i < ROWS; i += blockDim.x)
        sh.q[i] = sh.k[i] = sh.decay[i] = 0;
    for (; t < s.n_tokens && s.token_seq[t] == seq; t++) {
        load_token(p, t, h, a, &sh);
        float read = read_state(row, sh);
        int64_t head = (int64_t)t * p.value_heads + h;
        float v = j < dv ? p.v[(int64_t)t * p.ld_v + (int64_t)h * dv + j] : 0;
        float out = add_token(row, sh, sl_sigmoid(p.beta[head]) * (v - read));
        if (j < dv)
            p.out[head * dv + j] = out;
    }
    store_column(row, state, dk, dv, j < dv);
}

__global__ static void __launch_bounds__(256)
    delta_large_kernel(sl_delta_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ delta_shared sh;
    int t = blockIdx.x, h = blockIdx.y, j = threadIdx.x, dk = p.key_dim, dv = p.value_dim, seq, pos;

    if (!sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, 1))
        return;
    float *state = (float *)(p.state + seq * p.state_stride) + (int64_t)h * dk * dv, a = expf(p.a_log[h]);
    for (; t < s.n_tokens && s.token_seq[t] == seq; t++) {
        float read = 0, out = 0;
        load_token(p, t, h, a, &sh);
        if (j >= dv)
            continue;
        for (int i = 0; i < dk; i++)
            read = fmaf(state[(int64_t)i * dv + j] *= sh.decay[i], sh.k[i], read);
        int64_t head = (int64_t)t * p.value_heads + h;
        float u = sl_sigmoid(p.beta[head]) * (p.v[(int64_t)t * p.ld_v + (int64_t)h * dv + j] - read);
        for (int i = 0; i < dk; i++) {
            float x = fmaf(sh.k[i], u, state[(int64_t)i * dv + j]);
            state[(int64_t)i * dv + j] = x;
            out = fmaf(x, sh.q[i], out);
        }
        p.out[head * dv + j] = out;
    }
}

static sl_status run_delta(sl_backend *be, const void *params, sl_err *err)
{
    const sl_delta_params *p = (const sl_delta_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    int threads = p->value_dim <= 64 ? 64 : (p->value_dim + 31) / 32 * 32;
    sl_launch shape = {dim3((unsigned)p->seqs->n_tokens, (unsigned)p->value_heads), threads};

    if (p->key_dim <= 32)
        return SL_LAUNCH(cu, delta_kernel<32>, shape, err, *p, *p->seqs, cu->deverr);
    if (p->key_dim <= 64)
        return SL_LAUNCH(cu, delta_kernel<64>, shape, err, *p, *p->seqs, cu->deverr);
    if (p->key_dim <= 128)
        return SL_LAUNCH(cu, delta_kernel<128>, shape, err, *p, *p->seqs, cu->deverr);
    return SL_LAUNCH(cu, delta_large_kernel, shape, err, *p, *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_delta = {.run = run_delta};

/* ---- gated_norm: one warp per head ---- */

enum { WARPS = 4 };

__global__ static void __launch_bounds__(32 * WARPS) gated_norm_kernel(sl_gated_norm_params p)
{
    int64_t i = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    double all = 0, sum = 0;

    if (i >= (int64_t)p.tokens * p.heads)
        return;
    const float *x = p.x + i * p.dim, *g = p.gate ? p.gate + i * p.dim : NULL;
    for (int d = lane; p.bias && d < p.dim; d += 32)
        all += (double)x[d];
    float mean = p.bias ? (float)(sl_warp_sum(all) / p.dim) : 0;
    for (int d = lane; d < p.dim; d += 32) {
        double v = (double)__fsub_rn(x[d], mean);
        sum += v * v;
    }
    float inv = (float)(1.0 / sqrt(sl_warp_sum(sum) / p.dim + (double)p.eps));
    for (int d = lane; d < p.dim; d += 32) {
        float y = __fmul_rn(__fmul_rn(__fsub_rn(x[d], mean), inv), p.weight[d]);
        if (g) {
            float f = sl_sigmoid(g[d]);
            y = __fmul_rn(y, p.form == SL_GATE_SILU ? __fmul_rn(g[d], f) : f);
        }
        sl_st(p.out, i * p.dim + d, p.bias ? __fadd_rn(y, p.bias[d]) : y, p.act);
    }
}

static sl_status run_gated_norm(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gated_norm_params *p = (const sl_gated_norm_params *)params;
    sl_launch shape = {dim3((unsigned)sl_ceil_div((int64_t)p->tokens * p->heads, WARPS)), 32 * WARPS};

    return SL_LAUNCH(sl_cuda_of(be), gated_norm_kernel, shape, err, *p);
}

const sl_op_impl sl_cuda_gated_norm = {.run = run_gated_norm};
