/*
 * A constraint follows an answer; see grammar.h. The library knows the answer up to its end; what follows the end, with ignore_eos,
 * is counted here.
 */
#include <string.h>

#include "model/grammar/follow.h"

static sl_status failed(sl_grammar *c, const char *what, sl_status st, sl_err *err)
{
    const char *why = c->api->matcher_get_error(c->m);
    return sl_fail(err, st, "%s: %.300s", what, why ? why : "no reason given");
}

static bool ends(const sl_grammar *c, int32_t id)
{
    for (size_t i = 0; i < c->n_eos; i++)
        if ((uint32_t)id == c->eos[i])
            return true;
    return false;
}

sl_status sl_grammar_take(sl_grammar *c, const int32_t *ids, size_t n, sl_err *err)
{
    size_t inside = 0;
    while (!c->over && inside < n && !ends(c, ids[inside]))
        inside++;
    if (inside && c->api->matcher_consume_tokens(c->m, (const uint32_t *)ids, inside) != 0)
        return failed(c, "the constraint does not allow a token of the answer", SL_ERR_INVALID, err);
    if (inside < n && !c->over && !sl_grammar_may_end(c))
        return sl_fail(err, SL_ERR_INVALID, "the constraint does not allow that the answer ends here");
    c->over += n - inside;
    return SL_OK;
}

sl_status sl_grammar_undo(sl_grammar *c, size_t n, sl_err *err)
{
    const size_t after = n < c->over ? n : c->over;
    c->over -= after;
    if (n > after && c->api->matcher_rollback(c->m, n - after) != 0)
        return failed(c, "the constraint cannot go back", SL_ERR_INVALID, err);
    return SL_OK;
}

static size_t mask_bytes(const sl_grammar *c)
{
    return ((size_t)c->vocab + 31) / 32 * 4;
}

sl_status sl_grammar_mask(sl_grammar *c, uint32_t *bits, sl_err *err)
{
    if (c->over) {
        memset(bits, 0xff, mask_bytes(c));
        if (c->vocab % 32)
            bits[c->vocab / 32] = (1u << c->vocab % 32) - 1;
        return SL_OK;
    }
    if (sl_grammar_must_end(c)) {
        memset(bits, 0, mask_bytes(c));
        for (size_t i = 0; i < c->n_eos; i++)
            bits[c->eos[i] / 32] |= 1u << c->eos[i] % 32;
        return SL_OK;
    }
    if (c->api->matcher_compute_mask_into(c->m, bits, mask_bytes(c)) != 0)
        return failed(c, "which tokens a constraint allows", SL_ERR_TOO_LARGE, err);
    return SL_OK;
}

bool sl_grammar_may_end(sl_grammar *c)
{
    return c->over || c->api->matcher_is_stopped(c->m) || c->api->matcher_is_accepting(c->m);
}

bool sl_grammar_must_end(const sl_grammar *c)
{
    return !c->over && c->api->matcher_is_stopped(c->m);
}
