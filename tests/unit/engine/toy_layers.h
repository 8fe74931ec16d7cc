/* Tests with engines of the family of four classes (toy_family.h): its checkpoint, and texts that the restatement has made. */
#ifndef SL_TEST_TOY_LAYERS_H
#define SL_TEST_TOY_LAYERS_H

#include "fix.h"
#include "tests/unit/engine/toy_family.h"

enum {
    TOY_CONTEXT = 320,
    TOY_SEQS = 3,
};

/* Unchecked fixtures of a test case: they add the family and write its checkpoint into a new directory, and remove that. */
void toy_setup(void);
void toy_teardown(void);

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
