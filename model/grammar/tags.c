/*
 * Structural tags: free text in which a trigger begins a part that must follow a schema, as vLLM and SGLang accept them. Two forms:
 *
 *   {"structures": [{"begin": "<f=a>", "schema": {...}, "end": "</f>"}], "triggers": ["<f="]}
 *   {"format": {"type": "triggered_tags", "triggers": ["<f="], "at_least_one": false, "stop_after_first": false,
 *               "tags": [{"begin": "<f=a>", "content": {"type": "json_schema", "json_schema": {...}}, "end": "</f>"}]}}
 *
 * The begin of a tag starts with exactly one trigger. In Lark a trigger is a lazy lexeme, text up to its first occurrence; what
 * may follow it are the rests of the begins that have it.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "model/grammar/follow.h"

enum { TAGS_MAX = 256, TRIGGERS_MAX = 64 };

typedef struct source {
    const json_t *triggers, *tags;
    bool wrapped; /* the schema is in a content */
    bool at_least_one, stop_after_first;
    sl_err *err;
} source;

static sl_status wrong(const source *s, const char *what)
{
    return sl_fail(s->err, SL_ERR_INVALID, "%s", what);
}

static sl_status read_flag(const source *s, const json_t *o, const char *key, bool *out)
{
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_boolean(v))
        return sl_fail(s->err, SL_ERR_INVALID, "format.%s: want true or false", key);
    *out = json_is_true(v);
    return SL_OK;
}

static sl_status find_form(source *s, const json_t *o)
{
    const json_t *format = json_object_get(o, "format");
    if (!format) {
        s->triggers = json_object_get(o, "triggers");
        s->tags = json_object_get(o, "structures");
        return json_is_array(s->tags) ? SL_OK : wrong(s, "want structures and triggers, or a format");
    }
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!type || strcmp(type, "triggered_tags"))
        return sl_fail(s->err, SL_ERR_INVALID, "format.type: only triggered_tags is possible");
    s->wrapped = true;
    s->triggers = json_object_get(format, "triggers");
    s->tags = json_object_get(format, "tags");
    SL_TRY(read_flag(s, format, "at_least_one", &s->at_least_one));
    return read_flag(s, format, "stop_after_first", &s->stop_after_first);
}

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

static sl_status check_lists(const source *s)
{
    size_t i;
    json_t *v;
    if (!json_array_size(s->tags) || json_array_size(s->tags) > TAGS_MAX)
        return sl_fail(s->err, SL_ERR_INVALID, "want 1 to %d tags", TAGS_MAX);
    if (!json_array_size(s->triggers) || json_array_size(s->triggers) > TRIGGERS_MAX)
        return sl_fail(s->err, SL_ERR_INVALID, "triggers: want 1 to %d", TRIGGERS_MAX);
    json_array_foreach((json_t *)s->triggers, i, v) if (!is_text(v) || !json_string_length(v)) return sl_fail(
        s->err, SL_ERR_INVALID, "triggers[%zu]: want a text", i);
    return SL_OK;
}

/* The number of the one trigger with which the begin of tag i starts. */
static sl_status find_trigger(const source *s, const char *begin, size_t i, size_t *out)
{
    size_t found = 0;
    for (size_t t = 0; t < json_array_size(s->triggers); t++) {
        const char *trigger = json_string_value(json_array_get(s->triggers, t));
        if (strncmp(begin, trigger, strlen(trigger)) != 0)
            continue;
        *out = t;
        found++;
    }
    return found == 1 ? SL_OK
                      : sl_fail(s->err, SL_ERR_INVALID,
                                "tag %zu: its begin starts with %zu of the triggers, want one", i, found);
}

static sl_status schema_of(const source *s, const json_t *tag, size_t i, const json_t **out)
{
    const json_t *content = json_object_get(tag, "content");
    const char *type = json_string_value(json_object_get(content, "type"));
    if (s->wrapped && (!type || strcmp(type, "json_schema")))
        return sl_fail(s->err, SL_ERR_INVALID, "tag %zu: content.type: only json_schema is possible", i);
    *out = s->wrapped ? json_object_get(content, "json_schema") : json_object_get(tag, "schema");
    return json_is_object(*out) ? SL_OK : sl_fail(s->err, SL_ERR_INVALID, "tag %zu: want a JSON schema", i);
}

static void add_literal(sl_strbuf *out, const char *text)
{
    if (!*text)
        return;
    sl_sb_char(out, ' ');
    sl_sb_json(out, text, strlen(text));
}

/* tag_I: trig_T "rest of the begin" %json {...} "end" */
static sl_status add_tag(const source *s, size_t i, sl_strbuf *out)
{
    const json_t *tag = json_array_get(s->tags, i), *begin = json_object_get(tag, "begin"),
                 *end = json_object_get(tag, "end"), *schema = NULL;
    size_t trigger = 0;
    if (!is_text(begin) || !is_text(end))
        return sl_fail(s->err, SL_ERR_INVALID, "tag %zu: want the texts begin and end", i);
    SL_TRY(find_trigger(s, json_string_value(begin), i, &trigger));
    SL_TRY(schema_of(s, tag, i, &schema));
    char *text = json_dumps(schema, JSON_COMPACT | JSON_REAL_PRECISION(15));
    char *bounded = text ? sl_grammar_bound_blanks(text, strlen(text)) : NULL;
    sl_sb_printf(out, "tag_%zu: trig_%zu", i, trigger);
    add_literal(out, json_string_value(begin) + json_string_length(json_array_get(s->triggers, trigger)));
    sl_sb_str(out, " %json ");
    sl_sb_str(out, bounded ? bounded : "");
    add_literal(out, json_string_value(end));
    sl_sb_char(out, '\n');
    free(text);
    free(bounded);
    return bounded ? SL_OK : sl_fail(s->err, SL_ERR_NO_MEMORY, "out of memory for a grammar");
}

static sl_status write_all(const source *s, sl_strbuf *out)
{
    sl_sb_str(out, "%llguidance {}\nstart: ");
    sl_sb_str(out, s->stop_after_first ? (s->at_least_one ? "tag" : "tag | tail")
                   : s->at_least_one   ? "tag+ tail"
                                       : "tag* tail");
    sl_sb_str(out, "\ntail: TEXT\nTEXT: /(.|\\n)*/\ntag: ");
    for (size_t i = 0; i < json_array_size(s->tags); i++)
        sl_sb_printf(out, "%stag_%zu", i ? " | " : "", i);
    sl_sb_char(out, '\n');
    for (size_t t = 0; t < json_array_size(s->triggers); t++) {
        sl_sb_printf(out, "trig_%zu[lazy]: TEXT", t);
        add_literal(out, json_string_value(json_array_get(s->triggers, t)));
        sl_sb_char(out, '\n');
    }
    for (size_t i = 0; i < json_array_size(s->tags); i++)
        SL_TRY(add_tag(s, i, out));
    return SL_OK;
}

sl_status sl_grammar_tags(const char *text, size_t len, char **out, sl_err *err)
{
    json_error_t why;
    source s = {.err = err};
    sl_strbuf lark = {0};
    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!o)
        return sl_fail(err, SL_ERR_INVALID, "not JSON: %.200s", why.text);
    sl_status st = find_form(&s, o);
    st = st ? st : check_lists(&s);
    st = st ? st : write_all(&s, &lark);
    char *made = st ? NULL : sl_sb_take(&lark);
    if (!st && !made)
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a grammar");
    if (!st)
        *out = made;
    sl_sb_free(&lark);
    json_decref(o);
    return st;
}
