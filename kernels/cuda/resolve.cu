/*
 * Logical ids to physical rows, and the list of rows to swap in. One block a token.
 *
 * Resident tokens: a table lookup. Hierarchical ones: tail hit, hot hit (direct map token -> slot) or miss;
 * victims by CLOCK in chunks of a block from the hand on, so that the cost follows top-k and misses, not the
 * buffer's size; LRU walks its list with one thread and is here for comparison. Each block sorts its own
 * misses by host row; the blocks' lists are merged by ranking each element in the others, which needs no
 * order among blocks and yields the exact sorted list. The others' lists are searched in shared memory as
 * long as they fit there. The merge is part of the kernel when all blocks run at once: those with misses wait
 * for the others' lists. Else it is a second kernel.
 */
#include "kernels/cuda/common.cuh"

#define THREADS 1024
#define MAX_K 4096
#define MERGE_MAX (48 * 1024) /* misses of a step that the merge holds in shared memory */
#define MERGE_SEGMENTS 1024
#define STATIC_SHARED (16 * 1024) /* bound of what the kernels declare besides */
#define NO_SLOT 0xffffu
#define REFERENCED 0x80000000u

struct segments {   /* one a token, or one a sequence when there are more tokens */
    int64_t *src;   /* [n][k] sorted */
    int32_t *dst;   /* [n][k] */
    int32_t *block; /* [n][k] */
    int32_t *count; /* [n] */
    int n;
    int room; /* elements that the merge can hold in shared memory */
    bool by_token;
    unsigned long long *meet; /* NULL: merged by a second kernel. Else 0 before and after the kernel: blocks
                                 that arrived | blocks that left << 16 | misses << 32 */
};

struct resolve_shared {
    int32_t miss_id[MAX_K];  /* token of the m-th miss */
    uint16_t miss_at[MAX_K]; /* its place in ids */
    uint16_t victim[MAX_K];  /* LRU index it takes */
    uint64_t key[MAX_K];     /* host row << 16 | m, for the sort */
    uint32_t warp_sum[32];
    uint32_t misses, tail_hits, used, evictions, victims, step;
    int hand, stop;
    int32_t need[MAX_K / SL_PAGE_TOKENS];
};

/* Exclusive prefix of flag over the block; *total gets the sum. Contains barriers. */
__device__ static uint32_t block_prefix(resolve_shared &s, bool flag, uint32_t *total)
{
    uint32_t mask = __ballot_sync(0xffffffffu, flag), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;

    __syncthreads();
    if (lane == 0)
        s.warp_sum[warp] = __popc(mask);
    __syncthreads();
    uint32_t v = s.warp_sum[lane], inc = v;
    for (int o = 1; o < 32; o <<= 1) {
        uint32_t n = __shfl_up_sync(0xffffffffu, inc, o);
        if (lane >= o)
            inc += n;
    }
    *total = __shfl_sync(0xffffffffu, inc, 31);
    uint32_t before = __shfl_sync(0xffffffffu, inc - v, warp);
    return before + __popc(mask & ((1u << lane) - 1));
}

struct slot_state { /* one hot slot's part of sl_hot_state */
    uint16_t *slot_of, *prev, *next;
    int32_t *token_of, *cursor;
    uint32_t *stamp, *counters;
};

__device__ static slot_state slot_state_of(const sl_resolve_params &p, int slot)
{
    slot_state h;
    int64_t hot = (int64_t)slot * p.rows.hot_rows;

    h.slot_of = p.hot.slot_of + (int64_t)slot * p.hot.max_tokens;
    h.token_of = p.hot.token_of + hot;
    h.stamp = p.hot.stamp + hot;
    h.prev = p.hot.prev + hot + slot;
    h.next = p.hot.next + hot + slot;
    h.cursor = p.hot.cursor + slot;
    h.counters = p.hot.counters + 4 * (int64_t)slot;
    return h;
}

#define ROUNDS 2 /* ids a thread has under way */

struct some_ids { /* of this thread; before: the list's entry in front */
    int id[ROUNDS], before[ROUNDS];
};

