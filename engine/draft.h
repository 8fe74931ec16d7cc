/*
 * Drafts by the model's MTP layer, inside the engine: where the hidden states are that its rows need. Internal to the engine;
 * sl_engine_draft() is in engine.h.
 *
 * A row of the MTP layer needs the hidden state of the token before. Within a step that is a token of the same pass,
 * for the first token of an item one of the step before. So the hidden states of a step stay on the device until the
 * next step, which first moves the one that each sequence still needs to a row of its own, and then writes over the
 * rest. By then it is known which one that is, because what was not accepted has been taken back. A shipment carries
 * the hidden state of its last token in COMMIT (sl_engine_seq_hidden()). It can be unknown: at the beginning of a
 * sequence, and after a prefix that is read again. Then zero stands for it, so one row of this layer is poorer, and
 * drafts near it may be; no token of a stream depends on it. This is simpler than to carry hidden states in the pages of
 * each prefix, and cheaper than to compute a token again; either would gain one draft of a request at most.
 *
 * These are not the states that some layers keep (states.h).
 */
#ifndef SL_ENGINE_DRAFT_H
#define SL_ENGINE_DRAFT_H

#include "base/status.h"
#include "engine/engine.h"
#include "model/model.h"

struct sl_seq;
struct sl_engine;
struct sl_flight;

/* Where the hidden states of a sequence are: of its tokens pos .. pos + n - 1 in rows from `row` on, and of token `kept` (-1: of
 * none) in the row that is its own. */
typedef struct sl_drafted {
    int32_t pos, n, row, kept;
} sl_drafted;

typedef struct sl_drafts sl_drafts;

/* Rows of hidden_size values on the device. */
uint64_t sl_drafts_rows(uint64_t seqs, uint64_t step_tokens);

/* Does nothing without an MTP layer; so do the others. */
sl_status sl_drafts_init(struct sl_engine *e, sl_err *err);
void sl_drafts_fini(struct sl_engine *e);
void sl_drafts_begin(struct sl_seq *s);     /* no hidden state is known for s */
void sl_drafts_forget(struct sl_engine *e); /* after a failure: for none */
/* The arrays of a step that is about to be uploaded, when its shape is known. */
void sl_drafts_fill(struct sl_engine *e, struct sl_flight *f);
/* sl_engine_draft() for a model with the layer and no group, in the memory of a step that is not in flight. */
sl_status sl_drafts_run(struct sl_engine *e, struct sl_flight *f, sl_draft_item *items, int32_t n_items,
                        sl_err *err);
/* In a group with the layer: drafts before a step of all ranks. *begun: a pass has failed, so the others wait for this rank in vain;
 * after another error they do not. */
sl_status sl_drafts_round(struct sl_engine *e, struct sl_flight *f, const sl_step_drafts *d, bool *begun,
                          sl_err *err);
/* Of the pass that is enqueued; NULL: there is no MTP layer. */
const sl_draft_pass *sl_drafts_pass(struct sl_engine *e);

#endif
