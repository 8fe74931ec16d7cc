/* Chooses the implementation by the backend's name; see space.h. */
#include "kernels/space.h"

#include <string.h>

static const sl_space_desc *const spaces[] = {
    &sl_space_cpu,
#ifdef SL_CUDA
    &sl_space_cuda,
#endif
};

static const sl_space_desc *desc_of(const sl_backend *be)
{
    for (size_t i = 0; i < SL_COUNT(spaces); i++)
        if (strcmp(spaces[i]->backend, sl_backend_name(be)) == 0)
            return spaces[i];
    return NULL;
}

size_t sl_space_unit(const sl_backend *be)
{
    const sl_space_desc *d = desc_of(be);
    return d ? d->unit_bytes(be) : 0;
}

static size_t whole_units(const sl_backend *be, size_t bytes)
{
    const size_t unit = sl_space_unit(be);
    return (bytes + unit - 1) & ~(unit - 1);
}

sl_status sl_space_reserve(sl_backend *be, size_t bytes, uint8_t **out, sl_err *err)
{
    if (sl_space_unit(be) == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "backend %s gives memory to addresses at once only",
                       sl_backend_name(be));
    if (bytes == 0 || bytes > PTRDIFF_MAX - sl_space_unit(be))
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: a space of %zu bytes is impossible", sl_backend_name(be),
                       bytes);
    return desc_of(be)->reserve(be, whole_units(be, bytes), out, err);
}

void sl_space_release(sl_backend *be, uint8_t *base, size_t bytes)
{
    if (base)
        desc_of(be)->release(be, base, whole_units(be, bytes));
}

sl_status sl_unit_create(sl_backend *be, sl_mem_unit *out, sl_err *err)
{
    return desc_of(be)->create(be, out, err);
}

void sl_unit_destroy(sl_backend *be, sl_mem_unit unit)
{
    desc_of(be)->destroy(be, unit);
}

sl_status sl_space_map(sl_backend *be, uint8_t *at, const sl_mem_unit *units, int32_t n, sl_err *err)
{
    return n > 0 ? desc_of(be)->map(be, at, units, n, err) : SL_OK;
}

sl_status sl_space_unmap(sl_backend *be, uint8_t *at, int32_t n, sl_err *err)
{
    return n > 0 ? desc_of(be)->unmap(be, at, n, err) : SL_OK;
}

sl_status sl_space_settle(sl_backend *be, sl_err *err)
{
    return desc_of(be)->settle(be, err);
}
