/*
 * Opens a checkpoint directory: config texts and the table of all tensors of all shards, sorted by name.
 */
#include "model/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SHARDS 4096
#define MAX_JSON_BYTES (256u << 20)

struct sl_checkpoint {
    char *dir;
    sl_safetensors **files;
    size_t n_files;
    sl_ck_tensor *tensors;
    size_t count;
    char *names; /* those that are not a part of the file's name */
};

sl_status sl_read_file(const char *path, size_t limit, char **out, size_t *n, sl_err *err)
{
    sl_status rc = SL_OK;
    char *buf = NULL;
    size_t len = 0, cap = 0;
    FILE *f = fopen(path, "rbe");
    if (!f)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    for (;;) {
        if (cap - len < 2) {
            cap = cap ? cap * 2 : 1 << 14;
            char *grown = realloc(buf, cap);
            if (!grown) {
                rc = sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory for its text", path);
                goto close_file;
            }
            buf = grown;
        }
        size_t got = fread(buf + len, 1, cap - len - 1, f);
        if (got == 0)
            break;
        len += got;
        if (len > limit) {
            rc = sl_fail(err, SL_ERR_INVALID, "%s: longer than %zu bytes", path, limit);
            goto close_file;
        }
    }
    if (ferror(f))
        rc = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
close_file:
    fclose(f);
    if (rc != SL_OK) {
        free(buf);
        return rc;
    }
    buf[len] = '\0';
    *out = buf;
    *n = len;
    return SL_OK;
}

static sl_status join(const char *dir, const char *name, char out[PATH_MAX], sl_err *err)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX)
        return sl_fail(err, SL_ERR_INVALID, "%.200s…: path too long", dir);
    return SL_OK;
}

/* hf_quant_config.json, of checkpoints whose config.json says nothing of quantisation. */
static sl_status load_quantisation(const char *dir, sl_model_config *out, sl_err *err)
{
    char path[PATH_MAX], *text = NULL;
    size_t n = 0;
    SL_TRY(join(dir, "hf_quant_config.json", path, err));
    if (access(path, F_OK) != 0)
        return SL_OK;
    SL_TRY(sl_read_file(path, 16u << 20, &text, &n, err));
    sl_status rc = sl_model_config_hf_quant(text, n, path, out, err);
    free(text);
    return rc;
}

sl_status sl_model_config_load(const char *dir, sl_model_config *out, sl_err *err)
{
    char cpath[PATH_MAX], gpath[PATH_MAX], *text = NULL, *gen = NULL;
    size_t n = 0, gn = 0;
    SL_TRY(join(dir, "config.json", cpath, err));
    SL_TRY(join(dir, "generation_config.json", gpath, err));
    SL_TRY(sl_read_file(cpath, 16u << 20, &text, &n, err));
    sl_status rc = sl_read_file(gpath, 16u << 20, &gen, &gn, err);
    if (rc == SL_OK || rc == SL_ERR_NOT_FOUND)
        rc = sl_model_config_parse(text, n, cpath, gen, gn, gpath, out, err);
    free(gen);
    free(text);
    if (rc == SL_OK && strlen(dir) < sizeof out->dir)
        memcpy(out->dir, dir, strlen(dir) + 1);
    return rc == SL_OK ? load_quantisation(dir, out, err) : rc;
}

static sl_status add_file(sl_checkpoint *ck, const char *path, sl_err *err)
{
    sl_safetensors **grown = realloc(ck->files, (ck->n_files + 1) * sizeof(sl_safetensors *));
    if (!grown)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", path);
    ck->files = grown;
    SL_TRY(sl_st_open(path, &ck->files[ck->n_files], err));
    ck->n_files++;
    return SL_OK;
}

