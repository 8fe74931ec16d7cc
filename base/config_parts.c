/*
 * Options of implementations in the configuration: the rows of all tables, where their values are, which implementations are
 * used, and the refusal of keys that none of these reads.
 */
#include <stdio.h>
#include <string.h>

#include "base/config_impl.h"

enum { ALIGN = 16 };

sl_cfg_row sl_cfg_rows[SL_CFG_MAX_ROWS];
size_t sl_cfg_nrows;

static void add_row(const char *section, const sl_option *o, size_t at, const sl_options *part)
{
    SL_CHECK(sl_cfg_nrows < SL_CFG_MAX_ROWS, "more than %d configuration keys", SL_CFG_MAX_ROWS);
    sl_cfg_row *row = &sl_cfg_rows[sl_cfg_nrows];
    *row = (sl_cfg_row){.o = o, .at = at, .part = part, .next = -1, .first = true};
    snprintf(row->key, sizeof row->key, "%s%s%s", section, section[0] ? "." : "", o->name);
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        if (strcmp(sl_cfg_rows[i].key, row->key) != 0)
            continue;
        SL_CHECK(part && sl_cfg_rows[i].part, "%s: two keys of this name", row->key);
        row->first = false;
        if (sl_cfg_rows[i].next < 0)
            sl_cfg_rows[i].next = (int32_t)sl_cfg_nrows;
    }
    sl_cfg_nrows++;
}

static size_t used; /* bytes of values of the implementations that have rows */

/* The options of the configuration, then those of each implementation, whose values are one after the other. */
static void make_rows(const sl_options *const *parts)
{
    used = 0;
    sl_cfg_nrows = 0;
    for (size_t i = 0; i < sl_cfg_nown; i++)
        add_row("", &sl_cfg_own[i], 0, NULL);
    for (; parts && *parts; parts++) {
        for (size_t i = 0; i < (*parts)->n; i++)
            add_row((*parts)->section, &(*parts)->rows[i], offsetof(sl_config, parts) + used, *parts);
        used += ((*parts)->bytes + ALIGN - 1) / ALIGN * ALIGN;
        SL_CHECK(used <= SL_CFG_PARTS_BYTES, "options of more than %d bytes", SL_CFG_PARTS_BYTES);
    }
}

void sl_config_bind(const sl_config_choice *choices, const sl_options *const *parts)
{
    sl_options_bind(choices);
    make_rows(parts);
}

/* ---- plug-ins ---- */

static sl_config_plugin_fn *load_plugin;

void sl_config_bind_plugin(sl_config_plugin_fn *load)
{
    load_plugin = load;
}

/* A key that others have must be of one type with the same bounds, because one text sets it for all. */
static sl_status check_option(const sl_option *o, sl_err *err)
{
    char key[SL_CFG_KEY_MAX], mine[320], theirs[320];
    snprintf(key, sizeof key, "sparse_attention.%s", o->name);
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row)
        return SL_OK;
    if (!row->part)
        return sl_fail(err, SL_ERR_REFUSED, "option %s: the configuration has a key of this name", o->name);
    sl_option_describe(o, mine, sizeof mine);
    sl_option_describe(row->o, theirs, sizeof theirs);
    if (o->type != row->o->type || o->size != row->o->size || strcmp(mine, theirs) != 0)
        return sl_fail(err, SL_ERR_REFUSED, "option %s is %s, and that of %s with this name is %s", o->name,
                       mine, row->part->name, theirs);
    return SL_OK;
}

static sl_status add_part(sl_config *cfg, const sl_options *part, sl_err *err)
{
    const size_t bytes = (part->bytes + ALIGN - 1) / ALIGN * ALIGN, first = sl_cfg_nrows;
    for (size_t i = 0; i < first; i++)
        if (sl_cfg_rows[i].part == part)
            return SL_OK;
    if (used + bytes > SL_CFG_PARTS_BYTES || first + part->n > SL_CFG_MAX_ROWS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "no room for the options of %s", part->name);
    for (size_t i = 0; i < part->n; i++)
        SL_TRY(check_option(&part->rows[i], err));
    for (size_t i = 0; i < part->n; i++)
        add_row(part->section, &part->rows[i], offsetof(sl_config, parts) + used, part);
    used += bytes;
    for (size_t i = first; cfg && i < sl_cfg_nrows; i++)
        SL_TRY(sl_option_set(sl_cfg_values(cfg, &sl_cfg_rows[i]), sl_cfg_rows[i].o, sl_cfg_rows[i].o->dflt,
                             err));
    return SL_OK;
}

