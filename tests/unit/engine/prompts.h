/*
 * The ways of ways.h for algorithms that select at the end of a prompt: the same bits in chunks, hierarchical, from pages that
 * exist already, in any batch, and when the tokens after the prompt are computed again; and dense attention with a budget of
 * the whole context. The prompt has o.select's budget or more tokens, or less; hot_rows is as small as it may be. Host pages
 * that are freed and device rows that are stale are NaN.
 */
#ifndef SL_TEST_ENGINE_PROMPTS_H
#define SL_TEST_ENGINE_PROMPTS_H

#include "fix.h"

enum { PROMPTS_CONTEXT = 256, PROMPTS_LENGTH = 210 };

/* Opens a sequence whose prompt has `prompt` tokens. */
void prompts_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t prompt);
/* Chunks of the prompt and of what follows it, on one and on two threads. */
void prompts_chunks(fix_opts o, int32_t prompt);
/* Spilled after the prompt, in a slot that another request has used. i varies layout and policy. */
void prompts_hierarchical(fix_opts o, int i, int32_t prompt);
/* Pages of a longer prompt are continued; and pages with the whole prompt and more are opened, resident and hierarchical. */
void prompts_pages(fix_opts o, int i, int32_t prompt);
/* A prompt that is being computed, a resident and a hierarchical request in the same steps. */
void prompts_batch(fix_opts o, int32_t prompt);
/* Steps as for graphs, of which `once` after the prompt must be run op by op: what they make is not made in every step. */
void prompts_graphs(fix_opts o, int32_t prompt, int32_t once);
/* o.select has a budget of the whole context. */
void prompts_dense(fix_opts o, int32_t prompt);

#endif
