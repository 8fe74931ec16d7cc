/*
 * Resident attention for tests: append rows and keys, score, select, translate, attend.
 */
#include "attend_resident.h"

#include <stdlib.h>
#include <string.h>

#define SLICE 64 /* tokens scored at a time */

struct sl_resident {
    sl_backend *be;
    sl_model *m;
    int32_t max_seqs, max_len, pages_per_seq, max_tokens, topk;
    int64_t row_bytes, index_page;
    int32_t *length; /* [max_seqs] */
    /* device */
    uint8_t *rows, *keys; /* all layers */
    float *scores, *logits;
    int32_t *ids, *token_seq, *token_pos, *tables, *logit_rows, *selected, *phys, *miss;
    /* host copies in flight */
    int32_t *h_ids, *h_seq, *h_pos, *h_tables, *h_logit_rows, *h_selected;
    sl_seq_tables seqs;
    int32_t *owner_of; /* [layers] layer whose selection a layer uses */
    int32_t last_full;
};

static sl_status device(sl_resident *r, void *at, size_t bytes, sl_err *err)
{
    void *p = NULL;
    sl_status rc = sl_be_alloc(r->be, SL_MEM_DEVICE, bytes, &p, err);
    if (rc == SL_OK)
        memcpy(at, &p, sizeof p);
    return rc;
}

static sl_status alloc_device(sl_resident *r, const sl_model_config *c, sl_err *err)
{
    size_t t = (size_t)r->max_tokens, pages = (size_t)r->max_seqs * (size_t)r->pages_per_seq,
           layers = (size_t)c->n_layers;
    const struct {
        void *at;
        size_t bytes;
    } all[] = {
        {&r->rows, layers * pages * SL_PAGE_TOKENS * (size_t)r->row_bytes},
        {&r->keys, layers * pages * (size_t)r->index_page},
        {&r->scores, SLICE * (size_t)r->pages_per_seq * SL_PAGE_TOKENS * sizeof(float)},
        {&r->logits, t * (size_t)c->vocab_size * sizeof(float)},
        {&r->ids, t * 4},
        {&r->token_seq, t * 4},
        {&r->token_pos, t * 4},
        {&r->tables, (2 * pages + (size_t)r->max_seqs) * 4},
        {&r->logit_rows, t * 4},
        {&r->selected, layers * t * (size_t)r->topk * 4},
        {&r->phys, t * (size_t)r->topk * 4},
        {&r->miss, 64},
    };
    sl_status rc = SL_OK;
    for (size_t i = 0; rc == SL_OK && i < SL_COUNT(all); i++)
        rc = device(r, all[i].at, all[i].bytes, err);
    /* Rows that are not written yet have a pattern that spoils the result, so that reading one is noticed. */
    if (rc == SL_OK)
        rc = sl_be_fill(r->be, r->rows, 0xff, all[0].bytes, err);
    if (rc == SL_OK)
        rc = sl_be_fill(r->be, r->keys, 0xff, all[1].bytes, err);
    return rc;
}

sl_status sl_resident_create(sl_backend *be, sl_model *m, int32_t max_seqs, int32_t max_len,
                             sl_resident **out, sl_err *err)
{
    const sl_model_config *c = sl_model_get_config(m);
    const sl_model_opts *o = sl_model_get_opts(m);
    sl_resident *r = calloc(1, sizeof *r);
    if (!r)
        return SL_ERR_NO_MEMORY;
    r->be = be;
    r->m = m;
    r->max_seqs = max_seqs;
    r->pages_per_seq = sl_pages_for(max_len);
    r->max_len = max_len;
    r->max_tokens = o->max_tokens;
    r->topk = c->index.topk;
    r->row_bytes = sl_row_bytes(o->row_format, c->attn.kv_lora_rank, c->attn.qk_rope_head_dim);
    r->index_page = sl_index_block_bytes(o->index_format, c->index.head_dim);
    size_t t = (size_t)r->max_tokens, pages = (size_t)max_seqs * (size_t)r->pages_per_seq;
    r->length = calloc((size_t)max_seqs, 4);
    r->h_ids = calloc(t, 4);
    r->h_seq = calloc(t, 4);
    r->h_pos = calloc(t, 4);
    r->h_logit_rows = calloc(t, 4);
    r->h_tables = calloc(2 * pages + (size_t)max_seqs, 4);
    r->h_selected = calloc((size_t)c->n_layers * t * (size_t)r->topk, 4);
    r->owner_of = calloc((size_t)c->n_layers, 4);
    SL_CHECK(r->length && r->h_ids && r->h_seq && r->h_pos && r->h_logit_rows && r->h_tables &&
                 r->h_selected && r->owner_of,
             "no memory");
    sl_status rc = alloc_device(r, c, err);
    if (rc != SL_OK) {
        sl_resident_destroy(r);
        return rc;
    }
    *out = r;
    return SL_OK;
}

