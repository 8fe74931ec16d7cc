/*
 * Exact top-k with ids in ascending token order. One block a row, whatever its length.
 *
 * A lower bound of the k-th score cuts the row down before anything is sorted: scores become ordered 32-bit
 * keys, the row is dealt out in groups, and the k-th largest of the groups' maxima cannot exceed the k-th
 * largest key. One histogram over the actual range of the maxima gives that bound almost exactly. Keys from
 * it on (on random data a quarter more than k) go to shared memory in row order; there a radix select over
 * their range finds the exact cut, and larger keys and the first of the equal ones are written in order.
 *
 * Rows of up to ROW_MAX scores are held in registers. Longer ones start from the hint, the maxima of 8 (made
 * by the score kernels, or here by the whole machine), so that one block reads an eighth of the row and the
 * groups that matter.
 *
 * Never drops a candidate: when the bound leaves more than fit (rows of few distinct values), radix passes
 * over the whole row decide. Bound by latency: a dozen block barriers behind two or three dependent loads.
 */
#include "kernels/cuda/select.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define BINS 2048
#define ROW_MAX SL_TOPK_ROW_MAX /* longer rows go by their hint */
#define CAND_MAX 8192
#define LIST_MAX 8192
#define MEMBERS 64
#define AT_ONCE 16 /* loads under way where the whole row is written */
#define KEY_FORCED 0xffffffffu
#define SMEM_BYTES (CAND_MAX * 8 + LIST_MAX * 4)

struct topk_shared {
    uint32_t hist[BINS];
    uint32_t low[WARPS], high[WARPS], count[2][WARPS], scan[WARPS];
    uint32_t bin, above, found;
    uint32_t members;
    uint32_t member_key[MEMBERS];
    int member_id[MEMBERS];
};

struct topk_row {
    const float *scores;
    const uint32_t *hint;
    int limit, len; /* scores that can be read, scores that count */
    int sinks, recent_from;
    bool wide;  /* 16-byte loads of scores */
    bool gates; /* there are forced tokens */
};

struct topk_range { /* keys that are still undecided, and how many of them are wanted, of how many */
    uint32_t lo, hi, need, have;
};

__device__ static inline bool forced(const topk_row &r, int i)
{
    return r.gates && (i < r.sinks || i >= r.recent_from);
}

__device__ static inline uint32_t key_at(const topk_row &r, int i)
{
    return forced(r, i) ? KEY_FORCED : sl_order_key(r.scores[i]);
}

/* The score with this key. */
__device__ static inline float score_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* Scores i .. i + 3 (i a multiple of 4); NaN from `end` on. */
__device__ static inline float4 row_scores(const topk_row &r, int i, int end)
{
    const float none = __uint_as_float(0x7fffffffu);

    if (r.wide && i + 3 < end)
        return *(const float4 *)(r.scores + i);
    return make_float4(i < end ? r.scores[i] : none, i + 1 < end ? r.scores[i + 1] : none,
                       i + 2 < end ? r.scores[i + 2] : none, i + 3 < end ? r.scores[i + 3] : none);
}

__device__ static inline float max_of(float4 v)
{
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); /* NaN only if all are */
}

__device__ static inline uint32_t max4(uint4 k)
{
    return max(max(k.x, k.y), max(k.z, k.w));
}

/*
 * What the bound is taken from: the scores of the row, or the maxima of its groups. Four a thread at a time.
 * Forced ones do not count for the bound and always pass.
 */
struct topk_scores {
    typedef float4 four;
    static const int of = 1; /* scores an item stands for */

    __device__ static inline four load(const topk_row &r, int i)
    {
        return row_scores(r, i, r.limit);
    }
    __device__ static inline four none(void)
    {
        const float n = __uint_as_float(0x7fffffffu);
        return make_float4(n, n, n, n);
    }
    __device__ static inline four mask(four v, int drop)
    {
        four n = none();
        return make_float4(drop & 1 ? n.x : v.x, drop & 2 ? n.y : v.y, drop & 4 ? n.z : v.z,
                           drop & 8 ? n.w : v.w);
    }
    __device__ static inline uint32_t best(four v)
    {
        return sl_order_key(max_of(v));
    }
    __device__ static inline uint32_t key(four v, int e)
    {
        return sl_order_key(e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w);
    }
    __device__ static inline float value(four v, int e)
    {
        return e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
    }
    __device__ static inline uint32_t hits(four v, uint32_t pivot)
    {
        float p = score_of(pivot);
        return (v.x >= p ? 1 : 0) | (v.y >= p ? 2 : 0) | (v.z >= p ? 4 : 0) | (v.w >= p ? 8 : 0);
    }
};

