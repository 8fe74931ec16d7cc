/* See graph.h. */
#include "engine/graph.h"

#include <stdlib.h>

enum { DEFAULT_GRAPHS = 64, LEAST_CONTEXT = 1024, PATIENCE = 16 /* steps in a wider graph */ };

typedef struct step_graph {
    sl_step_shape shape;
    sl_graph *graph;
    uint64_t used; /* value of the clock at its last use */
} step_graph;

struct sl_graphs {
    sl_graphs_opts o;
    int32_t cap;       /* most sequences of a decode step of one token */
    step_graph *graph; /* [o.max_graphs] */
    int32_t n;
    uint64_t clock;
    sl_step_shape seen; /* of the last step that wanted a graph and had none, and how many in a row did */
    int32_t steps;
    bool is_due;
    sl_step_shape due;
};

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

sl_status sl_graphs_create(const sl_graphs_opts *o, sl_graphs **out, sl_err *err)
{
    sl_graphs *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    g->o = *o;
    if (o->pad || o->capture)
        g->cap = least(least(o->max_tokens, o->max_seqs), o->max_logits);
    if (g->o.max_graphs <= 0)
        g->o.max_graphs = DEFAULT_GRAPHS;
    g->graph = calloc((size_t)g->o.max_graphs, sizeof *g->graph);
    if (!g->graph) {
        free(g);
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    }
    *out = g;
    return SL_OK;
}

void sl_graphs_destroy(sl_graphs *g)
{
    if (!g)
        return;
    sl_graphs_clear(g);
    free(g->graph);
    free(g);
}

/* ---- shapes ---- */

/* 1, 2, 4, 8, then multiples of 4 up to 32 and of 8 beyond. */
int32_t sl_graphs_pad(int32_t n, int32_t most)
{
    int32_t to = 1;
    if (n > 8)
        to = n > 32 ? (n + 7) / 8 * 8 : (n + 3) / 4 * 4;
    while (to < n)
        to *= 2;
    return least(to, most);
}

/* 1024, 1536, 2048, 3072, ... */
static int32_t pad_context(int32_t n, int32_t most)
{
    int64_t to = LEAST_CONTEXT;
    while (to < n)
        to = to + to / 2 >= n ? to + to / 2 : 2 * to;
    return to < most ? (int32_t)to : most;
}

int32_t sl_graphs_cap(const sl_graphs *g, int32_t per)
{
    if (per == 1)
        return g->cap;
    return least(least(g->o.max_tokens, g->o.max_logits) / per, g->cap);
}

bool sl_graphs_together(const sl_graphs *g, int32_t group_tokens)
{
    return group_tokens > 0 && group_tokens <= sl_graphs_pad(g->cap, g->o.max_tokens);
}

sl_step_shape sl_graphs_shape(const sl_graphs *g, int32_t n, int32_t per, int32_t context, bool logits,
                              int32_t group_tokens)
{
    return (sl_step_shape){.tokens = sl_graphs_together(g, group_tokens)
                                         ? least(group_tokens, g->cap)
                                         : sl_graphs_pad(n, sl_graphs_cap(g, per)) * per,
                           .per = per,
                           .context = pad_context(context, g->o.max_context),
                           .logits = logits,
                           .group_tokens = group_tokens};
}

static bool same_shape(const sl_step_shape *a, const sl_step_shape *b)
{
    return a->tokens == b->tokens && a->per == b->per && a->context == b->context && a->logits == b->logits &&
           a->group_tokens == b->group_tokens;
}

/* ---- graphs ---- */

bool sl_graphs_captures(const sl_graphs *g)
{
    return g->o.capture;
}

int32_t sl_graphs_most(const sl_graphs *g)
{
    return g->o.max_graphs;
}

void sl_graphs_give_up(sl_graphs *g)
{
    g->o.capture = false;
}

void sl_graphs_clear(sl_graphs *g)
{
    for (int32_t i = 0; i < g->n; i++)
        sl_graph_destroy(g->graph[i].graph);
    g->n = g->steps = 0;
    g->seen = (sl_step_shape){0};
    g->is_due = false;
}

sl_graph *sl_graphs_find(sl_graphs *g, const sl_step_shape *shape)
{
    for (int32_t i = 0; i < g->n; i++)
        if (same_shape(&g->graph[i].shape, shape)) {
            g->graph[i].used = ++g->clock;
            return g->graph[i].graph;
        }
    return NULL;
}

/* At most twice as wide: its padding costs less than running op by op. */
static const step_graph *wider(const sl_graphs *g, const sl_step_shape *shape)
{
    const step_graph *best = NULL;
    for (int32_t i = 0; i < g->n; i++) {
        const sl_step_shape *s = &g->graph[i].shape;
        bool fits = s->per == shape->per && s->logits == shape->logits &&
                    s->group_tokens == shape->group_tokens && s->tokens >= shape->tokens &&
                    s->tokens <= 2 * shape->tokens && s->context >= shape->context &&
                    s->context <= 2 * shape->context;
        if (fits && (!best || s->tokens < best->shape.tokens ||
                     (s->tokens == best->shape.tokens && s->context < best->shape.context)))
            best = &g->graph[i];
    }
    return best;
}

void sl_graphs_choose(sl_graphs *g, sl_step_shape *shape)
{
    if (sl_graphs_find(g, shape))
        return;
    g->steps = same_shape(&g->seen, shape) ? g->steps + 1 : 1;
    g->seen = *shape;
    const step_graph *w = g->steps <= PATIENCE ? wider(g, shape) : NULL;
    if (w)
        *shape = w->shape;
}

/* The place for a new graph: an unused one, or that of the least recently used graph. */
static step_graph *take_place(sl_graphs *g)
{
    step_graph *oldest = &g->graph[0];
    if (g->n < g->o.max_graphs)
        return &g->graph[g->n++];
    for (int32_t i = 1; i < g->n; i++)
        if (g->graph[i].used < oldest->used)
            oldest = &g->graph[i];
    sl_graph_destroy(oldest->graph);
    return oldest;
}

void sl_graphs_add(sl_graphs *g, const sl_step_shape *shape, sl_graph *graph)
{
    *take_place(g) = (step_graph){.shape = *shape, .graph = graph, .used = ++g->clock};
}

/* ---- what is to be captured ---- */

void sl_graphs_want(sl_graphs *g, const sl_step_shape *shape)
{
    g->is_due = true;
    g->due = *shape;
}

bool sl_graphs_is_due(const sl_graphs *g)
{
    return g->is_due;
}

bool sl_graphs_take_due(sl_graphs *g, sl_step_shape *shape)
{
    const bool due = g->is_due;
    g->is_due = false;
    *shape = g->due;
    return due;
}
