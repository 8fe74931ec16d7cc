/*
 * Rows: metrics as data. A row says which series a number of a structure is, and where the number lies; from the rows of a table
 * come the series that exist and what they show. base/metrics_table.c says whether a name is a counter, which grows with its
 * number (uint64_t), or a gauge.
 *
 *     static const sl_series_row rows[] = {
 *         SL_SERIES(numbers, pages.pull.asks, "sluice_pull_asks_total"),
 *         SL_SERIES(numbers, pages.lend.granted, "sluice_lend_leases_total", "granted"),
 *         SL_SERIES_EACH(tier_numbers, cascade.misses, "sluice_tier_miss_pages_total", sl_cascade_miss_names, "@0"),
 *     };
 *     sl_series_open(&r, metrics, rows, SL_COUNT(rows), SL_LABELS(tier_name));
 *     sl_series_show(&r, &now);
 *
 * The label "@0" stands for the first of the names that are given when the table is opened, "@1" for the second one.
 * Two rows may name the same counter, which then shows their sum.
 *
 * One thread.
 */
#ifndef SL_DECODE_REPORT_ROWS_H
#define SL_DECODE_REPORT_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/metrics.h"

typedef enum { SL_SERIES_U64, SL_SERIES_I64, SL_SERIES_I32, SL_SERIES_F64 } sl_series_type;

enum { SL_SERIES_LABELS = 3 };

typedef struct sl_series_row {
    const char *name;
    sl_series_type type;
    size_t at; /* offset of the number, or of the first of `each` */
    /* NULL: one number; else an array of them, whose last label is each of these names */
    const char *const *each;
    int n; /* numbers */
    const char *label[SL_SERIES_LABELS + 1];
} sl_series_row;

/* clang-format off */
#define SL_SERIES_TYPE(value) \
    _Generic((value), uint64_t: SL_SERIES_U64, int64_t: SL_SERIES_I64, int32_t: SL_SERIES_I32, double: SL_SERIES_F64)
/* clang-format on */

/* The series `name` with these labels is the field of the structure of the type T. */
#define SL_SERIES(T, field, name_, ...)                                                                      \
    {                                                                                                        \
        .name = (name_), .type = SL_SERIES_TYPE(((T *)0)->field), .at = offsetof(T, field), .n = 1,          \
        .label = {                                                                                           \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
/* Each element of the array `field` has one more label, names[i]. */
#define SL_SERIES_EACH(T, field, name_, names, ...)                                                          \
    {                                                                                                        \
        .name = (name_), .type = SL_SERIES_TYPE(((T *)0)->field[0]), .at = offsetof(T, field),               \
        .each = (names), .n = (int)(sizeof(((T *)0)->field) / sizeof(((T *)0)->field[0])), .label = {        \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

typedef struct sl_series_list sl_series_list;

/* names: as SL_LABELS(), NULL: none; copied into the series. *out NULL when m is NULL: there is nothing to show. */
sl_status sl_series_open(sl_metrics *m, const sl_series_row *rows, size_t n, const char *const *names,
                         sl_series_list **out, sl_err *err);
void sl_series_close(sl_series_list *r);
/* numbers: the structure that the rows are about. r may be NULL. */
void sl_series_show(sl_series_list *r, const void *numbers);

#endif
