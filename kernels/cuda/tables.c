/*
 * Device copies of the experts' weight descriptors, and their tensor maps. Ops receive host arrays; kernels that
 * choose an expert on the device need the arrays there. There are a few arrays per model layer. They are found by
 * host address, and their contents are compared, so that a changed array is sent again.
 */
#include "kernels/cuda/maps.h"

#include <stdlib.h>
#include <string.h>

typedef CUresult (*sl_encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                 const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

typedef struct table {
    const sl_weight *host;
    int n;
    sl_weight *copy, *device; /* copy: the contents sent last (host); device: where they were sent */
    /* On the device; NULL until requested. Graphs name this memory, so it is kept and written again when the weights
     * change, as the table is. */
    CUtensorMap *maps;
    bool maps_valid;
} table;

struct sl_cuda_tables {
    int used, cap;
    table *v;
};

static void release(table *t)
{
    cudaFree(t->device);
    cudaFree(t->maps);
    free(t->copy);
}

void sl_cuda_tables_destroy(sl_cuda_tables *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->used; i++)
        release(&t->v[i]);
    free(t->v);
    free(t);
}

static sl_status append(sl_cuda *cu, const sl_weight *host, int n, table **out, sl_err *err)
{
    sl_cuda_tables *t = cu->tables;
    table fresh = {.host = host, .n = n};
    sl_status st;

    if (!t)
        t = cu->tables = calloc(1, sizeof *t);
    if (t && t->used == t->cap) {
        table *v = realloc(t->v, sizeof *v * (size_t)(t->cap ? 2 * t->cap : 64));
        if (v) {
            t->v = v;
            t->cap = t->cap ? 2 * t->cap : 64;
        }
    }
    fresh.copy = calloc((size_t)n, sizeof *fresh.copy);
    if (!t || t->used == t->cap || !fresh.copy) {
        free(fresh.copy);
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for an expert table");
    }
    st = SL_CU(cudaMalloc((void **)&fresh.device, sizeof *fresh.device * (size_t)n), err);
    if (st != SL_OK)
        goto free_copy;
    t->v[t->used] = fresh;
    *out = &t->v[t->used++];
    return SL_OK;
free_copy:
    free(fresh.copy);
    return st;
}

static table *find(sl_cuda *cu, const sl_weight *host, int n)
{
    for (int i = 0; cu->tables && i < cu->tables->used; i++)
        if (cu->tables->v[i].host == host && cu->tables->v[i].n == n)
            return &cu->tables->v[i];
    return NULL;
}

sl_status sl_cuda_table(sl_cuda *cu, const sl_weight *host, int n, const sl_weight **out, sl_err *err)
{
    table *t = find(cu, host, n);
    bool stale = true;

    if (t)
        stale = memcmp(t->copy, host, sizeof *host * (size_t)n) != 0;
    if (stale && cu->capturing)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: expert table changed or new inside a capture: run the step once before the capture");
    if (!t) {
        SL_TRY(append(cu, host, n, &t, err));
    }
    if (stale) {
        SL_TRY(SL_CU(cudaStreamSynchronize(cu->stream), err));
        memset(t->copy, 0,
               sizeof *host * (size_t)n); /* should the next line fail, the next call sends again */
        SL_TRY(SL_CU(cudaMemcpy(t->device, host, sizeof *host * (size_t)n, cudaMemcpyHostToDevice), err));
        memcpy(t->copy, host, sizeof *host * (size_t)n);
        t->maps_valid = false;
    }
    *out = t->device;
    return SL_OK;
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

static sl_status encode_all(sl_cuda *cu, const sl_weight *w, int n, CUtensorMap *maps, sl_err *err)
{
    for (int i = 0; i < n; i++) {
        int64_t bytes = sl_dtype_bytes(w[i].dtype, w[i].in);
        SL_TRY(sl_cuda_map(cu, w[i].data, w[i].out, bytes, bytes, 128, &maps[i], err));
    }
    return SL_OK;
}

sl_status sl_cuda_maps(sl_cuda *cu, const sl_weight *host, int n, const CUtensorMap **out, sl_err *err)
{
    const sl_weight *ignored;
    CUtensorMap *maps;
    sl_status st;
    table *t;

    SL_TRY(sl_cuda_table(cu, host, n, &ignored, err));
    t = find(cu, host, n);
    if (t->maps_valid) {
        *out = t->maps;
        return SL_OK;
    }
    if (cu->capturing)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: new tensor maps inside a capture: run the step once before the capture");
    maps = aligned_alloc(64, sizeof *maps * (size_t)n);
    if (!maps)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for tensor maps");
    st = encode_all(cu, host, n, maps, err);
    if (st == SL_OK && !t->maps)
        st = SL_CU(cudaMalloc((void **)&t->maps, sizeof *maps * (size_t)n), err);
    if (st == SL_OK)
        st = SL_CU(cudaMemcpy(t->maps, maps, sizeof *maps * (size_t)n, cudaMemcpyHostToDevice), err);
    free(maps);
    if (st != SL_OK)
        return st;
    t->maps_valid = true;
    *out = t->maps;
    return SL_OK;
}
