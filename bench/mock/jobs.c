/*
 * The jobs of the mock worker: one for each request that it reserves pages for, prefills or decodes. A step of a job is
 * due at a certain time. There is no model; a formula gives the tokens.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/page_key.h"
#include "bench/mock/mock_impl.h"
#include "router/core/text.h"

job *sl_mock_find_job(sl_mock *m, uint64_t rid, uint32_t attempt)
{
    for (job *j = m->jobs; j; j = j->next) {
        if (j->rid == rid && j->attempt == attempt)
            return j;
    }
    return NULL;
}

job *sl_mock_new_job(sl_mock *m, uint64_t rid, uint32_t attempt, const int32_t *tokens, size_t n,
                     size_t n_prompt, sl_blob sampling, sl_key seed)
{
    job *j = calloc(1, sizeof *j);
    SL_CHECK(j, "out of memory");
    j->rid = rid;
    j->attempt = attempt;
    j->cap = n + 1024;
    j->tokens = malloc(j->cap * sizeof *j->tokens);
    SL_CHECK(j->tokens, "out of memory");
    memcpy(j->tokens, tokens, n * sizeof *tokens);
    j->n = n;
    j->n_prompt = n_prompt;
    sl_sampling_default(&j->sampling);
    sl_rd rd = sl_rd_init(sampling.data, sampling.len);
    SL_CHECK(sl_sampling_read(&rd, &j->sampling) == SL_OK, "the router sent unreadable sampling parameters");
    j->keys = calloc(n / SL_KEY_PAGE_TOKENS + 1, sizeof *j->keys);
    SL_CHECK(j->keys, "out of memory");
    j->n_keys = sl_page_keys(seed, tokens, n, j->keys);
    j->next = m->jobs;
    m->jobs = j;
    m->c.jobs++;
    return j;
}

void sl_mock_end_job(sl_mock *m, job *j)
{
    for (job **p = &m->jobs; *p; p = &(*p)->next) {
        if (*p == j) {
            *p = j->next;
            break;
        }
    }
    m->c.jobs--;
    m->c.pages_used -= j->pages;
    m->c.waiting_drain -= j->state == JOB_DRAINING;
    sl_sampling_free(&j->sampling);
    free(j->tokens);
    free(j->keys);
    free(j);
}

static void add_token(job *j, int32_t id)
{
    if (j->n == j->cap) {
        j->cap *= 2;
        j->tokens = realloc(j->tokens, j->cap * sizeof *j->tokens);
        SL_CHECK(j->tokens, "out of memory");
    }
    j->tokens[j->n++] = id;
}

static void send_tokens(sl_mock *m, const job *j, size_t index)
{
    sl_msg_token t = {.id = j->tokens[j->n_prompt + index], .logprob = -0.5f};
    if (j->sampling.n_logprobs > 0) {
        t.n_top = 2;
        t.top_ids[0] = t.id;
        t.top_logprobs[0] = -0.5f;
        t.top_ids[1] = t.id == m->o.token_lo ? t.id + 1 : m->o.token_lo;
        t.top_logprobs[1] = -1.5f;
    }
    sl_msg s = {.type = SL_MSG_TOKENS};
    s.tokens.rid = j->rid;
    s.tokens.attempt = j->attempt;
    s.tokens.first_index = (uint32_t)index;
    s.tokens.tokens = &t;
    s.tokens.n_tokens = 1;
    if (!m->k.skip_token || index + 1 != m->k.skip_token)
        sl_mock_send_router(m, &s);
    if (m->k.stale) {
        s.tokens.attempt--;
        sl_mock_send_router(m, &s);
        s.tokens.attempt++;
        s.tokens.rid ^= 0x5555;
        sl_mock_send_router(m, &s);
    }
    m->c.tokens++;
}

static void publish(sl_mock *m, const job *j)
{
    uint8_t buf[64 * 32];
    sl_wr tokens;
    sl_wr_init(&tokens);
    size_t n = 0;
    for (size_t i = 0; i < j->n_keys && n < 64; i++) {
        if (sl_keyset_has(m->prefix, j->keys[i]))
            continue;
        sl_keyset_add(m->prefix, j->keys[i]);
        sl_key pair[2] = {i ? j->keys[i - 1] : (sl_key){0, 0}, j->keys[i]};
        memcpy(buf + 32 * n++, pair, 32);
        for (size_t t = 0; t < SL_KEY_PAGE_TOKENS; t++)
            sl_wr_i32(&tokens, j->tokens[i * SL_KEY_PAGE_TOKENS + t]);
    }
    if (!n)
        return;
    sl_msg e = {.type = SL_MSG_KV_EVENTS};
    e.kv_events.sequence = ++m->kv_sequence;
    e.kv_events.stored = (sl_blob){buf, 32 * n};
    e.kv_events.tokens = (sl_blob){tokens.data, tokens.len};
    sl_mock_send_router(m, &e);
    sl_wr_free(&tokens);
}

static bool is_stop(const sl_mock *m, const job *j, int32_t id)
{
    for (uint32_t i = 0; i < j->sampling.n_stop_ids; i++) {
        if (j->sampling.stop_ids[i] == id)
            return true;
    }
    return id == m->o.eos && !j->sampling.ignore_eos;
}

bool sl_mock_finish_if_done(sl_mock *m, job *j)
{
    uint32_t produced = (uint32_t)(j->n - j->n_prompt);
    int32_t last = j->tokens[j->n - 1];
    bool stop = is_stop(m, j, last);
    if (m->k.retract_at && produced >= m->k.retract_at) {
        m->k.retract_at = 0;
        sl_mock_send_id(m, SL_MSG_RETRACTED, j->rid, j->attempt);
        sl_mock_end_job(m, j);
        return true;
    }
    if (!stop && produced < (uint32_t)j->sampling.max_tokens)
        return false;
    sl_msg d = {.type = SL_MSG_DONE};
    d.done.rid = j->rid;
    d.done.attempt = j->attempt;
    d.done.finish = stop ? SL_FINISH_STOP : SL_FINISH_LENGTH;
    d.done.matched_stop = stop ? last : -1;
    d.done.produced = produced + m->k.wrong_count;
    m->k.wrong_count = false;
    sl_mock_send_router(m, &d);
    publish(m, j);
    sl_mock_end_job(m, j);
    return true;
}

void sl_mock_take_token(sl_mock *m, job *j, int32_t id, uint64_t now)
{
    add_token(j, id);
    send_tokens(m, j, j->n - j->n_prompt - 1);
    j->due_ns = now + m->o.step_us * 1000ull;
}

static void decode_step(sl_mock *m, job *j, uint64_t now)
{
    sl_mock_take_token(m, j, sl_mock_next_token(&m->o, j->tokens, j->n, j->n_prompt), now);
    if (m->k.die_at && m->c.tokens >= m->k.die_at)
        m->k.silent = true;
    sl_mock_finish_if_done(m, j);
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

void sl_mock_commit(sl_mock *m, job *j)
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
        return; /* on_connected() calls this again */
    sl_msg c = {.type = SL_MSG_COMMIT};
    c.commit.rid = j->rid;
    c.commit.attempt = j->attempt;
    c.commit.ticket = j->ticket;
    c.commit.worker_id = m->c.worker_id;
    c.commit.n_tokens = (uint32_t)j->n;
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

