/* See clock.h. */
#include "base/clock.h"

uint64_t sl_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct timespec sl_wall_after(uint64_t ns)
{
    const uint64_t at = sl_wall_ns() + ns;
    return (struct timespec){(time_t)(at / 1000000000u), (long)(at % 1000000000u)};
}
