/*
 * What work on the bytes of clients costs: for every parser and every job of the router's pool, and several kinds of text
 * that are made to be slow, an input that is eight times as long takes at most 24 times the processor time. A cost that
 * grows with the square takes 64 times.
 *
 * Also here: the memory that such a job takes is all taken from its guard, and it ends soon after it was stopped.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/guard.h"
#include "base/json.h"
#include "model/chat.h"
#include "model/stop.h"
#include "tests/unit/model/cost_tools.h"
#include "tests/unit/model/tokenizer_tools.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/tokenizer/"
/* What a prompt may be. */
static const kind prompts[] = {
    {"marks of one class", "a", {"\u0301"}, NULL},
    {"marks of two classes", "a", {"\u0315", "\u0316"}, NULL},
    {"marks in falling order", "a", {"\u035C", "\u0345", "\u0301", "\u0323", "\u05B0"}, NULL},
    {"marks that compose", NULL, {"e", "\u0323\u0302\u0301"}, NULL},
    {"marks without a base", NULL, {"\u0327", "\u0301"}, NULL},
    {"Hangul letters", NULL, {"\u1112", "\u1161", "\u11AB"}, NULL},
    {"Hangul vowels", "\u1100", {"\u1161"}, NULL},
    {"compatibility characters", NULL, {"\uFDFA"}, NULL},
    {"Indic vowels", NULL, {"\u0BC6", "\u0BBE", "\u0BD7"}, NULL},
    {"spaces", NULL, {" "}, NULL},
    {"spaces and a letter at the end", NULL, {" "}, "x"},
    {"line breaks", NULL, {"\n"}, NULL},
    {"spaces and line breaks", NULL, {" \n", "\t", "\r"}, "x"},
    {"no-break spaces", NULL, {"\u00A0", "\u3000"}, NULL},
    {"one letter", NULL, {"a"}, NULL},
    {"capitals", NULL, {"A"}, NULL},
    {"one word", NULL, {"qxzjv", "kwq", "bcdfg"}, NULL},
    {"digits", NULL, {"1234567890"}, NULL},
    {"apostrophes", NULL, {"'"}, NULL},
    {"punctuation", NULL, {"!?", "#$%"}, NULL},
    {"dashes and x", NULL, {"--", "x", ",", "#"}, NULL},
    {"ideographs", NULL, {"\u4E00\u9FA5", "\u3042"}, NULL},
    {"letters and marks in turn", NULL, {"\u0628\u0651", "\u05D0\u05B8"}, NULL},
    {"emoji", NULL, {"\U0001F468\u200D"}, NULL},
    {"beginnings of special tokens", NULL, {"<|im_star", "<\uFF5C", "<|"}, NULL},
    {"special tokens", NULL, {"<|im_start|>", "</think>", "<|endoftext|>"}, NULL},
    {"control characters", NULL, {"\x01", "\x7f", "\xC2\x85"}, NULL},
};

/* ---- measuring ---- */

static void check_cost(const char *what, const kind *k, job *run, const void *arg)
{
    text few = make(k, SMALL), many = make(k, TIMES * SMALL);
    double took[2];
    if (steep(&few, &many, run, arg, took))
        ck_abort_msg("%s, %s: %zu bytes take %.1f ms, %zu bytes %.1f ms", what, k->name, few.n, took[0] * 1e3,
                     many.n, took[1] * 1e3);
    free(few.p);
    free(many.p);
}

/* ---- the measure itself ---- */

/* Work that grows with a power of the bytes, so that it takes about 3 ms for the short text. */
static void work_of_power(const void *arg, const text *t)
{
    double n = (double)t->n / SMALL;
    volatile uint64_t sum = 0;
    for (uint64_t i = 0, steps = (uint64_t)(3e6 * pow(n, *(const double *)arg)); i < steps; i++)
        sum += i;
}

