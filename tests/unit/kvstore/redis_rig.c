/* See redis_rig.h. */
#include "tests/unit/kvstore/redis_rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef SL_HAVE_HIREDIS
#include <fcntl.h>
#include <hiredis/hiredis.h>

#include "base/status.h"

enum { MAX_ARGS = 32 };

struct redis_rig {
    char socket[64], address[80], arguments[512];
    pid_t pid;
};

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void run_server(const redis_rig *r)
{
    char words[sizeof r->arguments], *save = NULL;
    const char *argv[MAX_ARGS] = {"redis-server", "--port", "0", "--unixsocket", r->socket, "--save", "",
                                  "--daemonize",  "no"};
    int n = 9;
    snprintf(words, sizeof words, "%s", r->arguments);
    for (char *w = strtok_r(words, " ", &save); w && n < MAX_ARGS - 1; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, 1);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    _exit(127);
}

static bool answers(const redis_rig *r)
{
    redisContext *c = redisConnectUnix(r->socket);
    redisReply *reply = c && !c->err ? redisCommand(c, "PING") : NULL;
    bool yes = reply != NULL; /* also when it wants a password */
    freeReplyObject(reply);
    if (c)
        redisFree(c);
    return yes;
}

static const char *start(redis_rig *r)
{
    r->pid = fork();
    if (r->pid == 0)
        run_server(r);
    for (int i = 0; i < 2000; i++) {
        int status;
        if (answers(r))
            return NULL;
        if (waitpid(r->pid, &status, WNOHANG) == r->pid) {
            r->pid = 0;
            return WIFEXITED(status) && WEXITSTATUS(status) == 127 ? "there is no redis-server here"
                                                                   : "redis-server ended at its start";
        }
        sleep_ms(5);
    }
    return "redis-server did not answer for 10 s";
}

redis_rig *redis_rig_start(const char *arguments, const char **why)
{
    static redis_rig *rigs[16]; /* never freed, and never lost */
    static int started;
    SL_CHECK(started < (int)SL_COUNT(rigs), "too many servers in one process");
    redis_rig *r = rigs[started] = calloc(1, sizeof *r);
    SL_CHECK(r, "out of memory");
    snprintf(r->socket, sizeof r->socket, "build/redis-%d-%d.sock", (int)getpid(), started++);
    snprintf(r->address, sizeof r->address, "unix:%s", r->socket);
    snprintf(r->arguments, sizeof r->arguments, "%s", arguments);
    *why = start(r);
    if (!*why)
        return r;
    redis_rig_stop(r);
    return NULL;
}

const char *redis_rig_address(const redis_rig *r)
{
    return r->address;
}

int redis_rig_pid(const redis_rig *r)
{
    return r->pid;
}

void redis_rig_stop(redis_rig *r)
{
    if (!r || r->pid <= 0)
        return;
    kill(r->pid, SIGKILL);
    waitpid(r->pid, NULL, 0);
    r->pid = 0;
    unlink(r->socket);
}

void redis_rig_again(redis_rig *r)
{
    const char *why = start(r);
    SL_CHECK(!why, "%s", why);
}

const char *redis_rig_ask(const redis_rig *r, const char *command)
{
    static char text[4096];
    redisContext *c = redisConnectUnix(r->socket);
    SL_CHECK(c && !c->err, "no connection to the test's server");
    redisReply *reply = redisCommand(c, command);
    SL_CHECK(reply, "the test's server did not answer");
    if (reply->type == REDIS_REPLY_INTEGER)
        snprintf(text, sizeof text, "%lld", reply->integer);
    else
        snprintf(text, sizeof text, "%s", reply->str ? reply->str : "");
    freeReplyObject(reply);
    redisFree(c);
    return text;
}

#else

redis_rig *redis_rig_start(const char *arguments, const char **why)
{
    (void)arguments;
    *why = "this build has no hiredis";
    return NULL;
}

const char *redis_rig_address(const redis_rig *r)
{
    (void)r;
    return NULL;
}

int redis_rig_pid(const redis_rig *r)
{
    (void)r;
    return 0;
}

void redis_rig_stop(redis_rig *r)
{
    (void)r;
}

void redis_rig_again(redis_rig *r)
{
    (void)r;
}

const char *redis_rig_ask(const redis_rig *r, const char *command)
{
    (void)r, (void)command;
    return NULL;
}

#endif
