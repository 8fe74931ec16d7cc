/*
 * Messages between router, prefill and decode workers; these rooms share nothing else. Versions and bounds are checked,
 * and the bytes do not depend on the layout of structs (base/wire.h). A decoded message owns its arrays until
 * sl_msg_free(). The form of every field from the network is checked here, its meaning by the receiver.
 *
 * Identity: `rid` is the 64-bit id that the router gives a request; `attempt` counts the attempts (placements) of that
 * request from 1. A message whose (rid, attempt) does not exist at the receiver, or is in another state, is dropped and
 * counted, and has no other effect.
 *
 * Flow:
 *
 *   from     to       message              answer
 *   worker   router   HELLO                WELCOME | REFUSE; then LOAD at every heartbeat, and PING <-> PONG
 *   router   decode   PREFETCH             none; ended by ABORT or RESERVE of the same rid, or by the worker itself
 *   router   decode   RESERVE              RESERVED (landing pages, all or nothing) | FAILED
 *   decode   router   LOADING              none; RESERVE waits for pages of storage tiers; the router tells the prefill worker:
 *   router   prefill  PREFETCH             none; ended by ABORT or PREFILL of the same attempt, or by the worker itself
 *   router   prefill  PREFILL              PREFILLED (committed, and the writer is drained) | FAILED
 *   prefill  decode   PEER_HELLO           PEER_WELCOME | REFUSE; once per connection, geometries must match; one
 *                                          connection for each router whose requests they serve together
 *   prefill  decode   puts, flush, COMMIT  none; dropped for an ended ticket, but the writer has finished in both cases
 *   decode   decode   PEER_HELLO           PEER_WELCOME | REFUSE; once per connection, the caller reads only
 *   decode, prefill
 *            decode   LEASE_ASK            LEASE (pages that may be read by get, or none); ended by LEASE_END
 *   decode   decode   LEASE_DAMAGED        none; pages of a lease arrived damaged, the owner verifies its own
 *   rank     rank 0   GROUP_JOIN           GROUP (welcome, when all ranks have joined) | REFUSE; then PING <-> PONG
 *   rank     rank     GROUP                none: what the ranks of one group tell each other (worker/group.h)
 *   prefill  decode   SCORES...            none; before COMMIT, if the request asks for them; passed on to the router
 *   decode   router   SCORES..., TOKENS..., then DONE | RETRACTED | FAILED
 *   decode   router   JOINED               none; for traces: the request has joined the batch
 *   worker   router   BATCH (base/msg_batch.h)   none: several of its messages as one
 *   worker   router   DRAIN                LEAVE, when no request of the router needs the worker any more
 *   router   any      ABORT                DRAINED; prefill answers the router and, when connected, the decode worker
 *   router   decode   DRAINED              none; relayed: the writer of (rid, attempt) writes no more
 *   decode   router   KV_EVENTS            none; after a gap in their numbers KV_RESYNC asks for a full report
 *   router   decode   CACHE_ASK            CACHE_PAGES (a part of a list) | CACHE_JOB (the state of a verify or a drop)
 */
#ifndef SL_BASE_MSG_H
#define SL_BASE_MSG_H

#include "base/hash.h"
#include "base/status.h"
#include "base/wire.h"

#define SL_MSG_VERSION 11
#define SL_MSG_MAX_RANKS 64 /* of a group, as collectives/comm.h */
#define SL_MSG_MAX_TOKENS (1 << 21)
#define SL_MSG_MAX_BLOB (32u << 20)
#define SL_MSG_MAX_HIDDEN (1u << 20)
#define SL_MSG_MAX_TOP 20
/* A worker counts as hung when one of its threads has made no turn for this multiple of cluster.dead_after_ms. */
#define SL_ENGINE_PATIENCE 10
/* The active-message id of a message is its type. */

