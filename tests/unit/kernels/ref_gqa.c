/* Reference of the ops of grouped-query attention and of bounds of blocks (ref.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bounds.h"
#include "kernels/window.h"
#include "kernels/gqa.h"
#include "tests/unit/kernels/ref.h"

static double f(double v)
{
    return (double)(float)v;
}

static double biased(const float *x, const float *bias, int64_t at, int64_t i, sl_dtype act)
{
    double v = (double)x[at + i];

    return ref_act(bias ? f(v + (double)bias[i]) : v, act);
}

/* x[at .. at + dim - 1], which is head h of a token at position pos. */
static void head(const sl_gqa_head_params *p, const float *x, int64_t at, int64_t h, int32_t dim, int64_t pos,
                 sl_dtype act, double *out)
{
    const float *bias = p->bias ? p->bias + h * dim : NULL;
    double sum = 0;

    for (int32_t i = 0; i < dim; i++)
        out[i] = biased(x, bias, at, i, act);
    for (int32_t i = 0; i < dim; i++)
        sum += out[i] * out[i];
    if (p->norm) {
        double inv = f(1 / sqrt(sum / dim + (double)p->eps));

        for (int32_t i = 0; i < dim; i++)
            out[i] = ref_act(f(f(out[i] * inv) * (double)p->norm[i]), act);
    }
    ref_rope(out, p->rope ? p->rope : dim, p->cos_sin, pos, false, act);
}

void ref_gqa_query(const void *params)
{
    const sl_gqa_query_params *p = params;
    double *x = malloc(8 * (size_t)p->dim);

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++) {
            int64_t at = (t * p->heads + h) * p->dim;

            head(&p->head, p->q, at, h, p->dim, p->pos[t], p->act, x);
            for (int32_t i = 0; i < p->dim; i++)
                p->out[at + i] = (float)x[i];
        }
    free(x);
}

/* Where a token's head is: which of its rows, the slot there, and the slots of a row. */
typedef struct where {
    int64_t row, slot, slots;
} where;

static where where_is(const sl_row_view *rows, int64_t kv_heads, int64_t pos, int64_t h)
{
    int64_t block = (int64_t)1 << rows->block_log2;

    if (rows->heads)
        return (where){h, pos % block, block};
    return (where){0, pos % block * kv_heads + h, block * kv_heads};
}

/* One side of a slot; fp8 puts the scales of all slots after both sides. */
static void put_side(sl_row_format format, where w, int32_t dim, int side, const double *x, uint8_t *row)
{
    int64_t n = w.slots * dim;
    double amax = 0, scale;
    float s;

    for (int32_t i = 0; i < dim; i++)
        amax = fmax(amax, fabs(x[i]));
    scale = ref_pow2_ceil(fmax(f(amax * (double)(1.0f / 448.0f)), (double)1e-4f));
    s = (float)scale;
    for (int64_t i = 0; i < dim; i++) {
        int64_t at = side * n + w.slot * dim + i;

        if (format == SL_ROW_GQA_F32)
            ref_put(row, SL_F32, at, x[i]);
        else if (format == SL_ROW_GQA_BF16)
            ref_put(row, SL_BF16, at, x[i]);
        else
            row[at] = ref_e4m3(x[i] / scale);
    }
    if (format == SL_ROW_GQA_FP8)
        memcpy(row + 2 * n + 4 * (side * w.slots + w.slot), &s, 4);
    if (w.slot == 0) { /* zeros up to a multiple of 16 bytes */
        const int64_t size = format == SL_ROW_GQA_F32    ? 4
                             : format == SL_ROW_GQA_BF16 ? 2
                                                         : 1,
                      used = 2 * n * size + (format == SL_ROW_GQA_FP8 ? 8 * w.slots : 0);

        memset(row + used, 0, (size_t)(-used & 15));
    }
}

static double get_value(sl_row_format format, where w, int32_t dim, int side, const uint8_t *row, int64_t i)
{
    int64_t n = w.slots * dim, at = side * n + w.slot * dim + i;
    float s;

    if (format == SL_ROW_GQA_F32)
        return ref_at(row, SL_F32, at);
    if (format == SL_ROW_GQA_BF16)
        return ref_at(row, SL_BF16, at);
    memcpy(&s, row + 2 * n + 4 * (side * w.slots + w.slot), 4);
    return f(ref_e4m3_value(row[at]) * (double)s);
}

