/*
 * Tokens to text, once per generation and whatever the client speaks: streaming detokenizer, then stop
 * strings with hold-back. A token that ends the stream by its id (a stop id, or the end of sequence unless
 * ignore_eos) yields no text. The text of a stream is the same after a recovery, because only tokens that
 * were not seen before get here.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

sl_status sl_output_init(sl_request *g, const sl_request_spec *spec, sl_err *err)
{
    g->matched_token = -1;
    g->keep_special = spec->keep_special;
    g->no_text = spec->no_text && !spec->n_stops;
    if (!spec->n_stops)
        return SL_OK;
    sl_status st =
        sl_stop_create((const char *const *)spec->stops, spec->n_stops, spec->include_stop, &g->stop, err);
    for (size_t i = 0; i < spec->n_stops && !st; i++) {
        g->stop_names[i] = strdup(spec->stops[i]);
        g->n_stops++;
        if (!g->stop_names[i])
            st = SL_ERR_NO_MEMORY;
    }
    return st;
}

void sl_output_free(sl_request *g)
{
    sl_stop_destroy(g->stop);
    for (size_t i = 0; i < g->n_stops; i++)
        free(g->stop_names[i]);
}

static bool ends_stream(const sl_request *g, int32_t id)
{
    const sl_sampling *s = &g->sampling;
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    for (size_t i = 0; i < g->r->n_eos && !s->ignore_eos; i++) {
        if (g->r->eos[i] == id)
            return true;
    }
    return false;
}

static void emit(sl_request *g, const sl_msg_token *t, size_t n, const char *text, size_t len)
{
    if (g->ended || g->group->released)
        return;
    sl_output o = {.index = g->index,
                   .tokens = t,
                   .n_tokens = n,
                   .text = text,
                   .text_len = len,
                   .matched_token = -1,
                   .prompt_tokens = (uint32_t)g->n_prompt,
                   .completion_tokens = (uint32_t)(g->n_tokens - g->n_prompt),
                   .cached_tokens = g->cached_tokens};
    g->group->sink(g->group->arg, g->group, &o);
}

/* Appends what one token adds to the text; true when a stop string is complete. */
static bool add_text(sl_request *g, int32_t id)
{
    sl_router *r = g->r;
    sl_strbuf *out = &r->text;
    size_t bound = sl_detok_bound(r->tok);
    if (r->piece_cap < bound) {
        char *p = realloc(r->piece, bound);
        if (!p) {
            out->bad = true;
            return false;
        }
        r->piece = p;
        r->piece_cap = bound;
    }
    size_t n = sl_detok_push(&g->detok, r->tok, id, !g->keep_special, r->piece);
    if (!g->stop) {
        sl_sb_append(out, r->piece, n);
        return false;
    }
    const char *ok;
    size_t n_ok;
    int hit = sl_stop_feed(g->stop, r->piece, n, &ok, &n_ok);
    if (hit == SL_STOP_OOM) {
        out->bad = true;
        return false;
    }
    sl_sb_append(out, ok, n_ok);
    if (hit >= 0)
        g->matched_stop = g->stop_names[hit];
    return hit >= 0;
}

bool sl_output_tokens(sl_request *g, const sl_msg_token *t, size_t n)
{
    sl_router *r = g->r;
    r->text.len = 0;
    bool hit = false;
    size_t used = 0;
    while (used < n && !hit && g->matched_token < 0) {
        int32_t id = t[used++].id;
        if (ends_stream(g, id))
            g->matched_token = id;
        else if (!g->no_text)
            hit = add_text(g, id);
    }
    g->n_tokens -= n - used; /* tokens behind a stop do not count */
    if (r->text.bad) {
        sl_sb_free(&r->text);
        sl_request_fail(g, SL_ERR_NO_MEMORY, "out of memory");
        return false;
    }
    emit(g, t, used, r->text.data, r->text.len);
    return hit;
}

void sl_output_end(sl_request *g, sl_finish finish, sl_status st, const char *error)
{
    if (g->ended)
        return;
    sl_router *r = g->r;
    r->text.len = 0;
    if (!st && !g->no_text && !g->matched_stop) {
        char tail[4];
        size_t n = sl_detok_flush(&g->detok, tail);
        const char *held = tail;
        if (g->stop) {
            const char *ok;
            size_t n_ok;
            if (sl_stop_feed(g->stop, tail, n, &ok, &n_ok) == -1) {
                sl_sb_append(&r->text, ok, n_ok);
                sl_stop_finish(g->stop, &held, &n);
            }
        }
        sl_sb_append(&r->text, held, n);
    }
    g->ended = true;
    g->group->unfinished--;
    if (g->group->released)
        return;
    sl_output o = {.index = g->index,
                   .text = r->text.bad ? NULL : r->text.data,
                   .text_len = r->text.bad ? 0 : r->text.len,
                   .finished = true,
                   .finish = finish,
                   .status = st,
                   .error = error,
                   .matched_token = g->matched_stop ? -1 : g->matched_token,
                   .matched_stop = g->matched_stop,
                   .prompt_tokens = (uint32_t)g->n_prompt,
                   .completion_tokens = (uint32_t)(g->n_tokens - g->n_prompt),
                   .cached_tokens = g->cached_tokens};
    g->group->sink(g->group->arg, g->group, &o);
}
