/* The load that a prefill worker reports in its heartbeat. Engine thread. */
#include "prefill/prefill_impl.h"

void sl_prefill_load_publish(sl_prefill *p)
{
    sl_worker_report now = {0};
    for (const sl_prefill_job *j = p->jobs; j; j = j->engine.next) {
        if (j->engine.state == JOB_QUEUED)
            now.waiting++;
        else if (j->engine.state != JOB_STOPPED)
            now.running++;
        size_t theirs = (size_t)j->msg->matched_pages * SL_PAGE_TOKENS, done = (size_t)j->engine.prompt.pos;
        size_t have = done > theirs ? done : theirs; /* what the decode worker has is not computed */
        if (j->engine.state != JOB_STOPPED && have < j->msg->n_tokens)
            now.queued_tokens += j->msg->n_tokens - have;
    }
    sl_worker_role_report(&p->role, &now);
    sl_gauge_set(p->c.running, now.running);
    sl_gauge_set(p->c.waiting, now.waiting);
}
