/*
 * UCX transport, the instance: context, worker, progress, sleeping, statistics.
 *
 * One context and one worker per instance, so an instance belongs to one thread, its owner. Every endpoint
 * uses peer error handling, because the death of a peer must not end this process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"
#include "transport/nic.h"
#include "transport/ucx/ucx_impl.h"

enum { SHM_MIB = 16 }; /* of /dev/shm, for one process with the workers of a host as peers */

sl_status ux_status(ucs_status_t st)
{
    switch (st) {
    case UCS_OK:
        return SL_OK;
    case UCS_ERR_CANCELED:
        return SL_ERR_CANCELLED;
    case UCS_ERR_NO_MEMORY:
        return SL_ERR_NO_MEMORY;
    case UCS_ERR_INVALID_PARAM:
        return SL_ERR_INVALID;
    case UCS_ERR_UNSUPPORTED:
        return SL_ERR_UNSUPPORTED;
    case UCS_ERR_TIMED_OUT:
        return SL_ERR_TIMEOUT;
    case UCS_ERR_REJECTED:
        return SL_ERR_REFUSED;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE:
        return SL_ERR_PEER;
    default:
        return SL_ERR_IO;
    }
}

/* UCX prints to stdout by default, where our programs write their results; this function logs its lines instead. */
static ucs_log_func_rc_t on_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                const ucs_log_component_config_t *comp, const char *format, va_list ap)
{
    char text[400];
    sl_log_level to = level <= UCS_LOG_LEVEL_ERROR  ? SL_LOG_ERROR
                      : level == UCS_LOG_LEVEL_WARN ? SL_LOG_WARN
                                                    : SL_LOG_DEBUG;
    (void)function;
    if (level > comp->log_level || !sl_log_enabled(to))
        return UCS_LOG_FUNC_RC_STOP;
    vsnprintf(text, sizeof text, format, ap);
    for (char *c = text; *c; c++)
        *c = *c == '"' || *c == '\n' ? ' ' : *c;
    const char *slash = strrchr(file, '/');
    sl_log(to, "ucx", "library", "at=%s:%u text=\"%s\"", slash ? slash + 1 : file, line, text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void install_log(void)
{
    ucs_log_push_handler(on_log);
}

static sl_status create_context(ux_transport *tp, sl_err *err)
{
    ucp_config_t *config = NULL;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_log);
    SL_TRY(ux_config_read(&tp->opts, &config, err));
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
        .name = "sluice",
    };
    ucs_status_t ucs = ucp_init(&params, config, &tp->context);
    ucp_config_release(config);
    if (ucs != UCS_OK)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "ucx finds no usable transport (tls=%s net_devices=%s): %s",
                       tp->opts.tls ? tp->opts.tls : "default",
                       tp->opts.net_devices ? tp->opts.net_devices : "default", ucs_status_string(ucs));
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    if (ucp_context_query(tp->context, &attr) == UCS_OK)
        tp->memory_types = attr.memory_types;
    return SL_OK;
}

static ucs_status_t set_receiver(ux_transport *tp, unsigned id, ucp_am_recv_callback_t fn)
{
    const ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = fn,
        .arg = tp,
    };
    return ucp_worker_set_am_recv_handler(tp->worker, &handler);
}

/* UCX keeps its queues between processes of one host in /dev/shm and says only that it has no resources. Containers often
 * give it little. */
static const char *little_shared_memory(char *out, size_t cap)
{
    struct statvfs v;
    uint64_t unit = statvfs("/dev/shm", &v) == 0 ? v.f_frsize : 0;
    *out = '\0';
    if (unit && v.f_bavail * unit < (uint64_t)SHM_MIB << 20)
        snprintf(
            out, cap,
            "; /dev/shm has %llu KiB free of %llu KiB, and each process needs up to %d MiB: make it larger "
            "(mount -o remount,size=1g /dev/shm; docker run --shm-size=1g)",
            (unsigned long long)(v.f_bavail * unit >> 10), (unsigned long long)(v.f_blocks * unit >> 10),
            SHM_MIB);
    return out;
}

