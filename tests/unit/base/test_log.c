/*
 * Log lines as a reader sees them: stderr is a pipe, and each line is compared or parsed as JSON. A value with a
 * newline must not produce a second line, and a very long value is cut.
 */
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log_impl.h"
#include "tests/unit/run_suite.h"

static int saved, fds[2];

static void capture(void)
{
    ck_assert_int_eq(pipe(fds), 0);
    saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
}

static char text[1 << 16];

static const char *captured(void)
{
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t len = 0;
    ssize_t n;
    while ((n = read(fds[0], text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(fds[0]);
    return text;
}

START_TEST(plain_line)
{
    sl_log_init(SL_LOG_INFO, false, "prefill/1");
    capture();
    sl_log(SL_LOG_INFO, "prefill", "commit", "rid=%016lx tokens=%d", 0xabcul, 96);
    sl_log(SL_LOG_DEBUG, "prefill", "hidden", "x=1");
    const char *line = captured();
    ck_assert_int_eq(strncmp(line, "ts=20", 5), 0);
    const char *rest = strchr(line, ' ');
    ck_assert_int_eq(rest[-1], 'Z');
    ck_assert_str_eq(rest,
                     " level=info proc=prefill/1 comp=prefill ev=commit rid=0000000000000abc tokens=96\n");
}
END_TEST

static struct timespec fake;

/* Replaces the function of the C library in this program, also for log.c. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
    if (id == CLOCK_REALTIME && fake.tv_sec) {
        *ts = fake;
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, id, ts);
}

/* The time in a line is the same as that of the C library, on every day from 1970 to 2150. */
START_TEST(dates)
{
    char want[40];
    sl_log_init(SL_LOG_INFO, false, "x");
    for (int64_t day = 1; day < 66000; day += day % 50 ? 1 : 9) {
        fake = (struct timespec){.tv_sec = day * 86400 + day * 7919 % 86400, .tv_nsec = 123456789};
        struct tm tm;
        char line[SL_LOG_LINE_BYTES];
        gmtime_r(&fake.tv_sec, &tm);
        strftime(want, sizeof want, "ts=%Y-%m-%dT%H:%M:%S.123Z ", &tm);
        sl_log_line(line, SL_LOG_INFO, "c", "e", "");
        ck_assert_msg(strncmp(line, want, strlen(want)) == 0, "%.40s is not %s", line, want);
    }
    fake.tv_sec = 0;
}
END_TEST

START_TEST(levels)
{
    sl_log_level l = SL_LOG_TRACE;
    ck_assert_int_eq(sl_log_level_parse("warn", &l), SL_OK);
    ck_assert_int_eq(l, SL_LOG_WARN);
    ck_assert_int_eq(sl_log_level_parse("loud", &l), SL_ERR_INVALID);
    ck_assert_int_eq(l, SL_LOG_WARN);
    sl_log_init(SL_LOG_WARN, false, "x");
    ck_assert(sl_log_enabled(SL_LOG_ERROR) && sl_log_enabled(SL_LOG_WARN) && !sl_log_enabled(SL_LOG_INFO));
}
END_TEST

START_TEST(no_forged_lines)
{
    sl_log_init(SL_LOG_INFO, false, "x");
    capture();
    sl_log(SL_LOG_INFO, "c", "e", "why=\"%s\"", "a\nts=1 level=error b\r");
    const char *line = captured();
    ck_assert_ptr_eq(strchr(line, '\n'), line + strlen(line) - 1);
    ck_assert_ptr_null(strchr(line, '\r'));
}
END_TEST

static const char *member(const char *line, const char *key)
{
    static char out[8192];
    json_t *v = json_loads(line, 0, NULL);
    ck_assert_msg(json_is_object(v), "not JSON: %s", line);
    const char *s = json_string_value(json_object_get(v, key));
    ck_assert_msg(s != NULL, "no %s in %s", key, line);
    snprintf(out, sizeof out, "%s", s);
    json_decref(v);
    return out;
}

START_TEST(json_line)
{
    sl_log_init(SL_LOG_INFO, true, "decode/2");
    capture();
    sl_log(SL_LOG_WARN, "decode", "lost", "rid=1f why=\"two \\\"words\\\"\" path=/a\\b\n free text");
    const char *line = captured();
    ck_assert_str_eq(member(line, "proc"), "decode/2");
    ck_assert_str_eq(member(line, "level"), "warn");
    ck_assert_str_eq(member(line, "rid"), "1f");
    ck_assert_str_eq(member(line, "why"), "two \"words\"");
    ck_assert_str_eq(member(line, "path"), "/a\\b\n");
    ck_assert_str_eq(member(line, "msg"), "text");
}
END_TEST

START_TEST(endless_values_are_cut)
{
    static char big[20000];
    memset(big, '"', sizeof big - 1);
    for (int json = 0; json < 2; json++) {
        sl_log_init(SL_LOG_INFO, json, "x");
        capture();
        sl_log(SL_LOG_INFO, "c", "e", "v=%s", big);
        sl_log(SL_LOG_INFO, "c", "second", "v=1");
        const char *line = captured();
        const char *end = strchr(line, '\n');
        ck_assert_ptr_nonnull(end);
        ck_assert(end - line <= 4096);
        ck_assert_ptr_nonnull(strstr(end, "second"));
    }
}
END_TEST

/* A text from a client becomes exactly one value, in both formats. */
static const struct {
    const char *value, *plain; /* as key k of the line, before " z=1" */
} hostile[] = {
    {"a", "k=a"},
    {"", "k=\"\""},
    {"a b", "k=\"a b\""},
    {"x level=error ev=forged", "k=\"x level=error ev=forged\""},
    {"x\" ev=forged k=\"", "k=\"x\\\" ev=forged k=\\\"\""},
    {"\"", "k=\"\\\"\""},
    {"a\\", "k=\"a\\\\\""},
    {"a\nts=1 level=error", "k=\"a\\x0ats=1 level=error\""},
    {"\r\t\x1b[31m\x7f", "k=\"\\x0d\\x09\\x1b[31m\\x7f\""},
    {"\xc3\xa9\xe2\x82\xac", "k=\xc3\xa9\xe2\x82\xac"},
    {"\xff\xc3", "k=\"\\xff\\xc3\""},
    {"\xc2\x85\xe2\x80\xa8", "k=\"\\xc2\\x85\\xe2\\x80\\xa8\""},
    {"\xc0\x8a", "k=\"\\xc0\\x8a\""},
};

START_TEST(hostile_values)
{
    const char *v = hostile[_i].value;
    char want[256];
    for (int quoted = 0; quoted < 2; quoted++) {
        sl_log_init(SL_LOG_INFO, false, "x");
        capture();
        if (quoted)
            sl_log(SL_LOG_INFO, "c", "e", "k=\"%s\" z=%d", v, 1);
        else
            sl_log(SL_LOG_INFO, "c", "e", "k=%s z=%d", v, 1);
        const char *at = strstr(captured(), " ev=e ");
        ck_assert_ptr_nonnull(at);
        const char *plain = hostile[_i].plain + 2;
        bool bare = quoted && plain[0] != '"';
        snprintf(want, sizeof want, " ev=e k=%s%s%s z=1\n", bare ? "\"" : "", plain, bare ? "\"" : "");
        ck_assert_str_eq(at, want);

        sl_log_init(SL_LOG_INFO, true, "x");
        capture();
        if (quoted)
            sl_log(SL_LOG_INFO, "c", "e", "k=\"%s\" z=%d", v, 1);
        else
            sl_log(SL_LOG_INFO, "c", "e", "k=%s z=%d", v, 1);
        json_t *line = json_loads(captured(), JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(line && json_object_size(line) == 7, "%s", text);
        ck_assert_str_eq(json_string_value(json_object_get(line, "ev")), "e");
        ck_assert_str_eq(json_string_value(json_object_get(line, "z")), "1");
        const char *got = json_string_value(json_object_get(line, "k"));
        if (!strchr(v, '\xff') && !strchr(v, '\xc2') && !strchr(v, '\xc0')) /* these are not valid UTF-8 */
            ck_assert_str_eq(got, v);
        json_decref(line);
    }
}
END_TEST

/* Every conversion that callers use, compared with snprintf. */
START_TEST(conversions)
{
    static const char bytes[4] = {'a', 'b', 'c', 'd'}; /* not terminated */
    char want[400];
    sl_log_init(SL_LOG_INFO, false, "x");
    capture();
#define ALL                                                                                                      \
    "a=%d b=%5.2f c=%016lx d=%u e=%zu f=%lld g=%%%c h=%.*s i=%-4d| j=%hhu k=%.3g l=%.2s m=%p n=%*d o=%+d p=%#x", \
        -3, 2.5, 0xabcul, 4000000000u, (size_t)7, -9ll, 'q', 3, bytes, 12, 255, 1e-9, "xyz", (void *)0x10,       \
        6, 42, 5, 255u
    sl_log(SL_LOG_INFO, "c", "e", ALL);
    snprintf(want, sizeof want, ALL);
    const char *at = strstr(captured(), " ev=e ");
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(strncmp(at + 6, want, strlen(want)), 0);
    ck_assert_str_eq(at + 6 + strlen(want), "\n");
#undef ALL
}
END_TEST

/* A JSON line that is cut is still JSON. */
START_TEST(cut_json)
{
    static char big[5000];
    for (size_t i = 0; i + 1 < sizeof big; i++)
        big[i] = "\x01\xc3\xa9\"x"[i % 5];
    for (size_t shift = 0; shift < 12; shift++) {
        sl_log_init(SL_LOG_INFO, true, "x");
        capture();
        sl_log(SL_LOG_INFO, "c", "e", "s=%.*s v=%s after=1", (int)shift, "aaaaaaaaaaaaaaaa", big);
        json_t *line = json_loads(captured(), JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(line != NULL, "%s", text);
        json_decref(line);
    }
}
END_TEST

static void *write_lines(void *arg)
{
    for (int i = 0; i < 100; i++)
        sl_log(SL_LOG_INFO, "thread", "line", "who=%s i=%d", (const char *)arg, i);
    return NULL;
}

START_TEST(lines_of_threads_do_not_mix)
{
    sl_log_init(SL_LOG_INFO, false, "x");
    capture();
    pthread_t a, b;
    char who_a[] = "aaaaaaaaaaaaaaaaaaaa", who_b[] = "bbbbbbbbbbbbbbbbbbbb";
    pthread_create(&a, NULL, write_lines, who_a);
    pthread_create(&b, NULL, write_lines, who_b);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    int lines = 0;
    for (char *p = (char *)(uintptr_t)captured(), *nl; (nl = strchr(p, '\n')); p = nl + 1) {
        ck_assert_int_eq(strncmp(p, "ts=", 3), 0);
        lines++;
    }
    ck_assert_int_eq(lines, 200);
}
END_TEST

START_TEST(clock_goes_forward)
{
    uint64_t a = sl_now_ns();
    usleep(2000);
    ck_assert_uint_ge(sl_now_ns() - a, 2000000);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("log");
    TCase *t = tcase_create("log");
    tcase_add_test(t, plain_line);
    tcase_add_test(t, levels);
    tcase_add_test(t, dates);
    tcase_add_test(t, no_forged_lines);
    tcase_add_test(t, json_line);
    tcase_add_loop_test(t, hostile_values, 0, SL_COUNT(hostile));
    tcase_add_test(t, conversions);
    tcase_add_test(t, cut_json);
    tcase_add_test(t, endless_values_are_cut);
    tcase_add_test(t, lines_of_threads_do_not_mix);
    tcase_add_test(t, clock_goes_forward);
    suite_add_tcase(s, t);
    return run_suite(s);
}
