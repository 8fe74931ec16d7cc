/*
 * Host side of stream.cuh: tensor maps. A map describes a row-major matrix of bytes to the copy engine of an SM.
 * Making one is arithmetic on the host and takes about a quarter of a microsecond. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_STREAM_H
#define SL_KERNELS_CUDA_STREAM_H

#include <cuda.h>

#include "kernels/cuda/cuda_impl.h"

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

/* Linear layers of few tokens, or whose k is cut into ranges (linear_stream.cu): fp8 with xq [T][in] and xs
 * [in / 128][ld_xs], after which 64 more floats are readable; or bf16 with both NULL. Runs the first n layers of the
 * chain, of which sl_path_linear() gives SL_LINEAR_FEW or SL_LINEAR_MANY. */
/* The same for many tokens (linear_many.cu), with the same bits; chunk: groups of 128 bytes of k per range. */
sl_status sl_cuda_linear_many(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                              const float *xs, int ld_xs, int chunk, sl_err *err);
/* How many layers of the chain, from p on, can be one launch: the whole chain, or 1. p fits. */
int sl_cuda_linear_stream_together(const sl_cuda *cu, const sl_linear_params *p);
sl_status sl_cuda_linear_stream(sl_cuda *cu, const sl_linear_params *p, int n, const uint8_t *xq,
                                const float *xs, int ld_xs, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
