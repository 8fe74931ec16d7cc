/*
 * Logical ids to physical rows, and the list of rows to swap in. One block a token, none of which waits for
 * another.
 *
 * Resident tokens: a table lookup. Hierarchical ones: tail hit, hot hit (direct map token -> slot) or miss;
 * victims by CLOCK: all at once where the buffer has at most a few entries a thread, else in chunks of a
 * block from the hand on, so that the cost follows misses and not the buffer's size; LRU walks its list with
 * one thread and is here for comparison. Each block sorts its own misses by host row, unless its pages ascend
 * anyway, and puts them where one addition has made room in the list: the order of tokens in it is that of
 * their additions.
 */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/select.cuh"

#define THREADS 1024
#define MAX_K 4096
#define NO_SLOT 0xffffu
#define REFERENCED 0x80000000u
#define IDS 2     /* of a list that a thread has under way */
#define ENTRIES 4 /* of a hot buffer, likewise */

struct resolve_shared {
    int32_t miss_id[MAX_K];   /* token of the m-th miss */
    int32_t miss_page[MAX_K]; /* its host page */
    uint16_t miss_at[MAX_K];  /* its place in ids */
    uint16_t victim[MAX_K];   /* LRU index it takes */
    uint64_t key[MAX_K];      /* host row << 16 | m, for the sort */
    uint32_t hit[65536 / 32]; /* a bit for each LRU index in use */
    uint32_t sums[3][32];
    uint32_t tail_hits, used, evictions, victims;
    int hand, stop, first; /* first: where the block's misses begin in the list */
    int32_t need[MAX_K / SL_PAGE_TOKENS];
};

/* Of this block's token. */
struct slot_state { /* one hot slot's part of sl_hot_state */
    uint16_t *slot_of, *prev, *next;
    int32_t *token_of, *cursor;
    uint32_t *stamp, *counters;
};

struct token_of_block {
    slot_state h;
    const int32_t *ids, *pages; /* its list, its host pages */
    int32_t *phys, hot0;
    int pos;
    uint32_t step, mark;      /* mark: the stamp of an entry in use */
    unsigned long long *meet; /* blocks that have added their misses | misses << 32; 0 before and after the
                                 kernel */
};

/* Exclusive prefix of v over the block; *total gets the sum. One barrier; sums: 32 words that nobody uses
 * before the next one. */
__device__ static uint32_t block_scan(uint32_t *sums, uint32_t v, uint32_t *total)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, inc = v;

    for (int o = 1; o < 32; o <<= 1) {
        uint32_t n = __shfl_up_sync(0xffffffffu, inc, o);
        if (lane >= o)
            inc += n;
    }
    if (lane == 31)
        sums[warp] = inc;
    __syncthreads();
    uint32_t w = sums[lane], all = w;
    for (int o = 1; o < 32; o <<= 1) {
        uint32_t n = __shfl_up_sync(0xffffffffu, all, o);
        if (lane >= o)
            all += n;
    }
    *total = __shfl_sync(0xffffffffu, all, 31);
    return __shfl_sync(0xffffffffu, all - w, warp) + inc - v;
}

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

struct some_ids { /* IDS neighbours of this thread; before: the list's entry in front of each */
    int id[IDS], before[IDS];
};

__device__ static inline some_ids load_ids(const int32_t *ids, int base, int n)
{
    some_ids v;

#pragma unroll
    for (int j = 0; j < IDS; j++) {
        int i = base + IDS * threadIdx.x + j;
        v.id[j] = i < n ? ids[i] : -1;
        v.before[j] = i > 0 && i < n ? ids[i - 1] : -1;
    }
    return v;
}

/* One id: phys unless it misses, and its entry is marked in use. Returns whether it misses. */
__device__ static inline bool classify_id(resolve_shared &s, const sl_resolve_params &p,
                                          const token_of_block &b, int i, int id, int before, uint32_t at,
                                          uint32_t *used, uint32_t *tail, uint32_t *deverr)
{
    if (id < 0) {
        if (i < p.ld_ids)
            b.phys[i] = -1;
    } else if (id > b.pos || before >= id) {
        atomicOr(deverr, SL_DEVERR_SELECTION);
        b.phys[i] = -1;
    } else if (id > b.pos - p.rows.tail_rows) {
        b.phys[i] = b.hot0 + p.rows.hot_rows + id % p.rows.tail_rows;
        ++*tail;
    } else if (at != NO_SLOT) {
        b.h.stamp[at] = b.mark;
        b.phys[i] = b.hot0 + (int)at;
        atomicOr(&s.hit[at >> 5], 1u << (at & 31));
        ++*used;
    } else {
        return true;
    }
    return false;
}

