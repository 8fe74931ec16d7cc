/* See lookup.h. */
#include "transport/lookup.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/transport_impl.h"

/* A thread in getaddrinfo() and those who wait for it. Everything but host and port is under the lock. */
typedef struct job {
    struct job *next; /* in the list of jobs that have not ended */
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    int fd; /* eventfd; -1: none */
    int refs;
    bool done;
    sl_status st;
    sl_err err;
    struct sockaddr_storage address;
    socklen_t len;
} job;

struct sl_lookup {
    job *job;
    int fd; /* a duplicate of job->fd, because an epoll set takes each descriptor once */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static job *running;
static int n_running;

/* With the lock. */
static void unref(job *j)
{
    if (--j->refs)
        return;
    if (j->fd >= 0)
        close(j->fd);
    free(j);
}

/* With the lock. */
static void leave_list(job *j)
{
    for (job **at = &running; *at; at = &(*at)->next) {
        if (*at == j) {
            *at = j->next;
            n_running--;
            return;
        }
    }
}

static void *look_up(void *arg)
{
    job *j = arg;
    sl_err err = {0};
    struct sockaddr_storage address;
    socklen_t len = 0;
    sl_status st = sl_tp_resolve(j->host, j->port, false, &address, &len, &err);
    pthread_mutex_lock(&lock);
    leave_list(j);
    j->done = true;
    j->st = st;
    j->err = err;
    if (st == SL_OK) {
        j->address = address;
        j->len = len;
    }
    eventfd_write(j->fd, 1);
    unref(j);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* Signals are for the other threads of the process. */
static int start_thread(job *j)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&thread, &attr, look_up, j);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return e;
}

/* With the lock. *out has one reference, which belongs to the caller. */
static sl_status new_job(const char *host, uint16_t port, job **out, sl_err *err)
{
    if (n_running >= SL_LOOKUPS_MAX)
        return sl_fail(err, SL_ERR_EXHAUSTED, "host \"%.200s\": %d other names are being looked up", host,
                       n_running);
    job *j = calloc(1, sizeof *j);
    if (!j)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    snprintf(j->host, sizeof j->host, "%s", host);
    j->port = port;
    j->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    j->refs = 2; /* the caller's and the thread's */
    int e = j->fd < 0 ? errno : start_thread(j);
    if (e) {
        j->refs = 1;
        unref(j);
        return sl_fail(err, SL_ERR_IO, "host \"%.200s\": cannot look it up: %s", host, strerror(e));
    }
    j->next = running;
    running = j;
    n_running++;
    *out = j;
    return SL_OK;
}

/* With the lock. */
static sl_status join_job(const char *host, uint16_t port, job **out, sl_err *err)
{
    for (job *j = running; j; j = j->next) {
        if (j->port == port && !strcmp(j->host, host)) {
            j->refs++;
            *out = j;
            return SL_OK;
        }
    }
    return new_job(host, port, out, err);
}

sl_status sl_lookup_start(const char *host, uint16_t port, sl_lookup **out, sl_err *err)
{
    sl_lookup *l = calloc(1, sizeof *l);
    if (!l)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    pthread_mutex_lock(&lock);
    sl_status st = join_job(host, port, &l->job, err);
    l->fd = st == SL_OK ? dup(l->job->fd) : -1;
    if (st == SL_OK && l->fd < 0) {
        st = sl_fail(err, SL_ERR_IO, "host \"%.200s\": cannot look it up: %s", host, strerror(errno));
        unref(l->job);
    }
    pthread_mutex_unlock(&lock);
    if (st == SL_OK)
        *out = l;
    else
        free(l);
    return st;
}

int sl_lookup_fd(const sl_lookup *l)
{
    return l->fd;
}

bool sl_lookup_done(const sl_lookup *l, sl_status *st, struct sockaddr_storage *out, socklen_t *len,
                    sl_err *err)
{
    const job *j = l->job;
    pthread_mutex_lock(&lock);
    bool done = j->done;
    if (done) {
        *st = j->st;
        *err = j->err;
        *out = j->address;
        *len = j->len;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

void sl_lookup_release(sl_lookup *l)
{
    if (!l)
        return;
    close(l->fd);
    pthread_mutex_lock(&lock);
    unref(l->job);
    pthread_mutex_unlock(&lock);
    free(l);
}
