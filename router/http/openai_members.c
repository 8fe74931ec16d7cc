/*
 * The members of the objects inside a request body: ONE table, walked before anything is read, as openai_fields.c does it for the
 * fields of the body. A member that is not in the table is refused by its place, with the nearest known one; one of a wrong type is
 * refused also where the model's chat format does not look at it. What is null is not given. Pure, any thread.
 */
#include <stdio.h>
#include <string.h>

#include "router/http/openai_impl.h"

#define CHAT (OAI_OF_CHAT | 1u << OAI_TOKENIZE)
#define BOTH (OAI_OF_CHAT | OAI_OF_COMPLETIONS)
#define RESP (1u << OAI_RESPONSES)
#define MSGS (1u << OAI_MESSAGES | 1u << OAI_COUNT_TOKENS)

enum { PLACE_MAX = 160, WORD_MAX = 48 };

/*
 * at: where the objects are, "[]" for the elements of a list. types: the values of their member "type" for which the row holds, NULL
 * for every one; an object whose type has no row is left to its reader, which knows what is supported.
 * members, by words: LETTERS:NAME is used and has one of the JSON types s(tring) o(bject) a(rray) b(oolean) n(umber);
 * -NAME has no effect on the answer (docs/api.md lists these); !NAME would have one and is refused unless it says nothing.
 */
typedef struct level {
    unsigned of;
    const char *at, *types, *members;
} level;

#define TEXT_BLOCK "s:type s:text -cache_control -citations"

static const level levels[] = {
    {CHAT, "messages[]", NULL,
     "s:role sa:content a:tool_calls s:tool_call_id s:reasoning_content -name -refusal -annotations -id -parsed -reasoning "
     "-reasoning_details -thinking_blocks -provider_specific_fields -extra_content -cache_control !audio !function_call "
     "!prefix !partial !tools !images"},
    {CHAT, "messages[].content[]", "text",
     "s:type s:text -annotations -id -cache_control -prompt_cache_breakpoint"},
    {CHAT, "messages[].tool_calls[]", NULL,
     "s:id s:type o:function -index -extra_content -provider_specific_fields -cache_control !custom"},
    {CHAT, "messages[].tool_calls[].function", NULL, "s:name so:arguments -parsed_arguments"},
    {CHAT, "tools[]", NULL, "s:type o:function -cache_control"},
    {CHAT, "tools[].function", NULL,
     "s:name s:description o:parameters b:strict -cache_control !defer_loading"},
    {CHAT, "tool_choice", "function", "s:type o:function"},
    {CHAT, "tool_choice.function", NULL, "s:name"},
    {CHAT | RESP, "chat_template_kwargs", NULL, "b:thinking b:enable_thinking s:reasoning_effort"},
    {BOTH, "response_format", "text json_object json_schema", "s:type o:json_schema osb:schema"},
    {BOTH, "response_format.json_schema", NULL, "s:name s:description b:strict osb:schema"},
    {BOTH, "stream_options", NULL, "b:include_usage b:continuous_usage_stats -include_obfuscation"},
    /* /v1/responses */
    {RESP, "input[]", "message", "s:role sa:content s:type -status -id -phase"},
    {RESP, "input[]", "function_call",
     "s:type s:call_id s:name s:arguments -id -status -caller -parsed_arguments !namespace !async"},
    {RESP, "input[]", "function_call_output", "s:type s:call_id sa:output -id -status -caller"},
    {RESP, "input[].content[]", "input_text output_text text",
     "s:type s:text -annotations -logprobs -parsed -prompt_cache_breakpoint"},
    {RESP, "input[].output[]", "input_text output_text text",
     "s:type s:text -annotations -prompt_cache_breakpoint"},
    {RESP, "tools[]", "function",
     "s:type s:name s:description o:parameters b:strict -output_schema -allowed_callers !defer_loading !async"},
    {RESP, "tool_choice", "function", "s:type s:name"},
    {RESP, "text", NULL, "o:format -verbosity"},
    {RESP, "text.format", "text json_object json_schema", "s:type s:name s:description o:schema b:strict"},
    {RESP, "reasoning", NULL, "s:effort -summary -generate_summary -context -mode"},
    {RESP, "stream_options", NULL, "-include_obfuscation"},
    /* /v1/messages */
    {MSGS, "messages[]", NULL, "s:role sa:content"},
    {MSGS, "messages[].content[]", "text", TEXT_BLOCK},
    {MSGS, "messages[].content[]", "tool_use",
     "s:type s:id s:name o:input -cache_control -caller !toolset_name"},
    {MSGS, "messages[].content[]", "tool_result",
     "s:type s:tool_use_id sa:content -is_error -cache_control !toolset_name"},
    {MSGS, "messages[].content[].content[]", "text", TEXT_BLOCK},
    {MSGS, "system[]", "text", TEXT_BLOCK},
    {MSGS, "tools[]", "custom",
     "s:type s:name s:description o:input_schema b:strict -cache_control -allowed_callers -eager_input_streaming "
     "-input_examples !defer_loading"},
    {MSGS, "tool_choice", NULL, "s:type s:name b:disable_parallel_tool_use"},
    {MSGS, "thinking", NULL, "s:type -budget_tokens -display"},
    {MSGS, "output_config", NULL, "o:format s:effort !task_budget"},
    {MSGS, "output_config.format", "json_schema", "s:type o:schema"},
};