void sl_resident_destroy(sl_resident *r)
{
    if (!r)
        return;
    void *dev[] = {r->rows,      r->keys,   r->scores,     r->logits,   r->ids,  r->token_seq,
                   r->token_pos, r->tables, r->logit_rows, r->selected, r->phys, r->miss};
    for (size_t i = 0; i < SL_COUNT(dev); i++)
        if (dev[i])
            sl_be_free(r->be, SL_MEM_DEVICE, dev[i]);
    free(r->length);
    free(r->h_ids);
    free(r->h_seq);
    free(r->h_pos);
    free(r->h_logit_rows);
    free(r->h_tables);
    free(r->h_selected);
    free(r->owner_of);
    free(r);
}

void sl_resident_reset(sl_resident *r, int32_t seq)
{
    r->length[seq] = 0;
}

int32_t sl_resident_length(const sl_resident *r, int32_t seq)
{
    return r->length[seq];
}

static int32_t *selection(sl_resident *r, int32_t layer, int32_t t)
{
    return r->selected + ((int64_t)layer * r->max_tokens + t) * r->topk;
}

static sl_status select_keys(sl_resident *r, const sl_attn_call *call, const uint8_t *keys, sl_err *err)
{
    int32_t n = call->seqs->n_tokens, ld = r->pages_per_seq * SL_PAGE_TOKENS;
    sl_status rc = SL_OK;
    for (int32_t first = 0; rc == SL_OK && first < n; first += SLICE) {
        int32_t count = n - first < SLICE ? n - first : SLICE;
        sl_index_scores_params s = {.q = call->index.q,
                                    .weights = call->index.weights,
                                    .seqs = call->seqs,
                                    .index_base = keys,
                                    .index_page_stride = r->index_page,
                                    .scores = r->scores,
                                    .token_first = first,
                                    .token_count = count,
                                    .heads = call->index.heads,
                                    .dim = call->index.dim,
                                    .ld_scores = ld,
                                    .format = call->index.format};
        sl_topk_params k = {.scores = r->scores,
                            .seqs = call->seqs,
                            .ids = selection(r, call->layer, 0),
                            .token_first = first,
                            .token_count = count,
                            .k = r->topk,
                            .ld_scores = ld,
                            .ld_ids = r->topk};
        rc = sl_be_run(r->be, SL_OP_INDEX_SCORES, &s, err);
        if (rc == SL_OK)
            rc = sl_be_run(r->be, SL_OP_TOPK, &k, err);
    }
    return rc;
}

sl_status sl_resident_attend(void *ctx, const sl_attn_call *call, sl_err *err)
{
    sl_resident *r = ctx;
    int64_t pages = (int64_t)r->max_seqs * r->pages_per_seq;
    sl_row_view rows = {.base = r->rows + call->layer * pages * SL_PAGE_TOKENS * r->row_bytes,
                        .row_bytes = r->row_bytes,
                        .hot_base = (int32_t)(pages * SL_PAGE_TOKENS)};
    uint8_t *keys = r->keys + call->layer * pages * r->index_page;
    sl_kv_append_params kv = call->mla.kv;
    kv.seqs = call->seqs;
    kv.rows = rows;
    sl_status rc = sl_be_run(r->be, SL_OP_KV_APPEND, &kv, err);
    if (rc == SL_OK && call->has_indexer) {
        sl_index_append_params ia = call->index.key;
        ia.seqs = call->seqs;
        ia.index_base = keys;
        ia.index_page_stride = r->index_page;
        rc = sl_be_run(r->be, SL_OP_INDEX_APPEND, &ia, err);
        if (rc == SL_OK)
            rc = select_keys(r, call, keys, err);
        r->last_full = call->layer;
    }
    r->owner_of[call->layer] = r->last_full;
    sl_resolve_params res = {.ids = selection(r, r->last_full, 0),
                             .phys = r->phys,
                             .seqs = call->seqs,
                             .rows = rows,
                             .miss_count = r->miss,
                             .k = r->topk,
                             .ld_ids = r->topk};
    if (rc == SL_OK)
        rc = sl_be_run(r->be, SL_OP_RESOLVE, &res, err);
    sl_sparse_attn_params at = call->mla.attn;
    at.phys = r->phys;
    at.rows = rows;
    at.k = r->topk;
    at.ld_ids = r->topk;
    return rc == SL_OK ? sl_be_run(r->be, SL_OP_SPARSE_ATTN, &at, err) : rc;
}

