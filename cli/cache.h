/*
 * `sluice cache`: looks into caches and changes them. Two kinds: --dir is a disk store that no worker uses
 * (cache_dir.c), --router is a running cluster, through its HTTP interface (cache_router.c; cache_online.c: the pages of each
 * decode worker).
 */
#ifndef SL_CLI_CACHE_H
#define SL_CLI_CACHE_H

#include <jansson.h>

#include "base/args.h"
#include "base/http_client.h"

/* Each prints its result and returns an exit code; `command` begins its messages ("cache ls"). */
int sl_cache_dir_stat(const char *command, const char *dir, bool json);
int sl_cache_dir_ls(const char *command, const char *dir, bool json);
/* SL_EXIT_FAILED when a page is damaged. */
int sl_cache_dir_verify(const char *command, const char *dir, bool json);
int sl_cache_dir_drop(const char *command, const char *dir);

int sl_cache_router_stat(const char *command, const sl_http_server *router, bool json);
int sl_cache_router_warm(const char *command, const sl_http_server *router, const char *file, int parallel);
int sl_cache_router_drop(const char *command, const sl_http_server *router, int wait_s);

/* What the commands on pages of a running cluster are about. NULL: all. */
typedef struct sl_cache_selection {
    const char *worker, *tier, *prefix;
    int32_t limit;    /* ls: pages that are printed; 0: all */
    int32_t rate_mib; /* verify: MiB per second of each worker; 0: the workers' default */
    bool cancel, status;
} sl_cache_selection;

int sl_cache_online_ls(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                       bool json);
/* SL_EXIT_FAILED when a page is damaged or cannot be read, or the job did not end. */
int sl_cache_online_verify(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                           bool json);
int sl_cache_online_drop(const char *command, const sl_http_server *router, const sl_cache_selection *s,
                         bool json);

/* The error text of an answer, or its code. */
sl_status sl_cache_refused(const sl_http_answer *a, sl_err *err);
/* The array `workers` of /workers; the caller releases it. */
sl_status sl_cache_workers(const sl_http_server *router, json_t **out, sl_err *err);

#endif
