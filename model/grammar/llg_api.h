/*
 * The functions of llguidance 1.x that Sluice calls, by their C interface. Own declarations of a published interface: the
 * library is opened at run time and is not needed to build.
 */
#ifndef SL_MODEL_GRAMMAR_LLG_API_H
#define SL_MODEL_GRAMMAR_LLG_API_H

#include "base/status.h"

typedef struct LlgTokenizer LlgTokenizer;
typedef struct LlgMatcher LlgMatcher;

typedef struct sl_llg_limits { /* 0: the library's default */
    size_t max_items_in_row;
    uint64_t initial_lexer_fuel, step_lexer_fuel;
    size_t step_max_items, max_lexer_states, max_grammar_size;
    bool precompute_large_lexemes, verbose_errors;
} sl_llg_limits;

typedef struct sl_llg_matcher_init {
    const LlgTokenizer *tokenizer;
    uint32_t log_buffer_level, log_stderr_level;
    bool ff_tokens_ok, backtrack_ok;
    sl_llg_limits limits;
    char later[256]; /* zero: fields that a later version may have */
} sl_llg_matcher_init;

typedef struct sl_llg_tokenizer_init {
    size_t struct_size; /* of this struct: the library reads no more */
    uint32_t vocab_size, tok_eos;
    const uint32_t *token_lens; /* [vocab_size] */
    const uint8_t *token_bytes; /* the tokens' bytes, one after the other */
    const char *tokenizer_json;
    bool tokenize_assumes_string;
    size_t (*tokenize)(const void *user, const uint8_t *bytes, size_t n, uint32_t *out, size_t n_out);
    bool use_approximate_greedy;
    const void *user;
    const char *const *slices;
    const uint32_t *tok_eos_extra;
    uint32_t tok_eos_extra_count;
} sl_llg_tokenizer_init;

/* member, result, parameters; the symbol is llg_ and the member. */
#define SL_LLG_FUNCTIONS(X)                                                                                  \
    X(get_version, const char *, (void))                                                                     \
    X(new_tokenizer_v2, LlgTokenizer *, (const sl_llg_tokenizer_init *init, char *why, size_t why_bytes))    \
    X(free_tokenizer, void, (LlgTokenizer * t))                                                              \
    X(constraint_init_set_defaults, void, (sl_llg_matcher_init * init, const LlgTokenizer *t))               \
    X(new_matcher, LlgMatcher *, (const sl_llg_matcher_init *init, const char *type, const char *text))      \
    X(clone_matcher, LlgMatcher *, (const LlgMatcher *m))                                                    \
    X(free_matcher, void, (LlgMatcher * m))                                                                  \
    X(matcher_get_error, const char *, (LlgMatcher * m))                                                     \
    X(matcher_get_mask_byte_size, size_t, (const LlgMatcher *m))                                             \
    X(matcher_compute_mask_into, int32_t, (LlgMatcher * m, uint32_t * bits, size_t bytes))                   \
    X(matcher_consume_tokens, int32_t, (LlgMatcher * m, const uint32_t *ids, size_t n))                      \
    X(matcher_rollback, int32_t, (LlgMatcher * m, size_t n))                                                 \
    X(matcher_is_accepting, bool, (LlgMatcher * m))                                                          \
    X(matcher_is_stopped, bool, (const LlgMatcher *m))

typedef struct sl_llg_api {
#define SL_LLG_MEMBER(member, result, parameters) result(*member) parameters;
    SL_LLG_FUNCTIONS(SL_LLG_MEMBER)
#undef SL_LLG_MEMBER
} sl_llg_api;

/* Opens the library once per process; a later call gives the same functions, whatever its path. path NULL: as
 * sl_grammars_open(). SL_ERR_UNSUPPORTED with the reason. Any thread. */
sl_status sl_llg_open(const char *path, const sl_llg_api **out, sl_err *err);

#endif
