/* Conformance cases of windows and compressed entries: head_rotate, entries_append, entry_scores, ring_attn, ring_store. */
#include "kernels/entries.h"

#include <math.h>
#include <string.h>

#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"

/* T, heads, dim, rope, act, out dtype, eps, norm, back, in place */
static void rotate(cf_run *r, const int64_t *a)
{
    sl_head_rotate_params p = {.tokens = (int32_t)r->n,
                               .heads = (int32_t)a[1],
                               .dim = (int32_t)a[2],
                               .rope = (int32_t)a[3],
                               .act = (sl_dtype)a[4],
                               .out_dtype = (sl_dtype)a[5],
                               .eps = a[6] ? 1e-5f : 0,
                               .back = a[8],
                               .norm_dtype = SL_F32};
    const int64_t all = a[1] * a[2];
    int32_t *pos = cf_temp(r, 4 * (size_t)r->n);

    for (int64_t i = 0; i < r->n; i++)
        pos[i] = (int32_t)(cf_hash(6, r->first + i) % 300);
    p.ld_x = (int32_t)(a[9] ? all : all + 8);
    p.pos = cf_mem(r, pos, 4 * (size_t)r->n);
    p.cos_sin = cf_cos_sin(r, 300, p.rope);
    p.x = cf_matrix(r, 1, r->first, r->n, all, p.ld_x, p.act, 3);
    p.norm = a[7] ? cf_matrix(r, 2, 0, 1, a[2], a[2], SL_F32, 2) : NULL;
    p.out = a[9] ? (void *)(uintptr_t)p.x : cf_mem(r, NULL, (size_t)(r->n * all) * cf_size(p.out_dtype));
    cf_op(r, SL_OP_HEAD_ROTATE, &p);
    cf_work(r, (double)(r->n * all) * (double)(cf_size(p.act) + cf_size(p.out_dtype)), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)all * cf_size(p.out_dtype), cf_kind_of(p.out_dtype),
                  p.act == SL_BF16 ? 8e-3 : 2e-6);
}

/* A value of a sequence's token, the same in every slice of the case. */
static float value(uint32_t stream, int64_t seq, int64_t pos, int64_t n, int64_t c)
{
    return cf_uniform(stream + 16 * (uint32_t)seq, pos * n + c);
}

/* [T][n] of the step's tokens. */
static float *of_tokens(cf_run *r, const batch *b, uint32_t stream, int64_t n, float scale)
{
    float *v = cf_temp(r, 4 * (size_t)(r->n * n));

    for (int64_t t = 0; t < r->n; t++)
        for (int64_t c = 0; c < n; c++)
            v[t * n + c] = scale * value(stream, b->seq[t], b->pos[t], n, c);
    return v;
}

/* What the state has of the tokens before the step: the last ones with overlap, else sums that could be theirs. */
static uint8_t *open_of(cf_run *r, const batch *b, const sl_entries_append_params *p, const float *bias)
{
    const int64_t n = p->overlap ? 2 * p->dim : p->dim;
    uint8_t *open = cf_temp(r, (size_t)(b->seqs * p->open_stride));

    memset(open, 0xff, (size_t)(b->seqs * p->open_stride));
    for (int64_t t = 0; t < r->n; t++) {
        float *at = (float *)(void *)(open + b->seq[t] * p->open_stride);

        if (t > 0 && b->seq[t - 1] == b->seq[t])
            continue;
        for (int64_t j = b->pos[t] - 2 * p->rate; p->overlap && j < b->pos[t]; j++)
            for (int64_t c = 0; j >= 0 && c < n; c++) {
                at[j % (2 * p->rate) * 2 * n + c] = 2 * value(1, b->seq[t], j, n, c);
                at[j % (2 * p->rate) * 2 * n + n + c] =
                    4 * value(2, b->seq[t], j, n, c) + bias[j % p->rate * n + c];
            }
        for (int64_t c = 0; !p->overlap && c < n; c++) {
            at[c] = 2 * cf_uniform(7, b->seq[t] * n + c);
            at[n + c] = 1.5f + cf_uniform(8, b->seq[t] * n + c);
            at[2 * n + c] = 2 * cf_uniform(9, b->seq[t] * n + c);
        }
    }
    return open;
}

