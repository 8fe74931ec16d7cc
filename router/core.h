/*
 * The core of the router as its fronts (http/, grpc/) see it: calls of clients, and facts about the cluster and
 * the model. Everything else of the core is private to core/.
 *
 * A group is one client call. It has n_prompts x n requests with indices from 0 (all n of the first prompt, then
 * all n of the second, ...); each is an independent stream of tokens with its own end.
 *
 * Flow: fill an sl_request_spec, sl_group_submit(), receive outputs through the sink, sl_group_release() once.
 * Releasing an unfinished group cancels it on all workers before the loop sleeps again.
 *
 * The sink runs in the loop only, between other work of the core: never inside submit, abort or release, and never
 * for a group that was released. It may call every function of this header.
 *
 * Threads: the loop's thread only. Lifetime: pointers to facts stay valid until the router is destroyed; an
 * sl_group until its release.
 */
#ifndef SL_ROUTER_CORE_H
#define SL_ROUTER_CORE_H

#include "base/msg.h"
#include "model/chat.h"
#include "model/sampler.h"
#include "model/stop.h"
#include "model/tokenizer.h"
#include "router/router.h"
#include "router/stats.h"
#include "router/trace/context.h"

#define SL_MS 1000000ull /* nanoseconds */
#define SL_CLIENT_MAX 64
#define SL_CACHE_SALT_MAX 256 /* bytes */

/* ---- client calls ---- */

typedef struct sl_group sl_group;

typedef struct sl_prompt {
    int32_t *ids;
    size_t n;
} sl_prompt;

/* Owned by the caller; sl_request_spec_free. sl_group_submit takes the prompts and lists over on success. */
typedef struct sl_request_spec {
    char id[96];                /* the client's or ours, for logs and answers */
    char client[SL_CLIENT_MAX]; /* who asks, by sl_front_caller(): for turns, shares of the queue, rates */
    bool tenant;                /* client is the name of a tenant */
    char cache_salt[SL_CACHE_SALT_MAX]; /* only requests with the same salt share pages; n_cache_salt bytes */
    size_t n_cache_salt;                /* 0: none */
    uint32_t retry_after_s;             /* set by sl_group_submit() with EXHAUSTED */
    const char *api;                    /* "chat", "completions", "generate": label of metrics; static */
    sl_prompt *prompts;
    size_t n_prompts;
    uint32_t n; /* requests per prompt */
    sl_sampling sampling;
    bool has_max_tokens, has_seed;
    char *stops[SL_STOP_MAX];
    size_t n_stops;
    bool include_stop;   /* the matched stop string stays in the text */
    bool keep_special;   /* special tokens appear in the text */
    bool parse_special;  /* text of the client may spell special tokens */
    bool no_text;        /* the client takes token ids only and has no stop strings: no text is made */
    uint32_t timeout_ms; /* 0 = the router's */
    uint64_t arrival_ns; /* when the client's bytes were complete; 0 = now */
    sl_trace_context trace;
} sl_request_spec;

void sl_request_spec_init(sl_request_spec *s);
void sl_request_spec_free(sl_request_spec *s);
/* Sets the salt, which is any n bytes. INVALID: not 1 to SL_CACHE_SALT_MAX of them; field: what err calls it. */
sl_status sl_request_spec_set_salt(sl_request_spec *s, const char *field, const char *salt, size_t n,
                                   sl_err *err);

typedef struct sl_output {
    uint32_t index;
    const sl_msg_token *tokens; /* new ones, borrowed */
    size_t n_tokens;
    /* With sampling.prompt_logprobs: further tokens of the prompt, from its second one on, borrowed. All of them come before the
     * first one of `tokens`. */
    const sl_msg_token *scores;
    size_t n_scores;
    const char *text; /* new text that no stop string can take back, borrowed, not NUL-terminated */
    size_t text_len;
    bool finished; /* this is the last output of the index */
    sl_finish finish;
    sl_status status;                                         /* when finish is ABORT or ERROR */
    const char *error;                                        /* never NULL then */
    int32_t matched_token;                                    /* stop token that ended it, or -1 */
    const char *matched_stop;                                 /* stop string that ended it, or NULL */
    uint32_t prompt_tokens, completion_tokens, cached_tokens; /* so far */
} sl_output;