typedef enum {
    SL_MSG_HELLO = 1,
    SL_MSG_WELCOME,
    SL_MSG_REFUSE,
    SL_MSG_LOAD,
    SL_MSG_PING,
    SL_MSG_PONG,
    SL_MSG_RESERVE,
    SL_MSG_RESERVED,
    SL_MSG_PREFILL,
    SL_MSG_PREFILLED,
    SL_MSG_FAILED,
    SL_MSG_PEER_HELLO,
    SL_MSG_PEER_WELCOME,
    SL_MSG_COMMIT,
    SL_MSG_TOKENS,
    SL_MSG_DONE,
    SL_MSG_RETRACTED,
    SL_MSG_ABORT,
    SL_MSG_DRAINED,
    SL_MSG_DRAIN,
    SL_MSG_FLUSH_CACHE,
    SL_MSG_KV_EVENTS,
    SL_MSG_PAGES_ASK,
    SL_MSG_PAGES_CRC,
    SL_MSG_PREFETCH,
    SL_MSG_KV_RESYNC,
    SL_MSG_LEASE_ASK,
    SL_MSG_LEASE,
    SL_MSG_LEASE_END,
    SL_MSG_LEASE_DAMAGED,
    SL_MSG_GROUP_JOIN,
    SL_MSG_GROUP,
    SL_MSG_CACHE_ASK,
    SL_MSG_CACHE_PAGES,
    SL_MSG_CACHE_JOB,
    SL_MSG_LOADING,
    SL_MSG_LEAVE,
    SL_MSG_SCORES,
    SL_MSG_JOINED,
    SL_MSG_TYPE_COUNT,
} sl_msg_type;

/* BOTH: a decode worker that computes the prompts of its requests itself. */
typedef enum { SL_ROLE_ROUTER, SL_ROLE_PREFILL, SL_ROLE_DECODE, SL_ROLE_BOTH } sl_role;
/* Whether a worker of this role does the work of SL_ROLE_PREFILL or SL_ROLE_DECODE. */
static inline bool sl_role_does(sl_role role, sl_role work)
{
    return role == work || (role == SL_ROLE_BOTH && (work == SL_ROLE_PREFILL || work == SL_ROLE_DECODE));
}
/* Why a request has ended. STOP: an end-of-sequence token or a stop string; LENGTH: max_tokens or the context. */
typedef enum { SL_FINISH_NONE, SL_FINISH_STOP, SL_FINISH_LENGTH, SL_FINISH_ABORT, SL_FINISH_ERROR } sl_finish;

/* Where a decode worker holds a page: in its host memory, on its own disk, or in a store that other workers share. */
typedef enum { SL_MEDIUM_HOST, SL_MEDIUM_DISK, SL_MEDIUM_SHARED, SL_MEDIUM_COUNT } sl_medium;

/* Opaque bytes. Those of a decoded message point into its buffer and are valid as long as the buffer is. */
typedef struct sl_blob {
    const uint8_t *data;
    size_t len;
} sl_blob;

/* What must be the same in processes that exchange pages. kvstore encodes and compares `geometry`. */
typedef struct sl_identity {
    sl_key fingerprint; /* model weights, config and numeric convention */
    sl_blob geometry;
} sl_identity;

typedef struct sl_msg_hello { /* worker -> router */
    uint32_t version;
    uint8_t role;
    char name[64]; /* "decode/2" */
    char cluster_tag[64];
    char model[128];
    char listen[128];  /* address of its transport listener */
    char metrics[128]; /* host:port of its exporter or "" */
    uint64_t epoch;    /* random per session */
    sl_identity id;
    uint32_t max_context, max_batch, total_pages, vocab_size;
    uint32_t pid;
    char host[64];     /* name of its host */
    uint64_t instance; /* random per process: whether two connections are of the same process */
    uint32_t group, rank,
        ranks;     /* of a rank of a group: group is its number among those of the role; ranks 0: none */
    uint32_t bits; /* of its rows, as sl_backend_bits() (kernels/backend.h) */
} sl_msg_hello;

typedef struct sl_msg_welcome {
    uint32_t worker_id;
    uint64_t router_epoch;
    uint32_t heartbeat_ms, dead_after_ms;
} sl_msg_welcome;

