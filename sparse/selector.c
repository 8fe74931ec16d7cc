/*
 * Whether the description of a selection (sl_selector) is consistent in itself. Whether a build can serve it is another
 * question: the coordinator compares it with the adaptor (coord_plan.c).
 */
#include "sparse/algorithm.h"

static sl_status bad(const char *why, sl_err *err)
{
    return sl_fail(err, SL_ERR_INVALID, "selector: %s", why);
}

static sl_status check_sizes(const sl_selector *s, sl_err *err)
{
    if (s->unit_tokens < 1 || s->unit_tokens > SL_CACHE_UNIT_MAX)
        return sl_fail(err, SL_ERR_INVALID, "selector: unit_tokens %d is not in 1..%d", s->unit_tokens,
                       SL_CACHE_UNIT_MAX);
    if (s->block_tokens < s->unit_tokens || s->block_tokens % s->unit_tokens)
        return sl_fail(err, SL_ERR_INVALID, "selector: block_tokens %d is not a multiple of unit_tokens %d",
                       s->block_tokens, s->unit_tokens);
    if (s->entry_tokens < 0 || (s->entry_tokens > 0 && s->block_tokens % s->entry_tokens))
        return sl_fail(err, SL_ERR_INVALID, "selector: entry_tokens %d does not divide block_tokens %d",
                       s->entry_tokens, s->block_tokens);
    if (s->force_first < 0 || s->force_last < 0)
        return bad("force_first and force_last must not be negative", err);
    if ((unsigned)s->scope > SL_SCOPE_QUERY_HEAD)
        return bad("the scope is unknown", err);
    return SL_OK;
}

sl_status sl_selector_check(const sl_selector *s, sl_err *err)
{
    SL_TRY(check_sizes(s, err));
    if ((unsigned)s->key > SL_KEY_BOUNDS || (unsigned)s->score > SL_SCORE_BOUND ||
        (unsigned)s->reduce > SL_REDUCE_SUM)
        return bad("the key, the score or the reduction is unknown", err);
    if ((s->key == SL_KEY_NONE) != (s->score == SL_SCORE_NONE))
        return bad("a score needs a key, and a key is for a score", err);
    if ((s->key == SL_KEY_BOUNDS) != (s->score == SL_SCORE_BOUND))
        return bad("bounds need the score of bounds, and only they can have it", err);
    if (s->key == SL_KEY_STORED && s->unit_tokens != 1)
        return bad("a stored key is the key of one token", err);
    if (s->score != SL_SCORE_NONE && (s->block_tokens > s->unit_tokens) != (s->reduce != SL_REDUCE_NONE))
        return bad("scores are reduced exactly when a block has several units", err);
    return SL_OK;
}
