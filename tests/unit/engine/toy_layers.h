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
#ifndef SL_TEST_TOY_LAYERS_H
#define SL_TEST_TOY_LAYERS_H

#include "fix.h"

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
    TOY_CONTEXT = 320,
    TOY_SEQS = 3,
};

/* Unchecked fixtures of a test case: they add the family and write its checkpoint into a new directory, and remove that. */
void toy_setup(void);
void toy_teardown(void);

/* What the family computes, restated from the text of the classes: next[p] is the token that follows ids[0..p]. Of the tokens
 * from n_prompt on, ids are what the model generates: ids[p + 1] = next[p]. */
void toy_restate(int32_t *ids, int32_t n_prompt, int32_t n, int32_t *next);

/* A text: tokens, and what the restatement says that follows each. */
typedef struct toy_text {
    int32_t ids[TOY_CONTEXT], next[TOY_CONTEXT];
} toy_text;

/* n tokens, of which the first `same` are those of `like` (NULL: none), the further ones up to `prompt` are random, and the
 * others are what the model generates. */
void toy_make_like(toy_text *t, const toy_text *like, int32_t same, int32_t prompt, int32_t n, uint64_t seed);
void toy_make_text(toy_text *t, int32_t prompt, int32_t n, uint64_t seed);
/* An engine of that checkpoint for TOY_SEQS sequences, all of which may be hierarchical. */
fix_opts toy_opts(void);
/* Steps until the sequence has `to` tokens. A test fails unless each step's result is what the restatement says. */
void toy_feed(fix *f, fix_run *r, const toy_text *t, int32_t to, int32_t chunk);

#endif
