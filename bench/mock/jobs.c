/*
 * What the mock does as a prefill worker: a job for each prompt. When its time has passed it sends COMMIT to the decode worker,
 * to which it connects first. No rows are moved.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/mock/mock_impl.h"
#include "router/core/text.h"

void sl_mock_prefill(sl_mock *m, const sl_msg_prefill *p)
{
    job *j = calloc(1, sizeof *j);
    SL_CHECK(j, "out of memory");
    *j = (job){.next = m->jobs,
               .rid = p->rid,
               .attempt = p->attempt,
               .state = JOB_PREFILL,
               .ticket = p->ticket,
               .due_ns = sl_now_ns() + m->o.prefill_us * 1000ull,
               .n = p->n_tokens,
               .n_prompt = p->n_prompt,
               .matched_pages = p->matched_pages};
    j->tokens = malloc((p->n_tokens + 1) * sizeof *j->tokens);
    SL_CHECK(j->tokens, "out of memory");
    memcpy(j->tokens, p->tokens, p->n_tokens * sizeof *j->tokens);
    memcpy(j->decode_addr, p->decode_addr, sizeof j->decode_addr);
    m->jobs = j;
}

void sl_mock_end_job(sl_mock *m, job *j)
{
    job **p = &m->jobs;
    while (*p != j)
        p = &(*p)->next;
    *p = j->next;
    free(j->tokens);
    free(j);
}

bool sl_mock_abort_job(sl_mock *m, uint64_t rid, uint32_t attempt)
{
    for (job *j = m->jobs; j; j = j->next) {
        if (j->rid != rid || j->attempt != attempt)
            continue;
        sl_mock_end_job(m, j);
        return true;
    }
    return false;
}

static peer *find_peer(sl_mock *m, const char *addr)
{
    for (peer *p = m->peers; p; p = p->next) {
        if (!strcmp(p->addr, addr))
            return p;
    }
    peer *p = calloc(1, sizeof *p);
    SL_CHECK(p, "out of memory");
    sl_copy_text(p->addr, sizeof p->addr, addr);
    if (sl_tp_connect(m->tp, addr, &p->ep, NULL)) {
        free(p);
        return NULL;
    }
    p->ep->user = p;
    p->next = m->peers;
    m->peers = p;
    return p;
}

static void commit(sl_mock *m, job *j)
{
    if (m->k.hold_commit)
        return;
    peer *p = find_peer(m, j->decode_addr);
    if (!p) {
        sl_mock_send_failed(m, j->rid, j->attempt, SL_ERR_PEER, true);
        sl_mock_end_job(m, j);
        return;
    }
    j->state = JOB_COMMITTING;
    if (!p->up)
        return; /* sl_mock_peer_changed() calls this again */
    sl_msg c = {.type = SL_MSG_COMMIT};
    c.commit.rid = j->rid;
    c.commit.attempt = j->attempt;
    c.commit.ticket = j->ticket;
    c.commit.worker_id = m->c.worker_id;
    c.commit.n_tokens = (uint32_t)j->n;
    c.commit.first_page = j->matched_pages;
    c.commit.first.id = sl_mock_next_token(&m->o, j->tokens, j->n, j->n_prompt);
    c.commit.first.logprob = -0.5f;
    sl_mock_send(m, p->ep, &c);
    sl_msg f = {.type = SL_MSG_PREFILLED};
    f.prefilled.rid = j->rid;
    f.prefilled.attempt = j->attempt;
    sl_mock_send_router(m, &f);
    m->c.tokens += j->n;
    sl_mock_end_job(m, j);
}

void sl_mock_peer_changed(sl_mock *m, const peer *p)
{
    for (job *j = m->jobs, *next; j; j = next) {
        next = j->next;
        if (j->state != JOB_COMMITTING || strcmp(j->decode_addr, p->addr))
            continue;
        if (p->up) {
            commit(m, j);
        } else {
            sl_mock_send_failed(m, j->rid, j->attempt, SL_ERR_PEER, true);
            sl_mock_end_job(m, j);
        }
    }
}

void sl_mock_run_jobs(sl_mock *m, uint64_t now)
{
    for (job *j = m->jobs, *next; j && !m->c.dead; j = next) {
        next = j->next;
        if (j->due_ns <= now && !m->k.hold)
            commit(m, j);
    }
}
