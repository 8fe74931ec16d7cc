/*
 * Shared by the tests of chat (test_chat, test_chat_answers): the special tokens of DeepSeek V3.2's format as text, the
 * golden cases, and short forms to read JSON. Each function fails the test where it cannot do its work.
 */
#ifndef TESTS_UNIT_MODEL_CHAT_TOOLS_H
#define TESTS_UNIT_MODEL_CHAT_TOOLS_H

#include <check.h>
#include <jansson.h>
#include <string.h>

#include "model/chat.h"

#define D "｜DSML｜"
#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define BOT "<｜Assistant｜>"
#define M3 "]<]minimax[>["
#define HY(name) "<" name ":opensource>"

/* The caller releases the result. */
static inline json_t *parse_json(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, JSON_DECODE_ANY, &e);
    ck_assert_msg(j != NULL, "%s in %s", e.text, text);
    return j;
}

#define GOLDEN_CASES "tests/golden/chat/cases.json"
#define GOLDEN_GQA "tests/golden/chat/gqa.json"
#define GOLDEN_2026 "tests/golden/chat/2026.json"

/* A list of a golden file, "prompts" or "answers". The caller releases it. */
static inline json_t *goldens(const char *file, const char *list)
{
    json_error_t e;
    json_t *root = json_load_file(file, 0, &e);
    ck_assert_msg(root != NULL, "%s: %s", file, e.text);
    json_t *cases = json_incref(json_object_get(root, list));
    json_decref(root);
    ck_assert_uint_ge(json_array_size(cases), 40);
    return cases;
}

static inline sl_chat_format format_of(const char *name)
{
    sl_chat_format f;
    ck_assert_int_eq(sl_chat_format_parse(name, &f), SL_OK);
    ck_assert_str_eq(sl_chat_format_name(f), name);
    return f;
}

/* The value of "thinking": a boolean, or "adaptive". */
static inline sl_chat_think thinking_of(const json_t *o)
{
    const json_t *v = json_object_get(o, "thinking");
    return json_is_string(v) ? SL_CHAT_THINK_ADAPTIVE
           : json_is_true(v) ? SL_CHAT_THINK_YES
                             : SL_CHAT_THINK_NO;
}

static inline const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

#endif