typedef void sl_output_sink(void *arg, sl_group *group, const sl_output *out);

/*
 * A call that wants to become requests, before its prompts are known: a client whose account is empty, whose requests fill
 * its limit of concurrency or its part of the queue, is refused before its body is read (sl_call_check(), when the headers
 * are there) and before its text is tokenized (sl_call_begin(), when the body is). bytes: of the body. begin takes one
 * request of the account, and the call counts as one in work until sl_call_end(). Errors: EXHAUSTED, with the seconds
 * until a retry; INVALID: more than the account ever has; PEER: draining.
 */
sl_status sl_call_check(sl_router *r, const char *client, uint32_t *retry_s, sl_err *err);
sl_status sl_call_begin(sl_router *r, const char *client, size_t bytes, uint32_t *retry_s, sl_err *err);
/* The call becomes requests now (the request that was taken is given back, for sl_group_submit() takes it again), or it has
 * failed. */
void sl_call_end(sl_router *r, const char *client, bool submits);
/* The longest prompt in tokens that could be served now; 0: not known. */
size_t sl_call_max_tokens(const sl_router *r);

/*
 * Checks the call against the model and the limits and queues its requests. Errors, with the field in err: INVALID
 * (also more requests than the queue ever takes), TOO_LARGE (longer than the context), EXHAUSTED (queue full, or the
 * share of this client), PEER (draining, or no worker has joined).
 */
sl_status sl_group_submit(sl_router *r, sl_request_spec *spec, sl_output_sink *sink, void *arg,
                          sl_group **out, sl_err *err);
/* NULL is allowed. */
void sl_group_release(sl_group *g);
/* Ends every unfinished request with finish ABORT and status CANCELLED; the sink is told before the loop sleeps. */
void sl_group_abort(sl_group *g);
/* The group of this client with this id, or NULL; ids of different clients have nothing to do with each other. client NULL:
 * of any. */
sl_group *sl_group_find(sl_router *r, const char *client, const char *id);
const char *sl_group_id(const sl_group *g);
/* Requests whose last output has not been given to the sink. */
uint32_t sl_group_unfinished(const sl_group *g);

/* ---- what is served ---- */

/* The model as clients see it. Constant after create. */
typedef struct sl_served_model {
    const sl_tokenizer *tok;
    sl_chat_format chat;
    sl_grammars *grammars; /* constraints, opened late: whether a text is one. Any thread */
    int32_t eos[8];        /* tokens that end a sequence */
    size_t n_eos;
    int32_t context;                       /* of the checkpoint or the options; 0 = the workers say it */
    char model_type[64], architecture[64]; /* of config.json, or "" */
} sl_served_model;

const sl_served_model *sl_router_model(const sl_router *r);
const sl_router_opts *sl_router_options(const sl_router *r);
sl_router_stats *sl_router_get_stats(sl_router *r);
/* The number of this turn of the loop, and for how long it has run. */
uint64_t sl_router_turn(const sl_router *r);
uint64_t sl_router_turn_ns(const sl_router *r);
/* Names what the loop does from now on, for turns that are too long (work.h); returns what it did until now. */
const char *sl_router_work(sl_router *r, const char *name);
/* The metrics as text, with the gauges brought up to date; malloc'ed, NULL when out of memory. tenants: with the series
 * of tenants. */
char *sl_router_metrics_text(sl_router *r, bool tenants);

/* ---- the cluster ---- */

/* WAITING: a rank of a group of which not every rank has joined; it gets no request. */
typedef enum {
    SL_MEMBER_JOINING,
    SL_MEMBER_WAITING,
    SL_MEMBER_READY,
    SL_MEMBER_DRAINING,
    SL_MEMBER_DEAD
} sl_member_state;
const char *sl_member_state_name(sl_member_state s);

