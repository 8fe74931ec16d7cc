/*
 * The parser's state, shared by chat_parse.c (the machine, reasoning, content), chat_parse_tools.c and chat_parse_args.c
 * (tool calls with tags: their frame and names, their arguments), chat_parse_nested.c (arguments whose objects and arrays
 * are tags) and chat_parse_json.c (tool calls that are JSON objects).
 *
 *   state           expects                                               formats
 *   --------------  ----------------------------------------------------  -------------------------------------
 *   ST_MAYBE_THINK  an optional marker that opens the reasoning           glm, glm45, glm53, qwen3, qwen38, minimax3, axk2
 *   ST_REASONING    reasoning up to the marker that closes it             those, and dsv32, dsv4, hy4
 *   ST_CONTENT      content up to a tool marker or the end                all
 *   ST_BLOCK        the next call of a block, or the end of the block     dsv32, dsv4, qwen38, minimax3, hy4
 *   ST_NAME         the name of the function after the call's marker      glm, glm45, glm53, hy4
 *   ST_CALL         the next argument of a call, or the end of the call   all with tags
 *   ST_STRING       the rest of a string argument                         all with tags
 *   ST_JSON         the rest of any other argument                        all with tags
 *   ST_OBJECT       the object of a call, up to its arguments             llama31, qwen25, qwen3, axk2
 *   ST_MEMBER       the next argument, or the end of the arguments        those
 *   ST_TEXT         the rest of a string argument                         those
 *   ST_CLOSE        the end of the call's object, and of the call         those
 *
 * A step returns MOVED when it has consumed text or changed the state, and WAIT when it needs more text.
 */
#ifndef SL_MODEL_CHAT_PARSE_IMPL_H
#define SL_MODEL_CHAT_PARSE_IMPL_H

#include "model/chat_impl.h"

enum {
    DEPTH_MAX = 512,   /* levels of a value that is copied; a deeper one becomes a string */
    HEADER_MAX = 4096, /* bytes of an opening tag, and of a function's name */
    NO_LIMIT = 1024    /* line breaks that wait for what follows them: each call looks at all of them */
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
    ST_OBJECT,
    ST_MEMBER,
    ST_TEXT,
    ST_CLOSE,
} state;

typedef enum { WAIT, MOVED } progress;

typedef enum {
    THINK_NONE,     /* answers have no reasoning */
    THINK_OPEN,     /* the prompt has opened it */
    THINK_OPTIONAL, /* after <think> */
    THINK_ALWAYS,   /* with or without <think> */
} think;

/* The special token of MiniMax-M3 that comes before every tag of a call. */
#define CT_M3 "]<]minimax[>["

/*
 * How the tag of an argument is written; the examples have the key k.
 *
 *   ARG_ATTRIBUTES  <parameter name="k" string="true"> value </parameter>     arg_open is "<parameter"
 *   ARG_PAIRS       <arg_key>k</arg_key> <arg_value>value</arg_value>         arg_open is "<arg_key>"
 *   ARG_EQUALS      <parameter=k>, line break, value, line break, </parameter>     arg_open is "<parameter="
 *   ARG_NAMED       *<k>value*</k>, where * is a special token; a value may consist of such tags     arg_open is "*<"
 */
typedef enum { ARG_ATTRIBUTES, ARG_PAIRS, ARG_EQUALS, ARG_NAMED } arg_form;

/* How the answers of a format are written. Markers that are NULL do not exist in it. */
struct ct_syntax {
    const char *think_open, *think_close; /* NULL: <think> and </think> */
    const char *tools_open, *block_close, *call_open, *call_close, *arg_open, *value_close;
    const char *key_close, *value_open; /* ARG_PAIRS: what ends the key, and begins the value */
    /* What ends the tag that call_open begins, where that tag has the name of the function. NULL: the name is the text up to
     * the first argument. */
    const char *head_close;
    arg_form args;
    /* At most this many line breaks before </think> (tools_open) belong to the marker, not to the text. */
    int strip_think, strip_tools;
    bool trim; /* line breaks after a marker belong to the marker */
    think think;
    bool json; /* a call is a JSON object with a name and arguments (or parameters) */
    bool bare; /* such an object at the start of an answer is a call, without a marker */
};

/* A search for the end of a JSON array or object that continues where the text ended. All zero: not begun. */
typedef struct json_scan {
    size_t at; /* bytes of pend that have been searched */
    int depth, deepest;
    bool string, escaped;
} json_scan;

