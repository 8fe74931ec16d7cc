/*
 * Pages that arrive from a decode worker, chunk by chunk, for a request (PULLING) or for a prefetch. Engine thread.
 *
 * Nothing uses a page before the checker has compared it with the checksums that the decode worker keeps. The checker keeps these as
 * seals, so it reads the pages only once. A chunk that was found right enters the prefix tree and is moved to the device (device.c)
 * while later ones arrive. The first chunk that is wrong ends the prefix: later ones are not used even if they are right, and the
 * tokens from there on are computed, after PULLED, when no get writes to their pages any more.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "prefill/prefill_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

/* All chunks have come and were compared: the request computes the rest. */
static void end_pull(const sl_prefill *p, sl_prefill_job *j)
{
    if (j->engine.state != JOB_PULLING || !j->engine.all_here || j->engine.comparing)
        return;
    j->engine.prompt.start = j->engine.prompt.pos = j->engine.have * PAGE;
    j->engine.prompt.stop = sl_prefill_states_stop(p, j);
    sl_prefill_states_pulled(p, j);
    j->engine.state = JOB_READY;
}

/* Pages before `end` are here and right. */
static void usable(sl_prefill *p, sl_prefill_job *j, int32_t end)
{
    uint64_t tokens = (uint64_t)(end - j->engine.have) * PAGE;
    j->engine.have = end;
    p->pulled += tokens;
    sl_counter_add(p->c.reused_remote, tokens);
    if (!sl_prefill_snapshot(p) &&
        sl_schedule_publish(p, j, end * PAGE)) /* else they may be computed again, into the same pages */
        sl_prefill_move_early(p, j, end);
}

static bool compare(sl_prefill *p, sl_pull_chunk *c)
{
    sl_prefill_job *j = c->job;
    sl_check *k = sl_check_new(SL_CHECK_KEEP, j->own_pages + c->first, c->end - c->first, c);
    if (!k)
        return false;
    k->tag = CHECK_CHUNK;
    k->expect = c->crc;
    k->compare = true;
    j->engine.checks++;
    j->engine.comparing++;
    sl_checker_post(&p->role.checker, k);
    return true;
}

void sl_prefill_chunk(sl_prefill *p, sl_pull_chunk *c)
{
    sl_prefill_job *j = c->job;
    bool wanted = j->engine.state == JOB_PULLING;
    if (!j->prefetch && c->first >= j->at.pages) { /* a snapshot, which has a checksum of its own */
        j->engine.states.pulled = true;
        free(c);
        return;
    }
    if (wanted && !j->prefetch && !p->o.role.verify_checksums)
        usable(p, j, c->end);
    else if (wanted && compare(p, c))
        return;
    else if (j->prefetch)
        sl_prefill_prefetch_failed(p, j);
    free(c);
}

static void log_damage(sl_prefill *p, const sl_prefill_job *j, const sl_check *k)
{
    sl_counter_add(p->c.checksum, k->bad);
    sl_log(SL_LOG_WARN, "prefill", "pull_damaged", "rid=%016" PRIx64 " attempt=%u bad=%zu of=%zu", j->rid,
           j->attempt, k->bad, (size_t)k->n_pages * (size_t)p->geo->n_layers);
}

/* Chunks come back in their order. `sealed` says up to which page they were right. */
void sl_prefill_chunk_checked(sl_prefill *p, sl_check *k)
{
    sl_pull_chunk *c = k->owner;
    sl_prefill_job *j = c->job;
    bool follows = !k->bad && c->first == j->engine.sealed;
    j->engine.checks--;
    j->engine.comparing--;
    if (k->bad)
        log_damage(p, j, k);
    if (follows)
        j->engine.sealed = c->end;
    if (j->prefetch && k->bad)
        sl_prefill_prefetch_failed(p, j);
    else if (j->prefetch && follows)
        sl_prefill_prefetch_compared(p, j);
    else if (follows && j->engine.state == JOB_PULLING)
        usable(p, j, c->end);
    free(c);
    sl_check_free(k);
    if (j->prefetch) {
        sl_prefill_prefetch_let_go(p, j);
        return;
    }
    end_pull(p, j);
    sl_schedule_check_back(p, j);
}

void sl_prefill_pulled(sl_prefill *p, sl_prefill_job *j)
{
    j->engine.all_here = true;
    end_pull(p, j);
}
