/*
 * Conformance cases of delta-rule layers, pooled index keys and n-gram embeddings: conv, delta, gated_norm, pool_append, pool_scores,
 * open_units, ngram, ngram_mix; and of gated residuals: streams_mix, unary.
 *
 * The ops with a state run over all tokens at once and then, from the same state, in steps of a few tokens that cut sequences
 * anywhere: outputs and states must be the same bits.
 */
#include <string.h>

#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"
#include "kernels/streams.h"
#include "kernels/turns.h"
#include "tests/unit/kernels/batch.h"

static size_t e(sl_dtype d)
{
    return sl_dtype_size(d);
}

static cf_kind kind_of(sl_dtype act)
{
    return act == SL_BF16 ? CF_BF16 : CF_F32;
}

/* States of `values` floats of every sequence of the batch; a stride that is longer than a state. */
static uint8_t *states(cf_run *r, const batch *b, int64_t values, int64_t *stride)
{
    *stride = 4 * values + 48;
    return cf_matrix(r, 90, 0, b->seqs, *stride / 4, *stride / 4, SL_F32, 1);
}

/* The tables of `count` tokens from `first` on. */
static sl_seq_tables cut(const batch *b, int64_t first, int64_t count)
{
    sl_seq_tables t = b->t;

    t.n_tokens = (int32_t)count, t.token_seq += first, t.token_pos += first;
    return t;
}

/* Fails unless both are the same bytes. Not of the reference, which rounds a state where a step ends. */
static void same(cf_run *r, const char *what, const void *a, const void *b, size_t bytes)
{
    uint8_t *x = cf_temp(r, bytes), *y = cf_temp(r, bytes);

    if (!r->be)
        return;
    cf_get(r, x, a, bytes);
    cf_get(r, y, b, bytes);
    if (r->st == SL_OK && memcmp(x, y, bytes) != 0)
        cf_fail(r, "%s: tokens of several steps differ from those of one", what);
}

static int64_t piece(int64_t at, int64_t n)
{
    static const int64_t sizes[] = {1, 3, 2, 7};
    int64_t size = sizes[at % 4];

    return size < n - at ? size : n - at;
}

/* ---- delta-rule layers ---- */

/* T, per, length, channels, taps, dilation, ld, out dtype, add */
static void conv(cf_run *r, const int64_t *a)
{
    batch b;
    sl_conv_params p = {.channels = (int32_t)a[3],
                        .taps = (int32_t)a[4],
                        .dilation = (int32_t)a[5],
                        .ld_x = (int32_t)a[6],
                        .out_dtype = (sl_dtype)a[7]};
    size_t out = (size_t)a[3] * e(p.out_dtype);

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.x = cf_matrix(r, 1, r->first, r->n, a[3], a[6], SL_F32, 2);
    p.w = cf_matrix(r, 2, 0, a[3], a[4], a[4], SL_F32, 1);
    p.add = a[8] ? cf_matrix(r, 3, r->first, r->n, a[3], a[3], SL_F32, 1) : NULL;
    p.out = cf_mem(r, NULL, (size_t)r->n * out);
    p.state = states(r, &b, (a[4] - 1) * a[5] * a[3], &p.state_stride);
    sl_conv_params q = p;
    q.state = states(r, &b, (a[4] - 1) * a[5] * a[3], &q.state_stride);
    q.out = cf_mem(r, NULL, (size_t)r->n * out);
    cf_op(r, SL_OP_CONV, &p);
    cf_work(r, (double)r->n * (double)a[3] * (double)(4 * a[4] + 4 + (int64_t)e(p.out_dtype)), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, out, kind_of(p.out_dtype), 2e-6);
    cf_out(r, "states", p.state, b.seqs, (size_t)p.state_stride, (size_t)p.state_stride, CF_BYTES, 0);
    for (int64_t at = 0; !r->perf && at < r->n; at += piece(at, r->n)) {
        sl_seq_tables t = cut(&b, at, piece(at, r->n));
        sl_conv_params s = q;
        s.seqs = &t, s.x += at * a[6], s.out = (uint8_t *)s.out + (size_t)at * out;
        s.add = s.add ? s.add + at * a[3] : NULL;
        cf_op(r, SL_OP_CONV, &s);
    }
    if (!r->perf) {
        same(r, "out", p.out, q.out, (size_t)r->n * out);
        same(r, "states", p.state, q.state, (size_t)(b.seqs * p.state_stride));
    }
    q.state = states(r, &b, (a[4] - 1) * a[5] * a[3], &q.state_stride);
    batch_in_turns(r, &b, &(batch_op){SL_OP_CONV, &q, &q.seqs, &q.state, q.state_stride, 48}, p.state);
}

