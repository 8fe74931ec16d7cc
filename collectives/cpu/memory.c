/*
 * The implementation of collectives over memory that processes of one host share: found, join and the end of a group.
 * The collectives are those of rounds.c, the memory is that of segment.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectives/cpu/segment.h"

static sl_comm_segment *of(sl_comm *c)
{
    return (sl_comm_segment *)c;
}

/* What tells this start of a kernel from others. */
static size_t boot_id(char *out, size_t cap)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(out, 1, cap, f) : 0;

    if (f)
        fclose(f);
    return n;
}

uint64_t sl_comm_place(void)
{
    static const char *const spaces[] = {"/proc/self/ns/pid", "/proc/self/ns/net"};
    char text[64];
    uid_t user = geteuid();
    sl_key k = sl_hash_chain((sl_key){0}, text, boot_id(text, sizeof text));

    for (size_t i = 0; i < SL_COUNT(spaces); i++) {
        struct stat st;
        uint64_t inode = stat(spaces[i], &st) == 0 ? (uint64_t)st.st_ino : 0;

        k = sl_hash_chain(k, &inode, sizeof inode);
    }
    k = sl_hash_chain(k, &user, sizeof user);
    return k.lo ? k.lo : 1;
}

static sl_comm_segment *new_comm(const sl_comm_opts *opts)
{
    sl_comm_segment *c = calloc(1, sizeof *c);

    if (c) {
        c->fd = -1;
        c->cpu.base.opts = *opts;
        c->cpu.rounds = &sl_comm_segment_rounds;
    }
    return c;
}

static sl_status memory_found(sl_backend *be, const sl_comm_opts *opts, uint8_t *own, sl_comm **out,
                              sl_err *err)
{
    sl_comm_segment *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    st = sl_comm_segment_create(opts, own, c, err);
    if (st != SL_OK) {
        free(c);
        return st;
    }
    *out = &c->cpu.base;
    return SL_OK;
}

/* Tells the group why this rank will not join. */
static sl_status refuse(sl_comm_segment *c, const char *why)
{
    int32_t rank = c->cpu.base.opts.rank;
    uint32_t absent = SL_COMM_ABSENT;

    if (rank < c->shared->ranks) {
        sl_comm_slot *s = sl_comm_slot_of(c, rank);

        if (atomic_load(&s->state) == SL_COMM_ABSENT)
            snprintf(s->refusal, sizeof s->refusal, "%s", why);
        if (atomic_compare_exchange_strong(&s->state, &absent, SL_COMM_REFUSED))
            sl_comm_ring(c);
    } else {
        sl_comm_break(c, SL_ERR_REFUSED, -1, NULL, "%s", why);
    }
    return SL_ERR_REFUSED;
}

static sl_status memory_join(sl_backend *be, const sl_comm_opts *opts, const uint8_t *own,
                             const char *refusal, sl_comm **out, sl_err *err)
{
    sl_comm_segment *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    st = sl_comm_segment_open(own, c, err);
    if (st != SL_OK)
        goto free_comm;
    st = refusal ? refuse(c, refusal) : sl_comm_segment_enter(c, opts->rank, err);
    if (st != SL_OK)
        goto close_segment;
    *out = &c->cpu.base;
    return SL_OK;
close_segment:
    sl_comm_segment_close(c);
free_comm:
    free(c);
    return st;
}

static sl_status memory_form(sl_comm *c, sl_err *err)
{
    return sl_comm_wait_joined(of(c), err);
}

static void memory_destroy(sl_comm *c)
{
    atomic_store(&sl_comm_slot_of(of(c), c->opts.rank)->state, SL_COMM_LEFT);
    sl_comm_ring(of(c));
    sl_comm_segment_close(of(c));
    free(c);
}

static void memory_abort(sl_comm *c)
{
    sl_comm_segment_abort(of(c));
}

static sl_status memory_state(sl_comm *c, sl_err *err)
{
    return sl_comm_broken(of(c), err);
}

const sl_comm_desc sl_comm_shared_memory = {
    .name = "shared memory",
    .between_hosts = &sl_comm_over_sockets,
    .found = memory_found,
    .join = memory_join,
    .form = memory_form,
    .destroy = memory_destroy,
    .abort = memory_abort,
    .state = memory_state,
    .barrier = sl_comm_cpu_barrier,
    .all_gather = sl_comm_cpu_all_gather,
    .broadcast = sl_comm_cpu_broadcast,
    .all_to_all = sl_comm_cpu_all_to_all,
    .library = sl_comm_cpu_library,
};
