/* Conformance cases of pages of retained tokens: bounds of complete pages, scores of queries against them, and lists. */
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/retained.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

/* Fields that begin the arguments of every case. */
enum { T, PER, LENGTH, KV, DIM, FORMAT, TYPE, PAGE_LOG2, PROMPT, KEPT, WINDOW, OWN };
enum { ON_DEVICE = OWN + 4 }; /* of scores: keys are in device memory, to see what the host's cost */

/* Host rows of every position of every sequence; those of all heads in one row when a format's case asks for it. */
static void host_rows(cf_run *r, const batch *b, const int64_t *a, sl_retained *x)
{
    const int32_t lists = sl_row_lists(&x->rows);

    x->host_rows = (sl_host_plane){.row_stride = lists * x->rows.row_bytes + 16};
    x->host_rows.page_stride = SL_PAGE_TOKENS * x->host_rows.row_stride + 48;
    const size_t bytes = (size_t)(b->pages * x->host_rows.page_stride);
    uint8_t *rows = cf_temp(r, bytes);
    memset(rows, 0xff, bytes); /* rows of other tokens are NaN */
    for (int64_t s = 0; s < b->seqs; s++)
        for (int64_t t = 0; t <= batch_last(b, s); t++) {
            uint8_t *at = rows + batch_page(b, b->host_pages, s, t) * x->host_rows.page_stride +
                          t % SL_PAGE_TOKENS * x->host_rows.row_stride;

            batch_put_token(&x->rows, x->format, x->kv_heads, x->dim, 0,
                            (batch_values){51, 52, s * 4099 + t, t}, at);
        }
    x->host_rows.base = a[ON_DEVICE] ? cf_mem(r, rows, bytes) : cf_host_mem(r, rows, bytes);
}

/* Prompts of PROMPT and more tokens with KEPT kept tokens, other ones for each head; bounds are NaN. */
static void retained(cf_run *r, const batch *b, const int64_t *a, bool by_head, sl_retained *x)
{
    int32_t *prompts = cf_temp(r, 8 * (size_t)b->seqs);
    int32_t *kept = cf_temp(r, 4 * (size_t)(b->seqs * a[KV] * (a[KEPT] + 1)));

    *x = (sl_retained){.ld_kept = (int32_t)a[KEPT] + 1,
                       .window = (int32_t)a[WINDOW],
                       .page_log2 = (int32_t)a[PAGE_LOG2],
                       .kv_heads = (int32_t)a[KV],
                       .dim = (int32_t)a[DIM],
                       .format = (sl_row_format)a[FORMAT],
                       .type = (sl_kt_type)a[TYPE]};
    x->rows.heads = by_head ? x->kv_heads : 0;
    x->rows.row_bytes = sl_gqa_row_bytes(x->format, sl_gqa_row_slots(&x->rows, x->kv_heads), x->dim);
    for (int64_t s = 0; s < b->seqs; s++) {
        prompts[2 * s] = (int32_t)(a[PROMPT] + s);
        prompts[2 * s + 1] = (int32_t)(a[KEPT] > 0 ? a[KEPT] - s % 2 : 0);
        for (int64_t i = 0; i < a[KV] * (a[KEPT] + 1); i++)
            kept[s * a[KV] * (a[KEPT] + 1) + i] =
                (int32_t)(2 * (i % (a[KEPT] + 1)) + (s + i / (a[KEPT] + 1)) % 2);
    }
    x->prompts = cf_mem(r, prompts, 8 * (size_t)b->seqs);
    x->kept = cf_mem(r, kept, 4 * (size_t)(b->seqs * a[KV] * (a[KEPT] + 1)));
    x->page_stride = sl_retained_page_bytes(x->kv_heads, x->dim, x->page_log2, x->type) + 48;
    x->base = cf_mem(r, NULL, (size_t)(b->pages * x->page_stride));
    host_rows(r, b, a, x);
}