typedef struct sl_msg_refuse {
    int32_t status;
    char reason[400];
    uint8_t retry; /* 1: the same HELLO may be accepted later, for example when its name is free again */
} sl_msg_refuse;

typedef struct sl_msg_load { /* worker -> router, every heartbeat and when it changes much */
    uint32_t running, waiting, free_pages, cached_pages, total_pages;
    uint64_t queued_tokens;            /* prompt tokens waiting for or in prefill */
    uint64_t tokens_done;              /* cumulative: computed (prefill) or produced (decode) */
    uint64_t hits, misses, swap_bytes; /* decode: cumulative swap-in counters */
    uint8_t draining;
    uint32_t engine_age_ms; /* since the engine's thread last began a turn of its loop */
    /* Measured speeds, smoothed by the worker; 0: not measured yet. */
    uint32_t prefill_rate; /* prefill: prompt tokens computed per second of compute time */
    /* decode: bytes of pages per second of load time, from its disk, its shared stores and other decode workers */
    uint64_t disk_rate, shared_rate, peer_rate;
    /* Since the last turn of its checker and of its copier, while a job waits there; 0: none waits. */
    uint32_t checker_age_ms, copier_age_ms;
    uint8_t group_broken; /* the session ends now, because the group of this rank lost another rank */
} sl_msg_load;

typedef struct sl_msg_ping {
    uint64_t stamp; /* echoed by PONG */
} sl_msg_ping;

/* Another decode worker that has leading pages of a prompt in its host memory. pages 0: none, the rest is empty. */
typedef struct sl_msg_source {
    uint32_t worker;
    char addr[128]; /* of its transport listener */
    uint64_t epoch; /* of its session with this router, as PREFILL.decode_epoch */
    uint32_t pages; /* the first `pages` pages of the prompt, as far as the router knows */
} sl_msg_source;

typedef struct sl_msg_reserve { /* router -> decode */
    uint64_t rid;
    uint32_t attempt;
    /* the only writer this ticket accepts; 0: the worker computes the prompt itself */
    uint32_t prefill_worker;
    uint32_t n_prompt; /* tokens[0..n_prompt) are the prompt; the others were produced before a restart */
    int32_t *tokens;
    size_t n_tokens;
    uint32_t deadline_ms; /* from receipt; the ticket is released when it passes without COMMIT */
    sl_blob sampling;     /* sl_sampling_write() */
    sl_key seed; /* of the chain of page keys: only requests of one seed share pages (kvstore/page_key.h) */
    uint64_t tenant; /* sl_tenant_id() of its tenant (kvstore/domain.h); 0: none */
    sl_msg_source source;
} sl_msg_reserve;

/*
 * router -> decode: this request waits in the router's queue and will probably be placed here. It holds no ticket.
 * router -> prefill: its RESERVE waits at the decode worker `source`, which is loading the first `source.pages` pages.
 */
typedef struct sl_msg_prefetch {
    uint64_t rid;
    uint32_t attempt; /* that its RESERVE, or PREFILL, will have */
    int32_t *tokens;
    size_t n_tokens;
    sl_key seed;
    uint64_t tenant;
    sl_msg_source source;
} sl_msg_prefetch;

/* decode -> router: RESERVE of this attempt waits, and the first `pages` pages of its prompt will be in the host memory of the
 * worker unless a load fails. */
typedef struct sl_msg_loading {
    uint64_t rid;
    uint32_t attempt;
    uint32_t pages;
} sl_msg_loading;

typedef struct sl_msg_reserved { /* decode -> router */
    uint64_t rid;
    uint32_t attempt;
    uint64_t ticket;        /* unique within the decode worker's epoch */
    uint32_t matched_pages; /* leading pages that are cached already, and pinned; they are not shipped */
    uint32_t *pages;        /* all landing pages, matched first: ceil(n_tokens / 64) entries */
    size_t n_pages;
} sl_msg_reserved;

