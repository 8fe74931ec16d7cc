/*
 * The Redis tier against real redis-server processes: what the conformance suite (test_tier.c) cannot ask of every tier. Who
 * shares pages, what is found to be damaged, and servers that are not there, refuse, evict, or are full. test_redis_stops.c has
 * servers that stop, and clusters.
 */
#include "tests/unit/kvstore/redis_pages.h"

START_TEST(clusters_of_one_model_share_and_others_never_meet)
{
    sl_tier *first, *others[2];
    sl_err err = {0};
    open_tier(server, 4096);
    first = tier;
    ck_assert_int_eq(run(SL_TIER_SET, 0, 8), 8);
    sl_tier_values r = at_server(server);
    sl_tier_opts o = {.page_bytes = page_bytes,
                      .options = &r,
                      .prefix = prefix,

                      .fingerprint = {1, 2},
                      .format = {3, 5}};
    ck_assert_int_eq(sl_tier_open(sl_tier_find("redis"), &o, &others[0], &err), SL_OK);
    o.format = (sl_key){3, 4}, o.fingerprint = (sl_key){9, 2};
    ck_assert_int_eq(sl_tier_open(sl_tier_find("redis"), &o, &others[1], &err), SL_OK);
    for (int i = 0; i < 2; i++) {
        tier = others[i];
        ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 8), 0);
        ck_assert_int_eq(run(SL_TIER_GET, 0, 8), 0);
        sl_tier_close(tier);
    }
    open_tier(server, 4096);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 8), 8);
    sl_tier_close(tier);
    sl_tier_close(first);
}
END_TEST

START_TEST(every_changed_byte_is_found)
{
    open_tier(server, 512);
    for (size_t at = 0; at < SL_PAGE_RECORD_BYTES + 512; at += at < SL_PAGE_RECORD_BYTES ? 1 : 37) {
        ck_assert_int_eq(run(SL_TIER_SET, 0, 1), 1);
        /* The byte is replaced by two others: one of them is a change. */
        sl_status seen[2];
        for (int i = 0; i < 2; i++) {
            ask(server, i ? "SETRANGE %s %zu b" : "SETRANGE %s %zu a", 0, at);
            seen[i] = result_of_get(0);
            if (seen[i] == SL_OK)
                ck_assert(is_right(0));
            else
                break;
        }
        ck_assert(seen[0] == SL_ERR_CORRUPT || seen[1] == SL_ERR_CORRUPT);
        ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 1), 0); /* it is not offered again */
    }
    ck_assert_int_eq(run(SL_TIER_SET, 0, 2), 2);
    ask(server, "SET %s short", 0, 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 1), 0);
    ck_assert_int_eq(result_of_get(0), SL_ERR_CORRUPT);
    ask(server, "DEL %s", 1, 0);
    ask(server, "LPUSH %s something", 1, 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 1, 1), 0);
    ck_assert_int_eq(result_of_get(1), SL_ERR_NOT_FOUND);
    ask(server, "DEL %s", 1, 0);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 2), 2); /* both are stored anew */
    ck_assert_int_eq(run(SL_TIER_GET, 0, 2), 2);
    sl_tier_close(tier);
}
END_TEST

START_TEST(time_to_live)
{
    sl_err err = {0};
    page_bytes = 64;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(server);
    set(&r, "ttl_s", "100");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 1), 1);
    long ttl = strtol(ask(server, "PTTL %s", 0, 0), NULL, 10);
    ck_assert(ttl > 90000 && ttl <= 100000);
    answer b;
    b = (answer){.req = {.op = SL_TIER_EXISTS, .n = 1, .keys = keys, .lease_ms = 500000, .done = on_done}};
    b.req.results = b.results, b.req.cookie = &b;
    ck_assert_int_eq(sl_tier_submit(tier, &b.req), SL_OK);
    wait_for(&b);
    ttl = strtol(ask(server, "PTTL %s", 0, 0), NULL, 10);
    ck_assert(ttl > 490000 && ttl <= 500000);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 1), 1);
    ttl = strtol(ask(server, "PTTL %s", 0, 0), NULL, 10);
    ck_assert(ttl > 90000 && ttl <= 100000);
    sl_tier_close(tier);
}
END_TEST

START_TEST(a_server_that_evicts_costs_only_hits)
{
    const char *why;
    redis_rig *small = redis_rig_start("--maxmemory 6mb --maxmemory-policy allkeys-lru", &why);
    ck_assert_msg(small != NULL, "%s", why);
    open_tier(small, 256 << 10);
    int stored = 0, found = 0;
    for (int round = 0; round < 4; round++)
        for (int p = 0; p < MAX_PAGES; p += 8) {
            stored += run(SL_TIER_SET, p, 8);
            found += run(SL_TIER_GET, p, 8);
        }
    ck_assert_int_gt(stored, 128);
    ck_assert_int_gt(found, 64);
    ck_assert_int_lt(run(SL_TIER_GET, 0, MAX_PAGES), 24); /* 6 MiB hold fewer than 24 of these */
    sl_tier_close(tier);
    redis_rig_stop(small);
}
END_TEST

