/*
 * Parameters of the ops of hashed n-gram embeddings: rows of a table that is too large for the device, chosen by hashes of a token
 * and those before it, and how they enter the parallel residual streams. The conventions are those of kernels/params.h.
 *
 * The table is host memory that the device can read (SL_MEM_HOST, or for the CPU the mapped file); a step reads a few of its rows
 * per token. Ids are hashed on the device, where the newest token may be the only place that has it.
 *
 * Both backends have these ops.
 */
#ifndef SL_KERNELS_NGRAM_H
#define SL_KERNELS_NGRAM_H

#include "kernels/params.h"

enum { SL_NGRAM_MAX = 8, SL_NGRAM_HEADS_MAX = 64, SL_NGRAM_SHARDS_MAX = 4096 };

/*
 * Of order n = 2 .. order and head h < heads, one after the other: the row offset + x mod size of the table, with
 * x = id_0 * m_0 xor .. id_{n-1} * m_{n-1} in 64 bits. id_s is the token s places before, or eos if there is none or an eos lies
 * between: in the places s - 1 .. 1 before. m, sizes and offsets are of the checkpoint; x is taken as a signed number, mod as a
 * number of 0 .. size - 1. out[t] is the rows after each other, rounded to act. The state is int32 [order - 1]: the token at position p is
 * in place p % (order - 1), plus one, so that zero says that there is none.
 */
typedef struct sl_ngram_params {
    const int32_t *ids;         /* [T] */
    const int64_t *multipliers; /* [order] */
    const int64_t *sizes;       /* [(order - 1) * heads] */
    const int64_t *offsets;     /* as sizes */
    const void *const *shards;  /* [n_shards] device-readable pointers to rows */
    const int64_t *shard_rows;  /* [n_shards] the first row after each shard, ascending */
    void *out;                  /* [T][(order - 1) * heads * dim] act */
    const sl_seq_tables *seqs;
    uint8_t *state;
    int64_t state_stride;
    int32_t order, heads, dim, eos, n_shards;
    sl_dtype table_dtype, act;
} sl_ngram_params;

/*
 * How an embedding enters C = count streams X of dim values each. With rms of each stream by itself, sums in double, and gains as
 * they are multiplied:
 *   g = rms(key[c]) * key_gain[c] . rms(X[c]) * stream_gain[c] / sqrt(dim);  g = sign(g) * sqrt(max(|g|, 1e-6))
 *   out[c] = sigmoid(g) * value;  normed[c] = rms(out[c]) * out_gain[c]
 * The sum over dim is in double; everything else is float32.
 */
typedef struct sl_ngram_mix_params {
    const float *key;                               /* [T][C][dim] */
    const float *value;                             /* [T][dim] */
    const void *streams;                            /* [T][C][dim] act */
    const float *key_gain, *stream_gain, *out_gain; /* [C][dim] */
    float *out, *normed;                            /* [T][C][dim] */
    int32_t tokens, dim, count;
    float eps;
    sl_dtype act;
} sl_ngram_mix_params;

#endif
