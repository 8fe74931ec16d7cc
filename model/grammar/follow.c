/*
 * A constraint follows an answer; see grammar.h. The library knows the answer from the token after which the constraint begins up to
 * its end; what comes before, and what follows the end with ignore_eos, is counted here.
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

void sl_grammar_after(sl_grammar *c, int32_t id)
{
    c->after = c->waited = id;
}

/* Tokens before the constraint begins are free. How many there are among these. */
static size_t skip(sl_grammar *c, const int32_t *ids, size_t n)
{
    size_t k = 0;
    while (k < n && c->after >= 0 && !ends(c, ids[k])) {
        if (ids[k++] == c->after)
            c->after = -1;
    }
    c->before += k;
    return k;
}

sl_status sl_grammar_take(sl_grammar *c, const int32_t *ids, size_t n, sl_err *err)
{
    size_t inside = 0, k = c->over ? 0 : skip(c, ids, n);
    ids += k;
    n -= k;
    if (n && c->after >= 0) { /* the answer ends before the constraint began */
        c->over += n;
        return SL_OK;
    }
    while (!c->over && inside < n && !ends(c, ids[inside]))
        inside++;
    if (inside && c->api->matcher_consume_tokens(c->m, (const uint32_t *)ids, inside) != 0)
        return failed(c, "the constraint does not allow a token of the answer", SL_ERR_INVALID, err);
    if (inside < n && !c->over && !sl_grammar_may_end(c))
        return sl_fail(err, SL_ERR_INVALID, "the constraint does not allow that the answer ends here");
    c->inside += inside;
    c->over += n - inside;
    return SL_OK;
}

sl_status sl_grammar_undo(sl_grammar *c, size_t n, sl_err *err)
{
    const size_t over = n < c->over ? n : c->over;
    c->over -= over;
    n -= over;
    const size_t inside = n < c->inside ? n : c->inside;
    if (inside && c->api->matcher_rollback(c->m, inside) != 0)
        return failed(c, "the constraint cannot go back", SL_ERR_INVALID, err);
    c->inside -= inside;
    n -= inside;
    if (n) { /* the last of these tokens is the one after which the constraint began, or none has been that token */
        c->before -= n < c->before ? n : c->before;
        c->after = c->waited;
    }
    return SL_OK;
}

static size_t mask_bytes(const sl_grammar *c)
{
    return ((size_t)c->vocab + 31) / 32 * 4;
}

sl_status sl_grammar_mask(sl_grammar *c, uint32_t *bits, sl_err *err)
{
    if (c->over || c->after >= 0) {
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
    if (c->api->matcher_compute_mask_into(c->m, bits, mask_bytes(c)) == 0)
        return SL_OK;
    const char *why = c->api->matcher_get_error(c->m);
    if (why && strstr(why, "NoExtension")) /* such as a schema that refers to itself only */
        return sl_fail(err, SL_ERR_INVALID, "the constraint allows no token here: no text follows it");
    return failed(c, "which tokens a constraint allows", SL_ERR_TOO_LARGE, err);
}

bool sl_grammar_may_end(sl_grammar *c)
{
    return c->over || c->after >= 0 || c->api->matcher_is_stopped(c->m) || c->api->matcher_is_accepting(c->m);
}

bool sl_grammar_must_end(const sl_grammar *c)
{
    return !c->over && c->after < 0 && c->api->matcher_is_stopped(c->m);
}
