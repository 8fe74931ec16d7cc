/*
 * Shared by the files of chat: text that grows, access to the fields of messages with errors that name the message, and
 * the function that each format implements.
 */
#ifndef SL_MODEL_CHAT_IMPL_H
#define SL_MODEL_CHAT_IMPL_H

#include "model/chat.h"

/* ---- text that grows: after one failure `bad` stays set and later calls do nothing ---- */

typedef struct ct_buf {
    char *p;
    size_t n, cap;
    bool bad; /* out of memory, or the guard has no room */
    sl_guard *guard;
} ct_buf;

void ct_add(ct_buf *b, const char *text, size_t len);
void ct_str(ct_buf *b, const char *text);
/* Text inside a JSON string: control characters, quotes and backslashes escaped as Python does. */
void ct_escaped(ct_buf *b, const char *text, size_t len);
/* json.dumps(value, ensure_ascii=False). */
void ct_json(ct_buf *b, const json_t *value);
/* json.dumps(value, ensure_ascii=False, indent=4). */
void ct_json_indented(ct_buf *b, const json_t *value);

/* ---- messages ---- */

/* One rendering: the messages that are rendered (borrowed), in order. */
typedef struct ct_render {
    ct_buf out;
    sl_err *err;
    const sl_chat_request *req;
    const json_t **msgs;
    size_t *index; /* the index of each of them in the request, for errors */
    size_t n;
    size_t last_user;     /* index in msgs, SIZE_MAX: none */
    sl_tok_range *client; /* bytes of out that the client wrote */
    size_t n_client, cap_client;
} ct_render;

/* All text of the request is added to the prompt by these two; ct_str() and ct_add() add text of the format. */
void ct_client(ct_render *r, const char *text, size_t len);
void ct_client_json(ct_render *r, const json_t *value);
void ct_client_json_indented(ct_render *r, const json_t *value);

/* The role of a message; not NULL after sl_chat_render() has checked the messages. */
const char *ct_role(const json_t *msg);
/* Appends the text of msg.content (string, null, or array of text parts) to the prompt. */
sl_status ct_content(ct_render *r, size_t i);
/* Appends it to a text of the caller, who passes it on to ct_client(). */
sl_status ct_content_text(ct_render *r, size_t i, ct_buf *out);
bool ct_has_content(const json_t *msg);
bool ct_is(const json_t *msg, const char *role);
/*
 * Brings the messages at[0..n), which are results of tools, into the order of the assistant's calls to which their ids
 * belong. A result without a known id counts as one of the first call; strict: if there is one, or an id twice, all
 * stay where they are.
 */
sl_status ct_order_results(ct_render *r, const json_t *calls, size_t *at, size_t n, bool strict);
/* The name and the arguments of tool call k of message i; *args is a new reference to an object. */
sl_status ct_arguments(ct_render *r, size_t i, size_t k, const char **name, json_t **args);
sl_status ct_fail(const ct_render *r, size_t i, const char *field, const char *why);
const char *ct_reasoning(const json_t *msg);    /* non-empty, or NULL */
const json_t *ct_tool_calls(const json_t *msg); /* non-empty array, or NULL */
/* The request's tools; NULL when there are none or tool_choice is "none". */
const json_t *ct_tools(const sl_chat_request *req);
/* The schema that response_format asks for, or NULL. */
const json_t *ct_schema(const sl_chat_request *req);
/* Appends the instruction for a tool_choice of "required" or of one function. */
void ct_choice(ct_render *r);
/* The function of a tool {type, function}; a tool without that member is the function itself. */
const json_t *ct_function(const json_t *tool);

/* ---- text of messages, cut as the templates cut it (chat_text.c) ---- */

/* Python's text.strip(): moves both ends past white space, that outside of ASCII included. text: valid UTF-8. */
void ct_strip(const char **text, size_t *len);
/* Python's text.strip("\n"), and text.lstrip("\n"). */
void ct_strip_newlines(const char **text, size_t *len);
void ct_lstrip_newlines(const char **text, size_t *len);

/* The two parts of an assistant message, borrowed from it and from its content. */
typedef struct ct_answer {
    const char *reasoning, *content;
    size_t n_reasoning, n_content;
} ct_answer;

/* Reasoning is in reasoning_content, or in the content as <think>...</think>, from which it is separated. content: the
 * text of the message, len bytes. */
ct_answer ct_take_apart(const json_t *msg, const char *content, size_t len);
/* The same with the markers of the format, and with all white space. */
ct_answer ct_take_apart_by(const json_t *msg, const char *content, size_t len, const char *open,
                           const char *close);

/* ---- JSON schemas of arguments (chat_schema.c) ---- */

/* Sets of JSON types. A number without a fraction is an integer, however it is written. */
enum {
    CT_NULL = 1,
    CT_BOOLEAN = 2,
    CT_INTEGER = 4,
    CT_NUMBER = 8,
    CT_STRING = 16,
    CT_ARRAY = 32,
    CT_OBJECT = 64,
    CT_ANY = 127
};

unsigned ct_type_of(const json_t *value);
/* The types that an object's schema allows for a property; CT_ANY: it does not say. */
unsigned ct_property_types(const json_t *schema, const char *key, size_t len);
/* The same for any schema in `root`, to which references are relative; NULL, or no object, allows all. */
unsigned ct_types(const json_t *root, const json_t *schema);
/* The schema of a member of an object, of an item of an array; NULL: it does not say. Borrowed. */
const json_t *ct_member(const json_t *root, const json_t *schema, const char *key, size_t len);
const json_t *ct_items(const json_t *root, const json_t *schema);

/* ---- DSML, the tags of DeepSeek-V3.2 and V4 (chat_dsml.c) ---- */

#define CT_DSML "｜DSML｜"

/* How a format introduces tools: the text before and after their schemas. */
typedef struct ct_dsml {
    const char *head, *tail;
} ct_dsml;

/* Tools and response format: the message's own, else those of the request if with_request. msg: NULL, or it has no others. */
void ct_dsml_extras(ct_render *r, const ct_dsml *d, const json_t *msg, bool with_request);
/* The calls of message i in a block of this name, after an empty line; nothing if there are none. */
sl_status ct_dsml_calls(ct_render *r, size_t i, const char *block);

/* ---- formats ---- */

/* How answers are written (chat_parse_impl.h). */
typedef struct ct_syntax ct_syntax;

/* A chat format: one file, and one line in the registry of chat.c. */
typedef struct ct_format {
    sl_status (*render)(ct_render *r);
    const ct_syntax *syntax; /* NULL: all of an answer is content */
    sl_chat_think thinks;    /* whether the model reasons unless the request says otherwise */
    const char *ends[3];     /* tokens that end the model's turn, up to the first NULL */
} ct_format;

extern const ct_format ct_dsv32, ct_glm, ct_glm45, ct_llama3, ct_llama31, ct_chatml, ct_qwen25, ct_qwen3;
extern const ct_format ct_axk2, ct_dsv4, ct_glm53, ct_hy4, ct_minimax3, ct_qwen38;

const ct_format *ct_format_of(sl_chat_format f);

#endif
