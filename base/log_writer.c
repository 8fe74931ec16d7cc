/*
 * How a line gets to stderr: the caller writes it, or, once a program has started the writer, the caller puts it into a
 * ring and a separate thread writes it. The lock of the ring is held for a copy of at most one line, never during a
 * write, so a reader of stderr that stops reading blocks only the writer. Lines for which there is no room are lost;
 * their number is written in a line of its own where they are missing, as soon as there is room again.
 */
#include "base/log_impl.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RING_BYTES = 1 << 20, EXIT_WAIT_MS = 1000 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;    /* there is a new line, or the writer is to end */
    pthread_cond_t drained; /* all lines so far are written */
    pthread_t thread;
    char ring[RING_BYTES];
    size_t head, tail; /* bytes ever put in and taken out */
    uint64_t missing;  /* lines lost since the last one for which there was room */
    bool running;      /* lines go through the ring */
    bool writing;      /* the writer is writing a line that it has taken out of the ring */
    bool stopping;
    bool left; /* a blocked writer was abandoned: from then on no thread may block on stderr */
    bool hooked;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static atomic_uint_fast64_t lost;

uint64_t sl_log_lines_lost(void)
{
    return atomic_load_explicit(&lost, memory_order_relaxed);
}

static void count_lost(void)
{
    atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
}

static bool wait_writable(int timeout_ms)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, timeout_ms) > 0;
}

/* Waits with poll() if another process has made the descriptor non-blocking. False: stderr refused the line. */
static bool write_line(const char *line, size_t n)
{
    while (n > 0) {
        ssize_t rc = write(STDERR_FILENO, line, n);
        if (rc >= 0) {
            line += rc;
            n -= (size_t)rc;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            wait_writable(-1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static bool push_locked(const char *line, size_t n)
{
    if (n > RING_BYTES - (g.head - g.tail))
        return false;
    size_t at = g.head % RING_BYTES, first = RING_BYTES - at < n ? RING_BYTES - at : n;
    memcpy(g.ring + at, line, first);
    memcpy(g.ring, line + first, n - first);
    g.head += n;
    pthread_cond_signal(&g.more);
    return true;
}

/* Takes the oldest line out of the ring. */
static size_t pop_locked(char out[SL_LOG_LINE_BYTES])
{
    size_t n = 0;
    do
        out[n++] = g.ring[g.tail++ % RING_BYTES];
    while (out[n - 1] != '\n' && n < SL_LOG_LINE_BYTES);
    return n;
}

/* Puts a line with the number of missing lines into the ring. False: there is still no room. */
static bool push_missing_locked(void)
{
    char line[SL_LOG_LINE_BYTES], fields[64];
    if (!g.missing)
        return true;
    snprintf(fields, sizeof fields, "lines=%llu", (unsigned long long)g.missing);
    if (!push_locked(line, sl_log_line(line, SL_LOG_WARN, "log", "lines_lost", fields)))
        return false;
    g.missing = 0;
    return true;
}

static void *writer(void *arg)
{
    char line[SL_LOG_LINE_BYTES];
    (void)arg;
    pthread_mutex_lock(&g.lock);
    for (;;) {
        if (g.head == g.tail)
            push_missing_locked();
        if (g.head == g.tail) {
            pthread_cond_broadcast(&g.drained);
            if (g.stopping)
                break;
            pthread_cond_wait(&g.more, &g.lock);
            continue;
        }
        size_t n = pop_locked(line);
        g.writing = true;
        pthread_mutex_unlock(&g.lock);
        if (!write_line(line, n))
            count_lost();
        pthread_mutex_lock(&g.lock);
        g.writing = false;
    }
    g.running = false;
    pthread_mutex_unlock(&g.lock);
    return NULL;
}

void sl_log_write(const char *line, size_t n)
{
    pthread_mutex_lock(&g.lock);
    bool ring = g.running, may_block = !g.left, in = false;
    if (ring) {
        in = push_missing_locked() && push_locked(line, n);
        g.missing += !in;
    }
    pthread_mutex_unlock(&g.lock);
    if (!ring)
        in = (may_block || wait_writable(0)) && write_line(line, n);
    if (!in)
        count_lost();
}

static struct timespec after_ms(uint32_t ms)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    uint64_t ns = (uint64_t)ts.tv_nsec + (uint64_t)ms * 1000000u;
    ts.tv_sec += (time_t)(ns / 1000000000u);
    ts.tv_nsec = (long)(ns % 1000000000u);
    return ts;
}

static bool wait_drained_locked(const struct timespec *until)
{
    while (g.running && (g.head != g.tail || g.writing))
        if (pthread_cond_timedwait(&g.drained, &g.lock, until) == ETIMEDOUT)
            return !g.running || (g.head == g.tail && !g.writing);
    return true;
}

bool sl_log_flush(uint32_t timeout_ms)
{
    struct timespec until = after_ms(timeout_ms);
    pthread_mutex_lock(&g.lock);
    bool done = wait_drained_locked(&until);
    pthread_mutex_unlock(&g.lock);
    return done;
}

void sl_log_stop(uint32_t timeout_ms)
{
    struct timespec until = after_ms(timeout_ms);
    pthread_mutex_lock(&g.lock);
    if (!g.running || g.stopping) {
        pthread_mutex_unlock(&g.lock);
        return;
    }
    bool done = wait_drained_locked(&until);
    g.stopping = true;
    if (!done) {
        g.left = true;
        g.running = false;
    }
    pthread_cond_signal(&g.more);
    pthread_mutex_unlock(&g.lock);
    if (done)
        pthread_join(g.thread, NULL);
    else
        pthread_detach(g.thread);
}

static void stop_at_exit(void)
{
    sl_log_stop(EXIT_WAIT_MS);
}

/* A child has only the thread that called fork(), so it begins with an empty ring, no writer and a free lock. */
static void before_fork(void)
{
    pthread_mutex_lock(&g.lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&g.lock);
}

static void init_drained(void)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g.drained, &attr);
    pthread_condattr_destroy(&attr);
}

static void after_fork_in_child(void)
{
    g.running = g.writing = g.stopping = g.left = false;
    g.head = g.tail = 0;
    g.missing = 0;
    pthread_cond_init(&g.more, NULL);
    init_drained();
    pthread_mutex_init(&g.lock, NULL);
}

/* Registers the handlers of fork() and exit(), once in a process. */
static void hook_locked(void)
{
    if (g.hooked)
        return;
    g.hooked = true;
    init_drained();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    atexit(stop_at_exit);
}

sl_status sl_log_start(sl_err *err)
{
    sigset_t all, old;
    int rc = 0;
    pthread_mutex_lock(&g.lock);
    if (!g.running && !g.left) {
        hook_locked();
        g.stopping = false;
        /* The writer's thread blocks all signals, so that other threads handle them. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        rc = pthread_create(&g.thread, NULL, writer, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        g.running = rc == 0;
    }
    pthread_mutex_unlock(&g.lock);
    return rc ? sl_fail(err, SL_ERR_NO_MEMORY, "cannot start the thread that writes the log: %s",
                        strerror(rc))
              : SL_OK;
}
