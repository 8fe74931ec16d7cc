/* Batches of batch.h. */
#include "tests/unit/kernels/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/gqa.h"
#include "kernels/turns.h"

static int64_t start_of(const batch *b, int64_t seq)
{
    int64_t room = b->length - b->per;

    return seq == 0 ? 0 : seq == 1 ? room : (int64_t)(cf_hash(77, seq) % (uint64_t)(room + 1));
}

int32_t batch_last(const batch *b, int64_t seq)
{
    return b->full ? (int32_t)b->length - 1 : (int32_t)(start_of(b, seq) + b->per - 1);
}

int32_t batch_page(const batch *b, const int32_t *table, int64_t seq, int64_t pos)
{
    return table[seq * b->ld + pos / SL_PAGE_TOKENS];
}

static int32_t *table(cf_run *r, const batch *b, int shift, const int32_t **device)
{
    int32_t *t = cf_temp(r, 4 * (size_t)(b->seqs * b->ld));

    for (int64_t s = 0; s < b->seqs; s++)
        for (int64_t j = 0; j < b->ld; j++) {
            int64_t i = s * b->ld + j;

            t[i] = j * SL_PAGE_TOKENS > batch_last(b, s)
                       ? -1
                       : (int32_t)((b->pages - 1 - (i ^ 1) + shift) % b->pages);
        }
    *device = cf_mem(r, t, 4 * (size_t)(b->seqs * b->ld));
    return t;
}

void batch_make(cf_run *r, batch *b, int64_t total, int64_t per, int64_t length, int hier)
{
    *b = (batch){.per = per, .seqs = total / per, .length = length};
    b->ld = sl_pages_for(length) + 1;
    b->pages = (int32_t)((b->seqs * b->ld + 3) & ~1);
    b->seq = cf_temp(r, 4 * (size_t)r->n);
    b->pos = cf_temp(r, 4 * (size_t)r->n);
    b->hot_slot = cf_temp(r, 4 * (size_t)b->seqs);
    for (int64_t i = 0; i < r->n; i++) {
        int64_t g = r->first + i;

        b->seq[i] = (int32_t)(g / per);
        b->pos[i] = (int32_t)(start_of(b, g / per) + g % per);
    }
    for (int64_t s = 0; s < b->seqs; s++)
        b->hot_slot[s] = hier == 2 ? (int32_t)s : hier && s % 2 ? (int32_t)(s / 2) : -1;
    b->host_pages = table(r, b, 0, &b->t.host_pages);
    b->index_pages = table(r, b, 1, &b->t.index_pages);
    b->row_pages = table(r, b, 2, &b->t.row_pages);
    b->t.n_tokens = (int32_t)r->n;
    b->t.n_seqs = (int32_t)b->seqs;
    b->t.ld = b->ld;
    b->t.token_seq = cf_mem(r, b->seq, 4 * (size_t)r->n);
    b->t.token_pos = cf_mem(r, b->pos, 4 * (size_t)r->n);
    b->t.hot_slot = cf_mem(r, b->hot_slot, 4 * (size_t)b->seqs);
}

void batch_full(cf_run *r, batch *b)
{
    int32_t *tables[] = {b->host_pages, b->index_pages, b->row_pages};
    const int32_t *device[] = {b->t.host_pages, b->t.index_pages, b->t.row_pages};

    b->full = true;
    for (int64_t i = 0; i < r->n; i++)
        b->pos[i] = (int32_t)b->length - 1;
    cf_put(r, (void *)(uintptr_t)b->t.token_pos, b->pos, 4 * (size_t)r->n);
    for (size_t k = 0; k < SL_COUNT(tables); k++) {
        for (int64_t i = 0; i < b->seqs * b->ld; i++)
            tables[k][i] = (int32_t)i; /* pages >= seqs * ld */
        cf_put(r, (void *)(uintptr_t)device[k], tables[k], 4 * (size_t)(b->seqs * b->ld));
    }
}

