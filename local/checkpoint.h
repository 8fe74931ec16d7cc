/*
 * What several commands need to know of a checkpoint before it is loaded: its config, and the numeric formats
 * that "auto" stands for.
 */
#ifndef SL_LOCAL_CHECKPOINT_H
#define SL_LOCAL_CHECKPOINT_H

#include "model/model.h"

/* Choices of --backend, and of --act, --indexer and --row-format, where 0 is auto. */
extern const char *const sl_cli_backends[];
extern const char *const sl_cli_acts[];
extern const char *const sl_cli_indexers[];
extern const char *const sl_cli_row_formats[];

typedef struct sl_cli_model {
    sl_model_config cfg;
    sl_dtype stored; /* of most weights; BF16 when the directory has none */
    bool has_weights;
    sl_index_format index_format;
    sl_row_format row_format;
} sl_cli_model;

/* Reads the config of dir and settles the formats (indexer, rows: indices of the choices). */
sl_status sl_cli_model_read(const char *dir, int indexer, int rows, sl_cli_model *out, sl_err *err);
const char *sl_cli_dtype_name(sl_dtype d);
const char *sl_cli_index_name(sl_index_format f);
const char *sl_cli_row_name(sl_row_format f);
/* Bytes of all *.safetensors files of a directory; 0 when there are none. */
uint64_t sl_cli_weight_bytes(const char *dir);

#endif
