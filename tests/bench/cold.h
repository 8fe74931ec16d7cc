/*
 * Shared by the files of tests/bench/cold. A group is an op with its shapes; a case builds the inputs of enough
 * calls that no call finds its inputs in a cache, and passes them to cold_time().
 *
 * All functions below do nothing once c->st is not SL_OK, so that a case needs no check after each line.
 */
#ifndef SL_TESTS_BENCH_COLD_H
#define SL_TESTS_BENCH_COLD_H

#include "kernels/backend.h"

enum { COLD_CALLS = 160, COLD_ALLOCS = 4096, COLD_KEEP = 1 << 17 };
/* Values in place of an op. BEGIN: what follows runs on the side stream, after everything before it. END: the side
 * stream's part ends. WAIT: the main stream waits for that part. */
enum { COLD_SIDE_BEGIN = SL_OP_COUNT, COLD_SIDE_END, COLD_SIDE_WAIT };

typedef struct cold_options {
    const char *backend, *only, *commit;
    bool tiny;
    int32_t device, reps, arena_gib;
} cold_options;

typedef struct cold_call {
    int op;
    const void *params;
} cold_call;

typedef struct cold cold;
struct cold {
    cold_options o;
    sl_backend *be;
    sl_event *forked, *arrived; /* start and end of the work on the side stream */
    sl_status st;
    sl_err err;
    void *flush;
    size_t flush_bytes;
    void *allocs[COLD_ALLOCS];
    int32_t n_allocs;
    _Alignas(16) uint8_t keep[COLD_KEEP]; /* parameters of the calls of a case */
    size_t kept;
    cold_call calls[COLD_CALLS];
    int32_t n_calls;
    /* Before each replay, outside the measured time: updates the inputs of the first `rounds` rounds. */
    void (*prepare)(cold *c, int32_t rounds);
    void *state;
    uint64_t seed;
    uint8_t *arena; /* host memory, kept from its first use to the end */
    size_t arena_bytes;
};

/* The figures with which a case is compared, in microseconds; 0 where there is none. */
typedef struct cold_shape {
    int32_t a[5];
    double peer, goal;
} cold_shape;

typedef struct cold_group {
    const char *op;
    /* setup: makes the inputs that all shapes share; may be NULL. Those inputs are freed at the group's end, the inputs
     * of a case at the case's end. */
    void (*setup)(cold *c);
    void (*run)(cold *c, const cold_shape *s);
    const cold_shape *shapes;
    int32_t n;
} cold_group;

extern const cold_group cold_select_groups[], cold_rows_groups[], cold_dense_groups[],
    cold_gqa_select_groups[], cold_prompt_groups[], cold_sample_groups[]; /* end with op NULL */

/* Device memory; contents undefined. */
void *cold_mem(cold *c, size_t bytes);
/* Device memory with a copy of `bytes` bytes from host. */
void *cold_put(cold *c, const void *host, size_t bytes);
/* Device memory of n random values, mean +- spread. */
void *cold_random(cold *c, int64_t n, sl_dtype dtype, float mean, float spread);
/* Overwrites `width` bytes of each of n rows, `pitch` apart, with the `rows` rows at host, repeated. */
void cold_stripe(cold *c, uint8_t *to, int64_t pitch, int64_t n, const void *host, int64_t width,
                 int64_t rows);
/* malloc, freed by the caller; NULL only if c->st is an error. */
void *cold_host(cold *c, size_t bytes);
/* Host memory that the device can read; all pages are resident. */
uint8_t *cold_arena(cold *c, size_t bytes);
/* A random number below n; the sequence does not repeat within a run. */
uint32_t cold_below(cold *c, uint32_t n);
/* T tokens over S sequences at the ends of contexts of len, with host tables of ld pages each (pages may be
 * NULL). The struct is copied where calls can point to it. */
const sl_seq_tables *cold_tables(cold *c, int32_t tokens, int32_t seqs, int32_t len, int32_t ld,
                                 const int32_t *pages);
/* Copies parameters to memory that is valid until the end of the case. */
void *cold_keep(cold *c, const void *params, size_t bytes);
/* Adds one call to the case. */
void cold_add(cold *c, int op, const void *params, size_t bytes);

/* The number of rounds (calls with separate inputs) of `bytes` each whose inputs together exceed the L2. */
int32_t cold_rounds(const cold *c, double bytes, int32_t most);
/* Microseconds of one of `rounds` rounds of calls; negative when it could not be measured. */
double cold_time(cold *c, int32_t rounds);
/* Prints one line of the table. The bytes from device memory and over the link, and the ops, of a round give the
 * limit. */
void cold_report(cold *c, const cold_shape *s, const char *op, const char *shape, double us, double bytes,
                 double ops, double ops_per_us, double link_bytes);

/* Of cold_gqa.c: attention of models with KV heads, which is two of the groups of cold_rows.c. */
enum { COLD_GQA_SHAPES = 20, COLD_GQA_FORMS = 14 };
extern const cold_shape cold_gqa_shapes[COLD_GQA_SHAPES], cold_gqa_form_shapes[COLD_GQA_FORMS];
void cold_gqa_setup(cold *c);
void cold_gqa_attention(cold *c, const cold_shape *s);
void cold_gqa_forms(cold *c, const cold_shape *s);

/* Ceilings of one H200 as measured, per microsecond. */
#define COLD_HBM 4.58e6
#define COLD_BF16 790e6
#define COLD_FP8 1404e6
#define COLD_LINK 55.4e3

#endif
