/* See model_args.h. */
#include "cli/model_args.h"

#include <stdio.h>

bool sl_cli_model_given(const char *command, const char *dir)
{
    if (!dir)
        fprintf(stderr, "sluice %s: --model DIR is required\n", command);
    return dir != NULL;
}
