/*
 * Index scores on Hopper's fp8 tensor cores: official convention, dim 128, 32 or 64 heads.
 *
 * Consecutive tokens of one sequence are processed in groups of up to four, which share the reads of the keys. The
 * work of all groups, page by page, is one list. It is cut into equal parts, one for each persistent block; the
 * lengths are read on the device. In a block one warp copies pages to a ring in shared memory by bulk copies, up
 * to 12 pages ahead. Four warpgroups take the pages in turn. A warpgroup loads the keys of its page to registers
 * once. For each token of the group it then multiplies 64 keys by the heads on the tensor cores, applies relu and
 * the head weights in the lanes, and adds up over four lanes. The bits of a score depend neither on its group nor
 * on the block that computes it.
 *
 * Measured limits (docs/bench/notes-select.md): for one token per sequence, fetching the keys (256.5 of 290 us for 64
 * rows of 128K); for several tokens, the instructions of the lanes. The kernel also writes the maximum of every eight
 * scores, the hint for top-k.
 */
#include "kernels/cuda/any/select/select.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

#define DIM 128
#define CONSUMERS 4
#define THREADS (CONSUMERS * 128 + 32)
#define PAGE_BYTES (SL_PAGE_TOKENS * (DIM + 4)) /* keys, then scales */
#define SLICE 256                               /* tokens whose work is one list */
#define BAR_QUERIES 1 /* named barrier of all consumers, around the loads of queries */
#define MAX_GROUP 4

template <int NT, int G> struct scores_shape {
    static const int heads = 8 * NT, tile = heads * DIM, stages = 12,
                     smem = G * tile + stages * PAGE_BYTES + 1024;
};

