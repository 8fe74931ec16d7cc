/*
 * Conformance of the collectives of a backend (collectives/comm.h), with ranks as processes.
 *
 *   comm_conformance --backend cpu|cuda [--ranks LIST] [--case TEXT] [--way own|library|sockets]     default: 1,2,3,4
 * ranks
 *
 * --way library: on a GPU NCCL alone moves the data (sl_comm_opts.library_only). --way sockets: on the CPU, as between
 * hosts (sl_comm_opts.sockets_at).
 *
 * A GPU backend needs a GPU for every rank: numbers of ranks for which the machine has too few are skipped by name.
 * Exit code: 0 all passed, 1 something failed, 2 usage, 77 the backend cannot be opened or has no collectives.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/collectives/cases.h"

typedef struct options {
    const char *backend, *text;
    bool library_only;
    const char *sockets_at;
    int32_t ranks[8];
    int n_ranks;
} options;

typedef struct totals {
    int passed, failed, skipped;
} totals;

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.backend = "cpu", .ranks = {1, 2, 3, 4}, .n_ranks = 4};
    for (int i = 1; i + 1 < argc; i += 2) {
        char *v = argv[i + 1];

        if (strcmp(argv[i], "--backend") == 0)
            o->backend = v;
        else if (strcmp(argv[i], "--case") == 0)
            o->text = v;
        else if (strcmp(argv[i], "--way") == 0)
            o->library_only = strcmp(v, "library") == 0,
            o->sockets_at = strcmp(v, "sockets") == 0 ? "127.0.0.1" : NULL;
        else if (strcmp(argv[i], "--ranks") == 0)
            for (o->n_ranks = 0; *v && o->n_ranks < 8; v += *v == ',')
                o->ranks[o->n_ranks++] = (int32_t)strtol(v, &v, 10);
        else
            return false;
    }
    for (int i = 0; i < o->n_ranks; i++)
        if (o->ranks[i] < 1 || o->ranks[i] > SL_COMM_RANKS_MAX)
            return false;
    return argc % 2 == 1;
}

static bool wanted(const options *o, const char *name)
{
    return !o->text || strstr(name, o->text);
}

/* All data cases of a group, one after another in the same processes. */
static void run_cases(cg_rank *r, const void *arg)
{
    for (size_t i = 0; i < cc_n_cases && !r->failed; i++) {
        char why[512];

        if (!wanted(arg, cc_cases[i].name))
            continue;
        cc_cases[i].fn(r, cc_cases[i].a);
        if (r->failed) {
            snprintf(why, sizeof why, "%s: %.450s", cc_cases[i].name, r->shared->why[r->rank]);
            memcpy(r->shared->why[r->rank], why, sizeof why);
        }
    }
}

static void report(totals *n, const options *o, int32_t ranks, const char *name, int code, const char *why)
{
    n->passed += code == CG_OK;
    n->failed += code == CG_FAILED;
    n->skipped += code == CG_SKIPPED;
    if (code != CG_OK)
        printf("%s %s, %d ranks, %s: %s\n", code == CG_FAILED ? "FAILED " : "skipped", o->backend, ranks,
               name, why);
    fflush(stdout);
}

/* How a failure ended, told by the process that ran it. */
typedef struct outcome {
    int code;
    char why[512];
} outcome;

static void run_failure(const options *o, int32_t ranks, const cc_failure *f, outcome *out)
{
    uint64_t last = 1ull << (ranks - 1);
    cg_run run = {.backend = o->backend,
                  .ranks = ranks,
                  .deadline_ms = f->deadline_ms,
                  .limit_ms = 60000,
                  .stop_ms = f->stop_ms,
                  .killed = f->kills_last ? last : 0,
                  .stopped = f->stops_last ? last : 0,
                  .unformed = f->unformed,
                  .library_only = o->library_only,
                  .sockets_at = o->sockets_at};

    out->code = cg_go(&run, f->fn, NULL, out->why, sizeof out->why);
}

