/*
 * Products of queries with rows (row_dots.h), by two kernels with the same arithmetic. Which one runs is decided by the
 * numbers of tokens and sequences of the step and changes the time only.
 *
 * stream: a thread block has one token and every gridDim.x-th tile of its rows; a thread has one row of the tile. Slices
 * of rows come to shared memory by asynchronous copies, two slices ahead. For decode: every row is read once.
 *
 * resident: a thread block has one tile of rows and up to 64 tokens; the tile stays in shared memory while the queries of
 * the tokens of one sequence pass, 16 at a time. For chunks of prompts.
 *
 * Limits on an H200, 4.58 TB/s and 29.6e12 fused multiply-adds per second: with g query heads per KV head, a row of bf16
 * needs g multiply-adds per two bytes. In decode with g = 4 these take 31 % of the time of the bytes. A chunk of 2,048
 * tokens of 32 heads against 64K tokens of bounds (d 128, blocks of 16) is 69e9 multiply-adds, 2.3 ms.
 *
 * Measured (tests/bench/cold --only bounds_scores,labels_scores): 64 requests of 64K tokens take 409 us, of which the
 * bytes need 236, and with one query per KV head 294; the chunk takes 9.8 ms, a quarter of the rate. With one row and
 * all lanes per thread it was 421 us and 10.8 ms, so that shared memory is not what holds it. Not measured: the values of
 * 16 queries are written to shared memory with several integer divisions each, by as many instructions as half of the
 * products of a tile, and rows are looked up in the page table for each tile before its copies start.
 */
#include "kernels/cuda/any/select/row_dots.cuh"

#define STAGES 3
#define STREAM_BLOCKS 3 /* thread blocks of a multiprocessor */
#define SLOTS 8         /* queries of a thread in the resident kernel */
#define MAX_TOKENS 64   /* of a thread block of the resident kernel */
#define RESIDENT_THREADS (2 * SL_TILE)

/* ---- stream ---- */

/* A position in the list of a thread block's slices: tile, within it head, queries, slice. */
struct dots_cursor {
    int tile, head, pass, slice;
};

__device__ static inline void next_slice(const sl_dots &j, dots_cursor *c, int first_head, int per,
                                         int passes)
{
    if (++c->slice < j.slices)
        return;
    c->slice = 0;
    if (++c->pass < passes)
        return;
    c->pass = 0;
    if (++c->head < first_head + per)
        return;
    c->head = first_head;
    c->tile += gridDim.x;
}

/* Queries first .. first + R - 1 of a head as [R][n_pad]; those after the last one are 0. */
template <int R>
__device__ static inline void stream_queries(const sl_dots &j, int token, int head, int first, float *x)
{
    for (int i = threadIdx.x; i < R * j.n_pad; i += SL_TILE) {
        int r = first + i / j.n_pad;
        x[i] = r < j.rows ? sl_dots_query(j, token, head, r, i % j.n_pad) : 0;
    }
}

/* Ends the products of one row with R queries. */
template <typename T, int R>
__device__ static inline void stream_finish(const sl_dots &j, sl_lanes<R> &lanes, const sl_dot_token &at,
                                            const dots_cursor &c, int i, int list)
{
    int row = c.tile * SL_TILE + sl_dots_my_row(), first = c.pass * R;
    float score = 0, scale = row < at.n ? sl_dots_scale<T>(j, at.pages, c.head, row) : 1;

#pragma unroll
    for (int r = 0; r < R; r++) {
        float v = __fmul_rn(sl_dots_sum(lanes.at[r]), scale);
        if (first + r >= j.rows || row >= at.n)
            continue;
        if (j.d.raw)
            sl_dots_put(j, i, list, c.head, first + r, row, v);
        else
            score = r == 0 ? v : sl_dots_join(j, score, v);
    }
    if (!j.d.raw && row < at.n)
        sl_dots_put(j, i, list, c.head, first, row, score);
}

