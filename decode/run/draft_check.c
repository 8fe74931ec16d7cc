/*
 * Whether the MTP layer drafts at all: before a worker takes requests, the model continues a fixed text greedily, and
 * what the layer drafts is compared with what the model chooses. A layer of another checkpoint, or one that a
 * conversion has damaged, drafts noise, which costs time and changes no answer, so no metric of answers shows it. The
 * text repeats a few tokens, which any trained model continues; it is made of numbers of tokens, since a worker need
 * not have the tokenizer.
 *
 * Steps of one token, so that the check needs no more memory than a request. Its pages are not published. In a group
 * every step is one of all ranks, which are not there yet: there the first requests are counted instead (drafts.c).
 */
#include "decode/run/run_impl.h"

enum { PROMPT = 33, CHECKED = 32, LEAST = 3, PERIOD = 11, LENGTH = PROMPT + CHECKED + 2 };

typedef struct check {
    sl_run *r;
    sl_sampling greedy;
    void *seq;
    int32_t ids[LENGTH],
        n; /* the text and what the model has chosen; the sequence has those before the last one */
} check;

/* Appends the last token, or of the text the next one; the token after it is added where the text has ended. */
static sl_status step(check *c, int32_t at, sl_err *err)
{
    const sl_runner *k = c->r->runner;
    sl_step_sample w = {.sampling = &c->greedy,
                        .history = {c->ids, PROMPT, c->ids + PROMPT, (size_t)(c->n - PROMPT)}};
    sl_step_item it = {.seq = c->seq, .tokens = &c->ids[at], .n_tokens = 1};
    it.sample = at + 1 == c->n ? &w : NULL;
    SL_TRY(k->step(k->impl, &it, 1, NULL, err));
    if (it.sample && w.out.fault)
        return sl_fail(err, SL_ERR_INTERNAL, "no token can be chosen");
    if (it.sample)
        c->ids[c->n++] = w.out.id;
    return SL_OK;
}

static sl_status count(check *c, int32_t *right, sl_err *err)
{
    const sl_runner *k = c->r->runner;
    for (int32_t i = 0; i < PROMPT; i++)
        SL_TRY(step(c, i, err));
    for (int32_t i = 0; i < CHECKED; i++) {
        int32_t drafted = -1;
        sl_draft_item it = {
            .seq = c->seq, .token = c->ids[c->n - 1], .n = 1, .sampling = &c->greedy, .out = &drafted};
        SL_TRY(k->draft(k->impl, &it, 1, err));
        SL_TRY(step(c, c->n - 1, err));
        *right += drafted == c->ids[c->n - 1];
    }
    return SL_OK;
}

static sl_status with_pages(check *c, int32_t *right, sl_err *err)
{
    sl_lease *l;
    const sl_runner *k = c->r->runner;
    static const uint8_t name[] = "draft check";
    SL_TRY(
        sl_store_lease(c->r->role->store, sl_hash_chain((sl_key){0}, name, sizeof name), c->ids, LENGTH, &l));
    const sl_residency mode = c->r->o.row_pages > 0 ? SL_RESIDENT : c->r->o.residency;
    sl_status st = sl_runner_open(k, mode, sl_lease_pages(l), sl_lease_n_pages(l), 0, PROMPT, &c->seq, err);
    if (st == SL_OK) {
        st = count(c, right, err);
        k->close(k->impl, c->seq);
    }
    sl_lease_release(l, false);
    return st;
}

int32_t sl_drafts_check(sl_run *r)
{
    sl_err err = {0};
    check c = {.r = r, .n = PROMPT};
    int32_t right = 0;
    if (!r->drafts.most || r->runner->group || r->o.drawn.drafts || r->runner->max_context < LENGTH)
        return -1;
    sl_sampling_default(&c.greedy);
    c.greedy.temperature = 0;
    for (int32_t i = 0; i < LENGTH; i++)
        c.ids[i] = (3 + i % PERIOD * 7) % r->runner->vocab;
    const uint64_t began = sl_now_ns();
    const sl_status st = with_pages(&c, &right, &err);
    const double took = (double)(sl_now_ns() - began) / 1e9;
    if (st != SL_OK) { /* requests will tell what is wrong */
        sl_log(SL_LOG_WARN, "decode", "draft_check", "status=%s reason=\"%.200s\"", sl_status_name(st),
               err.text);
        return -1;
    }
    sl_gauge_set(r->metrics.draft_check, (double)right / CHECKED);
    sl_log(SL_LOG_INFO, "decode", "draft_check", "drafted=%d accepted=%d seconds=%.2f", CHECKED, right, took);
    if (right < LEAST)
        sl_log(
            SL_LOG_WARN, "decode", "drafts_are_noise",
            "drafted=%d accepted=%d reason=\"on a fixed text the MTP layer's drafts are almost never right; answers are not affected\"",
            CHECKED, right);
    return right;
}
