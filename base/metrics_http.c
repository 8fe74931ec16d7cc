/*
 * The exporter, on libmicrohttpd's internal thread. The body of a request is read and ignored.
 */
#include "base/metrics_http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

enum { BACKLOG = 16, MAX_CONNECTIONS = 32, IDLE_SECONDS = 10 };

struct sl_exporter {
    struct MHD_Daemon *daemon;
    sl_metrics *metrics;
    sl_health_fn health;
    void *arg;
    int port;
};

/* Takes ownership of body (malloc'ed); NULL answers 500. */
static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, const char *type, char *body)
{
    static const char failed[] = "out of memory\n";
    struct MHD_Response *r;
    if (body) {
        r = MHD_create_response_from_buffer(strlen(body), body, MHD_RESPMEM_MUST_FREE);
    } else {
        code = MHD_HTTP_INTERNAL_SERVER_ERROR;
        r = MHD_create_response_from_buffer(sizeof failed - 1, (void *)(uintptr_t)failed,
                                            MHD_RESPMEM_PERSISTENT);
    }
    if (!r) {
        free(body);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result ok = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    (void)version, (void)upload;
    sl_exporter *e = cls;
    if (!*state) { /* the first call for a request: only its headers have arrived */
        *state = e;
        return MHD_YES;
    }
    if (*upload_size) { /* ignore a part of the body */
        *upload_size = 0;
        return MHD_YES;
    }
    const char *text = "text/plain; charset=utf-8";
    if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
        return answer(c, MHD_HTTP_METHOD_NOT_ALLOWED, text, strdup("method not allowed\n"));
    if (!strcmp(url, "/metrics"))
        return answer(c, MHD_HTTP_OK, SL_METRICS_CONTENT_TYPE, sl_metrics_text(e->metrics));
    if (!strcmp(url, "/health")) {
        char why[256] = "ok";
        bool healthy = !e->health || e->health(e->arg, why, sizeof why - 1);
        return answer(c, healthy ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, text, strdup(why));
    }
    return answer(c, MHD_HTTP_NOT_FOUND, text, strdup("not found\n"));
}

/* A listening socket on host:port, or -1 with the reason in err. */
static int listen_on(const char *host, int port, sl_err *err)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc) {
        sl_fail(err, SL_ERR_IO, "metrics exporter: %s: %s", host, gai_strerror(rc));
        return -1;
    }
    int fd = -1, why = 0;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int one = 1;
        if (fd >= 0)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd < 0 || bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, BACKLOG)) {
            why = errno;
            if (fd >= 0)
                close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        sl_fail(err, SL_ERR_IO, "metrics exporter: cannot listen on %s:%d: %s", host, port, strerror(why));
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len))
        return 0;
    return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                          : ((struct sockaddr_in *)&ss)->sin_port);
}

sl_status sl_exporter_start(sl_metrics *m, const char *host, int port, sl_health_fn health, void *arg,
                            sl_exporter **out, sl_err *err)
{
    sl_exporter *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "metrics exporter: out of memory");
    e->metrics = m;
    e->health = health;
    e->arg = arg;
    int fd = listen_on(host, port, err);
    if (fd < 0)
        goto free_exporter;
    e->port = port_of(fd);
    e->daemon =
        MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, 0, NULL, NULL, handle, e,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_END);
    if (!e->daemon) {
        sl_fail(err, SL_ERR_IO, "metrics exporter: cannot start its thread");
        goto close_socket;
    }
    *out = e;
    return SL_OK;
close_socket:
    close(fd);
free_exporter:
    free(e);
    return SL_ERR_IO;
}

int sl_exporter_port(const sl_exporter *e)
{
    return e->port;
}

void sl_exporter_stop(sl_exporter *e)
{
    if (!e)
        return;
    MHD_stop_daemon(e->daemon); /* closes the socket */
    free(e);
}
