/*
 * The table at the head of decode/core/ticket.h is what the step function does: every pair of a state and an event is generated from
 * the table's own text, with a ticket that was brought into the state by events, with and without jobs in flight.
 */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "decode/core/ticket.h"
#include "kernels/params.h"
#include "tests/unit/run_suite.h"

enum { PAGE = SL_PAGE_TOKENS, WRITER = 5, TOKENS = 2 * PAGE + 3, CELL = 24, NOW = 1000 };

static const char *const events[SL_ON_EVENTS] = {
    "LOAD",     "GRANTED", "REFUSED", "COMMIT", "PAGES_ASK", "STEP",    "STEPPED", "SAVED",
    "COMPUTED", "CHECKED", "JOINED",  "TOKENS", "PATROL",    "RETRACT", "DAMAGED", "FAILED",
    "UNDONE",   "ABORT",   "DRAINED", "FENCED", "LOST",      "DEADLINE"};
static const char *const states[SL_TICKET_STATES] = {"ASKED",      "LOADING", "LANDING", "PROMPT",
                                                     "CHECKING",   "WAITING", "RUNNING", "CONFIRMING",
                                                     "QUARANTINE", "ENDING",  "GONE"};
static char cells[SL_ON_EVENTS][SL_TICKET_STATES][CELL];
static bool listed[SL_ON_EVENTS];
static int32_t prompt[TOKENS];
static sl_msg_commit commit;
static sl_ticket_env env = {
    .layers = 2, .vocab = 100, .max_context = 1000, .compare = true, .seals = true, .quarantine_ms = 1000};
static sl_ticket_effects out;

static int index_in(const char *const *names, int n, const char *word, size_t len)
{
    for (int i = 0; i < n; i++) {
        if (strlen(names[i]) == len && !strncmp(names[i], word, len))
            return i;
    }
    return -1;
}

/* Copies the text that begins at the column, up to two spaces. */
static void take_cell(const char *line, size_t at, char *cell)
{
    size_t n = 0, len = strlen(line);
    while (at + n < len && line[at + n] != '\n' && n + 1 < CELL &&
           !(line[at + n] == ' ' && line[at + n + 1] == ' '))
        n++;
    while (n && line[at + n - 1] == ' ')
        n--;
    memcpy(cell, line + at, n);
    cell[n] = '\0';
}

static void read_table(void)
{
    FILE *f = fopen("decode/core/ticket.h", "r");
    char line[400];
    size_t column[SL_TICKET_STATES] = {0};
    bool inside = false;
    SL_CHECK(f, "decode/core/ticket.h: the test runs in the root of the source");
    while (fgets(line, sizeof line, f)) {
        if (!inside && strstr(line, "ASKED    LOADING")) {
            for (int s = 0; s < SL_TICKET_GONE; s++) {
                SL_CHECK(strstr(line, states[s]), "the table has no column %s", states[s]);
                column[s] = (size_t)(strstr(line, states[s]) - line);
            }
            inside = true;
            continue;
        }
        if (!inside)
            continue;
        size_t len = strcspn(line + 3, " \n");
        if (strlen(line) < 4 || !isupper((unsigned char)line[3]))
            break;
        int e = index_in(events, SL_ON_EVENTS, line + 3, len);
        SL_CHECK(e >= 0, "the table has an event that the test does not know: %s", line);
        listed[e] = true;
        for (int s = 0; s < SL_TICKET_GONE; s++) {
            if (column[s] < strlen(line) && line[column[s]] != ' ' && line[column[s]] != '\n')
                take_cell(line, column[s], cells[e][s]);
        }
    }
    fclose(f);
    for (int e = 0; e < SL_ON_EVENTS; e++)
        SL_CHECK(listed[e], "the table lacks %s", events[e]);
}

static bool step(sl_ticket *t, const sl_ticket_event *ev)
{
    return sl_ticket_step(&env, t, ev, &out);
}

