/*
 * HTTP/1.1 front: the OpenAI API, health, metrics, workers. libmicrohttpd without threads: its epoll descriptor is
 * polled by the router's loop, and every call into it happens there. A connection that waits for tokens is suspended;
 * while it is, we watch its socket ourselves, because libmicrohttpd does not, and a client that leaves cancels its
 * request at once.
 *
 * Here: the state of the server and of a request, shared by daemon.c (listening, running), connections.c (their
 * timeouts), server.c (receiving, waiting, replying), routes.c (the table), generate.c (completions), cache.c (questions to one
 * worker) and pages.c (what is answered at once).
 */
#ifndef SL_ROUTER_HTTP_HTTP_IMPL_H
#define SL_ROUTER_HTTP_HTTP_IMPL_H

#include <microhttpd.h>

#include "router/http/openai.h"
#include "router/front.h"
#include "router/page/page.h"

typedef struct http_req http_req;

typedef struct http_route {
    const char *path;         /* ends in '/': prefix */
    const char *method;       /* "GET" (HEAD too) or "POST" */
    bool key;                 /* needs a key */
    void (*run)(http_req *q); /* sets a reply, or starts work */
    bool admin;               /* the key must have admin rights */
    bool kept;                /* one answer serves all callers for a short time (kept.c) */
    bool page;                /* belongs to the live page: for loopback, or with a key (page_allowed()) */
} http_route;

/* What a connection does, for its timeouts: libmicrohttpd only knows one, between bytes. */
typedef enum { HTTP_CONN_NEW, HTTP_CONN_RECEIVING, HTTP_CONN_BUSY, HTTP_CONN_IDLE } http_conn_state;

typedef struct http_conn {
    struct http_conn *next, *prev;
    int fd;
    http_conn_state state;
    uint64_t since_ns;         /* of the state */
    sl_tls *tls;               /* that its session uses, or NULL */
    const char *uri, *uri_end; /* of the request that is being received, where it was received */
} http_conn;

typedef struct sl_http {
    sl_front front; /* first: an sl_front pointer is an sl_http pointer */
    sl_router *r;
    uv_loop_t *loop;
    const sl_router_opts *o;
    sl_router_stats *stats;
    struct MHD_Daemon *daemon;
    int port;
    uv_poll_t *poll;
    uv_timer_t *timer;
    int ends_fd;               /* an epoll set: connections whose client has ended its side (connections.c) */
    bool dirty;                /* MHD_run is due */
    http_conn *conns, *closed; /* closed: freed by the next sweep */
    uint64_t swept_ns;
    http_req *reqs;
    uint32_t started; /* requests in work */
    sl_oai_env env;
    struct http_kept *kept;
    sl_page *page;
    uint64_t turn;          /* of the loop, in which turn_requests were counted */
    uint32_t turn_requests; /* that were begun in this turn of the loop */
    uint64_t grown;         /* the turn in which the buffer of a long body last became larger */
    http_req *postponed, *postponed_last;
} sl_http;

typedef struct http_watch {
    uv_poll_t poll;
    http_req *q;
} http_watch;

struct http_job;
struct document_job;

struct http_req {
    sl_http *h;
    http_req *next, *prev;
    struct MHD_Connection *c;
    const http_route *route;
    char path[128];
    sl_strbuf body;
    uint64_t dropped; /* bytes of a body that is refused */
    uint64_t held;    /* of the budget */
    bool started, suspended, dead, queued, stream_done;
    bool postponed; /* in the list; begins, or receives more, in a later turn of the loop */
    bool close;     /* the connection ends with the answer */
    bool no_body;   /* the path takes none: what is sent is not kept */
    bool gzip;      /* of the body, which is inflated on the pool */
    http_req *postponed_next;
    struct MHD_Response *shared; /* the reply, of all who ask for it in this moment; a reference */
    sl_caller caller;
    uint32_t retry_after_s; /* of a refusal, 0 = an estimate */
    int code;               /* of the reply that is ready, 0 none */
    char *reply;            /* malloc'ed */
    size_t reply_len;
    const char *type, *allow;
    struct http_job *job;
    sl_group *group;
    sl_cache_call *cache_call; /* that is not answered */
    char worker[64];           /* of whose cache it asks */
    sl_oai_answer *answer;
    struct document_job *document; /* made from the answer on the pool */
    uint64_t answer_held;          /* of the budget, for answer, document and reply */
    bool heavy;                    /* the request is so large that freeing it takes long */
    char id[64];
    char given_id[64]; /* X-Request-Id of the client, "" none */
    char origin[128];  /* of the page whose script asks, if it may read the answer */
    http_watch *watch;
    uint64_t arrival_ns;
};