/* Entries as rows: of resident sequences by row pages, of every second one in a tail that holds those of a step. */
static void rows_of(cf_run *r, const batch *b, sl_entries_append_params *p)
{
    p->rows = (sl_row_view){.row_bytes = p->dim * (int64_t)cf_size(p->dtype)};
    while (1 << p->rows.block_log2 < p->rate)
        p->rows.block_log2++;
    p->rows.hot_base = b->pages * (SL_PAGE_TOKENS / p->rate);
    p->rows.hot_rows = 3;
    p->rows.tail_rows = 5;
    p->rows.base = cf_mem(r, NULL, (size_t)((p->rows.hot_base + b->seqs * 8) * p->rows.row_bytes));
}

/* T, per, length, dim, rope, rate, overlap, dtype, rows */
static void append(cf_run *r, const int64_t *a)
{
    sl_entries_append_params p = {.dim = (int32_t)a[3],
                                  .rope = (int32_t)a[4],
                                  .rate = (int32_t)a[5],
                                  .overlap = a[6],
                                  .dtype = (sl_dtype)a[7],
                                  .eps = 1e-5f,
                                  .norm_dtype = SL_F32};
    const int64_t n = a[6] ? 2 * a[3] : a[3], entry = a[3] * (int64_t)cf_size(p.dtype),
                  most = sl_entries_per_page(p.rate);
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], (int)a[8]);
    p.seqs = &b.t;
    if (a[8])
        rows_of(r, &b, &p);
    p.kv = cf_mem(r, of_tokens(r, &b, 1, n, 2), 4 * (size_t)(r->n * n));
    p.gate = cf_mem(r, of_tokens(r, &b, 2, n, 4), 4 * (size_t)(r->n * n));
    float *bias = cf_temp(r, 4 * (size_t)(p.rate * n));
    for (int64_t i = 0; i < p.rate * n; i++)
        bias[i] = cf_uniform(3, i);
    p.bias = cf_mem(r, bias, 4 * (size_t)(p.rate * n));
    p.norm = cf_matrix(r, 4, 0, 1, a[3], a[3], SL_F32, 2);
    p.cos_sin = cf_cos_sin(r, (int32_t)a[2], p.rope);
    p.open_stride = sl_entries_open_bytes(p.rate, p.dim, p.overlap) + 64;
    p.open = cf_mem(r, open_of(r, &b, &p, bias), (size_t)(b.seqs * p.open_stride));
    p.device_stride = most * entry + 32;
    p.device = cf_mem(r, NULL, (size_t)(b.pages * p.device_stride));
    p.host.row_stride = entry + 16;
    p.host.page_stride = most * p.host.row_stride + 48;
    p.host.base = cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride));
    cf_op(r, SL_OP_ENTRIES_APPEND, &p);
    cf_work(r, (double)r->n * (double)n * 8, 0, SL_F32, 0);
    if (a[8])
        cf_out(r, "rows", p.rows.base, p.rows.hot_base + b.seqs * 8, (size_t)p.rows.row_bytes,
               (size_t)p.rows.row_bytes, cf_kind_of(p.dtype), 4e-6);
    cf_out(r, "entries", p.device, b.pages, (size_t)p.device_stride, (size_t)p.device_stride,
           cf_kind_of(p.dtype), 4e-6);
    cf_out(r, "host entries", p.host.base, b.pages, (size_t)p.host.page_stride, (size_t)p.host.page_stride,
           cf_kind_of(p.dtype), 4e-6);
    cf_out(r, "open", p.open, b.seqs, (size_t)p.open_stride, (size_t)p.open_stride, CF_F32, 4e-6);
    sl_entries_append_params q = p;
    q.open = cf_mem(r, open_of(r, &b, &p, bias), (size_t)(b.seqs * p.open_stride));
    q.device = cf_mem(r, NULL, (size_t)(b.pages * p.device_stride));
    if (a[8])
        rows_of(r, &b, &q);
    q.host.base = cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride));
    batch_in_turns(r, &b, &(batch_op){SL_OP_ENTRIES_APPEND, &q, &q.seqs, &q.open, q.open_stride, 64}, p.open);
}

