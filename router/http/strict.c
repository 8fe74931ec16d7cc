/*
 * Requests that another program would divide differently. A proxy in front of the router and the router must agree
 * where a request ends, whose it is and what its path is; otherwise a part of one client's body is taken for a request
 * of another one. So what has two readings gets 400 and the connection is closed: lengths that are missing, doubled,
 * not a number, or together with a transfer coding; codings other than chunked; no Host, or two; two keys, request ids
 * or origins; lines that end in a bare line feed; lines that continue; control characters, and zeros in paths.
 *
 * libmicrohttpd 0.9.75 accepts lines that end in a bare line feed, and lines that continue, without an option to refuse
 * them. It leaves the head where it was received and puts zeros in place of the ends of lines, so that one line follows the
 * other after exactly two zeros if it ended in CR LF and was not joined with another one. That is compared here. Later
 * versions have an option for it, which daemon.c sets.
 *
 * How chunks are divided is not visible here, so a connection that sent a chunked body ends with the answer: there is no
 * next request about whose beginning opinions could differ.
 */
#include <string.h>
#include <strings.h>

#include "router/http/http_impl.h"

/* Headers that may come once. */
#define ONCE(name)                                                                                           \
    {                                                                                                        \
        name, "there are two " name " headers"                                                               \
    }
static const struct {
    const char *name, *twice;
} once[] = {
    ONCE("Host"),          ONCE("Content-Length"), ONCE("Transfer-Encoding"), ONCE("Content-Encoding"),
    ONCE("Authorization"), ONCE("X-Api-Key"),      ONCE("X-Request-Id"),      ONCE("Origin")};

typedef struct head {
    const char *end; /* of the part of the head that was looked at; NULL: unknown */
    const char *wrong;
    unsigned hosts, lengths, codings;
    unsigned seen[SL_COUNT(once)];
    const char *key, *own_key; /* of Authorization and X-Api-Key */
} head;

static bool name_is(const char *name, size_t n, const char *what)
{
    return n == strlen(what) && !strncasecmp(name, what, n);
}

static bool all_digits(const char *text, size_t n)
{
    size_t k = 0;
    while (k < n && text[k] >= '0' && text[k] <= '9')
        k++;
    return n && k == n && n < 20;
}

/* No control character but the tab. */
static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return false;
    }
    return true;
}

/* As names of headers are. */
static bool is_token(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= 0x20 || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c))
            return false;
    }
    return n > 0;
}

static bool is_host(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!text[i] || strchr(" \t,@/?#\\", text[i]))
            return false;
    }
    return true;
}

/* White space around a value belongs to the line, not to the value. */
static void trim(const char **text, size_t *n)
{
    while (*n && (**text == ' ' || **text == '\t')) {
        ++*text;
        --*n;
    }
    while (*n && ((*text)[*n - 1] == ' ' || (*text)[*n - 1] == '\t'))
        --*n;
}

static const char *field_wrong(head *h, const char *name, size_t n_name, const char *value, size_t n)
{
    if (!is_token(name, n_name))
        return "the name of a header contains a character that it must not";
    if (!is_plain(value, n))
        return "a header contains a control character";
    trim(&value, &n);
    for (size_t i = 0; i < SL_COUNT(once); i++) {
        if (name_is(name, n_name, once[i].name) && h->seen[i]++)
            return once[i].twice;
    }
    h->hosts += name_is(name, n_name, "host");
    h->lengths += name_is(name, n_name, "content-length");
    h->codings += name_is(name, n_name, "transfer-encoding");
    if (name_is(name, n_name, "authorization"))
        h->key = value;
    if (name_is(name, n_name, "x-api-key"))
        h->own_key = value;
    if (name_is(name, n_name, "host") && !is_host(value, n))
        return "Host is malformed";
    if (name_is(name, n_name, "content-length") && !all_digits(value, n))
        return "Content-Length is no number";
    if (name_is(name, n_name, "transfer-encoding") && !name_is(value, n, "chunked"))
        return "only the transfer coding chunked is supported";
    return NULL;
}

static enum MHD_Result look(void *cls, enum MHD_ValueKind kind, const char *name, size_t n_name,
                            const char *value, size_t n)
{
    (void)kind;
    head *h = cls;
    if (!value) {
        h->wrong = "a header has no value";
        return MHD_NO;
    }
#if MHD_VERSION < 0x00097701
    if (h->end && name != h->end + 2)
        h->wrong = "a line of the head does not end in CR LF, or is continued";
    h->end = value + n;
    if (h->end[0] || h->end[1])
        h->wrong = "a line of the head does not end in CR LF";
#endif
    if (!h->wrong)
        h->wrong = field_wrong(h, name, n_name, value, n);
    return h->wrong ? MHD_NO : MHD_YES;
}

/* A value ends at the end of its line, where libmicrohttpd puts a zero. */
static bool same_key(const char *bearer, const char *key)
{
    return !strncasecmp(bearer, "Bearer ", 7) && !strcmp(bearer + 7, key);
}

/* One space divides method, URI and version, and no zero stands in them: each begins where the one before it has ended, as a text of C. */
static bool line_is_whole(struct MHD_Connection *c, const char *method, const char *version)
{
    const http_conn *k = http_conn_of(c);
    return k && k->uri == method + strlen(method) + 1 && version == k->uri_end + 1;
}

static const char *version_wrong(const char *version)
{
    return strcmp(version, "HTTP/1.1") && strcmp(version, "HTTP/1.0")
               ? "the version of HTTP is not 1.0 or 1.1"
               : NULL;
}

bool http_path_is_plain(const char *uri)
{
    for (const char *p = uri; *p; p++) {
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f || !strncmp(p, "%00", 3))
            return false;
    }
    return true;
}

const char *http_head_wrong(struct MHD_Connection *c, const char *method, const char *version, bool *chunked)
{
    head h = {.end = version + strlen(version), .wrong = version_wrong(version)};
    if (!h.wrong && !line_is_whole(c, method, version))
        h.wrong = "the first line has a zero, or more than one space between its parts";
    if (!h.wrong)
        MHD_get_connection_values_n(c, MHD_HEADER_KIND, look, &h);
#if MHD_VERSION < 0x00097701
    const union MHD_ConnectionInfo *size =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (!h.wrong && (!size || method + size->header_size != h.end + 4 || h.end[0] || h.end[1]))
        h.wrong = "the head does not end in CR LF";
#endif
    *chunked = h.codings;
    if (!h.wrong && h.key && h.own_key && !same_key(h.key, h.own_key))
        h.wrong = "Authorization and X-Api-Key have different keys";
    if (!h.wrong && !h.hosts && !strcmp(version, "HTTP/1.1"))
        h.wrong = "there is no Host header";
    if (!h.wrong && h.codings && h.lengths)
        h.wrong = "there are Content-Length and Transfer-Encoding";
    if (!h.wrong && h.codings && strcmp(version, "HTTP/1.1"))
        h.wrong = "HTTP/1.0 has no transfer codings";
    return h.wrong;
}