static sl_status create_worker(ux_transport *tp, sl_err *err)
{
    char shm[240];
    ux_gate_ports before;
    ux_gate_snapshot(&before);
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t ucs = ucp_worker_create(tp->context, &params, &tp->worker);
    if (ucs != UCS_OK)
        return sl_fail(err, SL_ERR_IO, "ucp_worker_create: %s%s", ucs_status_string(ucs),
                       little_shared_memory(shm, sizeof shm));
    SL_TRY(ux_door_init(tp, &before, err));
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs = ucp_worker_query(tp->worker, &attr);
    if (ucs != UCS_OK || attr.max_am_header < SL_TP_AM_HEADER_MAX + sizeof(ux_wire))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "ucx supports message headers of %zu bytes, but %zu are needed", attr.max_am_header,
                       SL_TP_AM_HEADER_MAX + sizeof(ux_wire));
    ucs = set_receiver(tp, UX_AM_ID, ux_am_receive);
    if (ucs == UCS_OK)
        ucs = set_receiver(tp, UX_STREAM_ID, ux_stream_receive);
    int fd = -1;
    if (ucs == UCS_OK)
        ucs = ucp_worker_get_efd(tp->worker, &fd);
    if (ucs != UCS_OK)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "ucx cannot wake this process: %s", ucs_status_string(ucs));
    return sl_tp_waker_add(&tp->waker, fd, err);
}

static void add_once(char *list, size_t cap, const char *item)
{
    size_t n = strlen(item);
    for (const char *at = list; (at = strstr(at, item)); at += n)
        if ((at == list || at[-1] == ',') && (at[n] == ',' || !at[n]))
            return;
    ux_append(list, cap, item);
}

/* Adds every "transport/device" pair in UCX's description of the context to the lists in out. */
static void read_resources(const char *text, sl_tp_info *out)
{
    char line[256], tl[64], dev[64];
    while (*text) {
        size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        text += n + (text[n] == '\n');
        const char *at = strstr(line, " resource ");
        const char *word = at ? strrchr(line, ' ') : NULL;
        if (word && sscanf(word, " %63[^/]/%63s", tl, dev) == 2) {
            add_once(out->transports, sizeof out->transports, tl);
            add_once(out->devices, sizeof out->devices, dev);
        }
    }
}

static void query_memory(const ux_transport *tp, sl_tp_info *out)
{
    const char *no = ux_no_device_memory(tp);
    out->device_memory = !no;
    snprintf(out->no_device_memory, sizeof out->no_device_memory, "%s", no ? no : "");
}

static void ux_query(const sl_transport *base, sl_tp_info *out)
{
    const ux_transport *tp = (const ux_transport *)base;
    char *text = NULL;
    size_t n = 0;
    *out = (sl_tp_info){.name = "ucx"};
    snprintf(out->address, sizeof out->address, "%s", tp->address);
    snprintf(out->version, sizeof out->version, "%s", ucp_get_version_string());
    query_memory(tp, out);
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return;
    ucp_context_print_info(tp->context, f);
    fclose(f);
    read_resources(text, out);
    free(text);
}

/* Logs once which transports and devices this process can use. */
static void log_start(const ux_transport *tp)
{
    sl_tp_info info;
    sl_nic nics[SL_NIC_MAX];
    char text[1024];
    size_t n = 0;
    ux_query(&tp->base, &info);
    if (sl_nic_list(nics, SL_NIC_MAX, &n, NULL) != SL_OK)
        n = 0;
    sl_nic_describe(nics, n, text, sizeof text);
    sl_log(SL_LOG_INFO, "ucx", "start",
           "version=%s transports=%s devices=%s connect=%s numa=%d gpu_memory=%s rdma=\"%s\"", info.version,
           info.transports, info.devices, tp->door.used ? "door" : "rdmacm", tp->opts.numa_node,
           info.device_memory ? "yes" : "no", text);
}

static sl_status ux_create(const sl_tp_options *opts, sl_transport **out, sl_err *err)
{
    ux_transport *tp = calloc(1, sizeof *tp);
    if (!tp)
        return SL_ERR_NO_MEMORY;
    tp->base.ops = &sl_transport_ucx;
    tp->door.listen_fd = tp->door.epoll_fd = -1;
    sl_status st = sl_tp_options_copy(&tp->opts, opts);
    if (st != SL_OK)
        goto free_tp;
    st = sl_tp_waker_init(&tp->waker, err);
    if (st != SL_OK)
        goto free_options;
    st = create_context(tp, err);
    if (st != SL_OK)
        goto fini_waker;
    st = create_worker(tp, err);
    if (st != SL_OK)
        goto cleanup_ucx;
    tp->owner = pthread_self();
    sl_tp_op_queue_init(&tp->finished);
    sl_tp_op_queue_init(&tp->postponed);
    log_start(tp);
    *out = &tp->base;
    return SL_OK;
cleanup_ucx:
    ux_door_close(tp);
    if (tp->worker)
        ucp_worker_destroy(tp->worker);
    ucp_cleanup(tp->context);
fini_waker:
    sl_tp_waker_fini(&tp->waker);
free_options:
    sl_tp_options_free(&tp->opts);
free_tp:
    free(tp);
    return st;
}