static void must(sl_ticket *t, sl_ticket_event ev)
{
    ev.now_ns = NOW;
    ck_assert_msg(step(t, &ev), "%s in %s", events[ev.kind], states[t->state]);
}

static sl_ticket_event granted(int32_t verify)
{
    sl_ticket_event ev = {.kind = SL_ON_GRANTED, .now_ns = NOW};
    ev.granted.n_pages = 3;
    ev.granted.matched = 1;
    ev.granted.verify = verify;
    return ev;
}

static sl_ticket_event pages_ask(void)
{
    sl_ticket_event ev = {.kind = SL_ON_PAGES_ASK, .now_ns = NOW};
    ev.pages.n = 1;
    return ev;
}

static sl_ticket_event stepped(int32_t rows)
{
    sl_ticket_event ev = {.kind = SL_ON_STEPPED, .now_ns = NOW};
    ev.stepped.rows = rows;
    return ev;
}

/* All tokens of a running ticket. */
static void finish(sl_ticket *t)
{
    static const sl_msg_token last = {.id = 8};
    sl_ticket_event ev = {.kind = SL_ON_TOKENS};
    t->sampling.max_tokens = 2;
    must(t, (sl_ticket_event){.kind = SL_ON_STEP});
    must(t, stepped(t->n_tokens));
    ev.tokens.list = &last;
    ev.tokens.n = 1;
    must(t, ev);
}

/* A ticket in this state. job: the checker still has a job that was posted before. */
static sl_ticket make(sl_ticket_state state, bool job)
{
    sl_ticket t = {.number = 7,
                   .rid = 3,
                   .attempt = 1,
                   .router = 1,
                   .writer = state == SL_TICKET_PROMPT ? 0 : WRITER,
                   .n_prompt = TOKENS,
                   .tokens = prompt,
                   .n_tokens = TOKENS,
                   .deadline_ns = NOW,
                   .due_ns = UINT64_MAX};
    sl_ticket_event checked = {.kind = SL_ON_CHECKED};
    checked.checked.job = SL_JOB_COMPARE;
    sl_sampling_default(&t.sampling);
    t.sampling.max_tokens = 100;
    if (state == SL_TICKET_ASKED)
        return t;
    if (state == SL_TICKET_LOADING) {
        must(&t, (sl_ticket_event){.kind = SL_ON_LOAD});
        return t;
    }
    must(&t, granted(state == SL_TICKET_PROMPT && job));
    if (state != SL_TICKET_PROMPT && job)
        must(&t, pages_ask());
    if (state == SL_TICKET_LANDING || state == SL_TICKET_PROMPT)
        return t;
    if (state == SL_TICKET_QUARANTINE) {
        must(&t, (sl_ticket_event){.kind = SL_ON_ABORT, .abort_why = SL_ERR_CANCELLED});
        return t;
    }
    must(&t, (sl_ticket_event){.kind = SL_ON_COMMIT, .commit = &commit});
    if (state == SL_TICKET_ENDING) { /* COMPARE is in flight */
        must(&t, (sl_ticket_event){.kind = SL_ON_ABORT, .abort_why = SL_ERR_CANCELLED});
        return t;
    }
    if (state == SL_TICKET_CHECKING)
        return t;
    must(&t, checked);
    if (state == SL_TICKET_WAITING)
        return t;
    must(&t, (sl_ticket_event){.kind = SL_ON_JOINED});
    if (state == SL_TICKET_CONFIRMING)
        finish(&t);
    return t;
}

