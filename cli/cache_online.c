/*
 * `sluice cache ls`, `verify` and `drop --tier` on a running cluster: the router passes the questions to decode workers
 * (docs/api.md, /cache/…). A list comes in parts, which are printed as they come, so that a list of millions of pages needs no
 * memory here and little time in the worker at once. A verify and a drop are jobs of the worker: they continue when
 * this program ends, and --cancel ends them.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cache.h"

enum { ASK_TIMEOUT_S = 30, POLL_MS = 200 };

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static long long number(const json_t *o, const char *key)
{
    return (long long)json_integer_value(json_object_get(o, key));
}

/* POST path with the body, which is released; *out: the answer. */
static sl_status ask(const sl_http_server *router, const char *path, json_t *body, json_t **out, sl_err *err)
{
    sl_http_answer a;
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (!text)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_http_ask(router, "POST", path, text, ASK_TIMEOUT_S, &a, err);
    free(text);
    if (st != SL_OK)
        return st;
    *out = a.code == 200 ? json_loads(a.body, 0, NULL) : NULL;
    if (!*out)
        st = a.code == 200 ? sl_fail(err, SL_ERR_CORRUPT, "the answer to %s is no JSON", path)
                           : sl_cache_refused(&a, err);
    free(a.body);
    return st;
}

/* The decode workers that the selection names. */
static sl_status select_workers(const sl_http_server *router, const sl_cache_selection *s, json_t **out,
                                sl_err *err)
{
    json_t *all = NULL, *w;
    size_t i;
    SL_TRY(sl_cache_workers(router, &all, err));
    *out = json_array();
    json_array_foreach(all, i, w)
    {
        bool named = !s->worker || !strcmp(text_of(w, "name"), s->worker);
        bool keeps = !strcmp(text_of(w, "role"), "decode") || !strcmp(text_of(w, "role"), "both");
        if (named && keeps && strcmp(text_of(w, "state"), "dead") != 0)
            json_array_append(*out, json_object_get(w, "name"));
    }
    json_decref(all);
    if (json_array_size(*out))
        return SL_OK;
    json_decref(*out);
    *out = NULL;
    return s->worker ? sl_fail(err, SL_ERR_NOT_FOUND, "--worker %s: there is no decode worker of this name",
                               s->worker)
                     : sl_fail(err, SL_ERR_NOT_FOUND, "no decode worker has joined");
}

static json_t *question(const char *worker, const sl_cache_selection *s)
{
    json_t *q = json_pack("{s:s}", "worker", worker);
    if (s->tier)
        json_object_set_new(q, "tier", json_string(s->tier));
    return q;
}

/* ---- ls ---- */

static void print_page(const char *worker, const char *tier, json_t *p, bool json)
{
    const json_t *tokens = json_object_get(p, "prefix_tokens"), *age = json_object_get(p, "age_ms");
    if (json) {
        json_object_set_new(p, "worker", json_string(worker));
        json_object_set_new(p, "tier", json_string(tier));
        json_dumpf(p, stdout, JSON_COMPACT);
        printf("\n");
        return;
    }
    printf("%s  %-6s  %s", worker, tier, text_of(p, "key"));
    if (tokens)
        printf("  ends at token %lld%s", (long long)json_integer_value(tokens),
               json_is_true(json_object_get(p, "in_use")) ? ", in use" : "");
    if (age && !json_is_true(json_object_get(p, "in_use")))
        printf("  used %.1f s ago", (double)json_integer_value(age) / 1000);
    printf("\n");
}

/* Prints at most *left pages of one worker (-1: all). more: it has others. */
static sl_status list_worker(const sl_http_server *router, const char *worker, const sl_cache_selection *s,
                             bool json, int64_t *left, bool *more, sl_err *err)
{
    char cursor[32] = "";
    do {
        json_t *q = question(worker, s), *a = NULL, *p;
        size_t i;
        if (s->prefix)
            json_object_set_new(q, "prefix", json_string(s->prefix));
        if (cursor[0])
            json_object_set_new(q, "cursor", json_string(cursor));
        SL_TRY(ask(router, "/cache/pages", q, &a, err));
        json_array_foreach(json_object_get(a, "pages"), i, p)
        {
            *more |= *left == 0;
            if (*left == 0)
                break;
            *left -= *left > 0;
            print_page(worker, text_of(a, "tier"), p, json);
        }
        snprintf(cursor, sizeof cursor, "%s", text_of(a, "cursor"));
        json_decref(a);
    } while (cursor[0] && !*more);
    return SL_OK;
}

int sl_cache_online_ls(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                       bool json)
{
    sl_err err = {0};
    json_t *workers = NULL, *w;
    size_t i;
    int64_t left = s->limit ? s->limit : -1;
    bool more = false;
    sl_status st = select_workers(router, s, &workers, &err);
    json_array_foreach(workers, i, w)
    {
        if (st == SL_OK && !more)
            st = list_worker(router, json_string_value(w), s, json, &left, &more, &err);
    }
    json_decref(workers);
    fflush(stdout);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    if (more)
        fprintf(stderr, "there are more than %d pages: --limit says how many are printed, 0 prints all\n",
                s->limit);
    return SL_EXIT_OK;
}

