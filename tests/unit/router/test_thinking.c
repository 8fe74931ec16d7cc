/*
 * Whether the model reasons before it answers a request: by its chat format, by either switch, by the effort.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/mock/mock.h"
#include "router/http/openai_impl.h"
#include "tests/unit/run_suite.h"

static sl_status parse(sl_chat_format format, const char *extra, sl_oai_request *q, sl_err *err)
{
    char body[512];
    sl_tokenizer *tok;
    ck_assert_msg(sl_mock_tokenizer(&tok, err) == SL_OK, "%s", err->text);
    const sl_oai_env env = {.tok = tok, .chat = format, .served_name = "m"};
    snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s}",
             extra);
    sl_status st = sl_oai_parse(&env, true, body, strlen(body), q, err);
    sl_tokenizer_destroy(tok);
    return st;
}

#define SWITCH(which, on) ",\"chat_template_kwargs\":{\"" which "\":" on "}"

/* A switch is stronger than an effort, which turns nothing on. */
START_TEST(switches_and_efforts)
{
    static const struct {
        sl_chat_format format;
        const char *extra;
        sl_chat_think thinking;
    } cases[] = {
        {SL_CHAT_QWEN38, "", SL_CHAT_THINK_YES},
        {SL_CHAT_DSV4, "", SL_CHAT_THINK_NO},
        {SL_CHAT_MINIMAX3, "", SL_CHAT_THINK_ADAPTIVE},
        {SL_CHAT_MINIMAX3, SWITCH("thinking", "true"), SL_CHAT_THINK_YES},
        {SL_CHAT_MINIMAX3, SWITCH("thinking", "null"), SL_CHAT_THINK_ADAPTIVE},
        {SL_CHAT_DSV4, SWITCH("thinking", "true"), SL_CHAT_THINK_YES},
        {SL_CHAT_QWEN38, SWITCH("enable_thinking", "false"), SL_CHAT_THINK_NO},
        {SL_CHAT_QWEN38, ",\"reasoning_effort\":\"none\"", SL_CHAT_THINK_NO},
        {SL_CHAT_HY4, SWITCH("reasoning_effort", "\"no_think\""), SL_CHAT_THINK_NO},
        {SL_CHAT_QWEN38, ",\"reasoning_effort\":\"none\"" SWITCH("thinking", "true"), SL_CHAT_THINK_YES},
        {SL_CHAT_DSV4, ",\"reasoning_effort\":\"high\"", SL_CHAT_THINK_NO},
        {SL_CHAT_QWEN38, ",\"reasoning_effort\":null", SL_CHAT_THINK_YES},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_oai_request q;
        sl_err err = {""};
        ck_assert_msg(parse(cases[i].format, cases[i].extra, &q, &err) == SL_OK, "%s: %s", cases[i].extra,
                      err.text);
        ck_assert_msg(q.thinking == cases[i].thinking, "%s", cases[i].extra);
        sl_oai_request_free(&q);
    }
}
END_TEST

START_TEST(unknown_efforts_are_refused)
{
    static const char *const bad[] = {",\"reasoning_effort\":\"much\"", ",\"reasoning_effort\":3",
                                      ",\"reasoning_effort\":{}", SWITCH("reasoning_effort", "\"much\"")};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_oai_request q;
        sl_err err = {""};
        ck_assert_int_eq(parse(SL_CHAT_QWEN38, bad[i], &q, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, "reasoning_effort: ") != NULL, "%s", err.text);
    }
}
END_TEST

/* ---- reasoning before a constraint ---- */

static sl_tokenizer *tiny;
static int32_t end_of_reasoning;

static void load(void)
{
    ck_assert_int_eq(sl_tokenizer_load("models/tiny-v32", &tiny, NULL), SL_OK);
    end_of_reasoning = sl_tokenizer_id(tiny, "</think>", 8);
}

static void unload(void)
{
    sl_tokenizer_destroy(tiny);
}

