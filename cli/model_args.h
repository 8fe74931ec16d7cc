/* Rows for the flags that several commands have: how a checkpoint's numbers are represented, and where it computes. */
#ifndef SL_CLI_MODEL_ARGS_H
#define SL_CLI_MODEL_ARGS_H

#include "cli/cli.h"
#include "local/checkpoint.h"

/* Each variable is a const char *: the name given; NULL or "auto" is settled from the checkpoint. */
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
            "Compute threads of the cpu backend; 0, the default, uses all cores.", 0, 1024, NULL             \
    }

#endif
