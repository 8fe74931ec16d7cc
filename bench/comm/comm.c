/* See comm.h: options, processes, and the invitation, which passes through memory that they share. */
#include "bench/comm/comm.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/comm/comm_impl.h"

#define DEADLINE_MS 60000
#define WINDOW_BYTES ((size_t)256 << 20) /* on GPUs: the largest shapes pass through windows too */
#define LACKING 77                       /* exit code: no such backend or device */

enum { WAYS = 2 }; /* the group's own choice, the library alone */

typedef struct meeting {
    _Atomic uint32_t invited;
    sl_comm_invite invite;
} meeting;

static sl_status enter(const sl_comm_opts *o, sl_backend *be, meeting *m, sl_comm **out, sl_err *err)
{
    uint64_t end = sl_now_ns() + DEADLINE_MS * 1000000ull;

    if (o->rank == 0) {
        SL_TRY(sl_comm_found(be, o, &m->invite, out, err));
        atomic_store(&m->invited, 1);
        return SL_OK;
    }
    while (!atomic_load(&m->invited)) {
        if (sl_now_ns() > end)
            return sl_fail(err, SL_ERR_TIMEOUT, "rank 0 founded no group within %d s", DEADLINE_MS / 1000);
        usleep(200);
    }
    return sl_comm_join(be, o, &m->invite, out, err);
}

static const char *way_name(const sl_backend *be, const sl_comm *c)
{
    return sl_backend_caps(be) & SL_BE_UNIFIED      ? "shared memory"
           : strstr(sl_comm_describe(c), "windows") ? "windows"
                                                    : "NCCL";
}

/* Measures one way, in a group of its own. */
static sl_status run_way(const sl_bench_comm *o, sl_backend *be, int32_t rank, bool library_only, meeting *m,
                         sl_err *err)
{
    sl_comm_opts co = {.rank = rank,
                       .ranks = o->ranks,
                       .deadline_ms = DEADLINE_MS,
                       .library_only = library_only,
                       .window_bytes = sl_backend_caps(be) & SL_BE_UNIFIED ? 0 : WINDOW_BYTES};
    sl_comm *c = NULL;

    SL_TRY(enter(&co, be, m, &c, err));
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
static int run_rank(const sl_bench_comm *o, int32_t rank, meeting *m)
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
        if (w == 0 || !(sl_backend_caps(be) & SL_BE_UNIFIED))
            st = run_way(o, be, rank, w == 1, &m[w], &err);
    rc = st == SL_ERR_UNSUPPORTED ? LACKING : SL_EXIT_FAILED;
    sl_backend_destroy(be);
report:
    if (st != SL_OK)
        fprintf(stderr, "sluice bench comm: rank %d: %s: %s\n", rank, sl_status_name(st), err.text);
    return st == SL_OK ? SL_EXIT_OK : rc;
}

static int run_all(const sl_bench_comm *o)
{
    meeting *m = mmap(NULL, WAYS * sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[SL_COMM_RANKS_MAX];
    int worst = SL_EXIT_OK;

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
    for (int32_t r = o->ranks - 1; r >= 0; r--) { /* the last rank is the first to lack a device */
        int status = 0, rc = SL_EXIT_FAILED;

        if (pids[r] > 0 && waitpid(pids[r], &status, 0) == pids[r] && WIFEXITED(status))
            rc = WEXITSTATUS(status);
        if (rc == LACKING) /* the others wait for this rank until their deadline */
            for (int32_t q = 0; q < r; q++)
                if (pids[q] > 0)
                    kill(pids[q], SIGTERM);
        worst = worst == LACKING || rc == SL_EXIT_OK ? worst : rc;
    }
    munmap(m, WAYS * sizeof *m);
    return worst;
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
    const sl_arg args[] = {
        {.name = "backend",
         .kind = SL_ARG_CHOICE,
         .out = &o.backend,
         .choices = sl_backend_names(),
         .help = "backend"},
        {.name = "ranks",
         .kind = SL_ARG_INT,
         .out = &o.ranks,
         .min = 1,
         .max = SL_COMM_RANKS_MAX,
         .meta = "N",
         .help = "processes; on GPUs rank r takes device r"},
        {.name = "tokens",
         .kind = SL_ARG_TEXT,
         .out = &tokens,
         .meta = "LIST",
         .help = "tokens of every rank"},
        {.name = "hidden",
         .kind = SL_ARG_INT,
         .out = &o.hidden,
         .min = 128,
         .max = 65536,
         .meta = "N",
         .help = "values of a row"},
        {.name = "top-k",
         .kind = SL_ARG_INT,
         .out = &o.top_k,
         .min = 1,
         .max = 64,
         .meta = "N",
         .help = "experts of a token"},
        {.name = "experts",
         .kind = SL_ARG_INT,
         .out = &o.experts,
         .min = 1,
         .max = 4096,
         .meta = "N",
         .help = "experts of a rank"},
        {.name = "inner",
         .kind = SL_ARG_INT,
         .out = &o.inner,
         .min = 1,
         .max = 1000,
         .meta = "N",
         .help = "collectives of one graph"},
        {.name = "repeats",
         .kind = SL_ARG_INT,
         .out = &o.repeats,
         .min = 1,
         .max = 1000,
         .meta = "N",
         .help = "measurements, of which the median counts"},
        {.name = "most-bytes",
         .kind = SL_ARG_BYTES,
         .out = &o.most_bytes,
         .meta = "BYTES",
         .help = "largest buffer of a rank"},
        {.name = "link-gbs",
         .kind = SL_ARG_REAL,
         .out = &o.link_gbs,
         .min = 0.001,
         .max = 1e6,
         .meta = "GB/S",
         .help = "rate of the link between two ranks, one way"},
    };

    int exit_code;
    if (!sl_args_ready(argv[0], args, SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (!sl_bench_list_parse(tokens, NULL, 1, &o.tokens)) {
        fprintf(stderr, "sluice bench comm: --tokens %s: not a list of at most %d numbers\n", tokens,
                SL_BENCH_LIST_MAX);
        return SL_EXIT_USAGE;
    }
    if (o.top_k > o.experts * o.ranks) {
        fprintf(stderr, "sluice bench comm: --top-k %d is more than the %d experts of all ranks\n", o.top_k,
                o.experts * o.ranks);
        return SL_EXIT_USAGE;
    }
    return run_all(&o);
}
