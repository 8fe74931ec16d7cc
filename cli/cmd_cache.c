/* `sluice cache ACTION`: reads the command line; cache.h says who does the work. */
#include <stdio.h>
#include <string.h>

#include "cli/cache.h"
#include "cli/cli.h"

static const char usage[] = "(--dir DIRECTORY | --router http://HOST:PORT) [flags]";

typedef struct options {
    const char *dir, *router, *key_file, *file;
    bool json;
    int32_t parallel, wait;
    sl_cache_selection pages;
} options;

static int on_directory(const char *command, const char *action, const options *o)
{
    if (o->pages.worker || o->pages.tier || o->pages.prefix || o->pages.status || o->pages.cancel) {
        fprintf(stderr, "sluice %s: --worker, --tier, --prefix, --status and --cancel need --router\n",
                command);
        return SL_EXIT_USAGE;
    }
    if (!strcmp(action, "stat"))
        return sl_cache_dir_stat(command, o->dir, o->json);
    if (!strcmp(action, "ls"))
        return sl_cache_dir_ls(command, o->dir, o->json);
    if (!strcmp(action, "verify"))
        return sl_cache_dir_verify(command, o->dir, o->json);
    if (!strcmp(action, "drop"))
        return sl_cache_dir_drop(command, o->dir);
    fprintf(stderr, "sluice %s: needs --router, because the model computes what is not cached\n", command);
    return SL_EXIT_USAGE;
}

static int on_router(const char *command, const char *action, const options *o)
{
    sl_err err = {0};
    sl_http_server router;
    char key[256] = "";
    sl_status st = sl_http_server_parse(o->router, &router, &err);
    if (st == SL_OK && o->key_file)
        st = sl_http_read_key(o->key_file, key, sizeof key, &err);
    if (st != SL_OK)
        return sl_args_fail(command, st, &err);
    router.key = key;
    if (!strcmp(action, "stat"))
        return sl_cache_router_stat(command, &router, o->json);
    if (!strcmp(action, "ls"))
        return sl_cache_online_ls(command, &router, &o->pages, o->json);
    if (!strcmp(action, "verify"))
        return sl_cache_online_verify(command, &router, &o->pages, o->json);
    if (!strcmp(action, "drop") && o->pages.tier)
        return sl_cache_online_drop(command, &router, &o->pages, o->json);
    if (!strcmp(action, "drop") && o->pages.worker) {
        fprintf(stderr, "sluice %s: --worker needs --tier\n", command);
        return SL_EXIT_USAGE;
    }
    if (!strcmp(action, "drop"))
        return sl_cache_router_drop(command, &router, o->wait);
    if (o->file)
        return sl_cache_router_warm(command, &router, o->file, o->parallel);
    fprintf(stderr, "sluice %s: --file is missing\n", command);
    return SL_EXIT_USAGE;
}

static const sl_arg_action actions[] = {
    {"stat", "how many pages are where, hits, misses by reason, health (--router); what a store is (--dir)"},
    {"ls", "the pages of each decode worker, by tier (--router); every page of a store (--dir)"},
    {"verify",
     "read and check every page, while requests are served (--router), or of a store (--dir); exit status 1 "
     "when one is damaged"},
    {"warm", "send the prompts of --file, one in a line or JSON lines, so that they are cached (--router)"},
    {"drop", "empty all host memories, or with --tier the disk (--router); remove a store (--dir)"},
};

/* argv[0]: what messages begin with. action: NULL when only the help is wanted. */
static int act(const char *action, int argc, char **argv)
{
    options o = {.parallel = 4, .pages.limit = 1000};
    int code;
    const sl_arg args[] = {
        {"dir", SL_ARG_TEXT, &o.dir, "DIRECTORY",
         "A disk store: the directory decode-N in kvstore.disk.path, of a worker that is stopped.", 0, 0,
         NULL},
        {"router", SL_ARG_TEXT, &o.router, "URL", "The HTTP address of a router, http://HOST:PORT.", 0, 0,
         NULL},
        {"key-file", SL_ARG_TEXT, &o.key_file, "FILE",
         "File whose first line is the key for the router; all but warm need admin rights.", 0, 0, NULL},
        {"json", SL_ARG_FLAG, &o.json, "", "Print JSON.", 0, 0, NULL},
        {"file", SL_ARG_TEXT, &o.file, "FILE", "warm: the prompts; - for stdin.", 0, 0, NULL},
        {"parallel", SL_ARG_INT, &o.parallel, "N", "warm: prompts in flight, 4 by default.", 1, 64, NULL},
        {"wait", SL_ARG_INT, &o.wait, "SECONDS",
         "drop: how long to wait for requests in flight, 0 by default.", 0, 86400, NULL},
        {"worker", SL_ARG_TEXT, &o.pages.worker, "NAME", "Only this decode worker, such as decode/0.", 0, 0,
         NULL},
        {"tier", SL_ARG_TEXT, &o.pages.tier, "TIER", "Only pages in host or on disk.", 0, 0, NULL},
        {"prefix", SL_ARG_TEXT, &o.pages.prefix, "HEX", "ls: only keys that begin with these digits.", 0, 0,
         NULL},
        {"limit", SL_ARG_INT, &o.pages.limit, "N", "ls: pages to print, 1000 by default; 0 for all.", 0,
         INT32_MAX, NULL},
        {"rate", SL_ARG_INT, &o.pages.rate_mib, "MIB",
         "verify: MiB that each worker reads per second, 200 by default.", 1, 1 << 20, NULL},
        {"status", SL_ARG_FLAG, &o.pages.status, "", "verify: only show how far the workers are.", 0, 0,
         NULL},
        {"cancel", SL_ARG_FLAG, &o.pages.cancel, "", "verify: end what is running, a drop too.", 0, 0, NULL},
    };
    if (!sl_args_ready(action ? usage : "ACTION (--dir DIRECTORY | --router http://HOST:PORT) [flags]", args,
                       SL_COUNT(args), argc, argv, &code))
        return code;
    if (!o.dir == !o.router) {
        fprintf(stderr, "sluice %s: give either --dir or --router\n", argv[0]);
        return SL_EXIT_USAGE;
    }
    return o.dir ? on_directory(argv[0], action, &o) : on_router(argv[0], action, &o);
}

int sl_cmd_cache(int argc, char **argv)
{
    static const char how[] =
        "ACTION (--dir DIRECTORY | --router http://HOST:PORT) [flags]   (sluice cache ACTION --help "
        "explains the flags)";
    for (size_t i = 0; argc > 1 && i < SL_COUNT(actions); i++) {
        if (strcmp(argv[1], actions[i].name) != 0)
            continue;
        char name[32];
        snprintf(name, sizeof name, "cache %s", actions[i].name);
        argv[1] = name;
        return act(actions[i].name, argc - 1, argv + 1);
    }
    if (argc > 1 && strncmp(argv[1], "--help=", 7) == 0 && strcmp(argv[1], "--help=commands") != 0)
        return act(NULL, argc, argv);
    if (argc > 1 && sl_args_actions(argv[1], "cache", how, actions, SL_COUNT(actions)))
        return SL_EXIT_OK;
    return sl_args_unknown_action("cache", argc > 1 ? argv[1] : NULL, "action", how, actions,
                                  SL_COUNT(actions));
}