/* The square is found, and so is the power of 1.75 (38 times); what is proportional, or a little more, passes. */
START_TEST(a_square_is_found)
{
    static const struct {
        double power;
        bool found;
    } cases[] = {{2, true}, {1.75, true}, {1, false}, {1.2, false}};
    const kind k = {"letters", NULL, {"a"}, NULL};
    text few = make(&k, SMALL), many = make(&k, TIMES * SMALL);
    double took[2];
    ck_assert(TIMES == 8 && MOST == 24); /* docs/security.md */
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_msg(steep(&few, &many, work_of_power, &cases[i].power, took) == cases[i].found,
                      "the power %.2f: %.1f ms, then %.1f ms", cases[i].power, took[0] * 1e3, took[1] * 1e3);
    free(few.p);
    free(many.p);
}
END_TEST

/* ---- tokenizers: normalizers, added tokens, patterns, merges, decoding ---- */

static const char *const tokenizers[] = {TINY "/tokenizer.json", "models/facts-llama/tokenizer.json",
                                         GOLDEN "glm.json",      GOLDEN "flags.json",
                                         GOLDEN "splits.json",   GOLDEN "unk.json",
                                         GOLDEN "llama3.json",   GOLDEN "qwen.json"};

static void encode(const void *tokenizer, const text *t)
{
    const sl_tok_range all = {0, t->n};
    for (int plain = 0; plain < 2; plain++) {
        int32_t *ids = NULL;
        size_t n = 0;
        sl_err err = {""};
        sl_status st =
            sl_tokenizer_encode_mixed(tokenizer, t->p, t->n, 0, &all, (size_t)plain, &ids, &n, &err);
        ck_assert_msg(st == SL_OK, "%s", err.text);
        char *back;
        size_t len;
        ck_assert_int_eq(sl_tokenizer_decode(tokenizer, ids, n, plain, &back, &len), SL_OK);
        free(back);
        free(ids);
    }
}

START_TEST(test_tokenizers)
{
    sl_tokenizer *t = load(tokenizers[_i]);
    for (size_t i = 0; i < SL_COUNT(prompts); i++)
        check_cost(tokenizers[_i], &prompts[i], encode, t);
    sl_tokenizer_destroy(t);
}
END_TEST

/* ---- JSON and chat templates ---- */

static void parse_json(const void *arg, const text *t)
{
    (void)arg;
    json_t *v = NULL;
    sl_json_measure(t->p, t->n);
    sl_status st = sl_json_parse(t->p, t->n, "body", &v, NULL);
    if (!st)
        free(sl_chat_json_dumps(v));
    json_decref(v);
}

static const kind documents[] = {
    {"one string", "\"", {"a"}, "\""},
    {"escapes", "\"", {"\\u0061\\n\\\""}, "\""},
    {"a string that does not end", "\"", {"a\\\\"}, NULL},
    {"numbers", "[", {"1,"}, "1]"},
    {"reals", "[", {"0.1,", "1e300,", "123456.789,"}, "1]"},
    {"one long number", NULL, {"123456789"}, NULL},
    {"one long fraction", "0.", {"123456789"}, NULL},
    {"arrays", "[", {"[],"}, "1]"},
    {"objects", "[", {"{\"a\":1},"}, "1]"},
    {"open brackets", NULL, {"["}, NULL},
    {"open objects", NULL, {"{\"a\":"}, NULL},
    {"one key again and again", "{", {"\"a\":1,"}, "\"b\":1}"},
    {"spaces", NULL, {" ", "\n"}, "1"},
};

START_TEST(test_json)
{
    for (size_t i = 0; i < SL_COUNT(documents); i++)
        check_cost("JSON", &documents[i], parse_json, NULL);
}
END_TEST

/* Objects with n different keys, which no repetition makes. */
START_TEST(test_json_keys)
{
    double took[2];
    for (int i = 0; i < 2; i++) {
        size_t n = i ? 8 * 4000 : 4000;
        size_t cap = n * 24 + 16;
        text t = {malloc(cap), 1};
        t.p[0] = '{';
        for (size_t k = 0; k < n; k++)
            t.n += (size_t)snprintf(t.p + t.n, cap - t.n, "\"k%zu\":%zu%s", k, k, k + 1 < n ? "," : "}");
        took[i] = cost(parse_json, NULL, &t, ROUNDS);
        free(t.p);
    }
    ck_assert_msg(took[1] < MEASURABLE_S || took[1] < MOST * took[0], "%f s, %f s", took[0], took[1]);
}
END_TEST

