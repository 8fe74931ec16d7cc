/*
 * The table of metrics. Names follow the rules of Prometheus: the prefix sluice_, base units, _total for counters. The
 * names with vllm: are those that llm-d and the Gateway API inference extension scrape. The bucket bounds of TTFT,
 * inter-token latency and end-to-end latency are those that existing dashboards of inference servers use.
 */
#include "base/metrics.h"

#define BUCKETS(...)                                                                                         \
    {                                                                                                        \
        (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double)                \
    }
const sl_buckets sl_buckets_ttft =
    BUCKETS(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 15, 20, 25, 30);
const sl_buckets sl_buckets_itl =
    BUCKETS(.005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5);
const sl_buckets sl_buckets_e2e = BUCKETS(.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60);
const sl_buckets sl_buckets_short =
    BUCKETS(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5);
const sl_buckets sl_buckets_wire = BUCKETS(5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7e-4, .001, .0015, .002, .0025, .003,
                                           .004, .005, .0075, .01, .02, .05, .1, .5, 1);
const sl_buckets sl_buckets_batch = BUCKETS(1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024);
const sl_buckets sl_buckets_age =
    BUCKETS(1, 5, 15, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400);

#define R SL_METRICS_ROUTER
#define P SL_METRICS_PREFILL
#define D SL_METRICS_DECODE
#define W SL_METRICS_WORKERS
#define G SL_METRICS_RANK
#define ALL SL_METRICS_ALL
#define COUNTER(name, roles, labels, help)                                                                   \
    {                                                                                                        \
        name, SL_METRIC_COUNTER, roles, labels, NULL, false, help                                            \
    }
#define SECONDS(name, roles, labels, help)                                                                   \
    {                                                                                                        \
        name, SL_METRIC_COUNTER, roles, labels, NULL, true, help                                             \
    }
#define GAUGE(name, roles, labels, help)                                                                     \
    {                                                                                                        \
        name, SL_METRIC_GAUGE, roles, labels, NULL, false, help                                              \
    }
#define HIST(name, roles, labels, set, help)                                                                 \
    {                                                                                                        \
        name, SL_METRIC_HISTOGRAM, roles, labels, &sl_buckets_##set, false, help                             \
    }

#define TIER "tier=disk|nixl|redis|workers" /* every tier that a worker can have */