START_TEST(a_full_server_refuses_pages)
{
    const char *why;
    sl_err err = {0};
    redis_rig *full = redis_rig_start("--maxmemory 3mb --maxmemory-policy noeviction", &why);
    ck_assert_msg(full != NULL, "%s", why);
    open_tier(full, 256 << 10);
    answer a;
    fill(0, 32);
    submit(&a, SL_TIER_SET, 0, 32);
    wait_for(&a);
    int stored = count_ok(&a);
    ck_assert(stored > 0 && stored < 16);
    for (int i = 0; i < 32; i++)
        ck_assert(a.results[i] == SL_OK || a.results[i] == SL_ERR_EXHAUSTED);
    ck_assert_uint_eq(stats().not_stored_room, 32 - (uint64_t)stored);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 32), stored);
    wait_health(SL_TIER_DEGRADED);
    ck_assert_ptr_nonnull(strstr(health().reason, "OOM"));
    sl_tier_close(tier);
    redis_rig_stop(full);

    /* Without any limit: refused; with a limit of ours: pages are stored up to it. */
    redis_rig *endless = redis_rig_start("", &why);
    ck_assert_msg(endless != NULL, "%s", why);
    sl_tier_values r = at_server(endless);
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.redis.bytes"));
    ck_assert_ptr_nonnull(strstr(err.text, "maxmemory"));
    ck_assert_int_eq(open_with(&r, 6 << 20, &err), SL_OK);
    stored = run(SL_TIER_SET, 0, 48);
    ck_assert(stored > 4 && stored < 24);
    wait_health(SL_TIER_DEGRADED);
    ck_assert_ptr_nonnull(strstr(health().reason, "kvstore.redis.bytes"));
    ck_assert_int_eq(run(SL_TIER_GET, 0, 48), stored);
    sl_tier_close(tier);
    redis_rig_stop(endless);
}
END_TEST

START_TEST(a_server_that_is_not_there)
{
    sl_err err = {0};
    const char *why;
    redis_rig *late = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(late != NULL, "%s", why);
    redis_rig_stop(late);
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(late);
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_IO);
    ck_assert_ptr_nonnull(strstr(err.text, redis_rig_address(late)));
    ck_assert_ptr_nonnull(strstr(err.text, "No such file"));
    optional = true;
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    optional = false;
    ck_assert_int_eq(health().state, SL_TIER_FAILED);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 0);
    ck_assert_int_eq(result_of_get(0), SL_ERR_IO);
    ck_assert_uint_eq(stats().not_stored_io, 4);
    redis_rig_again(late);
    wait_health(SL_TIER_HEALTHY);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 4);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 4), 4);
    redis_rig_stop(late);
    wait_health(SL_TIER_FAILED);
    ck_assert_str_ne(health().reason, "");
    redis_rig_again(late);
    wait_health(SL_TIER_HEALTHY);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 4), 0); /* it is empty: misses, not errors */
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 4);
    sl_tier_close(tier);
    redis_rig_stop(late);
}
END_TEST

START_TEST(credentials)
{
    sl_err err = {0};
    const char *why;
    redis_rig *locked = redis_rig_start(REDIS_RIG_LRU " --requirepass horse-battery", &why);
    ck_assert_msg(locked != NULL, "%s", why);
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(locked);
    for (int i = 0; i < 4; i++) {
        static const char *const passwords[] = {"", "wrong-horse", "horse-battery", "horse-battery"};
        static const char *const users[] = {"", "", "nobody", "default"};
        give_password(&r, passwords[i]);
        set(&r, "user", users[i]);
        err.text[0] = '\0';
        optional = true; /* wrong credentials are refused all the same */
        ck_assert_int_eq(open_with(&r, 0, &err), i < 3 ? SL_ERR_DENIED : SL_OK);
        optional = false;
        ck_assert(i == 3 || strstr(err.text, "kvstore.redis.password_file"));
        ck_assert_ptr_null(strstr(err.text, "horse"));
    }
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 4);
    sl_tier_close(tier);
    set(&r, "database", "99");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.redis.database"));
    redis_rig_stop(locked);
}
END_TEST

START_TEST(options_that_cannot_be)
{
    static const char *const addresses[] = {
        "", "localhost", "localhost:0", "localhost:70000", "redis://localhost:1", "unix:", ":6379", "a:b"};
    sl_err err = {0};
    snprintf(prefix, sizeof prefix, "r");
    sl_tier_values r = at_address("");
    for (size_t i = 0; i < SL_COUNT(addresses); i++) {
        set(&r, "address", addresses[i]);
        ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(err.text, "want"));
    }
    set(&r, "address", redis_rig_address(server));
    snprintf(prefix, sizeof prefix, "a b");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "prefix"));
    snprintf(prefix, sizeof prefix, "abcdefghijklmnopqrstuvwxyz");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_INVALID);
}
END_TEST

int main(void)
{
    const char *why;
    server = redis_rig_start(REDIS_RIG_LRU, &why);
    if (!server) {
        printf("SKIP redis: %s\n", why);
        return 77;
    }
    Suite *s = suite_create("redis");
    TCase *t = tcase_create("redis");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, clusters_of_one_model_share_and_others_never_meet);
    tcase_add_test(t, every_changed_byte_is_found);
    tcase_add_test(t, time_to_live);
    tcase_add_test(t, a_server_that_evicts_costs_only_hits);
    tcase_add_test(t, a_full_server_refuses_pages);
    tcase_add_test(t, a_server_that_is_not_there);
    tcase_add_test(t, credentials);
    tcase_add_test(t, options_that_cannot_be);
    suite_add_tcase(s, t);
    int code = run_suite(s);
    redis_rig_stop(server);
    return code;
}