/* T, per, length, key heads, value heads, key dim, value dim, by channel, bound * 10 */
static void delta(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t keys = a[3] * a[5], values = a[4] * a[6], gates = a[7] ? a[4] * a[5] : a[4],
            ld = 2 * keys + values;
    sl_delta_params p = {.key_heads = (int32_t)a[3],
                         .value_heads = (int32_t)a[4],
                         .key_dim = (int32_t)a[5],
                         .value_dim = (int32_t)a[6],
                         .ld_q = (int32_t)ld,
                         .ld_k = (int32_t)ld,
                         .ld_v = (int32_t)ld,
                         .by_channel = a[7],
                         .bound = (float)a[8] / 10};

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.q = cf_matrix(r, 1, r->first, r->n, ld, ld, SL_F32, 2);
    p.k = p.q + keys, p.v = p.k + keys;
    p.gate = cf_matrix(r, 2, r->first, r->n, gates, gates, SL_F32, 3);
    p.beta = cf_matrix(r, 3, r->first, r->n, a[4], a[4], SL_F32, 3);
    p.a_log = cf_matrix(r, 4, 0, 1, a[4], a[4], SL_F32, 1);
    p.dt_bias = cf_matrix(r, 5, 0, 1, gates, gates, SL_F32, 1);
    p.out = cf_mem(r, NULL, 4 * (size_t)(r->n * values));
    p.state = states(r, &b, a[4] * a[5] * a[6], &p.state_stride);
    sl_delta_params q = p;
    q.state = states(r, &b, a[4] * a[5] * a[6], &q.state_stride);
    q.out = cf_mem(r, NULL, 4 * (size_t)(r->n * values));
    cf_op(r, SL_OP_DELTA, &p);
    cf_work(r,
            8.0 * (double)(b.seqs * a[4]) * (double)(a[5] * a[6]) + 4 * (double)r->n * (double)(ld + values),
            0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, 4 * (size_t)values, CF_F32, 2e-5);
    cf_out(r, "states", p.state, b.seqs, (size_t)p.state_stride, (size_t)p.state_stride, CF_F32, 2e-5);
    for (int64_t at = 0; !r->perf && at < r->n; at += piece(at, r->n)) {
        sl_seq_tables t = cut(&b, at, piece(at, r->n));
        sl_delta_params s = q;
        s.seqs = &t, s.q += at * ld, s.k += at * ld, s.v += at * ld;
        s.gate += at * gates, s.beta += at * a[4], s.out += at * values;
        cf_op(r, SL_OP_DELTA, &s);
    }
    if (!r->perf) {
        same(r, "out", p.out, q.out, 4 * (size_t)(r->n * values));
        same(r, "states", p.state, q.state, (size_t)(b.seqs * p.state_stride));
    }
    q.state = states(r, &b, a[4] * a[5] * a[6], &q.state_stride);
    batch_in_turns(r, &b, &(batch_op){SL_OP_DELTA, &q, &q.seqs, &q.state, q.state_stride, 48}, p.state);
}

/* T, heads, dim, act, form, without a gate, bias */
static void gated_norm(cf_run *r, const int64_t *a)
{
    int64_t width = a[1] * a[2];
    sl_gated_norm_params p = {.tokens = (int32_t)r->n,
                              .heads = (int32_t)a[1],
                              .dim = (int32_t)a[2],
                              .act = (sl_dtype)a[3],
                              .form = (sl_gate_form)a[4],
                              .eps = 1e-5f};

    p.x = cf_matrix(r, 1, r->first, r->n, width, width, SL_F32, 2);
    p.gate = a[5] ? NULL : cf_matrix(r, 2, r->first, r->n, width, width, SL_F32, 4);
    p.weight = cf_matrix(r, 3, 0, 1, a[2], a[2], SL_F32, 1.5f);
    p.bias = a[6] ? cf_matrix(r, 4, 0, 1, a[2], a[2], SL_F32, 1) : NULL;
    p.out = cf_mem(r, NULL, (size_t)(r->n * width) * e(p.act));
    cf_op(r, SL_OP_GATED_NORM, &p);
    cf_work(r, (double)(r->n * width) * (8.0 + (double)e(p.act)), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)width * e(p.act), kind_of(p.act), 2e-6);
}

