/*
 * Tensor maps. A map describes a row-major matrix of bytes to the copy engine of an SM.
 * Making one is arithmetic on the host and takes about a quarter of a microsecond. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_MAPS_H
#define SL_KERNELS_CUDA_MAPS_H

#include <cuda.h>

#include "kernels/cuda/instance.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Map of a matrix of rows x bytes with a pitch. Boxes are box_rows x 128 bytes, swizzled; bytes outside of the matrix
 * read as zero. base and pitch are multiples of 16. SL_ERR_UNSUPPORTED: the driver has no tensor maps. */
sl_status sl_cuda_map(sl_cuda *cu, const void *base, int64_t rows, int64_t bytes, int64_t pitch, int box_rows,
                      CUtensorMap *out, sl_err *err);
/* An array of up to five dimensions, the innermost one first: sizes, bytes from one to the next of dimensions 1, 2, ..,
 * and the size of a box. */
#define SL_CUDA_BOX_DIMS 5
typedef struct sl_cuda_box {
    int32_t dims;
    uint64_t size[SL_CUDA_BOX_DIMS], pitch[SL_CUDA_BOX_DIMS - 1];
    uint32_t box[SL_CUDA_BOX_DIMS];
} sl_cuda_box;
/* Map of an array of bf16, boxes of 64 values in the innermost dimension, swizzled as by sl_cuda_map. */
sl_status sl_cuda_map_bf16(sl_cuda *cu, const void *base, const sl_cuda_box *b, CUtensorMap *out,
                           sl_err *err);
/* Device array of the maps of a host array of n weights, boxes of 128 rows; kept and refreshed like
 * sl_cuda_table(). */
sl_status sl_cuda_maps(sl_cuda *cu, const sl_weight *host, int n, const CUtensorMap **out, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
