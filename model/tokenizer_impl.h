/*
 * Shared by the files of the tokenizer:
 *
 *   tokenizer.c         encode, decode, queries, containers
 *   tokenizer_load.c    reads tokenizer.json, with tokenizer_vocab.c and tokenizer_parts.c (tokenizer_load.h)
 *   tokenizer_added.c   finds added tokens in the text
 *   tokenizer_normal.c  normalizers
 *   tokenizer_split.c   pre-tokenizer
 *   tokenizer_bpe.c     merges
 *
 * The loader writes sl_tokenizer; after the load it is only read.
 */
#ifndef SL_MODEL_TOKENIZER_IMPL_H
#define SL_MODEL_TOKENIZER_IMPL_H

#include <oniguruma.h>

#include "base/guard.h"
#include "model/tokenizer.h"

/* Every id is less than this, which is 16 times the largest known vocabulary. */
#define TK_ID_LIMIT (1 << 22)

/* ---- memory that lives as long as the tokenizer ---- */

typedef struct tk_block {
    struct tk_block *next;
} tk_block;

typedef struct tk_arena {
    tk_block *blocks;
    char *at;
    size_t left;
} tk_arena;

/* Copies n bytes and a NUL; NULL when out of memory. */
char *tk_arena_copy(tk_arena *a, const void *bytes, size_t n);
void tk_arena_free(tk_arena *a);

/* ---- growable array of (start, end) byte ranges ---- */

typedef struct tk_span {
    uint32_t start, end;
    bool match;
} tk_span;

typedef struct tk_spans {
    tk_span *v;
    size_t n, cap;
    sl_guard *guard; /* that its memory is taken from; NULL: none */
} tk_spans;

/* False: out of memory, or the guard has no room. */
bool tk_spans_push(tk_spans *s, uint32_t start, uint32_t end, bool match);

typedef struct tk_ids {
    int32_t *v;
    size_t n, cap;
    sl_guard *guard;
} tk_ids;

bool tk_ids_push(tk_ids *s, int32_t id);

/* ---- string -> id, borrowed keys ---- */

typedef struct tk_map_slot {
    const char *key; /* NULL = empty */
    uint32_t len;
    int32_t id;
} tk_map_slot;

typedef struct tk_map {
    tk_map_slot *slots;
    size_t mask, n;
} tk_map;

/* Makes room for n keys in all. */
bool tk_map_reserve(tk_map *m, size_t n);
int32_t tk_map_get(const tk_map *m, const char *key, size_t len); /* -1 = absent */
/* Sets key; the table was reserved large enough. */
void tk_map_set(tk_map *m, const char *key, size_t len, int32_t id);

/* ---- merges: (left, right) -> rank, result ---- */

typedef struct tk_merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX = empty */
    uint32_t rank;
    int32_t id;
} tk_merge;

typedef struct tk_merges {
    tk_merge *slots;
    size_t mask, n;
} tk_merges;

bool tk_merges_reserve(tk_merges *m, size_t n);
void tk_merges_set(tk_merges *m, int32_t left, int32_t right, uint32_t rank, int32_t id);

/* ---- added tokens ---- */

enum { TK_ADDED = 1, TK_SPECIAL = 2, TK_NORMALIZED = 4, TK_LSTRIP = 8, TK_RSTRIP = 16, TK_SINGLE_WORD = 32 };

typedef struct tk_node {
    uint32_t child, sibling; /* 0 = none */
    int32_t id;              /* token that ends here, or -1 */
    unsigned char byte;
} tk_node;

typedef struct tk_trie {
    tk_node *nodes; /* node 0 is the root */
    uint32_t n, cap;
    uint32_t first[256]; /* children of the root by byte, 0 = none */
    bool any;
} tk_trie;

/* Adds a non-empty pattern; SL_ERR_INVALID if it is there already. */
sl_status tk_trie_add(tk_trie *t, const char *text, size_t len, int32_t id);

/* ---- pre-tokenizer ---- */

typedef enum { TK_ISOLATED, TK_REMOVED, TK_CONTIGUOUS, TK_WITH_PREVIOUS, TK_WITH_NEXT } tk_behavior;