static const kind conversations[] = {
    {"one long text", "[{\"role\":\"user\",\"content\":\"", {"ab "}, "\"}]"},
    {"one text of marks", "[{\"role\":\"user\",\"content\":\"", {"\u0301\u0316"}, "\"}]"},
    {"line breaks around a text", "[{\"role\":\"user\",\"content\":\"", {"\\n "}, "\"}]"},
    {"many messages",
     "[",
     {"{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"},
     "{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many system messages",
     "[",
     {"{\"role\":\"system\",\"content\":\"a\"},"},
     "{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many assistants",
     "[",
     {"{\"role\":\"assistant\",\"content\":\"<think>a</think>b\",\"reasoning_content\":\"c\"},"},
     "{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many parts",
     "[{\"role\":\"user\",\"content\":[",
     {"{\"type\":\"text\",\"text\":\"a\"},"},
     "{\"type\":\"text\",\"text\":\"a\"}]}]"},
    {"ends of reasoning",
     "[{\"role\":\"assistant\",\"content\":\"",
     {"</think>"},
     "\"},{\"role\":\"user\",\"content\":\"a\"}]"},
    {"begins of reasoning",
     "[{\"role\":\"assistant\",\"content\":\"",
     {"<think>"},
     "</think>\"},{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many calls of a message",
     "[{\"role\":\"assistant\",\"tool_calls\":[",
     {"{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,0.5]}\"}},"},
     "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many messages with a call",
     "[",
     {"{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}}}]},",
      "{\"role\":\"tool\",\"content\":\"c\"},"},
     "{\"role\":\"user\",\"content\":\"a\"}]"},
    {"many tool results",
     "[{\"role\":\"user\",\"content\":\"a\"},",
     {"{\"role\":\"tool\",\"content\":\"c\"},"},
     "{\"role\":\"user\",\"content\":\"a\"}]"},
    {"arguments of many members",
     "[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[",
     {"{\"b\":0.3},"},
     "1]}}}]},{\"role\":\"user\",\"content\":\"a\"}]"},
};

typedef struct render_arg {
    sl_chat_format format;
    const json_t *tools;
} render_arg;

static void render(const void *arg, const text *t)
{
    const render_arg *a = arg;
    json_error_t je;
    json_t *messages = json_loadb(t->p, t->n, 0, &je);
    ck_assert_msg(messages != NULL, "%s", je.text);
    sl_chat_request q = {.messages = messages, .thinking = true, .tools = a->tools};
    sl_chat_prompt p;
    sl_err err = {""};
    if (sl_chat_render(a->format, &q, &p, &err) == SL_OK)
        sl_chat_prompt_free(&p);
    json_decref(messages);
}

START_TEST(test_templates)
{
    render_arg a = {(sl_chat_format)_i, NULL};
    for (size_t i = 0; i < SL_COUNT(conversations); i++)
        check_cost(sl_chat_format_name(a.format), &conversations[i], render, &a);
}
END_TEST

