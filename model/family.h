/*
 * Inside model/: the seam between the model and the model families.
 *
 * A family is the code of one architecture: which keys its config.json has, which tensors its checkpoints have, which
 * buffers its forward pass needs and which steps a layer consists of. It lies in one folder under model/families/ and
 * is one line in the registry (family.c). The rest of the room walks what the family names here and knows no family:
 * config_json.c reads the keys that all families share and then asks the family, the loader walks the tensor rows, the
 * forward pass walks the layer steps. What families have in common is a library that they compose: config_read.h
 * (keys, rope, MoE), steps.h (linear layers, norms, MLP, experts, embedding, head), workspace.h (buffers), rope.h.
 *
 * A family is const data and has no state. Threads: any, after the last sl_family_add.
 */
#ifndef SL_MODEL_FAMILY_H
#define SL_MODEL_FAMILY_H

#include "model/model.h"
#include "model/carve.h"

struct sl_config_reader; /* model/config_read.h */
struct sl_pass;          /* model/steps.h */

/* Slots of tensors that belong to the whole model; from SL_T_MODEL_OWN on those of the family. */
enum { SL_T_EMBED, SL_T_NORM, SL_T_HEAD, SL_T_MODEL_OWN, SL_MODEL_SLOTS = SL_T_MODEL_OWN + 3 };

/* Slots of the tensors of one layer: those that the shared steps read, then up to SL_OWN_SLOTS of the family. */
enum {
    SL_T_INPUT_NORM,
    SL_T_POST_NORM,
    SL_T_GATE, /* dense MLP, or the shared experts of an MoE layer */
    SL_T_UP,
    SL_T_DOWN,
    SL_T_ROUTER,
    SL_T_ROUTER_BIAS,
    SL_T_ROUTER_TABLE, /* the experts of each token of the vocabulary, instead of a choice */
    SL_T_TOKEN_NORM,   /* MTP layers: of the token's embedding, and of the hidden state before it */
    SL_T_STATE_NORM,
    SL_T_JOIN, /* from both to the layer's input */
    SL_T_HEAD_NORM,
    SL_T_OWN,
    SL_OWN_SLOTS = 40,
    SL_LAYER_SLOTS = SL_T_OWN + SL_OWN_SLOTS,
};

/* The length of a tensor's dimension, from the config. Families add their own to these. */
typedef int64_t (*sl_dim)(const sl_model_config *c);
int64_t sl_dim_one(const sl_model_config *c);
int64_t sl_dim_vocab(const sl_model_config *c);
int64_t sl_dim_hidden(const sl_model_config *c);
int64_t sl_dim_dense(const sl_model_config *c);  /* intermediate_size */
int64_t sl_dim_shared(const sl_model_config *c); /* of all shared experts together */
int64_t sl_dim_experts(const sl_model_config *c);
int64_t sl_dim_joined(const sl_model_config *c); /* 2 * hidden_size */

/* Whether a layer has a tensor or runs a step. NULL stands for "every layer". Families add their own to these. */
typedef bool (*sl_when)(const sl_model_config *c, int32_t layer);
bool sl_in_dense(const sl_model_config *c, int32_t layer);
bool sl_in_moe(const sl_model_config *c, int32_t layer);
bool sl_in_shared(const sl_model_config *c, int32_t layer); /* MoE layers of models with shared experts */
bool sl_in_draft(const sl_model_config *c, int32_t layer);
bool sl_in_first(const sl_model_config *c,
                 int32_t layer); /* the first layer of the model, and the last one */
bool sl_in_last(const sl_model_config *c, int32_t layer);

static inline bool sl_when_holds(sl_when w, const sl_model_config *c, int32_t layer)
{
    return !w || w(c, layer);
}

typedef enum {
    SL_K_LINEAR, /* [rows][cols], any weight dtype, F8 with its scale */
    SL_K_TABLE,  /* [rows][cols], F32, BF16 or F16 */
    SL_K_VECTOR, /* [rows], F32, BF16 or F16 */
    SL_K_FLOATS, /* [rows], or with more than one column [rows][cols], converted to F32 at load */
    /* [rows][cols] numbers of routed experts, I32 or I64, converted to int32 at load; a number that is none is an error */
    SL_K_EXPERTS,
    SL_K_LONGS, /* [rows], I64, as they are */
    SL_K_TAPS,  /* [rows][1][cols] of a convolution by channel, converted to F32 */
} sl_kind;

enum {
    /* With BF16 activations an F8 tensor is converted to BF16 at load, because the op that reads it is defined for the
     * rounded values (kernels/params.h, SL_OP_Q_ABSORB). */
    SL_SPEC_ABSORBED = 1,
    /* Quantised checkpoints keep this linear layer in 16 bits; a synthetic model (model/synthetic.h) does too. */
    SL_SPEC_16BIT = 2,
    /* A gain: its values lie around 1. Says how a synthetic model fills it. */
    SL_SPEC_GAIN = 4,
    /* Of SL_K_FLOATS: the checkpoint has the gain less 1, which the loader adds in float32. */
    SL_SPEC_CENTRED = 8,
};

typedef struct sl_tensor_spec {
    /* Of layer tensors the part after "model.layers.N."; several names that checkpoints use are separated by |. The prefix of
     * the text part of a model with pictures is none of a name (model/checkpoint.h). A name that ends with #i/n stands for part
     * i of a tensor that holds n such tensors, one after the other. */
    const char *name;
    int slot; /* SL_T_*, or SL_T_OWN + the family's number */
    sl_kind kind;
    sl_when when; /* NULL: always */
    sl_dim rows, cols;
    unsigned flags; /* SL_SPEC_* */
} sl_tensor_spec;

