/*
 * The Redis tier against real redis-server processes: what the conformance suite (test_tier.c) cannot ask of every tier. Servers
 * that are not there, refuse, stop, are killed in the middle of a request, evict, are full, or form a cluster.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "base/log.h"
#include "kvstore/page_record.h"
#include "kvstore/redis_format.h"
#include "kvstore/redis_options.h"
#include "kvstore/tier.h"
#include "tests/unit/kvstore/redis_rig.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { MAX_PAGES = 64, MAX_BYTES = 1 << 20 };

static redis_rig *server; /* evicts; of all tests that need no other */
static sl_tier *tier;
static size_t page_bytes = 4096;
static uint8_t *memory; /* [MAX_PAGES][MAX_BYTES] */
static struct iovec spans[MAX_PAGES];
static sl_tier_page pages[MAX_PAGES];
static sl_key keys[MAX_PAGES];
static char prefix[32];

typedef struct answer {
    int calls;
    sl_status st;
    sl_status results[MAX_PAGES];
    sl_tier_req req;
} answer;

static void on_done(sl_tier_req *req, sl_status st)
{
    answer *a = req->cookie;
    a->calls++;
    a->st = st;
}

static uint8_t byte_of(int page, size_t at)
{
    return (uint8_t)((size_t)page * 131 + at * 7 + (at >> 8));
}

static void fill(int first, int n)
{
    for (int p = first; p < first + n; p++)
        for (size_t b = 0; b < page_bytes; b++)
            memory[(size_t)p * MAX_BYTES + b] = byte_of(p, b);
}

static bool is_right(int page)
{
    for (size_t b = 0; b < page_bytes; b++)
        if (memory[(size_t)page * MAX_BYTES + b] != byte_of(page, b))
            return false;
    return true;
}

static void set(sl_tier_values *v, const char *name, const char *text)
{
    sl_err err = {0};
    ck_assert_msg(sl_options_set(sl_tier_find("redis")->options, v->bytes, name, text, &err) == SL_OK, "%s",
                  err.text);
}

static sl_tier_values at_address(const char *address)
{
    sl_tier_values v;
    sl_options_default(sl_tier_find("redis")->options, v.bytes);
    set(&v, "address", address);
    return v;
}

/* As an operator does: by a file, which the table of options reads. */
static void give_password(sl_tier_values *v, const char *password)
{
    char path[64];
    sl_err err = {0};
    snprintf(path, sizeof path, "build/redis-password-%d", (int)getpid());
    set(v, "user", "");
    set(v, "password_file", password[0] ? path : "");
    if (!password[0])
        return;
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "%s\n", password);
    fclose(f);
    ck_assert_msg(sl_tier_find("redis")->options->finish(v->bytes, &err) == SL_OK, "%s", err.text);
    unlink(path);
}

static sl_tier_values at_server(const redis_rig *r)
{
    return at_address(redis_rig_address(r));
}

static sl_status open_with(const sl_tier_values *r, uint64_t capacity, sl_err *err)
{
    sl_tier_opts o = {.page_bytes = page_bytes,
                      .capacity_bytes = capacity,
                      .options = r,
                      .prefix = prefix,
                      .fingerprint = {1, 2},
                      .format = {3, 4}};
    uint64_t seed = 4;
    if (!memory)
        memory = malloc((size_t)MAX_PAGES * MAX_BYTES);
    ck_assert_ptr_nonnull(memory);
    if (!prefix[0])
        snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    for (int p = 0; p < MAX_PAGES; p++) {
        keys[p] = (sl_key){rnd(&seed), rnd(&seed)};
        spans[p] = (struct iovec){memory + (size_t)p * MAX_BYTES, page_bytes};
        pages[p] = (sl_tier_page){&spans[p], 1};
    }
    return sl_tier_open(sl_tier_find("redis"), &o, &tier, err);
}

static void open_tier(const redis_rig *r, size_t bytes)
{
    sl_err err = {0};
    page_bytes = bytes;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values o = at_server(r);
    ck_assert_msg(open_with(&o, 0, &err) == SL_OK, "%s", err.text);
}

static void submit(answer *a, sl_tier_op op, int first, int n)
{
    *a = (answer){.req = {.op = op, .n = n, .keys = keys + first, .done = on_done, .cookie = a}};
    a->req.pages = pages + first;
    a->req.results = a->results;
    ck_assert_int_eq(sl_tier_submit(tier, &a->req), SL_OK);
}

static void wait_for(answer *a)
{
    while (!a->calls) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 20000), 1);
        sl_tier_poll(tier);
    }
    ck_assert_int_eq(a->calls, 1);
}

