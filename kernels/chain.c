/* See chain.h. */
#include "kernels/chain.h"

static bool is_one(const sl_chain_calls *calls, const void *algo, bool *said)
{
    int32_t split = 0;
    uint32_t scheme = 0;

    *said = calls->get(algo, &split, &scheme);
    return *said && split <= 1 && scheme == 0;
}

bool sl_chain_make(const sl_chain_calls *calls, void *algo)
{
    bool said;

    if (is_one(calls, algo, &said))
        return true;
    return said && calls->set(algo, 1, 0) && is_one(calls, algo, &said);
}

bool sl_chain_alike(const sl_chain_calls *calls, const void *a, const void *b)
{
    uint32_t x = 0, y = 0;

    return calls->kind(a, &x) && calls->kind(b, &y) && x == y;
}
