/*
 * The paths that use puts and gets of the transport. staging puts from the own arena and is always possible. gpu puts
 * rows that were just computed from device memory, which the worker has registered at its start, and everything else
 * like staging.
 */
#include "prefill/path.h"

#include <stdlib.h>

#include "prefill/prefill_impl.h"

static void completed(sl_prefill_job *j, sl_status st, const char *what)
{
    sl_prefill *p = j->ship.owner;
    if (st != SL_OK)
        sl_ship_fail(p, j, SL_ERR_PEER, true, "%s failed: %s", what, sl_status_name(st));
    sl_ship_completed(j, j->ship.peer);
}

static void on_put(void *cookie, sl_status st)
{
    sl_prefill_job *j = cookie;
    const sl_prefill *p = j->ship.owner;
    sl_counter_add(st == SL_OK ? p->c.put_ok : p->c.put_failed, 1);
    completed(j, st, "put");
}

static void on_got(void *cookie, sl_status st)
{
    sl_pull_chunk *c = cookie;
    sl_prefill_job *j = c->job;
    const sl_prefill *p = j->ship.owner;
    c->in_flight--;
    sl_counter_add(st == SL_OK ? p->c.get_ok : p->c.get_failed, 1);
    completed(j, st, "get");
}

static sl_status put_span(sl_prefill *p, sl_prefill_job *j, sl_tp_mem *mem, const sl_span *s)
{
    const sl_decode_peer *d = j->ship.peer;
    SL_TRY(sl_tp_put(sl_wep_tp(d->remote.ep), s->local, mem, (size_t)s->bytes, s->remote, d->remote.rkey,
                     on_put, j));
    j->ship.unflushed = true;
    j->ship.bytes += (uint64_t)s->bytes;
    sl_counter_add(p->c.put_bytes, (uint64_t)s->bytes);
    return SL_OK;
}

sl_status sl_path_get(sl_prefill *p, sl_prefill_job *j, const sl_span *s)
{
    const sl_decode_peer *d = j->ship.peer;
    sl_pull_chunk *c = j->ship.chunk;
    SL_TRY(sl_tp_get(sl_wep_tp(d->remote.ep), s->local, sl_worker_memory(p->worker), (size_t)s->bytes,
                     s->remote, d->remote.rkey, on_got, c));
    c->in_flight++;
    sl_counter_add(p->c.get_bytes, (uint64_t)s->bytes);
    sl_ship_posted(j);
    return SL_OK;
}

/* The memory that the span begins in. A span that continues in the next device pool is cut at the end of the first. */
static sl_tp_mem *memory_of(sl_prefill *p, sl_span *s)
{
    if (!s->device)
        return sl_worker_memory(p->worker);
    sl_tp_mem *mem = sl_worker_device_memory(p->worker, s->local);
    SL_CHECK(mem != NULL, "device rows outside the registered memory");
    int64_t room = (uint8_t *)mem->base + mem->bytes - s->local;
    if (s->bytes > room)
        s->bytes = room;
    return mem;
}

sl_status sl_path_put(sl_prefill *p, sl_prefill_job *j)
{
    sl_ship_cursor *c = &j->ship.cursor;
    sl_span whole;
    if (!sl_cursor_next(c, &whole))
        return SL_INPROGRESS;
    sl_span s = whole;
    sl_tp_mem *mem = memory_of(p, &s);
    sl_status st = put_span(p, j, mem, &s);
    if (st == SL_AGAIN)
        sl_cursor_hold(c, &whole);
    if (st != SL_OK)
        return st;
    sl_ship_posted(j);
    if (s.bytes < whole.bytes) {
        const sl_span rest = sl_pieces_rest(whole, s.bytes);
        sl_cursor_hold(c, &rest);
    }
    return SL_OK;
}

static sl_status open_always(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    (void)p;
    (void)d;
    (void)w;
    (void)err;
    return SL_OK;
}

/* Lists the device memory that puts read from. sl_worker_start() fails if the transport cannot register it. */
static sl_status gpu_prepare(sl_prefill *p, sl_err *err)
{
    SL_TRY(sl_path_find_device_layers(p, err));
    if (!p->dev_layers)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cluster.shipping is gpu, but this engine's rows are not in a device's memory");
    int32_t n = p->o.role.runner->n_layers;
    p->dev_memory = calloc(SL_CACHE_PLANES * (size_t)n, sizeof *p->dev_memory);
    if (!p->dev_memory)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t l = 0; l < n; l++) {
        const sl_device_layer *d = &p->dev_layers[l];
        for (int32_t i = 0; i < SL_CACHE_PLANES; i++) {
            if (d->planes[i].base)
                p->dev_memory[p->n_dev_memory++] = (sl_worker_range){d->planes[i].base, (size_t)d->bytes[i]};
        }
    }
    return SL_OK;
}

static bool never_from_device(const sl_decode_peer *d)
{
    (void)d;
    return false;
}

static bool always_from_device(const sl_decode_peer *d)
{
    (void)d;
    return true;
}

const sl_ship_path sl_path_staging = {.way = &sl_shipping_staging,
                                      .open = open_always,
                                      .from_device = never_from_device,
                                      .post = sl_path_put,
                                      .get = sl_path_get};

const sl_ship_path sl_path_gpu = {.way = &sl_shipping_gpu,
                                  .prepare = gpu_prepare,
                                  .open = open_always,
                                  .from_device = always_from_device,
                                  .post = sl_path_put,
                                  .get = sl_path_get};
