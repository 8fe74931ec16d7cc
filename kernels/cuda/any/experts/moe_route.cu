/* Expert choice: scores, group-limited top-k (of equal scores the smaller index wins) or a row of a table, weights normalised
 * and scaled. One warp per token. */
#include "kernels/cuda/common.cuh"

#define MAX_EXPERTS 1024
#define MAX_TOP_K 32

/* Index of the largest c[i] over the warp; ties go to the smaller index; entries taken already are -inf. */
__device__ static int warp_argmax(const float *c, int n)
{
    float best = -INFINITY;
    int at = n;

    for (int i = threadIdx.x; i < n; i += 32)
        if (c[i] > best || at == n) {
            best = c[i];
            at = i;
        }
    for (int o = 16; o; o >>= 1) {
        float b = __shfl_xor_sync(0xffffffffu, best, o);
        int a = __shfl_xor_sync(0xffffffffu, at, o);
        if (a < n && (at == n || b > best || (b == best && a < at))) {
            best = b;
            at = a;
        }
    }
    return at;
}

/* score[g] = sum of the two largest c of group g; one lane per group. */
__device__ static void group_scores(const float *c, int groups, int per, float *score)
{
    for (int g = threadIdx.x; g < groups; g += 32) {
        float a = -INFINITY, b = -INFINITY;
        for (int i = g * per; i < (g + 1) * per; i++) {
            if (c[i] > a) {
                b = a;
                a = c[i];
            } else if (c[i] > b) {
                b = c[i];
            }
        }
        score[g] = per > 1 ? __fadd_rn(a, b) : a;
    }
    __syncwarp();
}

/* s[0 .. experts - 1], the scores of a token, by one warp. */
__device__ static void make_scores(const sl_moe_route_params &p, const float *logits, float *s)
{
    float top = -INFINITY, sum = 0;

    for (int i = threadIdx.x; i < p.experts; i += 32) {
        float x = logits[i];
        top = fmaxf(top, x);
        s[i] = p.score == SL_ROUTE_SQRT_SOFTPLUS ? sqrtf(x > 20 ? x : log1pf(expf(x))) : sl_sigmoid(x);
    }
    if (p.score != SL_ROUTE_SOFTMAX)
        return;
    for (int o = 16; o; o >>= 1)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    for (int i = threadIdx.x; i < p.experts; i += 32)
        sum += s[i] = expf(logits[i] - top);
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int i = threadIdx.x; i < p.experts; i += 32)
        s[i] = s[i] / sum;
}

/* The experts of a token's row of the table, by lane 0; false: its id or an expert does not exist. */
__device__ static bool look_up(const sl_moe_route_params &p, int64_t t, int *chosen)
{
    int id = p.ids[t];

    if (id < 0 || id >= p.vocab)
        return false;
    for (int k = 0; k < p.top_k; k++) {
        chosen[k] = p.table[(int64_t)id * p.top_k + k];
        if (chosen[k] < 0 || chosen[k] >= p.experts)
            return false;
    }
    return true;
}

__global__ static void moe_route_kernel(sl_moe_route_params p, uint32_t *deverr)
{
    __shared__ float s[MAX_EXPERTS], c[MAX_EXPERTS], score[MAX_EXPERTS];
    __shared__ bool keep[MAX_EXPERTS];
    __shared__ int chosen[MAX_TOP_K];
    int64_t t = blockIdx.x;

    make_scores(p, p.logits + t * p.experts, s);
    for (int i = threadIdx.x; i < p.experts; i += 32)
        c[i] = p.bias ? __fadd_rn(s[i], p.bias[i]) : s[i];
    __syncwarp();
    if (p.groups > 1) {
        int per = p.experts / p.groups;
        group_scores(c, p.groups, per, score);
        for (int g = threadIdx.x; g < p.groups; g += 32)
            keep[g] = false;
        __syncwarp();
        for (int k = 0; k < p.top_groups; k++) {
            int g = warp_argmax(score, p.groups);
            __syncwarp();
            if (threadIdx.x == 0) {
                keep[g] = true;
                score[g] = -INFINITY;
            }
            __syncwarp();
        }
        for (int i = threadIdx.x; i < p.experts; i += 32)
            if (!keep[i / per])
                c[i] = p.zero_refused ? 0.0f : -INFINITY;
        __syncwarp();
    }
    for (int k = 0; !p.vocab && k < p.top_k; k++) {
        int e = warp_argmax(c, p.experts);
        __syncwarp();
        if (threadIdx.x == 0) {
            chosen[k] = e;
            c[e] = -INFINITY;
        }
        __syncwarp();
    }
    if (threadIdx.x != 0)
        return;
    if (p.vocab && !look_up(p, t, chosen)) {
        atomicOr(deverr, SL_DEVERR_ID);
        return;
    }
    float sum = 0;
    for (int i = 1; i < p.top_k; i++) /* insertion sort by expert id, ascending */
        for (int j = i; j > 0 && chosen[j] < chosen[j - 1]; j--) {
            int x = chosen[j];
            chosen[j] = chosen[j - 1];
            chosen[j - 1] = x;
        }
    for (int k = 0; k < p.top_k; k++)
        sum = __fadd_rn(sum, s[chosen[k]]);
    for (int k = 0; k < p.top_k; k++) {
        float w = s[chosen[k]];
        p.experts_out[t * p.top_k + k] = chosen[k];
        p.weights_out[t * p.top_k + k] = __fmul_rn(p.normalise ? w / sum : w, p.scale);
    }
}

