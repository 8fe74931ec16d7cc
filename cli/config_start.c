/* See config_start.h. */
#include "cli/config_start.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/exposure.h"
#include "kernels/backend.h"
#include "model/checkpoint.h"
#include "router/router.h"
#include "worker/select.h"

/* The checkpoint's files: every header, and every byte that they promise. */
static sl_status check_files(const sl_config *cfg, sl_err *err)
{
    sl_checkpoint *ck = NULL;
    if (cfg->model.load_format == SL_CFG_LOAD_DUMMY)
        return SL_OK;
    sl_status st = sl_checkpoint_open(cfg->model.path, &ck, err);
    sl_checkpoint_close(ck);
    return st ? sl_fail_in(err, st, "model.path") : SL_OK;
}

/* Whether this host has as much memory as the store of one worker. */
static sl_status check_memory(const sl_config *cfg, sl_err *err)
{
    const double total = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if ((double)cfg->kvstore.bytes <= total)
        return SL_OK;
    return sl_fail(err, SL_ERR_EXHAUSTED, "kvstore.bytes: %.1f GiB, but this host has %.1f GiB of memory",
                   (double)cfg->kvstore.bytes / (1 << 30), total / (1 << 30));
}

/* Whether a program could listen there now. */
static sl_status check_port(const char *key, const char *host, int port, sl_err *err)
{
    struct addrinfo *at = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char service[16];
    const int on = 1;
    snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host[0] ? host : NULL, service, &hints, &at);
    if (rc)
        return sl_fail(err, SL_ERR_INVALID, "%s: host \"%.200s\": %s", key, host, gai_strerror(rc));
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sl_status st = SL_OK;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, at->ai_addr, at->ai_addrlen) || listen(fd, 1))
        st = sl_fail(err, SL_ERR_IO, "%s: port %d of %s: %m", key, port, host[0] ? host : "all interfaces");
    freeaddrinfo(at);
    if (fd >= 0)
        close(fd);
    return st;
}

/* A worker answers at metrics.port + rank; without a list of roles there is one. */
static sl_status check_metrics(const sl_config *cfg, sl_err *err)
{
    const int n = cfg->cluster.roles.n ? cfg->cluster.roles.n : 1;
    for (int i = 0; cfg->metrics.port > 0 && i < n; i++)
        if (!cfg->cluster.roles.n || cfg->cluster.roles.v[i] != SL_ROLE_ROUTER)
            SL_TRY(check_port("metrics.port", cfg->metrics.host, cfg->metrics.port + i, err));
    return SL_OK;
}

static sl_status check_backend(const sl_config *cfg, sl_err *err)
{
    sl_backend *be = NULL;
    const int device = sl_config_device(&cfg->backend, -1);
    sl_backend_opts o = {.device = device > 0 ? device : 0, .threads = cfg->backend.threads};
    SL_TRY(sl_backend_create(cfg->backend.name, &o, &be, err));
    sl_backend_destroy(be);
    return SL_OK;
}

/* Opens a router as `sluice router` does, and closes it. Not here: at unused ports of loopback. */
static sl_status check_router(const sl_config *cfg, bool here, sl_err *err)
{
    sl_router *r = NULL;
    sl_config *c = malloc(sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    *c = *cfg;
    if (!here) {
        c->router.http_port = c->router.grpc_port = c->cluster.router_port = 0;
        snprintf(c->router.host, sizeof c->router.host, "127.0.0.1");
        snprintf(c->cluster.router_host, sizeof c->cluster.router_host, "127.0.0.1");
    }
    sl_status st = sl_router_create(c, NULL, &r, err);
    sl_router_destroy(r);
    free(c);
    return st;
}

static bool has_role(const sl_config *cfg, sl_role role)
{
    for (int i = 0; i < cfg->cluster.roles.n; i++)
        if (cfg->cluster.roles.v[i] == role)
            return true;
    return cfg->cluster.roles.n == 0;
}

sl_status sl_cli_check_start(const sl_config *cfg, bool here, int32_t *context, sl_err *err)
{
    int32_t tokens = 0;
    sl_log_init(SL_LOG_ERROR, false, "check"); /* the result says what there is to say */
    SL_TRY(sl_worker_check_config(cfg, &tokens, err));
    SL_TRY(check_files(cfg, err));
    if (has_role(cfg, SL_ROLE_ROUTER)) {
        SL_TRY(sl_cli_check_exposure(cfg, SL_ROLE_ROUTER, cfg->cluster.router_host, err));
        SL_TRY(check_router(cfg, here, err));
    }
    SL_TRY(sl_cli_check_exposure(cfg, SL_ROLE_DECODE, cfg->cluster.router_host, err));
    if (here) {
        SL_TRY(check_memory(cfg, err));
        SL_TRY(check_metrics(cfg, err));
        SL_TRY(check_backend(cfg, err));
    }
    if (context)
        *context = tokens;
    return SL_OK;
}
