/* See agree.h. */
#include "engine/agree.h"

#include <stdlib.h>

#include "engine/graph.h"

struct sl_agree {
    sl_comm *comm;
    int32_t max_tokens;
    int32_t tokens; /* of the step; in a group the most of any rank, padded */
    uint32_t flags; /* what this rank says */
    sl_step_share
        shares[SL_COMM_RANKS_MAX]; /* the memory through which the ranks say it, this rank's first */
    uint64_t steps;                /* since the group was set */
};

sl_status sl_agree_create(sl_comm *comm, int32_t max_tokens, sl_agree **out, sl_err *err)
{
    sl_agree *a = *out = calloc(1, sizeof *a);
    if (!a)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    a->comm = comm, a->max_tokens = max_tokens;
    return SL_OK;
}

void sl_agree_destroy(sl_agree *a)
{
    free(a);
}

void sl_agree_set_comm(sl_agree *a, sl_comm *comm)
{
    a->comm = comm;
    a->steps = 0;
}

void sl_agree_set_flags(sl_agree *a, uint32_t flags)
{
    a->flags = flags;
}

sl_comm *sl_agree_comm(const sl_agree *a)
{
    return a->comm;
}

static int32_t padded(const sl_agree *a, int32_t tokens)
{
    return tokens > 0 ? sl_graphs_pad(tokens, a->max_tokens) : 0;
}

sl_status sl_agree_on_step(sl_agree *a, int32_t tokens, sl_err *err)
{
    a->tokens = tokens;
    if (!a->comm)
        return SL_OK;
    const int32_t ranks = sl_comm_ranks(a->comm);
    sl_step_share own = {tokens, a->flags};
    SL_TRY(sl_comm_agree(a->comm, &own, a->shares, sizeof own, err));
    for (int32_t r = 0; r < ranks; r++)
        a->tokens = a->shares[r].tokens > a->tokens ? a->shares[r].tokens : a->tokens;
    a->tokens = padded(a, a->tokens);
    a->steps++;
    return SL_OK;
}

sl_status sl_agree_on_pass(sl_agree *a, int32_t n, int32_t *most, sl_err *err)
{
    int32_t all[SL_COMM_RANKS_MAX];
    *most = n;
    if (!a->comm)
        return SL_OK;
    SL_TRY(sl_comm_agree(a->comm, &n, all, sizeof n, err));
    for (int32_t r = 0; r < sl_comm_ranks(a->comm); r++)
        *most = all[r] > *most ? all[r] : *most;
    a->tokens = padded(a, *most);
    return SL_OK;
}

int32_t sl_agree_tokens(const sl_agree *a)
{
    return a->tokens;
}

int32_t sl_agree_group_tokens(const sl_agree *a)
{
    return a->comm ? a->tokens : 0;
}

const sl_step_share *sl_agree_shares(const sl_agree *a, uint64_t *steps)
{
    *steps = a->steps;
    return a->shares;
}