void ref_gqa_append(const void *params)
{
    const sl_gqa_append_params *p = params;
    const sl_seq_tables *s = p->seqs;
    int64_t all = (int64_t)p->heads * p->dim, lists = p->rows.heads ? p->rows.heads : 1;
    int64_t blocks = 64 >> p->rows.block_log2, tail = p->rows.tail_rows / lists;
    double *k = malloc(16 * (size_t)all), *v = k + all;

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t], block = pos >> p->rows.block_log2, at;

        for (int64_t h = 0; h < p->heads; h++)
            head(&p->key, p->k, t * all + h * p->dim, h, p->dim, pos, p->act, k + h * p->dim);
        for (int64_t i = 0; i < all; i++)
            v[i] = biased(p->v, p->v_bias, t * all, i, p->act);
        /* Of the sequence in this step: blocks older than fit the tail are not on the device. */
        int64_t newest = pos;

        for (int64_t u = t + 1; u < s->n_tokens && s->token_seq[u] == seq; u++)
            newest = s->token_pos[u];
        bool pushed_out = s->hot_slot[seq] >= 0 && block + tail <= newest >> p->rows.block_log2;

        if (s->hot_slot[seq] < 0)
            at = (ref_page_of(s->row_pages, s, seq, pos) * blocks + block % blocks) * lists;
        else
            at = p->rows.hot_base + s->hot_slot[seq] * (int64_t)(p->rows.hot_rows + p->rows.tail_rows) +
                 p->rows.hot_rows + block % tail * lists;
        for (int64_t h = 0; h < p->heads; h++) {
            where w = where_is(&p->rows, p->heads, pos, h);
            uint8_t *to[] = {pushed_out ? NULL : p->rows.base + (at + w.row) * p->rows.row_bytes, NULL};

            if (p->host.base)
                to[1] = p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride +
                        block % blocks * p->host.row_stride + w.row * p->rows.row_bytes;
            for (int i = 0; i < 2; i++) {
                if (!to[i])
                    continue;
                put_side(p->format, w, p->dim, 0, k + h * p->dim, to[i]);
                put_side(p->format, w, p->dim, 1, v + h * p->dim, to[i]);
            }
        }
    }
    free(k);
}

typedef struct token {
    const uint8_t *row;
    where w;
} token;

static int32_t position(const sl_gqa_attn_params *p, int64_t t)
{
    return p->seqs ? p->seqs->token_pos[t] : p->pos[t];
}

/* Whether a token attends to a page, by the lists of a prompt. */
static bool has_page(const sl_gqa_attn_params *p, int64_t t, int64_t kv, int64_t page)
{
    if (!p->prompt.of || p->prompt.of[t] < 0)
        return true;
    for (int64_t i = 0; i < p->prompt.ld; i++)
        if (p->prompt.pages[(p->prompt.of[t] * (int64_t)p->kv_heads + kv) * p->prompt.ld + i] == page)
            return true;
    return false;
}

/* The tokens of the list that query head h reads. */
static int32_t listed(const sl_gqa_attn_params *p, int64_t t, int64_t h, token *out)
{
    int64_t kv = h / (p->heads / p->kv_heads), list = p->rows.heads ? t * p->kv_heads + kv : t;
    int64_t block = (int64_t)1 << p->rows.block_log2;
    int32_t n = 0;

    if (p->seqs) {
        int64_t lists = p->rows.heads ? p->kv_heads : 1, first = p->rows.heads ? kv : 0;

        for (int64_t j = 0; p->seqs->token_seq[t] >= 0 && j <= p->seqs->token_pos[t]; j++) {
            if (!has_page(p, t, kv, j / 64))
                continue;
            int64_t page = p->seqs->row_pages[p->seqs->token_seq[t] * (int64_t)p->seqs->ld + j / 64];
            int64_t row = (page * 64 + j % 64) / block * lists + first;

            out[n++] = (token){p->rows.base + row * p->rows.row_bytes,
                               where_is(&p->rows, p->kv_heads, j % block, kv)};
        }
        return n;
    }
    for (int64_t j = list * p->ld_ids; j < list * p->ld_ids + p->k && p->phys[j] >= 0; j++)
        for (int64_t i = 0; i < block; i++)
            if (block == 1 || p->ids[j] * block + i <= p->pos[t])
                out[n++] = (token){p->rows.base + p->phys[j] * p->rows.row_bytes,
                                   where_is(&p->rows, p->kv_heads, i, kv)};
    return n;
}

