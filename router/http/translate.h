/* What the files share that turn a body of another API into one of OpenAI's chat or completions. Pure, any thread. */
#ifndef SL_ROUTER_HTTP_TRANSLATE_H
#define SL_ROUTER_HTTP_TRANSLATE_H

#include "base/strbuf.h"
#include "router/http/openai_impl.h"

/*
 * Bytes that the translation of a body of len bytes takes at most: its texts, and an object or more for each message, block, item and
 * tool, which the body may spell with a few letters.
 */
uint64_t oai_translated_bytes(const json_t *o, size_t len);

/* Sets `to` of out to what o has as `from`, if that is given. */
void oai_move(const json_t *o, const char *from, json_t *out, const char *to);

/*
 * Appends the text of a content: a string, or a list of parts of the types `types` (NULL-terminated), whose member text is a
 * string. err names `where`.
 */
sl_status oai_join_text(const json_t *content, const char *const *types, const char *where, sl_strbuf *out,
                        sl_err *err);

/* The string member `key` of an object, which must be one. */
sl_status oai_need_string(const json_t *o, const char *where, const char *key, const char **out, sl_err *err);

/* Takes a reference; SL_ERR_NO_MEMORY when v is NULL or cannot be appended. */
sl_status oai_append(json_t *list, json_t *v, sl_err *err);

/* {"role", "content"} with what sb holds, which is freed. */
json_t *oai_message(const char *role, sl_strbuf *sb);

/* A tool call, put into the last message if that is the assistant's, else into a new one. */
sl_status oai_add_call(json_t *messages, const char *id, const char *name, const char *arguments,
                       sl_err *err);

#endif
