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

int main(void)
{
    Suite *s = suite_create("router/thinking");
    TCase *c = tcase_create("thinking");
    tcase_add_test(c, switches_and_efforts);
    tcase_add_test(c, unknown_efforts_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
