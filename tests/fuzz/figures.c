/* A worker's page of metrics as the router's live page reads it: whatever is read is finite, not negative, and in bounds. */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "router/page/figures.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]) || v[i] < 0)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static sl_figures f;
    sl_figures_read((const char *)data, size, &f);
    if (f.n_layers < 0 || f.n_layers > SL_FIGURES_LAYERS)
        abort();
    check(&f.step_seconds, offsetof(sl_figures, n_layers) / sizeof(double));
    check(f.hits, SL_FIGURES_LAYERS);
    check(f.misses, SL_FIGURES_LAYERS);
    return 0;
}
