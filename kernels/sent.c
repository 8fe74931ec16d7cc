/* See sent.h. A few arrays per layer of a model: they are searched one after the other. */
#include "kernels/sent.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const void *host;
    size_t bytes;
    void *copy; /* what was sent last */
    void *device, *made;
    bool sent, made_valid; /* false: the next call sends, or makes, again */
} entry;

struct sl_sent {
    sl_sent_device device;
    entry *v;
    int n, cap;
};

sl_sent *sl_sent_create(const sl_sent_device *device)
{
    sl_sent *t = calloc(1, sizeof *t);

    if (t)
        t->device = *device;
    return t;
}

static void release(const sl_sent *t, entry *e)
{
    if (e->device)
        t->device.free(t->device.ctx, e->device);
    if (e->made)
        t->device.free(t->device.ctx, e->made);
    free(e->copy);
}

void sl_sent_destroy(sl_sent *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n; i++)
        release(t, &t->v[i]);
    free(t->v);
    free(t);
}

static entry *find(sl_sent *t, const void *host, size_t bytes)
{
    for (int i = 0; i < t->n; i++)
        if (t->v[i].host == host && t->v[i].bytes == bytes)
            return &t->v[i];
    return NULL;
}

static sl_status append(sl_sent *t, const void *host, size_t bytes, entry **out, sl_err *err)
{
    entry fresh = {.host = host, .bytes = bytes};
    sl_status st;

    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        entry *v = realloc(t->v, sizeof *v * (size_t)cap);
        if (!v)
            return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for a table of %d arrays", cap);
        t->v = v;
        t->cap = cap;
    }
    fresh.copy = malloc(bytes);
    if (!fresh.copy)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for an array of %zu bytes", bytes);
    st = t->device.alloc(t->device.ctx, bytes, &fresh.device, err);
    if (st != SL_OK) {
        free(fresh.copy);
        return st;
    }
    t->v[t->n] = fresh;
    *out = &t->v[t->n++];
    return SL_OK;
}

static sl_status find_sent(sl_sent *t, const void *host, size_t bytes, bool frozen, entry **out, sl_err *err)
{
    entry *e = find(t, host, bytes);

    if (e && e->sent && memcmp(e->copy, host, bytes) == 0) {
        *out = e;
        return SL_OK;
    }
    if (frozen)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: expert table changed or new inside a capture: run the step once before the capture");
    if (!e)
        SL_TRY(append(t, host, bytes, &e, err));
    e->sent = e->made_valid = false;
    SL_TRY(t->device.send(t->device.ctx, e->device, host, bytes, err));
    memcpy(e->copy, host, bytes);
    e->sent = true;
    *out = e;
    return SL_OK;
}

sl_status sl_sent_array(sl_sent *t, const void *host, size_t bytes, bool frozen, const void **out,
                        sl_err *err)
{
    entry *e;

    SL_TRY(find_sent(t, host, bytes, frozen, &e, err));
    *out = e->device;
    return SL_OK;
}

static sl_status send_made(sl_sent *t, entry *e, size_t made_bytes, sl_sent_make make, void *ctx, sl_err *err)
{
    void *made = aligned_alloc(64, made_bytes);
    sl_status st = SL_OK;

    if (!made)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no memory for %zu bytes made of an array", made_bytes);
    st = make(ctx, e->copy, made, made_bytes, err);
    if (st == SL_OK && !e->made)
        st = t->device.alloc(t->device.ctx, made_bytes, &e->made, err);
    if (st == SL_OK)
        st = t->device.send(t->device.ctx, e->made, made, made_bytes, err);
    free(made);
    return st;
}

sl_status sl_sent_made(sl_sent *t, const void *host, size_t bytes, size_t made_bytes, sl_sent_make make,
                       void *ctx, bool frozen, const void **out, sl_err *err)
{
    entry *e;

    SL_TRY(find_sent(t, host, bytes, frozen, &e, err));
    if (!e->made_valid) {
        if (frozen)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "cuda: new tensor maps inside a capture: run the step once before the capture");
        SL_TRY(send_made(t, e, made_bytes, make, ctx, err));
        e->made_valid = true;
    }
    *out = e->made;
    return SL_OK;
}
