/*
 * Internal to sample.cu: what the blocks of a cluster do together with a row of logits. Each block has a part of the row,
 * consecutive tiles of 512 tokens, which it reads again in every pass; only sums and counters cross to other blocks, in
 * distributed shared memory. All sums are of whole numbers, so neither the number of blocks nor the order of threads has
 * an influence.
 */
#ifndef SL_KERNELS_CUDA_ANY_SAMPLE_SAMPLE_ROW_CUH
#define SL_KERNELS_CUDA_ANY_SAMPLE_SAMPLE_ROW_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/sample_math.h"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define TILE 512
#define AT_ONCE 8 /* loads of a thread in flight */
#define ALL 0xffffffffu
#define SAMPLE_KEYS 3072 /* of candidates for a cut, in a block */

static_assert(SL_SAMPLE_VOCAB_MAX / TILE <= SL_SAMPLE_BINS, "a tile or a counter for each place of `sum`");

struct sample_shared {
    uint32_t low[SL_SAMPLE_BINS], high[SL_SAMPLE_BINS]; /* this block's counters, of 64 bits in two halves */
    uint64_t sum[SL_SAMPLE_BINS];                       /* of all blocks, or of this block's tiles */
    uint32_t mail[2][8][2];                             /* a value of each block; two sets, used in turn */
    uint64_t warp[WARPS];
    uint64_t need;
    uint32_t place, n_best;
    uint64_t best[SL_LOGPROBS_MAX];
    uint32_t n_keys, keys[SAMPLE_KEYS];
};

/* A row, as one block sees it. */
struct sample_part {
    float *x;
    const uint32_t *mask; /* NULL, or which tokens are allowed: the others are read as -inf */
    int vocab, rank, first_tile, tiles;
    int turn; /* of the mail */
};

/* What a pass counts of a token that is kept: its mass, or 1. */
struct sample_worth {
    float max, inv_t;
    bool one;
};

/* The last token that is kept, by key and id. */
struct sample_cut {
    uint32_t key;
    int last;
};

__device__ static inline uint64_t worth_of(const sample_worth &w, float x)
{
    return w.one ? 1 : sl_sample_mass(sl_sample_weight(x, w.max, w.inv_t));
}

__device__ static inline bool kept(const sample_cut &c, float x, int i)
{
    uint32_t key = sl_sample_key(x);

    return key < c.key || (key == c.key && i <= c.last);
}

template <int C> __device__ static inline void cluster_barrier(void)
{
#if __CUDA_ARCH__ >= 900
    if (C > 1) {
        sl_cluster_sync();
        return;
    }
#endif
    __syncthreads();
}

/* ---- sums ---- */

__device__ static inline uint64_t block_sum(sample_shared &s, uint64_t v)
{
    v = sl_warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        s.warp[threadIdx.x >> 5] = v;
    __syncthreads();
    return sl_warp_sum(s.warp[threadIdx.x & 31]);
}

__device__ static inline uint64_t warp_min(uint64_t v)
{
    for (int o = 16; o; o >>= 1) {
        uint64_t w = __shfl_xor_sync(ALL, v, o);
        v = w < v ? w : v;
    }
    return v;
}

