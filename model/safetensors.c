/*
 * Safetensors reader: 8-byte little-endian header length, a JSON object {name: {dtype, shape, data_offsets}},
 * then data.
 *
 * The header is parsed by jansson (which refuses duplicate keys, invalid UTF-8 and embedded NULs) and then
 * checked as a whole: sorted by offset, the tensors must fill the data area without gap or overlap. Only names and
 * shapes are copied.
 */
#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct sl_safetensors {
    char *label;
    const uint8_t *bytes;
    size_t size, header_len;
    bool mapped;
    sl_st_tensor *tensors;
    size_t count;
    char *names;
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[SL_ST_DTYPES] = {
    [SL_ST_BOOL] = {"BOOL", 1},       [SL_ST_U8] = {"U8", 1},           [SL_ST_I8] = {"I8", 1},
    [SL_ST_F8_E4M3] = {"F8_E4M3", 1}, [SL_ST_F8_E5M2] = {"F8_E5M2", 1}, [SL_ST_F8_E8M0] = {"F8_E8M0", 1},
    [SL_ST_I16] = {"I16", 2},         [SL_ST_U16] = {"U16", 2},         [SL_ST_F16] = {"F16", 2},
    [SL_ST_BF16] = {"BF16", 2},       [SL_ST_I32] = {"I32", 4},         [SL_ST_U32] = {"U32", 4},
    [SL_ST_F32] = {"F32", 4},         [SL_ST_I64] = {"I64", 8},         [SL_ST_U64] = {"U64", 8},
    [SL_ST_F64] = {"F64", 8},
};

const char *sl_st_dtype_name(sl_st_dtype d)
{
    return (unsigned)d < SL_ST_DTYPES ? dtypes[d].name : "?";
}

size_t sl_st_dtype_bytes(sl_st_dtype d)
{
    return (unsigned)d < SL_ST_DTYPES ? dtypes[d].bytes : 0;
}

static sl_status parse_dtype(const json_t *j, const char *label, const char *name, sl_st_dtype *out,
                             sl_err *err)
{
    if (!json_is_string(j))
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: dtype is missing or not a string", label, name);
    for (int d = 0; d < SL_ST_DTYPES; d++) {
        if (strcmp(json_string_value(j), dtypes[d].name) == 0) {
            *out = (sl_st_dtype)d;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor %s: unknown dtype \"%.32s\"", label, name,
                   json_string_value(j));
}

/* Reads the shape and computes the bytes that it needs; every product is checked for overflow. */
static sl_status parse_shape(const json_t *j, const char *label, sl_st_tensor *t, size_t *bytes, sl_err *err)
{
    if (!json_is_array(j))
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: shape is missing or not a list", label, t->name);
    size_t rank = json_array_size(j);
    if (rank > SL_ST_MAX_RANK)
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: rank %zu is more than %d", label, t->name, rank,
                       SL_ST_MAX_RANK);
    size_t total = sl_st_dtype_bytes(t->dtype);
    for (size_t i = 0; i < rank; i++) {
        const json_t *dim = json_array_get(j, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: shape[%zu] is not a natural number", label,
                           t->name, i);
        t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(total, (size_t)t->shape[i], &total))
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: shape is too large", label, t->name);
    }
    t->rank = (int32_t)rank;
    *bytes = total;
    return SL_OK;
}

static sl_status parse_offsets(const json_t *j, const sl_safetensors *st, sl_st_tensor *t, size_t need,
                               sl_err *err)
{
    const json_t *b = json_array_get(j, 0), *e = json_array_get(j, 1);
    if (!json_is_array(j) || json_array_size(j) != 2 || !json_is_integer(b) || !json_is_integer(e))
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: data_offsets is not a pair of integers",
                       st->label, t->name);
    json_int_t begin = json_integer_value(b), end = json_integer_value(e);
    size_t data_len = st->size - 8 - st->header_len;
    if (begin >= 0 && end >= begin && (uint64_t)end > data_len)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s: truncated: tensor %s ends at byte %lld of the data, but the file has %zu bytes of data",
            st->label, t->name, (long long)end, data_len);
    if (begin < 0 || end < begin)
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: tensor %s: data_offsets [%lld, %lld] leave the data of %zu bytes", st->label,
                       t->name, (long long)begin, (long long)end, data_len);
    if ((uint64_t)(end - begin) != need)
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: %lld bytes stored, shape and dtype need %zu",
                       st->label, t->name, (long long)(end - begin), need);
    t->data = st->bytes + 8 + st->header_len + begin;
    t->bytes = need;
    return SL_OK;
}