typedef struct sl_msg_prefill { /* router -> prefill */
    uint64_t rid;
    uint32_t attempt;
    uint64_t ticket;
    uint32_t decode_worker;
    char decode_addr[128];
    uint64_t decode_epoch;
    uint32_t n_prompt;
    int32_t *tokens;
    size_t n_tokens;
    uint32_t matched_pages;
    uint32_t *pages;
    size_t n_pages;
    uint32_t deadline_ms;
    sl_blob sampling;
    sl_key seed; /* as in RESERVE */
} sl_msg_prefill;

/* prefill -> router: all rows are on the decode worker, COMMIT is sent, the writer is drained. */
typedef struct sl_msg_prefilled {
    uint64_t rid;
    uint32_t attempt;
    uint32_t cached_tokens; /* tokens that were not computed: from its own cache, or pulled */
    uint64_t queue_us, compute_us, ship_us, bytes;
    /* while the prompt was computed, rows were shipped for this time; ship_us comes after it */
    uint64_t overlap_us;
} sl_msg_prefilled;

/* worker -> router: this attempt has ended and is drained; retryable: another worker may succeed. */
typedef struct sl_msg_failed {
    uint64_t rid;
    uint32_t attempt;
    int32_t status;
    uint8_t retryable;
    char reason[400];
} sl_msg_failed;

typedef struct sl_msg_peer_hello { /* prefill -> decode, decode -> decode */
    uint32_t version, worker_id;   /* worker_id: of the sender, at the router that introduces it */
    uint64_t epoch;
    char cluster_tag[64];
    sl_identity id;
    uint32_t direct_pid;   /* its process, if it can write into the arena directly; 0: it cannot */
    uint64_t decode_epoch; /* of the receiver's session with that router */
    uint8_t reader; /* 1: the sender is a decode worker, which reads pages under leases and writes nothing */
} sl_msg_peer_hello;

typedef struct sl_msg_peer_welcome { /* the answer: where the arena is */
    uint64_t epoch, arena_addr, arena_bytes;
    uint32_t total_pages;
    sl_blob geometry; /* of the landing arena: its layout may differ, its formats may not */
    sl_blob rkey;
    sl_blob direct; /* descriptor for writing directly (worker/direct.h); empty: it uses the transport */
} sl_msg_peer_welcome;

/* One produced token, with the log-probabilities that the client asked for. */
typedef struct sl_msg_token {
    int32_t id;
    float logprob;
    uint8_t n_top;
    int32_t top_ids[SL_MSG_MAX_TOP];
    float top_logprobs[SL_MSG_MAX_TOP];
} sl_msg_token;

typedef struct sl_msg_commit { /* prefill -> decode */
    uint64_t rid;
    uint32_t attempt;
    uint64_t ticket;
    uint32_t worker_id;
    uint32_t n_tokens;   /* rows 0..n_tokens-1 are complete in every layer */
    uint32_t first_page; /* first page that was shipped */
    uint32_t *crc;       /* [(n_pages - first_page)][layers] CRC32C of each shipped page and layer */
    size_t n_crc;
    sl_msg_token first; /* the token sampled at position n_tokens */
    uint32_t cached_tokens;
    /* of a model with an MTP layer, the hidden state of token n_tokens - 1 in the activations' format; or nothing */
    sl_blob hidden;
} sl_msg_commit;

/* TOKENS, decode -> router. SCORES, prefill -> decode -> router: tokens of the prompt, first_index is the place of the first one. */
typedef struct sl_msg_tokens {
    uint64_t rid;
    uint32_t attempt;
    uint32_t first_index; /* of tokens[0] among all tokens of the request, also those before a restart */
    sl_msg_token *tokens;
    size_t n_tokens;
} sl_msg_tokens;

/* decode -> router: the request computes now. What it waited for at this worker, each 0 when it did not: */
typedef struct sl_msg_joined {
    uint64_t rid;
    uint32_t attempt;
    uint64_t load_us;  /* before RESERVED: pages of its prefix */
    uint64_t check_us; /* after COMMIT: the checksums */
    uint64_t wait_us;  /* after the first token: room in a step */
} sl_msg_joined;

