/*
 * The parts of the step function that request.c and request_worker.c share. Each sl_step_* changes the request and
 * appends effects, and does nothing else.
 */
#ifndef SL_ROUTER_CORE_REQUEST_IMPL_H
#define SL_ROUTER_CORE_REQUEST_IMPL_H

#include "router/core/request.h"

enum { BACKOFF_MIN_MS = 10, BACKOFF_MAX_MS = 500 };

/* ---- request.c ---- */

/* Appends an effect of the current attempt. */
sl_effect *sl_step_add(sl_step *out, const sl_request *q, sl_effect_kind kind);
/* True if all tokens have arrived and only DONE is missing. */
bool sl_request_complete(const sl_request *q);
/* Ends the current attempt, if there is one. tell: the workers that must get ABORT. */
void sl_step_leave(sl_request *q, sl_status why, unsigned tell, sl_step *out);
/* The attempt has been left: the request ends. */
void sl_step_end(const sl_request_env *env, sl_request *q, sl_finish how, sl_status st, const char *reason,
                 sl_step *out);
/* The attempt of a complete stream has been left: the request ends, with the reason that its tokens give. */
void sl_step_finish_complete(const sl_request_env *env, sl_request *q, sl_step *out);
/* The attempt has been left: back to the front of the queue. */
void sl_step_requeue(sl_request *q, uint64_t now, sl_step *out);
/* Leaves the attempt and waits for another, or ends when the stream is complete or retries are used up. */
void sl_step_retry(const sl_request_env *env, sl_request *q, sl_status st, const char *reason, unsigned tell,
                   uint64_t now, sl_step *out);

/* ---- request_worker.c: one for each event that a worker causes ---- */

typedef void sl_request_step_fn(const sl_request_env *env, sl_request *q, const sl_request_event *ev,
                                sl_step *out);

sl_request_step_fn sl_step_reserved, sl_step_no_room, sl_step_prefilled, sl_step_scores, sl_step_tokens,
    sl_step_done, sl_step_retracted, sl_step_failed;

/* ---- repeat.c ---- */

/* The attempt was given back: the next one starts after the first `safe` produced tokens. */
void sl_repeat_from(sl_request *q, uint32_t safe);
/* Takes those of t[0..n), which continue the tokens of q, that were sent before; *taken: their number. False: one of
 * them differs. */
bool sl_repeat_take(const sl_request_env *env, sl_request *q, const sl_msg_token *t, size_t n, size_t *taken);

#endif