/* rows by head */
static void append(cf_run *r, const int64_t *a)
{
    batch b;
    sl_retained_append_params p = {.seqs = &b.t};

    batch_make(r, &b, a[T], a[PER], a[LENGTH], 0);
    retained(r, &b, a, a[OWN], &p.r);
    cf_op(r, SL_OP_RETAINED_APPEND, &p);
    cf_work(r, (double)b.seqs * (double)(a[KEPT] + a[WINDOW]) * (double)(p.r.rows.row_bytes * a[KV]), 0,
            SL_F32, 0);
    cf_out(r, "bounds", p.r.base, b.pages, (size_t)p.r.page_stride, (size_t)p.r.page_stride, CF_BYTES,
           0); /* nothing else was touched */
}

/* heads, pages of a list, channels, dense_below. The bounds are those that the op makes from a whole sequence. */
static void scores(cf_run *r, const int64_t *a)
{
    batch b;
    const int64_t width = a[OWN] * a[DIM];
    sl_retained_scores_params p = {.seqs = &b.t,
                                   .ld_scores = (int32_t)(a[LENGTH] >> a[PAGE_LOG2]) + 3,
                                   .token_count = (int32_t)r->n,
                                   .heads = (int32_t)a[OWN],
                                   .select = (int32_t)a[OWN + 1],
                                   .top_r = (int32_t)a[OWN + 2],
                                   .dense_below = (int32_t)a[OWN + 3],
                                   .scale = 0.2f};

    batch_make(r, &b, a[T], a[PER], a[LENGTH], 0);
    if (r->perf)
        batch_full(r, &b);
    retained(r, &b, a, true, &p.r);
    int32_t *all = cf_temp(r, 8 * (size_t)(b.seqs * a[LENGTH])), *pos = all + b.seqs * a[LENGTH], n = 0;
    for (int64_t s = 0; s < b.seqs; s++)
        for (int32_t t = (int32_t)(a[PROMPT] + s - 1); t <= batch_last(&b, s); t++)
            all[n] = (int32_t)s, pos[n++] = t;
    sl_seq_tables seqs = b.t;
    seqs.n_tokens = n;
    seqs.token_seq = cf_mem(r, all, 4 * (size_t)n);
    seqs.token_pos = cf_mem(r, pos, 4 * (size_t)n);
    const sl_retained_append_params make = {.seqs = &seqs, .r = p.r};
    cf_op(r, SL_OP_RETAINED_APPEND, &make);
    const size_t out = 4 * (size_t)p.r.kv_heads * (size_t)p.ld_scores;
    p.q = cf_matrix(r, 53, r->first, r->n, width, width, SL_F32, 2);
    p.scores = cf_mem(r, NULL, (size_t)r->n * out);
    p.place = cf_mem(r, NULL, 8 * (size_t)r->n);
    cf_op(r, SL_OP_RETAINED_SCORES, &p);
    cf_work(r, (double)r->n * (double)(a[KV] * p.ld_scores * sl_retained_unit_bytes(p.r.dim, p.r.type)), 0,
            SL_F32, 0);
    cf_out_tokens(r, "scores", p.scores, out, CF_F32, 1e-5);
    cf_out_tokens(r, "sequences", p.place, 4, CF_BYTES, 0);
    cf_out_tokens(r, "retained tokens", p.place + r->n, 4, CF_BYTES, 0);
}

/* pages of a list, dense_below */
static void lists(cf_run *r, const int64_t *a)
{
    batch b;
    const int32_t select = (int32_t)a[OWN];
    sl_retained_lists_params p = {.seqs = &b.t,
                                  .token_count = (int32_t)r->n,
                                  .ld_ids = (int32_t)a[LENGTH] + 5,
                                  .dense_below = (int32_t)a[OWN + 1],
                                  .select = select};

    batch_make(r, &b, a[T], a[PER], a[LENGTH], 0);
    retained(r, &b, a, true, &p.r);
    int32_t *pages = cf_temp(r, 4 * (size_t)(r->n * a[KV] * select));
    for (int64_t i = 0; i < r->n * a[KV]; i++)
        for (int32_t j = 0; j < select; j++) /* ascending; the last lists end early */
            pages[i * select + j] =
                j > 2 && (r->first * a[KV] + i) % 3 == 2 ? -1 : 2 * j + (int32_t)((r->first * a[KV] + i) % 2);
    p.pages = cf_mem(r, pages, 4 * (size_t)(r->n * a[KV] * select));
    const size_t out = 4 * (size_t)p.r.kv_heads * (size_t)p.ld_ids;
    p.ids = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_RETAINED_LISTS, &p);
    cf_out_tokens(r, "ids", p.ids, out, CF_BYTES, 0);
}

