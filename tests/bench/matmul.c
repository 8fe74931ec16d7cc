/*
 * Matrix products of the CPU backend and of OpenBLAS, alternately; one thread each, float32.
 *
 *   bench_matmul [ROUNDS]
 *
 * The CPU backend promises that the bits of a token do not depend on the other tokens of the batch. Three methods:
 *
 *   | sluice     | sl_be_run(SL_OP_LINEAR): canonical dot products, which cannot depend on the batch                |
 *   | blas_fixed | OpenBLAS, 8 tokens per call, padded: all calls have one shape, so rounding is always the same   |
 *   | blas_free  | OpenBLAS, all tokens in one call: the usual way, without that promise                            |
 *
 * Prints CSV: the median time of each, the ratios to sluice (above 1: sluice is faster), and whether token 0 of the
 * batch of M has the same bits as alone ("same"), for sluice and blas_free; for blas_fixed this is checked as well. No
 * other program of the project is linked with OpenBLAS.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"

void openblas_set_num_threads(int n);
char *openblas_get_corename(void);

enum { FIXED = 8, MAX_M = 64, MAX_ROUNDS = 99 };

typedef struct shape {
    const char *name;
    int out, in;
} shape;

/* Shapes of V3.2 where one product takes less than a second; shapes of the tiny checkpoint. */
static const shape shapes[] = {
    {"v32_q_a", 1536, 7168},
    {"v32_kv_a", 576, 7168},
    {"v32_index_wk", 128, 7168},
    {"v32_expert_up", 2048, 7168},
    {"v32_expert_down", 7168, 2048},
    {"v32_q_b_eighth", 3072, 1536},
    {"tiny_q_a", 48, 64},
    {"tiny_o", 64, 128},
    {"tiny_mlp", 128, 64},
    {"tiny_head", 1280, 64},
};

typedef struct bench {
    sl_backend *be;
    const float *w, *x;
    float *out; /* [MAX_M][out] */
    const shape *s;
    int m;
} bench;

/* Processor time of this thread: the time that other processes take is not counted. */
static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static float *random_floats(size_t n)
{
    float *v = NULL;
    if (posix_memalign((void **)&v, 64, n * sizeof *v))
        exit(1);
    for (size_t i = 0; i < n; i++)
        v[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    return v;
}

static void run_sluice(const bench *b)
{
    sl_err err = {0};
    sl_linear_params p = {.x = b->x,
                          .w = {.data = b->w, .out = b->s->out, .in = b->s->in, .dtype = SL_F32},
                          .out = b->out,
                          .tokens = b->m,
                          .ld_x = b->s->in,
                          .ld_out = b->s->out,
                          .act = SL_F32,
                          .out_dtype = SL_F32};
    if (sl_be_run(b->be, SL_OP_LINEAR, &p, &err) != SL_OK) {
        fprintf(stderr, "bench_matmul: %s\n", err.text);
        exit(1);
    }
}

static void blas(const bench *b, int first, int m)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, b->s->out, b->s->in, 1,
                b->x + (size_t)first * (size_t)b->s->in, b->s->in, b->w, b->s->in, 0,
                b->out + (size_t)first * (size_t)b->s->out, b->s->out);
}

static void run_fixed(const bench *b) /* x and out have room for whole groups of 8 */
{
    for (int t = 0; t < b->m; t += FIXED)
        blas(b, t, FIXED);
}

static void run_free(const bench *b)
{
    blas(b, 0, b->m);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One round: as many calls as take about 2 ms; microseconds per call. */
static double round_us(const bench *b, void (*fn)(const bench *), int calls)
{
    double t0 = now_us();
    for (int i = 0; i < calls; i++)
        fn(b);
    return (now_us() - t0) / calls;
}

/* Whether token 0 has the same bits alone and in a batch of m. */
static bool same_bits(bench b, void (*fn)(const bench *))
{
    size_t bytes = (size_t)b.s->out * sizeof(float);
    float *alone = malloc(bytes);
    int m = b.m;
    if (!alone)
        exit(1);
    b.m = 1;
    fn(&b);
    memcpy(alone, b.out, bytes);
    b.m = m;
    fn(&b);
    bool same = memcmp(alone, b.out, bytes) == 0;
    free(alone);
    return same;
}

static void measure(bench b, int rounds)
{
    static void (*const fn[3])(const bench *) = {run_sluice, run_fixed, run_free};
    double t[3][MAX_ROUNDS], med[3];
    int calls[3];
    for (int k = 0; k < 3; k++) {
        fn[k](&b);
        double us = round_us(&b, fn[k], 1);
        calls[k] = us > 2000 ? 1 : (int)(2000 / (us + 0.01)) + 1;
    }
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < 3; k++)
            t[k][r] = round_us(&b, fn[k], calls[k]);
    for (int k = 0; k < 3; k++) {
        qsort(t[k], (size_t)rounds, sizeof(double), by_value);
        med[k] = t[k][rounds / 2];
    }
    printf("%s,%d,%d,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%s,%s,%s\n", b.s->name, b.m, b.s->out, b.s->in, med[0],
           med[1], med[2], med[1] / med[0], med[2] / med[0], same_bits(b, run_sluice) ? "yes" : "no",
           same_bits(b, run_fixed) ? "yes" : "no", same_bits(b, run_free) ? "yes" : "no");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int ms[] = {1, 8, 64};
    sl_backend_opts opts = {.threads = 1};
    bench b = {0};
    sl_err err = {0};
    int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 9;
    if (rounds < 1 || rounds > MAX_ROUNDS || sl_backend_create("cpu", &opts, &b.be, &err) != SL_OK) {
        fprintf(stderr, "usage: bench_matmul [ROUNDS 1..%d] %s\n", MAX_ROUNDS, err.text);
        return 2;
    }
    openblas_set_num_threads(1);
    printf("# threads=1 rounds=%d backend=\"%s\" openblas_core=%s\n", rounds, sl_backend_describe(b.be),
           openblas_get_corename());
    printf("shape,tokens,out,in,sluice_us,blas_fixed_us,blas_free_us,fixed_to_sluice,free_to_sluice,"
           "sluice_same,fixed_same,free_same\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        b.s = &shapes[i];
        float *w = random_floats((size_t)b.s->out * (size_t)b.s->in),
              *x = random_floats((size_t)MAX_M * (size_t)b.s->in);
        float *out = random_floats((size_t)MAX_M * (size_t)b.s->out);
        b.w = w, b.x = x, b.out = out;
        for (size_t k = 0; k < sizeof ms / sizeof *ms; k++) {
            b.m = ms[k];
            measure(b, rounds);
        }
        free(w), free(x), free(out);
    }
    sl_backend_destroy(b.be);
    return 0;
}
