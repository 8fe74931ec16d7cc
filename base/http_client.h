/*
 * A small HTTP/1.1 client for commands and benchmarks that ask a router or a worker's exporter: one connection for each request,
 * blocking, no TLS. Any thread. The load generator of bench/router is another: it keeps thousands of streams on one loop.
 */
#ifndef SL_BASE_HTTP_CLIENT_H
#define SL_BASE_HTTP_CLIENT_H

#include "base/status.h"

typedef struct sl_http_server {
    char host[256], port[8];
    const char *key; /* bearer token, "" for none; borrowed */
} sl_http_server;

typedef struct sl_http_answer {
    int code;
    char *body; /* malloc'ed, NUL-terminated; the caller frees it */
    size_t len;
    uint64_t ns; /* from the first byte sent to the last byte received */
} sl_http_answer;

/* "http://host:port", "host:port", an IPv6 host in brackets. SL_ERR_INVALID: something else, https among them. */
sl_status sl_http_server_parse(const char *url, sl_http_server *out, sl_err *err);
/* Reads a whole answer out of a malloc'ed text of len bytes and a NUL, which becomes its body. SL_ERR_CORRUPT,
 * SL_ERR_UNSUPPORTED, SL_ERR_PEER: the text may be changed, and stays the caller's. */
sl_status sl_http_answer_read(char *text, size_t len, sl_http_answer *out, sl_err *err);
/* method "GET" or "POST"; body: JSON, NULL for none. Any code is an answer. SL_ERR_PEER, SL_ERR_CORRUPT, SL_ERR_NO_MEMORY;
 * SL_ERR_DEADLINE: nothing came for timeout_s seconds. */
sl_status sl_http_ask(const sl_http_server *s, const char *method, const char *path, const char *body,
                      int timeout_s, sl_http_answer *out, sl_err *err);
/* The first line of the file of --key-file, which must not be empty. SL_ERR_IO, SL_ERR_INVALID. */
sl_status sl_http_read_key(const char *path, char *key, size_t cap, sl_err *err);

#endif
