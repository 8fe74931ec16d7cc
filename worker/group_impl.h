/*
 * A group's data, shared by its two halves: group.c (engine thread: collectives and steps) and, on the thread of the
 * links, group_link.c (who is there, who is lost) with group_door.c (rank 0: who may join). What both use is under the
 * lock; the engine half acts on it in its next turn.
 */
#ifndef SL_WORKER_GROUP_IMPL_H
#define SL_WORKER_GROUP_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "collectives/comm.h"
#include "worker/group.h"
#include "worker/group_count.h"
#include "worker/worker_impl.h"

enum { SL_WGROUP_MAIL_NEWS = 1, SL_WGROUP_MAIL_REFUSE }; /* kinds of mail to the thread of the links */

/* News of this rank, from its engine thread. */
typedef struct sl_wgroup_mail {
    sl_wmail mail;
    sl_msg_group msg; /* its invite points to the field below */
    sl_comm_invite invite;
} sl_wgroup_mail;

/* As in GROUP_JOIN. */
typedef struct sl_wgroup_memory {
    uint64_t bytes, free, space;
} sl_wgroup_memory;

/* Another rank, as the thread of the links knows it. Rank 0 has one for every rank, the others one for rank 0. */
typedef struct sl_wgroup_peer {
    sl_wep *ep; /* NULL: not connected */
    bool joined, welcomed, ready;
    uint64_t instance, heard_ns;
    uint32_t pid;
    char name[64], host[64], device[64];
    uint64_t place; /* as in GROUP_JOIN */
    sl_wgroup_memory memory;
} sl_wgroup_peer;

enum { SL_WGROUP_STRANGERS = 64 };

/* A connection to rank 0 over which no JOIN has come yet. */
typedef struct sl_wgroup_stranger {
    sl_wep *ep; /* NULL: this entry is unused */
    uint64_t until_ns;
} sl_wgroup_stranger;

struct sl_wgroup {
    sl_wgroup_opts o;
    char address[SL_TP_ADDRESS_MAX], host[SL_TP_ADDRESS_MAX];
    sl_msg_group_join join;           /* what this rank is */
    sl_key prints[SL_COMM_RANKS_MAX]; /* rank 0: what the fingerprints in JOIN must be */
    sl_msg_hello hello;               /* unused by links without routers */
    sl_worker *link;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    sl_mailbox *inbox;
    sl_comm *comm;           /* created and destroyed by the engine thread; the other one only aborts it */
    uint64_t forming;        /* the newest that this rank was asked to enter; 0: none */
    uint64_t entered;        /* of comm */
    bool met, ready;         /* all ranks were there; this rank is ready and in no forming */
    bool across;             /* rank 0, of the forming: ranks are on several hosts */
    sl_key checkpoint;       /* fingerprint: of rank 0, and of the others once they have met */
    bool found_due, invited; /* rank 0 is to found a forming; an invitation has come */
    bool broken;             /* `forming` has ended, why */
    char why[256];
    uint64_t ring; /* step of `forming` in which another rank wants this one to take part */
    sl_comm_invite invite;
    sl_status refused; /* SL_OK: not */
    char refusal[400];
    char missing[128];  /* rank 0: the ranks that are not there */
    int32_t open_links; /* rank 0 */

    /* engine thread */
    sl_backend *be;
    sl_runner runner;
    bool active; /* some rank had tokens in the last step: all take part in the next one */
    uint32_t flags;
    _Atomic bool whole;
    sl_group_count count;

    /* thread of the links */
    sl_wgroup_peer peers[SL_COMM_RANKS_MAX];
    sl_wgroup_stranger strangers[SL_WGROUP_STRANGERS]; /* rank 0 */
    struct sl_wgroup_clock *clock;                     /* group_link.c */
};

/* group_link.c */
sl_status sl_wgroup_link_start(sl_wgroup *g, sl_err *err);
/* To one rank; nothing happens when it is not connected. */
void sl_wgroup_send(sl_wep *ep, const sl_msg_group *news);
/* All ranks have been there, and have the checkpoint with this fingerprint. */
void sl_wgroup_met(sl_wgroup *g, sl_key whole);

/* group_door.c, rank 0 */
bool sl_wgroup_all_joined(const sl_wgroup *g);
void sl_wgroup_list_missing(sl_wgroup *g);
void sl_wgroup_on_join(sl_wgroup *g, sl_wep *ep, const sl_msg_group_join *j);
void sl_wgroup_refuse(sl_wep *ep, const char *why, bool retry);
void sl_wgroup_stranger_add(sl_wgroup *g, sl_wep *ep);
/* It has joined, was refused, or has been closed. */
void sl_wgroup_stranger_forget(sl_wgroup *g, const sl_wep *ep);
/* Closes those whose time is over. */
void sl_wgroup_strangers_end(sl_wgroup *g, uint64_t now);

/* group.c: any thread. The lock is held. */
void sl_wgroup_wake(sl_wgroup *g);

#endif
