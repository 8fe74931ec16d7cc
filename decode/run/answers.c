/*
 * Snapshots of states (kvstore/snapshot.h) while a request decodes: at ends of pages among the tokens that it has
 * generated, so that the next turn of the conversation, or the same request after it gave way or its worker died, does
 * not compute the answer again.
 *
 * A request has one place for a snapshot. Where a page has become full, sl_snapshot_pace() pages after the last one, the next step
 * copies the states to that place before it appends anything: the copies follow the step before on the device, so no thread waits for
 * them, and with two steps in flight they have the states of exactly these tokens. All of these are tokens that the request has: an item
 * begins after what stands, and where drafts have gone beyond the end of the page the engine has the states there as a version.
 * When that step is collected the checker writes the record with its checksums (SL_JOB_STATES).
 *
 * A snapshot enters the tree with the rows before it: after the same clean round. One that is sl_snapshot_distance() pages after the last
 * one in the tree enters as soon as it may and leaves the place to the next; any other is replaced by the next one, and enters when
 * the request ends, however it ends. So the newest one is kept, and few others.
 *
 * Places are taken while pages can be allocated, and are given back when a request needs pages: they count as available. A
 * step makes few snapshots, those of the requests first whose last one is oldest; the others make theirs at the end of their next page.
 */
#include "decode/run/run_impl.h"

enum { PAGE = SL_PAGE_TOKENS, PER_STEP = 2, OF_BATCH = 16, UNUSED = 2 /* pages of each running request */ };

static sl_run_answer *answer_of(const sl_ticket *t)
{
    return &sl_run_of(t)->answer;
}

/* Full pages at whose end the sequence is, or which its last step has gone beyond, when an item begins with this row. */
static int32_t pages_at(const sl_run_part *p)
{
    return p->first / PAGE;
}

static bool busy(const sl_run_answer *a)
{
    return a->state == SL_ANSWER_COPIED || a->state == SL_ANSWER_CHECKED;
}

/* Whether what is in the place stays there until it is in the tree. */
static bool stays(const sl_run *r, const sl_run_answer *a)
{
    return a->state == SL_ANSWER_MADE && a->pages - a->kept >= sl_snapshot_distance(r->snapshot);
}

void sl_answers_begin(const sl_ticket *t)
{
    sl_run_answer *a = answer_of(t);
    a->saved = a->kept = (t->n_tokens - 2) / PAGE; /* where its prompt has one: it had one token less */
}

/* ---- a step ---- */

static bool due(const sl_run *r, const sl_ticket *t, const sl_run_part *p)
{
    const sl_run_answer *a = answer_of(t);
    return pages_at(p) - a->saved >= sl_snapshot_pace(r->snapshot) && !busy(a) && !stays(r, a) &&
           sl_runner_public(r->runner, t->n_prompt, p->first) == p->first &&
           r->runner->keeps(r->runner->impl, sl_run_of(t)->seq, pages_at(p) * PAGE);
}

/* The request of the step whose last snapshot is oldest; -1: none is due. */
static int32_t next_due(const sl_run *r, const sl_run_flight *f)
{
    int32_t best = -1, longest = 0;
    for (int32_t i = 0; i < f->decoding; i++) {
        const sl_run_part *p = &f->parts[i];
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, p->number);
        const int32_t since = p->saves ? 0 : pages_at(p) - answer_of(t)->saved;
        if (since > longest && due(r, t, p))
            best = i, longest = since;
    }
    return best;
}

/* False: there are no pages for it now. */
static bool has_place(sl_run *r, const sl_ticket *t)
{
    sl_run_answer *a = answer_of(t);
    const sl_msg_reserve *m = &sl_run_of(t)->m->msg.reserve;
    sl_store *store = r->role->store;
    if (a->lease)
        return true;
    if (sl_store_available(store) < r->snapshot + UNUSED * r->core.tickets.count[SL_TICKET_RUNNING])
        return false;
    return sl_snapshot_room(store, r->snapshot, m->tenant, m->seed, &a->lease) == SL_OK;
}