typedef struct tk_step {
    /* At most one of the two is set. None: the step puts a space before every piece that does not begin with one. */
    regex_t *regex;
    char *literal; /* plain text, owned by the arena */
    size_t n_literal;
    tk_behavior behavior;
    bool invert;
} tk_step;

typedef struct tk_token {
    const char *text;  /* as in the vocabulary; NULL = no such id */
    const char *bytes; /* to which it decodes */
    uint32_t n_text, n_bytes;
    uint32_t flags;
    bool skip;     /* skip_special leaves it out */
    bool alphabet; /* its text consists of characters of the byte alphabet only */
} tk_token;

struct sl_tokenizer {
    tk_arena arena;
    tk_token *tokens; /* by id */
    int32_t n_tokens;
    size_t max_bytes; /* longest tokens[].n_bytes */
    tk_map by_text;   /* vocabulary and added tokens */
    tk_map by_bytes;  /* for ignore_merges: raw bytes -> id */
    tk_merges merges;
    int32_t byte_id[256]; /* id of the token of a single byte; -1: the vocabulary has none */
    int32_t unk;          /* id for bytes without a token; -1: they are dropped */
    bool fuse_unk, ignore_merges;
    bool lossless; /* every byte of a text is in some id */
    tk_trie added_raw, added_normalized;
    int *norm; /* utf8proc option sets, in order */
    size_t n_norm;
    tk_step *steps;
    size_t n_steps;
    tk_ids pre, post; /* the template around a sequence */
    int32_t bos, eos;
};

/* The alphabet of byte-level BPE: the code point that stands for a byte, and the byte of a code point (-1: none). */
uint32_t tk_byte_char(unsigned char b);
int tk_char_byte(uint32_t c);

/* ---- per-call state ---- */

typedef struct tk_work {
    const sl_tokenizer *t;
    unsigned flags;
    const sl_tok_range *plain; /* ordinary text, as offsets from base */
    size_t n_plain;
    const char *base;
    sl_guard *guard;
    size_t max_ids; /* the text is refused at the first id more; SIZE_MAX: any number */
    sl_err *err;
    tk_ids ids;
    tk_spans a, b, matches; /* pieces, next pieces, matches of one step */
    OnigRegion *region;
    OnigMatchParam *match_param;
    uint64_t stack_entries; /* that the matcher may stack; those above the first are taken from the guard */
    char *buf, *buf2;       /* text with prefix spaces inserted */
    size_t cap, cap2;
    uint32_t searches;
    struct tk_symbol *symbols; /* BPE scratch */
    size_t cap_symbols;
    struct tk_cand *heap;
    size_t n_heap, cap_heap;
    struct tk_cache *cache;
} tk_work;

/* Finds the added tokens of `trie` in text: appends their ids to w->ids and calls `between` for the text
 * around them, in order. */
typedef sl_status tk_text_fn(tk_work *w, const char *text, size_t len);
sl_status tk_added_split(tk_work *w, const tk_trie *trie, const char *text, size_t len, tk_text_fn *between);

/* The first plain range that ends after this offset from w->base; w->n_plain when there is none. */
size_t tk_plain_from(const tk_work *w, size_t pos);
/* Applies the normalizers and calls `then` for the result; w->plain and w->base are those of the result meanwhile. */
sl_status tk_normalize(tk_work *w, const char *text, size_t len, tk_text_fn *then);

/* Splits text into pieces and appends the ids of each. */
sl_status tk_pretokenize(tk_work *w, const char *text, size_t len);

/* Whether the token consists of white space: it structures nothing, so it is also found in plain ranges. */
bool tk_is_blank(const tk_token *t);

sl_status tk_regex_compile(const char *pattern, size_t len, regex_t **out, sl_err *err);

/* Appends the ids of one piece (raw bytes). */
sl_status tk_bpe_piece(tk_work *w, const char *piece, size_t len);
/* Allocates a cache of the ids of pieces if the text is long. */
void tk_work_cache(tk_work *w, size_t text_len);
void tk_work_free(tk_work *w);

#endif
