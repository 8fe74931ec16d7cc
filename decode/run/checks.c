/*
 * What the checker answers, and damaged pages: pages of the store whose bytes differ from those that were sealed
 * (kvstore/seal.h). They are found on these occasions:
 *
 *   reused    RESERVE has matched pages of the prefix tree. They are verified while the rest of the prompt is computed
 *             and shipped; the ticket does not leave CHECKING before the answer
 *   running   the patrol verifies the full pages of running requests, one request after the other, at a bounded number
 *             of bytes per second: a process that can write into the arena can also damage pages that are in use. When a
 *             request has all its tokens they are verified a last time, before DONE
 *   fetched   a step has copied rows to the device that differ from their own checksums (kvstore/row_sums.h): found before any
 *             token of that step is sent
 *   others    a reader or an administrator has found them (decode/pages/)
 *
 * A damaged page leaves the prefix tree together with every page that continues it, and every request that holds it gives way
 * (DAMAGED). The patrol alone does not prevent that a request produces tokens from damaged rows; it limits for how long, and which
 * tokens are safe (decode/core/ticket.h).
 */
#include "decode/run/run_impl.h"

static const uint64_t MS = 1000000;
enum {
    PATROL_MS = 20,
    PATROL_RATE = 250 << 20 /* bytes per second: 2 to 3 % of what one core can read */
};

void sl_run_forget_sums(sl_run *r, const sl_lease *l, int32_t first)
{
    sl_row_sums *sums = r->role->checker.rows;
    if (sums)
        sl_row_sums_forget(sums, sl_lease_pages(l) + first, sl_lease_n_pages(l) - first);
}

/* Whether the page is of the snapshot after which t begins. */
static bool drop_prefix(const sl_ticket *t, int32_t page, int32_t *dropped)
{
    sl_lease *prefix = sl_run_of(t)->states.prefix;
    const int32_t i = prefix ? sl_lease_index_of(prefix, page) : -1;
    if (i >= 0)
        *dropped += sl_lease_drop(prefix, i);
    return i >= 0;
}

void sl_run_damaged(sl_run *r, int32_t page, int32_t dropped)
{
    uint64_t now = sl_now_ns();
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, ~0u));) {
        sl_lease *lease = sl_run_of(t)->lease;
        const int32_t i = lease ? sl_lease_index_of(lease, page) : -1;
        if (i < 0 && !drop_prefix(t, page, &dropped))
            continue;
        dropped += i < 0 ? 0 : sl_lease_drop(lease, i);
        sl_core_signal(&r->core, t, SL_ON_DAMAGED, now);
    }
    sl_log(SL_LOG_WARN, "decode", "page_damaged", "page=%d dropped=%d", page, dropped);
}

static void fetched(void *ctx, int32_t page)
{
    sl_run *r = ctx;
    r->st.damaged_fetched++;
    sl_run_damaged(r, page, 0);
}

void sl_run_fetched(sl_run *r)
{
    if (r->runner->damaged)
        r->runner->damaged(r->runner->impl, fetched, r);
}

/* running: found while the request ran, or at its end. */
static void count_damaged(sl_run *r, const sl_check *k, bool patrol)
{
    *(patrol ? &r->st.damaged_running : &r->st.damaged_reused) += (uint64_t)k->n_damaged;
}

static sl_ticket_job job_of(const sl_check *k)
{
    switch (k->what) {
    case SL_CHECK_KEEP:
        return SL_JOB_COMPARE;
    case SL_CHECK_VERIFY:
        return (sl_ticket_job)k->tag;
    case SL_CHECK_READ:
        return SL_JOB_READ;
    case SL_CHECK_SEAL:
        break;
    }
    return k->snapshot_tokens ? SL_JOB_STATES : SL_JOB_SEAL;
}

void sl_run_checked(sl_run *r, sl_check *k)
{
    sl_ticket *t = sl_tickets_number(&r->core.tickets, (uint64_t)(uintptr_t)k->owner);
    SL_CHECK(t, "a ticket has ended while the checker reads its pages");
    sl_ticket_event ev = {.kind = SL_ON_CHECKED, .now_ns = sl_now_ns()};
    bool ended = t->state == SL_TICKET_ENDING || t->state == SL_TICKET_QUARANTINE;
    ev.checked.job = job_of(k);
    if (ev.checked.job == SL_JOB_READ) /* answered in every state: the pages were pinned until now */
        sl_run_answer_pages(r, k->m, k->crc, ended ? 0 : k->n_crc);
    if (ev.checked.job == SL_JOB_COMPARE && k->bad && !ended) {
        r->st.corrupt++;
        r->st.checksums += k->bad;
    }
    if (ev.checked.job == SL_JOB_STATES)
        sl_answers_checked(r, t);
    ev.checked.bad = k->bad;
    ev.checked.of = (size_t)k->n_pages * (size_t)r->geo->n_layers;
    if (k->what == SL_CHECK_VERIFY) {
        r->patrolling &= ev.checked.job != SL_JOB_PATROL;
        ev.checked.damaged = k->n_damaged > 0;
        count_damaged(r, k, ev.checked.job != SL_JOB_VERIFY);
        for (int32_t i = 0; i < k->n_damaged; i++)
            sl_run_damaged(r, k->damaged[i], 0);
    }
    sl_core_event(&r->core, t, &ev);
    sl_check_free(k);
}

/* ---- the patrol ---- */

void sl_run_patrol_rate(sl_run *r, uint64_t bytes_per_s)
{
    r->patrol_bytes = (int64_t)((bytes_per_s ? bytes_per_s : PATROL_RATE) * PATROL_MS / 1000);
}

/* The running request that has not been verified for the longest time. */
static sl_ticket *next_to_patrol(const sl_run *r)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        if (sl_ticket_sealed(&r->core.env, t) && (!best || t->round.ns < best->round.ns))
            best = t;
    }
    return best;
}

uint64_t sl_run_patrol(sl_run *r, uint64_t now)
{
    if (!r->core.env.seals || !r->core.tickets.count[SL_TICKET_RUNNING] || r->patrolling)
        return UINT64_MAX;
    if (now < r->patrol_ns)
        return r->patrol_ns;
    sl_ticket *t = next_to_patrol(r);
    int64_t most = r->patrol_bytes / r->geo->page_bytes;
    sl_ticket_event ev = {.kind = SL_ON_PATROL, .now_ns = now, .patrol_most = most > 0 ? (int32_t)most : 1};
    r->patrol_ns = now + PATROL_MS * MS;
    if (t)
        sl_core_event(&r->core, t, &ev);
    return r->patrol_ns;
}