/* Keeps the better of two candidates: the larger value, and of equal values the smaller index. */
__device__ static inline void better(float &v, int &i, float w, int j)
{
    if (w > v || (w == v && j < i)) {
        v = w;
        i = j;
    }
}

/*
 * The same for 32 * PER experts whose groups consist of whole lanes: lane l holds experts l * PER to
 * (l + 1) * PER - 1 in registers. A group is `lanes` neighbouring lanes, a power of two.
 */
template <int PER>
__global__ static void __launch_bounds__(32) narrow_kernel(sl_moe_route_params p, int lanes)
{
    int64_t t = blockIdx.x;
    int lane = threadIdx.x, first = lane * PER;
    float s[PER], c[PER], a = -INFINITY, b = -INFINITY;

#pragma unroll
    for (int i = 0; i < PER; i++) {
        s[i] = sl_sigmoid(p.logits[t * p.experts + first + i]);
        c[i] = p.bias ? __fadd_rn(s[i], p.bias[first + i]) : s[i];
        b = fmaxf(b, fminf(a, c[i]));
        a = fmaxf(a, c[i]);
    }
    if (p.groups > 1) {
        for (int o = 1; o < lanes; o <<= 1) { /* the two largest of the group */
            float a2 = __shfl_xor_sync(0xffffffffu, a, o), b2 = __shfl_xor_sync(0xffffffffu, b, o);
            b = fmaxf(fmaxf(b, b2), fminf(a, a2));
            a = fmaxf(a, a2);
        }
        float score = __fadd_rn(a, b);
        int group = lane / lanes, before = 0;
        for (int g = 0; g < p.groups; g++) {
            float other = __shfl_sync(0xffffffffu, score, g * lanes);
            before += other > score || (other == score && g < group);
        }
#pragma unroll
        for (int i = 0; i < PER; i++)
            c[i] = before < p.top_groups ? c[i] : p.zero_refused ? 0.0f : -INFINITY;
    }
    int mine = p.experts; /* lane k keeps choice k */
    float weight = 0;
    for (int k = 0; k < p.top_k; k++) {
        float v = c[0];
        int at = first;
#pragma unroll
        for (int i = 1; i < PER; i++)
            better(v, at, c[i], first + i);
        for (int o = 16; o; o >>= 1) {
            float w = __shfl_xor_sync(0xffffffffu, v, o);
            int j = __shfl_xor_sync(0xffffffffu, at, o);
            better(v, at, w, j);
        }
        float sigmoid = 0;
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (at == first + i) {
                c[i] = -INFINITY;
                sigmoid = s[i];
            }
        sigmoid = __shfl_sync(0xffffffffu, sigmoid, at / PER);
        if (lane == k) {
            mine = at;
            weight = sigmoid;
        }
    }
    int rank = 0; /* position in ascending order of expert ids */
    for (int k = 0; k < p.top_k; k++)
        rank += __shfl_sync(0xffffffffu, mine, k) < mine;
    float sum = 0;
    for (int k = 0; k < p.top_k; k++) {
        unsigned who = __ballot_sync(0xffffffffu, lane < p.top_k && rank == k);
        sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, weight, __ffs(who) - 1));
    }
    if (lane < p.top_k) {
        p.experts_out[t * p.top_k + rank] = mine;
        p.weights_out[t * p.top_k + rank] = __fmul_rn(p.normalise ? weight / sum : weight, p.scale);
    }
}

static sl_status run_moe_route(sl_backend *be, const void *params, sl_err *err)
{
    const sl_moe_route_params *p = (const sl_moe_route_params *)params;

    if (p->experts > MAX_EXPERTS || p->top_k > MAX_TOP_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: moe_route: %d experts, top_k %d; at most %d and %d",
                       p->experts, p->top_k, MAX_EXPERTS, MAX_TOP_K);
    if (sl_path_moe_route(p) == SL_ROUTE_256) {
        int lanes = p->groups > 1 ? 32 / p->groups : 32;
        return SL_LAUNCH(sl_cuda_of(be), narrow_kernel<8>, (sl_launch{dim3(p->tokens), 32}), err, *p, lanes);
    }
    return SL_LAUNCH(sl_cuda_of(be), moe_route_kernel, (sl_launch{dim3(p->tokens), 32}), err, *p,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_moe_route = {.run = run_moe_route};
