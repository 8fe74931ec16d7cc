/* Code that all transports share: registry, options, address text, remote keys on the wire, operation records,
 * ranges. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"
#include "transport/rkey.h"
#include "transport/transport_impl.h"

START_TEST(registry)
{
    ck_assert_ptr_nonnull(sl_transport_find("ucx"));
    ck_assert_ptr_nonnull(sl_transport_find("loopback"));
    ck_assert_ptr_null(sl_transport_find("carrier-pigeon"));
    sl_transport *tp = NULL;
    sl_err err = {0};
    sl_tp_options o = sl_tp_options_default();
    ck_assert_int_eq(sl_transport_create("carrier-pigeon", &o, &tp, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "carrier-pigeon"));
    for (size_t i = 0; sl_transport_at(i); i++) {
        const sl_transport_ops *ops = sl_transport_at(i);
        ck_assert_ptr_eq(sl_transport_find(ops->name), ops);
        ck_assert_uint_gt(strlen(ops->description), 0);
        /* Every slot is filled: the table after the caps is function pointers only. */
        void *const *slot = (void *const *)(const void *)&ops->create;
        void *const *end = (void *const *)(const void *)(ops + 1);
        for (; slot < end; slot++)
            ck_assert_ptr_nonnull(*slot);
    }
    sl_tp_destroy(NULL);
    sl_tp_mem_deregister(NULL);
    sl_tp_rkey_release(NULL);
}
END_TEST

START_TEST(options)
{
    sl_tp_options o = {.tls = "", .net_devices = "eth0", .numa_node = 3}, copy;
    ck_assert_int_eq(sl_tp_options_copy(&copy, &o), SL_OK);
    ck_assert_ptr_null(copy.tls);
    ck_assert_str_eq(copy.net_devices, "eth0");
    ck_assert_ptr_ne(copy.net_devices, o.net_devices);
    ck_assert_str_eq(copy.fabric, "default");
    ck_assert_uint_eq(copy.max_pending, sl_tp_options_default().max_pending);
    ck_assert_int_eq(copy.numa_node, 3);
    sl_tp_options_free(&copy);
}
END_TEST

START_TEST(ucx_refuses_bad_settings)
{
    static const struct {
        const char *tls, *extra;
        sl_status want;
    } cases[] = {{"no_such_transport", NULL, SL_ERR_UNSUPPORTED},
                 {"tcp", "nonsense", SL_ERR_INVALID},
                 {"tcp", "KEEPALIVE_INTERVAL=purple", SL_ERR_INVALID}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_tp_options o = sl_tp_options_default();
        sl_transport *tp = NULL;
        sl_err err = {0};
        o.tls = cases[i].tls;
        o.extra = cases[i].extra;
        ck_assert_int_eq(sl_transport_create("ucx", &o, &tp, &err), cases[i].want);
        ck_assert_ptr_null(tp);
        ck_assert_uint_gt(strlen(err.text), 0);
    }
}
END_TEST

START_TEST(addresses)
{
    static const struct {
        const char *text, *host;
        int port; /* -1: refused */
    } cases[] = {
        {"10.0.0.1:80", "10.0.0.1", 80},
        {":7", "", 7},
        {"host.name:65535", "host.name", 65535},
        {"[::1]:9", "::1", 9},
        {"a:0", "a", 0},
        {"", "", -1},
        {"a", "", -1},
        {"a:", "", -1},
        {"a:65536", "", -1},
        {"a:123456", "", -1},
        {"a:1x", "", -1},
        {"a:-1", "", -1},
        {"::1:9", "", -1},
        {"[::1]9", "", -1},
        {"[::1:9", "", -1},
        {"[]:9", "", -1},
        {"[:9", "", -1},
        {"a]:9", "", -1},
        {"a: 9", "", -1},
        {"toolonghost:1", "", -1},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char host[11] = "unset";
        uint16_t port = 1;
        sl_err err = {0};
        sl_status st = sl_tp_address_parse(cases[i].text, host, sizeof host, &port, &err);
        if (cases[i].port < 0) {
            ck_assert_msg(st == SL_ERR_INVALID, "%s", cases[i].text);
            ck_assert_uint_gt(strlen(err.text), 0);
            ck_assert_str_eq(host, "unset");
            continue;
        }
        ck_assert_msg(st == SL_OK, "%s: %s", cases[i].text, err.text);
        ck_assert_str_eq(host, cases[i].host);
        ck_assert_int_eq(port, cases[i].port);
    }
}
END_TEST

