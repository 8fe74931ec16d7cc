/* The ranks of a real group as processes; see decode.h. They meet through a page of memory that they share. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/decode/decode.h"
#include "bench/meeting.h"

#define DEADLINE_MS 120000 /* one rank may make its weights for that much longer than another */

static int run_rank(const sl_bench_decode_opts *o, int32_t rank, sl_meeting *m, sl_bench_decode_rank run)
{
    sl_local l = {0};
    sl_local_opts lo = {.backend = o->backend, .threads = o->threads, .device = rank};
    sl_comm_opts co = {.rank = rank, .ranks = o->group, .deadline_ms = DEADLINE_MS};
    sl_comm *c = NULL;
    sl_err err = {{0}};
    sl_status st = sl_local_open_backend(&l, &lo, &err);

    if (st == SL_OK)
        st = sl_meeting_enter(&co, l.be, m, &c, &err);
    if (st == SL_OK)
        st = sl_comm_form(c, &err);
    if (st == SL_OK)
        st = run(o, rank, &l, c, &err);
    if (st != SL_OK)
        fprintf(stderr, "sluice bench decode: rank %d: %s: %s\n", rank, sl_status_name(st), err.text);
    fflush(NULL);
    sl_comm_destroy(c);
    sl_local_close(&l);
    return st == SL_OK ? SL_EXIT_OK : SL_EXIT_FAILED;
}

int sl_bench_decode_group(const sl_bench_decode_opts *o, sl_bench_decode_rank run)
{
    sl_meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[SL_COMM_RANKS_MAX];
    int worst = SL_EXIT_OK;

    if (m == MAP_FAILED) {
        fprintf(stderr, "sluice bench decode: no shared memory\n");
        return SL_EXIT_FAILED;
    }
    fflush(NULL);
    for (int32_t r = 0; r < o->group; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(run_rank(o, r, m, run));
        }
    }
    for (int32_t r = 0; r < o->group; r++) {
        int status = 0;

        if (pids[r] < 0 || waitpid(pids[r], &status, 0) != pids[r] || !WIFEXITED(status) ||
            WEXITSTATUS(status) != SL_EXIT_OK)
            worst = SL_EXIT_FAILED;
    }
    munmap(m, sizeof *m);
    return worst;
}
