/* Ops that take the tokens of a sequence one after the other: where the tokens of a sequence begin and end in a step. */
#ifndef SL_KERNELS_CPU_RUNS_H
#define SL_KERNELS_CPU_RUNS_H

#include "kernels/cpu/place.h"

/* Tokens t .. *end - 1 are those of the sequence at `at`, with ascending positions. 0, SL_PLACE_NONE for a token that is padding or not
 * the first of its sequence, or SL_DEVERR_SEQ / POS. */
static inline uint32_t sl_run_at(const sl_seq_tables *s, int64_t t, sl_place *at, int64_t *end)
{
    const int32_t seq = s->token_seq[t];
    sl_place last;
    uint32_t bad = t > 0 && s->token_seq[t - 1] == seq ? SL_PLACE_NONE : sl_place_of(s, t, at);

    *end = t + 1;
    while (!bad && *end < s->n_tokens && s->token_seq[*end] == seq) {
        bad = sl_place_of(s, *end, &last);
        if (!bad && last.pos != at->pos + (int32_t)(*end - t))
            bad = SL_DEVERR_POS;
        ++*end;
    }
    return bad;
}

#endif
