/* The thread that creates and pins the host store: what it gives, and who learns what when it or something else fails. */
#include <check.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/run_suite.h"
#include "worker/pinning.h"

static const uint64_t MIB = 1u << 20;
static int pinned, entered; /* written by the thread, read after it has ended */
static bool refuse;

static sl_status enter(sl_backend *be, sl_err *err)
{
    (void)be;
    (void)err;
    entered++;
    return SL_OK;
}

static sl_status pin(sl_backend *be, void *ptr, size_t bytes, sl_err *err)
{
    (void)be;
    if (refuse)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pinning %zu bytes was refused", bytes);
    memset(ptr, 1, bytes);
    pinned++;
    return SL_OK;
}

static void unpin(sl_backend *be, void *ptr)
{
    (void)be;
    (void)ptr;
    pinned--;
}

/* A device to which only the functions of pinning belong. */
static sl_pinning *start(uint64_t bytes)
{
    static sl_backend_desc desc;
    static sl_backend be = {.desc = &desc};
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_F32, SL_INDEX_PLAIN, 3, NULL);
    sl_arena_opts o = {.bytes = bytes, .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    sl_pinning *p;
    desc.use_thread = enter, desc.host_register = pin, desc.host_unregister = unpin;
    pinned = entered = 0;
    ck_assert_int_eq(sl_pinning_start(&g, &o, &be, &p, NULL), SL_OK);
    return p;
}

START_TEST(a_store)
{
    sl_arena *a = NULL;
    double seconds = -1;
    refuse = false;
    ck_assert_int_eq(sl_pinning_take(start(4 * MIB), &a, &seconds, NULL), SL_OK);
    ck_assert(a && sl_arena_pages(a) > 0 && sl_arena_base(a)[0] == 1 && seconds >= 0);
    ck_assert_int_eq(pinned, 1);
    ck_assert_int_eq(entered, 1); /* the thread may use the device */
    sl_arena_destroy(a);
}
END_TEST

/* The store fails, whatever was loaded at the same time: its cause is what take() says. */
START_TEST(it_fails)
{
    sl_err err = {0};
    sl_arena *a = NULL;
    double seconds;
    refuse = true;
    ck_assert_int_eq(sl_pinning_take(start(4 * MIB), &a, &seconds, &err), SL_ERR_NO_MEMORY);
    ck_assert_msg(!a && strstr(err.text, "bytes was refused"), "%s", err.text);
    ck_assert_int_eq(sl_pinning_take(start(60 * MIB * MIB), &a, &seconds, &err), SL_ERR_NO_MEMORY);
    ck_assert_msg(!a && strstr(err.text, "lower kvstore.bytes"), "%s", err.text);
    ck_assert_int_eq(sl_pinning_take(start(1), &a, &seconds, &err), SL_ERR_INVALID);
    ck_assert_msg(!a && strstr(err.text, "kvstore.bytes 1 holds 0 pages"), "%s", err.text);
}
END_TEST

/* Something else fails: drop() gives back what it has made, and does not hide the other cause by its own. */
START_TEST(something_else_fails)
{
    refuse = false;
    sl_pinning_drop(start(4 * MIB));
    ck_assert_int_eq(entered, 1);
    ck_assert_int_eq(pinned, 0);
    refuse = true;
    sl_pinning_drop(start(4 * MIB));
    ck_assert_int_eq(pinned, 0);
    sl_pinning_drop(NULL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pinning");
    TCase *t = tcase_create("pinning");
    tcase_add_test(t, a_store);
    tcase_add_test(t, it_fails);
    tcase_add_test(t, something_else_fails);
    suite_add_tcase(s, t);
    return run_suite(s);
}