typedef struct sl_msg_done {
    uint64_t rid;
    uint32_t attempt;
    uint8_t finish;       /* sl_finish */
    int32_t matched_stop; /* stop token id or -1 */
    uint32_t produced, cached_tokens;
    uint64_t hits, misses, swap_bytes;
} sl_msg_done;

/*
 * decode -> router: the request is given back. The first `safe` of all its produced tokens, also those before a restart, are
 * known to be right; fewer than were sent only after damage was found: the others were computed after its last clean round.
 */
typedef struct sl_msg_retracted {
    uint64_t rid;
    uint32_t attempt;
    uint32_t safe;
    uint8_t damaged;
} sl_msg_retracted;

typedef struct sl_msg_id { /* DRAINED */
    uint64_t rid;
    uint32_t attempt;
} sl_msg_id;

typedef struct sl_msg_abort {
    uint64_t rid;
    uint32_t attempt;
    int32_t status; /* why: CANCELLED, DEADLINE, PEER… */
} sl_msg_abort;

/* decode -> router: changes of one medium of the prefix cache, for cache_aware placement and SubscribeKvEvents. */
typedef struct sl_msg_kv_events {
    uint64_t sequence; /* from 1 in each session, without gaps; a gap means that a batch was lost */
    sl_blob stored; /* page keys, 16 bytes each, with parents: (parent, key) pairs of 32 bytes; a first page's
                          parent is zero, and every parent where the medium does not keep it */
    sl_blob removed; /* page keys, 16 bytes each */
    uint8_t cleared; /* everything of this medium was dropped before the changes above */
    sl_blob tokens;  /* the 64 token ids (i32) of each stored page, in order; empty: not given */
    uint8_t medium;  /* sl_medium */
} sl_msg_kv_events;

/* prefill -> decode: checksums of pages [first, first + count) of a ticket that is still held. */
typedef struct sl_msg_pages_ask {
    uint64_t rid;
    uint32_t attempt;
    uint64_t ticket;
    uint32_t first, count;
} sl_msg_pages_ask;

/* The answer. An empty list: the ticket is not held any more (or the range is not its matched pages). */
typedef struct sl_msg_pages_crc {
    uint64_t rid;
    uint32_t attempt;
    uint32_t first;
    uint32_t *crc; /* [count][layers] */
    size_t n_crc;
} sl_msg_pages_crc;

/* Reader -> owner: the leading ones of these pages are wanted, which are consecutive pages of one chain of keys. */
typedef struct sl_msg_lease_ask {
    uint64_t lease; /* chosen by the reader; unique on its connection */
    uint32_t ms;    /* how long it wants to read */
    sl_key seed;    /* of the chain: pages of another domain are never leased */
    sl_blob keys;   /* 16 bytes each, at least one */
    uint8_t wait;   /* 1: while a load may bring the first page, the answer waits for that load */
} sl_msg_lease_ask;

/*
 * Owner -> reader: these leading pages stay in place until LEASE_END. No page: the owner has none of them, or lends none
 * now. The reader ends what it was granted within `ms`; the connection of one that does not is closed by force.
 */
typedef struct sl_msg_lease {
    uint64_t lease;
    uint32_t ms;
    uint32_t lent;   /* pages that other leases of this owner hold now: its load */
    uint32_t *pages; /* page numbers in the owner's arena */
    size_t n_pages;
    /* [n_pages] of equal size: seed, key before, tokens and kept checksums (kvstore/cascade.h) */
    sl_blob labels;
} sl_msg_lease;

/* Reader -> owner: no get of this lease is in flight, and none will follow. */
typedef struct sl_msg_lease_end {
    uint64_t lease;
} sl_msg_lease_end;

