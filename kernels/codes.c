/* What the ops of codes of keys require of their parameters; see kernels/codes.h. */
#include "kernels/codes.h"

#include "kernels/check.h"

enum { MAX_CODES = 256 };

static void chk_book(sl_chk *c, int32_t dim, int32_t parts, int32_t k)
{
    sl_chk_pos(c, "parts", parts);
    sl_chk_pos(c, "k", k);
    sl_chk_can(c, k <= MAX_CODES, "k", "must be at most 256");
    if (c->st == SL_OK)
        sl_chk_need(c, dim % parts == 0, "parts", "does not divide dim");
}

static void chk_step(sl_chk *c, const sl_codes_params *p)
{
    const sl_codes_step *s = p->step;

    sl_chk_key_heads(c, p->keys.heads, p->keys.dim);
    sl_chk_key_format(c, p->keys.format, &p->keys.rows);
    sl_chk_can(c, p->keys.rows.block_log2 == 0, "keys.rows.block_log2", "must be 0: rows of one token");
    sl_chk_pos(c, "ld_codes", p->ld_codes);
    sl_chk_pos(c, "step.recent", s->recent);
    sl_chk_ptr(c, "step.trained", s->trained, 4);
    sl_chk_key_source(c, &(sl_chk_keys){.seqs = s->seqs,
                                        .rows = &p->keys.rows,
                                        .host_rows = &p->keys.host,
                                        .host = &(sl_host_plane){0},
                                        .heads = p->keys.heads,
                                        .dim = p->keys.dim,
                                        .format = p->keys.format,
                                        .device_rows = true});
    if (c->st == SL_OK && s->seqs)
        sl_chk_need(c, p->tokens == s->seqs->n_tokens, "tokens", "is not the number of the step's tokens");
}

void sl_chk_codes(sl_chk *c, const void *params)
{
    const sl_codes_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    if (p->step) {
        chk_step(c, p);
    } else {
        sl_chk_count(c, "first", p->first);
        sl_chk_request_keys(c, &p->keys);
        if (c->st == SL_OK)
            sl_chk_ld(c, "ld_codes", p->ld_codes, (int64_t)p->first + p->tokens);
    }
    chk_book(c, p->keys.dim, p->parts, p->k);
    if (c->st != SL_OK)
        return;
    sl_chk_ptr(c, "centroids", p->centroids, 4);
    sl_chk_ptr(c, "codes", p->codes, 1);
}

void sl_chk_code_scores(sl_chk *c, const void *params)
{
    const sl_code_scores_params *p = params;

    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_group(c, p->heads, p->kv_heads);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_pos(c, "ld_codes", p->ld_codes);
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_count(c, "sinks", p->sinks);
    sl_chk_count(c, "recent", p->recent);
    chk_book(c, p->dim, p->parts, p->k);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    sl_chk_size(c, "ld_scores", (int64_t)p->token_count * p->kv_heads, p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "centroids", p->centroids, 4);
    sl_chk_ptr(c, "codes", p->codes, 1);
    sl_chk_ptr(c, "scores", p->scores, 4);
}
