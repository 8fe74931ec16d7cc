/*
 * The ops of pages of retained tokens (kernels/retained.h). A task of the bounds is one KV head of one token; a task of
 * the scores is one list of one token: units are decoded in chunks, and the open page is made of its keys.
 */
#include "kernels/retained.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"

#define CHUNK 64       /* units that are decoded at a time */
#define E5M2_MOST 0x7b /* code of the largest finite value */

/* ---- stored bounds ---- */

static float e5m2_to_f32(uint8_t b)
{
    const uint32_t e = b >> 2 & 31, m = b & 3;
    const float v = e ? sl_bits_f32((e + 112) << 23 | m << 21) : (float)m / 65536.0f;

    return b & 0x80 ? -v : v;
}

/* The code of the largest value that is not above f >= 0. */
static uint8_t e5m2_below(float f)
{
    const uint32_t u = sl_f32_bits(f), e = u >> 23;

    if (e < 113) /* below 2^-14 values are multiples of 2^-16 */
        return (uint8_t)(f * 65536.0f);
    if (e > 142)
        return E5M2_MOST;
    return (uint8_t)((e - 112) << 2 | (u >> 21 & 3));
}

/* The smallest value that is not below f. */
static uint8_t e5m2_up(float f)
{
    uint8_t code = e5m2_below(fabsf(f));

    if (f < 0)
        return code ? code | 0x80 : 0;
    return code < E5M2_MOST && e5m2_to_f32(code) < f ? code + 1 : code;
}

static uint8_t e5m2_down(float f)
{
    uint8_t code = e5m2_up(-f);
    return code ? code ^ 0x80 : 0;
}

static void store_unit(const sl_retained *r, const float *most, const float *least, uint8_t *unit)
{
    for (int32_t i = 0; i < r->dim; i++) {
        if (r->type == SL_KT_E5M2) {
            unit[i] = e5m2_up(most[i]);
            unit[r->dim + i] = e5m2_down(least[i]);
        } else {
            const uint16_t up = sl_bf16_up(most[i]), down = sl_bf16_down(least[i]);

            memcpy(unit + 2 * (int64_t)i, &up, 2);
            memcpy(unit + 2 * ((int64_t)r->dim + i), &down, 2);
        }
    }
}

static void load_units(const sl_retained *r, const uint8_t *unit, int64_t n, float *out)
{
    const int64_t values = 2 * n * r->dim;

    if (r->type == SL_KT_BF16)
        sl_load_f32(SL_BF16, unit, 0, values, out);
    else
        for (int64_t i = 0; i < values; i++)
            out[i] = e5m2_to_f32(unit[i]);
}

/* The unit of a page, which is followed by those of the next pages in the same index page; NULL: there is no index page. */
static uint8_t *unit_of(const sl_seq_tables *s, const sl_retained *r, int32_t seq, int32_t head, int32_t page)
{
    const int32_t log2 = SL_PAGE_LOG2 - r->page_log2; /* units of a head in an index page */
    const int32_t at = s->index_pages[(int64_t)seq * s->ld + (page >> log2)];
    const int64_t unit = ((int64_t)head << log2) + (page & ((1 << log2) - 1));

    return at < 0 ? NULL : r->base + at * r->page_stride + unit * sl_retained_unit_bytes(r->dim, r->type);
}

/* ---- keys ---- */

/* The key at a position; false: it has no host page. */
static bool load_key(const sl_seq_tables *s, const sl_retained *r, int32_t seq, int32_t head, int32_t pos,
                     float *k)
{
    const int32_t in_row = sl_gqa_row_heads(&r->rows, r->kv_heads);
    const int64_t entry = (int64_t)seq * s->ld + pos / SL_PAGE_TOKENS;

    if (pos < 0 || pos / SL_PAGE_TOKENS >= s->ld || s->host_pages[entry] < 0)
        return false;
    const uint8_t *row = r->host_rows.base + s->host_pages[entry] * r->host_rows.page_stride +
                         pos % SL_PAGE_TOKENS * r->host_rows.row_stride;
    sl_gqa_key_decode(r->format, sl_gqa_row_slots(&r->rows, r->kv_heads), r->dim,
                      row + (in_row > 1 ? 0 : head) * r->rows.row_bytes, in_row > 1 ? head : 0, k);
    return true;
}

/* The bounds of retained tokens first .. last of a KV head, as a stored unit. k: scratch of 3 * dim values. */
static bool make_unit(const sl_seq_tables *s, const sl_retained *r, int32_t seq, int32_t head, int32_t first,
                      int32_t last, float *k, uint8_t *unit)
{
    float *most = k + r->dim, *least = most + r->dim;

    for (int32_t i = first; i <= last; i++) {
        if (!load_key(s, r, seq, head, sl_retained_pos(r, seq, head, i), k))
            return false;
        for (int32_t j = 0; j < r->dim; j++) {
            most[j] = i == first || k[j] > most[j] ? k[j] : most[j];
            least[j] = i == first || k[j] < least[j] ? k[j] : least[j];
        }
    }
    store_unit(r, most, least, unit);
    return true;
}

