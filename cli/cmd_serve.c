/*
 * `sluice serve`, `router`, `prefill`, `decode`, `both`: one process of a cluster.
 *
 * serve takes its role from cluster.roles by MPI rank: the ranks of the routers listen first and broadcast their
 * addresses by MPI; no process calls MPI afterwards. The other commands are named after their role; workers find the
 * routers by the configuration (cli/routers.h). They are started by hand, by a supervisor, or by an MPMD mpirun, and
 * may join a running cluster at any time.
 *
 * The first SIGTERM or SIGINT begins to drain the process; a second one ends it at once.
 */
#include "cli/config_load.h"
#include "cli/exposure.h"
#include "cli/routers.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "decode/decode.h"
#include "prefill/prefill.h"
#include "router/router.h"
#include "transport/launch/launch.h"
#include "transport/transport.h"
#include "worker/identity.h"

enum { LOG_WAIT_MS = 1000 }; /* time that the process waits at its end until the log is written */

static volatile int stop_flag;

static void on_signal(int sig)
{
    if (stop_flag)
        _exit(128 + sig);
    stop_flag = 1;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_signal};

    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGINT, &act, NULL);
}

/* The number of processes of the same role on lower ranks, which is the number in a name such as "decode/2". */
static int index_in_role(const sl_config *cfg, int rank)
{
    int n = 0;

    for (int i = 0; i < rank; i++)
        n += cfg->cluster.roles.v[i] == cfg->cluster.roles.v[rank];
    return n;
}

/*
 * The identity that workers must have according to the configuration and the checkpoint of the router. *known is false
 * if the router has no weights, from which the identity is computed.
 */
static sl_status expected_identity(const sl_config *cfg, sl_worker_identity *id, bool *known, sl_err *err)
{
    uint64_t began = sl_now_ns();
    sl_err why = {0};
    sl_status st = sl_worker_identity_read(cfg, id, &why);

    *known = st == SL_OK;
    if (st == SL_OK && cfg->model.load_format == SL_CFG_LOAD_DUMMY)
        sl_log(
            SL_LOG_WARN, "router", "random_weights",
            "reason=\"model.load_format is dummy: this cluster serves random weights, answers have no meaning\"");
    if (st == SL_ERR_NOT_FOUND) {
        sl_log(SL_LOG_WARN, "router", "identity",
               "cause=\"%s: the first worker that joins decides which weights this cluster serves\"",
               why.text);
        return SL_OK;
    }
    if (st != SL_OK)
        return sl_fail_in(err, st, "the identity that workers must have");
    sl_log(SL_LOG_INFO, "router", "identity",
           "fingerprint=%016lx%016lx row_format=%s indexer=%s read_ms=%.1f", id->id.fingerprint.hi,
           id->id.fingerprint.lo, id->row_format, id->indexer, (double)(sl_now_ns() - began) / 1e6);
    return SL_OK;
}

/* What must hold before the router listens, then the router itself. */
static sl_status open_router(const sl_config *cfg, sl_worker_identity *expect, sl_router **out, sl_err *err)
{
    bool known = false;
    SL_TRY(sl_log_start(err));
    SL_TRY(sl_cli_check_exposure(cfg, SL_ROLE_ROUTER, cfg->cluster.router_host, err));
    SL_TRY(expected_identity(cfg, expect, &known, err));
    return sl_router_create(cfg, known ? &expect->id : NULL, out, err);
}

/*
 * Listens, broadcasts the address to the other ranks (by_rank: serve under mpirun), leaves MPI, serves until drained.
 * index: its number among several routers, -1: it is the only one.
 */
static sl_status run_router(sl_config *cfg, sl_launch *launch, bool by_rank, int index, sl_err *err)
{
    char name[SL_WORKER_NAME_MAX] = "router";
    sl_router *router = NULL;
    sl_worker_identity expect = {0};
    sl_cli_routers all;
    sl_err cast_err = {0};
    sl_status cast = SL_OK, st = SL_OK;

    if (index >= 0)
        snprintf(name, sizeof name, "router/%d", index);
    if (by_rank && cfg->cluster.routers.n == 1)
        index = 0;
    st = index >= 0 ? sl_cli_router_place(cfg, index, err) : sl_cli_router_listed(cfg, err);
    sl_log_init(cfg->log.level, cfg->log.json, name);
    if (st == SL_OK)
        st = open_router(cfg, &expect, &router, err);
    /* Broadcast after a failure, too: the other ranks wait, and an empty address tells them that this rank has none. */
    if (by_rank)
        cast = sl_cli_routers_exchange(cfg, launch, st == SL_OK ? sl_router_worker_address(router) : "", &all,
                                       &cast_err);
    sl_launch_leave(launch);
    if (st == SL_OK && cast != SL_OK) {
        st = cast;
        *err = cast_err;
    } else if (st == SL_OK) {
        st = sl_router_run(router, err);
    }
    sl_router_destroy(router);
    sl_worker_identity_free(&expect);
    return st;
}