void batch_rows(cf_run *r, batch *b, const int64_t *a, sl_gqa_append_params *rows)
{
    int64_t heads = a[3], dim = a[4], width = heads * dim, lists = a[8] & BATCH_BY_HEAD ? heads : 1;

    *rows = (sl_gqa_append_params){
        .heads = (int32_t)heads, .dim = (int32_t)dim, .format = (sl_row_format)a[5], .act = SL_F32};
    rows->rows.heads = a[8] & BATCH_BY_HEAD ? (int32_t)heads : 0;
    rows->rows.block_log2 = (int32_t)a[8] % BATCH_BY_HEAD;
    int64_t blocks = 64 >> rows->rows.block_log2,
            row = sl_gqa_row_bytes(rows->format, sl_gqa_row_slots(&rows->rows, rows->heads), rows->dim);

    batch_make(r, b, a[0], a[1], a[2], (int)a[7]);
    rows->seqs = &b->t;
    rows->rows.row_bytes = row;
    rows->rows.hot_base = (int32_t)(b->pages * blocks * lists);
    rows->rows.hot_rows = (int32_t)(5 * lists);
    rows->rows.tail_rows = (int32_t)(2 * lists);
    rows->rows.base = cf_mem(
        r, NULL,
        (size_t)((rows->rows.hot_base + b->seqs * (rows->rows.hot_rows + rows->rows.tail_rows)) * row));
    rows->host = (sl_host_plane){.row_stride = lists * row + 16};
    rows->host.page_stride = blocks * rows->host.row_stride + 48;
    rows->host.base = cf_host_mem(r, NULL, (size_t)(b->pages * rows->host.page_stride));
    rows->k = cf_matrix(r, 1, r->first, r->n, width, width, SL_F32, 2);
    rows->v = cf_matrix(r, 2, r->first, r->n, width, width, SL_F32, 2);
    rows->key.cos_sin = cf_cos_sin(r, (int32_t)a[2], (int32_t)dim);
    cf_op(r, SL_OP_GQA_APPEND, rows);
}

/* ---- rows of keys and values ---- */

void batch_put_token(const sl_row_view *rows, sl_row_format format, int32_t heads, int32_t dim, int32_t slot,
                     batch_values from, uint8_t *row)
{
    const int32_t in_row = sl_gqa_row_heads(rows, heads), slots = sl_gqa_row_slots(rows, heads),
                  width = heads * dim;
    float *k = malloc(8 * (size_t)width), *v = k + width;

    SL_CHECK(k, "out of memory");
    for (int64_t i = 0; i < width; i++) {
        k[i] = 2 * cf_uniform(from.keys, from.key_at * 4099 + i);
        v[i] = 2 * cf_uniform(from.values, from.value_at * 4099 + i);
    }
    for (int32_t h = 0; h < heads; h += in_row, row += rows->row_bytes)
        sl_gqa_row_encode(format, slots, dim, slot * in_row, in_row, k + (int64_t)h * dim,
                          v + (int64_t)h * dim, row);
    free(k);
}

