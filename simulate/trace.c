/* See trace.h: reading and writing. trace_scale.c changes and makes traces. */
#include "simulate/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"

enum { MAX_TOKENS = 1 << 24 };
#define MAX_MS ((int64_t)1 << 40)
#define MAX_ID ((int64_t)1 << 52)
#define MAX_FILE ((size_t)1 << 30)

/* ---- numbers of blocks: those of the file, numbered anew in the order of their first use ---- */

typedef struct numbering {
    int64_t *key; /* [mask + 1], -1: empty */
    uint32_t *value;
    size_t mask, n;
} numbering;

static size_t place_of(const numbering *m, int64_t id)
{
    size_t i = (size_t)((uint64_t)id * 0x9e3779b97f4a7c15ull >> 20) & m->mask;
    while (m->key[i] >= 0 && m->key[i] != id)
        i = (i + 1) & m->mask;
    return i;
}

static bool make_room(numbering *m)
{
    if (m->key && m->n < (m->mask + 1) / 2)
        return true;
    size_t slots = m->key ? 2 * (m->mask + 1) : 1024;
    numbering next = {.key = malloc(slots * sizeof *next.key),
                      .value = malloc(slots * sizeof *next.value),
                      .mask = slots - 1,
                      .n = m->n};
    if (!next.key || !next.value) {
        free(next.key);
        free(next.value);
        return false;
    }
    memset(next.key, 0xff, slots * sizeof *next.key);
    for (size_t i = 0; m->key && i <= m->mask; i++) {
        if (m->key[i] < 0)
            continue;
        size_t at = place_of(&next, m->key[i]);
        next.key[at] = m->key[i];
        next.value[at] = m->value[i];
    }
    free(m->key);
    free(m->value);
    *m = next;
    return true;
}

static bool number_of(numbering *m, int64_t id, uint32_t *out)
{
    if (!make_room(m))
        return false;
    size_t i = place_of(m, id);
    if (m->key[i] < 0) {
        m->key[i] = id;
        m->value[i] = (uint32_t)m->n++;
    }
    *out = m->value[i];
    return true;
}

/* ---- lines ---- */

typedef struct reader {
    sl_sim_trace *t;
    numbering ids;
    size_t cap, cap_ids;
    sl_err *err;
} reader;

static bool grow(void **array, size_t *cap, size_t need, size_t each)
{
    if (need <= *cap)
        return true;
    size_t n = *cap ? 2 * *cap : 1024;
    while (n < need)
        n *= 2;
    void *p = realloc(*array, n * each);
    if (!p)
        return false;
    *array = p;
    *cap = n;
    return true;
}

static sl_status no_memory(reader *r)
{
    return sl_fail(r->err, SL_ERR_NO_MEMORY, "out of memory");
}

static sl_status check_fields(const json_t *line, const char *where, sl_err *err)
{
    static const char *const known[] = {"timestamp", "input_length", "output_length", "hash_ids"};
    const char *key;
    json_t *value;
    if (!json_is_object(line))
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: want an object with timestamp, input_length, output_length, hash_ids", where);
    json_object_foreach((json_t *)(uintptr_t)line, key, value)
    {
        size_t i = 0;
        while (i < SL_COUNT(known) && strcmp(known[i], key))
            i++;
        if (i == SL_COUNT(known))
            return sl_fail(
                err, SL_ERR_INVALID,
                "%s.%.40s: unknown field; known are timestamp, input_length, output_length, hash_ids", where,
                key);
    }
    return SL_OK;
}

static sl_status take_ids(reader *r, const json_t *list, const char *where, sl_sim_request *q)
{
    sl_sim_trace *t = r->t;
    size_t want = ((size_t)q->input + SL_SIM_BLOCK_TOKENS - 1) / SL_SIM_BLOCK_TOKENS, i;
    json_t *v;
    if (json_array_size(list) != want)
        return sl_fail(r->err, SL_ERR_INVALID,
                       "%s.hash_ids: has %zu numbers, want %zu for %d tokens in blocks of %d", where,
                       json_array_size(list), want, q->input, SL_SIM_BLOCK_TOKENS);
    if (!grow((void **)&t->ids, &r->cap_ids, t->n_ids + want, sizeof *t->ids))
        return no_memory(r);
    q->first = (uint32_t)t->n_ids;
    q->n_blocks = (uint32_t)want;
    json_array_foreach((json_t *)(uintptr_t)list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > MAX_ID)
            return sl_fail(r->err, SL_ERR_INVALID, "%s.hash_ids[%zu]: want an integer from 0 to %lld", where,
                           i, (long long)MAX_ID);
        if (!number_of(&r->ids, id, &t->ids[t->n_ids + i]))
            return no_memory(r);
    }
    t->n_ids += want;
    return SL_OK;
}

