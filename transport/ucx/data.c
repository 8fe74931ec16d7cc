/*
 * UCX transport, memory and one-sided operations.
 *
 * A remote key is sent as the registration's number and UCX's own blob, wrapped with the address range that
 * it covers and a checksum. UCX trusts these bytes, so damage must be detected before UCX reads them, and a
 * put outside the range is refused at the sender.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "transport/rkey.h"
#include "transport/ucx/ucx_impl.h"

/* ---- operations ---- */

static void on_complete(void *request, ucs_status_t st, void *arg)
{
    sl_tp_op *op = arg;
    op->status = ux_status(st);
    sl_tp_op_queue_push(&((ux_transport *)op->ep->tp)->finished, op);
    ucp_request_free(request);
}

ucp_request_param_t ux_op_param(sl_tp_op *op)
{
    return (ucp_request_param_t){.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = on_complete,
                                 .user_data = op};
}

sl_status ux_op_begin(ux_ep *ep, sl_tp_op_kind kind, size_t bytes, sl_tp_done_fn *done, void *cookie,
                      sl_tp_op **out, ucp_request_param_t *param)
{
    ux_transport *tp = ux_of(ep);
    bool control = kind == SL_TP_OP_CONTROL;
    if (ep->broken || ep->teardown != UX_LIVE || !ep->handle)
        return ep->close_requested ? SL_ERR_CANCELLED : SL_ERR_PEER;
    if (!control && ep->close_requested)
        return SL_ERR_CANCELLED;
    if (!control && ep->state != UX_OPEN)
        return SL_ERR_PEER;
    if (!control && tp->stats.pending >= tp->opts.max_pending)
        return SL_AGAIN;
    sl_tp_op *op = sl_tp_op_get(&tp->pool, kind == SL_TP_OP_SEND || control);
    if (!op)
        return SL_ERR_NO_MEMORY;
    op->ep = &ep->base;
    op->done = done;
    op->cookie = cookie;
    op->bytes = bytes;
    op->kind = kind;
    *out = op;
    *param = ux_op_param(op);
    return SL_OK;
}

sl_status ux_op_posted(ux_ep *ep, sl_tp_op *op, ucs_status_ptr_t request)
{
    ux_transport *tp = ux_of(ep);
    if (UCS_PTR_IS_ERR(request)) {
        sl_status st = ux_status(UCS_PTR_STATUS(request));
        sl_tp_op_put(&tp->pool, op);
        return st == SL_ERR_NO_MEMORY ? st : SL_ERR_PEER;
    }
    ep->inflight++;
    tp->stats.pending++;
    if (!request) /* completed already; `done` still runs in sl_tp_progress, as for every operation */
        sl_tp_op_queue_push(&tp->finished, op);
    return SL_OK;
}

static bool ranges_ok(const void *local, const sl_tp_mem *mem, size_t bytes, uint64_t remote,
                      const sl_tp_rkey *rkey)
{
    return sl_tp_in_range((uintptr_t)local, bytes, (uintptr_t)mem->base, mem->bytes) &&
           sl_tp_in_range(remote, bytes, rkey->base, rkey->bytes);
}

