/* Engines and constraints over llguidance; see grammar.h. */
#include "model/grammar.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/hash.h"
#include "base/log.h"
#include "model/grammar/follow.h"

/*
 * Budgets in the library's units; its documentation gives their speed on one core. Building the lexer of a grammar
 * 50,000 a ms: 40 ms. A mask 14,000 a ms: 14 ms; its items took up to 12 us each (test_grammar_made.c), and 20,000 with
 * their lexer up to 0.53 s. Lexer states take 1 to 2 KB each: 40 MB at most. bounds.c has what these do not bound.
 */
static void set_limits(sl_llg_limits *l)
{
    l->max_items_in_row = 20000;
    l->initial_lexer_fuel = 2000000;
    l->step_lexer_fuel = 200000;
    l->step_max_items = 20000;
    l->max_lexer_states = 20000;
    l->max_grammar_size = 200000;
    l->verbose_errors = false;
}

enum {
    KEPT = 64,
    KEPT_BYTES = 128 << 20, /* by bytes_that_stay() */
    ACCEPTED = 1024,        /* texts that were checked, as keys */
    SPECIAL = 0xff,
    STACK_BYTES = 128 << 20
};

const char *const sl_grammar_kind_names[SL_GRAMMAR_KINDS] = {
    "none", "json_object", "json_schema", "regex", "choice", "grammar", "structural_tag"};

/* A constraint before its first token, which others are copied from. */
typedef struct kept {
    sl_key key;
    LlgMatcher *first;
    uint64_t bytes;
    uint64_t used; /* the engine's count of uses when it was used last; 0: the entry is free */
} kept;

struct sl_grammars {
    const sl_llg_api *api;
    const sl_tokenizer *tok;
    sl_tokenizer *own; /* tok, when the engine has loaded it */
    char *library, *dir;
    LlgTokenizer *vocabulary;
    int32_t vocab;
    uint32_t eos[8];
    size_t n_eos, mask_bytes;
    pthread_mutex_t opening; /* of what this part of the engine has found out: */
    bool opened;
    sl_status status; /* of opening it; err says why */
    sl_err err;
    pthread_mutex_t lock; /* of what follows */
    sl_grammars_stats stats;
    kept kept[KEPT];
    uint64_t uses, kept_bytes;
    sl_key accepted[ACCEPTED]; /* the newest ones, in a ring */
    uint64_t n_accepted;
};

/* ---- the vocabulary ---- */

/* For the library, which asks how a text would be tokenized. Its bytes need not be UTF-8. */
static size_t tokenize(const void *user, const uint8_t *bytes, size_t n, uint32_t *out, size_t n_out)
{
    const sl_grammars *g = user;
    int32_t *ids = NULL;
    size_t count = 0;
    if (sl_tokenizer_encode(g->tok, (const char *)bytes, n, SL_TOK_NO_SPECIAL, &ids, &count, NULL) != SL_OK)
        return 0;
    for (size_t i = 0; i < count && i < n_out; i++)
        out[i] = (uint32_t)ids[i];
    free(ids);
    return count;
}

/* The bytes of a token. Special tokens begin with a byte that no text has, so that no grammar can ask for them by spelling. */
static size_t token_bytes(const sl_grammars *g, int32_t id, uint8_t *out)
{
    size_t len = 0;
    if (id >= sl_tokenizer_vocab_size(g->tok))
        return 0;
    if (!sl_tokenizer_is_special(g->tok, id)) {
        const char *piece = sl_tokenizer_piece(g->tok, id, &len);
        if (out && len)
            memcpy(out, piece, len);
        return len;
    }
    const char *name = sl_tokenizer_token(g->tok, id);
    len = name ? strlen(name) : 0;
    if (out && len) {
        out[0] = SPECIAL;
        memcpy(out + 1, name, len);
    }
    return len ? len + 1 : 0;
}

static sl_status make_vocabulary(sl_grammars *g, sl_err *err)
{
    char why[256] = "";
    size_t total = 0;
    uint32_t *lens = calloc((size_t)g->vocab, sizeof *lens);
    for (int32_t i = 0; lens && i < g->vocab; i++)
        total += lens[i] = (uint32_t)token_bytes(g, i, NULL);
    uint8_t *bytes = malloc(total + 1);
    size_t at = 0;
    for (int32_t i = 0; lens && bytes && i < g->vocab; i++)
        at += token_bytes(g, i, bytes + at);
    sl_llg_tokenizer_init init = {.struct_size = sizeof init,
                                  .vocab_size = (uint32_t)g->vocab,
                                  .tok_eos = g->eos[0],
                                  .token_lens = lens,
                                  .token_bytes = bytes,
                                  .tokenize_assumes_string = true,
                                  .tokenize = tokenize,
                                  .user = g,
                                  .tok_eos_extra = g->eos + 1,
                                  .tok_eos_extra_count = (uint32_t)(g->n_eos - 1)};
    const bool memory = lens && bytes;
    if (memory)
        g->vocabulary = g->api->new_tokenizer_v2(&init, why, sizeof why);
    free(lens);
    free(bytes);
    if (!memory)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the vocabulary of constraints");
    return g->vocabulary ? SL_OK
                         : sl_fail(err, SL_ERR_UNSUPPORTED, "llguidance refuses the vocabulary: %.200s", why);
}

