/*
 * The router's state, one struct per owner, and the functions that the files of core/ call of each other. Apart from
 * tests and fuzzers, only files of router/core, router/run.c and router/reload.c include this.
 *
 *   link.c            transport in the loop, sending, receiving         sl_router_link
 *   members.c, join.c member table: liveness, loads; the handshake      sl_cluster
 *   ranks.c           members that are ranks of one group               sl_member.next_rank
 *   drained.c         writers whose DRAINED must be relayed             sl_cluster.undrained
 *   messages.c        what workers say about requests -> events
 *   request*.c        the step function of a request, output.c its text (request.h)
 *   effects.c         carries effects out                               sl_effects
 *   group.c           client calls and their requests                   sl_request_table
 *   share.c           which requests may reuse each other's pages       sl_share_domain
 *   tenants.c         tenants of the keys file: keys, limits, use       sl_tenants
 *   directory.c       which decode worker holds which page              sl_directory
 *   directory_table.c the hash table of these pages
 *   keyset.c          a bounded set of page keys                        sl_keyset
 *   admission.c       which calls are admitted
 *   deadlines.c       requests that are late or stuck
 *   queue.c, place.c  requests that wait, and their workers             sl_queue
 *   aside.c           workers that are set aside for one request
 *   leaving.c         workers that leave, and whether they are still needed
 *   repeat.c          tokens that are produced again after damage
 *   estimate.c        what placement knows of the workers               sl_estimate
 *   prefetch.c        requests that wait are announced to workers
 *   kv_events.c       changes of prefix caches, for the index and for subscribers    sl_kv_log
 *   facts.c           the queries of core.h for the fronts
 *   glance.c          those for people who look at the cluster          sl_error_ring
 *   traced.c          spans of requests for traces                      sl_traced
 *
 * In one iteration of the loop, messages of workers and calls of fronts become events; a step turns an event into
 * effects; sl_effects_run() performs the effects in order. No effect is performed while a step or another effect runs.
 *
 * Ownership: the router owns members and groups; a group owns its requests and exists until its owner releases it.
 * Everything runs on the loop's thread.
 */
#ifndef SL_ROUTER_CORE_IMPL_H
#define SL_ROUTER_CORE_IMPL_H

#include <uv.h>

#include "base/log.h"
#include "kvstore/arena.h"
#include "router/core.h"
#include "router/core/directory.h"
#include "router/core/keyset.h"
#include "router/core/request.h"
#include "router/core/share.h"
#include "router/core/written.h"
#include "router/core/tenants.h"
#include "router/core/text.h"
#include "router/front.h"
#include "router/policies/policy.h"
#include "router/trace/traces.h"
#include "router/work.h"
#include "transport/transport.h"

/*
 * A message: in the list of its member while the transport is full, in that of the link while the transport borrows it.
 */
typedef struct sl_outmsg {
    struct sl_outmsg *next, **pprev;
    uint16_t id;
    uint8_t *data;
    size_t bytes;
} sl_outmsg;

typedef struct sl_lane sl_lane;
typedef struct sl_traced sl_traced;

/* ---- state, by owner ---- */

/* One connection of a worker; the fields from `id` on describe the worker after it has joined. */
/* As a rank of a group (core/ranks.c). */
typedef struct sl_member_rank {
    uint32_t group, rank, ranks; /* as in HELLO; ranks 0: no rank of a group */
    struct sl_member *next;      /* ring of the ranks of its group that have joined; NULL: no rank */
} sl_member_rank;

/* What requests of this router are to it; effects and prefetch.c keep the account. */
typedef struct sl_member_account {
    uint32_t requests;   /* that are placed here */
    uint64_t tokens;     /* prefill: to compute, of requests that are not prefilled yet */
    uint64_t context;    /* decode: tokens of the requests that are placed here, as they were then */
    uint32_t pulls;      /* decode: requests that fetch pages from here to another worker */
    uint32_t prefetches; /* decode: waiting requests that were announced to it */
} sl_member_account;