/* An event that is about this ticket, after what must have come before it. */
static sl_ticket_event event_for(sl_ticket *t, sl_ticket_event_kind kind)
{
    static const sl_msg_token token = {.id = 9};
    sl_ticket_event ev = {.kind = kind, .now_ns = NOW};
    bool computes = t->state == SL_TICKET_RUNNING || t->state == SL_TICKET_PROMPT;
    switch (kind) {
    case SL_ON_GRANTED:
        return granted(0);
    case SL_ON_PAGES_ASK:
        return pages_ask();
    case SL_ON_COMMIT:
        ev.commit = &commit;
        break;
    case SL_ON_REFUSED:
    case SL_ON_FAILED:
        ev.failed.status = SL_ERR_EXHAUSTED;
        ev.failed.why = "why";
        break;
    case SL_ON_STEPPED:
        if (computes)
            must(t, (sl_ticket_event){.kind = SL_ON_STEP});
        else if (t->state == SL_TICKET_ENDING || t->state == SL_TICKET_CONFIRMING)
            t->steps++; /* it ended while a step computed it */
        ev = stepped(t->n_tokens);
        break;
    case SL_ON_COMPUTED:
        if (t->state == SL_TICKET_PROMPT) {
            must(t, (sl_ticket_event){.kind = SL_ON_STEP});
            must(t, stepped(t->n_tokens));
        }
        ev.computed.first = token;
        break;
    case SL_ON_TOKENS:
        if (t->state == SL_TICKET_RUNNING) {
            must(t, (sl_ticket_event){.kind = SL_ON_STEP});
            must(t, stepped(t->n_tokens));
        }
        ev.tokens.list = &token;
        ev.tokens.n = 1;
        break;
    case SL_ON_CHECKED:
        ev.checked.job = t->state == SL_TICKET_CHECKING || t->state == SL_TICKET_ENDING ? SL_JOB_COMPARE
                         : t->state == SL_TICKET_PROMPT                                 ? SL_JOB_VERIFY
                         : t->state == SL_TICKET_CONFIRMING                             ? SL_JOB_CONFIRM
                                                                                        : SL_JOB_READ;
        break;
    case SL_ON_PATROL:
        ev.patrol_most = 2;
        break;
    case SL_ON_RETRACT:
        ev.retract_why = "why";
        break;
    case SL_ON_UNDONE:
        ev.undone = SL_JOB_COMPARE;
        break;
    case SL_ON_ABORT:
        ev.abort_why = SL_ERR_CANCELLED;
        break;
    case SL_ON_DRAINED:
        ev.drained.direct = true;
        break;
    case SL_ON_DEADLINE:
        ev.now_ns = UINT64_MAX - 1;
        break;
    default:
        break;
    }
    return ev;
}

static bool told(void)
{
    for (int i = 0; i < out.n; i++) {
        if (out.list[i].kind <= SL_DO_TELL_DRAINED)
            return true;
    }
    return false;
}

/* Whether the state after the event is what the cell says. */
static bool leads_to(const char *cell, sl_ticket_state before, sl_ticket_state after)
{
    size_t len = strcspn(cell, " ");
    int named = index_in(states, SL_TICKET_STATES, cell, len);
    bool gone = after == SL_TICKET_ENDING || after == SL_TICKET_GONE;
    if (named >= 0)
        return after == (sl_ticket_state)named;
    if (!strncmp(cell, "over", 4) || !strncmp(cell, "free", 4))
        return gone;
    if (!strncmp(cell, "gone", 4))
        return after == SL_TICKET_GONE;
    if (!strncmp(cell, "end", 3))
        return gone || after == SL_TICKET_QUARANTINE;
    if (!strncmp(cell, "lands", 5))
        return after == SL_TICKET_LANDING || after == SL_TICKET_PROMPT;
    if (!strncmp(cell, "confirms", 8))
        return gone || after == SL_TICKET_CONFIRMING;
    if (!strncmp(cell, "checks", 6))
        return after == SL_TICKET_CHECKING || after == SL_TICKET_WAITING;
    return after == before; /* READ, busy, VERIFY, FENCE, sooner: what happens is in the effects */
}

