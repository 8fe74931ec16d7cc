/* See cluster.h. */
#include "bench/cluster.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "bench/page.h"

enum { MAX_SETTINGS = 96, TEXT = 64, STOP_MS = 10000 };
static const char *const HOST = "127.0.0.1";

static void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/*
 * A port on which no process listens; 0 if none was found. It is below the ports that the kernel gives to
 * connections (from 32768 on); otherwise a connection could get it before the process that is to listen there.
 */
static int free_port(void)
{
    enum { LOWEST = 20000, BEYOND = 32768, TRIES = 200 };
    for (int i = 0; i < TRIES; i++) {
        int port = LOWEST + (int)(sl_random_u64() % (BEYOND - LOWEST));
        struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool free = fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0;
        if (fd >= 0)
            close(fd);
        if (free)
            return port;
    }
    return 0;
}

/* "KEY=VALUE" is for every role, "ROLE:KEY=VALUE" for one. NULL: not for this one. */
static const char *setting_of(const char *s, const char *role)
{
    const char *colon = strchr(s, ':'), *equal = strchr(s, '=');
    if (!colon || !equal || colon > equal)
        return s;
    return strlen(role) == (size_t)(colon - s) && strncmp(s, role, (size_t)(colon - s)) == 0 ? colon + 1
                                                                                             : NULL;
}

static void put(const char **argv, size_t *k, const char *setting)
{
    if (!setting)
        return;
    argv[(*k)++] = "--set";
    argv[(*k)++] = setting;
}

/* Own settings come last, so that they win. */
static pid_t start(const sl_bench_cluster_opts *o, const char *role, const char (*own)[TEXT], size_t n_own)
{
    const char *argv[4 + 2 * (MAX_SETTINGS + TEXT) + 1];
    size_t k = 0;
    argv[k++] = "sluice";
    argv[k++] = role;
    if (o->config) {
        argv[k++] = "--config";
        argv[k++] = o->config;
    }
    for (size_t i = 0; i < o->n; i++)
        put(argv, &k, setting_of(o->settings[i], role));
    for (size_t i = 0; i < n_own; i++)
        put(argv, &k, own[i]);
    argv[k] = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout of this process is the CSV */
        execv("/proc/self/exe", (char *const *)argv);
        _exit(127);
    }
    return pid;
}

/* ---- ready ---- */

static sl_status check_alive(const sl_bench_cluster *c, sl_err *err)
{
    for (int i = 0; i < c->n; i++) {
        int status;
        if (waitpid(c->p[i].pid, &status, WNOHANG) != 0)
            return sl_fail(err, SL_ERR_IO,
                           "the %s of the cluster ended; its message was printed before this one",
                           sl_role_name(c->p[i].role));
    }
    return SL_OK;
}

int sl_bench_ready_workers(const char *host, int port)
{
    char *page = NULL;
    json_t *root = NULL, *list, *w;
    size_t i;
    int n = 0;
    if (sl_bench_http(host, port, "/workers", NULL, &page, NULL, NULL) != SL_OK)
        return -1;
    if (sl_json_parse(page, strlen(page), "/workers", &root, NULL) == SL_OK) {
        list = json_object_get(root, "workers");
        json_array_foreach(list, i, w)
        {
            const char *state = json_string_value(json_object_get(w, "state"));
            n += state && strcmp(state, "ready") == 0;
        }
    }
    json_decref(root);
    free(page);
    return n;
}

static sl_status wait_ready(const sl_bench_cluster *c, int ready_s, sl_err *err)
{
    uint64_t until = sl_now_ns() + (uint64_t)ready_s * 1000000000;
    while (sl_now_ns() < until) {
        SL_TRY(check_alive(c, err));
        if (sl_bench_ready_workers(HOST, c->http_port) == c->n - 1)
            return SL_OK;
        nap(20);
    }
    return sl_fail(err, SL_ERR_TIMEOUT, "the cluster is not ready after %d s", ready_s);
}

/* ---- start and stop ---- */

/* What the processes must agree on, and the ports of this one. Returns their number. */
static size_t own_settings(const sl_bench_cluster *c, int i, int joins, char (*own)[TEXT])
{
    size_t k = 0;
    snprintf(own[k++], TEXT, "cluster.router_port=%d", joins);
    snprintf(own[k++], TEXT, "cluster.routers=[]");
    snprintf(own[k++], TEXT, "router.http_port=%d", c->http_port);
    snprintf(own[k++], TEXT, "router.grpc_port=%d", c->grpc_port);
    snprintf(own[k++], TEXT, "metrics.port=%d", c->p[i].metrics_port);
    return k;
}

static sl_status start_each(sl_bench_cluster *c, const sl_bench_cluster_opts *o, sl_err *err)
{
    char own[8][TEXT];
    int joins = free_port();
    for (int i = 0; i < o->n_roles; i++) {
        sl_bench_process *p = &c->p[i];
        p->role = o->roles[i];
        p->metrics_port = p->role == SL_ROLE_ROUTER ? 0 : free_port();
        p->pid = start(o, sl_role_name(p->role), own, own_settings(c, i, joins, own));
        if (p->pid <= 0)
            return sl_fail(err, SL_ERR_IO, "cannot start a process");
        c->n++;
    }
    return wait_ready(c, o->ready_s, err);
}

sl_status sl_bench_cluster_start(const sl_bench_cluster_opts *o, sl_bench_cluster *out, sl_err *err)
{
    sl_bench_cluster c = {.http_port = free_port(), .grpc_port = free_port()};
    if (o->n > MAX_SETTINGS || o->n_roles > SL_BENCH_PROCESSES)
        return sl_fail(err, SL_ERR_TOO_LARGE, "at most %d settings and %d processes", MAX_SETTINGS,
                       SL_BENCH_PROCESSES);
    if (o->n_roles < 2 || o->roles[0] != SL_ROLE_ROUTER)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.roles: the first one must be a router, with workers after it");
    sl_status st = start_each(&c, o, err);
    if (st != SL_OK)
        sl_bench_cluster_stop(&c);
    else
        *out = c;
    return st;
}

/* Until the process has ended, by itself or killed. */
static void wait_end(pid_t pid, uint64_t deadline_ns)
{
    while (waitpid(pid, NULL, WNOHANG) == 0) {
        if (sl_now_ns() >= deadline_ns) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

/*
 * They are asked first: a process that is killed while UCX makes a segment of shared memory leaves its file. The router last,
 * because workers log the loss of their router.
 */
void sl_bench_cluster_stop(sl_bench_cluster *c)
{
    const uint64_t deadline_ns = sl_now_ns() + STOP_MS * 1000000ull;
    for (int i = 1; i < c->n; i++)
        kill(c->p[i].pid, SIGTERM);
    for (int i = 1; i < c->n; i++)
        wait_end(c->p[i].pid, deadline_ns);
    if (c->n > 0) {
        kill(c->p[0].pid, SIGTERM);
        wait_end(c->p[0].pid, deadline_ns);
    }
    c->n = 0;
}
