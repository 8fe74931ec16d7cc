/*
 * Reads YAML files: walks a document that libyaml has loaded, joins the keys of nested maps with dots, and passes
 * scalars to the parsers of the table; every error names file and line. A map is entered only when a key of the table
 * begins with its name, so neither depth nor aliases can make the walk long. Tags, several documents and complex keys
 * are refused.
 */
#include "base/config_impl.h"
#include "base/yaml_depth.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

enum { FILE_MAX_BYTES = 1 << 20, KEY_MAX = 128 };

typedef struct walk {
    sl_config *cfg;
    yaml_document_t *doc;
    const char *name; /* file, for errors */
    size_t *line_of;  /* by row: the line where the key was set; 0: it is not set yet */
    sl_err *err;
} walk;

static size_t line(const yaml_node_t *node)
{
    return node->start_mark.line + 1;
}

static sl_status fail_at(walk *w, const yaml_node_t *at, const char *key, const char *reason)
{
    return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s: %s", w->name, line(at), key, reason);
}

static bool is_section(const char *prefix)
{
    size_t n = strlen(prefix);
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (!strncmp(sl_cfg_rows[i].key, prefix, n) && sl_cfg_rows[i].key[n] == '.')
            return true;
    for (size_t i = 0; i < sl_cfg_nsections; i++) /* also one whose implementations are not bound */
        if (!strcmp(sl_cfg_sections[i].name, prefix))
            return true;
    for (size_t i = 0; i < sl_cfg_ngone;
         i++) /* or one that former versions had: its keys are refused by name */
        if (!strncmp(sl_cfg_gone_keys[i].key, prefix, n) && sl_cfg_gone_keys[i].key[n] == '.')
            return true;
    return false;
}

static bool has_nul(const yaml_node_t *scalar)
{
    return strlen((const char *)scalar->data.scalar.value) != scalar->data.scalar.length;
}

/* A quoted scalar is text: right for strings and names, the wrong type for numbers and booleans. */
static bool quoted_number(const sl_option *o, const yaml_node_t *scalar)
{
    bool plain = scalar->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    bool textual = o->type == SL_OPTION_TEXT || o->type == SL_OPTION_ENUM || o->type == SL_OPTION_ENUMS ||
                   o->type == SL_OPTION_TEXTS;
    return !plain && !textual && o->type != SL_OPTION_SIZE;
}

static bool is_null(const yaml_node_t *scalar)
{
    const char *text = (const char *)scalar->data.scalar.value;
    return scalar->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!strcmp(text, "~") || !strcmp(text, "null"));
}

static sl_status set_scalar(walk *w, const sl_cfg_row *row, yaml_node_t *node, bool element)
{
    const char *text = (const char *)node->data.scalar.value;
    if (has_nul(node))
        return fail_at(w, node, row->key, "has a NUL character");
    if (is_null(node))
        return fail_at(w, node, row->key, "null has no meaning here; leave the key out for its default");
    if (quoted_number(row->o, node)) {
        char want[320], reason[400];
        sl_option_describe(row->o, want, sizeof want);
        snprintf(reason, sizeof reason, "is quoted text (want %s)", want);
        return fail_at(w, node, row->key, reason);
    }
    sl_status st =
        element ? sl_cfg_add(w->cfg, row, text, w->err) : sl_cfg_set(w->cfg, row, text, line(node), w->err);
    return st ? sl_fail_in(w->err, st, "%s:%zu: %s", w->name, line(node), row->key) : SL_OK;
}

static sl_status set_list(walk *w, const sl_cfg_row *row, yaml_node_t *node)
{
    sl_cfg_clear(w->cfg, row, line(node));
    for (yaml_node_item_t *it = node->data.sequence.items.start; it < node->data.sequence.items.top; it++) {
        yaml_node_t *item = yaml_document_get_node(w->doc, *it);
        if (!item || item->type != YAML_SCALAR_NODE)
            return fail_at(w, item ? item : node, row->key, "list entries must be plain values");
        sl_status st = set_scalar(w, row, item, true);
        if (st)
            return st;
    }
    return SL_OK;
}

static sl_status set_row(walk *w, const sl_cfg_row *row, const yaml_node_t *at, yaml_node_t *value)
{
    size_t *seen = &w->line_of[row - sl_cfg_rows];
    if (*seen)
        return sl_fail(w->err, SL_ERR_INVALID, "%s:%zu: %s: duplicate key, first set on line %zu", w->name,
                       line(at), row->key, *seen);
    *seen = line(at);
    const bool one = value->type == YAML_SCALAR_NODE && row->o->type == SL_OPTION_INTS;
    if (one && value->data.scalar.length) { /* a number is a list of one */
        sl_cfg_clear(w->cfg, row, line(value));
        return set_scalar(w, row, value, true);
    }
    if (sl_option_is_list(row->o)) {
        if (value->type != YAML_SEQUENCE_NODE)
            return fail_at(w, value, row->key, "want a list ([a, b])");
        return set_list(w, row, value);
    }
    if (value->type != YAML_SCALAR_NODE)
        return fail_at(w, value, row->key, "want a single value, not a list or a map");
    return set_scalar(w, row, value, false);
}

static sl_status unknown_key(walk *w, const yaml_node_t *at, const char *key)
{
    char why[320];
    return fail_at(w, at, key, sl_cfg_unknown(key, why, sizeof why));
}

static sl_status walk_map(walk *w, const char *prefix, yaml_node_t *map);

