/*
 * A runner without a model: a test double that makes protocol tests exact and fast.
 *
 * The "row" that it writes for a token in a layer is a function of all tokens up to it, the position and the
 * layer. Each step first reads every earlier row and index key of the sequence back from the arena and folds
 * the bytes into the logits. So the token that greedy sampling picks depends on every byte that was shipped,
 * reused or pulled: rows that did not arrive, arrived damaged or belong to another request change the stream,
 * as with a model. It computes nothing that a model computes, and has no device pools (but it can behave as if it had
 * few slots).
 */
#ifndef SL_TEST_FAKE_RUNNER_H
#define SL_TEST_FAKE_RUNNER_H

#include "worker/runner.h"

typedef struct fake_runner fake_runner;

typedef struct fake_opts {
    int32_t vocab, max_context, max_step_tokens, max_seqs;
    uint32_t layer_us;   /* time that a layer of a step takes */
    int32_t fail_step;   /* the number of the step that fails, once; 0: none */
    sl_status fail_with; /* the status with which it fails */
    bool overlaps;       /* steps may be in flight */
    bool drafts;         /* it drafts what a greedy request gets next, but for every fifth position */
    bool noise;          /* it drafts what no request gets */
    /* What a token of a step has fetched, and how long the step is said to have waited for a byte of these rows. */
    uint64_t row_bytes, row_wait_ns;
} fake_opts;

fake_runner *fake_create(sl_arena *arena, const fake_opts *opts);
void fake_destroy(fake_runner *f);
sl_runner fake_runner_of(fake_runner *f);
int fake_open_seqs(const fake_runner *f);
/* Sequences that were given the hidden state of their last token so far. */
int fake_hidden_set(const fake_runner *f);
/* What it takes for the hidden state of the last of this many tokens. */
uint64_t fake_hidden(uint64_t tokens);
/* Any thread. on: steps do not return any more; off: they return. */
void fake_hang(fake_runner *f, bool on);
/*
 * Any thread: the n-th step from now on hangs before it computes anything, until fake_hang(f, false). A test that wants
 * a worker in the middle of a request waits for fake_hangs() and not for some time.
 */
void fake_hang_at(fake_runner *f, int n);
bool fake_hangs(const fake_runner *f);
/* Forgets the steps in flight, as a device does whose next collect the test makes fail. */
void fake_lose(fake_runner *f);

/* The greedy stream of a single process: out[0..n) after the prompt. Every stream of a cluster must equal it. */
void fake_reference(const sl_geometry *g, int32_t vocab, const int32_t *prompt, int n_prompt, int32_t *out,
                    int n);

#endif
