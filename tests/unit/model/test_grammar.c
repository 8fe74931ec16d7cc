/*
 * Constraints (model/grammar.h) over the real library: texts that a constraint allows get through token by token, others are
 * stopped; what is drawn at random under a constraint is what the constraint says; a constraint that is opened anew and takes the
 * tokens so far gives the same masks; grammars that are wrong or too large are refused with a reason and in bounded time.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>
#include <jansson.h>

#include "base/log.h"
#include "base/strbuf.h"
#include "model/grammar.h"
#include "tests/unit/llguidance.h"
#include "tests/unit/model/grammar_hostile.h"
#include "tests/unit/peak_memory.h"
#include "tests/unit/run_suite.h"

enum { WORDS_MAX = 8192 };

static sl_tokenizer *tok;
static sl_grammars *engine;
static int32_t eos;

static sl_status open_engine(sl_err *err)
{
    sl_status st = sl_tokenizer_load("models/tiny-v32", &tok, err);
    if (st != SL_OK)
        return st;
    eos = sl_tokenizer_eos(tok);
    sl_grammars_opts o = {.library = llguidance_library(),
                          .tokenizer = tok,
                          .vocab = sl_tokenizer_vocab_size(tok) + 7, /* padding, as models have */
                          .eos = &eos,
                          .n_eos = 1};
    return sl_grammars_open(&o, &engine, err);
}

static void setup(void)
{
    sl_err err = {0};
    ck_assert_msg(open_engine(&err) == SL_OK, "%s", err.text);
}

static void teardown(void)
{
    sl_grammars_close(engine);
    sl_tokenizer_destroy(tok);
}

static sl_grammar *opened(sl_grammar_kind kind, const char *text)
{
    sl_err err = {0};
    sl_grammar *c = NULL;
    ck_assert_msg(sl_grammar_open(engine, kind, text, strlen(text), &c, &err) == SL_OK, "%s: %s", text,
                  err.text);
    return c;
}

static bool allowed(const uint32_t *bits, int32_t id)
{
    return bits[id / 32] >> id % 32 & 1;
}

static void mask(sl_grammar *c, uint32_t *bits)
{
    sl_err err = {0};
    ck_assert_uint_le(sl_grammar_mask_words(engine), WORDS_MAX);
    ck_assert_msg(sl_grammar_mask(c, bits, &err) == SL_OK, "%s", err.text);
}

/* Whether the constraint lets the tokens of this text through, and then the end. */
static bool accepts(sl_grammar_kind kind, const char *grammar, const char *text)
{
    static uint32_t bits[WORDS_MAX];
    sl_err err = {0};
    int32_t *ids;
    size_t n, i;
    sl_grammar *c = opened(kind, grammar);
    ck_assert_int_eq(sl_tokenizer_encode(tok, text, strlen(text), SL_TOK_NO_SPECIAL, &ids, &n, &err), SL_OK);
    for (i = 0; i < n; i++) {
        mask(c, bits);
        if (!allowed(bits, ids[i]))
            break;
        ck_assert_msg(sl_grammar_take(c, &ids[i], 1, &err) == SL_OK, "%s", err.text);
    }
    bool whole = i == n;
    if (whole) {
        mask(c, bits);
        ck_assert_msg(allowed(bits, eos) == sl_grammar_may_end(c), "\"%s\": end", text);
        whole = sl_grammar_may_end(c);
    }
    free(ids);
    sl_grammar_close(c);
    return whole;
}

#define JSON_GBNF                                                                                                        \
    "root   ::= object # one object\n"                                                                                   \
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"                               \
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"                        \
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"                                                        \
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) )* \"\\\"\" ws\n" \
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"               \
    "ws     ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"

#define TAG_A                                                                                                \
    "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"],\"additionalProperties\":false}"
#define TAGS_FORMAT                                                                                                             \
    "{\"type\":\"structural_tag\",\"format\":{\"type\":\"triggered_tags\",\"triggers\":[\"<t>\"],\"tags\":[{\"begin\":\"<t>\"," \
    "\"content\":{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"integer\"}},\"end\":\"</t>\"}]"

