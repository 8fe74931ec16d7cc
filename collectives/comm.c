/*
 * Dispatcher of the collectives: checks that are the same everywhere, and the invitation. What moves bytes is the
 * backend's (collectives/comm_impl.h).
 *
 * The invitation carries what must be equal on all ranks, so a rank that does not fit is refused before it takes part
 * in anything. It is a plain struct in the byte order of the host: the ranks of a group run the same build.
 */
#include "collectives/comm_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "kernels/ep.h"

#define MAGIC "slcomm1"
#define DEADLINE_MAX_MS 3600000u

typedef struct invitation {
    char magic[8], implementation[24], build[32];
    uint32_t library;
    int32_t ranks;
    sl_key geometry;
    uint8_t own[SL_COMM_OWN_BYTES];
} invitation;
_Static_assert(SL_COMM_RANKS_MAX == SL_EP_RANKS_MAX, "the ops of a group have room for its ranks");
_Static_assert(sizeof(invitation) <= SL_COMM_INVITE_BYTES, "an invitation must fit");

/* By the backend's name. */
static const sl_comm_desc *collectives_of(const sl_backend *be)
{
    static const struct {
        const char *backend;
        const sl_comm_desc *desc;
    } rows[] = {
        {"cpu", &sl_comm_shared_memory},
#ifdef SL_NCCL
        {"cuda", &sl_comm_nccl},
#endif
    };

    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(rows[i].backend, sl_backend_name(be)) == 0)
            return rows[i].desc;
    return NULL;
}

static sl_status no_collectives(sl_backend *be, sl_err *err)
{
    return sl_fail(err, SL_ERR_UNSUPPORTED, "comm: the %s backend of this build has no collectives",
                   sl_backend_name(be));
}

static sl_status check_opts(sl_backend *be, const sl_comm_opts *o, sl_err *err)
{
    if (!collectives_of(be))
        return no_collectives(be, err);
    if (o->ranks < 1 || o->ranks > SL_COMM_RANKS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "comm: %d ranks, a group has 1 to %d", o->ranks,
                       SL_COMM_RANKS_MAX);
    if (o->rank < 0 || o->rank >= o->ranks)
        return sl_fail(err, SL_ERR_INVALID, "comm: rank %d is not within 0 and %d", o->rank, o->ranks - 1);
    if (o->deadline_ms < 1 || o->deadline_ms > DEADLINE_MAX_MS)
        return sl_fail(err, SL_ERR_INVALID, "comm: a deadline of %u ms is not within 1 and %u",
                       o->deadline_ms, DEADLINE_MAX_MS);
    return SL_OK;
}

/* "NCCL 2.28.9", or the implementation's name alone. */
static void write_library(const sl_comm_desc *d, uint32_t v, char *out, size_t cap)
{
    if (v)
        snprintf(out, cap, "%s %u.%u.%u", d->name, v / 10000, v / 100 % 100, v % 100);
    else
        snprintf(out, cap, "%s", d->name);
}

sl_status sl_comm_library(sl_backend *be, char *out, size_t cap, sl_err *err)
{
    uint32_t v = 0;

    if (!collectives_of(be))
        return no_collectives(be, err);
    SL_TRY(collectives_of(be)->library(&v, err));
    out[0] = '\0';
    if (v)
        write_library(collectives_of(be), v, out, cap);
    return SL_OK;
}

static uint32_t version_of(const sl_comm_desc *d)
{
    uint32_t v = 0;

    return d->library(&v, NULL) == SL_OK ? v : 0;
}

static void finish(sl_backend *be, const sl_comm_desc *d, const sl_comm_opts *opts, sl_comm *c)
{
    char library[32];

    c->desc = d;
    c->be = be;
    c->opts = *opts;
    c->opts.sockets_at = NULL; /* the caller's, who may free it now */
    c->lost = -1;
    write_library(d, version_of(d), library, sizeof library);
    snprintf(c->describe, sizeof c->describe, "%s, %d rank%s", library, opts->ranks,
             opts->ranks == 1 ? "" : "s");
}

sl_status sl_comm_found(sl_backend *be, const sl_comm_opts *opts, sl_comm_invite *invite, sl_comm **out,
                        sl_err *err)
{
    invitation v = {.magic = MAGIC, .build = SL_VERSION, .ranks = opts->ranks, .geometry = opts->geometry};
    const sl_comm_desc *d;
    sl_comm *c;

    SL_TRY(check_opts(be, opts, err));
    if (opts->rank != 0)
        return sl_fail(err, SL_ERR_INVALID, "comm: rank %d cannot found a group, rank 0 does", opts->rank);
    d = collectives_of(be);
    if (opts->sockets_at && d->between_hosts)
        d = d->between_hosts;
    SL_TRY(d->found(be, opts, v.own, &c, err));
    finish(be, d, opts, c);
    v.library = version_of(d);
    snprintf(v.implementation, sizeof v.implementation, "%s", d->name);
    *invite = (sl_comm_invite){{0}};
    memcpy(invite->bytes, &v, sizeof v);
    *out = c;
    return SL_OK;
}

