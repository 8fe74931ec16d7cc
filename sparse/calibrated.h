/*
 * What every file of a calibration says of the model for which it was made (channels.h, budgets.h): architecture and shape, and as
 * "model_print" a hash of the weights that make queries and keys, so that the file of another fine-tune is refused. And how such
 * files are loaded: a table is kept until the process ends, and the same contents are kept once. Any thread.
 */
#ifndef SL_SPARSE_CALIBRATED_H
#define SL_SPARSE_CALIBRATED_H

#include <jansson.h>
#include <stdio.h>

#include "sparse/algorithm.h"

/* SL_ERR_REFUSED: the file is of a model of another shape; SL_ERR_INVALID: it is malformed. Errors begin with `name`. */
sl_status sl_calibrated_model(const json_t *doc, const char *name, const sl_algo_model *m, sl_err *err);
/* The same of the weights, which are read for it: the last check. Sets *said when the file names the weights. */
sl_status sl_calibrated_weights(const json_t *doc, const char *name, const sl_algo_model *m, bool *said,
                                sl_err *err);

/* A kind of calibration file. */
typedef struct sl_calibrated_kind {
    size_t max_bytes; /* of a file */
    /* Reads and checks a document; *out is the caller's. Sets *said when the file names the weights, else clears it. */
    sl_status (*read)(const json_t *doc, const char *name, const sl_algo_model *m, bool *said, void **out,
                      sl_err *err);
    bool (*same)(const void *a, const void *b); /* their contents */
    void (*free)(void *table);
} sl_calibrated_kind;

/* SL_ERR_NOT_FOUND, and the errors of `read`. *out stays until the process ends. Logs once for each table that says nothing of weights. */
sl_status sl_calibrated_load(const sl_calibrated_kind *k, const char *path, const sl_algo_model *m,
                             const void **out, sl_err *err);
/* The same from text; *out is the caller's. name: of the text, in errors. */
sl_status sl_calibrated_parse(const sl_calibrated_kind *k, const char *text, size_t n, const char *name,
                              const sl_algo_model *m, void **out, sl_err *err);

/* Writes these fields, each with a comma after it. name: of the model, for readers. */
void sl_calibrated_put(FILE *f, const sl_algo_model *m, const char *name);

#endif