struct sl_chat_parser {
    const ct_syntax *syn; /* NULL: all text is content */
    json_t *tools;        /* NULL: tool calls stay text */
    state st;
    bool trim_left;   /* line breaks at the start of the next text are dropped */
    bool block_empty; /* dsv32: this block has no call yet */
    bool first_arg;   /* the current call has no argument yet */
    bool whole;  /* ST_CLOSE: the "}" of the call's object has been consumed, or is not expected any more */
    bool marked; /* ST_OBJECT: tools_open has been consumed; if this is no call, it becomes content */
    bool by_end; /* ST_OBJECT: its head says nothing; the object is read when it has ended */
    int calls;
    char name[HEADER_MAX];    /* of the current call */
    const json_t *parameters; /* the schema of the current call's function; NULL: there is none */
    unsigned types;           /* ST_JSON: the types that the schema allows for this argument (chat_impl.h) */
    size_t scanned;           /* ST_JSON: bytes of pend that have been searched for the end of the value */
    int open;           /* ST_JSON, ARG_NAMED: tags of the argument's own name that its value has opened */
    bool value_begins;  /* ARG_EQUALS: the line break before the value has not been looked for */
    bool opened;        /* the prompt has opened the reasoning, whatever the format does by itself */
    bool adaptive;      /* the prompt leaves it to the model whether it reasons */
    json_scan scan;     /* of the value that pend begins with */
    size_t plain;       /* bytes of pend in which no marker is looked for: an object that was no call */
    ct_buf pend, out;   /* text that is not yet understood; JSON of arguments that is not yet emitted */
    ct_buf key;         /* ARG_NAMED: the key of the current argument */
    sl_chat_sink *sink; /* valid during a call of feed or finish */
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
/* A step of ST_BLOCK to ST_JSON. end: no more text will come. */
progress cp_tools_step(sl_chat_parser *p, bool end);
/* The text is not what was expected: from here on it is content. */
progress cp_give_up(sl_chat_parser *p);
/*
 * pend does not hold a whole tag. plausible: it can be the beginning of one, so more text is awaited, up to HEADER_MAX
 * bytes; at the end of the answer such a beginning is dropped. Otherwise gives up.
 */
progress cp_incomplete(sl_chat_parser *p, bool plausible, bool end);
/* A tag that ends after pend[n) is too long, however the text was cut: cp_incomplete() has given up before its end came, or
 * would have. */
static inline bool cp_too_long(size_t n)
{
    return n > HEADER_MAX;
}
/* Finds the attribute in the tag head[0..len); name is ` name="`. Its value, up to the next quote. */
bool cp_attribute(const char *head, size_t len, const char *name, const char **value, size_t *n);
/* Emits the beginning of a call; name has less than HEADER_MAX bytes. */
void cp_begin_call(sl_chat_parser *p, const char *name, size_t len);
/* Closes the JSON of the current call and emits its end. */
void cp_end_call(sl_chat_parser *p);

/* chat_parse_args.c */
/* A step of ST_CALL at a tag that begins an argument. */
progress cp_argument(sl_chat_parser *p, bool end);
/* Steps of ST_STRING and ST_JSON. */
progress cp_string(sl_chat_parser *p, bool end);
progress cp_value(sl_chat_parser *p, bool end);
/*
 * Adds a value of which it is not known that it is a string. It is copied if it is valid JSON of one of the types;
 * otherwise it becomes a string. If there is no string among the types, valid JSON is copied whatever its type is.
 */
void cp_add_value(ct_buf *out, const char *text, size_t len, unsigned types);

/* chat_parse_nested.c */
/*
 * Adds the value of an argument as JSON: objects as tags that have the names of their members, arrays as <item> tags, each
 * after CT_M3. Text that is no such value becomes a string.
 */
void cp_add_nested(sl_chat_parser *p, const char *text, size_t len);
/* The end of the current argument of the form ARG_NAMED in pend: the place of the tag that closes it; NULL: it has not come. */
const char *cp_named_end(sl_chat_parser *p, bool nested);
/* Bytes at the end of pend that may be the beginning of that tag. */
size_t cp_named_tail(const sl_chat_parser *p);

/* chat_parse_json.c */
/* A step of ST_OBJECT to ST_CLOSE. */
progress cp_json_step(sl_chat_parser *p, bool end);

#endif