/* The stream of its cache events (kv_events.c); decode. */
typedef struct sl_member_events {
    uint64_t sequence;           /* number of its newest batch */
    uint64_t lost, lost_ordinal; /* those of its newest batch that is not kept any more */
    bool gap;                    /* batches were lost, KV_RESYNC must be sent */
    bool skipped;                /* so were some before its newest batch: this is logged already */
    uint64_t resync_ns;          /* not before */
} sl_member_events;

typedef struct sl_member {
    struct sl_member *next;
    sl_router *r;
    sl_tp_ep *ep; /* NULL once closed */
    sl_member_state state;
    uint32_t id; /* 0 until HELLO was accepted */
    uint8_t role;
    char name[64], addr[128], listen[128], metrics[128], host[64];
    uint64_t epoch, instance;
    uint32_t max_context, max_batch, total_pages, vocab_size, pid;
    sl_member_rank rank;
    sl_msg_load load;
    bool has_load;
    uint64_t joined_ns, last_seen_ns, progress_ns;
    uint64_t drain_ns;         /* DRAINING: since when */
    bool dismissed;            /* DRAINING: it was told LEAVE and gets no request any more */
    uint64_t blocked_until_ns; /* it answered EXHAUSTED: no request is placed here before */
    uint64_t set_aside;        /* rid of the one request that may be placed here; 0: every request may */
    sl_member_account account;
    uint64_t requests, failures;
    uint32_t place; /* decode: in the directory; else SL_DIRECTORY_NONE */
    /* prefill, which reports no pages: the keys that its prefix cache probably holds; else NULL */
    sl_keyset *prefix;
    /* decode: keys that follow from tokens alone; NULL until it is needed (kv_events.c) */
    sl_keyset *unsalted;
    sl_outmsg *out_head, *out_tail;
    sl_member_events kv;
} sl_member;

/* An attempt that was left while its prefill worker wrote; the decode worker waits for DRAINED. */
typedef struct sl_undrained {
    struct sl_undrained *next;
    uint64_t rid;
    uint32_t attempt;
    uint32_t prefill, decode;
} sl_undrained;

typedef struct sl_router_link {
    sl_transport *tp;
    uv_poll_t poll;
    uv_idle_t idle; /* active only while the transport answers AGAIN to arm */
    bool have_poll;
    char address[SL_TP_ADDRESS_MAX];
    sl_outmsg *in_flight;
    bool posted; /* a message was posted since the transport was armed */
    bool tokens; /* the message that is being taken had some */
    sl_written written;
} sl_router_link;

enum { SL_MEMBER_SLOTS = 4096 }; /* a power of two: ids of one router process differ in their low 12 bits */

typedef struct sl_cluster {
    sl_member *members;
    sl_member *by_id[SL_MEMBER_SLOTS]; /* the newest member with these low bits of its id; sl_member_find() */
    /*
     * Ids of workers begin at a random number of this router process (19 bits of its epoch, then 12 bits that count),
     * so that no worker takes an id for one that another router, or a former one, has given. Positive as an int32_t.
     */
    uint32_t next_id;
    uint64_t epoch;     /* of this router process */
    uint32_t bits;      /* of the rows of its workers: sl_msg_hello.bits */
    bool have_bits;     /* while there is a member */
    bool have_identity; /* always, if the options say what is expected; else while there is a member */
    sl_key fingerprint;
    sl_geometry geometry;
    uint32_t vocab;      /* 0 until a worker has joined */
    int32_t max_context; /* that every member serves; 0 = unknown until a worker joins */
    uint64_t last_tick_ns, last_ping_ns;
    uint64_t absent_ns[2]; /* prefill, decode: since when no worker of the role is ready; 0: there is one */
    sl_undrained *undrained;
    sl_cache_call *cache_calls; /* that are not answered */
    uint32_t n_cache_calls;
    uint64_t cache_asks; /* the number of the last one */
} sl_cluster;

#define SL_REQUEST_BUCKETS 4096
enum { SL_ROUTER_TICK_MS = 20 };

