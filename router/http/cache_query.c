/* See cache_query.h. */
#include "router/http/cache_query.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { DIGITS = 32, HALF = 16 };

static sl_status refuse_others(sl_cache_action action, const json_t *o, sl_err *err)
{
    static const char *const members[SL_CACHE_ACTIONS] = {
        [SL_CACHE_LIST] = " worker tier prefix cursor limit ",
        [SL_CACHE_STATUS] = " worker cancel ",
        [SL_CACHE_VERIFY] = " worker tier bytes_per_second ",
        [SL_CACHE_DROP] = " worker tier ",
    };
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        char word[40];
        int n = snprintf(word, sizeof word, " %s ", key);
        if (strchr(key, ' ') || n >= (int)sizeof word || !strstr(members[action], word))
            return sl_fail(err, SL_ERR_INVALID, "body.%.32s: is not known here", key);
    }
    return SL_OK;
}

static sl_status copy_text(const json_t *o, const char *key, char *out, size_t cap, sl_err *err)
{
    const char *s = "";
    SL_TRY(sl_json_opt_string(o, "body", key, &s, err));
    if (strlen(s) >= cap)
        return sl_fail(err, SL_ERR_INVALID, "body.%s: is longer than %zu bytes", key, cap - 1);
    memset(out, 0, cap);
    memcpy(out, s, strlen(s));
    return SL_OK;
}

/* The first digits of a key: those of `hi` come first. */
static sl_status read_prefix(const json_t *o, sl_msg_cache_ask *q, sl_err *err)
{
    const char *s = "";
    SL_TRY(sl_json_opt_string(o, "body", "prefix", &s, err));
    size_t n = strlen(s);
    if (n > DIGITS || strspn(s, "0123456789abcdefABCDEF") != n)
        return sl_fail(err, SL_ERR_INVALID, "body.prefix: is not 1 to %d hexadecimal digits", DIGITS);
    for (size_t i = 0; i < n; i++) {
        uint64_t digit =
            (uint64_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : tolower((unsigned char)s[i]) - 'a' + 10);
        *(i < HALF ? &q->prefix.hi : &q->prefix.lo) |= digit << (4 * (HALF - 1 - i % HALF));
    }
    q->prefix_bits = (uint8_t)(4 * n);
    return SL_OK;
}

static sl_status read_cursor(const json_t *o, sl_msg_cache_ask *q, sl_err *err)
{
    const char *s = "";
    SL_TRY(sl_json_opt_string(o, "body", "cursor", &s, err));
    size_t n = strlen(s);
    if (n > 19 || strspn(s, "0123456789") != n)
        return sl_fail(err, SL_ERR_INVALID, "body.cursor: is not one of an answer");
    q->cursor = strtoull(s, NULL, 10);
    return SL_OK;
}

static sl_status read_object(sl_cache_action action, const json_t *o, sl_cache_query *out, sl_err *err)
{
    sl_msg_cache_ask *q = &out->ask;
    int64_t limit = SL_CACHE_PAGES_MAX, rate = 0;
    bool cancel = false;
    if (!json_is_object(o))
        return sl_fail(err, SL_ERR_INVALID, "body: is not a JSON object");
    SL_TRY(refuse_others(action, o, err));
    SL_TRY(copy_text(o, "worker", out->worker, sizeof out->worker, err));
    if (!out->worker[0])
        return sl_fail(err, SL_ERR_INVALID, "body.worker: is missing");
    SL_TRY(copy_text(o, "tier", q->tier, sizeof q->tier, err));
    if (action == SL_CACHE_DROP && !q->tier[0])
        return sl_fail(err, SL_ERR_INVALID, "body.tier: is missing");
    SL_TRY(read_prefix(o, q, err));
    SL_TRY(read_cursor(o, q, err));
    SL_TRY(sl_json_opt_int(o, "body", "limit", 1, SL_CACHE_PAGES_MAX, &limit, err));
    SL_TRY(sl_json_opt_int(o, "body", "bytes_per_second", 1, INT64_MAX, &rate, err));
    SL_TRY(sl_json_opt_bool(o, "body", "cancel", &cancel, err));
    q->action = (uint8_t)(cancel ? SL_CACHE_CANCEL : action);
    q->most = (uint32_t)limit;
    q->rate = (uint64_t)rate;
    return SL_OK;
}

sl_status sl_cache_query_read(sl_cache_action action, const char *text, size_t n, sl_cache_query *out,
                              sl_err *err)
{
    json_t *o = NULL;
    memset(out, 0, sizeof *out);
    SL_TRY(sl_json_parse(text, n, "body", &o, err));
    sl_status st = read_object(action, o, out, err);
    json_decref(o);
    return st;
}

static json_t *key_json(sl_key k)
{
    char text[DIGITS + 1];
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, k.hi, k.lo);
    return json_string(text);
}

static json_t *page_json(sl_rd *r)
{
    sl_key key;
    key.lo = sl_rd_u64(r);
    key.hi = sl_rd_u64(r);
    uint32_t tokens = sl_rd_u32(r), flags = sl_rd_u32(r);
    uint64_t age = sl_rd_u64(r);
    json_t *o = json_pack("{s:o}", "key", key_json(key));
    if (tokens) {
        json_object_set_new(o, "prefix_tokens", json_integer(tokens));
        json_object_set_new(o, "in_use", json_boolean(flags & SL_CACHE_IN_USE));
    }
    if (age <= INT64_MAX)
        json_object_set_new(o, "age_ms", json_integer((json_int_t)age));
    return o;
}

json_t *sl_cache_pages_json(const char *worker, const sl_msg_cache_pages *p)
{
    char cursor[24];
    sl_rd r = sl_rd_init(p->pages.data, p->pages.len);
    json_t *list = json_array();
    for (size_t i = 0; i < p->pages.len / SL_CACHE_PAGE_BYTES; i++)
        json_array_append_new(list, page_json(&r));
    snprintf(cursor, sizeof cursor, "%" PRIu64, p->cursor);
    return json_pack("{s:s, s:s, s:o, s:s?}", "worker", worker, "tier", p->tier, "pages", list, "cursor",
                     p->cursor ? cursor : NULL);
}

json_t *sl_cache_job_json(const char *worker, const sl_msg_cache_job *j)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"pages", j->done},
                   {"total", j->total},
                   {"damaged", j->damaged},
                   {"unreadable", j->unreadable},
                   {"gone", j->gone},
                   {"bytes", j->bytes},
                   {"ms", j->ms}};
    sl_rd r = sl_rd_init(j->keys.data, j->keys.len);
    json_t *keys = json_array();
    for (size_t i = 0; i < j->keys.len / 16; i++) {
        sl_key k;
        k.lo = sl_rd_u64(&r);
        k.hi = sl_rd_u64(&r);
        json_array_append_new(keys, key_json(k));
    }
    bool any = j->state != SL_CACHE_NONE;
    json_t *o =
        json_pack("{s:s, s:s?, s:s, s:s, s:o}", "worker", worker, "action",
                  any ? sl_msg_cache_action_name((sl_cache_action)j->action) : NULL, "state",
                  sl_msg_cache_state_name((sl_cache_state)j->state), "tier", j->tier, "damaged_keys", keys);
    for (size_t i = 0; o && i < SL_COUNT(numbers); i++)
        json_object_set_new(
            o, numbers[i].key,
            json_integer((json_int_t)(numbers[i].value <= INT64_MAX ? numbers[i].value : INT64_MAX)));
    return o;
}
