/*
 * The tier "workers": other decode workers, whose pages this one reads (pull.h), joined to the threads of the worker.
 */
#ifndef SL_DECODE_PAGES_WORKERS_H
#define SL_DECODE_PAGES_WORKERS_H

#include "decode/pages/env.h"

typedef struct sl_workers {
    const sl_pages_env *e;
    sl_tier *tier;             /* belongs to the cascade; NULL: there is none */
    sl_pull_rate prefill_rate; /* tokens per second, from RESERVED to COMMIT (pull_cost.h) */
} sl_workers;

/* Adds the tier to those of the options: after the disk, whose use costs no other worker anything, and before shared stores. */
sl_status sl_workers_open(sl_workers *w, const sl_pages_env *e, sl_pages_opts *o, sl_err *err);
/* A prompt became complete: this number of its tokens was computed in this time. */
void sl_workers_prompt_took(sl_workers *w, int64_t tokens, uint64_t ns);

#endif