/* The entries of all sequences, as many as the last token of each sees; other bytes are NaN. */
static sl_entries_view entries_of(cf_run *r, const batch *b, int32_t rate, int32_t dim, sl_dtype dtype)
{
    const int64_t entry = dim * (int64_t)cf_size(dtype), stride = sl_entries_per_page(rate) * entry + 32;
    uint8_t *pool = cf_temp(r, (size_t)(b->pages * stride));
    float *x = cf_temp(r, 4 * (size_t)dim);

    memset(pool, 0xff, (size_t)(b->pages * stride));
    for (int64_t s = 0; s < b->seqs; s++)
        for (int32_t w = 0, place; w < (batch_last(b, s) + 1) / rate; w++) {
            const int32_t page = b->index_pages[s * b->ld + sl_entry_page(w, rate, &place)];

            for (int32_t c = 0; c < dim; c++)
                x[c] = 2 * value(5, s, w, dim, c);
            sl_store_f32(dtype, x, dim, pool + page * stride, (int64_t)place * dim);
        }
    return (sl_entries_view){.base = cf_mem(r, pool, (size_t)(b->pages * stride)),
                             .page_stride = stride,
                             .rate = rate,
                             .dim = dim,
                             .dtype = dtype};
}

/* T, per, length, heads, dim, rate, dtype, first and count of the slice */
static void scores(cf_run *r, const int64_t *a)
{
    const bool slice = a[8] < a[0];
    const int64_t ld = a[2] / a[5] + 3, first = slice ? a[7] : 0, count = slice ? a[8] : r->n;
    sl_entry_scores_params p = {.heads = (int32_t)a[3],
                                .ld_scores = (int32_t)ld,
                                .token_first = (int32_t)first,
                                .token_count = (int32_t)count};
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.entries = entries_of(r, &b, (int32_t)a[5], (int32_t)a[4], (sl_dtype)a[6]);
    p.q = cf_matrix(r, 1, r->first, r->n, a[3] * a[4], a[3] * a[4], SL_F32, 2);
    p.weights = cf_matrix(r, 2, r->first, r->n, a[3], a[3], SL_F32, 1);
    p.scores = cf_mem(r, NULL, 4 * (size_t)(count * ld));
    p.seen_seq = cf_mem(r, NULL, 4 * (size_t)r->n);
    p.seen_pos = cf_mem(r, NULL, 4 * (size_t)r->n);
    cf_op(r, SL_OP_ENTRY_SCORES, &p);
    cf_work(r, (double)(count * ld * a[4]) * (double)cf_size(p.entries.dtype),
            2.0 * (double)(count * ld * a[3] * a[4]), SL_F32, 0);
    if (slice)
        cf_out(r, "scores", p.scores, count, 4 * (size_t)ld, 4 * (size_t)ld, CF_F32, 4e-6);
    else
        cf_out_tokens(r, "scores", p.scores, 4 * (size_t)ld, CF_F32, 4e-6);
    cf_out_tokens(r, "seen_seq", p.seen_seq, 4, CF_BYTES, 0);
    cf_out_tokens(r, "seen_pos", p.seen_pos, 4, CF_BYTES, 0);
}

/* Every third entry that the token sees, the newest first up to k, in ascending order. */
static int32_t *lists_of(cf_run *r, const batch *b, int32_t rate, int32_t k, int32_t ld)
{
    int32_t *ids = cf_temp(r, 4 * (size_t)(r->n * ld));

    for (int64_t t = 0; t < r->n; t++) {
        const int32_t n = (b->pos[t] + 1) / rate, have = n / 3 < k ? n / 3 : k;

        for (int32_t i = 0; i < ld; i++)
            ids[t * ld + i] = i < have ? n - 1 - 3 * (have - 1 - i) : -1;
    }
    return ids;
}

