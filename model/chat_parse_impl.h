/*
 * The parser's state, shared by chat_parse.c (the machine, reasoning, content) and chat_parse_tools.c (tool calls).
 *
 *   state           expects                                               formats
 *   --------------  ----------------------------------------------------  ----------------
 *   ST_MAYBE_THINK  an optional <think>                                   glm, glm45
 *   ST_REASONING    reasoning up to </think>                              all but plain
 *   ST_CONTENT      content up to a tool marker or the end                all
 *   ST_BLOCK        the next call of a block, or the end of the block     dsv32
 *   ST_NAME         the name of the function after <tool_call>            glm, glm45
 *   ST_CALL         the next argument of a call, or the end of the call   all with tools
 *   ST_STRING       the rest of a string argument                         all with tools
 *   ST_JSON         the rest of any other argument                        all with tools
 *
 * A step returns MOVED when it has consumed text or changed the state, and WAIT when it needs more text.
 */
#ifndef SL_MODEL_CHAT_PARSE_IMPL_H
#define SL_MODEL_CHAT_PARSE_IMPL_H

#include "model/chat_impl.h"

enum {
    HEADER_MAX = 4096, /* bytes of an opening tag, and of a function's name */
    NO_LIMIT = 1 << 30
};

typedef enum {
    ST_MAYBE_THINK,
    ST_REASONING,
    ST_CONTENT,
    ST_BLOCK,
    ST_NAME,
    ST_CALL,
    ST_STRING,
    ST_JSON,
} state;

typedef enum { WAIT, MOVED } progress;

/* The markers of a format. NULL: the format has no such marker. */
typedef struct syntax {
    const char *tools_open, *block_close, *call_open, *call_close, *arg_open, *value_close;
    /* At most this many line breaks before </think> (tools_open) belong to the marker, not to the text. */
    int strip_think, strip_tools;
    bool trim; /* line breaks after a marker belong to the marker */
} syntax;

struct sl_chat_parser {
    sl_chat_format format;
    const syntax *syn; /* NULL: plain */
    json_t *tools;     /* NULL: tool calls stay text */
    state st;
    bool trim_left;   /* line breaks at the start of the next text are dropped */
    bool block_empty; /* dsv32: this block has no call yet */
    bool first_arg;   /* the current call has no argument yet */
    int calls;
    char name[HEADER_MAX]; /* of the current call */
    unsigned types;        /* ST_JSON: the types that the schema allows for this argument (chat_impl.h) */
    size_t scanned;        /* ST_JSON: bytes of pend that have been searched for the end of the value */
    ct_buf pend, out;      /* text that is not yet understood; JSON of arguments that is not yet emitted */
    sl_chat_sink *sink;    /* valid during a call of feed or finish */
    void *user;
};

/* chat_parse.c */
void cp_emit(sl_chat_parser *p, sl_chat_event_kind kind, const char *text, size_t len);
/* Emits `out` as SL_CHAT_TOOL_ARGS and empties it. */
void cp_emit_args(sl_chat_parser *p);
/* Drops the first n bytes of pend. */
void cp_consume(sl_chat_parser *p, size_t n);
/* Drops white space at the start of pend. */
void cp_skip_space(sl_chat_parser *p);
/* Where `what` begins in pend, at `from` or later; NULL: nowhere. */
const char *cp_find(const sl_chat_parser *p, size_t from, const char *what);
bool cp_starts_with(const sl_chat_parser *p, const char *what);
/* pend is the beginning of `what`, but not all of `what`. False for NULL. */
bool cp_may_become(const sl_chat_parser *p, const char *what);
/* Length of the longest tail of pend with which `what` begins: it may become `what` when more text arrives. */
size_t cp_open_tail(const sl_chat_parser *p, const char *what);

static inline bool cp_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* chat_parse_tools.c */
/* The marker tools_open has been consumed. */
progress cp_tools_open(sl_chat_parser *p);
/* A step of ST_BLOCK and the states after it. end: no more text will come. */
progress cp_tools_step(sl_chat_parser *p, bool end);
/* Closes the JSON of the current call and emits its end. */
void cp_end_call(sl_chat_parser *p);

#endif