static int count_ok(const answer *a)
{
    int n = 0;
    for (int i = 0; i < a->req.n; i++)
        n += a->results[i] == SL_OK;
    return n;
}

static int run(sl_tier_op op, int first, int n)
{
    answer a;
    if (op == SL_TIER_SET)
        fill(first, n);
    if (op == SL_TIER_GET)
        memset(memory + (size_t)first * MAX_BYTES, 0, (size_t)n * MAX_BYTES);
    submit(&a, op, first, n);
    wait_for(&a);
    for (int i = 0; op == SL_TIER_GET && i < n; i++)
        ck_assert(a.results[i] != SL_OK || is_right(first + i));
    return count_ok(&a);
}

static sl_status result_of_get(int page)
{
    answer a;
    submit(&a, SL_TIER_GET, page, 1);
    wait_for(&a);
    return a.results[0];
}

static sl_tier_health health(void)
{
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    return h;
}

static sl_tier_stats stats(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void wait_health(sl_tier_state state)
{
    for (int i = 0; i < 1500 && health().state != state; i++)
        sleep_ms(10);
    ck_assert_msg(health().state == state, "health %d: %s", health().state, health().reason);
}

/* The name of a page on the server. */
static const char *name_of(int page)
{
    static char name[SL_PAGE_NAME_BYTES + 40];
    char key[33];
    sl_tier_opts o = {.fingerprint = {1, 2}, .format = {3, 4}};
    sl_page_name_stem(prefix, &o, ':', name);
    sl_page_name_key(keys[page], key);
    snprintf(name + strlen(name), sizeof key, "%s", key);
    return name;
}

static const char *ask(const redis_rig *r, const char *fmt, int page, size_t at)
{
    char command[256];
    snprintf(command, sizeof command, fmt, name_of(page), at);
    return redis_rig_ask(r, command);
}

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
    set(&r, "required", "false");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
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
        set(&r, "required", "false"); /* wrong credentials are refused all the same */
        err.text[0] = '\0';
        ck_assert_int_eq(open_with(&r, 0, &err), i < 3 ? SL_ERR_DENIED : SL_OK);
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

/* Killed while megabytes are in flight in both directions: every request ends, and what arrived is right. */
START_TEST(killed_in_the_middle)
{
    const char *why;
    redis_rig *victim = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(victim != NULL, "%s", why);
    open_tier(victim, MAX_BYTES);
    int lost = 0;
    for (int round = 0; round < 6; round++) {
        answer reads, writes;
        ck_assert_int_gt(run(SL_TIER_SET, 0, 16), 0);
        memset(memory, 0, (size_t)16 * MAX_BYTES);
        fill(16, 16);
        submit(&reads, SL_TIER_GET, 0, 16);
        submit(&writes, SL_TIER_SET, 16, 16);
        sleep_ms(round);
        redis_rig_stop(victim);
        wait_for(&reads);
        wait_for(&writes);
        for (int i = 0; i < 16; i++) {
            sl_status st = reads.results[i];
            ck_assert(st == SL_ERR_IO || (st == SL_OK && is_right(i)));
            ck_assert(writes.results[i] == SL_OK || writes.results[i] == SL_ERR_IO);
            lost += st != SL_OK;
        }
        redis_rig_again(victim);
        wait_health(SL_TIER_HEALTHY);
    }
    ck_assert_int_gt(lost, 0);
    ck_assert_uint_gt(stats().io_errors, 0);
    sl_tier_close(tier);
    redis_rig_stop(victim);
}
END_TEST

/* A server that hangs costs its time limit, once; requests after that end at once. */
START_TEST(a_server_that_hangs)
{
    const char *why;
    sl_err err = {0};
    redis_rig *frozen = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(frozen != NULL, "%s", why);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(frozen);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 300;
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 4);
    kill(redis_rig_pid(frozen), SIGSTOP);
    uint64_t begin = sl_now_ns();
    ck_assert_int_eq(result_of_get(0), SL_ERR_IO);
    ck_assert_uint_ge(sl_now_ns() - begin, 250000000u);
    ck_assert_int_ne(health().state, SL_TIER_HEALTHY);
    answer a;
    submit(&a, SL_TIER_GET, 0, 4);
    sl_tier_close(tier); /* does not wait for longer than the limit */
    ck_assert_int_eq(a.calls, 1);
    kill(redis_rig_pid(frozen), SIGCONT);
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 4), 4);
    sl_tier_close(tier);
    redis_rig_stop(frozen);
}
END_TEST

