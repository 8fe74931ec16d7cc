/*
 * One filled message of every type, every field different from zero, for the codec's tests and the fuzzer's
 * seeds. Arrays are static: never sl_msg_free() a sample.
 */
#ifndef SL_TEST_MSG_SAMPLE_H
#define SL_TEST_MSG_SAMPLE_H

#include <string.h>

#include "base/msg.h"

static inline sl_msg msg_sample(sl_msg_type type)
{
    static int32_t tokens[130];
    static uint32_t words[6] = {5, 9, 0xffffffffu, 1, 2, 3};
    static sl_msg_token produced[2] = {
        {.id = 7, .logprob = -0.25f, .n_top = 2, .top_ids = {7, 8}, .top_logprobs = {-0.25f, -3.5f}},
        {.id = 11, .logprob = -1.5f},
    };
    static const uint8_t page_tokens[512] = {7};
    static const uint8_t bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    for (int i = 0; i < 130; i++)
        tokens[i] = i * 3 - 5;
    sl_msg m;
    memset(&m, 0, sizeof m);
    m.type = type;
    const sl_identity id = {.fingerprint = {0x1122334455667788u, 0x99aabbccddeeff00u},
                            .geometry = {bytes, 21}};
    const sl_msg_source source = {.worker = 5, .addr = "10.0.0.2:7000", .epoch = 9, .pages = 2};
    switch (type) {
    case SL_MSG_HELLO:
        m.hello = (sl_msg_hello){.version = 1,
                                 .role = SL_ROLE_DECODE,
                                 .name = "decode/2",
                                 .cluster_tag = "c",
                                 .model = "tiny",
                                 .listen = "127.0.0.1:4000",
                                 .metrics = "127.0.0.1:9000",
                                 .epoch = 77,
                                 .id = id,
                                 .max_context = 4096,
                                 .max_batch = 64,
                                 .total_pages = 1000,
                                 .vocab_size = 512,
                                 .pid = 42,
                                 .host = "node-1",
                                 .instance = 78,
                                 .group = 1,
                                 .rank = 2,
                                 .ranks = 4,
                                 .bits = 90};
        break;
    case SL_MSG_WELCOME:
        m.welcome = (sl_msg_welcome){3, 0xdeadbeef12345678u, 500, 3000};
        break;
    case SL_MSG_REFUSE:
        m.refuse = (sl_msg_refuse){SL_ERR_REFUSED, "row_format differs", 1};
        break;
    case SL_MSG_LOAD:
        m.load = (sl_msg_load){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 11, 12, 13, 14, 15, 16, 17, 1};
        break;
    case SL_MSG_PING:
    case SL_MSG_PONG:
        m.ping.stamp = 0x0102030405060708u;
        break;
    case SL_MSG_RESERVE:
        m.reserve = (sl_msg_reserve){.rid = 99,
                                     .attempt = 2,
                                     .prefill_worker = 1,
                                     .n_prompt = 100,
                                     .tokens = tokens,
                                     .n_tokens = 130,
                                     .deadline_ms = 5000,
                                     .sampling = {bytes, 30},
                                     .seed = {0x1122334455667788u, 0x99aabbccddeeff01u},
                                     .tenant = 0x8899aabbccddeeffu,
                                     .source = source};
        break;
    case SL_MSG_RESERVED:
        m.reserved = (sl_msg_reserved){99, 2, 0x1000000000000001u, 1, words, 3};
        break;
    case SL_MSG_PREFILL:
        m.prefill = (sl_msg_prefill){.rid = 99,
                                     .attempt = 2,
                                     .ticket = 12,
                                     .decode_worker = 4,
                                     .decode_addr = "10.0.0.1:7000",
                                     .decode_epoch = 8,
                                     .n_prompt = 130,
                                     .tokens = tokens,
                                     .n_tokens = 130,
                                     .matched_pages = 1,
                                     .pages = words,
                                     .n_pages = 3,
                                     .deadline_ms = 1,
                                     .sampling = {bytes, 3},
                                     .seed = {0x1122334455667788u, 0x99aabbccddeeff01u}};
        break;
    case SL_MSG_PREFILLED:
        m.prefilled = (sl_msg_prefilled){99, 2, 64, 1, 2, 3, 4, 6};
        break;
    case SL_MSG_FAILED:
        m.failed = (sl_msg_failed){99, 2, SL_ERR_EXHAUSTED, 1, "no pages"};
        break;
    case SL_MSG_PEER_HELLO:
        m.peer_hello = (sl_msg_peer_hello){.version = 1,
                                           .worker_id = 2,
                                           .epoch = 5,
                                           .cluster_tag = "c",
                                           .id = id,
                                           .direct_pid = 77,
                                           .decode_epoch = 6};
        break;
    case SL_MSG_PEER_WELCOME:
        m.peer_welcome =
            (sl_msg_peer_welcome){5, 0x7f0000000000u, 1u << 20, 16, {bytes, 40}, {bytes, 64}, {bytes, 48}};
        break;
    case SL_MSG_COMMIT:
        m.commit = (sl_msg_commit){.rid = 99,
                                   .attempt = 2,
                                   .ticket = 12,
                                   .worker_id = 2,
                                   .n_tokens = 130,
                                   .first_page = 1,
                                   .crc = words,
                                   .n_crc = 6,
                                   .first = produced[0],
                                   .cached_tokens = 64,
                                   .hidden = {bytes, 24}};
        break;
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
        m.tokens = (sl_msg_tokens){99, 2, 17, produced, 2};
        break;
    case SL_MSG_JOINED:
        m.joined = (sl_msg_joined){99, 2, 10, 20, 30};
        break;
    case SL_MSG_DONE:
        m.done = (sl_msg_done){99, 2, SL_FINISH_LENGTH, 11, 128, 64, 1, 2, 3};
        break;
    case SL_MSG_RETRACTED:
        m.retracted = (sl_msg_retracted){99, 2, 17, 1};
        break;
    case SL_MSG_DRAINED:
        m.id = (sl_msg_id){99, 2};
        break;
    case SL_MSG_ABORT:
        m.abort = (sl_msg_abort){99, 2, SL_ERR_CANCELLED};
        break;
    case SL_MSG_KV_EVENTS:
        m.kv_events = (sl_msg_kv_events){9, {bytes, 64}, {bytes, 16}, 1, {page_tokens, 512}, SL_MEDIUM_DISK};
        break;
    case SL_MSG_PAGES_ASK:
        m.pages_ask = (sl_msg_pages_ask){99, 2, 12, 1, 3};
        break;
    case SL_MSG_PAGES_CRC:
        m.pages_crc = (sl_msg_pages_crc){99, 2, 1, words, 6};
        break;
    case SL_MSG_PREFETCH:
        m.prefetch = (sl_msg_prefetch){.rid = 99,
                                       .attempt = 2,
                                       .tokens = tokens,
                                       .n_tokens = 130,
                                       .seed = {0x1122334455667788u, 0x99aabbccddeeff01u},
                                       .tenant = 0x8899aabbccddeeffu,
                                       .source = source};
        break;
    case SL_MSG_LEASE_ASK:
        m.lease_ask = (sl_msg_lease_ask){.lease = 77,
                                         .ms = 3000,
                                         .seed = {0x1122334455667788u, 0x99aabbccddeeff01u},
                                         .keys = {bytes, 48},
                                         .wait = 1};
        break;
    case SL_MSG_LEASE:
        m.lease = (sl_msg_lease){
            .lease = 77, .ms = 3000, .lent = 4, .pages = words, .n_pages = 3, .labels = {bytes, 60}};
        break;
    case SL_MSG_LEASE_END:
        m.lease_end = (sl_msg_lease_end){77};
        break;
    case SL_MSG_LEASE_DAMAGED:
        m.lease_damaged = (sl_msg_lease_damaged){77, 2, 3};
        break;
    case SL_MSG_GROUP_JOIN:
        m.group_join = (sl_msg_group_join){.cluster_tag = "c",
                                           .role = SL_ROLE_DECODE,
                                           .group = 3,
                                           .rank = 1,
                                           .ranks = 2,
                                           .build = "1.2.3",
                                           .formats = "mla_fp8, official",
                                           .id = id,
                                           .step_tokens = 64,
                                           .name = "decode/7",
                                           .host = "node-1",
                                           .pid = 42,
                                           .instance = 78,
                                           .host_bytes = 1ull << 40,
                                           .host_free = 3ull << 39,
                                           .host_space = 4026531836,
                                           .place = 9,
                                           .library = "NCCL 2.28.9",
                                           .device = "GPU-12ab"};
        break;
    case SL_MSG_GROUP:
        m.group = (sl_msg_group){SL_GROUP_INVITE, 5, 6, "rank 1 was lost", {bytes, 64}, {7, 8}};
        break;
    case SL_MSG_CACHE_ASK:
        m.cache_ask = (sl_msg_cache_ask){.ask = 31,
                                         .action = SL_CACHE_VERIFY,
                                         .tier = "disk",
                                         .prefix = {0x1122334455667788u, 0x99aabbccddeeff01u},
                                         .prefix_bits = 12,
                                         .cursor = 1ull << 56 | 7,
                                         .most = 100,
                                         .rate = 1 << 20};
        break;
    case SL_MSG_CACHE_PAGES:
        m.cache_pages = (sl_msg_cache_pages){31, "host", 8, {bytes, 64}};
        break;
    case SL_MSG_CACHE_JOB:
        m.cache_job = (sl_msg_cache_job){31,
                                         SL_ERR_REFUSED,
                                         "another verify is running",
                                         SL_CACHE_VERIFY,
                                         SL_CACHE_RUNNING,
                                         "disk",
                                         1,
                                         2,
                                         3,
                                         4,
                                         5,
                                         6,
                                         7,
                                         {bytes, 32}};
        break;
    case SL_MSG_LOADING:
        m.loading = (sl_msg_loading){99, 2, 17};
        break;
    default:
        break;
    }
    return m;
}

#endif
