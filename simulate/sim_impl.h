/*
 * The state of a simulation, one struct per owner, and the functions that the files of simulate/ call of each other:
 *
 *   cluster.c         the router, its endpoints, the clock, arrivals and outputs       sl_sim
 *   prefill_worker.c  prompts of one prefill worker                                    sl_sim_prefill
 *   decode_worker.c   requests (decode/core/), batch and steps of one decode worker     sl_sim_decode
 *   decode_prompts.c  prompts that a decode worker of role both computes
 *   decode_pages.c    its pages: the cascade, events of the store
 *   steps.c           steps of workers, and of groups of them that step together      sl_sim_group
 *   tier.c            storage tiers                                                    tier.h
 *   outcome.c         what is measured                                                 sl_sim_outcome
 *
 * Units: a simulated page has SL_KEY_PAGE_TOKENS tokens as everywhere in the product; one of them stands for `per_token`
 * tokens of the trace, so that a coarse simulation has fewer pages. Lengths are in simulated tokens except where a name ends
 * with _real.
 */
#ifndef SL_SIMULATE_SIM_IMPL_H
#define SL_SIMULATE_SIM_IMPL_H

#include "decode/core/admission.h"
#include "decode/core/effects.h"
#include "kvstore/cascade.h"
#include "kvstore/page_key.h"
#include "router/core/drive.h"
#include "simulate/events.h"
#include "simulate/simulate.h"
#include "simulate/tier.h"
#include "worker/prompt_queue.h"
#include "worker/stall.h"

enum { PAGE = SL_KEY_PAGE_TOKENS };

enum { SL_SIM_IDS = 4096 }; /* the ids that a router gives to workers differ in their low 12 bits */

typedef struct sl_sim sl_sim;
typedef struct sl_sim_worker sl_sim_worker;

/* ---- what is measured ---- */

enum { SL_SIM_GAPS = 4096 }; /* buckets of a logarithmic histogram: 1 % each, from 1 us */

typedef struct sl_sim_call {
    uint64_t start_ns, first_ns, end_ns;
    uint32_t tokens, cached;
    bool failed, refused;
} sl_sim_call;

typedef struct sl_sim_outcome {
    sl_sim_call *calls; /* [requests of the trace] */
    uint64_t gaps[SL_SIM_GAPS];
    uint64_t n_gaps;
    double gap_sum_ns, gap_max_ns;
    double host, disk, shared, prefill_cache, computed; /* prompt tokens */
    double blocks, block_hits;
    double prefill_ns, decode_ns, link_ns;
    uint64_t steps, step_requests, retracted;
} sl_sim_outcome;

/* ---- workers ---- */

typedef struct sl_sim_job sl_sim_job;

/* Workers whose steps begin and end together: the ranks of a group, or a single worker. */
typedef struct sl_sim_group {
    sl_sim *s;
    sl_sim_worker *first; /* n of them in a row */
    int32_t n;
    bool stepping;
} sl_sim_group;

typedef struct sl_sim_prefill {
    sl_store *store;
    sl_sim_job *jobs, *jobs_tail; /* in the order of arrival */
    uint64_t arrivals;
    sl_prompt_queue queue;  /* of those that have a place */
    uint64_t link_until_ns; /* when everything that was shipped so far has arrived */
    uint64_t tokens_done;
    uint32_t tokens_per_s; /* simulated tokens; 0: no step has ended */
} sl_sim_prefill;

typedef struct sl_sim_decode {
    sl_store *store;
    sl_arena *arena; /* addresses only */
    sl_cascade *cascade;
    sl_tier *disk, *shared;        /* the cascade's; NULL: none */
    sl_cascade_listener *listener; /* of the disk; the cascade's */
    sl_sim_busy disk_busy;
    uint64_t disk_hits; /* pages of loads that are accounted for */
    uint64_t tick_ns;   /* when the next event for the cascade is due */
    sl_core core;
    uint64_t tokens_done;
    double device_used;
    sl_prompt_queue prompts; /* role both: those that have begun */
    sl_stall stall;
    int32_t stall_ms;
    int32_t decoding;      /* requests of the running step that decode */
    uint32_t tokens_per_s; /* of prompts */
    sl_wr stored, removed; /* events of the store that have not been sent */
    uint64_t kv_sequence;
} sl_sim_decode;

enum { SL_SIM_OUTPUT_TOKEN = 1 << 29 };

/* The simulator's part of a request of a decode worker. */
typedef struct sl_sim_ticket {
    sl_ticket t; /* first member */
    sl_cascade_waiter wait;
    sl_sim_worker *w;
    sl_msg m;     /* RESERVE */
    int32_t host; /* pages that were in the host store when it came; -1: not looked up */
    sl_lease *lease;
    int32_t told; /* tokens that the router has or needs not */
    uint64_t last_ns;
    double device;           /* bytes */
    sl_queued_prompt prompt; /* role both */
} sl_sim_ticket;

static inline sl_sim_ticket *sl_sim_ticket_of(const sl_ticket *t)
{
    return (sl_sim_ticket *)(uintptr_t)t;
}

struct sl_sim_worker {
    sl_tp_ep ep; /* the router's endpoint to this worker; first member */
    sl_sim *s;
    sl_role role;
    int32_t index;
    sl_sim_group *group;
    uint32_t id;      /* the router's */
    uint64_t beat_ns; /* when a look at the load is due; UINT64_MAX: none */
    sl_msg_load told;
    uint64_t told_ns;
    union {
        sl_sim_prefill prefill;
        sl_sim_decode decode;
    };
};

