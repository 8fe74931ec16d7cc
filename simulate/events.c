/* See events.h. */
#include "simulate/events.h"

#include <stdlib.h>

#include "base/status.h"

static bool before(const sl_sim_event *a, const sl_sim_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void sl_sim_events_add(sl_sim_events *q, uint64_t at_ns, sl_sim_event_fn *fn, void *arg, uint64_t number)
{
    if (q->n == q->cap) {
        q->cap = q->cap ? 2 * q->cap : 256;
        q->heap = realloc(q->heap, q->cap * sizeof *q->heap);
        SL_CHECK(q->heap, "out of memory for %zu events", q->cap);
    }
    sl_sim_event e = {at_ns, q->order++, fn, arg, number};
    size_t i = q->n++;
    for (; i && before(&e, &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        q->heap[i] = q->heap[(i - 1) / 2];
    q->heap[i] = e;
}

bool sl_sim_events_take(sl_sim_events *q, sl_sim_event *out)
{
    if (!q->n)
        return false;
    *out = q->heap[0];
    sl_sim_event last = q->heap[--q->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < q->n; i = child) {
        child += child + 1 < q->n && before(&q->heap[child + 1], &q->heap[child]);
        if (!before(&q->heap[child], &last))
            break;
        q->heap[i] = q->heap[child];
    }
    q->heap[i] = last;
    return true;
}

void sl_sim_events_free(sl_sim_events *q)
{
    free(q->heap);
    *q = (sl_sim_events){0};
}
