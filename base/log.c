/*
 * One log line: formats an event into a buffer and gives it to the writer (log_writer.c). No allocation; an event that
 * is longer than the buffer is cut. JSON mode turns the key=value pairs into string members of one object per line.
 */
#include "base/log_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static sl_log_level g_level = SL_LOG_INFO;
static bool g_json;
static char g_process[64] = "sluice";

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void sl_log_init(sl_log_level level, bool json, const char *process_name)
{
    g_level = level;
    g_json = json;
    snprintf(g_process, sizeof g_process, "%s", process_name ? process_name : "sluice");
}

sl_status sl_log_level_parse(const char *text, sl_log_level *out)
{
    for (size_t i = 0; i < SL_COUNT(level_names); i++) {
        if (!strcmp(text, level_names[i])) {
            *out = (sl_log_level)i;
            return SL_OK;
        }
    }
    return SL_ERR_INVALID;
}

bool sl_log_enabled(sl_log_level level)
{
    return level <= g_level;
}

static _Thread_local const uint64_t *virtual_now;

void sl_now_virtual(const uint64_t *ns)
{
    virtual_now = ns;
}

uint64_t sl_now_ns(void)
{
    if (virtual_now)
        return *virtual_now;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Writes one character inside a JSON string; returns how many bytes of s it has. A byte that is not valid UTF-8 is
 * written as the code point with the same number, because JSON has no bytes. */
static size_t put_json_char(sl_log_text *t, const char *s)
{
    char esc[8];
    size_t len = sl_log_printable(s, strnlen(s, 4));
    if (*s == '"' || *s == '\\') {
        esc[0] = '\\', esc[1] = *s;
        sl_log_put(t, esc, 2);
    } else if (len) {
        sl_log_put(t, s, len);
    } else {
        snprintf(esc, sizeof esc, "\\u%04x", (unsigned)(unsigned char)*s);
        sl_log_put(t, esc, 6);
    }
    return len ? len : 1;
}

static void put_json_member(sl_log_text *t, const char *key, const char *value)
{
    sl_log_put_str(t, t->len > 1 ? ",\"" : "\"");
    sl_log_put_str(t, key);
    sl_log_put_str(t, "\":\"");
    while (*value)
        value += put_json_char(t, value);
    sl_log_put(t, "\"", 1);
}

/* Writes one character of a quoted value, which sl_log_fields has escaped: \" \\ \x0a, or the character itself. */
static const char *put_json_escaped(sl_log_text *t, const char *s)
{
    unsigned hex;
    char two[3] = "", byte[2] = "";
    if (*s != '\\' || !s[1])
        return s + put_json_char(t, s);
    if (s[1] != 'x' || !s[2] || !s[3])
        return s + 1 + put_json_char(t, s + 1);
    memcpy(two, s + 2, 2);
    hex = (unsigned)strtoul(two, NULL, 16);
    byte[0] = (char)hex;
    put_json_char(t, byte);
    return s + 4;
}

/* Copies `key=value key="va lue"` pairs as JSON string members; text without '=' becomes member "msg". */
static void put_json_pairs(sl_log_text *t, const char *s)
{
    while (*s && !t->full) {
        while (*s == ' ')
            s++;
        if (!*s)
            break;
        size_t start = t->len, klen = strcspn(s, "= ");
        sl_log_put_str(t, ",\"");
        if (s[klen] == '=') {
            for (const char *end = s + klen; s < end;)
                s += put_json_char(t, s);
            s++;
        } else {
            sl_log_put_str(t, "msg");
        }
        sl_log_put_str(t, "\":\"");
        if (t->full) { /* a member whose key is cut is left out */
            t->len = start;
            return;
        }
        bool quoted = *s == '"';
        s += quoted;
        while (*s && *s != (quoted ? '"' : ' '))
            s = quoted ? put_json_escaped(t, s) : s + put_json_char(t, s);
        s += quoted && *s == '"';
        t->full = false; /* a value that is cut still ends with a quote, for which there is room */
        t->cap += 2;
        sl_log_put(t, "\"", 1);
        t->cap -= 2;
        t->full = t->len >= t->cap;
    }
}

/* Escapes control characters, so that those in the text of the format do not begin a second line either. */
static void put_plain_pairs(sl_log_text *t, const char *s)
{
    while (*s) {
        size_t run = 0;
        while ((unsigned char)s[run] >= 0x20)
            run++;
        sl_log_put_run(t, s, run);
        s += run;
        if (*s) {
            sl_log_put(t, " ", 1);
            s++;
        }
    }
}

/* The year, month and day in the Gregorian calendar of a number of days since 1970. Years are counted from March, so
 * that the additional day of a leap year is the last day of a year. */
static void date_of(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t d = days + 719468;                     /* since 0000-03-01 */
    int64_t era = d / 146097, of_era = d % 146097; /* 400 years each */
    int64_t y = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int of_year = (int)(of_era - (365 * y + y / 4 - y / 100)); /* 0..365 */
    int from_march = (5 * of_year + 2) / 153;
    *day = of_year - (153 * from_march + 2) / 5 + 1;
    *month = from_march < 10 ? from_march + 3 : from_march - 9;
    *year = era * 400 + y + (*month <= 2);
}

/* The time in UTC. gmtime_r() is not used, because it takes a lock of the C library, and in a child of fork() no
 * thread may be left that releases the lock. */
static void time_stamp(char *out, size_t n)
{
    struct timespec ts;
    int64_t year;
    int month, day;
    clock_gettime(CLOCK_REALTIME, &ts);
    int second = (int)(ts.tv_sec % 86400);
    date_of(ts.tv_sec / 86400, &year, &month, &day);
    snprintf(out, n, "%04lld-%02d-%02dT%02d:%02d:%02d.%03ldZ", (long long)year, month, day, second / 3600,
             second / 60 % 60, second % 60, ts.tv_nsec / 1000000);
}

size_t sl_log_line(char out[SL_LOG_LINE_BYTES], sl_log_level level, const char *comp, const char *event,
                   const char *fields)
{
    enum { TAIL = 4 }; /* room for the closing quote, brace and newline */
    char stamp[64];
    sl_log_text t = {.buf = out, .cap = SL_LOG_LINE_BYTES - TAIL};
    const char *const names[] = {"ts", "level", "proc", "comp", "ev"};
    time_stamp(stamp, sizeof stamp);
    const char *const values[] = {stamp, level_names[level], g_process, comp, event};
    if (g_json)
        sl_log_put(&t, "{", 1);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        if (g_json) {
            put_json_member(&t, names[i], values[i]);
            continue;
        }
        sl_log_put_str(&t, i ? " " : "");
        sl_log_put_str(&t, names[i]);
        sl_log_put(&t, "=", 1);
        sl_log_put_str(&t, values[i]);
    }
    if (g_json) {
        put_json_pairs(&t, fields);
        out[t.len++] = '}';
    } else if (fields[0]) {
        sl_log_put(&t, " ", 1);
        put_plain_pairs(&t, fields);
    }
    out[t.len++] = '\n';
    return t.len;
}

void sl_log(sl_log_level level, const char *comp, const char *event, const char *fmt, ...)
{
    if (!sl_log_enabled(level))
        return;
    char fields[SL_LOG_FIELDS_BYTES], line[SL_LOG_LINE_BYTES];
    sl_log_text t = {.buf = fields, .cap = sizeof fields - 1};
    va_list ap;
    va_start(ap, fmt);
    sl_log_fields(&t, fmt, ap);
    va_end(ap);
    fields[t.len] = '\0';
    sl_log_write(line, sl_log_line(line, level, comp, event, fields));
}
