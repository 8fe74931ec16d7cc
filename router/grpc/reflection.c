/*
 * Server reflection, v1 and v1alpha (the same messages): which services there are, and the file descriptors
 * that define them. The descriptors are embedded at build time as a FileDescriptorSet; a small reader of the
 * protobuf wire format finds names in it, so no descriptor library is needed.
 */
#include <stdlib.h>
#include <string.h>

#include "grpc/reflection_v1.pb-c.h"
#include "router/grpc/descriptors.h"
#include "router/grpc/rpc.h"

#define R(name) Grpc__Reflection__V1__##name

enum { MAX_FILES = 32, NAME = 192 };

typedef struct piece {
    const uint8_t *p;
    size_t n;
} piece;

typedef struct file {
    piece bytes, name, package;
} file;

static file files[MAX_FILES];
static size_t n_files;

/* ---- reading the wire format of our own, trusted descriptors ---- */

static bool varint(piece *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; b->n && shift < 64; shift += 7) {
        uint8_t c = *b->p++;
        b->n--;
        *v |= (uint64_t)(c & 127) << shift;
        if (!(c & 128))
            return true;
    }
    return false;
}

/* Next field: its number, and for length-delimited ones their bytes. */
static bool next_field(piece *b, uint32_t *number, piece *value)
{
    uint64_t tag, len;
    *value = (piece){NULL, 0};
    if (!b->n || !varint(b, &tag))
        return false;
    *number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case 0:
        return varint(b, &len);
    case 1:
        len = 8;
        break;
    case 5:
        len = 4;
        break;
    case 2:
        if (!varint(b, &len))
            return false;
        break;
    default:
        return false;
    }
    if (len > b->n)
        return false;
    *value = (piece){b->p, (size_t)len};
    b->p += len;
    b->n -= (size_t)len;
    return true;
}

static void load_files(void)
{
    piece set = {sl_descriptors, sl_descriptors_len}, f;
    uint32_t k;
    while (n_files < MAX_FILES && next_field(&set, &k, &f)) {
        file *o = &files[n_files++];
        o->bytes = f;
        piece v;
        while (next_field(&f, &k, &v)) {
            if (k == 1)
                o->name = v;
            else if (k == 2)
                o->package = v;
        }
    }
}

static bool is(piece p, const char *text)
{
    return strlen(text) == p.n && !memcmp(p.p, text, p.n);
}

static void join(char *out, const char *prefix, piece name)
{
    snprintf(out, NAME, "%s%s%.*s", prefix, *prefix ? "." : "", (int)name.n, (const char *)name.p);
}

/* ---- names ---- */

/* A symbol of the descriptors: message, field, enum, value, service or method. Sorted, so that a client that asks again and again costs little. */
typedef struct symbol {
    char *name;
    const file *of;
} symbol;

static symbol *symbols;
static size_t n_symbols;

static void add_symbol(const char *name, const file *of)
{
    if (n_symbols % 256 == 0) {
        symbol *more = realloc(symbols, (n_symbols + 256) * sizeof *more);
        if (!more)
            return;
        symbols = more;
    }
    symbols[n_symbols] = (symbol){strdup(name), of};
    n_symbols += symbols[n_symbols].name != NULL;
}

/* Adds a message, enum, service or field, and everything inside it. inner: field numbers of inner declarations. */
static void add_symbols(piece d, const char *prefix, const file *of, const uint32_t *inner, int depth)
{
    piece v, all = d, name = {NULL, 0};
    uint32_t k;
    while (next_field(&all, &k, &v)) {
        if (k == 1)
            name = v;
    }
    char full[NAME];
    join(full, prefix, name);
    add_symbol(full, of);
    while (depth < 8 && next_field(&d, &k, &v)) {
        for (const uint32_t *i = inner; *i; i++) {
            if (k == *i && v.p)
                add_symbols(v, full, of, inner, depth + 1);
        }
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const symbol *)a)->name, ((const symbol *)b)->name);
}