template <typename T, int R>
__global__ static void __launch_bounds__(SL_TILE, STREAM_BLOCKS) dots_stream_kernel(sl_dots j, int first)
{
    extern __shared__ __align__(16) uint8_t smem[];
    float *x = (float *)(smem + STAGES * SL_STAGE);
    sl_lanes<R> lanes = {};
    int i = first + blockIdx.z, list = blockIdx.y, per = j.d.kv_heads / j.d.lists,
        passes = (j.rows + R - 1) / R;
    sl_dot_token at;
    sl_tile_rows rows;

    if (j.d.raw)
        per = 1; /* a thread block for each KV head */
    if (!sl_dots_token(j, i, &at))
        return;
    if (!j.d.raw && j.d.plus == 0 && blockIdx.x == 0 && threadIdx.x == 0)
        j.d.out[((int64_t)i * j.d.lists + list) * j.d.ld_out + at.n] = 0;
    dots_cursor now = {(int)blockIdx.x, list * per, 0, 0}, ahead = now;
    int tiles = (at.n + SL_TILE - 1) / SL_TILE, stage = 0, fill = 0;
    bool once = per == 1 && passes == 1;

    if (now.tile < tiles && once)
        stream_queries<R>(j, j.d.token_first + i, now.head, 0, x);
    for (int k = 1 - STAGES; now.tile < tiles; k++) {
        if (k >= 0) { /* the slice of this turn has arrived, and all threads have read the one before it */
            __pipeline_wait_prior(STAGES - 2);
            __syncthreads();
        }
        if (ahead.tile < tiles) {
            if (ahead.slice == 0)
                sl_tile_find(j, &rows, at.pages, ahead.head, ahead.tile * SL_TILE, at.n, threadIdx.x);
            sl_tile_copy(j, rows, ahead.slice, smem + fill * SL_STAGE, threadIdx.x);
            next_slice(j, &ahead, list * per, per, passes);
        }
        __pipeline_commit();
        fill = fill + 1 == STAGES ? 0 : fill + 1;
        if (k < 0)
            continue;
        if (!once && now.slice == 0) {
            stream_queries<R>(j, j.d.token_first + i, now.head, now.pass * R, x);
            __syncthreads();
        }
        const int values = SL_SLICE / (int)sizeof(T);
        sl_dots_add<T, R>(lanes, smem + stage * SL_STAGE, x + now.slice * values, j.n_pad,
                          sl_slice_steps<T>(j, now.slice));
        if (now.slice == j.slices - 1)
            stream_finish<T, R>(j, lanes, at, now, i, list);
        next_slice(j, &now, list * per, per, passes);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

/* ---- resident ---- */

struct dots_group { /* the tokens of a thread block */
    const int32_t *pages[MAX_TOKENS];
    int n[MAX_TOKENS]; /* rows; 0: nothing is written for the token */
};

/* The whole tile, by two halves of the thread block in turn. */
__device__ static inline void load_tile(const sl_dots &j, const int32_t *pages, int head, int first, int n,
                                        uint8_t *tile)
{
    int half = threadIdx.x / SL_TILE, tid = threadIdx.x % SL_TILE;
    sl_tile_rows rows;

    __syncthreads(); /* no thread reads the tile before it any more */
    sl_tile_find(j, &rows, pages, head, first, n, tid);
    for (int s = half; s < j.slices; s += 2)
        sl_tile_copy(j, rows, s, tile + s * SL_STAGE, tid);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
}

/* Which queries a half of the thread block has in a turn: SLOTS / each tokens from `token` on, `each` queries of each,
 * from `first` on. */
struct dots_slots {
    int token, tokens, each, first;
};

/* The queries of both halves as [2][SLOTS][n_pad]; those of slots without a token stay undefined. */
__device__ static inline void resident_queries(const sl_dots &j, const dots_slots &a, int end, int base,
                                               int head, float *x)
{
    for (int e = threadIdx.x; e < 2 * SLOTS * j.n_pad; e += RESIDENT_THREADS) {
        int slot = e / j.n_pad, in_half = slot % SLOTS;
        int token = a.token + slot / SLOTS * a.tokens + in_half / a.each, r = a.first + in_half % a.each;
        if (in_half / a.each < a.tokens && token < end && r < j.rows)
            x[e] = sl_dots_query(j, j.d.token_first + base + token, head, r, e % j.n_pad);
    }
}

template <typename T>
__device__ static inline void resident_finish(const sl_dots &j, sl_lanes<SLOTS> &lanes, const dots_group &g,
                                              const dots_slots &a, int end, int base, int list, int head,
                                              int row, float scale)
{
    float score = 0;
    int token = a.token, r = a.first;

#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
        float v = __fmul_rn(sl_dots_sum(lanes.at[k]), scale);
        bool in = token < a.token + a.tokens && token < end && r < j.rows && row < g.n[token];
        if (in && j.d.raw)
            sl_dots_put(j, base + token, list, head, r, row, v);
        score = r == a.first ? v : sl_dots_join(j, score, v);
        r++;
        if (r == a.first + a.each || r == j.rows) {
            if (in && !j.d.raw)
                sl_dots_put(j, base + token, list, head, a.first, row, score);
            if (r == a.first + a.each)
                r = a.first, token++;
        }
    }
}

/* One KV head: the tile's rows with the queries of tokens a .. end - 1, which are of one sequence. */
template <typename T>
__device__ static void resident_head(const sl_dots &j, const dots_group &g, int a, int end, int base,
                                     int list, int head, const uint8_t *tile, float *x)
{
    int half = threadIdx.x / SL_TILE, row = blockIdx.x * SL_TILE + sl_dots_my_row();
    int each = j.rows < SLOTS ? j.rows : SLOTS, tokens = SLOTS / each, most = 0;
    const int values = SL_SLICE / (int)sizeof(T);
    sl_lanes<SLOTS> lanes = {};

    for (int t = a; t < end; t++)
        most = max(most, g.n[t]);
    float scale = row < most ? sl_dots_scale<T>(j, g.pages[a], head, row) : 1;
    for (int t = a; t < end; t += 2 * tokens)
        for (int first = 0; first < j.rows; first += each) {
            dots_slots s = {t, tokens, each, first};
            __syncthreads(); /* no thread reads the queries before these any more */
            resident_queries(j, s, end, base, head, x);
            __syncthreads();
            s.token += half * tokens;
            if (s.token >= end)
                continue;
            for (int c = 0; c < j.slices; c++)
                sl_dots_add<T, SLOTS>(lanes, tile + c * SL_STAGE, x + half * SLOTS * j.n_pad + c * values,
                                      j.n_pad, sl_slice_steps<T>(j, c));
            resident_finish<T>(j, lanes, g, s, end, base, list, head, row, scale);
        }
}

template <typename T>
__global__ static void __launch_bounds__(RESIDENT_THREADS, 2) dots_resident_kernel(sl_dots j)
{
    extern __shared__ __align__(16) uint8_t smem[];
    __shared__ dots_group g;
    float *x = (float *)(smem + j.slices * SL_STAGE);
    int base = blockIdx.z * MAX_TOKENS, list = blockIdx.y, per = j.d.raw ? 1 : j.d.kv_heads / j.d.lists;
    int count = min(MAX_TOKENS, j.d.token_count - base), first = blockIdx.x * SL_TILE;

    for (int t = threadIdx.x; t < count; t += RESIDENT_THREADS) {
        sl_dot_token at = {NULL, 0};
        bool on = sl_dots_token(j, base + t, &at);
        g.pages[t] = on ? at.pages : NULL;
        g.n[t] = on ? at.n : 0;
        if (on && !j.d.raw && j.d.plus == 0 && blockIdx.x == 0)
            j.d.out[((int64_t)(base + t) * j.d.lists + list) * j.d.ld_out + at.n] = 0;
    }
    __syncthreads();
    for (int a = 0, end; a < count; a = end) {
        int most = g.n[a];
        for (end = a + 1; end < count && g.pages[end] == g.pages[a]; end++)
            most = max(most, g.n[end]);
        if (most <= first)
            continue;
        for (int head = list * per; head < (list + 1) * per; head++) {
            load_tile(j, g.pages[a], head, first, most, smem);
            resident_head<T>(j, g, a, end, base, list, head, smem, x);
        }
    }
}

/* ---- launches ---- */

sl_dots sl_dots_job(sl_cuda *cu, const sl_row_dots *d)
{
    sl_dots j = sl_dots_of(cu, d);
    int size = d->type == SL_F32 ? 4 : d->type == SL_BF16 ? 2 : 1;
    int64_t align = (int64_t)(uintptr_t)d->base | d->page_stride | d->row_stride | d->head_stride;

    j.group = d->heads / d->kv_heads;
    j.rows = d->mean ? 1 : j.group;
    j.row_bytes = d->n * size;
    j.slices = (j.row_bytes + SL_SLICE - 1) / SL_SLICE;
    j.n_pad = (d->n + 7) / 8 * 8;
    int padded = j.n_pad * size;
    j.chunk_log2 = padded > 64 ? 3 : padded > 32 ? 2 : padded > 16 ? 1 : 0;
    j.wide = (align | j.row_bytes) % 16 == 0;
    return j;
}

template <typename T, int R> static sl_status run_stream(sl_cuda *cu, const sl_dots &j, sl_err *err)
{
    size_t smem = STAGES * SL_STAGE + 4 * (size_t)R * j.n_pad;
    int lists = j.d.raw ? j.d.kv_heads : j.d.lists, tiles = sl_ceil_div(j.d.ld_out, SL_TILE);
    int splits = sl_ceil_div(4 * STREAM_BLOCKS * cu->sms, (int64_t)lists * j.d.token_count);

    if (smem > cu->gpu.smem)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: %d queries of %d values exceed the shared memory", R,
                       j.d.n);
    return sl_for_slices(j.d.token_count, SL_GRID_YZ, [&](int done, int n) {
        dim3 grid(splits < tiles ? splits : tiles, lists, n);
        return SL_LAUNCH(cu, (dots_stream_kernel<T, R>), (sl_launch{grid, SL_TILE, smem}), err, j, done);
    });
}

