/*
 * Pages of retained tokens (kernels/retained.h): positions, bounds in their stored types with the bytes of the CPU
 * backend, and the unit of a page made of its keys by a thread block.
 *
 * Keys come from the pinned host arena, two microseconds away. A thread has one channel, and loads the keys of four
 * tokens before it uses the first.
 */
#ifndef SL_KERNELS_CUDA_ANY_SELECT_RETAINED_CUH
#define SL_KERNELS_CUDA_ANY_SELECT_RETAINED_CUH

#include "kernels/cuda/any/cache/key_rows.cuh"

/* What kernels need: the request's tables by value, and how its host rows are divided. */
struct sl_kept_pages {
    sl_retained r;
    sl_seq_tables s;
    sl_key_rows keys;
    int value_bytes; /* of a stored bound */
    uint32_t *deverr;
};

static inline sl_kept_pages sl_kept_pages_of(sl_cuda *cu, const sl_retained *r, const sl_seq_tables *s)
{
    sl_row_view rows = r->rows;

    rows.base = NULL; /* the keys are those of the host */
    return {*r, *s, sl_key_rows_of(&rows, &r->host_rows, r->kv_heads, r->dim, r->format),
            r->type == SL_KT_E5M2 ? 1 : 2, cu->deverr};
}

/* ---- which tokens are retained: sl_retained_index(), sl_retained_pos() and sl_retained_reads_all() ---- */

__device__ static inline int sl_kept_index(const sl_retained &r, int seq, int pos)
{
    int n = r.prompts[2 * (int64_t)seq], window = min(r.window, n);

    return r.prompts[2 * (int64_t)seq + 1] + pos - (n - window);
}

__device__ static inline int sl_kept_pos(const sl_retained &r, int seq, int head, int i)
{
    int n = r.prompts[2 * (int64_t)seq], kept = r.prompts[2 * (int64_t)seq + 1], window = min(r.window, n);

    return i < kept ? r.kept[((int64_t)seq * r.kv_heads + head) * r.ld_kept + i] : n - window + i - kept;
}

__device__ static inline bool sl_kept_reads_all(const sl_retained &r, int seq, int pos, int dense_below)
{
    return pos < r.prompts[2 * (int64_t)seq] || pos < dense_below;
}

/* ---- stored bounds ---- */

/* A code of e5m2 is the upper byte of a half. */
__device__ static inline float sl_e5m2f(uint8_t code)
{
    return __half2float(__ushort_as_half((unsigned short)(code << 8)));
}

/* The code of the largest value that is not above f >= 0. */
__device__ static inline uint8_t sl_e5m2_below(float f)
{
    uint32_t u = __float_as_uint(f), e = u >> 23;

    if (e < 113) /* below 2^-14 values are multiples of 2^-16 */
        return (uint8_t)__fmul_rn(f, 65536.0f);
    return e > 142 ? 0x7b : (uint8_t)((e - 112) << 2 | (u >> 21 & 3));
}

/* The smallest value that is not below f; for the largest that is not above f, of -f with its sign changed. */
__device__ static inline uint8_t sl_e5m2_up(float f)
{
    uint8_t code = sl_e5m2_below(fabsf(f));

    if (f < 0)
        return code ? code | 0x80 : 0;
    return code < 0x7b && sl_e5m2f(code) < f ? code + 1 : code;
}

/* Stores a bound of channel i of a unit, the upper or the lower one. */
__device__ static inline void sl_put_bound(const sl_kept_pages &j, uint8_t *unit, int i, bool upper, float v)
{
    int at = upper ? i : j.r.dim + i;

    if (j.r.type == SL_KT_E5M2) {
        uint8_t code = sl_e5m2_up(upper ? v : -v);
        unit[at] = upper || code == 0 ? code : code ^ 0x80;
        return;
    }
    uint32_t u = __float_as_uint(v);
    bool away = (u & 0xffff) != 0 && u >> 31 == (upper ? 0 : 1);
    ((uint16_t *)unit)[at] = (uint16_t)((u >> 16) + away);
}

/* Value i of a unit: max[dim] | min[dim]. */
__device__ static inline float sl_get_bound(const sl_kept_pages &j, const uint8_t *unit, int i)
{
    if (j.r.type == SL_KT_E5M2)
        return sl_e5m2f(unit[i]);
    return __uint_as_float((uint32_t)((const uint16_t *)unit)[i] << 16);
}

/* The most pages for which the tables have index pages. */
__device__ static inline int sl_kept_most_pages(const sl_kept_pages &j)
{
    return j.s.ld << (SL_PAGE_LOG2 - j.r.page_log2);
}

/* Unit of a page of a request's KV head. Without an index page it is that of page 0, and the failure is noted. */
__device__ static inline uint8_t *sl_kept_unit(const sl_kept_pages &j, int seq, int head, int page)
{
    int log2 = SL_PAGE_LOG2 - j.r.page_log2; /* units of a head in an index page */
    int at = j.s.index_pages[(int64_t)seq * j.s.ld + (page >> log2)];

    if (at < 0) {
        atomicOr(j.deverr, SL_DEVERR_PAGE);
        at = 0;
    }
    return j.r.base + at * j.r.page_stride +
           ((head << log2) + (page & ((1 << log2) - 1))) * (2 * j.r.dim * j.value_bytes);
}

/* ---- keys ---- */

/* One value of the key of retained token i. Without a host page it is 0, and the failure is noted. */
__device__ static inline float sl_kept_key(const sl_kept_pages &j, int seq, int head, int i, int channel)
{
    int pos = sl_kept_pos(j.r, seq, head, i);
    uint32_t bad = SL_DEVERR_PAGE;
    sl_key_at at;

    if (pos >= 0 && pos / SL_PAGE_TOKENS < j.s.ld)
        bad = sl_key_of(j.keys, j.s, 0, seq, pos, head, &at);
    if (bad) {
        atomicOr(j.deverr, bad);
        return 0;
    }
    return sl_key_value(j.keys, at, channel);
}

/* Both bounds of a channel over retained tokens first .. last, into a unit. */
__device__ static inline void sl_make_bounds(const sl_kept_pages &j, int seq, int head, int first, int last,
                                             int channel, uint8_t *unit)
{
    float most = 0, least = 0;

    for (int i = first; i <= last; i += 4) {
        float k[4];
#pragma unroll
        for (int u = 0; u < 4; u++) /* after the last token, that one again */
            k[u] = sl_kept_key(j, seq, head, min(i + u, last), channel);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            bool begin = i == first && u == 0;
            most = begin || k[u] > most ? k[u] : most;
            least = begin || k[u] < least ? k[u] : least;
        }
    }
    sl_put_bound(j, unit, channel, true, most);
    sl_put_bound(j, unit, channel, false, least);
}

#endif
