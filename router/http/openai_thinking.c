/*
 * Whether the model reasons before it answers a chat request, and how much: chat_template_kwargs, whose names are those of
 * the models' templates, and reasoning_effort. What is said nowhere is as the chat format does it by default.
 */
#include <string.h>

#include "base/json.h"
#include "router/http/openai_impl.h"

#define W "body"

/* How much the model is to reason: a field of OpenAI's, or the variable of the chat templates. "none" turns it off. */
static sl_status parse_effort(const json_t *o, const char *where, const char **effort, sl_err *err)
{
    static const char *const known[] = {"none",   "no_think", "minimal", "low",
                                        "medium", "high",     "xhigh",   "max"};
    const char *given = NULL;
    SL_TRY(sl_json_opt_string(o, where, "reasoning_effort", &given, err));
    for (size_t i = 0; given && i < SL_COUNT(known); i++) {
        if (!strcmp(given, known[i]))
            *effort = known[i];
    }
    if (given && (!*effort || strcmp(*effort, given)))
        return sl_fail(err, SL_ERR_INVALID,
                       "%s.reasoning_effort: want none, minimal, low, medium, high, xhigh or max", where);
    return SL_OK;
}

/*
 * A constraint begins after the reasoning, if the request asks for reasoning; else there is none, because a client that wants
 * JSON does not expect it. Structural tags leave the text before them free, so there the model reasons as it does by default.
 */
static sl_status reason_before(const sl_oai_env *env, bool switched, bool with_effort, sl_oai_request *q,
                               sl_err *err)
{
    const int32_t end = sl_chat_think_end(env->chat, env->tok);
    const bool asked = q->thinking && (switched || (with_effort && end >= 0));
    if (q->form && !asked)
        q->thinking = SL_CHAT_THINK_NO;
    if (q->form && asked && end < 0)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            W
            ".chat_template_kwargs: no reasoning before a constrained answer, because no token of this model ends it");
    if (!q->thinking || end < 0 || (q->thinking == SL_CHAT_THINK_ADAPTIVE && !asked))
        return SL_OK;
    q->thinking = SL_CHAT_THINK_OPEN;
    q->spec.sampling.constraint_after = 1 + end;
    return SL_OK;
}

sl_status sl_oai_read_thinking(const sl_oai_env *env, const json_t *o, sl_oai_request *q, const char **effort,
                               sl_err *err)
{
    json_t *kw = NULL;
    q->thinking = sl_chat_thinks(env->chat);
    SL_TRY(sl_json_opt_object(o, W, "chat_template_kwargs", &kw, err));
    SL_TRY(parse_effort(o, W, effort, err));
    if (kw)
        SL_TRY(parse_effort(kw, W ".chat_template_kwargs", effort, err));
    if (*effort && (!strcmp(*effort, "none") || !strcmp(*effort, "no_think")))
        q->thinking = SL_CHAT_THINK_NO;
    static const char *const switches[] = {"thinking", "enable_thinking"};
    for (size_t i = 0; kw && i < SL_COUNT(switches); i++) {
        bool on = false;
        SL_TRY(sl_json_opt_bool(kw, W ".chat_template_kwargs", switches[i], &on, err));
        if (oai_given(kw, switches[i]))
            q->thinking = on ? SL_CHAT_THINK_YES : SL_CHAT_THINK_NO;
    }
    bool switched = false;
    for (size_t i = 0; kw && i < SL_COUNT(switches); i++)
        switched |= oai_given(kw, switches[i]);
    return q->spec.sampling.constraint ? reason_before(env, switched, *effort != NULL, q, err) : SL_OK;
}
