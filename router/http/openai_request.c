/*
 * An OpenAI request body to tokens and sampling parameters. Every field is checked for type and bounds; which fields there are,
 * and what is refused, says the table of openai_fields.c. Pure: no router state, any thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "router/http/translate.h"

#define W "body"

static sl_status opt_float(const json_t *o, const char *key, double min, double max, float *out, sl_err *err)
{
    double v = *out;
    sl_status st = sl_json_opt_double(o, W, key, min, max, &v, err);
    if (!st)
        *out = (float)v;
    return st;
}

static sl_status opt_int32(const json_t *o, const char *key, int64_t min, int64_t max, int32_t *out,
                           sl_err *err)
{
    int64_t v = *out;
    sl_status st = sl_json_opt_int(o, W, key, min, max, &v, err);
    if (!st)
        *out = (int32_t)v;
    return st;
}

static sl_status parse_bias(const json_t *o, sl_sampling *s, sl_err *err)
{
    json_t *map = NULL;
    sl_status st = sl_json_opt_object(o, W, "logit_bias", &map, err);
    if (st || !map || !json_object_size(map))
        return st;
    size_t n = json_object_size(map), k = 0;
    if (n > SL_BIAS_MAX)
        return sl_fail(err, SL_ERR_INVALID, W ".logit_bias: %zu entries, at most %d", n, SL_BIAS_MAX);
    sl_logit_bias *b = calloc(n, sizeof *b);
    if (!b)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    const char *key;
    json_t *v;
    json_object_foreach(map, key, v)
    {
        char *end;
        long id = strtol(key, &end, 10);
        if (!*key || *end || id < 0 || id > INT32_MAX || !json_is_number(v)) {
            free(b);
            return sl_fail(err, SL_ERR_INVALID,
                           W ".logit_bias: want token ids as keys and numbers as values");
        }
        double bias = json_number_value(v);
        if (!(bias >= -100 && bias <= 100)) { /* before it becomes a float, which 1e300 does not fit */
            free(b);
            return sl_fail(err, SL_ERR_INVALID, W ".logit_bias: %g is out of bounds (-100 to 100)", bias);
        }
        b[k].id = (int32_t)id;
        b[k++].bias = (float)bias;
    }
    st = sl_sampling_set_bias(s, b, (uint32_t)n);
    free(b);
    return st;
}

enum { IDS_A_LOOK = 1024 };

static sl_status parse_ids(sl_guard *g, const json_t *a, const char *what, size_t max, int32_t **out,
                           size_t *n, sl_err *err)
{
    size_t count = json_array_size(a);
    if (count > max)
        return sl_fail(err, SL_ERR_INVALID, W ".%s: %zu entries, at most %zu", what, count, max);
    SL_TRY(sl_guard_take(g, (count + 1) * sizeof(int32_t), err));
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    if (!ids)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = SL_OK;
    for (size_t i = 0; i < count && !st; i++) {
        const json_t *v = json_array_get(a, i);
        if (i % IDS_A_LOOK == 0)
            st = sl_guard_check(g, err);
        if (!st && (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX))
            st = sl_fail(err, SL_ERR_INVALID, W ".%s: entry %zu is no token id", what, i);
        ids[i] = (int32_t)json_integer_value(v);
    }
    if (st) {
        free(ids);
        return st;
    }
    *out = ids;
    *n = count;
    return SL_OK;
}

static sl_status parse_stop_ids(const json_t *o, sl_oai_request *q, sl_err *err)
{
    sl_sampling *s = &q->spec.sampling;
    json_t *a = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    sl_status st = sl_json_opt_array(o, W, "stop_token_ids", &a, err);
    if (st || !a)
        return st;
    st = parse_ids(NULL, a, "stop_token_ids", SL_STOP_IDS_MAX, &ids, &n, err);
    if (!st)
        st = sl_sampling_set_stop_ids(s, ids, (uint32_t)n);
    if (!st && n)
        memcpy(q->stops, ids, n * sizeof *ids);
    q->n_stops = st ? 0 : (uint32_t)n;
    free(ids);
    return st;
}

