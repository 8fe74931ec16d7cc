/*
 * Inside the router: the objects its files share. Nobody outside router/ includes this.
 *
 *   link.c      transport in the loop, sending, receiving        -> workers.c, gen.c
 *   workers.c   worker table: handshake, liveness, loads
 *   gen.c       state machine of one generation, recovery; gen_msg.c: what workers say about it
 *   place.c     queue, candidates, policy
 *   output.c    tokens to text: detokenizer, stop strings
 *   group.c     one client call: 1..n generations, submit and cancel
 *   stats.c     metrics
 * http/ and grpc/ are clients of group.c; they turn requests into tokens (large ones in the thread pool) and
 * outputs into answers.
 *
 * Ownership: the router owns workers, groups (each its generations) until their owner releases them.
 * Everything runs on the loop thread.
 */
#ifndef SL_ROUTER_ROUTER_IMPL_H
#define SL_ROUTER_ROUTER_IMPL_H

#include <uv.h>

#include "base/log.h"
#include "base/msg.h"
#include "base/strbuf.h"
#include "model/sampler.h"
#include "model/stop.h"
#include "model/tokenizer.h"
#include "model/chat.h"
#include "router/core/request.h"
#include "router/core/keyset.h"
#include "router/core/text.h"
#include "router/policies/policy.h"
#include "router/router.h"
#include "router/stats.h"
#include "transport/transport.h"

#define SL_MS 1000000ull /* nanoseconds */

typedef enum { SL_MEMBER_JOINING, SL_MEMBER_READY, SL_MEMBER_DRAINING, SL_MEMBER_DEAD } sl_member_state;

/* A message: in its worker's list while the transport has no room, in the router's while the transport
 * borrows it. */
typedef struct sl_outmsg {
    struct sl_outmsg *next, **pprev;
    uint16_t id;
    uint8_t *data;
    size_t bytes;
} sl_outmsg;

typedef struct sl_member {
    struct sl_member *next;
    sl_router *r;
    sl_tp_ep *ep; /* NULL once closed */
    sl_member_state state;
    uint32_t id; /* 0 until HELLO was accepted */
    uint8_t role;
    char name[64], addr[128], listen[128], metrics[128];
    uint64_t epoch;
    uint32_t max_context, max_batch, total_pages, vocab_size, pid;
    sl_msg_load load;
    bool has_load;
    uint64_t joined_ns, last_seen_ns, progress_ns;
    uint64_t blocked_until_ns; /* said EXHAUSTED: not asked again before */
    uint32_t placed;           /* our requests there */
    uint64_t placed_tokens;    /* prefill: prompt tokens of requests not prefilled yet */
    uint64_t requests, failures;
    sl_keyset *prefix;
    sl_outmsg *out_head, *out_tail;
    uint64_t kv_sequence;
} sl_member;

/* Attempt whose prefill has not said DRAINED yet; its decode worker waits for the relay. */
typedef struct sl_undrained {
    struct sl_undrained *next;
    uint64_t rid;
    uint32_t attempt;
    uint32_t prefill, decode;
} sl_undrained;

#define SL_REQUEST_BUCKETS 4096
#define SL_KV_RING 256

/* One batch of prefix cache changes, kept for subscribers. */
typedef struct sl_kv_batch {
    uint64_t sequence;
    uint32_t worker;
    bool cleared;
    sl_key *stored; /* (parent, key) pairs */
    size_t n_stored;
    sl_key *removed;
    size_t n_removed;
} sl_kv_batch;

struct sl_http;
struct sl_grpc;

struct sl_router {
    sl_router_opts o;
    uv_loop_t loop;
    uv_prepare_t prepare;
    uv_idle_t idle; /* active only while the transport says AGAIN to arm */
    uv_poll_t tp_poll;
    uv_timer_t tick;
    uv_async_t wake;
    uv_signal_t sigterm, sigint;
    bool loop_ready, have_poll;

    sl_transport *tp;
    char worker_address[SL_TP_ADDRESS_MAX];
    sl_outmsg *in_flight;
    bool posted; /* something was posted since the transport was armed */
    uint64_t epoch;
    uint64_t last_tick_ns, last_ping_ns;

