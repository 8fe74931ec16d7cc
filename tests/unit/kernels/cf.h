/*
 * Conformance harness: a case is a plain function that builds inputs, runs ops through sl_be_run and names
 * the outputs to compare. It is run several times on different implementations and its outputs are compared:
 *
 *   reference  the scalar restatement of the specification in double (ref.h); ordinary memory
 *   twin       the CPU backend, one thread
 *   tested     any backend; all its memory comes from sl_be_alloc and is reached by sl_be_copy only
 *
 * A case may also be run on a slice of its tokens (cf_run.first, .n): inputs are functions of the global
 * token number, so a token's outputs must be the same bits as in the full run. Every buffer is followed by a
 * guard that must not change, and output buffers start as 0xff, which is NaN in every format.
 */
#ifndef SL_TESTS_KERNELS_CF_H
#define SL_TESTS_KERNELS_CF_H

#include "kernels/backend.h"

#define CF_ARGS 16

typedef enum {
    CF_BYTES, /* equal bytes */
    CF_F32,   /* |a - b| <= tol * largest magnitude of the row, NaN only where the other has NaN */
    CF_BF16,  /* the same for bf16, tol plus one rounding step of the element */
    /* e4m3: neighbouring codes are allowed for at most 1 % of the values (against the reference: equal bytes) */
    CF_FP8,
    CF_ROW_FP8, /* one latent row: e4m3, scales, bf16; see CF_FP8. tol is the lora width */
} cf_kind;

/* How activations of a type are compared, and their bytes. */
static inline cf_kind cf_kind_of(sl_dtype act)
{
    return act == SL_BF16 ? CF_BF16 : CF_F32;
}

static inline size_t cf_size(sl_dtype act)
{
    return sl_dtype_size(act);
}

typedef enum {
    CF_FIX_ALL = 0,
    CF_SPLIT = 1,
    CF_PERF = 2,
    CF_PERF_ONLY = 4,
    CF_LARGE = 8, /* for kernels that a GPU uses from that size on; left out on the CPU without --large */
    CF_FEW = 16   /* with CF_SPLIT: only the first slice, the last slice, and halves */
} cf_flags;

typedef struct cf_run cf_run;
typedef struct cf_case {
    sl_op op;
    const char *name;
    void (*fn)(cf_run *r, const int64_t *a);
    int64_t a[CF_ARGS]; /* a[0] is T */
    unsigned flags;
} cf_case;

/* The outputs of one run of a case: rows of bytes, per named output. */
typedef struct cf_output {
    const char *what;
    cf_kind kind;
    double tol;
    bool byte_exact; /* this side is the reference: quantised values must match to the byte */
    bool per_token;  /* row i belongs to token first + i */
    int64_t rows;
    size_t row_bytes;
    uint8_t *data; /* rows * row_bytes */
    /* Where the output is, until it is collected. */
    const uint8_t *at;
    size_t pitch;
    size_t *offsets; /* instead of pitch */
} cf_output;

typedef struct cf_buffer {
    void *ptr;
    sl_mem_kind kind;
    size_t bytes;
} cf_buffer;

#define CF_MAX_BUFFERS 64
#define CF_MAX_OUTPUTS 16

struct cf_run {
    sl_backend *be;     /* NULL: the reference */
    sl_backend *memory; /* where buffers come from: be, or any unified backend for the reference */
    int64_t first, n;   /* tokens of this run */
    bool perf;
    sl_status st; /* first failure; everything after it is skipped */
    sl_err err;
    cf_buffer buffers[CF_MAX_BUFFERS];
    int n_buffers;
    cf_output outputs[CF_MAX_OUTPUTS];
    int n_outputs;
    /* Results of a perf run. */
    double ns;                     /* per call of the timed op */
    double bytes, ops, link_bytes; /* declared by cf_work */
    sl_dtype ops_dtype;
};

/* Device memory holding a copy of bytes at host (NULL: 0xff). */
void *cf_mem(cf_run *r, const void *host, size_t bytes);
/* The same in SL_MEM_HOST: an arena. */
void *cf_host_mem(cf_run *r, const void *host, size_t bytes);
/* Runs the op; in a perf run repeats and times it. */
void cf_op(cf_run *r, sl_op op, const void *params);
/* advance is called before repetition i > 0 of a perf run to change params. */
void cf_op_steps(cf_run *r, sl_op op, void *params, void (*advance)(void *params, int i));
/* Work of the op for its limit: device bytes that must move, operations of dtype, bytes over the host link.
 */