struct sl_group {
    sl_group *next, *prev;
    sl_router *r;
    sl_lane *lane;
    char id[96];
    const char *api;
    sl_share_domain domain;   /* of its requests */
    sl_key seed, fingerprint; /* the seed of the domain for workers with this fingerprint */
    uint64_t tenant;          /* sl_tenant_id(), 0: none */
    sl_request **requests;
    uint32_t n_requests, n_per_prompt, unfinished;
    sl_output_sink *sink;
    void *arg;
    bool released;
    uint64_t start_ns;
    sl_traced *traced; /* NULL: it has ended, or is not traced */
};

typedef struct sl_request_table {
    sl_request *bucket[SL_REQUEST_BUCKETS]; /* by rid; requests that have not ended */
    uint64_t next_rid;
    uint32_t active; /* not ended, queued included */
    sl_group *groups;
    uint32_t released; /* groups to free at the next sweep */
} sl_request_table;

/* The requests of one client, and the tokens that it was served. */
struct sl_lane {
    struct sl_lane *next;
    char client[SL_CLIENT_MAX];
    sl_request_list list;
    uint32_t weight;
    uint32_t groups;    /* calls that have not been freed; the lane lives at least as long */
    uint32_t length;    /* queued requests of the client, those that start again included */
    uint32_t active;    /* requests that have not ended */
    uint32_t reading;   /* calls whose body is being read or tokenized, before they are requests */
    double served;      /* tokens divided by the weight */
    sl_account account; /* of a tenant */
    sl_counter *prompt_tokens, *output_tokens; /* of a tenant, else NULL */
};

typedef struct sl_queue {
    sl_lane *lanes;
    sl_request_list again; /* attempts that start again, the oldest request first */
    double served;         /* counter of the lane that was served last */
    uint32_t length;       /* in the queue */
    uint32_t waiting;      /* of which not held */
    bool dirty;            /* a request or free places were added since the last placement */
    uint64_t picks;        /* placements; of which first ones */
    uint64_t first_picks;
    uint64_t rate_ns, rate_picks; /* when `rate` was updated, and first_picks then */
    double rate;                  /* first placements per second, smoothed */
    double stay_s;                /* time that a request stays on its decode worker, smoothed; 0: unknown */
    double compute; /* tokens that a prefill worker computes of a request, smoothed; 0: unknown */
    const sl_policy *policy;
    _Alignas(8) unsigned char policy_options[SL_POLICY_OPTIONS_BYTES]; /* of its table */
} sl_queue;

typedef struct sl_effects {
    sl_effect *list; /* effects that have not been performed: [at, n) */
    size_t at, n, cap;
    sl_strbuf text; /* of EMIT and END; emptied when the list is */
    char *piece;    /* scratch of output.c: sl_detok_bound() bytes */
} sl_effects;

typedef struct sl_kv_log {
    sl_kv_batch **ring; /* [cap], a power of two; a batch is at its ordinal modulo cap */
    size_t cap;
    uint64_t first, next; /* ordinals that are kept: [first, next); both start at 1 */
    size_t bytes;         /* of the batches that are kept */
} sl_kv_log;

typedef struct sl_router_life {
    uv_timer_t tick;
    uv_prepare_t prepare;
    uv_async_t wake;
    uv_signal_t sigterm, sigint, sighup;
    bool loop_ready;
    uint64_t started_ns;
    int64_t started_unix;
    int stop_calls; /* atomic */
    bool draining, stopping;
    uint64_t drain_deadline_ns;
    sl_status result;
    bool cutting; /* the drain timeout has passed: requests were ended with an error */
    uint32_t cut; /* the number of these requests */
    /* End of the last iteration of the loop, and the time that the loop had slept until then. */
    uint64_t turn_ns, turn_idle_ns, turns;
    uint64_t turn_cpu_ns, cpu_read_ns; /* CPU time of the thread, and when it was read */
    sl_work work;                      /* of this turn */
    uint64_t told_ns;                  /* when a long turn was logged last */
} sl_router_life;

/* Requests that ended with an error, the newest of n. */
typedef struct sl_error_ring {
    uint64_t n;
    sl_error_info at[64];
} sl_error_ring;