struct topk_maxima {
    typedef uint4 four;
    static const int of = SL_HINT_GROUP;

    __device__ static inline four load(const topk_row &r, int i)
    {
        return i * SL_HINT_GROUP < r.limit ? *(const uint4 *)(r.hint + i) : none();
    }
    __device__ static inline four none(void)
    {
        return make_uint4(0, 0, 0, 0);
    }
    __device__ static inline four mask(four v, int drop)
    {
        return make_uint4(drop & 1 ? 0 : v.x, drop & 2 ? 0 : v.y, drop & 4 ? 0 : v.z, drop & 8 ? 0 : v.w);
    }
    __device__ static inline uint32_t best(four v)
    {
        return max4(v);
    }
    __device__ static inline uint32_t key(four v, int e)
    {
        return e == 0 ? v.x : e == 1 ? v.y : e == 2 ? v.z : v.w;
    }
    __device__ static inline float value(four, int)
    {
        return 0; /* a maximum is not kept */
    }
    __device__ static inline uint32_t hits(four v, uint32_t pivot)
    {
        return (v.x >= pivot ? 1 : 0) | (v.y >= pivot ? 2 : 0) | (v.z >= pivot ? 4 : 0) |
               (v.w >= pivot ? 8 : 0);
    }
};

/* Which of the items i .. i + 3 hold a forced token. */
template <typename K> __device__ static inline uint32_t forced_of(const topk_row &r, int i)
{
    uint32_t f = 0;

#pragma unroll
    for (int e = 0; e < 4; e++) {
        int first = (i + e) * K::of;
        f |= first < r.len && (first < r.sinks || first + K::of > r.recent_from) ? 1u << e : 0u;
    }
    return f;
}

__device__ static inline uint32_t warp_inclusive(uint32_t v)
{
    int lane = threadIdx.x & 31;

    for (int o = 1; o < 32; o <<= 1) {
        uint32_t u = __shfl_up_sync(0xffffffffu, v, o);
        if (lane >= o)
            v += u;
    }
    return v;
}

/* Of the warps before this one; *total of all. s.count[which] was written before the last barrier. */
__device__ static inline uint32_t warps_before(const topk_shared &s, int which, uint32_t *total)
{
    uint32_t n = s.count[which][threadIdx.x & 31];

    *total = __reduce_add_sync(0xffffffffu, n);
    return __reduce_add_sync(0xffffffffu, (threadIdx.x & 31) < threadIdx.x >> 5 ? n : 0);
}

__device__ static inline void clear_bins(topk_shared &s)
{
    ((uint2 *)s.hist)[threadIdx.x] = make_uint2(0, 0);
}

/* The bin that holds the need-th largest, and how many lie above it, to s.bin and s.above; s.found only if
 * there are that many. Behind the barrier that completes the histogram; ends with one. */
__device__ static void find_bin(topk_shared &s, uint32_t need)
{
    int t = threadIdx.x, hi = BINS - 1 - 2 * t;
    uint2 v = ((const uint2 *)s.hist)[THREADS - 1 - t];
    uint32_t sum = v.x + v.y, inc = warp_inclusive(sum);

    if ((t & 31) == 31)
        s.scan[t >> 5] = inc;
    __syncthreads();
    uint32_t excl = __reduce_add_sync(0xffffffffu, (t & 31) < t >> 5 ? s.scan[t & 31] : 0) + inc - sum;
    if (excl < need && need <= excl + sum) {
        bool upper = excl + v.y >= need;
        s.bin = upper ? hi : hi - 1;
        s.above = upper ? excl : excl + v.y;
        s.found = 1;
    }
    __syncthreads();
}

/* The block's smallest and largest, from each thread's; contains a barrier. */
__device__ static inline void block_range(topk_shared &s, uint32_t *lo, uint32_t *hi)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t a = __reduce_min_sync(0xffffffffu, *lo), b = __reduce_max_sync(0xffffffffu, *hi);

    if (lane == 0) {
        s.low[warp] = a;
        s.high[warp] = b;
    }
    __syncthreads();
    *lo = __reduce_min_sync(0xffffffffu, s.low[lane]);
    *hi = __reduce_max_sync(0xffffffffu, s.high[lane]);
}

