/*
 * Names of clients without a key: their address, or the network of an IPv6 address.
 */
#include <arpa/inet.h>
#include <string.h>

#include "router/front.h"
#include "tests/unit/run_suite.h"

static const char *name_of(const char *address)
{
    static char name[SL_CLIENT_MAX];
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    memset(name, 'x', sizeof name);
    if (inet_pton(AF_INET, address, &v4.sin_addr) == 1)
        sl_front_client((struct sockaddr *)&v4, name);
    else if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1)
        sl_front_client((struct sockaddr *)&v6, name);
    return name;
}

START_TEST(an_ipv4_address_is_its_own_name)
{
    static const char *const addresses[] = {"0.0.0.0",         "1.2.3.4",   "9.10.99.100",
                                            "101.109.110.200", "127.0.0.1", "255.255.255.255"};
    for (size_t i = 0; i < SL_COUNT(addresses); i++)
        ck_assert_str_eq(name_of(addresses[i]), addresses[i]);
}
END_TEST

/* Every value of a byte, in every place, as inet_ntop() writes it. */
START_TEST(every_byte_is_written_as_inet_ntop_does)
{
    for (unsigned i = 0; i < 4 * 256; i++) {
        uint8_t b[4] = {7, 70, 170, 0};
        char want[INET_ADDRSTRLEN];
        b[i / 256] = (uint8_t)i;
        ck_assert_ptr_nonnull(inet_ntop(AF_INET, b, want, sizeof want));
        ck_assert_str_eq(name_of(want), want);
    }
}
END_TEST

START_TEST(an_ipv6_host_is_its_network)
{
    ck_assert_str_eq(name_of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    ck_assert_str_eq(name_of("::ffff:192.0.2.7"), "::ffff:192.0.2.7");
}
END_TEST

START_TEST(no_address_is_no_name)
{
    char name[SL_CLIENT_MAX] = "x";
    sl_front_client(NULL, name);
    ck_assert_str_eq(name, "");
    struct sockaddr local = {.sa_family = AF_UNIX};
    memset(name, 'x', sizeof name);
    sl_front_client(&local, name);
    ck_assert_str_eq(name, "");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("front");
    TCase *t = tcase_create("front");
    tcase_add_test(t, an_ipv4_address_is_its_own_name);
    tcase_add_test(t, every_byte_is_written_as_inet_ntop_does);
    tcase_add_test(t, an_ipv6_host_is_its_network);
    tcase_add_test(t, no_address_is_no_name);
    suite_add_tcase(s, t);
    return run_suite(s);
}
