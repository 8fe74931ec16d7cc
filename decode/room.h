/*
 * Room: whether a decode worker takes a new prompt. A pure function, because the simulator decides by it as well.
 */
#ifndef SL_DECODE_ROOM_H
#define SL_DECODE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

/*
 * missing: the pages of the prompt that are not in the prefix tree; n_running: requests that produce tokens; available: pages
 * that can be allocated; n_tickets: requests that hold pages. Counts one more page for every running request, which will need
 * it soon: without this margin the new prompt would cause a retraction. A worker without requests takes every prompt.
 */
static inline bool sl_decode_has_room(int32_t missing, int32_t n_running, int32_t available,
                                      int32_t n_tickets)
{
    return missing + n_running <= available || !n_tickets;
}

#endif
