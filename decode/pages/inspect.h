/*
 * Inspection: answers CACHE_ASK, with which an administrator looks into the cache of this worker (`sluice cache`, docs/api.md).
 *
 * A list is told in parts. The worker keeps nothing between two of them: the cursor says where the next one begins, the
 * place (0: host memory, i + 1: tier i) in its upper byte and the position there in the others. The work for one part is
 * bounded, so a part can be empty before the end. Jobs that read or remove pages are in audit.c.
 */
#ifndef SL_DECODE_PAGES_INSPECT_H
#define SL_DECODE_PAGES_INSPECT_H

#include "decode/pages/audit.h"

/* Answers m, a CACHE_ASK. */
void sl_inspect_ask(const sl_pages_env *e, sl_audit *audit, const sl_wmsg *m);

#endif