static const struct {
    sl_grammar_kind kind;
    const char *grammar;
    const char *right[6], *wrong[6];
} cases[] = {
    {SL_GRAMMAR_OBJECT,
     "",
     {"{}", "{\"a\": 1}", "{\"a\": [1, {\"b\": null}], \"c\": \"x\"}"},
     {"[]", "1", "", "{", "{a:1}"}},
    {SL_GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Rome\",\"Oslo\"]},\"year\":{\"type\":\"integer\",\"minimum\":1900}},"
     "\"required\":[\"city\",\"year\"],\"additionalProperties\":false}",
     {"{\"city\":\"Rome\",\"year\":1999}", "{\"city\": \"Oslo\", \"year\": 2026}"},
     {"{\"city\":\"Paris\",\"year\":1999}", "{\"city\":\"Rome\"}", "{\"city\":\"Rome\",\"year\":12}", "{}",
      "{\"city\":\"Rome\",\"year\":1999,\"x\":1}"}},
    {SL_GRAMMAR_REGEX, "[a-c]{2,4}-\\d+", {"ab-1", "abca-2026"}, {"a-1", "ab-", "abcab-1", "ab-1x", ""}},
    {SL_GRAMMAR_CHOICE,
     "[\"yes\",\"no\",\"not now\",\"\xc3\xa9t\xc3\xa9\"]",
     {"yes", "no", "not now", "\xc3\xa9t\xc3\xa9"},
     {"", "not", "maybe", "yess"}},
    {SL_GRAMMAR_GBNF,
     JSON_GBNF,
     {"{}", "{\"a\": [1, 2.5e3, \"x\\n\"], \"b\":{}}"},
     {"[1]", "{\"a\":}", "{\"a\": 1,}", "{"}},
    {SL_GRAMMAR_GBNF,
     "root ::= (expr \"=\" Term-2 \"\\n\")+\nexpr ::= Term-2 ([-+*/] Term-2)*\nTerm-2 ::= [a-z] | [0-9]+ | \"(\" expr \")\"\n",
     {"a+1=2\n", "(a*b)/12=c\n1=1\n"},
     {"a+=2\n", "a=1", "", "(a=1\n"}},
    {SL_GRAMMAR_GBNF,
     "root ::= \"1. \" move \" \" move \"\\n\"\nmove ::= ([KQRBN])? [a-h] [1-8] [+#]?\n",
     {"1. e4 e5\n", "1. Nf3 Qd8+\n"},
     {"1. e9 e5\n", "2. e4 e5\n"}},
    {SL_GRAMMAR_GBNF,
     "root ::= [\\u3042-\\u3093]+ . \"\\u00e9\"?",
     {"\xe3\x81\x82\xe3\x81\x84!", "\xe3\x81\x82x\xc3\xa9"},
     {"x", "\xe3\x81\x82"
           "x\xc3\xa9\xc3\xa9"}},
    {SL_GRAMMAR_TAGS,
     "{\"structures\":[{\"begin\":\"<f=a>\",\"schema\":" TAG_A
     ",\"end\":\"</f>\"},{\"begin\":\"<f=b>\",\"schema\":"
     "{\"type\":\"integer\"},\"end\":\"\"}],\"triggers\":[\"<f=\"]}",
     {"", "free text <f", "so <f=a>{\"x\":1}</f> and <f=b>12", "<f=b>3 <f=a>{ \"x\": -2 }</f><"},
     {"<f=", "x<f=c>", "<f=a>{\"x\":\"1\"}</f>", "<f=a>{\"x\":1}", "<f=a>{\"x\":1,\"y\":1}</f>", "<f=b>x"}},
    {SL_GRAMMAR_TAGS,
     TAGS_FORMAT ",\"at_least_one\":true}}",
     {"<t>1</t>", "x<t>2</t>y<t>3</t>"},
     {"", "x", "x<t>", "<t>1</t><t>x"}},
    {SL_GRAMMAR_TAGS,
     TAGS_FORMAT ",\"stop_after_first\":true}}",
     {"", "x", "<t>1</t>", "x<t>2</t>"},
     {"<t>1</t>x", "<t>1</t><t>2</t>"}},
    {SL_GRAMMAR_TAGS,
     TAGS_FORMAT ",\"stop_after_first\":true,\"at_least_one\":true}}",
     {"<t>1</t>", "x<t>2</t>"},
     {"", "x", "<t>1</t>x"}},
};