static sl_status parse_tensor(const sl_safetensors *st, const json_t *j, sl_st_tensor *t, sl_err *err)
{
    if (!json_is_object(j))
        return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: not an object", st->label, t->name);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)j, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: unknown key \"%.32s\"", st->label, t->name,
                           key);
    }
    size_t need = 0;
    SL_TRY(parse_dtype(json_object_get(j, "dtype"), st->label, t->name, &t->dtype, err));
    SL_TRY(parse_shape(json_object_get(j, "shape"), st->label, t, &need, err));
    return parse_offsets(json_object_get(j, "data_offsets"), st, t, need, err);
}

static sl_status check_metadata(const sl_safetensors *st, const json_t *j, sl_err *err)
{
    if (!json_is_object(j))
        return sl_fail(err, SL_ERR_INVALID, "%s: __metadata__ is not an object", st->label);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)j, key, value)
    {
        if (!json_is_string(value))
            return sl_fail(err, SL_ERR_INVALID, "%s: __metadata__: value of \"%.64s\" is not a string",
                           st->label, key);
    }
    return SL_OK;
}

static sl_status parse_all(sl_safetensors *st, const json_t *root, sl_err *err)
{
    size_t n = json_object_size(root), name_bytes = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        size_t len = strlen(key);
        if (len == 0 || len > SL_ST_MAX_NAME)
            return sl_fail(err, SL_ERR_INVALID, "%s: a tensor name has %zu bytes, allowed are 1 to %d",
                           st->label, len, SL_ST_MAX_NAME);
        name_bytes += len + 1;
    }
    st->tensors = calloc(n ? n : 1, sizeof *st->tensors);
    st->names = malloc(name_bytes ? name_bytes : 1);
    if (!st->tensors || !st->names)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory for the table of %zu tensors", st->label, n);
    char *name = st->names;
    json_object_foreach((json_t *)root, key, value)
    {
        sl_status rc;
        if (strcmp(key, "__metadata__") == 0) {
            rc = check_metadata(st, value, err);
        } else {
            size_t len = strlen(key) + 1;
            memcpy(name, key, len);
            st->tensors[st->count].name = name;
            name += len;
            rc = parse_tensor(st, value, &st->tensors[st->count], err);
            st->count++;
        }
        if (rc != SL_OK)
            return rc;
    }
    return SL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const sl_st_tensor *x = a, *y = b;
    const uint8_t *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty tensors first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const sl_st_tensor *)a)->name, ((const sl_st_tensor *)b)->name);
}

/* The tensors must fill the data area: a gap or an overlap means that the header is wrong. */
static sl_status check_tiling(sl_safetensors *st, sl_err *err)
{
    if (st->count)
        qsort(st->tensors, st->count, sizeof *st->tensors, by_offset);
    const uint8_t *next = st->bytes + 8 + st->header_len, *end = st->bytes + st->size;
    for (size_t i = 0; i < st->count; i++) {
        const sl_st_tensor *t = &st->tensors[i];
        if ((const uint8_t *)t->data != next)
            return sl_fail(err, SL_ERR_INVALID, "%s: tensor %s: data %s", st->label, t->name,
                           (const uint8_t *)t->data < next ? "overlaps another tensor's"
                                                           : "leaves a gap before it");
        next += t->bytes;
    }
    if (next != end)
        return sl_fail(err, SL_ERR_INVALID, "%s: %zu bytes after the last tensor belong to no tensor",
                       st->label, (size_t)(end - next));
    if (st->count)
        qsort(st->tensors, st->count, sizeof *st->tensors, by_name);
    return SL_OK;
}

