/*
 * Reading, editing and writing of small checkpoints for tests.
 */
#include "checkpoint_tools.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ct_tensor *append(ct_list *l, const char *name, sl_st_dtype d, int32_t rank, const int64_t *shape)
{
    ck_assert_uint_lt(l->n, CT_MAX);
    ct_tensor *t = &l->t[l->n++];
    *t = (ct_tensor){.dtype = d, .rank = rank, .bytes = sl_st_dtype_bytes(d)};
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int32_t i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (size_t)shape[i];
    }
    t->data = calloc(1, t->bytes + 1);
    ck_assert_ptr_nonnull(t->data);
    return t;
}

void ct_read(ct_list *l, const char *path)
{
    sl_err err = {0};
    sl_safetensors *st;
    ck_assert_msg(sl_st_open(path, &st, &err) == SL_OK, "%s", err.text);
    for (size_t i = 0; i < sl_st_count(st); i++) {
        const sl_st_tensor *s = sl_st_at(st, i);
        ct_tensor *t = append(l, s->name, s->dtype, s->rank, s->shape);
        memcpy(t->data, s->data, s->bytes);
    }
    sl_st_close(st);
}

void ct_free(ct_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->t[i].data);
    l->n = 0;
}

ct_tensor *ct_find(ct_list *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->t[i].name, name) == 0)
            return &l->t[i];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

ct_tensor *ct_add(ct_list *l, const char *name, sl_st_dtype dtype, int64_t rows, int64_t cols)
{
    int64_t shape[2] = {rows, cols};
    return append(l, name, dtype, cols ? 2 : 1, shape);
}

void ct_remove(ct_list *l, const char *name)
{
    ct_tensor *t = ct_find(l, name);
    free(t->data);
    memmove(t, t + 1, (size_t)(l->t + l->n - (t + 1)) * sizeof *t);
    l->n--;
}

static FILE *create(const char *dir, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot create %s", path);
    return f;
}

static void name_expert(char out[160], int layer, int expert, int part)
{
    static const char *const parts[] = {"gate", "up", "down"};
    snprintf(out, 160, "model.layers.%d.mlp.experts.%d.%s_proj.weight", layer, expert, parts[part]);
}

/* Adds a fused tensor and moves `parts` tensors of every expert into it, one after another. */
static void fuse(ct_list *l, const char *name, int layer, int experts, int first, int parts)
{
    char from[160];
    name_expert(from, layer, 0, first);
    const ct_tensor one = *ct_find(l, from);
    ct_tensor *all = append(l, name, SL_ST_F32, 3, (int64_t[]){experts, parts * one.shape[0], one.shape[1]});
    for (int i = 0; i < experts * parts; i++) {
        name_expert(from, layer, i / parts, first + i % parts);
        memcpy(all->data + (size_t)i * one.bytes, ct_find(l, from)->data, one.bytes);
    }
}

void ct_fuse(ct_list *l, int layer, int experts)
{
    char name[160];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    fuse(l, name, layer, experts, 0, 2);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
    fuse(l, name, layer, experts, 2, 1);
    for (int i = 0; i < experts * 3; i++) {
        name_expert(name, layer, i / 3, i % 3);
        ct_remove(l, name);
    }
}

void ct_write(const ct_list *l, size_t first, size_t end, const char *dir, const char *file, size_t pad)
{
    char *header = NULL;
    size_t len = 0, at = 0;
    FILE *h = open_memstream(&header, &len);
    fprintf(h, "{");
    for (size_t i = first; i < end; i++) {
        const ct_tensor *t = &l->t[i];
        fprintf(h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > first ? "," : "", t->name,
                sl_st_dtype_name(t->dtype));
        for (int32_t d = 0; d < t->rank; d++)
            fprintf(h, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        fprintf(h, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
        at += t->bytes;
    }
    fprintf(h, "}%*s", (int)pad, "");
    fclose(h);
    while (pad == 0 && len % 8) { /* as other programs that write these files do */
        header = realloc(header, len + 2);
        header[len++] = ' ';
    }
    FILE *f = create(dir, file);
    uint8_t head[8];
    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)(len >> (8 * i));
    fwrite(head, 1, 8, f);
    fwrite(header, 1, len, f);
    for (size_t i = first; i < end; i++)
        fwrite(l->t[i].data, 1, l->t[i].bytes, f);
    ck_assert_int_eq(fclose(f), 0);
    free(header);
}

void ct_write_text(const char *dir, const char *file, const char *text)
{
    FILE *f = create(dir, file);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

void ct_copy(const char *from_dir, const char *to_dir, const char *file)
{
    char path[512], buf[4096];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", from_dir, file);
    FILE *in = fopen(path, "rb"), *out = create(to_dir, file);
    ck_assert_msg(in != NULL, "cannot read %s", path);
    while ((n = fread(buf, 1, sizeof buf, in)) > 0)
        fwrite(buf, 1, n, out);
    fclose(in);
    ck_assert_int_eq(fclose(out), 0);
}

void ct_mkdir(char out[256])
{
    const char *tmp = getenv("TMPDIR");
    snprintf(out, 256, "%s/sl-model-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(out));
}

void ct_rmdir(const char *dir)
{
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%.200s", dir, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    closedir(d);
    rmdir(dir);
}