/* What of this rank differs from the group that v invites to: a sentence, or an empty one. */
static void compare(const sl_comm_desc *d, const sl_comm_opts *o, const invitation *v, char *why, size_t cap)
{
    why[0] = '\0';
    if (strcmp(v->implementation, d->name) != 0)
        snprintf(why, cap, "rank %d uses %s, the group %s", o->rank, d->name, v->implementation);
    else if (strcmp(v->build, SL_VERSION) != 0)
        snprintf(why, cap, "rank %d is build %s, the group is build %s", o->rank, SL_VERSION, v->build);
    else if (v->library != version_of(d))
        snprintf(why, cap, "rank %d has %s %u, the group %u", o->rank, d->name, version_of(d), v->library);
    else if (v->ranks != o->ranks)
        snprintf(why, cap, "rank %d expects a group of %d, the group has %d ranks", o->rank, o->ranks,
                 v->ranks);
    else if (!sl_key_eq(v->geometry, o->geometry))
        snprintf(why, cap,
                 "rank %d has the geometry %016" PRIx64 ", the group %016" PRIx64
                 ": checkpoint, formats or dimensions differ",
                 o->rank, o->geometry.lo, v->geometry.lo);
}

/* The implementation that the invitation is of, among those of this backend; otherwise the backend's first one. */
static const sl_comm_desc *invited_to(const sl_backend *be, const invitation *v)
{
    const sl_comm_desc *d = collectives_of(be);

    return d->between_hosts && strcmp(v->implementation, d->between_hosts->name) == 0 ? d->between_hosts : d;
}

sl_status sl_comm_join(sl_backend *be, const sl_comm_opts *opts, const sl_comm_invite *invite, sl_comm **out,
                       sl_err *err)
{
    const sl_comm_desc *d;
    invitation v;
    char why[256];
    sl_comm *c = NULL;

    SL_TRY(check_opts(be, opts, err));
    if (opts->rank == 0)
        return sl_fail(err, SL_ERR_INVALID, "comm: rank 0 founds the group, it cannot join");
    memcpy(&v, invite->bytes, sizeof v);
    if (memcmp(v.magic, MAGIC, sizeof v.magic) != 0 ||
        !memchr(v.implementation, '\0', sizeof v.implementation) || !memchr(v.build, '\0', sizeof v.build))
        return sl_fail(err, SL_ERR_INVALID, "comm: this is no invitation to a group");
    d = invited_to(be, &v);
    compare(d, opts, &v, why, sizeof why);
    if (why[0]) {
        if (strcmp(v.implementation, d->name) == 0)
            (void)d->join(be, opts, v.own, why, &c, NULL);
        return sl_fail(err, SL_ERR_REFUSED, "comm: %s", why);
    }
    SL_TRY(d->join(be, opts, v.own, NULL, &c, err));
    finish(be, d, opts, c);
    *out = c;
    return SL_OK;
}

static void destroy_events(sl_comm *c)
{
    if (c->made)
        sl_event_destroy(c->made);
    if (c->arrived)
        sl_event_destroy(c->arrived);
}

sl_status sl_comm_form(sl_comm *c, sl_err *err)
{
    if (c->formed)
        return SL_OK;
    SL_TRY(c->desc->form(c, err));
    if (sl_backend_caps(c->be) & SL_BE_ASYNC && !c->made) {
        SL_TRY(sl_event_create(c->be, &c->made, err));
        SL_TRY(sl_event_create(c->be, &c->arrived, err));
    }
    c->formed = true;
    return SL_OK;
}

void sl_comm_destroy(sl_comm *c)
{
    if (!c)
        return;
    destroy_events(c);
    c->desc->destroy(c);
}

int32_t sl_comm_rank(const sl_comm *c)
{
    return c->opts.rank;
}

int32_t sl_comm_ranks(const sl_comm *c)
{
    return c->opts.ranks;
}

const char *sl_comm_describe(const sl_comm *c)
{
    return c->describe;
}

void sl_comm_abort(sl_comm *c)
{
    c->desc->abort(c);
}

sl_status sl_comm_state(sl_comm *c, sl_err *err)
{
    return c->desc->state(c, err);
}

int32_t sl_comm_lost(const sl_comm *c)
{
    return c->lost;
}

void sl_comm_stats_get(const sl_comm *c, sl_comm_stats *out)
{
    *out = c->stats;
}

/* ---- collectives ---- */

/* A call that no rank can make: the other ranks must not wait for this one until the deadline. */
#define REFUSE(c, err, ...) (sl_comm_abort(c), sl_fail(err, SL_ERR_INVALID, __VA_ARGS__))

static sl_status check_formed(sl_comm *c, sl_err *err)
{
    if (!c->formed)
        return sl_fail(err, SL_ERR_INVALID, "comm: a collective before sl_comm_form()");
    return SL_OK;
}

