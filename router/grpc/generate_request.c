/*
 * A GenerateRequest to a sl_request_spec.
 *
 * proto3 zeros are "not set" for everything except temperature, as the protocol's clients expect. What cannot be done
 * (images, embeddings, LoRA, hidden states) is refused by name, never ignored.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "router/grpc/generate.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name

static sl_status refuse_unsupported(const S(GenerateRequest) * q, sl_err *err)
{
    const char *what = NULL;
    if (q->mm_inputs &&
        (q->mm_inputs->n_image_urls || q->mm_inputs->n_video_urls || q->mm_inputs->n_audio_urls))
        what = "mm_inputs";
    else if (q->n_input_embeds)
        what = "input_embeds";
    else if (q->lora_id && *q->lora_id)
        what = "lora_id";
    else if (q->return_hidden_states)
        what = "return_hidden_states";
    else if (q->n_token_ids_logprob)
        what = "token_ids_logprob";
    else if (q->custom_logit_processor && *q->custom_logit_processor)
        what = "custom_logit_processor";
    return what ? sl_fail(err, SL_ERR_UNSUPPORTED, "%s: is not supported", what) : SL_OK;
}

static sl_status read_bias(const S(SamplingParams) * p, sl_sampling *s, sl_err *err)
{
    if (!p->n_logit_bias)
        return SL_OK;
    if (p->n_logit_bias > SL_BIAS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "logit_bias: %zu entries, at most %d", p->n_logit_bias,
                       SL_BIAS_MAX);
    sl_logit_bias *b = calloc(p->n_logit_bias, sizeof *b);
    if (!b)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = SL_OK;
    for (size_t i = 0; i < p->n_logit_bias && !st; i++) {
        char *end;
        long id = strtol(p->logit_bias[i]->key, &end, 10);
        if (!*p->logit_bias[i]->key || *end || id < 0 || id > INT32_MAX)
            st = sl_fail(err, SL_ERR_INVALID, "logit_bias: '%.20s' is no token id", p->logit_bias[i]->key);
        b[i] = (sl_logit_bias){(int32_t)id, p->logit_bias[i]->value};
    }
    if (!st)
        st = sl_sampling_set_bias(s, b, (uint32_t)p->n_logit_bias);
    free(b);
    return st;
}

static sl_status read_seed(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE || !(v->number_value >= 0) ||
        v->number_value > 9007199254740992.0)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.seed: want a number from 0 to 2^53");
    s->has_seed = true;
    s->sampling.seed = (uint64_t)v->number_value;
    return SL_OK;
}

static sl_status read_salt(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_STRING_VALUE)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.cache_salt: want a string");
    return sl_request_spec_set_salt(s, "custom_params.cache_salt", v->string_value, strlen(v->string_value),
                                    err);
}

static sl_status read_special(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_BOOL_VALUE)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.parse_special: want true or false");
    s->parse_special = v->bool_value;
    return SL_OK;
}

/* The id of the token after which the constraint begins, as that which ends the reasoning; whether it is one of the
 * vocabulary, and whether there is a constraint, is found out with the other parameters. */
static sl_status read_after(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err)
{
    if (!v || v->kind_case != GOOGLE__PROTOBUF__VALUE__KIND_NUMBER_VALUE || !(v->number_value >= 0) ||
        v->number_value >= INT32_MAX || v->number_value != (int32_t)v->number_value)
        return sl_fail(err, SL_ERR_INVALID, "custom_params.constraint_after: want the id of a token");
    s->sampling.constraint_after = 1 + (int32_t)v->number_value;
    return SL_OK;
}

/* What the protocol has no field for: clients of this server put it into custom_params. */
static sl_status read_custom(const Google__Protobuf__Struct *c, sl_request_spec *s, sl_err *err)
{
    static const struct {
        const char *name;
        sl_status (*read)(const Google__Protobuf__Value *v, sl_request_spec *s, sl_err *err);
    } params[] = {{"seed", read_seed},
                  {"cache_salt", read_salt},
                  {"parse_special", read_special},
                  {"constraint_after", read_after}};
    for (size_t i = 0; c && i < c->n_fields; i++) {
        size_t k = 0;
        while (k < SL_COUNT(params) && strcmp(c->fields[i]->key, params[k].name))
            k++;
        if (k == SL_COUNT(params))
            return sl_fail(err, SL_ERR_UNSUPPORTED, "custom_params.%.60s: is unknown", c->fields[i]->key);
        SL_TRY(params[k].read(c->fields[i]->value, s, err));
    }
    return SL_OK;
}

