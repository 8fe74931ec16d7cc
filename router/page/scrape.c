/* See scrape.h. One `scrape` for each member; it is IDLE, or its address is looked up, or it has an open socket. */
#include "router/page/scrape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/strbuf.h"

enum {
    MEMBERS_MAX = 256,
    IN_FLIGHT_MAX = 16,
    BYTES_MAX = 2 << 20,
    EVERY_MS = 2000,
    DEADLINE_MS = 1500,
    OLD_MS = 10000,
    CHUNK = 16384
};

typedef enum { IDLE, LOOKUP, OPEN, CLOSING } scrape_state;

typedef struct scrape {
    struct scrape *next;
    sl_scrapes *all; /* NULL: the member is gone, or the page is; frees itself when it becomes idle */
    uint32_t member;
    scrape_state state;
    bool seen; /* the member still exists; of the present tick */
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    uv_getaddrinfo_t lookup;
    char request[256], chunk[CHUNK];
    sl_strbuf text;
    uint64_t began_ns, read_ns; /* read_ns 0: there are no figures */
    sl_figures figures;
} scrape;

struct sl_scrapes {
    sl_router *r;
    uv_loop_t *loop;
    scrape *list;
};

static void free_scrape(scrape *p)
{
    sl_sb_free(&p->text);
    free(p);
}

static void rest(scrape *p)
{
    p->state = IDLE;
    sl_sb_free(&p->text);
    if (!p->all)
        free_scrape(p);
}

static void on_closed(uv_handle_t *h)
{
    rest(h->data);
}

static void finish(scrape *p)
{
    if (p->state != OPEN)
        return;
    p->state = CLOSING;
    uv_close((uv_handle_t *)&p->tcp, on_closed);
}

/* The answer is complete: its body, if it is a 200. */
static void take(scrape *p)
{
    static const char ok[] = "HTTP/1.1 200 ";
    const char *text = p->text.data;
    if (p->text.bad || !text || p->text.len < sizeof ok || strncmp(text, ok, sizeof ok - 1) != 0)
        return;
    const char *body = strstr(text, "\r\n\r\n");
    if (!body)
        return;
    sl_figures_read(body + 4, p->text.len - (size_t)(body + 4 - text), &p->figures);
    p->read_ns = sl_now_ns();
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *out)
{
    (void)n;
    scrape *p = h->data;
    *out = uv_buf_init(p->chunk, sizeof p->chunk);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    scrape *p = s->data;
    if (n > 0 && p->text.len + (size_t)n <= BYTES_MAX) {
        sl_sb_append(&p->text, buf->base, (size_t)n);
        return;
    }
    if (n == UV_EOF)
        take(p);
    if (n != 0)
        finish(p);
}

static void on_written(uv_write_t *w, int status)
{
    scrape *p = w->data;
    if (status < 0)
        finish(p);
}

static void on_connected(uv_connect_t *c, int status)
{
    scrape *p = c->data;
    uv_buf_t out = uv_buf_init(p->request, (unsigned)strlen(p->request));
    p->write.data = p;
    if (status < 0 || uv_read_start((uv_stream_t *)&p->tcp, on_alloc, on_read) ||
        uv_write(&p->write, (uv_stream_t *)&p->tcp, &out, 1, on_written))
        finish(p);
}

static void open_socket(scrape *p, uv_loop_t *loop, const struct sockaddr *to)
{
    if (uv_tcp_init(loop, &p->tcp)) {
        rest(p);
        return;
    }
    p->state = OPEN;
    p->tcp.data = p->connect.data = p;
    if (uv_tcp_connect(&p->connect, &p->tcp, to, on_connected))
        finish(p);
}

static void on_address(uv_getaddrinfo_t *req, int status, struct addrinfo *found)
{
    scrape *p = req->data;
    if (status == 0 && found && p->all)
        open_socket(p, p->all->loop, found->ai_addr);
    else
        rest(p);
    uv_freeaddrinfo(found);
}

