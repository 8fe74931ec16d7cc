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
#define RESP (1u << OAI_RESPONSES)
#define MSGS (1u << OAI_MESSAGES)
#define COUNT (1u << OAI_COUNT_TOKENS)
#define GEN (1u << OAI_GENERATE)
#define TOKS (1u << OAI_TOKENIZE)
#define DETOK (1u << OAI_DETOKENIZE)

/* neutral: a value, as JSON, that changes nothing, besides null, false, and what is empty. A name may have several rows, for
 * different APIs. */
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
    {"structural_tag", BOTH, OAI_USED, NULL},
    {"json_schema", BOTH, OAI_USED, NULL},
    {"grammar", BOTH, OAI_USED, NULL},
    {"user", BOTH, OAI_USED, NULL},
    {"reasoning_effort", CHAT, OAI_USED, NULL},
    /* have no effect on an answer */
    {"safety_identifier", BOTH, OAI_IGNORED, NULL},
    {"metadata", BOTH, OAI_IGNORED, NULL},
    {"store", BOTH, OAI_IGNORED, NULL},
    {"service_tier", BOTH, OAI_IGNORED, NULL},
    {"prompt_cache_key", BOTH, OAI_IGNORED, NULL},
    {"prompt_cache_retention", BOTH, OAI_IGNORED, NULL},
    {"cache_prompt", BOTH, OAI_IGNORED, NULL},
    {"guided_decoding_backend", BOTH, OAI_IGNORED, NULL},
    {"verbosity", CHAT, OAI_IGNORED, NULL},
    {"request_id", BOTH, OAI_IGNORED, NULL},
    {"rid", BOTH, OAI_IGNORED, NULL},
    {"session_id", BOTH | GEN, OAI_IGNORED, NULL},
    {"custom_labels", BOTH | GEN, OAI_IGNORED, NULL},
    {"no_logs", GEN, OAI_IGNORED, NULL},
    /* would change the answer */
    {"suffix", TEXT, OAI_REFUSED, NULL},
    {"guided_whitespace_pattern", BOTH, OAI_REFUSED, NULL},
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
    {"return_routed_experts", BOTH | GEN, OAI_REFUSED, NULL},
    {"routed_experts_start_len", BOTH | GEN, OAI_REFUSED, "0"},
    {"routed_experts_prompt_start", BOTH, OAI_REFUSED, "0"},
    {"return_cached_tokens_details", BOTH, OAI_REFUSED, NULL},
    {"return_spec_tokens_details", BOTH, OAI_REFUSED, NULL},
    {"return_prompt_token_ids", CHAT | GEN, OAI_REFUSED, NULL},
    {"return_meta_info", CHAT, OAI_REFUSED, NULL},
    {"return_indexer_topk", GEN, OAI_REFUSED, NULL},
    {"return_entropy", GEN, OAI_REFUSED, NULL},
    {"return_bytes", GEN, OAI_REFUSED, NULL},
    {"require_reasoning", GEN, OAI_REFUSED, NULL},
    {"background", GEN, OAI_REFUSED, NULL},
    {"extra_key", BOTH | GEN, OAI_REFUSED, NULL},
    {"thinking_token_budget", BOTH, OAI_REFUSED, NULL},
    {"max_thinking_tokens", GEN, OAI_REFUSED, NULL},
    {"include_reasoning", CHAT, OAI_REFUSED, "true"},
    {"logprob_token_ids", BOTH, OAI_REFUSED, NULL},
    {"stream_interval", BOTH, OAI_REFUSED, "1"},
    {"repetition_detection", BOTH, OAI_REFUSED, NULL},
    {"vllm_xargs", BOTH, OAI_REFUSED, NULL},
    {"modalities", CHAT, OAI_REFUSED, "[\"text\"]"},
    {"audio", CHAT, OAI_REFUSED, NULL},
    {"prediction", CHAT, OAI_REFUSED, NULL},
    {"web_search_options", CHAT, OAI_REFUSED, NULL},
    {"functions", CHAT, OAI_REFUSED, NULL},
    {"function_call", CHAT, OAI_REFUSED, "\"none\""},
    /* /v1/responses */
    {"model", RESP | MSGS | COUNT | TOKS | DETOK, OAI_USED, NULL},
    {"input", RESP, OAI_USED, NULL},
    {"instructions", RESP, OAI_USED, NULL},
    {"max_output_tokens", RESP, OAI_USED, NULL},
    {"text", RESP, OAI_USED, NULL},
    {"reasoning", RESP, OAI_USED, NULL},
    {"temperature", RESP | MSGS, OAI_USED, NULL},
    {"top_p", RESP | MSGS, OAI_USED, NULL},
    {"stream", RESP | MSGS, OAI_USED, NULL},
    {"tools", RESP | MSGS | COUNT, OAI_USED, NULL},
    {"tool_choice", RESP | MSGS | COUNT, OAI_USED, NULL},
    {"parallel_tool_calls", RESP, OAI_USED, NULL},
    {"user", RESP, OAI_USED, NULL},
    {"metadata", RESP, OAI_USED, NULL},
    {"seed", RESP | MSGS, OAI_USED, NULL},
    {"ignore_eos", RESP | MSGS, OAI_USED, NULL},
    {"cache_salt", RESP | MSGS, OAI_USED, NULL},
    {"chat_template_kwargs", RESP, OAI_USED, NULL},
    {"store", RESP, OAI_IGNORED, NULL},
    {"include", RESP, OAI_IGNORED, NULL},
    {"stream_options", RESP, OAI_USED, NULL},
    {"service_tier", RESP | MSGS, OAI_IGNORED, NULL},
    {"prompt_cache_key", RESP, OAI_IGNORED, NULL},
    {"prompt_cache_retention", RESP, OAI_IGNORED, NULL},
    {"safety_identifier", RESP, OAI_IGNORED, NULL},
    {"previous_response_id", RESP, OAI_REFUSED, NULL},
    {"conversation", RESP, OAI_REFUSED, NULL},
    {"prompt", RESP, OAI_REFUSED, NULL},
    {"background", RESP, OAI_REFUSED, NULL},
    {"truncation", RESP, OAI_REFUSED, "\"disabled\""},
    {"top_logprobs", RESP, OAI_REFUSED, "0"},
    {"max_tool_calls", RESP, OAI_REFUSED, NULL},
    {"context_management", RESP | MSGS | COUNT, OAI_REFUSED, NULL},
    /* /v1/messages and /v1/messages/count_tokens */
    {"messages", MSGS | COUNT, OAI_USED, NULL},
    {"system", MSGS | COUNT, OAI_USED, NULL},
    {"max_tokens", MSGS, OAI_USED, NULL},
    {"stop_sequences", MSGS, OAI_USED, NULL},
    {"top_k", MSGS, OAI_USED, NULL},
    {"thinking", MSGS | COUNT, OAI_USED, NULL},
    {"metadata", MSGS, OAI_IGNORED, NULL},
    {"betas", MSGS | COUNT, OAI_IGNORED, NULL},
    {"cache_control", MSGS | COUNT, OAI_IGNORED, NULL},
    {"inference_geo", MSGS, OAI_IGNORED, NULL},
    {"container", MSGS, OAI_REFUSED, NULL},
    {"mcp_servers", MSGS | COUNT, OAI_REFUSED, NULL},
    {"output_config", MSGS | COUNT, OAI_USED, NULL},
    {"diagnostics", MSGS, OAI_IGNORED, NULL},
    {"speed", MSGS | COUNT, OAI_IGNORED, NULL},
    {"user_profile_id", MSGS, OAI_IGNORED, NULL},
    {"workspace_id", MSGS, OAI_IGNORED, NULL},
    {"output_format", MSGS | COUNT, OAI_REFUSED, NULL},
    /* /generate */
    {"text", GEN, OAI_USED, NULL},
    {"input_ids", GEN, OAI_USED, NULL},
    {"sampling_params", GEN, OAI_USED, NULL},
    {"stream", GEN, OAI_USED, NULL},
    {"return_logprob", GEN, OAI_USED, NULL},
    {"top_logprobs_num", GEN, OAI_USED, NULL},
    {"logprob_start_len", GEN, OAI_USED, NULL},
    {"model", GEN, OAI_USED, NULL},
    {"rid", GEN, OAI_IGNORED, NULL},
    {"return_text_in_logprobs", GEN, OAI_IGNORED, NULL},
    {"lora_path", GEN, OAI_REFUSED, NULL},
    {"image_data", GEN, OAI_REFUSED, NULL},
    {"video_data", GEN, OAI_REFUSED, NULL},
    {"audio_data", GEN, OAI_REFUSED, NULL},
    {"input_embeds", GEN, OAI_REFUSED, NULL},
    {"token_ids_logprob", GEN, OAI_REFUSED, NULL},
    {"return_hidden_states", GEN, OAI_REFUSED, NULL},
    {"custom_logit_processor", GEN, OAI_REFUSED, NULL},
    {"session_params", GEN, OAI_REFUSED, NULL},
    {"log_metrics", GEN, OAI_IGNORED, NULL},
    {"data_parallel_rank", GEN, OAI_REFUSED, NULL},
    {"priority", GEN, OAI_REFUSED, "0"},
    {"bootstrap_host", GEN, OAI_REFUSED, NULL},
    {"bootstrap_port", GEN, OAI_REFUSED, NULL},
    {"bootstrap_room", GEN, OAI_REFUSED, NULL},
    /* /tokenize, /detokenize */
    {"prompt", TOKS, OAI_USED, NULL},
    {"messages", TOKS, OAI_USED, NULL},
    {"tools", TOKS, OAI_USED, NULL},
    {"chat_template_kwargs", TOKS, OAI_USED, NULL},
    {"add_special_tokens", TOKS, OAI_USED, NULL},
    {"parse_special", TOKS, OAI_USED, NULL},
    {"return_token_strs", TOKS, OAI_USED, NULL},
    {"add_generation_prompt", TOKS, OAI_REFUSED, "true"},
    {"continue_final_message", TOKS, OAI_REFUSED, NULL},
    {"tokens", DETOK, OAI_USED, NULL},
    {"skip_special_tokens", DETOK, OAI_USED, NULL},
};

