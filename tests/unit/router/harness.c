/*
 * See harness.h.
 */
#include "tests/unit/router/harness.h"
#include "tests/unit/run_suite.h"

#include <stdlib.h>
#include <string.h>

static int instance;

void h_init(harness *h)
{
    memset(h, 0, sizeof *h);
    snprintf(h->fabric, sizeof h->fabric, "router-test-%d-%d", (int)getpid(), instance++);
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    sl_err err = {""};
    ck_assert_msg(sl_mock_tokenizer(&h->tok, &err) == SL_OK, "%s", err.text);
    sl_router_opts_default(&h->o);
    h->o.link.transport = "loopback";
    h->o.link.fabric = h->fabric;
    h->o.model.tokenizer = h->tok;
    h->o.placement.policy = "round_robin";
    h->o.link.heartbeat_ms = 20;
    h->o.link.dead_after_ms = 30000;
    h->o.request.stage_timeout_ms = 30000;
    h->o.request.timeout_ms = 20000;
    sl_mock_opts_default(&h->mo);
    h->mo.fabric = h->fabric;
}

void h_open(harness *h)
{
    sl_err err = {""};
    ck_assert_msg(sl_router_create_opts(&h->o, &h->r, &err) == SL_OK, "%s", err.text);
}

void h_open_cluster(harness *h, int prefills, int decodes)
{
    h_open(h);
    for (int i = 0; i < prefills; i++)
        h_add(h, SL_ROLE_PREFILL);
    for (int i = 0; i < decodes; i++)
        h_add(h, SL_ROLE_DECODE);
}

int h_add_opts(harness *h, const sl_mock_opts *o)
{
    sl_err err = {""};
    sl_mock_opts mo = *o;
    mo.router_address = sl_router_worker_address(h->r);
    if (!mo.name) {
        snprintf(h->names[h->n], sizeof h->names[h->n], "%s/%d", sl_role_name(mo.role), h->n);
        mo.name = h->names[h->n];
    }
    ck_assert_int_lt(h->n, H_WORKERS);
    ck_assert_msg(sl_mock_create(&mo, &h->w[h->n], &err) == SL_OK, "%s", err.text);
    return h->n++;
}

int h_add(harness *h, sl_role role)
{
    sl_mock_opts o = h->mo;
    o.role = role;
    int i = h_add_opts(h, &o);
    H_UNTIL(h, sl_mock_count(h->w[i])->welcome, 2000);
    h_run(h, 3);
    return i;
}

void h_turn(harness *h)
{
    uv_run(&h->r->loop, UV_RUN_NOWAIT);
    for (int i = 0; i < h->n; i++) {
        if (h->w[i])
            sl_mock_step(h->w[i]);
    }
}

void h_run(harness *h, unsigned ms)
{
    uint64_t end = sl_now_ns() + ms * 1000000ull;
    for (unsigned turns = 0; turns < H_TURNS || sl_now_ns() < end; turns++)
        h_turn(h);
}

void h_close(harness *h)
{
    sl_router_destroy(h->r);
    for (int i = 0; i < h->n; i++)
        sl_mock_destroy(h->w[i]);
    sl_tokenizer_destroy(h->tok);
}

void h_spec(sl_request_spec *s, size_t n, int32_t max_tokens)
{
    sl_request_spec_init(s);
    snprintf(s->id, sizeof s->id, "test-%zu", n);
    s->prompts = calloc(1, sizeof *s->prompts);
    s->prompts->ids = calloc(n + 1, sizeof(int32_t));
    s->prompts->n = n;
    s->n_prompts = 1;
    for (size_t i = 0; i < n; i++)
        s->prompts->ids[i] = (int32_t)('a' + (i + n) % 26);
    s->sampling.max_tokens = max_tokens;
    s->has_max_tokens = true;
    s->sampling.temperature = 0;
}

