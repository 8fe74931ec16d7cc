/*
 * For tests that need damaged or unusual checkpoints: reads the tensors of a safetensors file into a list that can be
 * edited and written again, and creates temporary directories. A test fails when one of these functions fails.
 */
#ifndef SL_TEST_CHECKPOINT_TOOLS_H
#define SL_TEST_CHECKPOINT_TOOLS_H

#include "model/safetensors.h"

#define CT_MAX 1024

typedef struct ct_tensor {
    char name[160];
    sl_st_dtype dtype;
    int32_t rank;
    int64_t shape[SL_ST_MAX_RANK];
    uint8_t *data; /* owned */
    size_t bytes;
} ct_tensor;

typedef struct ct_list {
    ct_tensor t[CT_MAX];
    size_t n;
} ct_list;

/* Appends all tensors of a file. */
void ct_read(ct_list *l, const char *path);
void ct_free(ct_list *l);
ct_tensor *ct_find(ct_list *l, const char *name);
/* A new tensor, zeroed; cols 0 makes a vector. */
ct_tensor *ct_add(ct_list *l, const char *name, sl_st_dtype dtype, int64_t rows, int64_t cols);
void ct_remove(ct_list *l, const char *name);
/* Replaces the F32 tensors of a layer's routed experts by the two fused ones. */
void ct_fuse(ct_list *l, int layer, int experts);
/* Writes tensors [first, end). `pad` spaces after the header change the alignment of the data. */
void ct_write(const ct_list *l, size_t first, size_t end, const char *dir, const char *file, size_t pad);

void ct_write_text(const char *dir, const char *file, const char *text);
void ct_copy(const char *from_dir, const char *to_dir, const char *file);
/* Creates a directory in $TMPDIR or /tmp; ct_rmdir removes it with its files. */
void ct_mkdir(char out[256]);
void ct_rmdir(const char *dir);

#endif
