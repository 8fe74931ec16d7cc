/*
 * What the ranks of a group agree on before a step: the most tokens of any rank, and the word that each says (engine.h,
 * sl_step_share). Only agree.c knows the shares. Without a group everything is this rank's alone. Internal to the engine; threads: its own.
 *
 * The padded number of tokens is a size of the exchanges and is the same on all ranks, so it depends on nothing that may differ
 * between them.
 */
#ifndef SL_ENGINE_AGREE_H
#define SL_ENGINE_AGREE_H

#include "engine/engine.h"

typedef struct sl_agree sl_agree;

/* max_tokens: of a step. comm NULL: no group. */
sl_status sl_agree_create(sl_comm *comm, int32_t max_tokens, sl_agree **out, sl_err *err);
void sl_agree_destroy(sl_agree *a); /* NULL: nothing */
/* The group of the next steps; NULL: none. */
void sl_agree_set_comm(sl_agree *a, sl_comm *comm);
void sl_agree_set_flags(sl_agree *a, uint32_t flags);
sl_comm *sl_agree_comm(const sl_agree *a);

/* Every rank calls this with the tokens of its step. Errors: those of the group. */
sl_status sl_agree_on_step(sl_agree *a, int32_t tokens, sl_err *err);
/* As for a pass of n drafts. *most: of any rank. */
sl_status sl_agree_on_pass(sl_agree *a, int32_t n, int32_t *most, sl_err *err);
/* The tokens of the largest rank, padded; without a group those of the step. */
int32_t sl_agree_tokens(const sl_agree *a);
/* The same, though 0 without a group: what a shape says of a group (graph.h). */
int32_t sl_agree_group_tokens(const sl_agree *a);
/* What each rank has said in the last step, this rank first; *steps: how many since the group was set. */
const sl_step_share *sl_agree_shares(const sl_agree *a, uint64_t *steps);

#endif
