/*
 * What a text may not have because it costs the library more than the library's own budgets say (engine.c). Each number was
 * measured in processor time of one compile or one mask:
 *  - Texts can be regular expressions, whose cost is quadratic, and patterns of names are compared with each other.
 *  - A number that is a multiple of d is followed by an automaton of d states, which is built whole, without a budget and
 *    without an end for large d. Of several multiples that hold for one number the states are those of their common multiple.
 *  - Of several patterns that hold for one text the library looks for a text that has all of them, without a budget; its time
 *    doubles with each: 0.5 s for twelve, and without an end for 24. Which hold for one text is not followed here: where parts of
 *    a schema are joined, all patterns of the schema count.
 *  - Where an expression leaves one way to go on, a mask follows it to its end, so a{N} costs N states of a KB each.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "model/grammar/follow.h"

enum {
    NAME_PATTERNS_MAX = 128, /* of a schema; the library's time is cubic in them: 0.3 s for 160 */
    JOINED_MAX = 8,          /* patterns of texts, in a schema whose parts are joined */
    MULTIPLE_MAX = 20000,    /* the states of all multiples together: 0.15 s */
    LETTERS_MAX = 20000      /* that the expressions of a text ask for at least: 0.03 s and 9 MB */
};

/* ---- regular expressions ---- */

typedef struct reader {
    const char *at, *end;
    bool verbose; /* blanks and comments may stand between a part and its count */
} reader;

static uint64_t capped(uint64_t a)
{
    return a > LETTERS_MAX ? LETTERS_MAX + 1 : a;
}

static void skip_class(reader *r)
{
    int depth = 0;
    do {
        if (*r->at == '\\' && r->at + 1 < r->end)
            r->at++;
        else
            depth += *r->at == '[' ? 1 : *r->at == ']' ? -1 : 0;
        r->at++;
    } while (r->at < r->end && depth > 0);
}

/* The least count of "{m}", "{m,}" or "{m,n}", which follows; 1 and nothing read: no count. */
static uint64_t read_count(reader *r)
{
    const char *p = r->at + 1;
    uint64_t n = 0;
    p += strspn(p, " \t\r\n");
    if (*p < '0' || *p > '9')
        return 1;
    for (; *p >= '0' && *p <= '9'; p++)
        n = capped(n * 10 + (uint64_t)(*p - '0'));
    while (p < r->end && *p != '}')
        p++;
    r->at = p < r->end ? p + 1 : p;
    return n ? n : 1;
}

/*
 * The letters that what follows asks for, at least, up to the end of a group; alternatives are added. What is no expression is
 * refused by the library, so every text may be read here. In verbose expressions a count belongs to the largest part before it,
 * because what stands between them is not divided here.
 */
static uint64_t letters(reader *r)
{
    uint64_t whole = 0, part = 0, largest = 0;
    for (; r->at < r->end && *r->at != ')'; whole = capped(whole)) {
        const char c = *r->at;
        if (c == '{') {
            const char *from = r->at;
            const uint64_t n = read_count(r), of = r->verbose ? largest : part;
            if (r->at > from) {
                whole += of * n - of;
                part = largest = capped(of * n);
                continue;
            }
        }
        if (strchr("*+?", c)) { /* of these a count may follow, too: (a{9})+{9} */
            r->at++;
            continue;
        }
        part = 1;
        if (c == '[') {
            skip_class(r);
        } else if (c == '(') {
            r->at++;
            part = letters(r);
            r->at += r->at < r->end;
        } else {
            r->at += c == '\\' && r->at + 1 < r->end ? 2 : 1;
        }
        whole += part;
        largest = part > largest ? part : largest;
    }
    return whole;
}

static uint64_t letters_of(const char *text, size_t len)
{
    reader r = {text, text + len, strstr(text, "(?") && strchr(text, 'x') && strpbrk(text, "# \t\n")};
    uint64_t n = 0;
    if (len > SL_GRAMMAR_REGEX_MAX) /* refused by its length; the reader recurses */
        return 0;
    while (r.at < r.end) { /* a bracket too many is the library's to refuse */
        n = capped(n + letters(&r));
        r.at += r.at < r.end;
    }
    return n;
}

static sl_status check_letters(uint64_t n, sl_err *err)
{
    return n <= LETTERS_MAX ? SL_OK
                            : sl_fail(err, SL_ERR_TOO_LARGE,
                                      "the counts of repetitions ask for more than %d letters", LETTERS_MAX);
}

/* ---- schemas ---- */

typedef struct tally {
    size_t patterns;   /* names of patternProperties so far */
    size_t texts;      /* patterns of texts so far */
    bool joined;       /* parts are joined somewhere */
    uint64_t multiple; /* a common one of all multiples so far */
    uint64_t letters;  /* of expressions, and the least lengths of strings */
} tally;

/* The digits of a decimal without its last zeros: 0.0250 and 250 give 25. 0: too many, which the library refuses. */
static uint64_t digits(double v)
{
    char text[32];
    uint64_t n = 0;
    snprintf(text, sizeof text, "%.15g", v);
    for (const char *p = text; *p && *p != 'e'; p++)
        n = *p >= '0' && *p <= '9' ? n * 10 + (uint64_t)(*p - '0') : n;
    while (n && n % 10 == 0)
        n /= 10;
    return n;
}

