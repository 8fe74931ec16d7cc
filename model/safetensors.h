/*
 * Safetensors: one file of named tensors, read by mapping it into memory.
 *
 * The whole header is checked before anything is used: lengths, JSON, names, dtypes, shapes, and that the
 * tensors fill the data area exactly, without holes or overlaps. After sl_st_open every `data` pointer is in
 * range and every size is consistent. It does not know what the tensors mean, and it does not look at the
 * values.
 *
 * Ownership: a file owns its mapping and its table; tensors point into both and live until sl_st_close.
 * Threads: immutable once open. A mapped file must not be truncated while it is in use.
 */
#ifndef SL_MODEL_SAFETENSORS_H
#define SL_MODEL_SAFETENSORS_H

#include "base/status.h"

#define SL_ST_MAX_RANK 8
#define SL_ST_MAX_NAME 512
#define SL_ST_MAX_HEADER (100u << 20) /* bytes; the format's own limit */

typedef enum {
    SL_ST_BOOL,
    SL_ST_U8,
    SL_ST_I8,
    SL_ST_F8_E4M3,
    SL_ST_F8_E5M2,
    SL_ST_F8_E8M0,
    SL_ST_I16,
    SL_ST_U16,
    SL_ST_F16,
    SL_ST_BF16,
    SL_ST_I32,
    SL_ST_U32,
    SL_ST_F32,
    SL_ST_I64,
    SL_ST_U64,
    SL_ST_F64,
    SL_ST_DTYPES,
} sl_st_dtype;

typedef struct sl_st_tensor {
    const char *name; /* valid UTF-8, 1..SL_ST_MAX_NAME bytes */
    sl_st_dtype dtype;
    int32_t rank; /* 0 = scalar */
    int64_t shape[SL_ST_MAX_RANK];
    const void *data; /* its alignment is that of its place in the file */
    size_t bytes;     /* product(shape) * dtype size */
} sl_st_tensor;

typedef struct sl_safetensors sl_safetensors;

/*
 * Maps and checks a file. Errors: SL_ERR_NOT_FOUND (no such file), SL_ERR_IO, SL_ERR_INVALID (what is wrong,
 * with file and tensor), SL_ERR_UNSUPPORTED (a dtype that this build does not know), SL_ERR_NO_MEMORY.
 */
sl_status sl_st_open(const char *path, sl_safetensors **out, sl_err *err);
/* The same over borrowed memory, which must outlive the result; `label` is what errors call it. */
sl_status sl_st_parse(const void *bytes, size_t n, const char *label, sl_safetensors **out, sl_err *err);
void sl_st_close(sl_safetensors *st);

/* Path or label. */
const char *sl_st_label(const sl_safetensors *st);
size_t sl_st_count(const sl_safetensors *st);
/* Tensors in ascending byte order of their names. */
const sl_st_tensor *sl_st_at(const sl_safetensors *st, size_t i);
/* NULL when there is none of that name. */
const sl_st_tensor *sl_st_find(const sl_safetensors *st, const char *name);
/* The raw JSON header, for fingerprints. */
const void *sl_st_header(const sl_safetensors *st, size_t *n);

/* "F32", "F8_E4M3"… as the files spell them. */
const char *sl_st_dtype_name(sl_st_dtype d);
size_t sl_st_dtype_bytes(sl_st_dtype d);

#endif
