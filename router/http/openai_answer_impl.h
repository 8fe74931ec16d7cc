/*
 * Inside the OpenAI answer: the state that openai_answer.c (outputs in), openai_logprobs.c, openai_stream.c (events)
 * and openai_document.c (one JSON document) share.
 *
 * Whatever grows with the number of tokens is kept as finished JSON text, written when the tokens arrive: a tree of
 * JSON values would take ten times the memory, and making its text at the end would take the time of all tokens at
 * once.
 */
#ifndef SL_ROUTER_HTTP_OPENAI_ANSWER_IMPL_H
#define SL_ROUTER_HTTP_OPENAI_ANSWER_IMPL_H

#include "router/http/openai.h"

/* Elements of JSON arrays, separated by commas, without the brackets. */
typedef struct oai_logprobs {
    sl_strbuf content;                      /* chat */
    sl_strbuf tokens, values, top, offsets; /* completions */
    size_t offset;                          /* of the next token in the text, for text_offset */
} oai_logprobs;

typedef struct oai_choice {
    sl_strbuf text; /* the whole text: of a document, and of a stream that is a list of calls */
    oai_logprobs lp;
    sl_chat_parser *parser; /* chat stream; of a constrained answer, if it reasons before */
    bool role_sent, call_sent, ended;
    const char *finish;
    char *stop_reason; /* a stop string, or a token id that the request names */
    bool stop_string;
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
} oai_choice;

struct sl_oai_answer {
    sl_oai_env env;
    bool generate;                  /* OAI_GENERATE */
    struct oai_agent *agent;        /* agent.h; NULL: choices are made of text */
    int32_t stops[SL_STOP_IDS_MAX]; /* [n_stops], those that the request names */
    uint32_t n_stops;
    bool chat, stream, include_usage, continuous_usage, logprobs;
    sl_chat_think thinking;
    int top;
    json_t *tools;
    sl_oai_form form;
    char function[65]; /* OAI_CALL */
    char id[96];
    int64_t created;
    oai_choice *choices;
    uint32_t n, n_per_prompt, ended;
    sl_oai_prompt *prompts; /* [n_shown], or NULL */
    size_t n_shown;
    bool echo, no_output;
    int prompt_top; /* -1: no prompt_logprobs */
    size_t kept;    /* document: bytes of all texts and logprobs */
    sl_strbuf out;
    size_t taken;
    bool began, failed, oom;
    sl_status status;
    char error[512];
};

/* Adds one token's logprobs. */
void oai_logprobs_add(const sl_oai_answer *a, oai_logprobs *lp, const sl_msg_token *t);
bool oai_logprobs_any(const oai_logprobs *lp);
size_t oai_logprobs_bytes(const oai_logprobs *lp);
/* Appends the value of the "logprobs" member, everything since the last call, or null when not asked for. */
void oai_logprobs_take(const sl_oai_answer *a, oai_logprobs *lp, sl_strbuf *out);
void oai_logprobs_free(oai_logprobs *lp);

/* openai_prompt.c. Keeps what has come of a prompt's log-probabilities. */
void oai_prompt_take(sl_oai_answer *a, uint32_t prompt, const sl_msg_token *t, size_t n);
/* Appends the JSON string of the text of the choice, with that of its prompt before it if that is wanted. */
void oai_prompt_text(const sl_oai_answer *a, uint32_t choice, const char *text, size_t len, sl_strbuf *out);
/* With echo: the log-probabilities of the prompt precede those of the choice. */
void oai_prompt_logprobs(const sl_oai_answer *a, uint32_t choice, oai_logprobs *lp);
/* Appends ,"prompt_logprobs":[…] of the prompt of the choice, if that is wanted. */
void oai_prompt_member(const sl_oai_answer *a, uint32_t choice, sl_strbuf *out);

/* Appends ,"input_token_logprobs":[…] of the first prompt. */
void oai_prompt_input(const sl_oai_answer *a, sl_strbuf *out);
/* generate_answer.c: OAI_GENERATE. */
void oai_generate_output(sl_oai_answer *a, const sl_output *o);
char *oai_generate_document(const sl_oai_answer *a);

/* The token as valid UTF-8; malloc'ed, NULL when it cannot be decoded. */
char *oai_token_text(const sl_oai_answer *a, int32_t id, size_t *len);
/* Appends a number that every parser takes for a real one. */
void oai_put_logprob(sl_strbuf *sb, float v);

/* Appends {"id":…,"object":…,"created":…,"model":…,"choices":[ */
void oai_put_head(const sl_oai_answer *a, const char *object, sl_strbuf *out);
/* Appends the usage of all choices, as a JSON object. */
void oai_put_usage(const sl_oai_answer *a, sl_strbuf *out);
/* Appends the stop string, or the number of the token. */
void oai_put_stop_reason(const oai_choice *c, sl_strbuf *out);
/* Appends a JSON value and drops the reference; NULL (out of memory) makes out bad. */
void oai_put_json(json_t *o, sl_strbuf *out);
void oai_make_call_id(char *out, size_t cap);
/* The calls of an answer of form OAI_CALLS, as members of tool_calls; NULL: the text is no list of calls, for it was cut. */
json_t *oai_forced_calls(const oai_choice *c);

/* Stream: the events of one output; the event of an error after the first byte. */
void oai_stream_output(sl_oai_answer *a, const sl_output *o);
void oai_stream_error(sl_oai_answer *a, sl_status st, const char *error);

#endif