static sl_status parse_header(sl_safetensors *st, sl_err *err)
{
    if (st->size < 8)
        return sl_fail(err, SL_ERR_INVALID, "%s: truncated: %zu bytes, too short for a safetensors file",
                       st->label, st->size);
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | st->bytes[i];
    if (len > SL_ST_MAX_HEADER)
        return sl_fail(err, SL_ERR_INVALID, "%s: header length %llu exceeds the limit of 100 MiB", st->label,
                       (unsigned long long)len);
    if (len > st->size - 8)
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: truncated: header length %llu exceeds the end of the file, which has %zu bytes",
                       st->label, (unsigned long long)len, st->size);
    st->header_len = (size_t)len;
    const char *text = (const char *)st->bytes + 8;
    if (len == 0 || text[0] != '{')
        return sl_fail(err, SL_ERR_INVALID, "%s: the header is not a JSON object", st->label);
    json_error_t je;
    json_t *root = json_loadb(text, st->header_len, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return sl_fail(err, SL_ERR_INVALID, "%s: header, byte %d: %s", st->label, je.position, je.text);
    sl_status rc = parse_all(st, root, err);
    json_decref(root);
    return rc == SL_OK ? check_tiling(st, err) : rc;
}

static sl_status open_bytes(const void *bytes, size_t n, bool mapped, const char *label, sl_safetensors **out,
                            sl_err *err)
{
    sl_safetensors *st = calloc(1, sizeof *st);
    if (!st || !(st->label = strdup(label))) {
        free(st);
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: no memory", label);
    }
    st->bytes = bytes;
    st->size = n;
    sl_status rc = parse_header(st, err);
    if (rc != SL_OK) {
        sl_st_close(st);
        return rc;
    }
    st->mapped = mapped;
    *out = st;
    return SL_OK;
}

sl_status sl_st_parse(const void *bytes, size_t n, const char *label, sl_safetensors **out, sl_err *err)
{
    return open_bytes(bytes, n, false, label, out, err);
}

sl_status sl_st_open(const char *path, sl_safetensors **out, sl_err *err)
{
    sl_status rc;
    struct stat sb;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &sb) != 0) {
        rc = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
        goto close_fd;
    }
    if (!S_ISREG(sb.st_mode) || sb.st_size < 8) {
        rc = sl_fail(err, SL_ERR_INVALID, "%s: %s", path,
                     S_ISREG(sb.st_mode) ? "truncated: too short for a safetensors file"
                                         : "not a regular file");
        goto close_fd;
    }
    size_t size = (size_t)sb.st_size;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        rc = sl_fail(err, SL_ERR_IO, "%s: mmap: %s", path, strerror(errno));
        goto close_fd;
    }
    rc = open_bytes(map, size, true, path, out, err);
    if (rc != SL_OK)
        munmap(map, size);
close_fd:
    close(fd);
    return rc;
}

void sl_st_close(sl_safetensors *st)
{
    if (!st)
        return;
    if (st->mapped)
        munmap((void *)(uintptr_t)st->bytes, st->size);
    free(st->tensors);
    free(st->names);
    free(st->label);
    free(st);
}

const char *sl_st_label(const sl_safetensors *st)
{
    return st->label;
}

size_t sl_st_count(const sl_safetensors *st)
{
    return st->count;
}

const sl_st_tensor *sl_st_at(const sl_safetensors *st, size_t i)
{
    return i < st->count ? &st->tensors[i] : NULL;
}

const sl_st_tensor *sl_st_find(const sl_safetensors *st, const char *name)
{
    sl_st_tensor key = {.name = name};
    return st->count ? bsearch(&key, st->tensors, st->count, sizeof key, by_name) : NULL;
}

const void *sl_st_header(const sl_safetensors *st, size_t *n)
{
    *n = st->header_len;
    return st->bytes + 8;
}
