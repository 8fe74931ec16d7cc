/*
 * Options of an implementation: one table of its fields, from which everything else is derived: YAML keys and `--set`
 * (base/config.h), the flags of commands, `sluice config` and the reference pages, the stamp of the pages whose contents
 * depend on them, the refusal of keys that the chosen implementation does not read, and the struct that it gets.
 *
 *   typedef struct window_options { int32_t every; } window_options;
 *   static const sl_option rows[] = {
 *       SL_OPTION(window_options, every, SL_OPTION_INT, SL_OPTION_PAGES, "16", 1, 4096, "Tokens between two that are read."),
 *   };
 *   const sl_options window_table = {.section = "sparse_attention", .name = "window", .seam = "sparse_attention.algorithm",
 *                                    .rows = rows, .n = SL_COUNT(rows), .bytes = sizeof(window_options)};
 *
 * The key is section.field. Implementations of one seam may have the same key: with one type and the same bounds (a test
 * compares them), and each with its own default. A new option changes the file of its implementation and no other.
 *
 * The values are a plain struct that starts with all defaults (sl_options_default) and has nothing to free. Errors are
 * SL_ERR_INVALID or SL_ERR_TOO_LARGE; their text says what is wrong and what is accepted, and never shows a secret.
 * Constant tables and pure functions; any thread.
 */
#ifndef SL_BASE_OPTIONS_H
#define SL_BASE_OPTIONS_H

#include <stddef.h>

#include "base/status.h"

struct sl_wr;

enum {
    SL_OPTION_CHOICE_BYTES = 32, /* of a field of type CHOICE */
    SL_OPTION_ITEM_BYTES = 128,  /* of an entry of a list of texts */
};

typedef enum {
    SL_OPTION_TEXT,   /* char[], at most size - 1 bytes */
    SL_OPTION_INT,    /* int */
    SL_OPTION_SIZE,   /* bytes, uint64_t; 4096, 64K, 64KiB, 1.5T */
    SL_OPTION_FLOAT,  /* double */
    SL_OPTION_BOOL,   /* bool */
    SL_OPTION_ENUM,   /* int: the index of a name */
    SL_OPTION_CHOICE, /* char[SL_OPTION_CHOICE_BYTES]: the name of an entry of a registry */
    SL_OPTION_INTS,   /* {int n; int v[];} */
    SL_OPTION_ENUMS,  /* {int n; int v[];} */
    SL_OPTION_TEXTS,  /* {int n; char v[][SL_OPTION_ITEM_BYTES];} */
} sl_option_type;

enum {
    SL_OPTION_SECRET = 1,  /* the value is never shown */
    SL_OPTION_PAGES = 2,   /* the contents of cached pages depend on it */
    SL_OPTION_CONTEXT = 4, /* tokens, at most the model's context */
};

typedef struct sl_option {
    const char *name;
    sl_option_type type;
    unsigned flags;
    size_t offset, size; /* of the field in the struct of values */
    const char *dflt;    /* as text, in the form of --set */
    int64_t min, max;    /* inclusive; of numbers and of the elements of lists */
    /* Ends with NULL. Of an enumeration all names; of a choice those that its registry does not have, or NULL; of an integer NULL,
     * or the word for 0 in place of a number. */
    const char *const *names;
    const char *const *(*list)(
        void);       /* of an enumeration instead of names, if a registry has them; else NULL */
    const char *doc; /* for the person who runs the cluster */
} sl_option;

#define SL_OPTION_FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field)
#define SL_OPTION(type, field, kind, flags, dflt, lo, hi, doc)                                               \
    {                                                                                                        \
#field, kind, flags, SL_OPTION_FIELD(type, field), dflt, lo, hi, NULL, NULL, doc                     \
    }
/* The same for a field within a field, with the name of the option. */
#define SL_OPTION_AT(type, name, path, kind, flags, dflt, lo, hi, names, doc)                                \
    {                                                                                                        \
        name, kind, flags, SL_OPTION_FIELD(type, path), dflt, lo, hi, names, NULL, doc                       \
    }
/* names: an array that ends with NULL; list: a function that returns one. */
#define SL_OPTION_NAMES(type, field, flags, dflt, names, doc)                                                \
    {                                                                                                        \
#field, SL_OPTION_ENUM, flags, SL_OPTION_FIELD(type, field), dflt, 0, 0, names, NULL, doc            \
    }
#define SL_OPTION_LIST(type, field, flags, dflt, list, doc)                                                  \
    {                                                                                                        \
#field, SL_OPTION_ENUM, flags, SL_OPTION_FIELD(type, field), dflt, 0, 0, NULL, list, doc             \
    }

typedef struct sl_options {
    const char *section; /* of the keys, without the last dot: "sparse_attention", "kvstore.redis" */
    const char *name;    /* of the implementation */
    /* the key whose value is this name when the implementation is used; NULL: `on` says it */
    const char *seam;
    const char *on;       /* an option of type text: if it is empty, the implementation is not used */
    bool needs_reuse;     /* it has no use when no request may reuse pages of another */
    bool needs_share_all; /* pages that are kept apart must not reach it */
    const sl_option *rows;
    size_t n, bytes; /* bytes: of the struct of values */
    /* Checks rules between the options, and may fill fields that are no options from them. NULL: there are none. Errors
     * name the option first: "prefix: has a space". */
    sl_status (*finish)(void *values, sl_err *err);
} sl_options;

void sl_options_default(const sl_options *t, void *values);
/* NULL: there is no such option. */
const sl_option *sl_options_find(const sl_options *t, const char *name);
/* Sets one option; the error begins with its name. */
sl_status sl_options_set(const sl_options *t, void *values, const char *name, const char *text, sl_err *err);
/* The same for "name=value:name=value". */
sl_status sl_options_read(const sl_options *t, void *values, const char *text, sl_err *err);
/* The value of an option that is a number, a size, a boolean or the index of a name, for tools that know an implementation by
 * its options alone. The option exists. */
double sl_options_number(const sl_options *t, const void *values, const char *name);
/* Appends what the contents of pages depend on: name and value of every option with SL_OPTION_PAGES. */
void sl_options_stamp(const sl_options *t, const void *values, struct sl_wr *w);

/* ---- single options; values is the struct, and errors give the reason alone ---- */

/* A scalar, or "a, b" / "[a, b]" for a list. */
sl_status sl_option_set(void *values, const sl_option *o, const char *text, sl_err *err);
/* A scalar into a scalar field. */
sl_status sl_option_parse(void *values, const sl_option *o, const char *text, sl_err *err);
void sl_option_clear(void *values, const sl_option *o);
sl_status sl_option_add(void *values, const sl_option *o, const char *text, sl_err *err);
bool sl_option_is_list(const sl_option *o);
/* The names of an enumeration or a list of them. */
const char *const *sl_option_names(const sl_option *o);
/* Name of the type with bounds or choices ("integer, 1 to 4096"), into buf. */
const char *sl_option_describe(const sl_option *o, char *buf, size_t n);

/* Bytes: 4096, 64K, 64KiB, 1.5T, in any case of letters; at most 2^64 - 1. False: it is none. */
bool sl_parse_bytes(const char *text, uint64_t *out);

/* A choice: its key, and the names of its registry (ends with NULL). */
typedef struct sl_config_choice {
    const char *key;
    const char *const *(*names)(void);
} sl_config_choice;
/* The registries of choices, by the name of the option, for the process; see sl_config_bind(). */
void sl_options_bind(const sl_config_choice *choices);

#endif
