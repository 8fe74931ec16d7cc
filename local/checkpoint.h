/*
 * What a command must know about a checkpoint before it is loaded: its config, and the numeric formats that "auto"
 * stands for. The functions read config.json and the headers of the weights, and allocate nothing. Any thread.
 */
#ifndef SL_LOCAL_CHECKPOINT_H
#define SL_LOCAL_CHECKPOINT_H

#include "kernels/cache.h"
#include "model/model.h"

typedef struct sl_local_checkpoint {
    sl_model_config cfg;
    sl_dtype stored; /* dtype of most weights; BF16 when the directory has no weights */
    bool has_weights;
    bool dummy; /* its weights are to be made, not read (sl_model_opts.dummy) */
    sl_index_format index_format;
    sl_row_format row_format;
} sl_local_checkpoint;

/*
 * Reads the config of dir and chooses the formats. indexer and row_format: a name of their registry (kernels/cache.h);
 * "auto" or NULL chooses the format that suits the stored weights. SL_ERR_NOT_FOUND for an unknown name; err lists the
 * names of the registry.
 */
sl_status sl_local_checkpoint_read(const char *dir, const char *indexer, const char *row_format,
                                   sl_local_checkpoint *out, sl_err *err);

/* The same for random weights in place of those of dir, which needs only config.json. */
sl_status sl_local_checkpoint_dummy(const char *dir, const char *indexer, const char *row_format,
                                    sl_local_checkpoint *out, sl_err *err);

/* The config of a built-in model (model/synthetic.h) as a published checkpoint would have it: without weights, stored in F8. */
sl_status sl_local_checkpoint_preset(const char *name, const char *indexer, const char *row_format,
                                     sl_local_checkpoint *out, sl_err *err);

/* Names of the dtypes of activations, NULL-terminated. */
extern const char *const sl_local_act_names[];
/* name: "f32" or "bf16"; "auto" or NULL chooses F32 for weights stored as F32, else BF16. */
sl_status sl_local_act_find(const char *name, sl_dtype stored, sl_dtype *out, sl_err *err);

#endif
