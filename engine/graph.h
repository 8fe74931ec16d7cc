/*
 * Shapes of decode steps, and the graphs that were captured of them; see sl_engine_opts.graphs. Only graph.c knows which shapes
 * have graphs and which are wanted; it enqueues nothing, and knows no engine.
 *
 * A step of a new shape first runs op by op, so that everything that is created on first use exists, and is captured when its tokens were
 * collected; later steps of that shape are one launch. Nothing that changes from step to step is a parameter of an op: inputs
 * are at fixed device addresses. Internal to the engine; threads: its own.
 */
#ifndef SL_ENGINE_GRAPH_H
#define SL_ENGINE_GRAPH_H

#include "kernels/backend.h"

/* This alone determines the shapes of a decode step's ops. */
typedef struct sl_step_shape {
    int32_t tokens, context; /* padded; 0 tokens: not a decode step, run as it is */
    int32_t per;             /* tokens for every sequence */
    bool logits;             /* of every token */
    int32_t group_tokens;    /* of the ranks of a group, which exchange rows; else 0 */
} sl_step_shape;

typedef struct sl_graphs sl_graphs;

typedef struct sl_graphs_opts {
    bool pad;           /* decode steps have padded shapes, else they are like others */
    bool capture;       /* they have, and are captured */
    int32_t max_graphs; /* 0: 64 */
    int32_t max_seqs, max_tokens, max_logits, max_context; /* of a step */
} sl_graphs_opts;

sl_status sl_graphs_create(const sl_graphs_opts *o, sl_graphs **out, sl_err *err);
void sl_graphs_destroy(sl_graphs *g); /* NULL: nothing */

/* ---- shapes ---- */

/* Padded number of tokens of a step of n tokens, at most `most`. */
int32_t sl_graphs_pad(int32_t n, int32_t most);
/* Most sequences of a decode step with `per` tokens for each; 0: there are no decode steps. */
int32_t sl_graphs_cap(const sl_graphs *g, int32_t per);
/* Whether no rank of a group, the largest of which has group_tokens (padded), has more tokens in this step than a decode step has. */
bool sl_graphs_together(const sl_graphs *g, int32_t group_tokens);
/* Shape of a step of n sequences, `per` tokens for each, of which the longest has `context` tokens after it. group_tokens: in a group
 * (else 0). There all ranks with decode steps take the padded size of the largest one: a step takes as long as its
 * slowest rank, and so there are not more shapes than without a group. */
sl_step_shape sl_graphs_shape(const sl_graphs *g, int32_t n, int32_t per, int32_t context, bool logits,
                              int32_t group_tokens);

/* ---- graphs ---- */

bool sl_graphs_captures(const sl_graphs *g);
/* Most graphs that are kept. */
int32_t sl_graphs_most(const sl_graphs *g);
/* Steps cannot be captured: from now on they run op by op. */
void sl_graphs_give_up(sl_graphs *g);
/* Forgets all graphs, and what is wanted. */
void sl_graphs_clear(sl_graphs *g);
/* Where the shape has no graph, takes that of a wider one, until a number of steps in a row have wanted this one, so
 * that capturing it pays: a batch whose size changes with each step would be captured in every size. */
void sl_graphs_choose(sl_graphs *g, sl_step_shape *shape);
/* The graph of a shape; NULL: not captured yet. */
sl_graph *sl_graphs_find(sl_graphs *g, const sl_step_shape *shape);
/* Takes over the graph of a shape that has none; beyond the most, the least recently used one goes. */
void sl_graphs_add(sl_graphs *g, const sl_step_shape *shape, sl_graph *graph);

/* A step of this shape has run op by op: it is to be captured when no step is in flight. */
void sl_graphs_want(sl_graphs *g, const sl_step_shape *shape);
bool sl_graphs_is_due(const sl_graphs *g);
/* That shape, which is not due any more; false: none is. */
bool sl_graphs_take_due(sl_graphs *g, sl_step_shape *shape);

#endif
