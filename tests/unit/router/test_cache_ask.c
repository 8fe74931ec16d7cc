/*
 * Questions about the cache of one worker: a question is answered once, by its worker only, or fails when the worker is lost or
 * silent; and the JSON of the paths /cache/… (router/http/cache_query.h).
 */
#include <string.h>

#include "router/http/cache_query.h"
#include "tests/unit/router/harness.h"

static harness h;
static struct {
    int answers;
    sl_status status;
    char reason[128];
    bool pages, job;
} got;

static void setup(void)
{
    h_init(&h);
    memset(&got, 0, sizeof got);
}

static void teardown(void)
{
    h_close(&h);
}

static void on_answer(void *arg, const sl_cache_answer *a)
{
    ck_assert_ptr_eq(arg, &got);
    got.answers++;
    got.status = a->status;
    snprintf(got.reason, sizeof got.reason, "%s", a->reason);
    got.pages = a->pages;
    got.job = a->job;
}

static sl_cache_call *ask(const char *worker)
{
    sl_cache_call *c = NULL;
    sl_err err = {""};
    sl_msg_cache_ask q = {.action = SL_CACHE_LIST, .most = 1};
    ck_assert_msg(sl_cache_ask(h.r, worker, &q, on_answer, &got, &c, &err) == SL_OK, "%s", err.text);
    return c;
}

static sl_member *member(const char *name)
{
    for (sl_member *w = h.r->cluster.members; w; w = w->next) {
        if (!strcmp(w->name, name))
            return w;
    }
    return NULL;
}

static void say(const char *worker, sl_msg_type type, uint64_t number, sl_status st)
{
    sl_msg m = {.type = type};
    if (type == SL_MSG_CACHE_PAGES)
        m.cache_pages.ask = number;
    else
        m.cache_job = (sl_msg_cache_job){.ask = number, .status = st, .reason = "as the test says"};
    sl_router_link_received(member(worker), &m);
}

START_TEST(answered_once_by_its_worker)
{
    h_open_cluster(&h, 1, 2);
    ask("decode/1");
    uint64_t n = h.r->cluster.cache_asks;
    say("decode/2", SL_MSG_CACHE_PAGES, n, SL_OK);     /* another worker's */
    say("decode/1", SL_MSG_CACHE_PAGES, n + 1, SL_OK); /* of no question */
    ck_assert_int_eq(got.answers, 0);
    say("decode/1", SL_MSG_CACHE_PAGES, n, SL_OK);
    ck_assert(got.answers == 1 && got.status == SL_OK && got.pages && !got.job);
    say("decode/1", SL_MSG_CACHE_PAGES, n, SL_OK); /* again */
    ck_assert_int_eq(got.answers, 1);
    ask("decode/2");
    say("decode/2", SL_MSG_CACHE_JOB, n + 1, SL_ERR_REFUSED);
    ck_assert(got.answers == 2 && got.status == SL_ERR_REFUSED && got.job);
    ck_assert_str_eq(got.reason, "as the test says");
    ck_assert_uint_eq(h.r->cluster.n_cache_calls, 0);
}
END_TEST