void sl_answers_put(sl_run *r, sl_run_flight *f)
{
    int32_t i = -1;
    for (int32_t n = 0; r->snapshot && n < PER_STEP + f->decoding / OF_BATCH && (i = next_due(r, f)) >= 0;
         n++) {
        const sl_ticket *t = sl_tickets_number(&r->core.tickets, f->parts[i].number);
        sl_run_answer *a = answer_of(t);
        a->saved = pages_at(&f->parts[i]); /* or given up, until the next one is due */
        if (!has_place(r, t))
            continue;
        a->pages = a->saved;
        a->state = SL_ANSWER_COPIED;
        f->parts[i].saves = true;
        f->items[i].save = (sl_step_save){a->pages * PAGE, sl_lease_pages(a->lease)};
    }
}

void sl_answers_stepped(sl_run *r, const sl_run_flight *f)
{
    sl_ticket_event ev = {.kind = SL_ON_SAVED, .now_ns = sl_now_ns()};
    for (int32_t i = 0; i < f->decoding; i++)
        if (f->parts[i].saves)
            sl_core_event_to(&r->core, f->parts[i].number, &ev);
}

sl_check *sl_answers_check(const sl_run *r, const sl_ticket *t)
{
    sl_run_answer *a = answer_of(t);
    sl_check *k =
        sl_check_new(SL_CHECK_SEAL, sl_lease_pages(a->lease), r->snapshot, (void *)(uintptr_t)t->number);
    a->state = k ? SL_ANSWER_CHECKED : SL_ANSWER_NONE;
    if (!k)
        return NULL;
    k->snapshot_tokens = a->pages * PAGE;
    k->snapshot_key = sl_snapshot_key(sl_run_of(t)->m->msg.reserve.seed, t->tokens, k->snapshot_tokens);
    return k;
}

void sl_answers_checked(sl_run *r, const sl_ticket *t)
{
    answer_of(t)->state = SL_ANSWER_MADE;
    r->st.snapshots[SL_SNAPSHOT_MADE]++;
}

/* ---- the tree ---- */

static bool may_enter(const sl_run *r, const sl_ticket *t, int32_t rows)
{
    const sl_run_answer *a = answer_of(t);
    return a->state == SL_ANSWER_MADE && a->pages * PAGE <= sl_runner_public(r->runner, t->n_prompt, rows);
}

static void enter(sl_run *r, const sl_ticket *t)
{
    sl_run_answer *a = answer_of(t);
    r->st.snapshots[SL_SNAPSHOT_KEPT] +=
        sl_snapshot_publish(a->lease, sl_run_of(t)->lease, t->tokens, a->pages * PAGE);
    a->lease = NULL;
    a->state = SL_ANSWER_NONE;
    a->kept = a->pages;
}

void sl_answers_publish(sl_run *r, const sl_ticket *t, int32_t rows)
{
    if (stays(r, answer_of(t)) && may_enter(r, t, rows))
        enter(r, t);
}

void sl_answers_done(sl_run *r, const sl_ticket *t)
{
    if (!r->core.holds && may_enter(r, t, t->published))
        enter(r, t);
}

void sl_answers_release(sl_run *r, const sl_ticket *t)
{
    sl_run_answer *a = answer_of(t);
    if (may_enter(r, t, t->published))
        enter(r, t);
    sl_lease_release(a->lease, false);
    *a = (sl_run_answer){0};
}

/* ---- pages for others ---- */

static bool can_give(const sl_ticket *t)
{
    return answer_of(t)->lease && !busy(answer_of(t));
}

int32_t sl_answers_spare(const sl_run *r)
{
    int32_t n = 0;
    for (sl_ticket *t = NULL; r->snapshot && (t = sl_tickets_next(&r->core.tickets, t, ~0u));)
        n += can_give(t) ? r->snapshot : 0;
    return n;
}

bool sl_answers_give(sl_run *r)
{
    for (sl_ticket *t = NULL; r->snapshot && (t = sl_tickets_next(&r->core.tickets, t, ~0u));) {
        sl_run_answer *a = answer_of(t);
        if (!can_give(t))
            continue;
        sl_lease_release(a->lease, false);
        a->lease = NULL;
        a->state = SL_ANSWER_NONE;
        return true;
    }
    return false;
}