/* The rings as the tokens before the step have left them. */
static uint8_t *rings_of(cf_run *r, const batch *b, int32_t window, int32_t dim, sl_dtype dtype,
                         int64_t stride)
{
    uint8_t *ring = cf_temp(r, (size_t)(b->seqs * stride));
    float *x = cf_temp(r, 4 * (size_t)dim);

    memset(ring, 0xff, (size_t)(b->seqs * stride));
    for (int64_t t = 0; t < r->n; t++)
        for (int64_t j = b->pos[t] - window; (t == 0 || b->seq[t - 1] != b->seq[t]) && j < b->pos[t]; j++) {
            if (j < 0)
                continue;
            for (int32_t c = 0; c < dim; c++)
                x[c] = 2 * value(6, b->seq[t], j, dim, c);
            sl_store_f32(dtype, x, dim, ring + b->seq[t] * stride, j % window * dim);
        }
    return ring;
}

/* Where the entries of the lists are, when every entry of every sequence has a row of its own. */
static void resolved(cf_run *r, const batch *b, const int32_t *ids, sl_ring_attn_params *p)
{
    const int32_t rate = p->entries.rate, most = (int32_t)b->length / rate + 1;
    const int64_t bytes = p->dim * (int64_t)cf_size(p->entries.dtype);
    uint8_t *rows = cf_temp(r, (size_t)(b->seqs * most * bytes));
    int32_t *phys = cf_temp(r, 4 * (size_t)(r->n * p->ld_ids));
    float *x = cf_temp(r, 4 * (size_t)p->dim);

    memset(rows, 0xff, (size_t)(b->seqs * most * bytes));
    for (int64_t i = 0; i < r->n * p->ld_ids; i++) {
        const int64_t s = b->seq[i / p->ld_ids], at = (int64_t)(most - 1 - ids[i]) * b->seqs + s;

        phys[i] = ids[i] < 0 ? -1 : (int32_t)at;
        for (int32_t c = 0; ids[i] >= 0 && c < p->dim; c++)
            x[c] = 2 * value(5, s, ids[i], p->dim, c);
        if (ids[i] >= 0)
            sl_store_f32(p->entries.dtype, x, p->dim, rows + at * bytes, 0);
    }
    p->rows = cf_mem(r, rows, (size_t)(b->seqs * most * bytes));
    p->phys = cf_mem(r, phys, 4 * (size_t)(r->n * p->ld_ids));
    p->entries.base = NULL;
}

/* T, per, length, heads, dim, window, rate, lists of k (0: all entries), act, dtype of the cache, by physical rows */
static void attend(cf_run *r, const int64_t *a)
{
    sl_ring_attn_params p = {.tokens = (int32_t)r->n,
                             .heads = (int32_t)a[3],
                             .dim = (int32_t)a[4],
                             .window = (int32_t)a[5],
                             .k = (int32_t)a[7],
                             .ld_ids = (int32_t)a[7] + (a[7] ? 3 : 0),
                             .scale = 0.2f,
                             .act = (sl_dtype)a[8]};
    const sl_dtype dtype = (sl_dtype)a[9];
    const size_t row = (size_t)a[4] * cf_size(dtype);
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.ring_stride = (int64_t)row * p.window + 64;
    p.ring =
        cf_mem(r, rings_of(r, &b, p.window, p.dim, dtype, p.ring_stride), (size_t)(b.seqs * p.ring_stride));
    uint8_t *kv = cf_temp(r, (size_t)r->n * row);
    sl_store_f32(dtype, of_tokens(r, &b, 6, a[4], 2), r->n * a[4], kv, 0);
    p.kv = cf_mem(r, kv, (size_t)r->n * row);
    p.entries = (sl_entries_view){.dtype = dtype};
    if (a[6])
        p.entries = entries_of(r, &b, (int32_t)a[6], (int32_t)a[4], dtype);
    if (a[7]) {
        int32_t *ids = lists_of(r, &b, (int32_t)a[6], p.k, p.ld_ids);
        p.ids = cf_mem(r, ids, 4 * (size_t)(r->n * p.ld_ids));
        if (a[10])
            resolved(r, &b, ids, &p);
    }
    p.q = cf_matrix(r, 1, r->first, r->n, a[3] * a[4], a[3] * a[4], p.act, 1);
    p.sinks = cf_matrix(r, 3, 0, 1, a[3], a[3], SL_F32, 2);
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[3] * a[4]) * cf_size(p.act));
    cf_op(r, SL_OP_RING_ATTN, &p);
    cf_work(r, (double)r->n * (double)(a[5] + a[7]) * (double)row,
            4.0 * (double)(r->n * a[3] * a[4]) * (double)(a[5] + a[7]), SL_F32, 0);
    /* Another backend may round weights to bf16 where rows and queries are bf16. */
    cf_out_tokens(r, "out", p.out, (size_t)(a[3] * a[4]) * cf_size(p.act), cf_kind_of(p.act),
                  r->be && p.dim == 512 && p.act == SL_BF16 && dtype == SL_BF16 ? 1e-2 : 6e-6);
}

