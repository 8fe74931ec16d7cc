/*
 * Matrix products by cuBLASLt: one entry point, and a cache of the algorithm chosen for each shape.
 *
 * The choice takes tens of microseconds on the host, so it is kept per (shape, types, token bucket); descriptors are
 * built on the stack. Of the algorithms that the library offers, the first is taken that sums k in one chain: the
 * result of a token does not depend on the number of other tokens (the conformance suite checks this).
 */
#include "kernels/chain.h"
#include "kernels/cuda/instance.h"

#include <stdlib.h>
#include <string.h>

#define CACHE 1024 /* power of two */
#define CHOICES 16
#define BASE_TOKENS 16
#define ALIGN 16 /* bytes, of every operand: sl_op_check() requires it where rows are multiples of 16 */

typedef struct lt_key {
    int32_t m, n_bucket, k, batch;
    int64_t lda, ldb, ldd;
    sl_dtype in, out;
    int32_t a_transposed;
} lt_key;

typedef struct lt_entry {
    bool used, none; /* none: the library has no such algorithm */
    lt_key key;      /* n_bucket 0: the algorithm by which the weight is summed */
    cublasLtMatmulAlgo_t algo;
} lt_entry;

struct sl_cuda_lt {
    cublasLtHandle_t handle;
    lt_entry cache[CACHE];
};

static sl_status blas_status(cublasStatus_t s, const char *what, sl_err *err)
{
    if (s == CUBLAS_STATUS_SUCCESS)
        return SL_OK;
    return sl_fail(err, s == CUBLAS_STATUS_NOT_SUPPORTED ? SL_ERR_UNSUPPORTED : SL_ERR_DEVICE,
                   "cuda: %s: cuBLASLt: %s", what, cublasLtGetStatusString(s));
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

static bool set_batch(cublasLtMatrixLayout_t l, int32_t batch, int64_t stride)
{
    return batch <= 1 || (cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                                           sizeof batch) == CUBLAS_STATUS_SUCCESS &&
                          cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                           &stride, sizeof stride) == CUBLAS_STATUS_SUCCESS);
}

/* A library that does not take one of these would multiply without scales. */
static bool set_scales(const sl_cuda_gemm *g, lt_call *c)
{
    const int32_t a = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                  b = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const float *b_scale = g->b_scale ? g->b_scale : g->a_scale; /* not known yet: any address */
    const struct {
        cublasLtMatmulDescAttributes_t what;
        const void *value;
        size_t bytes;
    } rows[] = {{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &a, sizeof a},
                {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &b, sizeof b},
                {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->a_scale, sizeof g->a_scale},
                {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &b_scale, sizeof b_scale}};
    bool ok = true;

    for (size_t i = 0; i < SL_COUNT(rows) && ok; i++)
        ok = cublasLtMatmulDescSetAttribute(&c->op, rows[i].what, rows[i].value, rows[i].bytes) ==
             CUBLAS_STATUS_SUCCESS;
    return ok;
}

static sl_status describe(const sl_cuda_gemm *g, lt_call *c, sl_err *err)
{
    cublasOperation_t ta = g->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescInit(&c->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&c->op, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (s == CUBLAS_STATUS_SUCCESS && g->in == SL_F8_E4M3 && !set_scales(g, c))
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->a, data_type(g->in), g->a_transposed ? g->k : g->m,
                                     g->a_transposed ? g->m : g->k, g->lda);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->b, data_type(g->in), g->k, g->n, g->ldb);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&c->d, data_type(g->out), g->m, g->n, g->ldd);
    if (s == CUBLAS_STATUS_SUCCESS &&
        !(set_batch(&c->a, g->batch, g->stride_a) && set_batch(&c->b, g->batch, g->stride_b) &&
          set_batch(&c->d, g->batch, g->stride_d)))
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    return blas_status(s, "matrix product descriptor", err);
}

static bool get_chain(const void *algo, int32_t *split, uint32_t *scheme)
{
    const cublasLtMatmulAlgo_t *a = algo;
    size_t n;

    return cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split, sizeof *split,
                                                &n) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigGetAttribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme,
                                                sizeof *scheme, &n) == CUBLAS_STATUS_SUCCESS;
}

static bool set_chain(void *algo, int32_t split, uint32_t scheme)
{
    return cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                sizeof split) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                sizeof scheme) == CUBLAS_STATUS_SUCCESS;
}

/* The kind of an algorithm's kernel and its instruction shape. */
static bool get_kind(const void *algo, uint32_t *kind)
{
    int32_t id = 0;
    uint16_t inner = 0;
    size_t n;

    if (cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &n) !=
            CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &inner, sizeof inner,
                                             &n) != CUBLAS_STATUS_SUCCESS)
        return false;
    *kind = (uint32_t)id << 16 | inner;
    return true;
}

