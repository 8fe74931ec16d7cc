/*
 * Every kind of job that the router's pool runs (SL_POOL_JOBS): real fronts over sockets, mock workers, and inputs that make the kind
 * run. A kind without inputs here does not compile.
 *
 * - An input that is eight times as long takes at most 24 times the processor time of the pool's threads, where the square is 64 times.
 * - A kind that looks at its guard looks more often in a longer input: what it does between two looks has a bound. Stopped at a look in
 *   the middle, it looks no more than a few times after that.
 *
 * The looks are counted by a wrapper of sl_guard_check() (the linker's --wrap), so the product has nothing for it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "router/front.h"
#include "tests/unit/router/harness.h"
#include "tests/unit/run_suite.h"

enum { TIMES = 8, MOST = 24, ROUNDS = 2, LOOKS_TIMES = 4, LOOKS_LEFT = 64 };
#define MEASURABLE_NS 4000000u /* below this the larger input is free, whatever the smaller one took */

static harness h;

/* ---- looks ---- */

static uint64_t looks;        /* of the pool's threads; atomic */
static uint64_t stop_at_look; /* 0: never */
static bool held;             /* a job stays at its look until it is stopped, or this is over; atomic */
static pthread_t loop_thread;

sl_status __real_sl_guard_check(const sl_guard *g, sl_err *err);
sl_status __wrap_sl_guard_check(const sl_guard *g, sl_err *err);
sl_status __wrap_sl_guard_check(const sl_guard *g, sl_err *err)
{
    if (g && !pthread_equal(pthread_self(), loop_thread) &&
        __atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) == stop_at_look)
        sl_guard_stop((sl_guard *)g);
    while (g && !pthread_equal(pthread_self(), loop_thread) && __atomic_load_n(&held, __ATOMIC_RELAXED) &&
           !__real_sl_guard_check(g, err))
        usleep(1000);
    return __real_sl_guard_check(g, err);
}

/* ---- compiles: none is made, and how many there are at once is seen ---- */

static int compiling, compiling_most, compiled; /* atomic */

bool __wrap_sl_grammar_known(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len);
bool __wrap_sl_grammar_known(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len)
{
    (void)g, (void)kind, (void)text, (void)len;
    return false;
}

sl_status __wrap_sl_grammar_check(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                                  sl_err *err);
sl_status __wrap_sl_grammar_check(sl_grammars *g, sl_grammar_kind kind, const char *text, size_t len,
                                  sl_err *err)
{
    (void)g, (void)kind, (void)text, (void)len, (void)err;
    const int now = __atomic_add_fetch(&compiling, 1, __ATOMIC_RELAXED);
    if (now > __atomic_load_n(&compiling_most, __ATOMIC_RELAXED))
        __atomic_store_n(&compiling_most, now, __ATOMIC_RELAXED);
    usleep(20000);
    __atomic_fetch_sub(&compiling, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&compiled, 1, __ATOMIC_RELAXED);
    return SL_OK;
}

/* ---- clients ---- */

