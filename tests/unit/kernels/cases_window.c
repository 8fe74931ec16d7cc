/* Conformance cases of selection by an observation window: votes of a prompt, and lists made of what was kept. */
#include <string.h>

#include "kernels/gqa.h"
#include "kernels/window.h"
#include "tests/unit/kernels/batch.h"
#include "tests/unit/kernels/ref.h"

/* 1, tokens, window, heads, KV heads, dim, format, rows by head, kernel, pooling */
static void votes(cf_run *r, const int64_t *a)
{
    sl_window_votes_params p = {.tokens = (int32_t)a[1],
                                .window = (int32_t)a[2],
                                .heads = (int32_t)a[3],
                                .kv_heads = (int32_t)a[4],
                                .dim = (int32_t)a[5],
                                .ld_votes = (int32_t)a[1] + 3,
                                .kernel = (int32_t)a[8],
                                .pooling = (sl_pooling)a[9],
                                .scale = 0.3f,
                                .format = (sl_row_format)a[6]};
    const sl_key_source keys = batch_keys(r, p.tokens, p.kv_heads, p.dim, p.format, a[7] != 0, false, 0, 41);
    const double bytes = (double)(sl_pages_for(p.tokens) + 1) * SL_PAGE_TOKENS *
                         (double)sl_row_lists(&keys.rows) * (double)keys.rows.row_bytes;

    p.rows = keys.rows;
    p.row_pages = keys.pages;
    p.q = cf_matrix(r, 43, 0, p.window, (int64_t)p.heads * p.dim, (int64_t)p.heads * p.dim, SL_F32, 2);
    p.votes = cf_mem(r, NULL, 4 * (size_t)p.kv_heads * (size_t)p.ld_votes);
    cf_op(r, SL_OP_WINDOW_VOTES, &p);
    cf_work(r, bytes, 2.0 * (double)p.tokens * (double)p.window * (double)(p.heads * p.dim), SL_F32, 0);
    cf_out(r, "votes", p.votes, p.kv_heads, 4 * (size_t)(p.tokens - p.window), 4 * (size_t)p.ld_votes, CF_F32,
           1e-5);
}

/* T, per, length, lists, window, output, dense_below, kept tokens of a list, tokens of a prompt */
static void lists(cf_run *r, const int64_t *a)
{
    batch b;
    const int32_t n_kept = (int32_t)a[7], prompt = (int32_t)a[8];

    batch_make(r, &b, a[0], a[1], a[2], 0);
    int32_t *prompts = cf_temp(r, 8 * (size_t)b.seqs);
    int32_t *kept = cf_temp(r, 4 * (size_t)(b.seqs * a[3] * (n_kept + 1)));
    for (int64_t s = 0; s < b.seqs; s++) {
        prompts[2 * s] = prompt + (int32_t)s, prompts[2 * s + 1] = n_kept - (n_kept > 0 && s % 2);
        for (int64_t l = 0; l < a[3]; l++)
            for (int32_t i = 0; i < n_kept; i++)
                kept[(s * a[3] + l) * (n_kept + 1) + i] = 2 * i + (int32_t)((s + l) % 2);
    }
    sl_kept_lists_params p = {.seqs = &b.t,
                              .prompts = cf_mem(r, prompts, 8 * (size_t)b.seqs),
                              .kept = cf_mem(r, kept, 4 * (size_t)(b.seqs * a[3] * (n_kept + 1))),
                              .token_count = (int32_t)r->n,
                              .lists = (int32_t)a[3],
                              .ld_kept = n_kept + 1,
                              .ld_ids = (int32_t)a[2] + 5,
                              .window = (int32_t)a[4],
                              .output = (int32_t)a[5],
                              .dense_below = (int32_t)a[6]};
    const size_t out = 4 * (size_t)p.lists * (size_t)p.ld_ids;

    p.ids = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_KEPT_LISTS, &p);
    cf_out_tokens(r, "ids", p.ids, out, CF_BYTES, 0);
}

