/* Where tests find llguidance: $SL_LLGUIDANCE, or the Python package in .venv. */
#ifndef SL_TESTS_UNIT_LLGUIDANCE_H
#define SL_TESTS_UNIT_LLGUIDANCE_H

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

/* NULL: the environment names it, or there is none. */
static inline const char *llguidance_library(void)
{
    static char path[512];
    glob_t found;
    if (getenv("SL_LLGUIDANCE"))
        return NULL;
    if (!path[0] && glob(".venv/lib/python3*/site-packages/llguidance/_lib*.so", 0, NULL, &found) == 0) {
        snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
        globfree(&found);
    }
    return path[0] ? path : NULL;
}

#endif