/* s[j] = scale * q . k_j of one query head. */
static void products(const sl_gqa_attn_params *p, int64_t t, int64_t h, int32_t n, const token *of, double *s)
{
    for (int32_t j = 0; j < n; j++) {
        s[j] = 0;
        for (int32_t i = 0; i < p->dim; i++)
            s[j] += (double)p->q[(t * p->heads + h) * p->dim + i] *
                    get_value(p->format, of[j].w, p->dim, 0, of[j].row, i);
        s[j] *= (double)p->scale;
    }
}

/* Marks the tiles that every query head of h's group leaves out; out[n / 64]. s: scratch. */
static void skips(const sl_gqa_attn_params *p, int64_t t, int64_t h, int32_t n, const token *of, double *s,
                  bool *out)
{
    const int64_t group = p->heads / p->kv_heads;
    const bool on =
        p->skip_factor > 0 && position(p, t) >= p->skip_from && position(p, t) + 1 > (double)p->skip_factor;

    for (int32_t tile = 0; tile * 64 < n; tile++)
        out[tile] = on && tile > 0;
    for (int64_t u = h / group * group; on && u < (h / group + 1) * group; u++) {
        double before = -INFINITY;

        products(p, t, u, n, of, s);
        for (int32_t tile = 0; tile * 64 < n; tile++) {
            double top = -INFINITY;

            for (int32_t j = tile * 64; j < n && j < tile * 64 + 64; j++)
                top = fmax(top, s[j]);
            if (exp(top - before) >= (double)p->skip_factor / (position(p, t) + 1))
                out[tile] = false;
            before = fmax(before, top);
        }
    }
    for (int32_t tile = 0; on && h % group == 0 && tile * 64 < n; tile++)
        p->tiles[0]++, p->tiles[1] += out[tile];
}

/* One query head over n tokens. */
static void attend(const sl_gqa_attn_params *p, int64_t t, int64_t h, int32_t n, const token *of, double *s)
{
    int64_t at = (t * p->heads + h) * p->dim;
    double top = -INFINITY, sum = 0;
    bool skip[1024] = {false};

    skips(p, t, h, n, of, s, skip);
    products(p, t, h, n, of, s);
    for (int32_t j = 0; j < n; j++)
        top = skip[j / 64] ? top : fmax(top, s[j]);
    for (int32_t j = 0; j < n; j++)
        sum += s[j] = skip[j / 64] ? 0 : exp(s[j] - top);
    for (int32_t i = 0; i < p->dim; i++) {
        double o = 0;

        for (int32_t j = 0; j < n; j++)
            o += s[j] / sum * get_value(p->format, of[j].w, p->dim, 1, of[j].row, i);
        ref_put(p->out, p->act, at + i, o);
    }
}

void ref_gqa_attn(const void *params)
{
    const sl_gqa_attn_params *p = params;
    size_t most = (size_t)p->k << p->rows.block_log2;
    double *s = malloc(8 * most);
    token *of = malloc(most * sizeof *of);

    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t h = 0; h < p->heads; h++)
            attend(p, t, h, listed(p, t, h, of), of, s);
    free(s);
    free(of);
}

/* ---- kernels/bounds.h ---- */

static int64_t unit_bytes(int32_t dim, sl_dtype dtype)
{
    return dtype == SL_I8 ? 2 * dim + (dim / 16 + 15) / 16 * 16
                          : 2 * (int64_t)dim * (dtype == SL_F32 ? 4 : 2);
}