__device__ static inline uint64_t block_min(sample_shared &s, uint64_t v)
{
    v = warp_min(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        s.warp[threadIdx.x >> 5] = v;
    __syncthreads();
    return warp_min(s.warp[threadIdx.x & 31]);
}

/* Every block says a value, the same in all its threads; all[r] becomes that of block r. A set of the mail is written again
 * only after another exchange, when every block has read it. */
template <int C>
__device__ static inline void exchange(sample_shared &s, sample_part &p, uint64_t v, uint64_t (&all)[C])
{
    if (C == 1) {
        all[0] = v;
        return;
    }
#if __CUDA_ARCH__ >= 900
    uint32_t(*mail)[2] = s.mail[p.turn & 1];

    p.turn++;
    if (threadIdx.x < C) {
        uint32_t to = sl_cluster_addr(sl_smem_addr(mail[p.rank]), threadIdx.x);
        sl_cluster_store(to, (uint32_t)v);
        sl_cluster_store(to + 4, (uint32_t)(v >> 32));
    }
    __syncwarp();
    cluster_barrier<C>();
#pragma unroll
    for (int r = 0; r < C; r++)
        all[r] = (uint64_t)mail[r][1] << 32 | mail[r][0];
#endif
}

template <int C> __device__ static inline uint64_t cluster_sum(sample_shared &s, sample_part &p, uint64_t v)
{
    uint64_t all[C], sum = 0;

    exchange<C>(s, p, v, all);
#pragma unroll
    for (int r = 0; r < C; r++)
        sum += all[r];
    return sum;
}

template <int C> __device__ static inline uint64_t cluster_min(sample_shared &s, sample_part &p, uint64_t v)
{
    uint64_t all[C];

    exchange<C>(s, p, v, all);
#pragma unroll
    for (int r = 1; r < C; r++)
        all[0] = all[r] < all[0] ? all[r] : all[0];
    return all[0];
}

/*
 * The first place of s.sum with which the sum from place 0 on reaches `need`, which is at least 1. s.place and s.need
 * receive that place and what is needed of its value; unchanged when all together do not reach it. Two places to a thread.
 */
__device__ static inline void reach(sample_shared &s, uint64_t need)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint64_t a, b, up, to;

    __syncthreads();
    a = s.sum[2 * threadIdx.x], b = s.sum[2 * threadIdx.x + 1];
    to = sl_warp_prefix(a + b);
    if (lane == 31)
        s.warp[warp] = to;
    __syncthreads();
    up = lane < warp ? s.warp[lane] : 0;
    to += sl_warp_sum(up);
    uint64_t before = to - a - b;
    if (before < need && need <= to) {
        bool second = before + a < need;
        s.place = 2 * threadIdx.x + second;
        s.need = need - before - (second ? a : 0);
    }
    __syncthreads();
}

/* ---- passes ---- */

/* Calls f(id, logit, inside) for the tokens of a tile, 32 at a time in ascending order; all lanes of a warp take part, and
 * those with inside false have no token. */
template <typename F> __device__ static inline void each_of_tile(const sample_part &p, int tile, F f)
{
    int base = (p.first_tile + tile) * TILE + (threadIdx.x & 31);

    for (int k = 0; k < TILE; k += 32 * AT_ONCE) {
        float v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + k + 32 * j;
            v[j] = i < p.vocab ? p.x[i] : 0.0f;
        }
        if (p.mask) { /* the 32 tokens of a warp share a word */
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                int i = base + k + 32 * j;
                if (i < p.vocab && !(p.mask[i >> 5] >> (i & 31) & 1))
                    v[j] = -INFINITY;
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            f(base + k + 32 * j, v[j], base + k + 32 * j < p.vocab);
    }
}

template <typename F> __device__ static inline void each(const sample_part &p, F f)
{
    for (int tile = threadIdx.x >> 5; tile < p.tiles; tile += WARPS)
        each_of_tile(p, tile, f);
}

/* key << 32 | id of the best token; 0: a logit is NaN or +inf. The same in all blocks. */
template <int C> __device__ static uint64_t best_of(sample_shared &s, sample_part &p)
{
    uint64_t best = ~(uint64_t)0;

    each(p, [&](int i, float x, bool in) {
        uint64_t v = x <= 3.402823466e38f ? (uint64_t)sl_sample_key(x) << 32 | (uint32_t)i : 0;
        best = in && v < best ? v : best;
    });
    return cluster_min<C>(s, p, block_min(s, best));
}

/* The total mass, in all blocks. */
template <int C>
__device__ static uint64_t total_of(sample_shared &s, sample_part &p, const sample_worth &w,
                                    const sample_cut &c)
{
    uint64_t sum = 0;

    each(p, [&](int i, float x, bool in) { sum += in && kept(c, x, i) ? worth_of(w, x) : 0; });
    return cluster_sum<C>(s, p, block_sum(s, sum));
}

/* ---- in order of ids ---- */

/*
 * The id of the first token with which the sum of `value(id, logit)` over ascending ids reaches what `needed(total)`
 * says of the sum over all tokens: at least 1, at most total. The same in all blocks.
 */
