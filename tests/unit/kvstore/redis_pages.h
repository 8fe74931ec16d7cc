/*
 * Pages in a real redis-server (redis_rig.h) through the tier, for the suites of the Redis tier: one tier at a time, pages whose
 * bytes follow from their number, requests that are waited for.
 */
#ifndef SL_TEST_REDIS_PAGES_H
#define SL_TEST_REDIS_PAGES_H

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

static inline void on_done(sl_tier_req *req, sl_status st)
{
    answer *a = req->cookie;
    a->calls++;
    a->st = st;
}

static inline uint8_t byte_of(int page, size_t at)
{
    return (uint8_t)((size_t)page * 131 + at * 7 + (at >> 8));
}

static inline void fill(int first, int n)
{
    for (int p = first; p < first + n; p++)
        for (size_t b = 0; b < page_bytes; b++)
            memory[(size_t)p * MAX_BYTES + b] = byte_of(p, b);
}

static inline bool is_right(int page)
{
    for (size_t b = 0; b < page_bytes; b++)
        if (memory[(size_t)page * MAX_BYTES + b] != byte_of(page, b))
            return false;
    return true;
}

static inline void set(sl_tier_values *v, const char *name, const char *text)
{
    sl_err err = {0};
    ck_assert_msg(sl_options_set(sl_tier_find("redis")->options, v->bytes, name, text, &err) == SL_OK, "%s",
                  err.text);
}

static inline sl_tier_values at_address(const char *address)
{
    sl_tier_values v;
    sl_options_default(sl_tier_find("redis")->options, v.bytes);
    set(&v, "address", address);
    return v;
}

/* As an operator does: by a file, which the table of options reads. */
static inline void give_password(sl_tier_values *v, const char *password)
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

static inline sl_tier_values at_server(const redis_rig *r)
{
    return at_address(redis_rig_address(r));
}

static bool optional; /* open succeeds although the server cannot be reached */

static inline sl_status open_with(const sl_tier_values *r, uint64_t capacity, sl_err *err)
{
    sl_tier_opts o = {.page_bytes = page_bytes,
                      .capacity_bytes = capacity,
                      .required = !optional,
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

static inline void open_tier(const redis_rig *r, size_t bytes)
{
    sl_err err = {0};
    page_bytes = bytes;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values o = at_server(r);
    ck_assert_msg(open_with(&o, 0, &err) == SL_OK, "%s", err.text);
}

static inline void submit(answer *a, sl_tier_op op, int first, int n)
{
    *a = (answer){.req = {.op = op, .n = n, .keys = keys + first, .done = on_done, .cookie = a}};
    a->req.pages = pages + first;
    a->req.results = a->results;
    ck_assert_int_eq(sl_tier_submit(tier, &a->req), SL_OK);
}

static inline void wait_for(answer *a)
{
    while (!a->calls) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 20000), 1);
        sl_tier_poll(tier);
    }
    ck_assert_int_eq(a->calls, 1);
}

static inline int count_ok(const answer *a)
{
    int n = 0;
    for (int i = 0; i < a->req.n; i++)
        n += a->results[i] == SL_OK;
    return n;
}

static inline int run(sl_tier_op op, int first, int n)
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

static inline sl_status result_of_get(int page)
{
    answer a;
    submit(&a, SL_TIER_GET, page, 1);
    wait_for(&a);
    return a.results[0];
}

static inline sl_tier_health health(void)
{
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    return h;
}

static inline sl_tier_stats stats(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static inline void wait_health(sl_tier_state state)
{
    for (int i = 0; i < 1500 && health().state != state; i++)
        sleep_ms(10);
    ck_assert_msg(health().state == state, "health %d: %s", health().state, health().reason);
}

/* The name of a page on the server. */
static inline const char *name_of(int page)
{
    static char name[SL_PAGE_NAME_BYTES + 40];
    char key[33];
    sl_tier_opts o = {.fingerprint = {1, 2}, .format = {3, 4}};
    sl_page_name_stem(prefix, &o, ':', name);
    sl_page_name_key(keys[page], key);
    snprintf(name + strlen(name), sizeof key, "%s", key);
    return name;
}

static inline const char *ask(const redis_rig *r, const char *fmt, int page, size_t at)
{
    char command[256];
    snprintf(command, sizeof command, fmt, name_of(page), at);
    return redis_rig_ask(r, command);
}

#endif
