/*
 * Documents that are derived from the table: the dump of effective values, the commented reference file, the reference
 * page.
 */
#include "base/config_impl.h"

#include "base/strbuf.h"

#include <stdio.h>
#include <string.h>

enum { COMMENT_COLUMNS = 108 };

static bool in_section(const sl_cfg_row *row, const char *section)
{
    size_t n = strlen(section);
    return !strncmp(row->key, section, n) && row->key[n] == '.';
}

static const char *short_key(const sl_cfg_row *row)
{
    return strrchr(row->key, '.') + 1;
}

/* Bytes of "section.group." of a key "section.group.name"; 0: the key has no group. */
static size_t group_bytes(const sl_cfg_row *row)
{
    size_t n = (size_t)(short_key(row) - row->key);
    return strchr(row->key, '.') + 1 == row->key + n ? 0 : n;
}

/* The indentation of a row's name; before the first row of a group it writes the group's line. */
static const char *put_group(sl_strbuf *sb, const sl_cfg_row *row)
{
    size_t n = group_bytes(row), section = strcspn(row->key, ".") + 1;
    if (!n)
        return "  ";
    if (row == sl_cfg_rows || strncmp(row[-1].key, row->key, n) != 0) {
        sl_sb_str(sb, "  ");
        sl_sb_append(sb, row->key + section, n - section - 1);
        sl_sb_str(sb, ":\n");
    }
    return "    ";
}

static void put_quoted(sl_strbuf *sb, const char *s)
{
    sl_sb_char(sb, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            sl_sb_char(sb, '\\');
        sl_sb_char(sb, *s);
    }
    sl_sb_char(sb, '"');
}

static void put_size(sl_strbuf *sb, uint64_t v)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (v && v % 1024 == 0 && u + 1 < SL_COUNT(units)) {
        v /= 1024;
        u++;
    }
    sl_sb_printf(sb, "%llu%s", (unsigned long long)v, units[u]);
}

static void put_list(sl_strbuf *sb, const sl_option *o, const int *list)
{
    const char *const *names = sl_option_names(o);
    sl_sb_char(sb, '[');
    for (int i = 0; i < list[0]; i++) {
        sl_sb_str(sb, i ? ", " : "");
        if (names)
            sl_sb_str(sb, names[list[1 + i]]);
        else
            sl_sb_printf(sb, "%d", list[1 + i]);
    }
    sl_sb_char(sb, ']');
}

static void put_texts(sl_strbuf *sb, const int *n)
{
    const char(*items)[SL_CFG_ITEM_BYTES] = (const void *)(n + 1);
    sl_sb_char(sb, '[');
    for (int i = 0; i < *n; i++) {
        sl_sb_str(sb, i ? ", " : "");
        put_quoted(sb, items[i]);
    }
    sl_sb_char(sb, ']');
}

/* The shortest decimal text that reads back as the same double. */
static void put_double(sl_strbuf *sb, double v)
{
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back;
        if (sscanf(text, "%lf", &back) == 1 && back == v)
            break;
    }
    sl_sb_str(sb, text);
}

static void put_value(sl_strbuf *sb, const sl_config *cfg, const sl_cfg_row *row)
{
    const sl_option *o = row->o;
    const void *field = (const char *)cfg + row->at + o->offset;
    switch (o->type) {
    case SL_OPTION_TEXT:
        put_quoted(sb, (o->flags & SL_OPTION_SECRET) && *(const char *)field ? "***" : field);
        break;
    case SL_OPTION_INT:
        if (o->names && *(const int *)field == 0)
            sl_sb_str(sb, o->names[0]);
        else
            sl_sb_printf(sb, "%d", *(const int *)field);
        break;
    case SL_OPTION_SIZE:
        put_size(sb, *(const uint64_t *)field);
        break;
    case SL_OPTION_FLOAT:
        put_double(sb, *(const double *)field);
        break;
    case SL_OPTION_BOOL:
        sl_sb_str(sb, *(const bool *)field ? "true" : "false");
        break;
    case SL_OPTION_ENUM:
        sl_sb_str(sb, sl_option_names(o)[*(const int *)field]);
        break;
    case SL_OPTION_CHOICE:
        sl_sb_str(sb, field);
        break;
    case SL_OPTION_INTS:
    case SL_OPTION_ENUMS:
        put_list(sb, o, field);
        break;
    case SL_OPTION_TEXTS:
        put_texts(sb, field);
        break;
    }
}

char *sl_config_dump(const sl_config *cfg)
{
    sl_strbuf sb = {0};
    for (size_t s = 0; s < sl_cfg_nsections; s++) {
        sl_sb_printf(&sb, "%s:\n", sl_cfg_sections[s].name);
        for (size_t i = 0; i < sl_cfg_nrows; i++) {
            if (!in_section(&sl_cfg_rows[i], sl_cfg_sections[s].name) || !sl_cfg_used(cfg, &sl_cfg_rows[i]))
                continue;
            const char *indent = put_group(&sb, &sl_cfg_rows[i]);
            sl_sb_printf(&sb, "%s%s: ", indent, short_key(&sl_cfg_rows[i]));
            put_value(&sb, cfg, &sl_cfg_rows[i]);
            sl_sb_char(&sb, '\n');
        }
    }
    return sl_sb_take(&sb);
}

