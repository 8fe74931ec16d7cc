/*
 * Inside model/: a checkpoint directory: which files it has and where each tensor is.
 *
 * The directory holds model.safetensors, or model.safetensors.index.json with its shards. The header of every shard is
 * checked, and the index must name exactly the tensors that the shards hold. The loader marks the tensors that it
 * takes, so that unused ones can be reported at the end.
 *
 * Models with pictures give the tensors of their text part a prefix: "language_model." before the whole name, or
 * "model.language_model." in the place of "model.". Tensors are known by their names without it. Names of layers that
 * begin with "layers." are known with "model." before that. Ownership: a checkpoint owns the mappings of its files;
 * tensors live until sl_checkpoint_close. Threads: one at a time.
 */
#ifndef SL_MODEL_CHECKPOINT_H
#define SL_MODEL_CHECKPOINT_H

#include "model/config.h"
#include "model/safetensors.h"

typedef struct sl_checkpoint sl_checkpoint;

/* sl_ck_tensor.expert of a tensor that every rank of a group needs, and of one that holds all experts in order. */
enum { SL_CK_COMMON = -1, SL_CK_FUSED = -2 };

typedef struct sl_ck_tensor {
    const sl_st_tensor *t;
    const char *name; /* t->name without the prefix of a text part, as below */
    const sl_safetensors *file;
    bool used;
    int32_t expert; /* of a tensor in use: the routed expert that it belongs to, or one of the above */
} sl_ck_tensor;

/* Errors as sl_st_open; SL_ERR_NOT_FOUND when the directory holds neither file. */
sl_status sl_checkpoint_open(const char *dir, sl_checkpoint **out, sl_err *err);
void sl_checkpoint_close(sl_checkpoint *ck);
size_t sl_checkpoint_count(const sl_checkpoint *ck);
/* The i-th tensor in ascending order of names, which does not depend on the sharding. */
sl_ck_tensor *sl_checkpoint_at(sl_checkpoint *ck, size_t i);
/* By either name; NULL when absent. Does not mark. */
sl_ck_tensor *sl_checkpoint_find(sl_checkpoint *ck, const char *name);
const char *sl_checkpoint_dir(const sl_checkpoint *ck);

/* The bytes of all *.safetensors files of a directory; 0 when it has none. */
uint64_t sl_checkpoint_file_bytes(const char *dir);

/* A whole file in memory (malloc'ed, NUL-terminated), at most `limit` bytes. */
sl_status sl_read_file(const char *path, size_t limit, char **out, size_t *n, sl_err *err);

#endif