/* Whether this worker may be reached, and may reach the routers and the ranks of its group, as the configuration says. */
static sl_status check_exposure(const sl_config *cfg, sl_role role, const sl_cli_routers *all,
                                const sl_worker_launch *w, sl_err *err)
{
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;

    for (int i = 0; i < all->n; i++) {
        SL_TRY(sl_tp_address_parse(all->address[i], host, sizeof host, &port, err));
        SL_TRY(sl_cli_check_exposure(cfg, role, host, err));
    }
    if (w->group_ranks < 2)
        return SL_OK;
    SL_TRY(sl_tp_address_parse(sl_worker_group_address(&cfg->cluster, role), host, sizeof host, &port, err));
    return sl_cli_check_exposure(cfg, role, host, err);
}

/* --group, --rank and --ranks; -1: not given. */
typedef struct group_args {
    int32_t group, rank, ranks;
} group_args;

/* Under mpirun: the workers of a role are divided into groups in the order of their ranks. */
static sl_status group_by_index(const sl_config *cfg, sl_role role, int ranks, int index, sl_worker_launch *w,
                                sl_err *err)
{
    int n = 0;

    for (int i = 0; i < cfg->cluster.roles.n; i++)
        n += cfg->cluster.roles.v[i] == role;
    if (n % ranks)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.roles: %d %s workers do not make groups of cluster.groups: %s=%d", n,
                       sl_role_name(role), sl_role_name(role), ranks);
    w->group = index / ranks;
    w->group_rank = index % ranks;
    return SL_OK;
}

/* Which rank of which group this worker is. A rank without --index gets the index that it would have under mpirun. */
static sl_status find_group(const sl_config *cfg, sl_role role, bool by_rank, const group_args *a, int *index,
                            sl_worker_launch *w, sl_err *err)
{
    int ranks = sl_worker_group_ranks(&cfg->cluster, role);

    if (a->ranks > 0)
        ranks = a->ranks;
    w->group_ranks = ranks;
    if (by_rank)
        return ranks > 1 ? group_by_index(cfg, role, ranks, *index, w, err) : SL_OK;
    if (ranks < 2 && a->group < 0 && a->rank < 0)
        return SL_OK;
    if (ranks < 2 || a->rank < 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "a rank of a group needs --rank R and --ranks N (or cluster.groups: [%s=N]), N at least 2, and --group "
            "G, if there are several groups",
            sl_role_name(role));
    if (a->rank >= ranks)
        return sl_fail(err, SL_ERR_INVALID, "--rank %d: a group of %d has the ranks 0 to %d", a->rank, ranks,
                       ranks - 1);
    w->group = a->group < 0 ? 0 : a->group;
    w->group_rank = a->rank;
    if (*index < 0)
        *index = w->group * ranks + a->rank;
    return SL_OK;
}

/* index < 0: the worker gets the default name, which no other process has. */
static sl_status run_worker(const sl_config *cfg, sl_launch *launch, sl_role role, int index, bool by_rank,
                            const group_args *group, sl_err *err)
{
    char name[SL_WORKER_NAME_MAX];
    sl_cli_routers all;
    sl_worker_launch w = {.name = name,
                          .rank = launch->rank < 0 ? 0 : launch->rank,
                          .local_rank = launch->local_rank,
                          .stop = &stop_flag};

    sl_err group_err = {0};
    sl_status group_st = find_group(cfg, role, by_rank, group, &index, &w, &group_err);
    w.index = index;
    if (index < 0)
        sl_worker_default_name(role, name);
    else
        snprintf(name, sizeof name, "%s/%d", sl_role_name(role), index);
    sl_log_init(cfg->log.level, cfg->log.json, name);
    sl_status st = sl_log_start(err);
    if (st == SL_OK)
        st = by_rank ? sl_cli_routers_exchange(cfg, launch, NULL, &all, err)
                     : sl_cli_routers_configured(cfg, &all, err);
    sl_launch_leave(launch);
    SL_TRY(st);
    if (group_st != SL_OK) {
        *err = group_err;
        return group_st;
    }
    SL_TRY(check_exposure(cfg, role, &all, &w, err));
    w.n_routers = all.n;
    for (int i = 0; i < all.n; i++)
        w.routers[i] = all.address[i];
    catch_signals();
    return role == SL_ROLE_PREFILL ? sl_prefill_main(cfg, &w, &stop_flag, err)
                                   : sl_decode_main(cfg, &w, role, &stop_flag, err);
}