static void load_symbols(void)
{
    static const uint32_t in_message[] = {2, 3, 4, 0}; /* fields, nested messages, enums */
    static const uint32_t in_service[] = {2, 0};       /* methods; of an enum: values */
    for (size_t i = 0; i < n_files; i++) {
        char package[NAME];
        snprintf(package, sizeof package, "%.*s", (int)files[i].package.n, (const char *)files[i].package.p);
        piece f = files[i].bytes, v;
        uint32_t k;
        while (next_field(&f, &k, &v)) {
            if (k == 4)
                add_symbols(v, package, &files[i], in_message, 0);
            else if (k == 5 || k == 6)
                add_symbols(v, package, &files[i], in_service, 0);
        }
    }
    qsort(symbols, n_symbols, sizeof *symbols, by_name);
}

static const file *find_symbol(const char *name)
{
    const symbol key = {rpc_text(name), NULL};
    const symbol *found = n_symbols ? bsearch(&key, symbols, n_symbols, sizeof *symbols, by_name) : NULL;
    return found ? found->of : NULL;
}

static const file *find_file(const char *name)
{
    for (size_t i = 0; i < n_files; i++) {
        if (is(files[i].name, name))
            return &files[i];
    }
    return NULL;
}

/* The file and everything it imports, each once. */
static void collect(const file *f, const file **list, size_t *n)
{
    for (size_t i = 0; i < *n; i++) {
        if (list[i] == f)
            return;
    }
    list[(*n)++] = f;
    piece b = f->bytes, v;
    uint32_t k;
    while (next_field(&b, &k, &v)) {
        char name[NAME];
        if (k != 3)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)v.n, (const char *)v.p);
        const file *dep = find_file(name);
        if (dep && *n < MAX_FILES)
            collect(dep, list, n);
    }
}

/* ---- answers ---- */

static void answer_files(rpc_call *c, R(ServerReflectionResponse) * a, const file *f)
{
    const file *list[MAX_FILES];
    ProtobufCBinaryData data[MAX_FILES];
    size_t n = 0;
    collect(f, list, &n);
    for (size_t i = 0; i < n; i++)
        data[i] = (ProtobufCBinaryData){list[i]->bytes.n, (uint8_t *)list[i]->bytes.p};
    R(FileDescriptorResponse) fr = GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    fr.n_file_descriptor_proto = n;
    fr.file_descriptor_proto = data;
    a->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    a->file_descriptor_response = &fr;
    rpc_send(c, &a->base);
}

static void answer_error(rpc_call *c, R(ServerReflectionResponse) * a, rpc_code code, const char *text)
{
    R(ErrorResponse) e = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    e.error_code = (int32_t)code;
    e.error_message = (char *)text;
    a->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    a->error_response = &e;
    rpc_send(c, &a->base);
}

static void answer_services(rpc_call *c, R(ServerReflectionResponse) * a)
{
    enum { MAX = 16 };
    char names[MAX][NAME];
    R(ServiceResponse) s[MAX], *list[MAX];
    size_t n = 0;
    for (size_t i = 0; i < rpc_method_count(); i++) {
        char name[NAME];
        snprintf(name, sizeof name, "%s", rpc_methods[i].path + 1);
        *strrchr(name, '/') = 0;
        if (n == MAX || (n && !strcmp(names[n - 1], name)))
            continue;
        memcpy(names[n], name, NAME);
        grpc__reflection__v1__service_response__init(&s[n]);
        s[n].name = names[n];
        list[n] = &s[n];
        n++;
    }
    R(ListServiceResponse) l = GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    l.n_service = n;
    l.service = list;
    a->message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    a->list_services_response = &l;
    rpc_send(c, &a->base);
}

void rpc_reflection(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!n_files) {
        load_files();
        load_symbols();
    }
    R(ServerReflectionRequest) *q =
        rpc_unpack(c, &grpc__reflection__v1__server_reflection_request__descriptor, data, n);
    if (!q)
        return;
    R(ServerReflectionResponse) a = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    a.valid_host = q->host;
    a.original_request = q;
    const file *f = NULL;
    switch (q->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(c, &a);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        f = find_file(q->file_by_filename);
        break;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        f = find_symbol(q->file_containing_symbol);
        break;
    default:
        break;
    }
    if (f)
        answer_files(c, &a, f);
    else if (q->message_request_case !=
             GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES)
        answer_error(c, &a, RPC_NOT_FOUND, "not found");
    protobuf_c_message_free_unpacked(&q->base, NULL);
}
