/* The ops of hashed n-gram embeddings (kernels/ngram.h). A task of ngram is a sequence, a task of ngram_mix is one stream of a token. */
#include "kernels/ngram.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/runs.h"
#include "kernels/formats.h"

/* A row of the table, by shards, to values of the result from `to` on. */
static void load_row(const sl_ngram_params *p, int64_t row, int64_t to)
{
    int32_t low = 0, high = p->n_shards - 1;
    float v[64];

    while (low < high) {
        const int32_t mid = (low + high) / 2;

        if (row < p->shard_rows[mid])
            high = mid;
        else
            low = mid + 1;
    }
    row -= low ? p->shard_rows[low - 1] : 0;
    for (int32_t at = 0; at < p->dim; at += 64) {
        const int32_t n = p->dim - at < 64 ? p->dim - at : 64;

        sl_load_f32(p->table_dtype, p->shards[low], row * p->dim + at, n, v);
        sl_store_f32(p->act, v, n, p->out, to + at);
    }
}

/* All rows of one token, whose last tokens are in id[], the newest first. */
static uint32_t load_rows(const sl_ngram_params *p, const int64_t *id, int64_t out)
{
    uint64_t x = (uint64_t)id[0] * (uint64_t)p->multipliers[0];

    for (int32_t n = 2; n <= p->order; n++) {
        x ^= (uint64_t)id[n - 1] * (uint64_t)p->multipliers[n - 1];
        for (int32_t h = 0; h < p->heads; h++) {
            const int32_t at = (n - 2) * p->heads + h;
            const int64_t size = p->sizes[at], rest = (int64_t)x % size,
                          row = p->offsets[at] + rest + (rest < 0 ? size : 0);

            if (row < 0 || row >= p->shard_rows[p->n_shards - 1])
                return SL_DEVERR_ID;
            load_row(p, row, out + (int64_t)at * p->dim);
        }
    }
    return 0;
}

/* The token `back` places before token t of a run that begins at `first`; -1: there is none. */
static int64_t before(const sl_ngram_params *p, int64_t first, int64_t t, int32_t pos, int32_t back,
                      const int32_t *state)
{
    if (t - back >= first)
        return p->ids[t - back];
    return pos < back ? -1 : state[(pos - back) % (p->order - 1)] - 1;
}

static uint32_t gram_run(const sl_ngram_params *p, int64_t first, int64_t end, int32_t begin, int32_t *state)
{
    const int64_t row = (int64_t)(p->order - 1) * p->heads * p->dim, keep = p->order - 1;
    uint32_t bad = 0;

    for (int64_t t = first; t < end; t++) {
        int64_t id[SL_NGRAM_MAX] = {p->ids[t]};
        bool cut = false;

        for (int32_t back = 1; back < p->order; back++) {
            id[back] = cut ? p->eos : before(p, first, t, begin + (int32_t)(t - first), back, state);
            cut = cut || id[back] < 0 || id[back] == p->eos;
            id[back] = cut ? p->eos : id[back];
        }
        bad |= load_rows(p, id, t * row);
    }
    for (int64_t t = end - first > keep ? end - keep : first; t < end; t++)
        state[(begin + (int32_t)(t - first)) % keep] = p->ids[t] + 1;
    return bad;
}

static uint32_t gram_task(const void *arg, int64_t t, void *own)
{
    const sl_ngram_params *p = arg;
    sl_place at;
    int64_t end;
    uint32_t bad = sl_run_at(p->seqs, t, &at, &end);

    (void)own;
    return bad ? bad : gram_run(p, t, end, at.pos, (int32_t *)(void *)(p->state + at.seq * p->state_stride));
}

static sl_status run_ngram(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ngram_params *p = params;
    return sl_cpu_run(be, "ngram", 0, p->seqs->n_tokens, (int64_t)p->order * p->heads * p->dim, gram_task, p,
                      err);
}

const sl_op_impl sl_cpu_ngram = {.run = run_ngram};

/* ---- ngram_mix ---- */

/* i = token * streams + stream */
static uint32_t mix_stream(const void *arg, int64_t i, void *own)
{
    const sl_ngram_mix_params *p = arg;
    const int32_t dim = p->dim;
    const int64_t gain = i % p->count * dim;
    const float *key = p->key + i * dim, *value = p->value + i / p->count * dim;
    float *x = own, *out = p->out + i * dim, *normed = p->normed + i * dim;
    double dot = 0;

    sl_load_f32(p->act, p->streams, i * dim, dim, x);
    const float by_key = sl_inverse_rms(key, dim, p->eps), by_x = sl_inverse_rms(x, dim, p->eps);
    for (int32_t d = 0; d < dim; d++)
        dot += (double)(key[d] * by_key * p->key_gain[gain + d]) *
               (double)(x[d] * by_x * p->stream_gain[gain + d]);
    float g = (float)(dot / sqrt((double)dim));
    g = copysignf(sqrtf(fmaxf(fabsf(g), 1e-6f)), g) * (g != 0);
    for (int32_t d = 0; d < dim; d++)
        out[d] = sl_sigmoid(g) * value[d];
    const float by_out = sl_inverse_rms(out, dim, p->eps);
    for (int32_t d = 0; d < dim; d++)
        normed[d] = out[d] * by_out * p->out_gain[gain + d];
    return 0;
}

static sl_status run_ngram_mix(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ngram_mix_params *p = params;
    return sl_cpu_run(be, "ngram_mix", 4 * (size_t)p->dim, (int64_t)p->tokens * p->count,
                      10 * (int64_t)p->dim, mix_stream, p, err);
}

const sl_op_impl sl_cpu_ngram_mix = {.run = run_ngram_mix};
