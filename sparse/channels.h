/*
 * The channels of keys that carry most of a product q . k, by layer and KV head: the result of a calibration
 * (`sluice calibrate`), which double_sparsity selects by. A table is read from a JSON file, in one of two forms:
 *
 *   ours      schema 1 of SGLang's newer code: "channels" maps the layer to a list per KV head; the file names model
 *             and shape, and as "model_print" a hash of the weights that make queries and keys, so the file of another fine-tune
 *             is refused. Channels are in order of importance, the most important first.
 *   SGLang    the older form: "model.layers.N.self_attn.qk_proj" is a list per query head, of which the channels with
 *             the smallest sums of ranks over the query heads of a KV head are taken; without it "…k_proj", a list per
 *             KV head. Such a file does not name its model: only the shape can be compared, which a warning in the log says.
 *
 * A table that was loaded is kept until the process ends, and the same contents are kept once, so a pointer to it may be
 * copied freely. Any thread.
 */
#ifndef SL_SPARSE_CHANNELS_H
#define SL_SPARSE_CHANNELS_H

#include "sparse/calibrated.h"

typedef struct sl_channels {
    int32_t n_layers, kv_heads, head_dim;
    int32_t count;     /* channels that are listed for each KV head */
    uint64_t hash;     /* of everything else */
    const int32_t *of; /* [n_layers][kv_heads][count], distinct within a head */
} sl_channels;

/*
 * Loads the file for this model. Errors name the file, the key and the reason: SL_ERR_NOT_FOUND, SL_ERR_IO,
 * SL_ERR_TOO_LARGE; SL_ERR_REFUSED for another model or shape; SL_ERR_INVALID for everything else.
 */
sl_status sl_channels_load(const char *path, const sl_algo_model *m, const sl_channels **out, sl_err *err);
/* The same from text; *out is the caller's, for sl_channels_free(). name: of the text, in errors. */
sl_status sl_channels_parse(const char *text, size_t n, const char *name, const sl_algo_model *m,
                            sl_channels **out, sl_err *err);
void sl_channels_free(sl_channels *c);

struct sl_select_options;
/* For benchmarks and tests: a table that no file has, in the options of double_sparsity. It exists as long as they do. */
void sl_select_channels(struct sl_select_options *options, const sl_channels *channels);

/*
 * Writes the file that sl_channels_load() reads. importance: [n_layers][kv_heads][head_dim], larger is more important;
 * of equal ones the smaller channel is first. All channels are listed. type: "qk" or "k", what was measured; name: of
 * the model, for readers; tokens: how many were read. An existing file is replaced when the new one is complete.
 */
sl_status sl_channels_write(const char *path, const sl_algo_model *m, const char *name, const char *type,
                            int64_t tokens, const double *importance, sl_err *err);

#endif