__device__ static inline some_ids load_ids(const int32_t *ids, int base, int n)
{
    some_ids v;

#pragma unroll
    for (int j = 0; j < ROUNDS; j++) {
        int i = base + j * THREADS + threadIdx.x;
        v.id[j] = i < n ? ids[i] : -1;
        v.before[j] = i > 0 && i < n ? ids[i - 1] : -1;
    }
    return v;
}

/* Classifies ids, fills phys of hits, marks them in use, and lists the misses in order. */
__device__ static void classify(resolve_shared &s, const sl_resolve_params &p, const slot_state &h,
                                const int32_t *ids, some_ids v, int32_t *phys, int slot, int pos,
                                uint32_t *deverr)
{
    int32_t hot0 = p.rows.hot_base + slot * (p.rows.hot_rows + p.rows.tail_rows);
    uint32_t mark = s.step | (p.policy == SL_EVICT_CLOCK ? REFERENCED : 0), misses = 0, used = 0, tail = 0;

    for (int base = 0; base < p.ld_ids; base += ROUNDS * THREADS) {
        uint16_t at[ROUNDS];
        int(&id)[ROUNDS] = v.id, (&before)[ROUNDS] = v.before;
        if (base > 0)
            v = load_ids(ids, base, p.ld_ids);
#pragma unroll
        for (int j = 0; j < ROUNDS; j++)
            at[j] = id[j] >= 0 && id[j] <= pos - p.rows.tail_rows ? h.slot_of[id[j]] : 0;
#pragma unroll
        for (int j = 0; j < ROUNDS; j++) {
            int i = base + j * THREADS + threadIdx.x;
            bool miss = false;
            if (base + j * THREADS >= p.ld_ids)
                break;
            if (i < p.ld_ids && id[j] < 0)
                phys[i] = -1;
            if (id[j] >= 0 && (id[j] > pos || before[j] >= id[j])) {
                atomicOr(deverr, SL_DEVERR_SELECTION);
                phys[i] = -1;
            } else if (id[j] > pos - p.rows.tail_rows && id[j] >= 0) {
                phys[i] = hot0 + p.rows.hot_rows + id[j] % p.rows.tail_rows;
                tail++;
            } else if (id[j] >= 0) {
                miss = at[j] == NO_SLOT;
                if (!miss) {
                    h.stamp[at[j]] = mark;
                    phys[i] = hot0 + at[j];
                    used++;
                }
            }
            if (!__syncthreads_or(miss))
                continue;
            uint32_t total, m = misses + block_prefix(s, miss, &total);
            if (miss && m < MAX_K) {
                s.miss_id[m] = id[j];
                s.miss_at[m] = (uint16_t)i;
                atomicAdd(&s.need[min(i, MAX_K - 1) / SL_PAGE_TOKENS], 1);
            }
            misses += total;
        }
    }
    used = sl_warp_sum(used);
    tail = sl_warp_sum(tail);
    if ((threadIdx.x & 31) == 0) {
        atomicAdd(&s.used, used);
        atomicAdd(&s.tail_hits, tail);
    }
    if (threadIdx.x == 0)
        s.misses = misses;
    __syncthreads();
}

/* CLOCK, within two turns: entries in use are passed, referenced ones lose the bit, the others are victims in
 * hand order. */
