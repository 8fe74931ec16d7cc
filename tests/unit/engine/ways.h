/*
 * The ways on which the rows of a sequence come to attention, for tests of sparse algorithms of KV heads: each function
 * runs prompt and decode through the real engine and fails the test if the logits of a position are not the same bits as
 * on the simplest way, resident with the prompt in one step. The options say which algorithm, model, formats and
 * parameters, with hot_rows as small as they may be. Host pages that are freed and device rows that are stale are NaN.
 */
#ifndef SL_TEST_ENGINE_WAYS_H
#define SL_TEST_ENGINE_WAYS_H

#include "fix.h"

enum { WAYS_CONTEXT = 256, WAYS_PROMPT = 150, WAYS_LENGTH = 210 };

/* The prompt in chunks, on one and on two threads. */
void ways_chunks(fix_opts o);
/* Spilled after the prompt, in slots that another request has used. i varies layout and policy. */
void ways_hierarchical(fix_opts o, int i);
/* Pages that exist already, ending anywhere in a block, are continued resident and hierarchical. i varies the layout. */
void ways_prefix(fix_opts o, int i);
/* Two hierarchical requests and a resident one in the same decode steps, each at another position. */
void ways_batch(fix_opts o);
/* With a budget of the whole context, attention over lists by KV head is dense attention over rows of one token. */
void ways_whole_budget(fix_opts o);
/* Sinks, recent tokens, a minimum length and a dense layer: chunks and a spill do not matter. */
void ways_gates(fix_opts o);

/* For algorithms that select at the end of a prompt. The options say which of its tokens are the window. */
void ways_prompt_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t prompt);
/* Chunks of the prompt, also such that divide the window; and chunks that reach beyond the prompt's end, as when a
 * request is computed again with the tokens that it had generated. */
void ways_prompt_chunks(fix_opts o);
/* Spilled after the prompt, with the fewest possible hot rows, in slots that another request has used. */
void ways_prompt_hierarchical(fix_opts o, int i);
/* Pages of a longer text, up to the window, are continued; and pages of the whole prompt, with its selection, are opened
 * as a decode worker does, hierarchical at once, also with tokens after the prompt. */
void ways_prompt_pages(fix_opts o, int i);
/* A prompt that is being computed, a resident and a hierarchical request in the same steps. */
void ways_prompt_batch(fix_opts o);
/* With the parameters of o, attention after a prompt of this many tokens is dense attention. */
void ways_prompt_dense(fix_opts o, int32_t prompt);

/* The pieces of these ways: the hashes of the logits of `t` from the prompt's last token on; that they are the same from
 * `from` on; a spill that must succeed. */
void ways_hashes(fix *f, fix_run *r, fix_text *t, int32_t from, sl_key *out);
void ways_same(const sl_key *a, const sl_key *b, int32_t from, const char *what);
void ways_spill(fix *f, fix_run *r);

#endif
