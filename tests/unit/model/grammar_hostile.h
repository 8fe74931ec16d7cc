/* Texts of constraints that are made to cost much, for test_grammar.c: each fills sb with about `bytes` bytes. */
#ifndef TESTS_UNIT_MODEL_GRAMMAR_HOSTILE_H
#define TESTS_UNIT_MODEL_GRAMMAR_HOSTILE_H

#include "base/strbuf.h"
#include "model/grammar.h"

static void repeat(sl_strbuf *sb, const char *text, int n)
{
    for (int i = 0; i < n; i++)
        sl_sb_str(sb, text);
}

/* Each fills about `bytes` bytes. */

static void nested_schema(sl_strbuf *sb, size_t bytes)
{
    repeat(sb, "{\"items\":", (int)bytes / 10);
    sl_sb_str(sb, "{}");
    repeat(sb, "}", (int)bytes / 10);
}

static void linked(sl_strbuf *sb, size_t bytes, const char *before, const char *after)
{
    sl_sb_str(sb, "{\"$ref\":\"#/a0\"");
    int i = 0;
    for (; sb->len < bytes; i++)
        sl_sb_printf(sb, ",\"a%d\":%s{\"$ref\":\"#/a%d\"}%s", i, before, i + 1, after);
    sl_sb_printf(sb, ",\"a%d\":{\"type\":\"integer\"}}", i);
}

static void linked_refs(sl_strbuf *sb, size_t bytes)
{
    linked(sb, bytes, "", "");
}

static void linked_all_of(sl_strbuf *sb, size_t bytes)
{
    linked(sb, bytes, "{\"allOf\":[", "]}");
}

static void linked_properties(sl_strbuf *sb, size_t bytes)
{
    linked(sb, bytes, "{\"properties\":{\"x\":", "}}");
}

static void doubling_refs(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"$ref\":\"#/a0\"");
    int i = 0;
    for (; sb->len < bytes; i++)
        sl_sb_printf(sb, ",\"a%d\":{\"anyOf\":[{\"$ref\":\"#/a%d\"},{\"$ref\":\"#/a%d\"}]}", i, i + 1, i + 1);
    sl_sb_printf(sb, ",\"a%d\":{\"type\":\"integer\"}}", i);
}

static void crossed_all_of(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"type\":\"string\",\"allOf\":[{}");
    for (int i = 0; sb->len < bytes; i++)
        sl_sb_printf(sb, ",{\"anyOf\":[{\"pattern\":\"^.*a%d.*$\"},{\"pattern\":\"^.*b%d.*$\"}]}", i, i);
    sl_sb_str(sb, "]}");
}

static void many_properties(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"type\":\"object\",\"properties\":{\"a\":{}");
    for (int i = 0; sb->len < bytes; i++)
        sl_sb_printf(sb, ",\"p%d\":{\"maxLength\":5000}", i);
    sl_sb_str(sb, "}}");
}

static void optional_patterns(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"properties\":{\"a\":{}");
    for (int i = 0; sb->len + 4100 < bytes; i++) {
        sl_sb_printf(sb, ",\"p%d\":{\"type\":\"string\",\"pattern\":\"", i);
        repeat(sb, "a?", 2000);
        sl_sb_str(sb, "\"}");
    }
    sl_sb_str(sb, "}}");
}

static void optional_letters(sl_strbuf *sb, size_t bytes)
{
    repeat(sb, "a?", (int)(bytes < SL_GRAMMAR_REGEX_MAX ? bytes : SL_GRAMMAR_REGEX_MAX) / 2);
}

static void stars(sl_strbuf *sb, size_t bytes)
{
    repeat(sb, "(a|b*)", (int)(bytes < SL_GRAMMAR_REGEX_MAX ? bytes : SL_GRAMMAR_REGEX_MAX) / 6);
}

static void powers_of_repeats(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    sl_sb_str(sb, "((((((a{1,100}){1,100}){1,100}){1,100}){1,100}){1,100})");
}

static void subset_explosion(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    sl_sb_str(sb, "(a|b)*a(a|b){4000}");
}

