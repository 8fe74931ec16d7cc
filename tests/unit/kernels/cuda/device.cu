/*
 * What the CUDA backend promises of failures and limits, and can only show on a GPU: messages with the kernel, the op and the cause;
 * more blocks than a dimension of a grid has; blocks that cannot run at once; scratch memory that is planned.
 *
 *     test_kernels_device        exit code 0: all passed, 1: something failed, 77: there is no GPU
 */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/launch.cuh"

extern "C" {
#include "kernels/scratch.h"
}

#include <stdio.h>
#include <string.h>

static int passed, failed;
static sl_backend *be;
static sl_err err;

static void check(bool ok, const char *what)
{
    printf("%s %s%s%s\n", ok ? "ok    " : "FAILED", what, ok || !err.text[0] ? "" : ": ", ok ? "" : err.text);
    ++*(ok ? &passed : &failed);
}

/* The call has failed with this status, and its message has all of these words. */
static void fails(sl_status st, sl_status want, const char *a, const char *b, const char *c, const char *what)
{
    check(st == want && strstr(err.text, a) && strstr(err.text, b) && strstr(err.text, c), what);
    err.text[0] = '\0';
}

/* ---- kernels of this test ---- */

__global__ static void count_kernel(uint32_t *seen, int first)
{
    if (threadIdx.x == 0)
        atomicAdd(&seen[first + blockIdx.y], 1);
}

/* Every block waits until all are there; the clock ends it where they are not. */
__global__ static void meet_kernel(uint32_t *arrived, uint32_t *together)
{
    extern __shared__ uint8_t room[];
    const long long end = clock64() + 2000000000ll;

    room[0] = 0;
    if (threadIdx.x != 0)
        return;
    atomicAdd(arrived, 1);
    while (*(volatile uint32_t *)arrived < gridDim.x && clock64() < end)
        ;
    if (*(volatile uint32_t *)arrived >= gridDim.x)
        atomicAdd(together, 1);
}

/* ---- errors ---- */

/* A launch that the driver refuses, and two that are refused before. */
static void errors_name_kernel_op_and_cause(sl_cuda *cu, uint32_t *words)
{
    const size_t much = cu->gpu.smem + 1;

    cu->op = SL_OP_TOPK;
    fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1), 4096}), &err, words, 0), SL_ERR_DEVICE, "topk",
          "count_kernel", cudaGetErrorString(cudaErrorInvalidValue),
          "a launch that CUDA refuses: op, kernel, CUDA's text");
    cu->op = SL_OP_MOE;
    fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1, 65536), 32}), &err, words, 0), SL_ERR_UNSUPPORTED,
          "moe", "count_kernel", "65535", "too many blocks in y: op, kernel, limit");
    fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1, 1, 70000), 32}), &err, words, 0), SL_ERR_UNSUPPORTED,
          "moe", "count_kernel", "65535", "too many blocks in z: op, kernel, limit");
    for (int64_t blocks : {(int64_t)INT32_MAX + 1, ((int64_t)1 << 32) + 5, (int64_t)1 << 40}) {
        fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(sl_blocks(blocks)), 32}), &err, words, 0),
              SL_ERR_UNSUPPORTED, "moe", "count_kernel", "2147483647",
              "too many blocks in x: op, kernel, limit");
        fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(sl_ceil_div(blocks * 256, 256)), 32}), &err, words,
                        0),
              SL_ERR_UNSUPPORTED, "moe", "count_kernel", "2147483647",
              "the same, divided by the items of a block");
    }
    fails(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1), 32, much}), &err, words, 0), SL_ERR_UNSUPPORTED,
          "moe", "count_kernel", "shared memory", "too much shared memory: op, kernel");
    check(SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1), 32}), &err, words, 0) == SL_OK &&
              sl_be_sync(be, &err) == SL_OK,
          "the next launch works");
}

/* What a kernel finds in its data is reported with the op that was enqueued, not with the one that came last. */
static void errors_of_data_name_their_op(void)
{
    const int32_t rows[2] = {-7, 0};
    float x[8] = {};
    void *m = NULL, *out = NULL;

    check(sl_be_alloc(be, SL_MEM_DEVICE, 4096, &m, &err) == SL_OK &&
              sl_be_alloc(be, SL_MEM_DEVICE, 4096, &out, &err) == SL_OK,
          "memory");
    sl_be_copy(be, m, x, sizeof x, &err);
    sl_be_copy(be, (uint8_t *)m + 1024, rows, sizeof rows, &err);
    sl_pick_params p = {};
    p.x = m, p.out = out, p.rows = (int32_t *)((uint8_t *)m + 1024), p.n = 2, p.dim = 4, p.act = SL_F32;
    sl_add_params a = {};
    a.x = out, a.y = m, a.tokens = 1, a.dim = 4, a.act = SL_F32;
    check(sl_be_run(be, SL_OP_PICK, &p, &err) == SL_OK && sl_be_run(be, SL_OP_ADD, &a, &err) == SL_OK,
          "an op with a wrong id, and another one");
    fails(sl_be_sync(be, &err), SL_ERR_INVALID, "pick", "id", "table",
          "the sync names the op with the wrong id");
    check(sl_be_sync(be, &err) == SL_OK, "the next sync has no error");
    sl_be_free(be, SL_MEM_DEVICE, m);
    sl_be_free(be, SL_MEM_DEVICE, out);
}