static sl_status add_stop(sl_request_spec *s, const json_t *v, sl_err *err)
{
    if (!json_is_string(v))
        return sl_fail(err, SL_ERR_INVALID, W ".stop: want a string or an array of strings");
    size_t len = json_string_length(v);
    if (!len || len > SL_STOP_LEN_MAX || strlen(json_string_value(v)) != len)
        return sl_fail(err, SL_ERR_INVALID, W ".stop: a stop string has 1 to %d bytes and no NUL",
                       SL_STOP_LEN_MAX);
    if (s->n_stops == SL_STOP_MAX)
        return sl_fail(err, SL_ERR_INVALID, W ".stop: at most %d strings", SL_STOP_MAX);
    s->stops[s->n_stops] = strdup(json_string_value(v));
    if (!s->stops[s->n_stops])
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->n_stops++;
    return SL_OK;
}

static sl_status parse_stop(const json_t *o, sl_request_spec *s, sl_err *err)
{
    const json_t *v = json_object_get(o, "stop");
    if (!v || json_is_null(v))
        return SL_OK;
    if (!json_is_array(v))
        return add_stop(s, v, err);
    for (size_t i = 0; i < json_array_size(v); i++)
        SL_TRY(add_stop(s, json_array_get(v, i), err));
    return SL_OK;
}