/* A tensor whose rows are not all the rows of the file, or not in their order: row r is row row_of(c, r) of file_rows. */
typedef struct sl_row_map {
    sl_dim file_rows;
    int64_t (*row_of)(const sl_model_config *c, int64_t row);
} sl_row_map;

/* The table of a layer that stays in host memory: the rows of tensor "<name>.weight", or of "<name>.shard_0.weight" and so on, one
 * after the other, of `cols` values in F32, BF16 or F16. Sizes and offsets of its parts are in the slots of these numbers. */
typedef struct sl_table_spec {
    const char *name;
    sl_when when;
    sl_dim cols;
    int sizes, offsets;
} sl_table_spec;

/* One step of a layer: enqueues one or a few ops. */
typedef struct sl_layer_step {
    const char *name; /* for errors: "layer 3, experts" */
    sl_when when;     /* NULL: in every layer */
    sl_status (*run)(struct sl_pass *p);
} sl_layer_step;

/* A model that can be made without a checkpoint (model/synthetic.h): the keys of its config.json, except
 * num_hidden_layers, and without the outer braces. A list of presets ends with a NULL name. */
typedef struct sl_model_preset {
    const char *name, *keys;
    int32_t layers;
} sl_model_preset;

typedef struct sl_family {
    const char *model_type, *architecture; /* as config.json has them */
    /* The same of checkpoints that hold only the text part of a model with pictures; NULL: there are none. */
    const char *text_type, *text_architecture;
    /* the name that configs of the family have for its activation, besides "silu"; NULL: none */
    const char *hidden_act;

    /* Called before the keys that all families share are read, which configs of the family may spell in their own way
     * (sl_cfg_fill). NULL: they do not. */
    sl_status (*begin)(struct sl_config_reader *x);
    /* Reads and checks the family's own keys into x->c. The keys that all families share are already there. */
    sl_status (*read_config)(struct sl_config_reader *x, const struct sl_family *f);
    /* Sets the dimensions of what a token leaves in the cache; see sl_model_cache_dims(). `out` is zeroed before, but for
     * the formats. A family whose layers do not all keep rows of tokens states their classes here, and read_config sets layer_class. */
    void (*cache_dims)(const sl_model_config *c, sl_cache_dims *out);

    /* Routed experts are not listed: every MoE layer has them (weights.c). */
    const sl_tensor_spec *model_tensors, *layer_tensors;
    size_t n_model_tensors, n_layer_tensors;
    /* The map of a layer tensor's rows, NULL: as in the file. NULL: no tensor has one. Several slots may be parts of one tensor. */
    const sl_row_map *(*row_map)(const sl_model_config *c, int slot);
    const sl_table_spec *table; /* NULL: no layer has one */
    /* Beginnings of names of tensors that a checkpoint may carry and nothing uses, ends with NULL. NULL: none. */
    const char *const *unused;
    /* Whether a checkpoint may carry the unused tensor "model.layers.<layer>.<rest>". NULL: none. */
    bool (*ignores)(const sl_model_config *c, int32_t layer, const char *rest);

    /* The family's own buffers: `own` is a zeroed struct of workspace_size bytes, which `workspace` fills with
     * pointers that it takes from k. Called twice: first to add up the sizes, then to place. NULL: none. */
    size_t workspace_size;
    void (*workspace)(const sl_model_config *c, const sl_model_opts *o, sl_carve *k, void *own);

    /* The steps of a layer in their order. In a layer with rows of tokens exactly one of them calls `attend`; in others none
     * does. What else a layer keeps they get from `memory` of the same seam, which in a dry pass (sl_pass.dry) is NULL. */
    const sl_layer_step *steps;
    size_t n_steps;
    /* Checkpoints may have an MTP layer, with the tensors SL_T_TOKEN_NORM .. SL_T_HEAD_NORM: the steps that make only its rows and
     * index keys (sl_pass.rows_only). NULL: they have none. */
    const sl_layer_step *row_steps;
    size_t n_row_steps;
    const char *
        no_drafts; /* without row_steps: why, for people: "model.draft_tokens: hy_v4 drafts no tokens: " and this */
    /* An `attend` that runs nothing: asks the backend (ctx) whether it supports the ops that the owner of the cache
     * will run for such a call. */
    sl_attend_fn ask_attend;

    const sl_model_preset *presets; /* for benchmarks; NULL: none */

    const void *traits; /* constants which the family's own functions read; may be NULL */
} sl_family;

/* By model_type or text_type. NULL when the type is unknown. */
const sl_family *sl_family_find(const char *model_type);
/* The i-th known family, NULL after the last. */
const sl_family *sl_family_at(size_t i);
/* Adds a family to the registry for the rest of the process; `f` must live as long. For families that are not part of
 * this library (tests). Call before any other thread uses the registry. SL_ERR_INVALID: the type is already known;
 * SL_ERR_EXHAUSTED: there is no room. */
sl_status sl_family_add(const sl_family *f);

/* Whether a checkpoint may carry this tensor although nothing uses it: the MTP layers, cached rotary frequencies, a
 * head that is tied anyway, and what the family says. */
bool sl_family_ignores(const sl_family *f, const sl_model_config *c, const char *name);

#endif