/* Every single-bit error and every truncation of a key is detected. */
START_TEST(rkeys)
{
    uint8_t buf[SL_TP_RKEY_MAX], blob[40];
    size_t n = 0;
    sl_tp_rkey_view v;
    sl_err err = {0};
    memset(blob, 0xa5, sizeof blob);
    ck_assert_int_eq(sl_tp_rkey_wrap(0x1000, 4096, blob, sizeof blob, buf, 20, &n), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_tp_rkey_wrap(0x1000, 4096, blob, sizeof blob, buf, sizeof buf, &n), SL_OK);
    ck_assert_int_eq(sl_tp_rkey_unwrap(buf, n, &v, &err), SL_OK);
    ck_assert_uint_eq(v.base, 0x1000);
    ck_assert_uint_eq(v.bytes, 4096);
    ck_assert_uint_eq(v.blob_bytes, sizeof blob);
    ck_assert(memcmp(v.blob, blob, sizeof blob) == 0);
    for (size_t bit = 0; bit < n * 8; bit++) {
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_eq(sl_tp_rkey_unwrap(buf, n, &v, &err), SL_ERR_CORRUPT);
        buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(sl_tp_rkey_unwrap(buf, cut, &v, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_tp_rkey_wrap(UINT64_MAX - 10, 4096, blob, sizeof blob, buf, sizeof buf, &n), SL_OK);
    ck_assert_int_eq(sl_tp_rkey_unwrap(buf, n, &v, &err), SL_ERR_CORRUPT);
}
END_TEST

START_TEST(ranges)
{
    ck_assert(sl_tp_in_range(100, 10, 100, 10));
    ck_assert(sl_tp_in_range(109, 1, 100, 10));
    ck_assert(!sl_tp_in_range(109, 2, 100, 10));
    ck_assert(!sl_tp_in_range(99, 1, 100, 10));
    ck_assert(!sl_tp_in_range(100, 0, 100, 10));
    ck_assert(!sl_tp_in_range(UINT64_MAX, 2, 100, 10));
    ck_assert(!sl_tp_in_range(100, UINT64_MAX, 100, 10));
}
END_TEST

START_TEST(op_pool)
{
    sl_tp_op_pool pool = {0};
    sl_tp_op *ops[1000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1000; i++) {
            ops[i] = sl_tp_op_get(&pool, i % 3 == 0);
            ck_assert_ptr_nonnull(ops[i]);
            ck_assert_int_eq(ops[i]->header != NULL, i % 3 == 0);
            if (ops[i]->header)
                memset(ops[i]->header, i, SL_TP_OP_HEADER);
            ops[i]->bytes = (size_t)i;
        }
        for (int i = 0; i < 1000; i++)
            ck_assert_uint_eq(ops[i]->bytes, (size_t)i);
        size_t chunks = pool.n_chunks;
        for (int i = 0; i < 1000; i++)
            sl_tp_op_put(&pool, ops[i]);
        ck_assert(round == 0 || chunks == pool.n_chunks); /* repeated use does not enlarge it */
    }
    sl_tp_op_pool_free(&pool);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("transport");
    TCase *t = tcase_create("transport");
    tcase_add_test(t, registry);
    tcase_add_test(t, options);
    tcase_add_test(t, ucx_refuses_bad_settings);
    tcase_add_test(t, addresses);
    tcase_add_test(t, rkeys);
    tcase_add_test(t, ranges);
    tcase_add_test(t, op_pool);
    suite_add_tcase(s, t);
    return run_suite(s);
}
