/* Names of the formats and policies of kernels/params.h; see cache.h. A new one is a row of its table. */
#include "kernels/cache.h"

#include <string.h>

static const sl_row_format_desc rows[] = {
    {"mla_f32", "latent and RoPE part as float32", SL_ROW_MLA_F32},
    {"mla_bf16", "latent and RoPE part as bf16", SL_ROW_MLA_BF16},
    {"mla_fp8", "latent as e4m3 with a power-of-two scale per 128 values, RoPE part as bf16", SL_ROW_MLA_FP8},
};
static const char *const row_names[] = {"mla_f32", "mla_bf16", "mla_fp8", NULL};

static const sl_index_format_desc indexes[] = {
    {"plain", "float32 keys and scores, no Hadamard transform", SL_INDEX_PLAIN},
    {"official", "Hadamard transform, then e4m3 with a power-of-two scale per key", SL_INDEX_OFFICIAL},
};
static const char *const index_names[] = {"plain", "official", NULL};

static const sl_evict_policy_desc policies[] = {
    {"lru", "the least recently used row", SL_EVICT_LRU},
    {"clock", "the next row, in a circle, that was not used since the hand last passed it", SL_EVICT_CLOCK},
};
static const char *const policy_names[] = {"lru", "clock", NULL};

/* A registry is three functions over a table and its list of names; tests/unit/kernels/test_cache.c checks that the two
 * agree. */
#define REGISTRY(type, table, names, field, enumeration)                                                     \
    const type##_desc *type##_find(const char *name)                                                         \
    {                                                                                                        \
        for (size_t i = 0; name && i < SL_COUNT(table); i++)                                                 \
            if (strcmp(table[i].name, name) == 0)                                                            \
                return &table[i];                                                                            \
        return NULL;                                                                                         \
    }                                                                                                        \
    const char *const *type##_names(void)                                                                    \
    {                                                                                                        \
        return names;                                                                                        \
    }                                                                                                        \
    const char *type##_name(enumeration v)                                                                   \
    {                                                                                                        \
        for (size_t i = 0; i < SL_COUNT(table); i++)                                                         \
            if (table[i].field == v)                                                                         \
                return table[i].name;                                                                        \
        return "?";                                                                                          \
    }

REGISTRY(sl_row_format, rows, row_names, format, sl_row_format)
REGISTRY(sl_index_format, indexes, index_names, format, sl_index_format)
REGISTRY(sl_evict_policy, policies, policy_names, policy, sl_evict_policy)