__device__ static void clock_victims(resolve_shared &s, const sl_resolve_params &p, const slot_state &h)
{
    int n = p.rows.hot_rows, hand = *h.cursor;

    for (int done = 0, chunk; done < 2 * n && s.victims < s.misses; done += chunk) {
        uint32_t found = s.victims, need = s.misses - found;
        int at = (hand + done + threadIdx.x) % n;
        chunk = min(THREADS, n - done % n); /* a turn ends at a chunk's end: no entry twice in one chunk */
        bool in = (int)threadIdx.x < chunk;
        uint32_t st = in ? h.stamp[at] : 0;
        bool used = (st & ~REFERENCED) == s.step, cand = in && !used && !(st & REFERENCED);
        uint32_t total, rank = block_prefix(s, cand, &total);
        bool last = cand && rank + 1 == need;
        if (cand && rank < need) {
            s.victim[found + rank] = (uint16_t)at;
            h.stamp[at] = s.step | REFERENCED; /* in use from here on: the second turn passes it */
        }
        if (threadIdx.x == 0)
            s.stop = THREADS;
        __syncthreads();
        if (last)
            s.stop = threadIdx.x;
        __syncthreads();
        if (in && !used && (st & REFERENCED) && (int)threadIdx.x < s.stop)
            h.stamp[at] = st & ~REFERENCED;
        if (threadIdx.x == 0) {
            s.victims = found + min(total, need);
            if (s.stop < THREADS)
                s.hand = (hand + done + s.stop + 1) % n;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && s.misses)
        *h.cursor = s.hand; /* behind the last victim */
}

/* LRU by its list, one thread: victims from the least recent end, then everything in use to the most recent
 * end in token order. */
__device__ static void lru_victims(resolve_shared &s, const sl_resolve_params &p, const slot_state &h,
                                   int head)
{
    if (threadIdx.x == 0) {
        int at = h.next[head];
        while (s.victims < s.misses && at != head) {
            if (h.stamp[at] != s.step)
                s.victim[s.victims++] = (uint16_t)at;
            at = h.next[at];
        }
    }
    __syncthreads();
}

__device__ static void lru_touch(const sl_resolve_params &p, const slot_state &h, const int32_t *phys,
                                 int32_t hot0, int head)
{
    for (int i = 0; i < p.ld_ids && phys[i] >= 0; i++) {
        int at = phys[i] - hot0;
        if (at >= p.rows.hot_rows)
            continue;
        h.next[h.prev[at]] = h.next[at];
        h.prev[h.next[at]] = h.prev[at];
        int last = h.prev[head];
        h.prev[at] = (uint16_t)last;
        h.next[at] = (uint16_t)head;
        h.next[last] = (uint16_t)at;
        h.prev[head] = (uint16_t)at;
    }
}

/* Gives the m-th miss the m-th victim: maps, stamps, phys. */
__device__ static void place(resolve_shared &s, const sl_resolve_params &p, const slot_state &h,
                             int32_t *phys, int32_t hot0)
{
    uint32_t mark = s.step | (p.policy == SL_EVICT_CLOCK ? REFERENCED : 0);

    for (uint32_t m = threadIdx.x; m < s.misses; m += THREADS) {
        int at = s.victim[m], old = h.token_of[at];
        if (old >= 0) {
            h.slot_of[old] = NO_SLOT;
            atomicAdd(&s.evictions, 1u);
        }
        h.token_of[at] = s.miss_id[m];
        h.slot_of[s.miss_id[m]] = (uint16_t)at;
        h.stamp[at] = mark;
        phys[s.miss_at[m]] = hot0 + at;
    }
    __syncthreads();
}

/* Each key's place is the number of smaller ones; all threads count. Keys differ. */
__device__ static void sort_few(resolve_shared &s)
{
    uint64_t *sorted = s.key + THREADS;
    uint32_t *rank = (uint32_t *)(s.key + 2 * THREADS), n = s.misses, per = THREADS / n,
             slice = threadIdx.x / n, i = threadIdx.x % n, count = 0;

    rank[threadIdx.x] = 0;
    __syncthreads();
    if (slice < per) {
        uint64_t mine = s.key[i];
        for (uint32_t j = slice * n / per; j < (slice + 1) * n / per; j++)
            count += s.key[j] < mine;
        atomicAdd(&rank[i], count);
    }
    __syncthreads();
    if (threadIdx.x < n)
        sorted[rank[threadIdx.x]] = s.key[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n)
        s.key[threadIdx.x] = sorted[threadIdx.x];
    __syncthreads();
}

/* Bitonic; n is the power of two that the keys are padded to. */
__device__ static void sort_many(resolve_shared &s, uint32_t n)
{
    for (uint32_t size = 2; size <= n; size <<= 1)
        for (uint32_t step = size >> 1; step; step >>= 1) {
            for (uint32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
                uint64_t x = s.key[a], y = s.key[b];
                if ((x > y) == ((a & size) == 0)) {
                    s.key[a] = y;
                    s.key[b] = x;
                }
            }
            __syncthreads();
        }
}

/* Sorts the block's misses by host row and writes its segment. */
__device__ static void emit(resolve_shared &s, const sl_resolve_params &p, const sl_seq_tables &seqs,
                            const segments &out, int t, int seq, int32_t hot0, uint32_t *deverr)
{
    int64_t mine = (int64_t)(out.by_token ? t : seq) * p.k;
    uint32_t n = 1;

    while (n < s.misses)
        n <<= 1;
    for (uint32_t m = threadIdx.x; m < n; m += THREADS) {
        uint64_t key = ~0ull;
        if (m < s.misses) {
            int id = s.miss_id[m], page = seqs.host_pages[(int64_t)seq * seqs.ld + id / SL_PAGE_TOKENS];
            if (page < 0)
                atomicOr(deverr, SL_DEVERR_PAGE);
            key = ((uint64_t)max(page, 0) * SL_PAGE_TOKENS + id % SL_PAGE_TOKENS) << 16 | m;
        }
        s.key[m] = key;
    }
    __syncthreads();
    if (s.misses <= THREADS)
        sort_few(s);
    else
        sort_many(s, n);
    for (uint32_t i = threadIdx.x; i < s.misses; i += THREADS) {
        uint32_t m = s.key[i] & 0xffff;
        out.src[mine + i] = (int64_t)(s.key[i] >> 16);
        out.dst[mine + i] = hot0 + s.victim[m];
        out.block[mine + i] = t * p.ld_blocks + s.miss_at[m] / SL_PAGE_TOKENS;
    }
    if (threadIdx.x == 0)
        out.count[out.by_token ? t : seq] = (int32_t)s.misses;
}

/* Returns the misses listed. */
__device__ static uint32_t resolve_hot(resolve_shared &s, const sl_resolve_params &p,
                                       const sl_seq_tables &seqs, const segments &out, const some_ids &first,
                                       int t, int seq, int pos, uint32_t *deverr)
{
    int slot = seqs.hot_slot[seq], n = p.rows.hot_rows;
    int32_t hot0 = p.rows.hot_base + slot * (n + p.rows.tail_rows);
    slot_state h = slot_state_of(p, slot);
    const int32_t *ids = p.ids + (int64_t)t * p.ld_ids;
    int32_t *phys = p.phys + (int64_t)t * p.ld_ids;

    /* Blocks of the same sequence would race for its hot state: all of them leave it alone. */
    if ((t > 0 && seqs.token_seq[t - 1] == seq) || (t + 1 < seqs.n_tokens && seqs.token_seq[t + 1] == seq)) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_MULTI_TOKEN);
        return 0;
    }
    if (pos >= p.hot.max_tokens) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        return 0;
    }
    if (s.step == 0 || (p.policy == SL_EVICT_CLOCK && s.step >= REFERENCED)) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_STEP);
        return 0;
    }
    classify(s, p, h, ids, first, phys, slot, pos, deverr);
    if (s.misses + s.used > (uint32_t)n || s.misses > (uint32_t)min(p.k, MAX_K)) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_HOT_CAPACITY);
        return 0;
    }
    if (s.misses) {
        if (p.policy == SL_EVICT_CLOCK)
            clock_victims(s, p, h);
        else
            lru_victims(s, p, h, n);
        place(s, p, h, phys, hot0);
        emit(s, p, seqs, out, t, seq, hot0, deverr);
    }
    if (threadIdx.x == 0) {
        if (p.policy == SL_EVICT_LRU)
            lru_touch(p, h, phys, hot0, n);
        atomicAdd(&h.counters[0], s.used); /* nobody waits for these */
        atomicAdd(&h.counters[1], s.misses);
        atomicAdd(&h.counters[2], s.evictions);
        atomicAdd(&h.counters[3], s.tail_hits);
    }
    return s.misses;
}

