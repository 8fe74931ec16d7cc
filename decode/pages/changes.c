/* See changes.h. */
#include "decode/pages/changes.h"

#include <stdlib.h>

#include "base/log.h"

/* Pages in one KV_EVENTS: 144 KiB, far below the limits of the transport and of a gRPC client. */
enum { BATCH_PAGES = 512 };

struct sl_changes {
    const sl_pages_env *e;
    sl_sessions *sessions;
    sl_wr stored, removed, tokens; /* not told yet; encoded as in sl_msg_kv_events */
    bool cleared;
    uint32_t only; /* the session that is told */
};

sl_changes *sl_changes_new(const sl_pages_env *e, sl_sessions *sessions)
{
    sl_changes *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->e = e;
    c->sessions = sessions;
    sl_wr_init(&c->stored);
    sl_wr_init(&c->removed);
    sl_wr_init(&c->tokens);
    return c;
}

void sl_changes_free(sl_changes *c)
{
    if (!c)
        return;
    sl_wr_free(&c->stored);
    sl_wr_free(&c->removed);
    sl_wr_free(&c->tokens);
    free(c);
}

static void write_key(sl_wr *w, sl_key k)
{
    sl_wr_u64(w, k.lo);
    sl_wr_u64(w, k.hi);
}

static void stored(sl_changes *c, const sl_store_page *p)
{
    sl_key none = {0, 0};
    if (c->removed.len || c->stored.len >= BATCH_PAGES * 32)
        sl_changes_tell(c); /* a receiver applies the removals of a message first */
    write_key(&c->stored, sl_key_eq(p->prev, p->seed) ? none : p->prev);
    write_key(&c->stored, p->key);
    for (int i = 0; i < SL_PAGE_TOKENS; i++)
        sl_wr_i32(&c->tokens, p->tokens[i]);
}

void sl_changes_event(sl_changes *c, sl_store_event ev, const sl_store_page *page)
{
    if (!sl_sessions_any(c->sessions))
        return; /* a new session begins with a report of the whole tree */
    switch (ev) {
    case SL_STORE_STORED:
        stored(c, page);
        break;
    case SL_STORE_REMOVED:
        if (c->stored.len || c->removed.len >= BATCH_PAGES * 16)
            sl_changes_tell(c);
        write_key(&c->removed, page->key);
        break;
    case SL_STORE_CLEARED:
        c->stored.len = c->removed.len = c->tokens.len = 0;
        c->cleared = true;
        break;
    }
}

void sl_changes_tell(sl_changes *c)
{
    sl_wr *s = &c->stored, *r = &c->removed, *t = &c->tokens;
    bool lost = s->bad || r->bad || t->bad;
    if (!c->cleared && !s->len && !r->len && !lost)
        return;
    const sl_msg_kv_events m = {.stored = {s->data, s->len},
                                .removed = {r->data, r->len},
                                .tokens = {t->data, t->len},
                                .cleared = c->cleared};
    sl_sessions_tell(c->sessions, c->only, &m, lost);
    s->len = r->len = t->len = 0;
    s->bad = r->bad = t->bad = c->cleared = false;
}

static void walked(void *ctx, sl_store_event ev, const sl_store_page *page)
{
    sl_changes_event(ctx, ev, page);
}

void sl_changes_resync(sl_changes *c, uint32_t session)
{
    sl_changes_tell(c); /* what the others have not been told yet is in the tree already */
    c->only = session;
    c->cleared = true;
    if (sl_store_walk(c->e->store, walked, c) != SL_OK)
        sl_log(SL_LOG_WARN, "decode", "kv_events_lost",
               "reason=\"out of memory for the list of cached pages\"");
    sl_changes_tell(c);
    c->only = SL_SESSIONS_ALL;
}

void sl_changes_forget(sl_changes *c)
{
    c->stored.len = c->removed.len = c->tokens.len = 0;
    c->cleared = false;
}