/* Closes everything that is open, then makes progress for up to 200 ms, until UCX no longer uses our buffers. */
static void close_everything(ux_transport *tp)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    uint64_t until = sl_now_ns() + 200 * 1000000ull;
    tp->destroying = true;
    ux_door_close(tp);
    if (tp->listener)
        ucp_listener_destroy(tp->listener);
    for (ux_ep *ep = tp->eps; ep; ep = ep->next) {
        ucs_status_ptr_t req = ep->handle ? ucp_ep_close_nbx(ep->handle, &force) : NULL;
        ep->handle = NULL;
        if (UCS_PTR_IS_PTR(req))
            ucp_request_free(req);
    }
    for (int idle = 0; idle < 100 && sl_now_ns() < until;)
        idle = ucp_worker_progress(tp->worker) ? 0 : idle + 1;
}

static void ux_destroy(sl_transport *base)
{
    ux_transport *tp = (ux_transport *)base;
    close_everything(tp);
    while (tp->rkeys)
        ux_rkey_release(&tp->rkeys->base);
    for (ux_ep *ep = tp->eps; ep; ep = ep->next)
        ux_held_drop(ep);
    ucp_worker_destroy(tp->worker);
    while (tp->all_held)
        ux_held_free(tp, tp->all_held);
    while (tp->mems)
        ux_mem_deregister(&tp->mems->base);
    while (tp->eps)
        ux_ep_free(tp->eps);
    ucp_cleanup(tp->context);
    sl_tp_op_pool_free(&tp->pool);
    sl_tp_waker_fini(&tp->waker);
    sl_tp_options_free(&tp->opts);
    free(tp);
}

static int ux_progress(sl_transport *base)
{
    ux_transport *tp = (ux_transport *)base;
    tp->in_ucx = true;
    int n = (int)ucp_worker_progress(tp->worker);
    tp->in_ucx = false;
    if (tp->postponed.head)
        n += ux_run_postponed(tp);
    n += ux_run_finished(tp);
    n += ux_lookups_progress(tp);
    if (tp->attention)
        n += ux_service(tp);
    if (tp->next_deadline_ns)
        n += ux_run_deadlines(tp, sl_now_ns());
    return n + ux_door_progress(tp);
}

static sl_status ux_arm(sl_transport *base)
{
    ux_transport *tp = (ux_transport *)base;
    SL_CHECK(pthread_equal(tp->owner, pthread_self()), "ucx: used on a thread that is not the owner");
    if (tp->finished.head || tp->attention || ux_door_ready(tp))
        return SL_AGAIN;
    sl_tp_waker_arm(&tp->waker, tp->next_deadline_ns);
    return ucp_worker_arm(tp->worker) == UCS_OK ? SL_OK : SL_AGAIN;
}

static int ux_event_fd(const sl_transport *base)
{
    return ((const ux_transport *)base)->waker.epoll_fd;
}

static sl_status ux_handle(sl_transport *base, uint16_t id, sl_tp_message_fn *fn, void *arg)
{
    ux_transport *tp = (ux_transport *)base;
    if (id >= SL_TP_AM_IDS)
        return SL_ERR_INVALID;
    tp->handlers[id] = fn;
    tp->handler_args[id] = arg;
    return SL_OK;
}

static void ux_stats(const sl_transport *base, sl_tp_stats *out)
{
    *out = ((const ux_transport *)base)->stats;
}

const sl_transport_ops sl_transport_ucx = {
    .name = "ucx",
    .description = "UCX: RDMA, TCP and every other transport that libucp finds, between processes and hosts",
    .caps = {.cross_process = true, .device_memory = true, .close_fences = true},
    .create = ux_create,
    .destroy = ux_destroy,
    .progress = ux_progress,
    .arm = ux_arm,
    .event_fd = ux_event_fd,
    .listen = ux_listen,
    .connect = ux_connect,
    .close = ux_close,
    .handle = ux_handle,
    .mem_register = ux_mem_register,
    .mem_deregister = ux_mem_deregister,
    .rkey_pack = ux_rkey_pack,
    .rkey_unpack = ux_rkey_unpack,
    .rkey_release = ux_rkey_release,
    .put = ux_put,
    .get = ux_get,
    .flush = ux_flush,
    .send = ux_send,
    .stats = ux_stats,
    .query = ux_query,
    .ep_query = ux_ep_query,
};