sl_status sl_comm_barrier(sl_comm *c, sl_err *err)
{
    SL_TRY(check_formed(c, err));
    sl_be_collective(c->be);
    return c->desc->barrier(c, err);
}

sl_status sl_comm_all_gather(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err)
{
    SL_TRY(check_formed(c, err));
    if (bytes == 0)
        return SL_OK;
    if (!src || !dst)
        return REFUSE(c, err, "all_gather: src or dst is NULL");
    if (bytes > SIZE_MAX / 2 / SL_COMM_RANKS_MAX)
        return REFUSE(c, err, "all_gather: %zu bytes of a rank are too many", bytes);
    sl_be_collective(c->be);
    return c->desc->all_gather(c, src, dst, bytes, err);
}

sl_status sl_comm_agree(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err)
{
    SL_TRY(check_formed(c, err));
    if (!src || !dst)
        return REFUSE(c, err, "agree: src or dst is NULL");
    if (bytes == 0 || bytes % 4 || bytes > SL_COMM_AGREE_BYTES)
        return REFUSE(c, err, "agree: %zu bytes are no multiple of 4 from 4 to %d", bytes,
                      SL_COMM_AGREE_BYTES);
    if (c->desc->agree)
        return c->desc->agree(c, src, dst, bytes, err);
    SL_TRY(c->desc->all_gather(c, src, dst, bytes, err));
    return sl_be_sync(c->be, err);
}

sl_status sl_comm_broadcast(sl_comm *c, void *buf, size_t bytes, int32_t root, sl_err *err)
{
    SL_TRY(check_formed(c, err));
    if (root < 0 || root >= c->opts.ranks)
        return REFUSE(c, err, "broadcast: root %d is not within 0 and %d", root, c->opts.ranks - 1);
    if (bytes == 0)
        return SL_OK;
    if (!buf)
        return REFUSE(c, err, "broadcast: buf is NULL");
    sl_be_collective(c->be);
    return c->desc->broadcast(c, buf, bytes, root, err);
}

sl_status sl_comm_memory(sl_comm *c, size_t bytes, void **out, sl_err *err)
{
    *out = NULL;
    SL_TRY(check_formed(c, err));
    if (bytes == 0)
        return REFUSE(c, err, "memory: 0 bytes");
    return c->desc->memory ? c->desc->memory(c, bytes, out, err) : SL_OK;
}

void *sl_comm_at(const sl_comm *c, const void *own, int32_t r)
{
    return c->desc->at && r >= 0 && r < c->opts.ranks ? c->desc->at(c, own, r) : NULL;
}

sl_status sl_comm_all_to_all(sl_comm *c, const sl_comm_rows *rows, sl_err *err)
{
    SL_TRY(check_formed(c, err));
    if (!rows->send || !rows->send_count || !rows->recv || !rows->recv_count)
        return REFUSE(c, err, "all_to_all: send, send_count, recv or recv_count is NULL");
    if (rows->row_bytes < 4 || rows->row_bytes % 4 || rows->row_bytes > INT32_MAX)
        return REFUSE(c, err, "all_to_all: row_bytes %" PRId64 " is no multiple of 4 from 4 to 2 GiB",
                      rows->row_bytes);
    if (rows->cap < 1)
        return REFUSE(c, err, "all_to_all: cap %d is not positive", rows->cap);
    if (rows->placed != SL_COMM_IN_SEND && !sl_comm_at(c, rows->recv, c->opts.rank))
        return REFUSE(c, err, "all_to_all: rows are placed, but recv is not in memory of the group");
    sl_be_collective(c->be);
    return c->desc->all_to_all(c, rows, err);
}

sl_status sl_comm_all_to_all_begin(sl_comm *c, const sl_comm_rows *rows, sl_err *err)
{
    if (c->open)
        return REFUSE(c, err, "all_to_all_begin: the previous one has not ended");
    if (!c->made || sl_be_profiled(c->be))
        return sl_comm_all_to_all(c, rows, err);
    SL_TRY(sl_event_record(c->be, c->made, err));
    sl_be_stream_use(c->be, SL_STREAM_SIDE);
    sl_status st = sl_be_stream_wait(c->be, c->made, err);
    if (st == SL_OK) {
        st = sl_comm_all_to_all(c, rows, err);
        /* Also after a failure: in a capture the side stream must be waited for. */
        sl_status mark = sl_event_record(c->be, c->arrived, st == SL_OK ? err : NULL);
        c->open = mark == SL_OK;
        st = st == SL_OK ? mark : st;
    }
    sl_be_stream_use(c->be, SL_STREAM_MAIN);
    if (st != SL_OK)
        (void)sl_comm_all_to_all_end(c, NULL);
    return st;
}

sl_status sl_comm_all_to_all_end(sl_comm *c, sl_err *err)
{
    if (!c->open)
        return SL_OK;
    c->open = false;
    return sl_be_stream_wait(c->be, c->arrived, err);
}
