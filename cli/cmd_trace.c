/* `sluice trace ID`: where the time of one of the last requests went, as a file for chrome://tracing or ui.perfetto.dev. The router
 * makes the document (router/trace/chrome.c); the command fetches it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "base/http_client.h"

enum { ASK_TIMEOUT_S = 10, ID_MAX = 96 };

static const char usage[] = "ID [--router http://HOST:PORT] [--key-file FILE] [--output FILE]";

/* The letters that ids of requests have; others would name another path. */
static sl_status check_id(const char *id, sl_err *err)
{
    size_t n = strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-");
    if (!n || id[n] || n >= ID_MAX)
        return sl_fail(
            err, SL_ERR_INVALID,
            "'%s' is no id of a request: give that of the answer or of X-Request-Id, or the rid of a log",
            id);
    return SL_OK;
}

static sl_status refused(const sl_http_answer *a, sl_err *err)
{
    json_t *o = json_loadb(a->body, a->len, 0, NULL);
    const char *why = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    sl_fail(err, SL_ERR_REFUSED, "the router answers %d: %s", a->code, why ? why : "no document");
    json_decref(o);
    return SL_ERR_REFUSED;
}

static sl_status write_to(const char *path, const sl_http_answer *a, sl_err *err)
{
    FILE *f = path ? fopen(path, "we") : stdout;
    if (!f)
        return sl_fail(err, SL_ERR_IO, "--output %s: %m", path);
    bool ok = fwrite(a->body, 1, a->len, f) == a->len;
    ok = (path ? fclose(f) : fflush(f)) == 0 && ok;
    return ok ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: %m", path ? path : "standard output");
}

static sl_status fetch(const sl_http_server *s, const char *id, const char *output, sl_err *err)
{
    char path[ID_MAX + 8];
    sl_http_answer a;
    SL_TRY(check_id(id, err));
    snprintf(path, sizeof path, "/trace/%s", id);
    SL_TRY(sl_http_ask(s, "GET", path, NULL, ASK_TIMEOUT_S, &a, err));
    sl_status st = a.code == 200 ? write_to(output, &a, err) : refused(&a, err);
    free(a.body);
    return st;
}

int sl_cmd_trace(int argc, char **argv)
{
    const char *router = "http://127.0.0.1:8080", *key_file = NULL, *output = NULL;
    char key[256] = "";
    sl_http_server server;
    sl_err err = {0};
    int exit_code;
    const sl_arg args[] = {
        {"router", SL_ARG_TEXT, &router, "URL",
         "The HTTP address of the router that had the request. Default: http://127.0.0.1:8080.", 0, 0, NULL},
        {"key-file", SL_ARG_TEXT, &key_file, "FILE",
         "File whose first line is a key with admin rights for the router.", 0, 0, NULL},
        {"output", SL_ARG_TEXT, &output, "FILE", "Where the trace is written. Default: standard output.", 0,
         0, NULL},
    };
    const char *id = argc > 1 && argv[1][0] != '-' ? argv[1] : NULL;
    if (!sl_args_ready(usage, args, SL_COUNT(args), id ? argc - 1 : argc, id ? argv + 1 : argv, &exit_code))
        return exit_code;
    sl_status st = id ? sl_http_server_parse(router, &server, &err)
                      : sl_fail(&err, SL_ERR_INVALID, "usage: sluice trace %s", usage);
    if (st == SL_OK && key_file)
        st = sl_http_read_key(key_file, key, sizeof key, &err);
    server.key = key;
    if (st == SL_OK)
        st = fetch(&server, id, output, &err);
    if (st == SL_OK)
        return SL_EXIT_OK;
    sl_args_fail("trace", st, &err);
    return id ? SL_EXIT_FAILED : SL_EXIT_USAGE;
}
