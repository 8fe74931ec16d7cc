/*
 * Matrix products by cuBLASLt: one entry point, and a cache of the algorithm chosen for each shape.
 *
 * The choice takes tens of microseconds on the host, so it is kept per (shape, types, token bucket); descriptors are
 * built on the stack. Of the algorithms that the library offers, the first is taken that sums k in one chain: the
 * result of a token does not depend on the number of other tokens (the conformance suite checks this).
 */
#include "kernels/cuda/cuda_impl.h"

#include <stdlib.h>
#include <string.h>

#define CACHE 1024 /* power of two */
#define CHOICES 16
#define BASE_TOKENS 16
#define ALIGN 16 /* bytes; callers guarantee this alignment of every operand */

typedef struct lt_key {
    int32_t m, n_bucket, k, batch;
    int64_t lda, ldb, ldd;
    sl_dtype in, out;
    int32_t a_transposed;
} lt_key;

struct sl_cuda_lt {
    cublasLtHandle_t handle;
    struct {
        bool used;
        lt_key key;
        cublasLtMatmulAlgo_t algo;
    } cache[CACHE];
};

static sl_status blas_status(cublasStatus_t s, const char *what, sl_err *err)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return SL_OK;
    return sl_fail(err, s == CUBLAS_STATUS_NOT_SUPPORTED ? SL_ERR_UNSUPPORTED : SL_ERR_DEVICE, "cuda: %s: %s",
                   what, cublasLtGetStatusString(s));
}

sl_status sl_cuda_lt_create(sl_cuda *cu, sl_cuda_lt **out, sl_err *err)
{
    sl_cuda_lt *lt = calloc(1, sizeof *lt);
    sl_status st;

    (void)cu;
    if (!lt)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for the matrix product plans");
    st = blas_status(cublasLtCreate(&lt->handle), "cublasLtCreate", err);
    if (st != SL_OK)
        goto free_lt;
    *out = lt;
    return SL_OK;
free_lt:
    free(lt);
    return st;
}

void sl_cuda_lt_destroy(sl_cuda_lt *lt)
{
    if (!lt)
        return;
    cublasLtDestroy(lt->handle);
    free(lt);
}

static cudaDataType_t data_type(sl_dtype d)
{
    switch (d) {
    case SL_BF16:
        return CUDA_R_16BF;
    case SL_F8_E4M3:
        return CUDA_R_8F_E4M3;
    default:
        return CUDA_R_32F;
    }
}

typedef struct lt_call {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d;
} lt_call;

static void set_batch(cublasLtMatrixLayout_t l, int32_t batch, int64_t stride)
{
    if (batch <= 1)
        return;
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
    cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
}

static sl_status describe(const sl_cuda_gemm *g, lt_call *c, sl_err *err)
{
    cublasOperation_t ta = g->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescInit(&c->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (s == CUBLAS_STATUS_SUCCESS && g->in == SL_F8_E4M3) {
        cublasLtMatmulMatrixScale_t sa = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                                    sb = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &sa, sizeof sa);
        cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &sb, sizeof sb);
        cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->a_scale,
                                       sizeof g->a_scale);
        s = cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->b_scale,
                                           sizeof g->b_scale);
    }
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->a, data_type(g->in), g->a_transposed ? g->k : g->m,
                                     g->a_transposed ? g->m : g->k, g->lda);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->b, data_type(g->in), g->k, g->n, g->ldb);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->d, data_type(g->out), g->m, g->n, g->ldd);
    if (s != CUBLAS_STATUS_SUCCESS)
        return blas_status(s, "matrix product descriptor", err);
    set_batch(&c->a, g->batch, g->stride_a);
    set_batch(&c->b, g->batch, g->stride_b);
    set_batch(&c->d, g->batch, g->stride_d);
    return SL_OK;
}

/* Whether algo sums k in one chain: no split, no reduction across blocks. It is configured so where it allows that. */
static bool one_chain(cublasLtMatmulAlgo_t *algo)
{
    const int32_t single = 1;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    int32_t split = 1;
    uint32_t scheme = 0;
    size_t n;

    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split,
                                               &n);
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                               sizeof scheme, &n);
    if (split <= 1 && scheme == none)
        return true;
    (void)cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &single, sizeof single);
    (void)cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &none,
                                               sizeof none);
    return true;
}

/* The kind of an algorithm's kernel: algorithms of one kind and one instruction shape add up k in the same order. */
static uint32_t kind_of(const cublasLtMatmulAlgo_t *algo)
{
    int32_t id = 0;
    uint16_t inner = 0;
    size_t n;

    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &n);
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner,
                                               sizeof inner, &n);
    return (uint32_t)id << 16 | inner;
}

static bool works(sl_cuda *cu, lt_call *c, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t res;

    return cublasLtMatmulAlgoCheck(cu->lt->handle, &c->op, &c->a, &c->b, &c->d, &c->d, algo, &res) ==
               CUBLAS_STATUS_SUCCESS &&
           res.workspaceSize <= SL_CUDA_WORKSPACE;
}

