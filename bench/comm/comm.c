/*
 * See comm.h: the options, and a process per rank. The processes share one page of memory, through which rank 0 hands
 * the invitation of each group to the others. What a rank measures is in measure.c.
 */
#include "bench/comm/comm.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/comm/comm_impl.h"
#include "bench/meeting.h"

#define DEADLINE_MS 60000
/*
 * On GPUs. Four times the default of sl_comm_opts, because a call that does not fit its window goes through NCCL: with
 * the default the rows of 4,096 tokens would be measured through NCCL twice, and the windows' rate never.
 */
#define WINDOW_BYTES (4 * SL_COMM_WINDOW_BYTES)
#define LACKING 77 /* exit code: no such backend or device */

enum { WAYS = 2 }; /* the group's own choice; on GPUs the library alone, on the CPU sockets */

static const char *way_name(const sl_backend *be, const sl_comm *c)
{
    return strstr(sl_comm_describe(c), "sockets")   ? "sockets"
           : sl_backend_caps(be) & SL_BE_UNIFIED    ? "shared memory"
           : strstr(sl_comm_describe(c), "windows") ? "windows"
                                                    : "NCCL";
}

/* Measures one way, in a group of its own. */
static sl_status run_way(const sl_bench_comm *o, sl_backend *be, int32_t rank, bool other, sl_meeting *m,
                         sl_err *err)
{
    bool cpu = sl_backend_caps(be) & SL_BE_UNIFIED;
    sl_comm_opts co = {.rank = rank,
                       .ranks = o->ranks,
                       .deadline_ms = DEADLINE_MS,
                       .library_only = other && !cpu,
                       .sockets_at = other && cpu ? "127.0.0.1" : NULL,
                       .window_bytes = cpu ? 0 : WINDOW_BYTES};
    sl_comm *c = NULL;

    SL_TRY(sl_meeting_enter(&co, be, m, &c, err));
    sl_status st = sl_comm_form(c, err);
    if (st == SL_OK && rank == 0)
        printf("# %s; %s; hidden %d, top %d of %d experts on each rank\n", sl_backend_describe(be),
               sl_comm_describe(c), o->hidden, o->top_k, o->experts);
    if (st == SL_OK)
        st = sl_bench_comm_measure(o, be, c, way_name(be, c), stdout, err);
    fflush(stdout);
    sl_comm_destroy(c);
    return st;
}

/* A rank's process; returns its exit code. m: [WAYS] */
static int run_rank(const sl_bench_comm *o, int32_t rank, sl_meeting *m)
{
    sl_backend_opts bo = {.device = rank, .threads = 1};
    sl_backend *be = NULL;
    sl_err err = {{0}};
    int rc = SL_EXIT_FAILED;
    sl_status st = sl_backend_create(o->backend, &bo, &be, &err);

    if (st != SL_OK) {
        rc = LACKING;
        goto report;
    }
    if (rank == 0)
        printf("what,way,ranks,tokens,row_bytes,cap,rows_out,bytes_out,us,GB/s,limit_us,ratio\n");
    for (int w = 0; w < WAYS && st == SL_OK; w++)
        st = run_way(o, be, rank, w == 1, &m[w], &err);
    rc = st == SL_ERR_UNSUPPORTED ? LACKING : SL_EXIT_FAILED;
    sl_backend_destroy(be);
report:
    if (st != SL_OK)
        fprintf(stderr, "sluice bench comm: rank %d: %s: %s\n", rank, sl_status_name(st), err.text);
    return st == SL_OK ? SL_EXIT_OK : rc;
}

/*
 * Waits for all ranks. Returns the exit code of the benchmark: LACKING if any rank lacks a backend or device, else the
 * code of a rank that failed.
 */