START_TEST(texts)
{
    for (int i = 0; i < 6 && cases[_i].right[i]; i++)
        ck_assert_msg(accepts(cases[_i].kind, cases[_i].grammar, cases[_i].right[i]), "refused: %s",
                      cases[_i].right[i]);
    for (int i = 0; i < 6 && cases[_i].wrong[i]; i++)
        ck_assert_msg(!accepts(cases[_i].kind, cases[_i].grammar, cases[_i].wrong[i]), "let through: %s",
                      cases[_i].wrong[i]);
}
END_TEST

/* Draws allowed tokens at random. An answer that ended is what the constraint says; tokens in the middle are undone from time to time, and
 * a second constraint that takes the tokens so far has the same mask. */
static void walk(int which, unsigned seed)
{
    static uint32_t bits[WORDS_MAX], again[WORDS_MAX];
    int32_t taken[120];
    size_t n = 0, len;
    sl_err err = {0};
    char *text;
    sl_grammar *c = opened(cases[which].kind, cases[which].grammar);
    bool ended = false;
    srand(seed);
    while (n < SL_COUNT(taken) && !ended) {
        mask(c, bits);
        int32_t all = sl_tokenizer_vocab_size(tok), id = rand() % all;
        for (int32_t k = 0; k < all && !allowed(bits, id); k++)
            id = (id + 1) % all;
        ck_assert_msg(allowed(bits, id), "no token is allowed");
        if (allowed(bits, eos) && rand() % 4 == 0)
            id = eos;
        ended = id == eos;
        if (ended)
            break;
        ck_assert_int_eq(sl_grammar_take(c, &id, 1, &err), SL_OK);
        taken[n++] = id;
        if (n > 3 && rand() % 8 == 0) {
            ck_assert_msg(sl_grammar_undo(c, 2, &err) == SL_OK, "%s", err.text);
            n -= 2;
        }
    }
    sl_grammar *other = opened(cases[which].kind, cases[which].grammar);
    ck_assert_int_eq(sl_grammar_take(other, taken, n, &err), SL_OK);
    mask(c, bits);
    mask(other, again);
    ck_assert_mem_eq(bits, again, sl_grammar_mask_words(engine) * 4);
    ck_assert_int_eq(sl_tokenizer_decode(tok, taken, n, true, &text, &len), SL_OK);
    if (ended && cases[which].kind <= SL_GRAMMAR_SCHEMA) {
        json_error_t why;
        json_t *j = json_loadb(text, len, JSON_DECODE_INT_AS_REAL, &why); /* numbers of any size */
        ck_assert_msg(json_is_object(j), "%s: %s", text, why.text);
        json_decref(j);
    }
    free(text);
    sl_grammar_close(other);
    sl_grammar_close(c);
}

START_TEST(walks)
{
    for (unsigned seed = 1; seed <= 12; seed++)
        walk(_i, seed);
}
END_TEST

START_TEST(a_token_that_is_not_allowed)
{
    sl_err err = {0};
    int32_t id = sl_tokenizer_id(tok, "z", 1);
    sl_grammar *c = opened(SL_GRAMMAR_REGEX, "[ab]+");
    ck_assert_int_ge(id, 0);
    ck_assert_int_eq(sl_grammar_take(c, &id, 1, &err), SL_ERR_INVALID);
    ck_assert_int_ne(err.text[0], 0);
    sl_grammar_close(c);
}
END_TEST