/* ---- grids ---- */

static void grids_of_any_size(sl_cuda *cu)
{
    enum { MOST = 3 * 65535 + 17 };
    const int sizes[] = {1, 65535, 65536, 2 * 65535, MOST};
    uint32_t *seen, *host = new uint32_t[MOST];

    check(cudaMalloc(&seen, MOST * 4) == cudaSuccess, "memory");
    for (int n : sizes) {
        bool once = true;
        cudaMemset(seen, 0, MOST * 4);
        const sl_status st = sl_for_slices(n, SL_GRID_YZ, [&](int first, int count) {
            return SL_LAUNCH(cu, count_kernel, (sl_launch{dim3(1, count), 32}), &err, seen, first);
        });
        sl_be_sync(be, &err);
        cudaMemcpy(host, seen, MOST * 4, cudaMemcpyDeviceToHost);
        for (int i = 0; i < MOST; i++)
            once = once && host[i] == (i < n ? 1u : 0u);
        char what[80];
        snprintf(what, sizeof what, "%d blocks in y: each once, and no other", n);
        check(st == SL_OK && once, what);
    }
    cudaFree(seen);
    delete[] host;
}

/* More hot slots than a grid has blocks in y: the last one is emptied too. */
static void resets_of_many_slots(void)
{
    enum { SLOTS = 2 * 65535 + 3 };
    void *m[4] = {};
    int32_t last = 0;
    sl_hot_reset_params p = {};
    bool ok = true;

    for (void *&v : m)
        ok = ok && sl_be_alloc(be, SL_MEM_DEVICE, 16 * SLOTS, &v, &err) == SL_OK &&
             sl_be_fill(be, v, 0x55, 16 * SLOTS, &err) == SL_OK;
    p.slot = -1, p.hot_slots = SLOTS, p.hot_rows = 1, p.hot.max_tokens = 1;
    p.hot.slot_of = (uint16_t *)m[0], p.hot.token_of = (int32_t *)m[1];
    p.hot.stamp = (uint32_t *)m[2], p.hot.counters = (uint32_t *)m[3];
    p.hot.cursor = (int32_t *)m[0] + 2 * SLOTS;
    ok = ok && sl_be_run(be, SL_OP_HOT_RESET, &p, &err) == SL_OK &&
         sl_be_copy(be, &last, p.hot.token_of + SLOTS - 1, 4, &err) == SL_OK && sl_be_sync(be, &err) == SL_OK;
    check(ok && last == -1, "131,073 hot slots are emptied");
    for (void *v : m)
        sl_be_free(be, SL_MEM_DEVICE, v);
}

/* ---- blocks that wait for each other ---- */

static void blocks_at_once(sl_cuda *cu, uint32_t *words)
{
    const size_t most = cu->gpu.smem, half = most / 2 - 2048;
    const int sms = cu->gpu.sms;
    const void *kernel = (const void *)meet_kernel;
    uint32_t got[2] = {};

    cu->op = SL_OP_COUNT;
    check(sl_cuda_resident(cu, "meet_kernel", kernel, 256, most, sms, &err) == SL_OK,
          "a block of all shared memory for each multiprocessor");
    fails(sl_cuda_resident(cu, "meet_kernel", kernel, 256, most, sms + 1, &err), SL_ERR_UNSUPPORTED,
          "collective", "meet_kernel", "at once", "one more is refused: op, kernel");
    check(sl_cuda_resident(cu, "meet_kernel", kernel, 256, half, 2 * sms, &err) == SL_OK,
          "two of half that much");
    fails(sl_cuda_resident(cu, "meet_kernel", kernel, 256, half, 2 * sms + 1, &err), SL_ERR_UNSUPPORTED,
          "collective", "meet_kernel", "at once", "and no third");
    fails(sl_cuda_resident(cu, "meet_kernel", kernel, 4096, 0, 1, &err), SL_ERR_UNSUPPORTED, "collective",
          "meet_kernel", "at once", "blocks with more threads than there are");
    /* and what is said is so */
    cudaMemset(words, 0, 8);
    check(SL_LAUNCH(cu, meet_kernel, (sl_launch{dim3(sms), 256, most}), &err, words, words + 1) == SL_OK &&
              sl_be_sync(be, &err) == SL_OK,
          "they run");
    cudaMemcpy(got, words, 8, cudaMemcpyDeviceToHost);
    check(got[1] == (uint32_t)sms, "and meet");
    cudaMemset(words, 0, 8);
    check(SL_LAUNCH(cu, meet_kernel, (sl_launch{dim3(sms + 1), 256, most}), &err, words, words + 1) ==
                  SL_OK &&
              sl_be_sync(be, &err) == SL_OK,
          "those that were refused run");
    cudaMemcpy(got, words, 8, cudaMemcpyDeviceToHost);
    check(got[1] < (uint32_t)sms + 1, "and do not all meet");
}

