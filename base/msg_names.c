/* What logs, metrics and answers call the values of the enumerations of base/msg.h. A value that a newer process sends is "unknown". */
#include "base/msg.h"

const char *sl_msg_type_name(sl_msg_type type)
{
    static const char *const names[SL_MSG_TYPE_COUNT] = {
        [SL_MSG_HELLO] = "hello",
        [SL_MSG_WELCOME] = "welcome",
        [SL_MSG_REFUSE] = "refuse",
        [SL_MSG_LOAD] = "load",
        [SL_MSG_PING] = "ping",
        [SL_MSG_PONG] = "pong",
        [SL_MSG_RESERVE] = "reserve",
        [SL_MSG_RESERVED] = "reserved",
        [SL_MSG_PREFILL] = "prefill",
        [SL_MSG_PREFILLED] = "prefilled",
        [SL_MSG_FAILED] = "failed",
        [SL_MSG_PEER_HELLO] = "peer_hello",
        [SL_MSG_PEER_WELCOME] = "peer_welcome",
        [SL_MSG_COMMIT] = "commit",
        [SL_MSG_TOKENS] = "tokens",
        [SL_MSG_DONE] = "done",
        [SL_MSG_RETRACTED] = "retracted",
        [SL_MSG_ABORT] = "abort",
        [SL_MSG_DRAINED] = "drained",
        [SL_MSG_DRAIN] = "drain",
        [SL_MSG_FLUSH_CACHE] = "flush_cache",
        [SL_MSG_KV_EVENTS] = "kv_events",
        [SL_MSG_PAGES_ASK] = "pages_ask",
        [SL_MSG_PAGES_CRC] = "pages_crc",
        [SL_MSG_PREFETCH] = "prefetch",
        [SL_MSG_KV_RESYNC] = "kv_resync",
        [SL_MSG_LEASE_ASK] = "lease_ask",
        [SL_MSG_LEASE] = "lease",
        [SL_MSG_LEASE_END] = "lease_end",
        [SL_MSG_LEASE_DAMAGED] = "lease_damaged",
        [SL_MSG_GROUP_JOIN] = "group_join",
        [SL_MSG_GROUP] = "group",
        [SL_MSG_CACHE_ASK] = "cache_ask",
        [SL_MSG_CACHE_PAGES] = "cache_pages",
        [SL_MSG_CACHE_JOB] = "cache_job",
        [SL_MSG_LOADING] = "loading",
        [SL_MSG_LEAVE] = "leave",
        [SL_MSG_SCORES] = "scores",
        [SL_MSG_JOINED] = "joined",
    };
    return (unsigned)type < SL_MSG_TYPE_COUNT && names[type] ? names[type] : "unknown";
}

const char *sl_role_name(sl_role role)
{
    static const char *const names[] = {[SL_ROLE_ROUTER] = "router",
                                        [SL_ROLE_PREFILL] = "prefill",
                                        [SL_ROLE_DECODE] = "decode",
                                        [SL_ROLE_BOTH] = "both"};
    return (unsigned)role < SL_COUNT(names) ? names[role] : "unknown";
}

const char *sl_finish_name(sl_finish finish)
{
    static const char *const names[] = {[SL_FINISH_NONE] = "none",
                                        [SL_FINISH_STOP] = "stop",
                                        [SL_FINISH_LENGTH] = "length",
                                        [SL_FINISH_ABORT] = "abort",
                                        [SL_FINISH_ERROR] = "error"};
    return (unsigned)finish < SL_COUNT(names) ? names[finish] : "unknown";
}

const char *sl_medium_name(sl_medium medium)
{
    static const char *const names[SL_MEDIUM_COUNT] = {
        [SL_MEDIUM_HOST] = "host", [SL_MEDIUM_DISK] = "disk", [SL_MEDIUM_SHARED] = "shared"};
    return (unsigned)medium < SL_MEDIUM_COUNT ? names[medium] : "unknown";
}

const char *sl_msg_cache_action_name(sl_cache_action action)
{
    static const char *const names[SL_CACHE_ACTIONS] = {[SL_CACHE_LIST] = "list",
                                                        [SL_CACHE_STATUS] = "status",
                                                        [SL_CACHE_VERIFY] = "verify",
                                                        [SL_CACHE_DROP] = "drop",
                                                        [SL_CACHE_CANCEL] = "cancel"};
    return (unsigned)action < SL_CACHE_ACTIONS ? names[action] : "unknown";
}

const char *sl_msg_cache_state_name(sl_cache_state state)
{
    static const char *const names[SL_CACHE_STATES] = {[SL_CACHE_NONE] = "none",
                                                       [SL_CACHE_RUNNING] = "running",
                                                       [SL_CACHE_DONE] = "done",
                                                       [SL_CACHE_CANCELLED] = "cancelled"};
    return (unsigned)state < SL_CACHE_STATES ? names[state] : "unknown";
}

const char *sl_msg_load_hangs(const sl_msg_load *l, uint32_t dead_after_ms)
{
    uint64_t most = (uint64_t)SL_ENGINE_PATIENCE * dead_after_ms;
    if (l->engine_age_ms > most)
        return "its engine makes no progress";
    if (l->checker_age_ms > most)
        return "its checker thread makes no progress";
    return l->copier_age_ms > most ? "its copier thread makes no progress" : NULL;
}
