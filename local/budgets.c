/* How attention is spread over tokens, by layer and KV head, and budgets from it. See budgets.h. */
#include "local/budgets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"

enum { FIRST = 16, NEWEST = 64, EVERY = 4 };
#define EVEN 0.2 /* of a budget, divided evenly */

const char *const sl_budgets_methods[] = {"head", "layer", "both", "duo", NULL};

struct sl_curves {
    int32_t n_layers, kv_heads, dim, tokens;
    /* [layers][kv_heads][tokens]: attention of the token of rank r, summed over queries; falling */
    double *gain;
    double *outside; /* [layers][kv_heads]: attention on neither the first nor the newest tokens */
    float *keys;     /* [tokens][dim] of one KV head */
    double *weight;  /* [tokens] */
    double *score;   /* [tokens] */
};

sl_status sl_curves_new(int32_t n_layers, int32_t kv_heads, int32_t dim, int32_t tokens, sl_curves **out,
                        sl_err *err)
{
    const size_t lists = (size_t)n_layers * (size_t)kv_heads, n = (size_t)tokens;
    sl_curves *c = calloc(1, sizeof *c);
    if (c) {
        *c = (sl_curves){.n_layers = n_layers, .kv_heads = kv_heads, .dim = dim, .tokens = tokens};
        c->gain = calloc(lists * n, sizeof *c->gain);
        c->outside = calloc(lists, sizeof *c->outside);
        c->keys = calloc(n * (size_t)dim, sizeof *c->keys);
        c->weight = calloc(n, sizeof *c->weight);
        c->score = calloc(n, sizeof *c->score);
    }
    if (!c || !c->gain || !c->outside || !c->keys || !c->weight || !c->score) {
        sl_curves_free(c);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for the attention of %zu lists of %zu tokens",
                       lists, n);
    }
    *out = c;
    return SL_OK;
}

void sl_curves_free(sl_curves *c)
{
    if (!c)
        return;
    free(c->gain);
    free(c->outside);
    free(c->keys);
    free(c->weight);
    free(c->score);
    free(c);
}

/* ---- measuring ---- */

static void load_keys(sl_curves *c, const sl_algo_call *call, int32_t head, int32_t n)
{
    const sl_seq_tables *s = call->attn->seqs;
    const int32_t *pages = s->host_pages + (int64_t)s->token_seq[0] * s->ld;
    for (int32_t pos = 0; pos < n; pos++) {
        const uint8_t *row = call->host_rows.base +
                             pages[pos / SL_PAGE_TOKENS] * call->host_rows.page_stride +
                             pos % SL_PAGE_TOKENS * call->host_rows.row_stride;
        sl_gqa_key_decode(call->attn->gqa.attn.format, c->kv_heads, c->dim, row, head,
                          c->keys + (int64_t)pos * c->dim);
    }
}

/* Adds the softmax of one query over n keys to the weights. */
static void add_query(sl_curves *c, const float *q, float scale, int32_t n)
{
    double top = -INFINITY, sum = 0;
    for (int32_t j = 0; j < n; j++) {
        float dot = 0;
        for (int32_t i = 0; i < c->dim; i++)
            dot += q[i] * c->keys[(int64_t)j * c->dim + i];
        c->score[j] = (double)(dot * scale);
        top = c->score[j] > top ? c->score[j] : top;
    }
    for (int32_t j = 0; j < n; j++)
        sum += c->score[j] = exp(c->score[j] - top);
    for (int32_t j = 0; j < n; j++)
        c->weight[j] += c->score[j] / sum;
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void add_token(sl_curves *c, const sl_algo_call *call, int32_t t, int32_t head)
{
    const sl_gqa_attn_params *p = &call->attn->gqa.attn;
    const int32_t n = call->attn->seqs->token_pos[t] + 1, group = p->heads / p->kv_heads;
    const int64_t list = (int64_t)call->attn->layer * c->kv_heads + head;
    memset(c->weight, 0, (size_t)n * sizeof *c->weight);
    for (int32_t h = head * group; h < (head + 1) * group; h++)
        add_query(c, p->q + ((int64_t)t * p->heads + h) * p->dim, p->scale, n);
    for (int32_t j = FIRST; j < n - NEWEST; j++)
        c->outside[list] += c->weight[j] / group;
    qsort(c->weight, (size_t)n, sizeof *c->weight, falling);
    for (int32_t j = 0; j < n; j++)
        c->gain[list * c->tokens + j] += c->weight[j] / group;
}

void sl_curves_add(sl_curves *c, const sl_algo_call *call)
{
    const sl_seq_tables *s = call->attn->seqs;
    for (int32_t h = 0; h < c->kv_heads; h++) {
        load_keys(c, call, h, s->token_pos[s->n_tokens - 1] + 1);
        for (int32_t t = s->n_tokens - 1; t >= 0 && s->token_pos[t] >= c->tokens / 4; t -= EVERY)
            add_token(c, call, t, h);
    }
}

/* ---- dividing ---- */

/* Gives `units` ranks to lists first .. first + n - 1, each time to the one with the most to gain; of each of these, `of` lists get a
 * rank together. */
static void divide(const sl_curves *c, int32_t first, int32_t n, int32_t of, int64_t units, int32_t *ranks)
{
    for (int64_t u = 0; u < units; u++) {
        int32_t best = -1;
        double most = -1;
        for (int32_t i = first; i < first + n; i += of) {
            double gain = 0;
            for (int32_t k = i; k < i + of && ranks[i] < c->tokens; k++)
                gain += c->gain[(int64_t)k * c->tokens + ranks[i]];
            if (ranks[i] < c->tokens && gain > most)
                best = i, most = gain;
        }
        if (best < 0)
            return;
        for (int32_t k = best; k < best + of; k++)
            ranks[k]++;
    }
}

/* "all" for the lists with the most attention outside. */
static void retrieve(const sl_curves *c, double share_of_lists, float *share)
{
    const int32_t lists = c->n_layers * c->kv_heads, n = (int32_t)(share_of_lists * lists + 0.5);
    for (int32_t i = 0; i < lists; i++) {
        int32_t before = 0;
        for (int32_t k = 0; k < lists; k++)
            before += c->outside[k] > c->outside[i] || (c->outside[k] == c->outside[i] && k < i);
        share[i] = before < n ? INFINITY : 0;
    }
}

void sl_curves_shares(const sl_curves *c, sl_budgets_method method, int32_t budget, double retrieval,
                      float *share)
{
    const int32_t lists = c->n_layers * c->kv_heads;
    int32_t *ranks = calloc((size_t)lists, sizeof *ranks);
    if (method == SL_BUDGETS_DUO)
        retrieve(c, retrieval, share);
    else if (ranks && method == SL_BUDGETS_HEAD)
        for (int32_t l = 0; l < c->n_layers; l++)
            divide(c, l * c->kv_heads, c->kv_heads, 1, (int64_t)budget * c->kv_heads, ranks);
    else if (ranks)
        divide(c, 0, lists, method == SL_BUDGETS_LAYER ? c->kv_heads : 1,
               (int64_t)budget * (method == SL_BUDGETS_LAYER ? c->n_layers : lists), ranks);
    for (int32_t i = 0; method != SL_BUDGETS_DUO && i < lists; i++)
        share[i] = (float)(EVEN + (1 - EVEN) * (ranks ? (double)ranks[i] / budget : 1));
    free(ranks);
}
