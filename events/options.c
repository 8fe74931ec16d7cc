/* The options of the events in the configuration; see events.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "events/events.h"

enum {
    BATCHES = 10000, /* that wait for one slow subscriber, and that are kept for replay */
    REPLAY_BYTES = 64 << 20,
};

typedef struct zmq_options {
    char endpoint[SL_EVENTS_ENDPOINT_MAX], replay_endpoint[SL_EVENTS_ENDPOINT_MAX], topic[256];
    int form; /* sl_events_form */
} zmq_options;

static const char *const forms[] = {[SL_EVENTS_MAP] = "map", [SL_EVENTS_ARRAY] = "array", NULL};

static const sl_option rows[] = {
    SL_OPTION(
        zmq_options, endpoint, SL_OPTION_TEXT, 0, "", 0, 0,
        "Where decode workers publish, over ZeroMQ and in the format of vLLM, which pages enter and leave their caches, "
        "for routers of other projects (docs/caching.md): tcp://HOST:PORT, to which worker N adds N, or ipc://PATH. "
        "Empty: off."),
    SL_OPTION(
        zmq_options, replay_endpoint, SL_OPTION_TEXT, 0, "", 0, 0,
        "Where subscribers ask for batches that they have missed; each worker adds its number, as above. Kept are the newest "
        "10,000 batches, at most 64 MiB. Empty: off."),
    SL_OPTION(
        zmq_options, topic, SL_OPTION_TEXT, 0, "kv@{worker}@{model}", 0, 0,
        "Topic of the messages. {worker} (decode/0), {model} (model.served_name) and {host} are replaced."),
    SL_OPTION_NAMES(
        zmq_options, form, 0, "map", forms,
        "Form of an event. map: as vLLM since version 0.24. array: positional, as before and as SGLang."),
};

static sl_status finish(void *values, sl_err *err)
{
    const zmq_options *o = values;
    if (!strcmp(o->endpoint, o->replay_endpoint))
        return sl_fail(err, SL_ERR_INVALID, "replay_endpoint: is the same as events.zmq.endpoint (%s)",
                       o->endpoint);
    return o->topic[0] ? SL_OK : sl_fail(err, SL_ERR_INVALID, "topic: is empty");
}

const sl_options sl_events_table = {.section = "events.zmq",
                                    .name = "zmq",
                                    .on = "endpoint",
                                    .needs_share_all = true,
                                    .rows = rows,
                                    .n = SL_COUNT(rows),
                                    .bytes = sizeof(zmq_options),
                                    .finish = finish};

/* The endpoint of this worker; "" stays "". */
static sl_status endpoint_of(const char *key, const char *configured, int index,
                             char out[SL_EVENTS_ENDPOINT_MAX], sl_err *err)
{
    out[0] = 0;
    if (!configured[0])
        return SL_OK;
    sl_status st = sl_events_endpoint(configured, index, out, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, "%s", key);
}

sl_status sl_events_open_configured(const void *options, const sl_events_worker *w, sl_events **out,
                                    sl_err *err)
{
    const zmq_options *c = options;
    char endpoint[SL_EVENTS_ENDPOINT_MAX], replay[SL_EVENTS_ENDPOINT_MAX], topic[256], host[64] = "";
    *out = NULL;
    if (!c || !c->endpoint[0])
        return SL_OK;
    SL_TRY(endpoint_of("events.zmq.endpoint", c->endpoint, w->index, endpoint, err));
    SL_TRY(endpoint_of("events.zmq.replay_endpoint", c->replay_endpoint, w->index, replay, err));
    gethostname(host, sizeof host - 1);
    if (!sl_events_topic(c->topic, w->name, w->model, host, topic, sizeof topic))
        return sl_fail(err, SL_ERR_INVALID, "events.zmq.topic: is too long with the names filled in");
    sl_events_opts o = {.endpoint = endpoint,
                        .replay_endpoint = replay,
                        .topic = topic,
                        .form = (sl_events_form)c->form,
                        .medium = {[SL_MEDIUM_HOST] = "cpu", [SL_MEDIUM_DISK] = "STORAGE"},
                        .hwm = BATCHES,
                        .buffer_steps = BATCHES,
                        .buffer_bytes = REPLAY_BYTES,
                        .resend_all = true,
                        .metrics = w->metrics};
    return sl_events_open(&o, out, err);
}

static sl_status check_endpoint(const char *key, const char *endpoint, bool (*is_loopback)(const char *host),
                                sl_err *err)
{
    char host[SL_EVENTS_ENDPOINT_MAX], own[SL_EVENTS_ENDPOINT_MAX];
    SL_TRY(endpoint_of(key, endpoint, 0, own, err));
    sl_events_endpoint_host(endpoint, host, sizeof host);
    if (!endpoint[0] || strncmp(endpoint, "tcp:", 4) != 0 || is_loopback(host))
        return SL_OK;
    return sl_fail(
        err, SL_ERR_INVALID,
        "%s is \"%s\", which other hosts reach, and subscribers are not authenticated: they read the "
        "token ids of prompts. Use a loopback address or ipc://, or set cluster.insecure: [events]",
        key, endpoint);
}

sl_status sl_events_check_exposure(const void *options, bool (*is_loopback)(const char *host), sl_err *err)
{
    const zmq_options *o = options;
    if (!o)
        return SL_OK;
    SL_TRY(check_endpoint("events.zmq.endpoint", o->endpoint, is_loopback, err));
    return check_endpoint("events.zmq.replay_endpoint", o->replay_endpoint, is_loopback, err);
}