/* Reader -> owner: among these pages of the lease are some whose bytes did not have the kept checksums of LEASE. */
typedef struct sl_msg_lease_damaged {
    uint64_t lease;
    uint32_t first, count; /* of the pages of LEASE */
} sl_msg_lease_damaged;
/* What an administrator asks of the cache of a decode worker (decode/pages/inspect.c, decode/pages/audit.c). */
typedef enum {
    SL_CACHE_LIST,   /* a part of the list of its pages */
    SL_CACHE_STATUS, /* how far its job is, or how the last one ended */
    SL_CACHE_VERIFY, /* begin a job that reads and checks every page */
    SL_CACHE_DROP,   /* begin a job that removes every page of one tier */
    SL_CACHE_CANCEL, /* end the job */
    SL_CACHE_ACTIONS
} sl_cache_action;

typedef enum {
    SL_CACHE_NONE, /* this worker has had no job */
    SL_CACHE_RUNNING,
    SL_CACHE_DONE,
    SL_CACHE_CANCELLED,
    SL_CACHE_STATES
} sl_cache_state;

enum {
    SL_CACHE_TIER_BYTES = 16,  /* of the name of a tier */
    SL_CACHE_PAGES_MAX = 512,  /* of one CACHE_PAGES */
    SL_CACHE_PAGE_BYTES = 32,  /* of one page in it */
    SL_CACHE_DAMAGED_MAX = 64, /* keys in CACHE_JOB */
    SL_CACHE_IN_USE = 1,       /* flag of a page: a request uses it now */
};

typedef struct sl_msg_cache_ask {   /* router -> decode */
    uint64_t ask;                   /* chosen by the router; the answer has it too */
    uint8_t action;                 /* sl_cache_action */
    char tier[SL_CACHE_TIER_BYTES]; /* "host", or the name of a storage tier; "": all (LIST, VERIFY) */
    /* LIST: only keys that begin with the first prefix_bits of prefix, hi before lo. */
    sl_key prefix;
    uint8_t prefix_bits;
    uint64_t cursor; /* LIST: 0 begins; else as in the answer before */
    uint32_t most;   /* LIST: pages in the answer */
    uint64_t rate;   /* VERIFY: bytes read per second; 0: the worker's default */
} sl_msg_cache_ask;

typedef struct sl_msg_cache_pages { /* decode -> router */
    uint64_t ask;
    char tier[SL_CACHE_TIER_BYTES]; /* of all pages in this part */
    uint64_t cursor;                /* of the next part; 0: there is none */
    /* SL_CACHE_PAGE_BYTES each: key (lo, hi: u64), tokens of the prompt up to the end of the page (u32, 0: unknown), flags
     * (u32), ms since its last use (u64, all bits set: unknown) */
    sl_blob pages;
} sl_msg_cache_pages;

typedef struct sl_msg_cache_job { /* decode -> router */
    uint64_t ask;
    int32_t status; /* of the question: SL_OK, or why it had no effect */
    char reason[400];
    uint8_t action;                     /* of the job: VERIFY or DROP */
    uint8_t state;                      /* sl_cache_state */
    char tier[SL_CACHE_TIER_BYTES];     /* that it works on, or worked on last */
    uint64_t done, total;               /* pages; total as it was when the tier was begun */
    uint64_t damaged, unreadable, gone; /* pages; gone: they left the tier before they were read */
    uint64_t bytes, ms;                 /* read; since it began */
    sl_blob keys;                       /* of the first damaged pages, 16 bytes each */
} sl_msg_cache_job;

/* A rank of a group of workers -> rank 0: what must be equal on all ranks, and who this is. */
typedef struct sl_msg_group_join {
    char cluster_tag[64];
    uint8_t role;                /* prefill or decode */
    uint32_t group, rank, ranks; /* group: its number among the groups of this role */
    char build[32];
    char formats[64]; /* names of row format, indexer and activations, for people */
    /* Its fingerprint is that of what this rank loads (model/model.h: print of a rank), and 0 in its geometry. */
    sl_identity id;
    uint32_t step_tokens; /* most tokens of one step */
    char name[64];
    char host[64];
    uint32_t pid;
    uint64_t instance; /* random per process */
    /* Of its host store, and available where it runs before any rank has taken its own; and a number that is equal in
     * processes of one container, which share a limit of memory. */
    uint64_t host_bytes, host_free, host_space;
    uint64_t place;   /* ranks with the same one can share memory (collectives/comm.h) */
    char library[32]; /* that moves the rows between the ranks, with its version; empty: none */
    char device[64];  /* no two ranks may have the same one; empty: ranks may share it */
} sl_msg_group_join;