/* address: HOST:PORT or [HOST]:PORT, as the worker says it. */
static void begin(scrape *p, const char *address, uint64_t now)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char host[128];
    const char *colon = strrchr(address, ':');
    const bool bracket = address[0] == '[';
    p->began_ns = now;
    if (!colon || colon == address || strtol(colon + 1, NULL, 10) <= 0)
        return;
    snprintf(host, sizeof host, "%.*s", (int)(colon - address) - 2 * bracket, address + bracket);
    snprintf(p->request, sizeof p->request,
             "GET /metrics HTTP/1.1\r\nHost: sluice\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
    p->lookup.data = p;
    if (uv_getaddrinfo(p->all->loop, &p->lookup, on_address, host, colon + 1, &hints) == 0)
        p->state = LOOKUP;
}

static scrape *find(const sl_scrapes *s, uint32_t member)
{
    scrape *p = s->list;
    while (p && p->member != member)
        p = p->next;
    return p;
}

static scrape *add(sl_scrapes *s, uint32_t member)
{
    scrape *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->all = s;
    p->member = member;
    p->next = s->list;
    s->list = p;
    return p;
}

/* No more for this member; what is in flight ends by itself. */
static void let_go(scrape *p)
{
    p->all = NULL;
    if (p->state == IDLE)
        free_scrape(p);
    else if (p->state == LOOKUP)
        uv_cancel((uv_req_t *)&p->lookup);
    else
        finish(p);
}

static void drop_unseen(sl_scrapes *s)
{
    for (scrape **at = &s->list; *at;) {
        scrape *p = *at;
        if (p->seen) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        let_go(p);
    }
}

/* Begins those that are due, in the order of the members, and ends those that are late. */
static void run_members(sl_scrapes *s, const sl_member_info *list, size_t n, uint64_t now)
{
    int in_flight = 0;
    for (scrape *p = s->list; p; p = p->next) {
        p->seen = false;
        if (p->state == OPEN && now - p->began_ns > DEADLINE_MS * SL_MS)
            finish(p);
        in_flight += p->state != IDLE;
    }
    for (size_t i = 0; i < n && i < MEMBERS_MAX; i++) {
        if (!list[i].metrics[0] || list[i].state == SL_MEMBER_DEAD)
            continue;
        scrape *p = find(s, list[i].id);
        if (!p && !(p = add(s, list[i].id)))
            break;
        p->seen = true;
        if (p->state == IDLE && in_flight < IN_FLIGHT_MAX && now - p->began_ns >= EVERY_MS * SL_MS) {
            begin(p, list[i].metrics, now);
            in_flight += p->state != IDLE;
        }
    }
    drop_unseen(s);
}

void sl_scrapes_tick(sl_scrapes *s, uint64_t now, bool looked_at)
{
    size_t n = 0;
    if (!s || (!looked_at && !s->list))
        return;
    sl_member_info *list = looked_at ? sl_cluster_members(s->r, &n) : NULL;
    run_members(s, list, n, now);
    free(list);
}

const sl_figures *sl_scrapes_find(const sl_scrapes *s, uint32_t member, uint64_t now, uint32_t *age_ms)
{
    const scrape *p = s ? find(s, member) : NULL;
    if (!p || !p->read_ns || now - p->read_ns > OLD_MS * SL_MS)
        return NULL;
    *age_ms = (uint32_t)((now - p->read_ns) / SL_MS);
    return &p->figures;
}

sl_scrapes *sl_scrapes_create(sl_router *r, uv_loop_t *loop)
{
    sl_scrapes *s = calloc(1, sizeof *s);
    if (s)
        *s = (sl_scrapes){.r = r, .loop = loop};
    return s;
}

void sl_scrapes_close(sl_scrapes *s)
{
    if (!s)
        return;
    for (scrape *p = s->list; p; p = p->next)
        p->seen = false;
    drop_unseen(s);
    free(s);
}
