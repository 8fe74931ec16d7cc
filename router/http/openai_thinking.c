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
    if (q->form && q->thinking && kw && (oai_given(kw, "thinking") || oai_given(kw, "enable_thinking")))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       W ".chat_template_kwargs: a constrained answer has no reasoning");
    if (q->form) /* a constraint holds from the first token on, so there is no reasoning before it */
        q->thinking = SL_CHAT_THINK_NO;
    return SL_OK;
}
