/*
 * The OpenAI front without sockets: bodies to requests, outputs to documents and events, errors.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/openai_impl.h"
#include "bench/mock/mock.h"
#include "tests/unit/run_suite.h"

static sl_oai_env env;
static sl_tokenizer *tok;

static void setup(void)
{
    sl_err err = {""};
    ck_assert_msg(sl_mock_tokenizer(&tok, &err) == SL_OK, "%s", err.text);
    env = (sl_oai_env){.tok = tok, .chat = SL_CHAT_PLAIN, .served_name = "m"};
}

static void teardown(void)
{
    sl_tokenizer_destroy(tok);
}

static sl_status parse(bool chat, const char *body, sl_oai_request *q, sl_err *err)
{
    return sl_oai_parse(&env, chat, body, strlen(body), q, err);
}

#define ASKED "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

START_TEST(every_field_arrives)
{
    sl_oai_request q;
    sl_err err = {""};
    sl_status st = parse(
        false,
        "{\"model\":\"m\",\"prompt\":\"abc\",\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":5,"
        "\"min_p\":0.1,\"frequency_penalty\":0.25,\"presence_penalty\":-0.5,\"repetition_penalty\":1.5,"
        "\"seed\":42,\"n\":3,\"stop\":[\"x\",\"yz\"],\"stop_token_ids\":[9,10],\"ignore_eos\":true,"
        "\"min_tokens\":2,\"logit_bias\":{\"65\":-100,\"66\":1.5},\"logprobs\":4,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"user\":\"u\"}",
        &q, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    sl_sampling *s = &q.spec.sampling;
    ck_assert_uint_eq(q.spec.n_prompts, 1);
    ck_assert_uint_eq(q.spec.prompts[0].n, 3);
    ck_assert_int_eq(q.spec.prompts[0].ids[2], 'c');
    ck_assert_int_eq(s->max_tokens, 7);
    ck_assert_float_eq(s->temperature, 0.5f);
    ck_assert_float_eq(s->top_p, 0.9f);
    ck_assert_int_eq(s->top_k, 5);
    ck_assert_float_eq(s->min_p, 0.1f);
    ck_assert_float_eq(s->frequency_penalty, 0.25f);
    ck_assert_float_eq(s->presence_penalty, -0.5f);
    ck_assert_float_eq(s->repetition_penalty, 1.5f);
    ck_assert(q.spec.has_seed && s->seed == 42 && q.spec.n == 3);
    ck_assert_uint_eq(q.spec.n_stops, 2);
    ck_assert_str_eq(q.spec.stops[1], "yz");
    ck_assert_uint_eq(s->n_stop_ids, 2);
    ck_assert(s->ignore_eos && s->min_tokens == 2 && s->n_bias == 2);
    ck_assert_int_eq(s->n_logprobs, 4);
    ck_assert(q.stream && q.include_usage && q.logprobs && q.top_logprobs == 4);
    sl_oai_request_free(&q);
}
END_TEST

/* How often the id occurs in the prompt that this body becomes with the tiny model's tokenizer and template. */
static int count_id(bool chat, const char *body, int32_t id)
{
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_msg(parse(chat, body, &q, &err) == SL_OK, "%s", err.text);
    int n = 0;
    for (size_t i = 0; i < q.spec.prompts[0].n; i++)
        n += q.spec.prompts[0].ids[i] == id;
    sl_oai_request_free(&q);
    return n;
}

#define CHAT(extra)                                                                                          \
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a<｜User｜>b\"}]" extra "}"
#define TEXT(extra) "{\"model\":\"m\",\"prompt\":\"a<｜User｜>b\"" extra "}"

/* What users write is ordinary text, unless special tokens were asked for; the template's own tokens are there
 * always. */
