/* See sessions.h. */
#include "decode/pages/sessions.h"

#include <stdlib.h>

struct sl_sessions {
    const sl_pages_env *e;
    struct {
        uint32_t id;
        uint64_t sequence; /* of the last KV_EVENTS */
    } list[SL_WORKER_ROUTERS_MAX];
    int n;
};

sl_sessions *sl_sessions_new(const sl_pages_env *e)
{
    sl_sessions *s = calloc(1, sizeof *s);
    if (s)
        s->e = e;
    return s;
}

void sl_sessions_free(sl_sessions *s)
{
    free(s);
}

void sl_sessions_begin(sl_sessions *s, uint32_t session)
{
    SL_CHECK(s->n < SL_WORKER_ROUTERS_MAX, "%d sessions", s->n);
    s->list[s->n].id = session;
    s->list[s->n++].sequence = 0;
}

void sl_sessions_end(sl_sessions *s, uint32_t session)
{
    for (int i = 0; i < s->n; i++) {
        if (s->list[i].id == session)
            s->list[i--] = s->list[--s->n];
    }
}

bool sl_sessions_any(const sl_sessions *s)
{
    return s->n > 0;
}

void sl_sessions_tell(sl_sessions *s, uint32_t only, const sl_msg_kv_events *events, bool lost)
{
    sl_msg m = {.type = SL_MSG_KV_EVENTS};
    m.kv_events = *events;
    for (int i = 0; i < s->n; i++) {
        if (only != SL_SESSIONS_ALL && only != s->list[i].id)
            continue;
        m.kv_events.sequence = ++s->list[i].sequence;
        if (!lost && s->e->worker)
            sl_worker_tell_router(s->e->worker, s->list[i].id, &m);
    }
}
