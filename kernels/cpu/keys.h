/* Keys of one request by KV head, decoded to float32 (sl_key_source); for the ops of clusters and codes. */
#ifndef SL_KERNELS_CPU_KEYS_H
#define SL_KERNELS_CPU_KEYS_H

#include "kernels/clusters.h"

/* Channels from .. from + n - 1 of the key of one token and KV head; key has room for dim values. False: its page does not
 * exist. */
bool sl_keys_part(const sl_key_source *s, int32_t head, int32_t token, int32_t from, int32_t n, float *key,
                  float *out);

/*
 * Centroids of one part, ready for sl_nearest(): rows scaled to length 1 (cosine), or as they are with half their
 * squared length (L2).
 */
typedef struct sl_book {
    sl_kmeans_metric metric;
    int32_t k, dim;
    float *rows; /* [k][dim] */
    float *half; /* [k] */
} sl_book;

/* Fills rows and half from centroids with a stride of ld floats. */
void sl_book_set(sl_book *b, const float *centroids, int64_t ld);
/* The label of each of n points [n][dim]; dots has room for [n][k] floats. */
void sl_nearest(const sl_book *b, const float *points, int32_t n, float *dots, int32_t *labels);

#endif