/* What a GROUP message says. The numbers of `group` are those of one forming of the group, chosen by rank 0. */
typedef enum {
    SL_GROUP_WELCOME, /* rank 0: all ranks have joined and agree; load the weights */
    SL_GROUP_READY,   /* to rank 0: the weights are loaded, and this rank is in no forming of the group */
    SL_GROUP_INVITE,  /* rank 0: enter this forming with the invitation (collectives/comm.h) */
    SL_GROUP_BROKEN,  /* this forming has ended, `reason` says why; rank 0 passes it on */
    SL_GROUP_RING,    /* take part in step `step` of this forming; rank 0 passes it on */
    SL_GROUP_NEWS_COUNT,
} sl_group_news;

typedef struct sl_msg_group {
    uint8_t news;     /* sl_group_news */
    uint64_t forming; /* 0: none (WELCOME, READY) */
    uint64_t step;    /* RING: counted from 1 within the forming */
    char reason[256];
    sl_blob invite;
    sl_key fingerprint; /* WELCOME: of the whole checkpoint, as rank 0 has it; else zero */
} sl_msg_group;

typedef struct sl_msg {
    sl_msg_type type;
    union {
        sl_msg_hello hello;
        sl_msg_welcome welcome;
        sl_msg_refuse refuse;
        sl_msg_load load;
        sl_msg_ping ping; /* PING, PONG */
        sl_msg_reserve reserve;
        sl_msg_reserved reserved;
        sl_msg_prefill prefill;
        sl_msg_prefilled prefilled;
        sl_msg_failed failed;
        sl_msg_peer_hello peer_hello;
        sl_msg_peer_welcome peer_welcome;
        sl_msg_commit commit;
        sl_msg_tokens tokens;
        sl_msg_joined joined;
        sl_msg_done done;
        sl_msg_retracted retracted;
        sl_msg_id id; /* DRAINED */
        sl_msg_abort abort;
        sl_msg_kv_events kv_events;
        sl_msg_pages_ask pages_ask;
        sl_msg_pages_crc pages_crc;
        sl_msg_prefetch prefetch;
        sl_msg_lease_ask lease_ask;
        sl_msg_lease lease;
        sl_msg_lease_end lease_end;
        sl_msg_lease_damaged lease_damaged;
        sl_msg_group_join group_join;
        sl_msg_group group;
        sl_msg_cache_ask cache_ask;
        sl_msg_cache_pages cache_pages;
        sl_msg_cache_job cache_job;
        sl_msg_loading loading;
        /* DRAIN, LEAVE, FLUSH_CACHE, KV_RESYNC have no body */
    };
} sl_msg;

/* Appends the message's bytes (type and version first) to w. */
void sl_msg_encode(const sl_msg *msg, sl_wr *w);
/* Decodes; blobs stay borrowed from bytes. SL_ERR_CORRUPT: err names the message type and the field, and there is
 * nothing to free. */
sl_status sl_msg_decode(const void *bytes, size_t n, sl_msg *out, sl_err *err);
/* Frees a decoded message's arrays; the struct itself is the caller's. */
void sl_msg_free(sl_msg *msg);
/* The thread of the worker that hangs, as a sentence for logs; NULL: none does. */
const char *sl_msg_load_hangs(const sl_msg_load *l, uint32_t dead_after_ms);
const char *sl_msg_type_name(sl_msg_type type);
const char *sl_role_name(sl_role role);
const char *sl_finish_name(sl_finish finish);
const char *sl_medium_name(sl_medium medium);
const char *sl_msg_cache_action_name(sl_cache_action action);
const char *sl_msg_cache_state_name(sl_cache_state state);

#endif
