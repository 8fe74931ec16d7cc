/* `sluice top`: what the router's live page shows, in a terminal: from the same document (/overview), drawn again and again. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "base/http_client.h"

enum { ASK_TIMEOUT_S = 10 };

static volatile sig_atomic_t stopped;

static void on_signal(int sig)
{
    (void)sig;
    stopped = 1;
}

/* A text of the document for a terminal: control characters, which could move the cursor or worse, become '?'. */
static const char *text_of(const json_t *o, const char *key, char *out, size_t n)
{
    const char *s = json_string_value(json_object_get(o, key));
    size_t i = 0;
    for (; s && s[i] && i + 1 < n; i++)
        out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f || (unsigned char)s[i] >= 0x80 ? '?' : s[i];
    out[i] = 0;
    return out;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* The newest value of a column of the history; negative: none. */
static double newest(const json_t *doc, const char *column)
{
    const json_t *list = json_object_get(json_object_get(doc, "history"), column);
    for (size_t i = json_array_size(list); i-- > 0;)
        if (json_is_number(json_array_get(list, i)))
            return json_number_value(json_array_get(list, i));
    return -1;
}

static const char *seconds(double v, char out[24])
{
    if (v < 0)
        snprintf(out, 24, "-");
    else if (v < 1)
        snprintf(out, 24, "%.1f ms", v * 1e3);
    else
        snprintf(out, 24, "%.1f s", v);
    return out;
}

static const char *percent(double part, double whole, char out[24])
{
    if (whole > 0)
        snprintf(out, 24, "%.1f %%", 100 * part / whole);
    else
        snprintf(out, 24, "-");
    return out;
}

static void print_head(const json_t *d)
{
    char a[64], b[64], c[24], e[24], f[24], g[24];
    printf("%s %s, up %.0f s, %.0f running, %.0f waiting\n", text_of(d, "model", a, sizeof a),
           text_of(d, "health", b, sizeof b), number(d, "now_unix") - number(d, "started_unix"),
           number(d, "active") - number(d, "queued"), number(d, "queued"));
    const double rate = newest(d, "output_tokens_per_s"), cached = newest(d, "cached_share");
    printf("%.0f output tokens/s; first token %s median, %s p99; between tokens %s median, %s p99",
           rate < 0 ? 0 : rate, seconds(newest(d, "ttft_p50_s"), c), seconds(newest(d, "ttft_p99_s"), e),
           seconds(newest(d, "itl_p50_s"), f), seconds(newest(d, "itl_p99_s"), g));
    printf("; cached of prompts %s\n", percent(cached, cached < 0 ? 0 : 1, c));
}

static void print_worker(const json_t *w)
{
    char name[64], state[16], hit[24], idle[24], step[24], exposed[24];
    const json_t *f = json_object_get(w, "figures");
    const double steps = number(f, "steps"), busy = number(f, "step_seconds"),
                 rest = number(f, "idle_seconds");
    const double hidden = number(f, "swap_hidden_seconds"), shown = number(f, "swap_exposed_seconds");
    printf("%-24.24s %-9s %4.0f/%-4.0f %7.0f  %6.2f %9s %8s %9s %8s %8.0f %8.0f %8.0f\n",
           text_of(w, "name", name, sizeof name), text_of(w, "state", state, sizeof state),
           number(w, "running"), number(w, "max_batch"), number(w, "waiting"),
           number(f, "batches") > 0 ? number(f, "batch_sum") / number(f, "batches") : 0,
           seconds(steps > 0 ? busy / steps : -1, step),
           percent(number(w, "swap_hits"), number(w, "swap_hits") + number(w, "swap_misses"), hit),
           percent(shown, hidden + shown, exposed), percent(rest, rest + busy, idle),
           number(w, "total_pages") - number(w, "free_pages") - number(w, "cached_pages"),
           number(w, "cached_pages"), number(w, "free_pages"));
}

static void print_requests(const json_t *d, int lines)
{
    size_t i;
    json_t *q;
    char id[64], client[32], stage[16];
    const json_t *list = json_object_get(d, "requests");
    if (!list) {
        printf("\nsingle requests and clients are shown to keys with admin rights\n");
        return;
    }
    printf("\n%-40s %-18s %-11s %8s %8s %8s\n", "request", "client", "stage", "age s", "prompt", "produced");
    json_array_foreach((json_t *)list, i, q)
    {
        if ((int)i >= lines)
            break;
        printf("%-40.40s %-18.18s %-11s %8.1f %8.0f %8.0f\n", text_of(q, "id", id, sizeof id),
               text_of(q, "client", client, sizeof client), text_of(q, "stage", stage, sizeof stage),
               number(q, "age_s"), number(q, "prompt"), number(q, "produced"));
    }
}

static void print_errors(const json_t *d)
{
    const char *name;
    json_t *n, *e;
    size_t i;
    char outcome[24], reason[100];
    printf("\nerrors of the last hour:");
    json_object_foreach(json_object_get(d, "errors_by_outcome"), name, n)
        printf(" %s %.0f", name, json_number_value(n));
    printf("\n");
    json_array_foreach(json_object_get(d, "errors"), i, e)
    {
        if (i == 5)
            break;
        printf("%8.0f s ago  %-10s %s\n", number(e, "age_s"), text_of(e, "outcome", outcome, sizeof outcome),
               text_of(e, "reason", reason, sizeof reason));
    }
}

static void draw(const json_t *d, int lines)
{
    size_t i;
    json_t *w;
    print_head(d);
    printf("\n%-24s %-9s %9s %7s  %6s %9s %8s %9s %8s %8s %8s %8s\n", "worker", "state", "requests",
           "waiting", "batch", "step", "hits", "exposed", "idle", "used", "cached", "free");
    json_array_foreach(json_object_get(d, "workers"), i, w) print_worker(w);
    print_requests(d, lines);
    print_errors(d);
}

static sl_status ask(const sl_http_server *s, json_t **out, sl_err *err)
{
    sl_http_answer a;
    SL_TRY(sl_http_ask(s, "GET", "/overview", NULL, ASK_TIMEOUT_S, &a, err));
    *out = json_loadb(a.body, a.len, 0, NULL);
    if (a.code == 200 && json_is_object(*out)) {
        free(a.body);
        return SL_OK;
    }
    const char *why = json_string_value(json_object_get(json_object_get(*out, "error"), "message"));
    sl_fail(err, SL_ERR_REFUSED, "the router answers %d: %s", a.code, why ? why : "no document");
    json_decref(*out);
    free(a.body);
    return SL_ERR_REFUSED;
}

/* Until a signal, or once. */
static sl_status watch(const sl_http_server *s, int every, bool once, sl_err *err)
{
    const bool screen = !once && isatty(STDOUT_FILENO);
    while (!stopped) {
        json_t *d = NULL;
        SL_TRY(ask(s, &d, err));
        if (screen)
            printf("\033[H\033[2J");
        draw(d, screen ? 15 : 100);
        fflush(stdout);
        json_decref(d);
        if (once)
            break;
        const struct timespec wait = {.tv_sec = every};
        nanosleep(&wait, NULL);
    }
    return SL_OK;
}

int sl_cmd_top(int argc, char **argv)
{
    const char *router = "http://127.0.0.1:8080", *key_file = NULL;
    int32_t every = 2;
    bool once = false;
    char key[256] = "";
    sl_http_server server;
    sl_err err = {0};
    int exit_code;
    const sl_arg args[] = {
        {"router", SL_ARG_TEXT, &router, "URL",
         "The HTTP address of a router. Default: http://127.0.0.1:8080.", 0, 0, NULL},
        {"key-file", SL_ARG_TEXT, &key_file, "FILE",
         "File whose first line is the key for the router. Without admin rights, requests and clients are left out.",
         0, 0, NULL},
        {"every", SL_ARG_INT, &every, "SECONDS", "Time between two looks. Default 2.", 1, 3600, NULL},
        {"once", SL_ARG_FLAG, &once, NULL, "Print once and end.", 0, 0, NULL},
    };
    if (!sl_args_ready("[--router http://HOST:PORT] [--key-file FILE] [--every SECONDS | --once]", args,
                       SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    sl_status st = sl_http_server_parse(router, &server, &err);
    if (st == SL_OK && key_file)
        st = sl_http_read_key(key_file, key, sizeof key, &err);
    server.key = key;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (st == SL_OK)
        st = watch(&server, every, once, &err);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("top", st, &err);
}