template <int C, typename V, typename N>
__device__ static int first_to_reach(sample_shared &s, sample_part &p, V value, N needed)
{
    int lane = threadIdx.x & 31;
    uint64_t all[C], mine = 0, total = 0, before = 0, need, answer = 0;

    __syncthreads();
    for (int t = threadIdx.x; t < SL_SAMPLE_BINS; t += THREADS)
        s.sum[t] = 0;
    __syncthreads();
    for (int tile = threadIdx.x >> 5; tile < p.tiles; tile += WARPS) {
        uint64_t sum = 0;
        each_of_tile(p, tile, [&](int i, float x, bool in) { sum += in ? value(i, x) : 0; });
        sum = sl_warp_sum(sum);
        if (lane == 0)
            s.sum[tile] = sum;
        mine += lane == 0 ? sum : 0;
    }
    mine = block_sum(s, mine);
    exchange<C>(s, p, mine, all);
#pragma unroll
    for (int r = 0; r < C; r++) {
        before += r < p.rank ? all[r] : 0;
        total += all[r];
    }
    need = needed(total);
    if (before < need && need <= before + mine) { /* all threads of a block agree */
        reach(s, need - before);
        if (threadIdx.x < 32) {
            uint64_t left = s.need, done = 0;
            int id = -1;
            each_of_tile(p, (int)s.place, [&](int i, float x, bool in) {
                uint64_t to = sl_warp_prefix(in ? value(i, x) : (uint64_t)0);
                unsigned there = __ballot_sync(ALL, done + to >= left);
                if (id < 0 && there)
                    id = __shfl_sync(ALL, i, __ffs(there) - 1);
                done += __shfl_sync(ALL, to, 31);
            });
            if (lane == 0)
                s.need = (uint64_t)(uint32_t)id;
        }
        __syncthreads();
        answer = s.need;
    }
    return (int)cluster_sum<C>(s, p, answer);
}

/* ---- the cut ---- */

/* Adds to a counter. A shared-memory atomic of 64 bits is a loop; two of 32 bits are not. */
__device__ static inline void add64(sample_shared &s, uint32_t bin, uint64_t v)
{
    uint32_t low = (uint32_t)v, old = atomicAdd(&s.low[bin], low),
             high = (uint32_t)(v >> 32) + (old + low < low);

    if (high)
        atomicAdd(&s.high[bin], high);
}

/* Adds the lanes' values to their counters. All lanes call it; lanes without a token have inside false. Equal tokens, of
 * which a row may consist, are added within the warp first. */
__device__ static inline void count(sample_shared &s, uint32_t bin, uint64_t v, bool inside)
{
    unsigned there = __ballot_sync(ALL, inside);

    if (!there)
        return;
    int leader = __ffs(there) - 1;
    uint32_t common = __shfl_sync(ALL, bin, leader);
    if (__all_sync(ALL, !inside || bin == common)) {
        v = sl_warp_sum(inside ? v : 0);
        if ((threadIdx.x & 31) == leader)
            add64(s, common, v);
    } else if (inside) {
        add64(s, bin, v);
    }
    __syncwarp();
}

__device__ static inline void clear_counters(sample_shared &s)
{
    __syncthreads();
    for (int b = threadIdx.x; b < SL_SAMPLE_BINS; b += THREADS)
        s.low[b] = s.high[b] = 0;
    __syncthreads();
}

/* The counter of all blocks together with which what `needed(total)` says of their sum is reached. *need is what is needed of
 * that counter, *have its sum. */
template <int C, typename N>
__device__ static uint32_t reach_counter(sample_shared &s, N needed, uint64_t *need, uint64_t *have)
{
    uint64_t total = 0;

    cluster_barrier<C>();
    for (int b = threadIdx.x; b < SL_SAMPLE_BINS; b += THREADS) {
        uint64_t sum = 0;
        if (C == 1)
            sum = (uint64_t)s.high[b] << 32 | s.low[b];
#if __CUDA_ARCH__ >= 900
#pragma unroll
        for (int r = 0; r < C && C > 1; r++)
            sum += (uint64_t)sl_cluster_load(sl_cluster_addr(sl_smem_addr(&s.high[b]), r)) << 32 |
                   sl_cluster_load(sl_cluster_addr(sl_smem_addr(&s.low[b]), r));
#endif
        s.sum[b] = sum;
        total += sum;
    }
    reach(s, needed(block_sum(s, total)));
    uint32_t place = s.place;
    *need = s.need;
    *have = s.sum[place];
    cluster_barrier<C>(); /* no block clears counters that another one still reads */
    return place;
}