__device__ static inline int range_shift(uint32_t lo, uint32_t hi)
{
    return max(32 - __clz(hi - lo) - 11, 0);
}

/* How the items are dealt out to threads: a warp has consecutive ones, four a lane and round. */
struct topk_deal {
    int n, rounds, chunks;
};

template <int R> __device__ static inline int item_of(const topk_deal &d, int chunk, int i)
{
    return chunk * (R * THREADS * 4) + ((threadIdx.x >> 5) * d.rounds + i) * 128 + (threadIdx.x & 31) * 4;
}

/* May run before the row's length is known; whatever lies behind it comes along. */
template <typename K, int R>
__device__ static inline void load_chunk(const topk_row &r, const topk_deal &d, int chunk,
                                         typename K::four (&v)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++)
        v[i] = i < d.rounds ? K::load(r, item_of<R>(d, chunk, i)) : K::none();
}

/* Takes out what does not count: beyond the row, and forced ones. */
template <typename K, int R>
__device__ static inline void trim_chunk(const topk_row &r, const topk_deal &d, int chunk,
                                         typename K::four (&v)[R])
{
    int last = chunk * (R * THREADS * 4) + ((threadIdx.x >> 5) + 1) * d.rounds * 128;

    if (last <= d.n && !r.gates)
        return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int left = d.n - item_of<R>(d, chunk, i);
        uint32_t drop = left >= 4 ? 0u : left <= 0 ? 15u : 15u << left & 15u;
        if (r.gates)
            drop |= forced_of<K>(r, item_of<R>(d, chunk, i));
        v[i] = K::mask(v[i], (int)drop);
    }
}

/* Calls f(maximum) for every group of the chunk: of one item (each 0) or of `each` (1, 2, 4) rounds' four. */
template <typename K, int R, typename F>
__device__ static inline void each_group(const typename K::four (&v)[R], int each, F f)
{
    if (each == 0) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (K::key(v[i], e))
                    f(K::key(v[i], e));
    } else if (each == 1) {
#pragma unroll
        for (int i = 0; i < R; i++) {
            uint32_t best = K::best(v[i]);
            if (best)
                f(best);
        }
    } else if (each == 2) {
#pragma unroll
        for (int i = 0; i < R; i += 2) {
            uint32_t best = max(K::best(v[i]), K::best(v[i + 1]));
            if (best)
                f(best);
        }
    } else {
#pragma unroll
        for (int i = 0; i < R; i += 4) {
            uint32_t best =
                max(max(K::best(v[i]), K::best(v[i + 1])), max(K::best(v[i + 2]), K::best(v[i + 3])));
            if (best)
                f(best);
        }
    }
}

/* A lower bound of the need-th largest key that is not forced, 0 if there is none to be had; *top: the
 * largest. */
