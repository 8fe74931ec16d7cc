/*
 * A.X-K2: the latent attention and the indexer of DeepSeek-V3.2 (families/dsa), with gated norms, and with an output gate for every
 * value of a head. Queries and gates come from one wide projection of the low-rank query, normalised and not; the loader cuts
 * its rows into a tensor for the queries and one for the gates.
 *
 *   axk2.c    the family's keys, its tensors, and the row for the registry
 *   steps.c   its buffers and the steps of a layer
 */
#ifndef SL_MODEL_FAMILIES_AXK2_H
#define SL_MODEL_FAMILIES_AXK2_H

#include "model/families/dsa/dsa.h"

extern const sl_family sl_family_axk2;

/* Slots of a layer's tensors that only this family has. */
enum {
    SL_AXK2_GATE = SL_DSA_SLOTS,
    SL_AXK2_INPUT_DOWN,
    SL_AXK2_INPUT_UP,
    SL_AXK2_POST_DOWN,
    SL_AXK2_POST_UP,
};

/* T = max_tokens. */
typedef struct sl_axk2_workspace {
    sl_dsa_workspace dsa; /* the first member: the steps of the DSA families see it alone */
    void *joined;         /* [T][2 q_lora] act: the query normalised, then as it was */
    void *gate;           /* [T][heads][v] act */
    void *low;            /* [T][rank of the norms' gates] act */
} sl_axk2_workspace;

/* sl_family.workspace */
void sl_axk2_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* sl_family.steps */
enum { SL_AXK2_N_STEPS = 14 };
extern const sl_layer_step sl_axk2_steps[SL_AXK2_N_STEPS];

#endif
