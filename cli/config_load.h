/* The configuration of a command: --config and --set, the same for every command that takes them. */
#ifndef SL_CLI_CONFIG_LOAD_H
#define SL_CLI_CONFIG_LOAD_H

#include "base/config.h"
#include "cli/cli.h"

typedef struct sl_cli_config_args {
    const char *file; /* NULL: defaults */
    sl_arg_list sets;
} sl_cli_config_args;

/* Rows for the command's own table of flags. */
#define SL_CLI_CONFIG_ARGS(a)                                                                                \
    {"config", SL_ARG_TEXT, &(a).file, "FILE", "YAML configuration file.", 0, 0, NULL},                      \
    {                                                                                                        \
        "set", SL_ARG_LIST, &(a).sets, "KEY=VALUE",                                                          \
            "A value that overrides the file. May be given several times.", 0, 0, NULL                       \
    }

/* Defaults, then the file, then the settings in order, then the checks. */
sl_status sl_cli_config_load(const sl_cli_config_args *args, sl_config *cfg, sl_err *err);

#endif
