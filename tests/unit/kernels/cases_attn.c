/* Conformance cases of sparse attention over rows, also concurrently with the gather that fetches them. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

static int32_t list_of(int64_t t, int32_t k)
{
    static const int32_t lengths[] = {0, 1, 63, 64, 65, 128, 1 << 30, 7, 1 << 30};
    int32_t n = lengths[t % (int64_t)SL_COUNT(lengths)];

    return n < k ? n : k;
}

#define DISTINCT 4096
/* T, heads, lora, rope, k, format, pool rows, full lists, sinks */
static void attention(cf_run *r, const int64_t *a)
{
    sl_sparse_attn_params p = {
        .tokens = (int32_t)r->n, .heads = (int32_t)a[1], .lora = (int32_t)a[2], .rope = (int32_t)a[3]};
    int32_t ld = (int32_t)a[4] + 2, *phys = cf_temp(r, 4 * (size_t)(r->n * ld));
    size_t row, o_row = 4 * (size_t)(a[1] * a[2]);
    float *values = cf_temp(r, 4 * (size_t)(a[2] + a[3]));
    uint8_t *pool, *first = cf_temp(r, (size_t)r->n * o_row), *second = cf_temp(r, (size_t)r->n * o_row);
    double rows = 0;

    p.format = (sl_row_format)a[5];
    p.k = (int32_t)a[4];
    p.ld_ids = ld;
    p.scale = 0.13f;
    row = (size_t)sl_row_bytes(p.format, p.lora, p.rope);
    p.rows = (sl_row_view){.row_bytes = (int64_t)row};
    pool = cf_temp(r, (size_t)(2 * a[6] + 1) * row);
    memset(pool, 0xff, (size_t)(2 * a[6] + 1) * row);
    for (int64_t i = 0; i < a[6]; i++) { /* logical row i at 2 i; a second copy of all at 2 (n - 1 - i) + 1 */
        if (r->perf && i >= DISTINCT) {  /* timing: a large pool repeats */
            memcpy(pool + (size_t)(2 * i) * row, pool + (size_t)(2 * (i % DISTINCT)) * row, row);
            continue;
        }
        for (int32_t d = 0; d < p.lora + p.rope; d++)
            values[d] = 2 * cf_uniform(5, i * 4099 + d);
        sl_row_encode(p.format, p.lora, p.rope, values, pool + (size_t)(2 * i) * row);
        memcpy(pool + (size_t)(2 * (a[6] - 1 - i) + 1) * row, pool + (size_t)(2 * i) * row, row);
    }
    p.rows.base = cf_mem(r, pool, (size_t)(2 * a[6] + 1) * row);
    p.ql = cf_matrix(r, 1, r->first, r->n, a[1] * (a[2] + a[3]), a[1] * (a[2] + a[3]), SL_F32, 1);
    if (a[8])
        p.sinks = cf_matrix(r, 7, 0, 1, a[1], a[1], SL_F32, 4);
    p.o = cf_mem(r, NULL, (size_t)r->n * o_row);
    for (int place = 0; place < 2; place++) {
        for (int64_t t = 0; t < r->n; t++) {
            int32_t n = a[7] ? p.k : list_of(r->first + t, p.k);

            for (int32_t i = 0; i < ld; i++) {
                int64_t logical = (int64_t)i * (a[6] / p.k) +
                                  (int64_t)(cf_hash(4, (r->first + t) * 99991 + i) % (uint64_t)(a[6] / p.k));

                phys[t * ld + i] =
                    i >= n ? -1 : (int32_t)(place ? 2 * (a[6] - 1 - logical) + 1 : 2 * logical);
            }
            rows += place ? 0 : n;
        }
        p.phys = cf_mem(r, phys, 4 * (size_t)(r->n * ld));
        cf_op(r, SL_OP_SPARSE_ATTN, &p);
        cf_get(r, place ? second : first, p.o, (size_t)r->n * o_row);
        if (r->perf)
            break;
    }
    if (r->st == SL_OK && !r->perf && memcmp(first, second, (size_t)r->n * o_row) != 0)
        cf_fail(r, "the result depends on where the rows are");
    cf_work(r, rows * (double)row + (double)r->n * (double)a[1] * (double)(2 * a[2] + a[3]) * 4,
            2 * rows * (double)a[1] * (double)(2 * a[2] + a[3]), SL_BF16, 0);
    /* Another backend may hold queries and weights in bf16 when the rows are not float32. */
    cf_out_tokens(r, "o", p.o, o_row, CF_F32, !r->be ? 1e-5 : p.format == SL_ROW_MLA_F32 ? 5e-5 : 1e-2);
}

