/*
 * Shared by the tests of the tokenizer (test_tokenizer, test_tokenizer_threads): loading a file, and a hash by which
 * sequences of ids are compared.
 */
#ifndef TESTS_UNIT_MODEL_TOKENIZER_TOOLS_H
#define TESTS_UNIT_MODEL_TOKENIZER_TOOLS_H

#include <check.h>
#include <stddef.h>
#include <stdint.h>

#include "model/tokenizer.h"

#define TINY "models/tiny-v32"
#define FNV_START 0xCBF29CE484222325ull

/* The caller destroys the result. */
static inline sl_tokenizer *load(const char *path)
{
    sl_tokenizer *t;
    sl_err err = {{0}};
    sl_status st = sl_tokenizer_load(path, &t, &err);
    ck_assert_msg(st == SL_OK, "%s: %s", path, err.text);
    return t;
}

/* FNV-1a of the data, continued from h (FNV_START at first). */
static inline uint64_t fnv(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001B3ull;
    return h;
}

#endif
