/* NIC facts: the choice by distance is a pure function and is tested on invented hosts; the listing must work on any
 * host. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/run_suite.h"
#include "transport/nic.h"

static const sl_nic host[] = {
    {.device = "mlx5_0", .port = 1, .active = true, .link = SL_NIC_INFINIBAND, .numa_node = 0, .gbps = 400},
    {.device = "mlx5_1", .port = 1, .active = false, .link = SL_NIC_INFINIBAND, .numa_node = 1},
    {.device = "mlx5_2",
     .port = 1,
     .active = true,
     .link = SL_NIC_ETHERNET,
     .numa_node = 0,
     .netdev = "eth2"},
    {.device = "mlx5_3", .port = 2, .active = true, .link = SL_NIC_ETHERNET, .numa_node = -1},
};

static void expect(size_t n, int node, const char *want)
{
    char text[128];
    ck_assert_int_eq(sl_nic_nearest(host, n, node, text, sizeof text), SL_OK);
    ck_assert_str_eq(text, want);
}

START_TEST(nearest)
{
    expect(4, 0, "mlx5_0:1,mlx5_2:1");
    expect(4, -1, "mlx5_0:1,mlx5_2:1,mlx5_3:2");
    expect(0, 0, "");
    expect(0, -1, "");
    char small[8];
    ck_assert_int_eq(sl_nic_nearest(host, 4, 0, small, sizeof small), SL_ERR_TOO_LARGE);
}
END_TEST

START_TEST(inactive_ports_are_never_chosen)
{
    char text[128];
    ck_assert_int_eq(sl_nic_nearest(host, 4, 1, text, sizeof text), SL_OK);
    ck_assert_ptr_null(strstr(text, "mlx5_1"));
    ck_assert_uint_gt(strlen(text), 0); /* the port of this node is down: ports of other nodes are chosen */
}
END_TEST

START_TEST(describe)
{
    char text[512], small[10];
    sl_nic_describe(host, 4, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "mlx5_0:1(active,infiniband,numa0,400Gb/s)"));
    ck_assert_ptr_nonnull(strstr(text, "mlx5_1:1(down,infiniband,numa1,0Gb/s)"));
    ck_assert_ptr_nonnull(strstr(text, "eth2"));
    sl_nic_describe(host, 4, small, sizeof small); /* truncated, without a write after the end */
    ck_assert_uint_lt(strlen(small), sizeof small);
    sl_nic_describe(NULL, 0, text, sizeof text);
    ck_assert_str_eq(text, "none");
}
END_TEST

START_TEST(this_host)
{
    sl_nic nics[SL_NIC_MAX];
    size_t n = 999;
    char text[4096];
    ck_assert_int_eq(sl_nic_list(nics, SL_NIC_MAX, &n, NULL), SL_OK);
    ck_assert_uint_le(n, SL_NIC_MAX);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_gt(strlen(nics[i].device), 0);
        ck_assert_int_ge(nics[i].port, 1);
    }
    sl_nic_describe(nics, n, text, sizeof text);
    printf("# rdma: %s\n", text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("nic");
    TCase *t = tcase_create("nic");
    tcase_add_test(t, nearest);
    tcase_add_test(t, inactive_ports_are_never_chosen);
    tcase_add_test(t, describe);
    tcase_add_test(t, this_host);
    suite_add_tcase(s, t);
    return run_suite(s);
}