/* ---- jobs ---- */

static void print_progress(const json_t *j)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%s  %s: %lld of about %lld pages, %lld damaged  ", text_of(j, "worker"),
                text_of(j, "tier"), number(j, "pages"), number(j, "total"), number(j, "damaged"));
}

static void print_job(const json_t *j, bool json)
{
    size_t i;
    json_t *k;
    if (json) {
        json_dumpf(j, stdout, JSON_COMPACT);
        printf("\n");
        return;
    }
    bool verify = !strcmp(text_of(j, "action"), "verify");
    if (!strcmp(text_of(j, "state"), "none")) {
        printf("%s  no verify and no drop since it was started\n", text_of(j, "worker"));
        return;
    }
    printf("%s  %s %s: %lld pages %s in %.1f s", text_of(j, "worker"), text_of(j, "action"),
           text_of(j, "state"), number(j, "pages"), verify ? "read" : "removed",
           (double)number(j, "ms") / 1000);
    if (verify)
        printf(" (%.1f MiB), %lld damaged, %lld unreadable, %lld gone before",
               (double)number(j, "bytes") / 1048576, number(j, "damaged"), number(j, "unreadable"),
               number(j, "gone"));
    printf("\n");
    json_array_foreach(json_object_get(j, "damaged_keys"), i, k)
        printf("  damaged, dropped: %s\n", json_string_value(k));
}

/* Waits for the end of the job of one worker. */
static sl_status wait_for(const sl_http_server *router, const char *worker, json_t **job, sl_err *err)
{
    bool shown = false;
    for (;;) {
        SL_TRY(ask(router, "/cache/job", json_pack("{s:s}", "worker", worker), job, err));
        if (strcmp(text_of(*job, "state"), "running") != 0)
            break;
        print_progress(*job);
        shown = true;
        json_decref(*job);
        *job = NULL;
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
    if (shown && isatty(STDERR_FILENO))
        fprintf(stderr, "\n");
    return SL_OK;
}

static sl_status begin(const sl_http_server *router, const char *path, const char *worker,
                       const sl_cache_selection *s, sl_err *err)
{
    json_t *q = question(worker, s), *a = NULL;
    if (s->rate_mib)
        json_object_set_new(q, "bytes_per_second", json_integer((json_int_t)s->rate_mib << 20));
    SL_TRY(ask(router, path, q, &a, err));
    json_decref(a);
    return SL_OK;
}

/* Begins a job on every selected worker and waits for all. A worker that refuses does not keep the others from it. */
static int run_jobs(const char *command, const char *path, const sl_http_server *router,
                    const sl_cache_selection *s, bool json)
{
    sl_err err = {0};
    json_t *workers = NULL, *w;
    size_t i;
    int code = SL_EXIT_OK;
    sl_status st = select_workers(router, s, &workers, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    for (i = json_array_size(workers); i-- > 0;) {
        const char *name = json_string_value(json_array_get(workers, i));
        sl_err why = {0};
        if (begin(router, path, name, s, &why) == SL_OK)
            continue;
        fprintf(stderr, "sluice %s: %s: %s\n", command, name, why.text);
        code = SL_EXIT_FAILED;
        json_array_remove(workers, i);
    }
    json_array_foreach(workers, i, w)
    {
        json_t *job = NULL;
        st = wait_for(router, json_string_value(w), &job, &err);
        if (st != SL_OK) {
            fprintf(stderr, "sluice %s: %s: %s\n", command, json_string_value(w), err.text);
            code = SL_EXIT_FAILED;
            continue;
        }
        print_job(job, json);
        if (strcmp(text_of(job, "state"), "done") != 0 || number(job, "damaged") || number(job, "unreadable"))
            code = SL_EXIT_FAILED;
        json_decref(job);
    }
    json_decref(workers);
    return code;
}

static int show_jobs(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                     bool json)
{
    sl_err err = {0};
    json_t *workers = NULL, *w;
    size_t i;
    sl_status st = select_workers(router, s, &workers, &err);
    json_array_foreach(workers, i, w)
    {
        json_t *q = json_pack("{s:s}", "worker", json_string_value(w)), *job = NULL;
        if (s->cancel)
            json_object_set_new(q, "cancel", json_true());
        st = ask(router, "/cache/job", q, &job, &err);
        if (st != SL_OK)
            break;
        print_job(job, json);
        json_decref(job);
    }
    json_decref(workers);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail(command, st, &err);
}

int sl_cache_online_verify(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                           bool json)
{
    return s->cancel || s->status ? show_jobs(command, router, s, json)
                                  : run_jobs(command, "/cache/verify", router, s, json);
}

int sl_cache_online_drop(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                         bool json)
{
    return run_jobs(command, "/cache/drop", router, s, json);
}