static sl_status parse_lengths(const json_t *o, sl_oai_request *q, sl_err *err)
{
    sl_request_spec *s = &q->spec;
    const char *key = oai_given(o, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    if (oai_given(o, key)) {
        s->has_max_tokens = true;
        SL_TRY(opt_int32(o, key, q->chat, INT32_MAX, &s->sampling.max_tokens, err));
    }
    SL_TRY(opt_int32(o, "min_tokens", 0, INT32_MAX, &s->sampling.min_tokens, err));
    if (s->has_max_tokens && s->sampling.min_tokens > s->sampling.max_tokens)
        return sl_fail(err, SL_ERR_INVALID, W ".min_tokens: %d exceeds max_tokens %d", s->sampling.min_tokens,
                       s->sampling.max_tokens);
    q->no_output = !s->sampling.max_tokens;
    if (q->no_output) /* a prompt is computed with the token that follows it */
        s->sampling.max_tokens = 1;
    return SL_OK;
}

static sl_status parse_seed(const json_t *o, sl_request_spec *s, sl_err *err)
{
    if (!oai_given(o, "seed"))
        return SL_OK;
    int64_t seed = 0;
    s->has_seed = true;
    sl_status st = sl_json_opt_int(o, W, "seed", INT64_MIN, INT64_MAX, &seed, err);
    s->sampling.seed = (uint64_t)seed;
    return st;
}

static sl_status parse_sampling(const json_t *o, sl_oai_request *q, sl_err *err)
{
    sl_request_spec *s = &q->spec;
    sl_sampling *p = &s->sampling;
    SL_TRY(opt_float(o, "temperature", 0, 100, &p->temperature, err));
    SL_TRY(opt_float(o, "top_p", 0, 1, &p->top_p, err));
    SL_TRY(opt_int32(o, "top_k", -1, INT32_MAX, &p->top_k, err));
    SL_TRY(opt_float(o, "min_p", 0, 1, &p->min_p, err));
    SL_TRY(opt_float(o, "frequency_penalty", -2, 2, &p->frequency_penalty, err));
    SL_TRY(opt_float(o, "presence_penalty", -2, 2, &p->presence_penalty, err));
    SL_TRY(opt_float(o, "repetition_penalty", 0, 10, &p->repetition_penalty, err));
    if (p->top_k < 0) /* -1 means off, as 0 does */
        p->top_k = 0;
    SL_TRY(parse_lengths(o, q, err));
    SL_TRY(sl_json_opt_bool(o, W, "ignore_eos", &p->ignore_eos, err));
    SL_TRY(parse_seed(o, s, err));
    SL_TRY(parse_bias(o, p, err));
    SL_TRY(parse_stop_ids(o, q, err));
    SL_TRY(parse_stop(o, s, err));
    SL_TRY(sl_json_opt_bool(o, W, "include_stop_str_in_output", &s->include_stop, err));
    bool skip = true;
    SL_TRY(sl_json_opt_bool(o, W, "skip_special_tokens", &skip, err));
    s->keep_special = !skip;
    return SL_OK;
}

static sl_status parse_logprobs(const json_t *o, sl_oai_request *q, sl_err *err)
{
    int64_t top = 0;
    if (q->chat) {
        SL_TRY(sl_json_opt_bool(o, W, "logprobs", &q->logprobs, err));
        SL_TRY(sl_json_opt_int(o, W, "top_logprobs", 0, SL_LOGPROBS_MAX, &top, err));
        if (top && !q->logprobs)
            return sl_fail(err, SL_ERR_INVALID, W ".top_logprobs: needs logprobs true");
    } else {
        q->logprobs = oai_given(o, "logprobs");
        SL_TRY(sl_json_opt_int(o, W, "logprobs", 0, SL_LOGPROBS_MAX, &top, err));
    }
    q->top_logprobs = (int)top;
    q->spec.sampling.n_logprobs = q->logprobs ? (int32_t)top : -1;
    return SL_OK;
}

static sl_status parse_stream(const json_t *o, sl_oai_request *q, sl_err *err)
{
    json_t *so = NULL;
    SL_TRY(sl_json_opt_bool(o, W, "stream", &q->stream, err));
    SL_TRY(sl_json_opt_object(o, W, "stream_options", &so, err));
    if (!so)
        return SL_OK;
    if (!q->stream)
        return sl_fail(err, SL_ERR_INVALID, W ".stream_options: only with stream true");
    SL_TRY(sl_json_opt_bool(so, W ".stream_options", "include_usage", &q->include_usage, err));
    return sl_json_opt_bool(so, W ".stream_options", "continuous_usage_stats", &q->continuous_usage, err);
}

static sl_status parse_model(const sl_oai_env *env, const json_t *o, sl_err *err)
{
    const char *model = NULL;
    SL_TRY(sl_json_get_string(o, W, "model", &model, err));
    if (strcmp(model, env->served_name))
        return sl_fail(err, SL_ERR_NOT_FOUND,
                       W ".model: the model '%.100s' does not exist; this server has '%s'", model,
                       env->served_name);
    return SL_OK;
}

/* Of other values than that of n the best would have to be chosen. */
static sl_status check_best_of(const json_t *o, int64_t n, sl_err *err)
{
    int64_t best_of = 0;
    SL_TRY(sl_json_opt_int(o, W, "best_of", 1, 128, &best_of, err));
    if (best_of && best_of != n)
        return sl_fail(err, SL_ERR_UNSUPPORTED, W ".best_of: only the value of n is supported");
    return SL_OK;
}

/* Requests with different salts share no pages of the KV cache. */
static sl_status parse_salt(const json_t *o, sl_request_spec *s, sl_err *err)
{
    if (!oai_given(o, "cache_salt"))
        return SL_OK;
    const json_t *v = json_object_get(o, "cache_salt");
    if (!json_is_string(v))
        return sl_fail(err, SL_ERR_INVALID, W ".cache_salt: want a string");
    return sl_request_spec_set_salt(s, W ".cache_salt", json_string_value(v), json_string_length(v), err);
}

/* It is not used; what is no string is a mistake, or meant to take memory. */
static sl_status check_user(const json_t *o, sl_err *err)
{
    const char *user = NULL;
    return sl_json_opt_string(o, W, "user", &user, err);
}

static sl_status parse_common(const sl_oai_env *env, const json_t *o, sl_oai_request *q, sl_err *err)
{
    int64_t n = 1;
    SL_TRY(parse_model(env, o, err));
    SL_TRY(sl_json_opt_int(o, W, "n", 1, 128, &n, err));
    q->spec.n = (uint32_t)n;
    SL_TRY(check_best_of(o, n, err));
    SL_TRY(parse_stream(o, q, err));
    SL_TRY(parse_sampling(o, q, err));
    SL_TRY(parse_salt(o, &q->spec, err));
    SL_TRY(check_user(o, err));
    SL_TRY(sl_json_opt_bool(o, W, "parse_special", &q->parse_special, err));
    SL_TRY(sl_oai_read_constraint(o, q, err));
    SL_TRY(parse_logprobs(o, q, err));
    return sl_oai_read_shown(o, q, err);
}

/* ---- prompts ---- */

static sl_status encode(const sl_tok_input *in, const sl_oai_env *env, sl_prompt *p, sl_err *err)
{
    sl_status st = sl_tokenizer_encode_input(env->tok, in, &p->ids, &p->n, err);
    if (st == SL_ERR_TOO_LARGE && in->max_ids < SIZE_MAX)
        return sl_fail(err, st,
                       "prompt: this model's maximum context length is %zu tokens, and the text has more",
                       in->max_ids);
    return st ? sl_fail_in(err, st, "prompt") : SL_OK;
}

/* Text that the client wrote. It contains no special tokens, unless the request sets parse_special. */
static sl_status encode_text(const sl_oai_env *env, const sl_oai_request *q, const json_t *v, sl_prompt *p,
                             sl_err *err)
{
    size_t len = json_string_length(v);
    const sl_tok_range all = {0, len};
    const sl_tok_input in = {.text = json_string_value(v),
                             .len = len,
                             .flags = SL_TOK_ADD_SPECIAL,
                             .plain = &all,
                             .n_plain = !q->parse_special,
                             .max_ids = env->max_ids ? env->max_ids : SIZE_MAX,
                             .guard = env->guard};
    return encode(&in, env, p, err);
}

static sl_status add_prompt(const sl_oai_env *env, const json_t *v, sl_oai_request *q, sl_err *err)
{
    sl_request_spec *s = &q->spec;
    sl_prompt *p = &s->prompts[s->n_prompts];
    sl_status st;
    if (json_is_string(v))
        st = encode_text(env, q, v, p, err);
    else if (json_is_array(v))
        st = parse_ids(env->guard, v, "prompt", SL_MSG_MAX_TOKENS, &p->ids, &p->n, err);
    else
        st = sl_fail(err, SL_ERR_INVALID, W ".prompt: want a string, token ids, or an array of these");
    if (!st)
        s->n_prompts++;
    return st;
}

static sl_status parse_prompt(const sl_oai_env *env, const json_t *o, sl_oai_request *q, sl_err *err)
{
    sl_request_spec *s = &q->spec;
    const json_t *v = json_object_get(o, "prompt");
    if (!v || json_is_null(v))
        return sl_fail(err, SL_ERR_INVALID, W ".prompt: is missing");
    bool several = json_is_array(v) && !json_is_integer(json_array_get(v, 0));
    size_t n = several ? json_array_size(v) : 1;
    if (!n || n > 1024)
        return sl_fail(err, SL_ERR_INVALID, W ".prompt: want 1 to 1024 prompts");
    s->prompts = calloc(n, sizeof *s->prompts);
    if (!s->prompts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++)
        SL_TRY(add_prompt(env, several ? json_array_get(v, i) : v, q, err));
    return sl_oai_show_prompts(env, v, q, err);
}

/* The tools that the model may call, kept for the answer; none when tool_choice says so. */
static void keep_tools(json_t *tools, const json_t *choice, sl_oai_request *q)
{
    bool none = choice && json_is_string(choice) && !strcmp(json_string_value(choice), "none");
    if (tools && json_array_size(tools) && !none)
        q->tools = json_incref(tools);
}

/* The tokens that end the model's turn stop the answer, also when the checkpoint's files do not name them. */
static sl_status add_turn_ends(const sl_oai_env *env, sl_sampling *s, sl_err *err)
{
    int32_t ids[SL_STOP_IDS_MAX];
    uint32_t n = s->n_stop_ids;
    if (s->ignore_eos)
        return SL_OK;
    if (n)
        memcpy(ids, s->stop_ids, n * sizeof *ids);
    for (const char *const *end = sl_chat_ends(env->chat); *end && n < SL_STOP_IDS_MAX; end++) {
        int32_t id = sl_tokenizer_id(env->tok, *end, strlen(*end));
        if (sl_tokenizer_is_added(env->tok, id))
            ids[n++] = id;
    }
    if (n > s->n_stop_ids && sl_sampling_set_stop_ids(s, ids, n) != SL_OK)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return SL_OK;
}

static sl_status encode_chat(const sl_oai_env *env, const sl_chat_prompt *p, sl_oai_request *q, sl_err *err)
{
    sl_request_spec *s = &q->spec;
    s->prompts = calloc(1, sizeof *s->prompts);
    if (!s->prompts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    size_t n = q->parse_special ? 0 : p->n_client;
    const sl_tok_input in = {.text = p->text,
                             .len = p->len,
                             .plain = p->client,
                             .n_plain = n,
                             .max_ids = env->max_ids ? env->max_ids : SIZE_MAX,
                             .guard = env->guard};
    SL_TRY(encode(&in, env, s->prompts, err));
    s->n_prompts = 1;
    return SL_OK;
}

static sl_status render(const sl_oai_env *env, const json_t *o, sl_oai_request *q, sl_err *err)
{
    json_t *messages = NULL, *tools = NULL;
    SL_TRY(sl_json_get_array(o, W, "messages", &messages, err));
    if (!json_array_size(messages))
        return sl_fail(err, SL_ERR_INVALID, W ".messages: is empty");
    SL_TRY(sl_json_opt_array(o, W, "tools", &tools, err));
    const char *effort = NULL;
    SL_TRY(sl_oai_read_thinking(env, o, q, &effort, err));
    q->spec.keep_special |= sl_chat_marks_special(env->chat, env->tok);
    const json_t *choice = json_object_get(o, "tool_choice");
    if (json_is_null(choice))
        choice = NULL;
    keep_tools(tools, choice, q);
    sl_chat_request cr = {.messages = messages,
                          .tools = q->tools,
                          .tool_choice = choice,
                          .response_format = json_object_get(o, "response_format"),
                          .thinking = q->thinking,
                          .effort = effort,
                          .guard = env->guard};
    sl_chat_prompt p;
    SL_TRY(add_turn_ends(env, &q->spec.sampling, err));
    SL_TRY(sl_chat_render(env->chat, &cr, &p, err));
    sl_status st = encode_chat(env, &p, q, err);
    sl_chat_prompt_free(&p);
    return st ? st : sl_oai_show_prompts(env, NULL, q, err);
}

sl_status sl_oai_parse_object(const sl_oai_env *env, const json_t *o, bool chat, sl_oai_request *q,
                              sl_err *err)
{
    q->chat = chat;
    q->parse_special = env->parse_special;
    sl_request_spec_init(&q->spec);
    q->spec.api = sl_oai_name(q->api);
    sl_status st = sl_oai_fields_check(o, chat ? OAI_OF_CHAT : OAI_OF_COMPLETIONS, err);
    if (!st)
        st = parse_common(env, o, q, err);
    if (!st)
        st = chat ? render(env, o, q, err) : parse_prompt(env, o, q, err);
    if (st)
        sl_oai_request_free(q);
    return st;
}

sl_status sl_oai_load(const sl_oai_env *env, const char *body, size_t len, json_t **out, sl_err *err)
{
    json_t *o = NULL;
    sl_json_cost cost = sl_json_measure(body, len);
    if (cost.depth > SL_JSON_DEPTH_MAX)
        return sl_fail(err, SL_ERR_INVALID, W ": is nested deeper than %d levels", SL_JSON_DEPTH_MAX);
    SL_TRY(sl_guard_take(env->guard, cost.bytes, err));
    SL_TRY(sl_json_parse_guarded(env->guard, body, len, W, &o, err));
    if (!json_is_object(o)) {
        json_decref(o);
        return sl_fail(err, SL_ERR_INVALID, W ": want a JSON object");
    }
    *out = o;
    return SL_OK;
}

/* A body of another API becomes one of these two; the memory of that is taken before it is made. */
static sl_status translate(const sl_oai_env *env, const json_t *o, size_t len, sl_oai_request *q,
                           json_t **out, sl_err *err)
{
    SL_TRY(sl_oai_fields_check(o, 1u << q->api, err));
    if (q->api == OAI_GENERATE) /* refers to what o has */
        return sl_oai_from_generate(o, env->served_name, out, err);
    SL_TRY(sl_guard_take(env->guard, oai_translated_bytes(o, len), err));
    if (q->api == OAI_MESSAGES)
        return sl_oai_from_messages(o, out, err);
    SL_TRY(sl_oai_from_responses(o, out, &q->shown, err));
    return sl_guard_take(env->guard, q->shown.cap, err);
}

sl_status sl_oai_parse(const sl_oai_env *env, sl_oai_api api, const char *body, size_t len,
                       sl_oai_request *out, sl_err *err)
{
    json_t *o = NULL, *as = NULL;
    sl_oai_request q = {.api = api};
    bool own = api == OAI_COMPLETIONS || api == OAI_CHAT;
    SL_TRY(sl_oai_load(env, body, len, &o, err));
    sl_request_spec_init(&q.spec);
    sl_status st = own ? SL_OK : translate(env, o, len, &q, &as, err);
    if (st) {
        sl_oai_request_free(&q);
    } else {
        st = sl_oai_parse_object(env, own ? o : as, api != OAI_COMPLETIONS && api != OAI_GENERATE, &q, err);
        oai_name_for(api, st && !own ? err : NULL);
    }
    json_decref(o);
    json_decref(as);
    if (!st)
        *out = q;
    return st;
}

void sl_oai_request_free(sl_oai_request *q)
{
    sl_sb_free(&q->shown);
    json_decref(q->tools);
    q->tools = NULL;
    sl_oai_prompts_free(q->prompts, q->n_shown);
    q->prompts = NULL;
    q->n_shown = 0;
    sl_request_spec_free(&q->spec);
}