static sl_status read_body(sl_chat_format format, const char *extra, sl_oai_request *q, sl_err *err)
{
    char body[1024];
    const sl_oai_env env = {.tok = tiny, .chat = format, .served_name = "m"};
    snprintf(body, sizeof body, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s}",
             extra);
    return sl_oai_parse(&env, true, body, strlen(body), q, err);
}

#define JSON ",\"response_format\":{\"type\":\"json_object\"}"
#define TAGS                                                                                                                \
    ",\"structural_tag\":{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<e>\",\"schema\":{},\"end\":\"</e>\"}]," \
    "\"triggers\":[\"<e\"]}"
#define TOOL ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

START_TEST(constraints_begin_after_the_reasoning)
{
    const struct {
        sl_chat_format format;
        const char *extra;
        sl_chat_think thinking;
        bool later;
    } cases[] = {
        {SL_CHAT_DSV32, JSON, SL_CHAT_THINK_NO, false},
        {SL_CHAT_QWEN38, JSON, SL_CHAT_THINK_NO,
         false}, /* who does not ask for reasoning gets JSON at once */
        {SL_CHAT_DSV32, JSON SWITCH("thinking", "true"), SL_CHAT_THINK_OPEN, true},
        {SL_CHAT_QWEN3, JSON SWITCH("enable_thinking", "true"), SL_CHAT_THINK_OPEN, true},
        {SL_CHAT_QWEN38, JSON ",\"reasoning_effort\":\"low\"", SL_CHAT_THINK_OPEN, true},
        {SL_CHAT_GLM45, JSON SWITCH("enable_thinking", "true"), SL_CHAT_THINK_OPEN, true},
        {SL_CHAT_QWEN38, JSON ",\"reasoning_effort\":\"none\"", SL_CHAT_THINK_NO, false},
        {SL_CHAT_LLAMA31, JSON ",\"reasoning_effort\":\"low\"", SL_CHAT_THINK_NO, false},
        {SL_CHAT_QWEN38, TOOL ",\"tool_choice\":\"required\"" SWITCH("thinking", "true"), SL_CHAT_THINK_OPEN,
         true},
        {SL_CHAT_QWEN38, TAGS, SL_CHAT_THINK_OPEN, true},
        {SL_CHAT_QWEN38, TAGS SWITCH("thinking", "false"), SL_CHAT_THINK_NO, false},
        {SL_CHAT_MINIMAX3, TAGS, SL_CHAT_THINK_ADAPTIVE, false},
        {SL_CHAT_QWEN38, "", SL_CHAT_THINK_YES, false},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_oai_request q;
        sl_err err = {""};
        ck_assert_msg(read_body(cases[i].format, cases[i].extra, &q, &err) == SL_OK, "%s: %s", cases[i].extra,
                      err.text);
        ck_assert_msg(q.thinking == cases[i].thinking, "%zu: %d", i, (int)q.thinking);
        ck_assert_int_eq(q.spec.sampling.constraint_after, cases[i].later ? 1 + end_of_reasoning : 0);
        sl_oai_request_free(&q);
    }
    sl_oai_request q; /* </mm:think> is no token of this tokenizer */
    sl_err err = {""};
    ck_assert_int_eq(read_body(SL_CHAT_MINIMAX3, JSON SWITCH("thinking", "true"), &q, &err),
                     SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "no token of this model ends it"));
}
END_TEST

/* The answer of a request whose text comes in pieces of `step` bytes: a document, or all events. malloc'ed. */
static char *answer_text(const char *extra, const char *text, size_t step)
{
    sl_oai_request q;
    sl_err err = {""};
    const sl_oai_env env = {.tok = tiny, .chat = SL_CHAT_QWEN38, .served_name = "m"};
    ck_assert_msg(read_body(SL_CHAT_QWEN38, extra, &q, &err) == SL_OK, "%s", err.text);
    sl_oai_answer *a = sl_oai_answer_create(&env, &q, "id-1", 1234, 1, 1);
    sl_oai_request_free(&q);
    for (size_t at = 0; at < strlen(text); at += step) {
        size_t n = strlen(text) - at < step ? strlen(text) - at : step;
        sl_oai_answer_feed(a, &(sl_output){.text = text + at, .text_len = n, .matched_token = -1});
    }
    sl_oai_answer_feed(a, &(sl_output){.finished = true, .finish = SL_FINISH_STOP, .matched_token = -1});
    size_t n;
    const char *bytes = strstr(extra, "\"stream\":true") ? sl_oai_answer_bytes(a, &n) : NULL;
    char *out = bytes ? strndup(bytes, n) : sl_oai_answer_json(a, NULL);
    sl_oai_answer_destroy(a);
    return out;
}

