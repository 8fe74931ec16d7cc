/*
 * The configuration table: every key, once. Its sentences become configs/reference.yaml and docs/configuration.md, so
 * they are written for the person who runs the cluster. A CHOICE names an implementation: its names are in the registry
 * of the room that owns it (sl_config_bind); only those that the configuration itself adds ("auto") are here.
 */
#include "base/config_impl.h"

#include <limits.h>

/* clang-format off */
#define ROW(sec, field, type, secret, dflt, lo, hi, names, doc)                                                        \
    {                                                                                                                  \
        #sec "." #field, type, secret, offsetof(sl_config, sec.field), sizeof(((sl_config *)0)->sec.field), dflt, lo, hi,      \
        names, NULL, doc                                                                                               \
    }
/* clang-format on */
#define STR(sec, field, dflt, doc) ROW(sec, field, SL_OPTION_TEXT, 0, dflt, 0, 0, NULL, doc)
#define SECRET(sec, field, doc) ROW(sec, field, SL_OPTION_TEXT, SL_OPTION_SECRET, "", 0, 0, NULL, doc)
#define INT(sec, field, dflt, lo, hi, doc) ROW(sec, field, SL_OPTION_INT, 0, dflt, lo, hi, NULL, doc)
#define SIZE(sec, field, dflt, lo, hi, doc) ROW(sec, field, SL_OPTION_SIZE, 0, dflt, lo, hi, NULL, doc)
#define BOOL(sec, field, dflt, doc) ROW(sec, field, SL_OPTION_BOOL, 0, dflt, 0, 0, NULL, doc)
#define ENUM(sec, field, dflt, names, doc) ROW(sec, field, SL_OPTION_ENUM, 0, dflt, 0, 0, names, doc)
#define CHOICE(sec, field, dflt, names, doc) ROW(sec, field, SL_OPTION_CHOICE, 0, dflt, 0, 0, names, doc)
#define INTS(sec, field, dflt, lo, hi, doc) ROW(sec, field, SL_OPTION_INTS, 0, dflt, lo, hi, NULL, doc)
#define STRS(sec, field, dflt, doc) ROW(sec, field, SL_OPTION_TEXTS, 0, dflt, 0, 0, NULL, doc)
#define ENUMS(sec, field, dflt, names, doc) ROW(sec, field, SL_OPTION_ENUMS, 0, dflt, 0, 0, names, doc)

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define TIB ((int64_t)1 << 40)
#define MAX_MS (24 * 3600 * 1000)
#define MAX_TOKENS (1 << 24)
#define MAX_HOT_ROWS 65534 /* SL_HOT_ROWS_MAX of kernels/params.h, which base does not include */

static const char *const automatic[] = {"auto", NULL};
static const char *const loads[] = {"auto", "dummy", NULL};
static const char *const modes[] = {"resident", "hierarchical", "adaptive", NULL};
static const char *const tristates[] = {"auto", "on", "off", NULL};
static const char *const roles[] = {"router", "prefill", "decode", "both", NULL};
static const char *const exposed[] = {
    [SL_CFG_WORKERS] = "workers", [SL_CFG_CLIENTS] = "clients", [SL_CFG_EVENTS] = "events", NULL};
static const char *const verifies[] = {"off", "sampled", "always", "rows", NULL};
static const char *const drafts[] = {"0", "1", "2", "3", "4", "auto", NULL};
static const char *const shares[] = {"all", "tenant", "none", NULL};
static const char *const prefetches[] = {"best_effort", "timeout", "wait_complete", "off", NULL};
static const char *const writes[] = {"write_through", "write_through_selective", "write_through_second",
                                     "write_back", NULL};
static const char *const levels[] = {"error", "warn", "info", "debug", "trace", NULL};

const sl_cfg_section sl_cfg_sections[] = {
    {"model", "Which checkpoint is served, and how its numbers are represented."},
    {"backend", "The device on which the model computes."},
    {"sparse_attention", "Which rows of the KV cache attention reads, and where they are kept."},
    {"kvstore", "The host store: the whole KV cache, in this process's memory."},
    {"cluster", "How the processes find each other and how the rows travel."},
    {"prefill", "Prefill workers."},
    {"decode", "Decode workers."},
    {"both",
     "Workers of role both, which compute prompts and decode in one engine. The keys of prefill and decode apply to "
     "them as well."},
    {"router", "The router: public addresses, placement, limits and deadlines."},
    {"events", "What decode workers tell other programs about their caches."},
    {"log", "Structured log on standard error."},
    {"metrics", "Prometheus exporter of a worker (the router serves /metrics on its HTTP port)."},
    {"bench",
     "For `sluice bench serve`, which sets these keys: they replace what a model would compute, so they are refused unless "
     "model.load_format is dummy."},
};
const size_t sl_cfg_nsections = SL_COUNT(sl_cfg_sections);