START_TEST(special_tokens_of_clients)
{
    sl_tokenizer *tiny;
    ck_assert_int_eq(sl_tokenizer_load("models/tiny-v32", &tiny, NULL), SL_OK);
    sl_oai_env mock = env;
    env.tok = tiny;
    env.chat = SL_CHAT_DSV32;
    int32_t user = sl_tokenizer_id(tiny, "<｜User｜>", strlen("<｜User｜>"));
    ck_assert_int_eq(count_id(true, CHAT(""), user), 1);
    ck_assert_int_eq(count_id(true, CHAT(",\"parse_special\":true"), user), 2);
    ck_assert_int_eq(count_id(false, TEXT(""), user), 0);
    ck_assert_int_eq(count_id(false, TEXT(",\"parse_special\":true"), user), 1);
    env.parse_special = true; /* router.parse_special */
    ck_assert_int_eq(count_id(true, CHAT(""), user), 2);
    ck_assert_int_eq(count_id(true, CHAT(",\"parse_special\":false"), user), 1);
    ck_assert_int_eq(count_id(false, TEXT(",\"parse_special\":false"), user), 0);
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_int_eq(parse(false, TEXT(",\"parse_special\":1"), &q, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "parse_special"));
    env = mock;
    sl_tokenizer_destroy(tiny);
}
END_TEST

START_TEST(defaults)
{
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_int_eq(
        parse(true,
              "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stop\":null,"
              "\"max_tokens\":null}",
              &q, &err),
        SL_OK);
    ck_assert(!q.spec.has_max_tokens && !q.spec.has_seed && !q.stream && q.spec.n == 1);
    ck_assert_float_eq(q.spec.sampling.temperature, 1.0f);
    ck_assert_int_eq(q.spec.sampling.n_logprobs, -1);
    ck_assert_uint_gt(q.spec.prompts[0].n, 2);
    sl_oai_request_free(&q);
}
END_TEST

START_TEST(prompt_shapes)
{
    static const struct {
        const char *prompt;
        size_t n_prompts, n_first;
    } cases[] = {{"\"ab\"", 1, 2},
                 {"[1,2,3]", 1, 3},
                 {"[\"a\",\"bc\"]", 2, 1},
                 {"[[1],[2,3]]", 2, 1},
                 {"[\"a\",[5,6]]", 2, 1}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":%s}", cases[i].prompt);
        sl_oai_request q;
        sl_err err = {""};
        ck_assert_msg(parse(false, body, &q, &err) == SL_OK, "%s: %s", body, err.text);
        ck_assert_uint_eq(q.spec.n_prompts, cases[i].n_prompts);
        ck_assert_uint_eq(q.spec.prompts[0].n, cases[i].n_first);
        sl_oai_request_free(&q);
    }
}
END_TEST