/* T, per, length, bytes, bytes between states and what is copied of them */
static void state_keep(cf_run *r, const int64_t *a)
{
    batch b;
    sl_state_keep_params p = {.stride = a[3] + a[4], .bytes = a[3]};
    const size_t all = (size_t)(a[0] * p.stride);
    uint8_t *states = cf_temp(r, all);

    batch_make(r, &b, a[0], a[1], a[2], 0);
    for (size_t i = 0; i < all; i++)
        states[i] = (uint8_t)cf_hash(5, (int64_t)i);
    p.seqs = &b.t;
    p.from = cf_mem(r, states, all);
    p.to = cf_mem(r, NULL, all);
    cf_op(r, SL_OP_STATE_KEEP, &p);
    cf_work(r, 2.0 * (double)(r->n * p.bytes), 0, SL_F32, 0);
    cf_out(r, "copies", p.to, b.seqs, (size_t)p.stride, (size_t)p.stride, CF_BYTES, 0);
}

/* ---- pooled keys ---- */

/* T, per, length, dim, unit_log2, gate, norm, rope, act, host */
static void pool_append(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t units = 64 >> a[4], ld = a[3] + 3, bytes = 4 * a[3];
    sl_pool_append_params p = {.dim = (int32_t)a[3],
                               .unit_log2 = (int32_t)a[4],
                               .rope = (int32_t)a[7],
                               .act = (sl_dtype)a[8],
                               .ld = (int32_t)ld,
                               .eps = 1e-5f,
                               .page_stride = units * bytes + 32,
                               .host = {.page_stride = units * (bytes + 16) + 16, .row_stride = bytes + 16}};

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    p.k = cf_matrix(r, 1, r->first, r->n, ld, ld, SL_F32, 2);
    p.gate = a[5] ? cf_matrix(r, 2, r->first, r->n, ld, ld, SL_F32, 2) : NULL;
    p.ape = a[5] ? cf_matrix(r, 3, 0, (int64_t)1 << a[4], a[3], a[3], SL_F32, 1) : NULL;
    p.norm = a[6] ? cf_matrix(r, 4, 0, 1, a[3], a[3], SL_F32, 1.5f) : NULL;
    p.cos_sin = cf_cos_sin(r, (int32_t)a[2], a[7] ? (int32_t)a[7] : 2);
    p.base = cf_mem(r, NULL, (size_t)(b.pages * p.page_stride));
    p.host.base = a[9] ? cf_host_mem(r, NULL, (size_t)(b.pages * p.host.page_stride)) : NULL;
    p.state = states(r, &b, (a[3] << a[4]) * (a[5] ? 2 : 1), &p.state_stride);
    sl_pool_append_params q = p;
    q.state = states(r, &b, (a[3] << a[4]) * (a[5] ? 2 : 1), &q.state_stride);
    q.base = cf_mem(r, NULL, (size_t)(b.pages * p.page_stride));
    cf_op(r, SL_OP_POOL_APPEND, &p);
    cf_work(r, 8.0 * (double)(r->n * a[3]), 0, SL_F32, 0);
    cf_out(r, "keys", p.base, b.pages, (size_t)p.page_stride, (size_t)p.page_stride, CF_F32,
           p.act == SL_BF16 ? 8e-3 : 4e-6);
    if (a[9])
        cf_out(r, "host keys", p.host.base, b.pages * units, (size_t)bytes, (size_t)p.host.row_stride, CF_F32,
               p.act == SL_BF16 ? 8e-3 : 4e-6);
    for (int64_t at = 0; !r->perf && at < r->n; at += piece(at, r->n)) {
        sl_seq_tables t = cut(&b, at, piece(at, r->n));
        sl_pool_append_params s = q;
        s.seqs = &t, s.k += at * ld, s.gate = s.gate ? s.gate + at * ld : NULL;
        cf_op(r, SL_OP_POOL_APPEND, &s);
    }
    if (!r->perf)
        same(r, "keys", p.base, q.base, (size_t)(b.pages * p.page_stride));
    q.state = states(r, &b, (a[3] << a[4]) * (a[5] ? 2 : 1), &q.state_stride);
    q.base = cf_mem(r, NULL, (size_t)(b.pages * p.page_stride));
    batch_in_turns(r, &b, &(batch_op){SL_OP_POOL_APPEND, &q, &q.seqs, &q.state, q.state_stride, 48}, NULL);
    if (!r->perf)
        same(r, "keys in turns", p.base, q.base, (size_t)(b.pages * p.page_stride));
}