/* T, per, length, dim, window, dtype */
static void store(cf_run *r, const int64_t *a)
{
    sl_ring_store_params p = {.dim = (int32_t)a[3], .window = (int32_t)a[4], .dtype = (sl_dtype)a[5]};
    const size_t row = (size_t)a[3] * cf_size(p.dtype);
    batch b;

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.ring_stride = (int64_t)row * p.window + 64;
    p.ring = cf_mem(r, NULL, (size_t)(b.seqs * p.ring_stride));
    p.kv = cf_matrix(r, 1, r->first, r->n, a[3], a[3], p.dtype, 2);
    cf_op(r, SL_OP_RING_STORE, &p);
    cf_work(r, 2.0 * (double)r->n * (double)row, 0, SL_F32, 0);
    cf_out(r, "ring", p.ring, b.seqs, (size_t)p.ring_stride, (size_t)p.ring_stride, CF_BYTES, 0);
    sl_ring_store_params q = p;
    q.ring = cf_mem(r, NULL, (size_t)(b.seqs * p.ring_stride));
    batch_in_turns(r, &b, &(batch_op){SL_OP_RING_STORE, &q, &q.seqs, &q.ring, q.ring_stride, 64}, p.ring);
}

/* An entry that the token does not see, and a page that is not there. */
static void refused(cf_run *r, const int64_t *a)
{
    int32_t zero[4] = {0, 0, 0, 0}, pos[2] = {3, 4}, ids[2] = {1, -1}, pages[2] = {0, -1};
    float values[64] = {0};
    sl_seq_tables s = {.n_tokens = 1, .n_seqs = 1, .ld = 2};
    sl_ring_attn_params p = {
        .tokens = 1, .heads = 1, .dim = 4, .window = 4, .k = 2, .ld_ids = 2, .scale = 1, .act = SL_F32};

    (void)a;
    s.token_seq = cf_mem(r, zero, sizeof(zero));
    s.token_pos = cf_mem(r, pos, sizeof(pos));
    s.index_pages = s.host_pages = s.row_pages = cf_mem(r, pages, sizeof(pages));
    s.hot_slot = cf_mem(r, zero, sizeof(zero));
    p.seqs = &s;
    p.q = p.kv = p.ring = cf_mem(r, values, sizeof(values));
    p.ring_stride = 64;
    p.sinks = p.q;
    p.entries = (sl_entries_view){.base = p.ring, .page_stride = 256, .rate = 4, .dim = 4, .dtype = SL_F32};
    p.ids = cf_mem(r, ids, sizeof(ids));
    p.out = cf_mem(r, values, sizeof(values));
    cf_refused(r, SL_OP_RING_ATTN, &p, SL_ERR_INVALID, "selected");
    p.entries.rate = 0;
    p.window = 0;
    cf_refused(r, SL_OP_RING_ATTN, &p, SL_ERR_INVALID, "window");
    cf_out(r, "q", p.q, 1, sizeof(values), sizeof(values), CF_BYTES, 0);
}