/* ---- scratch ---- */

enum { IN = 512, OUT = 256, TOKENS = 333 };

/* A product that quantises its inputs into scratch memory. */
static sl_linear_params product(uint8_t *at, int tokens)
{
    sl_linear_params p = {};

    p.w.data = at, p.w.scale = (float *)(at + (1 << 20)), p.w.out = OUT, p.w.in = IN, p.w.dtype = SL_F8_E4M3;
    p.x = at + (2 << 20), p.out = at + (4 << 20);
    p.tokens = tokens, p.ld_x = IN, p.ld_out = OUT, p.fp8_acts = true, p.act = p.out_dtype = SL_BF16;
    return p;
}

static size_t used(void)
{
    uint64_t free_bytes = 0, total = 0;

    sl_be_memory(be, &free_bytes, &total, &err);
    return (size_t)(total - free_bytes);
}

static void planned_scratch(sl_cuda *cu)
{
    uint8_t *at = NULL;
    sl_graph *graph = NULL;

    check(sl_be_alloc(be, SL_MEM_DEVICE, 8 << 20, (void **)&at, &err) == SL_OK &&
              sl_be_fill(be, at, 0, 8 << 20, &err) == SL_OK,
          "memory");
    const sl_linear_params few = product(at, 3), all = product(at, TOKENS), more = product(at, TOKENS + 4);
    const size_t plan = sl_op_scratch(&cu->gpu, SL_OP_LINEAR, &all);
    char asked[40], planned[40];
    snprintf(asked, sizeof asked, "%zu bytes", sl_op_scratch(&cu->gpu, SL_OP_LINEAR, &more));
    snprintf(planned, sizeof planned, "%zu", plan);
    check(sl_be_run(be, SL_OP_LINEAR, &few, &err) == SL_OK && sl_be_sync(be, &err) == SL_OK,
          "without a plan it grows");
    check(sl_be_capture_begin(be, &err) == SL_OK, "capture");
    fails(sl_be_run(be, SL_OP_LINEAR, &all, &err), SL_ERR_UNSUPPORTED, "linear", "capture", "grow",
          "but not inside a capture: op, bytes");
    sl_be_capture_end(be, &graph, NULL);
    sl_graph_destroy(graph), graph = NULL;
    err.text[0] = '\0';
    check(sl_be_scratch(be, plan, &err) == SL_OK && cu->scratch_bytes == plan,
          "exactly what is planned is there");
    const void *before = cu->scratch;
    const size_t memory = used();
    for (int n = 1; n <= TOKENS; n += n < 300 ? 7 : 1) {
        const sl_linear_params p = product(at, n);
        if (sl_be_run(be, SL_OP_LINEAR, &p, &err) != SL_OK)
            check(false, "a product within the plan");
    }
    check(sl_be_sync(be, &err) == SL_OK && cu->scratch == before && cu->scratch_bytes == plan &&
              used() == memory,
          "ops within the plan take nothing more");
    fails(sl_be_run(be, SL_OP_LINEAR, &more, &err), SL_ERR_UNSUPPORTED, "linear", asked, planned,
          "an op outside the plan is refused: op, bytes asked, bytes planned");
    check(sl_be_capture_begin(be, &err) == SL_OK, "capture");
    fails(sl_be_run(be, SL_OP_LINEAR, &more, &err), SL_ERR_UNSUPPORTED, "linear", asked, planned,
          "inside a capture too");
    check(sl_be_run(be, SL_OP_LINEAR, &all, &err) == SL_OK && sl_be_capture_end(be, &graph, &err) == SL_OK &&
              sl_be_graph_launch(be, graph, &err) == SL_OK && sl_be_sync(be, &err) == SL_OK &&
              used() <= memory + (64 << 20),
          "and the capture continues without it");
    sl_graph_destroy(graph);
    cu->stated = plan - 1;
    void *mem;
    fails(sl_cuda_scratch(cu, plan, &mem, &err), SL_ERR_INTERNAL, "linear", "states", planned,
          "an op that takes more than it states is an error of the backend");
    sl_be_free(be, SL_MEM_DEVICE, at);
}

extern "C" int sl_device_test(void)
{
    uint32_t *words;

    if (sl_backend_create("cuda", NULL, &be, &err) != SL_OK) {
        printf("%s\n", err.text);
        return 77;
    }
    sl_cuda *cu = sl_cuda_of(be);
    check(cudaMalloc(&words, 4096) == cudaSuccess, "memory");
    errors_name_kernel_op_and_cause(cu, words);
    errors_of_data_name_their_op();
    grids_of_any_size(cu);
    resets_of_many_slots();
    blocks_at_once(cu, words);
    planned_scratch(cu);
    cudaFree(words);
    sl_backend_destroy(be);
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
