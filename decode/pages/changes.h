/* Changes of the prefix tree, as the routers are told of them: KV_EVENTS with medium host. */
#ifndef SL_DECODE_PAGES_CHANGES_H
#define SL_DECODE_PAGES_CHANGES_H

#include "decode/pages/sessions.h"

typedef struct sl_changes sl_changes;

/* NULL: out of memory. */
sl_changes *sl_changes_new(const sl_pages_env *e, sl_sessions *sessions);
void sl_changes_free(sl_changes *c);
/* A change of the store. */
void sl_changes_event(sl_changes *c, sl_store_event ev, const sl_store_page *page);
/* Tells what was not told yet. */
void sl_changes_tell(sl_changes *c);
/* Tells the whole prefix tree to one session: it has begun, or its router has missed a change. */
void sl_changes_resync(sl_changes *c, uint32_t session);
/* No session is left: nothing is kept for later, because the next one begins with the whole tree. */
void sl_changes_forget(sl_changes *c);

#endif