/* *role: the role of this rank. *index: its number in this role, -1 for the only router. */
static sl_status role_by_rank(const sl_config *cfg, const sl_launch *l, sl_role *role, int *index,
                              sl_err *err)
{
    int n = cfg->cluster.roles.n, routers = 0;

    if (l->rank < 0)
        return sl_fail(err, SL_ERR_INVALID,
                       "serve takes its role from the MPI rank: start it with mpirun, or use "
                       "`sluice router`, `prefill`, `decode` and `both`");
    if (n == 0)
        return sl_fail(err, SL_ERR_INVALID, "cluster.roles: empty; list one role per MPI rank");
    if (n != l->size)
        return sl_fail(err, SL_ERR_INVALID, "cluster.roles: %d roles for %d MPI ranks; start `mpirun -n %d`",
                       n, l->size, n);
    *role = cfg->cluster.roles.v[l->rank];
    for (int i = 0; i < n; i++)
        routers += cfg->cluster.roles.v[i] == SL_ROLE_ROUTER;
    *index = *role == SL_ROLE_ROUTER && routers == 1 ? -1 : index_in_role(cfg, l->rank);
    return SL_OK;
}

/* fixed_role < 0: the MPI rank decides. */
static int serve(const char *command, int fixed_role, int argc, char **argv)
{
    static sl_config cfg; /* large; this runs once per process */
    sl_cli_config_args config = {0};
    int32_t index = -1;
    group_args group = {-1, -1, -1};
    const sl_arg args[] = {
        SL_CLI_CONFIG_ARGS(config),
        {"index", SL_ARG_INT, &index, "N",
         "Number in the name of this process, ROLE/N; of a router also its entry in cluster.routers. Default: a worker "
         "is named ROLE@HOST/PID, a router is the only one.",
         0, INT32_MAX, NULL},
        {"group", SL_ARG_INT, &group.group, "G",
         "Workers only: the number of the group, among those of this role, to which this worker belongs. Default: 0.",
         0, 65535, NULL},
        {"rank", SL_ARG_INT, &group.rank, "R", "Workers only: its rank in the group, from 0.", 0, 63, NULL},
        {"ranks", SL_ARG_INT, &group.ranks, "N",
         "Workers only: the ranks of the group. Default: those of cluster.groups.", 1, 64, NULL},
    };
    enum { WITHOUT_MPI = 4 }; /* of args, at the end: for processes that are not started by mpirun */
    bool by_rank = fixed_role < 0;
    sl_role role = by_rank ? SL_ROLE_ROUTER : (sl_role)fixed_role;
    sl_launch launch;
    sl_err err = {0};
    sl_status st;

    /* If the reader of the log or a peer closes its end, only that write fails; the process must not end. */
    signal(SIGPIPE, SIG_IGN);
    /* A router reads its files again on SIGHUP once it runs. Until then, and in workers, which are often in the same
     * group of processes or service, it must not end the process. */
    signal(SIGHUP, SIG_IGN);
    int exit_code;
    if (!sl_args_ready(by_rank
                           ? "--config FILE [--set KEY=VALUE]..."
                           : "--config FILE [--set KEY=VALUE]... [--index N] [--group G --rank R --ranks N]",
                       args, SL_COUNT(args) - (by_rank ? WITHOUT_MPI : 0), argc, argv, &exit_code))
        return exit_code;
    st = sl_cli_config_load(&config, &cfg, &err);
    if (st == SL_OK && role == SL_ROLE_ROUTER && (group.group >= 0 || group.rank >= 0 || group.ranks > 0))
        st = sl_fail(&err, SL_ERR_INVALID, "--group, --rank and --ranks are for workers");
    if (st == SL_OK)
        st = sl_process_check_descriptors(&err);
    if (st == SL_OK)
        st = sl_process_check_address_space(&err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    st = sl_launch_init(&argc, &argv, &launch, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    if (by_rank)
        st = role_by_rank(&cfg, &launch, &role, &index, &err);
    if (st != SL_OK)
        sl_launch_leave(&launch);
    else if (role == SL_ROLE_ROUTER)
        st = run_router(&cfg, &launch, by_rank, index, &err);
    else
        st = run_worker(&cfg, &launch, role, index, by_rank, &group, &err);
    sl_log_stop(LOG_WAIT_MS);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail(command, st, &err);
}

int sl_cmd_serve(int argc, char **argv)
{
    return serve("serve", -1, argc, argv);
}

int sl_cmd_router(int argc, char **argv)
{
    return serve("router", SL_ROLE_ROUTER, argc, argv);
}

int sl_cmd_prefill(int argc, char **argv)
{
    return serve("prefill", SL_ROLE_PREFILL, argc, argv);
}

int sl_cmd_decode(int argc, char **argv)
{
    return serve("decode", SL_ROLE_DECODE, argc, argv);
}

int sl_cmd_both(int argc, char **argv)
{
    return serve("both", SL_ROLE_BOTH, argc, argv);
}