static int wait_all(const pid_t *pids, int32_t ranks)
{
    int worst = SL_EXIT_OK;

    for (int32_t r = ranks - 1; r >= 0; r--) { /* the last rank is the first to lack a device */
        int status = 0, rc = SL_EXIT_FAILED;

        if (pids[r] > 0 && waitpid(pids[r], &status, 0) == pids[r] && WIFEXITED(status))
            rc = WEXITSTATUS(status);
        if (rc == LACKING) /* the others would wait for this rank until their deadline */
            for (int32_t q = 0; q < r; q++)
                if (pids[q] > 0)
                    kill(pids[q], SIGTERM);
        worst = worst == LACKING || rc == SL_EXIT_OK ? worst : rc;
    }
    return worst;
}

static int run_all(const sl_bench_comm *o)
{
    sl_meeting *m = mmap(NULL, WAYS * sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[SL_COMM_RANKS_MAX];

    if (m == MAP_FAILED) {
        fprintf(stderr, "sluice bench comm: no shared memory\n");
        return SL_EXIT_FAILED;
    }
    fflush(NULL);
    for (int32_t r = 0; r < o->ranks; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(run_rank(o, r, m));
        }
    }
    int worst = wait_all(pids, o->ranks);
    munmap(m, WAYS * sizeof *m);
    return worst;
}

/* False: the benchmark ends at once with *exit_code. */
static bool parse(sl_bench_comm *o, const char **tokens, int argc, char **argv, int *exit_code)
{
    const sl_arg args[] = {
        {"backend", SL_ARG_CHOICE, &o->backend, "NAME", "Compute backend. Default cpu.", 0, 0,
         sl_backend_names()},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Number of ranks, each a process; on GPUs rank r takes device r. Default 2.", 1, SL_COMM_RANKS_MAX,
         NULL},
        {"tokens", SL_ARG_TEXT, tokens, "LIST",
         "Numbers of tokens of each rank. Default 1,16,64,128,512,4096.", 0, 0, NULL},
        {"hidden", SL_ARG_INT, &o->hidden, "N", "Number of values of a row. Default 7168.", 128, 65536, NULL},
        {"top-k", SL_ARG_INT, &o->top_k, "N", "Number of experts of a token. Default 8.", 1,
         SL_BENCH_COMM_TOP_K_MAX, NULL},
        {"experts", SL_ARG_INT, &o->experts, "N", "Number of experts of a rank. Default 32.", 1, 4096, NULL},
        {"inner", SL_ARG_INT, &o->inner, "N", "Number of collectives of one graph. Default 20.", 1, 1000,
         NULL},
        {"repeats", SL_ARG_INT, &o->repeats, "N",
         "Number of measurements, of which the median is printed. Default 15.", 1, SL_BENCH_COMM_REPEATS_MAX,
         NULL},
        {"most-bytes", SL_ARG_BYTES, &o->most_bytes, "BYTES",
         "Shapes whose buffers are larger on a rank are left out. Default 2G.", 0, 0, NULL},
        {"link-gbs", SL_ARG_REAL, &o->link_gbs, "GB/S",
         "Rate of the link between two ranks in one direction. Default: on GPUs the H200's, on the CPU measured.",
         0.001, 1e6, NULL},
    };

    return sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, exit_code);
}

/* False: the flags contradict each other, or --tokens is no list of numbers; the message was printed. */
static bool check(sl_bench_comm *o, const char *tokens)
{
    if (!sl_bench_list_flag("bench comm", "tokens", tokens, NULL, 1, &o->tokens))
        return false;
    if (o->top_k > o->experts * o->ranks) {
        fprintf(stderr, "sluice bench comm: --top-k %d is more than the %d experts of all ranks\n", o->top_k,
                o->experts * o->ranks);
        return false;
    }
    return true;
}

int sl_bench_comm_main(int argc, char **argv)
{
    sl_bench_comm o = {.backend = "cpu",
                       .ranks = 2,
                       .hidden = 7168,
                       .top_k = 8,
                       .experts = 32,
                       .inner = 20,
                       .repeats = 15,
                       .most_bytes = 2ull << 30};
    const char *tokens = "1,16,64,128,512,4096";
    int exit_code;

    if (!parse(&o, &tokens, argc, argv, &exit_code))
        return exit_code;
    return check(&o, tokens) ? run_all(&o) : SL_EXIT_USAGE;
}