START_TEST(bad_bodies_name_the_field)
{
    static const struct {
        bool chat;
        const char *body, *word;
        sl_status st;
    } cases[] = {
        {false, "", "body", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"\xff\"}", "body", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"model\":\"m\",\"prompt\":\"a\"}", "body", SL_ERR_INVALID},
        {false, "{\"model\":\"x\",\"prompt\":\"a\"}", "model", SL_ERR_NOT_FOUND},
        {false, "{\"model\":5,\"prompt\":\"a\"}", "model", SL_ERR_INVALID},
        {false, "{\"model\":\"m\"}", "prompt", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":[]}", "prompt", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":[1,\"a\"]}", "prompt", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":[1.5]}", "prompt", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":0,\"min_tokens\":1}", "min_tokens",
         SL_ERR_INVALID},
        {true, ASKED ",\"max_tokens\":0}", "max_tokens", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"echo\":1}", "echo", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"prompt_logprobs\":21}", "prompt_logprobs",
         SL_ERR_INVALID},
        {true, ASKED ",\"prompt_logprobs\":true}", "prompt_logprobs", SL_ERR_INVALID},
        {true, ASKED ",\"echo\":true}", "echo", SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"prompt_logprobs\":0,\"stream\":true}", "prompt_logprobs",
         SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"echo\":true,\"logprobs\":0,\"stream\":true}", "echo",
         SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"max_tokens\":4,\"min_tokens\":5}", "min_tokens",
         SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"seed\":1e99}", "seed", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"logprobs\":21}", "logprobs", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"stop\":5}", "stop", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"stop\":\"a\\u0000b\"}", "body", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"stop_token_ids\":[-1]}", "stop_token_ids",
         SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"logit_bias\":{\"-1\":1}}", "logit_bias", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"best_of\":3}", "best_of", SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"suffix\":\"s\"}", "suffix", SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"logit_bias\":{\"1\":1e300}}", "logit_bias",
         SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"guided_json\":3}", "guided_json", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"guided_choice\":[1]}", "guided_choice", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"guided_regex\":\"a\",\"regex\":\"b\"}", "regex",
         SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"structured_outputs\":{\"xml\":1}}", "structured_outputs",
         SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"response_format\":{\"type\":\"xml\"}}",
         "response_format", SL_ERR_UNSUPPORTED},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\"}}",
         "response_format", SL_ERR_INVALID},
        {false, "{\"model\":\"m\",\"prompt\":\"a\",\"tool_choice\":\"required\"}", "tool_choice",
         SL_ERR_UNSUPPORTED},
        {true, ASKED ",\"tool_choice\":\"required\"}", "tool_choice", SL_ERR_INVALID},
        {true, ASKED ",\"tools\":[5]}", "tools[0]", SL_ERR_INVALID},
        {true, ASKED ",\"tools\":[{\"type\":\"function\"}]}", "tools[0].function", SL_ERR_INVALID},
        {true, ASKED ",\"tools\":[{\"type\":\"f\",\"function\":{\"name\":\"f\"}}]}", "tools[0].type",
         SL_ERR_INVALID},
        {true, ASKED ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]}",
         "tools[0].function.name", SL_ERR_INVALID},
        {true, ASKED ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
         "tools[0].function.parameters", SL_ERR_INVALID},
        {true,
         ASKED
         ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\",\"ignore_eos\":true}",
         "ignore_eos", SL_ERR_INVALID},
        {true, "{\"model\":\"m\"}", "messages", SL_ERR_INVALID},
        {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"contnt\":\"a\"}]}",
         "messages[0].contnt: is not a field of this API; did you mean content?", SL_ERR_UNSUPPORTED},
        {true,
         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]}",
         "messages[0].content[0].text: want a string", SL_ERR_INVALID},
        {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":7}]}]}",
         "messages[0].tool_calls[0].function: want an object", SL_ERR_INVALID},
        {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"function_call\":{\"name\":\"f\"}}]}",
         "messages[0].function_call: is not supported", SL_ERR_UNSUPPORTED},
        {true, "{\"model\":\"m\",\"messages\":[]}", "messages", SL_ERR_INVALID},
        {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":{}}", "tools",
         SL_ERR_INVALID},
        {true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}",
         "top_logprobs", SL_ERR_INVALID},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_oai_request q;
        sl_err err = {""};
        sl_status st = parse(cases[i].chat, cases[i].body, &q, &err);
        ck_assert_msg(st == cases[i].st, "%s: %s %s", cases[i].body, sl_status_name(st), err.text);
        ck_assert_msg(strstr(err.text, cases[i].word) != NULL, "%s: %s", cases[i].body, err.text);
    }
}
END_TEST

/* From both sides, before the core looks at them again. */
START_TEST(numbers_of_choices)
{
    static const struct {
        const char *field;
        int most;
    } fields[] = {{"n", 128}, {"best_of", 128}};
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        for (int more = 0; more < 2; more++) {
            char body[128];
            sl_oai_request q;
            sl_err err = {""};
            snprintf(body, sizeof body, "{\"model\":\"m\",\"prompt\":\"a\",\"n\":%d,\"best_of\":%d}",
                     i ? 128 : 128 + more, 128 + more);
            const sl_status st = parse(false, body, &q, &err);
            ck_assert_msg(more ? st == SL_ERR_INVALID && strstr(err.text, fields[i].field) != NULL
                               : st == SL_OK,
                          "%s: %s", body, err.text);
            if (!st)
                sl_oai_request_free(&q);
        }
    }
}
END_TEST

