/* Conformance cases of gather: which rows it copies, which blocks it counts, and which damaged rows it finds. */
#include <string.h>

#include "kernels/rowsum.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

#define SETS 16

static const int64_t *set_src[SETS];

static void next_rows(void *params, int i)
{
    ((sl_gather_params *)params)->miss_src = set_src[i % SETS];
}

/* Timing: n rows per call, fresh ones each time, sorted by address, from an arena of `pages` pages. Rows of a
 * layer in pages of all layers, as the arena is laid out: a page's rows are 42 KB in 3 MB. n, pages, row
 * bytes, stride of pages */
static void gather_perf(cf_run *r, const int64_t *a)
{
    sl_gather_params p = {.miss_cap = (int32_t)a[0]};
    int64_t *src = cf_temp(r, 8 * (size_t)a[0]), span = a[1] * 64 / a[0];
    int32_t count = (int32_t)a[0], *dst = cf_temp(r, 4 * (size_t)a[0]);

    p.rows = (sl_row_view){.row_bytes = a[2], .hot_rows = (int32_t)(a[0] < 60000 ? a[0] : 60000)};
    p.host = (sl_host_plane){.row_stride = a[2], .page_stride = a[3]};
    p.host.base = cf_host_mem(r, NULL, (size_t)(a[1] * a[3]));
    p.rows.base = cf_mem(r, NULL, (size_t)(a[0] * a[2]));
    for (int i = 0; i < SETS; i++) {
        for (int64_t k = 0; k < a[0]; k++) {
            src[k] = k * span + (int64_t)(cf_hash((uint32_t)i, k) % (uint64_t)span);
            dst[k] = (int32_t)k;
        }
        set_src[i] = cf_mem(r, src, 8 * (size_t)a[0]);
    }
    p.miss_src = set_src[0];
    p.miss_dst = cf_mem(r, dst, 4 * (size_t)a[0]);
    p.miss_count = cf_mem(r, &count, 4);
    cf_op_steps(r, SL_OP_GATHER, &p, next_rows);
    cf_work(r, 2.0 * (double)a[0] * (double)a[2], 0, SL_F32, (double)a[0] * (double)a[2]);
}

/*
 * Checksums of all rows. In a run for correctness they are random where none would be right by chance: the first third of the
 * pages is right, in the second a few parts of rows are wrong, in the last a few rows have none and the rest are right.
 */
static void check_rows(cf_run *r, sl_gather_params *p, const uint8_t *host, int64_t pages)
{
    int64_t heads = sl_row_lists(&p->rows), blocks = SL_PAGE_TOKENS >> p->rows.block_log2,
            bytes = p->rows.row_bytes, parts = sl_rowsum_parts(bytes), of_page = heads * blocks * parts;
    uint32_t *sums = cf_temp(r, 4 * (size_t)(pages * of_page)), none = 0,
             *marks = cf_temp(r, sl_row_marks_bytes(pages));

    for (int64_t i = 0; i < pages * of_page; i++) {
        int64_t row = i / parts, k = i % parts, page = i / of_page, part = bytes - k * SL_ROWSUM_PART;
        const uint8_t *at = host + page * p->host.page_stride + row / heads % blocks * p->host.row_stride +
                            row % heads * bytes + k * SL_ROWSUM_PART;

        sums[i] = sl_rowsum(at, (size_t)(part < SL_ROWSUM_PART ? part : SL_ROWSUM_PART));
        if (r->perf || page * 3 < pages)
            continue;
        if (page * 3 < pages * 2)
            sums[i] ^= cf_hash(5, i) % 64 ? 0 : 1u << i % 32;
        else if (cf_hash(6, i) % 4 == 0)
            sums[i] = 0;
    }
    memset(marks, 0, sl_row_marks_bytes(pages));
    p->check.sums = cf_host_mem(r, sums, 4 * (size_t)(pages * of_page));
    p->check.pages = cf_mem(r, marks, sl_row_marks_bytes(pages));
    p->check.any = cf_host_mem(r, &none, 4);
}