static sl_status walk_pair(walk *w, const char *prefix, yaml_node_t *knode, yaml_node_t *value)
{
    char key[KEY_MAX];
    if (knode->type != YAML_SCALAR_NODE || has_nul(knode) || !knode->data.scalar.length)
        return fail_at(w, knode, prefix[0] ? prefix : "top level", "keys must be plain words");
    int n =
        snprintf(key, sizeof key, "%s%s%s", prefix, prefix[0] ? "." : "", (char *)knode->data.scalar.value);
    if (n >= (int)sizeof key)
        return fail_at(w, knode, key, "unknown key (too long)");
    for (char *p = key; *p; p++) /* the key is part of the error, which must be one printable line */
        if ((unsigned char)*p < 0x20)
            *p = '?';
    const sl_cfg_row *row = sl_cfg_find(key);
    if (row)
        return set_row(w, row, knode, value);
    if (!is_section(key))
        return unknown_key(w, knode, key);
    if (value->type == YAML_SCALAR_NODE && !value->data.scalar.length)
        return SL_OK; /* a section all of whose keys are commented out */
    if (value->type != YAML_MAPPING_NODE)
        return fail_at(w, value, key, "is a section, want a map of keys");
    return walk_map(w, key, value);
}

static sl_status walk_map(walk *w, const char *prefix, yaml_node_t *map)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(w->doc, p->key);
        yaml_node_t *value = yaml_document_get_node(w->doc, p->value);
        sl_status st = walk_pair(w, prefix, key, value);
        if (st)
            return st;
    }
    return SL_OK;
}

static sl_status syntax_error(yaml_parser_t *parser, const char *name, sl_err *err)
{
    if (parser->error == YAML_MEMORY_ERROR)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
    return sl_fail(err, SL_ERR_INVALID, "%s:%zu: not valid YAML: %s%s%s", name, parser->problem_mark.line + 1,
                   parser->problem ? parser->problem : "unknown problem", parser->context ? " " : "",
                   parser->context ? parser->context : "");
}

static yaml_node_t *member(const walk *w, const yaml_node_t *map, const char *name)
{
    if (!map || map->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(w->doc, p->key);
        if (key && key->type == YAML_SCALAR_NODE && strcmp((const char *)key->data.scalar.value, name) == 0)
            return yaml_document_get_node(w->doc, p->value);
    }
    return NULL;
}

/* The plug-in makes keys, so it is loaded before any is read. What its node may not be is told when the key is. */
static sl_status plugin_first(const walk *w, yaml_node_t *root)
{
    yaml_node_t *at = member(w, member(w, root, "sparse_attention"), "plugin");
    if (!at || at->type != YAML_SCALAR_NODE || has_nul(at) || is_null(at))
        return SL_OK;
    sl_status st = sl_cfg_plugin(w->cfg, (const char *)at->data.scalar.value, w->err);
    return st == SL_OK ? SL_OK : sl_fail_in(w->err, st, "%s:%zu: " SL_CFG_PLUGIN_KEY, w->name, line(at));
}

static sl_status walk_document(sl_config *cfg, yaml_document_t *doc, const char *name, sl_err *err)
{
    yaml_node_t *root = yaml_document_get_root_node(doc);
    if (!root || (root->type == YAML_SCALAR_NODE && !root->data.scalar.length))
        return SL_OK; /* an empty file: all defaults */
    if (root->type != YAML_MAPPING_NODE)
        return sl_fail(err, SL_ERR_INVALID, "%s:%zu: want a map of sections at the top level", name,
                       line(root));
    size_t *line_of = calloc(SL_CFG_MAX_ROWS, sizeof *line_of);
    if (!line_of)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
    walk w = {cfg, doc, name, line_of, err};
    snprintf(cfg->file, sizeof cfg->file, "%s", name);
    sl_status st = plugin_first(&w, root);
    if (st == SL_OK)
        st = walk_map(&w, "", root);
    free(line_of);
    return st;
}

/* Anything after the first document is an error. */
static sl_status expect_end(yaml_parser_t *parser, const char *name, sl_err *err)
{
    yaml_document_t more;
    if (!yaml_parser_load(parser, &more))
        return syntax_error(parser, name, err);
    yaml_node_t *root = yaml_document_get_root_node(&more);
    size_t at = root ? line(root) : 0;
    yaml_document_delete(&more);
    return at ? sl_fail(err, SL_ERR_INVALID, "%s:%zu: a second YAML document; want one", name, at) : SL_OK;
}

sl_status sl_config_load_text(sl_config *cfg, const char *text, size_t n, const char *name, sl_err *err)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    sl_status st;
    if (n > FILE_MAX_BYTES)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: larger than %d bytes", name, FILE_MAX_BYTES);
    SL_TRY(sl_yaml_check_depth(text, n, name, err));
    if (!yaml_parser_initialize(&parser))
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    if (!yaml_parser_load(&parser, &doc)) {
        st = syntax_error(&parser, name, err);
        goto delete_parser;
    }
    bool any = yaml_document_get_root_node(&doc) != NULL;
    st = walk_document(cfg, &doc, name, err);
    yaml_document_delete(&doc);
    if (!st && any)
        st = expect_end(&parser, name, err);
delete_parser:
    yaml_parser_delete(&parser);
    return st;
}

sl_status sl_config_load_file(sl_config *cfg, const char *path, sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    sl_status st;
    char *text = malloc(FILE_MAX_BYTES + 1);
    if (!text) {
        st = sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", path);
        goto close_file;
    }
    size_t n = fread(text, 1, FILE_MAX_BYTES + 1, f);
    if (ferror(f))
        st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    else
        st = sl_config_load_text(cfg, text, n, path, err);
    free(text);
close_file:
    fclose(f);
    return st;
}