/* ---- compiling ---- */

static sl_status compile(sl_grammars *g, const char *type, const char *text, LlgMatcher **out, sl_err *err)
{
    sl_llg_matcher_init init = {0};
    g->api->constraint_init_set_defaults(&init, g->vocabulary);
    set_limits(&init.limits);
    init.log_buffer_level = init.log_stderr_level = 0;
    LlgMatcher *m = g->api->new_matcher(&init, type, text);
    const char *why = m ? g->api->matcher_get_error(m) : "out of memory";
    if (!why) {
        *out = m;
        return SL_OK;
    }
    const bool bound = strstr(why, "fuel") || strstr(why, "too large") || strstr(why, "limit") ||
                       strstr(why, "too big") || strstr(why, "exceeded");
    (void)sl_fail(err, SL_OK, "%.300s", why);
    g->api->free_matcher(m);
    return bound ? SL_ERR_TOO_LARGE : SL_ERR_INVALID;
}

/* Between the parts of a value JSON allows any number of blanks, which a model may write for ever: it gets 32, unless the schema
 * says otherwise. */
#define BLANKS "{\"x-guidance\":{\"whitespace_pattern\":\"[ \\n\\r\\t]{0,32}\"}"

/* The schema with the bound of blanks; malloc'ed. NULL: out of memory. */
char *sl_grammar_bound_blanks(const char *text, size_t len)
{
    json_t *j = json_loadb(text, len, JSON_DECODE_ANY, NULL);
    const bool as_it_is = !json_is_object(j) || json_object_get(j, "x-guidance");
    const bool empty = !json_object_size(j);
    json_decref(j);
    char *out = malloc(len + sizeof BLANKS + 1);
    if (!out)
        return NULL;
    if (as_it_is) {
        memcpy(out, text, len + 1);
        return out;
    }
    const char *rest = strchr(text, '{') + 1;
    int n = snprintf(out, sizeof BLANKS + 1, "%s%s", BLANKS, empty ? "" : ",");
    memcpy(out + n, rest, strlen(rest) + 1);
    return out;
}

static sl_status compile_kind(sl_grammars *g, sl_grammar_kind kind, const char *text, LlgMatcher **out,
                              sl_err *err)
{
    char *made = NULL;
    switch (kind) {
    case SL_GRAMMAR_OBJECT:
    case SL_GRAMMAR_SCHEMA:
        text = kind == SL_GRAMMAR_OBJECT ? "{\"type\":\"object\"}" : text;
        if (!(made = sl_grammar_bound_blanks(text, strlen(text))))
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a schema");
        break;
    case SL_GRAMMAR_REGEX:
        return compile(g, "regex", text, out, err);
    case SL_GRAMMAR_CHOICE:
    case SL_GRAMMAR_GBNF:
        SL_TRY(sl_grammar_lark(kind, text, strlen(text), &made, err));
        break;
    case SL_GRAMMAR_TAGS:
        SL_TRY(sl_grammar_tags(text, strlen(text), &made, err));
        break;
    default:
        return sl_fail(err, SL_ERR_INVALID, "a constraint of no kind");
    }
    sl_status st = compile(g, kind <= SL_GRAMMAR_SCHEMA ? "json_schema" : "lark", made, out, err);
    free(made);
    return st;
}

/* Compiling on a thread of its own: a chain of 2,000 references needs more than 16 MB of stack. Pages of the stack that are not
 * reached take no memory. */
typedef struct job {
    sl_grammars *g;
    sl_grammar_kind kind;
    const char *text;
    LlgMatcher *made;
    sl_status status;
    sl_err *err;
} job;

static void *run_job(void *arg)
{
    job *j = arg;
    j->status = compile_kind(j->g, j->kind, j->text, &j->made, j->err);
    return NULL;
}