/* Own commands are no sign of life: a server that stopped is noticed although requests keep coming, and with them output. */
START_TEST(a_server_that_hangs_under_load)
{
    const char *why;
    sl_err err = {0};
    redis_rig *frozen = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(frozen != NULL, "%s", why);
    enum { REQUESTS = 100 };
    static answer a[REQUESTS];
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(frozen);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 500;
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    kill(redis_rig_pid(frozen), SIGSTOP);
    int sent = 0;
    while (sent < REQUESTS && (sent == 0 || !a[0].calls)) {
        submit(&a[sent++], SL_TIER_EXISTS, 0, 1);
        sleep_ms(50);
        sl_tier_poll(tier);
    }
    ck_assert_msg(a[0].calls == 1, "it was not noticed while %d requests came, one every 50 ms", REQUESTS);
    ck_assert_int_eq(a[0].results[0], SL_ERR_IO);
    for (int i = 0; i < sent; i++)
        wait_for(&a[i]);
    sl_tier_close(tier);
    redis_rig_stop(frozen);
}
END_TEST

/* Reads until this word came. */
static void read_until(int fd, const char *word)
{
    char in[4096];
    size_t n = 0;
    ssize_t got = 1;
    in[0] = '\0';
    while (!strstr(in, word) && got > 0 && n < sizeof in - 1) {
        got = recv(fd, in + n, sizeof in - 1 - n, 0);
        n += got > 0 ? (size_t)got : 0;
        in[n] = '\0';
    }
}

/* A server that never completes the answer to a GET and never stops to send: one byte every few ms. */
static void *trickle(void *listener)
{
    static const char info[] = "$48\r\nused_memory:1\r\nmaxmemory:9\r\nmaxmemory_policy:x\r\n\r\n"
                               "$17\r\ncluster_enabled:0\r\n";
    int fd = accept(*(int *)listener, NULL, NULL);
    read_until(fd, "cluster");
    ssize_t sent = send(fd, info, sizeof info - 1, MSG_NOSIGNAL);
    read_until(fd, "GET");
    sent = sent > 0 ? send(fd, "$4192\r\n", 7, MSG_NOSIGNAL) : 0;
    while (sent > 0) {
        sleep_ms(20);
        sent = send(fd, "x", 1, MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

START_TEST(a_server_that_trickles_does_not_hold_close)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char address[sizeof at.sun_path + 8];
    sl_err err = {0};
    pthread_t thread;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "build/trickle-%d.sock", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", at.sun_path);
    ck_assert(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, trickle, &listener), 0);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "t");
    sl_tier_values r = at_address(address);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 1000;
    ck_assert_msg(open_with(&r, 0, &err) == SL_OK, "%s", err.text);
    answer a;
    submit(&a, SL_TIER_GET, 0, 1);
    sleep_ms(200);
    uint64_t begin = sl_now_ns();
    sl_tier_close(tier); /* the answer would take 4192 times 20 ms */
    ck_assert_uint_lt(sl_now_ns() - begin, 40000000000u);
    ck_assert_int_eq(a.calls, 1);
    ck_assert_int_eq(a.results[0], SL_ERR_IO);
    pthread_join(thread, NULL);
    close(listener);
    unlink(at.sun_path);
}
END_TEST

/* ---- a cluster of three servers ---- */

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

typedef struct cluster {
    redis_rig *nodes[3];
    int ports[3];
    char files[3][64];
} cluster;

/* The server takes commands and knows the slots of all three. */
static bool is_whole(const redis_rig *r)
{
    const char *info = redis_rig_ask(r, "CLUSTER INFO");
    return strstr(info, "cluster_state:ok") && strstr(info, "cluster_slots_assigned:16384");
}

static void start_cluster(cluster *c)
{
    const char *why;
    char text[400];
    int bus[3];
    for (int i = 0; i < 3; i++) {
        c->ports[i] = free_port();
        bus[i] = free_port();
        snprintf(c->files[i], sizeof c->files[i], "build/nodes-%d-%d.conf", (int)getpid(), i);
        snprintf(text, sizeof text,
                 REDIS_RIG_LRU " --port %d --cluster-port %d --bind 127.0.0.1 --cluster-enabled yes "
                               "--cluster-require-full-coverage no --cluster-config-file %s",
                 c->ports[i], bus[i], c->files[i]);
        c->nodes[i] = redis_rig_start(text, &why);
        ck_assert_msg(c->nodes[i] != NULL, "%s", why);
        snprintf(text, sizeof text, "CLUSTER ADDSLOTSRANGE %d %d", i * 5461,
                 i == 2 ? 16383 : i * 5461 + 5460);
        redis_rig_ask(c->nodes[i], text);
        snprintf(text, sizeof text, "CLUSTER SET-CONFIG-EPOCH %d",
                 i + 1); /* else they are equal, and slots can go back */
        redis_rig_ask(c->nodes[i], text);
    }
    for (int i = 1; i < 3; i++) {
        snprintf(text, sizeof text, "CLUSTER MEET 127.0.0.1 %d %d", c->ports[i], bus[i]);
        redis_rig_ask(c->nodes[0], text);
    }
    for (int i = 0, known = 0; known < 3 && i < 1000; i++, sleep_ms(10)) {
        known = 0;
        for (int k = 0; k < 3; k++)
            known += is_whole(c->nodes[k]);
    }
}