/* Every known field of the API, with one character dropped, doubled, exchanged or replaced: refused, and the field is suggested. */
START_TEST(misspelt_fields_are_refused)
{
    char name[64], body[200];
    const oai_field *f;
    for (size_t i = 0; (f = sl_oai_field(i)); i++) {
        size_t n = strlen(f->name);
        if (!(f->of & (OAI_OF_CHAT | OAI_OF_COMPLETIONS)))
            continue;
        for (size_t at = 1; at < 4 * n && f->how == OAI_USED && n > 3; at++) {
            size_t k = at / 4;
            snprintf(name, sizeof name, "%s", f->name);
            if (at % 4 == 0)
                memmove(name + k, name + k + 1, n - k);
            else if (at % 4 == 1)
                memmove(name + k + 1, name + k, n - k + 1);
            else if (at % 4 == 2)
                name[k] = name[k] == 'z' ? 'y' : 'z';
            else if (k + 1 < n)
                name[k] = f->name[k + 1], name[k + 1] = f->name[k];
            bool chat = f->of & OAI_OF_CHAT, known = false;
            const oai_field *g;
            for (size_t j = 0; (g = sl_oai_field(j)); j++)
                known |= !strcmp(g->name, name);
            if (known || !strcmp(f->name, "model"))
                continue;
            snprintf(body, sizeof body, "{\"model\":\"m\",\"%s\":1}", name);
            sl_oai_request q;
            sl_err err = {""};
            ck_assert_msg(parse(chat, body, &q, &err) == SL_ERR_UNSUPPORTED, "%s: %s", body, err.text);
            ck_assert_msg(strstr(err.text, "did you mean") && strstr(err.text, name), "%s: %s", body,
                          err.text);
            const char *near = sl_oai_field_near(name, chat ? OAI_OF_CHAT : OAI_OF_COMPLETIONS);
            ck_assert_msg(near && abs((int)strlen(near) - (int)strlen(name)) <= 1, "%s: %s", name, near);
            ck_assert_msg(strlen(f->name) < 6 || !strcmp(near, f->name), "%s: %s", name, near);
        }
    }
}
END_TEST

/* Refused fields with the value that changes nothing, and ignored ones with any. */
START_TEST(fields_without_effect_are_accepted)
{
    char body[200];
    const oai_field *f;
    for (size_t i = 0; (f = sl_oai_field(i)); i++) {
        bool chat = f->of == OAI_OF_CHAT;
        if (!(f->of & (OAI_OF_CHAT | OAI_OF_COMPLETIONS)))
            continue;
        const char *value = f->how == OAI_IGNORED ? "{\"x\":[1]}" : f->neutral ? f->neutral : "null";
        snprintf(body, sizeof body, "{\"model\":\"m\",%s,\"%s\":%s}",
                 chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]" : "\"prompt\":\"a\"", f->name,
                 value);
        sl_oai_request q;
        sl_err err = {""};
        if (f->how == OAI_USED)
            continue;
        ck_assert_msg(parse(chat, body, &q, &err) == SL_OK, "%s: %s", body, err.text);
        sl_oai_request_free(&q);
        if (f->how == OAI_IGNORED)
            continue;
        snprintf(body, sizeof body, "{\"model\":\"m\",\"%s\":\"something\"}", f->name);
        ck_assert_int_eq(parse(chat, body, &q, &err), SL_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.text, f->name));
    }
}
END_TEST

