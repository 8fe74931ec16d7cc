/*
 * A model: a Hugging Face checkpoint directory loaded onto a backend, and its forward pass as a sequence of ops.
 *
 * A model owns its weights (memory-mapped files on the CPU, device memory elsewhere) and the workspace of its forward
 * pass. It borrows the backend, which must outlive it. It has no cache: for the attention of each layer it calls
 * `attend` (kernels/attn.h). Threads: one thread at a time per model. The config does not change after load and may be
 * read from any thread.
 */
#ifndef SL_MODEL_MODEL_H
#define SL_MODEL_MODEL_H

#include "base/hash.h"
#include "kernels/attn.h"
#include "kernels/cache.h"
#include "collectives/comm.h"
#include "kernels/ep.h"

#define SL_MAX_LAYERS 256
#define SL_MAX_EOS 8

/* How the rotary frequencies are scaled for long contexts. The numbers are part of model fingerprints. */
typedef enum {
    SL_ROPE_PLAIN, /* not at all */
    SL_ROPE_YARN,
    SL_ROPE_LLAMA3, /* by wavelength, with a transition between two bounds */
} sl_rope_type;

/* As config.json has it: "default", "yarn", "llama3". */
const char *sl_rope_type_name(sl_rope_type type);

/* Parallel residual streams (hyper-connections), SL_OP_STREAMS_OUT. count 0: one stream, the usual residual. */
typedef struct sl_streams_config {
    int32_t count;
    /* the streams are mixed by a matrix that is balanced this number of times; 0: they are not mixed */
    int32_t iters;
    float eps, magnitude;
    int32_t rank; /* of the gates of gated residuals; 0: there are none */
} sl_streams_config;

/* A rotary embedding. */
typedef struct sl_rope_config {
    double theta, factor, beta_fast, beta_slow;
    double mscale, mscale_all_dim; /* as config.json has them; attention_factor follows from them */
    double low_freq, high_freq;    /* llama3: bounds of the transition, as original context / wavelength */
    double attention_factor;       /* multiplies cos and sin */
    int32_t original_max;
    sl_rope_type type;
    bool truncate;
} sl_rope_config;

/* Attention over a window and compressed entries (DeepSeek-V4). window 0: the model has none. */
typedef struct sl_entries_config {
    int32_t window, rate_chosen,
        rate_pooled;            /* tokens of an entry, in layers that choose entries and that read all */
    int32_t topk;               /* entries that are chosen */
    int32_t o_groups, o_rank;   /* of the output projection */
    sl_rope_config rope;        /* of layers with entries */
    bool hashed[SL_MAX_LAYERS]; /* experts by a table */
} sl_entries_config;

/* Heads and rows of attention. */
typedef struct sl_attention_config {
    int32_t n_heads;
    int32_t n_kv_heads; /* heads with rows of their own in the cache; 0: latent rows, which all heads share */
    /* the part of a query head that is not rotated, and the part that is */
    int32_t qk_nope_head_dim, qk_rope_head_dim;
    int32_t v_head_dim;                /* of values; in families with keys and values by head, of keys too */
    int32_t q_lora_rank, kv_lora_rank; /* latent attention (MLA); else 0 */
    float lora_eps;                    /* q_a, kv_a layer norms */
    float softmax_scale;
    /* latent attention: the checkpoint pairs the rotated values i and i + half; the loader reorders rows */
    bool rope_halves;
} sl_attention_config;

/* An indexer that selects blocks of tokens (sl_cache_dims.index_block); tokens 0: it selects tokens. */
typedef struct sl_index_blocks {
    int32_t tokens, local;
    /* KV heads of the checkpoint, each of which the loader repeats; 0: as many as n_kv_heads */
    int32_t stored_kv_heads;
} sl_index_blocks;

/* The indexer, which selects the rows that attention reads. All 0: the model has none. */
typedef struct sl_indexer_config {
    int32_t n_heads, head_dim, topk;
    sl_index_blocks blocks; /* with them, topk counts the tokens of the selected blocks */
    /* Tokens of an index key: the keys of units of tokens that are complete (kernels/pooled.h). 0: every token has one. */
    int32_t unit;
    float eps; /* k_norm */
    bool rope_interleaved;
} sl_indexer_config;

/* The experts, and how a token's are chosen. n_routed 0: every layer has a dense MLP. */
typedef struct sl_experts_config {
    int32_t intermediate_size;
    int32_t shared_intermediate_size; /* of all shared experts together; 0: n_shared * intermediate_size */
    int32_t n_routed, n_shared, per_token, n_group, topk_group;
    sl_route_score score;
    float scaling_factor;
    bool norm_topk_prob;
    bool refused_groups_zero; /* sl_moe_route_params.zero_refused */
    sl_glu glu;               /* of routed experts */
} sl_experts_config;