/* v as the stored type, rounded to the side that keeps the bound. */
static double outward(double v, sl_dtype dtype, bool up)
{
    uint16_t code;

    if (dtype == SL_F32)
        return v;
    code = ref_bf16(v);
    while (up ? ref_bf16_value(code) < v : ref_bf16_value(code) > v)
        code = (uint16_t)(up == (code < 0x8000) ? code + 1 : code - 1); /* away from 0, or towards it */
    return ref_bf16_value(code);
}

/* The smallest exponent, from -100 on, with which the codes of 16 channels are at most 127. */
static int exponent_of(const double *most, const double *least)
{
    int e = -100;

    for (int i = 0; i < 16; i++)
        while (ceil(ldexp(most[i], -e)) > 127 || ceil(ldexp(most[i], -e)) < -127 ||
               floor(ldexp(least[i], -e)) < -127 || floor(ldexp(least[i], -e)) > 127)
            e++;
    return e;
}

/* Adds a key to a unit of int8, 16 channels at a time. */
static void add_codes(uint8_t *unit, const double *k, int32_t dim, bool first)
{
    for (int32_t i = 2 * dim + dim / 16; i % 16; i++)
        unit[i] = 0;
    for (int32_t g = 0; g < dim; g += 16) {
        double most[16], least[16];
        uint8_t *exponent = unit + 2 * dim + g / 16;

        for (int i = 0; i < 16; i++) {
            double high = ldexp((int8_t)unit[g + i], *exponent - 127),
                   low = ldexp((int8_t)unit[dim + g + i], *exponent - 127);

            most[i] = first ? k[g + i] : fmax(k[g + i], high);
            least[i] = first ? k[g + i] : fmin(k[g + i], low);
        }
        int e = exponent_of(most, least);
        *exponent = (uint8_t)(e + 127);
        for (int i = 0; i < 16; i++) {
            unit[g + i] = (uint8_t)(int8_t)ceil(ldexp(most[i], -e));
            unit[dim + g + i] = (uint8_t)(int8_t)floor(ldexp(least[i], -e));
        }
    }
}

/* The device row of head h's key if the token has one, else the host row. */
static const uint8_t *key_row(const sl_bounds_append_params *p, int64_t t, int64_t row)
{
    const sl_seq_tables *s = p->seqs;
    int64_t lists = p->rows.heads ? p->rows.heads : 1, blocks = 64 >> p->rows.block_log2;
    int64_t seq = s->token_seq[t], pos = s->token_pos[t], block = pos >> p->rows.block_log2, newest = pos, at;
    int64_t tail = p->rows.tail_rows / lists;
    bool hot = s->hot_slot && s->hot_slot[seq] >= 0;

    for (int64_t u = t + 1; u < s->n_tokens && s->token_seq[u] == seq; u++)
        newest = s->token_pos[u];
    if (!p->rows.base || (hot && block + tail <= newest >> p->rows.block_log2))
        return p->host_rows.base + ref_page_of(s->host_pages, s, seq, pos) * p->host_rows.page_stride +
               block % blocks * p->host_rows.row_stride + row * p->rows.row_bytes;
    if (hot)
        at = p->rows.hot_base + s->hot_slot[seq] * (int64_t)(p->rows.hot_rows + p->rows.tail_rows) +
             p->rows.hot_rows + block % tail * lists;
    else
        at = (ref_page_of(s->row_pages, s, seq, pos) * blocks + block % blocks) * lists;
    return p->rows.base + (at + row) * p->rows.row_bytes;
}

