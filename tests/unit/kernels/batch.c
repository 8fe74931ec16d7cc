/* Batches of batch.h. */
#include "tests/unit/kernels/batch.h"

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