/* References within the schemas of tools still lead to where they led. */
START_TEST(forced_calls_become_schemas)
{
    sl_oai_request q;
    env.chat = SL_CHAT_DSV32; /* has tools */
    sl_err err = {""};
    sl_status st = parse(
        true,
        ASKED ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\","
              "\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"$ref\":\"#/$defs/x\"}},"
              "\"$defs\":{\"x\":{\"type\":\"null\"}}}}}]}",
        &q, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    ck_assert_int_eq(q.form, OAI_CALLS);
    ck_assert_int_eq(q.spec.sampling.constraint, SL_GRAMMAR_SCHEMA);
    ck_assert_msg(strstr(q.spec.sampling.grammar, "\"$ref\":\"#/$defs/tool0/$defs/x\"") != NULL, "%s",
                  q.spec.sampling.grammar);
    ck_assert_ptr_nonnull(strstr(q.spec.sampling.grammar, "\"maxItems\":1"));
    sl_oai_request_free(&q);
}
END_TEST

START_TEST(a_user_is_a_string)
{
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_int_eq(parse(false, "{\"model\":\"m\",\"prompt\":\"a\",\"user\":[{\"a\":1}]}", &q, &err),
                     SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "user") != NULL, "%s", err.text);
    ck_assert_int_eq(
        parse(true, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":null}]}", &q, &err),
        SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "content") != NULL, "%s", err.text);
}
END_TEST

START_TEST(depth_is_limited_and_measured)
{
    char body[1024] = "{\"model\":\"m\",\"prompt\":";
    size_t n = strlen(body);
    memset(body + n, '[', 200);
    memset(body + n + 200, ']', 200);
    body[n + 400] = '}';
    sl_json_cost c = sl_json_measure(body, strlen(body));
    ck_assert_uint_eq(c.depth, 201);
    ck_assert_uint_gt(c.bytes, 200 * 100);
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_int_eq(parse(false, body, &q, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "nested") != NULL, "%s", err.text);
    const char *quoted = "{\"a\":\"[[[[\\\"[[\",\"b\":[1]}";
    ck_assert_uint_eq(sl_json_measure(quoted, strlen(quoted)).depth, 2);
}
END_TEST

START_TEST(errors_as_openai)
{
    static const struct {
        sl_status st;
        const char *text;
        int code;
        const char *param;
    } cases[] = {{SL_ERR_INVALID, "body.max_tokens: 0 is out of bounds", 400, "max_tokens"},
                 {SL_ERR_INVALID, "body: line 1: bad", 400, NULL},
                 {SL_ERR_NOT_FOUND, "body.model: no", 404, "model"},
                 {SL_ERR_TOO_LARGE, "prompt: too long", 400, "prompt"},
                 {SL_ERR_EXHAUSTED, "busy", 429, NULL},
                 {SL_ERR_PEER, "prompt: x", 503, NULL},
                 {SL_ERR_DEADLINE, "late", 504, NULL},
                 {SL_ERR_CANCELLED, "aborted", 499, NULL},
                 {SL_ERR_CORRUPT, "", 500, NULL},
                 {SL_ERR_INVALID, "quoted \xff byte", 400, NULL}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        int code;
        char *text = sl_oai_error_json(cases[i].st, cases[i].text, &code);
        ck_assert_ptr_nonnull(text);
        ck_assert_int_eq(code, cases[i].code);
        json_t *o = json_loads(text, 0, NULL), *e = json_object_get(o, "error");
        ck_assert(json_is_string(json_object_get(e, "message")) &&
                  json_is_string(json_object_get(e, "type")) && json_is_string(json_object_get(e, "code")));
        const char *param = json_string_value(json_object_get(e, "param"));
        ck_assert_msg(cases[i].param ? param && !strcmp(param, cases[i].param) : !param, "%s", text);
        json_decref(o);
        free(text);
    }
}
END_TEST

/* ---- answers ---- */

