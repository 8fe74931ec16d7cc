/*
 * What a benchmark draws in place of what a model would decide: bench.selection names how much of a selection stays from step to
 * step, and after it how often drafts stand, because random weights say nothing about either.
 *
 *     keep85                     selections alone
 *     keep85/0.85/0.68/0.50      the first draft stands in 85 % of the steps, the first two in 68 %, the first three in 50 %
 *     off/0.85                   drafts alone
 *
 * Plain functions; any thread.
 */
#ifndef SL_BASE_DRAWN_H
#define SL_BASE_DRAWN_H

#include <stdbool.h>

#include "base/status.h"

enum { SL_DRAWN_DRAFTS = 4 };

typedef struct sl_drawn {
    char profile[32];               /* "off": selections are the model's */
    bool drafts;                    /* that drafts stand is drawn: */
    double accept[SL_DRAWN_DRAFTS]; /* the part of the steps in which at least the first k + 1 stand */
} sl_drawn;

/* Numbers from 1 to 0 that do not rise, at most SL_DRAWN_DRAFTS of them; those that are left out are 0. SL_ERR_INVALID: the whole
 * text is not such a list, with `between` after each but the last. */
sl_status sl_drawn_accept(const char *text, char between, double accept[SL_DRAWN_DRAFTS], sl_err *err);

/* The value of bench.selection. Whether the profile exists is not looked at. SL_ERR_INVALID names the key. */
sl_status sl_drawn_parse(const char *text, sl_drawn *out, sl_err *err);

/* Of n drafts, how many stand in a step for which u was drawn from [0, 1). */
int sl_drawn_standing(const double accept[SL_DRAWN_DRAFTS], int n, double u);

#endif