template <typename K, int R>
__device__ static uint32_t lower_bound(topk_shared &s, const topk_row &r, const topk_deal &d,
                                       typename K::four (&v)[R], uint32_t need, uint32_t *top)
{
    int each = 4, units = (d.n + 3) / 4;
    uint32_t lo = 0xffffffffu, hi = 0;

    while (each > 1 && units / each < 2 * (int)need)
        each /= 2;
    if (units / each < (int)(need + need / 4))
        each = 0;
    clear_bins(s);
    if (threadIdx.x == 0)
        s.found = 0;
    for (int c = 0; c < d.chunks; c++) {
        if (d.chunks > 1) {
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
        each_group<K, R>(v, each, [&](uint32_t k) {
            lo = min(lo, k);
            hi = max(hi, k);
        });
    }
    block_range(s, &lo, &hi);
    *top = hi;
    if (hi < lo)
        return 0;
    int shift = range_shift(lo, hi);
    for (int c = 0; c < d.chunks; c++) {
        if (d.chunks > 1) {
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
        each_group<K, R>(v, each, [&](uint32_t k) { atomicAdd(&s.hist[(k - lo) >> shift], 1u); });
    }
    __syncthreads();
    find_bin(s, need);
    return s.found ? lo + (s.bin << shift) : 0;
}

/*
 * Items that pass, in order, to places (and scores to vals). Returns how many there are; stores at most
 * `cap`. Ends without a barrier. A lane's hits are bits 4 i + e for round i; order is by round, then lane,
 * then e.
 */
template <typename K, int R>
__device__ static uint32_t collect(topk_shared &s, const topk_row &r, const topk_deal &d,
                                   typename K::four (&v)[R], uint32_t pivot, float *vals, int *places,
                                   uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t done = 0;

    for (int c = 0; c < d.chunks; c++) {
        uint32_t hit = 0, total;
        if (d.chunks > 1) {
            __syncthreads(); /* counts of the chunk before have been read */
            load_chunk<K, R>(r, d, c, v);
            trim_chunk<K, R>(r, d, c, v);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
            hit |= K::hits(v[i], pivot) << 4 * i;
        if (r.gates)
            for (int i = 0; i < d.rounds; i++)
                hit |= forced_of<K>(r, item_of<R>(d, c, i)) << 4 * i;
        /* Counts of rounds 0, 2, 4, 6 and 1, 3, 5, 7 in bytes: at most 128 a warp. */
        uint32_t n = hit - (hit >> 1 & 0x55555555u);
        n = (n & 0x33333333u) + (n >> 2 & 0x33333333u);
        uint32_t even = n & 0x0f0f0f0fu, odd = n >> 4 & 0x0f0f0f0fu;
        uint32_t even_inc = warp_inclusive(even), odd_inc = warp_inclusive(odd);
        uint32_t even_all = __shfl_sync(0xffffffffu, even_inc, 31),
                 odd_all = __shfl_sync(0xffffffffu, odd_inc, 31);
        if (lane == 0)
            s.count[0][warp] = __dp4a(even_all, 0x01010101u, __dp4a(odd_all, 0x01010101u, 0u));
        __syncthreads();
        uint32_t base = done + warps_before(s, 0, &total);
        done += total;
        if (done > cap)
            continue;     /* only counted from here on */
        even_inc -= even; /* exclusive from here on */
        odd_inc -= odd;
#pragma unroll
        for (int i = 0; i < R; i++) {
            uint32_t to = base + (((i & 1 ? odd_inc : even_inc) >> i / 2 * 8) & 0xff);
            int at = item_of<R>(d, c, i);
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (hit >> (4 * i + e) & 1) {
                    if (K::of == 1)
                        vals[to] = K::value(v[i], e);
                    places[to] = at + e;
                    to++;
                }
            base += (i & 1 ? odd_all : even_all) >> i / 2 * 8 & 0xff;
        }
    }
    return done;
}

/* Keys from pivot on of n listed groups, in order, to places; returns how many, stores at most `cap`. */
__device__ static uint32_t collect_groups(topk_shared &s, const topk_row &r, const int *list, int n,
                                          uint32_t pivot, float *vals, int *places, uint32_t cap)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = min(4, (n + THREADS - 1) / THREADS);
    uint32_t done = 0, parity = 0;

    for (int first = 0; first < n; first += each * THREADS, parity ^= 1) {
        float4 v[8];
        uint32_t hit = 0, total;
        int at = first + threadIdx.x * each, count = min(max(n - at, 0), each);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = e < count ? list[at + e] * SL_HINT_GROUP : 0;
            v[2 * e] = e < count ? row_scores(r, i, r.len) : topk_scores::none();
            v[2 * e + 1] = e < count ? row_scores(r, i + 4, r.len) : topk_scores::none();
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            hit |= topk_scores::hits(v[e], pivot) << 4 * e;
        if (r.gates)
            for (int e = 0; e < 2 * count; e++)
                hit = (hit & ~(15u << 4 * e)) |
                      (forced_of<topk_scores>(r, list[at + e / 2] * SL_HINT_GROUP + e % 2 * 4) |
                       (hit >> 4 * e & 15))
                          << 4 * e;
        uint32_t own = __popc(hit), inc = warp_inclusive(own);
        if (lane == 31)
            s.count[parity][warp] = inc;
        __syncthreads();
        uint32_t to = done + warps_before(s, (int)parity, &total) + inc - own;
        done += total;
        if (done > cap)
            continue;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (e >= each)
                break;
            int i = e < count ? list[at + e] * SL_HINT_GROUP : 0;
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (hit >> (8 * e + c) & 1) {
                    vals[to] = topk_scores::value(v[2 * e + c / 4], c % 4);
                    places[to] = i + c;
                    to++;
                }
        }
    }
    return done;
}

/* One bin of a histogram over `range`: narrows it. Returns the shift that was used. */
__device__ static inline int narrow(topk_shared &s, topk_range *g, int shift)
{
    find_bin(s, g->need);
    g->need -= s.above;
    g->have = s.hist[s.bin];
    g->lo += s.bin << shift;
    g->hi = min(g->hi, g->lo + (uint32_t)((1ull << shift) - 1));
    return shift;
}

/* Whether a candidate of an undecided range is among the wanted ones: larger keys first, then smaller places.
 */
__device__ static inline bool among(const topk_shared &s, uint32_t key, int place, uint32_t need)
{
    uint32_t rank = 0;

    for (uint32_t m = 0; m < s.members; m++)
        rank += s.member_key[m] > key || (s.member_key[m] == key && s.member_id[m] < place);
    return rank < need;
}

/*
 * Selects `need` of the n candidates that are not forced, and the forced ones, and writes their ids in order.
 * The range is [pivot, largest key]; the bins are clear. A thread has consecutive candidates, at most
 * CAND_MAX / THREADS.
 */
__device__ static void select_candidates(topk_shared &s, const topk_row &r, const float *vals,
                                         const int *places, int n, topk_range g, int32_t *ids)
{
    const int most = CAND_MAX / THREADS;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, each = (n + THREADS - 1) / THREADS;
    int from = threadIdx.x * each, shift = 1;
    uint32_t key[most], own = 0, sel = 0, total;

#pragma unroll
    for (int j = 0; j < most; j++) {
        key[j] = 0;
        if (j < each && from + j < n)
            key[j] = forced(r, places[from + j]) ? KEY_FORCED : sl_order_key(vals[from + j]);
    }
    for (bool first = true;
         g.need && shift > 0 && g.have != g.need && (first || g.have > MEMBERS || g.have == (uint32_t)n);
         first = false) {
        if (!first) {
            __syncthreads();
            clear_bins(s);
            __syncthreads();
        }
        shift = range_shift(g.lo, g.hi);
#pragma unroll
        for (int j = 0; j < most; j++)
            if (j < each && key[j] >= g.lo && key[j] <= g.hi)
                atomicAdd(&s.hist[(key[j] - g.lo) >> shift], 1u);
        if (threadIdx.x == 0)
            s.members = 0;
        __syncthreads();
        narrow(s, &g, shift);
    }
    bool ties = g.have != g.need && g.lo == g.hi, ranked = g.have != g.need && !ties;
    if (ranked) {
#pragma unroll
        for (int j = 0; j < most; j++)
            if (j < each && key[j] >= g.lo && key[j] <= g.hi) {
                uint32_t m = atomicAdd(&s.members, 1u);
                s.member_key[m] = key[j];
                s.member_id[m] = places[from + j];
            }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < most; j++)
        if (j < each) {
            bool in = key[j] >= g.lo && key[j] <= g.hi, take = key[j] > g.hi || (in && !ties);
            if (in && ranked)
                take = among(s, key[j], places[from + j], g.need);
            own += (take ? 1u : 0u) + (in && ties ? 0x10000u : 0u);
            sel |= (take ? 1u : 0u) << j;
        }
    uint32_t inc = warp_inclusive(own);
    if (lane == 31)
        s.count[1][warp] = inc;
    __syncthreads();
    uint32_t before = warps_before(s, 1, &total) + inc - own;
    uint32_t at = before & 0xffff, equal = before >> 16;
#pragma unroll
    for (int j = 0; j < most; j++)
        if (j < each) {
            bool take = sel >> j & 1, eq = ties && key[j] == g.lo;
            if (take || (eq && equal < g.need))
                ids[at + min(equal, ties ? g.need : 0)] = places[from + j];
            at += take;
            equal += eq;
        }
}

/* Adds 1 to the bin of every lane that is in; few atomics when bins repeat. Whole warp. */
__device__ static inline void add_bins(uint32_t *hist, bool in, uint32_t bin)
{
    uint32_t mask = __ballot_sync(0xffffffffu, in);

    for (int k = 0; k < 2 && mask; k++) {
        int leader = __ffs(mask) - 1;
        uint32_t b = __shfl_sync(0xffffffffu, bin, leader), same = __ballot_sync(0xffffffffu, in && bin == b);
        if ((int)(threadIdx.x & 31) == leader)
            atomicAdd(&hist[b], __popc(same));
        in = in && bin != b;
        mask &= ~same;
    }
    if (in)
        atomicAdd(&hist[bin], 1u);
}

/* Keys i .. i + 3 of the whole-row passes; *valid has a bit for each that exists. */
__device__ static inline uint4 row_keys(const topk_row &r, int i, int to, uint32_t *valid)
{
    float4 v = row_scores(r, i, r.len);
    uint4 k = make_uint4(sl_order_key(v.x), sl_order_key(v.y), sl_order_key(v.z), sl_order_key(v.w));
    int left = to - i;

    *valid = left >= 4 ? 15u : left <= 0 ? 0u : (1u << left) - 1;
    if (r.gates) {
        uint32_t f = forced_of<topk_scores>(r, i);
        k = make_uint4(f & 1 ? KEY_FORCED : k.x, f & 2 ? KEY_FORCED : k.y, f & 4 ? KEY_FORCED : k.z,
                       f & 8 ? KEY_FORCED : k.w);
    }
    return k;
}

/* This warp's part of the row. */
__device__ static inline void warp_part(const topk_row &r, int *from, int *to)
{
    int seg = ((r.len + WARPS - 1) / WARPS + 127) / 128 * 128;

    *from = min((int)(threadIdx.x >> 5) * seg, r.len);
    *to = min(*from + seg, r.len);
}

/* How many keys of each warp's part lie above the range and in it, to s.count; narrows the range to the
 * smallest and largest key in it. */
__device__ static void survey(topk_shared &s, const topk_row &r, topk_range *g)
{
    int lane = threadIdx.x & 31, from, to;
    uint32_t gt = 0, in = 0, lo = 0xffffffffu, hi = 0, valid;

    warp_part(r, &from, &to);
#pragma unroll 4
    for (int i = from + lane * 4; i < to; i += 128) {
        uint4 v = row_keys(r, i, to, &valid);
        const uint32_t k[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            bool there = valid >> c & 1, inside = there && k[c] >= g->lo && k[c] <= g->hi;
            gt += there && k[c] > g->hi;
            in += inside;
            lo = inside ? min(lo, k[c]) : lo;
            hi = inside ? max(hi, k[c]) : hi;
        }
    }
    gt = __reduce_add_sync(0xffffffffu, gt);
    in = __reduce_add_sync(0xffffffffu, in);
    if (lane == 0) {
        s.count[0][threadIdx.x >> 5] = gt;
        s.count[1][threadIdx.x >> 5] = in;
    }
    block_range(s, &lo, &hi);
    warps_before(s, 1, &g->have);
    if (lo <= hi) {
        g->lo = lo;
        g->hi = hi;
    }
}

/* Writes the selected ids of the row in order, after a survey: the range is all wanted or one value. */
__device__ static void write_row(topk_shared &s, const topk_row &r, topk_range g, int32_t *ids)
{
    int lane = threadIdx.x & 31, from, to;
    uint32_t total, gt = warps_before(s, 0, &total), in = warps_before(s, 1, &total),
                    last = gt + s.count[0][threadIdx.x >> 5], below = (1u << lane) - 1;

    warp_part(r, &from, &to);
    for (int base = from; base < to && (in < g.need || gt < last); base += 32 * AT_ONCE) {
        uint32_t k[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + j * 32 + lane;
            k[j] = i < to ? key_at(r, i) : 0;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = base + j * 32 + lane;
            bool is_gt = i < to && k[j] > g.hi, is_in = i < to && k[j] >= g.lo && k[j] <= g.hi;
            uint32_t mg = __ballot_sync(0xffffffffu, is_gt), me = __ballot_sync(0xffffffffu, is_in);
            uint32_t e = in + __popc(me & below), at = gt + __popc(mg & below) + min(e, g.need);
            if (is_gt || (is_in && e < g.need))
                ids[at] = i;
            gt += __popc(mg);
            in += __popc(me);
        }
    }
}

/* Few distinct values: surveys and radix passes over the row from the lower bound on. */
__device__ static void whole_row(topk_shared &s, const topk_row &r, uint32_t pivot, uint32_t need,
                                 int32_t *ids)
{
    topk_range g = {pivot, KEY_FORCED - 1, need, 0};
    int from, to;
    uint32_t valid;

    if (need == 0)
        g = {KEY_FORCED, KEY_FORCED, KEY_FORCED, 0}; /* the forced ones alone */
    warp_part(r, &from, &to);
    for (;;) {
        __syncthreads();
        survey(s, r, &g);
        if (g.have <= g.need || g.lo == g.hi)
            break;
        int shift = range_shift(g.lo, g.hi);
        __syncthreads();
        clear_bins(s);
        __syncthreads();
#pragma unroll 2
        for (int i = from + (threadIdx.x & 31) * 4; i - (int)(threadIdx.x & 31) * 4 < to; i += 128) {
            uint4 v = row_keys(r, i, to, &valid);
            const uint32_t k[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int c = 0; c < 4; c++)
                add_bins(s.hist, (valid >> c & 1) && k[c] >= g.lo && k[c] <= g.hi, (k[c] - g.lo) >> shift);
        }
        __syncthreads();
        narrow(s, &g, shift);
    }
    write_row(s, r, g, ids);
}

template <typename K, int R>
__device__ static void select_row(topk_shared &s, const topk_row &r, topk_deal &d, typename K::four (&v)[R],
                                  uint8_t *smem, uint32_t take, int32_t *ids)
{
    float *vals = (float *)smem;
    int *places = (int *)(smem + CAND_MAX * 4), *list = (int *)(smem + CAND_MAX * 8);
    uint32_t need = take, pivot = KEY_FORCED - 1, top = KEY_FORCED - 1, n;

    if (r.gates)
        need -= min(r.sinks, r.len) + max(r.len - max(r.recent_from, r.sinks), 0);
    d.n = (r.len + K::of - 1) / K::of;
    d.chunks = (d.n + R * THREADS * 4 - 1) / (R * THREADS * 4);
    if (d.chunks > 1)
        d.rounds = R;
    else
        trim_chunk<K, R>(r, d, 0, v);
    if (need)
        pivot = lower_bound<K, R>(s, r, d, v, need, &top);
    if (r.gates)
        top = KEY_FORCED - 1;
    if (pivot == 0) {
        whole_row(s, r, 0, need, ids);
        return;
    }
    clear_bins(s);
    if (K::of > 1) {
        n = collect<K, R>(s, r, d, v, pivot, NULL, list, LIST_MAX);
        __syncthreads();
        n = n > LIST_MAX ? CAND_MAX + 1 : collect_groups(s, r, list, (int)n, pivot, vals, places, CAND_MAX);
    } else {
        n = collect<K, R>(s, r, d, v, pivot, vals, places, CAND_MAX);
    }
    __syncthreads();
    if (n > CAND_MAX) {
        whole_row(s, r, pivot, need, ids);
        return;
    }
    topk_range g = {pivot, top, need, n};
    if (need == 0)
        g = {KEY_FORCED, KEY_FORCED, 0, 0};
    select_candidates(s, r, vals, places, (int)n, g, ids);
}

/* A block a row. Its first keys are on the way before its length is known. */
template <int R>
__global__ static void __launch_bounds__(THREADS)
    topk_kernel(sl_topk_params p, sl_seq_tables seqs, const uint32_t *hint, int ld_hint, uint32_t *deverr)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ __align__(16) topk_shared s;
    int t = p.token_first + blockIdx.x;
    const int32_t *seq_at = seqs.token_seq + t, *pos_at = seqs.token_pos + t;
    int32_t *ids = p.ids + (int64_t)t * p.ld_ids;
    bool by_hint = p.ld_scores > ROW_MAX && hint;
    topk_row r;
    topk_deal d = {0, R, 1};
    topk_scores::four scores[R];
    topk_maxima::four maxima[R];

    r.limit = p.ld_scores;
    r.scores = p.scores + (int64_t)blockIdx.x * p.ld_scores;
    r.hint = hint + (int64_t)blockIdx.x * ld_hint;
    r.wide = (uintptr_t)r.scores % 16 == 0;
    r.sinks = p.sinks;
    r.gates = p.sinks || p.recent;
    d.rounds = min(R, (((by_hint ? ld_hint : p.ld_scores) + WARPS * 128 - 1) / (WARPS * 128)));
    sl_after_previous();
    sl_let_next_start();
    int seq = *seq_at, pos = *pos_at;
    if (by_hint)
        load_chunk<topk_maxima, R>(r, d, 0, maxima);
    else
        load_chunk<topk_scores, R>(r, d, 0, scores);
    if (seq == -1) /* padding */
        pos = -1;
    bool all = pos < max(p.k, p.dense_below);
    if (seq != -1 && (pos < 0 || (!all && pos >= p.ld_scores))) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        pos = -1;
        all = true;
    }
    r.len = pos + 1;
    r.recent_from = r.len - p.recent;
    int take = all ? r.len : p.k;
    for (int i = take + threadIdx.x; i < p.ld_ids; i += THREADS)
        ids[i] = -1;
    if (all) {
        for (int i = threadIdx.x; i < take; i += THREADS)
            ids[i] = i;
        return;
    }
    if (by_hint && r.len > ROW_MAX) {
        select_row<topk_maxima, R>(s, r, d, maxima, smem, take, ids);
    } else {
        if (by_hint) {
            d.rounds = min(R, (r.len + WARPS * 128 - 1) / (WARPS * 128));
            load_chunk<topk_scores, R>(r, d, 0, scores);
        }
        select_row<topk_scores, R>(s, r, d, scores, smem, take, ids);
    }
}

