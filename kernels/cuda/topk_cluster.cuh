/* Top-k with one cluster per row; see topk_cluster.cu. */
#ifndef SL_KERNELS_CUDA_TOPK_CLUSTER_CUH
#define SL_KERNELS_CUDA_TOPK_CLUSTER_CUH

#include "kernels/cuda/common.cuh"

typedef struct sl_topk_clusters {
    int size; /* blocks per row; 0 where one block per row is faster or the only possibility */
    bool by_hint;
} sl_topk_clusters;

sl_topk_clusters sl_cuda_topk_clusters(const sl_cuda *cu, const sl_topk_params *p);
/* hint: of all rows, where they start from it; otherwise unused. */
sl_status sl_cuda_topk_cluster(sl_cuda *cu, const sl_topk_params *p, sl_topk_clusters c, const float *hint,
                               sl_err *err);

#endif
