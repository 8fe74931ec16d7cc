/* See config_load.h. */
#include "cli/config_load.h"

#include <string.h>

static sl_status load(const sl_cli_config_args *args, const char *several, sl_config *cfg, sl_err *err)
{
    static const char plugin[] = "sparse_attention.plugin=";
    sl_config_init(cfg);
    if (args->file)
        SL_TRY(sl_config_load_file(cfg, args->file, err));
    for (int i = 0; i < args->sets.n; i++) /* it makes keys that others of these may have */
        if (strncmp(args->sets.v[i], plugin, sizeof plugin - 1) == 0)
            SL_TRY(sl_config_set(cfg, args->sets.v[i], err));
    for (int i = 0; i < args->sets.n; i++)
        SL_TRY(sl_config_set(cfg, args->sets.v[i], err));
    if (several)
        sl_config_forget_readers(cfg, several);
    return sl_config_finish(cfg, err);
}

sl_status sl_cli_config_load(const sl_cli_config_args *args, sl_config *cfg, sl_err *err)
{
    return load(args, NULL, cfg, err);
}

sl_status sl_cli_config_load_several(const sl_cli_config_args *args, const char *section, sl_config *cfg,
                                     sl_err *err)
{
    return load(args, section, cfg, err);
}