/* Whether a shard's name names a file in the directory: not empty, no dot at its beginning, no slash. */
static bool plain_name(const char *s)
{
    return *s && *s != '.' && !strchr(s, '/') && strlen(s) < 256;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static sl_status open_shard(sl_checkpoint *ck, const char *name, const char *path, sl_err *err)
{
    char shard[PATH_MAX];
    SL_TRY(join(ck->dir, name, shard, err));
    if (ck->n_files == MAX_SHARDS)
        return sl_fail(err, SL_ERR_INVALID, "%s: more than %d files", path, MAX_SHARDS);
    return add_file(ck, shard, err);
}

/* Opens every file that the map names, in the order of their names. */
static sl_status open_shards(sl_checkpoint *ck, const json_t *map, const char *path, sl_err *err)
{
    size_t n = json_object_size(map), i = 0;
    const char **names = calloc(n ? n : 1, sizeof *names);
    if (!names)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", path);
    sl_status rc = SL_OK;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        const char *file = json_string_value(value);
        if (!file || !plain_name(file)) {
            rc = sl_fail(err, SL_ERR_INVALID,
                         "%s: weight_map: %.200s: not the name of a file in the same folder", path, key);
            goto free_names;
        }
        names[i++] = file;
    }
    qsort(names, n, sizeof *names, by_string);
    for (i = 0; rc == SL_OK && i < n; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
            rc = open_shard(ck, names[i], path, err);
    }
free_names:
    free(names);
    return rc;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const sl_ck_tensor *)a)->name, ((const sl_ck_tensor *)b)->name);
}

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* The name without the prefix of a text part, and with "model." before "layers."; *room, where there is place for the
 * whole name, may hold it then and moves on. */
static const char *text_name(const char *name, char **room)
{
    static const char whole[] = "language_model.", inner[] = "model.language_model.", model[] = "model.";
    const bool bare = begins(name, "layers.");
    if (begins(name, whole))
        return name + sizeof whole - 1;
    if (!bare && !begins(name, inner))
        return name;
    char *made = *room;
    const char *rest = bare ? name : name + sizeof inner - 1;
    size_t n = strlen(rest) + 1;
    memcpy(made, model, sizeof model - 1);
    memcpy(made + sizeof model - 1, rest, n);
    *room = made + sizeof model - 1 + n;
    return made;
}

static sl_status list_tensors(sl_checkpoint *ck, sl_err *err)
{
    size_t total = 0, bytes = 1;
    for (size_t f = 0; f < ck->n_files; f++) {
        total += sl_st_count(ck->files[f]);
        for (size_t i = 0; i < sl_st_count(ck->files[f]); i++)
            bytes += sizeof "model." + strlen(sl_st_at(ck->files[f], i)->name);
    }
    ck->tensors = calloc(total ? total : 1, sizeof *ck->tensors);
    ck->names = malloc(bytes);
    if (!ck->tensors || !ck->names)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory for %zu tensors", ck->dir, total);
    char *room = ck->names;
    for (size_t f = 0; f < ck->n_files; f++)
        for (size_t i = 0; i < sl_st_count(ck->files[f]); i++) {
            const sl_st_tensor *t = sl_st_at(ck->files[f], i);
            ck->tensors[ck->count++] =
                (sl_ck_tensor){t, text_name(t->name, &room), ck->files[f], false, SL_CK_COMMON};
        }
    return SL_OK;
}

static sl_status merge(sl_checkpoint *ck, sl_err *err)
{
    SL_TRY(list_tensors(ck, err));
    qsort(ck->tensors, ck->count, sizeof *ck->tensors, by_tensor_name);
    for (size_t i = 1; i < ck->count; i++)
        if (strcmp(ck->tensors[i - 1].name, ck->tensors[i].name) == 0)
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s is also in %s",
                           sl_st_label(ck->tensors[i].file), ck->tensors[i].t->name,
                           sl_st_label(ck->tensors[i - 1].file));
    return SL_OK;
}

static sl_status check_map(sl_checkpoint *ck, const json_t *map, const char *path, sl_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        const sl_ck_tensor *e = sl_checkpoint_find(ck, key);
        const char *label = e ? sl_st_label(e->file) : "";
        const char *slash = strrchr(label, '/');
        if (!e || strcmp(slash ? slash + 1 : label, json_string_value(value)) != 0)
            return sl_fail(err, SL_ERR_INVALID, "%s: weight_map: tensor %.200s is not in %s", path, key,
                           json_string_value(value));
    }
    for (size_t i = 0; i < ck->count; i++)
        if (!json_object_get(map, ck->tensors[i].t->name))
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s is not in the index",
                           sl_st_label(ck->tensors[i].file), ck->tensors[i].t->name);
    return SL_OK;
}

