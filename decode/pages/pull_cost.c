/* See pull_cost.h. */
#include "decode/pages/pull_cost.h"

enum { PAGE = 64 };
static const double UNKNOWN_ASK_S = 0.005;

void sl_pull_rate_add(sl_pull_rate *r, double value, uint64_t now_ns)
{
    if (!(value > 0))
        return;
    r->value = r->at_ns ? r->value + (value - r->value) / 4 : value;
    r->at_ns = now_ns;
}

double sl_pull_rate_get(const sl_pull_rate *r, uint64_t now_ns)
{
    bool old = !r->at_ns || (now_ns > r->at_ns && now_ns - r->at_ns > SL_PULL_STALE_MS * UINT64_C(1000000));
    return old ? 0 : r->value;
}

bool sl_pull_is_cheaper(const sl_pull_cost *c)
{
    if (!(c->bytes_per_s > 0) || !(c->tokens_per_s > 0))
        return true;
    double ask = c->ask_s > 0 ? c->ask_s : UNKNOWN_ASK_S;
    double pull = ask + ((double)c->pages + (double)c->lent) * c->page_bytes / c->bytes_per_s;
    return pull < (double)c->pages * PAGE / c->tokens_per_s;
}
