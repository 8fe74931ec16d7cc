/*
 * Chat: OpenAI-style messages to the prompt text a model family was trained on, and its answer back to
 * reasoning, content and tool calls, whole or while it streams.
 *
 * Formats: `dsv32` (DeepSeek-V3.2: DSML tool calls, thinking), `glm` (GLM-5, 4.7), `glm45` (GLM-4.5, 4.6),
 * `plain` ("role: content" lines, for base models and tests). The text of special tokens is part of the
 * prompt text; encode it without SL_TOK_ADD_SPECIAL, and what the client wrote as plain ranges. It does not tokenize, and it does not check that
 * arguments fit a tool's schema.
 *
 * Ownership: inputs are borrowed, texts returned are malloc'ed and freed by the caller. Threads: functions
 * are re-entrant, a parser object belongs to one thread.
 */
#ifndef SL_MODEL_CHAT_H
#define SL_MODEL_CHAT_H

#include <jansson.h>

#include "base/status.h"
#include "model/tokenizer.h"

typedef enum { SL_CHAT_PLAIN, SL_CHAT_DSV32, SL_CHAT_GLM, SL_CHAT_GLM45 } sl_chat_format;

sl_status sl_chat_format_parse(const char *name, sl_chat_format *out); /* "plain", "dsv32", "glm", "glm45" */
const char *sl_chat_format_name(sl_chat_format f);
const char *const *sl_chat_format_names(void); /* all, ends with NULL */
/* Format for a config.json model_type ("deepseek_v32" -> dsv32, "glm_moe_dsa" -> glm, others plain). */
sl_chat_format sl_chat_format_for(const char *model_type);

typedef struct sl_chat_request {
    const json_t
        *messages; /* array, at least one; content is a string, null or an array of {type:"text",text} */
    const json_t *tools;           /* array of {type:"function",function:{…}}, or NULL */
    const json_t *tool_choice;     /* "auto", "none", "required", {type,function:{name}}, or NULL */
    const json_t *response_format; /* {type:"text"|"json_object"|"json_schema",…}, or NULL */
    bool thinking;                 /* ask for reasoning before the answer */
    bool keep_reasoning; /* keep the reasoning of turns before the last user message (default: dropped) */
} sl_chat_request;

/* A rendered prompt. */
typedef struct sl_chat_prompt {
    char *text; /* malloc'ed, NUL-terminated, len bytes */
    size_t len;
    sl_tok_range *client; /* what comes from the request, not from the template: n_client ranges, in order */
    size_t n_client;
} sl_chat_prompt;

/* Renders the prompt, ready for the model to answer. *out is set on success only. err names the message index and field.
 * A tool_choice of "none" leaves the tools out; "required" or a name adds an instruction only (decoding is not
 * constrained). */
sl_status sl_chat_render(sl_chat_format f, const sl_chat_request *req, sl_chat_prompt *out, sl_err *err);
void sl_chat_prompt_free(sl_chat_prompt *p);

/* Python's json.dumps(value, ensure_ascii=False); malloc'ed, NULL when out of memory. */
char *sl_chat_json_dumps(const json_t *value);

/* ---- answers ---- */

typedef enum {
    SL_CHAT_REASONING,  /* text: more reasoning */
    SL_CHAT_CONTENT,    /* text: more content */
    SL_CHAT_TOOL_BEGIN, /* text: the function's name; index counts from 0 */
    SL_CHAT_TOOL_ARGS,  /* text: more of the arguments' JSON text */
    SL_CHAT_TOOL_END,   /* the arguments are complete; no text */
} sl_chat_event_kind;

typedef struct sl_chat_event {
    sl_chat_event_kind kind;
    int index;        /* of the tool call, else -1 */
    const char *text; /* valid during the call; not NUL-terminated */
    size_t len;
} sl_chat_event;

typedef void sl_chat_sink(void *user, const sl_chat_event *ev);

typedef struct sl_chat_parser sl_chat_parser;

/* thinking: as the prompt was rendered. tools: the request's (decides argument types for glm) or NULL when
 * tool-call text is to be left in the content; shared, never changed. */
sl_status sl_chat_parser_create(sl_chat_format f, bool thinking, const json_t *tools, sl_chat_parser **out);
void sl_chat_parser_destroy(sl_chat_parser *p);
/* Feeds generated text (any split, even inside a character); calls sink for everything that is certain. Text
 * of a broken tool call becomes content, never lost. Errors: SL_ERR_NO_MEMORY. */
sl_status sl_chat_parser_feed(sl_chat_parser *p, const char *text, size_t len, sl_chat_sink *sink,
                              void *user);
/* End of the answer: what was held back comes out; an open tool call is completed so that its JSON is whole.
 */
sl_status sl_chat_parser_finish(sl_chat_parser *p, sl_chat_sink *sink, void *user);
/* Tool calls begun so far (finish_reason "tool_calls" when > 0). */
int sl_chat_parser_tool_calls(const sl_chat_parser *p);

/* The whole answer at once, as an OpenAI assistant message: {"role":"assistant","content":string|null,
 * "reasoning_content":string (if any),"tool_calls":[{"type":"function","function":{"name","arguments"}}] (if
 * any)}. New reference. */
sl_status sl_chat_parse(sl_chat_format f, bool thinking, const json_t *tools, const char *text, size_t len,
                        json_t **out);

#endif