/* Classifies ids and lists the misses in order; how many there are. What it leaves in s is for behind the
 * next barrier. */
__device__ static uint32_t classify(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                                    some_ids v, uint32_t *deverr)
{
    uint32_t misses = 0, sums = 0;

    for (int base = 0; base < p.ld_ids; base += IDS * THREADS, sums ^= 1) {
        uint32_t at[IDS], used = 0, tail = 0, mine = 0, total;
        int page[IDS];
        bool miss[IDS];
        if (base > 0)
            v = load_ids(b.ids, base, p.ld_ids);
#pragma unroll
        for (int j = 0; j < IDS; j++) {
            bool look = v.id[j] >= 0 && v.id[j] <= b.pos - p.rows.tail_rows;
            at[j] = look ? b.h.slot_of[v.id[j]] : 0;
            page[j] = look ? b.pages[v.id[j] / SL_PAGE_TOKENS] : 0;
        }
#pragma unroll
        for (int j = 0; j < IDS; j++) {
            miss[j] = classify_id(s, p, b, base + IDS * threadIdx.x + j, v.id[j], v.before[j], at[j], &used,
                                  &tail, deverr);
            mine += miss[j];
        }
        used = sl_warp_sum(used);
        tail = sl_warp_sum(tail);
        if ((threadIdx.x & 31) == 0) {
            atomicAdd(&s.used, used);
            atomicAdd(&s.tail_hits, tail);
        }
        uint32_t m = misses + block_scan(s.sums[sums], mine, &total);
#pragma unroll
        for (int j = 0; j < IDS; j++)
            if (miss[j] && m < MAX_K) {
                int i = base + IDS * threadIdx.x + j;
                s.miss_id[m] = v.id[j];
                s.miss_page[m] = page[j];
                s.miss_at[m++] = (uint16_t)i;
                if (p.block_need)
                    atomicAdd(&s.need[min(i, MAX_K - 1) / SL_PAGE_TOKENS], 1);
            }
        misses += total;
    }
    return misses;
}

/* Gives the m-th miss the entry at, whose token was old. */
__device__ static inline void place(resolve_shared &s, const token_of_block &b, uint32_t m, int at, int old)
{
    int id = s.miss_id[m];

    if (old >= 0) {
        b.h.slot_of[old] = NO_SLOT;
        atomicAdd(&s.evictions, 1u);
    }
    b.h.token_of[at] = id;
    b.h.slot_of[id] = (uint16_t)at;
    b.h.stamp[at] = b.mark;
    b.phys[s.miss_at[m]] = b.hot0 + at;
    s.victim[m] = (uint16_t)at;
}

/*
 * CLOCK where a thread has only ENTRIES entries, neighbours in hand order: victims are the entries not in use
 * without the bit, then those with it. Entries that were passed lose the bit. Contains a barrier between the
 * misses' list and its use.
 */
__device__ static void clock_at_once(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                                     uint32_t misses)
{
    int n = p.rows.hot_rows, hand = *b.h.cursor, at[ENTRIES], old[ENTRIES];
    uint32_t st[ENTRIES], mine = 0, all;

#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        int i = ENTRIES * threadIdx.x + j;
        at[j] = i < n ? hand + i - (hand + i >= n ? n : 0) : -1;
        st[j] = i < n ? b.h.stamp[at[j]] : 0;
        old[j] = i < n ? b.h.token_of[at[j]] : -1;
    }
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        bool in = at[j] >= 0 && !(s.hit[at[j] >> 5] >> (at[j] & 31) & 1) && (st[j] & ~REFERENCED) != b.step;
        at[j] = in ? at[j] : -1;
        mine += in ? st[j] & REFERENCED ? 1u << 16 : 1 : 0;
    }
    uint32_t before = block_scan(s.sums[2], mine, &all), plain = before & 0xffff, marked = before >> 16;
    bool twice = (all & 0xffff) < misses; /* the hand comes round again */
    int last = -1;
