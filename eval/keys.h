/*
 * Keys and queries of one layer's attention, of either kind, as tools see them that compute attention a second time: keys are
 * decoded from the host pages. Private to eval/; nothing is owned. Backends whose device memory is host memory.
 */
#ifndef SL_EVAL_KEYS_H
#define SL_EVAL_KEYS_H

#include "sparse/sparse.h"

enum { SL_EVAL_KEY_DIM = 1024 }; /* of a key at most */

typedef struct sl_eval_keys {
    const sl_attn_call *call;
    sl_row_view rows;
    sl_host_plane host;
    int32_t kv_heads, heads, dim; /* heads: query heads of a KV head; dim: of a key */
    const float *q;               /* [tokens of the step][kv_heads][heads][dim] */
    float scale;
} sl_eval_keys;

sl_eval_keys sl_eval_keys_of(const sl_attn_call *call, sl_row_view rows, sl_host_plane host);
/* The key of a KV head at a position of the sequence of a token of the step, [dim]. */
void sl_eval_keys_load(const sl_eval_keys *s, int32_t token, int32_t kv_head, int32_t pos, float *key);

#endif