/* One worker process as the router knows it. */
typedef struct sl_member_info {
    uint32_t id; /* never 0, never used twice, not even by another router */
    sl_role role;
    sl_member_state state;
    const char *name, *listen, *metrics; /* borrowed until the next turn of the loop */
    uint32_t pid, max_batch, total_pages;
    uint32_t group, rank, ranks;          /* of a rank of a group; ranks 0: none */
    uint32_t placed;                      /* requests of this router there now */
    size_t known_pages[SL_MEDIUM_SHARED]; /* decode: of the directory, in its host memory and on its disk */
    bool has_load;
    sl_msg_load load; /* its last report; zero before the first */
} sl_member_info;

/* Every member that has joined, the lost ones that are not closed yet included; malloc'ed, *n of them, NULL when
 * there is none or memory is out. */
sl_member_info *sl_cluster_members(const sl_router *r, size_t *n);

typedef struct sl_cluster_info {
    bool ready; /* serves: not draining, both roles have a ready worker */
    bool draining;
    uint32_t prefill, decode; /* ready workers */
    /* requests that wait for a worker; requests that have not ended (queued included) */
    uint32_t queued, active;
    int32_t max_context; /* tokens every worker serves; 0 = no worker has joined and none was configured */
    int32_t vocab;
    uint64_t started_ns;
    int64_t started_unix;
} sl_cluster_info;

void sl_cluster_get_info(const sl_router *r, sl_cluster_info *out);
/* "ok", "draining" or "waiting for workers": what the health checks of both fronts answer. Static. */
const char *sl_cluster_health(const sl_cluster_info *c);
/* Whose key this is, the name borrowed until the next turn of the loop; NULL when the key is unknown. */
const char *sl_router_tenant(const sl_router *r, const char *key, bool *admin);
/* Seconds until the queue of now will be served, from the rate of the last seconds; 1..60. For Retry-After. */
uint32_t sl_cluster_retry_after_s(const sl_router *r);
/* Forgets every worker's cached prefixes, here and there. */
void sl_cluster_flush_cache(sl_router *r);

/* ---- for people who look at the cluster ---- */

enum { SL_REQUEST_STAGES = 4 }; /* queued, reserving, prefilling, decoding */
const char *sl_request_stage_name(int stage);

/* One request that has not ended. */
typedef struct sl_request_info {
    char id[96], client[SL_CLIENT_MAX];
    int stage;
    uint64_t start_ns;
    uint32_t prompt, cached, produced; /* tokens; cached: of the prompt */
    uint32_t attempt, prefill, decode; /* ids of the members of this attempt, 0 none */
} sl_request_info;

/* The oldest requests, at most cap, the oldest first; returns their number. stages: how many requests are in each. */
size_t sl_cluster_requests(const sl_router *r, sl_request_info *list, size_t cap,
                           uint32_t stages[SL_REQUEST_STAGES]);

typedef struct sl_client_info {
    char client[SL_CLIENT_MAX]; /* a tenant, or an address */
    uint32_t queued, active;    /* requests in the queue; requests that have not ended */
} sl_client_info;

/* Clients with requests, and tenants that have had some; at most cap. Returns their number. */
size_t sl_cluster_clients(const sl_router *r, sl_client_info *list, size_t cap);

/* A request that ended with an error. */
typedef struct sl_error_info {
    uint64_t at_ns;
    const char *outcome; /* static */
    char id[96], reason[160];
} sl_error_info;

/* The last errors, at most cap, the newest first; returns their number. */
size_t sl_cluster_errors(const sl_router *r, sl_error_info *list, size_t cap);

/* The trace of a call that has ended, as a file for chrome://tracing (trace/trace.h); id: of the client or the answer, the rid of logs,
 * or that of the trace. malloc'ed. SL_ERR_NOT_FOUND: it is not among the last ones; SL_ERR_NO_MEMORY. */