static const kind tool_lists[] = {
    {"many tools",
     "[",
     {"{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"dddddddddddddddddddddddddddddd\"}},"},
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"},
    {"one tool of many properties",
     "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":[",
     {"{\"b\":[1,2]},"},
     "1]}}}]"},
};

static void render_tools(const void *arg, const text *t)
{
    json_t *tools = json_loadb(t->p, t->n, 0, NULL),
           *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "x");
    sl_chat_request q = {.messages = messages, .tools = tools};
    sl_chat_prompt p;
    if (sl_chat_render(*(const sl_chat_format *)arg, &q, &p, NULL) == SL_OK)
        sl_chat_prompt_free(&p);
    json_decref(tools);
    json_decref(messages);
}

START_TEST(test_tools)
{
    sl_chat_format f = (sl_chat_format)_i;
    for (size_t i = 0; i < SL_COUNT(tool_lists); i++)
        check_cost(sl_chat_format_name(f), &tool_lists[i], render_tools, &f);
}
END_TEST

/* ---- answers: reasoning, tool calls ---- */

static const kind answers[] = {
    {"text", NULL, {"ab "}, NULL},
    {"line breaks", NULL, {"\n"}, NULL},
    {"beginnings of markers", NULL, {"</thin", "<tool_cal", "<\uFF5CDSML\uFF5Cfunction_call"}, NULL},
    {"ends of reasoning", NULL, {"</think>"}, NULL},
    {"empty calls", NULL, {"<tool_call>"}, NULL},
    {"spaces in a call", "</think><tool_call>", {" "}, NULL},
    {"an object that does not end", "</think><tool_call>{\"type\":\"", {"a"}, NULL},
    {"open brackets", "</think><tool_call>{\"type\":", {"["}, NULL},
    {"open brackets in an argument",
     "</think><tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
     {"[{\"a\":"},
     NULL},
    {"a string that does not end",
     "</think><tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"",
     {"b\\\\", "\\u00"},
     NULL},
    {"many members", "</think><tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1", {",\"b\":2"}, NULL},
    {"digits", "</think><tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", {"1234"}, NULL},
    {"calls in calls that do not end", "</think>", {"<tool_call>{\"arguments\": {}, "}, NULL},
    {"calls in a call that ends late", "</think>", {"<tool_call>{\"a\": ["}, "]}"},
    {"many calls", "</think>", {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>\n"}, NULL},
    {"bare calls", NULL, {"{\"name\":\"f\",\"parameters\":{\"a\":1}};"}, NULL},
    {"tagged calls",
     "</think>",
     {"<tool_call>f\n<arg_key>a</arg_key><arg_value>[1]</arg_value></tool_call>"},
     NULL},
    {"a tagged value that does not end",
     "</think><tool_call>f<arg_key>a</arg_key><arg_value>",
     {"[1,", "</arg_valu"},
     NULL},
    {"many tagged arguments", "</think><tool_call>f", {"<arg_key>a</arg_key><arg_value>1</arg_value>"}, NULL},
    {"a tag that does not end", "</think><tool_call>f<arg_key>", {"a"}, NULL},
    {"a block that does not end",
     "</think><\uFF5CDSML\uFF5Cfunction_calls><\uFF5CDSML\uFF5Cinvoke name=\"f\"><\uFF5CDSML\uFF5Cparameter name=\"a\" string=\"false\">",
     {"[", "</\uFF5CDSML\uFF5Cparamete"},
     NULL},
};

typedef struct answer_arg {
    sl_chat_format format;
    const json_t *tools;
    size_t piece;
} answer_arg;

static void ignore(void *user, const sl_chat_event *ev)
{
    *(size_t *)user += ev->len;
}

static void parse_answer(const void *arg, const text *t)
{
    const answer_arg *a = arg;
    sl_chat_parser *p;
    size_t out = 0;
    ck_assert_int_eq(sl_chat_parser_create(a->format, true, a->tools, &p), SL_OK);
    for (size_t at = 0; at < t->n; at += a->piece)
        sl_chat_parser_feed(p, t->p + at, t->n - at < a->piece ? t->n - at : a->piece, ignore, &out);
    sl_chat_parser_finish(p, ignore, &out);
    sl_chat_parser_destroy(p);
}

START_TEST(test_answers)
{
    static const size_t pieces[] = {7, 1 << 30};
    json_t *tools = json_pack("[{s:s,s:{s:s}}]", "type", "function", "function", "name", "f");
    for (size_t k = 0; k < SL_COUNT(pieces); k++) {
        answer_arg a = {(sl_chat_format)_i, tools, pieces[k]};
        for (size_t i = 0; i < SL_COUNT(answers); i++)
            check_cost(sl_chat_format_name(a.format), &answers[i], parse_answer, &a);
    }
    json_decref(tools);
}
END_TEST

/* ---- stop strings ---- */

static const kind outputs[] = {
    {"one letter", NULL, {"a"}, NULL},
    {"near misses", NULL, {"aaaaaaaaaaaaaaab"}, NULL},
    {"two letters", NULL, {"ab"}, NULL},
    {"another letter", NULL, {"c"}, NULL},
};

static void stop_feed(const void *arg, const text *t)
{
    static char strings[SL_STOP_MAX][SL_STOP_LEN_MAX + 1];
    const char *list[SL_STOP_MAX];
    for (int i = 0; i < SL_STOP_MAX; i++) {
        size_t n = SL_STOP_LEN_MAX - (size_t)i;
        memset(strings[i], 'a', n);
        strings[i][n] = 0;
        strings[i][i % 2 ? n - 1 : n / 2] = 'd';
        list[i] = strings[i];
    }
    sl_stop *s;
    const char *emit;
    size_t n;
    ck_assert_int_eq(sl_stop_create(list, SL_STOP_MAX, false, &s, NULL), SL_OK);
    for (size_t at = 0, piece = *(const size_t *)arg; at < t->n; at += piece)
        ck_assert_int_eq(sl_stop_feed(s, t->p + at, t->n - at < piece ? t->n - at : piece, &emit, &n), -1);
    sl_stop_destroy(s);
}

START_TEST(test_stops)
{
    static const size_t pieces[] = {3, 1 << 30};
    for (size_t k = 0; k < SL_COUNT(pieces); k++) {
        for (size_t i = 0; i < SL_COUNT(outputs); i++)
            check_cost("stop strings", &outputs[i], stop_feed, &pieces[k]);
    }
}
END_TEST

/* A near miss costs what any other text costs, to a small factor: the strings are not compared at each byte. */
START_TEST(test_near_misses_are_cheap)
{
    size_t piece = 3;
    text near = make(&outputs[1], 64 << 10), far = make(&outputs[3], 64 << 10);
    double a = cost(stop_feed, &piece, &near, ROUNDS), b = cost(stop_feed, &piece, &far, ROUNDS);
    ck_assert_msg(a < MEASURABLE_S || a < 8 * b, "%.1f ms, %.1f ms", a * 1e3, b * 1e3);
    free(near.p);
    free(far.p);
}
END_TEST

/* ---- the normalizer is the reference's ---- */

static uint64_t rng = 88172645463325252ull;

static uint32_t next(uint32_t below)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 20) % below;
}

static size_t put(char *out, uint32_t c)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

/* Marks, what they compose with, Hangul, compatibility characters, anything. */
static uint32_t character(void)
{
    static const uint32_t bases[] = {'a',    'e',    0xE9,   0x1EA5, 0x0915, 0x1100,
                                     0x1161, 0x11A8, 0xAC00, 0xFDFA, 0x212B, 0x0344};
    switch (next(6)) {
    case 0:
        return bases[next((uint32_t)SL_COUNT(bases))];
    case 1:
    case 2:
        return 0x300 + next(0x70);
    case 3:
        return 0x590 + next(0x400);
    case 4:
        return 0x1D100 + next(0x100);
    default: {
        uint32_t c = 0x20 + next(0x2FA00);
        return c >= 0xD800 && c < 0xE000 ? 'x' : c;
    }
    }
}

/* Encoding a text gives the ids of its reference form, which the normalizer leaves as it is. */
START_TEST(test_the_form_is_that_of_the_reference)
{
    static const struct {
        const char *file;
        utf8proc_option_t form;
    } cases[] = {{GOLDEN "qwen.json", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
                 {GOLDEN "flags.json", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT}};
    sl_tokenizer *t = load(cases[_i].file);
    for (int round = 0; round < 300; round++) {
        char in[40000];
        size_t n = 0, chars = round % 20 ? 1 + next(60) : 9000, m[2];
        for (size_t i = 0; i < chars; i++)
            n += put(in + n, character());
        utf8proc_uint8_t *form;
        utf8proc_ssize_t k = utf8proc_map((utf8proc_uint8_t *)in, (utf8proc_ssize_t)n, &form, cases[_i].form);
        ck_assert_int_ge(k, 0);
        int32_t *ids[2] = {NULL, NULL};
        ck_assert_int_eq(sl_tokenizer_encode(t, in, n, SL_TOK_NO_SPECIAL, &ids[0], &m[0], NULL), SL_OK);
        ck_assert_int_eq(
            sl_tokenizer_encode(t, (char *)form, (size_t)k, SL_TOK_NO_SPECIAL, &ids[1], &m[1], NULL), SL_OK);
        ck_assert_uint_eq(m[0], m[1]);
        ck_assert(memcmp(ids[0], ids[1], m[0] * sizeof *ids[0]) == 0);
        free(ids[0]);
        free(ids[1]);
        free(form);
    }
    sl_tokenizer_destroy(t);
}
END_TEST

/* ---- guards ---- */

typedef struct counting {
    sl_guard g;
    uint64_t limit, peak;
} counting;

static bool count(sl_guard *g, uint64_t bytes)
{
    counting *c = (counting *)g;
    if (bytes > g->held && bytes > c->limit)
        return false;
    g->held = bytes;
    c->peak = bytes > c->peak ? bytes : c->peak;
    return true;
}

START_TEST(test_memory_is_taken_from_the_guard)
{
    sl_tokenizer *t = load(tokenizers[_i]);
    for (size_t i = 0; i < SL_COUNT(prompts); i++) {
        text s = make(&prompts[i], 300000);
        counting c = {.g = {.hold = count}, .limit = UINT64_MAX};
        sl_tok_input in = {.text = s.p, .len = s.n, .max_ids = SIZE_MAX, .guard = &c.g};
        int32_t *ids = NULL;
        size_t n;
        ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, NULL), SL_OK);
        ck_assert_uint_ge(c.g.held, n * sizeof *ids); /* the result, and nothing else */
        ck_assert_uint_le(c.g.held, 2 * n * sizeof *ids + 1024);
        free(ids);
        sl_err err = {""};
        c.limit = 1000;
        c.g.held = 0;
        ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_ERR_EXHAUSTED);
        ck_assert_uint_eq(c.g.held, 0);
        c.g.most = c.limit;
        ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_ERR_TOO_LARGE);
        free(s.p);
    }
    sl_tokenizer_destroy(t);
}
END_TEST