void batch_pages(cf_run *r, const batch *b, sl_row_view *rows, sl_row_format format, int32_t heads,
                 int32_t dim, bool whole)
{
    const int64_t lists = sl_row_lists(rows), size = 1 << rows->block_log2;
    const size_t bytes = (size_t)(b->pages * (SL_PAGE_TOKENS / size) * lists * rows->row_bytes);
    uint8_t *to = memset(cf_temp(r, bytes), 0xff, bytes);

    for (int64_t s = 0; s < b->seqs; s++) {
        const int64_t last = batch_last(b, s),
                      end = whole ? last / SL_PAGE_TOKENS * SL_PAGE_TOKENS + SL_PAGE_TOKENS : last + 1;
        for (int64_t j = 0; j < end; j++) {
            const int64_t token =
                (int64_t)b->row_pages[s * b->ld + j / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + j % SL_PAGE_TOKENS;
            batch_put_token(rows, format, heads, dim, (int32_t)(j % size),
                            (batch_values){5, 8, s * 8192 + j, s * 8192 + j},
                            to + token / size * lists * rows->row_bytes);
        }
    }
    rows->base = cf_mem(r, to, bytes);
}

sl_key_source batch_keys(cf_run *r, int32_t tokens, int32_t heads, int32_t dim, sl_row_format format,
                         bool by_head, bool host, int32_t distinct, uint32_t keys)
{
    sl_key_source s = {.heads = heads, .dim = dim, .format = format};
    const int32_t n_pages = sl_pages_for(tokens);
    int32_t *pages = cf_temp(r, 4 * (size_t)n_pages);

    s.rows.heads = by_head ? heads : 0;
    s.rows.row_bytes = sl_gqa_row_bytes(format, sl_gqa_row_slots(&s.rows, heads), dim);
    const int64_t of_token = sl_row_lists(&s.rows) * s.rows.row_bytes;
    const size_t bytes = (size_t)(n_pages + 1) * SL_PAGE_TOKENS * (size_t)of_token;
    uint8_t *rows = memset(cf_temp(r, bytes), 0xff, bytes); /* rows of other tokens are NaN */
    for (int32_t i = 0; i < n_pages; i++)
        pages[i] = n_pages - i;
    for (int64_t t = 0; t < tokens; t++)
        batch_put_token(
            &s.rows, format, heads, dim, 0,
            (batch_values){keys, keys + 1, distinct ? (int64_t)(cf_hash(53, t) % (uint64_t)distinct) : t, t},
            rows + ((int64_t)pages[t / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + t % SL_PAGE_TOKENS) * of_token);
    s.pages = cf_mem(r, pages, 4 * (size_t)n_pages);
    if (host)
        s.host = (sl_host_plane){.base = cf_host_mem(r, rows, bytes),
                                 .page_stride = SL_PAGE_TOKENS * of_token,
                                 .row_stride = of_token};
    else
        s.rows.base = cf_mem(r, rows, bytes);
    return s;
}

/* ---- turns ---- */

enum { KEPT = 4 };

/* Fails unless the op's parts of all states are equal. */
static void same(cf_run *r, const batch *b, const batch_op *o, int64_t k, const void *got, const void *want)
{
    const size_t bytes = (size_t)(b->seqs * o->stride);
    uint8_t *x = cf_temp(r, bytes), *y = cf_temp(r, bytes);

    cf_get(r, x, got, bytes);
    cf_get(r, y, want, bytes);
    for (int64_t s = 0; r->st == SL_OK && s < b->seqs; s++)
        if (memcmp(x + s * o->stride, y + s * o->stride, (size_t)(o->stride - o->pad)) != 0)
            cf_fail(r, "version %d of a state differs", (int)k);
}

/* token_seq of the tokens that have from `low` to `high` tokens of their sequence from them on, themselves included. */
static void those(const batch *b, int64_t n, int64_t low, int64_t high, int32_t *out)
{
    for (int64_t t = 0; t < n; t++) {
        const int64_t left = b->per - t % b->per;

        out[t] = left >= low && left <= high ? b->seq[t] : -1;
    }
}

/* The states after a step without its last k tokens of each sequence. */
static void version(cf_run *r, const batch *b, const batch_op *o, const uint8_t *before, int64_t k,
                    const uint8_t *got)
{
    const size_t bytes = (size_t)(b->seqs * o->stride);
    sl_seq_tables less = b->t;
    int32_t *seq = cf_temp(r, 4 * (size_t)r->n);

    those(b, r->n, k + 1, b->per, seq);
    less.token_seq = cf_mem(r, seq, 4 * (size_t)r->n);
    *o->seqs = &less;
    *o->state = cf_mem(r, before, bytes);
    cf_op(r, o->op, o->params);
    same(r, b, o, k, got, *o->state);
}

void batch_in_turns(cf_run *r, const batch *b, const batch_op *o, const uint8_t *after)
{
    const size_t bytes = (size_t)(b->seqs * o->stride);
    const int64_t kept = b->per < KEPT ? b->per : KEPT;
    sl_turns turns = {
        .n = (int32_t)(kept + (b->per > kept)), .kept = (int32_t)kept, .stride = (int64_t)bytes};
    sl_seq_tables t = b->t;

    if (!r->be || r->perf || r->n != b->per * b->seqs)
        return;
    uint8_t *before = cf_temp(r, bytes), *space = cf_mem(r, NULL, (1 + KEPT) * bytes);
    int32_t *seq = cf_temp(r, 4 * (size_t)(turns.n * r->n));
    cf_get(r, before, *o->state, bytes);
    cf_put(r, space, before, bytes);
    for (int32_t i = 0; i < turns.n; i++)
        those(b, r->n, turns.n - i, turns.n - i > kept ? b->per : turns.n - i, seq + i * r->n);
    turns.token_seq = cf_mem(r, seq, 4 * (size_t)(turns.n * r->n));
    t.turns = &turns;
    *o->seqs = &t;
    *o->state = space;
    cf_op(r, o->op, o->params);
    if (after)
        same(r, b, o, 0, space, after);
    for (int64_t k = 1; after && k <= kept; k++)
        version(r, b, o, before, k, space + (size_t)k * bytes);
}
