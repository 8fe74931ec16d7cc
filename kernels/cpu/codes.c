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

typedef struct codes_ctx {
    sl_cpu *cpu;
    const sl_codes_params *p;
    int32_t width; /* channels of a part */
    uint32_t bad;
} codes_ctx;

static size_t codes_scratch(const codes_ctx *c)
{
    const size_t k = (size_t)c->p->k, width = (size_t)c->width;
    return 4 * (k * width + k + k + width + (size_t)c->p->keys.dim);
}

static void codes_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    codes_ctx *c = arg;
    const sl_codes_params *p = c->p;
    const int32_t dim = p->keys.dim;
    sl_book book = {.metric = SL_KMEANS_L2, .k = p->k, .dim = c->width, .rows = sl_cpu_own(c->cpu, worker)};
    float *dots, *point, *key;

    book.half = book.rows + (int64_t)p->k * c->width;
    dots = book.half + p->k, point = dots + p->k, key = point + c->width;
    for (int64_t i = first; i < first + count; i++) {
        const int32_t head = (int32_t)(i / p->parts), part = (int32_t)(i % p->parts);

        sl_book_set(&book, p->centroids + (int64_t)head * p->k * dim + (int64_t)part * c->width, dim);
        for (int32_t t = p->first; t < p->first + p->tokens; t++) {
            int32_t code;

            if (!sl_keys_part(&p->keys, head, t, part * c->width, c->width, key, point)) {
                sl_cpu_flag(&c->bad, SL_DEVERR_PAGE);
                break;
            }
            sl_nearest(&book, point, 1, dots, &code);
            p->codes[((int64_t)head * p->ld_codes + t) * p->parts + part] = (uint8_t)code;
        }
    }
}

/* ---- codes of a step ---- */

typedef struct step_ctx {
    sl_cpu *cpu;
    const sl_codes_params *p;
    int32_t width;
    uint32_t bad;
} step_ctx;

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

static uint32_t code_token(const step_ctx *c, int64_t t, int32_t head, float *own)
{
    const sl_codes_params *p = c->p;
    sl_book book = {.metric = SL_KMEANS_L2, .k = p->k, .dim = c->width, .rows = own};
    float *dots, *point, *key;
    sl_place at;
    uint32_t bad = sl_place_of(p->step->seqs, t, &at);

    if (bad || at.pos < p->step->trained[at.seq] || at.pos < p->step->recent)
        return bad;
    book.half = book.rows + (int64_t)p->k * c->width;
    dots = book.half + p->k, point = dots + p->k, key = point + c->width;
    const sl_key_source keys = keys_of(p, at.seq);
    const int64_t list = (int64_t)at.seq * p->keys.heads + head;
    const int32_t token = at.pos - p->step->recent;
    if (p->step->seqs->hot_slot[at.seq] >= 0 && !p->keys.host.base)
        return SL_DEVERR_PAGE;
    if (token >= p->ld_codes)
        return SL_DEVERR_POS;
    for (int32_t part = 0; part < p->parts; part++) {
        int32_t code;

        if (!sl_keys_part(&keys, head, token, part * c->width, c->width, key, point))
            return SL_DEVERR_PAGE;
        sl_book_set(&book, p->centroids + list * p->k * p->keys.dim + (int64_t)part * c->width, p->keys.dim);
        sl_nearest(&book, point, 1, dots, &code);
        p->codes[(list * p->ld_codes + token) * p->parts + part] = (uint8_t)code;
    }
    return 0;
}

static void step_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    step_ctx *c = arg;

    for (int64_t i = first; i < first + count; i++) {
        uint32_t bad =
            code_token(c, i / c->p->keys.heads, (int32_t)(i % c->p->keys.heads), sl_cpu_own(c->cpu, worker));

        if (bad && bad != SL_PLACE_NONE)
            sl_cpu_flag(&c->bad, bad);
    }
}

static sl_status codes_of_step(sl_cpu *cpu, const sl_codes_params *p, sl_err *err)
{
    step_ctx c = {.cpu = cpu, .p = p, .width = p->keys.dim / p->parts};
    const size_t k = (size_t)p->k, width = (size_t)c.width;
    SL_TRY(sl_cpu_scratch_threads(cpu, 4 * (k * width + k + k + width + (size_t)p->keys.dim), err));
    sl_cpu_for(cpu, (int64_t)p->tokens * p->keys.heads, (int64_t)p->k * p->keys.dim / 4, step_tasks, &c);
    return sl_deverr(c.bad, "codes", err);
}

static sl_status run_codes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_codes_params *p = params;
    codes_ctx c = {.cpu = (sl_cpu *)be, .p = p, .width = p->keys.dim / p->parts};
    if (p->step)
        return codes_of_step(c.cpu, p, err);
    SL_TRY(sl_cpu_scratch_threads(c.cpu, codes_scratch(&c), err));
    sl_cpu_for(c.cpu, (int64_t)p->keys.heads * p->parts, (int64_t)p->tokens * p->k * c.width / 8 + 1,
               codes_tasks, &c);
    return sl_deverr(c.bad, "codes", err);
}

const sl_op_impl sl_cpu_codes = {.run = run_codes};

/* ---- scores ---- */

typedef struct scores_ctx {
    sl_cpu *cpu;
    const sl_code_scores_params *p;
    int32_t group, width;
    uint32_t bad;
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

static uint32_t score_list(const scores_ctx *c, int64_t t, int32_t list, float *table)
{
    const sl_code_scores_params *p = c->p;
    float *each = table + (int64_t)p->parts * p->k;
    float *out = p->scores + ((t - p->token_first) * p->kv_heads + list) * p->ld_scores;
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
            const sl_dot_job j = {.w = p->centroids + row * p->k * p->dim + (int64_t)s * c->width,
                                  .x = p->q + (t * p->heads + (int64_t)list * c->group + g) * p->dim +
                                       (int64_t)s * c->width,
                                  .out = table + (int64_t)s * p->k,
                                  .ld_w = p->dim,
                                  .ld_x = p->dim,
                                  .ld_out = p->k,
                                  .rows = p->k,
                                  .tokens = 1,
                                  .n = c->width};
            sl_vec_dots(&j);
        }
        look_up(p, table, p->codes + (row * p->ld_codes + p->sinks) * p->parts, n, each);
        sl_group_add(SL_GROUP_SOFTMAX, p->scale, each, n, g == 0, NULL, out + p->sinks);
    }
    return 0;
}

static void scores_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    scores_ctx *c = arg;
    const sl_code_scores_params *p = c->p;

    for (int64_t i = first; i < first + count; i++) {
        uint32_t bad = score_list(c, p->token_first + i / p->kv_heads, (int32_t)(i % p->kv_heads),
                                  sl_cpu_own(c->cpu, worker));

        if (bad && bad != SL_PLACE_NONE)
            sl_cpu_flag(&c->bad, bad);
    }
}

static sl_status run_code_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_code_scores_params *p = params;
    scores_ctx c = {.cpu = (sl_cpu *)be, .p = p, .group = p->heads / p->kv_heads, .width = p->dim / p->parts};
    const size_t floats = (size_t)p->parts * (size_t)p->k + (size_t)p->ld_scores;
    SL_TRY(sl_cpu_scratch_threads(c.cpu, 4 * floats, err));
    sl_cpu_for(c.cpu, (int64_t)p->token_count * p->kv_heads,
               ((int64_t)p->k * p->dim / 8 + (int64_t)p->ld_scores * p->parts) * c.group, scores_tasks, &c);
    return sl_deverr(c.bad, "code_scores", err);
}

const sl_op_impl sl_cpu_code_scores = {.run = run_code_scores};