static void append(char *to, size_t cap, const json_t *from)
{
    size_t at = strlen(to);
    if (json_is_string(from))
        snprintf(to + at, cap - at, "%s", json_string_value(from));
}

/* Puts together what the deltas of a stream say, or what a document says: reasoning|content|name|arguments|finish. */
static void summary(const char *text, char *out, size_t cap)
{
    char reasoning[256] = "", content[256] = "", name[64] = "", args[256] = "", finish[32] = "";
    for (const char *line = text; line && *line; line = strstr(line, "\n\n"), line = line ? line + 2 : NULL) {
        json_t *o = json_loads(strncmp(line, "data: ", 6) ? line : line + 6, JSON_DISABLE_EOF_CHECK, NULL);
        json_t *c = json_array_get(json_object_get(o, "choices"), 0), *d = json_object_get(c, "delta");
        d = d ? d : json_object_get(c, "message");
        json_t *f = json_object_get(json_array_get(json_object_get(d, "tool_calls"), 0), "function");
        const struct {
            char *to;
            size_t cap;
            const json_t *from;
        } parts[] = {{reasoning, sizeof reasoning, json_object_get(d, "reasoning_content")},
                     {content, sizeof content, json_object_get(d, "content")},
                     {name, sizeof name, json_object_get(f, "name")},
                     {args, sizeof args, json_object_get(f, "arguments")},
                     {finish, sizeof finish, json_object_get(c, "finish_reason")}};
        for (size_t i = 0; i < SL_COUNT(parts); i++)
            append(parts[i].to, parts[i].cap, parts[i].from);
        json_decref(o);
    }
    snprintf(out, cap, "%s|%s|%s|%s|%s", reasoning, content, name, args, finish);
}

START_TEST(reasoning_and_the_form_are_told_apart)
{
    static const char *const cases[][3] = {
        {JSON SWITCH("thinking", "true"), "I see\n</think>\n\n{\"a\": 1}", "I see|{\"a\": 1}|||stop"},
        {JSON SWITCH("thinking", "true"), "no end", "no end||||stop"},
        {JSON, "{\"a\": \"</think>\"}", "|{\"a\": \"</think>\"}|||stop"},
        {TOOL ",\"tool_choice\":\"required\"" SWITCH("thinking", "true"),
         "why</think>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "why||f|{\"a\":1}|tool_calls"},
        {TOOL
         ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}" SWITCH("thinking", "true"),
         "why</think>{\"a\": 1}", "why||f|{\"a\": 1}|tool_calls"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        for (size_t step = 1; step < 60; step += 4) {
            for (int stream = 0; stream < 2; stream++) {
                char extra[512], got[1024];
                snprintf(extra, sizeof extra, "%s%s", cases[i][0], stream ? ",\"stream\":true" : "");
                char *text = answer_text(extra, cases[i][1], step);
                summary(text, got, sizeof got);
                ck_assert_msg(!strcmp(got, cases[i][2]), "%zu, stream %d, pieces of %zu: %s", i, stream, step,
                              got);
                free(text);
            }
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/thinking");
    TCase *c = tcase_create("thinking");
    tcase_add_test(c, switches_and_efforts);
    tcase_add_test(c, unknown_efforts_are_refused);
    suite_add_tcase(s, c);
    c = tcase_create("before a constraint");
    tcase_add_unchecked_fixture(c, load, unload);
    tcase_add_test(c, constraints_begin_after_the_reasoning);
    tcase_add_test(c, reasoning_and_the_form_are_told_apart);
    suite_add_tcase(s, c);
    return run_suite(s);
}