/* ---- the words of a row ---- */

/* The next word of a list that is divided by blanks; false at its end. */
static bool next_word(const char **p, const char **word, size_t *n)
{
    while (**p == ' ')
        (*p)++;
    *word = *p;
    while (**p && **p != ' ')
        (*p)++;
    *n = (size_t)(*p - *word);
    return *n > 0;
}

static bool has_word(const char *list, const char *what)
{
    const char *w;
    size_t n, want = strlen(what);
    while (next_word(&list, &w, &n)) {
        if (n == want && !memcmp(w, what, n))
            return true;
    }
    return false;
}

/* The name in a word, and in how what stands before it: "-", "!", or the letters of types and ":". */
static const char *name_in(const char *word, size_t n, size_t *how)
{
    const char *colon = memchr(word, ':', n);
    *how = colon ? (size_t)(colon - word) + 1 : 1;
    return word + *how;
}

static const char *find_member(const level *l, const char *name)
{
    const char *list = l->members, *w;
    size_t n, how, want = strlen(name);
    while (next_word(&list, &w, &n)) {
        const char *at = name_in(w, n, &how);
        if (n - how == want && !memcmp(at, name, want))
            return w;
    }
    return NULL;
}

/* The used member of the row that is nearest to a name, or "". */
static void nearest(const level *l, const char *name, char out[WORD_MAX])
{
    const char *list = l->members, *w;
    size_t n, how;
    unsigned most = (unsigned)strlen(name) / 3;
    most = most < 1 ? 1 : most > 3 ? 3 : most;
    out[0] = 0;
    while (next_word(&list, &w, &n)) {
        char text[WORD_MAX];
        const char *at = name_in(w, n, &how);
        if (*w == '-' || *w == '!' || n - how >= sizeof text)
            continue;
        snprintf(text, sizeof text, "%.*s", (int)(n - how), at);
        unsigned d = sl_oai_distance(name, text, most);
        if (d > most)
            continue;
        memcpy(out, text, sizeof text);
        most = d ? d - 1 : 0;
    }
}

/* ---- checks ---- */

static bool has_type(const json_t *v, const char *word)
{
    for (; *word != ':'; word++) {
        if ((*word == 's' && json_is_string(v)) || (*word == 'o' && json_is_object(v)) ||
            (*word == 'a' && json_is_array(v)) || (*word == 'b' && json_is_boolean(v)) ||
            (*word == 'n' && json_is_number(v)))
            return true;
    }
    return false;
}