START_TEST(test_too_many_ids_are_found_early)
{
    sl_tokenizer *t = load(GOLDEN "llama3.json");
    const kind k = {"words", NULL, {"word ", "1 "}, NULL};
    text s = make(&k, 4 << 20);
    sl_tok_input in = {.text = s.p, .len = s.n, .max_ids = 100};
    int32_t *ids = NULL;
    size_t n;
    sl_err err = {""};
    double begin = cpu_s();
    ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_ERR_TOO_LARGE);
    double took = cpu_s() - begin;
    ck_assert_msg(strstr(err.text, "more than 100 tokens") != NULL, "%s", err.text);
    begin = cpu_s();
    in.max_ids = SIZE_MAX;
    ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_OK);
    ck_assert_msg(took * 3 < cpu_s() - begin, "%f s", took);
    in.max_ids = n;
    free(ids);
    ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_OK);
    free(ids);
    in.max_ids = n - 1;
    ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, &err), SL_ERR_TOO_LARGE);
    free(s.p);
    sl_tokenizer_destroy(t);
}
END_TEST

/* Stops when more than half of the memory that the whole job takes was taken: the job is in the middle of its work. */
static bool stop_at(sl_guard *g, uint64_t bytes)
{
    counting *c = (counting *)g;
    g->held = bytes;
    c->peak = bytes > c->peak ? bytes : c->peak;
    if (c->peak > c->limit)
        sl_guard_stop(g);
    return true;
}

