/* The texts of the configuration from which a worker makes its own endpoints and its topic. See events.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "events/events.h"

static const char tcp[] = "tcp://", ipc[] = "ipc://";

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The port at the end of a TCP endpoint; 0: there is none. */
static long port_of(const char *endpoint, size_t *before)
{
    const char *colon = strrchr(endpoint + strlen(tcp), ':');
    if (!colon || colon == endpoint + strlen(tcp) || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5)
        return 0;
    *before = (size_t)(colon - endpoint);
    return strtol(colon + 1, NULL, 10);
}

sl_status sl_events_endpoint(const char *configured, int index, char out[SL_EVENTS_ENDPOINT_MAX], sl_err *err)
{
    size_t before = 0;
    int n;
    if (begins(configured, tcp)) {
        long port = port_of(configured, &before);
        if (port < 1 || port + index > 65535)
            return sl_fail(
                err, SL_ERR_INVALID,
                "\"%.200s\": worker %d needs a port from 1 to 65535 (tcp://HOST:PORT, plus its number)",
                configured, index);
        n = snprintf(out, SL_EVENTS_ENDPOINT_MAX, "%.*s:%ld", (int)before, configured, port + index);
    } else if (begins(configured, ipc) && configured[strlen(ipc)]) {
        n = snprintf(out, SL_EVENTS_ENDPOINT_MAX, "%s-%d", configured, index);
    } else {
        return sl_fail(err, SL_ERR_INVALID, "\"%.200s\" is neither tcp://HOST:PORT nor ipc://PATH",
                       configured);
    }
    return n < SL_EVENTS_ENDPOINT_MAX ? SL_OK : sl_fail(err, SL_ERR_INVALID, "is too long");
}

void sl_events_endpoint_host(const char *endpoint, char *out, size_t cap)
{
    size_t before = 0;
    out[0] = 0;
    if (!begins(endpoint, tcp) || !port_of(endpoint, &before))
        return;
    const char *host = endpoint + strlen(tcp);
    size_t n = before - strlen(tcp);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') { /* IPv6 */
        host++;
        n -= 2;
    }
    if (n < cap && !(n == 1 && host[0] == '*'))
        snprintf(out, cap, "%.*s", (int)n, host);
}

bool sl_events_topic(const char *pattern, const char *worker, const char *model, const char *host, char *out,
                     size_t cap)
{
    const struct {
        const char *name, *value;
    } known[] = {{"{worker}", worker}, {"{model}", model}, {"{host}", host}};
    size_t n = 0;
    while (*pattern) {
        const char *piece = pattern;
        size_t len = 1, skip = 1;
        for (size_t i = 0; i < SL_COUNT(known); i++) {
            if (begins(pattern, known[i].name)) {
                piece = known[i].value;
                len = strlen(piece);
                skip = strlen(known[i].name);
            }
        }
        if (n + len >= cap)
            return false;
        memcpy(out + n, piece, len);
        n += len;
        pattern += skip;
    }
    out[n] = 0;
    return true;
}