static void deep_groups(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "root ::= ");
    repeat(sb, "(", (int)bytes);
}

static void circle_of_rules(sl_strbuf *sb, size_t bytes)
{
    int rules = (int)bytes / 22;
    sl_sb_str(sb, "root ::= r0\n");
    for (int i = 0; i < rules; i++)
        sl_sb_printf(sb, "r%d ::= \"a\" | r%d\n", i, (i + 1) % rules);
}

static void optional_items(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "root ::= ");
    repeat(sb, "\"a\"? ", (int)bytes / 5);
}

static void alternatives(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "root ::= \"b\"");
    for (int i = 0; sb->len < bytes; i++)
        sl_sb_printf(sb, "|\"a%d\"", i);
}

static void ambiguous(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    sl_sb_str(sb, "root ::= s\ns ::= s s | s s s | [a-z] | \"\"\n");
}

static void tags_of(sl_strbuf *sb, size_t bytes, int triggers, const char *trigger, const char *schema)
{
    sl_sb_str(sb, "{\"triggers\":[");
    for (int i = 0; i < triggers; i++) {
        sl_sb_printf(sb, "%s\"%s", i ? "," : "", trigger);
        for (int b = 0; b < 6; b++)
            sl_sb_char(sb, i >> b & 1 ? 'b' : 'a');
        sl_sb_str(sb, i + 1 < triggers ? "\"" : "\"],\"structures\":[");
    }
    for (int i = 0; i < 256 && sb->len + 256 < bytes; i++) {
        sl_sb_printf(sb, "%s{\"begin\":\"%s", i ? "," : "", trigger);
        for (int b = 0; b < 6; b++)
            sl_sb_char(sb, i % triggers >> b & 1 ? 'b' : 'a');
        sl_sb_printf(sb, "%d\",\"schema\":%s,\"end\":\"%s\"}", i, schema, trigger);
    }
    sl_sb_str(sb, "]}");
}

static void tags_with_many_triggers(sl_strbuf *sb, size_t bytes)
{
    tags_of(sb, bytes, 64, "aabaabaab", "{}");
}

static void tags_with_large_schemas(sl_strbuf *sb, size_t bytes)
{
    tags_of(
        sb, bytes, 1, "<",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){20}\"},\"minItems\":50}");
}

static void letters_of_all_scripts(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    for (int i = 0; i < 16; i++)
        sl_sb_printf(sb, "[\\p{L}\\p{N}\\p{M}]{%d,%d}[^\\p{Lu}]", i, 900 + i);
}

static void ranges_of_numbers(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"anyOf\":[{}");
    for (int i = 0; sb->len + 100 < bytes; i++)
        sl_sb_printf(sb, ",{\"type\":\"number\",\"minimum\":-%d.0000123,\"maximum\":98765432%d.123456}", i,
                     i);
    sl_sb_str(sb, "]}");
}

static void multiples(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"anyOf\":[{}");
    for (int i = 0; sb->len + 100 < bytes; i++)
        sl_sb_printf(sb, ",{\"type\":\"integer\",\"multipleOf\":%d}", 9973 + i);
    sl_sb_str(sb, "]}");
}

static void lists_of_lists(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    for (int i = 0; i < 12; i++)
        sl_sb_str(sb, "{\"type\":\"array\",\"minItems\":500,\"maxItems\":1000,\"items\":");
    sl_sb_str(sb, "{}");
    repeat(sb, "}", 12);
}

static void names_by_pattern(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"type\":\"object\",\"patternProperties\":{\"^x\":{}");
    for (int i = 0; sb->len + 100 < bytes; i++)
        sl_sb_printf(sb, ",\"^a%d(b|c)*d\":{\"format\":\"date-time\"}", i);
    sl_sb_str(sb, "}}");
}

static void most_patterns(sl_strbuf *sb, size_t bytes)
{
    (void)bytes;
    sl_sb_str(sb, "{\"allOf\":[{\"patternProperties\":{\"^x\":{}}},{\"patternProperties\":{\"^y\":{}");
    for (int i = 0; i < 126; i++)
        sl_sb_printf(sb, ",\"^a%d(b|c)*d\":{\"format\":\"date-time\"}", i);
    sl_sb_str(sb, "}}]}");
}

