/*
 * The flags of commands for the options of sparse algorithms, made from the tables of the registry: --token-budget for
 * token_budget, with the text of the algorithms that read it. Plain values; main thread.
 */
#ifndef SL_LOCAL_SELECTION_H
#define SL_LOCAL_SELECTION_H

#include "base/args.h"
#include "sparse/algorithm.h"

enum { SL_LOCAL_FLAGS = 160 };

typedef struct sl_local_selection {
    int n;
    const sl_option *option[SL_LOCAL_FLAGS]; /* of the first algorithm that has it */
    const char *text[SL_LOCAL_FLAGS];        /* what the flag was given; NULL: nothing */
    char name[SL_LOCAL_FLAGS][80], help[SL_LOCAL_FLAGS][640];
} sl_local_selection;

/* One flag for every key of the registry, none given. */
void sl_local_selection_init(sl_local_selection *s);
/* Copies a command's flags and adds these. One that the command has already gets the name of its algorithm in front:
 * --sampled-seed. all: [n + SL_LOCAL_FLAGS]. Returns their number. `s` stays where it is. */
size_t sl_local_selection_args(sl_local_selection *s, const sl_arg *args, size_t n, sl_arg *all);
/* Whether the flag of this option was given. */
bool sl_local_selection_given(const sl_local_selection *s, const char *option);
/*
 * The options of an algorithm: its defaults, and what the flags say. values: [SL_SELECT_BYTES]. SL_ERR_INVALID names the
 * flag: a value that cannot be, or with `strict` a flag that the algorithm does not read.
 */
sl_status sl_local_selection_options(const sl_local_selection *s, const sl_algo_desc *algorithm, bool strict,
                                     void *values, sl_err *err);

#endif
