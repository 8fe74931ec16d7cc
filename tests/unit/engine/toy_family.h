/*
 * A test double of a model family whose layers are of four classes: rows of tokens, rows of blocks (of 4 and of 128 tokens), a
 * state, and a ring of the last tokens. Its arithmetic is of whole numbers, so that what it computes can be stated again: a
 * number for each token goes through the layers, each layer changes it by what it keeps, and the next token is the number
 * after the last layer. The logits say that token with the largest value. float32 rows on the CPU.
 *
 *   tokens   values of a, summed by attention over the tokens that streaming_llm selects: all queries are zero
 *   blocks   for each unit the sum of values of a; read are all complete units
 *   state    a recurrence, and a table that it writes in an order that no other state has
 *   ring     the values of a of the last TOY_RING tokens, by age
 */
#ifndef SL_TEST_TOY_FAMILY_H
#define SL_TEST_TOY_FAMILY_H

#include "model/family.h"

enum {
    TOY_VOCAB = 64,
    TOY_HEADS = 2,
    TOY_DIM = 8,
    TOY_LAYERS = 7,
    TOY_SINKS = 4,
    TOY_RECENT = 24,
    TOY_BLOCK = 4,
    TOY_POOL = 128,
    TOY_RING = 5,
    TOY_TABLE = 2501,
};

/* The classes of the layers: t, b, s and r. */
#define TOY_KINDS "stbrtsb"

/* Of model type toy_layers, for sl_family_add(). */
extern const sl_family toy_family;

/* What the family computes, restated from the text of the classes: next[p] is the token that follows ids[0..p]. Of the tokens
 * from n_prompt on, ids are what the model generates: ids[p + 1] = next[p]. */
void toy_restate(int32_t *ids, int32_t n_prompt, int32_t n, int32_t *next);

#endif
