/*
 * Inside engine/: what layers keep besides rows of tokens (sl_layer_class of kernels/cache.h).
 *
 * The states of fixed size are on the device, one for each sequence and layer, by the sequence's row in the tables. A state
 * cannot be cut, so a sequence knows for how many tokens its states stand (sl_seq.state_len); a step is refused unless these
 * are the tokens whose rows it has. Blocks have device pages like every plane that is on the device whole, and are loaded here,
 * because the coordinator does not know layers without rows of tokens.
 */
#ifndef SL_ENGINE_STATES_H
#define SL_ENGINE_STATES_H

#include "engine/engine_impl.h"

/* The device memory of states, after the layers were made. */
sl_status sl_states_init(sl_engine *e, sl_err *err);
void sl_states_fini(sl_engine *e);
/* A sl_memory_fn; ctx is the engine. */
sl_status sl_states_memory(void *ctx, int32_t layer, sl_layer_memory *out, sl_err *err);
/* The sequence is open with s->len cached tokens, of which pages [first, end) are not loaded yet. */
sl_status sl_states_load(sl_seq *s, int32_t first, int32_t end, sl_err *err);
/* The sequence begins: its states are those before the first token; they are unknown if it has cached tokens. */
sl_status sl_states_begin(sl_seq *s, sl_err *err);
/* Whether the states stand for the sequence's tokens. */
sl_status sl_states_check(const sl_seq *s, sl_err *err);
/* Whether tokens can be taken back: not from a state, nor from the open unit of a block. */
sl_status sl_states_cut(const sl_engine *e, sl_err *err);
/* A step that computed n tokens of the sequence has ended. failed: its states are undefined. */
void sl_states_stepped(sl_seq *s, bool failed);

#endif