/* T, per, length, heads, dim, unit_log2, weights, slices */
static void pool_scores(cf_run *r, const int64_t *a)
{
    batch b;
    int64_t ld = (a[2] >> a[5]) + 2, units = 64 >> a[5], width = a[3] * a[4], n = r->n,
            slice = a[7] ? (n + 1) / 2 : n;
    sl_pool_scores_params p = {.heads = (int32_t)a[3],
                               .dim = (int32_t)a[4],
                               .unit_log2 = (int32_t)a[5],
                               .ld_scores = (int32_t)ld,
                               .scale = 0.125f,
                               .page_stride = 4 * units * a[4] + 16};

    batch_make(r, &b, a[0], a[1], a[2], 0);
    if (r->perf)
        batch_full(r, &b);
    p.seqs = &b.t;
    p.q = cf_matrix(r, 1, r->first, n, width, width, SL_F32, 1);
    p.weights = a[6] ? cf_matrix(r, 2, r->first, n, a[3], a[3], SL_F32, 1) : NULL;
    p.base = cf_matrix(r, 3, 0, b.pages, p.page_stride / 4, p.page_stride / 4, SL_F32, 1);
    p.scores = cf_mem(r, NULL, 4 * (size_t)(n * ld));
    p.unit_seq = cf_mem(r, NULL, 4 * (size_t)n);
    p.unit_pos = cf_mem(r, NULL, 4 * (size_t)n);
    for (int64_t at = 0; at < n; at += slice) {
        sl_pool_scores_params s = p;
        s.token_first = (int32_t)at, s.token_count = (int32_t)(slice < n - at ? slice : n - at);
        s.scores += at * ld, s.unit_seq += at, s.unit_pos += at;
        cf_op(r, SL_OP_POOL_SCORES, &s);
    }
    cf_work(r, 4.0 * (double)(n * ld) * (double)(a[4] + 1), 2.0 * (double)(n * ld) * (double)width, SL_F32,
            0);
    cf_out_tokens(r, "scores", p.scores, 4 * (size_t)ld, CF_F32, 1e-5);
    cf_out_tokens(r, "unit_seq", p.unit_seq, 4, CF_BYTES, 0);
    cf_out_tokens(r, "unit_pos", p.unit_pos, 4, CF_BYTES, 0);
}

/* T, per, length, unit_log2, ld, of tokens: then lists have room for the tokens of a few units */
static void open_units(cf_run *r, const int64_t *a)
{
    batch b;
    int32_t *ids = cf_temp(r, 4 * (size_t)(r->n * a[4]));
    sl_open_units_params p = {.unit_log2 = (int32_t)a[3], .ld_ids = (int32_t)a[4], .by_token = a[5]};
    int64_t room = a[5] ? a[4] >> a[3] : a[4];

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t k = 0; k < a[4]; k++) /* of any length, up to the open unit */
            ids[i * a[4] + k] =
                k < (int64_t)(cf_hash(5, r->first + i) % (uint64_t)room) && k <= b.pos[i] >> a[3] ? (int32_t)k
                                                                                                  : -1;
    p.ids = cf_mem(r, ids, 4 * (size_t)(r->n * a[4]));
    cf_op(r, SL_OP_OPEN_UNITS, &p);
    cf_work(r, 4.0 * (double)(r->n * a[4]), 0, SL_F32, 0);
    cf_out_tokens(r, "ids", p.ids, 4 * (size_t)a[4], CF_BYTES, 0);
}

/* ---- n-grams ---- */