/* The hint: a thread a group. */
__global__ static void __launch_bounds__(256)
    hint_kernel(const float *scores, sl_seq_tables seqs, int token_first, int ld_scores, int min_len,
                uint32_t *hint, int ld_hint)
{
    int t = token_first + blockIdx.y, g = blockIdx.x * 512 + threadIdx.x;
    topk_row r = {};

    sl_after_previous();
    sl_let_next_start();
    r.len = seqs.token_seq[t] == -1 ? 0 : min(seqs.token_pos[t] + 1, ld_scores);
    if (r.len < min_len)
        return;
    r.scores = scores + (int64_t)blockIdx.y * ld_scores;
    r.wide = (uintptr_t)r.scores % 16 == 0;
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = row_scores(r, (g + i / 2 * 256) * SL_HINT_GROUP + i % 2 * 4, r.len);
#pragma unroll
    for (int i = 0; i < 2; i++)
        if ((g + i * 256) * SL_HINT_GROUP < r.len)
            hint[(int64_t)blockIdx.y * ld_hint + g + i * 256] =
                sl_order_key(fmaxf(max_of(v[2 * i]), max_of(v[2 * i + 1])));
}

sl_status sl_cuda_hint(sl_cuda *cu, const float *scores, const sl_seq_tables *seqs, int token_first,
                       int token_count, int ld_scores, int min_len, uint32_t *hint, sl_err *err)
{
    int ld = sl_hint_ld(ld_scores);

    return sl_cuda_launch_early(cu, hint_kernel, dim3(sl_ceil_div(ld, 512), token_count), 256, 0, err, scores,
                                *seqs, token_first, ld_scores, min_len, hint, ld);
}

