/*
 * `sluice cache`: looks into caches and changes them. Two kinds: --dir is a disk store that no worker uses
 * (cache_dir.c), --router is a running cluster, through its HTTP interface (cache_router.c).
 */
#ifndef SL_CLI_CACHE_H
#define SL_CLI_CACHE_H

#include "base/args.h"
#include "cli/http.h"

/* Each prints its result and returns an exit code; `command` begins its messages ("cache ls"). */
int sl_cache_dir_stat(const char *command, const char *dir, bool json);
int sl_cache_dir_ls(const char *command, const char *dir, bool json);
/* SL_EXIT_FAILED when a page is damaged. */
int sl_cache_dir_verify(const char *command, const char *dir, bool json);
int sl_cache_dir_drop(const char *command, const char *dir);

int sl_cache_router_stat(const char *command, const sl_http_server *router, bool json);
int sl_cache_router_warm(const char *command, const sl_http_server *router, const char *file, int parallel);
int sl_cache_router_drop(const char *command, const sl_http_server *router, int wait_s);

#endif
