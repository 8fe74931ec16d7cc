/* See next.h. */
#include "eval/next.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"

static const size_t most_bytes = (size_t)1 << 30;

sl_status sl_eval_text_load(const char *path, const sl_tokenizer *tok, sl_eval_text *out, sl_err *err)
{
    const char *slash = strrchr(path, '/');
    sl_eval_text t = {.name = strdup(slash ? slash + 1 : path)};
    char *text = NULL;
    size_t n = 0;
    sl_status st = t.name ? sl_read_file(path, most_bytes, &text, &n, err)
                          : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (st == SL_OK && (st = sl_tokenizer_encode(tok, text, n, 0, &t.tokens, &t.n, err)) != SL_OK)
        (void)sl_fail_in(err, st, "%s", path);
    if (st == SL_OK)
        st = sl_tokenizer_encode(tok, "", 0, SL_TOK_ADD_SPECIAL, &t.begin, &t.n_begin, err);
    free(text);
    if (st == SL_OK)
        *out = t;
    else
        sl_eval_text_free(&t);
    return st;
}

void sl_eval_text_free(sl_eval_text *t)
{
    free(t->name);
    free(t->tokens);
    free(t->begin);
    *t = (sl_eval_text){0};
}

int32_t sl_eval_windows(const sl_eval_text *t, int32_t length)
{
    const int64_t own = length - (int64_t)t->n_begin;
    const int64_t n = own > 0 ? (int64_t)t->n / own : 0;
    return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

int32_t *sl_eval_window(const sl_eval_text *t, int32_t length, int32_t index)
{
    const size_t own = (size_t)length - t->n_begin;
    int32_t *v = malloc((size_t)length * sizeof *v);
    if (!v)
        return NULL;
    if (t->n_begin)
        memcpy(v, t->begin, t->n_begin * sizeof *v);
    memcpy(v + t->n_begin, t->tokens + (size_t)index * own, own * sizeof *v);
    return v;
}

/* ln of the sum of exp, and the place of the largest, which is the first of equal ones. */
static double normaliser(const float *logits, int32_t n, int32_t *best)
{
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[*best])
            *best = i;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)logits[*best]);
    return (double)logits[*best] + log(sum);
}

void sl_eval_next_see(sl_eval_next *sums, const float *dense, const float *logits, int32_t vocab,
                      int32_t token)
{
    int32_t best_p, best_q;
    const double p = normaliser(dense, vocab, &best_p), q = normaliser(logits, vocab, &best_q);
    double kl = 0;
    for (int32_t i = 0; i < vocab; i++) {
        const double ln_p = (double)dense[i] - p, ln_q = (double)logits[i] - q;
        kl += exp(ln_p) * (ln_p - ln_q);
    }
    sums->tokens++;
    sums->agreed += best_p == best_q;
    sums->kl += kl > 0 ? kl : 0; /* rounding */
    sums->surprise += q - (double)logits[token];
}

void sl_eval_next_add(sl_eval_next *to, const sl_eval_next *from)
{
    to->tokens += from->tokens;
    to->agreed += from->agreed;
    to->kl += from->kl;
    to->surprise += from->surprise;
}

double sl_eval_agreement(const sl_eval_next *n)
{
    return n->tokens ? (double)n->agreed / (double)n->tokens : -1;
}

double sl_eval_kl(const sl_eval_next *n)
{
    return n->tokens ? n->kl / (double)n->tokens : -1;
}

double sl_eval_perplexity(const sl_eval_next *n)
{
    return n->tokens ? exp(n->surprise / (double)n->tokens) : -1;
}