struct sl_sim {
    sl_sim_opts o;
    const sl_sim_costs *c;
    double per_token; /* tokens of the (scaled) trace per simulated token */
    double page_bytes;
    int64_t longest;                          /* simulated tokens of the longest request, with its output */
    int32_t max_context, chunk_tokens, block; /* block: simulated tokens of a block */
    uint64_t now_ns, start_ns;
    sl_sim_events events;
    sl_router_opts router_opts;
    sl_tokenizer *tokenizer;
    sl_router *router;
    sl_transport transport; /* whose endpoints the workers have */
    sl_sim_worker *workers; /* [prefills + decodes] */
    int32_t n_workers;
    sl_sim_group *groups;
    int32_t n_groups;
    sl_sim_worker *by_id[SL_SIM_IDS]; /* by the low bits */
    sl_geometry geometry;
    sl_sim_busy shared_busy;
    sl_tier *shared;  /* that of the first decode worker; the others have its pages in common */
    size_t next_call; /* of the trace */
    uint32_t open_calls;
    bool ticking;
    sl_sim_outcome out;
};

/* cluster.c */
void sl_sim_after(sl_sim *s, double ns, sl_sim_event_fn *fn, void *arg, uint64_t number);
/* Gives a message to the router, which acts on it at once. */
void sl_sim_tell(sl_sim_worker *w, const sl_msg *m);
void sl_sim_tell_failed(sl_sim_worker *w, uint64_t rid, uint32_t attempt, sl_status st);
/* Makes sure that the worker reports its load: soon if it has changed, and at every heartbeat while it has work. After every
 * change. */
void sl_sim_beat(sl_sim_worker *w);
sl_sim_worker *sl_sim_find(sl_sim *s, uint32_t id);
static inline int32_t sl_sim_pages(int32_t tokens)
{
    return (tokens + PAGE - 1) / PAGE;
}

static inline bool sl_sim_decodes(const sl_sim_worker *w)
{
    return w->role != SL_ROLE_PREFILL;
}
/* The bounds of a queue of prompts, from the configuration. */
sl_prompt_queue_opts sl_sim_prompt_opts(const sl_sim *s);

/* steps.c */
/* Makes the groups of all workers. SL_ERR_NO_MEMORY. */
sl_status sl_sim_groups_make(sl_sim *s, sl_err *err);
/* w may have something to compute: its group begins a step, unless one is running. */
void sl_sim_step(sl_sim_worker *w);

/* prefill_worker.c */
sl_status sl_sim_prefill_open(sl_sim_worker *w, sl_err *err);
void sl_sim_prefill_close(sl_sim_worker *w);
void sl_sim_prefill_load(const sl_sim_worker *w, sl_msg_load *out);
/* Takes the message over. */
void sl_sim_prefill_begin(sl_sim_worker *w, sl_msg *m);
void sl_sim_prefill_abort(sl_sim_worker *w, const sl_msg_abort *a);
/* Chooses what w computes in the step that begins. Returns its time in ns; 0: nothing. */
double sl_sim_prefill_step(sl_sim_worker *w);
void sl_sim_prefill_stepped(sl_sim_worker *w, uint64_t began_ns);

/* decode_worker.c */
sl_status sl_sim_decode_open(sl_sim_worker *w, sl_err *err);
void sl_sim_decode_close(sl_sim_worker *w);
void sl_sim_decode_load(const sl_sim_worker *w, sl_msg_load *out);
/* Only requests and pages: changes are noticed by these. */
void sl_sim_decode_work(const sl_sim_worker *w, sl_msg_load *out);
/* Takes the message over. */
void sl_sim_decode_reserve(sl_sim_worker *w, sl_msg *m);
/* The wait of a request for pages of the tiers has ended. */
void sl_sim_decode_loaded(sl_cascade_waiter *wait);
void sl_sim_decode_commit(sl_sim_worker *w, uint64_t rid, uint32_t attempt, uint32_t cached);
void sl_sim_decode_abort(sl_sim_worker *w, const sl_msg_abort *a);
/* As those of prefill workers. */
double sl_sim_decode_step(sl_sim_worker *w);
void sl_sim_decode_stepped(sl_sim_worker *w, uint64_t began_ns);

/* decode_prompts.c */
/* Prompts that wait begin, as far as there are places; w's role is both. */
void sl_sim_prompts_admit(sl_sim_worker *w);
/* Chooses the prompt tokens of the step that begins. Returns their time in ns. */
double sl_sim_prompts_step(sl_sim_worker *w, int32_t decoding);
void sl_sim_prompts_stepped(sl_sim_worker *w, int32_t decoding, double ns);

/* decode_pages.c */
sl_status sl_sim_pages_open(sl_sim_worker *w, sl_err *err);
void sl_sim_pages_close(sl_sim_worker *w);
/* Lets the cascade act, makes an event for when it must act next, and sends events of the store. After every change. */
void sl_sim_pages_turn(sl_sim_worker *w);

/* outcome.c */
void sl_sim_gap(sl_sim_outcome *o, uint64_t ns);
void sl_sim_summarize(const sl_sim *s, sl_sim_result *out);

#endif