static void bounds_append(const sl_bounds_append_params *p)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t size = (int64_t)1 << p->rows.block_log2;
    const int64_t unit = unit_bytes(p->dim, p->dtype);
    double *key = malloc(8 * (size_t)p->dim);

    for (int64_t t = 0; t < s->n_tokens; t++) {
        int64_t seq = s->token_seq[t], pos = s->token_pos[t], at = pos % 64 / size * p->heads;
        uint8_t *dev = p->base + ref_page_of(s->index_pages, s, seq, pos) * p->page_stride + at * unit;

        for (int64_t h = 0; h < p->heads; h++) {
            where w = where_is(&p->rows, p->heads, pos, h);
            const uint8_t *row = key_row(p, t, w.row);

            for (int64_t i = 0; i < p->dim; i++) {
                double k = key[i] = get_value(p->format, w, p->dim, 0, row, i);

                if (p->dtype == SL_I8)
                    continue;
                double most = ref_at(dev + h * unit, p->dtype, i),
                       least = ref_at(dev + h * unit, p->dtype, p->dim + i);

                if (pos % size == 0 || k > most)
                    ref_put(dev + h * unit, p->dtype, i, outward(k, p->dtype, true));
                if (pos % size == 0 || k < least)
                    ref_put(dev + h * unit, p->dtype, p->dim + i, outward(k, p->dtype, false));
            }
            if (p->dtype == SL_I8)
                add_codes(dev + h * unit, key, p->dim, pos % size == 0);
        }
        if (p->host.base)
            memcpy(p->host.base + ref_page_of(s->host_pages, s, seq, pos) * p->host.page_stride +
                       pos % 64 / size * p->host.row_stride,
                   dev, (size_t)(p->heads * unit));
    }
    free(key);
}

/* Whole blocks: token by token from the beginning of each block that the step touches, as steps of one token of one
 * sequence. */
void ref_bounds_append(const void *params)
{
    const sl_bounds_append_params *p = params;
    const int32_t size = 1 << p->rows.block_log2;

    for (int64_t t = 0; p->whole && t < p->seqs->n_tokens; t++) {
        int32_t seq = p->seqs->token_seq[t], pos = p->seqs->token_pos[t], first = pos - pos % size;
        sl_seq_tables one = *p->seqs;
        sl_bounds_append_params q = *p;

        one.n_tokens = 1, one.token_seq = &seq, one.token_pos = &first;
        q.seqs = &one;
        for (; first <= pos; first++)
            bounds_append(&q);
    }
    if (!p->whole)
        bounds_append(p);
}

/* Value i of a unit. */
static double value_in(const uint8_t *unit, sl_dtype dtype, int32_t dim, int64_t i)
{
    double v = ref_at(unit, dtype, i);

    return dtype == SL_I8 ? ldexp(v, unit[2 * dim + i % dim / 16] - 127) : v;
}

/* q, or with bounds of int8 the value of its integer, if `most` is the largest one of the query's values. */
static double rounded(double q, double most, sl_dtype dtype)
{
    int x;

    frexp(most, &x);
    x = x < -80 ? -80 : x;
    return dtype == SL_I8 ? ldexp(nearbyint(ldexp(q, 13 - x)), x - 13) : q;
}

/* Value i of a query head, or of the mean of its group: in float32, as integers are made of that. */
static double query_of(const sl_bounds_scores_params *p, int64_t t, int64_t head, int64_t i, bool mean)
{
    const int64_t group = p->heads / p->kv_heads, first = head / group * group;
    float sum = 0;

    if (!mean)
        return (double)p->q[(t * p->heads + head) * p->dim + i];
    for (int64_t h = first; h < first + group; h++)
        sum += p->q[(t * p->heads + h) * p->dim + i];
    return (double)(sum / (float)group);
}

/* The bound of block b for one query head, or for the mean of its group. */
static double bound_of(const sl_bounds_scores_params *p, int64_t t, int64_t b, int64_t head, bool mean)
{
    const sl_seq_tables *s = p->seqs;
    const int64_t size = (int64_t)1 << p->block_log2, group = p->heads / p->kv_heads, kv = head / group;
    const int64_t unit = unit_bytes(p->dim, p->dtype);
    const uint8_t *at = p->base + ref_page_of(s->index_pages, s, s->token_seq[t], b * size) * p->page_stride +
                        (b * size % 64 / size * p->kv_heads + kv) * unit;
    double sum = 0, most = 0;

    for (int64_t i = 0; i < p->dim; i++)
        most = fmax(most, fabs(query_of(p, t, head, i, mean)));
    for (int64_t i = 0; i < p->dim; i++) {
        double q = rounded(query_of(p, t, head, i, mean), most, p->dtype);

        sum += fmax(q * value_in(at, p->dtype, p->dim, i), q * value_in(at, p->dtype, p->dim, p->dim + i));
    }
    return sum;
}