/* One wrong field at a time. */
static void bad_votes(cf_run *r, const int64_t *a)
{
    float some[64] = {0};
    const int32_t page = 0;
    (void)a;
    const sl_window_votes_params good = {
        .q = cf_mem(r, some, sizeof some),
        .row_pages = cf_mem(r, &page, sizeof page),
        .rows = {.base = cf_mem(r, some, sizeof some), .row_bytes = sl_gqa_row_bytes(SL_ROW_GQA_F32, 1, 2)},
        .votes = cf_mem(r, some, sizeof some),
        .tokens = 3,
        .window = 1,
        .heads = 1,
        .kv_heads = 1,
        .dim = 2,
        .ld_votes = 2,
        .kernel = 1,
        .scale = 1,
        .format = SL_ROW_GQA_F32};
    sl_window_votes_params p = good;
    p.kernel = 2;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "kernel");
    p = good, p.window = 3;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "tokens");
    p = good, p.ld_votes = 1;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "ld_votes");
    p = good, p.scale = 0;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "scale");
    p = good, p.pooling = (sl_pooling)2;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "pooling");
    p = good, p.rows.block_log2 = 1;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_UNSUPPORTED, "block_log2");
    p = good, p.rows.row_bytes = 4;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_INVALID, "row_bytes");
    p = good, p.format = SL_ROW_MLA_F32;
    cf_refused(r, SL_OP_WINDOW_VOTES, &p, SL_ERR_UNSUPPORTED, "format");
}

/* 1, which field */
static void bad_lists(cf_run *r, const int64_t *a)
{
    const int32_t zeros[8] = {0}, pos = 5;
    const sl_seq_tables seqs = {.n_tokens = 1,
                                .n_seqs = 1,
                                .ld = 1,
                                .token_seq = cf_mem(r, zeros, sizeof zeros),
                                .token_pos = cf_mem(r, &pos, sizeof pos)};
    sl_kept_lists_params p = {.seqs = &seqs,
                              .prompts = cf_mem(r, zeros, sizeof zeros),
                              .ids = cf_mem(r, NULL, sizeof zeros),
                              .token_count = 1,
                              .lists = 1,
                              .ld_ids = a[1] ? 6 : 5, /* of six tokens */
                              .window = a[1] ? 0 : 1};
    cf_refused(r, SL_OP_KEPT_LISTS, &p, SL_ERR_INVALID, a[1] ? "window" : "ids");
}

/* Host pages of NaN, and kept tokens that differ by list; after the second one `jump` more tokens are skipped. */
static void stored(cf_run *r, const batch *b, int32_t n_kept, int32_t jump, const int32_t *prompts,
                   sl_kept_store_params *p)
{
    int32_t *kept = cf_temp(r, 4 * (size_t)(b->seqs * p->lists * (n_kept + 1)));

    for (int64_t i = 0; i < b->seqs * p->lists; i++)
        for (int32_t k = 0; k < n_kept; k++)
            kept[i * (n_kept + 1) + k] = 2 * k + (int32_t)(i % 2) + (k > 1 ? jump : 0);
    p->ld_kept = n_kept + 1;
    p->prompts = cf_mem(r, prompts, 8 * (size_t)b->seqs);
    p->kept = cf_mem(r, kept, 4 * (size_t)(b->seqs * p->lists * (n_kept + 1)));
    p->host.page_stride = p->lists * (int64_t)p->unit_bytes + 16;
    p->host.row_stride = p->lists * (int64_t)p->unit_bytes;
    p->host.base = cf_host_mem(r, NULL, (size_t)(b->pages * p->host.page_stride));
}

/* T, per, length, lists, kept tokens, skipped tokens, room for gaps. Two of three prompts end in the step. */
static void store(cf_run *r, const int64_t *a)
{
    batch b;
    sl_kept_store_params p = {
        .seqs = &b.t, .lists = (int32_t)a[3], .unit_bytes = (int32_t)(SL_KEPT_HEADER + 2 * a[6])};

    batch_make(r, &b, a[0], a[1], a[2], 0);
    int32_t *prompts = cf_temp(r, 8 * (size_t)b.seqs);
    for (int64_t s = 0; s < b.seqs; s++) {
        prompts[2 * s] = batch_last(&b, s) + 1 - (int32_t)(s % 3 < 2 ? s * 7 % a[1] : -5);
        prompts[2 * s + 1] = (int32_t)(a[4] > 0 ? a[4] - s % 2 : 0);
    }
    stored(r, &b, (int32_t)a[4], (int32_t)a[5], prompts, &p);
    cf_op(r, SL_OP_KEPT_STORE, &p);
    cf_out(r, "pages", p.host.base, b.pages, (size_t)p.host.page_stride, (size_t)p.host.page_stride, CF_BYTES,
           0); /* nothing else was touched */
}

