/* The seam itself: registry, memory, events, names, and the thread pool of the CPU backend. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/cpu/pool.h"
#include "kernels/scratch.h"
#include "tests/unit/run_suite.h"

START_TEST(registry)
{
    sl_backend *be = NULL;
    sl_err err = {0};

    ck_assert_str_eq(sl_backend_names()[0], "cpu");
    ck_assert_int_eq(sl_backend_create("tpu", NULL, &be, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "tpu"));
    ck_assert_ptr_null(be);
    ck_assert_int_eq(sl_backend_create(NULL, NULL, &be, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 3}, &be, &err), SL_OK);
    ck_assert_str_eq(sl_backend_name(be), "cpu");
    ck_assert_uint_eq(sl_backend_caps(be), SL_BE_UNIFIED);
    ck_assert_ptr_nonnull(strstr(sl_backend_describe(be), "3 threads"));
    sl_backend_destroy(be);
    sl_backend_destroy(NULL);
}
END_TEST

START_TEST(memory)
{
    sl_backend *be = NULL;
    uint64_t free_bytes = 0, total = 0;
    uint8_t *p = NULL, *q = NULL, small[6] = {1, 2, 3, 4, 5, 6}, got[8] = {0};
    sl_err err = {0};

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    ck_assert_int_eq(sl_be_memory(be, &free_bytes, &total, NULL), SL_OK);
    ck_assert(free_bytes > 0 && free_bytes <= total);
    ck_assert_int_eq(sl_be_alloc(be, SL_MEM_DEVICE, 1000, (void **)&p, &err), SL_OK);
    ck_assert_int_eq(sl_be_alloc(be, SL_MEM_HOST, 0, (void **)&q, &err), SL_OK);
    ck_assert_uint_eq((uintptr_t)p % 256, 0);
    ck_assert_int_lt(sl_be_alloc(be, SL_MEM_DEVICE, SIZE_MAX - 5, (void **)&q, &err), 0);
    ck_assert_int_eq(sl_be_fill(be, p, 9, 8, NULL), SL_OK);
    ck_assert_int_eq(sl_be_copy_2d(be, p, 4, small, 3, 3, 2, NULL), SL_OK);
    ck_assert_int_eq(sl_be_copy(be, got, p, 8, NULL), SL_OK);
    ck_assert_mem_eq(got, ((uint8_t[]){1, 2, 3, 9, 4, 5, 6, 9}), 8);
    ck_assert_int_eq(sl_be_copy_2d(be, p, 2, small, 3, 3, 2, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_be_copy(be, NULL, p, 8, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_be_copy(be, NULL, NULL, 0, NULL), SL_OK);
    ck_assert_int_eq(sl_be_fill(be, NULL, 0, 1, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_be_host_register(be, p, 1000, NULL), SL_OK);
    sl_be_host_unregister(be, p);
    sl_be_free(be, SL_MEM_DEVICE, p);
    sl_be_free(be, SL_MEM_HOST, q);
    sl_be_free(be, SL_MEM_HOST, NULL);
    sl_backend_destroy(be);
}
END_TEST

/* The calls of an asynchronous copy as kernels/backend.h lists them, on a backend with one stream. */
START_TEST(work_of_the_side_stream_is_there_after_its_wait)
{
    sl_backend *be = NULL;
    sl_event *forked = NULL, *arrived = NULL;
    sl_err err = {0};
    uint8_t *dev = NULL, *host = NULL;

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    ck_assert_int_eq(sl_be_alloc(be, SL_MEM_DEVICE, 256, (void **)&dev, &err), SL_OK);
    ck_assert_int_eq(sl_be_alloc(be, SL_MEM_HOST, 256, (void **)&host, &err), SL_OK);
    ck_assert_int_eq(sl_event_create(be, &forked, &err), SL_OK);
    ck_assert_int_eq(sl_event_create(be, &arrived, &err), SL_OK);
    ck_assert_int_eq(sl_be_fill(be, dev, 7, 256, &err), SL_OK);
    ck_assert_int_eq(sl_event_record(be, forked, &err), SL_OK);
    sl_be_stream_use(be, SL_STREAM_SIDE);
    ck_assert_int_eq(sl_be_stream_wait(be, forked, &err), SL_OK);
    ck_assert_int_eq(sl_be_copy(be, host, dev, 256, &err), SL_OK);
    ck_assert_int_eq(sl_event_record(be, arrived, &err), SL_OK);
    sl_be_stream_use(be, SL_STREAM_MAIN);
    ck_assert_int_eq(sl_be_stream_wait(be, arrived, &err), SL_OK);
    ck_assert_int_eq(sl_be_sync(be, &err), SL_OK);
    ck_assert_int_eq(host[0], 7);
    ck_assert_int_eq(host[255], 7);
    sl_event_destroy(arrived);
    sl_event_destroy(forked);
    sl_be_free(be, SL_MEM_HOST, host);
    sl_be_free(be, SL_MEM_DEVICE, dev);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(events_and_graphs)
{
    sl_backend *be = NULL;
    sl_event *ev = NULL;
    sl_graph *g = NULL;
    sl_err err = {0};

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    ck_assert_int_eq(sl_event_create(be, &ev, NULL), SL_OK);
    ck_assert_int_eq(sl_event_record(be, ev, NULL), SL_OK);
    ck_assert_int_eq(sl_event_query(ev), SL_OK);
    sl_event_destroy(ev);
    sl_event_destroy(NULL);
    ck_assert_int_eq(sl_be_capture_begin(be, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "graphs"));
    ck_assert_int_eq(sl_be_capture_end(be, &g, &err), SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(sl_be_graph_launch(be, g, &err), SL_ERR_UNSUPPORTED);
    sl_graph_destroy(NULL);
    ck_assert_int_eq(sl_be_sync(be, NULL), SL_OK);
    sl_backend_destroy(be);
}
END_TEST

START_TEST(ops_table)
{
    sl_backend *be = NULL;
    sl_add_params add = {.dim = 4, .act = SL_F32};
    sl_err err = {0};

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    for (int op = 0; op < SL_OP_COUNT; op++) {
        ck_assert_str_ne(sl_op_name((sl_op)op), "unknown");
        ck_assert_uint_ge(sl_op_params_size((sl_op)op), 16);
        ck_assert_ptr_nonnull(sl_backend_cpu.ops[op]->run);
        for (int other = 0; other < op; other++)
            ck_assert_str_ne(sl_op_name((sl_op)op), sl_op_name((sl_op)other));
        ck_assert_int_eq(sl_be_run(be, (sl_op)op, NULL, &err), SL_ERR_INVALID);
    }
    ck_assert_str_eq(sl_op_name(SL_OP_COUNT), "collective"); /* of profiles */
    ck_assert_str_eq(sl_op_name((sl_op)(SL_OP_COUNT + 1)), "unknown");
    ck_assert_uint_eq(sl_op_params_size((sl_op)-1), 0);
    ck_assert_int_eq(sl_be_run(be, SL_OP_COUNT, &add, &err), SL_ERR_INVALID);
    /* Without tokens there is nothing to do, and pointers are not checked; supports checks shapes only. */
    ck_assert_int_eq(sl_be_run(be, SL_OP_ADD, &add, &err), SL_OK);
    add.tokens = 1;
    ck_assert_int_eq(sl_be_supports(be, SL_OP_ADD, &add, &err), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_ADD, &add, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "add: x is NULL");
    add.dim = 0;
    ck_assert_int_eq(sl_be_supports(be, SL_OP_ADD, &add, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "add: dim must be at least 1");
    sl_backend_destroy(be);
}
END_TEST

START_TEST(device_errors)
{
    sl_err err = {0};

    ck_assert_int_eq(sl_deverr(0, "x", &err), SL_OK);
    ck_assert_int_eq(sl_deverr(SL_DEVERR_MULTI_TOKEN | SL_DEVERR_MISS_CAPACITY, "resolve", &err),
                     SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(sl_deverr(SL_DEVERR_MISS_CAPACITY, "resolve", &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(strncmp(err.text, "resolve: ", 9), 0);
    ck_assert_int_eq(sl_deverr(1u << 30, "x", &err), SL_ERR_INTERNAL);
}
END_TEST

/* ---- pool ---- */

typedef struct counts {
    uint8_t hits[5000];
    int workers[8];
} counts;

static void count_items(void *ctx, int64_t first, int64_t count, int worker)
{
    counts *c = ctx;

    for (int64_t i = first; i < first + count; i++)
        c->hits[i]++;
    c->workers[worker]++;
}

START_TEST(pool_covers_every_item_once)
{
    sl_pool *pool = NULL;
    static counts c;

    ck_assert_int_eq(sl_pool_create(_i, &pool, NULL), SL_OK);
    ck_assert_int_eq(sl_pool_threads(pool), _i);
    for (int64_t items = 0; items <= 5000; items = items * 2 + 1)
        for (int64_t grain = 1; grain <= 1000; grain *= 10) {
            int parts = 0;

            memset(&c, 0, sizeof(c));
            sl_pool_run(pool, items, grain, count_items, &c);
            for (int64_t i = 0; i < 5000; i++)
                ck_assert_uint_eq(c.hits[i], i < items);
            for (int w = 0; w < 8; w++) {
                ck_assert_int_le(c.workers[w], 1);
                parts += c.workers[w];
            }
            ck_assert_int_le(parts, (int)((items + grain - 1) / grain));
        }
    for (int i = 0; i < 2000; i++) /* many short rounds: a lost wake-up would hang */
        sl_pool_run(pool, _i, 1, count_items, &c);
    sl_pool_destroy(pool);
}
END_TEST

/* ---- a second architecture ---- */

static sl_gpu of_double;

static const sl_gpu *gpu_of_double(const sl_backend *be)
{
    (void)be;
    return &of_double;
}

/* The CPU's backend with the GPU that a test names: what it says of its bits, its paths and its scratch is that of the GPU. */
START_TEST(a_second_architecture)
{
    static const int capabilities[] = {80, 90, 100, 120};
    const sl_sparse_attn_params attn = {.lora = 512, .rope = 64, .format = SL_ROW_MLA_BF16};
    sl_backend *be = NULL;
    sl_backend_desc made;

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    ck_assert_uint_eq(sl_backend_bits(be), 0);
    const sl_backend_desc *real = be->desc;
    made = *real, made.gpu = gpu_of_double;
    be->desc = &made;
    for (size_t i = 0; i < SL_COUNT(capabilities); i++) {
        const int cc = capabilities[i];
        of_double = sl_gpu_of(cc, 132, 227 << 10);
        ck_assert_uint_eq(sl_backend_bits(be), (uint32_t)cc);
        ck_assert_int_eq(sl_be_path(be, SL_OP_SPARSE_ATTN, &attn)->plain, cc != 90);
        ck_assert_int_eq(sl_op_scratch(sl_be_gpu(be), SL_OP_SPARSE_ATTN, &attn) > 0, cc == 90);
    }
    be->desc = real;
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels/backend");
    TCase *tc = tcase_create("backend");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, registry);
    tcase_add_test(tc, memory);
    tcase_add_test(tc, events_and_graphs);
    tcase_add_test(tc, work_of_the_side_stream_is_there_after_its_wait);
    tcase_add_test(tc, ops_table);
    tcase_add_test(tc, a_second_architecture);
    tcase_add_test(tc, device_errors);
    tcase_add_loop_test(tc, pool_covers_every_item_once, 1, 6);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