/* What follows the end is free, can be undone, and the state is that of a constraint that took the same tokens at once. */
START_TEST(after_the_end)
{
    static uint32_t bits[WORDS_MAX], before[WORDS_MAX];
    sl_err err = {0};
    int32_t *ids;
    size_t n;
    sl_grammar *c = opened(SL_GRAMMAR_REGEX, "ab+");
    ck_assert_int_eq(sl_tokenizer_encode(tok, "ab", 2, 0, &ids, &n, &err), SL_OK);
    ck_assert_int_eq(sl_grammar_take(c, &eos, 1, &err), SL_ERR_INVALID); /* not complete */
    sl_grammar_close(c);
    c = opened(SL_GRAMMAR_REGEX, "ab+");
    ck_assert_int_eq(sl_grammar_take(c, ids, n, &err), SL_OK);
    mask(c, before);
    const int32_t more[] = {eos, ids[0], eos, 3, ids[0]};
    ck_assert_int_eq(sl_grammar_take(c, more, SL_COUNT(more), &err), SL_OK);
    mask(c, bits);
    for (int32_t i = 0; i < sl_tokenizer_vocab_size(tok) + 7; i++)
        ck_assert_msg(allowed(bits, i), "token %d", i);
    ck_assert(!sl_grammar_must_end(c) && sl_grammar_may_end(c));
    ck_assert_int_eq(sl_grammar_undo(c, 4, &err), SL_OK);
    mask(c, bits);
    ck_assert(allowed(bits, 3));
    ck_assert_int_eq(sl_grammar_undo(c, 1, &err), SL_OK);
    mask(c, bits);
    ck_assert_mem_eq(bits, before, sl_grammar_mask_words(engine) * 4);
    free(ids);
    sl_grammar_close(c);
}
END_TEST

/* Before the token after which the constraint begins all is free; then the state is that of a constraint that began there, and going
 * back over the beginning leads to what was before it. Whatever the pieces are in which the tokens come. */
START_TEST(before_the_beginning)
{
    static uint32_t bits[WORDS_MAX], fresh[WORDS_MAX], inside[WORDS_MAX];
    sl_err err = {0};
    int32_t *ids;
    size_t n;
    const size_t bytes = sl_grammar_mask_words(engine) * 4;
    const int32_t after = sl_tokenizer_id(tok, "</think>", 8);
    ck_assert_int_ge(after, 0);
    ck_assert_int_eq(sl_tokenizer_encode(tok, "ab", 2, 0, &ids, &n, &err), SL_OK);
    sl_grammar *c = opened(SL_GRAMMAR_REGEX, "ab+");
    mask(c, fresh);
    ck_assert_int_eq(sl_grammar_take(c, ids, n, &err), SL_OK);
    mask(c, inside);
    sl_grammar_close(c);
    const int32_t output[] = {ids[0], 5, after, ids[0], after}; /* the last one is not allowed */
    for (size_t cut = 0; cut <= 3; cut++) {
        c = opened(SL_GRAMMAR_REGEX, "ab+");
        sl_grammar_after(c, after);
        mask(c, bits);
        ck_assert(allowed(bits, 5) && allowed(bits, after) && allowed(bits, eos));
        ck_assert_int_eq(sl_grammar_take(c, output, cut, &err), SL_OK);
        ck_assert_int_eq(sl_grammar_take(c, output + cut, 3 - cut, &err), SL_OK);
        mask(c, bits);
        ck_assert_mem_eq(bits, fresh, bytes);
        ck_assert_int_eq(sl_grammar_take(c, ids, n, &err), SL_OK);
        mask(c, bits);
        ck_assert_mem_eq(bits, inside, bytes);
        ck_assert_int_eq(sl_grammar_undo(c, n + 1, &err), SL_OK);
        mask(c, bits);
        ck_assert(allowed(bits, 5) && !sl_grammar_must_end(c) && sl_grammar_may_end(c));
        ck_assert_int_eq(sl_grammar_take(c, output + 2, 1, &err), SL_OK);
        mask(c, bits);
        ck_assert_mem_eq(bits, fresh, bytes);
        sl_grammar_close(c);
    }
    c = opened(SL_GRAMMAR_REGEX, "ab+");
    sl_grammar_after(c, after);
    ck_assert_int_eq(sl_grammar_take(c, output, 5, &err), SL_ERR_INVALID);
    sl_grammar_close(c);
    c = opened(SL_GRAMMAR_REGEX, "ab+"); /* an answer may end before */
    sl_grammar_after(c, after);
    const int32_t ended[] = {5, eos};
    ck_assert_int_eq(sl_grammar_take(c, ended, 2, &err), SL_OK);
    ck_assert_int_eq(sl_grammar_undo(c, 1, &err), SL_OK);
    ck_assert_int_eq(sl_grammar_take(c, &after, 1, &err), SL_OK);
    mask(c, bits);
    ck_assert_mem_eq(bits, fresh, bytes);
    free(ids);
    sl_grammar_close(c);
}
END_TEST