/* ---- attention concurrently with the gather that fetches its rows ---- */

typedef struct gather_case {
    sl_gather_params gather;
    sl_sparse_attn_params attn;
    size_t blocks;
    /* 0: both; 1: attention alone; 2: gather alone; 3: both, but all rows of the attention are there already */
    int mode;
} gather_case;

static sl_status run_with_gather(cf_run *r, const gather_case *c)
{
    sl_status st = SL_OK;

    if (!r->be) {
        ref_run(SL_OP_GATHER, &c->gather);
        ref_run(SL_OP_SPARSE_ATTN, &c->attn);
        return SL_OK;
    }
    if (c->mode != 1)
        st = sl_be_fill(r->be, c->gather.block_done, 0, 4 * c->blocks, &r->err);
    if (st == SL_OK && c->mode != 1)
        st = sl_be_run(r->be, SL_OP_GATHER, &c->gather, &r->err);
    if (st == SL_OK && c->mode != 2) /* in this mode no op waits for the gather */
        st = sl_be_run(r->be, SL_OP_SPARSE_ATTN, &c->attn, &r->err);
    return st;
}

#define REPEAT 10
static void time_with_gather(cf_run *r, const gather_case *c)
{
    uint64_t best = UINT64_MAX;
    sl_graph *g = NULL;

    if (!(sl_backend_caps(r->be) & SL_BE_GRAPHS) || sl_be_capture_begin(r->be, &r->err) != SL_OK)
        return;
    for (int i = 0; i < REPEAT && r->st == SL_OK; i++)
        r->st = run_with_gather(r, c);
    if (sl_be_capture_end(r->be, &g, &r->err) != SL_OK)
        return;
    for (int i = 0; i < 30 && r->st == SL_OK; i++) {
        uint64_t start = sl_now_ns();

        r->st = sl_be_graph_launch(r->be, g, &r->err);
        if (r->st == SL_OK)
            r->st = sl_be_sync(r->be, &r->err);
        start = sl_now_ns() - start;
        best = start < best ? start : best;
    }
    r->ns = (double)best / REPEAT;
    sl_graph_destroy(g);
}

