/*
 * Resolves logical ids to physical rows and makes the list of rows to swap in. One thread block per list, that is per
 * token, or per token and KV head; no block waits for another. The lists of a run (several tokens of one hierarchical
 * sequence) are resolved by the block of its first token, one after the other, because they share their residency.
 *
 * For a token of a resident sequence this is a table lookup. For one of a hierarchical sequence an id is a tail hit, a
 * hot hit (by the direct map from token to slot) or a miss, and every miss replaces a victim (resolve_victims.cuh). The
 * block sorts its misses by host row (resolve_misses.cuh) and writes them to a range of the list that it reserved with
 * one atomic addition; the order of tokens in the list is therefore the order of these additions.
 */
#include "kernels/cuda/any/cache/resolve_block.cuh"
#include "kernels/cuda/any/cache/resolve_misses.cuh"
#include "kernels/cuda/any/cache/resolve_victims.cuh"

/* IDS neighbouring ids of this thread; before: the list entry that precedes each of them */
struct some_ids {
    int id[IDS], before[IDS];
};

template <class C> __device__ static inline some_ids load_ids(const int32_t *ids, int base, int n)
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

/* Classifies one id. Unless it is a miss, stores its physical row and marks its entry as in use. Returns whether
 * it is a miss. */
template <class C>
__device__ static inline bool classify_id(resolve_shared<C> &s, const sl_resolve_params &p,
                                          const token_of_block &b, int i, int id, int before, uint32_t at,
                                          uint32_t *used, uint32_t *tail, uint32_t *deverr)
{
    if (id < 0) {
        if (i < p.ld_ids)
            b.phys[i] = -1;
    } else if (id > b.pos || before >= id) {
        atomicOr(deverr, SL_DEVERR_SELECTION);
        b.phys[i] = -1;
    } else if (id >= b.in_tail) {
        b.phys[i] = C::divided ? b.slot0 + sl_tail_row(p.rows, b.rows, id, b.head)
                               : b.hot0 + p.rows.hot_rows + id % p.rows.tail_rows;
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

/* Classifies the token's ids and lists the misses in the order of the ids; returns their number. Other threads may read
 * what it leaves in s only after the next barrier. */
template <class C>
__device__ static uint32_t classify(resolve_shared<C> &s, const sl_resolve_params &p, const token_of_block &b,
                                    some_ids v, uint32_t *deverr)
{
    uint32_t misses = 0, sums = 0;

    for (int base = 0; base < p.ld_ids; base += IDS * C::threads, sums ^= 1) {
        uint32_t at[IDS], used = 0, tail = 0, mine = 0, total;
        int page[IDS];
        bool miss[IDS];
        if (base > 0)
            v = load_ids<C>(b.ids, base, p.ld_ids);
#pragma unroll
        for (int j = 0; j < IDS; j++) {
            bool look = v.id[j] >= 0 && v.id[j] < b.in_tail;
            at[j] = look ? b.h.slot_of[v.id[j]] : 0;
            page[j] = look ? b.pages[page_of<C>(b, v.id[j])] : 0;
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
        uint32_t m = misses + block_scan<C::threads / 32>(s.sums[sums], mine, &total);
#pragma unroll
        for (int j = 0; j < IDS; j++)
            if (miss[j] && m < C::max_k) {
                int i = base + IDS * threadIdx.x + j;
                s.miss_id[m] = v.id[j];
                s.miss_page[m] = page[j];
                s.miss_at[m++] = (uint16_t)i;
                if (p.block_need)
                    atomicAdd(&s.need[min(i, C::max_k - 1) / SL_PAGE_TOKENS], 1);
            }
        misses += total;
    }
    return misses;
}

/* By one thread per block: reserves room in the list for the misses of a token that is not the last of its run, and
 * returns where it begins. */
__device__ static inline int reserve(unsigned long long *meet, uint32_t misses)
{
    return (int)(atomicAdd(meet, (unsigned long long)misses << 32) >> 32);
}

/* The same for the block's last token. The last block to arrive knows the total; it stores the count and clears *meet for
 * the next launch. */
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

/* What makes a run that ends at position `last` (in divided rows its block) impossible to resolve, as SL_DEVERR_* bits; 0:
 * nothing. */
__device__ static inline uint32_t check_hot(const sl_resolve_params &p, int last, uint32_t step, int n)
{
    if (n > SL_RUN_TOKENS_MAX || (n > 1 && p.block_need))
        return SL_DEVERR_MULTI_TOKEN;
    if (last >= p.hot.max_tokens)
        return SL_DEVERR_POS;
    return step == 0 || (p.policy == SL_EVICT_CLOCK && step >= REFERENCED) ? SL_DEVERR_STEP : 0;
}

/* Resolves a token of a hierarchical sequence. done: it is the last of its run, or the run ends here because of an error.
 * Returns the number of misses that it listed. */
template <class C>
__device__ static uint32_t resolve_hot(resolve_shared<C> &s, const sl_resolve_params &p,
                                       const token_of_block &b, const some_ids &first, bool last, bool *done,
                                       uint32_t *deverr)
{
    uint32_t misses = classify(s, p, b, first, deverr), n = hot_rows<C>(p, b);
    uint32_t in_use = misses + (b.several ? s.in_use : s.used);
    *done = last;
    if (in_use > n || misses > (uint32_t)min(p.k, C::max_k)) {
        *done = true;
        if (threadIdx.x == 0) {
            atomicOr(deverr, SL_DEVERR_HOT_CAPACITY);
            join(p, b.meet, 0, deverr);
        }
        return 0;
    }
    int at = threadIdx.x == 0 ? last ? join(p, b.meet, misses, deverr) : reserve(b.meet, misses) : 0;
    if (misses) {
        make_room(s, p, b, misses);
        if (threadIdx.x == 0)
            s.first = at;
        emit(s, p, b, misses, deverr);
    }
    if (threadIdx.x == 0) {
        if (p.policy == SL_EVICT_LRU)
            lru_touch<C>(p, b, n);
        /* the result is not used, so the thread does not wait for it */
        atomicAdd(&b.h.counters[0], s.used);
        atomicAdd(&b.h.counters[1], misses);
        atomicAdd(&b.h.counters[2], s.evictions);
        atomicAdd(&b.h.counters[3], s.tail_hits);
    }
    if (!last) { /* the next token of the run begins with what this one leaves in the hot state */
        __syncthreads();
        if (threadIdx.x == 0)
            s.in_use = in_use;
    }
    return misses;
}

/* Resolves a list of a resident sequence by its page table; pos: in divided rows the block of the token. */
template <class C>
__device__ static void resolve_resident(const sl_resolve_params &p, const sl_seq_tables &seqs,
                                        const sl_rows &rows, int64_t list, int head, int seq, int pos,
                                        uint32_t *deverr)
{
    const int32_t *ids = p.ids + list * p.ld_ids, *pages = seqs.row_pages + (int64_t)seq * seqs.ld;
    int32_t *phys = p.phys + list * p.ld_ids;

    for (int i = threadIdx.x; i < p.ld_ids; i += C::threads) {
        int id = ids[i], page = -1, row;
        if (id >= 0 && id <= pos)
            page = pages[C::divided ? id >> rows.page_log2 : id / SL_PAGE_TOKENS];
        if (id > pos)
            atomicOr(deverr, SL_DEVERR_SELECTION);
        else if (id >= 0 && page < 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        row =
            C::divided ? (int)sl_pool_row(rows, page, id, head) : page * SL_PAGE_TOKENS + id % SL_PAGE_TOKENS;
        phys[i] = page < 0 ? -1 : row;
    }
}

/* Clears what the block counts for one token; followed by a barrier. */
template <class C> __device__ static void clear_counts(resolve_shared<C> &s, int hot)
{
    if (threadIdx.x == 0)
        s.tail_hits = s.used = s.evictions = s.victims = s.hand = 0;
    for (int i = threadIdx.x; i < C::max_k / SL_PAGE_TOKENS; i += C::threads)
        s.need[i] = 0;
    for (int i = threadIdx.x; i < (hot + 31) / 32; i += C::threads)
        s.hit[i] = 0;
    __syncthreads();
}

/* All hot rows that the n lists of a run select are in use. Followed by a barrier. */
template <class C>
__device__ static void mark_run(resolve_shared<C> &s, const sl_resolve_params &p, const token_of_block &b,
                                int n)
{
    int64_t next = (int64_t)p.ld_ids * (C::divided ? b.rows.heads : 1);
    uint32_t fresh = 0;

    for (int i = 0; i < n; i++)
        for (int j = threadIdx.x; j < p.ld_ids; j += C::threads) {
            int id = b.ids[i * next + j];
            uint32_t at = id >= 0 && id < b.in_tail ? b.h.slot_of[id] : NO_SLOT;
            if (at != NO_SLOT)
                fresh += atomicExch(&b.h.stamp[at], b.mark) != b.mark;
        }
    fresh = sl_warp_sum(fresh);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(&s.in_use, fresh);
    __syncthreads();
}

/* Resolves the lists of a run of n tokens of a hierarchical sequence, for one head; b is that of the first one. Returns the
 * number of misses of its last token. */
template <class C>
__device__ static uint32_t resolve_run(resolve_shared<C> &s, const sl_resolve_params &p,
                                       const sl_seq_tables &seqs, token_of_block b, int t, int n,
                                       some_ids first, uint32_t *deverr)
{
    if (n > 1)
        mark_run(s, p, b, n);
    for (int i = 0;;) {
        bool done;
        uint32_t misses = resolve_hot(s, p, b, first, i + 1 == n, &done, deverr);
        if (done)
            return misses;
        int64_t next = (int64_t)p.ld_ids * (C::divided ? b.rows.heads : 1);
        i++;
        b.list += C::divided ? b.rows.heads : 1;
        b.ids += next, b.phys += next;
        b.pos = seqs.token_pos[t + i] >> (C::divided ? p.rows.block_log2 : 0);
        clear_counts(s, hot_rows<C>(p, b));
        first = load_ids<C>(b.ids, 0, p.ld_ids);
    }
}

/* Tokens of the run that begins at token t, and one more than there may be if there are more. */
__device__ static inline int run_length(const sl_seq_tables &s, int t, int seq)
{
    int n = 1;

    while (n <= SL_RUN_TOKENS_MAX && t + n < s.n_tokens && s.token_seq[t + n] == seq)
        n++;
    return n;
}

/* Resolves the block's list; returns the number of misses that it listed. */
template <class C>
__device__ static uint32_t resolve_list(resolve_shared<C> &s, const sl_resolve_params &p,
                                        const sl_seq_tables &seqs, const sl_rows &rows,
                                        unsigned long long *meet, uint32_t *deverr)
{
    int64_t list = blockIdx.x;
    int t = C::divided ? blockIdx.x / rows.heads : blockIdx.x,
        head = C::divided ? (int)blockIdx.x - t * rows.heads : 0, seq, pos,
        before = t > 0 ? seqs.token_seq[t - 1] : -1,
        after = t + 1 < seqs.n_tokens ? seqs.token_seq[t + 1] : -1;
    uint32_t step = p.step ? *p.step : 0; /* NULL without hot rows */
    some_ids first = load_ids<C>(p.ids + list * p.ld_ids, 0, p.ld_ids);
    bool real = sl_token(&seqs, t, deverr, &seq, &pos);
    int slot = real ? seqs.hot_slot[seq] : -1;

    if (C::divided)
        pos >>= p.rows.block_log2;
    if (slot >= 0 && before != seq) {
        int slot0 = p.rows.hot_base + slot * (p.rows.hot_rows + p.rows.tail_rows);
        int n = after == seq ? run_length(seqs, t, seq) : 1, last = n > 1 ? seqs.token_pos[t + n - 1] : pos;
        if (C::divided)
            last >>= n > 1 ? p.rows.block_log2 : 0;
        token_of_block b = {C::divided ? slot_state_of(p, slot * rows.heads + head, rows.hot)
                                       : slot_state_of(p, slot, p.rows.hot_rows),
                            p.ids + list * p.ld_ids,
                            seqs.host_pages + (int64_t)seq * seqs.ld,
                            p.phys + list * p.ld_ids,
                            C::divided ? slot0 + head * rows.hot : slot0,
                            pos,
                            last + 1 + p.tail_spare - (C::divided ? rows.tail : p.rows.tail_rows),
                            n > 1,
                            step,
                            step | (p.policy == SL_EVICT_CLOCK ? REFERENCED : 0),
                            (int)list,
                            meet,
                            rows,
                            head,
                            slot0};
        uint32_t bad = check_hot(p, last, step, n);
        if (!bad)
            return resolve_run(s, p, seqs, b, t, n, first, deverr);
        if (threadIdx.x == 0)
            atomicOr(deverr, bad);
    } else if (real && slot < 0) {
        resolve_resident<C>(p, seqs, rows, list, head, seq, pos, deverr);
    } else if (!real) { /* padding; the other lists of a run are resolved by the block of its first token */
        for (int i = threadIdx.x; i < p.ld_ids; i += C::threads)
            p.phys[list * p.ld_ids + i] = -1;
    }
    if (threadIdx.x == 0)
        join(p, meet, 0, deverr);
    return 0;
}

template <class C>
__global__ static void __launch_bounds__(C::threads)
    resolve_kernel(sl_resolve_params p, sl_seq_tables seqs, sl_rows rows, unsigned long long *meet,
                   uint32_t *deverr)
{
    extern __shared__ __align__(8) uint8_t smem[];
    resolve_shared<C> &s = *(resolve_shared<C> *)smem;
    int hot = C::divided ? rows.hot : p.rows.hot_rows;

    if (threadIdx.x == 0)
        s.in_use = 0;
    clear_counts(s, hot);
    sl_after_previous();
    sl_let_next_start();
    uint32_t misses = resolve_list(s, p, seqs, rows, meet, deverr);
    for (int i = threadIdx.x; p.block_need && i < p.ld_blocks; i += C::threads) {
        int64_t at = (int64_t)blockIdx.x * p.ld_blocks + i;
        p.block_need[at] = misses && i < C::max_k / SL_PAGE_TOKENS ? s.need[i] : 0;
        p.block_done[at] = 0;
    }
    if (p.clock && blockIdx.x == 0 && threadIdx.x == 0) {
        p.clock->asked = sl_clock_ns();
        p.clock->begun = ~0ull;
        p.clock->left = 0;
    }
}

template <class C> static sl_status launch(sl_cuda *cu, const sl_resolve_params *p, sl_err *err)
{
    sl_rows rows = sl_rows_of(&p->rows);
    size_t smem = sizeof(resolve_shared<C>);

    return SL_LAUNCH(
        cu, resolve_kernel<C>,
        (sl_launch{dim3(sl_blocks((int64_t)p->seqs->n_tokens * rows.heads)), C::threads, smem, true}), err,
        *p, *p->seqs, rows, (unsigned long long *)(cu->words + SL_CUDA_MEET), cu->deverr);
}

/* A list has at most as many misses as hot rows. */
static sl_status supports_resolve(sl_backend *be, const void *params, sl_err *err)
{
    const sl_resolve_params *p = (const sl_resolve_params *)params;
    int hot = p->rows.hot_rows / sl_row_lists(&p->rows);

    (void)be;
    if (p->k > whole_rows::max_k && hot > whole_rows::max_k)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: resolve: lists of %d rows in %d hot rows: more than %d rows of a list could be missing",
            p->k, hot, whole_rows::max_k);
    return SL_OK;
}

/* A list of more than max_k ids can be resolved, but has at most max_k misses: a step may hold a long list of a resident
 * sequence together with short ones of hierarchical sequences. */
static sl_status run_resolve(sl_backend *be, const void *params, sl_err *err)
{
    const sl_resolve_params *p = (const sl_resolve_params *)params;
    sl_cuda *cu = sl_cuda_of(be);

    if (p->seqs->n_tokens == 0)
        return SL_CU(cudaMemsetAsync(p->miss_count, 0, sizeof *p->miss_count, cu->stream), err);
    if (sl_row_lists(&p->rows) == 1 && p->rows.block_log2 == 0)
        return launch<whole_rows>(cu, p, err);
    return p->k <= divided_rows_short::max_k ? launch<divided_rows_short>(cu, p, err)
                                             : launch<divided_rows>(cu, p, err);
}

const sl_op_impl sl_cuda_resolve = {.run = run_resolve, .supports = supports_resolve};
