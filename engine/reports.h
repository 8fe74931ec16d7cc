/*
 * Calls sl_step_hooks.layer_done for the layers of a step, in order, as soon as their rows are in the host pages. Only reports.c knows how
 * far the device and the calls are: after a layer's work an event is recorded, on a backend that computes later. Internal to the engine;
 * threads: its own.
 */
#ifndef SL_ENGINE_REPORTS_H
#define SL_ENGINE_REPORTS_H

#include "engine/engine.h"

typedef struct sl_reports sl_reports;

sl_status sl_reports_create(sl_backend *be, int32_t n_layers, sl_reports **out, sl_err *err);
void sl_reports_destroy(sl_reports *r); /* NULL: nothing */
/* The hooks of the steps from now on; NULL: none. */
void sl_reports_hooks(sl_reports *r, const sl_step_hooks *hooks);
/* A pass begins: none of its layers is enqueued. */
void sl_reports_begin(sl_reports *r);
/* What the layers below n write to the host pages has been enqueued. Reports those that are complete. */
sl_status sl_reports_enqueued(sl_reports *r, int32_t n, sl_err *err);
/* Waits for the layers that were enqueued, and reports the rest. */
sl_status sl_reports_finish(sl_reports *r, sl_err *err);

#endif
