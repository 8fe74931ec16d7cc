/*
 * RLIMIT_NOFILE: see limits.h.
 */
#include "base/limits.h"

#include <sys/resource.h>

void sl_limits_raise_descriptors(void)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= lim.rlim_max)
        return;
    lim.rlim_cur = lim.rlim_max;
    setrlimit(RLIMIT_NOFILE, &lim);
}