sl_status sl_cuda_topk(sl_backend *be, const void *params, sl_err *err)
{
    const sl_topk_params *p = (const sl_topk_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    int ld_hint = sl_hint_ld(p->ld_scores), slice = 65535;
    void *made = NULL;
    sl_status st = SL_OK;

    if (p->ld_scores > ROW_MAX && !p->hint) {
        if (p->token_count > slice)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: topk: %d tokens at once (at most %d)",
                           p->token_count, slice);
        st = sl_cuda_scratch(cu, (size_t)p->token_count * ld_hint * 4, &made, err);
        if (st == SL_OK)
            st = sl_cuda_hint(cu, p->scores, p->seqs, p->token_first, p->token_count, p->ld_scores,
                              ROW_MAX + 1, (uint32_t *)made, err);
    }
    /* Rounds of 4,096 items that a block holds: of the row, or of its hint. */
    int items = p->ld_scores > ROW_MAX ? ld_hint : p->ld_scores;
    void (*kernel)(sl_topk_params, sl_seq_tables, const uint32_t *, int, uint32_t *) =
        items > 4 * THREADS * 4 ? topk_kernel<8> : topk_kernel<4>;
    if (st == SL_OK)
        st =
            SL_CU(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES), err);
    if (st != SL_OK)
        return st;
    return sl_cuda_launch_early(cu, kernel, dim3(p->token_count), THREADS, SMEM_BYTES, err, *p, *p->seqs,
                                p->hint ? (const uint32_t *)p->hint : (const uint32_t *)made, ld_hint,
                                cu->deverr);
}
