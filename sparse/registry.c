/*
 * The algorithms of this build. A new one is a row in both tables and a declaration in algorithm.h; see
 * docs/sparse-algorithms.md. tests/unit/sparse/test_conformance.c checks that the tables agree.
 */
#include <string.h>

#include "sparse/algorithm.h"

static const sl_algo_desc *const registry[] = {&sl_algo_dsa, &sl_algo_dense, NULL};
static const char *const names[] = {"dsa", "dense", NULL};

const sl_algo_desc *const *sl_algo_registry(void)
{
    return registry;
}

const char *const *sl_algo_names(void)
{
    return names;
}

const sl_algo_desc *sl_algo_find(const char *name)
{
    for (const sl_algo_desc *const *a = registry; name && *a; a++)
        if (strcmp((*a)->name, name) == 0)
            return *a;
    return NULL;
}