/* The text as comment lines, wrapped between words. */
static void put_comment(sl_strbuf *sb, const char *indent, const char *text)
{
    size_t column = COMMENT_COLUMNS + 1;
    bool first = true;
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column + 1 + word > COMMENT_COLUMNS) {
            sl_sb_printf(sb, "%s%s#", first ? "" : "\n", indent);
            column = strlen(indent) + 1;
            first = false;
        }
        sl_sb_char(sb, ' ');
        sl_sb_append(sb, text, word);
        column += 1 + word;
        text += word;
        text += *text == ' ';
    }
    sl_sb_char(sb, '\n');
}

/* "With sparse_attention.algorithm: quest." or "Used when kvstore.redis.address is set." */
static void put_when(sl_strbuf *sb, const sl_options *part)
{
    if (part->on)
        sl_sb_printf(sb, "Used when %s.%s is set.", part->section, part->on);
    else
        sl_sb_printf(sb, "With %s: %s.", part->seam, part->name);
}

/* Options of implementations are comments, because those that are not read are refused. */
static void put_reference_row(sl_strbuf *sb, const sl_config *cfg, const sl_cfg_row *row)
{
    char want[320];
    const char *indent = put_group(sb, row);
    if (row->part && (row == sl_cfg_rows || row[-1].part != row->part)) {
        sl_sb_printf(sb, "%s# ", indent);
        put_when(sb, row->part);
        sl_sb_char(sb, '\n');
    }
    put_comment(sb, indent, row->o->doc);
    sl_sb_printf(sb, "%s# (%s)\n%s%s%s: ", indent, sl_option_describe(row->o, want, sizeof want), indent,
                 row->part ? "# " : "", short_key(row));
    put_value(sb, cfg, row);
    sl_sb_char(sb, '\n');
}

char *sl_config_reference_yaml(void)
{
    sl_config cfg;
    sl_config_init(&cfg);
    sl_strbuf sb = {0};
    put_comment(
        &sb, "",
        "Every key with its default. Generated by `sluice config --reference yaml`; a test keeps it "
        "up to date. Your own file needs only the keys whose values differ. Keys of one implementation are "
        "comments: they are refused where another one is chosen.");
    for (size_t s = 0; s < sl_cfg_nsections; s++) {
        sl_sb_char(&sb, '\n');
        put_comment(&sb, "", sl_cfg_sections[s].doc);
        sl_sb_printf(&sb, "%s:\n", sl_cfg_sections[s].name);
        for (size_t i = 0; i < sl_cfg_nrows; i++)
            if (in_section(&sl_cfg_rows[i], sl_cfg_sections[s].name))
                put_reference_row(&sb, &cfg, &sl_cfg_rows[i]);
    }
    return sl_sb_take(&sb);
}

static void put_md_row(sl_strbuf *sb, const sl_config *cfg, const sl_cfg_row *row)
{
    static const char head[] = "\n\n| key | default | value | meaning |\n|---|---|---|---|\n";
    char want[320];
    if (row->part && (row == sl_cfg_rows || row[-1].part != row->part)) {
        sl_sb_printf(sb, "\n### %s: %s\n\n", row->part->section, row->part->name);
        put_when(sb, row->part);
        sl_sb_str(sb, head);
    }
    sl_sb_printf(sb, "| `%s` | `", row->key);
    put_value(sb, cfg, row);
    sl_sb_printf(sb, "` | %s | %s%s%s |\n", sl_option_describe(row->o, want, sizeof want), row->o->doc,
                 row->o->flags & SL_OPTION_PAGES ? " Pages of other values never match." : "",
                 row->o->flags & SL_OPTION_SECRET ? " Secret: never printed." : "");
}

/* A section without keys of its own has only those of implementations. */
static bool has_own(const char *section)
{
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (!sl_cfg_rows[i].part && in_section(&sl_cfg_rows[i], section))
            return true;
    return false;
}

char *sl_config_reference(void)
{
    sl_config cfg;
    sl_config_init(&cfg);
    sl_strbuf sb = {0};
    sl_sb_str(
        &sb,
        "# Configuration\n\n"
        "One YAML file, given with `--config FILE`; `--set key=value` overrides single keys (lists are "
        "comma-separated). Unknown and duplicate keys, wrong types and values out of bounds are errors that "
        "name file, line, key and reason. So are keys of an implementation that is not the chosen one. `sluice config` "
        "prints the effective values; `sluice config check FILE` also finds what would fail at the start.\n\n"
        "This page is generated from the table in `base/config_table.c` and those of the implementations by "
        "`sluice config --reference md`; a test keeps it up to date.\n");
    for (size_t s = 0; s < sl_cfg_nsections; s++) {
        sl_sb_printf(&sb, "\n## %s\n\n%s\n", sl_cfg_sections[s].name, sl_cfg_sections[s].doc);
        if (has_own(sl_cfg_sections[s].name))
            sl_sb_str(&sb, "\n| key | default | value | meaning |\n|---|---|---|---|\n");
        for (size_t i = 0; i < sl_cfg_nrows; i++)
            if (in_section(&sl_cfg_rows[i], sl_cfg_sections[s].name))
                put_md_row(&sb, &cfg, &sl_cfg_rows[i]);
    }
    return sl_sb_take(&sb);
}
