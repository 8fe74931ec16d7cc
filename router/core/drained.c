/*
 * DRAINED between workers. An attempt may be left while its prefill worker writes into pages of the decode worker,
 * which keeps them until it knows that the writer has stopped. The writer tells the router, and the router tells the
 * decode worker. This file has the list of decode workers that the router must still tell.
 */
#include <stdlib.h>

#include "router/core/core_impl.h"

void sl_undrained_expect(sl_router *r, uint64_t rid, uint32_t attempt, uint32_t prefill, uint32_t decode)
{
    sl_undrained *u = calloc(1, sizeof *u);
    if (!u)
        return;
    *u = (sl_undrained){r->cluster.undrained, rid, attempt, prefill, decode};
    r->cluster.undrained = u;
}

void sl_undrained_relay(sl_member *w, uint64_t rid, uint32_t attempt)
{
    for (sl_undrained **p = &w->r->cluster.undrained; *p; p = &(*p)->next) {
        sl_undrained *u = *p;
        if (u->rid != rid || u->attempt != attempt || u->prefill != w->id)
            continue;
        sl_member *to = sl_member_find(w->r, u->decode);
        if (to) {
            sl_msg m = {.type = SL_MSG_DRAINED};
            m.id.rid = rid;
            m.id.attempt = attempt;
            sl_router_link_send(to, &m);
        }
        *p = u->next;
        free(u);
        return;
    }
}

void sl_undrained_forget(sl_router *r, uint32_t member)
{
    for (sl_undrained **p = &r->cluster.undrained; *p;) {
        sl_undrained *u = *p;
        if (u->prefill == member || u->decode == member) {
            *p = u->next;
            free(u);
        } else {
            p = &u->next;
        }
    }
}

void sl_undrained_free(sl_router *r)
{
    while (r->cluster.undrained) {
        sl_undrained *u = r->cluster.undrained;
        r->cluster.undrained = u->next;
        free(u);
    }
}
