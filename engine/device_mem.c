/* See device_mem.h. Free numbers are in a heap. */
#include "engine/device_mem.h"

#include <stdlib.h>

#include "base/log.h"

typedef struct free_list {
    int32_t *v;
    int32_t n, cap;
} free_list;

struct sl_dmem {
    sl_backend *be;
    sl_dpool *pool; /* NULL: each number has its own memory */
    bool poison;
    uint64_t bytes;
    free_list free[SL_DPOOL_KINDS];
};

sl_status sl_dmem_create(sl_backend *be, uint64_t pool_bytes, bool poison, sl_dmem **out, sl_err *err)
{
    sl_dmem *m = calloc(1, sizeof *m);
    if (!m)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    m->be = be, m->poison = poison, m->bytes = pool_bytes;
    sl_status st = pool_bytes > 0 ? sl_dpool_create(be, pool_bytes, poison, &m->pool, err) : SL_OK;
    if (st != SL_OK) {
        free(m);
        return st;
    }
    *out = m;
    return SL_OK;
}

void sl_dmem_destroy(sl_dmem *m)
{
    if (!m)
        return;
    sl_dpool_destroy(m->pool);
    for (int k = 0; k < SL_DPOOL_KINDS; k++)
        free(m->free[k].v);
    free(m);
}

/* ---- memory ---- */

sl_status sl_dmem_alloc(sl_dmem *m, uint64_t bytes, void **out, sl_err *err)
{
    SL_TRY(sl_be_alloc(m->be, SL_MEM_DEVICE, bytes, out, err));
    m->bytes += bytes;
    return SL_OK;
}

sl_status sl_dmem_alloc_in(sl_dmem *m, sl_mem_kind kind, uint64_t bytes, void **out, sl_err *err)
{
    return kind == SL_MEM_DEVICE ? sl_dmem_alloc(m, bytes, out, err)
                                 : sl_be_alloc(m->be, kind, bytes, out, err);
}

void sl_dmem_count(sl_dmem *m, uint64_t bytes)
{
    m->bytes += bytes;
}

uint64_t sl_dmem_bytes(const sl_dmem *m)
{
    return m->bytes;
}

sl_status sl_dmem_also(sl_dmem *m, sl_dpool_kind kind, const uint8_t *at, int64_t bytes, sl_err *err)
{
    return m->pool && bytes > 0 ? sl_dpool_part(m->pool, kind, at, bytes, err) : SL_OK;
}

sl_status sl_dmem_objects(sl_dmem *m, sl_dpool_kind kind, int64_t bytes, int64_t all, uint8_t **out,
                          sl_err *err)
{
    if (m->pool) {
        SL_TRY(sl_dpool_space(m->pool, (uint64_t)all, out, err));
        return sl_dmem_also(m, kind, *out, bytes, err);
    }
    SL_TRY(sl_dmem_alloc(m, (uint64_t)all, (void **)out, err));
    return m->poison ? sl_be_fill(m->be, *out, 0xff, (size_t)all, err) : SL_OK;
}

void sl_dmem_free_objects(sl_dmem *m, uint8_t *base)
{
    if (!m->pool) /* else the space belongs to the pool */
        sl_be_free(m->be, SL_MEM_DEVICE, base);
}

/* ---- numbers ---- */

static void list_put(free_list *l, int32_t v)
{
    SL_CHECK(l->n < l->cap, "free list overflows with %d", v);
    int32_t i = l->n++;
    for (; i > 0 && l->v[(i - 1) / 2] > v; i = (i - 1) / 2)
        l->v[i] = l->v[(i - 1) / 2];
    l->v[i] = v;
}

static int32_t list_take(free_list *l)
{
    SL_CHECK(l->n > 0, "free list is empty");
    const int32_t least = l->v[0], last = l->v[--l->n];
    int32_t i = 0;
    for (int32_t c; (c = 2 * i + 1) < l->n; i = c) {
        c += c + 1 < l->n && l->v[c + 1] < l->v[c];
        if (l->v[c] >= last)
            break;
        l->v[i] = l->v[c];
    }
    l->v[i] = last;
    return least;
}

sl_status sl_dmem_numbers(sl_dmem *m, sl_dpool_kind kind, int32_t n, sl_err *err)
{
    free_list *l = &m->free[kind];
    l->v = calloc((size_t)n + 1, sizeof *l->v);
    if (!l->v)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    l->cap = l->n = n;
    for (int32_t i = 0; i < n; i++)
        l->v[i] = i;
    return SL_OK;
}

int32_t sl_dmem_n(const sl_dmem *m, sl_dpool_kind kind)
{
    return m->free[kind].cap;
}

int32_t sl_dmem_n_free(const sl_dmem *m, sl_dpool_kind kind)
{
    return m->free[kind].n;
}

void sl_dmem_give_numbers(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n)
{
    for (int32_t i = n; i-- > 0; numbers[i] = -1)
        list_put(&m->free[kind], numbers[i]);
}

void sl_dmem_give(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n)
{
    if (m->pool)
        sl_dpool_give(m->pool, kind, numbers, n);
    sl_dmem_give_numbers(m, kind, numbers, n);
}

sl_status sl_dmem_take(sl_dmem *m, sl_dpool_kind kind, int32_t *numbers, int32_t n, sl_err *err)
{
    for (int32_t i = 0; i < n; i++)
        numbers[i] = list_take(&m->free[kind]);
    sl_status st = m->pool ? sl_dpool_take(m->pool, kind, numbers, n, err) : SL_OK;
    if (st != SL_OK)
        sl_dmem_give_numbers(m, kind, numbers, n);
    return st;
}

/* A pool without memory for the new object finds that before it moves any, so the others are what they were. */
sl_status sl_dmem_exchange(sl_dmem *m, sl_dpool_kind kind, int32_t *number, sl_dpool_kind of,
                           const int32_t *numbers, int32_t n, sl_err *err)
{
    if (!m->pool)
        return sl_dmem_take(m, kind, number, 1, err);
    sl_dpool_give(m->pool, of, numbers, n);
    sl_status st = sl_dmem_take(m, kind, number, 1, err);
    if (st != SL_OK)
        SL_TRY(sl_dpool_take(m->pool, of, numbers, n, err));
    return st;
}

int64_t sl_dmem_room(const sl_dmem *m, sl_dpool_kind kind)
{
    const int64_t numbers = m->free[kind].n;
    const uint64_t bytes = m->pool ? sl_dpool_object_bytes(m->pool, kind) : 0;
    if (bytes == 0)
        return numbers;
    const int64_t objects = (int64_t)(sl_dpool_free(m->pool) / bytes);
    return objects < numbers ? objects : numbers;
}

const sl_dpool *sl_dmem_pool(const sl_dmem *m)
{
    return m->pool;
}