START_TEST(test_table)
{
    sl_ticket_state s = (sl_ticket_state)(_i / (2 * SL_ON_EVENTS));
    sl_ticket_event_kind e = (sl_ticket_event_kind)(_i / 2 % SL_ON_EVENTS);
    bool needs_job = e == SL_ON_CHECKED || e == SL_ON_UNDONE;
    sl_ticket t = make(s, _i % 2 || needs_job);
    ck_assert_int_eq(t.state, s);
    sl_ticket_event ev = event_for(&t, e);
    sl_ticket before = t;
    const char *cell = cells[e][s];
    bool known = step(&t, &ev);
    ck_assert_msg(known == (cell[0] != '\0'), "%s in %s: the table says \"%s\"", events[e], states[s], cell);
    if (!known) {
        ck_assert_msg(!memcmp(&t, &before, sizeof t) && !out.n,
                      "%s in %s: a dropped event has changed something", events[e], states[s]);
    } else {
        ck_assert_msg(leads_to(cell, s, t.state), "%s in %s: %s, the table says \"%s\"", events[e], states[s],
                      states[t.state], cell);
        ck_assert_msg(!strchr(cell, '!') || told() || t.state == SL_TICKET_QUARANTINE || e == SL_ON_UNDONE,
                      "%s in %s tells nobody", events[e], states[s]);
    }
    free(t.own);
}
END_TEST

/* Every accepted event, followed by every other one: what is gone stays gone, and frees its pages once. */
START_TEST(test_pairs)
{
    sl_ticket_state s = (sl_ticket_state)(_i / SL_ON_EVENTS);
    for (int first = 0, e = _i % SL_ON_EVENTS; first < SL_ON_EVENTS; first++) {
        sl_ticket t = make(s, true);
        sl_ticket_event ev = event_for(&t, (sl_ticket_event_kind)first);
        int released = 0, freed = 0;
        step(&t, &ev);
        for (int i = 0; i < out.n; i++) {
            released += out.list[i].kind == SL_DO_RELEASE;
            freed += out.list[i].kind == SL_DO_FREE;
        }
        ck_assert_int_eq(freed, t.state == SL_TICKET_GONE);
        if (t.state != SL_TICKET_GONE) {
            ck_assert_int_eq(released, 0);
            free(t.own);
            continue;
        }
        ck_assert_int_eq(out.list[out.n - 1].kind, SL_DO_FREE);
        sl_ticket_event next = event_for(&t, (sl_ticket_event_kind)e);
        ck_assert(!step(&t, &next) && !out.n);
        free(t.own);
    }
}
END_TEST

START_TEST(test_commit_must_fit)
{
    const struct {
        sl_msg_commit c;
        bool fails;
    } wrong[] = {
        {{.ticket = 8, .worker_id = WRITER}, false},
        {{.ticket = 7, .worker_id = WRITER + 1}, false},
        {{.ticket = 7, .worker_id = WRITER, .n_tokens = TOKENS + 1, .first_page = 1, .n_crc = 4}, true},
        {{.ticket = 7, .worker_id = WRITER, .n_tokens = TOKENS, .first_page = 0, .n_crc = 4}, true},
        {{.ticket = 7, .worker_id = WRITER, .n_tokens = TOKENS, .first_page = 1, .n_crc = 5}, true},
        {{.ticket = 7, .worker_id = WRITER, .n_tokens = TOKENS, .first_page = 1, .n_crc = 4, .first.id = 100},
         true},
        {{.ticket = 7, .worker_id = WRITER, .n_tokens = TOKENS, .first_page = 1, .n_crc = 4, .first.id = -1},
         true}};
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        sl_ticket t = make(SL_TICKET_LANDING, false);
        sl_ticket_event ev = {.kind = SL_ON_COMMIT, .now_ns = NOW, .commit = &wrong[i].c};
        ck_assert_int_eq(step(&t, &ev), wrong[i].fails);
        /* A writer that has sent COMMIT writes no more: there is no quarantine. */
        ck_assert_int_eq(t.state, wrong[i].fails ? SL_TICKET_GONE : SL_TICKET_LANDING);
        ck_assert_int_eq(out.n ? out.list[0].kind : SL_DO_EFFECTS,
                         wrong[i].fails ? SL_DO_TELL_FAILED : SL_DO_EFFECTS);
    }
}
END_TEST

