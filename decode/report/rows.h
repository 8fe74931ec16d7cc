/*
 * Rows: metrics as data. A row says which series a number of a structure is, and where the number lies; from the rows of a table
 * come the series that exist and what they show. base/metrics_table.c says whether a name is a counter, which grows with its
 * number (uint64_t), or a gauge.
 *
 *     static const sl_row rows[] = {
 *         SL_ROW(numbers, pages.pull.asks, "sluice_pull_asks_total"),
 *         SL_ROW(numbers, pages.lend.granted, "sluice_lend_leases_total", "granted"),
 *         SL_ROW_EACH(tier_numbers, cascade.misses, "sluice_tier_miss_pages_total", sl_cascade_miss_names, "@0"),
 *     };
 *     sl_rows_open(&r, metrics, rows, SL_COUNT(rows), SL_LABELS(tier_name));
 *     sl_rows_show(&r, &now);
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

typedef enum { SL_ROW_U64, SL_ROW_I64, SL_ROW_I32, SL_ROW_F64 } sl_row_type;

enum { SL_ROW_LABELS = 3 };

typedef struct sl_row {
    const char *name;
    sl_row_type type;
    size_t at; /* offset of the number, or of the first of `each` */
    /* NULL: one number; else an array of them, whose last label is each of these names */
    const char *const *each;
    int n; /* numbers */
    const char *label[SL_ROW_LABELS + 1];
} sl_row;

#define SL_ROW_TYPE(value)                                                                                   \
    _Generic((value), uint64_t : SL_ROW_U64, int64_t : SL_ROW_I64, int32_t : SL_ROW_I32, double : SL_ROW_F64)

/* The series `name` with these labels is the field of the structure of the type T. */
#define SL_ROW(T, field, name_, ...)                                                                         \
    {                                                                                                        \
        .name = (name_), .type = SL_ROW_TYPE(((T *)0)->field), .at = offsetof(T, field), .n = 1, .label = {  \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
/* Each element of the array `field` has one more label, names[i]. */
#define SL_ROW_EACH(T, field, name_, names, ...)                                                             \
    {                                                                                                        \
        .name = (name_), .type = SL_ROW_TYPE(((T *)0)->field[0]), .at = offsetof(T, field), .each = (names), \
        .n = (int)(sizeof(((T *)0)->field) / sizeof(((T *)0)->field[0])), .label = {                         \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

typedef struct sl_rows sl_rows;

/* names: as SL_LABELS(), NULL: none; copied into the series. *out NULL when m is NULL: there is nothing to show. */
sl_status sl_rows_open(sl_metrics *m, const sl_row *rows, size_t n, const char *const *names, sl_rows **out,
                       sl_err *err);
void sl_rows_close(sl_rows *r);
/* numbers: the structure that the rows are about. r may be NULL. */
void sl_rows_show(sl_rows *r, const void *numbers);

#endif