/* The keys of this block's tokens in one part of the first search, in s.keys. How many they are, which may be more than there
 * is room for; *low and *high: the least and the largest key of all blocks. */
template <int C>
__device__ static uint32_t collect(sample_shared &s, sample_part &p, float max, uint32_t part, uint32_t *low,
                                   uint32_t *high)
{
    int lane = threadIdx.x & 31;
    uint32_t least = ALL, most = 0;

    if (threadIdx.x == 0)
        s.n_keys = 0;
    __syncthreads();
    each(p, [&](int, float x, bool in) {
        uint32_t key = sl_sample_key(x), at = 0;
        bool hit = in && sl_sample_bin(x, max) == part;
        unsigned hits = __ballot_sync(ALL, hit);
        if (!hits)
            return;
        if (lane == 0)
            at = atomicAdd(&s.n_keys, (uint32_t)__popc(hits));
        at = __shfl_sync(ALL, at, 0) + (uint32_t)__popc(hits & ((1u << lane) - 1));
        if (hit && at < SAMPLE_KEYS)
            s.keys[at] = key;
        least = hit && key < least ? key : least;
        most = hit && key > most ? key : most;
    });
    *low = (uint32_t)cluster_min<C>(s, p, block_min(s, least));
    *high = ~(uint32_t)cluster_min<C>(s, p, block_min(s, (uint32_t)~most));
    return s.n_keys;
}

/* Counts one digit of the keys that agree with `found` in all digits before it: of the collected ones, or of the row's. */
__device__ static void count_digit(sample_shared &s, const sample_part &p, const sample_worth &w,
                                   uint32_t part, uint32_t found, int digit, bool collected)
{
    int known = digit == 0 ? 31 : sl_sample_shift(digit - 1);

    clear_counters(s);
    if (collected) {
        for (uint32_t first = 0; first < s.n_keys; first += THREADS) {
            uint32_t i = first + threadIdx.x, key = i < s.n_keys ? s.keys[i] : 0;
            bool in = i < s.n_keys && (digit == 0 || key >> known == found >> known);
            count(s, sl_sample_digit(key, digit), in ? worth_of(w, sl_sample_key_logit(key)) : 0, in);
        }
        return;
    }
    each(p, [&](int, float x, bool in) {
        uint32_t key = sl_sample_key(x);
        bool of = in && sl_sample_bin(x, w.max) == part && (digit == 0 || key >> known == found >> known);
        count(s, sl_sample_digit(key, digit), of ? worth_of(w, x) : 0, of);
    });
}

/*
 * The shortest beginning of the order whose worth is at least what `needed(total)` says of the worth of the whole row; see
 * kernels/sample.h. The first search goes by the distance to the largest logit. The few keys in the part that it finds stay
 * in shared memory for the search by digits; where they do not fit, as in a row of few distinct logits, the row is read
 * again for each digit, unless they are all the same.
 */
template <int C, typename N>
__device__ static sample_cut find_cut(sample_shared &s, sample_part &p, const sample_worth &w, N needed)
{
    uint64_t need = 0, have, value, ties;
    uint32_t low, high;
    sample_cut c = {0, INT32_MAX};

    clear_counters(s);
    each(p, [&](int, float x, bool in) { count(s, sl_sample_bin(x, w.max), in ? worth_of(w, x) : 0, in); });
    uint32_t part = reach_counter<C>(s, needed, &need, &have);
    uint32_t n = collect<C>(s, p, w.max, part, &low, &high);
    if (low == high) {
        c.key = low;
    } else {
        bool collected = cluster_min<C>(s, p, n <= SAMPLE_KEYS) != 0;
        for (int digit = 0; digit < SL_SAMPLE_DIGITS; digit++) {
            uint64_t left = need;
            count_digit(s, p, w, part, c.key, digit, collected);
            c.key |= reach_counter<C>(
                         s, [&](uint64_t) { return left; }, &need, &have)
                     << sl_sample_shift(digit);
        }
    }
    value = worth_of(w, sl_sample_key_logit(c.key));
    ties = (need + value - 1) / value;
    if (ties * value < have)
        c.last = first_to_reach<C>(
            s, p, [&](int, float x) { return (uint64_t)(sl_sample_key(x) == c.key); },
            [&](uint64_t) { return ties; });
    return c;
}

#endif