sl_status sl_cfg_plugin(sl_config *cfg, const char *path, sl_err *err)
{
    const sl_options *const *parts = NULL;
    if (!path[0])
        return SL_OK;
    if (!load_plugin)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "this program loads no plug-ins");
    SL_TRY(load_plugin(path, &parts, err));
    for (; parts && *parts; parts++) {
        sl_status st = add_part(cfg, *parts, err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "%s", path);
    }
    return SL_OK;
}

sl_status sl_config_load_plugin(const char *path, sl_err *err)
{
    sl_cfg_ready();
    return sl_cfg_plugin(NULL, path, err);
}

void sl_cfg_ready(void)
{
    if (!sl_cfg_nrows)
        make_rows(NULL);
}

void sl_config_init(sl_config *cfg)
{
    sl_cfg_ready();
    memset(cfg, 0, sizeof *cfg);
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        sl_err err = {0};
        const sl_cfg_row *row = &sl_cfg_rows[i];
        sl_status st = sl_option_set(sl_cfg_values(cfg, row), row->o, row->o->dflt, &err);
        SL_CHECK(!st, "default of %s: %s", row->key, err.text);
    }
}

void *sl_cfg_values(sl_config *cfg, const sl_cfg_row *row)
{
    return (char *)cfg + row->at;
}

const void *sl_config_part(const sl_config *cfg, const sl_options *part)
{
    for (size_t i = 0; part && i < sl_cfg_nrows; i++)
        if (sl_cfg_rows[i].part == part)
            return (const char *)cfg + sl_cfg_rows[i].at;
    return NULL;
}

static const char *text_of(const sl_config *cfg, const sl_cfg_row *row)
{
    return (const char *)cfg + row->at + row->o->offset;
}

bool sl_config_uses(const sl_config *cfg, const sl_options *part)
{
    const char *values = sl_config_part(cfg, part);
    if (!values)
        return false;
    if (part->on)
        return values[sl_options_find(part, part->on)->offset] != '\0';
    const sl_cfg_row *seam = part->seam ? sl_cfg_find(part->seam) : NULL;
    return !seam || strcmp(text_of(cfg, seam), part->name) == 0;
}

bool sl_cfg_used(const sl_config *cfg, const sl_cfg_row *row)
{
    return !row->part || sl_config_uses(cfg, row->part);
}

/* ---- values ---- */

static const sl_cfg_row *next_of(const sl_cfg_row *row)
{
    return row->next < 0 ? NULL : &sl_cfg_rows[row->next];
}

static void note_given(sl_config *cfg, const sl_cfg_row *row, size_t given)
{
    cfg->given[row - sl_cfg_rows] = (uint16_t)(given < SL_CFG_SET ? given : SL_CFG_SET);
}

sl_status sl_cfg_set(sl_config *cfg, const sl_cfg_row *row, const char *text, size_t given, sl_err *err)
{
    note_given(cfg, row, given);
    if (strcmp(row->key, SL_CFG_PLUGIN_KEY) == 0)
        SL_TRY(sl_cfg_plugin(cfg, text, err));
    for (; row; row = next_of(row))
        SL_TRY(sl_option_set(sl_cfg_values(cfg, row), row->o, text, err));
    return SL_OK;
}

void sl_cfg_clear(sl_config *cfg, const sl_cfg_row *row, size_t given)
{
    note_given(cfg, row, given);
    for (; row; row = next_of(row))
        sl_option_clear(sl_cfg_values(cfg, row), row->o);
}

sl_status sl_cfg_add(sl_config *cfg, const sl_cfg_row *row, const char *text, sl_err *err)
{
    for (; row; row = next_of(row))
        SL_TRY(sl_option_add(sl_cfg_values(cfg, row), row->o, text, err));
    return SL_OK;
}

/* ---- keys that are not read ---- */

