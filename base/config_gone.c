/*
 * Keys of former versions, and what replaces each: a configuration that still has one is refused with that text.
 */
#include <string.h>

#include "base/config_impl.h"

const sl_cfg_gone_key sl_cfg_gone_keys[] = {
    {"prefill.ranks", "cluster.groups: [prefill=RANKS] says it"},
    {"prefill.group_address", "cluster.groups: [prefill=RANKS@HOST:PORT] says it"},
    {"decode.ranks", "cluster.groups: [decode=RANKS] says it"},
    {"decode.group_address", "cluster.groups: [decode=RANKS@HOST:PORT] says it"},
    {"both.ranks", "cluster.groups: [both=RANKS] says it"},
    {"both.group_address", "cluster.groups: [both=RANKS@HOST:PORT] says it"},
    {"prefill.verify_checksums", "kvstore.verify says what is compared"},
    {"decode.verify_checksums", "kvstore.verify says what is compared"},
    {"kvstore.disk.load_timeout_ms", "kvstore.load_timeout_ms is for all tiers"},
    {"kvstore.disk.write", "kvstore.write is for all tiers"},
    {"kvstore.redis.load_timeout_ms", "kvstore.load_timeout_ms is for all tiers"},
    {"kvstore.redis.write", "kvstore.write is for all tiers"},
    {"kvstore.nixl.load_timeout_ms", "kvstore.load_timeout_ms is for all tiers"},
    {"kvstore.nixl.write", "kvstore.write is for all tiers"},
    {"kvstore.workers.load_timeout_ms", "kvstore.load_timeout_ms is for all tiers"},
    {"kvstore.disk.second_use", "kvstore.write: write_through_second"},
    {"kvstore.redis.prefix", "kvstore.prefix is for all shared stores"},
    {"kvstore.nixl.prefix", "kvstore.prefix is for all shared stores"},
    {"kvstore.redis.timeout_ms", "it is always 2,000 ms"},
    {"kvstore.prefetch_timeout_ms",
     "kvstore.prefetch: timeout waits 100 ms, and 25 ms for each 1,024 tokens"},
    {"kvstore.prefetch_token_ms", "kvstore.prefetch: timeout waits 100 ms, and 25 ms for each 1,024 tokens"},
    {"kvstore.prefetch_min_tokens", "it is always 64, one page"},
    {"kvstore.numa_node",
     "the store is on the node of the GPU or of the NIC; numactl binds the process elsewhere"},
    {"kvstore.huge_pages", "huge pages are used where the system has any"},
    {"cluster.reconnect_ms", "it is always 500 ms"},
    {"router.prefetch", "kvstore.prefetch: off announces no requests"},
    {"router.imbalance_abs", "it is always 32"},
    {"router.imbalance_rel", "it is always 1.5"},
    {"router.handshake_timeout_ms", "it is a third of router.client_timeout_ms"},
    {"router.receive_timeout_ms", "router.client_timeout_ms says it"},
    {"router.idle_timeout_ms", "it is four times router.client_timeout_ms"},
    {"router.max_connections_per_address", "it is half of router.max_connections"},
    {"router.max_unread_bytes", "it is 1/256 of router.max_request_bytes, at least 64 KiB"},
    {"decode.max_waiting", "it is four times decode.max_batch"},
    {"cluster.heartbeat_ms", "it is a tenth of cluster.dead_after_ms"},
    {"cluster.group_timeout_ms", "it is always 300,000 ms"},
    {"kvstore.prefetch_budget", "it is always 0.25; kvstore.prefetch: off loads nothing ahead"},
    {"sparse_attention.policy", "it is always clock on a GPU and lru on the cpu backend"},
    {"backend.device", "backend.devices: [N] says it"},
    {"kvstore.quota.share", "kvstore.quotas: [\"* share=X\"] says it"},
    {"kvstore.quota.limit", "kvstore.quotas: [\"* limit=X\"] says it"},
    {"kvstore.quota.tenants", "kvstore.quotas has its entries"},
    {"kvstore.disk.required", "kvstore.required: [disk, nixl, redis] names the tiers"},
    {"kvstore.nixl.required", "kvstore.required: [nixl, redis] names the tiers"},
    {"kvstore.redis.required", "kvstore.required: [nixl, redis] names the tiers"},
    {"kvstore.disk.segment_bytes",
     "it is 1/64 of kvstore.disk.bytes, between 16 MiB and 256 MiB, at most 1/8"},
    {"kvstore.load_chunk_bytes", "it is 1/64 of kvstore.bytes, at most 32 MiB"},
    {"sparse_attention.hot_rows_layers", "sparse_attention.hot_rows takes one number for each layer"},
    {"sparse_attention.klabel_dtype",
     "it is always the smallest type that holds the keys of the rows exactly"},
    {"cluster.transport", "it is always ucx"},
    {"kvstore.prefix_cache", "kvstore.share: none reuses no page"},
    {"router.http_host", "router.host is the address of both APIs"},
    {"router.grpc_host", "router.host is the address of both APIs"},
    {"router.insecure", "cluster.insecure: [clients] says it"},
    {"events.zmq.insecure", "cluster.insecure: [events] says it"},
    {"cluster.devices", "UCX_NET_DEVICES in the environment names them"},
    {"events.zmq.hwm", "it is always 10,000 batches"},
    {"events.zmq.buffer_steps", "what is kept for replay is always at most 64 MiB"},
    {"events.zmq.buffer_bytes", "it is always 64 MiB"},
    {"events.zmq.resend_all", "every page is always published again when a subscriber connects"},
    {"events.zmq.medium_host", "it is always \"cpu\""},
    {"events.zmq.medium_disk", "it is always \"STORAGE\""},
};
const size_t sl_cfg_ngone = SL_COUNT(sl_cfg_gone_keys);

const char *sl_cfg_gone(const char *key)
{
    for (size_t i = 0; i < sl_cfg_ngone; i++)
        if (!strcmp(sl_cfg_gone_keys[i].key, key))
            return sl_cfg_gone_keys[i].instead;
    return NULL;
}
