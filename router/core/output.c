/*
 * Turns tokens into text, in the same way for every protocol of clients: a streaming detokenizer, then stop strings
 * with hold-back. A token that ends the stream by its id (a stop id, or the end of sequence unless ignore_eos) yields
 * no text. The text of a stream is the same after a recovery, because only tokens that are new in the stream are passed
 * here.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/request.h"

sl_status sl_output_init(sl_request *q, const sl_request_spec *spec, sl_err *err)
{
    sl_request_text *t = &q->text;
    q->matched_token = -1;
    t->keep_special = spec->keep_special;
    t->none = spec->no_text && !spec->n_stops;
    if (!spec->n_stops)
        return SL_OK;
    SL_TRY(
        sl_stop_create((const char *const *)spec->stops, spec->n_stops, spec->include_stop, &t->stop, err));
    for (size_t i = 0; i < spec->n_stops; i++) {
        t->stop_names[i] = strdup(spec->stops[i]);
        if (!t->stop_names[i])
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        t->n_stops++;
    }
    return SL_OK;
}

void sl_output_free(sl_request *q)
{
    sl_stop_destroy(q->text.stop);
    for (size_t i = 0; i < q->text.n_stops; i++)
        free(q->text.stop_names[i]);
}

static bool ends_stream(const sl_served_model *model, const sl_sampling *s, int32_t id)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    for (size_t i = 0; i < model->n_eos && !s->ignore_eos; i++) {
        if (model->eos[i] == id)
            return true;
    }
    return false;
}

/* Appends the text of one token; true when a stop string is complete. */
static bool add_text(const sl_request_env *env, sl_request_text *t, int32_t id)
{
    sl_strbuf *out = env->text;
    size_t n = sl_detok_push(&t->detok, env->model->tok, id, !t->keep_special, env->piece);
    if (!t->stop) {
        sl_sb_append(out, env->piece, n);
        return false;
    }
    const char *ok;
    size_t n_ok;
    int hit = sl_stop_feed(t->stop, env->piece, n, &ok, &n_ok);
    if (hit == SL_STOP_OOM) {
        out->bad = true;
        return false;
    }
    sl_sb_append(out, ok, n_ok);
    if (hit >= 0)
        t->matched = t->stop_names[hit];
    return hit >= 0;
}

sl_status sl_output_tokens(const sl_request_env *env, sl_request *q, const sl_msg_token *t, size_t n,
                           size_t *used, bool *stopped)
{
    size_t k = 0;
    bool hit = false;
    while (k < n && !hit && q->matched_token < 0) {
        int32_t id = t[k++].id;
        if (ends_stream(env->model, &q->sampling, id))
            q->matched_token = id;
        else if (!q->text.none)
            hit = add_text(env, &q->text, id);
    }
    *used = k;
    *stopped = hit;
    return env->text->bad ? SL_ERR_NO_MEMORY : SL_OK;
}

void sl_output_flush(const sl_request_env *env, sl_request *q)
{
    sl_request_text *t = &q->text;
    if (t->none || t->matched)
        return;
    char tail[4];
    size_t n = sl_detok_flush(&t->detok, tail);
    const char *held = tail;
    if (t->stop) {
        const char *ok;
        size_t n_ok;
        if (sl_stop_feed(t->stop, tail, n, &ok, &n_ok) == -1) {
            sl_sb_append(env->text, ok, n_ok);
            sl_stop_finish(t->stop, &held, &n);
        }
    }
    sl_sb_append(env->text, held, n);
}
