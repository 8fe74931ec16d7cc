/* See arch.h. */
#include "kernels/arch.h"

#include <stdlib.h>

static bool serves(int arch, char letter, int cc)
{
    if (letter || cc == 90)
        return letter == 'a' && arch == cc;
    return arch / 10 == cc / 10 && arch <= cc;
}

bool sl_arch_runs(const char *archs, int cc)
{
    while (*archs) {
        char *end;
        long arch = strtol(archs, &end, 10);
        if (end == archs)
            return false;
        char letter = *end && *end != ',' ? *end++ : '\0';
        if (serves((int)arch, letter, cc))
            return true;
        archs = *end == ',' ? end + 1 : end;
    }
    return false;
}

sl_status sl_arch_check(const char *archs, int cc, bool loads, const char *device, sl_err *err)
{
    const char *letter = cc == 90 ? "a" : "";
    if (!sl_arch_runs(archs, cc))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: %.100s has compute capability %d.%d, this program was built for %s only: build "
                       "with -DSL_CUDA_ARCHS=%d%s",
                       device, cc / 10, cc % 10, archs, cc, letter);
    if (!loads)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: the driver finds no code for %.100s (compute capability %d.%d) in this program, "
            "which was built for %s: build with -DSL_CUDA_ARCHS=%d%s",
            device, cc / 10, cc % 10, archs, cc, letter);
    return SL_OK;
}