static sl_status compile_aside(sl_grammars *g, sl_grammar_kind kind, const char *text, LlgMatcher **out,
                               sl_err *err)
{
    job j = {.g = g, .kind = kind, .text = text, .err = err};
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    const int failed = pthread_create(&thread, &attr, run_job, &j);
    pthread_attr_destroy(&attr);
    if (failed)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no thread that compiles a grammar: %s", strerror(failed));
    pthread_join(thread, NULL);
    *out = j.made;
    return j.status;
}

/* ---- what is kept ---- */

static LlgMatcher *copy_kept(sl_grammars *g, sl_key key)
{
    LlgMatcher *copy = NULL;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < KEPT && !copy; i++) {
        if (!g->kept[i].used || !sl_key_eq(g->kept[i].key, key))
            continue;
        g->kept[i].used = ++g->uses;
        copy = g->api->clone_matcher(g->kept[i].first);
        g->stats.kept++;
    }
    pthread_mutex_unlock(&g->lock);
    return copy;
}

static void drop_kept(sl_grammars *g, kept *k)
{
    g->api->free_matcher(k->first);
    g->kept_bytes -= k->bytes;
    *k = (kept){0};
}

static kept *used_longest_ago(sl_grammars *g)
{
    kept *oldest = NULL;
    for (int i = 0; i < KEPT; i++)
        if (g->kept[i].used && (!oldest || g->kept[i].used < oldest->used))
            oldest = &g->kept[i];
    return oldest;
}

/* Keeps m, for which those that were used longest ago make room. */
static void keep(sl_grammars *g, sl_key key, uint64_t bytes, LlgMatcher *m)
{
    pthread_mutex_lock(&g->lock);
    kept *k;
    while ((k = used_longest_ago(g)) && g->kept_bytes + bytes > KEPT_BYTES)
        drop_kept(g, k);
    for (k = g->kept; k < g->kept + KEPT && k->used; k++)
        ;
    if (k == g->kept + KEPT)
        drop_kept(g, k = used_longest_ago(g));
    *k = (kept){key, m, bytes, ++g->uses};
    g->kept_bytes += bytes;
    pthread_mutex_unlock(&g->lock);
}

static sl_key key_of(sl_grammar_kind kind, const char *text, size_t len)
{
    return sl_hash_chain((sl_key){(uint64_t)kind, 0}, text, len);
}

bool sl_grammar_known(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len)
{
    const sl_key key = key_of(kind, text, len);
    bool found = false;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < ACCEPTED && !found; i++)
        found = (uint64_t)i < g->n_accepted && sl_key_eq(g->accepted[i], key);
    g->stats.kept += found;
    pthread_mutex_unlock(&g->lock);
    return found;
}

static void accept(sl_grammars *g, sl_key key)
{
    pthread_mutex_lock(&g->lock);
    g->accepted[g->n_accepted++ % ACCEPTED] = key;
    pthread_mutex_unlock(&g->lock);
}

/* ---- engine ---- */

/* What may take long: the library, the tokenizer, the vocabulary. */
static sl_status open_parts(sl_grammars *g, sl_err *err)
{
    const sl_llg_api *api;
    if (g->n_eos < 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "constraints need a token that ends an answer, and the model has none");
    SL_TRY(sl_llg_open(g->library, &api, err));
    if (!g->tok && !g->dir)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "constraints need a tokenizer, and there is none");
    if (!g->tok)
        SL_TRY(sl_tokenizer_load(g->dir, &g->own, err));
    g->tok = g->tok ? g->tok : g->own;
    g->api = api;
    return make_vocabulary(g, err);
}

/* Opens the parts, once; a failure is told to everybody who asks. */
static sl_status need_parts(sl_grammars *g, sl_err *err)
{
    pthread_mutex_lock(&g->opening);
    if (!g->opened) {
        g->status = open_parts(g, &g->err);
        g->opened = true;
    }
    sl_status st = g->status;
    if (st != SL_OK && err)
        *err = g->err;
    pthread_mutex_unlock(&g->opening);
    return st;
}

sl_status sl_grammars_open(const sl_grammars_opts *o, sl_grammars **out, sl_err *err)
{
    sl_grammars *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    pthread_mutex_init(&g->lock, NULL);
    pthread_mutex_init(&g->opening, NULL);
    g->tok = o->tokenizer;
    g->vocab = o->vocab;
    g->library = o->library ? strdup(o->library) : NULL;
    g->dir = o->dir ? strdup(o->dir) : NULL;
    for (; g->n_eos < o->n_eos && g->n_eos < SL_COUNT(g->eos); g->n_eos++)
        g->eos[g->n_eos] = (uint32_t)o->eos[g->n_eos];
    g->mask_bytes = sl_grammar_mask_words(g) * sizeof(uint32_t);
    sl_status st = (o->library && !g->library) || (o->dir && !g->dir)
                       ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory")
                   : o->late ? SL_OK
                             : need_parts(g, err);
    if (st == SL_OK)
        *out = g;
    else
        sl_grammars_close(g);
    return st;
}

