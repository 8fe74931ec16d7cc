/*
 * A real redis-server for tests, started on a Unix socket in build/, without persistence. It ends with the process that started
 * it, whatever happens to that (PR_SET_PDEATHSIG).
 */
#ifndef SL_TEST_REDIS_RIG_H
#define SL_TEST_REDIS_RIG_H

#include <stdbool.h>

typedef struct redis_rig redis_rig;

/* Arguments that most tests use: a limit of memory with eviction of the least recently used keys. */
#define REDIS_RIG_LRU "--maxmemory 64mb --maxmemory-policy allkeys-lru"

/* Starts a server with these further arguments (separated by spaces) and waits until it answers. NULL with *why: there is no
 * redis-server here, or it did not start. The rig is never freed before the process ends. */
redis_rig *redis_rig_start(const char *arguments, const char **why);
/* "unix:PATH" */
const char *redis_rig_address(const redis_rig *r);
int redis_rig_pid(const redis_rig *r);
/* Kills the server (SIGKILL) and waits for its end. NULL and one that does not run are allowed. */
void redis_rig_stop(redis_rig *r);
/* Starts it again at the same address, empty. */
void redis_rig_again(redis_rig *r);
/* Runs one command (words separated by spaces) on a connection of its own; the answer as text. Aborts when it fails. */
const char *redis_rig_ask(const redis_rig *r, const char *command);

#endif
