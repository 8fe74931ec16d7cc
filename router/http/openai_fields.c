/*
 * The fields of a request body: ONE table of what is known. A field that is not in it is refused by name, with the nearest known
 * one, because a misspelt field that is ignored changes the answer without a word. Fields that would change the answer and are not
 * implemented are refused unless they have the value that changes nothing; a few that never change an answer are accepted and have
 * no effect (docs/api.md lists them).
 */
#include <string.h>

#include "router/http/openai_impl.h"

#define CHAT OAI_OF_CHAT
#define TEXT OAI_OF_COMPLETIONS
#define BOTH (OAI_OF_CHAT | OAI_OF_COMPLETIONS)

/* neutral: a value, as JSON, that changes nothing, besides null, false, and what is empty. */
static const oai_field fields[] = {
    {"model", BOTH, OAI_USED, NULL},
    {"messages", CHAT, OAI_USED, NULL},
    {"prompt", TEXT, OAI_USED, NULL},
    {"stream", BOTH, OAI_USED, NULL},
    {"stream_options", BOTH, OAI_USED, NULL},
    {"n", BOTH, OAI_USED, NULL},
    {"max_tokens", BOTH, OAI_USED, NULL},
    {"max_completion_tokens", BOTH, OAI_USED, NULL},
    {"min_tokens", BOTH, OAI_USED, NULL},
    {"temperature", BOTH, OAI_USED, NULL},
    {"top_p", BOTH, OAI_USED, NULL},
    {"top_k", BOTH, OAI_USED, NULL},
    {"min_p", BOTH, OAI_USED, NULL},
    {"frequency_penalty", BOTH, OAI_USED, NULL},
    {"presence_penalty", BOTH, OAI_USED, NULL},
    {"repetition_penalty", BOTH, OAI_USED, NULL},
    {"seed", BOTH, OAI_USED, NULL},
    {"stop", BOTH, OAI_USED, NULL},
    {"stop_token_ids", BOTH, OAI_USED, NULL},
    {"include_stop_str_in_output", BOTH, OAI_USED, NULL},
    {"skip_special_tokens", BOTH, OAI_USED, NULL},
    {"ignore_eos", BOTH, OAI_USED, NULL},
    {"logit_bias", BOTH, OAI_USED, NULL},
    {"logprobs", BOTH, OAI_USED, NULL},
    {"top_logprobs", CHAT, OAI_USED, NULL},
    {"echo", TEXT, OAI_USED, NULL},
    {"prompt_logprobs", BOTH, OAI_USED, NULL},
    {"best_of", BOTH, OAI_USED, NULL},
    {"cache_salt", BOTH, OAI_USED, NULL},
    {"parse_special", BOTH, OAI_USED, NULL},
    {"chat_template_kwargs", CHAT, OAI_USED, NULL},
    {"tools", CHAT, OAI_USED, NULL},
    {"tool_choice", CHAT, OAI_USED, NULL},
    {"parallel_tool_calls", CHAT, OAI_USED, NULL},
    {"response_format", BOTH, OAI_USED, NULL},
    {"guided_json", BOTH, OAI_USED, NULL},
    {"guided_regex", BOTH, OAI_USED, NULL},
    {"guided_choice", BOTH, OAI_USED, NULL},
    {"guided_grammar", BOTH, OAI_USED, NULL},
    {"structured_outputs", BOTH, OAI_USED, NULL},
    {"regex", BOTH, OAI_USED, NULL},
    {"ebnf", BOTH, OAI_USED, NULL},
    {"json_schema", BOTH, OAI_USED, NULL},
    {"grammar", BOTH, OAI_USED, NULL},
    {"user", BOTH, OAI_USED, NULL},
    /* have no effect on an answer */
    {"safety_identifier", BOTH, OAI_IGNORED, NULL},
    {"metadata", BOTH, OAI_IGNORED, NULL},
    {"store", BOTH, OAI_IGNORED, NULL},
    {"service_tier", BOTH, OAI_IGNORED, NULL},
    {"prompt_cache_key", BOTH, OAI_IGNORED, NULL},
    {"prompt_cache_retention", BOTH, OAI_IGNORED, NULL},
    {"cache_prompt", BOTH, OAI_IGNORED, NULL},
    {"guided_decoding_backend", BOTH, OAI_IGNORED, NULL},
    {"reasoning_effort", CHAT, OAI_IGNORED, NULL},
    {"verbosity", CHAT, OAI_IGNORED, NULL},
    {"request_id", BOTH, OAI_IGNORED, NULL},
    {"rid", BOTH, OAI_IGNORED, NULL},
    /* would change the answer */
    {"suffix", TEXT, OAI_REFUSED, NULL},
    {"guided_whitespace_pattern", BOTH, OAI_REFUSED, NULL},
    {"structural_tag", BOTH, OAI_REFUSED, NULL},
    {"use_beam_search", BOTH, OAI_REFUSED, NULL},
    {"length_penalty", BOTH, OAI_REFUSED, "1"},
    {"early_stopping", BOTH, OAI_REFUSED, NULL},
    {"spaces_between_special_tokens", BOTH, OAI_REFUSED, "true"},
    {"add_special_tokens", BOTH, OAI_REFUSED, "true"},
    {"add_generation_prompt", CHAT, OAI_REFUSED, "true"},
    {"continue_final_message", CHAT, OAI_REFUSED, NULL},
    {"truncate_prompt_tokens", BOTH, OAI_REFUSED, NULL},
    {"allowed_token_ids", BOTH, OAI_REFUSED, NULL},
    {"bad_words", BOTH, OAI_REFUSED, NULL},
    {"logits_processors", BOTH, OAI_REFUSED, NULL},
    {"custom_logit_processor", BOTH, OAI_REFUSED, NULL},
    {"return_tokens_as_token_ids", BOTH, OAI_REFUSED, NULL},
    {"return_token_ids", BOTH, OAI_REFUSED, NULL},
    {"return_hidden_states", BOTH, OAI_REFUSED, NULL},
    {"chat_template", CHAT, OAI_REFUSED, NULL},
    {"documents", CHAT, OAI_REFUSED, NULL},
    {"mm_processor_kwargs", BOTH, OAI_REFUSED, NULL},
    {"kv_transfer_params", BOTH, OAI_REFUSED, NULL},
    {"lora_path", BOTH, OAI_REFUSED, NULL},
    {"priority", BOTH, OAI_REFUSED, "0"},
    {"min_new_tokens", BOTH, OAI_REFUSED, "0"},
    {"no_stop_trim", BOTH, OAI_REFUSED, NULL},
    {"stop_regex", BOTH, OAI_REFUSED, NULL},
    {"separate_reasoning", CHAT, OAI_REFUSED, "true"},
    {"stream_reasoning", CHAT, OAI_REFUSED, "true"},
    {"typical_p", BOTH, OAI_REFUSED, "1"},
    {"mirostat", BOTH, OAI_REFUSED, "0"},
    {"modalities", CHAT, OAI_REFUSED, "[\"text\"]"},
    {"audio", CHAT, OAI_REFUSED, NULL},
    {"prediction", CHAT, OAI_REFUSED, NULL},
    {"web_search_options", CHAT, OAI_REFUSED, NULL},
    {"functions", CHAT, OAI_REFUSED, NULL},
    {"function_call", CHAT, OAI_REFUSED, "\"none\""},
};

