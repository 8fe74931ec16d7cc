/*
 * Steps in flight: their memory, their order, and when the device and the host had done with them. Only flight.c knows it; the
 * parts of a step (step.c, sampling.c) get the one sl_flight that they work on. Internal to the engine; sl_engine_submit() and
 * sl_engine_collect() are in engine.h.
 */
#ifndef SL_ENGINE_FLIGHT_H
#define SL_ENGINE_FLIGHT_H

#include "engine/engine_impl.h"

/* After sl_choices_init(). */
sl_status sl_flights_init(sl_engine *e, sl_err *err);
void sl_flights_fini(sl_engine *e);
/* The memory of a step for work that is none: drafts, steps of padding. No step is in flight. */
sl_flight *sl_flights_spare(sl_engine *e);

#endif