/* T, heads, k, format, n: one of n rows is missing, mode. Missing rows are NaN until the gather copies them. */
static void with_gather(cf_run *r, const int64_t *a)
{
    gather_case c = {.mode = (int)a[5]};
    sl_sparse_attn_params *p = &c.attn;
    int64_t n = r->n * a[2], misses = 0;
    size_t row = (size_t)sl_row_bytes((sl_row_format)a[3], 512, 64), o_row = 4 * (size_t)a[1] * 512;
    uint8_t *host = cf_temp(r, (size_t)n * row), *device = cf_temp(r, (size_t)n * row);
    int32_t *phys = cf_temp(r, 4 * (size_t)n), *dst = cf_temp(r, 4 * (size_t)n),
            *block = cf_temp(r, 4 * (size_t)n), *need, count;
    int64_t *src = cf_temp(r, 8 * (size_t)n);
    float *values = cf_temp(r, 4 * 576);

    *p = (sl_sparse_attn_params){.tokens = (int32_t)r->n, .heads = (int32_t)a[1], .lora = 512, .rope = 64};
    p->format = (sl_row_format)a[3];
    p->k = p->ld_ids = (int32_t)a[2];
    p->scale = 0.13f;
    p->ld_blocks = sl_list_blocks(p->k);
    c.blocks = (size_t)(r->n * p->ld_blocks);
    need = cf_temp(r, 4 * c.blocks);
    memset(need, 0, 4 * c.blocks);
    for (int64_t i = 0; i < n; i++) {
        int64_t g = r->first * a[2] + i, t = i / a[2], j = i % a[2];

        if (i < DISTINCT || !r->perf) {
            for (int32_t d = 0; d < 576; d++)
                values[d] = 2 * cf_uniform(5, g * 4099 + d);
            sl_row_encode(p->format, 512, 64, values, host + (size_t)i * row);
        } else {
            memcpy(host + (size_t)i * row, host + (size_t)(i % DISTINCT) * row, row);
        }
        memcpy(device + (size_t)i * row, host + (size_t)i * row, row);
        phys[i] = (int32_t)i;
        if ((g * 7 + t) % a[4])
            continue;
        memset(device + (size_t)i * row, 0xff, row);
        src[misses] = i;
        dst[misses] = (int32_t)i;
        block[misses++] = (int32_t)(t * p->ld_blocks + j / 64);
        need[t * p->ld_blocks + j / 64]++;
    }
    count = (int32_t)misses;
    p->rows = (sl_row_view){.row_bytes = (int64_t)row, .hot_rows = 60000};
    p->rows.base = cf_mem(r, device, (size_t)n * row);
    p->phys = cf_mem(r, phys, 4 * (size_t)n);
    p->ql = cf_matrix(r, 1, r->first, r->n, a[1] * 576, a[1] * 576, SL_F32, 1);
    p->o = cf_mem(r, NULL, (size_t)r->n * o_row);
    p->block_need = cf_mem(r, need, 4 * c.blocks);
    memset(need, 0, 4 * c.blocks);
    p->block_done = c.gather.block_done = cf_mem(r, need, 4 * c.blocks);
    c.gather.rows = p->rows;
    c.gather.host = (sl_host_plane){.row_stride = (int64_t)row, .page_stride = 64 * (int64_t)row};
    c.gather.host.base = cf_host_mem(r, host, (size_t)(sl_pages_for(n) * SL_PAGE_TOKENS) * row);
    c.gather.miss_src = cf_mem(r, src, 8 * (size_t)n);
    c.gather.miss_dst = cf_mem(r, dst, 4 * (size_t)n);
    c.gather.miss_block = cf_mem(r, block, 4 * (size_t)n);
    c.gather.miss_count = cf_mem(r, &count, 4);
    c.gather.miss_cap = (int32_t)n;
    /* a perf run first runs both, so that rows and counts exist when a part is timed */
    if (r->st == SL_OK) {
        gather_case both = c;

        both.mode = 0;
        r->st = run_with_gather(r, &both);
    }
    if (r->st == SL_OK && r->be)
        r->st = sl_be_sync(r->be, &r->err);
    if (c.mode == 3) /* the time that remains is the cost of the gather's traffic for the attention */
        p->block_need = cf_mem(r, need, 4 * c.blocks);
    if (r->st == SL_OK && r->perf && r->be)
        time_with_gather(r, &c);
    cf_work(r, (double)n * (double)row, c.mode == 2 ? 0 : 2.0 * (double)n * (double)a[1] * 1088, SL_BF16,
            c.mode == 1 ? 0 : (double)misses * (double)row);
    cf_out_tokens(r, "o", p->o, o_row, CF_F32, r->be ? 1e-2 : 1e-5);
}

