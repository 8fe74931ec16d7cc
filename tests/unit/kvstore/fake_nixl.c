/* See fake_nixl.h. This file is the library; it uses nothing of Sluice but the names of handles. */
#include "tests/unit/kvstore/fake_nixl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DONE = 0, RUNNING = 1, FAILED = -3, MOST = 64, NAME = 512, OBJECTS = 256 };
enum { OBJECT_KIND = 3, FILE_KIND = 4, WRITE_OP = 1 };
#define API __attribute__((visibility("default"))) int

typedef struct region {
    uintptr_t address;
    size_t n;
    uint64_t device;
    char name[NAME];
} region;

typedef struct list {
    int kind, n;
    region v[MOST];
} list;

typedef struct backend {
    bool objects, refused, no_bucket;
} backend;

typedef struct agent {
    backend *b;
    region devices[2 * MOST]; /* of registered objects */
    int n_devices;
} agent;

typedef struct transfer {
    bool write, endless;
    region local, remote;
    int polls, result;
} transfer;

typedef struct params {
    bool wrong_key, absent_bucket;
} params;

typedef struct answers {
    bool has[MOST];
} answers;

static struct {
    char name[NAME];
    uint8_t *bytes;
    size_t n;
} objects[OBJECTS];
static int n_objects;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the objects: each tier has a thread */
static fake_nixl_faults faults;

__attribute__((visibility("default"))) fake_nixl_faults *fake_nixl_in_library(void);
fake_nixl_faults *fake_nixl_in_library(void)
{
    return &faults;
}

static void hang(fake_nixl_call call)
{
    atomic_fetch_add(&faults.in_call, 1);
    while (atomic_load(&faults.hanging) == (int)call)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    atomic_fetch_sub(&faults.in_call, 1);
}

static int make(size_t n, void **out)
{
    *out = calloc(1, n);
    return *out ? DONE : FAILED;
}

static int drop(void *p)
{
    free(p);
    return DONE;
}

