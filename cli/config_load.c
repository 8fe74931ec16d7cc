/* See config_load.h. */
#include "cli/config_load.h"

sl_status sl_cli_config_load(const sl_cli_config_args *args, sl_config *cfg, sl_err *err)
{
    sl_config_init(cfg);
    if (args->file)
        SL_TRY(sl_config_load_file(cfg, args->file, err));
    for (int i = 0; i < args->sets.n; i++)
        SL_TRY(sl_config_set(cfg, args->sets.v[i], err));
    return sl_config_finish(cfg, err);
}
