/*
 * Prompts of a chat: compared with goldens that the models' own encoders have made (tests/golden/chat/make.py,
 * make_gqa.py and make_2026.py), and with written examples for what these do not define. Which text is the client's is marked, and bad
 * requests are explained.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/model/chat_tools.h"
#include "tests/unit/run_suite.h"

START_TEST(golden_prompts)
{
    static const char *const files[] = {GOLDEN_CASES, GOLDEN_GQA, GOLDEN_2026};
    json_t *cases = goldens(files[_i], "prompts"), *c;
    size_t i;
    json_array_foreach(cases, i, c)
    {
        sl_chat_request req = {.messages = json_object_get(c, "messages"),
                               .tools = json_object_get(c, "tools"),
                               .response_format = json_object_get(c, "response_format"),
                               .thinking = thinking_of(c),
                               .effort = str(c, "effort"),
                               .keep_reasoning = json_is_true(json_object_get(c, "keep"))};
        sl_chat_prompt p;
        sl_err err = {{0}};
        sl_status st = sl_chat_render(format_of(str(c, "format")), &req, &p, &err);
        ck_assert_msg(st == SL_OK, "%s: %s", str(c, "name"), err.text);
        ck_assert_uint_eq(p.len, strlen(p.text));
        ck_assert_msg(strcmp(p.text, str(c, "prompt")) == 0, "%s:\n%s\nis not\n%s", str(c, "name"), p.text,
                      str(c, "prompt"));
        sl_chat_prompt_free(&p);
    }
    json_decref(cases);
}
END_TEST

#define LLAMA_NEXT(role, text) "<|start_header_id|>" role "<|end_header_id|>\n\n" text "<|eot_id|>"
#define LLAMA(role, text) "<|begin_of_text|>" LLAMA_NEXT(role, text)
#define LLAMA_END "<|start_header_id|>assistant<|end_header_id|>\n\n"
#define DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
#define ML(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"
#define ML_END "<|im_start|>assistant\n"

static const struct {
    const char *format, *messages,
        *extra; /* extra: tool_choice, response_format, thinking, keep… as an object */
    const char *prompt;
} vectors[] = {
    {"plain", "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Hi\"}]",
     "{}", "system: Be brief.\nuser: Hi\nassistant:"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"Hi\"}]", "{}", BOS USER "Hi" BOT "</think>"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"Hi\"}]", "{\"thinking\":true}", BOS USER "Hi" BOT "<think>"},
    {"dsv32",
     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]"
     "}]",
     "{}", BOS USER "ab" BOT "</think>"},
    {"dsv32",
     "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"assistant\","
     "\"reasoning_content\":\"r\","
     "\"content\":\"2\"},{\"role\":\"user\",\"content\":\"3\"}]",
     "{\"thinking\":true}", BOS "S" USER "1" BOT "</think>2" EOS USER "3" BOT "<think>"},
    /* a developer turn before the last user turn is left out while thinking, unless kept */
    {"dsv32", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"thinking\":true}", BOS USER "u" BOT "<think>"},
    {"dsv32", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"thinking\":true,\"keep\":true}",
     BOS USER "\n\n# The user's message is: d" BOT "</think>" USER "u" BOT "<think>"},
    {"dsv32",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
     "\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"s\\\":\\\"x\\\",\\\"n\\\":[1,2.0]}\"}}]},{\"role\":\"tool\",\"content\":\"ok\"}]",
     "{}",
     BOS USER "u" BOT "</think>\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D
              "parameter name=\"s\" string=\"true\">x</" D "parameter>\n<" D
              "parameter name=\"n\" string=\"false\">[1, 2.0]</" D "parameter>\n</" D "invoke>\n</" D
              "function_calls>" EOS
              "\n\n<function_results>\n<result>ok</result>\n</function_results>\n\n</think>"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"response_format\":{\"type\":\"text\"}}",
     BOS USER "u" BOT "</think>"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"response_format\":{\"type\":\"json_object\"}}",
     BOS "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": "
         "\"json_object\"}" USER "u" BOT "</think>"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}", BOS USER "u" BOT "</think>"},
    {"glm", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"thinking\":true}", "[gMASK]<sop><|system|>d<|user|>u<|assistant|><think>"},
    {"glm",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"<think>\\nr\\n</"
     "think>\\nc \"},{\"role\":\"user\",\"content\":\"v\"}]",
     "{\"keep\":true}", "[gMASK]<sop><|user|>u<|assistant|><think>r</think>c<|user|>v<|assistant|></think>"},
    {"glm45", "[{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     "[gMASK]<sop><|user|>\nu/nothink<|assistant|>\n<think></think>"},
    {"glm45", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"thinking\":true}",
     "[gMASK]<sop><|user|>\nu<|assistant|>"},
    {"glm", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"\u00a0c\u3000\"}]",
     "{}", "[gMASK]<sop><|user|>u<|assistant|></think>c<|assistant|></think>"},
    {"llama3", "[{\"role\":\"developer\",\"content\":\" d \"},{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     LLAMA("system", "d") LLAMA_NEXT("user", "u") LLAMA_END},
    {"llama31", "[{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     LLAMA("system", DATES) LLAMA_NEXT("user", "u") LLAMA_END},
    {"llama31", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"response_format\":{\"type\":\"json_object\"}}",
     LLAMA("system", DATES "d") LLAMA_NEXT(
         "system", "Reply with JSON that follows this schema and nothing else:\n{\"type\": \"json_object\"}")
         LLAMA_NEXT("user", "u") LLAMA_END},
    {"llama31",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
     "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"\\\"r\"}]}]",
     "{}",
     LLAMA("system", DATES) LLAMA_NEXT("user", "u")
         LLAMA_NEXT("assistant", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}")
             LLAMA_NEXT("ipython", "\"\\\"r\"") LLAMA_END},
    {"chatml", "[{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     ML("system", "You are a helpful assistant.") ML("user", "u") ML_END},
    {"qwen25", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"thinking\":true}", ML("system", "d") ML("user", "u") ML_END},
    {"qwen25", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"response_format\":{\"type\":\"json_object\"}}",
     ML("system", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.") ML(
         "system", "Reply with JSON that follows this schema and nothing else:\n{\"type\": \"json_object\"}")
         ML("user", "u") ML_END},
    {"qwen3", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"thinking\":true}", ML("user", "u") ML_END},
    {"qwen3", "[{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     ML("user", "u") ML_END "<think>\n\n</think>\n\n"},
    {"axk2", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"thinking\":true}",
     ML("user", "u") ML_END "<think>\n"},
    {"axk2", "[{\"role\":\"user\",\"content\":\"u\"}]", "{}",
     ML("user", "u") ML_END "<think>\n\n</think>\n\n"},
    /* results of tools without ids stay in their order, and turns of the user next to them are part of theirs */
    {"dsv4",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}},"
     "{\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\",\"content\":\"1\"},{\"role\":\"tool\",\"content\":\"2\"},"
     "{\"role\":\"user\",\"content\":\"v\"}]",
     "{}",
     BOS USER "u" BOT "</think>\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n\n</" D "invoke>\n<" D
              "invoke name=\"g\">\n\n</" D "invoke>\n</" D "tool_calls>" EOS USER
              "<tool_result>1</tool_result>\n\n<tool_result>2</tool_result>\n\nv" BOT "</think>"},
    {"dsv4", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"thinking\":true,\"effort\":\"unknown\"}",
     BOS USER "u" BOT "<think>"},
    /* GLM-5.3 gets no deferred tool, and no thinking is an empty one with the least effort */
    {"glm53", "[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"u\"}]",
     "{\"tools\":[{\"function\":{\"name\":\"f\",\"defer_loading\":true}}],\"tool_choice\":\"none\"}",
     "[gMASK]<sop><|system|>Reasoning Effort: Low<|system|>d<|user|>u<|assistant|><think></think>"},
    {"qwen38", "[{\"role\":\"developer\",\"content\":\" d \"},{\"role\":\"user\",\"content\":\" u\\n\"}]",
     "{\"response_format\":{\"type\":\"json_object\"}}",
     ML("system",
        "d\n\nReply with JSON that follows this schema and nothing else:\n{\"type\": \"json_object\"}")
         ML("user", "u") ML_END "<think>\n\n</think>\n\n"},
    {"qwen38",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"<think>a</think>b\"},"
     "{\"role\":\"user\",\"content\":\"v\"}]",
     "{}",
     ML("user", "u") ML("assistant", "<think>\n\n</think>\n\n<think>a</think>b") ML("user", "v") ML_END
     "<think>\n\n</think>\n\n"},
    {"hy4", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"thinking\":true}",
     "<｜hy_start:opensource｜>system<｜hy_middle:opensource｜><｜reasoning_mode:opensource｜>reasoning_effort:high"
     "<｜hy_end:opensource｜><｜hy_start:opensource｜>user<｜hy_middle:opensource｜>u<｜hy_end:opensource｜>"
     "<｜hy_start:opensource｜>assistant<｜hy_middle:opensource｜>" HY("think")},
    /* reasoning of earlier turns is left out, unless it is kept */
    {"qwen3",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"<think>\\nr\\n</think>\\n\\nc\"},"
     "{\"role\":\"user\",\"content\":\"v\"}]",
     "{\"thinking\":true}", ML("user", "u") ML("assistant", "c") ML("user", "v") ML_END},
    {"qwen3",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"content\":\"c\"},"
     "{\"role\":\"user\",\"content\":\"v\"}]",
     "{\"thinking\":true,\"keep\":true}",
     ML("user", "u") ML("assistant", "<think>\nr\n</think>\n\nc") ML("user", "v") ML_END},
};

static sl_status render(const char *format, const char *messages, const char *extra, char **text, sl_err *err)
{
    json_t *m = parse_json(messages), *x = parse_json(extra);
    sl_chat_request req = {.messages = m,
                           .tools = json_object_get(x, "tools"),
                           .tool_choice = json_object_get(x, "tool_choice"),
                           .response_format = json_object_get(x, "response_format"),
                           .thinking = thinking_of(x),
                           .effort = str(x, "effort"),
                           .keep_reasoning = json_is_true(json_object_get(x, "keep"))};
    sl_chat_prompt p = {0};
    sl_status st = sl_chat_render(format_of(format), &req, &p, err);
    *text = p.text;
    free(p.client);
    json_decref(m);
    json_decref(x);
    return st;
}

START_TEST(written_prompts)
{
    char *text;
    sl_err err = {{0}};
    sl_status st = render(vectors[_i].format, vectors[_i].messages, vectors[_i].extra, &text, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    ck_assert_str_eq(text, vectors[_i].prompt);
    free(text);
}
END_TEST

/* Whether the needle lies in a client's range, or outside of all; it must not do both. */
static bool in_client(const sl_chat_prompt *p, const char *at, size_t n)
{
    size_t from = (size_t)(at - p->text), touched = 0;
    bool inside = false;
    for (size_t i = 0; i < p->n_client; i++) {
        touched += p->client[i].start < from + n && p->client[i].end > from;
        inside |= p->client[i].start <= from && p->client[i].end >= from + n;
    }
    ck_assert(inside == (touched == 1) && touched <= 1);
    return inside;
}

/* Every text of a request, as %MARKER^ (@ is the marker). */
static const char plain_messages[] =
    "[{\"role\":\"system\",\"content\":\"%@^\"},{\"role\":\"user\",\"content\":\"%@^\"},"
    "{\"role\":\"assistant\",\"content\":\"%@^\"},{\"role\":\"user\",\"content\":\"%@^\"}]";
static const char all_messages[] =
    "[{\"role\":\"system\",\"content\":\"%@^\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"%@^\"}]},"
    "{\"role\":\"assistant\",\"content\":\"%@^\",\"reasoning_content\":\"%@^\",\"tool_calls\":[{\"function\":"
    "{\"name\":\"%@^\",\"arguments\":{\"%@^\":\"%@^\",\"k\":[\"%@^\"]}}}]},"
    "{\"role\":\"tool\",\"content\":\"%@^\"},{\"role\":\"user\",\"content\":\"%@^\"}]";
static const char some_tools[] = "[{\"function\":{\"name\":\"%@^\",\"description\":\"%@^\"}}]";

static json_t *with_marker(const char *text, const char *marker)
{
    char body[4096] = "";
    size_t n = 0;
    for (const char *at = text; *at; at++) {
        ck_assert_uint_lt(n + strlen(marker) + 1, sizeof body);
        if (*at == '@')
            n += (size_t)snprintf(body + n, sizeof body - n, "%s", marker);
        else
            body[n++] = *at;
    }
    return parse_json(body);
}

/* The markers inside of %^ are the client's, all others the template's. */
START_TEST(text_of_the_client_is_marked)
{
    static const struct {
        const char *format, *marker;
        int own; /* markers of the template */
    } cases[] = {{"dsv32", USER, 2},
                 {"dsv32", BOT, 2},
                 {"dsv32", EOS, 1},
                 {"glm", "<|user|>", 2},
                 {"glm", "<|assistant|>", 2},
                 {"glm", "<|observation|>", 1},
                 {"glm45", "<|user|>", 2},
                 {"glm45", "<tool_call>", 2},
                 {"plain", "user: ", 2},
                 {"llama3", "<|start_header_id|>", 5},
                 {"llama31", "<|eot_id|>", 5},
                 {"llama31", "<|start_header_id|>", 6},
                 {"chatml", "<|im_end|>", 4},
                 {"qwen25", "<tool_call>", 3},
                 {"qwen3", "<|im_start|>", 6},
                 {"qwen3", "</think>", 2},
                 {"axk2", "<|im_start|>", 6},
                 {"dsv4", USER, 2},
                 {"dsv4", "<tool_result>", 1},
                 {"dsv4", EOS, 1},
                 {"glm53", "<|assistant|>", 2},
                 {"glm53", "</think>", 2},
                 {"hy4", "<｜hy_start:opensource｜>", 6},
                 {"hy4", HY("tool_call"), 2},
                 {"hy4", HY("/arg_value"), 4},
                 {"minimax3", M3, 30},
                 {"minimax3", "</response>", 1},
                 {"minimax3", "<mm:think>", 2},
                 {"qwen38", "<|im_start|>", 6},
                 {"qwen38", "</tool_call>", 3}};
    const char *m = cases[_i].marker;
    sl_chat_format format = format_of(cases[_i].format);
    bool plain =
        format == SL_CHAT_PLAIN || format == SL_CHAT_LLAMA3 || format == SL_CHAT_CHATML; /* without tools */
    json_t *messages = with_marker(plain ? plain_messages : all_messages, m);
    json_t *tools = plain ? NULL : with_marker(some_tools, m);
    sl_chat_request req = {.messages = messages, .tools = tools, .keep_reasoning = true};
    sl_chat_prompt p;
    sl_err err = {{0}};
    sl_status st = sl_chat_render(format, &req, &p, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    int own = 0, theirs = 0;
    for (const char *at = p.text; (at = strstr(at, m)); at++) {
        bool inside = in_client(&p, at, strlen(m));
        ck_assert_int_eq(inside, at > p.text && at[-1] == '%');
        own += !inside;
        theirs += inside;
    }
    ck_assert_int_gt(theirs, 2);
    ck_assert_int_eq(own, cases[_i].own);
    for (const char *at = p.text; (at = strpbrk(at, "%^")); at++)
        ck_assert(in_client(&p, at, 1));
    sl_chat_prompt_free(&p);
    json_decref(messages);
    json_decref(tools);
}
END_TEST

START_TEST(required_tool_is_asked_for)
{
    char *text;
    static const char user[] = "[{\"role\":\"user\",\"content\":\"u\"}]";
    ck_assert_int_eq(render("dsv32", user,
                            "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\"}",
                            &text, NULL),
                     SL_OK);
    ck_assert_ptr_nonnull(
        strstr(text, "{\"name\": \"f\"}\n</functions>\n\nYou must call at least one function"));
    free(text);
    ck_assert_int_eq(render("glm", user,
                            "{\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":"
                            "\"function\",\"function\":{\"name\":\"f\"}}}",
                            &text, NULL),
                     SL_OK);
    ck_assert_ptr_nonnull(strstr(text, "You must call the function f in your reply."));
    free(text);
}
END_TEST

static const struct {
    const char *format, *messages, *extra;
    sl_status st;
    const char *says;
} refused[] = {
    {"dsv32", "[]", "{}", SL_ERR_INVALID, "messages: "},
    {"dsv32", "{}", "{}", SL_ERR_INVALID, "messages: "},
    {"dsv32", "[{\"role\":\"robot\"}]", "{}", SL_ERR_INVALID, "messages[0].role: \"robot\""},
    {"dsv32", "[{\"content\":\"x\"}]", "{}", SL_ERR_INVALID, "messages[0].role"},
    {"dsv32", "[{\"role\":\"user\"}]", "{}", SL_ERR_INVALID, "messages[0].content: is missing"},
    {"dsv32", "[{\"role\":\"user\",\"content\":5}]", "{}", SL_ERR_INVALID, "messages[0].content: must be"},
    {"dsv32", "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "{}", SL_ERR_INVALID,
     "messages[0].content[0].type: \"image_url\": only parts"},
    {"dsv32", "[{\"role\":\"developer\",\"content\":\"\"}]", "{}", SL_ERR_INVALID, "messages[0].content"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"tool\",\"content\":\"r\"}]", "{}",
     SL_ERR_INVALID, "messages[1].role: a tool result"},
    {"dsv32", "[{\"role\":\"tool\",\"content\":\"r\"}]", "{}", SL_ERR_INVALID,
     "messages[0].role: a tool result"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"r\"}]", "{}",
     SL_ERR_INVALID, "messages[1].role: the last"},
    {"dsv32", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"r\"}]",
     "{\"thinking\":true}", SL_ERR_INVALID, "messages[1].reasoning_content"},
    {"dsv32",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":"
     "\"f\",\"arguments\":\"{}\"}},"
     "{\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\",\"content\":\"r\"}]",
     "{}", SL_ERR_INVALID, "messages[2].role: results of some"},
    {"glm",
     "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]",
     "{}", SL_ERR_INVALID, "messages[0].tool_calls: function.arguments"},
    {"glm", "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}]", "{}",
     SL_ERR_INVALID, "lacks function.name"},
    {"glm", "[{\"role\":\"assistant\",\"tool_calls\":3}]", "{}", SL_ERR_INVALID,
     "messages[0].tool_calls: must be an array"},
    {"glm", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tools\":[{}]}", SL_ERR_INVALID,
     "tools[0].function.name"},
    {"glm", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tools\":5}", SL_ERR_INVALID,
     "tools: must be an array"},
    {"glm", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tool_choice\":\"maybe\"}", SL_ERR_INVALID,
     "tool_choice: "},
    {"plain", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tools\":[{\"function\":{\"name\":\"f\"}}]}",
     SL_ERR_UNSUPPORTED, "tools: "},
    {"llama3", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tools\":[{\"function\":{\"name\":\"f\"}}]}",
     SL_ERR_UNSUPPORTED, "tools: "},
    {"llama3", "[{\"role\":\"tool\",\"content\":\"u\"}]", "{}", SL_ERR_INVALID, "messages[0].role: "},
    {"chatml", "[{\"role\":\"user\",\"content\":\"u\"}]", "{\"tools\":[{\"function\":{\"name\":\"f\"}}]}",
     SL_ERR_UNSUPPORTED, "tools: "},
    {"chatml", "[{\"role\":\"tool\",\"content\":\"u\"}]", "{}", SL_ERR_INVALID, "messages[0].role: "},
    {"llama31", "[{\"role\":\"system\",\"content\":\"s\"}]", "{\"tools\":[{\"function\":{\"name\":\"f\"}}]}",
     SL_ERR_INVALID, "tools: this model needs a message of the user first"},
    {"llama31",
     "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}},"
     "{\"function\":{\"name\":\"g\"}}]}]",
     "{}", SL_ERR_INVALID, "messages[1].tool_calls: this model makes one call per turn"},
    {"qwen3", "[{\"role\":\"user\",\"content\":5}]", "{}", SL_ERR_INVALID, "messages[0].content: must be"},
    {"dsv4", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"r\"}]", "{}",
     SL_ERR_INVALID, "messages[1].role: the last"},
    {"dsv4", "[{\"role\":\"user\"}]", "{}", SL_ERR_INVALID, "messages[0].content: is missing"},
    {"dsv4", "[{\"role\":\"developer\",\"content\":\"\"}]", "{}", SL_ERR_INVALID, "messages[0].content"},
    {"minimax3", "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"tool\",\"content\":\"r\"}]", "{}",
     SL_ERR_INVALID, "messages[1].role: a tool result"},
    {"minimax3", "[{\"role\":\"tool\",\"content\":\"r\"}]", "{}", SL_ERR_INVALID,
     "messages[0].role: a tool result"},
    {"qwen38", "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "{}", SL_ERR_INVALID,
     "messages[0].content[0].type: \"image_url\": only parts"},
    {"hy4", "[{\"role\":\"robot\",\"content\":\"r\"}]", "{}", SL_ERR_INVALID, "messages[0].role: \"robot\""},
};

START_TEST(bad_requests_are_explained)
{
    char *text = NULL;
    sl_err err = {{0}};
    ck_assert_int_eq(render(refused[_i].format, refused[_i].messages, refused[_i].extra, &text, &err),
                     refused[_i].st);
    ck_assert_msg(strstr(err.text, refused[_i].says) != NULL, "\"%s\" lacks \"%s\"", err.text,
                  refused[_i].says);
    ck_assert_ptr_null(text);
}
END_TEST

/* Pictures, sounds and files are refused by name in every format: by their type, or by the member of a part without a type. */
START_TEST(parts_that_are_no_text)
{
    static const char *const kinds[] = {"image_url",  "input_image", "image",        "input_audio", "audio",
                                        "audio_url",  "video_url",   "video",        "input_video", "file",
                                        "input_file", "document",    "image_embeds", "refusal",     "Text"};
    const char *const *formats = sl_chat_format_names();
    for (size_t f = 0; formats[f]; f++)
        for (size_t k = 0; k < 2 * SL_COUNT(kinds); k++) {
            const char *kind = kinds[k / 2];
            char messages[256], says[96], *text = NULL;
            sl_err err = {{0}};
            snprintf(
                messages, sizeof messages,
                k % 2
                    ? "[{\"role\":\"user\",\"content\":[\"a\",{\"text\":\"b\",\"%s\":{\"url\":\"data:,\"}}]}]"
                    : "[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"%s\",\"text\":\"b\"}]}]",
                kind);
            snprintf(says, sizeof says, "messages[0].content[1]%s: \"%s\"", k % 2 ? "" : ".type", kind);
            ck_assert_msg(render(formats[f], messages, "{}", &text, &err) == SL_ERR_INVALID &&
                              strstr(err.text, says),
                          "%s: %s: %s", formats[f], messages, err.text);
        }
}
END_TEST

START_TEST(json_is_written_as_python_does)
{
    static const char *const pairs[][2] = {
        {"[1,2.5,\"a\"]", "[1, 2.5, \"a\"]"},
        {"{\"b\":1,\"a\":{}}", "{\"b\": 1, \"a\": {}}"},
        {"\"\\u0001\\b\\t\\n\\f\\r\\u001f\\\\\\\"/\\u007fé\"",
         "\"\\u0001\\b\\t\\n\\f\\r\\u001f\\\\\\\"/\x7fé\""},
        {"1e16", "1e+16"},
        {"1e15", "1000000000000000.0"},
        {"123456789012345680.0", "1.2345678901234568e+17"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"-0.0", "-0.0"},
        {"0.1", "0.1"},
        {"1.0", "1.0"},
        {"1e100", "1e+100"},
        {"5e-324", "5e-324"},
        /* powers of two, whose nearest decimal of 16 digits reads back as another number */
        {"5.684341886080802e-14", "5.684341886080802e-14"},
        {"6.386688990511104e+293", "6.386688990511104e+293"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"[true,false,null,[],{}]", "[true, false, null, [], {}]"},
    };
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        json_t *j = parse_json(pairs[i][0]);
        char *text = sl_chat_json_dumps(j);
        ck_assert_str_eq(text, pairs[i][1]);
        free(text);
        json_decref(j);
    }
}
END_TEST

static const struct {
    const char *model_type, *tokens[3];
    sl_chat_format format;
} vocabularies[] = {
    {"llama", {"<s>"}, SL_CHAT_PLAIN},
    {"llama", {"<|start_header_id|>"}, SL_CHAT_LLAMA3},
    {"llama", {"<|start_header_id|>", "<|eom_id|>"}, SL_CHAT_LLAMA31},
    {"llama", {"<|im_start|>"}, SL_CHAT_PLAIN},
    {"qwen2", {"<|endoftext|>"}, SL_CHAT_PLAIN},
    {"qwen2", {"<|im_start|>"}, SL_CHAT_CHATML},
    {"qwen2", {"<|im_start|>", "<tool_call>"}, SL_CHAT_QWEN25},
    {"qwen3", {"<|im_start|>", "<tool_call>", "<think>"}, SL_CHAT_QWEN3},
    {"qwen3", {"<think>"}, SL_CHAT_PLAIN},
    {"deepseek_v32", {"<|im_start|>"}, SL_CHAT_DSV32},
    {"axk2", {"<|im_start|>"}, SL_CHAT_AXK2},
    {"axk2", {"<s>"}, SL_CHAT_PLAIN},
    {"deepseek_v4", {"<s>"}, SL_CHAT_DSV4},
    {"glm5_next", {"<s>"}, SL_CHAT_GLM53},
    {"hy_v4", {"<s>"}, SL_CHAT_HY4},
    {"minimax_m3_vl", {"<s>"}, SL_CHAT_MINIMAX3},
    {"minimax_m3_vl_text", {"<s>"}, SL_CHAT_MINIMAX3},
    {"qwen4_exp", {"<s>"}, SL_CHAT_QWEN38},
    {"qwen4_exp_text", {"<s>"}, SL_CHAT_QWEN38},
};

/* A tokenizer of one letter and these added tokens. */
static sl_tokenizer *tokenizer_with(const char *const tokens[3])
{
    char text[1024];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"added_tokens\":[");
    for (int i = 0; i < 3 && tokens[i]; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "%s{\"id\":%d,\"content\":\"%s\",\"normalized\":false}", i ? "," : "", i + 1,
                              tokens[i]);
    snprintf(text + n, sizeof text - n,
             "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"
             "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    sl_tokenizer *tok = NULL;
    sl_err err = {{0}};
    ck_assert_msg(sl_tokenizer_parse(text, strlen(text), "test", &tok, &err) == SL_OK, "%s", err.text);
    return tok;
}

START_TEST(every_format_has_a_name)
{
    int n = 0;
    while (sl_chat_format_names()[n])
        n++;
    ck_assert_int_eq(n, SL_CHAT_FORMATS);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(format_of(sl_chat_format_names()[i]), (sl_chat_format)i);
    ck_assert(sl_chat_thinks(SL_CHAT_QWEN3) && sl_chat_thinks(SL_CHAT_GLM) &&
              !sl_chat_thinks(SL_CHAT_QWEN25) && !sl_chat_thinks(SL_CHAT_DSV4));
    ck_assert_int_eq(sl_chat_thinks(SL_CHAT_MINIMAX3), SL_CHAT_THINK_ADAPTIVE);
    ck_assert_str_eq(sl_chat_ends(SL_CHAT_MINIMAX3)[0], "[e~[");
    ck_assert_str_eq(sl_chat_ends(SL_CHAT_LLAMA31)[1], "<|eom_id|>");
    ck_assert_ptr_null(sl_chat_ends(SL_CHAT_PLAIN)[0]);
}
END_TEST

START_TEST(format_of_a_model)
{
    ck_assert_int_eq(sl_chat_format_for("deepseek_v32", NULL), SL_CHAT_DSV32);
    ck_assert_int_eq(sl_chat_format_for("glm_moe_dsa", NULL), SL_CHAT_GLM);
    ck_assert_int_eq(sl_chat_format_for("glm4_moe", NULL), SL_CHAT_GLM45);
    ck_assert_int_eq(sl_chat_format_for("llama", NULL), SL_CHAT_PLAIN);
    for (size_t i = 0; i < SL_COUNT(vocabularies); i++) {
        sl_tokenizer *tok = tokenizer_with(vocabularies[i].tokens);
        ck_assert_int_eq(sl_chat_format_for(vocabularies[i].model_type, tok), vocabularies[i].format);
        sl_tokenizer_destroy(tok);
    }
    sl_chat_format f;
    ck_assert_int_eq(sl_chat_format_parse("jinja", &f), SL_ERR_NOT_FOUND);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chat");
    TCase *c = tcase_create("prompts");
    tcase_add_loop_test(c, golden_prompts, 0, 3);
    tcase_add_loop_test(c, written_prompts, 0, (int)SL_COUNT(vectors));
    tcase_add_loop_test(c, text_of_the_client_is_marked, 0, 30);
    tcase_add_test(c, required_tool_is_asked_for);
    tcase_add_loop_test(c, bad_requests_are_explained, 0, (int)SL_COUNT(refused));
    tcase_add_test(c, parts_that_are_no_text);
    tcase_add_test(c, json_is_written_as_python_does);
    tcase_add_test(c, every_format_has_a_name);
    tcase_add_test(c, format_of_a_model);
    suite_add_tcase(s, c);
    return run_suite(s);
}
