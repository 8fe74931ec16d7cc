/*
 * What a budget costs without questions: a text is divided into windows; the end of each is read token by token under a setting,
 * and the probabilities of the next token are compared with those of dense attention, and with the text.
 *
 *   agreement    share of the tokens after which the most probable next token is that of dense attention
 *   KL           mean over tokens of sum p ln(p / q), in nats; p: dense attention, q: the setting
 *   perplexity   exp of the mean of -ln q(token of the text)
 *
 * A window has as many tokens as the evaluated length. Its last `measured` tokens are predicted, each by a step of one token, so
 * that every strategy decodes; everything before them is the prompt. Windows do not overlap.
 *
 * Ownership: a text owns its tokens; sl_eval_text_free(). One thread.
 */
#ifndef SL_EVAL_NEXT_H
#define SL_EVAL_NEXT_H

#include "model/tokenizer.h"

typedef struct sl_eval_text {
    char *name;      /* of the file, without its folder */
    int32_t *tokens; /* [n] */
    int32_t *begin;  /* [n_begin], what the tokenizer puts before a text; at the beginning of every window */
    size_t n, n_begin;
} sl_eval_text;

/* Sums over measured tokens. */
typedef struct sl_eval_next {
    int64_t tokens, agreed;
    double kl, surprise; /* surprise: -ln of the probability of the text's token */
} sl_eval_next;

/* SL_ERR_IO, SL_ERR_INVALID (not UTF-8), SL_ERR_NO_MEMORY, with the file. */
sl_status sl_eval_text_load(const char *path, const sl_tokenizer *tok, sl_eval_text *out, sl_err *err);
void sl_eval_text_free(sl_eval_text *t);

/* Windows of `length` tokens that a text has. */
int32_t sl_eval_windows(const sl_eval_text *t, int32_t length);
/* The tokens of one of them, malloc'ed; NULL: out of memory. */
int32_t *sl_eval_window(const sl_eval_text *t, int32_t length, int32_t index);

/* Adds a step: logits of dense attention and of the setting, [vocab] each, before `token` of the text. */
void sl_eval_next_see(sl_eval_next *sums, const float *dense, const float *logits, int32_t vocab,
                      int32_t token);
void sl_eval_next_add(sl_eval_next *to, const sl_eval_next *from);
/* -1 when nothing was measured. */
double sl_eval_agreement(const sl_eval_next *n);
double sl_eval_kl(const sl_eval_next *n);
double sl_eval_perplexity(const sl_eval_next *n);

#endif
