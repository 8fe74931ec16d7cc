/* See quota.h. Tenants are found by a linear search over at most SL_QUOTA_ENTRIES numbers, once for each lease and each
 * page that is written to the disk. */
#include "kvstore/quota.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/domain.h"

/* ---- rules ---- */

static bool valid_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)s[i]) && s[i] != '-' && s[i] != '_')
            return false;
    }
    return n && n < SL_QUOTA_NAME;
}

/* A number from 0 to 1 in decimal notation, which ends at a space or at the end. */
static bool parse_part(const char *s, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*s) || s[strspn(s, "0123456789.")] > ' ')
        return false;
    *out = strtod(s, &end);
    return (*end == 0 || *end == ' ') && *out >= 0 && *out <= 1;
}

static sl_status parse_word(const char *s, sl_quota_rule *r, sl_err *err)
{
    bool share = strncmp(s, "share=", 6) == 0, limit = strncmp(s, "limit=", 6) == 0;
    if ((share || limit) && parse_part(s + 6, share ? &r->share : &r->limit))
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID,
                   "tenant %s: after the name come share=X and limit=X with X from 0 to 1, not \"%.40s\"",
                   r->name, s);
}

sl_status sl_quota_add_rule(sl_quota_opts *out, const char *text, sl_err *err)
{
    size_t n = strcspn(text, " ");
    sl_quota_rule r = {.share = out->share, .limit = out->limit};
    const bool others = n == 1 && text[0] == '*';
    if (!others && !valid_name(text, n))
        return sl_fail(
            err, SL_ERR_INVALID,
            "\"%.64s\" does not begin with * or a tenant's name (1 to %d letters, digits, - and _)", text,
            SL_QUOTA_NAME - 1);
    if (others && (out->first || out->n_rules))
        return sl_fail(err, SL_ERR_INVALID, "\"%.64s\": an entry with the name * is the first one", text);
    memcpy(r.name, text, n);
    for (const char *s = text + n; *s; s += strcspn(s, " ")) {
        s += strspn(s, " ");
        if (*s)
            SL_TRY(parse_word(s, &r, err));
    }
    if (r.share > r.limit)
        return sl_fail(err, SL_ERR_INVALID, "tenant %s: its share %g is larger than its limit %g", r.name,
                       r.share, r.limit);
    if (others) {
        out->share = r.share, out->limit = r.limit, out->first = true;
        return SL_OK;
    }
    double shares = r.share;
    for (int i = 0; i < out->n_rules; i++) {
        shares += out->rules[i].share;
        if (!strcmp(out->rules[i].name, r.name))
            return sl_fail(err, SL_ERR_INVALID, "tenant %s occurs twice", r.name);
    }
    if (shares > 1.000001)
        return sl_fail(err, SL_ERR_INVALID,
                       "tenant %s: with it the shares of all named tenants are %g, more than 1", r.name,
                       shares);
    if (out->n_rules == SL_QUOTA_RULES)
        return sl_fail(err, SL_ERR_INVALID, "more than %d tenants", SL_QUOTA_RULES);
    r.tenant = sl_tenant_id(r.name);
    out->rules[out->n_rules++] = r;
    return SL_OK;
}

/* ---- entries ---- */

static int64_t units(double part, int64_t capacity)
{
    return (int64_t)(part * (double)capacity + 1e-6);
}

/* Whoever may have something may have one unit. */
static int64_t limit_units(double part, int64_t capacity)
{
    int64_t n = units(part, capacity);
    return n || part <= 0 ? n : 1;
}

void sl_quota_init(sl_quota *q, const sl_quota_opts *o, int64_t capacity, int unnamed)
{
    *q = (sl_quota){.limit = capacity, .n = 2, .most = 2};
    q->entries[SL_QUOTA_SHARED] = (sl_quota_entry){.tenant = SL_QUOTA_SHARED_ID, .limit = capacity};
    q->uses[SL_QUOTA_SHARED].name = "shared";
    q->uses[SL_QUOTA_OTHERS].name = "other";
    if (o) {
        q->share = units(o->share, capacity);
        q->limit = limit_units(o->limit, capacity);
        q->n_rules = o->n_rules;
        q->n += o->n_rules;
        q->most = q->n + (unnamed < SL_QUOTA_UNNAMED ? unnamed : SL_QUOTA_UNNAMED);
    }
    q->entries[SL_QUOTA_OTHERS] = (sl_quota_entry){.share = q->share, .limit = q->limit};
    for (int i = 0; i < q->n_rules; i++) {
        const sl_quota_rule *r = &o->rules[i];
        q->entries[2 + i] = (sl_quota_entry){.tenant = r->tenant,
                                             .share = units(r->share, capacity),
                                             .limit = limit_units(r->limit, capacity)};
        memcpy(q->names[i], r->name, sizeof q->names[i]);
        q->uses[2 + i].name = q->names[i];
    }
}

int sl_quota_enter(sl_quota *q, uint64_t tenant)
{
    int first_unnamed = 2 + q->n_rules, found = -1, unused = -1;
    if (tenant == SL_QUOTA_SHARED_ID)
        found = SL_QUOTA_SHARED;
    for (int i = 2; i < q->n && found < 0; i++) {
        bool idle = i >= first_unnamed && !q->entries[i].refs;
        if (q->entries[i].tenant == tenant && !idle)
            found = i;
        else if (idle && unused < 0)
            unused = i;
    }
    if (found < 0 && unused < 0 && q->n < q->most)
        unused = q->n++;
    if (found < 0 && unused >= 0) {
        q->entries[unused] = (sl_quota_entry){.tenant = tenant, .share = q->share, .limit = q->limit};
        found = unused;
    }
    found = found < 0 ? SL_QUOTA_OTHERS : found;
    sl_quota_hold(q, found);
    return found;
}

void sl_quota_hold(sl_quota *q, int entry)
{
    q->entries[entry].refs++;
}

void sl_quota_leave(sl_quota *q, int entry)
{
    SL_CHECK(q->entries[entry].refs > 0, "entry %d has no reference", entry);
    q->entries[entry].refs--;
}
