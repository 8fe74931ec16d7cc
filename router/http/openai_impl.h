/* What the files that read an OpenAI request share: openai_request.c, openai_fields.c, openai_constraint.c. Pure, any thread. */
#ifndef SL_ROUTER_HTTP_OPENAI_IMPL_H
#define SL_ROUTER_HTTP_OPENAI_IMPL_H

#include "router/http/openai.h"

enum { OAI_OF_CHAT = 1u << OAI_CHAT, OAI_OF_COMPLETIONS = 1u << OAI_COMPLETIONS };
typedef enum { OAI_USED, OAI_IGNORED, OAI_REFUSED } oai_field_use;

typedef struct oai_field {
    const char *name;
    unsigned of;
    oai_field_use how;
    const char *neutral;
} oai_field;

/* The table of known fields, in its order; NULL after the last one. For tests and documentation. */
const oai_field *sl_oai_field(size_t i);
/* The field of this API that a misspelt name probably means; NULL: none is near. */
const char *sl_oai_field_near(const char *name, unsigned of);
/* Refuses what is unknown, or is not supported. */
sl_status sl_oai_fields_check(const json_t *o, unsigned of, sl_err *err);
/* The same for the members of objects inside the body, which sl_oai_fields_check calls (openai_members.c). */
sl_status sl_oai_members_check(const json_t *o, unsigned of, sl_err *err);
/* null, false, and what is empty. */
bool oai_says_nothing(const json_t *v);
/* Names the field in an error of a translated request as its client knows it: max_tokens is max_output_tokens there. err may be NULL. */
void oai_name_for(sl_oai_api api, sl_err *err);

/* A member that is there and not null. */
static inline bool oai_given(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

/* The constraint of a body, of whatever fields it comes from: q->spec.sampling and q->form. Tools have been kept already. */
sl_status sl_oai_read_constraint(const json_t *o, sl_oai_request *q, sl_err *err);
/* Sets q->thinking, and *effort to a constant if the body says how much; the constraint has been read already. */
sl_status sl_oai_read_thinking(const sl_oai_env *env, const json_t *o, sl_oai_request *q, const char **effort,
                               sl_err *err);
/* The JSON of a body, whose memory is taken from env->guard. */
sl_status sl_oai_load(const sl_oai_env *env, const char *body, size_t len, json_t **out, sl_err *err);
/* Parses a body of OAI_COMPLETIONS or OAI_CHAT, for an answer of q->api; on an error *q is freed. */
sl_status sl_oai_parse_object(const sl_oai_env *env, const json_t *o, bool chat, sl_oai_request *q,
                              sl_err *err);
/* The body of OAI_CHAT or OAI_COMPLETIONS that asks for the same. Errors name the fields of o. */
sl_status sl_oai_from_responses(const json_t *o, json_t **chat, sl_strbuf *shown, sl_err *err);
sl_status sl_oai_from_messages(const json_t *o, json_t **chat, sl_err *err);
sl_status sl_oai_from_generate(const json_t *o, const char *model, json_t **text, sl_err *err);

/* openai_prompt.c: echo, prompt_logprobs; then, when there are prompts, what the answer shows of them. */
sl_status sl_oai_read_shown(const json_t *o, sl_oai_request *q, sl_err *err);
sl_status sl_oai_show_prompts(const sl_oai_env *env, const json_t *prompt, sl_oai_request *q, sl_err *err);

/* The form of tools and tool_choice. */
sl_status sl_oai_check_tools(const json_t *o, sl_err *err);

#endif
