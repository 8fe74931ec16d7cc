/*
 * The program `sluice` with one more model family, toy_layers, for end-to-end tests of models that keep states (the tests write
 * its checkpoint). Before main begins, the family is added as one of the registry. Its arithmetic takes no time, so a step pauses
 * for a millisecond: a test can kill a worker in the middle of a stream.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/steps.h"
#include "tests/unit/engine/toy_family.h"

enum { STEPS = 8 };

static sl_status pause_once(sl_pass *p)
{
    if (!p->dry && p->layer == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return SL_OK;
}

static sl_family family;
static sl_layer_step steps[STEPS + 1];

__attribute__((constructor)) static void add(void)
{
    family = toy_family;
    if (family.n_steps > STEPS)
        abort();
    steps[0] = (sl_layer_step){"pause", NULL, pause_once};
    memcpy(steps + 1, family.steps, (size_t)family.n_steps * sizeof *steps);
    family.steps = steps;
    family.n_steps++;
    if (sl_family_add(&family) != SL_OK)
        abort();
}