void ux_op_memory(const sl_tp_op *op, ucp_request_param_t *param)
{
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param->memory_type = op->device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

static void aim(sl_tp_op *op, const void *local, uint64_t remote, const sl_tp_rkey *rkey)
{
    op->local = (uint8_t *)(uintptr_t)local;
    op->remote = remote;
    op->key = ((const ux_rkey *)rkey)->key;
}

sl_status ux_put(sl_tp_ep *base, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                 sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    ux_ep *ep = (ux_ep *)base;
    sl_tp_op *op;
    ucp_request_param_t param;
    if (!ranges_ok(local, mem, bytes, remote, rkey) || rkey->ep != base)
        return SL_ERR_INVALID;
    sl_status st = ux_op_begin(ep, SL_TP_OP_PUT, bytes, done, cookie, &op, &param);
    if (st != SL_OK)
        return st;
    op->device = ((ux_mem *)mem)->device;
    if (ep->stream.used) {
        aim(op, local, remote, rkey);
        return ux_stream_put(ep, op);
    }
    ux_op_memory(op, &param);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = ((ux_mem *)mem)->handle;
    return ux_op_posted(ep, op,
                        ucp_put_nbx(ep->handle, local, bytes, remote, ((ux_rkey *)rkey)->handle, &param));
}

sl_status ux_get(sl_tp_ep *base, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote, sl_tp_rkey *rkey,
                 sl_tp_done_fn *done, void *cookie)
{
    ux_ep *ep = (ux_ep *)base;
    sl_tp_op *op;
    ucp_request_param_t param;
    if (!ranges_ok(local, mem, bytes, remote, rkey) || rkey->ep != base)
        return SL_ERR_INVALID;
    if (ep->stream.used && ((ux_mem *)mem)->device)
        return SL_ERR_UNSUPPORTED; /* frames are copied by the CPU on this side */
    sl_status st = ux_op_begin(ep, SL_TP_OP_GET, bytes, done, cookie, &op, &param);
    if (st != SL_OK)
        return st;
    op->device = ((ux_mem *)mem)->device;
    if (ep->stream.used) {
        aim(op, local, remote, rkey);
        return ux_stream_get(ep, op);
    }
    ux_op_memory(op, &param);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = ((ux_mem *)mem)->handle;
    return ux_op_posted(ep, op,
                        ucp_get_nbx(ep->handle, local, bytes, remote, ((ux_rkey *)rkey)->handle, &param));
}

sl_status ux_flush(sl_tp_ep *base, sl_tp_done_fn *done, void *cookie)
{
    ux_ep *ep = (ux_ep *)base;
    sl_tp_op *op;
    ucp_request_param_t param;
    sl_status st = ux_op_begin(ep, SL_TP_OP_FLUSH, 0, done, cookie, &op, &param);
    if (st != SL_OK)
        return st;
    return ep->stream.used ? ux_stream_flush(ep, op)
                           : ux_op_posted(ep, op, ucp_ep_flush_nbx(ep->handle, &param));
}

/* ---- memory ---- */

/* A list is fast enough, because a process registers few ranges: arenas, not pages. */
const ux_mem *ux_mem_find(const ux_transport *tp, uint64_t key)
{
    const ux_mem *m = key ? tp->mems : NULL;
    while (m && m->key != key)
        m = m->next;
    return m;
}

static unsigned protection(unsigned access)
{
    unsigned prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE;
    prot |= access & SL_TP_REMOTE_READ ? UCP_MEM_MAP_PROT_REMOTE_READ : 0;
    prot |= access & SL_TP_REMOTE_WRITE ? UCP_MEM_MAP_PROT_REMOTE_WRITE : 0;
    return prot;
}

const char *ux_no_device_memory(const ux_transport *tp)
{
    if (tp->memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA))
        return NULL;
    return tp->opts.tls || getenv("UCX_TLS") ? "its CUDA transports are not among those it may use "
                                               "(cluster.tls, UCX_TLS), or it was built without them"
                                             : "this UCX was built without CUDA, or finds no GPU";
}

/* Refuses unless UCX itself detects the kind of the memory, because it does so again at every operation. */
static sl_status check_device(const void *ptr, ucp_mem_h handle, sl_err *err)
{
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE};
    ucs_status_t ucs = ucp_mem_query(handle, &attr);
    if (ucs == UCS_OK && attr.mem_type == UCS_MEMORY_TYPE_CUDA)
        return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "UCX regards the memory at %p as %s memory, not as that of a GPU",
                   ptr, ucs == UCS_OK ? ucs_memory_type_names[attr.mem_type] : ucs_status_string(ucs));
}

static sl_status map_memory(ux_transport *tp, void *ptr, size_t bytes, bool device, unsigned access,
                            ucp_mem_h *out, sl_err *err)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_PROT | (device ? 0 : UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE),
        .address = ptr,
        .length = bytes,
        .prot = protection(access),
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t ucs = ucp_mem_map(tp->context, &params, out);
    if (ucs != UCS_OK)
        return sl_fail(err, ucs == UCS_ERR_NO_MEMORY ? SL_ERR_NO_MEMORY : SL_ERR_IO,
                       "cannot register %zu bytes: %s (locked-memory limit?)", bytes, ucs_status_string(ucs));
    sl_status st = device ? check_device(ptr, *out, err) : SL_OK;
    if (st != SL_OK)
        ucp_mem_unmap(tp->context, *out);
    return st;
}