static sl_status read_stops(const S(SamplingParams) * p, sl_request_spec *s, sl_err *err)
{
    if (p->n_stop > SL_STOP_MAX)
        return sl_fail(err, SL_ERR_INVALID, "stop: %zu strings, at most %d", p->n_stop, SL_STOP_MAX);
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n = strlen(p->stop[i]);
        if (!n || n > SL_STOP_LEN_MAX)
            return sl_fail(err, SL_ERR_INVALID, "stop: a stop string has 1 to %d bytes", SL_STOP_LEN_MAX);
        s->stops[i] = strdup(p->stop[i]);
        if (!s->stops[i])
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        s->n_stops++;
    }
    if (p->n_stop_token_ids > SL_STOP_IDS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "stop_token_ids: %zu entries, at most %d", p->n_stop_token_ids,
                       SL_STOP_IDS_MAX);
    if (!p->n_stop_token_ids)
        return SL_OK;
    return sl_sampling_set_stop_ids(&s->sampling, (const int32_t *)p->stop_token_ids,
                                    (uint32_t)p->n_stop_token_ids)
               ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory")
               : SL_OK;
}

/* Whether the text is a constraint is found out on the pool: sl_front_check_constraint(). */
static sl_status read_constraint(const S(SamplingParams) * p, sl_sampling *s, sl_err *err)
{
    static const struct {
        int which;
        sl_grammar_kind kind;
        const char *name;
    } rows[] = {
        {SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_REGEX, SL_GRAMMAR_REGEX, "regex"},
        {SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_JSON_SCHEMA, SL_GRAMMAR_SCHEMA, "json_schema"},
        {SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_EBNF_GRAMMAR, SL_GRAMMAR_GBNF, "ebnf_grammar"},
        {SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_STRUCTURAL_TAG, SL_GRAMMAR_TAGS,
         "structural_tag"}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if ((int)p->constraint_case != rows[i].which)
            continue;
        size_t n = strlen(p->regex); /* the texts share their place */
        if (n > SL_GRAMMAR_BYTES_MAX)
            return sl_fail(err, SL_ERR_INVALID, "sampling_params.%s: %zu bytes, at most %d are possible",
                           rows[i].name, n, SL_GRAMMAR_BYTES_MAX);
        if (sl_sampling_set_constraint(s, rows[i].kind, p->regex, n) != SL_OK)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    return SL_OK;
}

static sl_status read_sampling(const S(SamplingParams) * p, sl_request_spec *s, sl_err *err)
{
    sl_sampling *o = &s->sampling;
    if (!p)
        return SL_OK;
    o->temperature = p->temperature;
    o->top_p = p->top_p == 0 ? 1 : p->top_p;
    o->top_k = p->top_k > 0 ? p->top_k : 0;
    o->min_p = p->min_p;
    o->frequency_penalty = p->frequency_penalty;
    o->presence_penalty = p->presence_penalty;
    o->repetition_penalty = p->repetition_penalty == 0 ? 1 : p->repetition_penalty;
    o->ignore_eos = p->ignore_eos;
    s->n = p->n ? p->n : 1;
    s->keep_special = !p->skip_special_tokens;
    s->include_stop = p->no_stop_trim;
    if (p->_max_new_tokens_case == SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS) {
        if (!p->max_new_tokens || p->max_new_tokens > INT32_MAX)
            return sl_fail(err, SL_ERR_INVALID, "max_new_tokens: must be at least 1");
        s->has_max_tokens = true;
        o->max_tokens = (int32_t)p->max_new_tokens;
    }
    if (p->min_new_tokens > (uint32_t)o->max_tokens)
        return sl_fail(err, SL_ERR_INVALID, "min_new_tokens: exceeds max_new_tokens");
    o->min_tokens = (int32_t)p->min_new_tokens;
    SL_TRY(read_stops(p, s, err));
    SL_TRY(read_bias(p, o, err));
    SL_TRY(read_constraint(p, o, err));
    return read_custom(p->custom_params, s, err);
}

static sl_status read_prompt(sl_router *r, const S(TokenizedInput) * t, sl_request_spec *s, size_t max_tokens,
                             sl_guard *guard, sl_err *err)
{
    s->prompts = calloc(1, sizeof *s->prompts);
    if (!s->prompts)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->n_prompts = 1;
    if (t && t->n_input_ids) {
        SL_TRY(sl_guard_take(guard, t->n_input_ids * sizeof(int32_t), err));
        s->prompts->ids = malloc(t->n_input_ids * sizeof(int32_t));
        if (!s->prompts->ids)
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        s->prompts->n = t->n_input_ids;
        for (size_t i = 0; i < t->n_input_ids; i++)
            s->prompts->ids[i] = t->input_ids[i] > INT32_MAX ? -1 : (int32_t)t->input_ids[i];
        return SL_OK;
    }
    if (!t || !t->original_text || !*t->original_text)
        return sl_fail(err, SL_ERR_INVALID, "tokenized: input_ids is empty");
    const sl_tok_range all = {0, strlen(t->original_text)};
    const sl_tok_input in = {.text = t->original_text,
                             .len = all.end,
                             .flags = SL_TOK_ADD_SPECIAL,
                             .plain = &all,
                             .n_plain = !s->parse_special,
                             .max_ids = max_tokens ? max_tokens : SIZE_MAX,
                             .guard = guard};
    sl_status st =
        sl_tokenizer_encode_input(sl_router_model(r)->tok, &in, &s->prompts->ids, &s->prompts->n, err);
    return st ? sl_fail_in(err, st, "prompt") : SL_OK;
}

/* Those of the prompt, from the token at logprob_start_len on. The protocol's 0 is also what a client sends that has never heard of
 * the field, so that it asks for none, as -1 does. */
static sl_status read_logprobs(const S(GenerateRequest) * q, sl_sampling *s, sl_err *err)
{
    if (q->top_logprobs_num < 0 || q->top_logprobs_num > SL_LOGPROBS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "top_logprobs_num: must be 0 to %d", SL_LOGPROBS_MAX);
    if (q->logprob_start_len < -1)
        return sl_fail(err, SL_ERR_INVALID, "logprob_start_len: must be -1 or more");
    s->n_logprobs = q->return_logprob ? q->top_logprobs_num : -1;
    if (!q->return_logprob || q->logprob_start_len < 1)
        return SL_OK;
    if (q->stream)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "logprob_start_len: log-probabilities of the prompt need stream false");
    s->prompt_logprobs = 1 + q->top_logprobs_num;
    return SL_OK;
}

