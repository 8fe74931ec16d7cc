/*
 * Attempts that have ended, the latest of them: a second PREFILL for one of them would write into pages of other requests. past.c alone
 * writes it. Threads: the transport thread.
 */
#ifndef SL_PREFILL_PAST_H
#define SL_PREFILL_PAST_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_PAST_ATTEMPTS = 1024 };

/* Zero: none has ended. */
typedef struct sl_past {
    struct {
        uint64_t rid;
        uint32_t attempt, router;
    } of[SL_PAST_ATTEMPTS];
    uint32_t n, next; /* how many there are, and the place of the next one */
} sl_past;

/* Beyond SL_PAST_ATTEMPTS the oldest one is forgotten. */
void sl_past_add(sl_past *p, uint32_t router, uint64_t rid, uint32_t attempt);
bool sl_past_has(const sl_past *p, uint32_t router, uint64_t rid, uint32_t attempt);

#endif