static void crossed_formats(sl_strbuf *sb, size_t bytes)
{
    static const char *const formats[] = {"date-time", "email",    "uuid",    "ipv6",
                                          "uri",       "hostname", "duration"};
    sl_sb_str(sb, "{\"allOf\":[{}");
    for (int i = 0; sb->len + 150 < bytes; i++)
        sl_sb_printf(
            sb,
            ",{\"anyOf\":[{\"type\":\"string\",\"format\":\"%s\"},{\"type\":\"string\",\"format\":\"%s\"}]}",
            formats[i % 7], formats[(i + 1) % 7]);
    sl_sb_str(sb, "]}");
}

static void one_of(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "{\"oneOf\":[{\"const\":0}");
    for (int i = 0; sb->len + 100 < bytes; i++)
        sl_sb_printf(sb, ",{\"properties\":{\"kind\":{\"const\":\"k%d\"}},\"required\":[\"kind\"]}", i);
    sl_sb_str(sb, "]}");
}

static void long_choices(sl_strbuf *sb, size_t bytes)
{
    sl_sb_str(sb, "[\"x\"");
    for (int i = 0; sb->len + 20 < bytes; i++)
        sl_sb_printf(sb, ",\"%x\"", i * 2654435761u);
    sl_sb_str(sb, "]");
}

enum { ALTERNATIVES = 15 };

static const struct {
    const char *name;
    sl_grammar_kind kind;
    void (*make)(sl_strbuf *sb, size_t bytes);
} hostile[] = {
    {"nested schema", SL_GRAMMAR_SCHEMA, nested_schema},
    {"refs", SL_GRAMMAR_SCHEMA, linked_refs},
    {"allOf", SL_GRAMMAR_SCHEMA, linked_all_of},
    {"properties of properties", SL_GRAMMAR_SCHEMA, linked_properties},
    {"doubling refs", SL_GRAMMAR_SCHEMA, doubling_refs},
    {"crossed allOf", SL_GRAMMAR_SCHEMA, crossed_all_of},
    {"many properties", SL_GRAMMAR_SCHEMA, many_properties},
    {"patterns", SL_GRAMMAR_SCHEMA, optional_patterns},
    {"optional letters", SL_GRAMMAR_REGEX, optional_letters},
    {"stars", SL_GRAMMAR_REGEX, stars},
    {"powers", SL_GRAMMAR_REGEX, powers_of_repeats},
    {"subsets", SL_GRAMMAR_REGEX, subset_explosion},
    {"groups", SL_GRAMMAR_GBNF, deep_groups},
    {"circle of rules", SL_GRAMMAR_GBNF, circle_of_rules},
    {"optional items", SL_GRAMMAR_GBNF, optional_items},
    [ALTERNATIVES] = {"alternatives", SL_GRAMMAR_GBNF, alternatives},
    {"ambiguous", SL_GRAMMAR_GBNF, ambiguous},
    {"letters of all scripts", SL_GRAMMAR_REGEX, letters_of_all_scripts},
    {"ranges of numbers", SL_GRAMMAR_SCHEMA, ranges_of_numbers},
    {"multiples", SL_GRAMMAR_SCHEMA, multiples},
    {"lists of lists", SL_GRAMMAR_SCHEMA, lists_of_lists},
    {"names by pattern", SL_GRAMMAR_SCHEMA, names_by_pattern},
    {"most patterns of names", SL_GRAMMAR_SCHEMA, most_patterns},
    {"crossed formats", SL_GRAMMAR_SCHEMA, crossed_formats},
    {"one of", SL_GRAMMAR_SCHEMA, one_of},
    {"choices", SL_GRAMMAR_CHOICE, long_choices},
    {"tags with many triggers", SL_GRAMMAR_TAGS, tags_with_many_triggers},
    {"tags with large schemas", SL_GRAMMAR_TAGS, tags_with_large_schemas},
};

#endif
