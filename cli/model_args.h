/* The flags that several commands have: the checkpoint's directory and formats, and where it is computed. */
#ifndef SL_CLI_MODEL_ARGS_H
#define SL_CLI_MODEL_ARGS_H

#include "cli/cli.h"
#include "engine/choose.h"
#include "local/checkpoint.h"

/* False, with a message on stderr, when the flag --model was not given. */
bool sl_cli_model_given(const char *command, const char *dir);

/*
 * Rows of the command's table of flags. Each variable but that of --threads is a const char *, which receives the name;
 * NULL or "auto" means that the stored weights decide.
 */
#define SL_CLI_INDEXER_ARG(variable)                                                                         \
    {                                                                                                        \
        "indexer", SL_ARG_AUTO, &(variable), "NAME",                                                         \
            "Numeric convention of the indexer. auto, the default, chooses by the stored weights.", 0, 0,    \
            sl_index_format_names()                                                                          \
    }
#define SL_CLI_ROW_FORMAT_ARG(variable)                                                                      \
    {                                                                                                        \
        "row-format", SL_ARG_AUTO, &(variable), "NAME",                                                      \
            "Format of the rows of the KV cache. auto, the default, chooses by the stored weights.", 0, 0,   \
            sl_row_format_names()                                                                            \
    }
#define SL_CLI_ACT_ARG(variable)                                                                             \
    {                                                                                                        \
        "act", SL_ARG_AUTO, &(variable), "NAME",                                                             \
            "Data type of the activations. auto, the default, chooses by the stored weights.", 0, 0,         \
            sl_local_act_names                                                                               \
    }
#define SL_CLI_BACKEND_ARG(variable)                                                                         \
    {                                                                                                        \
        "backend", SL_ARG_TEXT, &(variable), "NAME", "Compute backend: cpu, the default, or cuda.", 0, 0,    \
            NULL                                                                                             \
    }
#define SL_CLI_THREADS_ARG(variable)                                                                         \
    {                                                                                                        \
        "threads", SL_ARG_INT, &(variable), "N",                                                             \
            "Number of compute threads of the cpu backend; 0, the default, uses all cores.", 0, 1024, NULL   \
    }

#endif
