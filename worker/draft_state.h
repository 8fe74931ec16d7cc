/*
 * The hidden state of a request's last token on the host, for models with an MTP layer: the layer's next row and the first draft need it
 * (engine/draft.h). It goes with COMMIT from the worker that computed the prompt, and is kept while a request waits whose sequence
 * was closed. Without it a draft may be poorer and nothing else changes, so nothing here fails: what cannot be had is left out.
 */
#ifndef SL_WORKER_DRAFT_STATE_H
#define SL_WORKER_DRAFT_STATE_H

#include "base/msg.h"
#include "worker/runner.h"

/* Zeroed: there is none. */
typedef struct sl_draft_state {
    uint8_t *bytes; /* owned */
    size_t n;
    int32_t tokens; /* of the request up to and with the token of this state */
} sl_draft_state;

/* Of a sequence, of which no step is in flight; waits for the device. */
void sl_draft_state_take(sl_draft_state *d, const sl_runner *r, const void *seq);
/* A copy of what a message carries. */
void sl_draft_state_set(sl_draft_state *d, sl_blob bytes, int32_t tokens);
/* To a sequence that was just opened: does nothing if the state is that of another token, or not of this runner's size. */
void sl_draft_state_give(const sl_draft_state *d, const sl_runner *r, void *seq);
void sl_draft_state_free(sl_draft_state *d);

#endif