/* ---- bounds of complete pages ---- */

static uint32_t append_token(const void *arg, int64_t i, void *k)
{
    const sl_retained_append_params *a = arg;
    const sl_retained *r = &a->r;
    const int32_t head = (int32_t)(i % r->kv_heads);
    sl_place at;
    uint32_t bad = sl_place_of(a->seqs, i / r->kv_heads, &at);

    if (bad)
        return bad;
    const int32_t prompt = r->prompts[2 * (int64_t)at.seq];
    if (prompt < 1 || at.pos < prompt - 1)
        return 0;
    const int32_t size = 1 << r->page_log2, end = sl_retained_index(r, at.seq, at.pos) + 1;
    if (at.pos >= prompt && end % size)
        return 0;
    const int32_t pages = end >> r->page_log2;
    if (pages > a->seqs->ld << (SL_PAGE_LOG2 - r->page_log2))
        return SL_DEVERR_POS;
    for (int32_t p = at.pos >= prompt ? pages - 1 : 0; p < pages; p++) {
        uint8_t *unit = unit_of(a->seqs, r, at.seq, head, p);

        if (!unit || !make_unit(a->seqs, r, at.seq, head, p * size, (p + 1) * size - 1, k, unit))
            return SL_DEVERR_PAGE;
    }
    return 0;
}

static sl_status run_retained_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_append_params *p = params;
    return sl_cpu_run(be, "retained_append", 12 * (size_t)p->r.dim,
                      (int64_t)p->seqs->n_tokens * p->r.kv_heads, 4 * (int64_t)p->r.dim << p->r.page_log2,
                      append_token, p, err);
}

const sl_op_impl sl_cpu_retained_append = {.run = run_retained_append};

/* ---- scores ---- */

typedef struct scores_ctx {
    const sl_retained_scores_params *p;
    int32_t group; /* query heads per KV head */
} scores_ctx;

/* A worker's scratch: queries as [where max is taken | where min is], decoded units, the products of each query with all
 * pages, and a stored unit. */
typedef struct scores_scratch {
    float *x, *units, *each, *keys;
    uint8_t *unit;
} scores_scratch;

static size_t scratch_floats(const scores_ctx *c)
{
    const size_t dim = (size_t)c->p->r.dim, group = (size_t)c->group;
    return 2 * dim * (group + CHUNK) + group * (size_t)c->p->ld_scores + 3 * dim + dim;
}

/* The number of channels that are better than channel i by their sums of |q|. */
static int32_t rank_of(const float *sum, int32_t dim, int32_t i)
{
    int32_t n = 0;

    for (int32_t j = 0; j < dim; j++)
        n += sum[j] > sum[i] || (sum[j] == sum[i] && j < i);
    return n;
}

/* The queries of one KV head, whose first query head is at q. */
static void make_queries(const scores_ctx *c, const float *q, const scores_scratch *s)
{
    const int32_t dim = c->p->r.dim;
    float *sum = s->units, *size = sum + dim; /* not in use yet */

    for (int32_t i = 0; i < dim; i++) {
        sum[i] = size[i] = 0;
        for (int32_t h = 0; h < c->group; h++) {
            sum[i] += q[(int64_t)h * dim + i];
            size[i] += fabsf(q[(int64_t)h * dim + i]);
        }
    }
    memset(s->x, 0, 8 * (size_t)dim * (size_t)c->group);
    for (int32_t i = 0; i < dim; i++)
        if (c->p->top_r >= dim || rank_of(size, dim, i) < c->p->top_r)
            for (int32_t h = 0; h < c->group; h++)
                s->x[2 * (int64_t)h * dim + (sum[i] > 0 ? 0 : dim) + i] = q[(int64_t)h * dim + i];
}

/* each[h][first ..] for n decoded units. */
static void score_units(const scores_ctx *c, int32_t first, int32_t n, const scores_scratch *s)
{
    const int32_t both = 2 * c->p->r.dim;

    sl_vec_products((sl_vec_rows){s->units, both, n}, (sl_vec_rows){s->x, both, c->group}, both,
                    s->each + first, c->p->ld_scores);
}

