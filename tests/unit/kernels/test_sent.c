/*
 * Arrays that are kept on a device (kernels/sent.h), with a device that is memory of this process and fails when it is told to: an
 * allocation that finds no room, a copy that breaks off in the middle, and making that refuses. Whatever failed before, SL_OK means that
 * the device has what the host has, and memory that was handed out stays.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sent.h"
#include "tests/unit/run_suite.h"

enum { ARRAYS = 5, BYTES = 96, MADE = 192, STEPS = 20000 };

typedef struct device {
    bool fail_alloc, fail_send, fail_make;
    int live, allocs, sends;
} device;

static sl_status take(void *ctx, size_t bytes, void **out, sl_err *err)
{
    device *d = ctx;

    if (d->fail_alloc)
        return sl_fail(err, SL_ERR_DEVICE_MEMORY, "no room");
    *out = malloc(bytes);
    ck_assert_ptr_nonnull(*out);
    memset(*out, 0xee, bytes);
    d->live++, d->allocs++;
    return SL_OK;
}

static void give(void *ctx, void *p)
{
    ((device *)ctx)->live--;
    free(p);
}

/* A copy that fails has written a part. */
static sl_status put(void *ctx, void *to, const void *host, size_t bytes, sl_err *err)
{
    device *d = ctx;

    memcpy(to, host, d->fail_send ? bytes / 2 : bytes);
    d->sends++;
    return d->fail_send ? sl_fail(err, SL_ERR_DEVICE, "the copy broke off") : SL_OK;
}

/* What is made: the bytes of the array, twice, each plus one. */
static sl_status make(void *ctx, const void *host, void *made, size_t bytes, sl_err *err)
{
    if (((device *)ctx)->fail_make)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "nothing can be made");
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)made)[i] = (uint8_t)(((const uint8_t *)host)[i % BYTES] + 1);
    return SL_OK;
}

static sl_sent *open_sent(device *d)
{
    sl_sent *t = sl_sent_create(&(sl_sent_device){.ctx = d, .alloc = take, .free = give, .send = put});

    ck_assert_ptr_nonnull(t);
    return t;
}

static bool is_made_of(const uint8_t *made, const uint8_t *host)
{
    for (int i = 0; i < MADE; i++)
        if (made[i] != (uint8_t)(host[i % BYTES] + 1))
            return false;
    return true;
}

START_TEST(a_copy_that_failed_is_made_again)
{
    device d = {0};
    sl_sent *t = open_sent(&d);
    uint8_t host[BYTES] = {1, 2, 3};
    const void *at;
    sl_err err;

    d.fail_send = true;
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_ERR_DEVICE);
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, true, &at, &err), SL_ERR_UNSUPPORTED);
    d.fail_send = false;
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_OK);
    ck_assert_mem_eq(at, host, BYTES);
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, true, &at, &err), SL_OK);
    ck_assert_int_eq(d.sends, 2);
    sl_sent_destroy(t);
    ck_assert_int_eq(d.live, 0);
}
END_TEST

/* The contents before the failed copy are those of the host again: what was sent in part is not taken for them. */
START_TEST(a_change_that_failed_and_was_undone_is_sent_again)
{
    device d = {0};
    sl_sent *t = open_sent(&d);
    uint8_t host[BYTES] = {7}, zero[BYTES] = {0};
    const void *at;
    sl_err err;

    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_OK);
    d.fail_send = true;
    memset(host, 9, BYTES);
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_ERR_DEVICE);
    d.fail_send = false;
    memset(host, 0, BYTES);
    host[0] = 7;
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_OK);
    ck_assert_mem_eq(at, host, BYTES);
    memcpy(host, zero, BYTES); /* nor are bytes of zero */
    d.fail_send = true;
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_ERR_DEVICE);
    d.fail_send = false;
    ck_assert_int_eq(sl_sent_array(t, host, BYTES, false, &at, &err), SL_OK);
    ck_assert_mem_eq(at, host, BYTES);
    sl_sent_destroy(t);
}
END_TEST

/* Arrays that change, calls of both kinds, captures, and failures, in a random order. */
START_TEST(the_device_has_what_the_host_has_whatever_failed)
{
    static uint8_t host[ARRAYS][BYTES];
    const void *arrays[ARRAYS] = {0}, *made[ARRAYS] = {0}; /* what was handed out: it stays */
    device d = {0};
    sl_sent *t = open_sent(&d);
    uint64_t seed = 0x5e47 + (uint64_t)_i;
    int ok = 0, failed = 0;

    for (int step = 0; step < STEPS; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t r = (uint32_t)(seed >> 32);
        int a = (int)(r % ARRAYS);
        bool wants_made = r >> 8 & 1, frozen = (r >> 9 & 7) == 0;
        const void *at = NULL;
        sl_err err;
        if ((r >> 12 & 3) == 0)
            host[a][r >> 16 & 63] ^= (uint8_t)(1 + (r >> 22 & 7));
        d.fail_alloc = (r >> 25 & 7) == 0;
        d.fail_send = (r >> 28 & 3) == 0;
        d.fail_make = (r >> 30 & 1) && (r >> 14 & 1);
        sl_status st = wants_made ? sl_sent_made(t, host[a], BYTES, MADE, make, &d, frozen, &at, &err)
                                  : sl_sent_array(t, host[a], BYTES, frozen, &at, &err);
        const void **first = wants_made ? &made[a] : &arrays[a];
        if (st != SL_OK) {
            failed++;
            continue;
        }
        ok++;
        ck_assert(wants_made ? is_made_of(at, host[a]) : memcmp(at, host[a], BYTES) == 0);
        ck_assert(!*first || *first == at);
        *first = at;
    }
    ck_assert_int_gt(ok, STEPS / 8);
    ck_assert_int_gt(failed, STEPS / 8);
    ck_assert_int_le(d.allocs, 2 * ARRAYS);
    sl_sent_destroy(t);
    ck_assert_int_eq(d.live, 0);
}
END_TEST

/* Arrays of other lengths at one address are arrays of their own, and many of them stay where they are. */
START_TEST(many_arrays_are_told_apart)
{
    enum { N = 300 };
    static uint8_t host[N + 1];
    const void *at[N + 1];
    device d = {0};
    sl_sent *t = open_sent(&d);
    sl_err err;

    for (size_t i = 1; i <= N; i++) {
        host[i - 1] = (uint8_t)i;
        ck_assert_int_eq(sl_sent_array(t, host, i, false, &at[i], &err), SL_OK);
    }
    for (size_t i = 1; i <= N; i++) {
        const void *again;
        ck_assert_int_eq(sl_sent_array(t, host, i, true, &again, &err), SL_OK);
        ck_assert_ptr_eq(again, at[i]);
        ck_assert_mem_eq(again, host, i);
    }
    sl_sent_destroy(t);
    ck_assert_int_eq(d.live, 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sent");
    TCase *tc = tcase_create("sent");

    tcase_add_test(tc, a_copy_that_failed_is_made_again);
    tcase_add_test(tc, a_change_that_failed_and_was_undone_is_sent_again);
    tcase_add_loop_test(tc, the_device_has_what_the_host_has_whatever_failed, 0, 8);
    tcase_add_test(tc, many_arrays_are_told_apart);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