sl_status sl_cluster_trace(const sl_router *r, const char *id, char **out);

/* ---- questions about the cache of one worker ---- */

typedef struct sl_cache_call sl_cache_call;

typedef struct sl_cache_answer {
    /* SL_OK; what the worker answered; SL_ERR_PEER: it was lost; SL_ERR_DEADLINE: it was silent */
    sl_status status;
    const char *reason;              /* of another status than SL_OK */
    const sl_msg_cache_pages *pages; /* of LIST, with SL_OK */
    /* of every other action, also with another status when the worker has answered */
    const sl_msg_cache_job *job;
} sl_cache_answer;

/* Called once, in the loop, never inside of sl_cache_ask(); what a points to is valid during the call. The call is gone. */
typedef void sl_cache_answer_fn(void *arg, const sl_cache_answer *a);

/* Asks the decode worker of this name. SL_ERR_NOT_FOUND, SL_ERR_INVALID (no decode worker), SL_ERR_EXHAUSTED (too many
 * questions are open): fn is not called. */
sl_status sl_cache_ask(sl_router *r, const char *worker, const sl_msg_cache_ask *q, sl_cache_answer_fn *fn,
                       void *arg, sl_cache_call **out, sl_err *err);
/* fn is not called any more. NULL is allowed. */
void sl_cache_forget(sl_cache_call *c);

/* ---- changes of the workers' prefix caches ---- */

/* How many bytes of batches are kept for subscribers that ask for old ones, or that read slowly. */
#define SL_KV_RING_BYTES (16u << 20)

/* One batch of changes, as a worker reported it. */
enum { SL_KV_WITHHELD = -1 };

typedef struct sl_kv_batch {
    uint64_t ordinal;  /* in the order of arrival over all workers, from 1, without gaps */
    uint64_t sequence; /* of this worker, from 1; a number that is left out means that batches were lost */
    uint32_t worker;   /* member id, never used twice */
    sl_medium medium;  /* of all changes in the batch */
    /* everything that was known of the worker in this medium is void; the changes below follow */
    bool cleared;
    bool all;       /* cleared is set, and it concerns every medium */
    sl_key *stored; /* n_stored (parent, key) pairs; the parent of a first page is zero */
    size_t n_stored;
    sl_key *removed; /* before `stored` */
    size_t n_removed;
    /* [n_stored][SL_KEY_PAGE_TOKENS], NULL when the worker did not give them; SL_KV_WITHHELD in pages whose tokens
     * subscribers do not get */
    int32_t *tokens;
    size_t bytes; /* memory of this batch */
} sl_kv_batch;

/*
 * One subscriber's place in the batches. It is given every batch from its place on, in the order of arrival. When
 * batches that it has not read are not kept any more, it is given an empty batch with `cleared` set for each worker
 * concerned, whose sequence is the newest number that was lost: the next batch of that worker continues it.
 */
typedef struct sl_kv_cursor {
    uint64_t from, at, live; /* private */
    uint32_t told;           /* private: workers up to this id have been told of what was lost */
    bool lost;
} sl_kv_cursor;

/* SL_ERR_UNSUPPORTED, with the reason, when this router must not tell what its workers hold: with kvstore.share other
 * than all, unless router.keys_file says who is an admin. */
sl_status sl_kv_may_subscribe(const sl_router *r, sl_err *err);
/*
 * Subscribes from each worker's batch number `from` on; 0: from the next batch on. A worker whose numbers have not
 * reached from - 1 was numbered anew since (it joined again, or this is another router): it is replayed as a whole.
 */
sl_kv_cursor sl_kv_subscribe(const sl_router *r, uint64_t from);
/* The next batch, borrowed until the next turn of the loop, and moves on; NULL when there is none now. gap: filled, and
 * returned, for a gap. */
const sl_kv_batch *sl_kv_read(sl_router *r, sl_kv_cursor *c, sl_kv_batch *gap);

#endif