static void stop_cluster(cluster *c)
{
    for (int i = 0; i < 3; i++) {
        redis_rig_stop(c->nodes[i]);
        unlink(c->files[i]);
    }
}

static int node_of(int page)
{
    int slot = sl_redis_slot(name_of(page), strlen(name_of(page))), node = slot / 5461;
    return node > 2 ? 2 : node;
}

/* A slot moves from one server to another: first with ASK, then with MOVED. */
static void move_slot(const cluster *c, int page, int to)
{
    int from = node_of(page), slot = sl_redis_slot(name_of(page), strlen(name_of(page)));
    char id[2][64], text[200];
    snprintf(id[0], sizeof id[0], "%s", redis_rig_ask(c->nodes[from], "CLUSTER MYID"));
    snprintf(id[1], sizeof id[1], "%s", redis_rig_ask(c->nodes[to], "CLUSTER MYID"));
    snprintf(text, sizeof text, "CLUSTER SETSLOT %d IMPORTING %s", slot, id[0]);
    redis_rig_ask(c->nodes[to], text);
    snprintf(text, sizeof text, "CLUSTER SETSLOT %d MIGRATING %s", slot, id[1]);
    redis_rig_ask(c->nodes[from], text);
    ck_assert_int_eq(run(SL_TIER_REMOVE, page, 1), 1);
    ck_assert_int_eq(run(SL_TIER_EXISTS, page, 1), 0); /* ASK, and there is nothing */
    ck_assert_int_eq(run(SL_TIER_SET, page, 1), 1);    /* stored by the server that imports */
    ck_assert_int_eq(run(SL_TIER_GET, page, 1), 1);
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "CLUSTER SETSLOT %d NODE %s", slot, id[1]);
        redis_rig_ask(c->nodes[i], text);
    }
    ck_assert_msg(run(SL_TIER_GET, page, 1) == 1, "after MOVED: %s", health().reason);
}

START_TEST(a_cluster_of_servers)
{
    cluster c;
    sl_err err = {0};
    char address[32];
    start_cluster(&c);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    snprintf(address, sizeof address, "localhost:%d", c.ports[0]);
    sl_tier_values r = at_address(address);
    set(&r, "nodes", "127.0.0.1");
    ck_assert_msg(open_with(&r, 0, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(run(SL_TIER_SET, 0, MAX_PAGES), MAX_PAGES);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, MAX_PAGES), MAX_PAGES);
    ck_assert_int_eq(run(SL_TIER_GET, 0, MAX_PAGES), MAX_PAGES);
    int on[3] = {0};
    for (int p = 0; p < MAX_PAGES; p++)
        on[node_of(p)]++;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq((int)strtol(redis_rig_ask(c.nodes[i], "DBSIZE"), NULL, 10), on[i]);
    int moved = 0;
    while (node_of(moved) != 1)
        moved++;
    move_slot(&c, moved, 0);
    redis_rig_stop(c.nodes[2]);
    ck_assert_int_eq(run(SL_TIER_GET, 0, MAX_PAGES), MAX_PAGES - on[2]); /* the others are not harmed */
    wait_health(SL_TIER_DEGRADED);
    ck_assert_int_eq(run(SL_TIER_REMOVE, 0, MAX_PAGES), MAX_PAGES - on[2]);
    sl_tier_close(tier);
    set(&r, "database", "3");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.redis.database"));
    stop_cluster(&c);
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
    tcase_add_test(t, killed_in_the_middle);
    tcase_add_test(t, a_server_that_hangs);
    tcase_add_test(t, a_server_that_hangs_under_load);
    tcase_add_test(t, a_server_that_trickles_does_not_hold_close);
    tcase_add_test(t, a_cluster_of_servers);
    suite_add_tcase(s, t);
    int code = run_suite(s);
    redis_rig_stop(server);
    return code;
}
