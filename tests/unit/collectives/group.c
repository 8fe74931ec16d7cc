/* See group.h. */
#include "tests/unit/collectives/group.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "collectives/comm_impl.h"

void cg_fail(cg_rank *r, const char *fmt, ...)
{
    va_list args;

    if (r->failed)
        return;
    r->failed = true;
    va_start(args, fmt);
    vsnprintf(r->shared->why[r->rank], sizeof r->shared->why[0], fmt, args);
    va_end(args);
}

void cg_gave_up(cg_rank *r)
{
    r->shared->gave_up++;
}

bool cg_ok(cg_rank *r, sl_status st, const sl_err *err, const char *what)
{
    if (st != SL_OK)
        cg_fail(r, "%s: %s: %s", what, sl_status_name(st), err->text);
    return st == SL_OK;
}

uint32_t cg_hash(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15ull + b * 0xc2b2ae3d27d4eb4full + 0x165667b19e3779f9ull;

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint32_t)x;
}

void cg_put(cg_rank *r, void *dst, const void *host, size_t bytes)
{
    sl_err err = {{0}};

    cg_ok(r, sl_be_copy(r->be, dst, host, bytes, &err), &err, "copy to the device");
}

void *cg_mem(cg_rank *r, const void *host, size_t bytes)
{
    sl_err err = {{0}};
    void *p = NULL;

    if (!cg_ok(r, sl_be_alloc(r->be, SL_MEM_DEVICE, bytes, &p, &err), &err, "alloc"))
        return NULL;
    if (host)
        cg_put(r, p, host, bytes);
    else
        cg_ok(r, sl_be_fill(r->be, p, 0xa5, bytes, &err), &err, "fill");
    return p;
}

void cg_get(cg_rank *r, void *host, const void *src, size_t bytes)
{
    sl_err err = {{0}};

    if (cg_ok(r, sl_be_copy(r->be, host, src, bytes, &err), &err, "copy from the device"))
        cg_ok(r, sl_be_sync(r->be, &err), &err, "sync");
}

void cg_free(cg_rank *r, void *p)
{
    sl_be_free(r->be, SL_MEM_DEVICE, p);
}

sl_status cg_enter(cg_rank *r, sl_err *err)
{
    cg_shared *s = r->shared;

    if (r->rank == 0) {
        SL_TRY(sl_comm_found(r->be, &r->opts, &s->invite[r->group], &r->c, err));
        atomic_store(&s->invited[r->group], 1);
        return SL_OK;
    }
    for (uint64_t end = sl_now_ns() + 30000000000ull; !atomic_load(&s->invited[r->group]); usleep(200))
        if (sl_now_ns() > end)
            return sl_fail(err, SL_ERR_TIMEOUT, "no invitation came");
    return sl_comm_join(r->be, &r->opts, &s->invite[r->group], &r->c, err);
}

bool cg_form(cg_rank *r)
{
    sl_err err = {{0}};

    return cg_ok(r, cg_enter(r, &err), &err, "enter") && cg_ok(r, sl_comm_form(r->c, &err), &err, "form");
}

/* ---- the loss of a rank in an exchange ---- */

static sl_comm_desc dying; /* the implementation's, with an all_to_all at which this process is lost */
static const sl_comm_desc *healthy;
static int32_t exchanges_left, last_signal;

static sl_status dying_all_to_all(sl_comm *c, const sl_comm_rows *rows, sl_err *err)
{
    if (exchanges_left > 0 && --exchanges_left == 0) {
        usleep(20000); /* the others have come to this exchange */
        raise(last_signal);
    }
    return healthy->all_to_all(c, rows, err);
}

void cg_lose(cg_rank *r, int32_t exchange, int32_t sig)
{
    if (healthy)
        return;
    healthy = r->c->desc;
    dying = *healthy;
    dying.all_to_all = dying_all_to_all;
    r->c->desc = &dying;
    exchanges_left = exchange;
    last_signal = sig;
}

