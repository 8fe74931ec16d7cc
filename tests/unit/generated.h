/*
 * Pages of the documentation that the program generates: each is kept in the repository, and a test compares it with
 * what the program generates now.
 */
#ifndef TESTS_UNIT_GENERATED_H
#define TESTS_UNIT_GENERATED_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file at path must equal `want`, which is freed. With SL_UPDATE_REFERENCE in the environment it is written
 * first. */
static inline void check_generated(const char *path, char *want)
{
    ck_assert_ptr_nonnull(want);
    if (getenv("SL_UPDATE_REFERENCE")) {
        FILE *out = fopen(path, "w");
        ck_assert_ptr_nonnull(out);
        fputs(want, out);
        fclose(out);
    }
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s is missing", path);
    char *have = calloc(1, 1 << 20);
    size_t n = fread(have, 1, (1 << 20) - 1, f);
    fclose(f);
    ck_assert_msg(n == strlen(want) && !memcmp(have, want, n),
                  "%s is stale: run this test with SL_UPDATE_REFERENCE=1 from the repository root", path);
    free(have);
    free(want);
}

#endif