START_TEST(test_a_stop_ends_the_work)
{
    sl_tokenizer *t = load(GOLDEN "qwen.json");
    for (size_t i = 0; i < SL_COUNT(prompts); i++) {
        text s = make(&prompts[i], 1 << 20);
        counting c = {.g = {.hold = count}, .limit = UINT64_MAX};
        sl_tok_input in = {.text = s.p, .len = s.n, .max_ids = SIZE_MAX, .guard = &c.g};
        int32_t *ids = NULL;
        size_t n;
        ck_assert_int_eq(sl_tokenizer_encode_input(t, &in, &ids, &n, NULL), SL_OK);
        free(ids);
        counting d = {.g = {.hold = stop_at}, .limit = c.peak / 4};
        in.guard = &d.g;
        sl_status st = sl_tokenizer_encode_input(t, &in, &ids, &n, NULL);
        ck_assert_msg(st == SL_ERR_CANCELLED, "%s: %s", prompts[i].name, sl_status_name(st));
        ck_assert_uint_eq(d.g.held, 0);
        free(s.p);
    }
    sl_tokenizer_destroy(t);
}
END_TEST

/* Texts within a body that are parsed again, and what a template makes of little. */
START_TEST(test_templates_take_from_the_guard)
{
    static const char *const cases[] = {
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[%s]}\"}}]},"
        "{\"role\":\"user\",\"content\":\"x\"}]",
        "[{\"role\":\"user\",\"content\":\"%s\"}]"};
    char list[20001];
    for (size_t i = 0; i < 20000; i += 4)
        memcpy(list + i, "[],1", 4);
    list[19998] = '1';
    list[19997] = ',';
    list[19999] = ' ';
    list[20000] = 0;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char body[21000];
        snprintf(body, sizeof body, cases[i], list);
        for (char *p = strstr(body, "[],1[]"); p; p = strstr(p, "[],1[]"))
            memcpy(p, "[],[],", 6);
        json_t *messages = json_loads(body, 0, NULL);
        ck_assert_ptr_nonnull(messages);
        counting c = {.g = {.hold = count}, .limit = 4000};
        sl_chat_request q = {.messages = messages, .guard = &c.g};
        sl_chat_prompt p;
        sl_err err = {""};
        ck_assert_msg(sl_chat_render(SL_CHAT_QWEN3, &q, &p, &err) == SL_ERR_EXHAUSTED, "%zu: %s", i,
                      err.text);
        json_decref(messages);
    }
}
END_TEST

