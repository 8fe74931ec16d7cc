/*
 * Groups: one client call and its generations. Checks a request against the model and the limits, makes the
 * generations, and frees them when their owner has let go. With several generations of one prompt, the first
 * runs ahead; the others are held until its prompt is in the cache, so that the prompt is computed once.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/core_impl.h"

enum { MAX_GENS = 1024 };

void sl_request_spec_init(sl_request_spec *s)
{
    memset(s, 0, sizeof *s);
    s->n = 1;
    s->api = "generate";
    sl_sampling_default(&s->sampling);
}

void sl_request_spec_free(sl_request_spec *s)
{
    for (size_t i = 0; i < s->n_prompts; i++)
        free(s->prompts[i].ids);
    free(s->prompts);
    for (size_t i = 0; i < s->n_stops; i++)
        free(s->stops[i]);
    sl_sampling_free(&s->sampling);
    sl_request_spec_init(s);
}

static void gen_free(sl_request *g)
{
    if (!g)
        return;
    sl_output_free(g);
    sl_sampling_free(&g->sampling);
    sl_wr_free(&g->sampling_wire);
    free(g->tokens);
    free(g->keys);
    free(g);
}

static void group_free(sl_group *grp)
{
    for (uint32_t i = 0; i < grp->n_gens; i++)
        gen_free(grp->gens[i]);
    free(grp->gens);
    free(grp);
}

static sl_status check_prompt(sl_router *r, const sl_request_spec *s, const sl_prompt *p, sl_err *err)
{
    if (!p->n)
        return sl_fail(err, SL_ERR_INVALID, "prompt: is empty");
    int32_t vocab = r->cluster_vocab ? (int32_t)r->cluster_vocab : sl_tokenizer_vocab_size(r->tok);
    for (size_t i = 0; i < p->n; i++) {
        if (p->ids[i] < 0 || p->ids[i] >= vocab)
            return sl_fail(err, SL_ERR_INVALID, "prompt: token id %d at %zu is outside the vocabulary of %d",
                           p->ids[i], i, vocab);
    }
    if (p->n >= (size_t)r->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "prompt: has %zu tokens, which leaves no room in the context of %d", p->n,
                       r->max_context);
    if (s->has_max_tokens && p->n + (size_t)s->sampling.max_tokens > (size_t)r->max_context)
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "max_tokens: %zu prompt tokens and %d output tokens exceed the context of %d", p->n,
                       s->sampling.max_tokens, r->max_context);
    for (const sl_member *w = r->workers; w; w = w->next) {
        if (w->id && w->role == SL_ROLE_DECODE && w->state == SL_MEMBER_READY &&
            (uint64_t)w->total_pages * SL_KEY_PAGE_TOKENS > p->n)
            return SL_OK;
    }
    if (sl_members_count(r, SL_ROLE_DECODE))
        return sl_fail(err, SL_ERR_TOO_LARGE,
                       "prompt: %zu tokens do not fit the host store of any decode worker", p->n);
    return SL_OK;
}

static sl_status check_spec(sl_router *r, sl_request_spec *s, sl_err *err)
{
    if (r->draining)
        return sl_fail(err, SL_ERR_PEER, "the server is shutting down");
    if (r->max_context <= 0)
        return sl_fail(err, SL_ERR_PEER, "no worker has joined yet");
    if (s->n < 1 || s->n > 128 || !s->n_prompts || s->n_prompts * s->n > MAX_GENS)
        return sl_fail(err, SL_ERR_INVALID, "n: must be 1..128, and at most %d in all", MAX_GENS);
    int32_t vocab = r->cluster_vocab ? (int32_t)r->cluster_vocab : sl_tokenizer_vocab_size(r->tok);
    sl_status st = sl_sampling_validate(&s->sampling, vocab, err);
    for (size_t i = 0; i < s->n_prompts && !st; i++)
        st = check_prompt(r, s, &s->prompts[i], err);
    return st;
}

static int32_t output_limit(const sl_router *r, const sl_request_spec *s, size_t n_prompt)
{
    int32_t left = r->max_context - (int32_t)n_prompt;
    if (s->has_max_tokens)
        return s->sampling.max_tokens;
    int32_t def = r->o.max_output_tokens_default;
    return def > 0 && def < left ? def : left;
}

static sl_status make_gen(sl_router *r, sl_group *grp, const sl_request_spec *s, uint32_t index, sl_err *err)
{
    const sl_prompt *p = &s->prompts[index / s->n];
    sl_request *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    grp->gens[index] = g;
    grp->n_gens++;
    g->r = r;
    g->group = grp;
    g->index = index;
    sl_wr_init(&g->sampling_wire);
    sl_sampling_default(&g->sampling);
    sl_status st = sl_output_init(g, s, err);
    if (!st)
        st = sl_sampling_copy(&s->sampling, &g->sampling);
    g->cap = p->n + 64;
    g->tokens = malloc(g->cap * sizeof *g->tokens);
    if (st || !g->tokens)
        return st ? st : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    memcpy(g->tokens, p->ids, p->n * sizeof *p->ids);
    g->n_prompt = g->n_tokens = p->n;
    g->sampling.max_tokens = output_limit(r, s, p->n);
    if (g->sampling.min_tokens > g->sampling.max_tokens)
        g->sampling.min_tokens = g->sampling.max_tokens;
    uint32_t choice = index % s->n;
    if (!s->has_seed)
        g->sampling.seed = sl_random_u64();
    else if (choice) /* choices of one seed differ, reproducibly */
        g->sampling.seed = s->sampling.seed + 0x9e3779b97f4a7c15ull * choice;
    sl_sampling_write(&g->sampling_wire, &g->sampling);
    if (g->sampling_wire.bad)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    g->held = choice > 0;
    g->rid = ++r->next_rid;
    g->start_ns = g->stage_ns = grp->start_ns;
    uint32_t ms =
        s->timeout_ms && s->timeout_ms < r->o.request_timeout_ms ? s->timeout_ms : r->o.request_timeout_ms;
    g->deadline_ns = g->start_ns + ms * SL_MS;
    return SL_OK;
}