#define BLOCKS 7
enum { UNCOUNTED = 1, CHECKED = 2 };
/* n rows, pages, row bytes, row stride, cap, KV heads with rows of their own, log2 of a block's tokens, flags:
 * without counters of blocks; with checksums */
static void gather(cf_run *r, const int64_t *a)
{
    sl_gather_params p = {.miss_cap = (int32_t)a[4]};
    int64_t all = a[1] * (64 >> a[6]) * (a[5] ? a[5] : 1);
    size_t arena;
    int32_t count = (int32_t)a[0], *dst;
    int64_t *src;
    uint8_t *host;

    p.rows = (sl_row_view){
        .row_bytes = a[2], .hot_base = 0, .hot_rows = (int32_t)(a[0] < 60000 ? a[0] + 10 : 60000)};
    p.rows.heads = (int32_t)a[5];
    p.rows.hot_rows -= a[5] ? p.rows.hot_rows % p.rows.heads : 0;
    p.rows.block_log2 = (int32_t)a[6];
    p.host.row_stride = a[3];
    p.host.page_stride = (64 >> a[6]) * a[3] + 32;
    arena = (size_t)(a[1] * p.host.page_stride);
    host = cf_temp(r, arena);
    for (size_t i = 0; i + 8 <= arena; i += 8) {
        uint64_t h = cf_hash(1, (int64_t)i);

        memcpy(host + i, &h, 8);
    }
    p.host.base = cf_host_mem(r, host, arena);
    p.rows.base = cf_mem(r, NULL, (size_t)((a[0] + 10) * a[2]));
    src = cf_temp(r, 8 * (size_t)(a[4] + 1));
    dst = cf_temp(r, 4 * (size_t)(a[4] + 1 + BLOCKS));
    memset(dst, 0xff, 4 * (size_t)(a[4] + 1));
    for (int64_t i = 0; i < a[0] && i < a[4]; i++) {
        src[i] = i * all / a[0] + (int64_t)(cf_hash(2, i) % (uint64_t)(all / a[0]));
        dst[i] = (int32_t)((i * 7 + 3) % (a[0] + 10));
        if ((a[0] + 10) % 7 == 0)
            dst[i] = (int32_t)i;
    }
    p.miss_src = cf_mem(r, src, 8 * (size_t)(a[4] + 1));
    p.miss_dst = cf_mem(r, dst, 4 * (size_t)(a[4] + 1));
    p.miss_count = cf_mem(r, &count, 4);
    for (int64_t i = 0; i <= a[4]; i++) /* row i belongs to block i % BLOCKS */
        dst[i] = (int32_t)(i % BLOCKS);
    if (!(a[7] & UNCOUNTED))
        p.miss_block = cf_mem(r, dst, 4 * (size_t)(a[4] + 1));
    memset(dst, 0, 4 * BLOCKS);
    if (!(a[7] & UNCOUNTED))
        p.block_done = cf_mem(r, dst, 4 * BLOCKS);
    if (a[7] & CHECKED)
        check_rows(r, &p, host, a[1]);
    cf_op(r, SL_OP_GATHER, &p);
    cf_work(r, 2.0 * (double)a[0] * (double)a[2], 0, SL_F32,
            (double)a[0] * ((double)a[2] + (a[7] & CHECKED ? 4 : 0)));
    cf_out(r, "rows", p.rows.base, a[0] + 10, (size_t)a[2], (size_t)a[2], CF_BYTES, 0);
    if (!r->perf && !(a[7] & UNCOUNTED))
        cf_out(r, "block_done", p.block_done, 1, 4 * BLOCKS, 4 * BLOCKS, CF_BYTES, 0);
    if (!(a[7] & CHECKED))
        return;
    size_t marks = sl_row_marks_bytes(a[1]);
    cf_out(r, "damaged pages", p.check.pages, 1, marks, marks, CF_BYTES, 0);
    cf_out(r, "any damage", p.check.any, 1, 4, 4, CF_BYTES, 0);
}

