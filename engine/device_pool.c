/* See device_pool.h. Every unit of a space counts the objects that touch it; a count of zero with memory is what can be taken away. */
#include "engine/device_pool.h"

#include <stdlib.h>

const char *const sl_dpool_kind_names[SL_DPOOL_KINDS + 1] = {[SL_DPOOL_STATES] = "states",
                                                             [SL_DPOOL_HOT] = "hot",
                                                             [SL_DPOOL_INDEX] = "index",
                                                             [SL_DPOOL_ROWS] = "rows"};

#define NONE UINT64_MAX
/* Units that are taken away at once where some are needed: each time waits for the device. */
#define AT_ONCE 64

typedef struct space {
    uint8_t *base;
    uint64_t bytes;
    int32_t n;         /* units */
    int32_t *held;     /* [n] objects that touch the unit */
    sl_mem_unit *unit; /* [n] its memory, or NONE */
} space;

typedef struct part {
    int32_t space;
    int64_t at, bytes;
} part;

typedef struct kind {
    part *parts;
    int32_t n;
} kind;

struct sl_dpool {
    sl_backend *be;
    int64_t unit;
    bool poison;
    sl_mem_unit *all, *free; /* [n_units], [n_free] */
    int32_t n_units, n_free;
    int32_t n_idle; /* units with memory of which nothing is held */
    space *spaces;
    int32_t n_spaces;
    int32_t at_space, at_unit; /* where the search for idle units continues */
    kind kinds[SL_DPOOL_KINDS];
    uint64_t moved;
};

/* ---- units ---- */

/* As many as there are, so that destroy knows them. */
static sl_status make_units(sl_dpool *p, int64_t n, sl_err *err)
{
    p->all = calloc((size_t)n, sizeof *p->all);
    p->free = calloc((size_t)n, sizeof *p->free);
    if (!p->all || !p->free)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pool: out of memory");
    while (p->n_units < n) {
        SL_TRY(sl_unit_create(p->be, &p->all[p->n_units], err));
        p->free[p->n_free++] = p->all[p->n_units++];
    }
    return SL_OK;
}

sl_status sl_dpool_create(sl_backend *be, uint64_t bytes, bool poison, sl_dpool **out, sl_err *err)
{
    const uint64_t unit = sl_space_unit(be);
    if (unit == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "pool: backend %s cannot move memory between addresses",
                       sl_backend_name(be));
    if (bytes < unit || bytes / unit > INT32_MAX)
        return sl_fail(err, SL_ERR_DEVICE_MEMORY, "pool: %llu bytes in units of %llu",
                       (unsigned long long)bytes, (unsigned long long)unit);
    sl_dpool *p = calloc(1, sizeof *p);
    if (!p)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pool: out of memory");
    p->be = be, p->unit = (int64_t)unit, p->poison = poison;
    sl_status st = make_units(p, (int64_t)(bytes / unit), err);
    if (st != SL_OK) {
        sl_dpool_destroy(p);
        return st;
    }
    *out = p;
    return SL_OK;
}

/* Takes the memory of units [i, end) of a space, which all have some; they become free. */
static sl_status unmap(sl_dpool *p, space *s, int32_t i, int32_t end, sl_err *err)
{
    SL_TRY(sl_space_unmap(p->be, s->base + i * p->unit, end - i, err));
    for (; i < end; i++) {
        p->free[p->n_free++] = s->unit[i];
        s->unit[i] = NONE;
    }
    return SL_OK;
}

void sl_dpool_destroy(sl_dpool *p)
{
    if (!p)
        return;
    for (int32_t k = 0; k < p->n_spaces; k++) {
        space *s = &p->spaces[k];
        for (int32_t i = 0; i < s->n; i++)
            if (s->unit[i] != NONE)
                (void)unmap(p, s, i, i + 1, NULL);
        sl_space_release(p->be, s->base, s->bytes);
        free(s->held);
        free(s->unit);
    }
    for (int32_t i = 0; i < p->n_units; i++)
        sl_unit_destroy(p->be, p->all[i]);
    for (int k = 0; k < SL_DPOOL_KINDS; k++)
        free(p->kinds[k].parts);
    free(p->spaces);
    free(p->all);
    free(p->free);
    free(p);
}