static void link_group(sl_router *r, sl_group *grp)
{
    grp->next = r->groups;
    if (grp->next)
        grp->next->prev = grp;
    r->groups = grp;
    grp->unfinished = grp->n_gens;
    for (uint32_t i = 0; i < grp->n_gens; i++) {
        sl_request *g = grp->gens[i];
        sl_request **b = &r->bucket[g->rid % SL_REQUEST_BUCKETS];
        g->hash_next = *b;
        *b = g;
        r->active++;
        sl_queue_push(g, false);
        sl_counter_add(r->stats.prompt_tokens, g->n_prompt);
    }
}

sl_status sl_group_submit(sl_router *r, sl_request_spec *s, sl_output_sink *sink, void *arg, sl_group **out,
                          sl_err *err)
{
    sl_status st = check_spec(r, s, err);
    if (st)
        return st;
    sl_group *grp = calloc(1, sizeof *grp);
    uint32_t n = (uint32_t)(s->n_prompts * s->n);
    if (grp)
        grp->gens = calloc(n, sizeof(sl_request *));
    if (!grp || !grp->gens) {
        free(grp);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    grp->r = r;
    grp->sink = sink;
    grp->arg = arg;
    grp->api = s->api;
    grp->n_per_prompt = s->n;
    grp->start_ns = s->arrival_ns ? s->arrival_ns : sl_now_ns();
    memcpy(grp->id, s->id, sizeof grp->id);
    for (uint32_t i = 0; i < n && !st; i++)
        st = make_gen(r, grp, s, i, err);
    if (st) {
        group_free(grp);
        return st;
    }
    link_group(r, grp);
    sl_place_all(r);
    if (r->queued > r->o.max_queue &&
        grp->gens[0]->in_queue) { /* no room now, and enough are waiting already */
        grp->released = true;     /* before failing: its sink must not be called */
        for (uint32_t i = 0; i < n; i++)
            sl_request_fail(grp->gens[i], SL_ERR_EXHAUSTED, "queue full");
        r->released++;
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "all workers are busy and %u requests are waiting (router.max_queue)", r->o.max_queue);
    }
    sl_log(SL_LOG_INFO, "router", "request_accepted",
           "rid=%016lx id=%s api=%s prompts=%zu n=%u tokens=%zu max_tokens=%d", grp->gens[0]->rid, grp->id,
           s->api, s->n_prompts, s->n, s->prompts[0].n, grp->gens[0]->sampling.max_tokens);
    sl_request_spec_free(s);
    *out = grp;
    return SL_OK;
}

void sl_group_leader_ready(sl_request *g)
{
    sl_group *grp = g->group;
    if (grp->n_per_prompt < 2 || g->index % grp->n_per_prompt || g->led)
        return;
    g->led = true;
    for (uint32_t i = 1; i < grp->n_per_prompt && g->index + i < grp->n_gens; i++) {
        sl_request *s = grp->gens[g->index + i];
        if (!s->held)
            continue;
        s->held = false;
        s->stage_ns = sl_now_ns();
        g->r->queued += s->in_queue;
    }
    g->r->place_again = true;
}

void sl_group_abort(sl_group *grp)
{
    for (uint32_t i = 0; i < grp->n_gens; i++)
        sl_request_cancel(grp->gens[i]);
}

void sl_group_release(sl_group *grp)
{
    if (!grp || grp->released)
        return;
    grp->released = true;
    grp->r->released++;
    sl_group_abort(grp);
    if (grp->r->place_again)
        sl_place_all(grp->r);
}

sl_group *sl_group_find(sl_router *r, const char *id)
{
    for (sl_group *g = r->groups; g; g = g->next) {
        if (!g->released && !strcmp(g->id, id))
            return g;
    }
    return NULL;
}

uint32_t sl_group_unfinished(const sl_group *g)
{
    return g->unfinished;
}

void sl_groups_sweep(sl_router *r)
{
    if (!r->released)
        return;
    for (sl_group *g = r->groups, *next; g; g = next) {
        next = g->next;
        if (!g->released)
            continue;
        if (g->prev)
            g->prev->next = g->next;
        else
            r->groups = g->next;
        if (g->next)
            g->next->prev = g->prev;
        group_free(g);
    }
    r->released = 0;
}

void sl_groups_free_all(sl_router *r)
{
    for (sl_group *g = r->groups; g; g = g->next)
        sl_group_release(g);
    sl_groups_sweep(r);
}