const oai_field *sl_oai_field(size_t i)
{
    return i < SL_COUNT(fields) ? &fields[i] : NULL;
}

/* ---- the nearest name ---- */

enum { NAME_MAX_BYTES = 48 };

/* Insertions, deletions, replacements and exchanges of neighbours between two names; more than `most`: any larger number. */
static unsigned distance(const char *a, const char *b, unsigned most)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned row[3][NAME_MAX_BYTES + 1];
    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES)
        return most + 1;
    for (size_t j = 0; j <= m; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *now = row[i % 3];
        const unsigned *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned d = last[j - 1] + (a[i - 1] != b[j - 1]);
            d = last[j] + 1 < d ? last[j] + 1 : d;
            d = now[j - 1] + 1 < d ? now[j - 1] + 1 : d;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            now[j] = d;
        }
    }
    return row[n % 3][m];
}

const char *sl_oai_field_near(const char *name, unsigned of)
{
    unsigned most = (unsigned)strlen(name) / 3;
    const char *near = NULL;
    most = most < 1 ? 1 : most > 3 ? 3 : most;
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        unsigned d =
            fields[i].of & of && fields[i].how == OAI_USED ? distance(name, fields[i].name, most) : most + 1;
        if (d > most)
            continue;
        near = fields[i].name;
        most = d ? d - 1 : 0;
    }
    return near;
}

/* ---- a body ---- */

static const oai_field *find(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(fields); i++)
        if (!strcmp(fields[i].name, name))
            return &fields[i];
    return NULL;
}

static bool is_empty(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

static bool is_neutral(const oai_field *f, const json_t *v)
{
    if (is_empty(v))
        return true;
    json_t *want = f->neutral ? json_loads(f->neutral, JSON_DECODE_ANY, NULL) : NULL;
    bool same = json_is_number(want) && json_is_number(v)
                    ? !(json_number_value(want) < json_number_value(v)) &&
                          !(json_number_value(want) > json_number_value(v))
                    : json_equal(want, v);
    json_decref(want);
    return same;
}

static sl_status refuse_unknown(const char *name, unsigned of, sl_err *err)
{
    const char *near = sl_oai_field_near(name, of);
    bool printable = strlen(name) <= NAME_MAX_BYTES;
    for (const char *p = name; *p; p++)
        printable &= (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                     *p == '_' || *p == '-' || *p == '.';
    if (!printable || !*name)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "body: has a field whose name is no field of this API");
    return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: is not a field of this API%s%s%s", name,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

sl_status sl_oai_fields_check(const json_t *o, unsigned of, sl_err *err)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)o, name, v)
    {
        const oai_field *f = find(name);
        if (!f)
            return refuse_unknown(name, of, err);
        if (f->how == OAI_REFUSED && !is_neutral(f, v))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: is not supported", name);
        if (!(f->of & of) && !is_empty(v))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: is a field of %s", name,
                           f->of & OAI_OF_CHAT ? "/v1/chat/completions" : "/v1/completions");
    }
    return SL_OK;
}
