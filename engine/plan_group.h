/*
 * The memory plan of one rank of a group (collectives/comm.h): routed experts are divided among the ranks, everything else
 * is replicated, and the exchanges need buffers. Every rank has its own requests; ranks of one host share its memory.
 * What is planned is the rank with the most experts. Pure functions, any thread.
 */
#ifndef SL_ENGINE_PLAN_GROUP_H
#define SL_ENGINE_PLAN_GROUP_H

#include "base/strbuf.h"
#include "engine/plan.h"

/*
 * The plan of the rank with the most experts. Sets the outputs of g, and group, weight_bytes and host_bytes of in; the
 * caller sets the rest of in. g must live as long as in. SL_ERR_INVALID: a number of ranks that cannot be; else as
 * sl_plan_make().
 */
sl_status sl_plan_group_make(sl_plan_group *g, sl_plan_in *in, sl_plan *out, sl_err *err);

/* What a hierarchical request of some context lacks; 0: nothing. */
typedef struct sl_plan_need {
    uint64_t device_bytes; /* more device memory on every rank */
    uint64_t host_bytes;   /* more memory on every host, so that each of its ranks has room for one request */
    int32_t ranks;         /* of the smallest larger group in which the request fits the device; 0: none */
} sl_plan_need;
/* row: of p->rows. */
sl_status sl_plan_group_need(const sl_plan_in *in, const sl_plan *p, const sl_plan_row *row,
                             sl_plan_need *out, sl_err *err);

/* Append the part of a plan that concerns the group: a table for people, and the members of a JSON object. */
void sl_plan_group_text(const sl_plan_in *in, const sl_plan *p, sl_strbuf *sb);
void sl_plan_group_json(const sl_plan_in *in, const sl_plan *p, sl_strbuf *sb);

#endif
