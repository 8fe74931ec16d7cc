/* Graphs of decode steps before the first request, so that none waits for a capture; see sl_engine_capture() in engine.h. */
#include "engine/blocks.h"
#include "engine/flight.h"

typedef struct shape_walk {
    bool run; /* calls sl_step_warm() for each shape; otherwise they are counted */
    int32_t most, made, of;
    void (*done)(void *ctx, int32_t n, int32_t of);
    void *ctx;
} shape_walk;

static sl_step_shape shape_of(const sl_engine *e, int32_t n, int32_t per, int32_t context)
{
    return sl_graphs_shape(e->graphs, n, per, context, true, sl_agree_group_tokens(e->agree));
}

/* The shapes of up to `batch` sequences, `per` tokens for each, of one context. */
static sl_status each_batch(sl_engine *e, int32_t batch, int32_t per, int32_t context, shape_walk *w,
                            sl_err *err)
{
    const int32_t cap = sl_graphs_cap(e->graphs, per);
    for (int32_t b = batch < cap ? batch : cap; b >= 1 && w->made < w->most;) {
        const sl_step_shape s = shape_of(e, b, per, context);
        if (w->run)
            SL_TRY(sl_step_warm(e, sl_flights_spare(e), b, per, context, err));
        w->made++;
        if (w->run && w->done)
            w->done(w->ctx, w->made, w->of);
        while (b >= 1 && shape_of(e, b, per, context).tokens == s.tokens)
            b--;
    }
    return SL_OK;
}

/* All shapes up to the limits, at most w->most. */
static sl_status each_shape(sl_engine *e, int32_t batch, int32_t context, shape_walk *w, sl_err *err)
{
    for (int32_t c = 1; c <= context && w->made < w->most;) {
        for (int32_t per = 1; per <= e->item_tokens; per++)
            SL_TRY(each_batch(e, batch, per, c, w, err));
        c = shape_of(e, 1, 1, c).context + 1;
    }
    return SL_OK;
}

sl_status sl_engine_capture(sl_engine *e, int32_t max_batch, int32_t max_context,
                            void (*done)(void *ctx, int32_t n, int32_t of), void *ctx, sl_err *err)
{
    if (!sl_graphs_captures(e->graphs) || sl_graphs_cap(e->graphs, 1) < 1 ||
        sl_model_get_opts(e->model)->ranks > 1)
        return SL_OK;
    int32_t context = max_context < e->o.max_context ? max_context : e->o.max_context;
    shape_walk count = {.most = sl_graphs_most(e->graphs)};
    (void)each_shape(e, max_batch, context, &count, NULL);
    shape_walk walk = {
        .run = true, .most = sl_graphs_most(e->graphs), .of = count.made, .done = done, .ctx = ctx};
    return each_shape(e, max_batch, context, &walk, err);
}

void sl_engine_rows_free(sl_engine *e, bool on)
{
    sl_coord_rows_free(e->coord, on);
    if (e->blocks)
        sl_swapin_rows_free(e->blocks->swapin, on);
    sl_graphs_clear(e->graphs);
}