/* Delta-rule layers (kernels/delta.h). value_heads 0: the model has none. */
typedef struct sl_linear_config {
    int32_t key_heads, value_heads, key_dim, value_dim;
    int32_t taps;   /* of the convolutions */
    bool silu_gate; /* of the norm at the end; false: sigmoid */
    float bound;    /* of the logarithm of the decay (sl_delta_params.bound) */
} sl_linear_config;

/* Hashed n-gram embeddings (kernels/ngram.h). order 0: the model has none. */
typedef struct sl_ngram_config {
    int32_t order, heads, dim; /* dim: of a row */
    int32_t taps;              /* of the convolution at the end, whose dilation is the order */
    int32_t eos;
    bool in_layer[SL_MAX_LAYERS];
} sl_ngram_config;

#define SL_MAX_FORMS 4
/* How quantised weights are stored, besides F8 with blocks (kernels/params.h); of SL_SCALE_F32 and SL_SCALE_BF16 a
 * checkpoint may have either. */
typedef struct sl_weight_form {
    sl_dtype dtype;
    sl_scale_type scale_type;
    int32_t group; /* 0: all inputs of an output */
} sl_weight_form;

/* What config.json says of quantised weights. */
typedef struct sl_quantisation {
    sl_weight_form forms[SL_MAX_FORMS];
    int32_t n;
    /* Inputs of weights of 4 and of 8 bits: 1 quantised to e4m3, -1 as they are, 0 no such weight. */
    int8_t half_acts, f8_acts;
} sl_quantisation;

static inline bool sl_form_is_half(const sl_weight_form *f)
{
    return f->dtype == SL_I4 || f->dtype == SL_F4_E2M1;
}

/* What config.json says, checked and completed. Dimensions as in the Hugging Face keys of the same name. */
typedef struct sl_model_config {
    char family[32];       /* model_type, for instance "deepseek_v32" */
    char architecture[64]; /* "DeepseekV32ForCausalLM"… */
    int32_t vocab_size, hidden_size, intermediate_size;
    int32_t n_layers; /* those of the model, then n_draft */
    sl_attention_config attn;
    sl_indexer_config index;
    sl_experts_config moe;
    sl_rope_config rope;
    sl_streams_config streams;
    sl_entries_config entries;
    sl_linear_config linear;
    sl_ngram_config ngram;
    bool layer_is_moe[SL_MAX_LAYERS];
    /* false: reuses the selection of the last layer that has an indexer (IndexShare) */
    bool layer_has_indexer[SL_MAX_LAYERS];
    /* The class of each layer, by number in sl_cache_dims.classes; all 0 where the family states no classes. */
    uint8_t layer_class[SL_MAX_LAYERS];
    sl_glu mlp_glu;         /* of dense MLPs and shared experts */
    float rms_eps;          /* residual norms */
    int32_t norm_gate_rank; /* of gates after norms; 0: there are none */
    int32_t n_nextn_layers; /* MTP layers that a checkpoint may carry after the last layer; not loaded */
    int32_t n_draft;        /* MTP layers that are loaded, the last of n_layers: sl_model_config_draft() */
    /* The MTP layer selects for the first draft of a step, and further ones take that list (the IndexShare of drafts). */
    bool draft_shares;
    int32_t max_context;
    bool tie_word_embeddings;
    /* quantise inputs of the weights that say so: official W8A8 numerics of F8 linears, W4A8 */
    bool fp8_acts;
    sl_quantisation quant;
    int32_t eos_ids[SL_MAX_EOS], n_eos, bos_id;
    char dir[512]; /* whose weights are meant; "": none, or the path is longer */
} sl_model_config;

