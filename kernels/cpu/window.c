/*
 * The ops of an observation window (kernels/window.h). A task of the votes is one KV head: the products of a query with
 * all keys before it are kept until their softmax is known. A task of the lists is one list of one token.
 */
#include "kernels/window.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/gqa.h"

#define CHUNK 64 /* keys that are decoded at a time */

/* ---- votes ---- */

typedef struct votes_ctx {
    const sl_window_votes_params *p;
    sl_row_shape shape;
    int32_t group; /* query heads per KV head */
} votes_ctx;

/* A worker's scratch: the sums of one KV head, decoded keys, and the products of the group's queries of some window
 * tokens with all keys. */
typedef struct votes_scratch {
    double *sum;
    float *keys, *each;
} votes_scratch;

static size_t scratch_bytes(const votes_ctx *c)
{
    const sl_window_votes_params *p = c->p;
    return 8 * (size_t)p->tokens + 4 * CHUNK * (size_t)p->dim + 4 * (size_t)c->group * (size_t)p->tokens;
}

/* Decodes keys first .. first + n - 1 of one KV head, all in one page; false: the page does not exist. */
static bool load_keys(const votes_ctx *c, int32_t head, int32_t first, int32_t n, float *out)
{
    const sl_window_votes_params *p = c->p;
    const int32_t slots = sl_gqa_row_slots(&p->rows, p->kv_heads),
                  page = p->row_pages[first / SL_PAGE_TOKENS];

    if (page < 0)
        return false;
    for (int32_t i = 0; i < n; i++) {
        int64_t row = sl_pool_row(&c->shape, page, first + i, slots > 1 ? 0 : head % c->shape.heads);
        sl_gqa_key_decode(p->format, slots, p->dim, p->rows.base + row * p->rows.row_bytes,
                          slots > 1 ? head : 0, out + (int64_t)i * p->dim);
    }
    return true;
}

/* each[g][j] = q[w][g] . k_j for all keys that the window's token w sees. */
static bool products(const votes_ctx *c, int32_t head, int32_t w, const votes_scratch *s)
{
    const sl_window_votes_params *p = c->p;
    const int32_t seen = p->tokens - p->window + w + 1;

    for (int32_t at = 0; at < seen; at += CHUNK) {
        int32_t n = seen - at < CHUNK ? seen - at : CHUNK;

        if (!load_keys(c, head, at, n, s->keys))
            return false;
        sl_vec_products((sl_vec_rows){s->keys, p->dim, n},
                        (sl_vec_rows){p->q + ((int64_t)w * p->heads + (int64_t)head * c->group) * p->dim,
                                      p->dim, c->group},
                        p->dim, s->each + at, p->tokens);
    }
    return true;
}

/* Adds the softmax of n products to the sums of the first `before` keys. */
static void add_softmax(const float *x, int32_t n, int32_t before, float scale, double *sum)
{
    float top = -INFINITY;
    double all = 0;

    for (int32_t j = 0; j < n; j++)
        top = x[j] > top ? x[j] : top;
    for (int32_t j = 0; j < n; j++)
        all += (double)expf(scale * (x[j] - top));
    for (int32_t j = 0; j < before; j++)
        sum[j] += (double)expf(scale * (x[j] - top)) / all;
}

static void pool(const sl_window_votes_params *p, const double *sum, int32_t n, float *votes)
{
    const int32_t half = p->kernel / 2;

    for (int32_t j = 0; j < n; j++) {
        int32_t from = j > half ? j - half : 0, to = j < n - half ? j + half : n - 1;
        double v = sum[from];

        for (int32_t i = from + 1; i <= to; i++)
            v = p->pooling == SL_POOLING_AVG ? v + sum[i] : sum[i] > v ? sum[i] : v;
        votes[j] = (float)(p->pooling == SL_POOLING_AVG ? v / p->kernel : v);
    }
}

static uint32_t vote(const void *arg, int64_t h, void *own)
{
    const votes_ctx *c = arg;
    const sl_window_votes_params *p = c->p;
    const int32_t before = p->tokens - p->window;
    votes_scratch s = {.sum = own};

    s.keys = (float *)(s.sum + p->tokens);
    s.each = s.keys + (int64_t)CHUNK * p->dim;
    memset(s.sum, 0, 8 * (size_t)before);
    for (int32_t w = 0; w < p->window; w++) {
        if (!products(c, (int32_t)h, w, &s))
            return SL_DEVERR_PAGE;
        for (int32_t g = 0; g < c->group; g++)
            add_softmax(s.each + (int64_t)g * p->tokens, before + w + 1, before, p->scale, s.sum);
    }
    pool(p, s.sum, before, p->votes + h * p->ld_votes);
    return 0;
}

static sl_status run_window_votes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_window_votes_params *p = params;
    const votes_ctx c = {p, sl_row_shape_of(&p->rows), p->heads / p->kv_heads};
    return sl_cpu_run(be, "window_votes", scratch_bytes(&c), p->kv_heads,
                      (int64_t)p->tokens * p->window * p->dim * c.group / 4, vote, &c, err);
}

const sl_op_impl sl_cpu_window_votes = {.run = run_window_votes};

/* ---- lists ---- */

static int32_t make_list(const sl_kept_lists_params *p, const sl_place *at, int32_t list, int32_t *ids)
{
    const int32_t prompt = p->prompts[2 * (int64_t)at->seq], n_kept = p->prompts[2 * (int64_t)at->seq + 1];
    const int32_t *kept = p->kept + ((int64_t)at->seq * p->lists + list) * p->ld_kept;

    if (at->pos < prompt || at->pos < p->dense_below)
        return sl_put_range(ids, p->ld_ids, 0, 0, at->pos);
    if (n_kept > p->ld_kept || n_kept > p->ld_ids)
        return -1;
    for (int32_t i = 0; i < n_kept; i++)
        ids[i] = kept[i];
    int32_t window = prompt > p->window ? prompt - p->window : 0;
    int32_t oldest = p->output > 0 && at->pos - prompt >= p->output ? at->pos + 1 - p->output : prompt;
    int32_t n = sl_put_range(ids, p->ld_ids, n_kept, window, prompt - 1);
    return sl_put_range(ids, p->ld_ids, n, oldest, at->pos);
}

static uint32_t list_task(const void *arg, int64_t i, void *own)
{
    const sl_kept_lists_params *p = arg;
    int32_t *ids = p->ids + i * p->ld_ids;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, p->token_first + i / p->lists, &at);

    (void)own;
    return sl_list_end(ids, p->ld_ids, bad ? 0 : make_list(p, &at, (int32_t)(i % p->lists), ids), bad);
}

static sl_status run_kept_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kept_lists_params *p = params;
    return sl_cpu_run(be, "kept_lists", 0, (int64_t)p->token_count * p->lists, p->ld_ids, list_task, p, err);
}

const sl_op_impl sl_cpu_kept_lists = {.run = run_kept_lists};