static bool applies(const options *o, int32_t ranks, const cc_failure *f)
{
    return ranks >= f->least_ranks && !(f->cpu_only && strcmp(o->backend, "cpu") != 0) && wanted(o, f->name);
}

/* A process that runs this failure. */
static pid_t begin_failure(const options *o, int32_t ranks, const cc_failure *f, outcome *out)
{
    *out = (outcome){.code = CG_FAILED, .why = "the process that ran it has ended"};
    fflush(NULL);
    pid_t pid = fork();
    SL_CHECK(pid >= 0, "fork failed");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_failure(o, ranks, f, out);
        _exit(0);
    }
    return pid;
}

/* Every failure has a group of its own, so on the CPU those that mostly wait run together, and while the others do. */
static void run_failures(const options *o, int32_t ranks, totals *n)
{
    bool cpu = strcmp(o->backend, "cpu") == 0;
    pid_t pids[32] = {0};
    outcome *out =
        mmap(NULL, cc_n_failures * sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    SL_CHECK(out != MAP_FAILED && cc_n_failures <= SL_COUNT(pids), "no shared memory, or too many failures");
    for (size_t i = 0; i < cc_n_failures; i++)
        if (cpu && cc_failures[i].waits && applies(o, ranks, &cc_failures[i]))
            pids[i] = begin_failure(o, ranks, &cc_failures[i], &out[i]);
    for (size_t i = 0; i < cc_n_failures; i++) {
        if (pids[i] || !applies(o, ranks, &cc_failures[i]))
            continue;
        run_failure(o, ranks, &cc_failures[i], &out[i]);
        report(n, o, ranks, cc_failures[i].name, out[i].code, out[i].why);
    }
    for (size_t i = 0; i < cc_n_failures; i++)
        if (pids[i]) {
            waitpid(pids[i], NULL, 0);
            report(n, o, ranks, cc_failures[i].name, out[i].code, out[i].why);
        }
    munmap(out, cc_n_failures * sizeof *out);
}

static void run_ranks(const options *o, int32_t ranks, totals *n)
{
    /* Smaller than a row, some rows, many rows, and the default; the small ones are for the CPU, where data pass in
     * pieces. */
    static const size_t windows[] = {4096, 100000, 1 << 20, 0};
    bool cpu = strcmp(o->backend, "cpu") == 0;
    char why[512], name[64];
    size_t first = cpu ? 0 : o->library_only ? 3 : 2;
    size_t step = o->sockets_at ? 3 : 1; /* what is in pieces is the same code as over shared memory */

    for (size_t w = first; w < SL_COUNT(windows); w += step) {
        cg_run run = {.backend = o->backend,
                      .ranks = ranks,
                      .deadline_ms = 60000,
                      .limit_ms = 240000,
                      .window_bytes = windows[w],
                      .library_only = o->library_only,
                      .sockets_at = o->sockets_at};
        int code = cg_go(&run, run_cases, o, why, sizeof why);

        snprintf(name, sizeof name, "%zu data cases, window %zu", cc_n_cases, windows[w]);
        report(n, o, ranks, name, code, why);
        if (code == CG_SKIPPED)
            return;
    }
    run_failures(o, ranks, n);
}

int main(int argc, char **argv)
{
    options o;
    totals n = {0};

    if (!parse(argc, argv, &o)) {
        fprintf(
            stderr,
            "usage: comm_conformance --backend cpu|cuda [--ranks LIST] [--case TEXT] [--way own|library|sockets]\n");
        return 2;
    }
    for (int i = 0; i < o.n_ranks; i++)
        run_ranks(&o, o.ranks[i], &n);
    printf("comm conformance %s: %d passed, %d failed, %d skipped\n", o.backend, n.passed, n.failed,
           n.skipped);
    return n.failed ? 1 : n.passed ? 0 : 77;
}