START_TEST(test_arguments_have_the_depth_of_a_body)
{
    char args[1024] = "";
    memset(args, '[', 300);
    memset(args + 300, ']', 300);
    char object[1100];
    snprintf(object, sizeof object, "{\"a\":%s}", args);
    json_t *messages =
        json_pack("[{s:s,s:[{s:s,s:{s:s,s:s}}]},{s:s,s:s}]", "role", "assistant", "tool_calls", "type",
                  "function", "function", "name", "f", "arguments", object, "role", "user", "content", "x");
    sl_chat_request q = {.messages = messages};
    sl_chat_prompt p;
    sl_err err = {""};
    ck_assert_int_eq(sl_chat_render(SL_CHAT_QWEN3, &q, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "nested") != NULL, "%s", err.text);
    json_decref(messages);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cost");
    TCase *tc = tcase_create("cost");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, a_square_is_found);
    add_variants(tc, test_tokenizers, SL_COUNT(tokenizers));
    tcase_add_test(tc, test_json);
    tcase_add_test(tc, test_json_keys);
    add_variants(tc, test_templates, SL_CHAT_FORMATS);
    add_variants(tc, test_tools, SL_CHAT_FORMATS);
    add_variants(tc, test_answers, SL_CHAT_FORMATS);
    tcase_add_test(tc, test_stops);
    tcase_add_test(tc, test_near_misses_are_cheap);
    tcase_add_loop_test(tc, test_the_form_is_that_of_the_reference, 0, 2);
    add_variants(tc, test_memory_is_taken_from_the_guard, SL_COUNT(tokenizers));
    tcase_add_test(tc, test_too_many_ids_are_found_early);
    tcase_add_test(tc, test_a_stop_ends_the_work);
    tcase_add_test(tc, test_templates_take_from_the_guard);
    tcase_add_test(tc, test_arguments_have_the_depth_of_a_body);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