typedef struct sl_model_opts {
    sl_index_format index_format; /* numeric convention of the indexer */
    sl_row_format row_format;
    sl_dtype act;           /* SL_F32 or SL_BF16 */
    int32_t max_tokens;     /* most tokens of one forward pass; sizes the workspace */
    int32_t max_logit_rows; /* most positions whose logits one pass may want */
    int32_t max_context;    /* bounds the rope tables, and so the positions; 0 = the config's */
    /* AUTO: as the config says; OFF: F8 weights are only dequantised */
    enum { SL_FP8_ACTS_AUTO, SL_FP8_ACTS_OFF } fp8_acts;
    /*
     * The rank of this process in a group whose ranks share the routed experts; ranks 0 or 1: all experts are here.
     * Each rank loads its own experts only (sl_ep_split) and keeps its own tokens; every forward pass is a pass of all
     * ranks. All ranks load the same checkpoint with the same options.
     */
    int32_t rank, ranks;
    /* The formed group, which outlives the model or is replaced by sl_model_set_comm() before it ends; it sets rank and
     * ranks. NULL: the group forms later. */
    sl_comm *comm;
    /* Called from the loading thread about twice a second and at the end; may be NULL. */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
    /*
     * The tensors are not read but made with random values (model/dummy.h): the directory needs only config.json, and
     * files of weights in it are ignored. The values depend on the config alone: not on the rank, the number of ranks or
     * the backend.
     */
    bool dummy;
    bool draft; /* the MTP layer is loaded: sl_model_config_draft() */
    /* The fingerprint of the whole checkpoint, for a rank of a group that knows it from another rank and so reads only its
     * own tensors; zero: it is computed, for which samples of all tensors are read. */
    sl_key fingerprint;
} sl_model_opts;

typedef struct sl_model sl_model;

/* Reads only config.json (and generation_config.json) of a checkpoint directory: needs no weights and no device. */
sl_status sl_model_config_load(const char *dir, sl_model_config *out, sl_err *err);
/*
 * A hash of what a calibration of attention depends on: the shape of the model, and samples of the weights that make queries and
 * keys. It does not depend on formats of rows or activations. 0: the configuration names no folder, or it has no such weights.
 */
uint64_t sl_model_attention_print(const sl_model_config *c);
/*
 * With the checkpoint's MTP layer (multi-token prediction), which drafts tokens: n_layers then counts it as the last layer, with
 * rows and index keys like any other, and n_draft is 1. For whoever asks what a model loaded with sl_model_opts.draft is made of.
 * SL_ERR_UNSUPPORTED: the config has none, or its family cannot run one.
 */
sl_status sl_model_config_draft(sl_model_config *c, sl_err *err);
/*
 * The dimensions of what every token leaves in the cache, as the model's family says: for latent attention latent and
 * rope, for keys and values by head kv_heads and head_dim, and index_* if a layer has an indexer, and the classes of layers,
 * whose contents may depend on the formats, the caller's choice. Everything else in *out becomes 0. A family that is unknown
 * has no dimensions.
 */
void sl_model_cache_dims(const sl_model_config *cfg, sl_row_format row, sl_index_format index,
                         sl_cache_dims *out);
/* The defaults for "auto": plain + f32 rows for checkpoints stored in F32, official + fp8 rows for F8, plain
 * + bf16 rows for BF16. The rows are latent ones, or those of models with KV heads, which have no indexer. */
void sl_model_auto_formats(const sl_model_config *cfg, sl_dtype stored, sl_index_format *index,
                           sl_row_format *row);
/*
 * The formats that a user names: a name of their registry (kernels/cache.h), or "auto" or NULL for the default of
 * sl_model_auto_formats(). SL_ERR_NOT_FOUND for an unknown name, with the names of the registry; *index and *row are
 * then unchanged.
 */
sl_status sl_model_choose_formats(const sl_model_config *cfg, sl_dtype stored, const char *indexer,
                                  const char *row_format, sl_index_format *index, sl_row_format *row,
                                  sl_err *err);
/* The default for "auto" activations: F32 for weights stored as F32, else BF16. */
sl_dtype sl_model_auto_act(sl_dtype stored);
/* Dtype most weights of the checkpoint are stored in, from the safetensors headers alone. */
sl_status sl_model_stored_dtype(const char *dir, sl_dtype *out, sl_err *err);
/* What takes its place for a model of random weights (sl_model_opts.dummy): F8 where the config says that the checkpoint
 * is quantised, else BF16. */
sl_dtype sl_model_dummy_dtype(const sl_model_config *cfg);

sl_status sl_model_load(sl_backend *be, const char *dir, const sl_model_opts *opts, sl_model **out,
                        sl_err *err);
void sl_model_destroy(sl_model *m);
/* The group that the next forward pass belongs to, with the rank and the ranks that the model was loaded for; NULL:
 * there is none now, and a forward pass fails. */
void sl_model_set_comm(sl_model *m, sl_comm *comm);
/* What the routed experts of this rank have computed since load (kernels/ep.h). */
sl_ep_load sl_model_expert_load(const sl_model *m);
const sl_model_config *sl_model_get_config(const sl_model *m);
const sl_model_opts *sl_model_get_opts(const sl_model *m);
/* The identity of weights, config and numeric convention, from which every page key is derived. It is the same on all
 * machines that have loaded the same files. */
