/*
 * The log with its writer: stderr is a pipe whose reader does not read, is gone, or reads later. No thread that logs
 * waits; lost lines are counted and reported; all others arrive in order; the end of the process is not delayed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/metrics.h"
#include "tests/unit/run_suite.h"

static int fds[2];

/* stderr becomes a pipe of the smallest size; the other end is fds[0]. Every test is a process of its own. */
static void pipe_stderr(void)
{
    ck_assert_int_eq(pipe(fds), 0);
    fcntl(fds[1], F_SETPIPE_SZ, 4096);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    signal(SIGPIPE, SIG_IGN);
    sl_log_init(SL_LOG_INFO, false, "x");
}

static void start(void)
{
    sl_err err = {0};
    ck_assert_msg(sl_log_start(&err) == SL_OK, "%s", err.text);
}

static void log_lines(int from, int to)
{
    for (int i = from; i < to; i++)
        sl_log(SL_LOG_INFO, "test", "line", "i=%d fill=%0199d", i, 0);
}

/* Reads lines until the event "end" has come; checks that numbers ascend and adds up what is missing. */
typedef struct seen {
    uint64_t lines, missing;
    int last;
    bool ascending;
} seen;

static seen read_until_end(FILE *in)
{
    static char line[8192];
    seen s = {.last = -1, .ascending = true};
    while (fgets(line, sizeof line, in)) {
        const char *at;
        int i;
        unsigned long long n;
        if (strstr(line, " ev=end"))
            break;
        if ((at = strstr(line, " ev=lines_lost lines=")) &&
            sscanf(at, " ev=lines_lost lines=%llu", &n) == 1) {
            s.missing += n;
            /* reported where they are missing: the next line is the first one after the gap */
            s.last += (int)n;
        } else if ((at = strstr(line, " ev=line i=")) && sscanf(at, " ev=line i=%d", &i) == 1) {
            s.ascending = s.ascending && i == s.last + 1;
            s.last = i;
            s.lines++;
        }
    }
    return s;
}

START_TEST(full_pipe)
{
    enum { N = 20000 };
    pipe_stderr();
    start();
    uint64_t before = sl_now_ns();
    log_lines(0, N);
    ck_assert_uint_lt(sl_now_ns() - before,
                      60000000000u); /* a line that waited for the pipe would wait for ever */
    uint64_t lost = sl_log_lines_lost();
    ck_assert_uint_gt(lost, 0);
    ck_assert(!sl_log_flush(50));

    sl_metrics *m;
    char want[80];
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
    snprintf(want, sizeof want, "\nsluice_log_lines_lost_total %llu\n", (unsigned long long)lost);
    char *text = sl_metrics_text(m);
    ck_assert_ptr_nonnull(strstr(text, want));
    free(text);
    sl_metrics_destroy(m);

    /* The reader comes back: everything that was kept, in order, and how much is missing. */
    FILE *in = fdopen(fds[0], "r");
    pid_t pid = fork();
    if (pid == 0) { /* reads as another process would; its exit status is the answer */
        close(STDERR_FILENO);
        seen s = read_until_end(in);
        _exit(s.ascending && s.last == N - 1 && s.missing == lost && s.lines + s.missing == N ? 0 : 1);
    }
    ck_assert(sl_log_flush(20000));
    sl_log(SL_LOG_INFO, "test", "end", "x=1");
    ck_assert(sl_log_flush(20000));
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(sl_log_lines_lost(), lost);
    fclose(in);
    sl_log_stop(1000);
}
END_TEST

START_TEST(stop_is_bounded)
{
    pipe_stderr();
    start();
    log_lines(0, 1000);
    uint64_t before = sl_now_ns();
    sl_log_stop(100);
    log_lines(0, 10); /* does not block either */
    uint64_t took = sl_now_ns() - before;
    ck_assert(took >= 100000000u && took < 5000000000u);
    ck_assert_uint_ge(sl_log_lines_lost(), 10);
}
END_TEST