/* T, per, length, order, heads, dim, shards, dtype, act */
static void ngram(cf_run *r, const int64_t *a)
{
    enum { ROWS = 23, EOS = 2 };
    batch b;
    int64_t n = (a[3] - 1) * a[4], out = n * a[5], sizes[64], offsets[64], ends[64], mult[SL_NGRAM_MAX];
    const void *shards[64];
    int32_t *ids = cf_temp(r, 4 * (size_t)r->n), *state;
    sl_ngram_params p = {.order = (int32_t)a[3],
                         .heads = (int32_t)a[4],
                         .dim = (int32_t)a[5],
                         .eos = EOS,
                         .n_shards = (int32_t)a[6],
                         .table_dtype = (sl_dtype)a[7],
                         .act = (sl_dtype)a[8]};

    batch_make(r, &b, a[0], a[1], a[2], 0);
    p.seqs = &b.t;
    for (int64_t i = 0; i < r->n; i++)
        ids[i] = (int32_t)(cf_hash(1, r->first + i) % 5); /* eos is one of five */
    for (int64_t i = 0; i < n; i++)
        sizes[i] = 7 + 2 * i % 9, offsets[i] = i % 2 ? a[6] * ROWS - sizes[i] : i;
    for (int64_t i = 0; i < a[3]; i++)
        mult[i] = (int64_t)(cf_hash(2, i) | 1); /* some are negative: so are products */
    for (int64_t i = 0; i < a[6]; i++)
        shards[i] = cf_matrix(r, 40 + (uint32_t)i, 0, ROWS, a[5], a[5], p.table_dtype, 1),
        ends[i] = (i + 1) * ROWS;
    p.ids = cf_mem(r, ids, 4 * (size_t)r->n);
    p.sizes = cf_mem(r, sizes, 8 * (size_t)n), p.offsets = cf_mem(r, offsets, 8 * (size_t)n);
    p.multipliers = cf_mem(r, mult, 8 * (size_t)a[3]);
    p.shards = cf_mem(r, (const void *)shards, sizeof(void *) * (size_t)a[6]);
    p.shard_rows = cf_mem(r, ends, 8 * (size_t)a[6]);
    p.out = cf_mem(r, NULL, e(p.act) * (size_t)(r->n * out));
    p.state_stride = 4 * (a[3] - 1) + 8;
    state = cf_temp(r, (size_t)(b.seqs * p.state_stride));
    for (int64_t i = 0; i < b.seqs * p.state_stride / 4; i++)
        state[i] = 1 + (int32_t)(cf_hash(3, i) % 5);
    p.state = cf_mem(r, state, (size_t)(b.seqs * p.state_stride));
    sl_ngram_params q = p;
    q.state = cf_mem(r, state, (size_t)(b.seqs * p.state_stride));
    q.out = cf_mem(r, NULL, e(p.act) * (size_t)(r->n * out));
    cf_op(r, SL_OP_NGRAM, &p);
    cf_work(r, 8.0 * (double)(r->n * out), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, e(p.act) * (size_t)out, CF_BYTES, 0);
    cf_out(r, "states", p.state, b.seqs, (size_t)p.state_stride, (size_t)p.state_stride, CF_BYTES, 0);
    for (int64_t at = 0; !r->perf && at < r->n; at += piece(at, r->n)) {
        sl_seq_tables t = cut(&b, at, piece(at, r->n));
        sl_ngram_params s = q;
        s.seqs = &t, s.ids += at, s.out = (uint8_t *)s.out + e(p.act) * (size_t)(at * out);
        cf_op(r, SL_OP_NGRAM, &s);
    }
    if (!r->perf)
        same(r, "out", p.out, q.out, e(p.act) * (size_t)(r->n * out));
    q.state = cf_mem(r, state, (size_t)(b.seqs * p.state_stride));
    batch_in_turns(r, &b, &(batch_op){SL_OP_NGRAM, &q, &q.seqs, &q.state, q.state_stride, 8}, p.state);
}

/* T, dim, count, act */
static void ngram_mix(cf_run *r, const int64_t *a)
{
    int64_t width = a[1] * a[2];
    sl_ngram_mix_params p = {.tokens = (int32_t)r->n,
                             .dim = (int32_t)a[1],
                             .count = (int32_t)a[2],
                             .act = (sl_dtype)a[3],
                             .eps = 1e-5f};

    p.key = cf_matrix(r, 1, r->first, r->n, width, width, SL_F32, 2);
    p.value = cf_matrix(r, 2, r->first, r->n, a[1], a[1], SL_F32, 2);
    p.streams = cf_matrix(r, 3, r->first, r->n, width, width, p.act, 2);
    p.key_gain = cf_matrix(r, 4, 0, a[2], a[1], a[1], SL_F32, 1.5f);
    p.stream_gain = cf_matrix(r, 5, 0, a[2], a[1], a[1], SL_F32, 1.5f);
    p.out_gain = cf_matrix(r, 6, 0, a[2], a[1], a[1], SL_F32, 1.5f);
    p.out = cf_mem(r, NULL, 4 * (size_t)(r->n * width));
    p.normed = cf_mem(r, NULL, 4 * (size_t)(r->n * width));
    cf_op(r, SL_OP_NGRAM_MIX, &p);
    cf_work(r, 20.0 * (double)(r->n * width), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, 4 * (size_t)width, CF_F32, 1e-5);
    cf_out_tokens(r, "normed", p.normed, 4 * (size_t)width, CF_F32, 1e-5);
}

