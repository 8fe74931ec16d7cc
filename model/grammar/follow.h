/* What the files of model/grammar share: a constraint, and the forms of texts. */
#ifndef SL_MODEL_GRAMMAR_FOLLOW_H
#define SL_MODEL_GRAMMAR_FOLLOW_H

#include "model/grammar.h"
#include "model/grammar/llg_api.h"

struct sl_grammar {
    const sl_llg_api *api;
    LlgMatcher *m;
    const uint32_t *eos; /* of the engine */
    size_t n_eos;
    int32_t vocab;
    int32_t after;  /* the constraint begins after this token; negative: it has begun */
    int32_t waited; /* `after` as it was, for going back */
    size_t before;  /* tokens that came before the constraint began, `after` included */
    size_t inside;  /* tokens that the library has taken */
    size_t over;    /* tokens since the answer has ended, the one that ended it included */
};

/* A schema whose blanks are bounded, so that an answer cannot consist of them; malloc'ed, NULL: out of memory. */
char *sl_grammar_bound_blanks(const char *text, size_t len);
/* Bounds that follow from the text alone (bounds.c). SL_ERR_TOO_LARGE, SL_ERR_INVALID. */
sl_status sl_grammar_check_bounds(sl_grammar_kind kind, const char *text, size_t len, sl_err *err);
/* A text of kind TAGS as Lark; out is malloc'ed (tags.c). SL_ERR_INVALID, SL_ERR_NO_MEMORY. */
sl_status sl_grammar_tags(const char *text, size_t len, char **out, sl_err *err);

#endif
