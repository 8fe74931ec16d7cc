/*
 * What a body asks of the form of its answer: response_format (OpenAI; with `schema`, llama.cpp), guided_* and structured_outputs
 * (vLLM), regex, ebnf and json_schema (SGLang), grammar (llama.cpp), and a tool_choice that forces a call. A request has one of
 * them. It becomes the constraint of its sampling parameters, which is compiled by whoever may take the time.
 *
 * A forced call is not written in the model's own syntax of calls, but as JSON: of a named function its arguments, of `required` a
 * list of calls. The answer (openai_answer.c) turns it into calls.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/openai_impl.h"

#define W "body"

static sl_status set(sl_oai_request *q, const char *field, sl_grammar_kind kind, const char *text, size_t len,
                     sl_err *err)
{
    sl_sampling *s = &q->spec.sampling;
    if (s->constraint)
        return sl_fail(err, SL_ERR_INVALID, W ".%s: the answer is already constrained by %s", field,
                       q->constraint);
    if (len > SL_GRAMMAR_BYTES_MAX)
        return sl_fail(err, SL_ERR_INVALID, W ".%s: %zu bytes, at most %d are possible", field, len,
                       SL_GRAMMAR_BYTES_MAX);
    q->constraint = field;
    return sl_sampling_set_constraint(s, kind, text, len) == SL_OK
               ? SL_OK
               : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

/* A JSON value as the text of a constraint. Reals are written as they were read, up to 15 digits. */
static sl_status set_json(sl_oai_request *q, const char *field, sl_grammar_kind kind, const json_t *v,
                          sl_err *err)
{
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    sl_status st =
        text ? set(q, field, kind, text, strlen(text), err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    free(text);
    return st;
}

/* A schema: an object, or its text. */
static sl_status set_schema(sl_oai_request *q, const char *field, const json_t *v, sl_err *err)
{
    if (json_is_string(v))
        return set(q, field, SL_GRAMMAR_SCHEMA, json_string_value(v), json_string_length(v), err);
    if (!json_is_object(v) && !json_is_boolean(v))
        return sl_fail(err, SL_ERR_INVALID, W ".%s: want a JSON schema", field);
    return set_json(q, field, SL_GRAMMAR_SCHEMA, v, err);
}

static sl_status set_text(sl_oai_request *q, const char *field, sl_grammar_kind kind, const json_t *v,
                          sl_err *err)
{
    if (!json_is_string(v))
        return sl_fail(err, SL_ERR_INVALID, W ".%s: want a string", field);
    return set(q, field, kind, json_string_value(v), json_string_length(v), err);
}

static sl_status set_choice(sl_oai_request *q, const char *field, const json_t *v, sl_err *err)
{
    size_t i;
    json_t *e;
    if (!json_is_array(v) || !json_array_size(v))
        return sl_fail(err, SL_ERR_INVALID, W ".%s: want a list of strings", field);
    json_array_foreach((json_t *)v, i, e)
    {
        if (!json_is_string(e))
            return sl_fail(err, SL_ERR_INVALID, W ".%s: entry %zu is no string", field, i);
    }
    return set_json(q, field, SL_GRAMMAR_CHOICE, v, err);
}

/* The fields of a constraint, at the top or in structured_outputs. */
typedef struct row {
    const char *key, *field; /* field: as the client knows it */
    sl_grammar_kind kind;
} row;

static sl_status read_rows(const json_t *o, const row *rows, size_t n, sl_oai_request *q, sl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(o, rows[i].key);
        if (!v || json_is_null(v))
            continue;
        if (rows[i].kind == SL_GRAMMAR_SCHEMA)
            SL_TRY(set_schema(q, rows[i].field, v, err));
        else if (rows[i].kind == SL_GRAMMAR_CHOICE)
            SL_TRY(set_choice(q, rows[i].field, v, err));
        else if (rows[i].kind == SL_GRAMMAR_TAGS && json_is_object(v))
            SL_TRY(set_json(q, rows[i].field, SL_GRAMMAR_TAGS, v, err));
        else if (rows[i].kind != SL_GRAMMAR_OBJECT)
            SL_TRY(set_text(q, rows[i].field, rows[i].kind, v, err));
        else if (json_is_true(v))
            SL_TRY(set(q, rows[i].field, SL_GRAMMAR_OBJECT, "", 0, err));
        else if (!json_is_false(v))
            return sl_fail(err, SL_ERR_INVALID, W ".%s: want true or false", rows[i].field);
    }
    return SL_OK;
}