const sl_option sl_cfg_own[] = {
    STR(model, path, "",
        "Directory of a Hugging Face checkpoint (config.json, safetensors, tokenizer.json)."),
    STR(model, served_name, "", "Model name clients use. Empty: the name of the directory."),
    ENUM(
        model, load_format, "auto", loads,
        "auto: the weights are those of the checkpoint. dummy: they are random, made on the device; model.path needs only "
        "config.json and the tokenizer, and answers have no meaning. For measuring and for trials without the weights. All "
        "processes of a cluster must agree; pages never match those of real weights."),
    CHOICE(model, indexer, "auto", automatic,
           "Numeric convention of the indexer. plain: fp32, as in transformers. official: Hadamard transform "
           "and fp8 with power-of-two scales. auto: official for quantised checkpoints, else plain. Cached "
           "pages carry it; pages of another convention never match."),
    CHOICE(
        model, row_format, "auto", automatic,
        "How a token's KV row is stored: mla_* for models with latent attention, gqa_* for models with KV heads. "
        "auto: fp8 for quantised checkpoints, else the checkpoint's dtype."),
    INT(model, max_context, "0", 0, MAX_TOKENS,
        "Longest prompt plus output, in tokens. 0: from the checkpoint."),
    ENUM(
        model, draft_tokens, "0", drafts,
        "Tokens that the checkpoint's MTP layer drafts for a request in a step, which the model then checks: every stream stays the "
        "same, bit by bit. 0: the layer is not loaded. 1 to 4: always as many. auto: up to 4, fewer or none for requests and "
        "loads where they do not pay. With drafts one step is in flight at a time. All processes of a "
        "cluster must agree on 0 or not 0, because pages then have the rows of one more layer."),

    CHOICE(backend, name, "cpu", NULL, "Compute backend; cuda needs a build with CUDA and a GPU."),
    INTS(
        backend, devices, "", 0, 255,
        "GPU numbers. Empty: that of the local rank. One: of every process of this host. Several: of each MPI rank, in order; the "
        "router's entry is ignored."),
    INT(backend, threads, "0", 0, 1024,
        "Compute threads of the cpu backend. 0: all cores this process may use."),

    CHOICE(
        sparse_attention, algorithm, "auto", automatic,
        "dsa: the checkpoint's own indexer selects rows. msa: the same of blocks of rows, for each KV head. dense: every row. quest: blocks of rows, chosen by bounds of "
        "their keys, for models with KV heads. double_sparsity: rows, chosen by a few channels of their keys, likewise. "
        "skip_softmax: every row, but the attention kernel leaves out tiles that cannot matter. "
        "xattention: every row, but pages of a prompt read only the pages to which they attend most, likewise. "
        "snapkv: what the end of the prompt attends to, the end, and what was generated, likewise. "
        "streaming_llm: the first sink_tokens and the newest recent_tokens rows. "
        "cluster_kv: rows whose keys are in clusters near the query, for models with KV heads. "
        "pq_cache: rows, chosen by products with their quantised keys, likewise. "
        "pooled: the checkpoint's own indexer, where its keys are those of units of tokens. "
        "auto: dsa, msa or pooled for a model with an indexer, dense for every other model."),
    STR(sparse_attention, plugin, "",
        "A shared object with algorithms from outside of this program (docs/sparse-algorithms.md); it is read before all other keys, "
        "so `algorithm` can name them and their options are keys. It is code that runs with all rights of the process."),
    ENUM(sparse_attention, mode, "hierarchical", modes,
         "hierarchical: the cache lives in host memory and the device keeps index keys and a hot buffer. "
         "resident: the whole cache on the device. adaptive: requests are resident while the device has "
         "room and become hierarchical under pressure, the longest first. All give the same tokens."),
    INTS(
        sparse_attention, hot_rows, "", -1, MAX_HOT_ROWS,
        "Rows per request and layer in the hot buffer on the device, one number for all layers or one for each, in order; at least "
        "the longest list that the algorithm makes (index_topk of the model; token_budget). 0, or empty: twice that, or the whole "
        "context for an algorithm that reads every row. -1: all rows are on the device. `sluice plan --locality` makes a list from "
        "measured hits."),
    INT(sparse_attention, tail_rows, "64", 1, 65536,
        "Newest rows per request and layer that never leave the device, in addition to hot_rows."),
    INT(sparse_attention, sink_tokens, "0", 0, 65536,
        "First tokens that are always selected. "
        "With streaming_llm 0 stands for 4 if recent_tokens is 0, too."),
    INT(sparse_attention, recent_tokens, "0", 0, 65536,
        "Newest tokens that are always selected. "
        "With streaming_llm 0 stands for 512 if sink_tokens is 0, too."),
    INTS(sparse_attention, dense_layers, "", 0, SL_CFG_MAX_LAYERS - 1,
         "Layers that read every row. This departs from how the checkpoint was trained; empty for exact "
         "results."),
    INT(sparse_attention, min_tokens, "0", 0, MAX_TOKENS,
        "Requests shorter than this read every row. Selection already does so up to index_topk tokens."),

    SIZE(kvstore, bytes, "256MiB", MIB, 64 * TIB,
         "Memory of the host store, allocated once at start; too little memory is an error at start."),
    CHOICE(kvstore, layout, "auto", automatic,
           "Order of rows in memory; workers of one cluster may differ. auto: layer_first on a GPU, "
           "where fetching rows of one layer is then faster; page_first on the cpu backend."),
    ENUM(kvstore, lock, "auto", tristates,
         "Lock the store in RAM. auto: try, and log when the system refuses."),
    ENUM(
        kvstore, share, "all", shares,
        "Whose requests reuse each other's pages; read by the router. all: everybody's. tenant: those of one "
        "tenant of router.keys_file; callers that are no tenant are one tenant together. none: no request "
        "reuses pages of another, so none is found again. Within this, only requests with the same cache_salt share pages."),
    ENUM(
        kvstore, verify, "always", verifies,
        "Compare pages of the store with their kept checksums before another request uses them. always: every "
        "byte. rows: as always, and in addition every row or entry that a step fetches from the store is compared with a checksum "
        "of its own before the step's tokens are sent; takes 4 bytes of memory for each of them and each layer in addition to "
        "kvstore.bytes. sampled: one layer in eight, other ones each time, which finds pages that were overwritten, and a "
        "changed byte one time in eight. off: no checksums are kept, damage is not found, and pages are used by others as soon "
        "as they are full."),
    SIZE(
        kvstore, patrol_rate, "250MiB", 1 * MIB, 1024 * 1024 * MIB,
        "Bytes per second that a decode worker reads to verify the pages of running requests, in turn. A page that a request "
        "has filled is used by others after the next round over all its pages, and after damage the tokens since the last "
        "round are computed again. One core reads about 10 GiB per second. Without effect with verify off."),
    ENUM(
        kvstore, prefetch, "wait_complete", prefetches,
        "What a request does when its turn comes and its pages are not all loaded from a storage tier. wait_complete: it "
        "waits for them, at most kvstore.load_timeout_ms. timeout: it waits 100 ms, and 25 ms for each 1,024 tokens of its "
        "prompt. best_effort: a request that the router announced while it was queued continues at once with "
        "the pages that have arrived; one that was not announced waits as with wait_complete. off: as wait_complete, and "
        "the router announces none: requests that wait for a place are not loaded ahead. Loads of announced requests take at most a "
        "quarter of the pages of the host store at a time."),
    INT(kvstore, load_timeout_ms, "0", 0, 600000,
        "How long a request waits, in milliseconds, for pages that are read from disk, from a shared store or from another decode "
        "worker; then the tokens that are missing are computed. 0: half of router.stage_timeout_ms, at most 5000."),
    ENUM(
        kvstore, write, "write_through", writes,
        "When pages are written to the storage tiers. write_through: as soon as they are complete, so that neither a crash nor "
        "pressure on the host store loses them. write_through_selective: when a second request uses them; pages that are used "
        "once are never written. write_through_second: on the disk, when they are complete for the second time, that is after "
        "they were computed twice; elsewhere as write_through. write_back: when they are about to be evicted from the host "
        "store, and all at a stop; writes less."),
    STR(kvstore, prefix, "sluice",
        "Begins the name of every page in a shared store: 1 to 24 letters, digits, _, - or '.'. Clusters with different prefixes "
        "share nothing."),
    STRS(
        kvstore, quotas, "",
        "What tenants of router.keys_file have of the host store and of the disk tier of each decode worker, each entry NAME "
        "[share=X] [limit=X] with parts from 0 to 1. share: pages that are not evicted for others while the tenant has no more in "
        "the cache; 0 if it is left out. limit: the most that its cached pages take even when there is room; 1 if it is left out; "
        "pages of running requests do not count. The first entry may have the name *: it is for every tenant without an entry, and "
        "what others leave out. Tenants with an entry have metrics by name. Empty: the pages that were not used for longest are "
        "evicted, whoever they belong to (docs/caching.md)."),
    STRS(
        kvstore, required, "nixl,redis",
        "Storage tiers without which a decode worker refuses to start: disk, if its file system is read-only, full or not there, or "
        "the store belongs to another model; nixl, if it cannot store and read an object; redis, if the server cannot be reached. "
        "Without a tier that is not listed a worker starts (sluice_tier_state is 2); redis and a bucket are used as soon as they "
        "can be, others after the next start. Wrong credentials are refused in any case, and a disk store that is damaged is "
        "renamed to pages.damaged in any case."),
    BOOL(
        kvstore, workers.enabled, "true",
        "Decode workers read pages from the host memory of other decode workers when that takes less time than computing "
        "them, and let others read theirs. All workers of a cluster should have the same value."),

    ENUMS(cluster, roles, "", roles,
          "Role of each MPI rank, in order: router, prefill, decode or both. Empty: each process is told its "
          "role on its command line."),
    CHOICE(cluster, shipping, "auto", automatic,
           "How rows go from a prefill worker to the store of a decode worker. staging: through the prefill "
           "worker's pinned memory and the transport. gpu: from GPU memory by the transport, where UCX can. "
           "direct: written straight into the store's memory, which needs both on one host. auto: direct "
           "where it is possible, else staging. What cannot be done is refused at start with the reason."),
    STR(cluster, router_host, "127.0.0.1", "Address where workers reach the router."),
    INT(cluster, router_port, "7300", 0, 65535,
        "Port where workers reach the router. 0: any free port, which MPI passes to the other processes."),
    STRS(
        cluster, routers, "",
        "Several routers at once: the address, HOST:PORT, of each. Workers keep a session with every one of them, and "
        "the loss of one ends its own requests only. Router N (the N-th rank of its role from 0, or `sluice router "
        "--index N`) listens for workers at entry N, and for clients at router.http_port + N and router.grpc_port + N. "
        "Empty: router_host and router_port."),
    STR(cluster, advertise_host, "",
        "Address at which other processes reach this one. Empty: the local address of the route to the router."),
    INT(cluster, listen_port, "0", 0, 65535, "Port a worker listens on for other workers. 0: any free port."),
    INT(cluster, dead_after_ms, "2000", 50, 600000,
        "A worker that is silent for this long counts as dead; its requests are recovered on other workers. A router "
        "whose connection is open is given 5 times this time, and a worker whose engine has not made a turn for 10 "
        "times this time counts as dead although its heartbeats arrive. Heartbeats come ten times in it."),
    INT(cluster, connect_timeout_ms, "5000", 100, 600000,
        "Deadline for one connection attempt with its handshake."),
    STR(cluster, tls, "",
        "UCX transports (UCX_TLS), for instance rc_verbs,sm,self. Empty: UCX chooses. Network devices are those nearest to the "
        "memory, or those of UCX_NET_DEVICES in the environment."),
    STR(cluster, tag, "sluice", "Cluster name; processes with different names refuse each other."),
    STR(cluster, secret_file, "",
        "File whose first line, of at least 16 characters, is the cluster's secret. Router and workers prove to each "
        "other that they know it before they connect; it is never sent. Needed where they are reached beyond "
        "loopback."),
    BOOL(
        cluster, encrypt, "false",
        "Encrypt the messages between router and workers, prompts and tokens among them, with keys made from the "
        "secret. All processes must have the same value. Rows are not encrypted: the network card moves them."),
    ENUMS(
        cluster, insecure, "", exposed,
        "What is served beyond loopback although nothing proves who calls; a process refuses to start otherwise. workers: without a "
        "secret every program that reaches router or workers can join the cluster, and read and write its cache. clients: without a "
        "key every program that reaches the router's ports is served. events: subscribers of events.zmq are never authenticated, and "
        "read the token ids of prompts and answers."),
    STRS(
        cluster, groups, "",
        "Groups of workers that share the routed experts of the model (docs/groups.md), by role: ROLE=RANKS or "
        "ROLE=RANKS@HOST:PORT, ROLE one of prefill, decode, both. Under mpirun the first RANKS workers of the role are group 0, "
        "the next ones group 1, and so on. HOST:PORT: where rank 0 of group 0 listens for the other ranks of its group; group G "
        "has port + G. Default: 127.0.0.1:7310 for prefill, 7350 for decode, 7390 for both. A role that is not named has no "
        "groups: every worker has all experts."),

    ROW(prefill, chunk_tokens, SL_OPTION_INT, 0, "auto", 1, 65536, automatic,
        "Prompt tokens computed per step, at most; rows are shipped after every layer of a step. auto: while somebody waits (several "
        "prompts are computed, or a request decodes on a worker of role both) as many as max_step_ms allows, up to 2,048 on a GPU "
        "and 512 on the cpu backend and in groups; for a prompt that is alone the number that computes the most tokens per second, "
        "which is found by trying, in at most four times max_step_ms."),
    INT(prefill, max_step_ms, "-1", -1, 600000,
        "Time of one step, for which a prompt that arrives may have to wait: a step gets fewer tokens than chunk_tokens "
        "if they would take longer. At least 64 tokens on a GPU and 2 on the cpu backend. 0: no bound. "
        "-1: 200 ms on a GPU, 100 ms while prompts of at most 128 tokens arrive; 10 ms on the cpu backend."),
    INT(prefill, max_requests, "8", 1, 1024, "Requests that one prefill worker processes at the same time."),

    INT(decode, max_batch, "64", 1, 4096,
        "Requests that decode together in one step. Four times as many may wait on the worker for a place among them."),
    SIZE(
        decode, device_bytes, "0", 0, 16 * TIB,
        "Device memory for the KV cache: index pages and hot rows. 0: all memory that is free after the weights "
        "are loaded."),

    INT(both, max_stall_ms, "-1", -1, 600000,
        "How long the prompt tokens of a step may hold the requests back that decode in it: while any request decodes, a "
        "step gets only as many prompt tokens as take this time at the measured speed, but at least 64 on a GPU and 2 on "
        "the cpu backend. Without such requests only prefill.max_step_ms bounds a step. 0: no bound. -1: 50 ms on a GPU, "
        "10 ms on the cpu backend."),

    CHOICE(
        router, policy, "cache_aware", NULL,
        "How workers are chosen. cache_aware: the one that can begin soonest, by its load and the time to load, copy or "
        "compute the prompt; longest_prefix: the rule of former versions."),
    SIZE(
        router, directory_bytes, "256MiB", 1 * MIB, TIB,
        "Memory for the directory of cached pages: which decode worker holds which page, in host memory, on disk, or in a "
        "shared store. A page takes 32 to 64 bytes. When it is full, pages are forgotten that were not used for longest; "
        "requests then find less of their prefix."),
    INT(router, max_queue, "256", 0, 1000000,
        "Requests that may wait for a worker, of all clients. A call that would exceed it is refused at once with "
        "429 / RESOURCE_EXHAUSTED. One client may have at most four times as many requests waiting as places stay free."),
    INT(router, request_timeout_ms, "600000", 1, MAX_MS,
        "Deadline of a whole request unless the client sets one."),
    INT(router, stage_timeout_ms, "30000", 1, MAX_MS, "Deadline for a worker to make progress in one stage."),
    INT(router, retries, "3", 0, 100, "Times a request may be started again after a worker failed."),
    INT(router, drain_timeout_ms, "30000", 0, MAX_MS,
        "After SIGTERM: how long running requests may continue until they are ended."),
    STR(router, host, "127.0.0.1", "Address of the APIs for clients; 0.0.0.0 or :: for all interfaces."),
    INT(router, http_port, "8080", 0, 65535,
        "Port of the OpenAI HTTP API. 0: any free port, printed at start."),
    INT(router, grpc_port, "50051", 0, 65535, "Port of the gRPC API. 0: any free port, printed at start."),
    SECRET(router, api_key,
           "Key that clients must send as a bearer token. Empty: none. Prefer api_key_file."),
    STR(router, api_key_file, "", "File whose first line is the API key; keeps it out of process listings."),
    STR(router, keys_file, "",
        "File with one tenant per line: NAME sha256=HEX [weight=N] [requests_per_minute=N] [tokens_per_minute=N] "
        "[concurrency=N] [admin]. HEX is the SHA-256 of the tenant's key. Read again on SIGHUP."),
    STR(router, tls_cert, "",
        "PEM certificate chain; with tls_key it turns on TLS for HTTP and gRPC. The files of all three tls keys are read again "
        "on SIGHUP."),
    STR(router, tls_key, "", "PEM private key."),
    STR(router, tls_client_ca, "",
        "PEM certificates of authorities: with it every client, over HTTP and gRPC, must present a certificate that one of "
        "them signed."),
    SIZE(router, max_body_bytes, "8MiB", KIB, 1024 * MIB, "Largest request body."),
    SIZE(
        router, max_request_bytes, "256MiB", MIB, TIB,
        "Memory for the bodies of all requests in flight, what they are parsed into and their unread answers, for HTTP and gRPC "
        "together; beyond it requests are refused with 429 / RESOURCE_EXHAUSTED. A stream is ended when its client leaves 1/256 of "
        "this memory (at least 64 KiB) unread."),
    INT(router, max_output_tokens_default, "0", 0, MAX_TOKENS,
        "Output limit of a request that names none. 0: the rest of the context."),
    INT(router, max_connections, "4096", 1, 1000000,
        "Concurrent client connections, for HTTP and gRPC each, half of them from one address. Lowered at start to what the limit of "
        "file descriptors allows, less a reserve for workers."),
    INT(router, client_timeout_ms, "30000", 30, MAX_MS / 4,
        "How long the whole body of a request may take to arrive, however steadily its bytes come. A new connection "
        "has a third of this time for its TLS handshake, the HTTP/2 preface, or the headers of its first HTTP request. After four "
        "times this time a connection without a request, or whose client takes nothing of the output that waits for it, is closed."),
    CHOICE(
        router, chat_template, "auto", automatic,
        "How chat messages become a prompt. auto: by model family and the added tokens of its tokenizer. plain: role "
        "and text lines, for base models."),
    BOOL(
        router, parse_special, "false",
        "Whether text of clients that spells a special token becomes that token, where a request does not say "
        "it (field parse_special). false: prompts and messages are ordinary text, so what a user writes cannot "
        "end a turn or begin another one; the chat template's own tokens stay special."),
    STR(router, traces, "",
        "OpenTelemetry collector that gets traces of requests over OTLP/HTTP, as http://HOST[:PORT][/PATH] [sample=X]. The port is 4318 "
        "and the path /v1/traces unless given. sample: the share of the requests whose traces it gets, 1 unless given; a client that "
        "sends a traceparent decides itself. Empty: none. `sluice trace` shows the last requests in any case."),

    ENUM(
        log, level, "info", levels,
        "Least important event that is logged. info: life-cycle, two lines per request. debug: each message. "
        "trace: each step."),
    BOOL(log, json, "false", "One JSON object per line instead of key=value pairs."),

    STR(metrics, host, "127.0.0.1", "Address of the exporter."),
    INT(metrics, port, "0", 0, 64511, "Port of the exporter; a worker adds its rank. 0: off."),

    INT(bench, cached_tokens, "0", 0, MAX_TOKENS,
        "Workers of role both: these first tokens of every prompt are not computed; their pages are filled with random rows "
        "and keys, and are cached pages from then on. Rounded down to whole pages, and the last token of a prompt is always "
        "computed. 0: every prompt is computed."),
    STR(bench, selection, "off",
        "Tokens after cached_tokens attend to drawn tokens in place of the selected ones, of which the next step draws this "
        "share again: keep70, keep85, keep95, keep98 draw 70 to 98 % again; layered: by layer, as published for DeepSeek-V3.2; "
        "random: none. off: the model selects. After it, each after a /, in what part of the steps the first draft, the first two "
        "and so on stand, in place of those that the model confirms: keep85/0.85/0.68/0.50. The tokens of such streams mean nothing."),
};
const size_t sl_cfg_nown = SL_COUNT(sl_cfg_own);
