/* See oracle_rig.h. */
#include "tests/unit/sparse/oracle_rig.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/gqa.h"

enum { KV = ORACLE_KV, HEADS = ORACLE_HEADS, DIM = ORACLE_DIM };

void *oracle_put(oracle_rig *r, const void *host, size_t bytes)
{
    void *p = NULL;

    if (r->st != SL_OK)
        return NULL;
    SL_CHECK(r->n_allocs < ORACLE_ALLOCS, "more than %d buffers", ORACLE_ALLOCS);
    r->st = sl_be_alloc(r->in->be, SL_MEM_DEVICE, bytes, &p, r->err);
    if (r->st != SL_OK)
        return NULL;
    r->allocs[r->n_allocs++] = p;
    r->st =
        host ? sl_be_copy(r->in->be, p, host, bytes, r->err) : sl_be_fill(r->in->be, p, 0xff, bytes, r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->in->be, r->err);
    return p;
}

void oracle_run_op(oracle_rig *r, sl_op op, const void *params)
{
    if (r->st == SL_OK)
        r->st = sl_be_run(r->in->be, op, params, r->err);
}

sl_status oracle_done(oracle_rig *r)
{
    while (r->n_allocs > 0)
        sl_be_free(r->in->be, SL_MEM_DEVICE, r->allocs[--r->n_allocs]);
    if (r->host_rows.base)
        sl_be_free(r->in->be, SL_MEM_HOST, r->host_rows.base);
    return r->st;
}

static void make_tables(oracle_rig *r)
{
    const int32_t n = r->in->d->n, pages = r->n_pages;
    int32_t *h = calloc((size_t)(2 * n + pages + 1), sizeof *h);

    SL_CHECK(h, "out of memory");
    for (int32_t i = 0; i < n; i++)
        h[n + i] = i;
    for (int32_t i = 0; i < pages; i++)
        h[2 * n + i] = pages - 1 - i;
    h[2 * n + pages] = -1;
    const int32_t *t = oracle_put(r, h, sizeof *h * (size_t)(2 * n + pages + 1));
    free(h);
    if (r->st != SL_OK)
        return;
    r->all = (sl_seq_tables){.n_tokens = n,
                             .n_seqs = 1,
                             .ld = pages,
                             .token_seq = t,
                             .token_pos = t + n,
                             .host_pages = t + 2 * n,
                             .index_pages = t + 2 * n,
                             .row_pages = t + 2 * n,
                             .hot_slot = t + 2 * n + pages};
    r->last = r->all;
    r->last.n_tokens = 1;
    r->last.token_pos = t + 2 * n - 1;
}

/* Rows of one KV head of 1 << block_log2 tokens. */
static void make_rows(oracle_rig *r, int32_t block_log2)
{
    const oracle_data *d = r->in->d;
    const int32_t slots = 1 << block_log2, in_page = SL_PAGE_TOKENS >> block_log2;
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_BF16, slots, DIM),
                  rows = (int64_t)r->n_pages * in_page * KV;
    uint8_t *h = calloc((size_t)rows, (size_t)row);

    SL_CHECK(h, "out of memory");
    for (int32_t t = 0; t < d->n; t++)
        for (int32_t v = 0; v < KV; v++) {
            int64_t page = r->n_pages - 1 - t / SL_PAGE_TOKENS;
            int64_t block = page * in_page + t % SL_PAGE_TOKENS / slots, at = ((int64_t)t * KV + v) * DIM;
            sl_gqa_row_encode(SL_ROW_GQA_BF16, slots, DIM, t % slots, 1, d->k + at, d->v + at,
                              h + (block * KV + v) * row);
        }
    r->rows = (sl_row_view){.base = oracle_put(r, h, (size_t)(rows * row)),
                            .row_bytes = row,
                            .hot_base = (int32_t)rows,
                            .heads = KV,
                            .block_log2 = block_log2};
    free(h);
}

