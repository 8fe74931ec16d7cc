/* See tenants.h. */
#include "router/core/tenants.h"

#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1024, MAX_WEIGHT = 1000 };

/* ---- the file ---- */

static bool parse_name(const char *s, char *out)
{
    size_t n = strlen(s);
    if (!n || n >= SL_TENANT_NAME)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '_')
            return false;
    }
    memcpy(out, s, n + 1);
    return true;
}

static bool parse_hash(const char *s, uint8_t out[32])
{
    if (strlen(s) != 64)
        return false;
    for (int i = 0; i < 32; i++) {
        char two[3] = {s[2 * i], s[2 * i + 1], 0}, *end;
        if (!isxdigit((unsigned char)two[0]))
            return false;
        out[i] = (uint8_t)strtoul(two, &end, 16);
        if (*end)
            return false;
    }
    return true;
}

static bool parse_number(const char *s, uint32_t most, uint32_t *out)
{
    char *end;
    unsigned long v = isdigit((unsigned char)*s) ? strtoul(s, &end, 10) : 0;
    if (v < 1 || v > most || *end)
        return false;
    *out = (uint32_t)v;
    return true;
}

/* Parses one word after the name; false when it is wrong. */
static bool parse_word(char *word, sl_tenant *t, bool *has_key)
{
    static const struct {
        const char *name;
        size_t offset;
        uint32_t most;
    } numbers[] = {
        {"weight", offsetof(sl_tenant, weight), MAX_WEIGHT},
        {"requests_per_minute", offsetof(sl_tenant, requests_per_minute), UINT32_MAX},
        {"tokens_per_minute", offsetof(sl_tenant, tokens_per_minute), UINT32_MAX},
        {"concurrency", offsetof(sl_tenant, concurrency), UINT32_MAX},
    };
    if (!strcmp(word, "admin")) {
        t->admin = true;
        return true;
    }
    char *value = strchr(word, '=');
    if (!value)
        return false;
    *value++ = 0;
    if (!strcmp(word, "sha256")) {
        *has_key = true;
        return parse_hash(value, t->hash);
    }
    for (size_t i = 0; i < SL_COUNT(numbers); i++) {
        if (!strcmp(word, numbers[i].name))
            return parse_number(value, numbers[i].most, (uint32_t *)((char *)t + numbers[i].offset));
    }
    return false;
}

static sl_status parse_line(char *text, const char *path, int line, sl_tenants *out, sl_err *err)
{
    char *save, *word = strtok_r(text, " \t\r\n", &save);
    if (!word || *word == '#')
        return SL_OK;
    if (out->n == SL_TENANTS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: more than %d tenants", path, line, SL_TENANTS_MAX);
    sl_tenant t = {.weight = 1};
    bool has_key = false;
    if (!parse_name(word, t.name))
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: a name has 1 to %d letters, digits, - and _", path, line,
                       SL_TENANT_NAME - 1);
    for (int n = 2; (word = strtok_r(NULL, " \t\r\n", &save)); n++) {
        if (!parse_word(word, &t, &has_key)) /* it may be a key that was put there by mistake: not repeated */
            return sl_fail(err, SL_ERR_INVALID, "%s:%d: tenant %s: word %d is unknown or its value is wrong",
                           path, line, t.name, n);
    }
    if (!has_key)
        return sl_fail(err, SL_ERR_INVALID, "%s:%d: tenant %s has no sha256", path, line, t.name);
    for (size_t i = 0; i < out->n; i++) {
        if (!strcmp(out->list[i].name, t.name) || !memcmp(out->list[i].hash, t.hash, sizeof t.hash))
            return sl_fail(err, SL_ERR_INVALID, "%s:%d: tenant %s or its key occurs twice", path, line,
                           t.name);
    }
    out->list[out->n++] = t;
    return SL_OK;
}

sl_status sl_tenants_load(const char *path, sl_tenants *out, sl_err *err)
{
    *out = (sl_tenants){.list = calloc(SL_TENANTS_MAX, sizeof *out->list)};
    if (!out->list)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    FILE *f = fopen(path, "re");
    sl_status st = f ? SL_OK : sl_fail(err, SL_ERR_IO, "router.keys_file: cannot read %s", path);
    char text[LINE];
    for (int line = 1; f && !st && fgets(text, sizeof text, f); line++) {
        if (!strchr(text, '\n') && !feof(f))
            st = sl_fail(err, SL_ERR_INVALID, "%s:%d: the line is too long", path, line);
        else
            st = parse_line(text, path, line, out, err);
    }
    if (f)
        fclose(f);
    if (st)
        sl_tenants_free(out);
    return st;
}

