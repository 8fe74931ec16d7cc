/* See past.h. */
#include "prefill/past.h"

void sl_past_add(sl_past *p, uint32_t router, uint64_t rid, uint32_t attempt)
{
    p->of[p->next].rid = rid;
    p->of[p->next].attempt = attempt;
    p->of[p->next].router = router;
    p->next = (p->next + 1) % SL_PAST_ATTEMPTS;
    p->n += p->n < SL_PAST_ATTEMPTS;
}

bool sl_past_has(const sl_past *p, uint32_t router, uint64_t rid, uint32_t attempt)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->of[i].router == router && p->of[i].rid == rid && p->of[i].attempt == attempt)
            return true;
    return false;
}