/* Page i of sequence s: neighbours in a sequence are far apart in the pool. */
static int32_t page_of(const sl_resident *r, int32_t s, int32_t i)
{
    return (r->pages_per_seq - 1 - i) * r->max_seqs + s;
}

static sl_status fill_tables(sl_resident *r, const sl_resident_chunk *chunks, int32_t n_chunks, bool all,
                             int32_t *n_rows, sl_err *err)
{
    int32_t t = 0, rows = 0, ld = r->pages_per_seq;
    for (int32_t i = 0; i < n_chunks; i++) {
        int32_t s = chunks[i].seq, start = r->length[s];
        if (start + chunks[i].n > r->max_len || t + chunks[i].n > r->max_tokens)
            return sl_fail(err, SL_ERR_TOO_LARGE, "step: too many tokens");
        for (int32_t j = 0; j < chunks[i].n; j++, t++) {
            r->h_ids[t] = chunks[i].ids[j];
            r->h_seq[t] = i;
            r->h_pos[t] = start + j;
            if (all || j == chunks[i].n - 1)
                r->h_logit_rows[rows++] = t;
        }
        for (int32_t p = 0; p < ld; p++) {
            r->h_tables[i * ld + p] = page_of(r, s, p);
            r->h_tables[(n_chunks + i) * ld + p] = page_of(r, s, p);
        }
        r->h_tables[2 * n_chunks * ld + i] = -1;
    }
    *n_rows = rows;
    r->seqs = (sl_seq_tables){.n_tokens = t,
                              .n_seqs = n_chunks,
                              .ld = ld,
                              .token_seq = r->token_seq,
                              .token_pos = r->token_pos,
                              .index_pages = r->tables,
                              .row_pages = r->tables + n_chunks * ld,
                              .hot_slot = r->tables + 2 * n_chunks * ld};
    return SL_OK;
}

static sl_status upload(sl_resident *r, int32_t n_chunks, int32_t n_rows, sl_err *err)
{
    size_t t = (size_t)r->seqs.n_tokens, tables = (size_t)(2 * n_chunks * r->pages_per_seq + n_chunks);
    sl_status rc = sl_be_copy(r->be, r->ids, r->h_ids, t * 4, err);
    if (rc == SL_OK)
        rc = sl_be_copy(r->be, r->token_seq, r->h_seq, t * 4, err);
    if (rc == SL_OK)
        rc = sl_be_copy(r->be, r->token_pos, r->h_pos, t * 4, err);
    if (rc == SL_OK)
        rc = sl_be_copy(r->be, r->logit_rows, r->h_logit_rows, (size_t)n_rows * 4, err);
    if (rc == SL_OK)
        rc = sl_be_copy(r->be, r->tables, r->h_tables, tables * 4, err);
    return rc;
}

sl_status sl_resident_step(sl_resident *r, const sl_resident_chunk *chunks, int32_t n_chunks, bool all,
                           float *logits, sl_err *err)
{
    const sl_model_config *c = sl_model_get_config(r->m);
    int32_t n_rows = 0;
    sl_status rc = fill_tables(r, chunks, n_chunks, all, &n_rows, err);
    if (rc == SL_OK)
        rc = upload(r, n_chunks, n_rows, err);
    sl_forward f = {.ids = r->ids,
                    .seqs = &r->seqs,
                    .logit_rows = r->logit_rows,
                    .n_logits = logits ? n_rows : 0,
                    .logits = r->logits,
                    .seam = {.attend = sl_resident_attend, .ctx = r}};
    if (rc == SL_OK)
        rc = sl_model_forward(r->m, &f, err);
    if (rc == SL_OK && logits)
        rc =
            sl_be_copy(r->be, logits, r->logits, (size_t)n_rows * (size_t)c->vocab_size * sizeof(float), err);
    if (rc == SL_OK)
        rc = sl_be_copy(r->be, r->h_selected, r->selected,
                        (size_t)c->n_layers * (size_t)r->max_tokens * (size_t)r->topk * 4, err);
    if (rc == SL_OK)
        rc = sl_be_sync(r->be, err);
    for (int32_t i = 0; rc == SL_OK && i < n_chunks; i++)
        r->length[chunks[i].seq] += chunks[i].n;
    return rc;
}

const int32_t *sl_resident_selected(sl_resident *r, int32_t layer, int32_t t)
{
    return r->h_selected + ((int64_t)r->owner_of[layer] * r->max_tokens + t) * r->topk;
}
