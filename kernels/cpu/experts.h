/*
 * The products of routed experts, which SL_OP_MOE and SL_OP_EP_EXPERTS share: rows grouped by expert, each expert one
 * gate, up and down product over its rows. Where rows come from and where results go is the caller's.
 */
#ifndef SL_KERNELS_CPU_EXPERTS_H
#define SL_KERNELS_CPU_EXPERTS_H

#include "kernels/cpu/cpu.h"

typedef struct sl_cpu_experts {
    const sl_weight *gate, *up, *down; /* [experts] */
    const int32_t *expert_ids;         /* [rows][top_k]; -1: none */
    int32_t rows, top_k, experts, hidden, inter;
    sl_dtype act;
    bool fp8_acts;
    sl_glu glu;
    /* Row `row` as float32. With `scale` of not NULL it is wanted as e4m3 values and their scales, else plain. */
    void (*load)(const void *ctx, int32_t row, float *x, float *scale);
    /* Takes the result of choice `slot` = row * top_k + choice: [hidden], rounded to act. Experts come in ascending
     * order. */
    void (*take)(void *ctx, int32_t slot, const float *d);
    void *ctx;
} sl_cpu_experts;

/* Bytes of work memory for p->rows, 64-byte aligned. */
size_t sl_cpu_experts_bytes(const sl_cpu_experts *p);
/* Fails with SL_ERR_INVALID if an id is out of range or a row names an expert twice. `op`: its name, for messages. */
sl_status sl_cpu_experts_run(sl_cpu *c, const sl_cpu_experts *p, void *work, const char *op, sl_err *err);

#endif
