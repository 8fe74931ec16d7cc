/* See chunk.h. */
#include "worker/chunk.h"

static const double FASTER = 1.02;

int32_t sl_chunk_most(int32_t chunk_tokens, bool host, int32_t group_ranks)
{
    if (chunk_tokens)
        return chunk_tokens;
    return host || group_ranks > 1 ? SL_CHUNK_USUAL : SL_CHUNK_MOST;
}

static bool is_quiet(const sl_chunk *c)
{
    return c->quiet >= SL_CHUNK_QUIET_STEPS;
}

static void try_double(sl_chunk *c)
{
    c->trying = 2 * c->size <= c->most;
    if (c->trying)
        c->size *= 2;
}

void sl_chunk_next(sl_chunk *c, bool waits, sl_order_limit *limit)
{
    limit->tokens = c->most;
    if (!c->automatic)
        return;
    if (!c->size)
        c->size = c->most < SL_CHUNK_USUAL ? c->most : SL_CHUNK_USUAL;
    c->quiet = waits ? 0 : c->quiet + !is_quiet(c);
    if (!is_quiet(c)) {
        c->speed = 0; /* the next measurement has no neighbour */
        if (c->trying)
            c->size /= 2;
        c->trying = false;
        return;
    }
    limit->tokens = c->size;
    limit->ns *= SL_CHUNK_QUIET_TIMES;
}

void sl_chunk_measured(sl_chunk *c, int32_t tokens, double ns)
{
    if (!c->automatic || !is_quiet(c) || tokens != c->size || ns <= 0)
        return; /* the end of a prompt, or a step that its time has cut, says nothing about this size */
    double speed = tokens / ns, before = c->speed;
    c->speed = speed;
    if (c->trying && speed < FASTER * before) {
        c->size /= 2;
        c->trying = false;
        c->speed = 0;
        c->hold = SL_CHUNK_HOLD;
    } else if (c->trying || --c->hold <= 0) {
        try_double(c);
    }
}