static sl_status read_structured(const json_t *o, sl_oai_request *q, sl_err *err)
{
    static const row rows[] = {{"json", "structured_outputs.json", SL_GRAMMAR_SCHEMA},
                               {"regex", "structured_outputs.regex", SL_GRAMMAR_REGEX},
                               {"choice", "structured_outputs.choice", SL_GRAMMAR_CHOICE},
                               {"grammar", "structured_outputs.grammar", SL_GRAMMAR_GBNF},
                               {"structural_tag", "structured_outputs.structural_tag", SL_GRAMMAR_TAGS},
                               {"json_object", "structured_outputs.json_object", SL_GRAMMAR_OBJECT}};
    json_t *s = NULL;
    const char *key;
    json_t *v;
    SL_TRY(sl_json_opt_object(o, W, "structured_outputs", &s, err));
    json_object_foreach(s, key, v)
    {
        size_t i = 0;
        while (i < SL_COUNT(rows) && strcmp(rows[i].key, key))
            i++;
        bool off = json_is_null(v) || json_is_false(v) || !strcmp(key, "backend") || key[0] == '_';
        if (i == SL_COUNT(rows) && !off)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           W
                           ".structured_outputs: its fields are json, regex, choice, grammar, structural_tag "
                           "and json_object");
    }
    return s ? read_rows(s, rows, SL_COUNT(rows), q, err) : SL_OK;
}

static sl_status read_format(const json_t *o, sl_oai_request *q, sl_err *err)
{
    json_t *format = NULL, *named = NULL;
    const char *type = "text";
    SL_TRY(sl_json_opt_object(o, W, "response_format", &format, err));
    if (!format)
        return SL_OK;
    SL_TRY(sl_json_get_string(format, W ".response_format", "type", &type, err));
    if (!strcmp(type, "text"))
        return SL_OK;
    if (!strcmp(type, "json_object") && oai_given(format, "schema"))
        return set_schema(q, "response_format", json_object_get(format, "schema"), err);
    if (!strcmp(type, "json_object"))
        return set(q, "response_format", SL_GRAMMAR_OBJECT, "", 0, err);
    if (!strcmp(type, "structural_tag"))
        return set_json(q, "response_format", SL_GRAMMAR_TAGS, format, err);
    if (strcmp(type, "json_schema"))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       W ".response_format: its types are text, json_object, json_schema and structural_tag");
    SL_TRY(sl_json_get_object(format, W ".response_format", "json_schema", &named, err));
    if (!oai_given(named, "schema"))
        return sl_fail(err, SL_ERR_INVALID, W ".response_format.json_schema.schema: is missing");
    return set_schema(q, "response_format", json_object_get(named, "schema"), err);
}

/* ---- tools ---- */

static bool is_name(const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = s ? strlen(s) : 0;
    return n > 0 && n <= 64 && n == json_string_length(v) &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

static sl_status check_tool(const json_t *tool, size_t i, sl_err *err)
{
    const json_t *type = json_object_get(tool, "type"), *f = json_object_get(tool, "function");
    if (!json_is_object(tool))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu]: want an object", i);
    if (!type || !json_is_string(type) || strcmp(json_string_value(type), "function"))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu].type: want \"function\"", i);
    if (!json_is_object(f))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu].function: want an object", i);
    if (!is_name(json_object_get(f, "name")))
        return sl_fail(err, SL_ERR_INVALID,
                       W ".tools[%zu].function.name: want 1 to 64 letters, digits, '_', '-' or '.'", i);
    if (oai_given(f, "description") && !json_is_string(json_object_get(f, "description")))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu].function.description: want a string", i);
    if (oai_given(f, "parameters") && !json_is_object(json_object_get(f, "parameters")))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu].function.parameters: want a JSON schema", i);
    if (oai_given(f, "strict") && !json_is_boolean(json_object_get(f, "strict")))
        return sl_fail(err, SL_ERR_INVALID, W ".tools[%zu].function.strict: want true or false", i);
    return SL_OK;
}

static const json_t *find_tool(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        if (!strcmp(json_string_value(json_object_get(f, "name")), name))
            return f;
    }
    return NULL;
}

static sl_status check_choice(const json_t *choice, const json_t *tools, sl_err *err)
{
    const char *word = json_string_value(choice),
               *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!choice || json_is_null(choice) || (word && (!strcmp(word, "auto") || !strcmp(word, "none"))))
        return SL_OK;
    if (word && !strcmp(word, "required"))
        return json_array_size(tools)
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID, W ".tool_choice: required, but there are no tools");
    if (!json_is_object(choice))
        return sl_fail(err, SL_ERR_INVALID,
                       W ".tool_choice: want auto, none, required, or an object that names a function");
    if (!name)
        return sl_fail(err, SL_ERR_UNSUPPORTED, W ".tool_choice.function.name: want the name of a function");
    return find_tool(tools, name)
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, W ".tool_choice.function.name: is no name of a tool");
}