/* ---- spaces and parts ---- */

static sl_status fill_space(sl_dpool *p, space *s, uint64_t bytes, sl_err *err)
{
    const uint64_t n = (bytes + (uint64_t)p->unit - 1) / (uint64_t)p->unit;
    if (n > INT32_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "pool: a space of %llu bytes", (unsigned long long)bytes);
    s->bytes = bytes, s->n = (int32_t)n;
    s->held = calloc(n, sizeof *s->held);
    s->unit = malloc(n * sizeof *s->unit);
    if (!s->held || !s->unit)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pool: out of memory");
    for (uint64_t i = 0; i < n; i++)
        s->unit[i] = NONE;
    return sl_space_reserve(p->be, bytes, &s->base, err);
}

sl_status sl_dpool_space(sl_dpool *p, uint64_t bytes, uint8_t **base, sl_err *err)
{
    space s = {0}, *more = realloc(p->spaces, (size_t)(p->n_spaces + 1) * sizeof *more);
    if (!more)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pool: out of memory");
    p->spaces = more;
    sl_status st = fill_space(p, &s, bytes > 0 ? bytes : 1, err);
    if (st != SL_OK) {
        free(s.held);
        free(s.unit);
        return st;
    }
    p->spaces[p->n_spaces++] = s;
    *base = s.base;
    return SL_OK;
}

sl_status sl_dpool_part(sl_dpool *p, sl_dpool_kind k, const uint8_t *at, int64_t bytes, sl_err *err)
{
    kind *q = &p->kinds[k];
    part *more = realloc(q->parts, (size_t)(q->n + 1) * sizeof *more);
    if (!more)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pool: out of memory");
    q->parts = more;
    for (int32_t i = 0; i < p->n_spaces; i++) {
        const space *s = &p->spaces[i];
        if (at >= s->base && at < s->base + s->bytes) {
            q->parts[q->n++] = (part){.space = i, .at = at - s->base, .bytes = bytes};
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INTERNAL, "pool: an address outside its spaces");
}

/* ---- objects ---- */

/* The units of an object in one of its parts. */
static void units_of(const sl_dpool *p, const part *t, int32_t object, int32_t *first, int32_t *end)
{
    const int64_t from = t->at + object * t->bytes;
    *first = (int32_t)(from / p->unit);
    *end = (int32_t)((from + t->bytes - 1) / p->unit) + 1;
    SL_CHECK(*end <= p->spaces[t->space].n, "object %d ends outside its space", object);
}

/* Counts one object more or less. The units that need memory: those that no object held and that have none. */
static int32_t count(sl_dpool *p, const kind *k, int32_t object, int32_t by)
{
    int32_t need = 0;
    for (int32_t i = 0; i < k->n; i++) {
        const part *t = &k->parts[i];
        space *s = &p->spaces[t->space];
        int32_t first, end;
        units_of(p, t, object, &first, &end);
        for (int32_t u = first; u < end; u++) {
            const bool was = s->held[u] > 0, has = s->unit[u] != NONE;
            s->held[u] += by;
            SL_CHECK(s->held[u] >= 0, "object %d of the pool is given twice", object);
            if (was == (s->held[u] > 0))
                continue;
            p->n_idle -= has ? by : 0;
            need += has ? 0 : by;
        }
    }
    return need;
}

static int32_t count_all(sl_dpool *p, const kind *k, const int32_t *objects, int32_t n, int32_t by)
{
    int32_t need = 0;
    for (int32_t i = 0; i < n; i++)
        need += count(p, k, objects[i], by);
    return need;
}

/* Makes at least `want` idle units free. */
static sl_status take_idle(sl_dpool *p, int32_t want, sl_err *err)
{
    int32_t most = want > AT_ONCE ? want : AT_ONCE;
    most = most < p->n_idle ? most : p->n_idle;
    SL_TRY(sl_space_settle(p->be, err));
    while (most > 0) {
        space *s = &p->spaces[p->at_space];
        int32_t i = p->at_unit, end;
        while (i < s->n && (s->held[i] > 0 || s->unit[i] == NONE))
            i++;
        for (end = i; end < s->n && end - i < most && s->held[end] == 0 && s->unit[end] != NONE;)
            end++;
        if (end > i)
            SL_TRY(unmap(p, s, i, end, err));
        most -= end - i, p->n_idle -= end - i, p->moved += (uint64_t)(end - i);
        p->at_unit = end;
        if (end == s->n)
            p->at_unit = 0, p->at_space = (p->at_space + 1) % p->n_spaces;
    }
    return SL_OK;
}

static sl_status map(sl_dpool *p, space *s, int32_t first, int32_t end, sl_err *err)
{
    while (first < end) {
        int32_t n = 0;
        while (first < end && s->unit[first] != NONE)
            first++;
        while (first + n < end && s->unit[first + n] == NONE)
            n++;
        if (n == 0)
            break;
        SL_CHECK(n <= p->n_free, "the pool has %d units, needs %d", p->n_free, n);
        const sl_mem_unit *units = p->free + p->n_free - n;
        SL_TRY(sl_space_map(p->be, s->base + first * p->unit, units, n, err));
        for (int32_t i = 0; i < n; i++)
            s->unit[first + i] = units[i];
        p->n_free -= n;
        if (p->poison)
            SL_TRY(sl_be_fill(p->be, s->base + first * p->unit, 0xff, (size_t)n * (size_t)p->unit, err));
        first += n;
    }
    return SL_OK;
}

static sl_status map_all(sl_dpool *p, const kind *k, const int32_t *objects, int32_t n, sl_err *err)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < k->n; j++) {
            int32_t first, end;
            units_of(p, &k->parts[j], objects[i], &first, &end);
            SL_TRY(map(p, &p->spaces[k->parts[j].space], first, end, err));
        }
    return SL_OK;
}