static sl_status take_line(reader *r, const json_t *line, const char *where)
{
    sl_sim_trace *t = r->t;
    int64_t ms, input, output;
    json_t *ids;
    SL_TRY(check_fields(line, where, r->err));
    SL_TRY(sl_json_get_int(line, where, "timestamp", 0, MAX_MS, &ms, r->err));
    SL_TRY(sl_json_get_int(line, where, "input_length", 1, MAX_TOKENS, &input, r->err));
    SL_TRY(sl_json_get_int(line, where, "output_length", 1, MAX_TOKENS, &output, r->err));
    SL_TRY(sl_json_get_array(line, where, "hash_ids", &ids, r->err));
    sl_sim_request q = {
        .arrival_ns = (uint64_t)ms * 1000000u, .input = (int32_t)input, .output = (int32_t)output};
    if (t->n && q.arrival_ns < t->requests[t->n - 1].arrival_ns)
        return sl_fail(r->err, SL_ERR_INVALID,
                       "%s.timestamp: %lld ms is before the %lld ms of the line before it", where,
                       (long long)ms, (long long)(t->requests[t->n - 1].arrival_ns / 1000000u));
    if (!grow((void **)&t->requests, &r->cap, t->n + 1, sizeof *t->requests))
        return no_memory(r);
    SL_TRY(take_ids(r, ids, where, &q));
    t->requests[t->n++] = q;
    return SL_OK;
}

static sl_status read_line(reader *r, const char *text, size_t n, const char *name, size_t number)
{
    char where[300];
    json_t *line;
    snprintf(where, sizeof where, "%.250s:%zu", name, number);
    SL_TRY(sl_json_parse(text, n, where, &line, r->err));
    sl_status st = take_line(r, line, where);
    json_decref(line);
    return st;
}

static bool blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

sl_status sl_sim_trace_parse(const char *text, size_t n, const char *name, sl_sim_trace *out, sl_err *err)
{
    reader r = {.t = out, .err = err};
    sl_status st = SL_OK;
    size_t number = 0;
    *out = (sl_sim_trace){0};
    for (const char *end = text + n; text < end && st == SL_OK;) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t len = (size_t)((stop ? stop : end) - text);
        number++;
        if (!blank(text, len))
            st = read_line(&r, text, len, name, number);
        text += len + (stop != NULL);
    }
    if (st == SL_OK && !out->n)
        st = sl_fail(err, SL_ERR_INVALID, "%s: has no requests", name);
    if (st == SL_OK && (r.ids.n > (1u << 29) || out->n_ids > UINT32_MAX))
        st = sl_fail(err, SL_ERR_TOO_LARGE, "%s: more than %u different blocks", name, 1u << 29);
    out->n_blocks = (uint32_t)r.ids.n;
    free(r.ids.key);
    free(r.ids.value);
    if (st != SL_OK)
        sl_sim_trace_free(out);
    return st;
}

sl_status sl_sim_trace_load(const char *path, sl_sim_trace *out, sl_err *err)
{
    struct stat at;
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    sl_status st = SL_OK;
    char *text = NULL;
    if (fstat(fileno(f), &at) || !S_ISREG(at.st_mode))
        st = sl_fail(err, SL_ERR_INVALID, "%s: is not a file", path);
    else if ((size_t)at.st_size > MAX_FILE)
        st = sl_fail(err, SL_ERR_TOO_LARGE, "%s: larger than %zu bytes", path, MAX_FILE);
    else if (!(text = malloc((size_t)at.st_size + 1)))
        st = sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", path);
    if (st == SL_OK) {
        size_t n = fread(text, 1, (size_t)at.st_size, f);
        st = ferror(f) ? sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno))
                       : sl_sim_trace_parse(text, n, path, out, err);
    }
    free(text);
    fclose(f);
    return st;
}

sl_status sl_sim_trace_write(const sl_sim_trace *t, FILE *to)
{
    for (size_t i = 0; i < t->n; i++) {
        const sl_sim_request *q = &t->requests[i];
        fprintf(to, "{\"timestamp\": %llu, \"input_length\": %d, \"output_length\": %d, \"hash_ids\": [",
                (unsigned long long)(q->arrival_ns / 1000000u), q->input, q->output);
        for (uint32_t b = 0; b < q->n_blocks; b++)
            fprintf(to, b ? ", %u" : "%u", t->ids[q->first + b]);
        fputs("]}\n", to);
    }
    return fflush(to) || ferror(to) ? SL_ERR_IO : SL_OK;
}

void sl_sim_trace_free(sl_sim_trace *t)
{
    free(t->requests);
    free(t->ids);
    *t = (sl_sim_trace){0};
}
