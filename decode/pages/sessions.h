/*
 * The sessions with routers, as far as they are told of pages: each counts its KV_EVENTS, so that a router sees when it has
 * missed one.
 */
#ifndef SL_DECODE_PAGES_SESSIONS_H
#define SL_DECODE_PAGES_SESSIONS_H

#include "decode/pages/env.h"

typedef struct sl_sessions sl_sessions;

enum { SL_SESSIONS_ALL = 0 };

/* NULL: out of memory. */
sl_sessions *sl_sessions_new(const sl_pages_env *e);
void sl_sessions_free(sl_sessions *s);
void sl_sessions_begin(sl_sessions *s, uint32_t session);
void sl_sessions_end(sl_sessions *s, uint32_t session);
bool sl_sessions_any(const sl_sessions *s);
/*
 * Sends events to one session, or to all, with the next number of each. lost: memory was exhausted for some of them; nothing is
 * sent then, but the number counts, so the router sees the gap.
 */
void sl_sessions_tell(sl_sessions *s, uint32_t only, const sl_msg_kv_events *events, bool lost);

#endif
