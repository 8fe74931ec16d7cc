/* Formats of a checkpoint by name; see checkpoint.h. */
#include "local/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

const char *const sl_cli_backends[] = {"cpu", "cuda", NULL};
const char *const sl_cli_acts[] = {"auto", "f32", "bf16", NULL};
const char *const sl_cli_indexers[] = {"auto", "plain", "official", NULL};
const char *const sl_cli_row_formats[] = {"auto", "mla_f32", "mla_bf16", "mla_fp8", NULL};

sl_status sl_cli_model_read(const char *dir, int indexer, int rows, sl_cli_model *out, sl_err *err)
{
    sl_cli_model m = {.stored = SL_BF16};
    sl_status st = sl_model_config_load(dir, &m.cfg, err);
    if (st != SL_OK)
        return st;
    m.has_weights = sl_cli_weight_bytes(dir) > 0;
    if (m.has_weights && (st = sl_model_stored_dtype(dir, &m.stored, err)) != SL_OK)
        return st;
    sl_model_auto_formats(&m.cfg, m.stored, &m.index_format, &m.row_format);
    if (indexer > 0)
        m.index_format = indexer == 1 ? SL_INDEX_PLAIN : SL_INDEX_OFFICIAL;
    if (rows > 0)
        m.row_format = rows == 1 ? SL_ROW_MLA_F32 : rows == 2 ? SL_ROW_MLA_BF16 : SL_ROW_MLA_FP8;
    *out = m;
    return SL_OK;
}

const char *sl_cli_dtype_name(sl_dtype d)
{
    static const char *const names[] = {"F32", "BF16", "F16", "F8_E4M3", "I32"};
    return (unsigned)d < SL_COUNT(names) ? names[d] : "?";
}

const char *sl_cli_index_name(sl_index_format f)
{
    return f == SL_INDEX_PLAIN ? "plain" : "official";
}

const char *sl_cli_row_name(sl_row_format f)
{
    return f == SL_ROW_MLA_F32 ? "mla_f32" : f == SL_ROW_MLA_BF16 ? "mla_bf16" : "mla_fp8";
}

uint64_t sl_cli_weight_bytes(const char *dir)
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