static const sl_metric_def table[] = {
    GAUGE("sluice_build_info", ALL, "version,role,backend", "Always 1; the labels say what runs."),
    GAUGE(
        "sluice_start_seconds", W, "phase=fingerprint|weights|pinning|engine",
        "What the phases of the start took. On a GPU the host store is pinned while the weights are loaded."),

    /* workers: constraints */
    COUNTER(
        "sluice_constraints_compiled_total", W, "result=compiled|kept|refused",
        "Constraints of requests that were compiled, were kept from an earlier request, or were refused."),
    SECONDS("sluice_constraints_compile_seconds_total", W, "", "Time spent compiling constraints."),
    HIST("sluice_constraint_mask_seconds", W, "", short,
         "Time to follow a constraint by a token and to find which tokens it allows next."),

    /* router: requests */
    COUNTER(
        "sluice_requests_total", R,
        "api=chat|completions|generate,outcome=stop|length|cancelled|deadline|rejected|invalid|failed|data_loss",
        "Requests finished, by how they ended."),
    GAUGE("sluice_requests_running", R, "", "Requests placed on workers and not finished."),
    GAUGE("sluice_requests_waiting", R, "", "Requests in the router's queue."),
    COUNTER("sluice_prompt_tokens_total", R, "", "Prompt tokens of accepted requests."),
    COUNTER("sluice_cached_prompt_tokens_total", R, "", "Prompt tokens whose rows were already cached."),
    COUNTER("sluice_generation_tokens_total", R, "", "Tokens produced for clients."),
    HIST("sluice_time_to_first_token_seconds", R, "", ttft, "From a request's arrival to its first token."),
    HIST("sluice_inter_token_latency_seconds", R, "", itl, "Between successive tokens of one stream."),
    HIST("sluice_request_duration_seconds", R, "", e2e, "From a request's arrival to its end."),
    HIST("sluice_request_queue_seconds", R, "", ttft, "Time a request waited for a worker."),
    HIST("sluice_request_stage_seconds", R, "stage=tokenize|reserve|prefill|transfer|decode", ttft,
         "Time a request spent in one stage."),
    HIST("sluice_router_overhead_seconds", R, "", short,
         "Time that a request spends in the router itself before it reaches a worker."),
    COUNTER("sluice_request_retries_total", R, "stage=reserve|prefill|transfer|decode",
            "Requests started again after a worker failed or refused, by the stage that was lost."),
    COUNTER("sluice_stream_resumes_total", R, "",
            "Streams that another worker continued after tokens had been sent."),
    COUNTER(
        "sluice_trace_spans_total", R, "result=exported|dropped|failed",
        "Spans of traces by what became of them: the collector has them; there was no room to keep them for it; it did not take "
        "them."),
    COUNTER("sluice_client_disconnects_total", R, "",
            "Requests cancelled because their client closed the connection."),
    COUNTER("sluice_http_responses_total", R, "path,code", "HTTP responses."),
    COUNTER("sluice_grpc_responses_total", R, "method,code", "gRPC responses, by status code name."),
    COUNTER("sluice_tenant_calls_total", R, "tenant,result=accepted|refused",
            "Calls of a tenant of router.keys_file, by whether its limits let them in."),
    COUNTER("sluice_tenant_tokens_total", R, "tenant,kind=prompt|output",
            "Tokens of a tenant of router.keys_file: of prompts that were admitted, and of outputs."),
    GAUGE("sluice_connections", R, "protocol=http|grpc", "Open client connections."),
    COUNTER(
        "sluice_connections_closed_total", R, "protocol=http|grpc,reason=limit|handshake|receive|idle|unread",
        "Connections and requests ended by the router: too many connections (gRPC only), a handshake or a body "
        "that took too long, no request, or a client that does not read."),
    GAUGE(
        "sluice_request_bytes", R, "",
        "Bytes of router.max_request_bytes in use: bodies of requests in flight, what they were parsed into, and "
        "answers that their clients have not taken."),
    HIST("sluice_router_loop_turn_seconds", R, "", short,
         "Time that one turn of the router's loop takes, without the time it sleeps."),
    HIST(
        "sluice_router_loop_turn_cpu_seconds", R, "", short,
        "CPU time that one turn of the router's loop takes: the same without the time in which other processes had the CPU."),
    HIST(
        "sluice_router_tokens_written_seconds", R, "from=arrival|step", wire,
        "Time until the tokens of a worker's message were given to the sockets of all their clients. arrival: since the message "
        "arrived. step: since the step that made them ended, of workers on the router's host."),
    COUNTER(
        "sluice_placements_total", R, "reason=prefix|load|order",
        "Placements by what decided them: a cached prefix, the loads of the workers, or round-robin order."),
    COUNTER(
        "sluice_repeated_tokens_total", R, "result=equal|different",
        "Tokens that were sent before damage was found in the rows that they were computed from, and that were computed "
        "again. The stream of one that is different ends with the error data_loss."),
    COUNTER(
        "sluice_workers_set_aside_total", R, "reason=pages|alone",
        "Workers that took no other request for a while: one that was refused pages and passed waited for them, or "
        "a request ran alone because workers had died with it."),

    COUNTER(
        "sluice_router_copies_total", R, "",
        "Requests that were placed where pages of their prompt are read from the memory of another decode worker."),
    COUNTER(
        "sluice_router_prefetches_total", R, "outcome=sent|used|withdrawn",
        "Requests that were announced to a decode worker while they waited; those that were then placed there; and those "
        "that ended before, or were placed elsewhere."),

    /* router: the directory of cached pages */
    GAUGE(
        "sluice_directory_pages", R, "medium=host|disk|shared",
        "Pages that the decode workers have reported, each once for every worker that holds it in this medium."),
    GAUGE("sluice_directory_bytes", R, "", "Memory of the directory, which router.directory_bytes bounds."),
    COUNTER("sluice_directory_lookups_total", R, "", "Prompts whose pages were looked up."),
    COUNTER("sluice_directory_lookup_pages_total", R, "", "Pages that were looked up."),
    COUNTER("sluice_directory_forgotten_pages_total", R, "",
            "Pages forgotten because the directory was full."),
    COUNTER("sluice_directory_gaps_total", R, "",
            "Reports of decode workers that were lost, as the numbers of later ones showed."),
    COUNTER("sluice_directory_resyncs_total", R, "", "Full reports that the router asked for after a gap."),

    /* router: workers */
    GAUGE("sluice_workers", R, "role=prefill|decode|both,state=ready|draining|dead",
          "Workers known to the router."),
    COUNTER("sluice_worker_failures_total", R, "role=prefill|decode|both", "Workers lost."),
    COUNTER("sluice_worker_joins_total", R, "role=prefill|decode|both", "Workers that joined."),

    /* transport and messages */
    COUNTER("sluice_transport_bytes_total", ALL, "op=put|get|message",
            "Bytes sent (put, message) or fetched (get)."),
    COUNTER("sluice_transport_operations_total", ALL, "op=put|get|message,outcome=ok|failed",
            "Transport operations completed."),
    GAUGE("sluice_transport_peers", ALL, "", "Peers connected now."),
    COUNTER("sluice_transport_peer_failures_total", ALL, "", "Connections lost to failure."),
    COUNTER("sluice_messages_dropped_total", ALL, "reason=stale|malformed|unknown|refused",
            "Messages dropped: of an earlier attempt, malformed, for an unknown request, or refused at the "
            "handshake."),

    /* log */
    COUNTER("sluice_log_lines_lost_total", ALL, "",
            "Log lines lost because the reader of standard error did not read, or was gone."),

    /* prefill */
    GAUGE("sluice_prefill_requests_running", P, "", "Requests being prefilled."),
    GAUGE("sluice_prefill_requests_waiting", P, "", "Requests waiting for prefill on this worker."),
    COUNTER("sluice_prefill_tokens_total", P, "", "Prompt tokens computed."),
    COUNTER(
        "sluice_prefill_reused_tokens_total", P, "source=local|remote|ahead",
        "Prompt tokens not computed. local: their pages were in this store. remote: they were pulled from a decode worker. ahead: they "
        "were fetched from there while others of the prompt were still being loaded from a storage tier."),
    COUNTER(
        "sluice_prefill_moved_tokens_total", P, "when=arriving|complete",
        "Tokens whose rows were moved from host memory to the device instead of being computed. arriving: chunk by chunk, each when it "
        "had been fetched and compared. complete: when the whole prefix was there, as with pages of this store."),
    HIST("sluice_prefill_chunk_seconds", P, "", ttft, "Time of one chunk."),
    COUNTER(
        "sluice_state_snapshots_total", P | D, "event=made|kept|restored|damaged",
        "Snapshots of the states of models that keep some (docs/caching.md). made: by this worker. kept: added to its prefix cache. "
        "restored: to a sequence. damaged: that could not be restored; what they stood for was computed again."),
    COUNTER("sluice_transfers_total", P, "outcome=ok|aborted|failed", "Requests whose rows were shipped."),
    COUNTER("sluice_transfer_bytes_total", P, "", "Bytes of rows and index keys shipped."),
    HIST(
        "sluice_transfer_exposed_seconds", P, "", short,
        "Time between a prompt's last layer and its COMMIT: the part of shipping that is not hidden by computing."),

    /* decode */
    GAUGE("sluice_decode_requests_running", D, "", "Requests in the batch."),
    GAUGE("sluice_decode_requests_waiting", D, "", "Requests that arrived and wait for a slot."),
    HIST("sluice_decode_step_seconds", D, "", itl,
         "Time of one decode step, from its inputs to its tokens; the device's where steps are in flight."),
    HIST("sluice_decode_batch_size", D, "", batch, "Requests per step."),
    SECONDS(
        "sluice_decode_idle_seconds_total", D, "",
        "Time that the device idled between the end of a step and the beginning of the next one while requests "
        "were computed; on the cpu backend, time of the engine's thread between steps."),
    HIST("sluice_decode_tokens_sent_seconds", D, "", wire,
         "Time between the end of a step and its message to a router being given to the transport."),
    COUNTER("sluice_decode_tokens_total", D, "", "Tokens produced."),
    COUNTER(
        "sluice_decode_items_total", D, "",
        "Requests in steps, each counted once for every step: tokens over items are the tokens of a request in a step, which "
        "is 1 without drafts."),
    COUNTER("sluice_draft_tokens_total", D, "place=1|2|3|4",
            "Tokens that the MTP layer drafted, by their place after the last token."),
    COUNTER("sluice_draft_accepted_tokens_total", D, "place=1|2|3|4",
            "Of these, tokens that the model chose as well, with all before them."),
    GAUGE(
        "sluice_draft_check_ratio", D, "",
        "The part of the drafts of a fixed text that were right when the worker started; near 0 the MTP layer drafts noise. Not "
        "in a group of ranks."),
    GAUGE(
        "sluice_draft_rows_seconds", D, "",
        "With model.draft_tokens auto: how long a step waits for the rows of one token of each of its requests, as the number of "
        "drafts takes it from the state of the link. 0 where rows are on the device or arrive while the step computes."),
    SECONDS(
        "sluice_draft_seconds_total", D, "",
        "Time of drafting, which is in addition to that of steps; in a group of ranks it is a part of that of steps."),
    COUNTER(
        "sluice_sampled_tokens_total", D, "where=device|host",
        "Tokens chosen by steps, of which the host chooses those of requests for whose penalties and bias no "
        "device memory is free. A request that ends counts one token more when the next step was in flight."),
    COUNTER("sluice_decode_retractions_total", D, "",
            "Requests returned to the router because pages ran out or were damaged."),
    GAUGE("sluice_decode_requests_resident", D, "",
          "Requests in the batch whose rows are all on the device, in adaptive mode."),
    COUNTER("sluice_decode_spills_total", D, "",
            "Resident requests whose device rows were given back under pressure, in adaptive mode."),
    GAUGE("sluice_tickets", D, "state=reserved|filling|draining", "Reservations of landing pages, by state."),
    COUNTER("sluice_tickets_total", D, "outcome=committed|aborted|expired|refused",
            "Reservations ended or refused."),
    COUNTER("sluice_checksum_failures_total", W, "",
            "Pages that arrived or were pulled and did not match their checksum."),
    COUNTER(
        "sluice_store_damaged_pages_total", W, "where=reused|running|fetched|verify",
        "Pages of the host store that differ from their kept checksum and were dropped: found before another "
        "request used them, while a request was running, when a step fetched their rows (kvstore.verify rows), or by `sluice cache verify`."),
    GAUGE("sluice_device_kv_bytes", D, "state=used|total",
          "Device memory for index keys and hot rows; of models whose layers keep states also these."),
    GAUGE("sluice_device_pool_bytes", D, "kind=states|hot|index|rows",
          "What requests hold of one pool of device memory, of models whose layers keep states."),
    COUNTER("sluice_device_pool_moved_bytes_total", D, "",
            "Memory of that pool that was taken from where no request held it any more, for another use."),

    /* swap-in */
    COUNTER("sluice_swap_rows_total", D, "layer,result=hit|miss",
            "Selected rows found hot or fetched from the store."),
    COUNTER("sluice_swap_evictions_total", D, "layer", "Hot rows evicted to make room for missing ones."),
    COUNTER(
        "sluice_attention_tiles_total", D, "result=read|skipped",
        "Tiles of 64 tokens of queries that may leave out tiles, with the algorithm skip_softmax; with xattention those of prompts, "
        "counted on the cpu backend alone."),
    COUNTER("sluice_swap_bytes_total", D, "", "Bytes of rows fetched from the store."),
    SECONDS(
        "sluice_swap_hidden_seconds_total", D, "",
        "Swap-in time that was hidden by computing; 0 on the cpu backend, which copies and computes in turn."),
    SECONDS("sluice_swap_exposed_seconds_total", D, "", "Swap-in time that computing waited for."),

    /* host store */
    /* ranks of a group */
    GAUGE("sluice_group_formed", G, "", "Whether the group of this rank is formed: 1 or 0."),
    COUNTER("sluice_group_formings_total", G, "", "How often the group of this rank has formed."),
    COUNTER("sluice_group_breaks_total", G, "",
            "How often it broke because a rank was lost, left or failed."),
    COUNTER("sluice_group_steps_total", G, "tokens=own|none",
            "Steps of the group in which some rank had tokens: this one, or only others."),
    COUNTER(
        "sluice_group_tokens_total", G, "rank=own|slowest|all",
        "Tokens in steps of the group, padding included: of this rank, of the rank with the most in each step, and of all "
        "ranks. slowest times the number of ranks, divided by all, is the imbalance: 1 if every rank has the same."),
    HIST(
        "sluice_group_step_wait_seconds", G, "", short,
        "Time that this rank waited at the beginning of a step until all ranks were there: the skew between ranks."),
    SECONDS(
        "sluice_group_exchange_hidden_seconds_total", G, "",
        "Time in exchanges of rows between ranks during which this rank computed, with what it waited for at their end; 0 on "
        "the cpu backend, which waits."),
    SECONDS(
        "sluice_group_exchange_exposed_seconds_total", G, "",
        "Time for which the steps of this rank waited in exchanges of rows, for the bytes and for slower ranks. What GPUs write "
        "into each other's memory while they compute, in steps of many tokens, is in neither time."),
    SECONDS(
        "sluice_group_exchange_wait_seconds_total", G, "",
        "Part of both times in which this rank had sent everything and waited for the rows of others: for slower ranks, and for "
        "bytes on the link. 0 where NCCL moves the rows."),
    COUNTER("sluice_group_exchange_bytes_total", G, "",
            "Bytes of rows and results that this rank sent to other ranks."),
    GAUGE("sluice_group_experts", G, "", "Routed experts of each layer that this rank holds."),
    COUNTER(
        "sluice_group_expert_rows_total", G, "expert=all|busiest",
        "Rows that the routed experts of this rank computed, from all ranks: of all its experts, and of the one with the most "
        "in each layer and step. busiest times sluice_group_experts, divided by all, is the imbalance of its experts."),

    GAUGE("sluice_kv_pages", W, "state=total|free|cached|active|landing",
          "Pages of the host store, by state."),
    GAUGE("sluice_kv_arena_bytes", W, "", "Size of the host store."),
    COUNTER("sluice_kv_prefix_queries_tokens_total", W, "", "Tokens looked up in the prefix tree."),
    COUNTER("sluice_kv_prefix_hits_tokens_total", W, "", "Tokens found in the prefix tree."),
    COUNTER("sluice_kv_evictions_total", W, "", "Cached pages evicted."),
    HIST(
        "sluice_eviction_age_seconds", W, "tier=host|disk,since=use|stored", age,
        "Age of pages when they were evicted. use: since a request used them last. stored: since they entered the host store "
        "or the disk tier. For pages that a start has found on disk both count from that start."),
    GAUGE(
        "sluice_tenant_cached_pages", D, "tier=host|disk,tenant",
        "Pages that belong to a tenant of kvstore.quotas, to several tenants (shared), or to any other tenant (other), "
        "in use or not. Only with quotas."),
    COUNTER(
        "sluice_tenant_evicted_pages_total", D, "tier=host|disk,tenant,reason=limit|room",
        "Pages of these tenants that were evicted. limit: the tenant had more than its limit. room: the host store or the disk "
        "tier was full."),

    /* storage tiers */
    COUNTER("sluice_tier_hit_pages_total", D, TIER,
            "Pages that requests looked for in the tier and that were loaded in time."),
    COUNTER(
        "sluice_tier_miss_pages_total", D, TIER ",reason=absent|damaged|io|late|room",
        "Pages that requests looked for in the tier and that were not loaded. absent: it or a page before it is not "
        "there. damaged: likewise, because it was damaged. io: the device failed. late: not within "
        "the load_timeout_ms of the tier. room: no page of the host store for it."),
    COUNTER("sluice_tier_stored_pages_total", D, TIER,
            "Pages that were offered to the tier and are stored, or were there before."),
    COUNTER(
        "sluice_tier_lost_pages_total", D, TIER ",reason=pressure|admission|room|io|sums",
        "Pages meant for the tier that did not get there. pressure: evicted before they were written. admission: "
        "offered for the first time (kvstore.write: write_through_second), or evicted "
        "before its second use (write_through_selective). room: the tier had none that it could free. io: "
        "the device failed. sums: their kept checksums could not be read."),
    COUNTER("sluice_tier_bytes_total", D, TIER ",direction=load|store",
            "Bytes of pages that were loaded from, or stored in, the tier."),
    SECONDS("sluice_tier_seconds_total", D, TIER ",direction=load|store",
            "Durations of loads and of batches of writes, added up; they overlap."),
    COUNTER("sluice_tier_evictions_total", D, TIER, "Pages evicted from the tier."),
    GAUGE("sluice_tier_pages", D, TIER, "Pages in the tier."),
    GAUGE("sluice_tier_bytes", D, TIER ",state=used|capacity", "Size of the tier."),
    GAUGE("sluice_tier_written_bytes", D, TIER,
          "Bytes that were written to the device since the store was created: its wear."),
    GAUGE(
        "sluice_tier_state", D, TIER,
        "0: healthy, or there is no tier. 1: degraded (slow, or stores nothing). 2: failed, or the worker was started "
        "without it because it cannot be used."),
    GAUGE(
        "sluice_tier_set_aside", D, TIER,
        "1: at the start of the worker the store could not be read. It was renamed, and a new one was begun."),
    COUNTER("sluice_kv_event_batches_published_total", D, "", "Batches of events.zmq that were published."),
    COUNTER(
        "sluice_kv_event_batches_lost_total", D, "reason=queue|subscriber|replay",
        "Batches of events.zmq that were lost. queue: too many waited for the thread that publishes. subscriber: "
        "counted once each time that a slow subscriber has 10,000 batches waiting; it loses batches until it has read some. replay: a client did not read its answers."),
    COUNTER("sluice_kv_event_batches_replayed_total", D, "",
            "Batches of events.zmq that were sent again on request."),
    COUNTER("sluice_kv_event_resends_total", D, "",
            "Times all pages were published again, because a batch was lost or a subscriber had connected."),
    GAUGE("sluice_kv_event_buffer_bytes", D, "", "Bytes of batches that are kept for replay."),
    COUNTER(
        "sluice_prefetch_total", D, "result=in_time|late|cancelled|skipped",
        "Announced requests with pages in a storage tier. in_time: the load had ended when the request came. late: it "
        "had not. cancelled: the request did not come. skipped: loads of other announced requests had a quarter of the host store."),
    GAUGE("sluice_tier_requests_waiting", D, TIER, "Requests that wait for pages of the tier."),
    GAUGE("sluice_tier_read_rate_bytes", D, TIER,
          "Bytes per second of the last reads, smoothed; 0: none yet. The router's placement uses it."),

    /* host memory of other decode workers */
    COUNTER("sluice_pull_asks_total", D, "", "Leases asked of other decode workers."),
    COUNTER("sluice_pull_pages_total", D, "", "Pages read from the host memory of other decode workers."),
    COUNTER(
        "sluice_pull_miss_pages_total", D, "reason=absent|cost|peer|late",
        "Pages that requests looked for in other decode workers and that were not read. absent: no worker was named, or it "
        "does not have them any more or lends none now. cost: computing them takes less time. peer: the worker cannot be "
        "reached, failed, or failed a short time ago. late: not within kvstore.load_timeout_ms."),
    COUNTER("sluice_pull_bytes_total", D, "", "Bytes read from the host memory of other decode workers."),
    SECONDS("sluice_pull_seconds_total", D, "",
            "Time in which these reads were in flight, added up over the workers that were read."),
    GAUGE("sluice_pull_leases", D, "", "Leases that this worker holds on pages of others."),
    GAUGE("sluice_pull_leased_pages", D, "", "Pages of others under these leases."),
    GAUGE("sluice_pull_rate_bytes", D, "", "Bytes per second of the last reads, smoothed; 0: none yet."),
    COUNTER("sluice_lend_leases_total", D, "result=granted|refused",
            "Questions of other decode workers for a lease on pages of this one."),
    COUNTER("sluice_lend_pages_total", D, "", "Pages lent."),
    COUNTER("sluice_lend_expired_total", D, "",
            "Leases that were not ended in time; the connection of their reader was closed by force."),
    GAUGE("sluice_lend_leases", D, "", "Leases that other decode workers hold on pages of this one."),
    GAUGE("sluice_lend_leased_pages", D, "", "Pages under these leases: neither evicted nor written."),

    /* names that llm-d and the Gateway API inference extension scrape */
    GAUGE("vllm:num_requests_running", ALL, "model_name", "Requests running on this process."),
    GAUGE("vllm:num_requests_waiting", ALL, "model_name", "Requests waiting on this process."),
    GAUGE("vllm:kv_cache_usage_perc", ALL, "model_name", "Used share of the KV cache, 0 to 1."),
    GAUGE("vllm:cache_config_info", W, "block_size,num_gpu_blocks",
          "Always 1; page size in tokens and page count."),
};

const sl_metric_def *sl_metrics_describe(size_t *n)
{
    *n = SL_COUNT(table);
    return table;
}