/* What can never be answered is refused before it is computed. */
static sl_status check_scored(const S(GenerateRequest) * q, const sl_request_spec *s, const sl_guard *guard,
                              sl_err *err)
{
    const size_t n = s->prompts->n, from = (size_t)q->logprob_start_len;
    if (!s->sampling.prompt_logprobs)
        return SL_OK;
    if (from >= n)
        return sl_fail(err, SL_ERR_INVALID, "logprob_start_len: %zu, but the prompt has %zu tokens", from, n);
    uint64_t need = (n - from) * generate_score_bytes((uint32_t)q->top_logprobs_num);
    if (!guard || !guard->most || need <= guard->most)
        return SL_OK;
    return sl_fail(
        err, SL_ERR_TOO_LARGE,
        "logprob_start_len: the log-probabilities of the prompt take at least %lu bytes of memory, of %lu that the "
        "server has for all requests (router.max_request_bytes); ask for those of fewer tokens",
        (unsigned long)need, (unsigned long)guard->most);
}

sl_status generate_read(sl_router *r, const S(GenerateRequest) * q, sl_request_spec *s, size_t max_tokens,
                        sl_guard *guard, sl_err *err)
{
    if (q->request_id && strlen(q->request_id) >= sizeof s->id)
        return sl_fail(err, SL_ERR_INVALID, "request_id: longer than %zu bytes", sizeof s->id - 1);
    if (q->request_id && *q->request_id)
        snprintf(s->id, sizeof s->id, "%s", q->request_id);
    else
        snprintf(s->id, sizeof s->id, "gen-%016lx", sl_random_u64());
    SL_TRY(read_logprobs(q, &s->sampling, err));
    s->no_text = true;
    s->parse_special = sl_router_options(r)->model.parse_special;
    SL_TRY(refuse_unsupported(q, err));
    SL_TRY(read_sampling(q->sampling_params, s, err));
    SL_TRY(read_prompt(r, q->tokenized, s, max_tokens, guard, err));
    return check_scored(q, s, guard, err);
}
