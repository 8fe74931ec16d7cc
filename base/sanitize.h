/*
 * Tells a sanitizer what a loop that is compiled without it will read and write: AddressSanitizer reports a range
 * of which a byte may not be accessed, ThreadSanitizer notes the accesses. In other builds the calls are empty.
 *
 * Only for inner loops in which checking every single access takes most of a test's time; each of them needs a test
 * with operands that end where a page without access begins, because nothing else watches what it really touches.
 */
#ifndef SL_BASE_SANITIZE_H
#define SL_BASE_SANITIZE_H

#include <stddef.h>

#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>

static inline void sl_will_read(const void *at, size_t bytes)
{
    void *bad = bytes ? __asan_region_is_poisoned((void *)at, bytes) : NULL;

    if (bad)
        (void)*(volatile const char *)bad; /* this access is reported */
}

static inline void sl_will_write(void *at, size_t bytes)
{
    void *bad = bytes ? __asan_region_is_poisoned(at, bytes) : NULL;

    if (bad)
        *(volatile char *)bad = 0;
}
#elif defined(__SANITIZE_THREAD__)
void __tsan_read_range(void *at, long bytes);
void __tsan_write_range(void *at, long bytes);

static inline void sl_will_read(const void *at, size_t bytes)
{
    __tsan_read_range((void *)at, (long)bytes);
}

static inline void sl_will_write(void *at, size_t bytes)
{
    __tsan_write_range(at, (long)bytes);
}
#else
static inline void sl_will_read(const void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
}

static inline void sl_will_write(void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
}
#endif

#endif