sl_status sl_dpool_take(sl_dpool *p, sl_dpool_kind k, const int32_t *objects, int32_t n, sl_err *err)
{
    const kind *q = &p->kinds[k];
    const int32_t need = count_all(p, q, objects, n, 1);
    sl_status st = SL_OK;
    if (need > p->n_free + p->n_idle)
        st = sl_fail(err, SL_ERR_EXHAUSTED,
                     "%d units of %.1f MiB of device memory are needed, %d of %d are free", need,
                     (double)p->unit / 1048576, p->n_free + p->n_idle, p->n_units);
    else if (need > p->n_free)
        st = take_idle(p, need - p->n_free, err);
    if (st == SL_OK)
        st = map_all(p, q, objects, n, err);
    if (st != SL_OK)
        (void)count_all(p, q, objects, n, -1);
    return st;
}

void sl_dpool_give(sl_dpool *p, sl_dpool_kind k, const int32_t *objects, int32_t n)
{
    (void)count_all(p, &p->kinds[k], objects, n, -1);
}

uint64_t sl_dpool_object_bytes(const sl_dpool *p, sl_dpool_kind k)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < p->kinds[k].n; i++)
        bytes += (uint64_t)p->kinds[k].parts[i].bytes;
    return bytes;
}

uint64_t sl_dpool_free(const sl_dpool *p)
{
    return (uint64_t)(p->n_free + p->n_idle) * (uint64_t)p->unit;
}

void sl_dpool_stats_get(const sl_dpool *p, sl_dpool_stats *out)
{
    const uint64_t unit = (uint64_t)p->unit;
    *out = (sl_dpool_stats){.unit = unit,
                            .total = (uint64_t)p->n_units * unit,
                            .used = (uint64_t)(p->n_units - p->n_free - p->n_idle) * unit,
                            .moved = p->moved};
}