/* host: the last number of the address of loopback that calls. */
static int connect_from(const sl_front_class *c, int host)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    const struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = {htonl(0x7f000000u + (unsigned)host)}};
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (h.r->fronts[i] && h.r->fronts[i]->c == c)
            a.sin_port = htons((uint16_t)c->port(h.r->fronts[i]));
    }
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(fd >= 0 && bind(fd, (const struct sockaddr *)&own, sizeof own) == 0);
    ck_assert(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static int connect_to(const sl_front_class *c)
{
    return connect_from(c, 1);
}

static uint64_t ran(sl_pool_job_id k)
{
    return __atomic_load_n(&sl_router_shared(h.r)->pool.ran[k], __ATOMIC_RELAXED);
}

static uint64_t cpu_ns(sl_pool_job_id k)
{
    return __atomic_load_n(&sl_router_shared(h.r)->pool.cpu_ns[k], __ATOMIC_RELAXED);
}

static bool idle(void)
{
    const sl_front_shared *s = sl_router_shared(h.r);
    return !s->pool.running && !s->pool.waiting && !__atomic_load_n(&s->budget.held, __ATOMIC_RELAXED) &&
           !h.r->requests.active;
}

static void drain(int fd)
{
    static char bytes[1 << 16];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
}

static uint64_t most_read; /* by how much what is held of bodies grew in a turn, at most */

static void turn_that_reads(void)
{
    const uint64_t *held_now = &sl_router_shared(h.r)->budget.held,
                   before = __atomic_load_n(held_now, __ATOMIC_RELAXED);
    h_turn(&h);
    const uint64_t after = __atomic_load_n(held_now, __ATOMIC_RELAXED);
    if (after > before && after - before > most_read)
        most_read = after - before;
}

/* Sends bytes [at, to), and takes what is answered meanwhile. */
static void send_part(int fd, const sl_strbuf *b, size_t at, size_t to)
{
    while (at < to) {
        ssize_t n = send(fd, b->data + at, to - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        ck_assert(n > 0 || errno == EAGAIN);
        at += n > 0 ? (size_t)n : 0;
        turn_that_reads();
        drain(fd);
    }
}

/* Sends all bytes, after the first `hello` bytes not before there is an answer, and turns until a job of this kind has run and nothing is
 * left of the request. */
static void exchange(const sl_front_class *front, const sl_strbuf *b, size_t hello, sl_pool_job_id k)
{
    const uint64_t before = ran(k);
    char one;
    int fd = connect_to(front);
    ck_assert(!b->bad);
    send_part(fd, b, 0, hello);
    if (hello)
        H_UNTIL(&h, recv(fd, &one, 1, MSG_DONTWAIT) == 1, 2000);
    send_part(fd, b, hello, b->len);
    const uint64_t end = sl_now_ns() + 20 * 1000000000ull;
    while (ran(k) == before) {
        ck_assert_msg(sl_now_ns() < end, "no job %s", sl_pool_jobs[k].name);
        h_turn(&h);
        drain(fd);
    }
    close(fd);
    H_UNTIL(&h, idle(), 5000);
}

/* ---- inputs ---- */

/* A text of about n bytes: begin, the part again and again, end. */
typedef struct shape {
    const char *path, *begin, *part, *end;
} shape;

static sl_strbuf text_of(const shape *s, size_t n)
{
    sl_strbuf b = {0};
    sl_sb_str(&b, s->begin);
    while (b.len < n)
        sl_sb_str(&b, s->part);
    sl_sb_str(&b, s->end);
    return b;
}

static void post(const shape *s, size_t n, sl_pool_job_id k)
{
    sl_strbuf body = text_of(s, n), b = {0};
    sl_sb_printf(
        &b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
        s->path, body.len);
    sl_sb_append(&b, body.data, body.len);
    exchange(&sl_front_http, &b, 0, k);
    sl_sb_free(&body);
    sl_sb_free(&b);
}

#define USER "{\"role\":\"user\",\"content\":\"a\"}"
static const shape bodies[] = {
    {"/v1/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"prompt\":\"", "ab ", "\"}"},
    {"/v1/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"prompt\":\"", "\\u0301\\u0316", "\"}"},
    {"/v1/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"echo\":true,\"prompt\":\"", "\\u0001",
     "\"}"},
    {"/v1/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"prompt\":[1", ",2", "]}"},
    {"/v1/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"metadata\":[1", ",{\"a\":[]}",
     "],\"prompt\":\"a\"}"},
    {"/v1/chat/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"messages\":[", USER ",", USER "]}"},
    {"/v1/chat/completions", "{\"model\":\"sluice\",\"max_tokens\":1,\"tools\":[",
     "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"a\":[1,2]}}},",
     "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],\"messages\":[" USER "]}"},
    {"/v1/chat/completions",
     "{\"model\":\"sluice\",\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"a\\\":[1",
     ",{}", "]}\"}}]}," USER "]}"},
    {"/v1/responses", "{\"model\":\"sluice\",\"max_output_tokens\":1,\"input\":[", USER ",", USER "]}"},
    {"/v1/messages", "{\"model\":\"sluice\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[",
     "{\"type\":\"text\",\"text\":\"a\"},", "{\"type\":\"text\",\"text\":\"a\"}]}]}"},
    {"/v1/messages/count_tokens", "{\"model\":\"sluice\",\"messages\":[{\"role\":\"user\",\"content\":\"",
     "ab ", "\"}]}"},
    {"/generate", "{\"sampling_params\":{\"max_new_tokens\":1},\"text\":\"", "ab ", "\"}"},
    {"/tokenize", "{\"model\":\"sluice\",\"prompt\":\"", "ab ", "\"}"},
    {"/detokenize", "{\"model\":\"sluice\",\"tokens\":[1", ",97", "]}"},
};

static void put_field(sl_strbuf *b, int number, const void *bytes, size_t n)
{
    sl_sb_char(b, (char)(number << 3 | 2));
    for (size_t left = n;; left >>= 7) {
        sl_sb_char(b, (char)((left & 127) | (left > 127 ? 128 : 0)));
        if (left <= 127)
            break;
    }
    sl_sb_append(b, bytes, n);
}

static void put_frame(sl_strbuf *b, int type, int flags, int number, const void *bytes, size_t n)
{
    const char head[9] = {(char)(n >> 16), (char)(n >> 8), (char)n, (char)type, (char)flags, 0, 0, 0,
                          (char)number};
    sl_sb_append(b, head, sizeof head);
    sl_sb_append(b, bytes, n);
}

/* A call with this message, as HTTP/2 frames. */
static void call(const char *path, const sl_strbuf *message, sl_pool_job_id k)
{
    static const char *const fixed[][2] = {{":method", "POST"},
                                           {":scheme", "http"},
                                           {":authority", "x"},
                                           {"content-type", "application/grpc"},
                                           {"te", "trailers"}};
    enum { FRAME = 16384, HEADERS = 1, SETTINGS = 4, WINDOW = 8, ACK = 1, END_STREAM = 1, END_HEADERS = 4 };
    sl_strbuf b = {0}, head = {0}, body = {0};
    sl_sb_str(&b, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    put_frame(&b, SETTINGS, 0, 0, "\0\4\x3f\xff\xff\xff", 6); /* windows of the answer that never close */
    put_frame(&b, WINDOW, 0, 0, "\x3f\xff\0\0", 4);
    const size_t hello = b.len;
    put_frame(&b, SETTINGS, ACK, 0, "", 0);
    for (size_t i = 0; i <= SL_COUNT(fixed); i++) {
        const char *name = i ? fixed[i - 1][0] : ":path", *value = i ? fixed[i - 1][1] : path;
        sl_sb_printf(&head, "%c%c%s%c%s", 0x10, (int)strlen(name), name, (int)strlen(value), value);
    }
    put_frame(&b, HEADERS, END_HEADERS, 1, head.data, head.len);
    const char prefix[5] = {0, (char)(message->len >> 24), (char)(message->len >> 16),
                            (char)(message->len >> 8), (char)message->len};
    sl_sb_append(&body, prefix, sizeof prefix);
    sl_sb_append(&body, message->data ? message->data : "", message->len);
    for (size_t at = 0; at < body.len; at += FRAME) {
        size_t n = body.len - at < FRAME ? body.len - at : FRAME;
        put_frame(&b, 0, at + n == body.len ? END_STREAM : 0, 1, body.data + at, n);
    }
    exchange(&sl_front_grpc, &b, hello, k);
    sl_sb_free(&b);
    sl_sb_free(&head);
    sl_sb_free(&body);
}

#define SERVICE "/sglang.grpc.scheduler.SglangScheduler/"

/* A GenerateRequest (proto/sglang_scheduler.proto): request_id, tokenized {original_text, input_ids}, sampling_params, and `more` fields. */
static void generate(size_t text, size_t ids, uint32_t max_new, const char *more, sl_pool_job_id k)
{
    static int calls;
    char id[32];
    sl_strbuf in = {0}, m = {0}, params = {0};
    char *p = malloc(text + ids + 1);
    memset(p, 'a', text + ids);
    put_field(&in, text ? 1 : 2, p, text + ids);
    snprintf(id, sizeof id, "call-%d", calls++);
    put_field(&m, 1, id, strlen(id));
    put_field(&m, 2, in.data, in.len);
    sl_sb_char(&params, 8 << 3);
    for (uint32_t left = max_new;; left >>= 7) {
        sl_sb_char(&params, (char)((left & 127) | (left > 127 ? 128 : 0)));
        if (left <= 127)
            break;
    }
    put_field(&m, 4, params.data, params.len);
    sl_sb_str(&m, more);
    call(SERVICE "Generate", &m, k);
    free(p);
    sl_sb_free(&in);
    sl_sb_free(&m);
    sl_sb_free(&params);
}

/* ---- inputs of each kind: which (from 0), and about n bytes; false: there are no more ---- */

typedef bool make_fn(sl_pool_job_id k, size_t which, size_t n);

static bool make_HTTP_REQUEST(sl_pool_job_id k, size_t which, size_t n)
{
    if (which >= SL_COUNT(bodies))
        return false;
    post(&bodies[which], n, k);
    return true;
}

static bool make_GRPC_REQUEST(sl_pool_job_id k, size_t which, size_t n)
{
    if (which == 0)
        generate(n, 0, 1, "", k);
    else if (which == 1)
        generate(0, n, 1, "", k);
    return which < 2;
}

/* What follows a short prompt, and what is shown of a long one. */
static bool make_HTTP_DOCUMENT(sl_pool_job_id k, size_t which, size_t n)
{
    char begin[128];
    const size_t tokens = n / 64;
    snprintf(begin, sizeof begin, "{\"model\":\"sluice\",\"max_tokens\":%zu,\"logprobs\":2,\"prompt\":[1,2]",
             tokens);
    const shape answer = {"/v1/completions", begin, " ", "}"};
    const shape shown = {"/v1/completions",
                         "{\"model\":\"sluice\",\"max_tokens\":1,\"echo\":true,\"n\":16,\"prompt\":[1", ",97",
                         "]}"};
    if (which < 2)
        post(which ? &shown : &answer, which ? n / 4 : 0, k);
    return which < 2;
}

/* What follows a short prompt, and the log-probabilities of a long one: return_logprob, logprob_start_len, top_logprobs_num. */
static bool make_GRPC_COMPLETE(sl_pool_job_id k, size_t which, size_t n)
{
    if (which == 0)
        generate(0, 2, (uint32_t)(n / 32), "\x28\x01\x38\x02", k);
    else if (which == 1)
        generate(0, n / 16, 1, "\x28\x01\x30\x01\x38\x02", k);
    return which < 2;
}

static char model_dir[64];

static bool make_TOKENIZER_ARCHIVE(sl_pool_job_id k, size_t which, size_t n)
{
    char path[128];
    if (which)
        return false;
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    FILE *f = fopen(path, "w");
    for (size_t i = 0; i < 16 * n; i++)
        fputc('a', f);
    fclose(f);
    const sl_strbuf empty = {0};
    call(SERVICE "GetTokenizer", &empty, k);
    return true;
}

static bool make_FREE_HTTP_REQUEST(sl_pool_job_id k, size_t which, size_t n)
{
    enum { IDS = 3, TOOLS = 6 }; /* of bodies[] */
    if (which < 2)
        post(&bodies[which ? TOOLS : IDS], n, k);
    return which < 2;
}

static bool make_FREE_GRPC_REQUEST(sl_pool_job_id k, size_t which, size_t n)
{
    return make_GRPC_REQUEST(k, which, n);
}

/* Of a request that was long. */
static bool make_FREE_ANSWER(sl_pool_job_id k, size_t which, size_t n)
{
    if (which == 0)
        post(&bodies[0], n, k);
    return which == 0;
}

static make_fn *const makers[] = {
#define MAKER(id, run, done, lanes, looks, cost) make_##id,
    SL_POOL_JOBS(MAKER)
#undef MAKER
};
_Static_assert(SL_COUNT(makers) == SL_POOL_JOB_KINDS, "a kind of job without inputs");

/* ---- measuring ---- */

static void prepare_router(void)
{
    loop_thread = pthread_self();
    h_init(&h);
    h.o.front.host = "127.0.0.1";
    h.o.front.http_port = h.o.front.grpc_port = 0;
    h.o.model.max_context = h.mo.max_context = 1 << 24;
    h.o.front.max_body_bytes = 64 << 20;
    h.o.front.max_request_bytes = 2048ull << 20;
    h.o.model.chat_template = "qwen3";
    h.o.model.path = model_dir;
    h.mo.total_pages = 1 << 20;
    h.mo.prefill_us = h.mo.reserve_us = h.mo.step_us = 0;
    h.mo.eos = -1;
}

static void open_router(void)
{
    prepare_router();
    h_open_cluster(&h, 1, 1);
}

static void setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    snprintf(model_dir, sizeof model_dir, "/tmp/sl-test-pool-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(model_dir));
}

static void teardown(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/tokenizer.json", model_dir);
    unlink(path);
    rmdir(model_dir);
}

typedef struct cost {
    uint64_t ns, looks; /* of the kind; of all jobs meanwhile */
} cost;

/* The least of some rounds; each in a router of its own, because an archive is made once. False: there is no such input. */
static bool measure(sl_pool_job_id k, size_t which, size_t n, int rounds, cost *out)
{
    bool made = true;
    *out = (cost){UINT64_MAX, 0};
    for (int i = 0; i < rounds && made; i++) {
        open_router();
        __atomic_store_n(&looks, 0, __ATOMIC_RELAXED);
        made = makers[k](k, which, n);
        const uint64_t ns = cpu_ns(k);
        out->ns = ns < out->ns ? ns : out->ns;
        out->looks = __atomic_load_n(&looks, __ATOMIC_RELAXED);
        h_close(&h);
    }
    return made;
}

enum { BYTES = 48 << 10 };

START_TEST(cost_follows_from_the_bytes)
{
    const sl_pool_job *job = &sl_pool_jobs[_i];
    const sl_pool_job_id k = (sl_pool_job_id)_i;
    cost few, many;
    for (size_t which = 0; measure(k, which, BYTES, ROUNDS, &few); which++) {
        measure(k, which, TIMES * BYTES, 1, &many);
        if (many.ns > MEASURABLE_NS &&
            many.ns > MOST * few.ns) /* once more, in case something else delayed it */
            measure(k, which, TIMES * BYTES, ROUNDS, &many);
        if (getenv("SL_TEST_LOG"))
            printf("%s %zu: %.2f ms and %lu looks, %.2f ms and %lu looks\n", job->name, which,
                   (double)few.ns / 1e6, few.looks, (double)many.ns / 1e6, many.looks);
        ck_assert_msg(many.ns <= MEASURABLE_NS || many.ns <= MOST * few.ns,
                      "%s, input %zu: %.2f ms, %.2f ms for 8 times the bytes", job->name, which,
                      (double)few.ns / 1e6, (double)many.ns / 1e6);
        ck_assert_msg(!job->looks || many.ns <= MEASURABLE_NS || many.looks >= LOOKS_TIMES * few.looks,
                      "%s, input %zu: %lu looks at the guard, %lu for 8 times the bytes", job->name, which,
                      few.looks, many.looks);
    }
}
END_TEST

/* As when the client leaves, the deadline passes or the router drains: the job ends, and nothing is left of the job (exchange() waits for that). */
START_TEST(a_stop_ends_the_job)
{
    const sl_pool_job_id k = (sl_pool_job_id)_i;
    cost all, stopped;
    bool none = !sl_pool_jobs[k].looks;
    for (size_t which = 0; !none && measure(k, which, TIMES * BYTES, 1, &all); which++) {
        if (all.looks < 4)
            continue;
        stop_at_look = k == SL_JOB_HTTP_DOCUMENT
                           ? all.looks - 8
                           : all.looks / 2; /* a document follows a job that looks, too */
        measure(k, which, TIMES * BYTES, 1, &stopped);
        ck_assert_msg(stopped.looks <= stop_at_look + LOOKS_LEFT,
                      "%s, input %zu: %lu looks at the guard of %lu, stopped at the %luth",
                      sl_pool_jobs[k].name, which, stopped.looks, all.looks, stop_at_look);
        stop_at_look = 0;
    }
}
END_TEST

/* ---- lanes and ends: jobs that stay at a look until something stops them ---- */

enum { HELD_MAX = 8, SHORT = 16 << 10, LONG = 128 << 10 };

static int held_fd[HELD_MAX];
static int n_held;

static const sl_pool *pool(void)
{
    return &sl_router_shared(h.r)->pool;
}

static void open_held(uint32_t request_timeout_ms)
{
    n_held = 0;
    prepare_router();
    h.o.request.timeout_ms = request_timeout_ms;
    h_open_cluster(&h, 1, 1);
    __atomic_store_n(&held, true, __ATOMIC_RELAXED);
}

/* Sends a text of about n bytes from this address, until the pool has its job. */
static void post_held(int host, size_t n)
{
    const uint32_t before = pool()->waiting + pool()->running;
    sl_strbuf body = text_of(&bodies[0], n), b = {0};
    sl_sb_printf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", bodies[0].path, body.len);
    sl_sb_append(&b, body.data, body.len);
    held_fd[n_held] = connect_from(&sl_front_http, host);
    send_part(held_fd[n_held++], &b, 0, b.len);
    H_UNTIL(&h, pool()->waiting + pool()->running == before + 1, 5000);
    sl_sb_free(&body);
    sl_sb_free(&b);
}

/* Whether every answer begins with this status. */
static void expect_status(const char *status)
{
    char got[64] = {0};
    for (int i = 0; i < n_held; i++) {
        memset(got, 0, sizeof got);
        H_UNTIL(&h, recv(held_fd[i], got, sizeof got - 1, MSG_DONTWAIT) > 0, 10000);
        ck_assert_msg(strstr(got, status), "%s, not %s", got, status);
    }
}

static void close_held(void)
{
    __atomic_store_n(&held, false, __ATOMIC_RELAXED);
    for (int i = 0; i < n_held; i++)
        close(held_fd[i]);
    H_UNTIL(&h, idle(), 20000);
    h_close(&h);
}

/* Of three that work at once two are of one client, and two are long: a short text of another client waits for none of them. */
START_TEST(lanes)
{
    open_held(60000);
    for (int i = 0; i < 3; i++)
        post_held(1, SHORT);
    ck_assert_uint_eq(pool()->running, 2);
    post_held(2, LONG);
    ck_assert_uint_eq(pool()->running, 3);
    close_held();
    open_held(60000);
    for (int i = 1; i <= 3; i++)
        post_held(i, LONG);
    ck_assert_uint_eq(pool()->running, 2);
    post_held(4, SHORT);
    ck_assert_uint_eq(pool()->running, 3);
    ck_assert_uint_eq(pool()->running_long, 2);
    close_held();
}
END_TEST

/* Texts of constraints compile one at a time, whoever sends them. */
START_TEST(one_compiles_at_a_time)
{
    enum { CALLS = 6 };
    open_held(60000);
    __atomic_store_n(&held, false, __ATOMIC_RELAXED);
    __atomic_store_n(&compiled, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&compiling_most, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < CALLS; i++) {
        sl_strbuf b = {0};
        char body[160];
        snprintf(body, sizeof body,
                 "{\"model\":\"sluice\",\"max_tokens\":1,\"prompt\":\"a\",\"guided_regex\":\"[a-z]{%d}\"}",
                 i + 1);
        sl_sb_printf(&b, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
        held_fd[n_held] = connect_from(&sl_front_http, i + 1);
        send_part(held_fd[n_held++], &b, 0, b.len);
        sl_sb_free(&b);
    }
    H_UNTIL(&h, __atomic_load_n(&compiled, __ATOMIC_RELAXED) == CALLS, 10000);
    ck_assert_int_eq(__atomic_load_n(&compiling_most, __ATOMIC_RELAXED), 1);
    close_held();
}
END_TEST

/* Jobs that work and jobs that wait end at the deadline of their request. */
START_TEST(a_deadline_ends_jobs)
{
    open_held(300);
    for (int i = 0; i < 5; i++)
        post_held(1, SHORT);
    expect_status("HTTP/1.1 504");
    ck_assert_uint_eq(pool()->waiting + pool()->running, 0);
    close_held();
}
END_TEST

/* A drain ends those whose requests are not admitted yet. */
START_TEST(a_drain_ends_jobs)
{
    open_held(60000);
    for (int i = 0; i < 5; i++)
        post_held(1 + i / 3, SHORT);
    sl_router_stop(h.r);
    expect_status("HTTP/1.1 503");
    close_held();
}
END_TEST

/* A client that leaves takes its jobs with it, at work or waiting. */
START_TEST(a_client_that_leaves_ends_jobs)
{
    open_held(60000);
    for (int i = 0; i < 5; i++)
        post_held(1, SHORT);
    for (int i = 0; i < n_held; i++)
        close(held_fd[i]);
    n_held = 0;
    H_UNTIL(&h, idle(), 10000);
    close_held();
}
END_TEST

/* However much waits in the socket, one turn of the loop reads little: the bytes held for a body grow in steps. */
START_TEST(a_connection_is_read_a_part_in_a_turn)
{
    enum { BODY = 2000000, STEP = 192 << 10 };
    prepare_router();
    h_open_cluster(&h, 1, 1);
    most_read = 0;
    generate(0, BODY, 1, "", SL_JOB_GRPC_REQUEST);
    ck_assert_msg(most_read > 0 && most_read <= STEP, "%lu bytes of a body were read in a turn",
                  (unsigned long)most_read);
    h_close(&h);
}
END_TEST

/* The table says what the documentation says. */
START_TEST(every_row_is_whole)
{
    for (int i = 0; i < SL_POOL_JOB_KINDS; i++) {
        const sl_pool_job *job = &sl_pool_jobs[i];
        ck_assert(job->name && job->run && job->done && job->cost && *job->cost);
        ck_assert_msg(job->looks || !job->lanes,
                      "%s: works on bytes that a client has just sent, and never looks", job->name);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pool");
    TCase *t = tcase_create("jobs");
    tcase_set_timeout(t, 120);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, every_row_is_whole);
    if (!RUN_SUITE_SANITIZED) /* compares processor times */
        tcase_add_loop_test(t, cost_follows_from_the_bytes, 0, SL_POOL_JOB_KINDS);
    tcase_add_test(t, a_connection_is_read_a_part_in_a_turn);
    tcase_add_test(t, lanes);
    tcase_add_test(t, one_compiles_at_a_time);
    tcase_add_test(t, a_deadline_ends_jobs);
    tcase_add_test(t, a_drain_ends_jobs);
    tcase_add_test(t, a_client_that_leaves_ends_jobs);
    tcase_add_loop_test(t, a_stop_ends_the_job, 0, SL_POOL_JOB_KINDS);
    suite_add_tcase(s, t);
    return run_suite(s);
}
