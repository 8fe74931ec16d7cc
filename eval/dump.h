/*
 * Selected lists, written to a file for studies of strategies: what every decode step selected in every layer and list, with the share of
 * attention of each selected unit. docs/examples/read_lists.py reads it.
 *
 * Little-endian. The text "sluice-lists 2\n", then records: u32 bytes of the payload, u32 kind, payload.
 *
 *   kind 1   an answer or a window begins: JSON text with task, document, algorithm, budget, length
 *   kind 2   a list: i32 layer, list, position of the query, tokens of a unit, n; f64 mass; i32 ids[n], f32 shares[n], f32 scores[n]. An id
 *            is the number of a unit, its first token is id * tokens. shares: of the attention of the query heads that share the list,
 *            their mean; mass: their sum. scores: those by which the strategy selected; NaN where there is none, because the
 *            strategy does not select by scores of these units, or reads the unit in any case.
 *
 * The caller owns the file. One thread. Errors of writing stay in the file (ferror).
 */
#ifndef SL_EVAL_DUMP_H
#define SL_EVAL_DUMP_H

#include <stdint.h>
#include <stdio.h>

typedef struct sl_eval_dump_list {
    int32_t layer, list, position, unit_tokens, n;
    double mass;
    const int32_t *ids;           /* [n] */
    const float *shares, *scores; /* [n] */
} sl_eval_dump_list;

void sl_eval_dump_begin(FILE *to);
void sl_eval_dump_answer(FILE *to, const char *task, int32_t document, const char *algorithm, int32_t budget,
                         int32_t length);
void sl_eval_dump_one(FILE *to, const sl_eval_dump_list *l);

#endif