static sl_oai_answer *answer(const char *body, bool chat, uint32_t n)
{
    sl_oai_request q;
    sl_err err = {""};
    ck_assert_msg(parse(chat, body, &q, &err) == SL_OK, "%s", err.text);
    sl_oai_answer *a = sl_oai_answer_create(&env, &q, "id-1", 1234, n, q.spec.n);
    ck_assert_ptr_nonnull(a);
    sl_oai_request_free(&q);
    return a;
}

static void feed(sl_oai_answer *a, uint32_t index, const char *text, uint32_t count)
{
    sl_msg_token t = {.id = text[0] ? text[0] : 'x', .logprob = -0.25f};
    sl_output o = {.index = index,
                   .tokens = &t,
                   .n_tokens = 1,
                   .text = text,
                   .text_len = strlen(text),
                   .matched_token = -1,
                   .prompt_tokens = 5,
                   .completion_tokens = count};
    sl_oai_answer_feed(a, &o);
}

static void finish(sl_oai_answer *a, uint32_t index, sl_finish f, sl_status st, uint32_t count)
{
    sl_output o = {.index = index,
                   .finished = true,
                   .finish = f,
                   .status = st,
                   .error = "it broke",
                   .matched_token = -1,
                   .prompt_tokens = 5,
                   .completion_tokens = count};
    sl_oai_answer_feed(a, &o);
}

/* Events of the stream so far as a JSON array; "[DONE]" as a string. Checks the framing. */
static json_t *events(sl_oai_answer *a)
{
    size_t n;
    const char *p = sl_oai_answer_bytes(a, &n);
    char *copy = strndup(p, n), *rest = copy;
    json_t *list = json_array();
    while (*rest) {
        char *end = strstr(rest, "\n\n");
        ck_assert_msg(end && !strncmp(rest, "data: ", 6), "bad framing: %s", rest);
        *end = 0;
        json_t *o = strcmp(rest + 6, "[DONE]") ? json_loads(rest + 6, 0, NULL) : json_string("[DONE]");
        ck_assert_msg(o != NULL, "no JSON: %s", rest);
        json_array_append_new(list, o);
        rest = end + 2;
    }
    free(copy);
    sl_oai_answer_consume(a, n);
    return list;
}

START_TEST(stream_shape)
{
    sl_oai_answer *a =
        answer("{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true}}",
               true, 1);
    ck_assert(!sl_oai_answer_began(a));
    feed(a, 0, "data: [DONE]\n\n", 1); /* text that looks like the terminator */
    feed(a, 0, "b\"\\", 2);
    finish(a, 0, SL_FINISH_STOP, SL_OK, 2);
    ck_assert(sl_oai_answer_done(a));
    json_t *e = events(a);
    size_t n = json_array_size(e);
    ck_assert_str_eq(json_string_value(json_array_get(e, n - 1)), "[DONE]");
    json_t *usage = json_array_get(e, n - 2), *last = json_array_get(e, n - 3), *first = json_array_get(e, 0);
    ck_assert_uint_eq(json_array_size(json_object_get(usage, "choices")), 0);
    ck_assert(json_is_array(json_object_get(usage, "choices")));
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(usage, "usage"), "total_tokens")), 7);
    for (size_t i = 0; i + 2 < n; i++) {
        json_t *c = json_array_get(e, i);
        ck_assert(json_is_null(json_object_get(c, "usage")));
        ck_assert_str_eq(json_string_value(json_object_get(c, "id")), "id-1");
        ck_assert_int_eq(json_integer_value(json_object_get(c, "created")), 1234);
    }
    json_t *delta = json_object_get(json_array_get(json_object_get(first, "choices"), 0), "delta");
    ck_assert_str_eq(json_string_value(json_object_get(delta, "role")), "assistant");
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(json_object_get(last, "choices"), 0),
                                                       "finish_reason")),
                     "stop");
    json_decref(e);
    sl_oai_answer_destroy(a);
}
END_TEST