struct scores_shared {
    float weight[MAX_GROUP * 64];
    uint64_t full[12], empty[12];
    /* end[t + 1]: where the work of the group that begins with token t ends in the list. */
    int32_t seq[SLICE], pos[SLICE], end[SLICE + 1];
    int32_t warps[SLICE / 32], last; /* last: no token after it has work */
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* sl_mbar_wait() with its loop in C++. With sl_mbar_wait() itself, whose loop is inside the inline PTX, the machine
 * code of the six kernels of this file was 26 to 44 % larger. */
__device__ static inline void wait_stage(uint64_t *b, uint32_t parity)
{
    while (!sl_mbar_try_wait(sl_smem_addr(b), parity))
        ;
}

/* Starts the copy of a page; a phase of `full` ends when the page has arrived. */
__device__ static inline void fetch_page(uint8_t *to, const uint8_t *from, uint64_t *full, uint64_t policy)
{
    sl_mbar_expect(sl_smem_addr(full), PAGE_BYTES);
    sl_copy_bulk(sl_smem_addr(to), from, PAGE_BYTES, sl_smem_addr(full), policy);
}

/* Makes the list of work: reads the slice's tokens and stores where each group's part ends. Whole block. */
__device__ static void make_list(scores_shared &s, const sl_index_scores_params &p, const sl_seq_tables &q,
                                 int first, int n, int window, uint32_t *deverr)
{
    int i = threadIdx.x, lane = i & 31, pages = 0;
    bool few = n <= 32 && window == 1; /* one warp is enough */

    if (i < (few ? 32 : SLICE)) {
        int seq = i < n ? q.token_seq[first + i] : -1, pos = i < n ? q.token_pos[first + i] : -1;
        if (seq >= 0) {
            uint32_t bad =
                (seq >= q.n_seqs ? SL_DEVERR_SEQ : 0) |
                (pos < 0 || pos >= (int64_t)q.ld * SL_PAGE_TOKENS || pos >= p.ld_scores ? SL_DEVERR_POS : 0);
            if (bad) {
                atomicOr(deverr, bad);
                seq = -1;
            }
        }
        s.seq[i] = seq;
        s.pos[i] = seq < 0 ? -1 : pos;
        pages = few && seq >= 0 ? pos / SL_PAGE_TOKENS + 1 : 0;
    }
    if (i == 0) {
        s.end[0] = 0;
        s.last = few ? 31 : SLICE - 1;
    }
    if (few) {
        if (i < 32)
            s.end[i + 1] = sl_warp_prefix(pages);
        __syncthreads();
        return;
    }
    __syncthreads();
    if (i < SLICE) {
        if (s.seq[i] >= 0 && (i % window == 0 || s.seq[i] != s.seq[i - 1])) {
            int most = s.pos[i];
            for (int j = i + 1; j % window && j < n && s.seq[j] == s.seq[i]; j++)
                most = max(most, s.pos[j]);
            pages = most / SL_PAGE_TOKENS + 1;
        }
        pages = sl_warp_prefix(pages);
        if (lane == 31)
            s.warps[i / 32] = pages;
    }
    __syncthreads();
    if (i < SLICE) {
        for (int w = 0; w < i / 32; w++)
            pages += s.warps[w];
        s.end[i + 1] = pages;
    }
    __syncthreads();
}

/* The first token of the group to which unit u belongs. */
__device__ static inline int group_of(const scores_shared &s, int u)
{
    int lo = 0, hi = s.last;

    while (lo < hi) { /* smallest t with end[t + 1] > u */
        int mid = (lo + hi) / 2;
        if (s.end[mid + 1] > u)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

struct scores_part { /* units first to end - 1 */
    int first, end;
};

/* This block's part of the list. With a single token (S) a block has every gridDim.x-th page, counted from 0. Which
 * pages these are does not depend on the length, so their numbers are loaded before the length is known. */
template <bool S> __device__ static inline scores_part my_part(int total)
{
    int b = blockIdx.x, all = gridDim.x;

    if (S)
        return {0, (total - b + all - 1) / all};
    return {(int)((int64_t)total * b / all), (int)((int64_t)total * (b + 1) / all)};
}

template <bool S> __device__ static inline int page_of(int u, int begin)
{
    return S ? (int)blockIdx.x + u * (int)gridDim.x : u - begin;
}

/* The page of unit u; -1 after the end of the part, or when the page is missing. *g is the group of an earlier unit
 * and is moved to the group of u. */
template <bool S>
__device__ static inline int32_t page_at(const scores_shared &s, const sl_seq_tables &q, scores_part part,
                                         int u, int *g, int32_t guess, uint32_t *deverr)
{
    if (u >= part.end)
        return -1;
    while (!S && s.end[*g + 1] <= u)
        ++*g;
    int32_t id = S && u < 32 ? guess : q.index_pages[(int64_t)s.seq[*g] * q.ld + page_of<S>(u, s.end[*g])];
    if (id < 0)
        atomicOr(deverr, SL_DEVERR_PAGE);
    return id;
}

/* One warp: copies the pages of the part to the ring. guess (S): the number of the lane's first page. */
template <bool S>
__device__ static void produce(scores_shared &s, const sl_index_scores_params &p, const sl_seq_tables &q,
                               scores_part part, int stages, uint8_t *ring, bool once, int32_t guess,
                               uint32_t *deverr)
{
    int lane = threadIdx.x & 31, stage = 0, g = !S && part.first < part.end ? group_of(s, part.first) : 0;
    uint32_t parity = 1;
    uint64_t policy = once ? sl_policy_evict_first() : sl_policy_evict_normal();
    int32_t next = page_at<S>(s, q, part, part.first + lane, &g, guess, deverr);
    for (int u0 = part.first; u0 < part.end; u0 += 32) {
        int32_t now = next;
        next = page_at<S>(s, q, part, u0 + 32 + lane, &g, guess, deverr);
        for (int l = 0; l < 32 && u0 + l < part.end; l++) {
            int32_t page = __shfl_sync(0xffffffffu, now, l);
            if (lane == 0) {
                wait_stage(&s.empty[stage], parity);
                if (page >= 0)
                    fetch_page(ring + stage * PAGE_BYTES, p.index_base + page * p.index_page_stride,
                               &s.full[stage], policy);
                else
                    sl_mbar_arrive(&s.full[stage]); /* undefined scores; the error is recorded */
            }
            if (++stage == stages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

/* Copies the queries and weights of the group's tokens to shared memory, in the order of k in which lanes hold keys:
 * in each half of a head, word m of lane t becomes word 4 m + t. All consumers call it. */
template <int NT, int G>
__device__ static void load_queries(scores_shared &s, const sl_index_scores_params &p, int token, int count,
                                    uint8_t *tiles)
{
    const int chunks = 8 * NT * DIM / 16, all = CONSUMERS * 128;
    uint4 v[G];
    float w = 0;

#pragma unroll
    for (int g = 0; g < G; g++)
        if (g < count && threadIdx.x < chunks)
            v[g] = ((const uint4 *)p.q)[((int64_t)token + g) * chunks + threadIdx.x];
    if (threadIdx.x < count * 8 * NT)
        w = p.weights[(int64_t)token * 8 * NT + threadIdx.x];
    sl_bar_sync(BAR_QUERIES, all); /* all consumers have finished the previous group */
    if (threadIdx.x < count * 8 * NT)
        s.weight[threadIdx.x] = w;
    int r = threadIdx.x / 8, c = threadIdx.x % 8;
#pragma unroll
    for (int g = 0; g < G; g++)
        if (g < count && threadIdx.x < chunks) {
            const uint32_t x[4] = {v[g].x, v[g].y, v[g].z, v[g].w};
#pragma unroll
            for (int j = 0; j < 4; j++)
                *(uint32_t *)(tiles + g * chunks * 16 + sl_swizzle(r, c / 4 * 4 + j) + c % 4 * 4) = x[j];
        }
    sl_fence_async();
    sl_bar_sync(BAR_QUERIES, all);
}

struct page_keys { /* keys of two rows, and the scale of the row whose score this lane writes */
    uint32_t lo[8], hi[8];
    float scale;
};

__device__ static inline void swap_if(bool swap, uint4 &a, uint4 &b)
{
    uint4 c = swap ? b : a;

    b = swap ? a : b;
    a = c;
}

/* Lane q of four reads 16 bytes, from byte 16 q on, of both halves of its row and of the row 8 further on. In odd rows
 * the two halves are read in the opposite order, so that the lanes use different banks of shared memory. */
__device__ static inline void read_keys(page_keys &k, const uint8_t *page, int row, int at)
{
    int lane = threadIdx.x & 31, odd = row & 1;
    const uint8_t *a = page + row * DIM + (lane & 3) * 16 + odd * 64,
                  *b = page + row * DIM + (lane & 3) * 16 + (64 - odd * 64);
    uint4 v0 = *(const uint4 *)a, v1 = *(const uint4 *)b, v2 = *(const uint4 *)(a + 8 * DIM),
          v3 = *(const uint4 *)(b + 8 * DIM);

    k.scale = ((const float *)(page + SL_PAGE_TOKENS * DIM))[at];
    swap_if(odd, v0, v1);
    swap_if(odd, v2, v3);
    k.lo[0] = v0.x, k.lo[1] = v0.y, k.lo[2] = v0.z, k.lo[3] = v0.w;
    k.lo[4] = v1.x, k.lo[5] = v1.y, k.lo[6] = v1.z, k.lo[7] = v1.w;
    k.hi[0] = v2.x, k.hi[1] = v2.y, k.hi[2] = v2.z, k.hi[3] = v2.w;
    k.hi[4] = v3.x, k.hi[5] = v3.y, k.hi[6] = v3.z, k.hi[7] = v3.w;
}

/* The score of one page and one token: in even lanes that of row r, in odd lanes that of row r + 8. */
template <int NT, typename W>
__device__ static inline float score_keys(const page_keys &k, uint64_t q, W weight)
{
    int lane = threadIdx.x & 31;
    float d[4 * NT], sum[2] = {0, 0};

    sl_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++) {
        uint32_t a[4] = {k.lo[2 * s], k.hi[2 * s], k.lo[2 * s + 1], k.hi[2 * s + 1]};
        sl_wgmma_e4m3(d, a, q + 2 * s, s > 0);
    }
    sl_wgmma_finish();
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float2 w = weight(j);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e / 2] = fmaf(fmaxf(d[4 * j + e], 0.0f), e % 2 ? w.y : w.x, sum[e / 2]);
    }
    /* (lane 0 + lane 1) + (lane 2 + lane 3); even lanes compute row r, odd lanes row r + 8 */
    bool odd = lane & 1;
    float mine = (odd ? sum[1] : sum[0]) + __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 1);
    mine += __shfl_xor_sync(0xffffffffu, mine, 2);
    return __fmul_rn(mine, k.scale);
}

/* The maximum over the lanes that hold rows of the same half; NaN is ignored. */
__device__ static inline float max_of_half(float v)
{
    for (int o = 4; o < 32; o <<= 1)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Four warpgroups: compute the scores of the part's pages. */
template <int NT, int G, bool S>
__device__ static void consume(scores_shared &s, const sl_index_scores_params &p, scores_part part,
                               int first_token, int n, int window, int stages, uint8_t *tiles,
                               const uint8_t *ring, int ld_hint)
{
    const int tile = scores_shape<NT, G>::tile;
    const float none = __uint_as_float(0x7fffffffu);
    int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3, stage = threadIdx.x >> 7;
    int row = warp * 16 + lane / 4, at = row + 8 * (lane & 1);
    int u = part.first + stage, done = part.first;
    uint64_t q = sl_desc_k(sl_smem_addr(tiles));
    uint32_t parity = 0;

    while (done < part.end) {
        int g = group_of(s, done), count = 1, end = min(part.end, s.end[g + 1]), begin = s.end[g], len[G];
        if (G > 1)
            while (count < G && (g + count) % window && g + count < n && s.seq[g + count] == s.seq[g])
                count++;
        load_queries<NT, G>(s, p, first_token + g, count, tiles);
        float2 own[G == 1 ? NT : 1];
        if (G == 1)
#pragma unroll
            for (int j = 0; j < NT; j++)
                own[G == 1 ? j : 0] = *(const float2 *)(s.weight + 8 * j + (lane & 3) * 2);
#pragma unroll
        for (int i = 0; i < G; i++)
            len[i] = i < count ? s.pos[g + i] + 1 - at : 0;
        int64_t out = first_token + g - p.token_first;
        float *scores = p.scores + out * p.ld_scores + at;
        float *hint = (float *)p.hint + out * ld_hint + warp * 2 + (lane & 1);
        for (; u < end; u += CONSUMERS) {
            int page = page_of<S>(u, begin);
            page_keys k;
            wait_stage(&s.full[stage], parity);
            read_keys(k, ring + stage * PAGE_BYTES, row, at);
            __syncwarp();
            if (lane == 0)
                sl_mbar_arrive(&s.empty[stage]);
            if ((stage += CONSUMERS) >= stages) {
                stage -= stages;
                parity ^= 1;
            }
#pragma unroll
            for (int i = 0; i < G; i++) {
                if (i >= count)
                    break;
                float v;
                if (G == 1)
                    v = score_keys<NT>(k, q, [&](int j) { return own[G == 1 ? j : 0]; });
                else
                    v = score_keys<NT>(k, q + i * (tile >> 4), [&](int j) {
                        return *(const float2 *)(s.weight + i * 8 * NT + 8 * j + (lane & 3) * 2);
                    });
                bool valid = page * SL_PAGE_TOKENS < len[i];
                if (valid && (lane & 2) == 0)
                    scores[(int64_t)i * p.ld_scores + page * SL_PAGE_TOKENS] = v;
                if (p.hint) {
                    float top = max_of_half(valid ? v : none);
                    if (lane < 2 && valid) /* lanes 0 and 1 hold the first rows of the two halves */
                        hint[(int64_t)i * ld_hint + page * (SL_PAGE_TOKENS / SL_HINT_GROUP)] = top;
                }
            }
        }
        done = end;
    }
}
#endif

template <int NT, int G, bool S>
__global__ static void __launch_bounds__(THREADS, 1)
    scores_kernel(sl_index_scores_params p, sl_seq_tables q, int window, int stages, int ld_hint,
                  uint32_t *deverr)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef scores_shape<NT, G> shape;
    extern __shared__ uint8_t dynamic[];
    __shared__ scores_shared s;
    uint8_t *tiles = dynamic + (1024 - sl_smem_addr(dynamic) % 1024) % 1024, *ring = tiles + G * shape::tile;
    int first = p.token_first + blockIdx.y * SLICE, n = min(SLICE, p.token_first + p.token_count - first);

    if (threadIdx.x < stages) {
        sl_mbar_init(&s.full[threadIdx.x], 1);
        sl_mbar_init(&s.empty[threadIdx.x], 4);
        sl_mbar_init_fence();
    }
    sl_after_previous();
    sl_let_next_start();
    int32_t guess = -1;
    if (S && threadIdx.x >= CONSUMERS * 128 && page_of<S>(threadIdx.x & 31, 0) < q.ld)
        guess = q.index_pages[page_of<S>(threadIdx.x & 31, 0)]; /* with S there is one sequence, number 0 */
    make_list(s, p, q, first, n, window, deverr);
    scores_part part = my_part<S>(s.end[n]);
    if (threadIdx.x >= CONSUMERS * 128)
        produce<S>(s, p, q, part, stages, ring, G == 1, guess, deverr);
    else
        consume<NT, G, S>(s, p, part, first, n, window, stages, tiles, ring, ld_hint);
#endif
}

template <int NT, int G, bool S>
static sl_status launch(sl_cuda *cu, const sl_index_scores_params *p, int window, sl_err *err)
{
    const int smem = scores_shape<NT, G>::smem;
    return SL_LAUNCH(cu, (scores_kernel<NT, G, S>),
                     (sl_launch{dim3(cu->sms, sl_ceil_div(p->token_count, SLICE)), THREADS, smem, true}), err,
                     *p, *p->seqs, window, (int)scores_shape<NT, G>::stages, sl_hint_ld(p->ld_scores),
                     cu->deverr);
}

/* window: the largest number of tokens per group. */
static sl_status launch_for(sl_cuda *cu, const sl_index_scores_params *p, int window, sl_err *err)
{
    bool wide = p->heads == 64;

    if (p->token_count == 1 && p->seqs->n_seqs == 1)
        return wide ? launch<8, 1, true>(cu, p, 1, err) : launch<4, 1, true>(cu, p, 1, err);
    if (window <= 1)
        return wide ? launch<8, 1, false>(cu, p, 1, err) : launch<4, 1, false>(cu, p, 1, err);
    return wide ? launch<8, MAX_GROUP, false>(cu, p, window, err)
                : launch<4, MAX_GROUP, false>(cu, p, window, err);
}

sl_status sl_cuda_scores_mma(sl_cuda *cu, const sl_index_scores_params *p, sl_err *err)
{
    /* The average number of tokens per sequence determines the size of groups; every size gives correct results. */
    int each = p->seqs->n_seqs > 0 ? sl_ceil_div(p->token_count, p->seqs->n_seqs) : 1,
        window = each > MAX_GROUP ? MAX_GROUP : each;
    /* Only long rows use the hint. For groups of several tokens, where the instructions of this kernel are the
     * limit, a separate pass writes it; the two ways were not compared on their own. */
    bool later = p->hint && window > 1 && p->token_count > SLICE / 4;
    sl_index_scores_params q = *p;

    if (later || p->ld_scores <= SL_HINT_MIN)
        q.hint = NULL;
    SL_TRY(launch_for(cu, &q, window, err));
    if (!later || p->ld_scores <= SL_HINT_MIN)
        return SL_OK;
    return sl_cuda_hint(cu, p->scores, p->seqs, p->token_first, p->token_count, p->ld_scores, SL_HINT_MIN + 1,
                        (float *)p->hint, err);
}