/* The functions are found by name, so they need no prototypes. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

API nixl_capi_create_agent(const char *name, void **out)
{
    (void)name;
    return make(sizeof(agent), out);
}

API nixl_capi_destroy_agent(void *a)
{
    return drop(a);
}

API nixl_capi_get_available_plugins(void *a, void **out)
{
    (void)a;
    return make(1, out);
}

API nixl_capi_string_list_size(void *l, size_t *n)
{
    (void)l;
    *n = 2;
    return DONE;
}

API nixl_capi_string_list_get(void *l, size_t i, const char **out)
{
    (void)l;
    *out = i ? "OBJ" : "POSIX";
    return DONE;
}

API nixl_capi_destroy_string_list(void *l)
{
    return drop(l);
}

API nixl_capi_create_params(void **out)
{
    return make(sizeof(params), out);
}

API nixl_capi_params_add(params *p, const char *key, const char *value)
{
    p->wrong_key |= strcmp(key, "access_key") == 0 && strcmp(value, "wrong") == 0;
    p->absent_bucket |= strcmp(key, "bucket") == 0 && strcmp(value, "absent") == 0;
    return DONE;
}

API nixl_capi_destroy_params(void *p)
{
    return drop(p);
}

API nixl_capi_create_backend(agent *a, const char *plugin, const params *p, void **out)
{
    bool is_object = strcmp(plugin, "OBJ") == 0;
    if ((!is_object && strcmp(plugin, "POSIX") != 0) || make(sizeof(backend), out) != DONE)
        return FAILED;
    a->b = *out;
    *a->b = (backend){is_object, p->wrong_key, p->absent_bucket};
    return DONE;
}

API nixl_capi_destroy_backend(void *b)
{
    return drop(b);
}

API nixl_capi_get_backend_params(void *a, backend *b, void **mems, void **out)
{
    (void)a;
    int st = make(sizeof(backend), mems);
    if (st == DONE)
        *(backend *)*mems = *b;
    return st == DONE ? make(sizeof(params), out) : st;
}

API nixl_capi_mem_list_size(void *l, size_t *n)
{
    (void)l;
    *n = 2;
    return DONE;
}

API nixl_capi_mem_list_get(backend *l, size_t i, int *kind)
{
    *kind = i == 0 ? 0 : l->objects ? OBJECT_KIND : FILE_KIND;
    return DONE;
}

API nixl_capi_destroy_mem_list(void *l)
{
    return drop(l);
}

API nixl_capi_create_opt_args(void **out)
{
    return make(1, out);
}

API nixl_capi_opt_args_add_backend(void *o, void *b)
{
    (void)o, (void)b;
    return DONE;
}

API nixl_capi_destroy_opt_args(void *o)
{
    return drop(o);
}

static int make_list(int kind, void **out)
{
    int st = make(sizeof(list), out);
    if (st == DONE)
        ((list *)*out)->kind = kind;
    return st;
}

API nixl_capi_create_reg_dlist(int kind, void **out)
{
    return make_list(kind, out);
}

API nixl_capi_reg_dlist_add_desc(list *l, uintptr_t address, size_t n, uint64_t device, const void *name,
                                 size_t name_n)
{
    if (l->n == MOST || name_n >= NAME)
        return FAILED;
    region *r = &l->v[l->n++];
    *r = (region){.address = address, .n = n, .device = device};
    memcpy(r->name, name, name_n);
    return DONE;
}

API nixl_capi_destroy_reg_dlist(void *l)
{
    return drop(l);
}

API nixl_capi_register_mem(agent *a, const list *l, void *o)
{
    (void)o;
    hang(FAKE_NIXL_REGISTER);
    for (int i = 0; i < l->n && l->kind == OBJECT_KIND; i++)
        a->devices[a->n_devices++] = l->v[i];
    return DONE;
}

API nixl_capi_deregister_mem(agent *a, const list *l, void *o)
{
    (void)o;
    for (int i = 0; i < a->n_devices && l->kind == OBJECT_KIND; i++)
        if (a->devices[i].device == l->v[0].device)
            a->devices[i--] = a->devices[--a->n_devices];
    return DONE;
}

API nixl_capi_create_xfer_dlist(int kind, void **out)
{
    return make_list(kind, out);
}

API nixl_capi_xfer_dlist_add_desc(list *l, uintptr_t address, size_t n, uint64_t device)
{
    l->v[l->n++] = (region){.address = address, .n = n, .device = device};
    return DONE;
}

API nixl_capi_destroy_xfer_dlist(void *l)
{
    return drop(l);
}

API nixl_capi_create_xfer_req(const agent *a, int op, const list *local, const list *remote, const char *name,
                              void **out, void *o)
{
    (void)name, (void)o;
    if (make(sizeof(transfer), out) != DONE)
        return FAILED;
    transfer *t = *out;
    *t = (transfer){.write = op == WRITE_OP, .local = local->v[0], .remote = remote->v[0]};
    for (int i = 0; i < a->n_devices; i++)
        if (a->devices[i].device == t->remote.device)
            t->remote = a->devices[i];
    return DONE;
}

static int place_of(const char *name)
{
    int i = 0;
    while (i < n_objects && strcmp(objects[i].name, name) != 0)
        i++;
    return i;
}

static int move_object(const transfer *t)
{
    int i = place_of(t->remote.name);
    if (t->write) {
        uint8_t *bytes = i < OBJECTS ? malloc(t->local.n) : NULL;
        if (!bytes)
            return FAILED;
        free(objects[i].bytes);
        objects[i].bytes = bytes;
        objects[i].n = t->local.n;
        memcpy(bytes, (void *)t->local.address, t->local.n);
        memcpy(objects[i].name, t->remote.name, NAME);
        n_objects += i == n_objects;
        return DONE;
    }
    if (i == n_objects || objects[i].n != t->local.n)
        return FAILED;
    memcpy((void *)t->local.address, objects[i].bytes, t->local.n);
    if (atomic_load(&faults.damage))
        ((uint8_t *)t->local.address)[t->local.n / 2] ^= 1;
    if (faults.read)
        faults.read((uint8_t *)t->local.address, t->local.n);
    return DONE;
}

/* As NIXL's plug-in for files, it does not report what fails. */
static int move_file(const transfer *t)
{
    int fd = (int)t->remote.device;
    ssize_t moved = t->write ? pwrite(fd, (void *)t->local.address, t->local.n, 0)
                             : pread(fd, (void *)t->local.address, t->local.n, 0);
    (void)moved;
    return DONE;
}

API nixl_capi_post_xfer_req(const agent *a, transfer *t, void *o)
{
    (void)o;
    const backend *b = a->b;
    t->endless = atomic_load(&faults.endless);
    t->polls = 2;
    if (t->endless)
        return RUNNING;
    if (atomic_load(&faults.unreachable) || b->refused || b->no_bucket) {
        t->result = FAILED;
    } else if (b->objects) {
        pthread_mutex_lock(&lock);
        t->result = move_object(t);
        pthread_mutex_unlock(&lock);
    } else {
        t->result = move_file(t);
    }
    return RUNNING;
}

API nixl_capi_get_xfer_status(void *a, transfer *t)
{
    (void)a;
    hang(FAKE_NIXL_STATUS);
    return t->endless || t->polls-- > 0 ? RUNNING : t->result;
}

API nixl_capi_release_xfer_req(void *a, void *t)
{
    (void)a, (void)t;
    return DONE;
}

API nixl_capi_destroy_xfer_req(void *t)
{
    return drop(t);
}

API nixl_capi_create_query_resp_list(void **out)
{
    return make(sizeof(answers), out);
}

/* A bucket that does not exist looks like objects that do not: the answer to HEAD has no text. */
API nixl_capi_query_mem(const agent *a, const list *l, answers *out, void *o)
{
    (void)o;
    hang(FAKE_NIXL_QUERY);
    if (atomic_load(&faults.unreachable) || a->b->refused)
        return FAILED;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < l->n; i++)
        out->has[i] = place_of(l->v[i].name) < n_objects;
    pthread_mutex_unlock(&lock);
    return DONE;
}

API nixl_capi_query_resp_list_has_value(const answers *l, size_t i, bool *out)
{
    *out = l->has[i];
    return DONE;
}

API nixl_capi_destroy_query_resp_list(void *l)
{
    return drop(l);
}