START_TEST(failure_before_the_first_byte_is_no_stream)
{
    sl_oai_answer *a = answer("{\"model\":\"m\",\"prompt\":\"a\",\"stream\":true}", false, 1);
    finish(a, 0, SL_FINISH_ERROR, SL_ERR_PEER, 0);
    ck_assert(sl_oai_answer_done(a) && !sl_oai_answer_began(a));
    ck_assert_int_eq(sl_oai_answer_status(a), SL_ERR_PEER);
    sl_oai_answer_destroy(a);
}
END_TEST

START_TEST(failure_in_mid_stream_is_an_error_event)
{
    sl_oai_answer *a = answer("{\"model\":\"m\",\"prompt\":\"a\",\"stream\":true}", false, 1);
    feed(a, 0, "text", 1);
    finish(a, 0, SL_FINISH_ERROR, SL_ERR_PEER, 1);
    feed(a, 0, "after", 2);
    json_t *e = events(a);
    ck_assert_uint_eq(json_array_size(e), 2);
    ck_assert(json_is_object(json_object_get(json_array_get(e, 1), "error")));
    json_decref(e);
    sl_oai_answer_destroy(a);
}
END_TEST

START_TEST(abort_is_never_a_success)
{
    sl_oai_answer *a = answer("{\"model\":\"m\",\"prompt\":\"a\"}", false, 1);
    feed(a, 0, "text", 1);
    finish(a, 0, SL_FINISH_ABORT, SL_ERR_CANCELLED, 1);
    ck_assert_int_eq(sl_oai_answer_status(a), SL_ERR_CANCELLED);
    sl_oai_answer_destroy(a);
}
END_TEST

START_TEST(document_shape)
{
    sl_oai_answer *a = answer("{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"n\":2,\"logprobs\":0}", false, 4);
    for (uint32_t i = 0; i < 4; i++) {
        feed(a, i, "x", 1);
        feed(a, i, "yz", 2);
        ck_assert(!sl_oai_answer_done(a));
        finish(a, i, i % 2 ? SL_FINISH_STOP : SL_FINISH_LENGTH, SL_OK, 2);
    }
    ck_assert(sl_oai_answer_done(a));
    /* counted in the budget */
    ck_assert_uint_gt(sl_oai_answer_memory(a), 4 * 3 * strlen("{\"token_logprobs\":[-0.25]"));
    char *text = sl_oai_answer_json(a, NULL);
    json_t *o = json_loads(text, 0, NULL), *choices = json_object_get(o, "choices");
    ck_assert_uint_eq(json_array_size(choices), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *c = json_array_get(choices, i);
        ck_assert_str_eq(json_string_value(json_object_get(c, "text")), "xyz");
        ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), i % 2 ? "stop" : "length");
        ck_assert_uint_eq(json_array_size(json_object_get(json_object_get(c, "logprobs"), "tokens")), 2);
    }
    json_t *u = json_object_get(o, "usage");
    ck_assert_int_eq(json_integer_value(json_object_get(u, "prompt_tokens")), 10); /* once per prompt */
    ck_assert_int_eq(json_integer_value(json_object_get(u, "completion_tokens")), 8);
    json_decref(o);
    free(text);
    sl_oai_answer_destroy(a);
}
END_TEST

/* Tool calls of a GLM answer: whole, and as deltas whatever the split. */
static const char glm_answer[] =
    "Let me look.<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
    "</tool_call>";
static const char glm_body[] =
    "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"stream\":%s,"
    "\"chat_template_kwargs\":{\"enable_thinking\":false},\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"}}}}}]}";

static sl_oai_answer *glm(const char *stream, size_t step)
{
    env.chat = SL_CHAT_GLM;
    char body[1024], piece[64];
    snprintf(body, sizeof body, glm_body, stream);
    sl_oai_answer *a = answer(body, true, 1);
    uint32_t n = 0;
    for (size_t at = 0; at < strlen(glm_answer); at += step) {
        snprintf(piece, sizeof piece, "%.*s", (int)step, glm_answer + at);
        feed(a, 0, piece, ++n);
    }
    finish(a, 0, SL_FINISH_STOP, SL_OK, n);
    return a;
}