    sl_member *workers;
    uint32_t next_worker_id;
    bool have_identity;
    sl_key fingerprint;
    uint8_t *geometry;
    size_t geometry_len;
    uint32_t cluster_vocab;

    sl_tokenizer *tok, *own_tok;
    sl_chat_format chat;
    int32_t max_context; /* effective; 0 = unknown until a worker joins */
    int32_t model_context;
    int32_t eos[8];
    size_t n_eos;
    char model_type[64], architecture[64];

    sl_request *bucket[SL_REQUEST_BUCKETS];
    sl_request *queue_head, *queue_tail; /* QUEUED, waiting for a worker */
    uint32_t queued, active;             /* in the queue; not finished (queue included) */
    sl_group *groups;
    uint32_t released; /* groups to free at the next sweep */
    sl_strbuf text;    /* scratch of output.c */
    char *piece;
    size_t piece_cap;
    uint64_t next_rid;
    uint64_t picks;
    const sl_policy *policy;
    sl_policy_opts policy_opts;
    sl_undrained *drains;
    bool placing, place_again;

    sl_kv_batch kv[SL_KV_RING];
    uint64_t kv_next;                                         /* sequence of the newest batch, from 1 */
    void (*on_kv)(struct sl_router *r, const sl_kv_batch *b); /* gRPC subscribers */

    sl_router_stats stats;
    struct sl_http *http;
    struct sl_grpc *grpc;
    uint64_t started_ns;
    int64_t started_unix;

    int stop_calls; /* atomic */
    bool draining, stopping;
    uint64_t drain_deadline_ns;
    sl_status result;
};

/* link.c */
sl_status sl_router_link_open(sl_router *r, sl_err *err);
void sl_router_link_close(sl_router *r);
void sl_router_link_send(sl_member *w, const sl_msg *m);
void sl_router_link_flush(sl_router *r); /* progress, retry refused sends, arm; called before every poll */

void sl_router_link_stay_awake(sl_router *r); /* the next poll does not sleep */

/* workers.c */
sl_member *sl_member_find(sl_router *r, uint32_t id);
void sl_member_accept(sl_router *r, sl_tp_ep *ep, const char *addr);
void sl_member_message(sl_member *w, const sl_msg *m);
/* Takes it out of service: closes its endpoint by force and recovers its requests. */
void sl_member_lost(sl_member *w, sl_status why, const char *reason);
void sl_member_free(sl_member *w); /* after its endpoint is closed */
void sl_members_tick(sl_router *r, uint64_t now);
size_t sl_members_count(const sl_router *r, sl_role role); /* ready ones */
bool sl_router_ready(const sl_router *r);                  /* serves: not draining, both roles present */
/* Flushes every worker's prefix cache. */
void sl_members_flush_cache(sl_router *r);

/* gen.c */
sl_request *sl_request_find(sl_router *r, uint64_t rid);
void sl_request_message(sl_member *w, const sl_msg *m);
void sl_requests_member_lost(sl_member *w);
void sl_requests_tick(sl_router *r, uint64_t now);
void sl_request_place(sl_request *g, sl_member *prefill, sl_member *decode, uint64_t now);
void sl_request_fail(sl_request *g, sl_status st, const char *reason);
void sl_request_cancel(sl_request *g);
sl_status sl_request_keys(sl_request *g); /* brings its page keys up to its tokens */
/* A worker failed this attempt: start again, or fail when retries are used up. */
void sl_request_retry(sl_request *g, sl_status st, const char *reason);

/* place.c */
void sl_queue_push(sl_request *g, bool front);
void sl_queue_remove(sl_request *g);
void sl_place_all(sl_router *r);

/* output.c */
sl_status sl_output_init(sl_request *g, const sl_request_spec *spec, sl_err *err);
void sl_output_free(sl_request *g);
/* Emits tokens to the sink; returns true when a stop string ended the text. */
bool sl_output_tokens(sl_request *g, const sl_msg_token *t, size_t n);
/* Emits what is held back and the end. */
void sl_output_end(sl_request *g, sl_finish finish, sl_status st, const char *error);

/* group.c */
void sl_group_leader_ready(sl_request *g); /* its prompt is in the cache now: siblings may start */
void sl_groups_sweep(sl_router *r);
void sl_groups_free_all(sl_router *r);

/* stats.c */
void sl_router_stats_tick(sl_router *r);

#endif