/* Opens the files of the index, and checks that their tensors are where the index says. */
static sl_status open_map(sl_checkpoint *ck, const json_t *root, const char *path, sl_err *err)
{
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return sl_fail(err, SL_ERR_INVALID, "%s: weight_map: missing or not an object of file names", path);
    SL_TRY(open_shards(ck, map, path, err));
    SL_TRY(merge(ck, err));
    return check_map(ck, map, path, err);
}

static sl_status open_index(sl_checkpoint *ck, const char *path, sl_err *err)
{
    char *text = NULL;
    size_t n = 0;
    json_error_t je;
    sl_status rc = sl_read_file(path, MAX_JSON_BYTES, &text, &n, err);
    if (rc == SL_ERR_NOT_FOUND)
        return sl_fail(err, rc, "%s: neither model.safetensors nor model.safetensors.index.json is there",
                       ck->dir);
    if (rc != SL_OK)
        return rc;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    free(text);
    if (!root)
        return sl_fail(err, SL_ERR_INVALID, "%s: line %d: %s", path, je.line, je.text);
    rc = open_map(ck, root, path, err);
    json_decref(root);
    return rc;
}

/* One file, or the files of an index. */
static sl_status open_files(sl_checkpoint *ck, sl_err *err)
{
    char path[PATH_MAX];
    SL_TRY(join(ck->dir, "model.safetensors", path, err));
    sl_status rc = add_file(ck, path, err);
    if (rc == SL_OK)
        return merge(ck, err);
    if (rc != SL_ERR_NOT_FOUND)
        return rc;
    SL_TRY(join(ck->dir, "model.safetensors.index.json", path, err));
    return open_index(ck, path, err);
}

sl_status sl_checkpoint_open(const char *dir, sl_checkpoint **out, sl_err *err)
{
    sl_checkpoint *ck = calloc(1, sizeof *ck);
    if (!ck || !(ck->dir = strdup(dir))) {
        free(ck);
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", dir);
    }
    sl_status rc = open_files(ck, err);
    if (rc != SL_OK) {
        sl_checkpoint_close(ck);
        return rc;
    }
    *out = ck;
    return SL_OK;
}

void sl_checkpoint_close(sl_checkpoint *ck)
{
    if (!ck)
        return;
    for (size_t i = 0; i < ck->n_files; i++)
        sl_st_close(ck->files[i]);
    free(ck->files);
    free(ck->names);
    free(ck->tensors);
    free(ck->dir);
    free(ck);
}

size_t sl_checkpoint_count(const sl_checkpoint *ck)
{
    return ck->count;
}

sl_ck_tensor *sl_checkpoint_at(sl_checkpoint *ck, size_t i)
{
    return i < ck->count ? &ck->tensors[i] : NULL;
}

sl_ck_tensor *sl_checkpoint_find(sl_checkpoint *ck, const char *name)
{
    char made[SL_ST_MAX_NAME + sizeof "model."], *room = made;
    sl_ck_tensor key = {.name = strlen(name) <= SL_ST_MAX_NAME ? text_name(name, &room) : name};
    return ck->count ? bsearch(&key, ck->tensors, ck->count, sizeof key, by_tensor_name) : NULL;
}

const char *sl_checkpoint_dir(const sl_checkpoint *ck)
{
    return ck->dir;
}

uint64_t sl_checkpoint_file_bytes(const char *dir)
{
    uint64_t bytes = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *dot = strrchr(e->d_name, '.');
        struct stat sb;
        if (dot && strcmp(dot, ".safetensors") == 0 && fstatat(dirfd(d), e->d_name, &sb, 0) == 0)
            bytes += (uint64_t)sb.st_size;
    }
    if (d)
        closedir(d);
    return bytes;
}
