/*
 * Inside model/: what config readers of families are composed of: typed access to the keys of config.json, and the
 * groups of keys that several families share (rope, mixture of experts).
 *
 * Every function reports a missing key, a wrong type, a value out of bounds or a contradiction as SL_ERR_INVALID, and
 * what is valid but not implemented as SL_ERR_UNSUPPORTED, with file, key and reason. A key whose value is null counts
 * as absent. Unknown keys are ignored, since checkpoints carry many that concern training only; so a reader must name
 * every key that changes the mathematics, and refuse the values that it does not compute. Threads: any; the reader
 * lives on the stack of the caller.
 */
#ifndef SL_MODEL_CONFIG_READ_H
#define SL_MODEL_CONFIG_READ_H

#include <jansson.h>

#include "model/model.h"

typedef struct sl_config_reader {
    const json_t *root; /* the document's object */
    const char *label;  /* the name of the document in errors */
    sl_model_config *c; /* the result */
    sl_err *err;
    json_t *filled; /* owned: what root points to after sl_cfg_fill(), else NULL */
} sl_config_reader;

/* SL_ERR_INVALID and SL_ERR_UNSUPPORTED with "label: text". */
sl_status sl_cfg_bad(const sl_config_reader *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
sl_status sl_cfg_cannot(const sl_config_reader *x, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Gives keys that the document does not have, or that are null, the values that they have in `defaults`, a JSON object. For
 * what the published configuration class of a family fills in; dimensions of a model are not among it. */
sl_status sl_cfg_fill(sl_config_reader *x, const char *defaults);

/* The value of a key, NULL when it is absent or null. */
const json_t *sl_cfg_get(const json_t *object, const char *key);

/* The value v of `key`, which must exist (v not NULL) and be within the bounds. */
sl_status sl_cfg_int(sl_config_reader *x, const json_t *v, const char *key, int32_t lo, int32_t hi,
                     int32_t *out);
sl_status sl_cfg_real(sl_config_reader *x, const json_t *v, const char *key, double lo, double hi,
                      double *out);
/* The same with a default for an absent key; for sl_cfg_string the default is NULL. */
sl_status sl_cfg_real_or(sl_config_reader *x, const json_t *v, const char *key, double lo, double hi,
                         double dflt, double *out);
sl_status sl_cfg_bool_or(sl_config_reader *x, const json_t *object, const char *key, bool dflt, bool *out);
sl_status sl_cfg_string(sl_config_reader *x, const json_t *object, const char *key, const char **out);

/* One integer key of the document and the field of sl_model_config that it fills. */
#define SL_CFG_REQUIRED INT32_MIN
typedef struct sl_cfg_int_key {
    const char *key;
    size_t offset;        /* of an int32_t, see SL_CFG_FIELD */
    int32_t lo, hi, dflt; /* SL_CFG_REQUIRED: no default */
} sl_cfg_int_key;
#define SL_CFG_FIELD(f) offsetof(sl_model_config, f)

sl_status sl_cfg_ints(sl_config_reader *x, const sl_cfg_int_key *keys, size_t n);

/* Upper bound of a product of two dimensions, so that sizes of buffers do not overflow. */
#define SL_CFG_MAX_PRODUCT (1 << 24)

/* For keys with one implemented value, `only`: any other value would change the mathematics and is refused. */
sl_status sl_cfg_only_string(sl_config_reader *x, const char *key, const char *only);
sl_status sl_cfg_only_false(sl_config_reader *x, const char *key);
sl_status sl_cfg_only_true(sl_config_reader *x, const char *const *keys, size_t n);

/* `layer_types`, if it is there: every word must be one of those under which published configs name layers of selected
 * attention. Only for families all of whose layers are such. */
sl_status sl_cfg_only_selected(sl_config_reader *x);

/* A list with one of two words for each layer: out[i] says whether it is `yes`. Entries of MTP layers may follow. */
sl_status sl_cfg_layer_words(sl_config_reader *x, const json_t *list, const char *key, const char *yes,
                             const char *no, bool *out);

/* config_rope.c: `rope_parameters` (new) or `rope_theta` with `rope_scaling` (old), and the softmax scale that follows
 * from them. Needs qk_nope_head_dim, qk_rope_head_dim and max_context. A missing theta is an error, never a default. */
sl_status sl_cfg_rope(sl_config_reader *x);
/*
 * The same for heads of which partial_rotary_factor (of `rope_parameters`, or of the document) says the share of the head_dim values
 * that is rotated, the first ones; `rotated`: how many where no key says it. Sets qk_rope_head_dim and qk_nope_head_dim.
 */
sl_status sl_cfg_rope_part(sl_config_reader *x, int32_t head_dim, int32_t rotated);

/* The same from one object of a type and its keys (NULL: plain), whatever partial_rotary_factor it has. */
sl_status sl_cfg_rope_of(sl_config_reader *x, const json_t *rope, const json_t *theta);

/* config_quant.c: quantization_config. */
sl_status sl_cfg_quantization(sl_config_reader *x);
/* The document is hf_quant_config.json, which some checkpoints have instead. */
sl_status sl_cfg_hf_quant(sl_config_reader *x);

/* config_moe.c: the experts, their routing by groups with sigmoid scores, and which layers have them. */
sl_status sl_cfg_moe(sl_config_reader *x);

#endif