/*
 * Finds the first algorithm offered for c that sums in one chain, also works for the two calls in `also` and, unless
 * like is NULL, is of the same kind as like.
 */
static bool offered(sl_cuda *cu, lt_call *c, lt_call *also, const cublasLtMatmulAlgo_t *like,
                    cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t best[CHOICES];
    uint32_t align = ALIGN;
    size_t ws = SL_CUDA_WORKSPACE;
    int found = 0;
    cublasStatus_t s = cublasLtMatmulPreferenceInit(&pref);

    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &ws,
                                                 sizeof ws);
    for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++)
        s = cublasLtMatmulPreferenceSetAttribute(
            &pref, (cublasLtMatmulPreferenceAttributes_t)(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i),
            &align, sizeof align);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulAlgoGetHeuristic(cu->lt->handle, &c->op, &c->a, &c->b, &c->d, &c->d, &pref, CHOICES,
                                           best, &found);
    for (int i = 0; i < found && s == CUBLAS_STATUS_SUCCESS; i++)
        if (best[i].state == CUBLAS_STATUS_SUCCESS && one_chain(&best[i].algo) &&
            works(cu, &also[0], &best[i].algo) && works(cu, &also[1], &best[i].algo) &&
            (!like || kind_of(like) == kind_of(&best[i].algo))) {
            *algo = best[i].algo;
            return true;
        }
    return false;
}

/* Tokens in the same bucket share an algorithm. */
static int32_t bucket(int32_t n)
{
    int32_t b = BASE_TOKENS;

    while (b < n)
        b *= 2;
    return b;
}

/*
 * A token's bits must not depend on the number of other tokens. So the algorithm for 16 tokens determines how a weight
 * is summed. For more tokens an algorithm of the same kind is taken (other tiles, the same order) or, if there is
 * none, the same algorithm. In float32 it is always the same one, because kernels of one kind may still cut k
 * differently.
 */
static sl_status choose(sl_cuda *cu, const sl_cuda_gemm *g, lt_call *c, cublasLtMatmulAlgo_t *algo,
                        sl_err *err)
{
    const int32_t step = g->in == SL_F8_E4M3 ? 4 : 1; /* fp8 products require multiples of 4 tokens */
    sl_cuda_gemm few = *g;
    cublasLtMatmulAlgo_t base;
    lt_call few_call, others[2], near[2] = {*c, *c};

    few.n = BASE_TOKENS;
    SL_TRY(describe(&few, &few_call, err));
    few.n = step;
    SL_TRY(describe(&few, &others[0], err));
    few.n = BASE_TOKENS - step;
    SL_TRY(describe(&few, &others[1], err));
    few.n = bucket(g->n) / 2 + step;
    SL_TRY(describe(&few, &near[1], err));
    if (!offered(cu, &few_call, others, NULL, &base) || !works(cu, c, &base))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: no algorithm for a product of %d outputs, %d tokens, %d inputs", g->m, g->n,
                       g->k);
    if (g->n <= BASE_TOKENS || g->in == SL_F32 || !offered(cu, c, near, &base, algo))
        *algo = base;
    return SL_OK;
}

sl_status sl_cuda_gemm_run(sl_cuda *cu, const sl_cuda_gemm *g, sl_err *err)
{
    static const float one = 1.0f, zero = 0.0f;
    lt_key key;
    lt_call c;
    uint32_t h, i;
    SL_TRY(describe(g, &c, err));
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n_bucket = bucket(g->n), key.k = g->k, key.batch = g->batch;
    key.lda = g->lda, key.ldb = g->ldb, key.ldd = g->ldd;
    key.in = g->in, key.out = g->out, key.a_transposed = g->a_transposed;
    h = (uint32_t)(g->m * 31 + g->k * 17 + key.n_bucket * 7 + g->in * 3 + g->out + g->batch * 131) &
        (CACHE - 1);
    for (i = 0; i < CACHE && cu->lt->cache[(h + i) & (CACHE - 1)].used; i++)
        if (memcmp(&cu->lt->cache[(h + i) & (CACHE - 1)].key, &key, sizeof key) == 0)
            break;
    if (i == CACHE)
        i = 0; /* the cache is full: replace an entry */
    h = (h + i) & (CACHE - 1);
    if (!cu->lt->cache[h].used || memcmp(&cu->lt->cache[h].key, &key, sizeof key) != 0) {
        SL_TRY(choose(cu, g, &c, &cu->lt->cache[h].algo, err));
        cu->lt->cache[h].used = true;
        cu->lt->cache[h].key = key;
    }
    return blas_status(cublasLtMatmul(cu->lt->handle, &c.op, &one, g->a, &c.a, g->b, &c.b, &zero, g->d, &c.d,
                                      g->d, &c.d, &cu->lt->cache[h].algo, cu->workspace, SL_CUDA_WORKSPACE,
                                      cu->stream),
                       "cublasLtMatmul", err);
}