/* Elements of a sorted segment that come before (src, from segment me): smaller, or equal from an earlier
 * segment. */
__device__ static int rank_in(const int64_t *v, int n, int64_t src, bool equal_first)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (v[mid] < src || (equal_first && v[mid] == src))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

__device__ static int rank_in_shared(const uint32_t *v, int n, uint32_t src, bool equal_first)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        int mid = (lo + hi) / 2;
        uint32_t x = v[mid];
        if (x < src || (equal_first && x == src))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* All segments' sources into shared memory, each from `start` on; false if they do not fit there or in 32
 * bits. */
__device__ static bool stage_segments(const segments &in, int k, int total, uint32_t *staged,
                                      const int *start)
{
    bool small = total <= in.room;

    for (int s = threadIdx.x >> 5; s < in.n && total <= in.room; s += blockDim.x >> 5)
        for (int i = threadIdx.x & 31; i < in.count[s]; i += 32) {
            int64_t v = in.src[(int64_t)s * k + i];
            small &= v >> 32 == 0;
            staged[start[s] + i] = (uint32_t)v;
        }
    return __syncthreads_and(small);
}

/* Element i of segment me is the at-th miss of all. */
__device__ static inline void put_miss(const sl_resolve_params &p, const segments &in, int me, int i, int at)
{
    int64_t from = (int64_t)me * p.k + i;

    if (at >= p.miss_cap)
        return;
    p.miss_src[at] = in.src[from];
    p.miss_dst[at] = in.dst[from];
    if (p.miss_block)
        p.miss_block[at] = in.block[from];
}

