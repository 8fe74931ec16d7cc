/*
 * Inside the state machine of a generation: what gen.c (its life) and gen_msg.c (what workers say) share.
 */
#ifndef SL_ROUTER_GEN_IMPL_H
#define SL_ROUTER_GEN_IMPL_H

#include "router/core/core_impl.h"

enum { BACKOFF_MIN_MS = 10, BACKOFF_MAX_MS = 500 };

/* Who still knows of an attempt that is left, and must hear ABORT. */
enum { TELL_PREFILL = 1, TELL_DECODE = 2 };

uint32_t sl_request_produced(const sl_request *g);
bool sl_request_over(const sl_request *g); /* FINISHED or FAILED */
/* All tokens are there and only the DONE is missing. */
bool sl_request_complete(const sl_request *g);
/* Ends the current attempt, if there is one. */
void sl_request_leave(sl_request *g, sl_status why, unsigned tell);
/* The attempt has been left: ends the generation. */
void sl_request_end(sl_request *g, sl_finish how, sl_status st, const char *reason);
void sl_request_finish(sl_request *g, sl_finish how);
/* The attempt has been left: back to the queue's front. */
void sl_request_requeue(sl_request *g, uint64_t now);
/* Leaves the attempt and starts another, or ends the generation when retries are used up. */
void sl_request_again(sl_request *g, sl_status st, const char *reason, unsigned tell);
/* Takes the request off the prefill worker's account (p may be NULL). */
void sl_request_settle_prefill(sl_request *g, sl_member *p);
uint32_t sl_request_remaining_ms(const sl_request *g, uint64_t now);
sl_blob sl_request_key_blob(const sl_request *g);

#endif