/* ---- gated residuals ---- */

/* T, dim, count, act, post */
static void streams_mix(cf_run *r, const int64_t *a)
{
    int64_t width = a[1] * a[2];
    sl_streams_mix_params p = {
        .tokens = (int32_t)r->n, .dim = (int32_t)a[1], .count = (int32_t)a[2], .act = (sl_dtype)a[3]};

    p.normed = cf_matrix(r, 1, r->first, r->n, width, width, p.act, 2);
    p.up = cf_matrix(r, 2, r->first, r->n, width, width, SL_F32, 4);
    p.inject = a[4] ? cf_matrix(r, 3, r->first, r->n, a[2], a[2], SL_F32, 8) : NULL;
    p.out = cf_mem(r, NULL, (size_t)(r->n * a[1]) * e(p.act));
    p.post = a[4] ? cf_mem(r, NULL, 4 * (size_t)(r->n * a[2])) : NULL;
    cf_op(r, SL_OP_STREAMS_MIX, &p);
    cf_work(r, (double)(r->n * width) * (4.0 + (double)e(p.act)), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)a[1] * e(p.act), kind_of(p.act), 2e-6);
    if (a[4])
        cf_out_tokens(r, "post", p.post, 4 * (size_t)a[2], CF_F32, 2e-6);
}

/* T, dim, form, out dtype, in place */
static void unary(cf_run *r, const int64_t *a)
{
    sl_unary_params p = {.tokens = (int32_t)r->n,
                         .dim = (int32_t)a[1],
                         .form = (sl_unary_form)a[2],
                         .out_dtype = (sl_dtype)a[3],
                         .scale = 0.3f};
    float *x = cf_matrix(r, 1, r->first, r->n, a[1], a[1], SL_F32, 8);

    p.x = x;
    p.out = a[4] ? (void *)x : cf_mem(r, NULL, (size_t)(r->n * a[1]) * e(p.out_dtype));
    cf_op(r, SL_OP_UNARY, &p);
    cf_work(r, (double)(r->n * a[1]) * (4.0 + (double)e(p.out_dtype)), 0, SL_F32, 0);
    cf_out_tokens(r, "out", p.out, (size_t)a[1] * e(p.out_dtype), kind_of(p.out_dtype), 2e-6);
}

static void refused(cf_run *r, const int64_t *a)
{
    sl_seq_tables none = {0};
    float values[64] = {0}, *m = cf_mem(r, values, sizeof values);
    sl_conv_params c = {.x = m,
                        .w = m,
                        .out = m,
                        .seqs = &none,
                        .state = (uint8_t *)m,
                        .state_stride = 8,
                        .channels = 3,
                        .taps = 2,
                        .dilation = 1,
                        .ld_x = 3,
                        .out_dtype = SL_F32};
    sl_delta_params d = {.q = m,
                         .k = m,
                         .v = m,
                         .gate = m,
                         .beta = m,
                         .a_log = m,
                         .dt_bias = m,
                         .out = m,
                         .seqs = &none,
                         .state = (uint8_t *)m,
                         .state_stride = 256,
                         .key_heads = 2,
                         .value_heads = 3,
                         .key_dim = 2,
                         .value_dim = 2,
                         .ld_q = 4,
                         .ld_k = 4,
                         .ld_v = 6};
    sl_pool_scores_params s = {.q = m,
                               .seqs = &none,
                               .base = (uint8_t *)m,
                               .scores = m,
                               .unit_seq = (int32_t *)m,
                               .unit_pos = (int32_t *)m,
                               .heads = 1,
                               .dim = 2,
                               .unit_log2 = 7,
                               .ld_scores = 1};

    (void)a;
    cf_refused(r, SL_OP_CONV, &c, SL_ERR_INVALID, "state_stride");
    c.taps = 1;
    cf_refused(r, SL_OP_CONV, &c, SL_ERR_INVALID, "taps");
    cf_refused(r, SL_OP_DELTA, &d, SL_ERR_INVALID, "key_heads");
    d.value_dim = SL_DELTA_DIM_MAX + 1;
    cf_refused(r, SL_OP_DELTA, &d, SL_ERR_INVALID, "value_dim");
    cf_refused(r, SL_OP_POOL_SCORES, &s, SL_ERR_INVALID, "unit_log2");
    cf_out(r, "memory", m, 1, sizeof values, sizeof values, CF_BYTES, 0);
}