static sl_status add_multiple(tally *t, const json_t *value, sl_err *err)
{
    const uint64_t n = json_is_number(value) ? digits(json_number_value(value)) : 0;
    uint64_t a = t->multiple, b = n;
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    if (n && n / a > MULTIPLE_MAX / t->multiple)
        return sl_fail(
            err, SL_ERR_TOO_LARGE,
            "the least number that all multipleOf of a schema divide has more than %d in its digits; "
            "final zeros do not count",
            MULTIPLE_MAX);
    t->multiple *= n ? n / a : 1;
    return SL_OK;
}

/* Whether several parts of a schema hold for one value because of this object: not, where a reference or a list of alternatives is all
 * that it has. */
static bool joins(const json_t *j)
{
    static const char *const others[] = {"$ref", "anyOf", "oneOf"};
    static const char *const notes[] = {"$defs",       "definitions", "$schema",    "$id",
                                        "description", "title",       "x-guidance", "default"};
    const char *key;
    json_t *value;
    size_t parts = 0, lists = 0;
    json_object_foreach((json_t *)j, key, value)
    {
        bool note = false;
        for (size_t i = 0; i < SL_COUNT(notes); i++)
            note |= !strcmp(key, notes[i]);
        parts += !note;
        for (size_t i = 0; i < SL_COUNT(others); i++)
            lists += !strcmp(key, others[i]);
        if (!strcmp(key, "allOf") || !strcmp(key, "patternProperties"))
            return true;
    }
    return lists && parts > 1;
}

static sl_status check_name(tally *t, const char *key, const json_t *value, sl_err *err)
{
    const char *name;
    const json_t *of;
    if (strlen(key) > SL_GRAMMAR_REGEX_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "a name of more than %d bytes in a schema",
                       SL_GRAMMAR_REGEX_MAX);
    if (!strcmp(key, "patternProperties")) {
        t->patterns += json_object_size(value);
        json_object_foreach((json_t *)value, name, of) t->letters += letters_of(name, strlen(name));
    } else if (!strcmp(key, "multipleOf")) {
        SL_TRY(add_multiple(t, value, err));
    } else if (!strcmp(key, "minLength") && json_is_number(value)) {
        const double least = json_number_value(value);
        t->letters += least > LETTERS_MAX ? LETTERS_MAX + 1 : least > 0 ? (uint64_t)least : 0;
    } else if (strstr(key, "pattern") && json_is_string(value)) {
        t->texts++;
        t->letters += letters_of(json_string_value(value), json_string_length(value));
    }
    if (t->patterns > NAME_PATTERNS_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "patternProperties of a schema have more than %d patterns",
                       NAME_PATTERNS_MAX);
    return check_letters(t->letters, err);
}

static sl_status check_texts(const json_t *j, tally *t, sl_err *err)
{
    const char *key;
    size_t i;
    json_t *value;
    if (json_is_string(j) && json_string_length(j) > SL_GRAMMAR_REGEX_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "a text of %zu bytes in a schema; at most %d are possible",
                       json_string_length(j), SL_GRAMMAR_REGEX_MAX);
    t->joined |= joins(j);
    json_object_foreach((json_t *)j, key, value)
    {
        SL_TRY(check_name(t, key, value, err));
        SL_TRY(check_texts(value, t, err));
    }
    json_array_foreach(j, i, value) SL_TRY(check_texts(value, t, err));
    return SL_OK;
}

static sl_status check_schema(const char *text, size_t len, sl_err *err)
{
    json_error_t why;
    tally t = {.multiple = 1};
    json_t *j = json_loadb(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    if (!j)
        return sl_fail(err, SL_ERR_INVALID, "not JSON: %.200s", why.text);
    sl_status st = check_texts(j, &t, err);
    if (st == SL_OK && t.joined && t.texts > JOINED_MAX)
        st = sl_fail(
            err, SL_ERR_TOO_LARGE,
            "a schema with allOf, patternProperties, or more next to a $ref or anyOf, has more than %d "
            "patterns of texts",
            JOINED_MAX);
    json_decref(j);
    return st;
}

static sl_status check_regex(const char *text, size_t len, sl_err *err)
{
    char copy[SL_GRAMMAR_REGEX_MAX + 1]; /* the text may have no end of its own */
    memcpy(copy, len ? text : "", len);
    copy[len] = 0;
    return check_letters(letters_of(copy, len), err);
}

sl_status sl_grammar_check_bounds(sl_grammar_kind kind, const char *text, size_t len, sl_err *err)
{
    const size_t most = kind == SL_GRAMMAR_REGEX ? SL_GRAMMAR_REGEX_MAX : SL_GRAMMAR_BYTES_MAX;
    if (len > most)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%zu bytes; at most %zu are possible", len, most);
    if (len && memchr(text, 0, len)) /* the library reads C strings */
        return sl_fail(err, SL_ERR_INVALID, "it contains a NUL byte");
    if (kind == SL_GRAMMAR_REGEX)
        return check_regex(text, len, err);
    return kind == SL_GRAMMAR_SCHEMA || kind == SL_GRAMMAR_TAGS ? check_schema(text, len, err) : SL_OK;
}