void sl_grammars_stats_get(sl_grammars *g, sl_grammars_stats *out)
{
    pthread_mutex_lock(&g->lock);
    *out = g->stats;
    pthread_mutex_unlock(&g->lock);
}

void sl_grammars_close(sl_grammars *g)
{
    if (!g)
        return;
    for (int i = 0; i < KEPT && g->api; i++)
        g->api->free_matcher(g->kept[i].first);
    if (g->api)
        g->api->free_tokenizer(g->vocabulary);
    sl_tokenizer_destroy(g->own);
    free(g->library);
    free(g->dir);
    pthread_mutex_destroy(&g->lock);
    pthread_mutex_destroy(&g->opening);
    free(g);
}

size_t sl_grammar_mask_words(const sl_grammars *g)
{
    return ((size_t)g->vocab + 31) / 32;
}

/* ---- constraints ---- */

static void count(sl_grammars *g, sl_status st, double seconds)
{
    pthread_mutex_lock(&g->lock);
    g->stats.compiled += st == SL_OK;
    g->stats.refused += st != SL_OK;
    g->stats.seconds += seconds;
    pthread_mutex_unlock(&g->lock);
}

/* Nothing follows for memory from the library's own units. Generated texts (test_grammar_made.c) took up to 57 MB for 1
 * KiB, 87 MB for 2 KiB and 146 MB for 8 KiB, most of them to be refused in the end; 10 MB stayed of those that were
 * compiled. */
uint64_t sl_grammar_bytes(size_t len)
{
    return len < 2496 ? (4 << 20) + ((uint64_t)len << 16) : 160 << 20;
}

static uint64_t bytes_that_stay(size_t len)
{
    return (1 << 20) + 512 * (uint64_t)len;
}

static sl_status compile_text(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                              LlgMatcher **out, sl_err *err)
{
    char *copy = malloc(len + 1);
    if (!copy)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a grammar");
    memcpy(copy, len ? text : "", len); /* the text may have no end of its own */
    copy[len] = 0;
    const uint64_t begin = sl_now_ns();
    sl_status st = compile_aside(g, kind, copy, out, err);
    free(copy);
    count(g, st, (double)(sl_now_ns() - begin) / 1e9);
    return st;
}

static sl_status first_state(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                             LlgMatcher **out, sl_err *err)
{
    const sl_key key = key_of(kind, text, len);
    if ((*out = copy_kept(g, key)))
        return SL_OK;
    LlgMatcher *made = NULL;
    SL_TRY(compile_text(g, kind, text, len, &made, err));
    *out = g->api->clone_matcher(made);
    keep(g, key, bytes_that_stay(len), made);
    return *out ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a constraint");
}

/* An error of a text names its kind. */
static sl_status of_kind(sl_grammar_kind kind, sl_status st, sl_err *err)
{
    if (st == SL_OK)
        return SL_OK;
    return sl_fail_in(err, st, "%s", kind < SL_GRAMMAR_KINDS ? sl_grammar_kind_names[kind] : "grammar");
}

sl_status sl_grammar_check(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len, sl_err *err)
{
    LlgMatcher *m = NULL;
    SL_TRY(need_parts(g, err));
    SL_TRY(of_kind(kind, sl_grammar_check_bounds(kind, text, len, err), err));
    if (sl_grammar_known(g, kind, text, len))
        return SL_OK;
    SL_TRY(of_kind(kind, compile_text(g, kind, text, len, &m, err), err));
    g->api->free_matcher(m);
    accept(g, key_of(kind, text, len));
    return SL_OK;
}

sl_status sl_grammar_open(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                          sl_grammar **out, sl_err *err)
{
    LlgMatcher *m = NULL;
    SL_TRY(need_parts(g, err));
    sl_status st = sl_grammar_check_bounds(kind, text, len, err);
    if (st == SL_OK)
        st = first_state(g, kind, text, len, &m, err);
    SL_TRY(of_kind(kind, st, err));
    sl_grammar *c = malloc(sizeof *c);
    if (!c) {
        g->api->free_matcher(m);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a constraint");
    }
    *c = (sl_grammar){.api = g->api,
                      .m = m,
                      .eos = g->eos,
                      .n_eos = g->n_eos,
                      .vocab = g->vocab,
                      .after = -1,
                      .waited = -1};
    *out = c;
    return SL_OK;
}

void sl_grammar_close(sl_grammar *c)
{
    if (!c)
        return;
    c->api->free_matcher(c->m);
    free(c);
}