/* Sets the reply. text is taken over; NULL means out of memory. */
void http_reply(http_req *q, int code, const char *type, char *text);
void http_reply_status(http_req *q, sl_status st, const char *text);
void http_reply_error(http_req *q, int code, const char *message, const char *type, const char *ecode);

/* pages.c: what is answered at once. */
void http_page_health(http_req *q);
void http_page_live(http_req *q);
void http_page_metrics(http_req *q);
void http_page_models(http_req *q);
void http_page_model(http_req *q);
void http_page_workers(http_req *q);
void http_page_trace(http_req *q);
void http_page_flush(http_req *q);
void http_page_version(http_req *q);
void http_page_model_info(http_req *q);
void http_page_server_info(http_req *q);
void http_page_tokenizer_info(http_req *q);

/* origin.c: who asks, and whether scripts of another page may. Called once, before the route is used. */
void http_adopt(http_req *q);
void http_add_origin(const http_req *q, struct MHD_Response *res);
/* The answer to OPTIONS: what a browser may send to the path. */
void http_preflight(http_req *q);

/* routes.c. Finds the route; on failure sets an error reply (404, 405, 401). */
void http_route_request(http_req *q, const char *url, const char *method);
/* strict.c: what is wrong with the head, or NULL; whether the body is chunked. method and version: as libmicrohttpd gives
 * them, which are where they were received. */
const char *http_head_wrong(struct MHD_Connection *c, const char *method, const char *version, bool *chunked);
/* Of the path as it was sent. */
bool http_path_is_plain(const char *uri);

/* live.c: the live page. */
void http_live_text(http_req *q);
void http_live_document(http_req *q);
/* Whether this caller may have it, where no key says so: from this host, by its address or as localhost. */
bool http_page_allowed(http_req *q);
void http_page_headers(struct MHD_Response *res);

/* kept.c: answers that are made a few times in a tenth of a second at most, however often they are asked for. Finds one for this request;
 * true: it is q->shared. */
bool http_kept_find(http_req *q);
/* The reply of q becomes q->shared, and that of others. */
void http_kept_add(http_req *q);
void http_kept_free(sl_http *h);

/* POST /v1/completions and /v1/chat/completions (generate.c). */
void http_generate(http_req *q);
/* The client has gone: what the pool works on is dropped when it is done; the answer is freed. */
void http_drop_job(http_req *q);
void http_drop_document(http_req *q);
void http_drop_answer(http_req *q);
/* Holds of the budget what the answer takes now; false when it does not fit. */
bool http_hold_answer(http_req *q);

/* POST /cache/… (cache.c). */
void http_cache_pages(http_req *q);
void http_cache_verify(http_req *q);
void http_cache_drop(http_req *q);
void http_cache_job(http_req *q);

/* Resumes a waiting request; cancels its generation and its question. */
void http_wake(http_req *q);
void http_let_go(http_req *q);

/* Begins requests that had to wait for another turn of the loop. */
void http_begin_postponed(sl_http *h);

/* libmicrohttpd's callbacks (server.c, connections.c); cls is the sl_http. */
enum MHD_Result http_on_access(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *data, size_t *n, void **state);
/* Looks at the path as it was sent. */
void *http_on_uri(void *cls, const char *uri, struct MHD_Connection *c);
void http_on_completed(void *cls, struct MHD_Connection *c, void **state,
                       enum MHD_RequestTerminationCode why);
void http_on_connection(void *cls, struct MHD_Connection *c, void **ctx,
                        enum MHD_ConnectionNotificationCode code);
/* Of a connection that is open; NULL: memory was short when it was opened. */
http_conn *http_conn_of(struct MHD_Connection *c);
/* What the connection does from now on. */
void http_enter_state(struct MHD_Connection *c, http_conn_state state);
/* Closes connections that took too long for what they do; frees the state of those that are closed. */
void http_sweep(sl_http *h, uint64_t now_ns);
void http_free_closed(sl_http *h);

#endif