START_TEST(who_can_be_asked)
{
    sl_cache_call *c = NULL;
    sl_err err = {""};
    sl_msg_cache_ask q = {.action = SL_CACHE_STATUS};
    h_open_cluster(&h, 1, 1);
    ck_assert_int_eq(sl_cache_ask(h.r, "decode/7", &q, on_answer, &got, &c, &err), SL_ERR_NOT_FOUND);
    ck_assert_str_eq(err.text, "worker: there is no decode/7");
    ck_assert_int_eq(sl_cache_ask(h.r, "prefill/0", &q, on_answer, &got, &c, &err), SL_ERR_INVALID);
    for (int i = 0; i < 64; i++)
        ask("decode/1");
    ck_assert_int_eq(sl_cache_ask(h.r, "decode/1", &q, on_answer, &got, &c, &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(got.answers, 0);
}
END_TEST

START_TEST(lost_silent_and_forgotten)
{
    h_open_cluster(&h, 1, 1);
    ask("decode/1");
    sl_cache_tick(h.r, sl_now_ns() + 9000 * SL_MS);
    ck_assert_int_eq(got.answers, 0);
    sl_cache_tick(h.r, sl_now_ns() + 11000 * SL_MS);
    ck_assert(got.answers == 1 && got.status == SL_ERR_DEADLINE);
    sl_cache_forget(ask("decode/1"));
    sl_cache_forget(NULL);
    ask("decode/1");
    ask("decode/1");
    sl_member_lost(member("decode/1"), SL_ERR_PEER, "the test ends it");
    ck_assert(got.answers == 3 && got.status == SL_ERR_PEER);
    ck_assert_uint_eq(h.r->cluster.n_cache_calls, 0);
}
END_TEST

/* ---- JSON ---- */

static sl_cache_query query;
static sl_err why;

static sl_status read_query(sl_cache_action action, const char *text)
{
    return sl_cache_query_read(action, text, strlen(text), &query, &why);
}

START_TEST(queries)
{
    ck_assert_int_eq(read_query(SL_CACHE_LIST,
                                "{\"worker\": \"decode/0\", \"tier\": \"disk\", \"prefix\": \"0aF\", "
                                "\"cursor\": \"72057594037927943\", \"limit\": 7}"),
                     SL_OK);
    ck_assert_str_eq(query.worker, "decode/0");
    ck_assert_str_eq(query.ask.tier, "disk");
    ck_assert_uint_eq(query.ask.prefix.hi, 0x0af0000000000000u);
    ck_assert_uint_eq(query.ask.prefix.lo, 0);
    ck_assert_uint_eq(query.ask.prefix_bits, 12);
    ck_assert_uint_eq(query.ask.cursor, (1ull << 56) + 7);
    ck_assert_uint_eq(query.ask.most, 7);
    ck_assert_int_eq(
        read_query(SL_CACHE_LIST, "{\"worker\": \"w\", \"prefix\": \"00000000000000000000000000000001\"}"),
        SL_OK);
    ck_assert_uint_eq(query.ask.prefix.lo, 1);
    ck_assert_uint_eq(query.ask.prefix_bits, 128);
    ck_assert_uint_eq(query.ask.most, SL_CACHE_PAGES_MAX);
    ck_assert_int_eq(read_query(SL_CACHE_VERIFY, "{\"worker\": \"w\", \"bytes_per_second\": 1048576}"),
                     SL_OK);
    ck_assert_uint_eq(query.ask.rate, 1 << 20);
    ck_assert_int_eq(query.ask.action, SL_CACHE_VERIFY);
    ck_assert_int_eq(read_query(SL_CACHE_STATUS, "{\"worker\": \"w\", \"cancel\": true}"), SL_OK);
    ck_assert_int_eq(query.ask.action, SL_CACHE_CANCEL);
}
END_TEST

START_TEST(refused_queries)
{
    static const struct {
        sl_cache_action action;
        const char *text, *why;
    } bad[] = {
        {SL_CACHE_LIST, "", "body"},
        {SL_CACHE_LIST, "[]", "body: is not a JSON object"},
        {SL_CACHE_LIST, "{}", "body.worker: is missing"},
        {SL_CACHE_LIST, "{\"worker\": 3}", "body.worker"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"prefix\": \"xy\"}", "body.prefix"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"prefix\": \"000000000000000000000000000000011\"}",
         "body.prefix"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"cursor\": \"-1\"}", "body.cursor"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"cursor\": \"99999999999999999999\"}", "body.cursor"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"limit\": 513}", "body.limit"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"limit\": 0}", "body.limit"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"cancel\": true}", "body.cancel: is not known here"},
        {SL_CACHE_LIST, "{\"worker\": \"w\", \"worker tier\": 1}", "is not known here"},
        {SL_CACHE_VERIFY, "{\"worker\": \"w\", \"bytes_per_second\": 0}", "body.bytes_per_second"},
        {SL_CACHE_VERIFY, "{\"worker\": \"w\", \"tier\": \"0123456789abcdef\"}",
         "body.tier: is longer than 15"},
        {SL_CACHE_DROP, "{\"worker\": \"w\"}", "body.tier: is missing"},
        {SL_CACHE_STATUS, "{\"worker\": \"w\", \"tier\": \"disk\"}", "body.tier: is not known here"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_msg(read_query(bad[i].action, bad[i].text) == SL_ERR_INVALID, "%s", bad[i].text);
        ck_assert_msg(strstr(why.text, bad[i].why) != NULL, "%s: %s", bad[i].text, why.text);
    }
}
END_TEST

START_TEST(answers)
{
    static const uint8_t page[32] = {0xef, 0, 0,    0,   0, 0, 0, 0, 0, 0, 0, 0, 0,
                                     0,    0, 0x12, 128, 0, 0, 0, 1, 0, 0, 0, 5};
    static const uint8_t unknown[32] = {[24] = 255, 255, 255, 255, 255, 255, 255, 255};
    json_t *o = sl_cache_pages_json("decode/0", &(sl_msg_cache_pages){1, "host", 77, {page, 32}});
    char *text = json_dumps(o, JSON_COMPACT);
    ck_assert_str_eq(
        text, "{\"worker\":\"decode/0\",\"tier\":\"host\",\"pages\":[{\"key\":"
              "\"120000000000000000000000000000ef\",\"prefix_tokens\":128,\"in_use\":true,\"age_ms\":5}],"
              "\"cursor\":\"77\"}");
    free(text);
    json_decref(o);
    o = sl_cache_pages_json("w", &(sl_msg_cache_pages){1, "disk", 0, {unknown, 32}});
    text = json_dumps(o, JSON_COMPACT);
    ck_assert_str_eq(text, "{\"worker\":\"w\",\"tier\":\"disk\",\"pages\":[{\"key\":"
                           "\"00000000000000000000000000000000\"}],\"cursor\":null}");
    free(text);
    json_decref(o);
    sl_msg_cache_job j = {.action = SL_CACHE_VERIFY,
                          .state = SL_CACHE_RUNNING,
                          .tier = "disk",
                          .done = 1,
                          .total = 2,
                          .damaged = 1,
                          .bytes = 9,
                          .ms = 8,
                          .keys = {page, 16}};
    o = sl_cache_job_json("w", &j);
    text = json_dumps(o, JSON_COMPACT);
    ck_assert_str_eq(
        text, "{\"worker\":\"w\",\"action\":\"verify\",\"state\":\"running\",\"tier\":\"disk\","
              "\"damaged_keys\":[\"120000000000000000000000000000ef\"],\"pages\":1,\"total\":2,\"damaged\":1,"
              "\"unreadable\":0,\"gone\":0,\"bytes\":9,\"ms\":8}");
    free(text);
    json_decref(o);
}
END_TEST

int main(void)
{
    const h_case cases[] = {{answered_once_by_its_worker, 0},
                            {who_can_be_asked, 0},
                            {lost_silent_and_forgotten, 0},
                            {queries, 0},
                            {refused_queries, 0},
                            {answers, 0}};
    return h_main("cache_ask", setup, teardown, cases, SL_COUNT(cases));
}
