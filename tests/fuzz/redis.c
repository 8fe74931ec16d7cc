/* Arbitrary bytes as every text that the Redis tier reads: whatever is accepted lies in its limits. */
#include <stdlib.h>
#include <string.h>

#include "kvstore/redis_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_address(const sl_redis_address *a)
{
    if (a->port < 0 || a->port > 65535 || !memchr(a->host, 0, sizeof a->host))
        abort();
}

static void nodes(const char *text, size_t n)
{
    sl_redis_node node;
    size_t at = 0;
    while (sl_redis_node_next(text, n, &at, &node)) {
        size_t range = 0;
        int first, last;
        check_address(&node.at);
        while (sl_redis_range_next(&node, &range, &first, &last))
            if (first < 0 || last < first || last >= SL_REDIS_SLOTS)
                abort();
    }
    if (at != n)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    char *copy = malloc(size + 1), policy[32];
    sl_redis_redirect to;
    sl_redis_address address;
    uint64_t v;
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    copy[size] = '\0';
    if (sl_redis_redirect_parse(text, size, &to)) {
        check_address(&to.to);
        if (to.slot < 0 || to.slot >= SL_REDIS_SLOTS)
            abort();
    }
    if (sl_redis_address_parse(copy, &address, NULL) == SL_OK)
        check_address(&address);
    nodes(text, size);
    (void)sl_redis_info_u64(text, size, "maxmemory", &v);
    if (sl_redis_info_text(text, size, "maxmemory_policy", policy, sizeof policy) &&
        !memchr(policy, 0, sizeof policy))
        abort();
    sl_redis_rule rule;
    if (sl_redis_rule_parse(copy, &rule, NULL) == SL_OK) {
        if (rule.port < 0 || rule.port > 65535 || rule.bits < 0 || rule.bits > 128)
            abort();
        sl_redis_address self = {.port = rule.port ? rule.port : 1};
        memcpy(self.host, rule.host, sizeof self.host);
        if (!sl_redis_rule_allows(&rule, &self))
            abort();
        (void)sl_redis_rule_allows(&rule, &to.to);
    }
    if (sl_redis_slot(text, size) >= SL_REDIS_SLOTS)
        abort();
    free(copy);
    return 0;
}
