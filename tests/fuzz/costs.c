/*
 * Arbitrary bytes as a file of costs: a refusal has a reason, and with accepted costs every prefill step takes a finite time that
 * is not negative, and every decode step a finite time that is not negative.
 */
#include <math.h>
#include <stdlib.h>

#include "simulate/costs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static sl_sim_costs c;
    sl_err err = {""};
    if (sl_sim_costs_parse((const char *)data, size, "fuzz", &c, &err)) {
        if (!err.text[0])
            abort();
        return 0;
    }
    for (double n = 1; n < 1e6; n *= 10) {
        double prefill = sl_sim_prefill_ns(&c, n, n, n), decode = sl_sim_decode_ns(&c, (int32_t)n, n);
        if (!isfinite(prefill) || prefill < 0 || !isfinite(decode) || decode < 0)
            abort();
    }
    return 0;
}