void ref_bounds_scores(const void *params)
{
    const sl_bounds_scores_params *p = params;
    const int64_t group = p->heads / p->kv_heads, per = p->heads / p->lists;
    double *x = malloc(8 * (size_t)p->ld_scores), *place = malloc(8 * (size_t)p->ld_scores);

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++)
        for (int64_t l = 0; l < p->lists; l++) {
            int64_t n = p->seqs->token_pos[t] >> p->block_log2;
            float *out = p->scores + ((t - p->token_first) * p->lists + l) * p->ld_scores;

            if (p->seqs->token_pos[t] < p->from_pos)
                continue;
            double *sum = calloc((size_t)n + 1, 8);
            for (int64_t h = l * per; h < (l + 1) * per; h += p->reduce == SL_GROUP_MEAN ? group : 1) {
                double top = -INFINITY, all = 0;

                for (int64_t b = 0; b < n; b++) {
                    x[b] = bound_of(p, t, b, h, p->reduce == SL_GROUP_MEAN);
                    top = fmax(top, x[b]);
                }
                for (int64_t b = 0; b < n; b++)
                    all += exp((double)p->scale * (x[b] - top));
                ref_places(x, p->reduce == SL_GROUP_UNION ? n : 0, place);
                for (int64_t b = 0; b < n; b++)
                    if (p->reduce == SL_GROUP_UNION)
                        sum[b] = h == l * per ? place[b] : fmax(sum[b], place[b]);
                    else if (p->reduce == SL_GROUP_MAX)
                        sum[b] = h == l * per ? x[b] : fmax(sum[b], x[b]);
                    else if (p->reduce == SL_GROUP_MEAN)
                        sum[b] += x[b];
                    else
                        sum[b] += exp((double)p->scale * (x[b] - top)) / all;
            }
            for (int64_t b = 0; b < n; b++)
                out[b] = (float)sum[b];
            out[n] = 0;
            free(sum);
        }
    free(x), free(place);
}

/* The softmax, by strip, of what strip m of the queries of head h multiplies; the block's first token is t, at page b. */
static void prompt_strip(const sl_prompt_scores_params *p, int64_t t, int64_t b, int64_t h, int64_t m,
                         double *a)
{
    const int64_t n = 4 * b + m + 1, lists = p->rows.heads ? p->rows.heads : 1, seq = p->seqs->token_seq[t];
    double top = -INFINITY, all = 0;

    for (int64_t j = 0; j < n; j++) {
        a[j] = 0;
        for (int64_t r = 0; r < 16; r++) {
            const int64_t key = 16 * j + 15 - r;
            const where at = where_is(&p->rows, p->kv_heads, key, h / (p->heads / p->kv_heads));
            const int64_t page = p->seqs->row_pages[seq * p->seqs->ld + key / 64];
            const uint8_t *row =
                p->rows.base +
                ((page * 64 + key % 64) / (1 << p->rows.block_log2) * lists + at.row) * p->rows.row_bytes;
            for (int64_t i = 0; i < p->dim; i++)
                a[j] += (double)p->q[((t + 16 * m + r) * p->heads + h) * p->dim + i] *
                        get_value(p->format, at, p->dim, 0, row, i);
        }
        a[j] *= (double)p->scale / 16;
        top = fmax(top, a[j]);
    }
    for (int64_t j = 0; j < n; j++)
        all += a[j] = exp(a[j] - top);
    for (int64_t j = 0; j < n; j++)
        a[j] /= all;
}

