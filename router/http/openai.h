/*
 * Inside router/http: the OpenAI request and its answer, apart from sockets.
 *
 * sl_oai_parse() turns a body into a sl_oai_request (pure: may run on any thread). sl_oai_answer collects a
 * group's outputs and turns them into either one JSON document or a stream of server-sent events. Neither
 * knows libmicrohttpd, so tests and the fuzzer call them directly.
 */
#ifndef SL_ROUTER_HTTP_OPENAI_H
#define SL_ROUTER_HTTP_OPENAI_H

#include <jansson.h>

#include "base/strbuf.h"
#include "model/chat.h"
#include "router/core.h"

/* What a body is. The first five become requests for tokens, the others are answered at once. */
typedef enum {
    OAI_COMPLETIONS,
    OAI_CHAT,
    OAI_RESPONSES,    /* OpenAI's /v1/responses */
    OAI_MESSAGES,     /* Anthropic's /v1/messages */
    OAI_GENERATE,     /* SGLang's /generate */
    OAI_TOKENIZE,     /* vLLM's /tokenize */
    OAI_DETOKENIZE,   /* vLLM's /detokenize */
    OAI_COUNT_TOKENS, /* Anthropic's /v1/messages/count_tokens */
    OAI_APIS
} sl_oai_api;
/* Its path, and its name in metrics and logs. OAI_APIS: no such path. */
const char *sl_oai_path(sl_oai_api api);
const char *sl_oai_name(sl_oai_api api);
sl_oai_api sl_oai_find(const char *path);

/* What parsing needs to know of the server; constant while requests are parsed. */
typedef struct sl_oai_env {
    const sl_tokenizer *tok;
    sl_chat_format chat;
    const char *served_name;
    bool parse_special; /* router.parse_special: unless the request says otherwise */
    const int32_t *eos; /* [n_eos]: tokens that end a sequence */
    size_t n_eos;
    int32_t context; /* 0: not known */
    /* of one request; not used after it was parsed */
    size_t max_ids;  /* of a prompt; 0: any number */
    sl_guard *guard; /* may be NULL */
} sl_oai_env;

/* What the text of an answer is: the model's own, content as it is, the arguments of a forced call, a list of calls. */
typedef enum { OAI_FREE, OAI_CONTENT, OAI_CALL, OAI_CALLS } sl_oai_form;

/* A prompt as its answer shows it. */
typedef struct sl_oai_prompt {
    sl_strbuf json;   /* its text as a JSON string; empty: not shown */
    size_t len;       /* bytes of the text */
    int32_t first;    /* its first token, which has no log-probability */
    bool added;       /* which the text does not have */
    sl_strbuf scores; /* of the answer: what has come of its log-probabilities (openai_prompt.c) */
} sl_oai_prompt;

typedef struct sl_oai_request {
    sl_oai_api api;
    sl_strbuf shown; /* of OAI_RESPONSES: what the answer repeats of the request, as members of JSON; owned */
    bool chat, stream, include_usage, continuous_usage;
    bool logprobs;
    int top_logprobs;
    int32_t stops[SL_STOP_IDS_MAX]; /* [n_stops]: stop_token_ids of the client */
    uint32_t n_stops;
    bool echo; /* the text of the prompt precedes the answer, and with logprobs its log-probabilities */
    int prompt_logprobs;    /* -1: not asked for */
    bool no_output;         /* max_tokens 0: the one token that is computed is not part of the answer */
    sl_oai_prompt *prompts; /* [n_shown], owned; NULL: the answer shows nothing of them */
    size_t n_shown;
    sl_chat_think thinking;
    bool parse_special; /* text of the client may spell special tokens */
    json_t *tools;      /* owned; NULL when none or tool_choice "none" */
    sl_oai_form form;
    char function[65];      /* OAI_CALL: which */
    const char *constraint; /* the field that spec.sampling's constraint comes from; static */
    sl_request_spec spec;
} sl_oai_request;

/*
 * Parses, renders and tokenizes one body. err reads "field: reason". What it takes is taken from env->guard and stays
 * taken. Errors: INVALID, NOT_FOUND (model), TOO_LARGE, UNSUPPORTED, EXHAUSTED (the guard has no room), CANCELLED.
 */
sl_status sl_oai_parse(const sl_oai_env *env, sl_oai_api api, const char *body, size_t len,
                       sl_oai_request *out, sl_err *err);
/* The whole answer of an API that needs no worker; malloc'ed. Errors as above. */
sl_status sl_oai_reply(const sl_oai_env *env, sl_oai_api api, const char *body, size_t len, char **out,
                       sl_err *err);
void sl_oai_request_free(sl_oai_request *q);
void sl_oai_prompts_free(sl_oai_prompt *p, size_t n);

typedef struct sl_oai_answer sl_oai_answer;

/* q is taken over except q->spec, which the caller submits, before or after. n: choices in all, per_prompt of them for
 * each prompt. */
sl_oai_answer *sl_oai_answer_create(const sl_oai_env *env, sl_oai_request *q, const char *id, int64_t created,
                                    uint32_t n, uint32_t per_prompt);
void sl_oai_answer_destroy(sl_oai_answer *a);
/* Feeds one output. After an output with an error nothing more is accepted. */
void sl_oai_answer_feed(sl_oai_answer *a, const sl_output *o);
bool sl_oai_answer_stream(const sl_oai_answer *a);
bool sl_oai_answer_done(const sl_oai_answer *a);        /* all choices ended, or failed */
bool sl_oai_answer_began(const sl_oai_answer *a);       /* stream: bytes are waiting or were taken */
sl_status sl_oai_answer_status(const sl_oai_answer *a); /* of the failure, else SL_OK */
const char *sl_oai_answer_error(const sl_oai_answer *a);
/* Stream: bytes ready to send; consume() drops the first n. */
const char *sl_oai_answer_bytes(const sl_oai_answer *a, size_t *n);
void sl_oai_answer_consume(sl_oai_answer *a, size_t n);
/* Bytes that it takes, for the budget: of a stream its buffer, of a document three times its contents, because the
 * document is made before they are freed, and buffers grow by doubling. */
uint64_t sl_oai_answer_memory(const sl_oai_answer *a);
/* Ends the answer with an error, as an output with an error does. */
void sl_oai_answer_fail(sl_oai_answer *a, sl_status st, const char *error);
/* Not a stream, all choices ended: the whole document, malloc'ed; NULL when out of memory. Once; on any thread. guard:
 * NULL, or it is looked at between choices and tokens; once it was stopped, the document ends early and is of no use. */
char *sl_oai_answer_json(sl_oai_answer *a, sl_guard *guard);

/* Insertions, deletions, replacements and exchanges of neighbours between two names; more than `most`: any larger number. */
unsigned sl_oai_distance(const char *a, const char *b, unsigned most);
/* {"error":{…}} for a status and an error text "field: reason"; malloc'ed. code: the HTTP status. */
char *sl_oai_error_json(sl_status st, const char *text, int *code);
/* {"type":"error","error":{…}}, as Anthropic has it. text may begin with "body.". */
char *sl_oai_messages_error(int code, const char *text);
/* The same with the HTTP status, type and code given. */
char *sl_oai_error_text(const char *message, const char *type, const char *code, const char *param);

#endif
