/*
 * Parameters of the two ops that make synthetic data: SL_OP_RANDOM fills memory with random values,
 * SL_OP_DRAW writes the selections of a synthetic access pattern. They are for benchmarks without a
 * checkpoint: 100 GB are filled fastest on the device, and random weights do not select tokens realistically.
 * No serving path runs them.
 *
 * Both are counter-based: a value depends on its index and the seed alone, on every backend the same bits, so
 * they can be part of a captured graph. Conventions as in kernels/params.h.
 */
#ifndef SL_KERNELS_SYNTH_H
#define SL_KERNELS_SYNTH_H

#include "kernels/params.h"

/*
 * out[i] = mean + spread * u(seed, i) for i < rows * cols, u uniform in [-1, 1), rounded to dtype (F32, BF16,
 * F8_E4M3). I32: mean + (a number below spread), both whole.
 */
typedef struct sl_random_params {
    void *out;
    int32_t rows, cols;
    sl_dtype dtype;
    float mean, spread;
    uint64_t seed;
} sl_random_params;

/*
 * ids[t][l] = k distinct ascending numbers for every token of the step and for each of its lists: 0..span - 1 is cut into
 * k equal parts, and each part gives one number. A part keeps its number from one position of the sequence to the next
 * with a probability of *keep / 65536, otherwise it draws a new one. So lists of consecutive steps have about that share
 * of their numbers in common, and the new numbers are spread evenly. The lists of a token are independent. Numbers may
 * stand for tokens or for blocks of tokens. Rows of padding tokens become -1. Rows of tokens before from_pos are not
 * changed. Entries k..ld_ids - 1 of a list become -1.
 */
typedef struct sl_draw_params {
    int32_t *ids; /* [T][lists][ld_ids] */
    const sl_seq_tables *seqs;
    const uint32_t *keep;                     /* device [1]; NULL: 0 */
    int32_t k, ld_ids, span, from_pos, layer; /* span >= k */
    int32_t lists;                            /* of a token; 0 for one */
    uint64_t seed;
} sl_draw_params;

#ifdef __CUDACC__
#define SL_SYNTH_FN __host__ __device__ static inline
#else
#define SL_SYNTH_FN static inline
#endif

#define SL_DRAW_BACK 4096 /* positions searched for the last change of a part, at most */

SL_SYNTH_FN uint32_t sl_synth_hash(uint64_t seed, uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed;

    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return (uint32_t)(x >> 32);
}

/* Uniform in [-1, 1), a multiple of 2^-23. */
SL_SYNTH_FN float sl_synth_uniform(uint64_t seed, uint64_t i)
{
    return (float)((int32_t)(sl_synth_hash(seed, i) >> 8) - (1 << 23)) * (1.0f / (float)(1 << 23));
}

SL_SYNTH_FN int32_t sl_draw_lists(const sl_draw_params *p)
{
    return p->lists > 0 ? p->lists : 1;
}

/* The number of one part of one list, for the token at pos. */
SL_SYNTH_FN int32_t sl_synth_draw(const sl_draw_params *p, uint32_t keep, int32_t seq, int32_t pos,
                                  int32_t list, int32_t part)
{
    uint64_t own = (uint64_t)(uint32_t)list << 32 | (uint32_t)part;
    uint64_t stream = p->seed + ((uint64_t)(uint32_t)p->layer << 40) + ((uint64_t)(uint32_t)seq << 24);
    int32_t width = p->span / p->k, at = pos, end = pos > SL_DRAW_BACK ? pos - SL_DRAW_BACK : 0;

    stream = (uint64_t)sl_synth_hash(stream, own) << 32 | (uint32_t)part;
    while (at > end && (sl_synth_hash(stream, (uint64_t)(uint32_t)at) & 0xffff) < keep)
        at--;
    return part * width + (int32_t)(sl_synth_hash(stream + 1, (uint64_t)(uint32_t)at) % (uint32_t)width);
}

#endif
