/*
 * Hy4-preview: the latent attention and the indexer of the DSA families (families/dsa), with sinks, with an output gate for
 * every value of a head, and with four parallel residual streams instead of one (hyper-connections without mixing).
 *
 *   config.c   the family's keys of config.json
 *   tensors.c  its tensors, the order of their rows, and the row for the registry
 *   steps.c    its buffers and the steps of a layer
 *
 * Published checkpoints rotate neighbouring values (2i, 2i + 1); the key rope_interleave says false where a checkpoint
 * pairs i and i + half, as the class of transformers does. The loader brings both into one order, and moves the rotated values of
 * the indexer from the end of a head to its beginning, so every op is that of the DSA families.
 */
#ifndef SL_MODEL_FAMILIES_HY_V4_H
#define SL_MODEL_FAMILIES_HY_V4_H

#include "model/families/dsa/dsa.h"

extern const sl_family sl_family_hy_v4;

/* Slots of a layer's tensors that only this family has. */
enum {
    SL_HY4_GATE = SL_DSA_SLOTS,
    SL_HY4_ATTN_FN,
    SL_HY4_ATTN_BASE,
    SL_HY4_ATTN_SCALE,
    SL_HY4_MLP_FN,
    SL_HY4_MLP_BASE,
    SL_HY4_MLP_SCALE,
};

/* Slots of the model's tensors. */
enum { SL_HY4_HEAD_FN = SL_T_MODEL_OWN, SL_HY4_HEAD_BASE, SL_HY4_HEAD_SCALE };

/* T = max_tokens, C = the number of streams. */
typedef struct sl_hy4_workspace {
    sl_dsa_workspace dsa; /* the first member: the steps of the DSA families see it alone */
    void *gate;           /* [T][heads][v] act */
    void *streams;        /* [T][C][hidden] act */
    float *mix;           /* [T][2 C] */
    float *post;          /* [T][C] */
} sl_hy4_workspace;

/* sl_family.read_config */
sl_status sl_hy4_read_config(struct sl_config_reader *x, const sl_family *f);
/* sl_family.workspace */
void sl_hy4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* sl_family.steps */
enum { SL_HY4_N_STEPS = 17 };
extern const sl_layer_step sl_hy4_steps[SL_HY4_N_STEPS];
/* sl_family.presets */
extern const sl_model_preset sl_hy4_presets[];

#endif