sl_status sl_oai_check_tools(const json_t *o, sl_err *err)
{
    json_t *tools = NULL;
    bool parallel = true;
    SL_TRY(sl_json_opt_array(o, W, "tools", &tools, err));
    for (size_t i = 0; i < json_array_size(tools); i++)
        SL_TRY(check_tool(json_array_get(tools, i), i, err));
    SL_TRY(sl_json_opt_bool(o, W, "parallel_tool_calls", &parallel, err));
    return check_choice(json_object_get(o, "tool_choice"), tools, err);
}

/* References within a schema that becomes a part of another one. */
static void move_refs(json_t *v, const char *to)
{
    const char *key;
    size_t i;
    json_t *e;
    json_array_foreach(v, i, e) move_refs(e, to);
    json_object_foreach(v, key, e)
    {
        const char *ref = !strcmp(key, "$ref") ? json_string_value(e) : NULL;
        if (ref && ref[0] == '#')
            json_object_set_new(v, key, json_sprintf("%s%s", to, ref + 1));
        else
            move_refs(e, to);
    }
}

/* A list of calls of any of these tools. NULL: out of memory. */
static json_t *calls_schema(const json_t *tools, bool several)
{
    json_t *any = json_array(), *defs = json_object();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        const json_t *given = json_object_get(f, "parameters");
        json_t *p = json_is_object(given) ? json_deep_copy(given) : json_pack("{s:s}", "type", "object");
        char name[32], ref[48];
        snprintf(name, sizeof name, "tool%zu", i);
        snprintf(ref, sizeof ref, "#/$defs/%s", name);
        move_refs(p, ref);
        json_object_set_new(defs, name, p);
        json_array_append_new(any, json_pack("{s:s, s:{s:{s:O}, s:{s:s}}, s:[s,s], s:b}", "type", "object",
                                             "properties", "name", "const", json_object_get(f, "name"),
                                             "arguments", "$ref", ref, "required", "name", "arguments",
                                             "additionalProperties", 0));
    }
    json_t *out = json_pack("{s:s, s:i, s:{s:o}, s:o}", "type", "array", "minItems", 1, "items", "anyOf", any,
                            "$defs", defs);
    if (out && !several)
        json_object_set_new(out, "maxItems", json_integer(1));
    return out;
}

static sl_status force_call(const json_t *o, sl_oai_request *q, sl_err *err)
{
    const json_t *choice = json_object_get(o, "tool_choice"), *tools = json_object_get(o, "tools");
    const char *word = json_string_value(choice);
    bool several = true;
    if (!json_is_object(choice) && (!word || strcmp(word, "required")))
        return SL_OK;
    SL_TRY(sl_json_opt_bool(o, W, "parallel_tool_calls", &several, err));
    if (word) {
        json_t *schema = calls_schema(tools, several);
        if (!schema)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        q->form = OAI_CALLS;
        sl_status st = set_json(q, "tools", SL_GRAMMAR_SCHEMA, schema, err);
        json_decref(schema);
        return st;
    }
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    const json_t *p = json_object_get(find_tool(tools, name), "parameters");
    snprintf(q->function, sizeof q->function, "%s", name);
    q->form = OAI_CALL;
    return json_is_object(p) ? set_json(q, "tools", SL_GRAMMAR_SCHEMA, p, err)
                             : set(q, "tools", SL_GRAMMAR_OBJECT, "", 0, err);
}

sl_status sl_oai_read_constraint(const json_t *o, sl_oai_request *q, sl_err *err)
{
    static const row rows[] = {{"guided_json", "guided_json", SL_GRAMMAR_SCHEMA},
                               {"guided_regex", "guided_regex", SL_GRAMMAR_REGEX},
                               {"guided_choice", "guided_choice", SL_GRAMMAR_CHOICE},
                               {"guided_grammar", "guided_grammar", SL_GRAMMAR_GBNF},
                               {"json_schema", "json_schema", SL_GRAMMAR_SCHEMA},
                               {"regex", "regex", SL_GRAMMAR_REGEX},
                               {"ebnf", "ebnf", SL_GRAMMAR_GBNF},
                               {"structural_tag", "structural_tag", SL_GRAMMAR_TAGS},
                               {"grammar", "grammar", SL_GRAMMAR_GBNF}};
    SL_TRY(read_format(o, q, err));
    SL_TRY(read_rows(o, rows, SL_COUNT(rows), q, err));
    SL_TRY(read_structured(o, q, err));
    /* Structural tags leave reasoning and calls in the model's own syntax as they are. */
    const sl_grammar_kind kind = q->spec.sampling.constraint;
    q->form = kind && kind != SL_GRAMMAR_TAGS ? OAI_CONTENT : OAI_FREE;
    if (q->chat) {
        SL_TRY(sl_oai_check_tools(o, err));
        SL_TRY(force_call(o, q, err));
    }
    if (q->form > OAI_CONTENT && q->spec.sampling.ignore_eos)
        return sl_fail(err, SL_ERR_INVALID, W ".ignore_eos: a call that is forced ends where it is complete");
    return SL_OK;
}
