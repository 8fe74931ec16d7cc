/*
 * What the NIXL tier asks of NIXL for one record: a query for objects, a transfer between a staging buffer and a file or an object,
 * and the test of a store of objects at the start. These calls may wait for the store; see nixl_io.c.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/nixl_impl.h"

#define PROBE_NS 60000000000u

size_t sl_nixl_record_bytes(const sl_nixl_tier *t)
{
    return SL_PAGE_RECORD_BYTES + t->o.page_bytes;
}

size_t sl_nixl_transfer_bytes(const sl_nixl_tier *t)
{
    return t->objects ? sl_nixl_record_bytes(t) : t->files.record_bytes;
}

static void object_name(const sl_nixl_tier *t, sl_key key, char out[SL_NIXL_PATH_BYTES])
{
    char digits[33];
    sl_page_name_key(key, digits);
    snprintf(out, SL_NIXL_PATH_BYTES, "%s%s", t->prefix, digits);
}

bool sl_nixl_query(const sl_nixl_tier *t, sl_nixl_question *q, int32_t n)
{
    const sl_nixl_api *a = t->api;
    nixl_regions *regions = NULL;
    nixl_answers *answers = NULL;
    bool asked =
        a->create_regions(NIXL_OBJECT, &regions) == NIXL_DONE && a->create_answers(&answers) == NIXL_DONE;
    for (int32_t i = 0; asked && i < n; i++) {
        char name[SL_NIXL_PATH_BYTES];
        object_name(t, q[i].key, name);
        asked =
            a->regions_add(regions, 0, sl_nixl_record_bytes(t), (uint64_t)i, name, strlen(name)) == NIXL_DONE;
    }
    asked = asked && a->query(t->agent, regions, answers, t->options) == NIXL_DONE;
    for (int32_t i = 0; asked && i < n; i++)
        asked = a->answers_has(answers, (size_t)i, &q[i].there) == NIXL_DONE;
    if (answers)
        a->destroy_answers(answers);
    if (regions)
        a->destroy_regions(regions);
    return asked;
}

/* ---- transfers ---- */

bool sl_nixl_transfer_begin(const sl_nixl_tier *t, sl_nixl_op *op)
{
    const sl_nixl_api *a = t->api;
    char name[SL_NIXL_PATH_BYTES] = "";
    size_t n = sl_nixl_transfer_bytes(t);
    int kind = t->objects ? NIXL_OBJECT : NIXL_FILE;
    uint64_t device = t->objects ? (uint64_t)(op - t->ops) + 1 : (uint64_t)op->fd;
    if (t->objects)
        object_name(t, op->key, name);
    if (a->create_regions(kind, &op->regions) != NIXL_DONE ||
        a->regions_add(op->regions, 0, n, device, name, strlen(name)) != NIXL_DONE ||
        a->register_mem(t->agent, op->regions, t->options) != NIXL_DONE)
        return false;
    op->registered = true;
    if (a->create_segments(NIXL_DRAM, &op->local) != NIXL_DONE ||
        a->segments_add(op->local, (uintptr_t)op->buffer, n, 0) != NIXL_DONE ||
        a->create_segments(kind, &op->remote) != NIXL_DONE ||
        a->segments_add(op->remote, 0, n, device) != NIXL_DONE ||
        a->create_transfer(t->agent, op->write ? NIXL_WRITE : NIXL_READ, op->local, op->remote, t->agent_name,
                           &op->transfer, t->options) != NIXL_DONE)
        return false;
    return a->post(t->agent, op->transfer, NULL) >= NIXL_DONE;
}

void sl_nixl_transfer_end(const sl_nixl_tier *t, sl_nixl_op *op)
{
    const sl_nixl_api *a = t->api;
    if (op->transfer) {
        a->release_transfer(t->agent, op->transfer);
        a->destroy_transfer(op->transfer);
    }
    if (op->local)
        a->destroy_segments(op->local);
    if (op->remote)
        a->destroy_segments(op->remote);
    if (op->registered)
        a->deregister_mem(t->agent, op->regions, t->options);
    if (op->regions)
        a->destroy_regions(op->regions);
    if (op->fd >= 0)
        close(op->fd);
    op->transfer = NULL;
    op->local = op->remote = NULL;
    op->regions = NULL;
    op->registered = false;
    op->fd = -1;
}

/* ---- the test at the start ---- */

/* One transfer of the first staging buffer; waits for its end. One that does not end stays in flight. */
static bool transfer_now(sl_nixl_tier *t, sl_nixl_op *op, bool write)
{
    int st = NIXL_RUNNING;
    uint64_t begin = sl_now_ns();
    op->write = write;
    bool begun = sl_nixl_transfer_begin(t, op);
    while (begun && st == NIXL_RUNNING && sl_now_ns() - begin < PROBE_NS) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        st = t->api->status(t->agent, op->transfer);
    }
    if (st != NIXL_RUNNING || !begun)
        sl_nixl_transfer_end(t, op);
    else
        t->in_flight = 1;
    return begun && st == NIXL_DONE;
}

sl_status sl_nixl_probe(sl_nixl_tier *t, sl_err *err)
{
    sl_nixl_question q = {0};
    sl_nixl_op op = {.fd = -1, .buffer = t->ops[0].buffer};
    const char *failed = NULL;
    if (!sl_nixl_query(t, &q, 1))
        failed =
            "did not answer whether an object exists: is it there (endpoint_override, scheme), are the credentials "
            "right, and may they list the bucket?";
    else if (!transfer_now(t, &op, true))
        failed = "refused to store an object: does the bucket exist, and may the credentials write to it?";
    else if (!transfer_now(t, &op, false))
        failed = "refused to return an object: may the credentials read from the bucket?";
    if (failed)
        return sl_fail(err, SL_ERR_REFUSED,
                       "tier nixl: the store of objects, as the parameters \"bucket\" and others name it, %s "
                       "NIXL's own messages, on the standard error output, may say more",
                       failed);
    return SL_OK;
}
