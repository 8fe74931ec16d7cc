/*
 * What the engine thread did between the tokens of two steps. When tokens go out late after their step has ended, the log says
 * what took the time (ev=late_tokens), at most once a second. The engine thread's.
 */
#ifndef SL_DECODE_RUN_LAPS_H
#define SL_DECODE_RUN_LAPS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    SL_LAP_OTHER, /* mail, deadlines, reports, and what follows the tokens of the step before */
    SL_LAP_ADMIT,
    SL_LAP_PAGES,
    SL_LAP_ITEMS,
    SL_LAP_SUBMIT,
    SL_LAP_WAIT, /* for the device */
    SL_LAP_RESULTS,
    SL_LAPS
} sl_lap;

typedef struct sl_laps { /* all zero: none */
    uint64_t at_ns, ns[SL_LAPS], logged_ns;
} sl_laps;

/* What was done since the last mark was `lap`. */
void sl_laps_mark(sl_laps *l, sl_lap lap);
/* Whether tokens that were sent at the last mark, of a step that ended at ended_ns, are logged as late. */
bool sl_laps_late(const sl_laps *l, uint64_t ended_ns);
/* The tokens of the step that ended at ended_ns were sent; the laps of the next one begin. */
void sl_laps_sent(sl_laps *l, uint64_t ended_ns);

#endif
