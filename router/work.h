/*
 * What the loop did in a turn, by name: so that a turn which was too long says what it was long with.
 *
 * At every moment one kind of work is being done; entering another one ends it, and returns its name, so that a function whose caller
 * did something can go back to that. Names are static strings, compared by address. Times are wall times, because reading a thread's
 * processor time is a system call; run.c asks only about turns whose processor time was long.
 *
 * Threads: the loop's thread.
 */
#ifndef SL_ROUTER_WORK_H
#define SL_ROUTER_WORK_H

#include <stdint.h>

enum { SL_WORK_KINDS = 24 }; /* of a turn; what is entered when there are as many counts for the last one */

typedef struct sl_work {
    struct {
        const char *name;
        uint64_t ns;
    } at[SL_WORK_KINDS];
    unsigned n;
    const char *now; /* NULL: nothing */
    uint64_t since_ns;
} sl_work;

/* Ends what is being done, begins `name` (NULL: nothing), and returns what was done before. */
const char *sl_work_enter(sl_work *w, const char *name, uint64_t now_ns);
/* Takes the time that the loop slept from that of `name`. */
void sl_work_slept(sl_work *w, const char *name, uint64_t ns);
/* The name with most time among what has ended, and that time; "" and 0 when there was none. */
const char *sl_work_most(const sl_work *w, uint64_t *ns);
/* Forgets all times; what is being done begins at now_ns. */
void sl_work_reset(sl_work *w, uint64_t now_ns);

#endif
