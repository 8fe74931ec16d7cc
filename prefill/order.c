/* See order.h. The time is quadratic in the number of prompts that end in one step, which is small in one chunk. */
#include "prefill/order.h"

#include <stddef.h>

#include "kernels/params.h"

enum { PAGE = SL_PAGE_TOKENS };

/* The number of tokens that a prompt gets from a budget: all that it still needs, or else whole pages. */
static int32_t portion(int32_t left, int32_t budget)
{
    if (left <= budget)
        return left;
    return budget > PAGE ? budget - budget % PAGE : budget;
}

static sl_prefill_turn *shortest(sl_prefill_turn *t, int32_t n)
{
    sl_prefill_turn *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        if (!t[i].take && (!best || t[i].left < best->left))
            best = &t[i];
    }
    return best;
}

static void count_passed(sl_prefill_turn *t, int32_t n)
{
    int64_t younger = 0;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (!t[i].take)
            t[i].passed += younger;
        younger += t[i].take;
    }
}

int32_t sl_prefill_order(sl_prefill_turn *t, int32_t n, int32_t chunk)
{
    int32_t used = 0, half = (chunk + 1) / 2, ended = 0;
    for (int32_t i = 0; i < n; i++)
        t[i].take = 0;
    for (int32_t i = 0; i < n && used < half; i++) {
        if (t[i].passed < (int64_t)SL_PREFILL_PASSED_CHUNKS * chunk)
            continue;
        t[i].take = portion(t[i].left, half - used);
        used += t[i].take;
        ended += t[i].take == t[i].left;
    }
    for (sl_prefill_turn *s; used < chunk && (s = shortest(t, n));) {
        int32_t budget = chunk - used;
        if (s->left > budget && ended)
            break;
        s->take = portion(s->left, budget);
        used += s->take;
        ended += s->take == s->left;
    }
    sl_prefill_turn *s = shortest(t, n);
    if (s && ended && used < half) {
        s->take = portion(s->left, half - used);
        used += s->take;
    }
    count_passed(t, n);
    return used;
}
