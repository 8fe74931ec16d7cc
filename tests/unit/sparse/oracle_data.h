/*
 * Synthetic keys, values and queries with the structure that selection lives on, for tests without trained weights. They
 * are those of one layer of a model with GQA at the end of a long prompt:
 *
 * - RoPE of Llama 3.1 (theta 5e5, factor 8).
 * - A key is the head's mean, the vector of its topic, and noise. The mean has large values in slow channels, and a
 *   constant part in fast ones, which becomes locality through RoPE. Topics change after 48 tokens on average.
 * - The first 4 tokens are sinks: every query gives them much weight. 8 needles lie at spread depths.
 * - Heads are of four types: local, needle, topic, diffuse. Those of type needle find the needles, but only while the
 *   question is asked: by the last token, and in one of the two observation windows before it.
 * - Everything is rounded to bf16.
 *
 * It is one generator: how methods rank on it says nothing about real models. A seed gives the same data on every machine
 * up to the last bit of libm.
 */
#ifndef TESTS_UNIT_SPARSE_ORACLE_DATA_H
#define TESTS_UNIT_SPARSE_ORACLE_DATA_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ORACLE_KV = 4,    /* KV heads, one of each type */
    ORACLE_GROUP = 4, /* query heads of a KV head */
    ORACLE_HEADS = ORACLE_KV * ORACLE_GROUP,
    ORACLE_DIM = 128,
    ORACLE_WINDOW = 32,
    ORACLE_NEEDLES = 8,
    ORACLE_SINKS = 4,
    ORACLE_SAMPLES = 64
};

typedef enum { ORACLE_LOCAL, ORACLE_NEEDLE, ORACLE_TOPIC, ORACLE_DIFFUSE } oracle_type; /* = KV head */

typedef struct oracle_data {
    int32_t n;    /* tokens; the last one's query selects, those before it are the prompt */
    float *k, *v; /* [n][ORACLE_KV][ORACLE_DIM] */
    float *q;     /* [ORACLE_HEADS][ORACLE_DIM], of token n - 1 */
    /* [ORACLE_WINDOW][ORACLE_HEADS][ORACLE_DIM], of the last tokens of the prompt: [1] while the question is asked, [0] not */
    float *window[2];
    float *sample; /* [ORACLE_SAMPLES][ORACLE_HEADS][ORACLE_DIM], to calibrate channels on */
    int32_t sample_pos[ORACLE_SAMPLES];
    int32_t needle[ORACLE_NEEDLES];
} oracle_data;

void oracle_make(oracle_data *d, int32_t n, uint64_t seed);
void oracle_free(oracle_data *d);

#endif