static const cf_case cases[] = {
    {SL_OP_GATHER, "n=1 row=16", gather, {1, 1, 16, 16, 1}, 0},
    {SL_OP_GATHER, "n=333 row=656", gather, {333, 40, 656, 656, 400}, 0},
    {SL_OP_GATHER, "n=200 row=36 stride=40", gather, {200, 10, 36, 40, 200}, 0},
    {SL_OP_GATHER, "n=100 row=1152 more than cap", gather, {100, 10, 1152, 1200, 60}, 0},
    {SL_OP_GATHER, "n=120 row=64 heads=5", gather, {120, 10, 64, 360, 120, 5, 0}, 0},
    {SL_OP_GATHER, "n=60 row=512 heads=2 blocks", gather, {60, 20, 512, 1024, 60, 2, 4}, 0},
    {SL_OP_GATHER, "n=60 row=8192 heads=8 blocks", gather, {60, 3, 8192, 65536, 60, 8, 4, 1}, 0},
    {SL_OP_GATHER, "n=300 row=2064 heads=3", gather, {300, 3, 2064, 6224, 300, 3, 0, 1}, 0},
    {SL_OP_GATHER, "n=150 row=6240", gather, {150, 4, 6240, 6240, 150, 0, 0, 1}, 0},
    {SL_OP_GATHER, "n=70 row=4224 heads=2 blocks counted", gather, {70, 10, 4224, 8448, 70, 2, 4, 0}, 0},
    {SL_OP_GATHER, "n=20 row=2084 blocks", gather, {20, 10, 2084, 2084, 20, 0, 3, 1}, 0},
    {SL_OP_GATHER, "n=333 row=656 checked", gather, {333, 40, 656, 656, 400, 0, 0, 2}, 0},
    {SL_OP_GATHER, "n=333 row=1152 far checked", gather, {333, 40, 1152, 3456, 400, 0, 0, 2}, 0},
    {SL_OP_GATHER, "n=200 row=36 stride=40 checked", gather, {200, 10, 36, 40, 200, 0, 0, 3}, 0},
    {SL_OP_GATHER, "n=120 row=64 heads=5 checked", gather, {120, 10, 64, 360, 120, 5, 0, 2}, 0},
    {SL_OP_GATHER, "n=60 row=8192 heads=8 blocks checked", gather, {60, 9, 8192, 65536, 60, 8, 4, 3}, 0},
    {SL_OP_GATHER, "n=150 row=6240 checked", gather, {150, 9, 6240, 6240, 150, 0, 0, 3}, 0},
    {SL_OP_GATHER, "n=70 row=4224 heads=2 counted checked", gather, {70, 10, 4224, 8448, 70, 2, 4, 2}, 0},
    {SL_OP_GATHER, "n=20 row=2084 blocks checked", gather, {20, 12, 2084, 2084, 20, 0, 3, 3}, 0},
    {SL_OP_GATHER, "n=2000 row=656", gather, {2000, 4000, 656, 656, 2000}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=2000 row=656 checked", gather, {2000, 4000, 656, 656, 2000, 0, 0, 2}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=32000 row=656", gather, {32000, 8000, 656, 656, 32000}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=32000 row=656 checked", gather, {32000, 8000, 656, 656, 32000, 0, 0, 2}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=32 row=8192", gather, {32, 400, 8192, 65536, 32, 8, 4, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=128 row=8192", gather, {128, 400, 8192, 65536, 128, 8, 4, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=1000 row=8192", gather, {1000, 400, 8192, 65536, 1000, 8, 4, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=8000 row=8192", gather, {8000, 400, 8192, 65536, 8000, 8, 4, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=8000 row=8192 checked", gather, {8000, 400, 8192, 65536, 8000, 8, 4, 3}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=1000 row=4096", gather, {1000, 100, 4096, 4096, 1000, 0, 0, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=8000 row=512 heads=8", gather, {8000, 100, 512, 4096, 8000, 8, 0, 1}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=2000 48 GiB arena", gather_perf, {2000, 16750, 656, 3076352}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=6000 48 GiB arena", gather_perf, {6000, 16750, 656, 3076352}, CF_PERF_ONLY},
    {SL_OP_GATHER, "n=32000 48 GiB arena", gather_perf, {32000, 16750, 656, 3076352}, CF_PERF_ONLY},
};

const cf_table cf_gather_cases = {cases, SL_COUNT(cases)};
