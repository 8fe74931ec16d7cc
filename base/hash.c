/*
 * XXH3-128 (page keys) and CRC32C (transfer checksums) from their libraries. A chained hash covers the previous key
 * followed by the bytes, so equal bytes after different prefixes have different keys. The values are the same on all
 * machines (little-endian).
 */
#include "base/hash.h"

#include <errno.h>
#include <limits.h>
#include <sys/random.h>

#include <isa-l/crc.h>
#define XXH_STATIC_LINKING_ONLY /* the state struct, to keep it on the stack */
#include <xxhash.h>

sl_key sl_hash_chain(sl_key prev, const void *bytes, size_t n)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &prev, sizeof prev);
    if (n)
        XXH3_128bits_update(&state, bytes, n);
    XXH128_hash_t h = XXH3_128bits_digest(&state);
    if (!h.low64 && !h.high64)
        h.low64 = 1; /* all-zero means "none" */
    return (sl_key){.lo = h.low64, .hi = h.high64};
}

static uint64_t secret; /* atomic; 0: not chosen yet */

void sl_key_secret(uint64_t value)
{
    __atomic_store_n(&secret, value, __ATOMIC_RELAXED);
}

uint64_t sl_key_place(sl_key key)
{
    uint64_t s = __atomic_load_n(&secret, __ATOMIC_RELAXED);
    if (!s) {
        uint64_t mine = sl_random_u64() | 1;
        if (__atomic_compare_exchange_n(&secret, &s, mine, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            s = mine;
    }
    return XXH3_64bits_withSeed(&key, sizeof key, s);
}

uint32_t sl_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    /* The library takes the length as an int, and does not invert the value before and after, which CRC32C requires. */
    unsigned char *p = (unsigned char *)(uintptr_t)bytes;
    uint32_t c = ~crc;
    while (n) {
        int take = n > INT_MAX / 2 ? INT_MAX / 2 : (int)n;
        c = crc32_iscsi(p, take, c);
        p += take;
        n -= (size_t)take;
    }
    return ~c;
}

uint64_t sl_random_u64(void)
{
    uint64_t v = 0;
    size_t got = 0;
    while (got < sizeof v) {
        ssize_t n = getrandom((char *)&v + got, sizeof v - got, 0);
        if (n > 0)
            got += (size_t)n;
        else
            SL_CHECK(n < 0 && errno == EINTR, "getrandom failed: errno %d", errno);
    }
    return v;
}
