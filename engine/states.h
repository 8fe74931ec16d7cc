/*
 * Inside engine/: what layers keep besides rows of tokens (sl_layer_class of kernels/cache.h).
 *
 * The states of fixed size are on the device, those of a sequence one after the other, by the sequence's row in the tables. A
 * sequence knows for how many tokens its states stand (sl_seq.state_len); a step is refused unless these are the tokens whose
 * rows it has. Blocks have device pages like every plane that is on the device whole, and are loaded here, because the
 * coordinator does not know layers without rows of tokens.
 *
 * A state cannot be cut. So an engine whose steps have several tokens of a sequence keeps versions of the states, that
 * before each of the last tokens of a sequence's last step, which the ops of the step write (kernels/turns.h). Taking tokens
 * back is a copy of one version. Open units of blocks have versions in the same way.
 */
#ifndef SL_ENGINE_STATES_H
#define SL_ENGINE_STATES_H

#include "engine/engine_impl.h"
#include "kernels/turns.h"

typedef struct sl_states {
    sl_layer_memory *layers; /* [n_layers] */
    uint8_t *base;           /* version v of sequence row r: base + v * turns.stride + r * bytes */
    int64_t bytes;           /* of a sequence */
    int32_t versions;        /* besides the states themselves; 0: tokens are not taken back */
    sl_turns turns;          /* of the running step; n 0: none */
} sl_states;

/* Device bytes of one sequence, with all versions, and the most turns of a step, for steps of up to item_tokens tokens of a
 * sequence. */
int64_t sl_states_bytes(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                        int32_t item_tokens);
int32_t sl_states_turns(const sl_geometry *g, int32_t item_tokens);
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
/* Whether the step of this item can save what it asks for; enqueues the copies of all items of the step. */
sl_status sl_states_check_save(const sl_step_item *it, sl_err *err);
sl_status sl_states_save(const sl_flight *f, sl_err *err);
/* The turns of a step whose sizes and places are known, and which tokens each of them has. */
void sl_states_place(sl_engine *e, const sl_flight *f);
void sl_states_fill(const sl_engine *e, sl_flight *f);
/* A step that computed n tokens of the sequence has ended, or has failed: its states are undefined. */
void sl_states_stepped(sl_seq *s, int32_t n);
void sl_states_failed(sl_seq *s);
/* Whether the sequence's states of `len` tokens are there. cut: it had `before` tokens, and has s->len now. */
sl_status sl_states_check_cut(const sl_seq *s, int32_t len, sl_err *err);
sl_status sl_states_cut(sl_seq *s, int32_t before, sl_err *err);

#endif
