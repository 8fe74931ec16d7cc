/*
 * One router and some mock workers over loopback, stepped on one thread: nothing happens unless the test lets
 * it, so every interleaving a test wants can be made. Time is real; timeouts in the options are short.
 */
#ifndef TESTS_ROUTER_HARNESS_H
#define TESTS_ROUTER_HARNESS_H

#include <check.h>

#include "bench/mock/mock.h"
#include "router/core/core_impl.h"

enum { H_WORKERS = 10 };

typedef struct harness {
    sl_router *r;
    sl_tokenizer *tok;
    sl_router_opts o;
    sl_mock_opts mo;
    sl_mock *w[H_WORKERS];
    int n;
    char fabric[32];
    char names[H_WORKERS][16];
} harness;

/* What a sink collected of one generation. */
typedef struct stream {
    int32_t tokens[2048];
    size_t n;
    char text[8192];
    size_t len;
    int ends;
    bool finished;
    sl_finish finish;
    sl_status status;
    char error[256];
    char matched[64];
    int32_t matched_token;
    uint32_t completion_tokens, prompt_tokens;
} stream;

enum { MAX_STREAMS = 8 };
typedef struct client {
    sl_group *group;
    stream s[MAX_STREAMS];
    void (*hook)(struct client *c, const sl_output *o); /* runs inside the sink */
    void *arg;
} client;

/* Default options; change h->o and h->mo, then h_open. */
void h_init(harness *h);
void h_open(harness *h);
void h_open_cluster(harness *h, int prefills, int decodes);
/* Adds a worker and waits until it has joined. */
int h_add(harness *h, sl_role role);
int h_add_opts(harness *h, const sl_mock_opts *o); /* does not wait */
void h_close(harness *h);
/* One turn of everybody. */
void h_turn(harness *h);
/* Turns until the condition holds; fails the test after ms, the limit for an idle machine, times H_PATIENCE: limits end
 * what hangs and do not judge speed. */
enum { H_PATIENCE = 10 };
#define H_UNTIL(h, cond, ms)                                                                                 \
    do {                                                                                                     \
        uint64_t end_ = sl_now_ns() + (ms)*1000000ull * H_PATIENCE;                                          \
        while (!(cond)) {                                                                                    \
            ck_assert_msg(sl_now_ns() < end_, "not within %d ms: %s", (int)(ms)*H_PATIENCE, #cond);          \
            h_turn(h);                                                                                       \
        }                                                                                                    \
    } while (0)
/* Turns for ms milliseconds, and at least H_TURNS times: on a busy machine the time can pass within the first turn. */
#define H_TURNS 200
void h_run(harness *h, unsigned ms);

/* A spec with one prompt of n tokens 'a' + i % 26 (+ shift) and max_tokens. */
void h_spec(sl_request_spec *s, size_t n, int32_t max_tokens);
void h_submit(harness *h, client *c, sl_request_spec *s);
sl_status h_try_submit(harness *h, client *c, sl_request_spec *s, sl_err *err);
bool h_done(const client *c);
/* One prompt of n tokens, greedy, max_tokens: submitted, must be admitted. */
void h_ask(harness *h, client *c, size_t n, int32_t max_tokens);
/* Turns until everything of c has ended (within ms); stream 0 must be what the mocks yield. */
void h_expect(harness *h, client *c, size_t n_prompt, size_t n_tokens, unsigned ms);
/* Releases the group and turns until every worker's books are empty (within ms). */
void h_release(harness *h, client *c, unsigned ms);
/* The stream must be what the mocks' function yields for this prompt. */
void h_check_stream(harness *h, const stream *s, size_t n_prompt, size_t n_tokens);
sl_request *h_request(client *c, uint32_t i);
/* Every worker's books are empty. */
bool h_clean(const harness *h);

typedef struct h_case {
    const TTest *test;
    int times; /* of a loop test; 0: an ordinary one */
} h_case;

/* Runs a suite of one test case; returns the program's exit code. */
int h_main(const char *suite, SFun setup, SFun teardown, const h_case *cases, size_t n);

#endif