static void say_types(const char *word, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = word; *p != ':'; p++) {
        const char *name = *p == 's'   ? "a string"
                           : *p == 'o' ? "an object"
                           : *p == 'a' ? "a list"
                           : *p == 'b' ? "true or false"
                                       : "a number";
        n += (size_t)snprintf(out + n, cap - n, "%s%s", p > word ? " or " : "", name);
    }
}

static bool is_printable(const char *name)
{
    size_t n = strlen(name);
    return n && n < WORD_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == n;
}

static sl_status refuse(const level *l, const char *where, const char *name, sl_err *err)
{
    char near[WORD_MAX];
    if (!is_printable(name))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "body.%s: has a member whose name is no member of this object", where);
    nearest(l, name, near);
    return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s.%s: is not a field of this API%s%s%s", where, name,
                   near[0] ? "; did you mean " : "", near, near[0] ? "?" : "");
}

static sl_status check_member(const level *l, const char *where, const char *name, const json_t *v,
                              sl_err *err)
{
    const char *word = find_member(l, name);
    char want[80];
    if (json_is_null(v) || (word && *word == '-'))
        return SL_OK;
    if (!word)
        return refuse(l, where, name, err);
    if (*word == '!')
        return oai_says_nothing(v)
                   ? SL_OK
                   : sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s.%s: is not supported", where, name);
    if (has_type(v, word))
        return SL_OK;
    say_types(word, want, sizeof want);
    return sl_fail(err, SL_ERR_INVALID, "body.%s.%s: want %s", where, name, want);
}

/* ---- the walk ---- */

static bool begins(const char *at, const char *place)
{
    size_t n = strlen(place);
    return !strncmp(at, place, n) && (at[n] == '.' || at[n] == '[');
}

/* Whether the table has a row at this place (*row: the one for this object), or below it. */
static bool look(unsigned of, const char *place, const json_t *v, const level **row)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    bool any = false;
    *row = NULL;
    for (size_t i = 0; i < SL_COUNT(levels); i++) {
        const level *l = &levels[i];
        bool here = !strcmp(l->at, place);
        if (!(l->of & of) || !(here || begins(l->at, place)))
            continue;
        any = true;
        if (here && !*row && (!l->types || !type || has_word(l->types, type)))
            *row = l;
    }
    return any;
}

/* Recursion is as deep as the places of the table are. place: as in the table; where: with the numbers of the elements. */
static sl_status walk(unsigned of, const json_t *v, const char *place, const char *where, sl_err *err)
{
    char next[PLACE_MAX], at[PLACE_MAX];
    const level *row;
    const char *name;
    json_t *m;
    size_t i;
    if (!look(of, place, v, &row))
        return SL_OK;
    if (json_is_array(v)) {
        snprintf(next, sizeof next, "%s[]", place);
        json_array_foreach((json_t *)v, i, m)
        {
            snprintf(at, sizeof at, "%s[%zu]", where, i);
            SL_TRY(walk(of, m, next, at, err));
        }
        return SL_OK;
    }
    if (!json_is_object(v) || !row) /* of another type: its reader refuses it, or leaves it out */
        return SL_OK;
    json_object_foreach((json_t *)v, name, m)
    {
        SL_TRY(check_member(row, where, name, m, err));
        if (!find_member(row, name))
            continue;
        snprintf(next, sizeof next, "%s.%s", place, name);
        snprintf(at, sizeof at, "%s.%s", where, name);
        SL_TRY(walk(of, m, next, at, err));
    }
    return SL_OK;
}

sl_status sl_oai_members_check(const json_t *o, unsigned of, sl_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)o, name, v)
    {
        if (strlen(name) < WORD_MAX)
            SL_TRY(walk(of, v, name, name, err));
    }
    return SL_OK;
}