/* One block's share of the merge: all of segment `me`, one thread an element. */
__device__ static void merge_segment(const sl_resolve_params &p, const segments &in, int me, uint32_t *staged,
                                     int *start, int *sum)
{
    __shared__ int place[THREADS];
    int n = in.count[me], total = 0;

    for (int s = threadIdx.x; s < in.n; s += THREADS)
        total += in.count[s];
    if (threadIdx.x == 0)
        *sum = 0;
    total = sl_block_sum(total);
    if (in.n <= MERGE_SEGMENTS) { /* where each begins; the order among them is of no matter */
        for (int s = threadIdx.x; s < in.n; s += THREADS)
            start[s] = atomicAdd(sum, in.count[s]);
        __syncthreads();
    }
    bool shared = in.n <= MERGE_SEGMENTS && stage_segments(in, p.k, total, staged, start);
    /* Few elements: several threads an element, each for some of the other segments. */
    int per = max(THREADS / n, 1), slice = threadIdx.x / n, first = (int)((int64_t)slice * in.n / per),
        last = (int)((int64_t)(slice + 1) * in.n / per);
    if (threadIdx.x < n && per > 1)
        place[threadIdx.x] = threadIdx.x;
    __syncthreads();
    for (int i = per > 1 ? threadIdx.x % n : threadIdx.x; i < n && slice < per; i += THREADS) {
        int64_t src = in.src[(int64_t)me * p.k + i];
        int at = per > 1 ? 0 : i;
        for (int s = per > 1 ? first : 0; s < (per > 1 ? last : in.n); s++)
            if (s != me && in.count[s])
                at += shared ? rank_in_shared(staged + start[s], in.count[s], (uint32_t)src, s < me)
                             : rank_in(in.src + (int64_t)s * p.k, in.count[s], src, s < me);
        if (per > 1)
            atomicAdd(&place[i], at);
        else
            put_miss(p, in, me, i, at);
        if (per > 1)
            break;
    }
    __syncthreads();
    if (per > 1 && threadIdx.x < n)
        put_miss(p, in, me, threadIdx.x, place[threadIdx.x]);
}

__device__ static void count_misses(const sl_resolve_params &p, int total, uint32_t *deverr)
{
    *p.miss_count = min(total, p.miss_cap);
    if (total > p.miss_cap)
        atomicOr(deverr, SL_DEVERR_MISS_CAPACITY);
}

/* One block a segment. The first block also counts. */
__global__ static void __launch_bounds__(THREADS)
    merge_kernel(sl_resolve_params p, segments in, uint32_t *deverr)
{
    extern __shared__ uint32_t staged[];
    __shared__ int start[MERGE_SEGMENTS], sum;
    int me = blockIdx.x, total = 0;

    if (me == 0) {
        for (int s = threadIdx.x; s < in.n; s += THREADS)
            total += in.count[s];
        total = sl_block_sum(total);
        if (threadIdx.x == 0)
            count_misses(p, total, deverr);
    }
    if (in.count[me])
        merge_segment(p, in, me, staged, start, &sum);
}

