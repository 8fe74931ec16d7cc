/*
 * Clusters of keys: k-means over the keys of one request, and lists of tokens that are chosen by cluster (ClusterKV, arXiv
 * 2412.03213).
 *
 *   tokens   0 .. sinks - 1     in every list
 *            sinks .. end - 1   clusters of the first group; end is that of the prompt, but at least `budget`
 *            window by window   clusters of the next groups, `window_nlist` of each
 *            the rest           not clustered yet, in every list
 *
 * A group's clusters are made when its last token exists, serve the queries of later tokens, and never change. Which group
 * a token belongs to follows from its position and the end of the prompt alone. A query therefore reads 1 .. window
 * tokens that are not clustered, and its own is one of them.
 *
 * The conventions are those of kernels/params.h, and the ops belong to sl_op as the others do. Both backends have
 * them, with the same bits, except that lists by SL_GROUP_SOFTMAX may differ where two clusters' weights differ by their last
 * bit only.
 */
#ifndef SL_KERNELS_CLUSTERS_H
#define SL_KERNELS_CLUSTERS_H

#include "kernels/bounds.h"

typedef enum {
    SL_KMEANS_COSINE, /* a point belongs to the centroid with the largest cosine */
    SL_KMEANS_L2,     /* to the nearest centroid */
} sl_kmeans_metric;

/*
 * The keys of one request and layer that an op reads, by KV head as attention reads them. Rows of one token each, in the
 * pages of the device pool; with a host plane, the rows of the host pages instead.
 */
typedef struct sl_key_source {
    sl_row_view rows;     /* how rows are divided, and the device rows */
    sl_host_plane host;   /* base NULL: device rows are read */
    const int32_t *pages; /* the request's page table, of the device pool or of the host pages */
    int32_t heads, dim;   /* KV heads */
    sl_row_format format;
} sl_key_source;

/*
 * k-means over the keys of tokens first .. first + tokens - 1, for each KV head by itself. A key is cut into `parts`
 * pieces of dim / parts channels, each of which has centroids of its own; below, a point is such a piece.
 *
 *   begin       centroid c is point c * tokens / k, rounded down; with fewer points than centroids each point is one, and
 *               the last point all further ones
 *   iteration   every point gets the label of its centroid by the metric; ties go to the smaller label. As long as
 *               a label has no point and some point is not its centroid, the point that is farthest from its own (the first
 *               of equals) becomes the centroid of the smallest label without points, and points that are nearer to it
 *               get that label. Then each centroid becomes the mean of its points; without points it stays.
 *   end         after `iterations`, or when no label changed; then every point gets the label of its centroid once more
 *
 * Therefore the labels are those of the written centroids, and with at least as many centroids as different points every
 * point is its own centroid (SL_KMEANS_L2). Distances are 1 - cosine, where less than 1e-6 counts as none, and
 * squared distances. Means are sums in double in the order of tokens, rounded once; distances that decide which point is
 * farthest are double. With the cosine, the mean is that of the keys as they are, and a key of zeros gets label 0.
 */
typedef struct sl_kmeans_params {
    sl_key_source keys;
    int32_t first, tokens;
    int32_t parts, k, iterations;
    sl_kmeans_metric metric;
    float *
        centroids; /* [heads][ld_centroids][dim]: row c has centroid c of all parts, of which k rows are written */
    uint16_t *labels; /* NULL, or [heads][parts][ld_labels]: label_base + label of token first + i at i */
    int32_t ld_centroids, ld_labels, label_base;
} sl_kmeans_params;

/* How the tokens of a request are divided into groups. */
typedef struct sl_cluster_rule {
    int32_t sinks, budget;  /* budget > sinks */
    int32_t cluster_tokens; /* tokens per cluster of the first group, on average */
    int32_t window, window_nlist;
} sl_cluster_rule;

/* The groups of a request that are complete with its first `tokens` tokens. Pure. */
typedef struct sl_cluster_state {
    int32_t groups; /* complete ones */
    int32_t begin;  /* of the last complete group */
    int32_t end;    /* of the last complete group; 0: there is none */
    int32_t before; /* clusters of the groups before the last complete one */
    int32_t count;  /* clusters of all complete groups */
} sl_cluster_state;
sl_cluster_state sl_clusters_at(const sl_cluster_rule *r, int32_t prompt, int32_t tokens);
/* Most clusters of a request of at most `tokens` tokens. Pure. */
int64_t sl_clusters_most(const sl_cluster_rule *r, int32_t tokens);

/*
 * Lists of tokens first .. first + count - 1 of a step. With n tokens in the prompt of its sequence, the
 * list of KV head v for a token at pos, with the groups that are complete before pos, is
 *
 *   0 .. pos                              if pos < n, or pos < dense_below, or no group is complete
 *   sinks | chosen tokens | end .. pos    otherwise; sinks and chosen tokens are exactly `budget` tokens
 *
 * Clusters rank by the products of the queries with their centroids; how the products of the query heads of v become one
 * is `reduce` (SL_GROUP_MEAN: the product of the mean query; SL_GROUP_UNION: every query head
 * takes its best cluster, then each its second one, and so on), and ties go to the smaller number. They are taken in this
 * order; of the last one the oldest tokens. Ascending, -1 padded. SL_DEVERR_SELECTION: the list is longer than ld_ids.
 * A padding token has an empty list.
 *
 * take_of, mass: the list has fewer than `budget` tokens. KV head v takes at most take_of[v] of clusters and sinks, though all sinks;
 * and no cluster after those whose weights reach `mass` times the sum of the weights of all, of which it takes at least one. The
 * weight of a cluster, which is read with SL_GROUP_SOFTMAX only, is its score times its tokens, as if each of its keys were the
 * centroid: in the whole numbers of kernels/mass.h, where the largest score stands for 2^40.
 */
typedef struct sl_cluster_lists_params {
    const sl_seq_tables *seqs;
    const float *q;         /* [T][heads][dim] */
    const int32_t *prompts; /* [S] tokens of the prompt */
    const float *centroids; /* [S][kv_heads][ld_clusters][dim] */
    const uint16_t *labels; /* [S][kv_heads][ld_labels] by position; those of sinks are not read */
    int32_t *ids;           /* [token_count][kv_heads][ld_ids], the first belong to token_first */
    int32_t token_first, token_count, heads, kv_heads, dim, ld_clusters, ld_labels, ld_ids;
    int32_t dense_below;
    sl_cluster_rule rule;
    sl_group_reduce reduce;
    float scale;            /* of attention; read with SL_GROUP_SOFTMAX only */
    const int32_t *take_of; /* NULL, or [kv_heads] on the device; those above budget count as budget */
    float mass;             /* 0: no list ends before its budget */
} sl_cluster_lists_params;

#endif
