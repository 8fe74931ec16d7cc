/*
 * router.chat_template auto: a router that is created with the checkpoint of a family (its config.json as published, of the whole
 * model or of the text part, and its tokenizer) writes the prompts of that family's template, and reads its tool calls and
 * reasoning. The answers are goldens of tests/golden/chat. Run from the repository's root.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/http/openai_impl.h"
#include "tests/unit/model/chat_tools.h"
#include "tests/unit/router/harness.h"

/* token: an added token of the tokenizer, without which the model counts as a base model; NULL: any tokenizer. begins: the prompt. */
static const struct {
    const char *golden, *token, *format, *begins;
} cases[] = {
    {"ds-yarn", NULL, "dsv32", "<｜begin▁of▁sentence｜>"},
    {"glm-share", NULL, "glm", "[gMASK]<sop>"},
    {"hy4-share", NULL, "hy4", "<｜hy_start:opensource｜>system"},
    {"axk2-light", "<|im_start|>", "axk2", "<|im_start|>system"},
    {"axk2-light", NULL, "plain", ""},
    {"v4-flash", NULL, "dsv4", "<｜begin▁of▁sentence｜>"},
    {"m3-vl", NULL, "minimax3", "]~!b[]~b]system"},
    {"m3-text", NULL, "minimax3", "]~!b[]~b]system"},
    {"qwen4-ngram", NULL, "qwen38", "<|im_start|>system"},
    {"qwen4-odd", NULL, "qwen38", "<|im_start|>system"},
    {"glm5-flash", NULL, "glm53", "[gMASK]<sop>"},
    {"glm5-odd", NULL, "glm53", "[gMASK]<sop>"},
    {"llama-rope3", "<|eom_id|>", "llama31", "<|begin_of_text|>"},
    {"qwen2-g7", "<tool_call>", "qwen25", "<|im_start|>system"},
    {"qwen3-d256", "<|im_start|>", "qwen3", "<|im_start|>system"},
};

/* The folder of a checkpoint without weights. One added token of the tokenizer is another one. */
static void make_checkpoint(const char *dir, const char *golden, const char *token)
{
    char path[512];
    json_error_t e;
    json_t *config, *tok = json_load_file("models/tiny-v32/tokenizer.json", 0, &e);
    snprintf(path, sizeof path, "tests/golden/model/%s/config.json", golden);
    config = json_load_file(path, 0, &e);
    ck_assert(config && tok);
    json_t *last = json_array_get(json_object_get(tok, "added_tokens"),
                                  json_array_size(json_object_get(tok, "added_tokens")) - 1);
    if (token)
        json_object_set_new(last, "content", json_string(token));
    snprintf(path, sizeof path, "%s/config.json", dir);
    ck_assert_int_eq(json_dump_file(config, path, 0), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    ck_assert_int_eq(json_dump_file(tok, path, 0), 0);
    json_decref(config);
    json_decref(tok);
}

#define BODY                                                                                                 \
    "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Be short.\"},{\"role\":\"user\","     \
    "\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\","             \
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]}"

static void check_prompt(const sl_router *r, const char *begins)
{
    const sl_oai_env env = {.tok = r->model.tok, .chat = r->model.chat, .served_name = "m"};
    sl_oai_request q;
    sl_err err = {""};
    char *text;
    size_t n;
    ck_assert_msg(sl_oai_parse(&env, true, BODY, strlen(BODY), &q, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(
        sl_tokenizer_decode(r->model.tok, q.spec.prompts[0].ids, q.spec.prompts[0].n, false, &text, &n),
        SL_OK);
    ck_assert_msg(strncmp(text, begins, strlen(begins)) == 0, "%s: not %s", text, begins);
    ck_assert_msg(strstr(text, "weather") != NULL, "%s", text);
    free(text);
    sl_oai_request_free(&q);
}

/* Reasoning and names of calls of a golden answer; how many answers there are. */
static int check_answers(const char *file, const sl_router *r)
{
    json_t *all = goldens(file, "answers"), *c;
    size_t i;
    int n = 0;
    json_array_foreach(all, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "message");
        json_t *msg;
        if (strcmp(str(c, "format"), sl_chat_format_name(r->model.chat)) != 0)
            continue;
        ck_assert_int_eq(sl_chat_parse(r->model.chat, thinking_of(c), json_object_get(c, "tools"),
                                       json_string_value(text), json_string_length(text), &msg),
                         SL_OK);
        const json_t *calls = json_object_get(msg, "tool_calls"),
                     *theirs = json_object_get(want, "tool_calls");
        ck_assert(json_equal(json_object_get(msg, "reasoning_content"),
                             json_object_get(want, "reasoning_content")));
        ck_assert_uint_eq(json_array_size(calls), json_array_size(theirs));
        for (size_t k = 0; k < json_array_size(calls); k++)
            ck_assert_str_eq(str(json_object_get(json_array_get(calls, k), "function"), "name"),
                             str(json_object_get(json_array_get(theirs, k), "function"), "name"));
        json_decref(msg);
        n++;
    }
    json_decref(all);
    return n;
}

START_TEST(a_router_knows_the_format_of_its_checkpoint)
{
    static const char *const of_2026[] = {"dsv4", "glm53", "hy4", "minimax3", "qwen38"};
    harness h;
    char dir[] = "/tmp/auto-XXXXXX", command[64];
    int answers = 0, expected = 0;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    make_checkpoint(dir, cases[_i].golden, cases[_i].token);
    h_init(&h);
    h.o.model.tokenizer = NULL;
    h.o.model.path = dir;
    h.o.model.chat_template = "auto";
    h_open(&h);
    ck_assert_str_eq(sl_chat_format_name(h.r->model.chat), cases[_i].format);
    if (h.r->model.chat != SL_CHAT_PLAIN) /* which has no tools */
        check_prompt(h.r, cases[_i].begins);
    for (size_t i = 0; i < SL_COUNT(of_2026); i++)
        expected += strcmp(of_2026[i], cases[_i].format) == 0;
    if (expected)
        answers = check_answers(GOLDEN_2026, h.r);
    ck_assert(!expected || answers >= 5);
    h_close(&h);
    snprintf(command, sizeof command, "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

int main(void)
{
    const h_case list[] = {{a_router_knows_the_format_of_its_checkpoint, (int)SL_COUNT(cases)}};
    return h_main("router/auto", NULL, NULL, list, SL_COUNT(list));
}