template <typename T> static sl_status run(sl_cuda *cu, const sl_dots &j, sl_err *err)
{
    size_t smem = (size_t)j.slices * SL_STAGE + 4 * 2 * SLOTS * (size_t)j.n_pad;
    int groups = sl_ceil_div(j.d.token_count, MAX_TOKENS);
    bool many = j.d.pages || j.d.token_count > j.s.n_seqs;

    if (many && groups <= SL_GRID_YZ && smem + sizeof(dots_group) + 1024 <= cu->gpu.smem) {
        dim3 grid(sl_ceil_div(j.d.ld_out, SL_TILE), j.d.raw ? j.d.kv_heads : j.d.lists, groups);
        return SL_LAUNCH(cu, dots_resident_kernel<T>, (sl_launch{grid, RESIDENT_THREADS, smem}), err, j);
    }
    if (j.rows == 1)
        return run_stream<T, 1>(cu, j, err);
    return j.rows <= 4 ? run_stream<T, 4>(cu, j, err) : run_stream<T, 8>(cu, j, err);
}

sl_status sl_cuda_row_dots(sl_cuda *cu, const sl_row_dots *d, sl_err *err)
{
    sl_dots j = sl_dots_job(cu, d);

    if (d->token_count < 1)
        return SL_OK;
    if (d->type == SL_I8)
        return sl_cuda_bound_codes(cu, d, err);
    if (d->type == SL_F32)
        return run<float>(cu, j, err);
    return d->type == SL_BF16 ? run<__nv_bfloat16>(cu, j, err) : run<uint8_t>(cu, j, err);
}
