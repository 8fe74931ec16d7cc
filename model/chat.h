/*
 * Chat: renders OpenAI-style messages as the prompt text that a model family was trained on, and parses the model's
 * answer into reasoning, content and tool calls, either the whole answer or while it streams.
 *
 * Formats:
 *
 *   plain     "role: content" lines, for base models and tests
 *   dsv32     DeepSeek-V3.2: DSML tool calls, thinking
 *   dsv4      DeepSeek-V4: the same with other markers; results of tools are part of the user's turn
 *   glm       GLM-5 and 4.7
 *   glm45     GLM-4.5 and 4.6
 *   glm53     GLM-5.3-Flash: as glm, with an effort, and the reasoning of all turns
 *   llama3    Llama 3.0: headers, no tools
 *   llama31   Llama 3.1 to 3.3: headers, a tool call is the whole answer as a JSON object
 *   chatml    Qwen 2: ChatML, no tools
 *   qwen25    Qwen 2.5: ChatML, tool calls as JSON in <tool_call>
 *   qwen3     Qwen 3: the same with thinking
 *   qwen38    Qwen3.8: ChatML, an effort, tool calls as <function=f> and <parameter=k>
 *   axk2      A.X-K2: ChatML, tool calls as JSON in <tool_call>, thinking opened by the prompt
 *   minimax3  MiniMax-M3: turns of its own, tool calls as tags named after the arguments, thinking at the model's will
 *   hy4       Hy4-preview: turns and tags of its own, tool calls as keys and values
 *
 * The prompt text contains the text of special tokens, so it is encoded without SL_TOK_ADD_SPECIAL, and with the text
 * of the client as plain ranges. This file does not tokenize, and it does not check arguments against the schema of a
 * tool.
 *
 * Ownership: inputs are borrowed; returned texts are malloc'ed and freed by the caller. Threads: functions are
 * re-entrant; a parser belongs to one thread at a time.
 */
#ifndef SL_MODEL_CHAT_H
#define SL_MODEL_CHAT_H

#include <jansson.h>

#include "base/guard.h"
#include "model/tokenizer.h"

typedef enum {
    SL_CHAT_PLAIN,
    SL_CHAT_DSV32,
    SL_CHAT_GLM,
    SL_CHAT_GLM45,
    SL_CHAT_LLAMA3,
    SL_CHAT_LLAMA31,
    SL_CHAT_CHATML,
    SL_CHAT_QWEN25,
    SL_CHAT_QWEN3,
    SL_CHAT_AXK2,
    SL_CHAT_DSV4,
    SL_CHAT_GLM53,
    SL_CHAT_HY4,
    SL_CHAT_MINIMAX3,
    SL_CHAT_QWEN38,
    SL_CHAT_FORMATS /* their number */
} sl_chat_format;

sl_status sl_chat_format_parse(const char *name, sl_chat_format *out); /* SL_ERR_NOT_FOUND: no such name */
const char *sl_chat_format_name(sl_chat_format f);
const char *const *sl_chat_format_names(void); /* all, ends with NULL */
/* The format of a checkpoint: by model_type of its config.json, and where a family has several formats, by the added
 * tokens of its tokenizer. plain when it has none of them, as base models do, or tok is NULL. */
sl_chat_format sl_chat_format_for(const char *model_type, const sl_tokenizer *tok);
/* Whether the model reasons before it answers. Where a format does not know that the model may decide, ADAPTIVE is YES. */
typedef enum {
    SL_CHAT_THINK_NO,
    SL_CHAT_THINK_YES,
    SL_CHAT_THINK_ADAPTIVE,
    SL_CHAT_THINK_OPEN, /* YES, and the prompt opens the reasoning even where the template leaves that to the model */
} sl_chat_think;
/* What it does unless a request says otherwise. */
sl_chat_think sl_chat_thinks(sl_chat_format f);
/* Whether tags that the parser looks for are special tokens of this tokenizer: then these must not be left out of the text. */
bool sl_chat_marks_special(sl_chat_format f, const sl_tokenizer *tok);
/* The token that ends the reasoning of an answer; negative: the format has none, or it is several tokens. */
int32_t sl_chat_think_end(sl_chat_format f, const sl_tokenizer *tok);
/* Tokens that end the model's turn, up to NULL, in addition to those that the checkpoint's files name. */
const char *const *sl_chat_ends(sl_chat_format f);

typedef struct sl_chat_request {
    /* Array of at least one message; content is a string, null or an array of {type:"text",text}. */
    const json_t *messages;
    const json_t *tools;           /* array of {type:"function",function:{…}}, or NULL */
    const json_t *tool_choice;     /* "auto", "none", "required", {type,function:{name}}, or NULL */
    const json_t *response_format; /* {type:"text"|"json_object"|"json_schema",…}, or NULL */
    sl_chat_think thinking;        /* the model is to reason before it answers */
    /* How much, in the words of the model's template ("low", "high", "xhigh", "max"); others, and NULL, are its default. */
    const char *effort;
    sl_guard *guard;     /* memory is taken from it; NULL: none */
    bool keep_reasoning; /* also render the reasoning of turns before the last user message */
} sl_chat_request;

/* A rendered prompt. */
typedef struct sl_chat_prompt {
    char *text; /* malloc'ed, NUL-terminated, len bytes */
    size_t len;
    /* the n_client ranges that come from the request and not from the format, in order */
    sl_tok_range *client;
    size_t n_client;
} sl_chat_prompt;

/* More tools than this are refused: an answer's arguments are looked up among them. */
#define SL_CHAT_TOOLS_MAX 8192

/* Renders the prompt up to the point where the model's answer begins. *out is set on success only. err names the index
 * of the message and the field. A tool_choice of "none" leaves the tools out; "required" or the name of a function only
 * adds an instruction to the prompt: decoding is not constrained. */
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

/* thinking: as in the request that was rendered. tools: those of the request; where a format writes no types, their schemas decide
 * the types of arguments. NULL: the text of tool calls stays in the content. Shared with the caller and never changed. */
sl_status sl_chat_parser_create(sl_chat_format f, sl_chat_think thinking, const json_t *tools,
                                sl_chat_parser **out);
void sl_chat_parser_destroy(sl_chat_parser *p);
/* Feeds generated text, which may be cut anywhere, even inside a character; calls sink for everything whose meaning is
 * certain. Text of a malformed tool call becomes content; it is not lost. Errors: SL_ERR_NO_MEMORY. */
sl_status sl_chat_parser_feed(sl_chat_parser *p, const char *text, size_t len, sl_chat_sink *sink,
                              void *user);
/* End of the answer: emits the text that was held back, and closes an open tool call so that its JSON is complete. */
sl_status sl_chat_parser_finish(sl_chat_parser *p, sl_chat_sink *sink, void *user);
/* The number of tool calls that have begun; when it is not 0 the finish_reason is "tool_calls". */
int sl_chat_parser_tool_calls(const sl_chat_parser *p);

/* Parses a whole answer into an OpenAI assistant message, a new reference:
 *
 *     {"role": "assistant", "content": string or null,
 *      "reasoning_content": string,                                                   if there is reasoning
 *      "tool_calls": [{"type": "function", "function": {"name", "arguments"}}]}       if there are calls
 *
 * SL_ERR_INVALID: the text is not valid UTF-8. SL_ERR_NO_MEMORY. */
sl_status sl_chat_parse(sl_chat_format f, sl_chat_think thinking, const json_t *tools, const char *text,
                        size_t len, json_t **out);

#endif