/* One wrong field at a time. */
static void bad(cf_run *r, const int64_t *a)
{
    const int64_t shape[ON_DEVICE + 1] = {1, 1, 6, 1, 2, SL_ROW_GQA_F32, SL_KT_BF16, 2, 4, 2, 1, 1};
    const float q[4] = {0};
    batch b;
    sl_retained_scores_params good = {
        .seqs = &b.t, .ld_scores = 4, .token_count = 1, .heads = 2, .select = 1, .top_r = 2, .scale = 1};
    (void)a;
    batch_make(r, &b, 1, 1, 6, 0);
    retained(r, &b, shape, true, &good.r);
    good.q = cf_mem(r, q, sizeof q);
    good.scores = cf_mem(r, NULL, 16);
    good.place = cf_mem(r, NULL, 8);
    sl_retained_scores_params p = good;
    p.top_r = 3;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_INVALID, "top_r");
    p = good, p.select = 0;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_INVALID, "select");
    p = good, p.scale = 0;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_INVALID, "scale");
    p = good, p.r.page_log2 = 7;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_UNSUPPORTED, "page_log2");
    p = good, p.r.type = (sl_kt_type)2;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_UNSUPPORTED, "type");
    p = good, p.r.format = SL_ROW_MLA_F32;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_UNSUPPORTED, "format");
    p = good, p.r.rows.block_log2 = 1;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_UNSUPPORTED, "block_log2");
    p = good, p.r.host_rows.base = NULL;
    cf_refused(r, SL_OP_RETAINED_SCORES, &p, SL_ERR_INVALID, "host_rows.base");
    sl_retained_append_params w = {.seqs = &b.t, .r = good.r};
    w.r.rows.row_bytes = 4;
    cf_refused(r, SL_OP_RETAINED_APPEND, &w, SL_ERR_INVALID, "row_bytes");
    w.r = good.r, w.r.page_stride -= 64;
    cf_refused(r, SL_OP_RETAINED_APPEND, &w, SL_ERR_INVALID, "page_stride");
    w.r = good.r, w.r.window = 0;
    cf_refused(r, SL_OP_RETAINED_APPEND, &w, SL_ERR_INVALID, "window");
}