static void check_call(const char *name, const char *arguments)
{
    ck_assert_str_eq(name, "get_weather");
    json_t *o = json_loads(arguments, 0, NULL);
    ck_assert_msg(o != NULL, "arguments are no JSON: %s", arguments);
    ck_assert_str_eq(json_string_value(json_object_get(o, "city")), "Oslo");
    json_decref(o);
}

START_TEST(tool_call_in_a_document)
{
    sl_oai_answer *a = glm("false", 9);
    char *text = sl_oai_answer_json(a, NULL);
    json_t *o = json_loads(text, 0, NULL), *c = json_array_get(json_object_get(o, "choices"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "tool_calls");
    json_t *calls = json_object_get(json_object_get(c, "message"), "tool_calls");
    ck_assert_uint_eq(json_array_size(calls), 1);
    json_t *call = json_array_get(calls, 0), *f = json_object_get(call, "function");
    ck_assert(!strncmp(json_string_value(json_object_get(call, "id")), "call_", 5));
    check_call(json_string_value(json_object_get(f, "name")),
               json_string_value(json_object_get(f, "arguments")));
    json_decref(o);
    free(text);
    sl_oai_answer_destroy(a);
}
END_TEST

START_TEST(tool_call_in_a_stream)
{
    sl_oai_answer *a = glm("true", (size_t)_i);
    json_t *e = events(a), *ev;
    size_t i;
    char name[64] = "", arguments[256] = "", content[128] = "";
    const char *end = NULL;
    json_array_foreach(e, i, ev)
    {
        json_t *c = json_array_get(json_object_get(ev, "choices"), 0), *d = json_object_get(c, "delta");
        const char *t = json_string_value(json_object_get(d, "content"));
        if (t)
            snprintf(content + strlen(content), sizeof content - strlen(content), "%s", t);
        json_t *f = json_object_get(json_array_get(json_object_get(d, "tool_calls"), 0), "function");
        if (json_object_get(f, "name"))
            snprintf(name, sizeof name, "%s", json_string_value(json_object_get(f, "name")));
        t = json_string_value(json_object_get(f, "arguments"));
        if (t)
            snprintf(arguments + strlen(arguments), sizeof arguments - strlen(arguments), "%s", t);
        if (json_is_string(json_object_get(c, "finish_reason")))
            end = json_string_value(json_object_get(c, "finish_reason"));
    }
    check_call(name, arguments);
    ck_assert_str_eq(content, "Let me look.");
    ck_assert_str_eq(end, "tool_calls");
    json_decref(e);
    sl_oai_answer_destroy(a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/openai");
    TCase *t = tcase_create("openai");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, every_field_arrives);
    tcase_add_test(t, defaults);
    tcase_add_test(t, special_tokens_of_clients);
    tcase_add_test(t, prompt_shapes);
    tcase_add_test(t, bad_bodies_name_the_field);
    tcase_add_test(t, a_user_is_a_string);
    tcase_add_test(t, numbers_of_choices);
    tcase_add_test(t, misspelt_fields_are_refused);
    tcase_add_test(t, fields_without_effect_are_accepted);
    tcase_add_test(t, forced_calls_become_schemas);
    tcase_add_test(t, depth_is_limited_and_measured);
    tcase_add_test(t, errors_as_openai);
    tcase_add_test(t, stream_shape);
    tcase_add_test(t, failure_before_the_first_byte_is_no_stream);
    tcase_add_test(t, failure_in_mid_stream_is_an_error_event);
    tcase_add_test(t, abort_is_never_a_success);
    tcase_add_test(t, document_shape);
    tcase_add_test(t, tool_call_in_a_document);
    tcase_add_loop_test(t, tool_call_in_a_stream, 1, 20);
    suite_add_tcase(s, t);
    return run_suite(s);
}
