/*
 * Internals of the CPU backend: the instance, its scratch memory, and the op functions (one file each in
 * kernels/cpu/).
 *
 * The CPU backend is the specification of every op, so simple code is more important than speed; speed comes from
 * threads and from the few loops of vec.c. Every op is complete when run returns.
 *
 * Scratch memory consists of named areas. An area grows to the largest size that was ever requested and is kept, so
 * that nothing is allocated in a steady state. Its contents belong to the op that is running.
 */
#ifndef SL_KERNELS_CPU_CPU_H
#define SL_KERNELS_CPU_CPU_H

#include "kernels/backend_impl.h"
#include "kernels/cpu/pool.h"

typedef enum { SL_SCRATCH_X, SL_SCRATCH_Y, SL_SCRATCH_THREADS, SL_SCRATCH_COUNT } sl_scratch_area;

typedef struct sl_cpu {
    sl_backend base;
    sl_pool *pool;
    int threads;
    struct {
        void *data;
        size_t bytes;
    } scratch[SL_SCRATCH_COUNT];
    size_t thread_stride; /* bytes per worker in SL_SCRATCH_THREADS, of the running op */
} sl_cpu;

/* At least bytes, 64-byte aligned, contents undefined. */
sl_status sl_cpu_scratch(sl_cpu *c, sl_scratch_area area, size_t bytes, void **out, sl_err *err);
/* Makes bytes available to every worker; sl_cpu_own then gives worker w's part. */
sl_status sl_cpu_scratch_threads(sl_cpu *c, size_t bytes, sl_err *err);
static inline void *sl_cpu_own(const sl_cpu *c, int worker)
{
    return (uint8_t *)c->scratch[SL_SCRATCH_THREADS].data + (size_t)worker * c->thread_stride;
}

/* Runs fn over items on the pool; cost is a rough number of nanoseconds per item. A small amount of work stays on
 * the calling thread. */
void sl_cpu_for(sl_cpu *c, int64_t items, int64_t cost, sl_pool_fn fn, void *ctx);

/* Errors that workers find are collected as SL_DEVERR_* bits. */
static inline void sl_cpu_flag(uint32_t *mask, uint32_t bit)
{
    __atomic_fetch_or(mask, bit, __ATOMIC_RELAXED);
}

/* A task of an op: item i of the job, with the worker's scratch. Returns 0, bits of SL_DEVERR_*, or SL_PLACE_NONE: an item
 * without a place (kernels/cpu/place.h), which is no error. */
typedef uint32_t (*sl_cpu_task)(const void *ctx, int64_t i, void *own);

/* What most ops are: the task of each of the items, and an error of the op if one of them found something. items, cost: as of
 * sl_cpu_for(). scratch: bytes of a worker; 0: none, and own is NULL. */
sl_status sl_cpu_run(sl_backend *be, const char *op, size_t scratch, int64_t items, int64_t cost,
                     sl_cpu_task task, const void *ctx, sl_err *err);

/* kernels/cpu/matmul.c: out = x * w^T, the product that linear and moe use. */
typedef struct sl_matmul {
    const float *x;       /* [tokens][ld_x]; e4m3 values when scale_x is set */
    const float *scale_x; /* [tokens][ceil(in/128)] activation scales (then w has 8 or 4 bits), or NULL */
    const sl_weight *w;
    void *out; /* [tokens][ld_out] of out_dtype */
    int64_t ld_x, ld_out;
    int32_t tokens;
    sl_dtype out_dtype;
} sl_matmul;
/* Bytes of scratch per worker for products with up to tokens rows of x. */
size_t sl_matmul_scratch(const sl_weight *w, int32_t tokens);
/* The whole product, on the pool; sl_cpu_scratch_threads must have made room for it. */
void sl_matmul_run(sl_cpu *c, const sl_matmul *m);
/* Quantises x in place (values become e4m3 values), scales to scale[ceil(n/128)]. 1.3 */
void sl_quant_acts(float *x, int32_t n, float *scale);
/* Rotates n / 2 pairs (interleaved (2i, 2i+1), else (i, i + n/2)) by cs[n/2][2]; rounds to act. */
void sl_rope(float *x, int32_t n, const float *cs, bool interleaved, sl_dtype act);
/* In place: butterflies, stride 1 first, then * scale. n is a power of two. */
void sl_hadamard(float *x, int32_t n);
/* The gated activation of n values in float32, in place of g. */
void sl_glu_mul(const sl_glu *glu, float *g, const float *u, int64_t n);

/* The ops, each in a file of this folder. */
#define X(op, name, items, field, text) extern const sl_op_impl sl_cpu_##name;
SL_OPS(X)
#undef X

#endif
