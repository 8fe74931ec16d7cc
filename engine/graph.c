/*
 * Decode steps as captured graphs; see engine.h. A step of a new shape first runs op by op, so that everything that
 * is created on first use exists, and is captured when its tokens were collected; later steps of that shape are one launch.
 * Nothing that changes from step to step is a parameter of an op: inputs are at fixed device addresses.
 */
#include <stdlib.h>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/blocks.h"

enum { DEFAULT_GRAPHS = 64, LEAST_CONTEXT = 1024, PATIENCE = 16 /* steps in a wider graph */ };

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

sl_status sl_graphs_init(sl_engine *e, sl_err *err)
{
    e->graphs = e->o.graphs == SL_GRAPHS_AUTO && (sl_backend_caps(e->be) & SL_BE_GRAPHS);
    if (e->graphs || e->o.graphs == SL_GRAPHS_PAD)
        e->decode_cap = least(least(e->o.max_step_tokens, e->o.max_seqs), e->max_logits);
    e->max_graphs = e->o.max_graphs > 0 ? e->o.max_graphs : DEFAULT_GRAPHS;
    e->graph = calloc((size_t)e->max_graphs, sizeof *e->graph);
    return e->graph ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
}

void sl_graphs_clear(sl_engine *e)
{
    for (int32_t i = 0; i < e->n_graphs; i++)
        sl_graph_destroy(e->graph[i].graph);
    e->n_graphs = 0;
    e->wants = (sl_graph_wants){0};
}

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

bool sl_graphs_together(const sl_engine *e)
{
    return e->group_tokens > 0 && e->group_tokens <= sl_graphs_pad(e->decode_cap, e->o.max_step_tokens);
}

int32_t sl_graphs_cap(const sl_engine *e, int32_t per)
{
    if (per == 1)
        return e->decode_cap;
    return least(least(e->o.max_step_tokens, e->max_logits) / per, e->decode_cap);
}

sl_step_shape sl_graphs_shape(const sl_engine *e, int32_t n, int32_t per, int32_t context, bool logits)
{
    bool together = e->comm && sl_graphs_together(e);
    return (sl_step_shape){.tokens = together ? least(e->group_tokens, e->decode_cap)
                                              : sl_graphs_pad(n, sl_graphs_cap(e, per)) * per,
                           .per = per,
                           .context = pad_context(context, e->o.max_context),
                           .logits = logits,
                           .group_tokens = e->comm ? e->group_tokens : 0};
}

static bool same_shape(const sl_step_shape *a, const sl_step_shape *b)
{
    return a->tokens == b->tokens && a->per == b->per && a->context == b->context && a->logits == b->logits &&
           a->group_tokens == b->group_tokens;
}

sl_graph *sl_graphs_find(sl_engine *e, const sl_step_shape *shape)
{
    for (int32_t i = 0; i < e->n_graphs; i++)
        if (same_shape(&e->graph[i].shape, shape)) {
            e->graph[i].used = ++e->clock;
            return e->graph[i].graph;
        }
    return NULL;
}

/* At most twice as wide: its padding costs less than running op by op. */
static const sl_step_graph *wider(const sl_engine *e, const sl_step_shape *shape)
{
    const sl_step_graph *best = NULL;
    for (int32_t i = 0; i < e->n_graphs; i++) {
        const sl_step_shape *s = &e->graph[i].shape;
        bool fits = s->per == shape->per && s->logits == shape->logits &&
                    s->group_tokens == shape->group_tokens && s->tokens >= shape->tokens &&
                    s->tokens <= 2 * shape->tokens && s->context >= shape->context &&
                    s->context <= 2 * shape->context;
        if (fits && (!best || s->tokens < best->shape.tokens ||
                     (s->tokens == best->shape.tokens && s->context < best->shape.context)))
            best = &e->graph[i];
    }
    return best;
}

void sl_graphs_choose(sl_engine *e, sl_step_shape *shape)
{
    sl_graph_wants *w = &e->wants;
    if (sl_graphs_find(e, shape))
        return;
    w->steps = same_shape(&w->seen, shape) ? w->steps + 1 : 1;
    w->seen = *shape;
    const sl_step_graph *g = w->steps <= PATIENCE ? wider(e, shape) : NULL;
    if (g)
        *shape = g->shape;
}

/* The place for a new graph: an unused one, or that of the least recently used graph. */
static sl_step_graph *take_place(sl_engine *e)
{
    sl_step_graph *oldest = &e->graph[0];
    if (e->n_graphs < e->max_graphs)
        return &e->graph[e->n_graphs++];
    for (int32_t i = 1; i < e->n_graphs; i++)
        if (e->graph[i].used < oldest->used)
            oldest = &e->graph[i];
    sl_graph_destroy(oldest->graph);
    return oldest;
}

sl_status sl_graphs_capture(sl_engine *e, const sl_step_shape *shape, sl_err *err)
{
    sl_graph *graph = NULL;
    SL_TRY(sl_be_capture_begin(e->be, err));
    sl_status st = sl_step_forward(e, shape->tokens, shape->logits ? shape->tokens : 0, err);
    sl_status end = sl_be_capture_end(e->be, &graph, st == SL_OK ? err : NULL);
    if (st != SL_OK || end != SL_OK) {
        sl_graph_destroy(graph);
        return st != SL_OK ? st : end;
    }
    *take_place(e) = (sl_step_graph){.shape = *shape, .graph = graph, .used = ++e->clock};
    e->stats.graph_captures++;
    return SL_OK;
}

void sl_engine_rows_free(sl_engine *e, bool on)
{
    sl_coord_rows_free(e->coord, on);
    if (e->blocks)
        sl_swapin_rows_free(e->blocks->swapin, on);
    sl_graphs_clear(e);
}