/* Gaps that do not fit, kept tokens that do not ascend, and sizes that cannot be. */
static void bad_store(cf_run *r, const int64_t *a)
{
    const int32_t prompt[] = {6, 3}, falls[] = {4, 2, 5}, pos = 5;
    batch b;
    sl_kept_store_params p = {.seqs = &b.t, .lists = 1, .unit_bytes = SL_KEPT_HEADER + 4};

    (void)a;
    batch_make(r, &b, 1, 1, 6, 0);
    b.t.token_pos = cf_mem(r, &pos, sizeof pos);
    stored(r, &b, 3, 0, prompt, &p);
    cf_refused(r, SL_OP_KEPT_STORE, &p, SL_ERR_INVALID, "ids");
    p.unit_bytes = SL_KEPT_HEADER + 8;
    p.kept = cf_mem(r, falls, sizeof falls);
    cf_refused(r, SL_OP_KEPT_STORE, &p, SL_ERR_INVALID, "ids");
    p.unit_bytes = 6;
    cf_refused(r, SL_OP_KEPT_STORE, &p, SL_ERR_INVALID, "unit_bytes");
    p.unit_bytes = SL_KEPT_HEADER, p.host.page_stride = 4;
    cf_refused(r, SL_OP_KEPT_STORE, &p, SL_ERR_INVALID, "page_stride");
}

#define G4 SL_ROW_GQA_F32
#define G2 SL_ROW_GQA_BF16
#define G1 SL_ROW_GQA_FP8
#define AVG SL_POOLING_AVG
#define MAX SL_POOLING_MAX
/* One line for each case, which clang-format would break up. */
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_WINDOW_VOTES, "n=2 w=1 h=1 d=2", votes, {1, 2, 1, 1, 1, 2, G4, 1, 1, AVG}, CF_FIX_ALL},
    {SL_OP_WINDOW_VOTES, "n=150 w=32 h=14 kv=2 d=64 f32", votes, {1, 150, 32, 14, 2, 64, G4, 1, 5, AVG}, CF_FIX_ALL},
    {SL_OP_WINDOW_VOTES, "n=129 w=16 h=6 kv=3 d=14 bf16", votes, {1, 129, 16, 6, 3, 14, G2, 1, 7, MAX}, CF_FIX_ALL},
    {SL_OP_WINDOW_VOTES, "n=200 w=8 h=8 kv=4 d=32 fp8 kernel 63", votes, {1, 200, 8, 8, 4, 32, G1, 1, 63, MAX}, CF_FIX_ALL},
    {SL_OP_WINDOW_VOTES, "n=70 w=3 h=4 kv=4 d=16 f32 all heads kernel wider than the prompt", votes, {1, 70, 3, 4, 4, 16, G4, 0, 199, AVG}, CF_FIX_ALL},
    {SL_OP_WINDOW_VOTES, "refuses bad shapes", bad_votes, {1}, 0},
    {SL_OP_KEPT_STORE, "T=1 lists=1", store, {1, 1, 1, 1, 1, 0, 2}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "T=24 lists=2", store, {24, 6, 150, 2, 12, 0, 20}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "T=600 lists=3 several pages", store, {600, 150, 400, 3, 300, 0, 302}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "T=40 lists=2 long gaps", store, {40, 10, 200, 2, 40, 200000, 44}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "T=24 lists=2 gap of 65535", store, {24, 6, 150, 2, 5, 65534, 6}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "T=24 lists=2 nothing kept", store, {24, 6, 60, 2, 0, 0, 2}, CF_FIX_ALL},
    {SL_OP_KEPT_STORE, "refuses what cannot be stored", bad_store, {1}, 0},
    {SL_OP_KEPT_LISTS, "refuses a short list", bad_lists, {1, 0}, 0},
    {SL_OP_KEPT_LISTS, "refuses an empty window", bad_lists, {1, 1}, 0},
    {SL_OP_KEPT_LISTS, "T=1", lists, {1, 1, 60, 1, 4, 0, 0, 5, 20}, CF_SPLIT},
    {SL_OP_KEPT_LISTS, "T=24 lists=2", lists, {24, 6, 90, 2, 8, 0, 0, 12, 40}, CF_SPLIT},
    {SL_OP_KEPT_LISTS, "T=24 lists=3 output=7", lists, {24, 6, 150, 3, 8, 7, 0, 12, 40}, CF_SPLIT},
    {SL_OP_KEPT_LISTS, "T=20 lists=2 dense below 80", lists, {20, 5, 150, 2, 1, 1, 80, 12, 30}, CF_SPLIT},
    {SL_OP_KEPT_LISTS, "T=20 lists=2 short prompts", lists, {20, 5, 60, 2, 32, 9, 0, 0, 4}, CF_SPLIT},
};
/* clang-format on */

const cf_table cf_window_cases = {cases, SL_COUNT(cases)};