/* "quest, double_sparsity": the implementations that have this key. */
static void readers(const sl_cfg_row *row, char *buf, size_t n)
{
    size_t len = 0;
    buf[0] = '\0';
    for (; row && len < n; row = next_of(row))
        len += (size_t)snprintf(buf + len, n - len, "%s%s", len ? ", " : "", row->part->name);
}

static sl_status refuse(const sl_config *cfg, const sl_cfg_row *row, size_t given, sl_err *err)
{
    char where[320], who[256];
    if (given == SL_CFG_SET)
        snprintf(where, sizeof where, "--set");
    else
        snprintf(where, sizeof where, "%.256s:%zu:", cfg->file, given);
    if (row->part->on)
        return sl_fail(err, SL_ERR_INVALID, "%s %s: has no effect without %s.%s", where, row->key,
                       row->part->section, row->part->on);
    readers(row, who, sizeof who);
    return sl_fail(err, SL_ERR_INVALID, "%s %s: is not read when %s is %s, only when it is %s", where,
                   row->key, row->part->seam, text_of(cfg, sl_cfg_find(row->part->seam)), who);
}

sl_status sl_config_check_read(const sl_config *cfg, sl_err *err)
{
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        bool read = !cfg->given[i];
        for (const sl_cfg_row *row = &sl_cfg_rows[i]; !read && row; row = next_of(row))
            read = sl_cfg_used(cfg, row);
        if (!read)
            return refuse(cfg, &sl_cfg_rows[i], cfg->given[i], err);
    }
    return SL_OK;
}

void sl_config_forget_readers(sl_config *cfg, const char *section)
{
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (sl_cfg_rows[i].part && strcmp(sl_cfg_rows[i].part->section, section) == 0)
            cfg->given[i] = 0;
}

/* ---- checks of the implementations that are used ---- */

static sl_status check_needs(const sl_config *cfg, const sl_options *part, sl_err *err)
{
    const char *on = part->on ? part->on : "";
    if (part->needs_reuse && cfg->kvstore.share == SL_CFG_SHARE_NONE)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s.%s: has no use with kvstore.share: none, where no request may reuse pages of an earlier one",
            part->section, on);
    if (part->needs_share_all && cfg->kvstore.share != SL_CFG_SHARE_ALL)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s.%s: needs kvstore.share: all, because subscribers are not authenticated and pages that are "
            "kept apart are not published",
            part->section, on);
    return SL_OK;
}

bool sl_config_requires(const sl_cfg_kvstore *c, const char *tier)
{
    for (int i = 0; i < c->required.n; i++)
        if (!strcmp(c->required.v[i], tier))
            return true;
    return false;
}

/* kvstore.required names tiers: the implementations whose section is "kvstore." and their name. */
static sl_status check_required(const sl_config *cfg, sl_err *err)
{
    if (!cfg->given[sl_cfg_find("kvstore.required") - sl_cfg_rows])
        return SL_OK; /* a program may have bound other tiers than those of the default */
    for (int t = 0; t < cfg->kvstore.required.n; t++) {
        const char *name = cfg->kvstore.required.v[t];
        bool known = false, any = false;
        for (size_t i = 0; i < sl_cfg_nrows && !known; i++) {
            const sl_options *part = sl_cfg_rows[i].part;
            bool tier = part && strncmp(part->section, "kvstore.", 8) == 0;
            any |= tier;
            known = tier && strcmp(part->name, name) == 0;
        }
        if (any && !known)
            return sl_fail(
                err, SL_ERR_INVALID,
                "kvstore.required: \"%s\" is no storage tier: it is the name of its section, as disk or redis",
                name);
    }
    return SL_OK;
}

sl_status sl_config_finish_parts(sl_config *cfg, sl_err *err)
{
    const sl_options *last = NULL;
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        const sl_options *part = sl_cfg_rows[i].part;
        if (part == last || !sl_config_uses(cfg, part))
            continue;
        last = part;
        SL_TRY(check_needs(cfg, part, err));
        sl_err why = {0};
        sl_status st = part->finish ? part->finish(sl_cfg_values(cfg, &sl_cfg_rows[i]), &why) : SL_OK;
        if (st != SL_OK)
            return sl_fail(err, st, "%s.%s", part->section, why.text);
    }
    SL_TRY(check_required(cfg, err));
    return sl_config_check_read(cfg, err);
}
