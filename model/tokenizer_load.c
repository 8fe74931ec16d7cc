/*
 * Reads a tokenizer.json file and its tokenizer_config.json. Every failure names the file, the key and the reason; a
 * component that is not implemented is refused with its name and never skipped.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/tokenizer_load.h"

sl_status tk_no_memory(tk_loader *l)
{
    return sl_fail(l->err, SL_ERR_NO_MEMORY, "out of memory");
}

const char *tk_type(const json_t *obj)
{
    const char *s = json_string_value(json_object_get(obj, "type"));
    return s ? s : "";
}

sl_status tk_get_bool(tk_loader *l, const json_t *obj, const char *name, bool fallback, bool *out)
{
    const json_t *v = json_object_get(obj, name);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return sl_fail(l->err, SL_ERR_INVALID, "%s: must be true or false", name);
    *out = v && !json_is_null(v) ? json_is_true(v) : fallback;
    return SL_OK;
}

sl_status tk_get_id(tk_loader *l, const json_t *v, int32_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TK_ID_LIMIT)
        return sl_fail(l->err, SL_ERR_INVALID, "an id must be an integer from 0 to %d", TK_ID_LIMIT - 1);
    *out = (int32_t)json_integer_value(v);
    return SL_OK;
}

/* ---- the file ---- */

/* Calls `read` with the value of a top-level key; errors get the key as context. */
static sl_status load_key(tk_loader *l, const json_t *root, const char *key,
                          sl_status (*read)(tk_loader *l, const json_t *value))
{
    sl_status st = read(l, json_object_get(root, key));
    return st == SL_OK ? st : sl_fail_in(l->err, st, "%s", key);
}

static sl_status read_pretokenizer(tk_loader *l, const json_t *value)
{
    SL_TRY(tk_load_pretokenizer(l, value));
    return l->byte_level ? SL_OK
                         : sl_fail(l->err, SL_ERR_UNSUPPORTED,
                                   "one that does not end with ByteLevel is not implemented");
}

static sl_status read_decoder(tk_loader *l, const json_t *value)
{
    bool bytes = false;
    SL_TRY(tk_check_decoder(l, value, &bytes));
    return bytes ? SL_OK : sl_fail(l->err, SL_ERR_UNSUPPORTED, "one without ByteLevel is not implemented");
}

static bool is_lossless(const sl_tokenizer *t)
{
    for (int i = 0; i < 256; i++) {
        if (t->byte_id[i] < 0 && (t->unk < 0 || t->fuse_unk))
            return false;
    }
    for (size_t i = 0; i < t->n_steps; i++) {
        if (t->steps[i].behavior == TK_REMOVED)
            return false;
    }
    for (int32_t i = 0; i < t->n_tokens; i++) { /* these take white space into them */
        if (t->tokens[i].flags & (TK_LSTRIP | TK_RSTRIP))
            return false;
    }
    return true;
}

/* The normalizer comes before the added tokens, because these are matched in their normalized spelling. */
static sl_status load_parts(tk_loader *l, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens");
    if (added && !json_is_null(added) && !json_is_array(added))
        return sl_fail(l->err, SL_ERR_INVALID, "added_tokens: must be an array");
    SL_TRY(tk_load_model(l, json_object_get(root, "model"), json_array_size(added)));
    SL_TRY(load_key(l, root, "normalizer", tk_load_normalizer));
    SL_TRY(tk_load_added(l, added));
    SL_TRY(load_key(l, root, "pre_tokenizer", read_pretokenizer));
    SL_TRY(load_key(l, root, "post_processor", tk_load_postprocessor));
    l->t->lossless = is_lossless(l->t);
    return load_key(l, root, "decoder", read_decoder);
}

sl_status sl_tokenizer_parse(const char *json, size_t len, const char *name, sl_tokenizer **out, sl_err *err)
{
    sl_err local = {{0}};
    if (!err)
        err = &local;
    err->text[0] = '\0';
    json_error_t je;
    json_t *root = json_loadb(json, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return sl_fail(err, SL_ERR_INVALID, "%s: line %d: %s", name, je.line, je.text);
    sl_status st;
    sl_tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        st = sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    } else {
        t->unk = t->bos = t->eos = -1;
        tk_loader l = {.t = t, .err = err};
        st = load_parts(&l, root);
    }
    json_decref(root);
    if (st != SL_OK) {
        sl_tokenizer_destroy(t);
        return sl_fail_in(err, st, "%s", name);
    }
    *out = t;
    return SL_OK;
}

/* The bytes of the whole file, malloc'ed. */
static sl_status read_file(const char *path, char **out, size_t *len, sl_err *err)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    char *buf = NULL;
    size_t n = 0, cap = 0, got;
    do {
        if (cap - n < 65536) {
            cap = cap ? cap * 2 : 1u << 20;
            char *p = realloc(buf, cap);
            if (!p)
                goto no_room;
            buf = p;
        }
        got = fread(buf + n, 1, cap - n, f);
        n += got;
    } while (got);
    if (ferror(f)) {
        free(buf);
        fclose(f);
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    }
    fclose(f);
    *out = buf;
    *len = n;
    return SL_OK;
no_room:
    free(buf);
    fclose(f);
    return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", path);
}

/* bos_token / eos_token: a string, or an object with "content". */
static int32_t config_token(const sl_tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? sl_tokenizer_id(t, json_string_value(v), json_string_length(v)) : -1;
}

static sl_status load_config(sl_tokenizer *t, const char *path, sl_err *err)
{
    char *text;
    size_t len;
    sl_status st = read_file(path, &text, &len, err);
    if (st == SL_ERR_NOT_FOUND)
        return SL_OK; /* optional */
    if (st != SL_OK)
        return st;
    json_error_t je;
    json_t *root = json_loadb(text, len, JSON_ALLOW_NUL, &je);
    free(text);
    if (!root)
        return sl_fail(err, SL_ERR_INVALID, "%s: line %d: %s", path, je.line, je.text);
    t->bos = config_token(t, root, "bos_token");
    t->eos = config_token(t, root, "eos_token");
    json_decref(root);
    return SL_OK;
}

sl_status sl_tokenizer_load(const char *path, sl_tokenizer **out, sl_err *err)
{
    char file[4096], config[4096], *text;
    struct stat info;
    bool dir = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *slash = strrchr(path, '/');
    int base = dir ? (int)strlen(path) : slash ? (int)(slash - path) : 0;
    const char *sep = base || slash || dir ? "/" : "";
    int a = dir ? snprintf(file, sizeof file, "%s/tokenizer.json", path)
                : snprintf(file, sizeof file, "%s", path);
    int b = snprintf(config, sizeof config, "%.*s%stokenizer_config.json", base, path, sep);
    if (a < 0 || (size_t)a >= sizeof file || b < 0 || (size_t)b >= sizeof config)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%.64s…: path is too long", path);
    size_t len;
    SL_TRY(read_file(file, &text, &len, err));
    sl_tokenizer *t;
    sl_status st = sl_tokenizer_parse(text, len, file, &t, err);
    free(text);
    if (st != SL_OK)
        return st;
    st = load_config(t, config, err);
    if (st != SL_OK) {
        sl_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return SL_OK;
}
