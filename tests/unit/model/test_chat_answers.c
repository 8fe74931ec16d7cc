/*
 * Answers of a chat: compared with goldens that the models' own encoders have made (tests/golden/chat/make.py), and
 * with written examples. Properties of the streaming parser: the parts do not depend on where the text is cut, and an
 * answer that ends early still gives complete JSON.
 */
#include <stdlib.h>

#include "tests/unit/model/chat_tools.h"
#include "tests/unit/run_suite.h"

/* The goldens have arguments as the text that an encoder makes, or as values, which are compared as values. */
static void read_arguments(json_t *msg, const json_t *golden)
{
    size_t k;
    json_t *call;
    json_array_foreach(json_object_get(msg, "tool_calls"), k, call)
    {
        const json_t *theirs = json_array_get(json_object_get(golden, "tool_calls"), k);
        json_t *f = json_object_get(call, "function");
        if (json_is_object(json_object_get(json_object_get(theirs, "function"), "arguments")))
            json_object_set_new(f, "arguments", parse_json(str(f, "arguments")));
    }
}

START_TEST(golden_answers)
{
    static const char *const files[] = {GOLDEN_CASES, GOLDEN_2026};
    json_t *cases = goldens(files[_i], "answers"), *c;
    size_t i;
    json_array_foreach(cases, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *message = json_object_get(c, "message");
        json_t *msg;
        ck_assert_int_eq(sl_chat_parse(format_of(str(c, "format")), thinking_of(c),
                                       json_object_get(c, "tools"), json_string_value(text),
                                       json_string_length(text), &msg),
                         SL_OK);
        read_arguments(msg, message);
        char *got = json_dumps(msg, JSON_SORT_KEYS), *want = json_dumps(message, JSON_SORT_KEYS);
        ck_assert_msg(strcmp(got, want) == 0, "%s: %s is not %s\n%s", str(c, "name"), got, want,
                      json_string_value(text));
        free(got);
        free(want);
        json_decref(msg);
    }
    json_decref(cases);
}
END_TEST

#define TOOLS                                                                                                              \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"                \
    "\"string\"},"                                                                                                         \
    "\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}," \
    "\"o\":{\"type\":[\"object\",\"null\"],\"properties\":{\"s\":{\"type\":\"string\"}}}}}}}]"
#define CALLS(inner) "<" D "function_calls>\n" inner "</" D "function_calls>"
#define INVOKE(name, inner) "<" D "invoke name=\"" name "\">\n" inner "</" D "invoke>\n"
#define PARAM(name, string, v)                                                                               \
    "<" D "parameter name=\"" name "\" string=\"" string "\">" v "</" D "parameter>\n"

#define CALLS4(inner) "<" D "tool_calls>\n" inner "</" D "tool_calls>"
#define M3_CALLS(inner) M3 "<tool_call>\n" inner M3 "</tool_call>"
#define M3_CALL(name, inner) M3 "<invoke name=\"" name "\">" inner M3 "</invoke>\n"
#define M3_ARG(name, v) M3 "<" name ">" v M3 "</" name ">"
#define HY_CALL(name, inner) HY("tool_call") name inner HY("/tool_call")
#define HY_ARG(name, v) HY("arg_key") name HY("/arg_key") HY("arg_value") v HY("/arg_value")
#define QWEN_CALL(name, inner) "<tool_call>\n<function=" name ">\n" inner "</function>\n</tool_call>"
#define QWEN_ARG(name, v) "<parameter=" name ">\n" v "\n</parameter>\n"

#define HERMES(name, args) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"

