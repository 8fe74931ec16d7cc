/*
 * Device copies of the experts' weight descriptors, and their tensor maps. Ops receive host arrays; kernels that
 * choose an expert on the device need the arrays there. kernels/sent.h keeps them.
 */
#include "kernels/cuda/maps.h"

#include <string.h>

typedef CUresult (*sl_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

static sl_status alloc_device(void *ctx, size_t bytes, void **out, sl_err *err)
{
    (void)ctx;
    return SL_CU(cudaMalloc(out, bytes), err);
}

static void free_device(void *ctx, void *device)
{
    (void)ctx;
    cudaFree(device);
}

/* The kernels in flight may still read what was there. */
static sl_status send(void *ctx, void *device, const void *host, size_t bytes, sl_err *err)
{
    sl_cuda *cu = ctx;

    SL_TRY(SL_CU(cudaStreamSynchronize(cu->stream), err));
    return SL_CU(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), err);
}

static sl_status tables_of(sl_cuda *cu, sl_sent **out, sl_err *err)
{
    if (!cu->tables)
        cu->tables = sl_sent_create(
            &(sl_sent_device){.ctx = cu, .alloc = alloc_device, .free = free_device, .send = send});
    *out = cu->tables;
    return cu->tables ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for the tables of experts");
}

sl_status sl_cuda_table(sl_cuda *cu, const sl_weight *host, int n, const sl_weight **out, sl_err *err)
{
    sl_sent *t;

    SL_TRY(tables_of(cu, &t, err));
    return sl_sent_array(t, host, sizeof *host * (size_t)n, cu->capturing, (const void **)out, err);
}

/* cuTensorMapEncodeTiled() of a map whose boxes have rows of 128 bytes, swizzled. */
static sl_status encode(sl_cuda *cu, const void *base, CUtensorMapDataType type, const sl_cuda_box *b,
                        CUtensorMap *out)
{
    static const cuuint32_t steps[SL_CUDA_BOX_DIMS] = {1, 1, 1, 1, 1};
    CUresult r;

    if (!cu->encode) {
        void *fn = NULL;
        enum cudaDriverEntryPointQueryResult found;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000, cudaEnableDefault,
                                             &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return SL_ERR_UNSUPPORTED;
        memcpy(&cu->encode, &fn, sizeof fn);
    }
    r = ((sl_encode_fn)cu->encode)(out, type, (cuuint32_t)b->dims, (void *)(uintptr_t)base, b->size, b->pitch,
                                   b->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? SL_OK : SL_ERR_UNSUPPORTED;
}

sl_status sl_cuda_map(sl_cuda *cu, const void *base, int64_t rows, int64_t bytes, int64_t pitch, int box_rows,
                      CUtensorMap *out, sl_err *err)
{
    sl_cuda_box b = {.dims = 2,
                     .size = {(uint64_t)bytes, (uint64_t)rows},
                     .pitch = {(uint64_t)pitch},
                     .box = {128, (uint32_t)box_rows}};
    sl_status st = encode(cu, base, CU_TENSOR_MAP_DATA_TYPE_UINT8, &b, out);

    return st == SL_OK ? SL_OK
                       : sl_fail(err, st, "cuda: no tensor map for %lld x %lld bytes", (long long)rows,
                                 (long long)bytes);
}

sl_status sl_cuda_map_bf16(sl_cuda *cu, const void *base, const sl_cuda_box *b, CUtensorMap *out, sl_err *err)
{
    sl_status st = encode(cu, base, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, b, out);

    return st == SL_OK ? SL_OK
                       : sl_fail(err, st, "cuda: no tensor map of %d dimensions for a pitch of %lld bytes",
                                 (int)b->dims, (long long)b->pitch[b->dims - 2]);
}

static sl_status make_maps(void *ctx, const void *host, void *made, size_t bytes, sl_err *err)
{
    const sl_weight *w = host;
    CUtensorMap *maps = made;

    for (size_t i = 0; i < bytes / sizeof *maps; i++) {
        int64_t row = sl_dtype_bytes(w[i].dtype, w[i].in);
        SL_TRY(sl_cuda_map(ctx, w[i].data, w[i].out, row, row, 128, &maps[i], err));
    }
    return SL_OK;
}

sl_status sl_cuda_maps(sl_cuda *cu, const sl_weight *host, int n, const CUtensorMap **out, sl_err *err)
{
    sl_sent *t;

    SL_TRY(tables_of(cu, &t, err));
    return sl_sent_made(t, host, sizeof *host * (size_t)n, sizeof(CUtensorMap) * (size_t)n, make_maps, cu,
                        cu->capturing, (const void **)out, err);
}