/* With states the writer also ships two snapshots, one if the matched pages are all full ones before the last token. */
START_TEST(test_commit_has_snapshots)
{
    for (int32_t s = 1; s < 6; s++) {
        sl_ticket t = make(SL_TICKET_LANDING, false);
        const int32_t full = (t.n_tokens - 1) / 64,
                      pages = t.n_pages - t.matched + s + (full > t.matched ? s : 0);
        env.snapshot = s;
        for (int32_t wrong = -2; wrong <= 2; wrong++) {
            sl_ticket u = make(SL_TICKET_LANDING, false);
            const sl_msg_commit c = {.ticket = 7,
                                     .worker_id = WRITER,
                                     .n_tokens = TOKENS,
                                     .first_page = 1,
                                     .n_crc = (size_t)((pages + wrong) * env.layers)};
            sl_ticket_event ev = {.kind = SL_ON_COMMIT, .now_ns = NOW, .commit = &c};
            ck_assert(step(&u, &ev));
            ck_assert_int_eq(u.state, wrong ? SL_TICKET_GONE : SL_TICKET_CHECKING);
            if (wrong)
                continue;
            ck_assert_int_eq(out.list[0].kind, SL_DO_CHECK);
            ck_assert_int_eq(out.list[0].check.first, 1);
            ck_assert_int_eq(out.list[0].check.n, pages);
        }
    }
    env.snapshot = 0;
}
END_TEST

static bool is_stop(const void *ctx, const sl_sampling *s, int32_t id)
{
    (void)ctx;
    (void)s;
    return id == 42;
}

/* Several tokens at once: those after the end are dropped, and the end is the right one. */
START_TEST(test_tokens)
{
    const sl_msg_token list[] = {{.id = 1}, {.id = 2}, {.id = 42}, {.id = 3}};
    env.is_stop = is_stop;
    for (int32_t most = 2; most <= 5; most++) { /* with the first token of COMMIT */
        sl_ticket t = make(SL_TICKET_RUNNING, false);
        t.sampling.max_tokens = most;
        must(&t, (sl_ticket_event){.kind = SL_ON_STEP});
        must(&t, stepped(t.n_tokens));
        sl_ticket_event ev = {.kind = SL_ON_TOKENS, .now_ns = NOW};
        ev.tokens.list = list;
        ev.tokens.n = 4;
        ck_assert(step(&t, &ev));
        int32_t used = most - 1 < 3 ? most - 1 : 3;
        ck_assert_int_eq(out.list[0].kind, SL_DO_TELL_TOKENS);
        ck_assert_int_eq(out.list[0].tokens.first_index, 1);
        ck_assert_int_eq(out.list[0].tokens.n, used);
        ck_assert_int_eq(t.state, SL_TICKET_CONFIRMING);
        sl_ticket_event checked = {.kind = SL_ON_CHECKED};
        checked.checked.job = SL_JOB_CONFIRM;
        must(&t, checked);
        ck_assert_int_eq(out.list[0].kind, SL_DO_TELL_DONE);
        out.list[1] = out.list[0];
        ck_assert_int_eq(out.list[1].done.finish, used == 3 ? SL_FINISH_STOP : SL_FINISH_LENGTH);
        ck_assert_int_eq(out.list[1].done.matched, used == 3 ? 42 : -1);
        ck_assert_int_eq(t.n_tokens, TOKENS + 1 + used);
        ck_assert_int_eq(t.tokens[TOKENS + used], list[used - 1].id);
        free(t.own);
    }
    env.is_stop = NULL;
}
END_TEST

