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

static void put_list(sl_strbuf *sb, const sl_cfg_row *row, const int *list)
{
    sl_sb_char(sb, '[');
    for (int i = 0; i < list[0]; i++) {
        sl_sb_str(sb, i ? ", " : "");
        if (row->names)
            sl_sb_str(sb, row->names[list[1 + i]]);
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
    const void *field = (const char *)cfg + row->offset;
    switch (row->type) {
    case SL_CFG_STRING:
        put_quoted(sb, row->secret && *(const char *)field ? "***" : field);
        break;
    case SL_CFG_INT:
        sl_sb_printf(sb, "%d", *(const int *)field);
        break;
    case SL_CFG_SIZE:
        put_size(sb, *(const uint64_t *)field);
        break;
    case SL_CFG_FLOAT:
        put_double(sb, *(const double *)field);
        break;
    case SL_CFG_BOOL:
        sl_sb_str(sb, *(const bool *)field ? "true" : "false");
        break;
    case SL_CFG_ENUM:
        sl_sb_str(sb, row->names[*(const int *)field]);
        break;
    case SL_CFG_CHOICE:
        sl_sb_str(sb, field);
        break;
    case SL_CFG_INT_LIST:
    case SL_CFG_ENUM_LIST:
        put_list(sb, row, field);
        break;
    case SL_CFG_STRING_LIST:
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
            if (!in_section(&sl_cfg_rows[i], sl_cfg_sections[s].name))
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

char *sl_config_reference_yaml(void)
{
    sl_config cfg;
    sl_config_init(&cfg);
    sl_strbuf sb = {0};
    char want[320];
    put_comment(&sb, "",
                "Every key with its default. Generated by `sluice config --reference yaml`; a test keeps it "
                "up to date. Your own file needs only the keys whose values differ.");
    for (size_t s = 0; s < sl_cfg_nsections; s++) {
        sl_sb_char(&sb, '\n');
        put_comment(&sb, "", sl_cfg_sections[s].doc);
        sl_sb_printf(&sb, "%s:\n", sl_cfg_sections[s].name);
        for (size_t i = 0; i < sl_cfg_nrows; i++) {
            const sl_cfg_row *row = &sl_cfg_rows[i];
            if (!in_section(row, sl_cfg_sections[s].name))
                continue;
            const char *indent = put_group(&sb, row);
            put_comment(&sb, indent, row->doc);
            sl_sb_printf(&sb, "%s# (%s)\n%s%s: ", indent, sl_cfg_describe(row, want, sizeof want), indent,
                         short_key(row));
            put_value(&sb, &cfg, row);
            sl_sb_char(&sb, '\n');
        }
    }
    return sl_sb_take(&sb);
}

static void put_md_row(sl_strbuf *sb, const sl_config *cfg, const sl_cfg_row *row)
{
    char want[320];
    sl_sb_printf(sb, "| `%s` | `", row->key);
    put_value(sb, cfg, row);
    sl_sb_printf(sb, "` | %s | %s%s |\n", sl_cfg_describe(row, want, sizeof want), row->doc,
                 row->secret ? " Secret: never printed." : "");
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
        "name file, line, key and reason. `sluice config` prints the effective values.\n\n"
        "This page is generated from the table in `base/config_table.c` by `sluice config --reference md`; "
        "a test keeps it up to date.\n");
    for (size_t s = 0; s < sl_cfg_nsections; s++) {
        sl_sb_printf(&sb, "\n## %s\n\n%s\n\n| key | default | value | meaning |\n|---|---|---|---|\n",
                     sl_cfg_sections[s].name, sl_cfg_sections[s].doc);
        for (size_t i = 0; i < sl_cfg_nrows; i++)
            if (in_section(&sl_cfg_rows[i], sl_cfg_sections[s].name))
                put_md_row(&sb, &cfg, &sl_cfg_rows[i]);
    }
    return sl_sb_take(&sb);
}