#pragma unroll
    for (int j = 0; j < ENTRIES; j++) {
        if (at[j] < 0)
            continue;
        bool bit = (st[j] & REFERENCED) != 0;
        uint32_t m = bit ? twice ? (all & 0xffff) + marked++ : ~0u : plain++;
        if (m < misses) {
            place(s, b, m, at[j], old[j]);
            if (m + 1 == misses) {
                last = ENTRIES * (int)threadIdx.x + j;
                *b.h.cursor = at[j] + 1 == n ? 0 : at[j] + 1;
            }
        } else if (bit && twice) {
            b.h.stamp[at[j]] = st[j] & ~REFERENCED;
        }
    }
    if (twice)
        return;
    if (last >= 0)
        s.stop = last;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ENTRIES; j++)
        if (at[j] >= 0 && (st[j] & REFERENCED) && ENTRIES * (int)threadIdx.x + j < s.stop)
            b.h.stamp[at[j]] = st[j] & ~REFERENCED;
}

/* CLOCK, within two turns: entries in use are passed, referenced ones lose the bit, the others are victims in
 * hand order. */
__device__ static void clock_by_chunks(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                                       uint32_t misses)
{
    int n = p.rows.hot_rows, hand = *b.h.cursor;

    __syncthreads();
    for (int done = 0, chunk; done < 2 * n && s.victims < misses; done += chunk) {
        uint32_t found = s.victims, need = misses - found;
        int at = (hand + done + threadIdx.x) % n;
        chunk = min(THREADS, n - done % n); /* a turn ends at a chunk's end: no entry twice in one chunk */
        bool in = (int)threadIdx.x < chunk;
        uint32_t st = in ? b.h.stamp[at] : 0;
        bool used = (st & ~REFERENCED) == b.step, cand = in && !used && !(st & REFERENCED);
        uint32_t total, rank = block_scan(s.sums[2], cand, &total);
        bool last = cand && rank + 1 == need;
        if (cand && rank < need) {
            s.victim[found + rank] = (uint16_t)at;
            b.h.stamp[at] = b.mark; /* in use from here on: the second turn passes it */
        }
        if (threadIdx.x == 0)
            s.stop = THREADS;
        __syncthreads();
        if (last)
            s.stop = threadIdx.x;
        __syncthreads();
        if (in && !used && (st & REFERENCED) && (int)threadIdx.x < s.stop)
            b.h.stamp[at] = st & ~REFERENCED;
        if (threadIdx.x == 0) {
            s.victims = found + min(total, need);
            if (s.stop < THREADS)
                s.hand = (hand + done + s.stop + 1) % n;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *b.h.cursor = s.hand; /* behind the last victim */
}

/* LRU by its list, one thread: victims from the least recent end, then everything in use to the most recent
 * end in token order. */
__device__ static void lru_victims(resolve_shared &s, const token_of_block &b, int head, uint32_t misses)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        int at = b.h.next[head];
        while (s.victims < misses && at != head) {
            if (b.h.stamp[at] != b.step)
                s.victim[s.victims++] = (uint16_t)at;
            at = b.h.next[at];
        }
    }
    __syncthreads();
}

__device__ static void lru_touch(const sl_resolve_params &p, const token_of_block &b, int head)
{
    for (int i = 0; i < p.ld_ids && b.phys[i] >= 0; i++) {
        int at = b.phys[i] - b.hot0;
        if (at >= p.rows.hot_rows)
            continue;
        b.h.next[b.h.prev[at]] = b.h.next[at];
        b.h.prev[b.h.next[at]] = b.h.prev[at];
        int last = b.h.prev[head];
        b.h.prev[at] = (uint16_t)last;
        b.h.next[at] = (uint16_t)head;
        b.h.next[last] = (uint16_t)at;
        b.h.prev[head] = (uint16_t)at;
    }
}

/* Victims for all misses, and the maps that follow. */
__device__ static void make_room(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                                 uint32_t misses)
{
    if (p.policy == SL_EVICT_CLOCK && p.rows.hot_rows <= ENTRIES * THREADS) {
        clock_at_once(s, p, b, misses);
        return;
    }
    if (p.policy == SL_EVICT_CLOCK)
        clock_by_chunks(s, p, b, misses);
    else
        lru_victims(s, b, p.rows.hot_rows, misses);
    for (uint32_t m = threadIdx.x; m < misses; m += THREADS)
        place(s, b, m, s.victim[m], b.h.token_of[s.victim[m]]);
}