/* Pages are sealed when they have become full, and published after a clean round. */
START_TEST(test_rows)
{
    sl_ticket t = make(SL_TICKET_PROMPT, false);
    must(&t, (sl_ticket_event){.kind = SL_ON_STEP});
    must(&t, stepped(2 * PAGE - 1));
    ck_assert_int_eq(out.n, 0);
    must(&t, (sl_ticket_event){.kind = SL_ON_STEP});
    must(&t, stepped(TOKENS));
    ck_assert_int_eq(out.n, 1);
    ck_assert_int_eq(out.list[0].kind, SL_DO_CHECK);
    ck_assert_int_eq(out.list[0].check.job, SL_JOB_SEAL);
    ck_assert_int_eq(out.list[0].check.first, 1);
    ck_assert_int_eq(out.list[0].check.n, 1);
    ck_assert_int_eq(sl_ticket_sealed(&env, &t), 2);
    must(&t, (sl_ticket_event){.kind = SL_ON_COMPUTED});
    ck_assert_int_eq(t.state, SL_TICKET_CHECKING);
    ck_assert_int_eq(out.list[1].check.job, SL_JOB_VERIFY);
    ck_assert_int_eq(out.list[1].check.n, 2);
    sl_ticket_event checked = {.kind = SL_ON_CHECKED};
    checked.checked.job = SL_JOB_SEAL;
    must(&t, checked);
    checked.checked.job = SL_JOB_VERIFY;
    must(&t, checked);
    ck_assert_int_eq(out.list[1].kind, SL_DO_PUBLISH);
    ck_assert_int_eq(out.list[1].rows, TOKENS);
    free(t.own);
}
END_TEST

static void decode_to(sl_ticket *t, int32_t n_tokens)
{
    static const sl_msg_token token = {.id = 9};
    sl_ticket_event ev = {.kind = SL_ON_TOKENS}, sealed = {.kind = SL_ON_CHECKED};
    ev.tokens.list = &token;
    ev.tokens.n = 1;
    sealed.checked.job = SL_JOB_SEAL;
    t->sampling.max_tokens = 10000;
    while (t->n_tokens < n_tokens) {
        must(t, (sl_ticket_event){.kind = SL_ON_STEP});
        must(t, stepped(t->n_tokens));
        for (int i = 0; i < out.n; i++)
            ck_assert_int_ne(out.list[i].kind, SL_DO_PUBLISH);
        if (out.n)
            must(t, sealed);
        must(t, ev);
    }
}

/* One part of the patrol. Returns the rows that were published after it, or 0. */
static int32_t patrol(sl_ticket *t, int32_t most)
{
    sl_ticket_event ev = {.kind = SL_ON_PATROL, .now_ns = NOW, .patrol_most = most};
    sl_ticket_event back = {.kind = SL_ON_CHECKED};
    back.checked.job = SL_JOB_PATROL;
    must(t, ev);
    must(t, back);
    return out.n && out.list[0].kind == SL_DO_PUBLISH ? out.list[0].rows : 0;
}

/* A page is published after a round over all earlier pages that began when it was full, and not after the round during which it
 * became full; `safe` are the tokens of the round's beginning. */
START_TEST(test_clean_rounds)
{
    sl_ticket t = make(SL_TICKET_RUNNING, false);
    ck_assert_int_eq(t.safe, TOKENS + 1);
    decode_to(&t, 3 * PAGE); /* the next row fills page 2 */
    ck_assert_int_eq(patrol(&t, 1), 0);
    decode_to(&t, 3 * PAGE + 5);
    ck_assert_int_eq(sl_ticket_sealed(&env, &t), 3);
    ck_assert_int_eq(t.safe, TOKENS + 1);
    ck_assert_int_eq(patrol(&t, 1), 0); /* the round had two pages: page 2 was not full then */
    ck_assert_int_eq(t.safe, 3 * PAGE);
    ck_assert_int_eq(t.published / PAGE, 2);
    ck_assert_int_eq(patrol(&t, 2), 0);
    ck_assert_int_eq(patrol(&t, 2) / PAGE, 3);
    ck_assert_int_eq(t.safe, 3 * PAGE + 5);
    decode_to(&t, 3 * PAGE + 9);
    must(&t, (sl_ticket_event){.kind = SL_ON_DAMAGED});
    ck_assert_int_eq(out.list[0].kind, SL_DO_TELL_RETRACTED);
    ck_assert(t.damaged);
    ck_assert_int_eq(t.safe, 3 * PAGE + 5);
    free(t.own);
}
END_TEST