void cf_work(cf_run *r, double bytes, double ops, sl_dtype ops_dtype, double link_bytes);
/* Overwrites device memory between ops (stream order). */
void cf_put(cf_run *r, void *dst, const void *host, size_t bytes);
/* Reads device memory now (synchronises). */
void cf_get(cf_run *r, void *host, const void *src, size_t bytes);

/* Outputs to compare: rows of row_bytes at a pitch. cf_out_tokens: one row per token of the run. */
void cf_out(cf_run *r, const char *what, const void *ptr, int64_t rows, size_t row_bytes, size_t pitch,
            cf_kind kind, double tol);
void cf_out_tokens(cf_run *r, const char *what, const void *ptr, size_t row_bytes, cf_kind kind, double tol);
/* One row per token at its own offset (copied). */
void cf_out_at(cf_run *r, const char *what, const void *ptr, const size_t *offsets, size_t row_bytes,
               cf_kind kind, double tol);
/* A failure of the case's own checks. */
void cf_fail(cf_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* This implementation must refuse the op with this status and name `field` in the error. */
void cf_refused(cf_run *r, sl_op op, const void *params, sl_status st, const char *field);

/* Deterministic numbers: uniform in [-1, 1), and below n, from a stream name and an index. */
uint64_t cf_hash(uint32_t stream, int64_t i);
float cf_uniform(uint32_t stream, int64_t i);
/* rows x cols (row r = global row first + r) with row stride ld, in dtype, times scale, as device memory. */
void *cf_matrix(cf_run *r, uint32_t stream, int64_t first, int64_t rows, int64_t cols, int64_t ld,
                sl_dtype dtype, float scale);
/* A weight with values of about 1/sqrt(in); F8 gets scales that are not powers of two. */
/* form: a dtype, or CF_FORM() of a weight whose multipliers belong to groups of inputs. */
sl_weight cf_weight(cf_run *r, uint32_t stream, int32_t out, int32_t in, int64_t form);
#define CF_FORM(dtype, scale_type, group) ((dtype) | (scale_type) << 4 | (group) << 8)
static inline sl_dtype cf_form_dtype(int64_t form)
{
    return (sl_dtype)(form & 15);
}
/* Bytes of the rows of a weight and of the multipliers of their groups. */
int64_t cf_form_bytes(int64_t form, int64_t rows, int64_t in);
/* [max_pos][rope/2][2]. */
float *cf_cos_sin(cf_run *r, int32_t max_pos, int32_t rope);
/* Host buffers that live as long as the run. */
void *cf_temp(cf_run *r, size_t bytes);

/* ---- running and comparing ---- */

/* Runs c on tokens first .. first + n - 1 and collects outputs. be NULL: the reference. */
void cf_execute(cf_run *r, const cf_case *c, sl_backend *be, sl_backend *memory, int64_t first, int64_t n,
                bool perf);
void cf_release(cf_run *r);
/* Compares the per-token outputs of got (a slice) or all outputs (same tokens); exact: bytes whatever the
 * kind. */
bool cf_compare(const cf_run *want, const cf_run *got, bool exact, char *why, size_t cap);

/* All cases, in tables by file. */
typedef struct cf_table {
    const cf_case *cases;
    size_t count;
} cf_table;
extern const cf_table cf_dense_cases, cf_streams_cases, cf_state_cases, cf_expert_cases, cf_index_cases,
    cf_cache_cases, cf_gather_cases, cf_attn_cases, cf_gqa_cases, cf_bounds_cases, cf_labels_cases,
    cf_block_cases, cf_window_cases, cf_entries_cases, cf_cluster_cases, cf_retained_cases, cf_sample_cases,
    cf_prompt_cases, cf_refusal_cases;

/* Checks one case on a backend: against twin (NULL: against the reference), slices against the whole. Returns
 * SL_OK, SL_ERR_UNSUPPORTED or a failure, with the reason in why. */
sl_status cf_check(const cf_case *c, sl_backend *tested, sl_backend *twin, sl_backend *memory, char *why,
                   size_t cap);

#endif
