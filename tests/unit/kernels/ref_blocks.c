/* Reference of the ops on blocks of tokens (ref.h). */
#include <math.h>
#include <stdlib.h>

#include "kernels/blocks.h"
#include "tests/unit/kernels/ref.h"

void ref_block_scores(const void *params)
{
    const sl_block_scores_params *p = params;
    const sl_seq_tables *s = p->seqs;

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++)
        for (int64_t h = 0; h < p->heads && s->token_pos[t] >= p->from_pos; h++)
            for (int64_t pos = 0; pos <= s->token_pos[t]; pos++) {
                float *out =
                    p->scores + ((t - p->token_first) * p->heads + h) * p->ld_scores + pos / p->block_tokens;
                const uint8_t *page = p->index_base + ref_page_of(s->index_pages, s, s->token_seq[t], pos) *
                                                          p->index_page_stride;
                double sum = 0;

                for (int64_t i = 0; i < p->dim; i++)
                    sum += (double)p->q[(t * p->heads + h) * p->dim + i] *
                           ref_at(page, SL_F32, pos % 64 * p->dim + i);
                if (pos % p->block_tokens == 0)
                    *out = -INFINITY;
                *out = (float)sum > *out ? (float)sum : *out;
            }
}

/* Whether block a ranks above block b, of a token at pos. */
static bool above(const sl_block_lists_params *p, const float *scores, int64_t pos, int64_t a, int64_t b)
{
    const int64_t of[2] = {a, b};
    double v[2];

    for (int i = 0; i < 2; i++) {
        const int64_t first = of[i] * p->block_tokens, last = first + p->block_tokens - 1;
        const bool forced = first < p->sinks || (p->recent > 0 && last > pos - p->recent);

        v[i] = forced ? INFINITY : isnan(scores[of[i]]) ? -INFINITY : (double)scores[of[i]];
        if (!forced && isinf(scores[of[i]]))
            v[i] = scores[of[i]] > 0 ? 1e300 : -1e300;
    }
    return v[0] > v[1] || (v[0] == v[1] && a < b);
}

void ref_block_lists(const void *params)
{
    const sl_block_lists_params *p = params;

    for (int64_t t = p->token_first; t < p->token_first + p->token_count; t++)
        for (int64_t l = 0; l < p->lists; l++) {
            const int64_t pos = p->seqs->token_pos[t], n = pos / p->block_tokens + 1,
                          size = 1 << p->block_log2;
            const float *scores =
                p->scores + ((t - p->token_first) * p->heads + l * p->heads / p->lists) * p->ld_scores;
            int32_t *ids = p->ids + (t * p->lists + l) * p->ld_ids;
            int64_t used = 0;

            for (int64_t row = 0; row <= pos / size; row++) {
                const int64_t b = row * size / p->block_tokens;
                int64_t better = 0;

                for (int64_t o = 0; o < n && n > p->k && pos + 1 > p->dense_below; o++)
                    better += o != b && above(p, scores, pos, o, b);
                if (better < p->k || n <= p->k || pos + 1 <= p->dense_below)
                    ids[used++] = (int32_t)row;
            }
            while (used < p->ld_ids)
                ids[used++] = -1;
        }
}