/* The answer must end: only the end is allowed, and special tokens never are, whatever they spell. */
START_TEST(the_end_and_special_tokens)
{
    static uint32_t bits[WORDS_MAX];
    sl_err err = {0};
    int32_t *ids;
    size_t n;
    sl_grammar *c = opened(SL_GRAMMAR_CHOICE, "[\"ab\"]");
    ck_assert_int_eq(sl_tokenizer_encode(tok, "ab", 2, 0, &ids, &n, &err), SL_OK);
    ck_assert_int_eq(sl_grammar_take(c, ids, n, &err), SL_OK);
    mask(c, bits);
    for (int32_t i = 0; i < sl_tokenizer_vocab_size(tok) + 7; i++)
        ck_assert_msg(allowed(bits, i) == (i == eos), "token %d", i);
    ck_assert(sl_grammar_must_end(c));
    free(ids);
    sl_grammar_close(c);
    c = opened(SL_GRAMMAR_REGEX, "(?s:.*)");
    mask(c, bits);
    for (int32_t i = 0; i < sl_tokenizer_vocab_size(tok) + 7; i++)
        ck_assert_msg(!allowed(bits, i) || i == eos || !sl_tokenizer_is_special(tok, i), "token %d", i);
    sl_grammar_close(c);
}
END_TEST

static const struct {
    sl_grammar_kind kind;
    const char *text, *reason;
} refused[] = {
    {SL_GRAMMAR_SCHEMA, "{", "json_schema"},
    {SL_GRAMMAR_SCHEMA, "{\"type\":\"colour\"}", "json_schema"},
    {SL_GRAMMAR_SCHEMA, "{\"$ref\":\"http://example.com/s.json\"}", "json_schema"},
    {SL_GRAMMAR_REGEX, "[", "regex"},
    {SL_GRAMMAR_REGEX, "(?=a)", "regex"},
    {SL_GRAMMAR_CHOICE, "[]", "want a list"},
    {SL_GRAMMAR_CHOICE, "[1]", "entry 0 is no text"},
    {SL_GRAMMAR_CHOICE, "{", "not JSON"},
    {SL_GRAMMAR_TAGS, "[]", "want structures and triggers"},
    {SL_GRAMMAR_TAGS, "{\"structures\":[],\"triggers\":[\"<\"]}", "tags"},
    {SL_GRAMMAR_TAGS, "{\"structures\":[{\"begin\":\"<a\",\"schema\":{},\"end\":\"\"}],\"triggers\":[]}",
     "triggers"},
    {SL_GRAMMAR_TAGS, "{\"structures\":[{\"begin\":\"a\",\"schema\":{},\"end\":\"\"}],\"triggers\":[\"<\"]}",
     "starts with 0"},
    {SL_GRAMMAR_TAGS,
     "{\"structures\":[{\"begin\":\"<a\",\"schema\":{},\"end\":\"\"}],\"triggers\":[\"<\",\"<a\"]}",
     "starts with 2"},
    {SL_GRAMMAR_TAGS,
     "{\"structures\":[{\"begin\":\"<a\",\"schema\":true,\"end\":\"\"}],\"triggers\":[\"<\"]}",
     "JSON schema"},
    {SL_GRAMMAR_TAGS, "{\"structures\":[{\"begin\":\"<a\",\"schema\":{}}],\"triggers\":[\"<\"]}",
     "begin and end"},
    {SL_GRAMMAR_TAGS,
     "{\"structures\":[{\"begin\":\"<a\",\"schema\":{\"type\":\"nothing\"},\"end\":\"\"}],\"triggers\":[\"<\"]}",
     "structural_tag"},
    {SL_GRAMMAR_TAGS, "{\"format\":{\"type\":\"any_text\"}}", "only triggered_tags"},
    {SL_GRAMMAR_GBNF, "", "has no rules"},
    {SL_GRAMMAR_GBNF, "# nothing", "has no rules"},
    {SL_GRAMMAR_GBNF, "root ::= \"a", "line 1: a text in quotes does not end"},
    {SL_GRAMMAR_GBNF, "root ::= \"a\"\nx ::= [", "line 2: a class of characters does not end"},
    {SL_GRAMMAR_GBNF, "root ::= (\"a\"", "is not closed"},
    {SL_GRAMMAR_GBNF, "root ::= \"a\")", "was not opened"},
    {SL_GRAMMAR_GBNF, "root ::= \"a\"{3,1}", "braces"},
    {SL_GRAMMAR_GBNF, "root ::= \"a\"{99999999999}", "exceeds"},
    {SL_GRAMMAR_GBNF, "root ::= [z-a]", "ends before it begins"},
    {SL_GRAMMAR_GBNF, "root ::= \"\\q\"", "escape"},
    {SL_GRAMMAR_GBNF, "root ::= \"\\ud800\"", "outside Unicode"},
    {SL_GRAMMAR_GBNF, "root = \"a\"", "want a rule"},
    {SL_GRAMMAR_GBNF, "root ::= missing", "grammar"},
    {SL_GRAMMAR_GBNF, "other ::= \"a\"", "grammar"},
};