/* Each key's place is the number of smaller ones; all threads count. Keys differ. */
__device__ static void sort_few(resolve_shared &s, uint32_t n)
{
    uint64_t *sorted = s.key + THREADS;
    uint32_t *rank = (uint32_t *)(s.key + 2 * THREADS), per = THREADS / n, slice = threadIdx.x / n,
             i = threadIdx.x % n, count = 0;

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

/* Host row of the m-th miss. */
__device__ static inline int64_t host_row(const resolve_shared &s, uint32_t m)
{
    return (int64_t)max(s.miss_page[m], 0) * SL_PAGE_TOKENS + s.miss_id[m] % SL_PAGE_TOKENS;
}

/* Sorts the keys of all misses. */
__device__ static void sort_misses(resolve_shared &s, uint32_t misses)
{
    uint32_t n = 1;

    while (n < misses)
        n <<= 1;
    for (uint32_t m = threadIdx.x; m < n; m += THREADS)
        s.key[m] = m < misses ? (uint64_t)host_row(s, m) << 16 | m : ~0ull;
    __syncthreads();
    if (misses <= THREADS)
        sort_few(s, misses);
    else
        sort_many(s, n);
}

/* Writes the block's misses from s.first of the list on. */
__device__ static void emit(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                            uint32_t misses, uint32_t *deverr)
{
    bool ascending = true;

    for (uint32_t m = threadIdx.x; m < misses; m += THREADS) {
        if (s.miss_page[m] < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        ascending &= m == 0 || host_row(s, m) > host_row(s, m - 1);
    }
    ascending = __syncthreads_and(ascending);
    if (!ascending)
        sort_misses(s, misses);
    for (uint32_t i = threadIdx.x; i < misses; i += THREADS) {
        uint32_t m = ascending ? i : (uint32_t)(s.key[i] & 0xffff);
        int64_t to = (int64_t)s.first + i;
        if (to >= p.miss_cap)
            continue;
        p.miss_src[to] = host_row(s, m);
        p.miss_dst[to] = b.hot0 + s.victim[m];
        if (p.miss_block)
            p.miss_block[to] = blockIdx.x * p.ld_blocks + s.miss_at[m] / SL_PAGE_TOKENS;
    }
}

/* One thread: makes room in the list. Whoever comes last knows the count, and clears. */
__device__ static inline int join(const sl_resolve_params &p, unsigned long long *meet, uint32_t misses,
                                  uint32_t *deverr)
{
    unsigned long long before = atomicAdd(meet, 1 + ((unsigned long long)misses << 32));
    int total = (int)(before >> 32) + (int)misses;

    if ((uint32_t)before + 1 == gridDim.x) {
        *p.miss_count = min(total, p.miss_cap);
        if (total > p.miss_cap)
            atomicOr(deverr, SL_DEVERR_MISS_CAPACITY);
        *meet = 0;
    }
    return total - (int)misses;
}

/* What of this token cannot be: SL_DEVERR_*. */
__device__ static inline uint32_t check_hot(const sl_resolve_params &p, const token_of_block &b, int seq,
                                            int before, int after)
{
    /* Blocks of the same sequence would race for its hot state: all of them leave it alone. */
    if (before == seq || after == seq)
        return SL_DEVERR_MULTI_TOKEN;
    if (b.pos >= p.hot.max_tokens)
        return SL_DEVERR_POS;
    return b.step == 0 || (p.policy == SL_EVICT_CLOCK && b.step >= REFERENCED) ? SL_DEVERR_STEP : 0;
}

/* Returns the misses listed. */
__device__ static uint32_t resolve_hot(resolve_shared &s, const sl_resolve_params &p, const token_of_block &b,
                                       const some_ids &first, uint32_t *deverr)
{
    uint32_t misses = classify(s, p, b, first, deverr), n = p.rows.hot_rows;

    if (misses + s.used > n || misses > (uint32_t)min(p.k, MAX_K)) {
        if (threadIdx.x == 0) {
            atomicOr(deverr, SL_DEVERR_HOT_CAPACITY);
            join(p, b.meet, 0, deverr);
        }
        return 0;
    }
    int at = threadIdx.x == 0 ? join(p, b.meet, misses, deverr) : 0;
    if (misses) {
        make_room(s, p, b, misses);
        if (threadIdx.x == 0)
            s.first = at;
        emit(s, p, b, misses, deverr);
    }
    if (threadIdx.x == 0) {
        if (p.policy == SL_EVICT_LRU)
            lru_touch(p, b, n);
        atomicAdd(&b.h.counters[0], s.used); /* nobody waits for these */
        atomicAdd(&b.h.counters[1], misses);
        atomicAdd(&b.h.counters[2], s.evictions);
        atomicAdd(&b.h.counters[3], s.tail_hits);
    }
    return misses;
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

/* The token of this block; the misses listed for it. */
__device__ static uint32_t resolve_token(resolve_shared &s, const sl_resolve_params &p,
                                         const sl_seq_tables &seqs, unsigned long long *meet,
                                         uint32_t *deverr)
{
    int t = blockIdx.x, seq, pos, before = t > 0 ? seqs.token_seq[t - 1] : -1,
        after = t + 1 < seqs.n_tokens ? seqs.token_seq[t + 1] : -1;
    uint32_t step = p.step ? *p.step : 0; /* NULL without hot rows */
    some_ids first = load_ids(p.ids + (int64_t)t * p.ld_ids, 0, p.ld_ids);
    bool real = sl_token(&seqs, t, deverr, &seq, &pos);
    int slot = real ? seqs.hot_slot[seq] : -1;

    if (slot >= 0) {
        token_of_block b = {slot_state_of(p, slot),
                            p.ids + (int64_t)t * p.ld_ids,
                            seqs.host_pages + (int64_t)seq * seqs.ld,
                            p.phys + (int64_t)t * p.ld_ids,
                            p.rows.hot_base + slot * (p.rows.hot_rows + p.rows.tail_rows),
                            pos,
                            step,
                            step | (p.policy == SL_EVICT_CLOCK ? REFERENCED : 0),
                            meet};
        uint32_t bad = check_hot(p, b, seq, before, after);
        if (!bad)
            return resolve_hot(s, p, b, first, deverr);
        if (threadIdx.x == 0)
            atomicOr(deverr, bad);
    } else if (real) {
        resolve_resident(p, seqs, t, seq, pos, deverr);
    } else { /* padding */
        for (int i = threadIdx.x; i < p.ld_ids; i += THREADS)
            p.phys[(int64_t)t * p.ld_ids + i] = -1;
    }
    if (threadIdx.x == 0)
        join(p, meet, 0, deverr);
    return 0;
}

__global__ static void __launch_bounds__(THREADS)
    resolve_kernel(sl_resolve_params p, sl_seq_tables seqs, unsigned long long *meet, uint32_t *deverr)
{
    extern __shared__ __align__(8) uint8_t smem[];
    resolve_shared &s = *(resolve_shared *)smem;

    if (threadIdx.x == 0)
        s.tail_hits = s.used = s.evictions = s.victims = s.hand = 0;
    for (int i = threadIdx.x; i < MAX_K / SL_PAGE_TOKENS; i += THREADS)
        s.need[i] = 0;
    for (int i = threadIdx.x; i < (p.rows.hot_rows + 31) / 32; i += THREADS)
        s.hit[i] = 0;
    __syncthreads();
    sl_after_previous();
    sl_let_next_start();
    uint32_t misses = resolve_token(s, p, seqs, meet, deverr);
    for (int i = threadIdx.x; p.block_need && i < p.ld_blocks; i += THREADS) {
        int64_t at = (int64_t)blockIdx.x * p.ld_blocks + i;
        p.block_need[at] = misses && i < MAX_K / SL_PAGE_TOKENS ? s.need[i] : 0;
        p.block_done[at] = 0;
    }
    if (p.clock && blockIdx.x == 0 && threadIdx.x == 0) {
        p.clock->asked = sl_clock_ns();
        p.clock->begun = ~0ull;
        p.clock->left = 0;
    }
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
    size_t smem = sizeof(resolve_shared);
    sl_status st;

    if (p->k > MAX_K)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: resolve: k %d exceeds %d", p->k, MAX_K);
    if (p->seqs->n_tokens == 0)
        return SL_CU(cudaMemsetAsync(p->miss_count, 0, sizeof *p->miss_count, cu->stream), err);
    st = SL_CU(cudaFuncSetAttribute(resolve_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
               err);
    if (st != SL_OK)
        return st;
    return sl_cuda_launch_early(cu, resolve_kernel, dim3(p->seqs->n_tokens), THREADS, smem, err, *p, *p->seqs,
                                (unsigned long long *)(cu->deverr + SL_CUDA_MEET), cu->deverr);
}