struct sl_router {
    sl_router_opts o;
    uv_loop_t loop;
    sl_router_life life;
    sl_served_model model;
    sl_tokenizer *own_tok; /* loaded from model_path; NULL when the options brought one */
    sl_router_link link;
    sl_cluster cluster;
    sl_request_table requests;
    sl_queue queue;
    sl_effects effects;
    sl_kv_log kv;
    sl_tenants tenants; /* of router.keys_file */
    sl_directory *directory;
    sl_share_cache shares;
    sl_router_stats stats;
    sl_error_ring errors;
    sl_traces *traces;
    sl_front *fronts[SL_FRONTS]; /* NULL where off; in the registry's order */
    sl_front_shared shared;      /* of the fronts */
    sl_tls *tls;                 /* for connections that begin now; NULL = plain */
};

/* ---- link.c ---- */

sl_status sl_router_link_open(sl_router *r, sl_err *err);
void sl_router_link_close(sl_router *r);
/* Encodes and posts, or keeps the message until the transport has room. Calls no callback of the router. */
void sl_router_link_send(sl_member *w, const sl_msg *m);
/* Handles a message of a member. */
void sl_router_link_received(sl_member *w, const sl_msg *m);
/* Makes progress, retries refused sends, arms the transport; called before every poll. */
void sl_router_link_flush(sl_router *r);
/* The next poll does not sleep. */
void sl_router_link_stay_awake(sl_router *r);

/* ---- members.c, join.c ---- */

sl_member *sl_member_find(sl_router *r, uint32_t id);
void sl_member_accept(sl_router *r, sl_tp_ep *ep, const char *addr);
void sl_member_hello(sl_member *w, const sl_msg_hello *h);
/* Sets the expected identity, if the options contain one. */
sl_status sl_cluster_init(sl_router *r, sl_err *err);
void sl_member_message(sl_member *w, const sl_msg *m);
/* Removes the member: closes its endpoint by force; its requests get SL_EVENT_LOST. */
void sl_member_lost(sl_member *w, sl_status why, const char *reason);
void sl_member_free(sl_member *w); /* after its endpoint is closed */
void sl_members_tick(sl_router *r, uint64_t now);
size_t sl_members_count(const sl_router *r, sl_role role); /* ready ones */
/* The context that every member serves. */
void sl_members_update_context(sl_router *r);
bool sl_router_ready(const sl_router *r); /* serves: not draining, both roles present */

/* ---- ranks.c ---- */

/* Whether the HELLO fits the ranks of its group that have joined; REFUSED: err says who differs. */
sl_status sl_ranks_check(sl_router *r, const sl_member *w, const sl_msg_hello *h, sl_err *err);
/* w has joined. A rank of a group waits until all are there, then all become ready. */
void sl_ranks_joined(sl_member *w);
/* w is lost: the other ranks of its group wait. */
void sl_ranks_lost(sl_member *w);
/* w leaves by its own decision: it and the other ranks of its group drain. */
void sl_ranks_drain(sl_member *w);

/* ---- drained.c ---- */

/* The prefill worker of an attempt answers ABORT with DRAINED, which must be sent on to the decode worker. */
void sl_undrained_expect(sl_router *r, uint64_t rid, uint32_t attempt, uint32_t prefill, uint32_t decode);
/* A prefill worker has stopped writing for an attempt: tells its decode worker, if that waits for the news. */
void sl_undrained_relay(sl_member *w, uint64_t rid, uint32_t attempt);
/* A member is lost: it will send no DRAINED, and needs none. */
void sl_undrained_forget(sl_router *r, uint32_t member);
void sl_undrained_free(sl_router *r);

/* ---- cache_ask.c ---- */

/* CACHE_PAGES or CACHE_JOB. */
void sl_cache_on_message(sl_member *w, const sl_msg *m);
/* The worker is lost: its questions fail. */
void sl_cache_member_lost(sl_router *r, uint32_t member);
/* Questions whose time is over fail. */
void sl_cache_tick(sl_router *r, uint64_t now);
void sl_cache_free(sl_router *r);

/* ---- glance.c ---- */

/* outcome: static. */
void sl_errors_add(sl_error_ring *ring, const char *id, const char *outcome, const char *reason);