START_TEST(what_is_refused)
{
    sl_err err = {0};
    sl_grammar *c;
    sl_status st =
        sl_grammar_open(engine, refused[_i].kind, refused[_i].text, strlen(refused[_i].text), &c, &err);
    ck_assert_msg(st == SL_ERR_INVALID, "%s: %d %s", refused[_i].text, st, err.text);
    ck_assert_msg(strstr(err.text, refused[_i].reason), "%s: want \"%s\" in: %s", refused[_i].text,
                  refused[_i].reason, err.text);
}
END_TEST

/* ---- hostile grammars ---- */

/* Numbers that bound a text, from both sides: `part` comes `most` times, and `after` as often after `middle`. %d: a number from 0. */
static const struct {
    sl_grammar_kind kind;
    int most;
    const char *begin, *part, *middle, *after, *end, *reason;
} bounds[] = {
    {SL_GRAMMAR_GBNF, 64, "root ::= ", "(", "\"a\"", ")", "", "nested too deeply"},
    {SL_GRAMMAR_REGEX, 4096, "", "a", "", "", "", "bytes; at most"},
    {SL_GRAMMAR_GBNF, 32768 - 12, "root ::= \"a\"", " ", "", "", "", "bytes; at most"},
    {SL_GRAMMAR_SCHEMA, 128, "{\"type\":\"object\",\"patternProperties\":{\"x\":{}", ",\"p%d\":{}", "}}", "",
     "", "patternProperties"},
    {SL_GRAMMAR_SCHEMA, 4096, "{\"const\":\"", "a", "\"}", "", "", "bytes in a schema"},
    {SL_GRAMMAR_TAGS, 256, "{\"triggers\":[\"<\"],\"structures\":[",
     "{\"begin\":\"<%d>\",\"schema\":{},\"end\":\"\"},", "", "", "0]}", "want 1 to 256 tags"},
    {SL_GRAMMAR_TAGS, 64, "{\"structures\":[{\"begin\":\"<\",\"schema\":{},\"end\":\"\"}],\"triggers\":[",
     "\"x%d\",", "", "", "0]}", "triggers: want 1 to"},
};

