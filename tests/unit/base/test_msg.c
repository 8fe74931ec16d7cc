/*
 * The message codec: every type has the same fields after it was encoded and decoded; a message that is too short or
 * too long is refused with the name of the field; a changed byte never causes a read out of bounds; rules between
 * fields are checked; the fuzzer's seeds are messages of the current version.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/base/msg_sample.h"
#include "tests/unit/run_suite.h"

static sl_wr encoded(const sl_msg *m)
{
    sl_wr w;
    sl_wr_init(&w);
    sl_msg_encode(m, &w);
    ck_assert(!w.bad);
    return w;
}

/* An exactly sized heap copy, so that AddressSanitizer sees a read one past the end. */
static sl_status decode_copy(const uint8_t *bytes, size_t n, sl_msg *out, sl_err *err)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, bytes, n);
    sl_status st = sl_msg_decode(copy, n, out, err);
    if (st == SL_OK)
        sl_msg_free(out);
    free(copy);
    return st;
}

START_TEST(round_trip)
{
    sl_msg m = msg_sample((sl_msg_type)_i), back;
    sl_wr w = encoded(&m);
    sl_err err = {0};
    ck_assert_msg(sl_msg_decode(w.data, w.len, &back, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(back.type, m.type);
    sl_wr again = encoded(&back);
    ck_assert_uint_eq(again.len, w.len);
    ck_assert_mem_eq(again.data, w.data, w.len);
    sl_msg_free(&back);
    sl_wr_free(&again);
    sl_wr_free(&w);
}
END_TEST

START_TEST(fields_survive)
{
    sl_msg m = msg_sample(SL_MSG_RESERVE), b;
    sl_wr w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.reserve.rid, 99);
    ck_assert_uint_eq(b.reserve.attempt, 2);
    ck_assert_uint_eq(b.reserve.prefill_worker, 1);
    ck_assert_uint_eq(b.reserve.n_prompt, 100);
    ck_assert_uint_eq(b.reserve.n_tokens, 130);
    ck_assert_mem_eq(b.reserve.tokens, m.reserve.tokens, 130 * sizeof(int32_t));
    ck_assert_uint_eq(b.reserve.sampling.len, 30);
    ck_assert(sl_key_eq(b.reserve.seed, m.reserve.seed));
    ck_assert_uint_eq(b.reserve.tenant, 0x8899aabbccddeeffu);
    ck_assert_uint_eq(b.reserve.source.worker, 5);
    ck_assert_str_eq(b.reserve.source.addr, "10.0.0.2:7000");
    ck_assert_uint_eq(b.reserve.source.epoch, 9);
    ck_assert_uint_eq(b.reserve.source.pages, 2);
    sl_msg_free(&b);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_PREFETCH);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.prefetch.rid, 99);
    ck_assert_uint_eq(b.prefetch.attempt, 2);
    ck_assert_uint_eq(b.prefetch.n_tokens, 130);
    ck_assert_mem_eq(b.prefetch.tokens, m.prefetch.tokens, 130 * sizeof(int32_t));
    ck_assert(sl_key_eq(b.prefetch.seed, m.prefetch.seed));
    ck_assert_uint_eq(b.prefetch.tenant, 0x8899aabbccddeeffu);
    ck_assert_uint_eq(b.prefetch.source.worker, 5);
    sl_msg_free(&b);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_LEASE);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.lease.lease, 77);
    ck_assert_uint_eq(b.lease.lent, 4);
    ck_assert_uint_eq(b.lease.n_pages, 3);
    ck_assert_mem_eq(b.lease.pages, m.lease.pages, 3 * sizeof(uint32_t));
    ck_assert_uint_eq(b.lease.labels.len, 60);
    sl_msg_free(&b);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_LEASE_ASK);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.lease_ask.lease, 77);
    ck_assert_uint_eq(b.lease_ask.keys.len, 48);
    ck_assert_uint_eq(b.lease_ask.wait, 1);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_LOADING);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.loading.rid, 99);
    ck_assert_uint_eq(b.loading.attempt, 2);
    ck_assert_uint_eq(b.loading.pages, 17);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_LOAD);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.load.prefill_rate, 12);
    ck_assert_uint_eq(b.load.disk_rate, 13);
    ck_assert_uint_eq(b.load.shared_rate, 14);
    ck_assert_uint_eq(b.load.peer_rate, 15);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_COMMIT);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_uint_eq(b.commit.ticket, 12);
    ck_assert_uint_eq(b.commit.n_crc, 6);
    ck_assert_uint_eq(b.commit.crc[2], 0xffffffffu);
    ck_assert_int_eq(b.commit.first.id, 7);
    ck_assert(b.commit.first.top_logprobs[1] == -3.5f);
    ck_assert_uint_eq(b.commit.hidden.len, 24);
    ck_assert_mem_eq(b.commit.hidden.data, m.commit.hidden.data, 24);
    sl_msg_free(&b);
    sl_wr_free(&w);

    m = msg_sample(SL_MSG_HELLO);
    w = encoded(&m);
    ck_assert_int_eq(sl_msg_decode(w.data, w.len, &b, NULL), SL_OK);
    ck_assert_str_eq(b.hello.name, "decode/2");
    ck_assert_str_eq(b.hello.metrics, "127.0.0.1:9000");
    ck_assert_uint_eq(b.hello.id.fingerprint.hi, 0x99aabbccddeeff00u);
    ck_assert_uint_eq(b.hello.pid, 42);
    sl_wr_free(&w);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    sl_msg m = msg_sample((sl_msg_type)_i), back;
    sl_wr w = encoded(&m);
    for (size_t n = 0; n < w.len; n++) {
        sl_err err = {0};
        ck_assert_msg(decode_copy(w.data, n, &back, &err) == SL_ERR_CORRUPT, "%s cut to %zu of %zu",
                      sl_msg_type_name(m.type), n, w.len);
        ck_assert(err.text[0]);
        if (n >= 2)
            ck_assert_msg(strstr(err.text, sl_msg_type_name(m.type)) != NULL, "%s", err.text);
    }
    sl_wr_u8(&w, 0);
    sl_err err = {0};
    ck_assert_int_eq(decode_copy(w.data, w.len, &back, &err), SL_ERR_CORRUPT);
    ck_assert_msg(strstr(err.text, "after the last field") != NULL, "%s", err.text);
    sl_wr_free(&w);
}
END_TEST

