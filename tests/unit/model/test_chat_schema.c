/* The types of the arguments of a tool call, which follow from the schema of the function (model/chat_schema.c). */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/chat.h"
#include "tests/unit/run_suite.h"

/* GLM writes arguments without their types: the schema of the function decides what a text is. */
START_TEST(glm_argument_types)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"u\",\"parameters\":{"
        "\"$defs\":{\"color\":{\"enum\":[\"red\",\"1\"]}},\"properties\":{"
        "\"text\":{\"type\":\"string\"},"
        "\"optional\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
        "\"listed\":{\"type\":[\"string\",\"null\"]},"
        "\"enum\":{\"enum\":[\"1\",\"2\"]},"
        "\"const\":{\"const\":\"1\"},"
        "\"color\":{\"$ref\":\"#/$defs/color\"},"
        "\"all\":{\"allOf\":[{\"$ref\":\"#/$defs/color\"}]},"
        "\"count\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]},"
        "\"either\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]},"
        "\"loop\":{\"anyOf\":[{\"$ref\":\"#/properties/loop\"},{\"$ref\":\"#/properties/loop\"}]},"
        "\"lost\":{\"$ref\":\"#/nowhere\"}}}}}]";
    static const struct {
        const char *key, *value, *want;
    } rows[] = {
        {"text", "12", "\"12\""},       {"text", " null ", "\" null \""},
        {"optional", "12", "\"12\""},   {"optional", "null", "null"},
        {"optional", "a b", "\"a b\""}, {"listed", "true", "\"true\""},
        {"listed", "null", "null"},     {"enum", "1", "\"1\""},
        {"const", "1", "\"1\""},        {"color", "1", "\"1\""},
        {"all", "1", "\"1\""},          {"count", "12", "12"},
        {"count", "null", "null"},      {"count", "1.5", "1.5"},
        {"count", "x", "\"x\""},        {"either", "12", "12"},
        {"either", "1e1", "1e1"},       {"either", "1.5", "\"1.5\""},
        {"either", "[1]", "\"[1]\""},   {"loop", "12", "12"},
        {"lost", "12", "12"},           {"unknown", "[1]", "[1]"},
    };
    json_t *parsed = json_loads(tools, 0, NULL);
    ck_assert_ptr_nonnull(parsed);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        char text[256], want[256];
        json_t *msg = NULL;
        snprintf(text, sizeof text, "<tool_call>u<arg_key>%s</arg_key><arg_value>%s</arg_value></tool_call>",
                 rows[i].key, rows[i].value);
        snprintf(want, sizeof want, "{\"%s\": %s}", rows[i].key, rows[i].want);
        ck_assert_int_eq(sl_chat_parse(SL_CHAT_GLM, false, parsed, text, strlen(text), &msg), SL_OK);
        const json_t *call = json_array_get(json_object_get(msg, "tool_calls"), 0);
        ck_assert_str_eq(json_string_value(json_object_get(json_object_get(call, "function"), "arguments")),
                         want);
        json_decref(msg);
    }
    json_decref(parsed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chat schema");
    TCase *c = tcase_create("types");
    tcase_add_test(c, glm_argument_types);
    suite_add_tcase(s, c);
    return run_suite(s);
}