static const sl_chain_calls chain_calls = {get_chain, set_chain, get_kind};
_Static_assert(CUBLASLT_REDUCTION_SCHEME_NONE == 0, "as kernels/chain.h says");

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
        if (best[i].state == CUBLAS_STATUS_SUCCESS && sl_chain_make(&chain_calls, &best[i].algo) &&
            works(cu, &also[0], &best[i].algo) && works(cu, &also[1], &best[i].algo) &&
            (!like || sl_chain_alike(&chain_calls, like, &best[i].algo))) {
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

/* The entry of a call, found or new; bucket 0: of its weight. */
static lt_entry *entry_of(sl_cuda_lt *lt, const sl_cuda_gemm *g, int32_t n_bucket)
{
    lt_key key;
    uint32_t h, i;

    memset(&key, 0, sizeof key);
    key.m = g->m, key.n_bucket = n_bucket, key.k = g->k, key.batch = g->batch;
    key.lda = g->lda, key.ldb = g->ldb, key.ldd = g->ldd;
    key.in = g->in, key.out = g->out, key.a_transposed = g->a_transposed;
    h = (uint32_t)(g->m * 31 + g->k * 17 + n_bucket * 7 + g->in * 3 + g->out + g->batch * 131) & (CACHE - 1);
    for (i = 0; i < CACHE && lt->cache[(h + i) & (CACHE - 1)].used; i++)
        if (memcmp(&lt->cache[(h + i) & (CACHE - 1)].key, &key, sizeof key) == 0)
            return &lt->cache[(h + i) & (CACHE - 1)];
    lt_entry *e = &lt->cache[(h + (i < CACHE ? i : 0)) & (CACHE - 1)]; /* full: an entry is replaced */
    memset(e, 0, sizeof *e);
    e->key = key;
    return e;
}

static int32_t step_of(const sl_cuda_gemm *g)
{
    return g->in == SL_F8_E4M3 ? 4 : 1; /* fp8 products require multiples of 4 tokens */
}

/*
 * A token's bits must not depend on the number of other tokens. So the algorithm for 16 tokens determines how a weight is
 * summed, whatever number of tokens comes first. It is that of dense rows, because the same weight is also called with
 * others. *none: there is none.
 */
static sl_status weight_algo(sl_cuda *cu, const sl_cuda_gemm *g, cublasLtMatmulAlgo_t *base, bool *none,
                             sl_err *err)
{
    sl_cuda_gemm few = *g;
    lt_call call, others[2];

    if (g->batch == 1)
        few.ldb = g->k, few.ldd = g->m;
    lt_entry *e = entry_of(cu->lt, &few, 0);
    if (!e->used) {
        few.n = BASE_TOKENS;
        SL_TRY(describe(&few, &call, err));
        few.n = step_of(g);
        SL_TRY(describe(&few, &others[0], err));
        few.n = BASE_TOKENS - step_of(g);
        SL_TRY(describe(&few, &others[1], err));
        e->none = !offered(cu, &call, others, NULL, &e->algo);
        e->used = true;
    }
    *none = e->none;
    *base = e->algo;
    return SL_OK;
}

bool sl_cuda_gemm_offered(sl_cuda *cu, const sl_cuda_gemm *g)
{
    cublasLtMatmulAlgo_t base;
    bool none;

    return weight_algo(cu, g, &base, &none, NULL) == SL_OK && !none;
}

/*
 * For more tokens an algorithm of the weight's kind is taken (other tiles, the same order) or, if there is none, the same
 * algorithm. In float32 it is always the same one, because kernels of one kind may still cut k differently.
 */
static sl_status choose(sl_cuda *cu, const sl_cuda_gemm *g, lt_call *c, cublasLtMatmulAlgo_t *algo,
                        sl_err *err)
{
    sl_cuda_gemm near_end = *g;
    cublasLtMatmulAlgo_t base;
    lt_call near[2] = {*c, *c};
    bool none;

    SL_TRY(weight_algo(cu, g, &base, &none, err));
    near_end.n = bucket(g->n) / 2 + step_of(g);
    SL_TRY(describe(&near_end, &near[1], err));
    if (!none && g->n > BASE_TOKENS && g->in != SL_F32 && offered(cu, c, near, &base, algo))
        return SL_OK;
    if (none || !works(cu, c, &base))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: %s: the library has no algorithm that sums %d outputs of %d inputs in one chain for %d "
            "tokens",
            sl_op_name(cu->op), g->m, g->k, g->n);
    *algo = base;
    return SL_OK;
}

sl_status sl_cuda_gemm_run(sl_cuda *cu, const sl_cuda_gemm *g, sl_err *err)
{
    static const float one = 1.0f, zero = 0.0f;
    lt_call c;

    SL_TRY(describe(g, &c, err));
    lt_entry *e = entry_of(cu->lt, g, bucket(g->n));
    if (!e->used) {
        cublasLtMatmulAlgo_t algo;
        SL_TRY(choose(cu, g, &c, &algo, err));
        e = entry_of(cu->lt, g, bucket(g->n)); /* the weight's entry may have taken its place */
        e->algo = algo, e->used = true;
    }
    return blas_status(cublasLtMatmul(cu->lt->handle, &c.op, &one, g->a, &c.a, g->b, &c.b, &zero, g->d, &c.d,
                                      g->d, &c.d, &e->algo, cu->workspace, SL_CUDA_WORKSPACE, cu->stream),
                       sl_op_name(cu->op), err);
}