void ref_prompt_scores(const void *params)
{
    const sl_prompt_scores_params *p = params;
    double *a = malloc(8 * ((size_t)p->max_pos + 64)), *sum = malloc(8 * ((size_t)p->max_pos + 64));

    for (int64_t i = 0; i < p->n; i++) {
        const int64_t t = p->first[i], b = p->seqs->token_pos[t] / 64;

        for (int64_t v = 0; v < p->kv_heads; v++) {
            memset(sum, 0, 8 * (size_t)(b + 1));
            for (int64_t h = v * (p->heads / p->kv_heads); h < (v + 1) * (p->heads / p->kv_heads); h++)
                for (int64_t m = 0; m < 4; m++) {
                    prompt_strip(p, t, b, h, m, a);
                    for (int64_t j = 0; j <= 4 * b + m; j++)
                        sum[j / 4] += a[j];
                }
            for (int64_t j = 0; j <= b; j++)
                p->scores[(i * p->kv_heads + v) * p->ld_scores + j] = (float)sum[j];
        }
    }
    free(a), free(sum);
}

/* ---- kernels/window.h ---- */

/* The product of a query of the window with the key of token j. */
static double product(const sl_window_votes_params *p, int64_t w, int64_t h, int64_t j)
{
    int64_t lists = p->rows.heads ? p->rows.heads : 1;
    where at = where_is(&p->rows, p->kv_heads, j, h / (p->heads / p->kv_heads));
    const uint8_t *row =
        p->rows.base + ((p->row_pages[j / 64] * 64 + j % 64) * lists + at.row) * p->rows.row_bytes;
    double sum = 0;

    for (int32_t i = 0; i < p->dim; i++)
        sum += (double)p->q[(w * p->heads + h) * p->dim + i] * get_value(p->format, at, p->dim, 0, row, i);
    return sum * (double)p->scale;
}

void ref_window_votes(const void *params)
{
    const sl_window_votes_params *p = params;
    int64_t before = p->tokens - p->window, half = p->kernel / 2;
    double *sum = malloc(16 * (size_t)p->tokens), *each = sum + p->tokens;

    for (int64_t v = 0; v < p->kv_heads; v++) {
        memset(sum, 0, 8 * (size_t)p->tokens);
        for (int64_t h = v * (p->heads / p->kv_heads); h < (v + 1) * (p->heads / p->kv_heads); h++)
            for (int64_t w = 0; w < p->window; w++) {
                double top = -INFINITY, all = 0;

                for (int64_t j = 0; j <= before + w; j++)
                    top = fmax(top, each[j] = product(p, w, h, j));
                for (int64_t j = 0; j <= before + w; j++)
                    all += exp(each[j] - top);
                for (int64_t j = 0; j < before; j++)
                    sum[j] += exp(each[j] - top) / all;
            }
        for (int64_t j = 0; j < before; j++) {
            double total = 0, most = 0; /* votes are positive */

            for (int64_t i = j - half; i <= j + half; i++) {
                total += i < 0 || i >= before ? 0 : sum[i];
                most = fmax(most, i < 0 || i >= before ? 0 : sum[i]);
            }
            p->votes[v * p->ld_votes + j] = (float)(p->pooling == SL_POOLING_MAX ? most : total / p->kernel);
        }
    }
    free(sum);
}

/* Whether a list has this token: asked for every token, in their order. */
static bool reads(const sl_kept_lists_params *p, int64_t seq, int64_t list, int32_t pos, int32_t at)
{
    int32_t prompt = p->prompts[2 * seq];

    if (pos < prompt || pos < p->dense_below)
        return true;
    if (at >= prompt)
        return p->output == 0 || at > pos - p->output;
    if (at >= prompt - p->window)
        return true;
    for (int32_t i = 0; i < p->prompts[2 * seq + 1]; i++)
        if (p->kept[(seq * p->lists + list) * p->ld_kept + i] == at)
            return true;
    return false;
}

void ref_kept_lists(const void *params)
{
    const sl_kept_lists_params *p = params;

    for (int64_t i = 0; i < (int64_t)p->token_count * p->lists; i++) {
        int64_t t = p->token_first + i / p->lists, n = 0;

        for (int32_t j = 0; j <= p->seqs->token_pos[t]; j++)
            if (reads(p, p->seqs->token_seq[t], i % p->lists, p->seqs->token_pos[t], j))
                p->ids[i * p->ld_ids + n++] = j;
        for (; n < p->ld_ids; n++)
            p->ids[i * p->ld_ids + n] = -1;
    }
}
