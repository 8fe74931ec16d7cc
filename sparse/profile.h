/*
 * Profiles of drawn selections, for benchmarks (sl_coord_draw in sparse/sparse.h): how much of a layer's selection the next step
 * selects again. With random weights a selection says nothing, so its change from step to step, on which the rows to fetch depend,
 * is given. Plain functions; any thread.
 */
#ifndef SL_SPARSE_PROFILE_H
#define SL_SPARSE_PROFILE_H

#include <stdint.h>

typedef enum {
    SL_PROFILE_KEEP85,  /* 85 % of every list stay */
    SL_PROFILE_LAYERED, /* by layer, as published for DeepSeek-V3.2 */
    SL_PROFILE_RANDOM,  /* nothing stays but by chance */
    SL_PROFILE_KEEP70,
    SL_PROFILE_KEEP95,
    SL_PROFILE_KEEP98,
} sl_profile;

/* By value of sl_profile; NULL-terminated. */
const char *const *sl_coord_profile_names(void);
/* -1: there is none of this name. */
int sl_coord_profile_find(const char *name);
/* The part of a layer's list that stays, in units of 1/65536, as sl_coord_draw.keep. */
uint32_t sl_coord_profile_keep(sl_profile p, int32_t layer, int32_t layers);

#endif