/* A list of six tokens does not fit into ld_ids 5. */
static void short_list(cf_run *r, const int64_t *a)
{
    const int64_t shape[ON_DEVICE + 1] = {1, 1, 6, 1, 2, SL_ROW_GQA_F32, SL_KT_BF16, 2, 9, 2, 1, 1};
    const int32_t pos = 5, none = -1;
    batch b;
    sl_retained_lists_params p = {.seqs = &b.t, .token_count = 1, .ld_ids = 5, .select = 1};
    (void)a;
    batch_make(r, &b, 1, 1, 6, 0);
    retained(r, &b, shape, true, &p.r);
    b.t.token_pos = cf_mem(r, &pos, sizeof pos);
    p.pages = cf_mem(r, &none, sizeof none);
    p.ids = cf_mem(r, NULL, 32);
    cf_refused(r, SL_OP_RETAINED_LISTS, &p, SL_ERR_INVALID, "ids");
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define E SL_KT_E5M2
#define B SL_KT_BF16
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_RETAINED_APPEND, "T=1 h=1 d=2", append, {1, 1, 1, 1, 2, G4, B, 0, 1, 0, 2, 1}, CF_FIX_ALL},
    {SL_OP_RETAINED_APPEND, "T=120 h=2 d=64 f32 e5m2", append, {120, 40, 150, 2, 64, G4, E, 2, 40, 12, 8, 1}, CF_FIX_ALL},
    {SL_OP_RETAINED_APPEND, "T=120 h=3 d=14 bf16 pages of 1", append, {120, 40, 90, 3, 14, G2, B, 0, 30, 9, 4, 1}, CF_FIX_ALL},
    {SL_OP_RETAINED_APPEND, "T=240 h=4 d=16 fp8 e5m2 all heads", append, {240, 80, 150, 4, 16, G1, E, 3, 70, 25, 16, 0}, CF_FIX_ALL},
    {SL_OP_RETAINED_APPEND, "T=40 h=2 d=8 short prompts", append, {40, 20, 40, 2, 8, G2, E, 1, 3, 0, 8, 1}, CF_FIX_ALL},
    {SL_OP_RETAINED_SCORES, "T=12 h=1 kv=1 d=2", scores, {12, 12, 12, 1, 2, G4, B, 0, 3, 1, 1, 1, 1, 2, 0}, CF_SPLIT},
    {SL_OP_RETAINED_SCORES, "T=18 h=14 kv=2 d=64 e5m2", scores, {18, 6, 300, 2, 64, G2, E, 2, 60, 20, 16, 14, 4, 64, 0}, CF_SPLIT},
    {SL_OP_RETAINED_SCORES, "T=18 h=8 kv=4 d=14 5 channels", scores, {18, 6, 200, 4, 14, G4, B, 2, 50, 12, 8, 8, 3, 5, 0}, CF_SPLIT},
    {SL_OP_RETAINED_SCORES, "T=20 h=6 kv=3 d=16 pages of 1 dense below 60", scores, {20, 5, 120, 3, 16, G1, B, 0, 30, 9, 4, 6, 20, 9, 60}, CF_SPLIT},
    {SL_OP_RETAINED_SCORES, "T=12 h=32 kv=8 d=128 e5m2 pages of 16", scores, {12, 4, 400, 8, 128, G2, E, 4, 90, 25, 32, 32, 2, 100, 0}, CF_SPLIT},
    {SL_OP_RETAINED_SCORES, "T=64 h=32 kv=8 d=128 open pages from the host", scores, {64, 1, 1200, 8, 128, G2, E, 2, 1100, 500, 32, 32, 64, 128, 0, 0}, CF_PERF_ONLY},
    {SL_OP_RETAINED_SCORES, "T=64 h=32 kv=8 d=128 open pages on the device", scores, {64, 1, 1200, 8, 128, G2, E, 2, 1100, 500, 32, 32, 64, 128, 0, 1}, CF_PERF_ONLY},
    {SL_OP_RETAINED_SCORES, "refuses bad shapes", bad, {1}, 0},
    {SL_OP_RETAINED_LISTS, "T=30", lists, {30, 30, 60, 1, 2, G4, B, 2, 20, 5, 4, 3, 0}, CF_SPLIT},
    {SL_OP_RETAINED_LISTS, "T=24 lists=2 pages of 4", lists, {24, 6, 150, 2, 2, G4, B, 2, 40, 12, 8, 5, 0}, CF_SPLIT},
    {SL_OP_RETAINED_LISTS, "T=20 lists=3 pages of 1 dense below 80", lists, {20, 5, 150, 3, 2, G4, B, 0, 30, 12, 1, 9, 80}, CF_SPLIT},
    {SL_OP_RETAINED_LISTS, "T=20 lists=2 short prompts", lists, {20, 5, 60, 2, 2, G4, B, 3, 4, 0, 32, 2, 0}, CF_SPLIT},
    {SL_OP_RETAINED_LISTS, "refuses a short list", short_list, {1}, 0},
};
/* clang-format on */

const cf_table cf_retained_cases = {cases, SL_COUNT(cases)};
