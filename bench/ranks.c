/* See ranks.h. The processes meet through a page of memory that they share. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/meeting.h"
#include "bench/ranks.h"

#define DEADLINE_MS 120000 /* one rank may make its weights for that much longer than another */

static int run_rank(const sl_bench_ranks *r, int32_t rank, sl_meeting *m)
{
    sl_local l = {0};
    sl_local_opts lo = {.backend = r->backend, .threads = r->threads, .device = rank};
    sl_comm_opts co = {
        .rank = rank, .ranks = r->n, .deadline_ms = DEADLINE_MS, .window_bytes = r->window_bytes};
    sl_comm *c = NULL;
    sl_err err = {{0}};
    sl_status st = sl_local_open_backend(&l, &lo, &err);

    if (st == SL_OK)
        st = sl_meeting_enter(&co, l.be, m, &c, &err);
    if (st == SL_OK)
        st = sl_comm_form(c, &err);
    if (st == SL_OK)
        st = r->run(r->opts, rank, &l, c, &err);
    if (st != SL_OK)
        fprintf(stderr, "sluice %s: rank %d: %s: %s\n", r->name, rank, sl_status_name(st), err.text);
    fflush(NULL);
    sl_comm_destroy(c);
    sl_local_close(&l);
    return st == SL_OK ? SL_EXIT_OK : SL_EXIT_FAILED;
}

int sl_bench_ranks_run(const sl_bench_ranks *b)
{
    sl_meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[SL_COMM_RANKS_MAX];
    int worst = SL_EXIT_OK;

    if (m == MAP_FAILED) {
        fprintf(stderr, "sluice %s: no shared memory\n", b->name);
        return SL_EXIT_FAILED;
    }
    fflush(NULL);
    for (int32_t r = 0; r < b->n; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(run_rank(b, r, m));
        }
    }
    for (int32_t r = 0; r < b->n; r++) {
        int status = 0;

        if (pids[r] < 0 || waitpid(pids[r], &status, 0) != pids[r] || !WIFEXITED(status) ||
            WEXITSTATUS(status) != SL_EXIT_OK)
            worst = SL_EXIT_FAILED;
    }
    munmap(m, sizeof *m);
    return worst;
}
