/*
 * MiniMax-M3, its text part: grouped-query attention with a norm for each head, of which a part is rotated, over blocks of tokens that
 * index keys choose for every KV head; some layers attend to everything. The MLPs clamp (swigluoai), and every norm stores its gain
 * less 1.
 *
 *   config.c   the family's keys of config.json, in the released spelling and in that of transformers
 *   tensors.c  its tensors, and the row for the registry
 *   steps.c    its buffers, the steps of a layer, and the call by which a layer asks for its attention
 *
 * Where the indexer has more heads than there are KV heads, query heads of one KV head read different lists. The loader repeats
 * keys and values then, so that every head of the indexer has a KV head of its own.
 *
 * Pictures are not computed: their tensors are ignored, and a request with one is refused by the front.
 */
#ifndef SL_MODEL_FAMILIES_MINIMAX_M3_H
#define SL_MODEL_FAMILIES_MINIMAX_M3_H

#include "model/families/gqa/gqa.h"

extern const sl_family sl_family_minimax_m3;

/* Slots of a layer's tensors that only this family has. */
enum {
    SL_M3_INDEX_Q = SL_GQA_K_NORM + 1,
    SL_M3_INDEX_K,
    SL_M3_INDEX_Q_NORM,
    SL_M3_INDEX_K_NORM,
};

/* T = max_tokens. */
typedef struct sl_m3_workspace {
    /* the first member: the steps of the families with grouped-query attention see it alone */
    sl_gqa_workspace gqa;
    float *index_q; /* [T][index heads][index dim]: projected, then (in place) as the scores read it */
    void *index_k;  /* [T][index dim] act */
} sl_m3_workspace;

/* Layers that select blocks. */
bool sl_m3_in_sparse(const sl_model_config *c, int32_t layer);

/* sl_family.begin and read_config */
sl_status sl_m3_begin(struct sl_config_reader *x);
sl_status sl_m3_read_config(struct sl_config_reader *x, const sl_family *f);
/* sl_family.workspace */
void sl_m3_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* sl_family.steps */
enum { SL_M3_N_STEPS = 9 };
extern const sl_layer_step sl_m3_steps[SL_M3_N_STEPS];
/* sl_family.ask_attend */
sl_status sl_m3_ask_attend(void *backend, const sl_attn_call *call, sl_err *err);
/* sl_family.presets */
extern const sl_model_preset sl_m3_presets[];

#endif