const oai_field *sl_oai_field(size_t i)
{
    return i < SL_COUNT(fields) ? &fields[i] : NULL;
}

/* ---- the nearest name ---- */

enum { NAME_MAX_BYTES = 48 };

unsigned sl_oai_distance(const char *a, const char *b, unsigned most)
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
        unsigned d = fields[i].of & of && fields[i].how == OAI_USED
                         ? sl_oai_distance(name, fields[i].name, most)
                         : most + 1;
        if (d > most)
            continue;
        near = fields[i].name;
        most = d ? d - 1 : 0;
    }
    return near;
}

/* ---- a body ---- */

/* The row of this API, or of another one. */
static const oai_field *find(const char *name, unsigned of)
{
    const oai_field *other = NULL;
    for (size_t i = 0; i < SL_COUNT(fields); i++) {
        if (strcmp(fields[i].name, name))
            continue;
        if (fields[i].of & of)
            return &fields[i];
        other = other ? other : &fields[i];
    }
    return other;
}

static const char *path_of(unsigned of)
{
    unsigned api = 0;
    while (!(of >> api & 1))
        api++;
    return sl_oai_path((sl_oai_api)api);
}

bool oai_says_nothing(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

static bool is_neutral(const oai_field *f, const json_t *v)
{
    if (oai_says_nothing(v))
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
        const oai_field *f = find(name, of);
        if (!f && json_is_null(v)) /* as if it were not there */
            continue;
        if (!f || (!(f->of & of) && !(of & BOTH) && !oai_says_nothing(v)))
            return refuse_unknown(name, of, err);
        if (f->how == OAI_REFUSED && !is_neutral(f, v))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: is not supported", name);
        if (!(f->of & of) && !oai_says_nothing(v))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "body.%s: is a field of %s", name, path_of(f->of));
    }
    return sl_oai_members_check(o, of, err);
}
