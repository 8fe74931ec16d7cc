/* Codes of keys and their scores (kernels/codes.h). A task of the codes is one part of one KV head; a task of the codes of a
 * step, and of the scores, is one KV head of one token. */
#include "kernels/codes.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/keys.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"

/* ---- codes ---- */

/* What both forms of the op have; a worker's scratch: a codebook, products, a point, a key. */
typedef struct codes_ctx {
    const sl_codes_params *p;
    int32_t width; /* channels of a part */
} codes_ctx;

typedef struct codes_scratch {
    sl_book book;
    float *dots, *point, *key;
} codes_scratch;

static size_t scratch_bytes(const codes_ctx *c)
{
    const size_t k = (size_t)c->p->k, width = (size_t)c->width;
    return 4 * (k * width + k + k + width + (size_t)c->p->keys.dim);
}

static codes_scratch scratch_of(const codes_ctx *c, float *own)
{
    const int32_t k = c->p->k;
    codes_scratch s = {.book = {.metric = SL_KMEANS_L2, .k = k, .dim = c->width, .rows = own}};

    s.book.half = s.book.rows + (int64_t)k * c->width;
    s.dots = s.book.half + k, s.point = s.dots + k, s.key = s.point + c->width;
    return s;
}

static uint32_t code_part(const void *arg, int64_t i, void *own)
{
    const codes_ctx *c = arg;
    const sl_codes_params *p = c->p;
    const int32_t dim = p->keys.dim, head = (int32_t)(i / p->parts), part = (int32_t)(i % p->parts);
    codes_scratch s = scratch_of(c, own);

    sl_book_set(&s.book, p->centroids + (int64_t)head * p->k * dim + (int64_t)part * c->width, dim);
    for (int32_t t = p->first; t < p->first + p->tokens; t++) {
        int32_t code;

        if (!sl_keys_part(&p->keys, head, t, part * c->width, c->width, s.key, s.point))
            return SL_DEVERR_PAGE;
        sl_nearest(&s.book, s.point, 1, s.dots, &code);
        p->codes[((int64_t)head * p->ld_codes + t) * p->parts + part] = (uint8_t)code;
    }
    return 0;
}

/* ---- codes of a step ---- */

/* Where the keys of a sequence are. */
static sl_key_source keys_of(const sl_codes_params *p, int32_t seq)
{
    const sl_seq_tables *t = p->step->seqs;
    const bool hot = t->hot_slot[seq] >= 0;
    sl_key_source s = p->keys;

    if (!hot)
        s.host = (sl_host_plane){0};
    s.pages = (hot ? t->host_pages : t->row_pages) + (int64_t)seq * t->ld;
    return s;
}

static uint32_t code_token(const void *arg, int64_t i, void *own)
{
    const codes_ctx *c = arg;
    const sl_codes_params *p = c->p;
    const int32_t head = (int32_t)(i % p->keys.heads);
    codes_scratch s = scratch_of(c, own);
    sl_place at;
    uint32_t bad = sl_place_of(p->step->seqs, i / p->keys.heads, &at);

    if (bad || at.pos < p->step->trained[at.seq] || at.pos < p->step->recent)
        return bad;
    const sl_key_source keys = keys_of(p, at.seq);
    const int64_t list = (int64_t)at.seq * p->keys.heads + head;
    const int32_t token = at.pos - p->step->recent;
    if (p->step->seqs->hot_slot[at.seq] >= 0 && !p->keys.host.base)
        return SL_DEVERR_PAGE;
    if (token >= p->ld_codes)
        return SL_DEVERR_POS;
    for (int32_t part = 0; part < p->parts; part++) {
        int32_t code;

        if (!sl_keys_part(&keys, head, token, part * c->width, c->width, s.key, s.point))
            return SL_DEVERR_PAGE;
        sl_book_set(&s.book, p->centroids + list * p->k * p->keys.dim + (int64_t)part * c->width,
                    p->keys.dim);
        sl_nearest(&s.book, s.point, 1, s.dots, &code);
        p->codes[(list * p->ld_codes + token) * p->parts + part] = (uint8_t)code;
    }
    return 0;
}

static sl_status run_codes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_codes_params *p = params;
    const codes_ctx c = {p, p->keys.dim / p->parts};
    if (p->step)
        return sl_cpu_run(be, "codes", scratch_bytes(&c), (int64_t)p->tokens * p->keys.heads,
                          (int64_t)p->k * p->keys.dim / 4, code_token, &c, err);
    return sl_cpu_run(be, "codes", scratch_bytes(&c), (int64_t)p->keys.heads * p->parts,
                      (int64_t)p->tokens * p->k * c.width / 8 + 1, code_part, &c, err);
}

const sl_op_impl sl_cpu_codes = {.run = run_codes};

/* ---- scores ---- */

typedef struct scores_ctx {
    const sl_code_scores_params *p;
    int32_t group, width;
} scores_ctx;

/* each[i] = the score of token first + i, by the products of a query with the centroids of each part, [parts][k]. */
static void look_up(const sl_code_scores_params *p, const float *table, const uint8_t *codes, int32_t n,
                    float *each)
{
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *code = codes + (int64_t)i * p->parts;
        float sum = table[code[0]];

        for (int32_t s = 1; s < p->parts; s++)
            sum += table[s * p->k + code[s]];
        each[i] = sum;
    }
}

static uint32_t score_list(const void *arg, int64_t i, void *own)
{
    const scores_ctx *c = arg;
    const sl_code_scores_params *p = c->p;
    const int64_t t = p->token_first + i / p->kv_heads, list = i % p->kv_heads;
    float *table = own, *each = table + (int64_t)p->parts * p->k, *out = p->scores + i * p->ld_scores;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (bad)
        return bad;
    if (at.pos < p->from_pos)
        return 0;
    const int64_t row = (int64_t)at.seq * p->kv_heads + list;
    const int32_t n = at.pos + 1 - p->recent - p->sinks;
    if (at.pos >= p->ld_scores || (n > 0 && p->sinks + n > p->ld_codes))
        return SL_DEVERR_POS;
    memset(out, 0, 4 * ((size_t)at.pos + 1));
    for (int32_t g = 0; g < c->group && n > 0; g++) {
        for (int32_t s = 0; s < p->parts; s++) {
            const int64_t from = (int64_t)s * c->width;
            sl_vec_products(
                (sl_vec_rows){p->centroids + row * p->k * p->dim + from, p->dim, p->k},
                (sl_vec_rows){p->q + (t * p->heads + list * c->group + g) * p->dim + from, p->dim, 1},
                c->width, table + (int64_t)s * p->k, p->k);
        }
        look_up(p, table, p->codes + (row * p->ld_codes + p->sinks) * p->parts, n, each);
        sl_group_add(SL_GROUP_SOFTMAX, p->scale, each, n, g == 0, NULL, out + p->sinks);
    }
    return 0;
}

static sl_status run_code_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_code_scores_params *p = params;
    const scores_ctx c = {p, p->heads / p->kv_heads, p->dim / p->parts};
    const size_t floats = (size_t)p->parts * (size_t)p->k + (size_t)p->ld_scores;
    return sl_cpu_run(be, "code_scores", 4 * floats, (int64_t)p->token_count * p->kv_heads,
                      ((int64_t)p->k * p->dim / 8 + (int64_t)p->ld_scores * p->parts) * c.group, score_list,
                      &c, err);
}

const sl_op_impl sl_cpu_code_scores = {.run = run_code_scores};