/* ---- traced.c ---- */

/* By the options. INVALID: those of traces. */
sl_status sl_traced_open(sl_router *r, sl_err *err);
/* The requests of the group are in the queue. Without memory it is not traced. */
void sl_traced_begin(sl_router *r, sl_group *g, const sl_trace_context *context);
/* q has made a step for this event; before: its state until then. The last step of the last request ends the trace. */
void sl_traced_step(sl_router *r, sl_request *q, sl_request_state before, const sl_request_event *ev);
void sl_traced_joined(sl_router *r, const sl_member *w, const sl_msg_joined *m);
void sl_traced_free(sl_group *g);

/* ---- messages.c ---- */

void sl_request_message(sl_member *w, const sl_msg *m);

/* ---- effects.c ---- */

sl_status sl_effects_init(sl_router *r);
void sl_effects_free(sl_router *r);
/* One step: books its effects at once (queue, accounts, tables) and keeps those that send or call a sink for
 * sl_effects_run(). False when the event has no entry for the request's state. May be called from anywhere. */
bool sl_request_apply(sl_router *r, sl_request *q, const sl_request_event *ev);
void sl_request_fail(sl_router *r, sl_request *q, sl_status st, const char *reason);
/* Performs all effects, and places requests if there may be room, until no effect is left. Only the loop calls it. */
void sl_effects_run(sl_router *r);
bool sl_effects_pending(const sl_router *r);

/* ---- group.c, admission.c ---- */

sl_status sl_router_admission_check(const sl_router *r, const sl_request_spec *s, sl_err *err);
sl_request *sl_request_find(sl_router *r, uint64_t rid);
/* The prompt of q is in the cache, or will never be: its siblings may be placed. */
void sl_group_lead(sl_request *q, uint64_t now);
/* A member is lost: makes an event for each of its requests. died: it had not announced that it would leave. */
void sl_requests_member_lost(sl_router *r, uint32_t member, bool died);
/* Frees released groups. Effects must not be pending. */
void sl_groups_sweep(sl_router *r);
void sl_groups_free_all(sl_router *r);

/* ---- deadlines.c ---- */

void sl_requests_tick(sl_router *r, uint64_t now);

/* ---- queue.c, place.c ---- */

/* The lane of a client, made when there is none; NULL when out of memory. It lives while its `groups` are above 0 and
 * until the next sl_queue_sweep(). */
sl_lane *sl_queue_lane(sl_router *r, const char *client, uint32_t weight);
void sl_queue_sweep(sl_router *r);
void sl_queue_free(sl_router *r);
/* Whether n more requests of this client may wait: EXHAUSTED when not now, INVALID when never. */
sl_status sl_queue_check(const sl_router *r, const sl_lane *l, uint32_t n, sl_err *err);
/* The client of q has received tokens. */
void sl_queue_charge(sl_request *q, size_t tokens);
/* The request whose turn it is among those placed for the first time, or NULL. */
sl_request *sl_queue_next(sl_router *r, uint64_t now);
/* The one that follows `after` (NULL: the first) among attempts that start again, or NULL. */
sl_request *sl_queue_next_again(const sl_router *r, const sl_request *after, uint64_t now);
void sl_queue_tick(sl_router *r, uint64_t now);
/* again: an attempt of the request was made before. */
void sl_queue_push(sl_router *r, sl_request *q, bool again);
void sl_queue_remove(sl_router *r, sl_request *q);
/* Lets a held request wait for placement like any other. */
void sl_queue_unhold(sl_router *r, sl_request *q);
/* Places every request that can be placed. */
void sl_queue_place(sl_router *r);
/* The numbers of requests that the ready workers can take now, and could take if they were idle. */
void sl_places(const sl_router *r, uint32_t *free_places, uint32_t *places);

/* ---- aside.c ---- */