/* A rank's whole life; returns its exit code. */
static int live(const cg_run *run, int32_t rank, cg_shared *shared, cg_fn fn, const void *arg)
{
    cg_rank r = {.backend = run->backend, .rank = rank, .ranks = run->ranks, .shared = shared};
    sl_backend_opts bo = {.device = rank, .threads = 1};
    sl_err err = {{0}};

    r.opts = (sl_comm_opts){.rank = rank,
                            .ranks = run->ranks,
                            .geometry = {1, 2},
                            .deadline_ms = run->deadline_ms,
                            .window_bytes = run->window_bytes,
                            .library_only = run->library_only,
                            .sockets_at = run->sockets_at,
                            .timed = true};
    if (sl_backend_create(run->backend, &bo, &r.be, &err) != SL_OK) {
        snprintf(shared->why[rank], sizeof shared->why[0], "needs %d devices: %.400s", run->ranks, err.text);
        return CG_SKIPPED;
    }
    if (run->unformed || cg_form(&r))
        fn(&r, arg);
    sl_comm_destroy(r.c);
    sl_backend_destroy(r.be);
    return r.failed ? CG_FAILED : CG_OK;
}

/* Kills the ranks that have not ended; how many. */
static int kill_rest(const cg_run *run, const pid_t *pids, const int *codes)
{
    int n = 0;

    for (int32_t r = 0; r < run->ranks; r++)
        if (codes[r] < 0) {
            kill(pids[r], SIGKILL);
            n++;
        }
    return n;
}

/* Waits for the ranks; continues those that stopped. A rank without a device ends the run: the others would wait for
 * it. Returns how many had to be killed at the limit. */
static int collect(const cg_run *run, const cg_shared *s, const pid_t *pids, int *codes)
{
    uint64_t end = sl_now_ns() + run->limit_ms * 1000000ull, stopped_at = 0;
    int32_t left = run->ranks;
    int hung = 0;

    while (left > 0) {
        for (int32_t r = 0; r < run->ranks; r++) {
            int status;

            if (codes[r] >= 0 || waitpid(pids[r], &status, WNOHANG | WUNTRACED) <= 0)
                continue;
            if (WIFSTOPPED(status)) {
                stopped_at = sl_now_ns();
                continue;
            }
            codes[r] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            left--;
            if (codes[r] == CG_SKIPPED)
                kill_rest(run, pids, codes);
        }
        if (stopped_at && (s->gave_up == run->ranks - __builtin_popcountll(run->stopped) ||
                           sl_now_ns() > stopped_at + run->stop_ms * 1000000ull)) {
            for (int32_t r = 0; r < run->ranks; r++)
                if (run->stopped >> r & 1 && codes[r] < 0)
                    kill(pids[r], SIGCONT);
            stopped_at = 0;
        }
        if (left > 0 && sl_now_ns() > end && !hung)
            hung = kill_rest(run, pids, codes);
        usleep(500);
    }
    return hung;
}

static int judge(const cg_run *run, const cg_shared *s, const int *codes, int hung, char *why, size_t cap)
{
    int worst = CG_OK;

    for (int32_t r = 0; r < run->ranks; r++)
        if (codes[r] == CG_SKIPPED) {
            snprintf(why, cap, "%s", s->why[r]);
            return CG_SKIPPED;
        }
    for (int32_t r = 0; r < run->ranks; r++) {
        int want = run->killed >> r & 1 ? 128 + SIGKILL : CG_OK;

        if (codes[r] == want && !hung)
            continue;
        if (worst == CG_FAILED)
            continue;
        worst = CG_FAILED;
        snprintf(why, cap, "rank %d of %d: %s%.450s", r, run->ranks,
                 hung && codes[r] == 128 + SIGKILL && want != codes[r] ? "hung: " : "",
                 s->why[r][0] ? s->why[r] : "no reason");
    }
    return worst;
}

int cg_go(const cg_run *run, cg_fn fn, const void *arg, char *why, size_t cap)
{
    pid_t pids[SL_COMM_RANKS_MAX], parent = getpid();
    int codes[SL_COMM_RANKS_MAX], result;
    cg_shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    SL_CHECK(s != MAP_FAILED, "no shared memory");
    for (int32_t r = 0; r < run->ranks; r++) {
        codes[r] = -1;
        fflush(NULL);
        pids[r] = fork();
        SL_CHECK(pids[r] >= 0, "fork failed");
        if (pids[r] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(getppid() == parent ? live(run, r, s, fn, arg) : CG_FAILED);
        }
    }
    why[0] = '\0';
    result = judge(run, s, codes, collect(run, s, pids, codes), why, cap);
    munmap(s, sizeof *s);
    return result;
}