/* All blocks meet; those with misses merge. The last one to come knows the count, the last one to go clears.
 */
__device__ static void meet(const sl_resolve_params &p, const segments &in, uint32_t misses, uint32_t *staged,
                            uint32_t *deverr)
{
    __shared__ int start[MERGE_SEGMENTS], sum;
    const unsigned long long left = 1ull << 16;
    unsigned long long all = gridDim.x, v = 0;

    __syncthreads(); /* the block's segment is written */
    if (threadIdx.x == 0) {
        __threadfence();
        v = 1 + (misses ? 0 : left) + ((unsigned long long)misses << 32);
        v += atomicAdd(in.meet, v);
        if ((v & 0xffff) == all)
            count_misses(p, (int)(v >> 32), deverr);
        if (v == (all | all << 16)) /* nobody missed anything */
            *in.meet = 0;
        while (misses && (v & 0xffff) != all) {
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(in.meet) : "memory");
        }
        __threadfence();
    }
    if (misses == 0)
        return;
    __syncthreads();
    merge_segment(p, in, blockIdx.x, staged, start, &sum);
    if (threadIdx.x == 0 && (atomicAdd(in.meet, left) + left & 0xffff0000u) == all << 16)
        *in.meet = 0;
}

/* A resident token: a lookup. */
__device__ static void resolve_resident(const sl_resolve_params &p, const sl_seq_tables &seqs, int t, int seq,
                                        int pos, uint32_t *deverr)
{
    for (int i = threadIdx.x; i < p.ld_ids; i += THREADS) {
        int id = p.ids[(int64_t)t * p.ld_ids + i];
        int page = id >= 0 && id <= pos ? seqs.row_pages[(int64_t)seq * seqs.ld + id / SL_PAGE_TOKENS] : -1;
        if (id > pos)
            atomicOr(deverr, SL_DEVERR_SELECTION);
        else if (id >= 0 && page < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        p.phys[(int64_t)t * p.ld_ids + i] = page < 0 ? -1 : page * SL_PAGE_TOKENS + id % SL_PAGE_TOKENS;
    }
}

__global__ static void __launch_bounds__(THREADS)
    resolve_kernel(sl_resolve_params p, sl_seq_tables seqs, segments out, uint32_t *deverr)
{
    extern __shared__ __align__(8) uint8_t smem[];
    resolve_shared &s = *(resolve_shared *)smem;
    int t = blockIdx.x, seq, pos;
    uint32_t misses = 0;
    some_ids first = load_ids(p.ids + (int64_t)t * p.ld_ids, 0, p.ld_ids);

    if (threadIdx.x == 0) {
        s.tail_hits = s.used = s.evictions = s.victims = s.misses = 0;
        s.hand = 0;
        s.step = p.step ? *p.step : 0; /* NULL without hot rows */
        if (out.by_token)
            out.count[t] = 0;
    }
    for (int i = threadIdx.x; i < MAX_K / SL_PAGE_TOKENS; i += THREADS)
        s.need[i] = 0;
    __syncthreads();
    if (sl_token(&seqs, t, deverr, &seq, &pos)) {
        if (seqs.hot_slot[seq] >= 0)
            misses = resolve_hot(s, p, seqs, out, first, t, seq, pos, deverr);
        else
            resolve_resident(p, seqs, t, seq, pos, deverr);
    } else { /* padding */
        for (int i = threadIdx.x; i < p.ld_ids; i += THREADS)
            p.phys[(int64_t)t * p.ld_ids + i] = -1;
    }
    for (int i = threadIdx.x; p.block_need && i < p.ld_blocks; i += THREADS) {
        p.block_need[(int64_t)t * p.ld_blocks + i] = misses && i < MAX_K / SL_PAGE_TOKENS ? s.need[i] : 0;
        p.block_done[(int64_t)t * p.ld_blocks + i] = 0;
    }
    if (p.clock && blockIdx.x == 0 && threadIdx.x == 0) {
        p.clock->asked = sl_clock_ns();
        p.clock->begun = ~0ull;
        p.clock->left = 0;
    }
    if (out.meet)
        meet(p, out, misses, (uint32_t *)(smem + sizeof(resolve_shared)), deverr);
}

__global__ static void hot_reset_kernel(sl_hot_reset_params p, int first)
{
    int64_t slot = first + blockIdx.y;
    int stride = gridDim.x * blockDim.x, i0 = blockIdx.x * blockDim.x + threadIdx.x, n = p.hot_rows;

    for (int i = i0; i < p.hot.max_tokens; i += stride)
        p.hot.slot_of[slot * p.hot.max_tokens + i] = NO_SLOT;
    for (int i = i0; i < n; i += stride) {
        p.hot.token_of[slot * n + i] = -1;
        p.hot.stamp[slot * n + i] = 0;
    }
    for (int i = i0; p.hot.next && i <= n; i += stride) { /* the lru policy's list */
        p.hot.next[slot * (n + 1) + i] = (uint16_t)(i == n ? 0 : i + 1);
        p.hot.prev[slot * (n + 1) + i] = (uint16_t)(i == 0 ? n : i - 1);
    }
    if (i0 < 4)
        p.hot.counters[slot * 4 + i0] = 0;
    if (i0 == 0 && p.hot.cursor) /* the clock policy's hand */
        p.hot.cursor[slot] = 0;
}

sl_status sl_cuda_hot_reset(sl_backend *be, const void *params, sl_err *err)
{
    const sl_hot_reset_params *p = (const sl_hot_reset_params *)params;
    int first = p->slot < 0 ? 0 : p->slot, n = p->slot < 0 ? p->hot_slots : 1;

    if (n > 0)
        hot_reset_kernel<<<dim3(16, n), 256, 0, sl_cuda_of(be)->stream>>>(*p, first);
    return SL_CU_LAUNCHED(err);
}

sl_status sl_cuda_resolve(sl_backend *be, const void *params, sl_err *err)
{
    const sl_resolve_params *p = (const sl_resolve_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    segments seg = {};
    size_t rows, staged;
    int64_t room;
    bool fused;
    void *mem;
    sl_status st;

    if (p->k > MAX_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: resolve: k %d exceeds %d", p->k, MAX_K);
    seg.by_token = p->seqs->n_tokens <= p->seqs->n_seqs;
    seg.n = seg.by_token ? p->seqs->n_tokens : p->seqs->n_seqs;
    rows = (size_t)seg.n * p->k;
    st = sl_cuda_scratch(cu, rows * 16 + (size_t)seg.n * 4, &mem, err);
    if (st != SL_OK)
        return st;
    seg.src = (int64_t *)mem;
    seg.dst = (int32_t *)(seg.src + rows);
    seg.block = seg.dst + rows;
    seg.count = seg.block + rows;
    /* At most one block an SM: then all run at once. */
    fused = seg.by_token && seg.n <= cu->sms;
    room = fused ? (int64_t)(cu->smem_optin - sizeof(resolve_shared) - STATIC_SHARED) / 4 : MERGE_MAX;
    seg.room = (int)min(room, (int64_t)rows);
    staged = (size_t)seg.room * 4;
    seg.meet = fused ? (unsigned long long *)(cu->deverr + SL_CUDA_MEET) : NULL;
    if (!seg.by_token)
        st = SL_CU(cudaMemsetAsync(seg.count, 0, (size_t)seg.n * 4, cu->stream), err);
    if (st == SL_OK)
        st = SL_CU(cudaFuncSetAttribute(resolve_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        (int)(sizeof(resolve_shared) + (fused ? staged : 0))),
                   err);
    if (st == SL_OK)
        st = SL_CU(
            cudaFuncSetAttribute(merge_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MERGE_MAX * 4),
            err);
    if (st != SL_OK)
        return st;
    resolve_kernel<<<p->seqs->n_tokens, THREADS, sizeof(resolve_shared) + (fused ? staged : 0), cu->stream>>>(
        *p, *p->seqs, seg, cu->deverr);
    if (!fused)
        merge_kernel<<<seg.n, THREADS, staged, cu->stream>>>(*p, seg, cu->deverr);
    return SL_CU_LAUNCHED(err);
}