#define RF SL_ROW_MLA_F32
#define RB SL_ROW_MLA_BF16
#define R8 SL_ROW_MLA_FP8
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_SPARSE_ATTN, "T=9 h=20 lora=40 k=130 sinks", attention, {9, 20, 40, 8, 130, RF, 300, 0, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=72 k=200 fp8 sinks", attention, {9, 72, 512, 64, 200, R8, 1000, 0, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=3 h=32 k=1500 bf16 sinks", attention, {3, 32, 512, 64, 1500, RB, 8192, 1, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=1 h=1 lora=1 rope=0 k=1", attention, {1, 1, 1, 0, 1, RF, 5, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=18 h=4 lora=128 rope=16 k=16 f32", attention, {18, 4, 128, 16, 16, RF, 200, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=3 lora=37 rope=6 k=200 f32", attention, {9, 3, 37, 6, 200, RF, 1000, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=17 lora=64 rope=8 k=130 bf16", attention, {9, 17, 64, 8, 130, RB, 700, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=64 lora=512 rope=64 k=128 fp8", attention, {9, 64, 512, 64, 128, R8, 700, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=3 h=128 lora=512 rope=64 k=256 fp8", attention, {3, 128, 512, 64, 256, R8, 700, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=128 k=1024 fp8", attention, {9, 128, 512, 64, 1024, R8, 4096, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=20 k=1024 bf16", attention, {9, 20, 512, 64, 1024, RB, 4096, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=4 h=64 k=2048 bf16", attention, {4, 64, 512, 64, 2048, RB, 8192, 1}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=4 h=8 k=200 fp8", attention, {4, 8, 512, 64, 200, R8, 1000, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=24 k=1024 fp8", attention, {9, 24, 512, 64, 1024, R8, 4096, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=3 h=16 k=2048 fp8", attention, {3, 16, 512, 64, 2048, R8, 8192, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=3 h=32 k=1500 bf16", attention, {3, 32, 512, 64, 1500, RB, 8192, 1}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=300 h=8 k=1100 fp8", attention, {300, 8, 512, 64, 1100, R8, 2200, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=9 h=64 rope=0 k=130 fp8", attention, {9, 64, 512, 0, 130, R8, 700, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=9 h=5 rope=0 k=70 bf16", attention, {9, 5, 512, 0, 70, RB, 700, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=3 h=128 rope=0 k=2051 fp8", attention, {3, 128, 512, 0, 2051, R8, 8192, 1, 1}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=4 h=64 rope=0 k=2051 bf16", attention, {4, 64, 512, 0, 2051, RB, 8192, 1}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=300 h=8 rope=0 k=1100 fp8", attention, {300, 8, 512, 0, 1100, R8, 2200, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=1300 h=64 rope=0 k=64 bf16", attention, {1300, 64, 512, 0, 64, RB, 640, 0}, CF_LARGE},
    /* Many lists of one block each: a kernel's pipeline continues from the end of a list into the next list. */
    {SL_OP_SPARSE_ATTN, "T=1300 h=64 k=64 fp8", attention, {1300, 64, 512, 64, 64, R8, 640, 0}, CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=4 h=128 k=2048 fp8 beside", with_gather, {4, 128, 2048, R8, 3, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=2 h=64 k=2048 bf16 beside", with_gather, {2, 64, 2048, RB, 2, 0}, CF_SPLIT | CF_LARGE},
    {SL_OP_SPARSE_ATTN, "T=70 h=128 k=128 fp8 beside", with_gather, {70, 128, 128, R8, 5, 0}, CF_SPLIT},
    {SL_OP_SPARSE_ATTN, "T=1 h=64 rope=0 fp8", attention, {1, 64, 512, 0, 2051, R8, 65536, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=16 h=64 rope=0 fp8", attention, {16, 64, 512, 0, 2051, R8, 65536, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=48 h=64 rope=0 fp8", attention, {48, 64, 512, 0, 2051, R8, 65536, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=48 h=64 rope=0 bf16", attention, {48, 64, 512, 0, 2051, RB, 65536, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=128 fp8 beside 2000", with_gather, {20, 128, 2048, R8, 20, 0}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=128 fp8 beside alone", with_gather, {20, 128, 2048, R8, 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=128 fp8 beside other 2000", with_gather, {20, 128, 2048, R8, 20, 3}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 fp8 beside other 2000", with_gather, {64, 128, 2048, R8, 65, 3}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 fp8 beside other 6000", with_gather, {64, 128, 2048, R8, 22, 3}, CF_PERF_ONLY},
    {SL_OP_GATHER, "T=20 fp8 beside gather", with_gather, {20, 128, 2048, R8, 20, 2}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 fp8 beside 2000", with_gather, {64, 128, 2048, R8, 65, 0}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 fp8 beside alone", with_gather, {64, 128, 2048, R8, 65, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "T=64 fp8 beside gather", with_gather, {64, 128, 2048, R8, 65, 2}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=1024 h=128 k=2048 bf16", attention, {1024, 128, 512, 64, 2048, RB, 32768, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=1 h=128 k=2048 fp8", attention, {1, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=4 h=128 k=2048 fp8", attention, {4, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=16 h=128 k=2048 fp8", attention, {16, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=128 k=2048 fp8", attention, {20, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=32 h=128 k=2048 fp8", attention, {32, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 k=2048 fp8", attention, {64, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=128 h=128 k=2048 fp8", attention, {128, 128, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=1 h=64 k=2048 fp8", attention, {1, 64, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=64 k=2048 fp8", attention, {20, 64, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=64 k=2048 fp8", attention, {64, 64, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=16 k=2048 fp8", attention, {64, 16, 512, 64, 2048, R8, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=20 h=128 k=2048 bf16", attention, {20, 128, 512, 64, 2048, RB, 1 << 20, 1}, CF_PERF_ONLY},
    {SL_OP_SPARSE_ATTN, "T=64 h=128 k=2048 bf16", attention, {64, 128, 512, 64, 2048, RB, 1 << 20, 1}, CF_PERF_ONLY},
};
/* clang-format on */

const cf_table cf_attn_cases = {cases, SL_COUNT(cases)};