/* each[h][page] for the complete pages 0 .. last - 1 and the open page. end: the query's own retained token. */
static bool score_pages(const scores_ctx *c, const sl_place *at, int32_t head, int32_t end,
                        const scores_scratch *s)
{
    const sl_retained *r = &c->p->r;
    const int32_t last = end >> r->page_log2, in_page = SL_PAGE_TOKENS >> r->page_log2;

    for (int32_t p = 0; p < last; p += in_page) { /* at most CHUNK */
        const int32_t n = last - p < in_page ? last - p : in_page;
        const uint8_t *units = unit_of(c->p->seqs, r, at->seq, head, p);

        if (!units)
            return false;
        load_units(r, units, n, s->units);
        score_units(c, p, n, s);
    }
    if (!make_unit(c->p->seqs, r, at->seq, head, last << r->page_log2, end, s->keys, s->unit))
        return false;
    load_units(r, s->unit, 1, s->units);
    score_units(c, last, 1, s);
    return true;
}

static scores_scratch scratch_of(const scores_ctx *c, float *own)
{
    const int64_t dim = c->p->r.dim;
    scores_scratch s = {.x = own};

    s.units = s.x + 2 * dim * c->group;
    s.each = s.units + 2 * dim * CHUNK;
    s.keys = s.each + (int64_t)c->group * c->p->ld_scores;
    s.unit = (uint8_t *)(s.keys + 3 * dim);
    return s;
}

static uint32_t score_list(const void *arg, int64_t i, void *own)
{
    const scores_ctx *c = arg;
    const sl_retained_scores_params *p = c->p;
    const int64_t t = p->token_first + i / p->r.kv_heads;
    const int32_t head = (int32_t)(i % p->r.kv_heads);
    const scores_scratch s = scratch_of(c, own);
    int32_t *place = p->place + i / p->r.kv_heads;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    if (head == 0)
        place[0] = -1, place[p->token_count] = 0;
    if (bad || sl_retained_reads_all(&p->r, at.seq, at.pos, p->dense_below))
        return bad;
    const int32_t end = sl_retained_index(&p->r, at.seq, at.pos), last = end >> p->r.page_log2;
    if (head == 0)
        place[0] = at.seq, place[p->token_count] = end;
    if (last < p->select)
        return 0;
    if (last >= p->ld_scores || last > p->seqs->ld << (SL_PAGE_LOG2 - p->r.page_log2))
        return SL_DEVERR_POS;
    float *out = p->scores + i * p->ld_scores;
    make_queries(c, p->q + (t * p->heads + (int64_t)head * c->group) * p->r.dim, &s);
    if (!score_pages(c, &at, head, end, &s))
        return SL_DEVERR_PAGE;
    for (int32_t h = 0; h < c->group; h++)
        sl_group_add(SL_GROUP_SOFTMAX, p->scale, s.each + (int64_t)h * p->ld_scores, last + 1, h == 0, NULL,
                     out);
    return 0;
}

static sl_status run_retained_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_scores_params *p = params;
    const scores_ctx c = {p, p->heads / p->r.kv_heads};
    return sl_cpu_run(be, "retained_scores", 4 * scratch_floats(&c), (int64_t)p->token_count * p->r.kv_heads,
                      (int64_t)p->ld_scores * p->r.dim * c.group, score_list, &c, err);
}

const sl_op_impl sl_cpu_retained_scores = {.run = run_retained_scores};

/* ---- lists ---- */

/* The number of ids, or -1 when they do not fit or a page does not exist. */
static int32_t make_list(const sl_retained_lists_params *p, const sl_place *at, int64_t list, int32_t *ids)
{
    const sl_retained *r = &p->r;
    const int32_t head = (int32_t)(list % r->kv_heads), end = sl_retained_index(r, at->seq, at->pos);
    const int32_t *pages = p->pages + list * p->select;
    int32_t n = 0;

    for (int32_t j = 0; j < p->select && pages[j] >= 0; j++)
        for (int32_t i = pages[j] << r->page_log2; i >> r->page_log2 == pages[j] && i <= end; i++) {
            if (n == p->ld_ids)
                return -1;
            ids[n++] = sl_retained_pos(r, at->seq, head, i);
        }
    return n;
}

static uint32_t list_task(const void *arg, int64_t i, void *own)
{
    const sl_retained_lists_params *p = arg;
    int32_t *ids = p->ids + i * p->ld_ids, n = 0;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, p->token_first + i / p->r.kv_heads, &at);

    (void)own;
    if (!bad)
        n = sl_retained_reads_all(&p->r, at.seq, at.pos, p->dense_below)
                ? sl_put_range(ids, p->ld_ids, 0, 0, at.pos)
                : make_list(p, &at, i, ids);
    return sl_list_end(ids, p->ld_ids, n, bad);
}

static sl_status run_retained_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_retained_lists_params *p = params;
    return sl_cpu_run(be, "retained_lists", 0, (int64_t)p->token_count * p->r.kv_heads, p->ld_ids, list_task,
                      p, err);
}

const sl_op_impl sl_cpu_retained_lists = {.run = run_retained_lists};