/* A message with a changed byte is either decoded, with another value, or refused; in both cases there is no leak and
 * no read out of bounds. */
START_TEST(every_byte_damaged)
{
    sl_msg m = msg_sample((sl_msg_type)_i), back;
    sl_wr w = encoded(&m);
    static const uint8_t masks[] = {0xff, 0x80, 0x01};
    for (size_t i = 0; i < w.len; i++) {
        for (size_t k = 0; k < sizeof masks; k++) {
            w.data[i] ^= masks[k];
            sl_status st = decode_copy(w.data, w.len, &back, NULL);
            ck_assert(st == SL_OK || st == SL_ERR_CORRUPT);
            w.data[i] ^= masks[k];
        }
    }
    sl_wr_free(&w);
}
END_TEST

static void refused(const sl_msg *m, const char *field)
{
    sl_wr w = encoded(m);
    sl_msg back;
    sl_err err = {0};
    ck_assert_msg(decode_copy(w.data, w.len, &back, &err) == SL_ERR_CORRUPT, "%s: accepted", field);
    ck_assert_msg(strstr(err.text, field) != NULL, "%s: %s", field, err.text);
    sl_wr_free(&w);
}

/* A message of this type is refused, naming the field, after these members were set. */
#define REFUSED(type, field, ...)                                                                            \
    do {                                                                                                     \
        sl_msg m = msg_sample(SL_MSG_##type);                                                                \
        m.__VA_ARGS__;                                                                                       \
        refused(&m, field);                                                                                  \
    } while (0)

START_TEST(shapes_of_requests)
{
    REFUSED(RESERVE, "attempt", reserve.attempt = 0);
    REFUSED(RESERVE, "n_prompt", reserve.n_prompt = 131);
    REFUSED(RESERVE, "tokens", reserve.n_tokens = 0);
    REFUSED(RESERVE, "seed", reserve.seed = (sl_key){0, 0});
    REFUSED(RESERVE, "source.pages", reserve.source.pages = 4);
    REFUSED(RESERVE, "source.addr", reserve.source.addr[0] = 0);
    REFUSED(RESERVED, "matched_pages", reserved.matched_pages = 4);
    REFUSED(PREFETCH, "source.addr", prefetch.source.pages = 0);
    REFUSED(PREFETCH, "seed", prefetch.seed = (sl_key){0, 0});
    REFUSED(PREFETCH, "tokens", prefetch.n_tokens = 0);
    REFUSED(PREFETCH, "attempt", prefetch.attempt = 0);
    REFUSED(PREFILL, "seed", prefill.seed = (sl_key){0, 0});
    REFUSED(PREFILL, "pages", prefill.n_pages = 2);
    REFUSED(PREFILL, "matched_pages", prefill.matched_pages = 4);
    REFUSED(DONE, "finish", done.finish = SL_FINISH_ERROR + 1);
    REFUSED(FAILED, "status", failed.status = 0);
    REFUSED(FAILED, "retryable", failed.retryable = 2);
    REFUSED(COMMIT, "first_page", commit.first_page = 4);
}
END_TEST

START_TEST(shapes_of_workers_and_groups)
{
    REFUSED(HELLO, "role", hello.role = SL_ROLE_BOTH + 1);
    REFUSED(HELLO, "ranks", hello.ranks = 65);
    REFUSED(HELLO, "ranks", hello.ranks = 1);
    REFUSED(HELLO, "rank", hello.ranks = 2);
    REFUSED(HELLO, "rank", hello.ranks = 0);
    REFUSED(LOAD, "group_broken", load.group_broken = 2);
    REFUSED(PEER_HELLO, "direct_pid", peer_hello.reader = 1); /* a reader cannot write directly */
    REFUSED(PEER_WELCOME, "arena_bytes", peer_welcome.arena_bytes = UINT64_MAX);
    REFUSED(GROUP_JOIN, "role", group_join.role = SL_ROLE_ROUTER);
    REFUSED(GROUP_JOIN, "rank", group_join.rank = m.group_join.ranks);
    REFUSED(GROUP, "news", group.news = SL_GROUP_NEWS_COUNT);
}
END_TEST

START_TEST(shapes_of_leases_and_events)
{
    REFUSED(LEASE_ASK, "keys", lease_ask.keys.len = 0);
    REFUSED(LEASE_ASK, "keys", lease_ask.keys.len = 40);
    REFUSED(LEASE_ASK, "seed", lease_ask.seed = (sl_key){0, 0});
    REFUSED(LEASE_ASK, "ms", lease_ask.ms = 0);
    REFUSED(LEASE_ASK, "wait", lease_ask.wait = 2);
    REFUSED(LEASE, "labels", lease.labels.len = 59);
    REFUSED(LEASE, "labels", lease.n_pages = 0);
    REFUSED(LOADING, "pages", loading.pages = 0);
    REFUSED(LOADING, "pages", loading.pages = (1 << 15) + 1);
    REFUSED(KV_EVENTS, "stored", kv_events.stored.len = 48);
    REFUSED(KV_EVENTS, "removed", kv_events.removed.len = 8);
    REFUSED(KV_EVENTS, "tokens", kv_events.tokens.len -= 4);
    REFUSED(KV_EVENTS, "medium", kv_events.medium = SL_MEDIUM_COUNT);
}
END_TEST

START_TEST(shapes_of_cache_jobs)
{
    REFUSED(CACHE_ASK, "action", cache_ask.action = SL_CACHE_ACTIONS);
    REFUSED(CACHE_ASK, "prefix_bits", cache_ask.prefix_bits = 129);
    REFUSED(CACHE_ASK, "most", cache_ask.most = SL_CACHE_PAGES_MAX + 1);
    REFUSED(CACHE_ASK, "most", cache_ask.most = 0, m.cache_ask.action = SL_CACHE_LIST);
    REFUSED(CACHE_ASK, "tier", cache_ask.most = 0, m.cache_ask.action = SL_CACHE_DROP,
            m.cache_ask.tier[0] = 0);
    REFUSED(CACHE_PAGES, "pages", cache_pages.pages.len = 33);
    REFUSED(CACHE_JOB, "status", cache_job.status = 1);
    REFUSED(CACHE_JOB, "state", cache_job.state = SL_CACHE_STATES);
    REFUSED(CACHE_JOB, "keys", cache_job.keys.len = 24);
}
END_TEST

START_TEST(header_rules)
{
    uint8_t none[2] = {0, SL_MSG_VERSION}, beyond[2] = {SL_MSG_TYPE_COUNT, SL_MSG_VERSION},
            old[2] = {SL_MSG_DRAIN, SL_MSG_VERSION + 1}, drain[2] = {SL_MSG_DRAIN, SL_MSG_VERSION};
    sl_msg m;
    sl_err err = {0};
    ck_assert_int_eq(sl_msg_decode(none, 2, &m, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_msg_decode(beyond, 2, &m, &err), SL_ERR_CORRUPT);
    ck_assert_int_eq(sl_msg_decode(old, 2, &m, &err), SL_ERR_CORRUPT);
    ck_assert_msg(strstr(err.text, "version") != NULL, "%s", err.text);
    ck_assert_int_eq(sl_msg_decode(drain, 2, &m, &err), SL_OK);
    ck_assert_int_eq(m.type, SL_MSG_DRAIN);
    /* too many alternatives of a token */
    sl_msg t = msg_sample(SL_MSG_TOKENS);
    sl_wr w = encoded(&t);
    w.data[2 + 8 + 4 + 4 + 4 + 8] = SL_MSG_MAX_TOP + 1;
    ck_assert_int_eq(decode_copy(w.data, w.len, &m, &err), SL_ERR_CORRUPT);
    sl_wr_free(&w);
}
END_TEST

START_TEST(names)
{
    for (int t = SL_MSG_HELLO; t < SL_MSG_TYPE_COUNT; t++)
        ck_assert_str_ne(sl_msg_type_name((sl_msg_type)t), "unknown");
    ck_assert_str_eq(sl_msg_type_name((sl_msg_type)0), "unknown");
    ck_assert_str_eq(sl_msg_type_name(SL_MSG_TYPE_COUNT), "unknown");
    ck_assert_str_eq(sl_role_name(SL_ROLE_ROUTER), "router");
    ck_assert_str_eq(sl_role_name(SL_ROLE_PREFILL), "prefill");
    ck_assert_str_eq(sl_role_name(SL_ROLE_DECODE), "decode");
    ck_assert_str_eq(sl_role_name(SL_ROLE_BOTH), "both");
    ck_assert_str_eq(sl_role_name((sl_role)4), "unknown");
    ck_assert_str_eq(sl_finish_name(SL_FINISH_STOP), "stop");
    ck_assert_str_eq(sl_finish_name(SL_FINISH_LENGTH), "length");
    ck_assert_str_eq(sl_finish_name(SL_FINISH_ABORT), "abort");
    ck_assert_str_eq(sl_finish_name((sl_finish)(SL_FINISH_ERROR + 1)), "unknown");
    ck_assert_str_eq(sl_medium_name(SL_MEDIUM_HOST), "host");
    ck_assert_str_eq(sl_medium_name(SL_MEDIUM_DISK), "disk");
    ck_assert_str_eq(sl_medium_name(SL_MEDIUM_SHARED), "shared");
    ck_assert_str_eq(sl_medium_name(SL_MEDIUM_COUNT), "unknown");
    for (int a = 0; a <= SL_CACHE_ACTIONS; a++)
        ck_assert_int_eq(!strcmp(sl_msg_cache_action_name((sl_cache_action)a), "unknown"),
                         a == SL_CACHE_ACTIONS);
    for (int a = 0; a <= SL_CACHE_STATES; a++)
        ck_assert_int_eq(!strcmp(sl_msg_cache_state_name((sl_cache_state)a), "unknown"),
                         a == SL_CACHE_STATES);
}
END_TEST

/* tests/fuzz/corpus/msg holds one message of every type: a fuzzer that begins with another version's messages would spend
 * its time on the version field. With SL_UPDATE_REFERENCE in the environment the files are written first. */
START_TEST(seeds_of_the_fuzzer)
{
    sl_msg m = msg_sample((sl_msg_type)_i);
    sl_wr w = encoded(&m);
    char path[128];
    snprintf(path, sizeof path, "tests/fuzz/corpus/msg/%s", sl_msg_type_name(m.type));
    if (getenv("SL_UPDATE_REFERENCE")) {
        FILE *out = fopen(path, "wb");
        ck_assert_msg(out != NULL, "%s cannot be written", path);
        ck_assert_uint_eq(fwrite(w.data, 1, w.len, out), w.len);
        fclose(out);
    }
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s is missing", path);
    uint8_t have[4096];
    size_t len = fread(have, 1, sizeof have, f);
    fclose(f);
    ck_assert_msg(len == w.len && !memcmp(have, w.data, len),
                  "%s is stale: run this test with SL_UPDATE_REFERENCE=1 from the repository root", path);
    sl_wr_free(&w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("msg");
    TCase *t = tcase_create("msg");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, round_trip, SL_MSG_HELLO, SL_MSG_TYPE_COUNT);
    tcase_add_test(t, fields_survive);
    tcase_add_loop_test(t, every_truncation_is_refused, SL_MSG_HELLO, SL_MSG_TYPE_COUNT);
    tcase_add_loop_test(t, every_byte_damaged, SL_MSG_HELLO, SL_MSG_TYPE_COUNT);
    tcase_add_test(t, shapes_of_requests);
    tcase_add_test(t, shapes_of_workers_and_groups);
    tcase_add_test(t, shapes_of_leases_and_events);
    tcase_add_test(t, shapes_of_cache_jobs);
    tcase_add_test(t, header_rules);
    tcase_add_test(t, names);
    tcase_add_loop_test(t, seeds_of_the_fuzzer, SL_MSG_HELLO, SL_MSG_TYPE_COUNT);
    suite_add_tcase(s, t);
    return run_suite(s);
}
