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

#endif