START_TEST(bounds_of_a_text)
{
    for (int more = 0; more < 2; more++) {
        sl_strbuf b = {0};
        sl_err err = {0};
        /* what has one element of its own */
        const int n =
            bounds[_i].most + more - (*bounds[_i].end != 0 || strstr(bounds[_i].begin, "\"x\":{}") ? 1 : 0);
        sl_sb_str(&b, bounds[_i].begin);
        for (int i = 0; i < n; i++)
            sl_sb_printf(&b, bounds[_i].part, i);
        sl_sb_str(&b, bounds[_i].middle);
        for (int i = 0; i < n; i++)
            sl_sb_str(&b, bounds[_i].after);
        sl_sb_str(&b, bounds[_i].end);
        sl_status st = sl_grammar_check(engine, bounds[_i].kind, b.data, b.len, &err);
        ck_assert_msg((strstr(err.text, bounds[_i].reason) != NULL) == (more == 1), "%d: %d %s", n, st,
                      err.text);
        ck_assert(!more || st != SL_OK);
        sl_sb_free(&b);
    }
}
END_TEST

/* A repetition has a bound of its own. */
START_TEST(a_repetition_is_bounded)
{
    static const char *const texts_of[] = {"root ::= \"a\"{10001}", "root ::= \"a\"{0,10001}",
                                           "root ::= \"a\"{10001,}"};
    for (size_t i = 0; i < SL_COUNT(texts_of); i++) {
        sl_err err = {0};
        ck_assert_int_eq(sl_grammar_check(engine, SL_GRAMMAR_GBNF, texts_of[i], strlen(texts_of[i]), &err),
                         SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, "exceeds 10000"), "%s", err.text);
    }
}
END_TEST

/* Whether it is refused or served: compiling and 20 tokens end, and in three times the processor time that the header promises. */
START_TEST(hostile_grammars_are_bounded)
{
    static uint32_t bits[WORDS_MAX];
    sl_strbuf sb = {0};
    sl_err err = {0};
    sl_grammar *c = NULL;
    clock_t begin = clock();
    hostile[_i].make(&sb, SL_GRAMMAR_BYTES_MAX - 250);
    sl_status st = sl_grammar_open(engine, hostile[_i].kind, sb.data, sb.len, &c, &err);
    double compiled = (double)(clock() - begin) / CLOCKS_PER_SEC;
    for (int n = 0; n < 20 && st == SL_OK && !sl_grammar_must_end(c); n++) {
        st = sl_grammar_mask(c, bits, &err);
        int32_t id = 0;
        while (st == SL_OK && !allowed(bits, id))
            id++;
        if (st == SL_OK && id == eos)
            break;
        if (st == SL_OK)
            st = sl_grammar_take(c, &id, 1, &err);
    }
    double whole = (double)(clock() - begin) / CLOCKS_PER_SEC;
    if (getenv("SL_TEST_LOG"))
        printf("%s: %s, %.3f s to compile, %.3f s in all %s\n", hostile[_i].name, sl_status_name(st),
               compiled, whole, err.text);
    ck_assert_msg(st == SL_OK || st == SL_ERR_INVALID || st == SL_ERR_TOO_LARGE, "%s: %d %s",
                  hostile[_i].name, st, err.text);
    ck_assert_msg(RUN_SUITE_SANITIZED || whole < 3 * SL_GRAMMAR_SECONDS_MAX, "%s: %.1f s of processor time",
                  hostile[_i].name, whole);
    sl_grammar_close(c);
    sl_sb_free(&sb);
}
END_TEST

static sl_status check_hostile(int which, size_t bytes, size_t *len)
{
    sl_strbuf sb = {0};
    hostile[which].make(&sb, bytes);
    sl_status st = sl_grammar_check(engine, hostile[which].kind, sb.data, sb.len, NULL);
    *len = sb.len;
    sl_sb_free(&sb);
    return st;
}

/* Compiling takes at most what sl_grammar_bytes() says, which the router takes from its budget before. */
START_TEST(memory_of_a_text_is_bounded)
{
    size_t len;
    if (RUN_SUITE_SANITIZED || !forget_peak())
        return;
    long before = status_kib("VmRSS:");
    check_hostile(_i, SL_GRAMMAR_BYTES_MAX - 250, &len);
    long most = status_kib("VmHWM:") - before;
    ck_assert_msg(most <= (long)(sl_grammar_bytes(len) >> 10), "%s: %zu bytes take %ld KiB", hostile[_i].name,
                  len, most);
}
END_TEST

