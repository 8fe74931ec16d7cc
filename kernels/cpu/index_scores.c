/*
 * SL_OP_INDEX_SCORES: every query with every key of its sequence. Tokens of one sequence are adjacent, so they form
 * a group, and the keys of each page are decoded once for the whole group; tasks are pages. A score depends on its
 * key and query only.
 */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"

#define GROUP 32 /* largest group of tokens; it bounds the float32 copy of the queries */

typedef struct ctx {
    sl_cpu *cpu;
    const sl_index_scores_params *p;
    const float *q; /* [n][heads][dim] of the group */
    int64_t first;  /* token of the step */
    int32_t n;      /* tokens of the group, positions ascending */
    const int32_t *pages;
} ctx;

/* Raw values of keys 0 .. count - 1 of a block as float32, and their scales. */
static const float *load_keys(const sl_index_scores_params *p, const uint8_t *block, int32_t count,
                              float *buf, float *scales)
{
    if (p->format == SL_INDEX_PLAIN) {
        for (int32_t i = 0; i < count; i++)
            scales[i] = 1.0f;
        return (const float *)(const void *)block;
    }
    sl_load_f32(SL_F8_E4M3, block, 0, (int64_t)count * p->dim, buf);
    memcpy(scales, block + (size_t)p->dim * SL_PAGE_TOKENS, 4 * (size_t)count);
    return buf;
}

static void score_token(const ctx *c, int32_t g, const float *keys, const float *scales, int32_t count,
                        int64_t page, float *dots)
{
    const sl_index_scores_params *p = c->p;
    int64_t t = c->first + g;
    const float *w = p->weights + t * p->heads;
    float *out = p->scores + (t - p->token_first) * p->ld_scores + page * SL_PAGE_TOKENS;
    sl_vec_products((sl_vec_rows){keys, p->dim, count},
                    (sl_vec_rows){c->q + (int64_t)g * p->heads * p->dim, p->dim, p->heads}, p->dim, dots,
                    SL_PAGE_TOKENS);
    for (int32_t i = 0; i < count; i++)
        out[i] = 0;
    for (int32_t h = 0; h < p->heads; h++)
        for (int32_t i = 0; i < count; i++) {
            float d = dots[h * SL_PAGE_TOKENS + i];

            out[i] += (d < 0 ? 0.0f : d) * w[h]; /* NaN stays NaN */
        }
    for (int32_t i = 0; i < count; i++)
        out[i] *= scales[i];
}

static void score_pages(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const sl_index_scores_params *p = c->p;
    const int32_t *pos = p->seqs->token_pos + c->first;
    float *dots = sl_cpu_own(c->cpu, worker), *scales = dots + (int64_t)p->heads * SL_PAGE_TOKENS;
    float *buf = scales + SL_PAGE_TOKENS;

    for (int64_t page = first; page < first + count; page++) {
        const uint8_t *block = p->index_base + c->pages[page] * p->index_page_stride;
        int64_t most = pos[c->n - 1] + 1 - page * SL_PAGE_TOKENS;
        int32_t keys_n = most < SL_PAGE_TOKENS ? (int32_t)most : SL_PAGE_TOKENS;
        const float *keys = load_keys(p, block, keys_n, buf, scales);

        for (int32_t g = 0; g < c->n; g++) {
            int64_t n = pos[g] + 1 - page * SL_PAGE_TOKENS;

            if (n > 0)
                score_token(c, g, keys, scales, n < keys_n ? (int32_t)n : keys_n, page, dots);
        }
    }
}

/* Finds the group that starts at token t of the step: tokens of the same sequence with ascending positions, whose
 * pages all exist. */
static uint32_t next_group(ctx *c, int64_t t, int64_t end)
{
    const sl_seq_tables *s = c->p->seqs;
    sl_place at, more;
    uint32_t bad = sl_place_of(s, t, &at);

    if (bad)
        return bad;
    c->first = t;
    c->n = 1;
    c->pages = s->index_pages + (int64_t)at.seq * s->ld;
    while (c->n < GROUP && t + c->n < end && s->token_seq[t + c->n] == at.seq &&
           s->token_pos[t + c->n] > at.pos) {
        bad = sl_place_of(s, t + c->n, &more);
        if (bad)
            return bad;
        at = more;
        c->n++;
    }
    if (at.pos >= c->p->ld_scores)
        return SL_DEVERR_POS;
    for (int32_t i = 0; i <= at.pos / SL_PAGE_TOKENS; i++)
        if (c->pages[i] < 0)
            return SL_DEVERR_PAGE;
    return 0;
}

static sl_status run_index_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_scores_params *p = params;
    ctx c = {.cpu = (sl_cpu *)be, .p = p};
    size_t q_size = (size_t)p->heads * (size_t)p->dim;
    size_t own = (size_t)SL_PAGE_TOKENS * ((size_t)p->heads + 1 + (size_t)p->dim);
    int64_t end = (int64_t)p->token_first + p->token_count;
    void *q;
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 4 * own, err));
    SL_TRY(sl_cpu_scratch(c.cpu, SL_SCRATCH_X, 4 * GROUP * q_size, &q, err));
    for (int64_t t = p->token_first; t < end; t += c.n) {
        uint32_t bad = next_group(&c, t, end);

        if (bad == SL_PLACE_NONE) {
            c.n = 1;
            continue;
        }
        if (bad)
            return sl_deverr(bad, "index_scores", err);
        sl_load_f32(p->format == SL_INDEX_PLAIN ? SL_F32 : SL_F8_E4M3, p->q, t * (int64_t)q_size,
                    c.n * (int64_t)q_size, q);
        c.q = q;
        sl_cpu_for(c.cpu, p->seqs->token_pos[t + c.n - 1] / SL_PAGE_TOKENS + 1, (int64_t)q_size * c.n * 8,
                   score_pages, &c);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_index_scores = {.run = run_index_scores};