sl_key sl_model_fingerprint(const sl_model *m);
/* The fingerprint of a model that would be loaded with these options, without loading it: reads config.json, the
 * headers of the files and at most 68 KiB of each tensor. Errors as sl_model_load; SL_ERR_NOT_FOUND without weights. */
sl_status sl_model_identify(const char *dir, const sl_model_opts *opts, sl_key *out, sl_err *err);
/*
 * What ranks of a group compare instead, so that one of them alone reads samples of all tensors: the print of a rank is
 * the same hash over the tensors that it loads; names, dtypes and shapes are those of all tensors. Here that of
 * opts->rank of opts->ranks, reading nothing of the other ranks' experts but the headers. Errors as sl_model_identify;
 * SL_ERR_INVALID when there are more ranks than routed experts.
 */
sl_status sl_model_identify_rank(const char *dir, const sl_model_opts *opts, sl_key *out, sl_err *err);
/* The fingerprint, and the prints [opts->ranks] that the ranks must have; opts->ranks is 1 to SL_COMM_RANKS_MAX. */
sl_status sl_model_identify_ranks(const char *dir, const sl_model_opts *opts, sl_key *out, sl_key *prints,
                                  sl_err *err);
/* Bytes of the weights that sl_model_load() with these options would place, of a rank of a group only its own experts:
 * reads config.json and the headers of the files. Errors as sl_model_identify. */
sl_status sl_model_placed_bytes(const char *dir, const sl_model_opts *opts, uint64_t *out, sl_err *err);
uint64_t sl_model_weight_bytes(const sl_model *m);

/*
 * The MTP layer in a forward pass. It takes the token at position p and the hidden state of the model for position p - 1, and
 * drafts the token at p + 1; its row and index key of position p are in its layer of the cache. These follow from tokens up to p
 * alone, as those of every layer, so pages can be shared between requests that continue differently. They need only the layer's
 * input, not its attention: a pass of the model makes them for all of its tokens, and a pass with `alone` runs the whole
 * layer, for tokens of which the rows may be overwritten by a later pass.
 */
typedef struct sl_draft_pass {
    /* Device, rows of hidden_size values of the activations' dtype: hidden states, after the norm before the head. Row 0 is zero
     * and stands for a state that is not known. */
    void *hidden;
    const int32_t *prev; /* device [T]: the row of the state of the token before each token */
    int32_t first;       /* the states of this pass's tokens go to the rows from here on */
    /* Device [n_keep]: before anything else, rows 1 .. n_keep become copies of these rows; by way of `spare`, as large. */
    const int32_t *keep;
    int32_t n_keep;
    void *spare;
    /* Only the MTP layer runs. `hidden` gets its own output, from which a further token can be drafted, and there are logits of
     * all tokens; logit_rows and n_logits are not read. */
    bool alone;
    int32_t again, later; /* with alone: sl_attn_call */
} sl_draft_pass;

/* A forward pass between its last layer and its head. */
typedef struct sl_pass sl_pass;

typedef struct sl_forward {
    const int32_t *ids;        /* device [T] token ids */
    const sl_seq_tables *seqs; /* T and everything about the sequences */
    const int32_t *logit_rows; /* device [n_logits] rows (0..T-1) whose logits are wanted */
    int32_t n_logits;
    float *logits;              /* device [n_logits][vocab_size], caller's */
    sl_attend_seam seam;        /* the owner of the cache: one call per layer */
    const sl_draft_pass *draft; /* NULL: the MTP layer is left out */
    /* Of a model in a group: the most tokens of any rank in this pass, the same on all ranks; 0: no rank has any. */
    int32_t group_tokens;
    /* Called between the last layer and the head of logit_rows; it may call sl_pass_logits(). NULL: nothing is. */
    sl_status (*rows)(void *ctx, sl_pass *p, sl_err *err);
    void *rows_ctx;
} sl_forward;

/* Enqueues one forward pass on the model's backend. T <= max_tokens, n_logits <= max_logit_rows (0 is fine:
 * no head). In a group every rank calls it, with its own tokens; a rank without tokens (T = 0) computes its experts for
 * the others. */
sl_status sl_model_forward(sl_model *m, const sl_forward *f, sl_err *err);
/* For sl_forward.rows: enqueues the logits of n rows (device [n]), at most max_logit_rows, to sl_forward.logits. */
sl_status sl_pass_logits(sl_pass *p, const int32_t *rows, int32_t n);

#endif