#define F SL_F32
#define B SL_BF16
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_HEAD_ROTATE, "T=5 H=3 of 20 rope 6 f32", rotate, {5, 3, 20, 6, F, F, 1, 0, 0, 1}, CF_SPLIT},
    {SL_OP_HEAD_ROTATE, "T=4 H=1 of 37 rope 8 norm f32 to bf16", rotate, {4, 1, 37, 8, F, B, 1, 1, 0, 0}, CF_SPLIT},
    {SL_OP_HEAD_ROTATE, "T=4 H=4 of 64 rope 64 back bf16", rotate, {4, 4, 64, 64, B, B, 0, 0, 1, 1}, CF_SPLIT},
    {SL_OP_HEAD_ROTATE, "T=3 H=8 of 512 rope 64 bf16", rotate, {3, 8, 512, 64, B, B, 1, 0, 0, 1}, CF_SPLIT},
    {SL_OP_HEAD_ROTATE, "T=64 H=64 of 512 rope 64 bf16", rotate, {64, 64, 512, 64, B, B, 1, 0, 0, 1}, CF_PERF_ONLY},
    {SL_OP_ENTRIES_APPEND, "T=40 of 20 rate 4 overlap f32", append, {40, 20, 300, 16, 4, 4, 1, F}, 0},
    {SL_OP_ENTRIES_APPEND, "T=300 of 150 rate 5 overlap f32", append, {300, 150, 400, 10, 4, 5, 1, F}, 0},
    {SL_OP_ENTRIES_APPEND, "T=3 of 1 rate 4 overlap bf16", append, {3, 1, 200, 37, 8, 4, 1, B}, 0},
    {SL_OP_ENTRIES_APPEND, "T=400 of 200 rate 128 f32", append, {400, 200, 500, 12, 4, 128, 0, F}, 0},
    {SL_OP_ENTRIES_APPEND, "T=200 of 100 rate 24 bf16", append, {200, 100, 300, 33, 6, 24, 0, B}, 0},
    {SL_OP_ENTRIES_APPEND, "T=130 of 65 rate 1 f32", append, {130, 65, 200, 8, 2, 1, 0, F}, 0},
    {SL_OP_ENTRIES_APPEND, "T=32 of 4 rate 4 overlap dim 512 bf16", append, {32, 4, 600, 512, 64, 4, 1, B}, 0},
    {SL_OP_ENTRIES_APPEND, "T=40 of 20 rate 4 overlap rows f32", append, {40, 20, 300, 16, 4, 4, 1, F, 1}, 0},
    {SL_OP_ENTRIES_APPEND, "T=36 of 9 rate 4 overlap hot rows bf16", append, {36, 9, 200, 40, 8, 4, 1, B, 2}, 0},
    {SL_OP_ENTRIES_APPEND, "T=60 of 30 rate 16 rows bf16", append, {60, 30, 200, 8, 4, 16, 0, B, 1}, 0},
    {SL_OP_ENTRY_SCORES, "T=9 of 3 H=5 of 18 rate 4 f32, a slice", scores, {9, 3, 300, 5, 18, 4, F, 2, 6}, 0},
    {SL_OP_ENTRY_SCORES, "T=8 of 4 H=24 of 16 rate 5 bf16", scores, {8, 4, 200, 24, 16, 5, B, 0, 8}, CF_SPLIT},
    {SL_OP_ENTRY_SCORES, "T=4 of 1 H=64 of 128 rate 4 bf16", scores, {4, 1, 900, 64, 128, 4, B, 0, 4}, CF_SPLIT},
    {SL_OP_ENTRY_SCORES, "T=6 of 2 H=7 of 64 rate 3 f32", scores, {6, 2, 800, 7, 64, 3, F, 0, 6}, CF_SPLIT},
    {SL_OP_ENTRY_SCORES, "T=6 of 2 H=40 of 32 rate 4 bf16, a slice", scores, {6, 2, 700, 40, 32, 4, B, 1, 4}, 0},
    {SL_OP_ENTRY_SCORES, "T=16 of 1 H=64 of 128 64K bf16", scores, {16, 1, 65536, 64, 128, 4, B, 0, 16}, CF_PERF_ONLY},
    {SL_OP_RING_ATTN, "T=12 of 4 H=5 of 24 rate 4 k=6 by rows f32", attend, {12, 4, 300, 5, 24, 9, 4, 6, F, F, 1}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=6 of 1 H=9 of 64 rate 4 k=40 by rows bf16", attend, {6, 1, 500, 9, 64, 32, 4, 40, B, B, 1}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=12 of 6 H=3 of 20 window 5 alone f32", attend, {12, 6, 90, 3, 20, 5, 0, 0, F, F}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=40 of 20 H=4 of 32 window 24 lists f32", attend, {40, 20, 300, 4, 32, 24, 4, 8, F, F}, CF_SPLIT | CF_FEW},
    {SL_OP_RING_ATTN, "T=12 of 6 H=17 of 16 window 70 all f32", attend, {12, 6, 400, 17, 16, 70, 32, 0, F, F}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=6 of 3 H=8 of 64 window 16 lists bf16", attend, {6, 3, 600, 8, 64, 16, 4, 40, B, B}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=4 of 2 H=5 of 36 window 9 lists f32 over bf16", attend, {4, 2, 300, 5, 36, 9, 5, 6, F, B}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=2 of 1 H=64 of 512 window 128 lists bf16", attend, {2, 1, 2500, 64, 512, 128, 4, 200, B, B}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=12 of 4 H=7 of 512 window 128 all bf16", attend, {12, 4, 3000, 7, 512, 128, 128, 0, B, B}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=6 of 6 H=70 of 512 window 20 by rows bf16", attend, {6, 6, 900, 70, 512, 20, 4, 60, B, B, 1}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=5 of 1 H=64 of 512 window 128 all rate 4 bf16", attend, {5, 1, 5000, 64, 512, 128, 4, 0, B, B}, CF_SPLIT | CF_LARGE},
    {SL_OP_RING_ATTN, "T=9 of 3 H=3 of 512 window 5 alone bf16", attend, {9, 3, 90, 3, 512, 5, 0, 0, B, B}, CF_SPLIT},
    {SL_OP_RING_ATTN, "T=300 of 100 H=8 of 512 lists bf16", attend, {300, 100, 700, 8, 512, 64, 4, 30, B, B}, CF_SPLIT | CF_LARGE},
    {SL_OP_RING_ATTN, "T=16 of 1 H=64 of 512 512 entries", attend, {16, 1, 8192, 64, 512, 128, 4, 512, B, B, 1}, CF_PERF_ONLY},
    {SL_OP_RING_ATTN, "T=48 of 1 H=64 of 512 512 entries", attend, {48, 1, 8192, 64, 512, 128, 4, 512, B, B, 1}, CF_PERF_ONLY},
    {SL_OP_RING_ATTN, "T=16 of 1 H=64 of 512 all 1024", attend, {16, 1, 131072, 64, 512, 128, 128, 0, B, B}, CF_PERF_ONLY},
    {SL_OP_RING_ATTN, "T=48 of 1 H=64 of 512 all 1024", attend, {48, 1, 131072, 64, 512, 128, 128, 0, B, B}, CF_PERF_ONLY},
    {SL_OP_RING_ATTN, "what is not there", refused, {1}, 0},
    {SL_OP_RING_STORE, "T=40 of 20 window 7 f32", store, {40, 20, 300, 12, 7, F}, 0},
    {SL_OP_RING_STORE, "T=6 of 2 window 128 bf16", store, {6, 2, 300, 64, 128, B}, 0},
};
/* clang-format on */

const cf_table cf_entries_cases = {cases, SL_COUNT(cases)};