START_TEST(exit_is_bounded)
{
    pipe_stderr();
    pid_t pid = fork();
    if (pid == 0) {
        start();
        log_lines(0, 1000);
        exit(7);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
END_TEST

START_TEST(reader_gone)
{
    pipe_stderr();
    start();
    close(fds[0]);
    log_lines(0, 10);
    ck_assert(sl_log_flush(10000));
    ck_assert_uint_eq(sl_log_lines_lost(), 10);
    log_lines(10, 11);
    ck_assert(sl_log_flush(10000));
    ck_assert_uint_eq(sl_log_lines_lost(), 11);
    sl_log_stop(1000);
}
END_TEST

START_TEST(descriptor_that_does_not_block)
{
    pipe_stderr();
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    start();
    log_lines(0, 100);
    ck_assert(!sl_log_flush(50));
    pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        seen s = read_until_end(fdopen(fds[0], "r"));
        _exit(s.ascending && s.lines == 100 ? 0 : 1);
    }
    sl_log(SL_LOG_INFO, "test", "end", "x=1");
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert_uint_eq(sl_log_lines_lost(), 0);
    sl_log_stop(1000);
}
END_TEST

static atomic_int loggers; /* threads that log by now */

static void *log_a_lot(void *arg)
{
    atomic_bool *stop = arg;
    log_lines(0, 50);
    atomic_fetch_add(&loggers, 1);
    while (!atomic_load(stop))
        log_lines(0, 50);
    return NULL;
}

/* A child made while threads log and the pipe is full has a free lock, an empty ring and no writer. */
START_TEST(fork_safe)
{
    atomic_bool stop = false;
    pthread_t threads[2];
    pipe_stderr();
    start();
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_create(&threads[i], NULL, log_a_lot, &stop);
    /* A thread allocates when it starts, and a child that is made at that moment has AddressSanitizer's lock for ever. */
    while (atomic_load(&loggers) < (int)SL_COUNT(threads))
        usleep(1000);
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            int null = open("/dev/null", O_WRONLY);
            dup2(null, STDERR_FILENO);
            int bad = !sl_log_flush(0); /* the child has no lines of the parent */
            log_lines(0, 2);
#ifndef __SANITIZE_THREAD__ /* ThreadSanitizer ends a child that starts a thread */
            sl_err err = {0};
            bad |= (sl_log_start(&err) != SL_OK) << 1;
            log_lines(0, 2);
            bad |= !sl_log_flush(5000) << 2;
            sl_log_stop(1000);
#endif
            _exit(bad);
        }
        int status = -1;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(
            status == 0,
            "child %d: wait status %#x (an exit code 1: it has lines, 2: no writer, 4: its lines were "
            "not written)",
            i, (unsigned)status);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < SL_COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    sl_log_stop(0);
}
END_TEST

/* The panic's own line is written at once and is the last one, after what was logged before it. */
START_TEST(panic_is_last)
{
    pipe_stderr();
    pid_t pid = fork();
    if (pid == 0) {
        start();
        log_lines(0, 5);
        SL_CHECK(1 == 2, "on purpose");
    }
    close(STDERR_FILENO);
    static char text[8192];
    size_t len = 0;
    ssize_t n;
    while ((n = read(fds[0], text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)n;
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    const char *last = strstr(text, " i=4 "), *panic = strstr(text, "panic: ");
    ck_assert(last && panic && last < panic);
    ck_assert_ptr_nonnull(strstr(panic, "on purpose"));
}
END_TEST

/* A panic whose reader does not read still ends the process. */
START_TEST(panic_is_bounded)
{
    pipe_stderr();
    pid_t pid = fork();
    if (pid == 0) {
        start();
        log_lines(0, 1000);
        SL_CHECK(1 == 2, "on purpose");
    }
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
END_TEST

static void *log_numbered(void *arg)
{
    for (int i = 0; i < 500; i++)
        sl_log(SL_LOG_INFO, "thread", arg, "i=%d", i);
    return NULL;
}

/* Lines of one thread keep their order, whatever others log. */
START_TEST(order)
{
    char names[4][8] = {"e0", "e1", "e2", "e3"};
    pthread_t threads[4];
    pipe_stderr();
    start();
    pid_t pid = fork();
    if (pid == 0) {
        static char line[8192];
        int next[4] = {0}, i, who;
        close(STDERR_FILENO);
        FILE *in = fdopen(fds[0], "r");
        while (next[0] + next[1] + next[2] + next[3] < 2000 && fgets(line, sizeof line, in)) {
            const char *at = strstr(line, " ev=e");
            if (!at || sscanf(at, " ev=e%d i=%d", &who, &i) != 2 || i != next[who]++)
                _exit(1);
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, log_numbered, names[i]);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sl_log_stop(1000);
    ck_assert_uint_eq(sl_log_lines_lost(), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("log writer");
    TCase *t = tcase_create("log writer");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, full_pipe);
    tcase_add_test(t, stop_is_bounded);
    tcase_add_test(t, exit_is_bounded);
    tcase_add_test(t, reader_gone);
    tcase_add_test(t, descriptor_that_does_not_block);
    tcase_add_test(t, fork_safe);
    tcase_add_test(t, panic_is_last);
    tcase_add_test(t, panic_is_bounded);
    tcase_add_test(t, order);
    suite_add_tcase(s, t);
    return run_suite(s);
}
