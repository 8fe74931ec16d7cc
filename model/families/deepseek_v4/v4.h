/*
 * DeepSeek-V4: attention of one vector per token, key and value at once, over a window of the last tokens and, in most layers,
 * over compressed entries of all tokens before; parallel residual streams that are mixed; experts by a table in some layers.
 *
 *   config.c   the keys of config.json
 *   tensors.c  the tensors, the classes of layers in the cache, and the row for the registry
 *   attend.c   the buffers, and the steps of attention
 *   steps.c    the steps of the streams and the MLP, and the list of all steps
 *   presets.c  the published models
 *
 * A layer is of one of three classes. What it keeps of a request:
 *
 *   class    in pages                          in its state
 *   window   nothing                           the ring of the window
 *   chosen   entries and their index keys      the ring, and the last tokens' parts of entries and keys
 *   pooled   entries, all of which are read    the ring, and the running sums of the open entry
 *
 * Entries are on the device whole, next to their copies in host pages: an indexer reads all keys in every step, and the entries are
 * few. So a hierarchical sequence has the same rows on the device as a resident one.
 */
#ifndef SL_MODEL_FAMILIES_DEEPSEEK_V4_H
#define SL_MODEL_FAMILIES_DEEPSEEK_V4_H

#include "kernels/entries.h"
#include "model/family.h"

extern const sl_family sl_family_deepseek_v4;

/* sl_model_config.layer_class */
enum { SL_V4_WINDOW, SL_V4_CHOSEN, SL_V4_POOLED };

/* Slots of a layer's tensors that only this family has. */
enum {
    SL_V4_ATTN_FN = SL_T_OWN,
    SL_V4_ATTN_BASE,
    SL_V4_ATTN_SCALE,
    SL_V4_MLP_FN,
    SL_V4_MLP_BASE,
    SL_V4_MLP_SCALE,
    SL_V4_Q_A,
    SL_V4_Q_NORM,
    SL_V4_Q_B,
    SL_V4_KV,
    SL_V4_KV_NORM,
    SL_V4_SINKS,
    SL_V4_O_A,
    SL_V4_O_B,
    SL_V4_ENTRY_KV, /* these four of entries, then of index keys, in the same order */
    SL_V4_ENTRY_GATE,
    SL_V4_ENTRY_BIAS,
    SL_V4_ENTRY_NORM,
    SL_V4_INDEX_KV,
    SL_V4_INDEX_GATE,
    SL_V4_INDEX_BIAS,
    SL_V4_INDEX_NORM,
    SL_V4_INDEX_Q,
    SL_V4_INDEX_WEIGHTS,
};

/* Slots of the model's tensors. */
enum { SL_V4_HEAD_FN = SL_T_MODEL_OWN, SL_V4_HEAD_BASE, SL_V4_HEAD_SCALE };

bool sl_v4_in_chosen(const sl_model_config *c, int32_t layer);
/* A layer with entries. */
bool sl_v4_in_entries(const sl_model_config *c, int32_t layer);
/* Tokens of an entry; 0: the layer has none. */
int32_t sl_v4_rate(const sl_model_config *c, int32_t layer);

/* T = max_tokens, C = the number of streams, S = tokens whose index keys are scored at a time. */
typedef struct sl_v4_workspace {
    void *streams;                /* [T][C][hidden] act */
    float *mix;                   /* [T][(2 + C) * C] */
    float *post;                  /* [T][C] */
    float *comb;                  /* [T][C][C] */
    void *q_a;                    /* [T][q_lora] act */
    void *q_r;                    /* the same, normalised */
    void *q;                      /* [T][heads][dim] act; then the queries of the indexer */
    void *kv_raw;                 /* [T][dim] act */
    void *kv;                     /* [T][dim] of the cache's dtype */
    float *part;                  /* [T][2 * dim] kv of entries */
    float *gate;                  /* [T][2 * dim] */
    void *o;                      /* [T][heads][dim] act */
    void *o_a;                    /* [T][groups * rank] act */
    float *index_q;               /* [T][index heads][index dim] */
    float *index_raw;             /* [T][index heads] */
    float *index_weights;         /* [T][index heads] */
    float *scores;                /* [S][entries of the longest context] */
    int32_t *seen_seq, *seen_pos; /* [T] */
    int32_t *ids;                 /* [T][topk] */
    int32_t slice, max_entries;   /* S, and the length of a row of scores */
} sl_v4_workspace;

/* Parts of a layer's state. */
enum { SL_V4_PART_RING, SL_V4_PART_ENTRY, SL_V4_PART_INDEX };
/* The type of rows of the window and of entries. */
sl_dtype sl_v4_kept_dtype(sl_row_format rows);

/* sl_family.begin, read_config, workspace */
sl_status sl_v4_begin(struct sl_config_reader *x);
sl_status sl_v4_read_config(struct sl_config_reader *x, const sl_family *f);
void sl_v4_carve(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);
/* Steps of attention (attend.c). */
sl_status sl_v4_step_queries(struct sl_pass *p);
sl_status sl_v4_step_entries(struct sl_pass *p);
sl_status sl_v4_step_index(struct sl_pass *p);
sl_status sl_v4_step_attend(struct sl_pass *p);
sl_status sl_v4_step_output(struct sl_pass *p);
/* sl_family.steps */
enum { SL_V4_N_STEPS = 15 };
extern const sl_layer_step sl_v4_steps[SL_V4_N_STEPS];
/* sl_family.presets */
extern const sl_model_preset sl_v4_presets[];

#endif