/* parts: R(reasoning) C(content) name(args) … as the sink below writes them */
static const struct {
    const char *format;
    bool thinking, tools;
    const char *text, *parts;
} answers[] = {
    {"plain", true, true, "<think>x</think><tool_call>", "C(<think>x</think><tool_call>)"},
    {"dsv32", false, true, "just text\n\n", "C(just text\n\n)"},
    {"dsv32", true, true, "why</think>because", "R(why)C(because)"},
    {"dsv32", true, true, "never ends", "R(never ends)"},
    {"dsv32", true, true, "", ""},
    {"dsv32", true, true, "a</thin</think>b</think>", "R(a</thin)C(b</think>)"},
    {"dsv32", false, true,
     "ok\n\n" CALLS(INVOKE("f", PARAM("s", "true", "x \"y\"\n") PARAM("n", "false", "[1, 2]"))),
     "C(ok)f({\"s\": \"x \\\"y\\\"\\n\", \"n\": [1, 2]})"},
    {"dsv32", false, true, "\n\n" CALLS(INVOKE("f", "") INVOKE("g", PARAM("a", "false", "1"))),
     "f({})g({\"a\": 1})"},
    {"dsv32", true, true, "r\n\n" CALLS(INVOKE("f", "")), "R(r)f({})"}, /* without </think> */
    {"dsv32", false, true, CALLS(INVOKE("f", PARAM("n", "false", "not json"))), "f({\"n\": \"not json\"})"},
    {"dsv32", false, true, CALLS(INVOKE("f", PARAM("s", "true", "a</" D "param b"))),
     "f({\"s\": \"a</" D "param b\"})"},
    {"dsv32", false, true, "x\n\n" CALLS(INVOKE("f", "")) "after", "C(x)f({})C(after)"},
    {"dsv32", false, false, "x\n\n" CALLS(INVOKE("f", "")),
     "C(x\n\n" CALLS(INVOKE("f", "")) ")"}, /* no tools: text */
    {"dsv32", false, true, "x<" D "function_calls> what", "C(x<" D "function_calls>what)"},
    {"dsv32", false, true, "<" D "function_calls>\n<" D "invoke name=\"f\">\nodd", "f({})C(odd)"},
    {"dsv32", false, true, "a < b\n<" D "x\n\n\nc", "C(a < b\n<" D "x\n\n\nc)"},
    /* answers that end early */
    {"dsv32", false, true,
     "x\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" string=\"true\">ab",
     "C(x)f({\"s\": \"ab\"})"},
    {"dsv32", false, true,
     "x\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" string=\"true\">ab</" D
     "par",
     "C(x)f({\"s\": \"ab\"})"},
    {"dsv32", false, true,
     "x\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" str", "C(x)f({})"},
    {"dsv32", false, true, "x\n\n<" D "function_calls>\n<" D "invo", "C(x)"},
    {"dsv32", false, true, "x\n\n<" D "funct", "C(x\n\n<" D "funct)"},
    {"glm", true, true, "why</think>because", "R(why)C(because)"},
    {"glm", true, true, "<think>\nwhy\n</think>\n\nbecause\n", "R(why)C(because\n)"},
    {"glm", false, true,
     "text\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</arg_key><arg_value> "
     "12 </arg_value></tool_call>",
     "C(text)f({\"s\": \"12\", \"n\": 12})"},
    {"glm", false, true,
     "<tool_call>g<arg_key>s</arg_key><arg_value>{\"a\":[1]}</arg_value><arg_key>t</arg_key><arg_value>plain "
     "words</arg_value></tool_call>"
     "<tool_call>f</tool_call>\nend",
     "g({\"s\": {\"a\":[1]}, \"t\": \"plain words\"})f({})C(end)"},
    {"glm", false, true, "see <tool_call>{\"name\": \"f\"}</tool_call>",
     "C(see <tool_call>{\"name\": \"f\"}</tool_call>)"},
    {"glm", false, true, "see <tool_call>", "C(see <tool_call>)"},
    {"glm", false, true, "<tool_call>f<arg_key>s</arg_key>oops", "f({})C(<arg_key>s</arg_key>oops)"},
    {"glm", false, true, "<tool_call>f<arg_key>s</arg_key><arg_value>ab</arg_va", "f({\"s\": \"ab\"})"},
    {"glm45", true, true, "\n<think>why</think>\nbecause", "R(why)C(because)"},
    {"glm45", true, true, "no thoughts", "C(no thoughts)"},
    {"glm45", true, true, "\n<thi", "C(<thi)"},
    {"llama3", true, true, "<think>x</think>{\"name\": \"f\", \"parameters\": {}}",
     "C(<think>x</think>{\"name\": \"f\", \"parameters\": {}})"},
    {"chatml", true, true, "<tool_call>", "C(<tool_call>)"},
    {"qwen3", true, true, "<think>\nwhy\n</think>\n\nbecause", "R(why)C(because)"},
    {"qwen3", true, true, "no thoughts", "C(no thoughts)"},
    {"qwen3", false, true, "<think>text</think>", "C(<think>text</think>)"},
    {"qwen3", true, true, "<think>\nwhy\n</think>\n\n" HERMES("f", "{\"s\": \"x\"}"),
     "R(why)f({\"s\": \"x\"})"},
    {"qwen25", true, true, "<think>x", "C(<think>x)"}, /* it does not reason */
    {"qwen25", false, true,
     "ok\n" HERMES("f", "{\"s\":\"a\\nb\",\n \"n\": [1, {\"k\": \"}\"}],\"z\":-1.5e3}"),
     "C(ok)f({\"s\": \"a\\nb\", \"n\": [1, {\"k\": \"}\"}], \"z\": -1.5e3})"},
    {"qwen25", false, true, HERMES("f", "{}") "\n" HERMES("g", "{\"a\": null}") "\nend",
     "f({})g({\"a\": null})C(end)"},
    {"qwen25", false, false, HERMES("f", "{}"), "C(" HERMES("f", "{}") ")"},
    {"qwen25", false, true, "see <tool_call>f", "C(see <tool_call>f)"},
    {"qwen25", false, true, "see <tool_call>", "C(see <tool_call>)"},
    {"qwen25", false, true, "<tool_call>\n{\"city\": {\"a\": 1}}", "C(<tool_call>\n{\"city\": {\"a\": 1}})"},
    /* another order, an inner object, arguments as text, missing arguments */
    {"qwen25", false, true, "<tool_call>{\"arguments\": {\"b\":1}, \"name\": \"g\"}</tool_call>",
     "g({\"b\": 1})"},
    {"qwen25", false, true,
     "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"g\", \"arguments\": \"{\\\"b\\\":1}\"}}</tool_call>x",
     "g({\"b\": 1})C(x)"},
    {"qwen25", false, true, "<tool_call>{\"name\": \"g\"}</tool_call>",
     "C(<tool_call>{\"name\": \"g\"}</tool_call>)"},
    /* what is no JSON becomes JSON: line breaks and wrong escapes in strings, half a surrogate pair, words */
    {"qwen25", false, true,
     HERMES("f", "{\"s\": \"a\nb\\x\\ud83d\\ude00\\ud83d-\\u00e9\\u12\", \"n\": True}"),
     "f({\"s\": \"a\\nb\\\\x\\ud83d\\ude00\\ufffd-\\u00e9\\\\u12\", \"n\": \"True\"})"},
    {"qwen25", false, true, HERMES("f", "{\"a\": 1, b: 2}"), "f({\"a\": 1})C(b: 2}}\n</tool_call>)"},
    /* answers that end early */
    {"qwen25", false, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"ab\\",
     "f({\"s\": \"ab\"})"},
    {"qwen25", false, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 12", "f({})"},
    {"qwen25", false, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 12, \"m\": [1",
     "f({\"n\": 12})"},
    {"qwen25", false, true, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_", "f({})"},
    {"qwen25", false, true, "<tool_call>\n{\"name\": \"f\", \"arg",
     "C(<tool_call>\n{\"name\": \"f\", \"arg)"},
    {"llama31", false, true, " {\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", "f({\"s\": \"x\"})"},
    {"llama31", true, true,
     "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": 1}}\n",
     "f({})g({\"a\": 1})"},
    {"llama31", false, true,
     "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"n\": 2}}<|eom_id|>",
     "f({\"n\": 2})C(<|eom_id|>)"},
    {"llama31", false, true, "<|python_tag|>print(1)", "C(<|python_tag|>print(1))"},
    {"llama31", false, true, " {\"answer\": {\"name\": \"f\"}} ", "C( {\"answer\": {\"name\": \"f\"}} )"},
    {"llama31", false, true, "{\"name\": \"Bob\", \"age\": 3}", "C({\"name\": \"Bob\", \"age\": 3})"},
    {"llama31", false, true, "text {\"name\": \"f\", \"parameters\": {}}",
     "C(text {\"name\": \"f\", \"parameters\": {}})"},
    /* DeepSeek-V4: the markers of V3.2 are text */
    {"dsv4", true, true, "why</think>ok\n\n" CALLS4(INVOKE("f", PARAM("s", "true", "x"))),
     "R(why)C(ok)f({\"s\": \"x\"})"},
    {"dsv4", false, true, CALLS4(INVOKE("f", "") INVOKE("g", PARAM("n", "false", "{\"a\": [1]}"))),
     "f({})g({\"n\": {\"a\": [1]}})"},
    {"dsv4", false, true, CALLS(INVOKE("f", "")), "C(" CALLS(INVOKE("f", "")) ")"},
    {"dsv4", true, true, "still thinking", "R(still thinking)"},
    /* a call that is not closed, before the end of its block */
    {"dsv4", false, true, "<" D "tool_calls>\n<" D "invoke name=\"f\">\n</" D "tool_calls>x", "f({})C(x)"},
    {"glm53", true, true,
     "why</think>ok<tool_call>f<arg_key>n</arg_key><arg_value>12</arg_value></tool_call>",
     "R(why)C(ok)f({\"n\": 12})"},
    {"glm53", false, true, "<tool_call>f<arg_key>b</arg_key><arg_value>True</arg_value></tool_call>",
     "f({\"b\": true})"},
    {"axk2", true, true, "why\n</think>\n\n" HERMES("f", "{\"s\": \"x\"}"), "R(why)f({\"s\": \"x\"})"},
    {"axk2", true, true, "<think>why", "R(why)"},
    {"axk2", false, true, "no reasons", "C(no reasons)"},
    /* Qwen3.8: one line break at each end of a value belongs to the tags */
    {"qwen38", true, true,
     "why\n</think>\n\nok\n\n" QWEN_CALL("f", QWEN_ARG("s", "a\nb") QWEN_ARG("n", "12")),
     "R(why)C(ok)f({\"s\": \"a\\nb\", \"n\": 12})"},
    {"qwen38", false, true,
     QWEN_CALL("f", QWEN_ARG("s", "\n\n")) "\n" QWEN_CALL("g", QWEN_ARG("x", "{\"a\": 1}")) "\nend",
     "f({\"s\": \"\\n\\n\"})g({\"x\": {\"a\": 1}})C(end)"},
    {"qwen38", false, true, QWEN_CALL("f", "<parameter=s>x</parameter><parameter=n>1</parameter>"),
     "f({\"s\": \"x\", \"n\": 1})"},
    {"qwen38", false, true, QWEN_CALL("f", QWEN_ARG("s", "</param") QWEN_ARG("x", "not json\n")),
     "f({\"s\": \"</param\", \"x\": \"not json\\n\"})"},
    {"qwen38", false, true, QWEN_CALL("f", "") QWEN_CALL("g", ""), "f({})g({})"},
    {"qwen38", false, true, "<tool_call>\n<function=f>\n<parameter=s>\nab", "f({\"s\": \"ab\"})"},
    {"qwen38", false, true, "<tool_call>\n<function=f>\n<parameter=s>\nab\n</parame", "f({\"s\": \"ab\"})"},
    {"qwen38", false, true, "<tool_call>\n<function=f>\n<parameter=", "f({})"},
    {"qwen38", false, true, "<tool_call>{\"name\": \"f\"}", "C(<tool_call>{\"name\": \"f\"})"},
    {"qwen38", false, true, "<tool_call>\n<function=two words>", "C(<tool_call><function=two words>)"},
    {"qwen38", false, false, QWEN_CALL("f", ""), "C(" QWEN_CALL("f", "") ")"},
    /* MiniMax-M3: types come from the schema, at every depth */
    {"minimax3", true, true, "why</mm:think>ok" M3_CALLS(M3_CALL("f", M3_ARG("s", "12") M3_ARG("n", "12"))),
     "R(why)C(ok)f({\"s\": \"12\", \"n\": 12})"},
    {"minimax3", false, true,
     M3_CALLS(M3_CALL("f", M3_ARG("l", M3_ARG("item", "1") M3_ARG("item", ""))
                               M3_ARG("o", M3_ARG("s", "2") M3_ARG("x", "2")))),
     "f({\"l\": [\"1\", \"\"], \"o\": {\"s\": \"2\", \"x\": 2}})"},
    {"minimax3", false, true,
     M3_CALLS(M3_CALL("f", M3_ARG("l", "") M3_ARG("o", "") M3_ARG("s", "") M3_ARG("x", ""))),
     "f({\"l\": [], \"o\": {}, \"s\": \"\", \"x\": \"\"})"},
    {"minimax3", false, true,
     M3_CALLS(M3_CALL("g", M3_ARG("a", M3_ARG("a", M3_ARG("a", "1")) " " M3_ARG("b", "[1]")))
                  M3_CALL("f", "")),
     "g({\"a\": {\"a\": {\"a\": 1}, \"b\": [1]}})f({})"},
    {"minimax3", false, true, M3_CALLS(M3_CALL("f", M3_ARG("s", "a " M3 "<b> c"))),
     "f({\"s\": \"a " M3 "<b> c\"})"},
    /* values that are no elements are texts: a text between tags, a tag that another one closes */
    {"minimax3", false, true, M3_CALLS(M3_CALL("g", M3_ARG("a", "x" M3_ARG("b", "1")))),
     "g({\"a\": \"x" M3_ARG("b", "1") "\"})"},
    {"minimax3", false, true, M3_CALLS(M3_CALL("g", M3_ARG("a", M3 "<b>1" M3 "</c>"))),
     "g({\"a\": \"" M3 "<b>1" M3 "</c>\"})"},
    {"minimax3", false, true, M3_CALLS(M3_CALL("g", M3_ARG("a", M3_ARG("item", "1") M3_ARG("b", "2")))),
     "g({\"a\": \"" M3_ARG("item", "1") M3_ARG("b", "2") "\"})"},
    {"minimax3", false, true,
     M3 "<tool_call>\n" M3 "<invoke name=\"f\">" M3_ARG("s", "x") M3 "</tool_call>end",
     "f({\"s\": \"x\"})C(end)"},
    {"minimax3", false, true, M3 "<tool_call>what", "C(" M3 "<tool_call>what)"},
    {"minimax3", false, true, "<tool_call>" M3 "x", "C(<tool_call>" M3 "x)"},
    {"minimax3", false, true, M3 "<tool_call>" M3 "<invoke name=\"f\">" M3 "<o>" M3 "<s>a" M3 "</",
     "f({\"o\": \"" M3 "<s>a\"})"},
    {"minimax3", false, true, M3 "<tool_call>" M3 "<invoke name=\"f\">" M3 "<s>ab" M3 "</",
     "f({\"s\": \"ab\"})"},
    {"minimax3", true, true, "<think>x</think>", "R(<think>x</think>)"},
    {"hy4", true, true,
     "why" HY("/think") HY("tool_calls") HY_CALL("f", HY_ARG("s", "1") HY_ARG("n", "1")) HY_CALL("g", "")
         HY("/tool_calls"),
     "R(why)f({\"s\": \"1\", \"n\": 1})g({})"},
    {"hy4", true, true, HY("/think") "ok", "C(ok)"},
    {"hy4", false, true, "a" HY("tool_calls") HY("tool_call") "{}",
     "C(a" HY("tool_calls") HY("tool_call") "{})"},
    {"hy4", false, true, HY("tool_calls") HY_CALL("f", "") HY("tool_call") "no name",
     "f({})C(" HY("tool_call") "no name)"},
    {"hy4", false, true, "<tool_calls><tool_call>f</tool_call></tool_calls>",
     "C(<tool_calls><tool_call>f</tool_call></tool_calls>)"},
    {"hy4", false, true,
     HY("tool_calls") "\n" HY_CALL("f", HY_ARG("o", "{\"s\": [") "\n") "\n" HY("/tool_calls"),
     "f({\"o\": \"{\\\"s\\\": [\"})"},
    {"llama31", false, false, "{\"name\": \"f\", \"parameters\": {}}",
     "C({\"name\": \"f\", \"parameters\": {}})"},
    {"llama31", false, true, "  ", "C(  )"},
};

typedef struct collected {
    char text[32768];
    size_t n;
    char open; /* kind of the part being written, 0 = none */
    int calls, ended;
} collected;

static void put(collected *c, const char *text, size_t len)
{
    ck_assert_uint_lt(c->n + len, sizeof c->text);
    memcpy(c->text + c->n, text, len);
    c->n += len;
    c->text[c->n] = '\0';
}

static void close_part(collected *c)
{
    if (c->open)
        put(c, ")", 1);
    c->open = 0;
}

static void sink(void *user, const sl_chat_event *ev)
{
    collected *c = user;
    char kind = "RCTTT"[ev->kind];
    if (kind != 'T') {
        ck_assert_int_eq(ev->index, -1);
        ck_assert_uint_gt(ev->len, 0);
        ck_assert_int_eq(c->calls, c->ended);
        if (c->open != kind) {
            close_part(c);
            put(c, kind == 'R' ? "R(" : "C(", 2);
            c->open = kind;
        }
        put(c, ev->text, ev->len);
        return;
    }
    if (ev->kind == SL_CHAT_TOOL_BEGIN) {
        close_part(c);
        ck_assert_int_eq(c->calls, c->ended);
        c->calls++;
        put(c, ev->text, ev->len);
        put(c, "(", 1);
    } else if (ev->kind == SL_CHAT_TOOL_ARGS) {
        put(c, ev->text, ev->len);
    } else {
        c->ended++;
        put(c, ")", 1);
    }
    ck_assert_int_eq(ev->index, c->calls - 1);
}

static void stream(const char *format, bool thinking, const json_t *tools, const char *text, size_t len,
                   size_t step, collected *c)
{
    sl_chat_parser *p;
    memset(c, 0, sizeof *c);
    ck_assert_int_eq(sl_chat_parser_create(format_of(format), thinking, tools, &p), SL_OK);
    for (size_t at = 0; at < len; at += step)
        ck_assert_int_eq(sl_chat_parser_feed(p, text + at, len - at < step ? len - at : step, sink, c),
                         SL_OK);
    ck_assert_int_eq(sl_chat_parser_finish(p, sink, c), SL_OK);
    close_part(c);
    ck_assert_int_eq(sl_chat_parser_tool_calls(p), c->calls);
    ck_assert_int_eq(c->calls, c->ended);
    sl_chat_parser_destroy(p);
}

START_TEST(any_cut_gives_the_same_parts)
{
    json_t *tools = answers[_i].tools ? parse_json(TOOLS) : NULL;
    size_t len = strlen(answers[_i].text);
    for (size_t step = 1; step <= len + 1; step++) {
        collected c;
        stream(answers[_i].format, answers[_i].thinking, tools, answers[_i].text, len, step, &c);
        ck_assert_msg(strcmp(c.text, answers[_i].parts) == 0, "cut by %zu: \"%s\", not \"%s\"", step, c.text,
                      answers[_i].parts);
    }
    json_decref(tools);
}
END_TEST

/* The text in three pieces: up to a, up to b, and the rest. */
static void stream_pieces(sl_chat_format format, sl_chat_think thinking, const json_t *tools,
                          const char *text, size_t len, size_t a, size_t b, collected *c)
{
    sl_chat_parser *p;
    const size_t ends[] = {0, a, b, len};
    c->n = 0; /* the text is long: it is not cleared */
    c->text[0] = c->open = 0;
    c->calls = c->ended = 0;
    ck_assert_int_eq(sl_chat_parser_create(format, thinking, tools, &p), SL_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(sl_chat_parser_feed(p, text + ends[i], ends[i + 1] - ends[i], sink, c), SL_OK);
    ck_assert_int_eq(sl_chat_parser_finish(p, sink, c), SL_OK);
    close_part(c);
    sl_chat_parser_destroy(p);
}

/* The divisions into two pieces, and into three of which the second has up to nine bytes: at every place, or every step. */
static void check_divisions(sl_chat_format format, sl_chat_think thinking, const json_t *tools,
                            const char *text, size_t step)
{
    static collected whole, cut;
    size_t len = strlen(text);
    stream_pieces(format, thinking, tools, text, len, 0, 0, &whole);
    for (size_t a = 0; a <= len; a += step) {
        size_t b = a + a % 10 < len ? a + a % 10 : len;
        stream_pieces(format, thinking, tools, text, len, a, b, &cut);
        ck_assert_msg(strcmp(whole.text, cut.text) == 0, "%s cut at %zu and %zu: \"%s\", not \"%s\"", text, a,
                      b, cut.text, whole.text);
    }
}

/* The answers of every format, read by every other format as well. */
START_TEST(any_division_gives_the_same_parts)
{
    json_t *tools = parse_json(TOOLS);
    for (int f = _i; f < _i + SL_CHAT_FORMATS; f++)
        check_divisions((sl_chat_format)(f % SL_CHAT_FORMATS), (sl_chat_think)(f % 3), tools,
                        answers[_i].text, 7);
    check_divisions(format_of(answers[_i].format), answers[_i].thinking, tools, answers[_i].text,
                    RUN_SUITE_SANITIZED ? 5 : 1);
    json_decref(tools);
}
END_TEST

START_TEST(any_division_of_the_goldens_gives_the_same_parts)
{
    json_t *cases = goldens(GOLDEN_2026, "answers"), *c;
    size_t i;
    json_array_foreach(cases, i, c)
    {
        check_divisions(format_of(str(c, "format")), thinking_of(c), json_object_get(c, "tools"),
                        str(c, "text"), RUN_SUITE_SANITIZED ? 11 : 1);
    }
    json_decref(cases);
}
END_TEST

/* Where the prompt leaves it to the model whether it reasons. */
START_TEST(adaptive_reasoning)
{
    static const char *const cases[][2] = {{"<mm:think>why</mm:think>ok", "R(why)C(ok)"},
                                           {"</mm:think>ok", "C(ok)"},
                                           {"ok", "C(ok)"},
                                           {"<mm:think>why", "R(why)"},
                                           {"<mm:thin", "C(<mm:thin)"},
                                           {"", ""},
                                           {"ok</mm:think>", "C(ok</mm:think>)"}};
    static collected c;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        const char *text = cases[i][0];
        stream_pieces(SL_CHAT_MINIMAX3, SL_CHAT_THINK_ADAPTIVE, NULL, text, strlen(text), 0, 0, &c);
        ck_assert_str_eq(c.text, cases[i][1]);
        check_divisions(SL_CHAT_MINIMAX3, SL_CHAT_THINK_ADAPTIVE, NULL, text, 1);
    }
    stream_pieces(SL_CHAT_QWEN38, SL_CHAT_THINK_ADAPTIVE, NULL, "why</think>ok", 13, 0, 0, &c);
    ck_assert_str_eq(c.text, "R(why)C(ok)");
}
END_TEST

static unsigned below(unsigned n)
{
    static uint64_t rng = 88172645463325252ull;
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (unsigned)(rng >> 20) % n;
}

/* An answer of which one byte, or a blank before it, comes thousands of times: around the bounds of what may wait, and beyond. */
static size_t stretched(const char *text, char *out)
{
    static const unsigned around[] = {1024, 4096, 8192};
    size_t n = strlen(text), at = n ? below((unsigned)n) : 0;
    unsigned times = below(4) ? around[below(3)] - below(130) + 3 : 3 + below(9000);
    char c = below(2) ? text[at] : " \n\t\r"[below(4)];
    if ((unsigned char)text[at] >= 0x80) /* it would not be a character */
        c = '\n', at = 0;
    memcpy(out, text, at);
    memset(out + at, c, times);
    memcpy(out + at + times, text + at, n - at);
    return n + times;
}

START_TEST(long_parts_are_the_same_however_they_are_cut)
{
    json_t *tools = answers[_i].tools ? parse_json(TOOLS) : NULL;
    static char text[32768];
    static collected whole, cut;
    for (int k = 0; k < 25; k++) {
        static const size_t steps[] = {1, 7, 61, 4095, 4096, 5000};
        size_t len = stretched(answers[_i].text, text), step = steps[below(SL_COUNT(steps))];
        stream(answers[_i].format, answers[_i].thinking, tools, text, len, len, &whole);
        stream(answers[_i].format, answers[_i].thinking, tools, text, len, step, &cut);
        ck_assert_msg(strcmp(whole.text, cut.text) == 0, "%s, %zu bytes cut by %zu: other parts",
                      answers[_i].text, len, step);
    }
    json_decref(tools);
}
END_TEST

/* Every prefix of an answer gives calls whose arguments are complete JSON. */
START_TEST(truncated_calls_are_whole_json)
{
    json_t *tools = parse_json(TOOLS);
    for (size_t len = 0; len <= strlen(answers[_i].text); len++) {
        json_t *msg, *call;
        size_t k;
        if (answers[_i].text[len] && ((unsigned char)answers[_i].text[len] & 0xC0) == 0x80)
            continue; /* the cut is inside a character */
        ck_assert_int_eq(sl_chat_parse(format_of(answers[_i].format), answers[_i].thinking, tools,
                                       answers[_i].text, len, &msg),
                         SL_OK);
        json_array_foreach(json_object_get(msg, "tool_calls"), k, call)
        {
            json_t *args = json_loads(str(json_object_get(call, "function"), "arguments"), 0, NULL);
            ck_assert_msg(json_is_object(args), "%s", str(json_object_get(call, "function"), "arguments"));
            json_decref(args);
        }
        json_decref(msg);
    }
    json_decref(tools);
}
END_TEST

/* Text is emitted as soon as it cannot be the beginning of a marker any more. */
START_TEST(nothing_is_held_longer_than_needed)
{
    json_t *tools = parse_json(TOOLS);
    sl_chat_parser *p;
    collected c = {{0}, 0, 0, 0, 0};
    ck_assert_int_eq(sl_chat_parser_create(SL_CHAT_DSV32, true, tools, &p), SL_OK);
    sl_chat_parser_feed(p, "abc", 3, sink, &c);
    ck_assert_str_eq(c.text, "R(abc");
    sl_chat_parser_feed(p, "</th", 4, sink, &c);
    ck_assert_str_eq(c.text, "R(abc");
    sl_chat_parser_feed(p, "e", 1, sink, &c);
    ck_assert_str_eq(c.text, "R(abc</the");
    sl_chat_parser_feed(p, "</think>x", 9, sink, &c);
    ck_assert_str_eq(c.text, "R(abc</the)C(x");
    static const char open[] =
        "\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" string=\"true\">va";
    sl_chat_parser_feed(p, open, sizeof open - 1, sink, &c);
    ck_assert_str_eq(c.text, "R(abc</the)C(x)f({\"s\": \"va");
    sl_chat_parser_feed(p, "lue<", 4, sink, &c);
    ck_assert_str_eq(c.text, "R(abc</the)C(x)f({\"s\": \"value");
    sl_chat_parser_feed(p, "b", 1, sink, &c);
    ck_assert_str_eq(c.text, "R(abc</the)C(x)f({\"s\": \"value<b");
    sl_chat_parser_destroy(p);
    sl_chat_parser_destroy(NULL);
    json_decref(tools);
}
END_TEST

static void feed(sl_chat_parser *p, const char *text, collected *c)
{
    ck_assert_int_eq(sl_chat_parser_feed(p, text, strlen(text), sink, c), SL_OK);
}

START_TEST(arguments_of_json_calls_are_streamed)
{
    json_t *tools = parse_json(TOOLS);
    sl_chat_parser *p;
    collected c = {{0}, 0, 0, 0, 0};
    ck_assert_int_eq(sl_chat_parser_create(SL_CHAT_QWEN25, false, tools, &p), SL_OK);
    feed(p, "<tool_call>\n{\"name\": \"f\", ", &c);
    ck_assert_str_eq(c.text, "");
    feed(p, "\"arguments\": {", &c);
    ck_assert_str_eq(c.text, "f(");
    feed(p, "\"s\": \"va", &c);
    ck_assert_str_eq(c.text, "f({\"s\": \"va");
    feed(p, "l\\", &c);
    ck_assert_str_eq(c.text, "f({\"s\": \"val");
    feed(p, "nue\", \"n\": 1", &c);
    ck_assert_str_eq(c.text, "f({\"s\": \"val\\nue\"");
    feed(p, "2}", &c);
    ck_assert_str_eq(c.text, "f({\"s\": \"val\\nue\", \"n\": 12})");
    sl_chat_parser_destroy(p);
    json_decref(tools);
}
END_TEST

START_TEST(broken_utf8_is_refused)
{
    json_t *msg = NULL;
    ck_assert_int_eq(sl_chat_parse(SL_CHAT_GLM, false, NULL, "a\xff", 2, &msg), SL_ERR_INVALID);
    ck_assert_ptr_null(msg);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chat_answers");
    TCase *c = tcase_create("answers");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, golden_answers, 0, 2);
    add_variants(c, any_cut_gives_the_same_parts, SL_COUNT(answers));
    add_variants(c, any_division_gives_the_same_parts, SL_COUNT(answers));
    tcase_add_test(c, any_division_of_the_goldens_gives_the_same_parts);
    tcase_add_test(c, adaptive_reasoning);
    add_variants(c, long_parts_are_the_same_however_they_are_cut, SL_COUNT(answers));
    add_variants(c, truncated_calls_are_whole_json, SL_COUNT(answers));
    tcase_add_test(c, nothing_is_held_longer_than_needed);
    tcase_add_test(c, arguments_of_json_calls_are_streamed);
    tcase_add_test(c, broken_utf8_is_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