/* Of texts that are only checked nothing stays; of those that are opened, at most 128 MiB. */
START_TEST(memory_of_many_texts_is_bounded)
{
    enum { MANY = 40 };
    sl_grammar *c;
    size_t len = 0;
    if (RUN_SUITE_SANITIZED)
        return;
    long before = status_kib("VmRSS:");
    for (int i = 0; i < MANY; i++)
        ck_assert_int_eq(check_hostile(ALTERNATIVES, SL_GRAMMAR_BYTES_MAX - 300 - 8 * (size_t)i, &len),
                         SL_OK);
    long checked = status_kib("VmRSS:") - before;
    ck_assert_msg(checked <= (long)(sl_grammar_bytes(len) >> 10), "%ld KiB stay of %d texts", checked, MANY);
    for (int i = 0; i < 4 * MANY; i++) { /* small ones: by their number; then large ones: by their bytes */
        sl_strbuf sb = {0};
        sl_sb_printf(&sb, "[a-z]{%d}", i + 1);
        ck_assert_int_eq(sl_grammar_open(engine, SL_GRAMMAR_REGEX, sb.data, sb.len, &c, NULL), SL_OK);
        sl_grammar_close(c);
        sl_sb_free(&sb);
    }
    for (int i = 0; i < MANY; i++) {
        sl_strbuf sb = {0};
        hostile[ALTERNATIVES].make(&sb, SL_GRAMMAR_BYTES_MAX - 300 - 8 * (size_t)i);
        ck_assert_int_eq(sl_grammar_open(engine, SL_GRAMMAR_GBNF, sb.data, sb.len, &c, NULL), SL_OK);
        sl_grammar_close(c);
        sl_sb_free(&sb);
    }
    long kept = status_kib("VmRSS:") - before;
    ck_assert_msg(kept <= 128 << 10, "%ld KiB are kept of %d texts", kept, MANY);
}
END_TEST

/* A check finds what opening finds, the first time and later. */
START_TEST(a_check_is_as_opening)
{
    sl_grammars_stats before, after;
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < SL_COUNT(refused); i++) {
            sl_err err = {0}, other = {0};
            sl_grammar *c;
            const char *text = refused[i].text;
            sl_status st = sl_grammar_check(engine, refused[i].kind, text, strlen(text), &err);
            ck_assert_int_eq(st, sl_grammar_open(engine, refused[i].kind, text, strlen(text), &c, &other));
            ck_assert_str_eq(err.text, other.text);
        }
        sl_grammars_stats_get(engine, &before);
        for (size_t i = 0; i < SL_COUNT(cases); i++)
            ck_assert_int_eq(
                sl_grammar_check(engine, cases[i].kind, cases[i].grammar, strlen(cases[i].grammar), NULL),
                SL_OK);
        sl_grammars_stats_get(engine, &after);
        ck_assert_uint_eq(after.compiled - before.compiled, round ? 0 : SL_COUNT(cases));
    }
}
END_TEST

int main(void)
{
    sl_err err = {0};
    sl_log_init(SL_LOG_ERROR, false, "test");
    if (open_engine(&err) != SL_OK) {
        printf("skipped: %s; scripts/install-deps installs it\n", err.text);
        return 77;
    }
    teardown();
    Suite *s = suite_create("grammar");
    TCase *t = tcase_create("grammar");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    add_variants(t, texts, SL_COUNT(cases));
    add_variants(t, walks, SL_COUNT(cases));
    tcase_add_test(t, a_token_that_is_not_allowed);
    tcase_add_test(t, after_the_end);
    tcase_add_test(t, before_the_beginning);
    tcase_add_test(t, the_end_and_special_tokens);
    add_variants(t, what_is_refused, SL_COUNT(refused));
    add_variants(t, bounds_of_a_text, SL_COUNT(bounds));
    tcase_add_test(t, a_repetition_is_bounded);
    add_variants(t, hostile_grammars_are_bounded, SL_COUNT(hostile));
    add_variants(t, memory_of_a_text_is_bounded, SL_COUNT(hostile));
    tcase_add_test(t, memory_of_many_texts_is_bounded);
    tcase_add_test(t, a_check_is_as_opening);
    suite_add_tcase(s, t);
    return run_suite(s);
}
