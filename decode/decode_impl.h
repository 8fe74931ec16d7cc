/*
 * A decode worker as an aggregate of its owners. Requests and pages belong to the engine thread, connections to the
 * transport thread; check jobs go to the checker thread (worker/checker.h) by mail and come back. Each owner has its
 * header; no room touches what belongs to another one, except through the functions of that header.
 */
#ifndef SL_DECODE_DECODE_IMPL_H
#define SL_DECODE_DECODE_IMPL_H

#include "base/log.h"
#include "decode/decode.h"
#include "decode/link/link.h"
#include "decode/pages/pages.h"
#include "decode/report/report.h"
#include "decode/run/run.h"

struct sl_decode {
    /* constant once the worker core runs */
    sl_decode_opts o;
    const sl_geometry *geo;
    sl_worker *worker;

    sl_worker_role role; /* shared with prefill workers; its fields are grouped by thread as well */

    sl_run *run; /* engine thread, as the next one */
    sl_pages *pages;
    sl_link *link; /* transport thread */
    sl_report *report;
};

#endif