#define F SL_F32
#define B SL_BF16
/* clang-format off */
static const cf_case cases[] = {
    {SL_OP_CONV, "T=30 7 channels", conv, {30, 10, 40, 7, 4, 1, 9, F, 0}, CF_FIX_ALL},
    {SL_OP_CONV, "T=44 300 channels bf16 add", conv, {44, 22, 100, 300, 4, 3, 300, B, 1}, CF_FIX_ALL},
    {SL_OP_CONV, "T=12 of a sequence each", conv, {12, 1, 30, 70, 3, 2, 70, F, 0}, CF_SPLIT},
    {SL_OP_CONV, "T=64 of a sequence each 8192 channels", conv, {64, 1, 30, 8192, 4, 1, 8192, F, 0}, CF_PERF_ONLY},
    {SL_OP_CONV, "T=2048 of one sequence 8192 channels", conv, {2048, 2048, 2048, 8192, 4, 1, 8192, F, 0}, CF_PERF_ONLY},
    {SL_OP_DELTA, "T=30 heads=2/6 5x7", delta, {30, 10, 40, 2, 6, 5, 7, 0, 0}, CF_FIX_ALL},
    {SL_OP_DELTA, "T=24 heads=1/4 128x128", delta, {24, 8, 40, 1, 4, 128, 128, 0, 0}, CF_FIX_ALL},
    {SL_OP_DELTA, "T=20 heads=3 16x24 by channel bound", delta, {20, 10, 40, 3, 3, 16, 24, 1, -50}, CF_FIX_ALL},
    {SL_OP_DELTA, "T=20 heads=2 33x130 by channel", delta, {20, 5, 40, 2, 2, 33, 130, 1, 0}, CF_FIX_ALL},
    {SL_OP_DELTA, "T=9 of a sequence each", delta, {9, 1, 40, 2, 4, 64, 32, 0, 0}, CF_SPLIT},
    {SL_OP_DELTA, "T=6 of a sequence each by channel 256x256", delta, {6, 1, 40, 1, 1, 256, 256, 1, -50}, CF_SPLIT},
    {SL_OP_DELTA, "T=64 of a sequence each heads=16/32 128x128", delta, {64, 1, 40, 16, 32, 128, 128, 0, 0}, CF_PERF_ONLY},
    {SL_OP_DELTA, "T=2048 of one sequence heads=16/32 128x128", delta, {2048, 2048, 2048, 16, 32, 128, 128, 0, 0}, CF_PERF_ONLY},
    {SL_OP_DELTA, "shapes refused", refused, {1}, 0},
    {SL_OP_STATE_KEEP, "T=5 of 4096 bytes", state_keep, {5, 1, 70, 4096, 256}, CF_FIX_ALL},
    {SL_OP_STATE_KEEP, "T=3 of 20 bytes", state_keep, {3, 1, 70, 20, 0}, CF_FIX_ALL},
    {SL_OP_STATE_KEEP, "T=4 of 70001 bytes", state_keep, {4, 1, 70, 70001, 3}, CF_FIX_ALL},
    {SL_OP_STATE_KEEP, "T=64 of 2 MiB", state_keep, {64, 1, 70, 2 << 20, 0}, CF_PERF_ONLY},
    {SL_OP_GATED_NORM, "T=5 3x7 silu", gated_norm, {5, 3, 7, F, 0}, CF_SPLIT},
    {SL_OP_GATED_NORM, "T=4 6x128 bf16 sigmoid", gated_norm, {4, 6, 128, B, 1}, CF_SPLIT},
    {SL_OP_GATED_NORM, "T=5 1x128 layer norm", gated_norm, {5, 1, 128, F, 0, 1, 1}, CF_SPLIT},
    {SL_OP_GATED_NORM, "T=4 3x13 bf16 layer norm silu", gated_norm, {4, 3, 13, B, 0, 0, 1}, CF_SPLIT},
    {SL_OP_POOL_APPEND, "T=40 dim=6 units of 4", pool_append, {40, 20, 150, 6, 2, 0, 1, 4, F, 1}, CF_FIX_ALL},
    {SL_OP_POOL_APPEND, "T=40 dim=128 units of 4 bf16", pool_append, {40, 8, 300, 128, 2, 0, 1, 64, B, 1}, CF_FIX_ALL},
    {SL_OP_POOL_APPEND, "T=60 dim=10 units of 16 gated", pool_append, {60, 30, 150, 10, 4, 1, 0, 0, F, 1}, CF_FIX_ALL},
    {SL_OP_POOL_APPEND, "T=20 dim=33 units of 2 gated bf16", pool_append, {20, 5, 100, 33, 1, 1, 0, 0, B, 0}, CF_FIX_ALL},
    {SL_OP_POOL_APPEND, "T=12 dim=8 units of 1", pool_append, {12, 4, 100, 8, 0, 0, 1, 8, F, 1}, CF_FIX_ALL},
    {SL_OP_POOL_APPEND, "T=160 dim=5 units of 64", pool_append, {160, 80, 200, 5, 6, 0, 0, 2, F, 1}, CF_FIX_ALL},
    {SL_OP_POOL_SCORES, "T=30 h=12 d=10 units of 4", pool_scores, {30, 10, 300, 12, 10, 2, 0, 0}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=21 h=32 d=128 units of 4 weights", pool_scores, {21, 7, 700, 32, 128, 2, 1, 1}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=9 h=4 d=128 units of 4", pool_scores, {9, 3, 2500, 4, 128, 2, 0, 1}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=6 h=70 d=32 units of 2 weights", pool_scores, {6, 2, 600, 70, 32, 1, 1, 0}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=12 h=3 d=33 units of 16", pool_scores, {12, 6, 300, 3, 33, 4, 1, 1}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=8 h=4 d=8 units of 64", pool_scores, {8, 2, 500, 4, 8, 6, 0, 0}, CF_SPLIT},
    {SL_OP_POOL_SCORES, "T=16 h=4 d=128 units of 4 128K", pool_scores, {16, 1, 131072, 4, 128, 2, 0, 0}, CF_PERF_ONLY},
    {SL_OP_POOL_SCORES, "T=16 h=32 d=128 units of 4 128K", pool_scores, {16, 1, 131072, 32, 128, 2, 1, 0}, CF_PERF_ONLY},
    {SL_OP_OPEN_UNITS, "T=40 units of 4", open_units, {40, 20, 150, 2, 5}, CF_SPLIT},
    {SL_OP_OPEN_UNITS, "T=10 units of 1", open_units, {10, 5, 150, 0, 3}, CF_SPLIT},
    {SL_OP_OPEN_UNITS, "T=30 tokens of units of 4", open_units, {30, 10, 200, 2, 44, 1}, CF_SPLIT},
    {SL_OP_OPEN_UNITS, "T=70 tokens of units of 16", open_units, {70, 7, 1000, 4, 600, 1}, CF_SPLIT},
    {SL_OP_OPEN_UNITS, "T=9 tokens of units of 1", open_units, {9, 3, 90, 0, 40, 1}, CF_SPLIT},
    {SL_OP_NGRAM, "T=60 order=3 heads=8", ngram, {60, 20, 90, 3, 8, 5, 2, F, F}, CF_FIX_ALL},
    {SL_OP_NGRAM, "T=40 order=4 heads=2 bf16 shards", ngram, {40, 10, 90, 4, 2, 8, 5, B, F}, CF_FIX_ALL},
    {SL_OP_NGRAM, "T=20 order=2 heads=1 of a sequence each", ngram, {20, 1, 90, 2, 1, 130, 3, F, B}, CF_SPLIT},
    {SL_OP_NGRAM_MIX, "T=5 dim=37 C=3", ngram_mix, {5, 37, 3, F}, CF_SPLIT},
    {SL_OP_NGRAM_MIX, "T=4 dim=2560 C=4 bf16", ngram_mix, {4, 2560, 4, B}, CF_SPLIT},
    {SL_OP_STREAMS_MIX, "T=5 dim=37 C=3", streams_mix, {5, 37, 3, F, 1}, CF_SPLIT},
    {SL_OP_STREAMS_MIX, "T=4 dim=300 C=4 bf16", streams_mix, {4, 300, 4, B, 1}, CF_SPLIT},
    {SL_OP_STREAMS_MIX, "T=4 dim=130 C=2 bf16 end", streams_mix, {4, 130, 2, B, 0}, CF_SPLIT},
    {SL_OP_UNARY, "T=5 dim=37 silu", unary, {5, 37, 0, F, 0}, CF_SPLIT},
    {SL_OP_UNARY, "T=5 dim=1 sigmoid in place", unary, {5, 1, 1, F, 1}, CF_SPLIT},
    {SL_OP_UNARY, "T=4 dim=320 silu bf16", unary, {4, 320, 0, B, 0}, CF_SPLIT},
};
/* clang-format on */

const cf_table cf_state_cases = {cases, SL_COUNT(cases)};