oracle_rig oracle_rig_make(const oracle_input *in, int32_t block_log2, sl_err *err)
{
    oracle_rig r = {.in = in, .n_pages = sl_pages_for(in->d->n), .st = SL_OK, .err = err};

    make_tables(&r);
    make_rows(&r, block_log2);
    return r;
}

void oracle_need_host_rows(oracle_rig *r)
{
    const int64_t bytes = (int64_t)r->rows.hot_base * r->rows.row_bytes;
    uint8_t *h = NULL;

    if (r->st == SL_OK)
        r->st = sl_be_alloc(r->in->be, SL_MEM_HOST, (uint64_t)bytes, (void **)&h, r->err);
    if (r->st != SL_OK)
        return;
    r->host_rows = (sl_host_plane){h, bytes / r->n_pages, KV * r->rows.row_bytes};
    oracle_read(r, h, r->rows.base, (size_t)bytes);
}

void oracle_read(oracle_rig *r, void *host, const void *from, size_t bytes)
{
    if (r->st == SL_OK)
        r->st = sl_be_copy(r->in->be, host, from, bytes, r->err);
    if (r->st == SL_OK)
        r->st = sl_be_sync(r->in->be, r->err);
}

sl_key_source oracle_keys(const oracle_rig *r)
{
    return (sl_key_source){
        .rows = r->rows, .pages = r->all.row_pages, .heads = KV, .dim = DIM, .format = SL_ROW_GQA_BF16};
}

const int32_t *oracle_vote(oracle_rig *r, int32_t prompt, int32_t kernel, sl_pooling pooling, int32_t kept)
{
    const int32_t before = prompt - ORACLE_WINDOW, last[2] = {0, before - 1};
    sl_window_votes_params v = {
        .q = oracle_put(r, r->in->d->window[r->in->ask], sizeof(float) * ORACLE_WINDOW * ORACLE_HEADS * DIM),
        .row_pages = r->all.row_pages,
        .rows = r->rows,
        .votes = oracle_put(r, NULL, sizeof(float) * (size_t)(KV * before)),
        .tokens = prompt,
        .window = ORACLE_WINDOW,
        .heads = HEADS,
        .kv_heads = KV,
        .dim = DIM,
        .ld_votes = before,
        .kernel = kernel,
        .pooling = pooling,
        .scale = 1 / sqrtf(DIM),
        .format = SL_ROW_GQA_BF16};
    oracle_run_op(r, SL_OP_WINDOW_VOTES, &v);
    sl_seq_tables seqs = r->last;
    seqs.token_seq = oracle_put(r, last, sizeof last);
    seqs.token_pos = seqs.token_seq ? seqs.token_seq + 1 : NULL;
    sl_topk_params t = {.scores = v.votes,
                        .seqs = &seqs,
                        .ids = oracle_put(r, NULL, sizeof(int32_t) * (size_t)(KV * kept)),
                        .token_count = 1,
                        .k = kept,
                        .ld_scores = before,
                        .ld_ids = kept,
                        .lists = KV};
    oracle_run_op(r, SL_OP_TOPK, &t);
    return t.ids;
}

void oracle_take(oracle_rig *r, const int32_t *ids, int32_t lists, int32_t ld, int32_t block_log2,
                 uint8_t *out)
{
    const int32_t n = r->in->d->n, size = 1 << block_log2;
    int32_t *h = malloc(sizeof *h * (size_t)(lists * ld));

    SL_CHECK(h, "out of memory");
    oracle_read(r, h, ids, sizeof *h * (size_t)(lists * ld));
    for (int32_t head = 0; head < HEADS && r->st == SL_OK; head++)
        for (int32_t i = 0; i < ld; i++) {
            int32_t id = h[head * lists / HEADS * ld + i];
            for (int32_t t = id * size; id >= 0 && t < (id + 1) * size && t < n; t++)
                out[(int64_t)head * n + t] = 1;
        }
    free(h);
}
