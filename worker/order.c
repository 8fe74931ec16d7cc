/* See order.h. The time is quadratic in the number of prompts that end in one step, which is small in one chunk. */
#include "worker/order.h"

#include <stddef.h>

#include "kernels/params.h"

enum { PAGE = SL_PAGE_TOKENS };

/* A step that is being filled. */
typedef struct step {
    const sl_order_limit *limit;
    int32_t used; /* tokens */
    double used_ns;
    int32_t ended; /* prompts that end in it */
} step;

/* The number of tokens of a prompt that fit, if the step may hold `tokens` and take `ns` after this. */
static int32_t room(const step *s, const sl_order_turn *t, int32_t tokens, double ns)
{
    int32_t left = tokens > s->used ? tokens - s->used : 0;
    if (s->limit->ns <= 0 || left * t->token_ns <= ns - s->used_ns)
        return left;
    return ns > s->used_ns ? (int32_t)((ns - s->used_ns) / t->token_ns) : 0;
}

/* What a prompt gets: all that it still needs, if it has room for that, or else whole units or pages, or a part of one page. */
static int32_t share_of(const step *s, const sl_order_turn *t, int32_t room)
{
    const int32_t whole = s->limit->unit > 0 ? s->limit->unit : room > PAGE ? PAGE : 1;
    return t->left <= room ? t->left : room - room % whole;
}

static void give(step *s, sl_order_turn *t, int32_t room)
{
    t->take = share_of(s, t, room);
    s->used += t->take;
    s->used_ns += t->take * t->token_ns;
    s->ended += t->take == t->left;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static sl_order_turn *shortest(sl_order_turn *t, int32_t n)
{
    sl_order_turn *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        if (!t[i].take && (!best || t[i].left < best->left))
            best = &t[i];
    }
    return best;
}

static void count_passed(sl_order_turn *t, int32_t n)
{
    int64_t younger = 0;
    for (int32_t i = n - 1; i >= 0; i--) {
        if (!t[i].take)
            t[i].passed += younger;
        younger += t[i].take;
    }
}

/* What a step computes of a prompt in any case, where it has room for `tokens` tokens. */
static int32_t least(const step *s, int32_t tokens)
{
    const sl_order_limit *l = s->limit;
    return smaller(l->min_tokens > l->unit ? l->min_tokens : l->unit, tokens);
}

/* The aged prompts, the oldest first, up to half a step. */
static void give_aged(step *s, sl_order_turn *t, int32_t n)
{
    const sl_order_limit *l = s->limit;
    int32_t half = (l->tokens + 1) / 2;
    for (int32_t i = 0; i < n && s->used < half; i++) {
        if (t[i].passed < (l->aged_tokens ? l->aged_tokens : (int64_t)SL_ORDER_PASSED_CHUNKS * l->tokens))
            continue;
        int32_t fits = room(s, &t[i], half, l->ns / 2);
        give(s, &t[i], s->used ? fits : larger(fits, least(s, half)));
    }
}

/* The shortest prompts: what the aged ones left, which is at least half of the step's time. */
static void give_shortest(step *s, sl_order_turn *t, int32_t n)
{
    const sl_order_limit *l = s->limit;
    double ns = s->used_ns > l->ns / 2 ? s->used_ns + l->ns / 2 : l->ns;
    bool first = true;
    for (sl_order_turn *x; s->used < l->tokens && (x = shortest(t, n)); first = false) {
        int32_t fits = room(s, x, l->tokens, ns);
        if (first)
            fits = larger(fits, least(s, l->tokens - s->used));
        if (share_of(s, x, fits) < 1 || (x->left > fits && s->ended))
            break;
        give(s, x, fits);
    }
}

void sl_order_bound_next(sl_order_bound *b, bool short_prompt, sl_order_limit *limit)
{
    if (short_prompt)
        b->steps = SL_ORDER_SHORT_STEPS;
    else if (b->steps > 0)
        b->steps--;
    limit->ns = b->steps ? b->short_ns : b->ns;
    limit->defer_aged = b->deferred = short_prompt && !b->deferred;
}

sl_order_steps sl_order_steps_for(int32_t max_step_ms, int32_t chunk_tokens, bool host)
{
    sl_order_steps s = {.max_ms = max_step_ms, .short_ms = max_step_ms, .min_tokens = host ? 2 : 64};
    if (max_step_ms < 0) {
        s.max_ms = host ? 10 : 200;
        s.short_ms = host ? 10 : 100;
    }
    s.min_tokens = smaller(s.min_tokens, chunk_tokens);
    return s;
}

int32_t sl_order_prompts(sl_order_turn *t, int32_t n, const sl_order_limit *limit)
{
    step s = {.limit = limit};
    for (int32_t i = 0; i < n; i++)
        t[i].take = 0;
    if (!limit->defer_aged)
        give_aged(&s, t, n);
    give_shortest(&s, t, n);
    sl_order_turn *more = shortest(t, n);
    if (more && s.ended)
        give(&s, more, room(&s, more, (limit->tokens + 1) / 2, limit->ns / 2));
    count_passed(t, n);
    return s.used;
}