void sl_tenants_free(sl_tenants *t)
{
    free(t->list);
    *t = (sl_tenants){0};
}

/* ---- looking up ---- */

const sl_tenant *sl_tenants_of_key(const sl_tenants *t, const char *key)
{
    uint8_t hash[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(key, strlen(key), hash, NULL, EVP_sha256(), NULL))
        return NULL;
    const sl_tenant *found = NULL;
    for (size_t i = 0; i < t->n; i++) {
        if (!CRYPTO_memcmp(hash, t->list[i].hash, sizeof t->list[i].hash))
            found = &t->list[i];
    }
    return found;
}

const sl_tenant *sl_tenants_find(const sl_tenants *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++) {
        if (!strcmp(t->list[i].name, name))
            return &t->list[i];
    }
    return NULL;
}

/* ---- accounts ---- */

static double filled(double have, uint32_t per_minute, double minutes)
{
    double v = have + per_minute * minutes;
    return v < per_minute ? v : per_minute;
}

static void fill(sl_account *a, const sl_tenant *t, uint64_t now)
{
    double minutes = a->filled_ns ? (double)(now - a->filled_ns) / 60e9 : 1e9;
    a->requests = filled(a->requests, t->requests_per_minute, minutes);
    a->tokens = filled(a->tokens, t->tokens_per_minute, minutes);
    a->filled_ns = now;
}

/* Seconds until a bucket contains `want`; 0 if it does now, or if there is no limit. */
static double wait_s(double have, double want, uint32_t per_minute)
{
    return !per_minute || have >= want ? 0 : (want - have) * 60 / per_minute;
}

/* Whether the account has n requests and these tokens now, and room for the requests. */
static sl_status has(const sl_account *a, const sl_tenant *t, uint32_t n, uint64_t tokens, uint32_t active,
                     uint32_t *retry_s, sl_err *err)
{
    double r = wait_s(a->requests, n, t->requests_per_minute),
           k = wait_s(a->tokens, (double)tokens, t->tokens_per_minute), s = r > k ? r : k;
    *retry_s = s < 1 ? 1 : s < 3600 ? (uint32_t)s + 1 : 3600;
    if (s > 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "the rate of this key is used up (%s a minute), retry in %u s",
                       r >= k ? "requests" : "tokens", *retry_s);
    if (t->concurrency && active + n > t->concurrency)
        return sl_fail(err, SL_ERR_EXHAUSTED, "%u requests of this key are running, of at most %u", active,
                       t->concurrency);
    return SL_OK;
}

sl_status sl_account_take(sl_account *a, const sl_tenant *t, uint32_t n, uint64_t tokens, uint32_t active,
                          uint64_t now_ns, uint32_t *retry_s, sl_err *err)
{
    if ((t->concurrency && n > t->concurrency) || (t->requests_per_minute && n > t->requests_per_minute))
        return sl_fail(err, SL_ERR_INVALID, "n: %u requests are more than this key may ever send at once", n);
    if (t->tokens_per_minute && tokens > t->tokens_per_minute)
        return sl_fail(err, SL_ERR_INVALID, "prompt: %lu tokens are more than the %u a minute of this key",
                       (unsigned long)tokens, t->tokens_per_minute);
    fill(a, t, now_ns);
    SL_TRY(has(a, t, n, tokens, active, retry_s, err));
    a->requests -= t->requests_per_minute ? n : 0;
    a->tokens -= t->tokens_per_minute ? (double)tokens : 0;
    return SL_OK;
}

sl_status sl_account_begin(sl_account *a, const sl_tenant *t, uint64_t tokens, uint32_t active, bool take,
                           uint64_t now_ns, uint32_t *retry_s, sl_err *err)
{
    if (t->tokens_per_minute && tokens > t->tokens_per_minute)
        return sl_fail(err, SL_ERR_INVALID,
                       "body: counts as %lu tokens at least, more than the %u a minute of this key",
                       (unsigned long)tokens, t->tokens_per_minute);
    fill(a, t, now_ns);
    SL_TRY(has(a, t, 1, tokens, active, retry_s, err));
    a->requests -= take && t->requests_per_minute ? 1 : 0;
    return SL_OK;
}

void sl_account_give_back(sl_account *a, const sl_tenant *t)
{
    a->requests += t->requests_per_minute ? 1 : 0;
}