/* The decode member refused q, because it has too few free pages. */
void sl_aside_refused(sl_router *r, sl_request *q, sl_member *d);
/* Other requests may be placed again on the members set aside for q: those of prefill only, or all. */
void sl_aside_release(sl_router *r, sl_request *q, bool prefill_only);
/* Before q is placed: forgets members that serve it no more; a suspect gets both or none. */
void sl_aside_update(sl_router *r, sl_request *q);
/* Releases the members of q when no page came back for router.stage_timeout_ms. */
void sl_aside_tick(sl_router *r, sl_request *q, uint64_t now);

/* ---- leaving.c ---- */

/* Whether q may be placed on w: it is ready, or leaves but is the last of its role. */
bool sl_member_serves(const sl_router *r, const sl_member *w, const sl_request *q);
/* Whether a worker of the role serves any request. */
bool sl_members_serve(const sl_router *r, sl_role role);
/* Tells those that leave and are not needed any more. */
void sl_leaving_tick(sl_router *r, uint64_t now);

/* ---- estimate.c ---- */

/* What is the same for all candidates of one placement. Valid until the directory changes. */
typedef struct sl_estimate {
    const sl_directory_match *held; /* by place */
    sl_member *owner[2];            /* they hold most of the prompt in host memory; NULL: none */
    uint32_t owned[2];              /* pages */
    double token_bytes, prefill_rate, stay_s, compute;
    uint32_t given_tokens;  /* leading tokens that the decode worker has or gets; known when it is chosen */
    bool both;              /* there are workers of role both */
    uint64_t prefill_queue; /* then: tokens that wait for the prefill worker with the fewest */
} sl_estimate;

void sl_estimate_begin(sl_router *r, const sl_request *q, sl_estimate *e);
void sl_estimate_candidate(const sl_estimate *e, const sl_member *w, const sl_request *q, sl_candidate *c);
/* The worker other than w from which w would fetch pages, or NULL; *pages: how many leading ones it has. */
sl_member *sl_estimate_owner(const sl_estimate *e, const sl_member *w, uint32_t *pages);
/* Tokens that a prefill worker computes of q if it has the first `matched` ones; at least 1. */
uint64_t sl_estimate_compute(const sl_estimate *e, const sl_request *q, uint32_t matched);
/* A request has ended that was on its decode worker for this time; one is placed of which this many tokens are computed. */
void sl_estimate_stayed(sl_router *r, uint64_t ns);
void sl_estimate_computes(sl_router *r, uint64_t tokens);
/* place.c: q fetches nothing from another worker any more. */
void sl_placement_fetched(sl_router *r, sl_request *q);
/* The first `pages` pages of a prompt are in the host memory of owner. */
void sl_placement_source(const sl_member *owner, uint32_t pages, sl_msg_source *out);

/* ---- prefetch.c ---- */

/* Announces requests that wait for a place and were not considered yet. */
void sl_prefetch_waiting(sl_router *r);
/* The request, which is announced, leaves the queue: it is placed on this decode worker, or ends (0). attempt: the one that
 * was announced. */
void sl_prefetch_end(sl_router *r, sl_request *q, uint32_t decode, uint32_t attempt);
/* LOADING of a decode worker. */
void sl_prefetch_loading(sl_member *w, const sl_msg_loading *m);
/* This attempt is left. */
void sl_prefetch_leave(sl_router *r, sl_request *q, uint32_t attempt);

/* ---- kv_events.c ---- */

void sl_kv_on_events(sl_member *w, const sl_msg_kv_events *e);
/* The worker is lost: subscribers are told that its cache is lost. */
void sl_kv_on_lost(sl_member *w);
/* Asks the worker for a full report if batches were lost; at most once in a second. */
void sl_kv_tick(sl_member *w, uint64_t now);
void sl_kv_free(sl_router *r);

/* ---- router/run.c ---- */

/* What the core does every SL_ROUTER_TICK_MS: liveness, deadlines, the queue. */
void sl_router_core_tick(sl_router *r, uint64_t now);

/* ---- router/reload.c ---- */

/* At start: the certificates, if there are any. */
sl_status sl_router_load_tls(sl_router *r, sl_err *err);
/* Reads certificates and keys again. What is wrong is logged, and leaves what there was. */
void sl_router_reload(sl_router *r);

/* ---- facts.c ---- */

void sl_router_stats_tick(sl_router *r);

#endif
