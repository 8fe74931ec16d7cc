/*
 * A body of SGLang's /generate as one of /v1/completions. Pure, any thread.
 */
#include <string.h>

#include "base/json.h"
#include "base/near.h"
#include "router/http/translate.h"

#define W "body"

/* Names of sampling_params that completions have too, and under which name. */
static const struct {
    const char *from, *to;
} params[] = {{"max_new_tokens", "max_tokens"},
              {"min_new_tokens", "min_tokens"},
              {"temperature", "temperature"},
              {"top_p", "top_p"},
              {"top_k", "top_k"},
              {"min_p", "min_p"},
              {"frequency_penalty", "frequency_penalty"},
              {"presence_penalty", "presence_penalty"},
              {"repetition_penalty", "repetition_penalty"},
              {"stop", "stop"},
              {"stop_token_ids", "stop_token_ids"},
              {"ignore_eos", "ignore_eos"},
              {"skip_special_tokens", "skip_special_tokens"},
              {"logit_bias", "logit_bias"},
              {"regex", "regex"},
              {"json_schema", "json_schema"},
              {"ebnf", "ebnf"},
              {"sampling_seed", "seed"},
              {"spaces_between_special_tokens", "spaces_between_special_tokens"},
              {"no_stop_trim", "include_stop_str_in_output"}};

static sl_status refuse_param(const char *name, sl_err *err)
{
    sl_near near = sl_near_begin(name);
    for (size_t i = 0; i < SL_COUNT(params); i++)
        sl_near_try(&near, params[i].from);
    return sl_fail(err, SL_ERR_UNSUPPORTED, W ".sampling_params.%.40s: is not a field of this API%s%s%s",
                   name, near.best ? "; did you mean " : "", near.best ? near.best : "",
                   near.best ? "?" : "");
}

static sl_status read_params(const json_t *o, json_t *out, sl_err *err)
{
    json_t *list = NULL, *v;
    const char *name;
    SL_TRY(sl_json_opt_object(o, W, "sampling_params", &list, err));
    json_object_set_new(out, "max_tokens", json_integer(128)); /* SGLang's default */
    json_object_foreach(list, name, v)
    {
        size_t i = 0;
        if (json_is_null(v) || (!strcmp(name, "n") && json_integer_value(v) == 1))
            continue;
        while (i < SL_COUNT(params) && strcmp(name, params[i].from))
            i++;
        if (i == SL_COUNT(params))
            return refuse_param(name, err);
        json_object_set(out, params[i].to, v);
    }
    return SL_OK;
}

static sl_status read_logprobs(const json_t *o, json_t *out, sl_err *err)
{
    bool wanted = false;
    int64_t top = 0, from = -1;
    SL_TRY(sl_json_opt_bool(o, W, "return_logprob", &wanted, err));
    SL_TRY(sl_json_opt_int(o, W, "top_logprobs_num", 0, SL_LOGPROBS_MAX, &top, err));
    SL_TRY(sl_json_opt_int(o, W, "logprob_start_len", -1, 0, &from, err));
    if (!wanted)
        return SL_OK;
    json_object_set_new(out, "logprobs", json_integer(top));
    if (!from)
        json_object_set_new(out, "prompt_logprobs", json_integer(top));
    return SL_OK;
}

static sl_status read_all(const json_t *o, const char *model, json_t *out, sl_err *err)
{
    const json_t *prompt = json_object_get(o, oai_given(o, "text") ? "text" : "input_ids");
    json_object_set_new(out, "model", json_string(model));
    oai_move(o, "model", out, "model");
    if (oai_given(o, "text") == oai_given(o, "input_ids"))
        return sl_fail(err, SL_ERR_INVALID, W ".text: want this or input_ids");
    if (oai_given(o, "text") ? !json_is_string(prompt) : !json_is_integer(json_array_get(prompt, 0)))
        return sl_fail(err, SL_ERR_INVALID, "%s: want one prompt",
                       oai_given(o, "text") ? W ".text" : W ".input_ids");
    json_object_set(out, "prompt", (json_t *)prompt);
    oai_move(o, "stream", out, "stream");
    SL_TRY(read_params(o, out, err));
    return read_logprobs(o, out, err);
}

sl_status sl_oai_from_generate(const json_t *o, const char *model, json_t **text, sl_err *err)
{
    json_t *out = json_object();
    sl_status st = out ? read_all(o, model, out, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (st)
        json_decref(out);
    else
        *text = out;
    return st;
}