/* Role both: the prompt was computed here. */
static void begin_decoding(sl_mock *m, job *j, uint64_t now)
{
    if (m->k.hold_commit)
        return;
    sl_msg f = {.type = SL_MSG_PREFILLED};
    f.prefilled.rid = j->rid;
    f.prefilled.attempt = j->attempt;
    sl_mock_send_router(m, &f);
    j->state = JOB_DECODING;
    decode_step(m, j, now);
}

void sl_mock_run_due(sl_mock *m, uint64_t now)
{
    for (job *j = m->jobs, *next; j; j = next) {
        next = j->next;
        if (m->c.dead)
            return;
        if (j->due_ns > now || m->k.hold)
            continue;
        if (j->state == JOB_RESERVING) {
            uint32_t *pages = calloc(j->pages + 1, sizeof *pages);
            SL_CHECK(pages, "out of memory");
            for (uint32_t i = 0; i < j->pages; i++)
                pages[i] = i;
            sl_msg r = {.type = SL_MSG_RESERVED};
            r.reserved.rid = j->rid;
            r.reserved.attempt = j->attempt;
            r.reserved.ticket = j->ticket;
            r.reserved.matched_pages = (uint32_t)sl_keyset_match(m->prefix, j->keys, j->n_keys);
            r.reserved.pages = pages;
            r.reserved.n_pages = j->pages;
            j->state = j->prefill_worker ? JOB_LANDING : JOB_PREFILL;
            j->due_ns = now + m->o.prefill_us * 1000ull;
            sl_mock_send_router(m, &r);
            free(pages);
        } else if (j->state == JOB_PREFILL && m->o.role == SL_ROLE_BOTH) {
            begin_decoding(m, j, now);
        } else if (j->state == JOB_PREFILL || j->state == JOB_COMMITTING) {
            sl_mock_commit(m, j);
        } else if (j->state == JOB_DECODING) {
            decode_step(m, j, now);
        }
    }
}