static void sink(void *arg, sl_group *g, const sl_output *o)
{
    client *c = arg;
    ck_assert_ptr_eq(g, c->group);
    ck_assert_uint_lt(o->index, MAX_STREAMS);
    stream *s = &c->s[o->index];
    ck_assert_msg(!s->finished, "output after the end");
    for (size_t i = 0; i < o->n_tokens; i++)
        s->tokens[s->n++] = o->tokens[i].id;
    if (o->text_len)
        memcpy(s->text + s->len, o->text, o->text_len);
    s->len += o->text_len;
    s->completion_tokens = o->completion_tokens;
    s->prompt_tokens = o->prompt_tokens;
    if (o->finished) {
        s->finished = true;
        s->ends++;
        s->finish = o->finish;
        s->status = o->status;
        s->matched_token = o->matched_token;
        snprintf(s->error, sizeof s->error, "%s", o->error ? o->error : "");
        snprintf(s->matched, sizeof s->matched, "%s", o->matched_stop ? o->matched_stop : "");
    }
    if (c->hook)
        c->hook(c, o);
}

sl_status h_try_submit(harness *h, client *c, sl_request_spec *s, sl_err *err)
{
    void (*hook)(client *, const sl_output *) = c->hook;
    void *arg = c->arg;
    memset(c, 0, sizeof *c);
    c->hook = hook;
    c->arg = arg;
    return sl_group_submit(h->r, s, sink, c, &c->group, err);
}

void h_submit(harness *h, client *c, sl_request_spec *s)
{
    sl_err err = {""};
    sl_status st = h_try_submit(h, c, s, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
}

bool h_done(const client *c)
{
    return !sl_group_unfinished(c->group);
}

void h_check_stream(harness *h, const stream *s, size_t n_prompt, size_t n_tokens)
{
    ck_assert_msg(s->finished && s->status == SL_OK, "status %s: %s", sl_status_name(s->status), s->error);
    ck_assert_int_eq(s->ends, 1);
    ck_assert_uint_eq(s->n, n_tokens);
    int32_t hist[8192];
    sl_request_spec spec;
    h_spec(&spec, n_prompt, 1);
    memcpy(hist, spec.prompts->ids, n_prompt * sizeof *hist);
    sl_request_spec_free(&spec);
    for (size_t i = 0; i < n_tokens; i++) {
        hist[n_prompt + i] = sl_mock_next_token(&h->mo, hist, n_prompt + i, n_prompt);
        ck_assert_msg(hist[n_prompt + i] == s->tokens[i], "token %zu is %d, want %d", i, s->tokens[i],
                      hist[n_prompt + i]);
    }
}

void h_ask(harness *h, client *c, size_t n, int32_t max_tokens)
{
    sl_request_spec s;
    h_spec(&s, n, max_tokens);
    h_submit(h, c, &s);
}

void h_expect(harness *h, client *c, size_t n_prompt, size_t n_tokens, unsigned ms)
{
    H_UNTIL(h, h_done(c), ms);
    h_check_stream(h, &c->s[0], n_prompt, n_tokens);
}

void h_release(harness *h, client *c, unsigned ms)
{
    sl_group_release(c->group);
    H_UNTIL(h, h_clean(h), ms);
}

sl_request *h_request(client *c, uint32_t i)
{
    return c->group->requests[i];
}

bool h_clean(const harness *h)
{
    for (int i = 0; i < h->n; i++) {
        const sl_mock_counts *k = h->w[i] ? sl_mock_count(h->w[i]) : NULL;
        if (k && !k->dead && (k->jobs || k->pages_used || k->waiting_drain))
            return false;
    }
    for (const sl_member *w = h->r->cluster.members; w; w = w->next) {
        if (w->state != SL_MEMBER_DEAD && (w->account.requests || w->account.tokens))
            return false;
    }
    return !h->r->requests.active && !h->r->queue.waiting && !h->r->queue.length && !h->r->cluster.undrained;
}

int h_main(const char *suite, SFun setup, SFun teardown, const h_case *cases, size_t n)
{
    Suite *s = suite_create(suite);
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    for (size_t i = 0; i < n; i++) {
        if (cases[i].times)
            tcase_add_loop_test(t, cases[i].test, 0, cases[i].times);
        else
            tcase_add_test(t, cases[i].test);
    }
    suite_add_tcase(s, t);
    return run_suite(s);
}
