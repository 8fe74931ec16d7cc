/*
 * `sluice cache warm`: sends every prompt of a file with an output of one token, so that its pages are cached. Several
 * threads take lines in turn; each line is reported when it is answered.
 */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cache.h"

enum { ASK_TIMEOUT_S = 600, THREADS_MAX = 64 };

typedef struct warming {
    const sl_http_server *router;
    char *model;
    pthread_mutex_t lock; /* of what follows, and of stdout */
    FILE *in;
    unsigned long line;
    uint64_t done, failed, tokens, cached;
} warming;

/* The next line that is not empty, malloc'ed, without its end; NULL: there is none. */
static char *next_prompt(warming *w, unsigned long *number)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = 0;
    pthread_mutex_lock(&w->lock);
    while ((n = getline(&line, &cap, w->in)) >= 0) {
        w->line++;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (n > 0)
            break;
    }
    *number = w->line;
    pthread_mutex_unlock(&w->lock);
    if (n >= 0)
        return line;
    free(line);
    return NULL;
}

/* The request of a line, and its path. A line that begins with {, [ or " is JSON. NULL: why says what is wrong. */
static json_t *request_of(const warming *w, const char *line, const char **path, char why[256])
{
    json_error_t e = {0};
    bool is_json = strchr("{[\"", line[0]) != NULL;
    json_t *v = is_json ? json_loads(line, JSON_DECODE_ANY, &e) : json_string(line), *q = v;
    *path = "/v1/completions";
    if (!v) {
        snprintf(why, 256, "%s", is_json ? e.text : "is not UTF-8");
        return NULL;
    }
    if (!json_is_object(v)) {
        q = json_object();
        json_object_set_new(q, "prompt", v);
    } else if (json_object_get(v, "messages")) {
        *path = "/v1/chat/completions";
    } else if (!json_object_get(v, "prompt")) {
        snprintf(why, 256, "has neither \"prompt\" nor \"messages\"");
        json_decref(v);
        return NULL;
    }
    json_object_set_new(q, "model", json_string(w->model));
    json_object_set_new(q, "max_tokens", json_integer(1));
    json_object_del(q, "max_completion_tokens");
    json_object_set_new(q, "stream", json_false());
    return q;
}

/* What an answer says; false: why it is none. */
static bool read_answer(const sl_http_answer *a, uint64_t *tokens, uint64_t *cached, char why[256])
{
    json_t *o = json_loads(a->body, 0, NULL), *usage = json_object_get(o, "usage");
    *tokens = (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    *cached = (uint64_t)json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    const char *text = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    snprintf(why, 256, "the router answers %d%s%s", a->code, text ? ": " : "", text ? text : "");
    json_decref(o);
    return a->code == 200;
}

static void warm_line(warming *w, unsigned long number, const char *line)
{
    char why[256] = "";
    const char *path;
    uint64_t tokens = 0, cached = 0, began = sl_now_ns();
    sl_err err = {0};
    sl_http_answer a = {0};
    json_t *q = request_of(w, line, &path, why);
    char *body = q ? json_dumps(q, JSON_COMPACT) : NULL;
    bool right = false;
    if (body && sl_http_ask(w->router, "POST", path, body, ASK_TIMEOUT_S, &a, &err) == SL_OK)
        right = read_answer(&a, &tokens, &cached, why);
    else if (q)
        snprintf(why, sizeof why, "%.250s",
                 body ? err.text : "cannot be sent: it is not UTF-8, or memory is exhausted");
    json_decref(q);
    free(body);
    free(a.body);
    pthread_mutex_lock(&w->lock);
    w->done += right;
    w->failed += !right;
    w->tokens += tokens;
    w->cached += cached;
    if (right)
        printf("line %lu: %lu tokens, %lu were cached, %.0f ms\n", number, (unsigned long)tokens,
               (unsigned long)cached, (double)(sl_now_ns() - began) / 1e6);
    else
        fprintf(stderr, "line %lu: %s\n", number, why);
    fflush(stdout);
    pthread_mutex_unlock(&w->lock);
}

static void *warm_main(void *arg)
{
    warming *w = arg;
    unsigned long number;
    for (char *line; (line = next_prompt(w, &number));) {
        warm_line(w, number, line);
        free(line);
    }
    return NULL;
}

/* The name of the model that is served. */
static sl_status ask_model(const sl_http_server *router, char **out, sl_err *err)
{
    sl_http_answer a;
    SL_TRY(sl_http_ask(router, "GET", "/v1/models", NULL, ASK_TIMEOUT_S, &a, err));
    json_t *o = json_loads(a.body, 0, NULL);
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    *out = id ? strdup(id) : NULL;
    sl_status st = SL_OK;
    if (a.code == 401)
        st = sl_fail(err, SL_ERR_DENIED, "the router wants a key: --key-file");
    else if (!*out)
        st = sl_fail(err, SL_ERR_CORRUPT, "the answer %d to /v1/models names no model", a.code);
    json_decref(o);
    free(a.body);
    return st;
}

int sl_cache_router_warm(const char *command, const sl_http_server *router, const char *file, int parallel)
{
    sl_err err = {0};
    warming w = {.router = router, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[THREADS_MAX];
    int n = 0;
    sl_status st = ask_model(router, &w.model, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    w.in = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
    if (!w.in) {
        free(w.model);
        return sl_args_fail(command, sl_fail(&err, SL_ERR_IO, "%s: %m", file), &err);
    }
    while (n < parallel && n < THREADS_MAX && pthread_create(&threads[n], NULL, warm_main, &w) == 0)
        n++;
    if (!n)
        warm_main(&w);
    while (n)
        pthread_join(threads[--n], NULL);
    if (w.in != stdin)
        fclose(w.in);
    free(w.model);
    printf("%lu prompts, %lu tokens, of which %lu were cached already; %lu failed\n", (unsigned long)w.done,
           (unsigned long)w.tokens, (unsigned long)w.cached, (unsigned long)w.failed);
    return w.failed ? SL_EXIT_FAILED : SL_EXIT_OK;
}
