/* See layer_state.h. */
#include "kernels/layer_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/params.h"

static int64_t up(int64_t bytes, int64_t align)
{
    return (bytes + align - 1) / align * align;
}

int64_t sl_state_part_bytes(const sl_state_part *p)
{
    return p->shape[0] * p->shape[1] * p->shape[2] * (int64_t)sl_dtype_size(p->dtype);
}

/* Where parts [0, n) end. */
static int64_t end_of(const sl_layer_state *s, int32_t n)
{
    int64_t at = 0;

    for (int32_t i = 0; i < n; i++)
        at = up(at, s->parts[i].align) + sl_state_part_bytes(&s->parts[i]);
    return at;
}

int64_t sl_layer_state_at(const sl_layer_state *s, int32_t i)
{
    return up(end_of(s, i), s->parts[i].align);
}

void sl_layer_state_add(sl_layer_state *s, const char *name, sl_dtype dtype, int32_t align, int64_t a,
                        int64_t b, int64_t c)
{
    if (s->n_parts++ >= SL_STATE_PARTS)
        return;
    sl_state_part *p = &s->parts[s->n_parts - 1];
    snprintf(p->name, sizeof p->name, "%s", name);
    p->dtype = dtype, p->align = align > 0 ? align : (int32_t)sl_dtype_size(dtype);
    p->shape[0] = a, p->shape[1] = b, p->shape[2] = c;
    s->bytes = end_of(s, s->n_parts);
}

static sl_status check_part(const char *class, const sl_state_part *p, sl_err *err)
{
    const bool type = p->dtype == SL_F32 || p->dtype == SL_BF16 || p->dtype == SL_I32;
    int64_t n = 1;

    if (!memchr(p->name, 0, sizeof p->name) || !p->name[0])
        return sl_fail(err, SL_ERR_INVALID, "layer class %s: a part of its state has no name", class);
    if (!type || p->align < (int32_t)sl_dtype_size(p->dtype) || p->align > SL_STATE_PART_ALIGN ||
        (p->align & (p->align - 1)))
        return sl_fail(err, SL_ERR_INVALID,
                       "layer class %s: %s of its state has type %d and an alignment of %d bytes", class,
                       p->name, (int)p->dtype, p->align);
    for (int d = 0; d < 3; d++) {
        if (p->shape[d] < 1 || p->shape[d] > SL_STATE_BYTES_MAX / n)
            return sl_fail(err, SL_ERR_INVALID,
                           "layer class %s: %s of its state has %" PRId64 " x %" PRId64 " x %" PRId64
                           " values",
                           class, p->name, p->shape[0], p->shape[1], p->shape[2]);
        n *= p->shape[d];
    }
    return SL_OK;
}

sl_status sl_layer_state_check_parts(const char *class, const sl_layer_state *s, sl_err *err)
{
    if (s->n_parts < 0 || s->n_parts > SL_STATE_PARTS)
        return sl_fail(err, SL_ERR_INVALID, "layer class %s: a state of %d parts, at most %d are possible",
                       class, s->n_parts, SL_STATE_PARTS);
    for (int32_t i = 0; i < s->n_parts; i++)
        SL_TRY(check_part(class, &s->parts[i], err));
    if (s->n_parts > 0 && end_of(s, s->n_parts) != s->bytes)
        return sl_fail(err, SL_ERR_INVALID,
                       "layer class %s: the parts of its state have %" PRId64 " bytes, the state %" PRId64,
                       class, end_of(s, s->n_parts), s->bytes);
    return SL_OK;
}