/* Damage, an abort and a loss at every point: what was not covered by a clean round is never published. */
START_TEST(test_no_page_without_a_round)
{
    static const sl_ticket_event_kind ends[] = {SL_ON_DAMAGED, SL_ON_LOST, SL_ON_RETRACT, SL_ON_FAILED};
    for (size_t e = 0; e < SL_COUNT(ends); e++) {
        for (int parts = 0; parts < 5; parts++) {
            sl_ticket t = make(SL_TICKET_RUNNING, false);
            decode_to(&t, 4 * PAGE + 1);
            for (int i = 0; i < parts; i++)
                ck_assert_int_eq(patrol(&t, 1) > 0, i == 3);
            must(&t, event_for(&t, ends[e]));
            for (int i = 0; i < out.n; i++)
                ck_assert_int_ne(out.list[i].kind, SL_DO_PUBLISH);
            free(t.own);
        }
    }
}
END_TEST

/* The client has gone, or its stop string was found: the pages are verified and published all the same, if they are clean. */
START_TEST(test_abort_confirms)
{
    for (int damaged = 0; damaged < 2; damaged++) {
        sl_ticket t = make(SL_TICKET_RUNNING, false);
        decode_to(&t, 4 * PAGE + 1);
        must(&t, (sl_ticket_event){.kind = SL_ON_ABORT, .abort_why = SL_ERR_CANCELLED});
        ck_assert_int_eq(out.list[0].kind, SL_DO_TELL_DRAINED);
        ck_assert_int_eq(t.state, SL_TICKET_CONFIRMING);
        sl_ticket_event back = {.kind = damaged ? SL_ON_DAMAGED : SL_ON_CHECKED};
        back.checked.job = damaged ? 0 : SL_JOB_CONFIRM;
        must(&t, back);
        for (int i = 0; i < out.n; i++)
            ck_assert_int_gt(out.list[i].kind, SL_DO_TELL_DRAINED); /* no message */
        ck_assert_int_eq(out.n && out.list[0].kind == SL_DO_PUBLISH, !damaged);
        free(t.own);
    }
}
END_TEST

int main(void)
{
    commit = (sl_msg_commit){.rid = 3,
                             .attempt = 1,
                             .ticket = 7,
                             .worker_id = WRITER,
                             .n_tokens = TOKENS,
                             .first_page = 1,
                             .n_crc = 4,
                             .first.id = 11};
    read_table();
    Suite *s = suite_create("ticket");
    TCase *c = tcase_create("table");
    tcase_add_loop_test(c, test_table, 0, SL_TICKET_GONE * SL_ON_EVENTS * 2);
    tcase_add_loop_test(c, test_pairs, SL_ON_EVENTS, SL_TICKET_GONE * SL_ON_EVENTS);
    tcase_add_test(c, test_commit_must_fit);
    tcase_add_test(c, test_commit_has_snapshots);
    tcase_add_test(c, test_tokens);
    tcase_add_test(c, test_rows);
    tcase_add_test(c, test_clean_rounds);
    tcase_add_test(c, test_no_page_without_a_round);
    tcase_add_test(c, test_abort_confirms);
    suite_add_tcase(s, c);
    return run_suite(s);
}
