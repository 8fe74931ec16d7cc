/*
 * Constraints on the text of a request: the answer is a JSON value, follows a JSON schema, a regular expression, one of a
 * list, or a grammar. A constraint says after every token which ids may come next, as one bit for each id of the vocabulary;
 * the sampler draws only among these.
 *
 * The grammars are computed by llguidance (github.com/guidance-ai/llguidance), a library with a C interface that is opened
 * when the first engine is made. Without it sl_grammars_open() says so, and every constraint is refused by name.
 *
 * Exactness: the state of a constraint follows from its text and from the tokens that were produced, and from nothing else.
 * A stream that continues on another worker opens the constraint there and takes the tokens so far.
 *
 * Bounds: a text has at most SL_GRAMMAR_BYTES_MAX bytes, a regular expression in it SL_GRAMMAR_REGEX_MAX, and compiling
 * it and each mask have a budget of the library's own units (grammar/engine.c), after which SL_ERR_TOO_LARGE comes. The
 * library recurses as deep as a text is nested or linked, so it compiles on a thread with a stack for the deepest one.
 * What these budgets do not bound is refused by its text (grammar/bounds.c). Within these bounds a text takes at most
 * SL_GRAMMAR_SECONDS_MAX of one processor and a mask SL_GRAMMAR_MASK_SECONDS_MAX, which cannot be interrupted; that of
 * the library is quadratic for some texts. Its memory is bounded by sl_grammar_bytes(); up to 128 MiB of compiled texts
 * are kept for later requests.
 *
 * Ownership: an engine borrows its tokenizer, which lives longer; constraints are destroyed before their engine. Threads: an
 * engine may be used by any number of threads, a constraint by one at a time. Nothing here is for a loop's thread: compiling
 * can take 100 ms.
 */
#ifndef SL_MODEL_GRAMMAR_H
#define SL_MODEL_GRAMMAR_H

#include "model/tokenizer.h"

typedef enum {
    SL_GRAMMAR_NONE,   /* no constraint */
    SL_GRAMMAR_OBJECT, /* any JSON object; no text */
    SL_GRAMMAR_SCHEMA, /* a JSON schema */
    SL_GRAMMAR_REGEX, /* a regular expression that the whole answer matches, as Rust's crate regex reads it */
    SL_GRAMMAR_CHOICE, /* a JSON array of strings, of which the answer is one */
    SL_GRAMMAR_GBNF,   /* a grammar as llama.cpp and SGLang's `ebnf` write it; its first rule is root */
    SL_GRAMMAR_TAGS, /* structural tags: text with parts that begin at triggers and follow schemas (grammar/tags.c) */
    SL_GRAMMAR_KINDS
} sl_grammar_kind;
extern const char *const sl_grammar_kind_names[SL_GRAMMAR_KINDS];

enum { SL_GRAMMAR_BYTES_MAX = 32 << 10, SL_GRAMMAR_REGEX_MAX = 4 << 10, SL_GRAMMAR_SECONDS_MAX = 1 };
#define SL_GRAMMAR_MASK_SECONDS_MAX 0.6 /* of a mask; ordinary ones take less than a ms */

typedef struct sl_grammars sl_grammars; /* the engine: a library and a vocabulary */
typedef struct sl_grammar sl_grammar;   /* a constraint of one request */

typedef struct sl_grammars_opts {
    const char *library;           /* path of the library; NULL: it is looked for, see sl_grammars_open() */
    const sl_tokenizer *tokenizer; /* borrowed; NULL: the one of `dir`, which the engine loads */
    const char *dir;               /* borrowed: of a checkpoint */
    /* The library and the tokenizer are opened by the first sl_grammar_open(), which fails as sl_grammars_open() would: whoever
     * never gets a constraint pays nothing. */
    bool late;
    int32_t vocab;      /* ids of the model, at least those of the tokenizer */
    const int32_t *eos; /* [n_eos] ids that end an answer; at least one */
    size_t n_eos;
} sl_grammars_opts;

/*
 * Opens the library, if no engine has, and prepares the vocabulary. Without `library`, $SL_LLGUIDANCE names it, else
 * libllguidance.so is looked for by the dynamic linker. A file of the Python package llguidance works as well: it names
 * symbols of Python, so libpython is loaded with it and never started. SL_ERR_UNSUPPORTED: there is no such library, or
 * it is of another version, with the reason; SL_ERR_INVALID: no eos id.
 */
sl_status sl_grammars_open(const sl_grammars_opts *o, sl_grammars **out, sl_err *err);
void sl_grammars_close(sl_grammars *g);

/* What compiled texts have cost so far, in seconds, and how often one was kept from before. Any thread. */
typedef struct sl_grammars_stats {
    uint64_t compiled, kept, refused;
    double seconds;
} sl_grammars_stats;
void sl_grammars_stats_get(sl_grammars *g, sl_grammars_stats *out);

/* The memory that compiling a text of this length takes at most. */
uint64_t sl_grammar_bytes(size_t len);
/* Whether sl_grammar_check() has accepted the text, so that it would not compile it again. */
bool sl_grammar_known(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len);
/* Whether sl_grammar_open() accepts the text, with its errors. Nothing is kept but that it was accepted. */
sl_status sl_grammar_check(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len, sl_err *err);
/*
 * A constraint before its first token. What was compiled is kept for the next request with the same text. SL_ERR_INVALID: the
 * text is no grammar of this kind, with the reason; SL_ERR_TOO_LARGE: it exceeds a bound; SL_ERR_NO_MEMORY.
 */
sl_status sl_grammar_open(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                          sl_grammar **out, sl_err *err);
void sl_grammar_close(sl_grammar *c);
/* The constraint begins after the first token with this id: what comes before is free, and may end the answer. Call it before the
 * first token is taken. */
void sl_grammar_after(sl_grammar *c, int32_t id);

/* The tokens that the stream has got. SL_ERR_INVALID: the constraint does not allow them; then it cannot be used any more. An eos id
 * ends the answer; a stream that continues nevertheless (ignore_eos) is free from there on. */
sl_status sl_grammar_take(sl_grammar *c, const int32_t *ids, size_t n, sl_err *err);
/* Undoes the last n tokens that were taken, as if they had never been: drafts that were not accepted. */
sl_status sl_grammar_undo(sl_grammar *c, size_t n, sl_err *err);
/* Words of a mask for this vocabulary: id i is bit i % 32 of word i / 32. */
size_t sl_grammar_mask_words(const sl_grammars *g);
/*
 * Which ids may come next. Never empty: where the answer must end these are the eos ids. bits:
 * [sl_grammar_mask_words()]. SL_ERR_TOO_LARGE: the budget of a mask was used up. SL_ERR_INVALID: no text follows the constraint.
 */
sl_status sl_grammar_mask(sl_grammar *c, uint32_t *bits, sl_err *err);
/* The answer may end here; it must end here. */
bool sl_grammar_may_end(sl_grammar *c);
bool sl_grammar_must_end(const sl_grammar *c);

/* Writes text, of kind CHOICE or GBNF, in the library's form; out is malloc'ed. Public for tests and fuzzers. */
sl_status sl_grammar_lark(sl_grammar_kind kind, const char *text, size_t len, char **out, sl_err *err);

#endif
