/*
 * Group: a worker that is one of several ranks which share the routed experts of a model (docs/groups.md). Every rank
 * is a worker of its own for the routers, with its own link, store and requests; its steps are steps of all ranks.
 *
 *     sl_wgroup_start()    rank 0 listens at the group's address, the other ranks connect to it and say what they are
 *     sl_wgroup_meet()     waits until all ranks are there and agree; then the weights are loaded
 *     sl_wgroup_attach()   the engine exists: from now on the group forms as soon as all ranks are ready
 *     loop of the engine thread: sl_wgroup_turn(), own steps with sl_wgroup_step(), else sl_wgroup_take_part()
 *     sl_wgroup_stop()
 *
 * Forming. Rank 0 founds the collectives (collectives/comm.h) when every rank is ready, sends the invitation over the
 * links and all ranks join. Each forming has a number. A forming ends when a rank dies, is silent on its link for
 * dead_after_ms, does not arrive at a collective for SL_ENGINE_PATIENCE times this time, leaves, or fails in a
 * step. Every rank then leaves the collectives, keeps process, weights and store, and says that it is ready again;
 * a rank that was lost is replaced by a process that joins with its number.
 *
 * Steps. While any rank has tokens, every rank takes part in the next step. When no rank has any, all ranks rest, and
 * the first one with work rings the others over the links.
 *
 * Threads. The links have a thread of their own, which this object owns. Every function is called by the engine thread,
 * except sl_wgroup_whole(), which any thread may call. Lifetime: stopped after the engine has been destroyed, and before
 * the backend.
 */
#ifndef SL_WORKER_GROUP_H
#define SL_WORKER_GROUP_H

#include "base/mailbox.h"
#include "worker/runner.h"
#include "worker/worker.h"

typedef struct sl_wgroup sl_wgroup;

enum { SL_WGROUP_BUSY = 1, SL_WGROUP_LEAVING = 2 }; /* sl_step_share.flags */

typedef struct sl_wgroup_opts {
    /* of the links between the ranks: transport, secret and times; the rest is filled in */
    sl_worker_opts link;
    const char *address;                      /* "host:port": rank 0 listens there */
    const char *name, *cluster_tag, *formats; /* see sl_msg_group_join; copied */
    const char *library, *device;             /* likewise; NULL: empty */
    sl_role role;
    int32_t group, rank, ranks;
    const sl_identity *id; /* see sl_msg_group_join; its geometry must outlive the group */
    /* rank 0: the fingerprint of the checkpoint, and the prints [ranks] that the ranks must have; copied */
    sl_key whole;
    const sl_key *prints;
    int32_t step_tokens; /* most tokens of a step */
    /* Of the host store that this rank will make, and what is available now (UINT64_MAX: unknown). */
    uint64_t host_bytes, host_free;
    /* For tests; NULL or 0: SL_VERSION, sl_comm_place(), and the host of `address`. */
    const char *build;
    uint64_t place;
    const char *sockets_at; /* where ranks on other hosts reach rank 0 for the collectives */
    sl_metrics *metrics;    /* or NULL */
    uint32_t meet_ms;       /* how long sl_wgroup_meet() waits */
} sl_wgroup_opts;

/* Starts the thread of the links. Errors: those of the transport (rank 0: the address is in use). */
sl_status sl_wgroup_start(const sl_wgroup_opts *opts, sl_wgroup **out, sl_err *err);
/*
 * Waits until all ranks have joined. SL_ERR_TIMEOUT names the ranks that are missing; SL_ERR_REFUSED: this rank differs
 * from rank 0, or its number is taken, with what and by whom; SL_ERR_CANCELLED: *stop was set (NULL: it is not looked
 * at).
 */
sl_status sl_wgroup_meet(sl_wgroup *g, const volatile int *stop, sl_err *err);
/* After sl_wgroup_meet(): the fingerprint of the checkpoint of all ranks, as rank 0 has it. */
sl_key sl_wgroup_fingerprint(sl_wgroup *g);
/* The runner's engine takes part from now on, and sl_runner_step() of this runner is a step of the group. Borrows both;
 * the group keeps a copy of the runner. */
void sl_wgroup_attach(sl_wgroup *g, sl_backend *be, sl_runner *r);
/* The mailbox of the engine thread, which gets a mail of kind SL_WMAIL_WAKE when there is news; NULL: none. */
void sl_wgroup_wake_at(sl_wgroup *g, sl_mailbox *inbox);
/* Leaves the forming, closes the links. NULL is allowed. */
void sl_wgroup_stop(sl_wgroup *g);

/*
 * One turn: enters a forming, or leaves one that is broken. A negative status: this rank can never be part of the group
 * again (refused by rank 0), or founding failed.
 */
sl_status sl_wgroup_turn(sl_wgroup *g, sl_err *err);
/* Whether the group is formed. */
bool sl_wgroup_whole(const sl_wgroup *g);
/* What this rank says in its next steps: SL_WGROUP_BUSY, SL_WGROUP_LEAVING. */
void sl_wgroup_say(sl_wgroup *g, uint32_t flags);
/* A step with items of this rank, as sl_engine_step(); rings the others if they rest. */
sl_status sl_wgroup_step(sl_wgroup *g, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                         sl_err *err);
/* Takes part in the step of the others if there is one, or if `ring` asks for one. True: some rank had tokens. */
bool sl_wgroup_take_part(sl_wgroup *g, bool ring);
/* What the other ranks said in the last step: a bit is set if any of them said it. */
uint32_t sl_wgroup_others(const sl_wgroup *g);

typedef struct sl_wgroup_counts {
    uint64_t formed, broken, steps, steps_idle; /* steps_idle: of steps, without tokens of this rank */
} sl_wgroup_counts;
void sl_wgroup_counts_get(const sl_wgroup *g, sl_wgroup_counts *out);

#endif
