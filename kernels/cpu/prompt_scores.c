/* SL_OP_PROMPT_SCORES (kernels/gqa.h). A task is one KV head of one block of 64 tokens. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/gqa.h"

enum { STRIP = SL_PROMPT_STRIP, STRIPS = SL_PAGE_TOKENS / STRIP /* of a page */ };

typedef struct scores_ctx {
    const sl_prompt_scores_params *p;
    int32_t group, width; /* query heads of a KV head; strips up to max_pos */
} scores_ctx;

/* A worker's scratch: one strip of keys, last token first; one of queries; the products of all query strips. */
typedef struct scratch {
    float *k, *q, *a; /* [STRIP][dim]; [group * STRIPS][STRIP][dim]; [group * STRIPS][width] */
} scratch;

static size_t scratch_floats(const scores_ctx *c)
{
    const size_t strip = STRIP * (size_t)c->p->dim, rows = STRIPS * (size_t)c->group;
    return strip + rows * (strip + (size_t)c->width);
}

static scratch scratch_of(const scores_ctx *c, float *own)
{
    const size_t strip = STRIP * (size_t)c->p->dim;
    scratch s = {.k = own};
    s.q = s.k + strip;
    s.a = s.q + STRIPS * (size_t)c->group * strip;
    return s;
}

/* The keys of strip j of a sequence, the last one first; false: their page does not exist. */
static bool load_strip(const scores_ctx *c, const int32_t *pages, int32_t head, int32_t j, float *k)
{
    const sl_prompt_scores_params *p = c->p;
    const sl_row_shape shape = sl_row_shape_of(&p->rows);
    const int32_t heads = sl_gqa_row_heads(&p->rows, p->kv_heads), in_row = (1 << p->rows.block_log2) - 1;

    for (int32_t r = 0; r < STRIP; r++) {
        const int32_t pos = j * STRIP + STRIP - 1 - r, block = pos >> p->rows.block_log2;
        const int64_t row =
            sl_pool_row(&shape, pages[pos / SL_PAGE_TOKENS], block, shape.heads > 1 ? head : 0);

        if (row < 0)
            return false;
        sl_gqa_key_decode(p->format, sl_gqa_row_slots(&p->rows, p->kv_heads), p->dim,
                          p->rows.base + row * p->rows.row_bytes,
                          (pos & in_row) * heads + (heads > 1 ? head : 0), k + (int64_t)r * p->dim);
    }
    return true;
}

/* The queries of the group, strip by strip, of the block whose first token is t. */
static void load_queries(const scores_ctx *c, int64_t t, int32_t head, float *q)
{
    const sl_prompt_scores_params *p = c->p;
    const size_t dim = (size_t)p->dim;

    for (int32_t h = 0; h < c->group; h++)
        for (int32_t i = 0; i < SL_PAGE_TOKENS; i++, q += dim)
            memcpy(q, p->q + ((t + i) * p->heads + (int64_t)head * c->group + h) * p->dim, 4 * dim);
}

/* Adds the softmax of the n products of one query strip to the scores of their pages. */
static void add_strip(const float *a, int32_t n, float scale, float *scores)
{
    float top = -INFINITY;
    double sum = 0;

    for (int32_t j = 0; j < n; j++)
        top = a[j] > top ? a[j] : top;
    for (int32_t j = 0; j < n; j++)
        sum += (double)expf(scale * (a[j] - top));
    for (int32_t j = 0; j < n; j++)
        scores[j / STRIPS] += (float)((double)expf(scale * (a[j] - top)) / sum);
}

static uint32_t score_block(const void *arg, int64_t i, void *own)
{
    const scores_ctx *c = arg;
    const sl_prompt_scores_params *p = c->p;
    const int32_t head = (int32_t)(i % p->kv_heads), t = p->first[i / p->kv_heads], rows = c->group * STRIPS;
    const int32_t strip = STRIP * p->dim;
    const scratch s = scratch_of(c, own);
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    const int32_t page = at.pos / SL_PAGE_TOKENS, all = STRIPS * (page + 1);
    if (at.pos % SL_PAGE_TOKENS || all > c->width)
        return SL_DEVERR_POS;
    float *scores = p->scores + i * p->ld_scores;
    load_queries(c, t, head, s.q);
    for (int32_t j = 0; j < all; j++) {
        if (!load_strip(c, p->seqs->row_pages + (int64_t)at.seq * p->seqs->ld, head, j, s.k))
            return SL_DEVERR_PAGE;
        sl_vec_products((sl_vec_rows){s.k, strip, 1}, (sl_vec_rows){s.q, strip, rows}, strip, s.a + j,
                        c->width);
    }
    memset(scores, 0, 4 * (size_t)(page + 1));
    for (int32_t r = 0; r < rows; r++)
        add_strip(s.a + (int64_t)r * c->width, all - STRIPS + 1 + r % STRIPS, p->scale / STRIP, scores);
    return 0;
}

static sl_status run_prompt_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_prompt_scores_params *p = params;
    const scores_ctx c = {p, p->heads / p->kv_heads, STRIPS * (p->max_pos / SL_PAGE_TOKENS + 1)};
    return sl_cpu_run(be, "prompt_scores", 4 * scratch_floats(&c), (int64_t)p->n * p->kv_heads,
                      (int64_t)c.width * STRIP * p->dim * c.group, score_block, &c, err);
}

const sl_op_impl sl_cpu_prompt_scores = {.run = run_prompt_scores};
