/* The flags --config and --set, which are the same for every command that has a configuration. */
#ifndef SL_CLI_CONFIG_LOAD_H
#define SL_CLI_CONFIG_LOAD_H

#include "base/config.h"
#include "cli/cli.h"

typedef struct sl_cli_config_args {
    const char *file; /* NULL: the defaults apply */
    sl_arg_list sets;
} sl_cli_config_args;

/* Rows of the command's table of flags. */
#define SL_CLI_CONFIG_ARGS(a)                                                                                \
    {"config", SL_ARG_TEXT, &(a).file, "FILE", "YAML configuration file.", 0, 0, NULL},                      \
    {                                                                                                        \
        "set", SL_ARG_LIST, &(a).sets, "KEY=VALUE",                                                          \
            "Set a key to a value that overrides the file. May be given several times.", 0, 0, NULL          \
    }

/* Takes the defaults, then the values of the file, then those of --set in their order, and checks the result. */
sl_status sl_cli_config_load(const sl_cli_config_args *args, sl_config *cfg, sl_err *err);
/* For a command that uses several implementations of a section one after the other: keys of any of them may be set. */
sl_status sl_cli_config_load_several(const sl_cli_config_args *args, const char *section, sl_config *cfg,
                                     sl_err *err);

#endif