sl_status ux_mem_register(sl_transport *base, void *ptr, size_t bytes, sl_tp_mem_kind kind, unsigned access,
                          sl_tp_mem **out, sl_err *err)
{
    ux_transport *tp = (ux_transport *)base;
    const char *no = kind == SL_TP_DEVICE ? ux_no_device_memory(tp) : NULL;
    if (!ptr || !bytes)
        return sl_fail(err, SL_ERR_INVALID, "cannot register an empty range");
    if (no)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "UCX %s moves no GPU memory: %s", ucp_get_version_string(),
                       no);
    ux_mem *m = calloc(1, sizeof *m);
    if (!m)
        return SL_ERR_NO_MEMORY;
    sl_status st = map_memory(tp, ptr, bytes, kind == SL_TP_DEVICE, access, &m->handle, err);
    if (st != SL_OK) {
        free(m);
        return st;
    }
    m->base = (sl_tp_mem){.tp = base, .base = ptr, .bytes = bytes};
    m->access = access;
    m->device = kind == SL_TP_DEVICE;
    while (kind == SL_TP_HOST && (m->key == 0 || ux_mem_find(tp, m->key)))
        m->key = sl_random_u64();
    m->next = tp->mems;
    if (tp->mems)
        tp->mems->prev = m;
    tp->mems = m;
    tp->stats.registered_bytes += bytes;
    *out = &m->base;
    return SL_OK;
}

void ux_mem_deregister(sl_tp_mem *base)
{
    ux_transport *tp = (ux_transport *)base->tp;
    ux_mem *m = (ux_mem *)base;
    *(m->prev ? &m->prev->next : &tp->mems) = m->next;
    if (m->next)
        m->next->prev = m->prev;
    tp->stats.registered_bytes -= base->bytes;
    ucp_mem_unmap(tp->context, m->handle);
    free(m);
}

sl_status ux_rkey_pack(const sl_tp_mem *base, void *buf, size_t cap, size_t *len)
{
    const ux_transport *tp = (const ux_transport *)base->tp;
    void *blob;
    size_t n;
    ucs_status_t ucs = ucp_rkey_pack(tp->context, ((const ux_mem *)base)->handle, &blob, &n);
    if (ucs != UCS_OK)
        return ux_status(ucs);
    uint8_t both[SL_TP_RKEY_MAX];
    const uint64_t key = ((const ux_mem *)base)->key;
    sl_status st = n <= sizeof both - sizeof key ? SL_OK : SL_ERR_TOO_LARGE;
    if (st == SL_OK) {
        memcpy(both, &key, sizeof key);
        memcpy(both + sizeof key, blob, n);
        st = sl_tp_rkey_wrap((uintptr_t)base->base, base->bytes, both, sizeof key + n, buf, cap, len);
    }
    ucp_rkey_buffer_release(blob);
    return st;
}

sl_status ux_rkey_unpack(sl_tp_ep *base, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err)
{
    ux_ep *ep = (ux_ep *)base;
    ux_transport *tp = ux_of(ep);
    sl_tp_rkey_view view;
    sl_status st = sl_tp_rkey_unwrap(buf, len, &view, err);
    if (st != SL_OK)
        return st;
    if (ep->state != UX_OPEN || ep->broken || !ep->handle)
        return sl_fail(err, SL_ERR_PEER, "the connection is gone");
    uint64_t key;
    if (view.blob_bytes <= sizeof key)
        return sl_fail(err, SL_ERR_CORRUPT, "not a remote key of this transport");
    memcpy(&key, view.blob, sizeof key);
    if (ep->stream.used && !key)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "GPU memory cannot be reached over this connection");
    ux_rkey *k = calloc(1, sizeof *k);
    if (!k)
        return SL_ERR_NO_MEMORY;
    k->key = key;
    ucs_status_t ucs = ucp_ep_rkey_unpack(ep->handle, (const uint8_t *)view.blob + sizeof key, &k->handle);
    if (ucs != UCS_OK) {
        free(k);
        return sl_fail(err, ux_status(ucs), "ucp_ep_rkey_unpack: %s", ucs_status_string(ucs));
    }
    k->base = (sl_tp_rkey){.ep = base, .base = view.base, .bytes = view.bytes};
    k->next = tp->rkeys;
    if (tp->rkeys)
        tp->rkeys->prev = k;
    tp->rkeys = k;
    *out = &k->base;
    return SL_OK;
}

void ux_rkey_release(sl_tp_rkey *base)
{
    ux_rkey *k = (ux_rkey *)base;
    ux_transport *tp = ux_of((ux_ep *)base->ep);
    *(k->prev ? &k->prev->next : &tp->rkeys) = k->next;
    if (k->next)
        k->next->prev = k->prev;
    ucp_rkey_destroy(k->handle);
    free(k);
}
