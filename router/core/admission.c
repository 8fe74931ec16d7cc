/*
 * Decides which calls are admitted: it checks the spec against the model, the limits, and the capacity of the cluster.
 * group.c decides whether the queue has room now. Rates, budgets and shares of clients belong here; they are asked as soon as
 * something is known of a call: before its body is read, and before its text is tokenized.
 */
#include "kvstore/page_key.h"
#include "router/core/core_impl.h"

enum {
    MAX_REQUESTS = 1024,
    MAX_N = 128,
    /* Bytes of a body for which no account is charged a token before they are counted: more than any token has. */
    LONGEST_TOKEN = 1024
};

static int32_t vocabulary(const sl_router *r)
{
    return r->cluster.vocab ? (int32_t)r->cluster.vocab : sl_tokenizer_vocab_size(r->model.tok);
}

static sl_status check_length(const sl_router *r, const sl_request_spec *s, size_t n, sl_err *err)
{
    int32_t context = r->cluster.max_context;
    if (n >= (size_t)context)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "prompt: this model's maximum context length is %d tokens, and the prompt has %zu",
                       context, n);
    if (s->has_max_tokens && n + (size_t)s->sampling.max_tokens > (size_t)context)
        return sl_fail(
            err, SL_ERR_TOO_LARGE,
            "max_tokens: this model's maximum context length is %d tokens, and you asked for %zu of the prompt "
            "and %d of the answer",
            context, n, s->sampling.max_tokens);
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && sl_role_does(w->role, SL_ROLE_DECODE) && w->state == SL_MEMBER_READY &&
            (uint64_t)w->total_pages * SL_KEY_PAGE_TOKENS > n)
            return SL_OK;
    }
    if (sl_members_count(r, SL_ROLE_DECODE))
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "prompt: %zu tokens do not fit the host store of any decode worker", n);
    return SL_OK;
}

static sl_status check_prompt(const sl_router *r, const sl_request_spec *s, const sl_prompt *p, sl_err *err)
{
    if (!p->n)
        return sl_fail(err, SL_ERR_INVALID, "prompt: is empty");
    int32_t vocab = vocabulary(r);
    for (size_t i = 0; i < p->n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= vocab)
            return sl_fail(err, SL_ERR_INVALID, "prompt: token id %d at %zu is outside the vocabulary of %d",
                           p->ids[i], i, vocab);
    }
    return check_length(r, s, p->n, err);
}

sl_status sl_router_admission_check(const sl_router *r, const sl_request_spec *s, sl_err *err)
{
    if (r->life.draining)
        return sl_fail(err, SL_ERR_PEER, "the server is shutting down");
    if (r->cluster.max_context <= 0)
        return sl_fail(err, SL_ERR_PEER, "no worker has joined yet");
    if (s->n < 1 || s->n > MAX_N || !s->n_prompts || s->n_prompts * s->n > MAX_REQUESTS)
        return sl_fail(err, SL_ERR_INVALID, "n: must be 1..%d, and at most %d in all", MAX_N, MAX_REQUESTS);
    SL_TRY(sl_sampling_validate(&s->sampling, vocabulary(r), err));
    for (size_t i = 0; i < s->n_prompts; i++)
        SL_TRY(check_prompt(r, s, &s->prompts[i], err));
    return SL_OK;
}

/* ---- before the prompts are known ---- */

size_t sl_call_max_tokens(const sl_router *r)
{
    return r->cluster.max_context > 0 ? (size_t)r->cluster.max_context : 0;
}

static void count_refused(sl_router *r, const sl_tenant *t)
{
    if (t)
        sl_counter_add(
            sl_metrics_counter(r->stats.m, "sluice_tenant_calls_total", SL_LABELS(t->name, "refused")), 1);
}

/* No token stands for more bytes than the longest one; the body has more bytes than its text. */
static sl_status may_begin(sl_router *r, sl_lane *l, size_t bytes, bool take, uint32_t *retry_s, sl_err *err)
{
    const sl_tenant *t = sl_tenants_find(&r->tenants, l->client);
    *retry_s = 0;
    sl_status st = sl_queue_check(r, l, 1, err);
    if (st == SL_ERR_EXHAUSTED)
        *retry_s = sl_cluster_retry_after_s(r);
    if (!st && t)
        st = sl_account_begin(&l->account, t, bytes / LONGEST_TOKEN, l->active + l->reading, take,
                              sl_now_ns(), retry_s, err);
    if (st)
        count_refused(r, t);
    return st;
}

sl_status sl_call_check(sl_router *r, const char *client, uint32_t *retry_s, sl_err *err)
{
    sl_lane *l = sl_queue_lane(r, client, 0);
    return l ? may_begin(r, l, 0, false, retry_s, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

sl_status sl_call_begin(sl_router *r, const char *client, size_t bytes, uint32_t *retry_s, sl_err *err)
{
    sl_lane *l = sl_queue_lane(r, client, 0);
    if (!l)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (r->life.draining)
        return sl_fail(err, SL_ERR_PEER, "the server is shutting down");
    SL_TRY(may_begin(r, l, bytes, true, retry_s, err));
    l->reading++;
    return SL_OK;
}

void sl_call_end(sl_router *r, const char *client, bool submits)
{
    sl_lane *l = sl_queue_lane(r, client, 0);
    const sl_tenant *t = sl_tenants_find(&r->tenants, client);
    if (!l || !l->reading)
        return;
    l->reading--;
    if (t && submits)
        sl_account_give_back(&l->account, t);
}
