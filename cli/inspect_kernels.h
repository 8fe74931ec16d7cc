/* `sluice inspect --kernels`: on which path of the CUDA backend each weight and the attention of a checkpoint run. */
#ifndef SL_CLI_INSPECT_KERNELS_H
#define SL_CLI_INSPECT_KERNELS_H

#include "local/checkpoint.h"
#include "model/checkpoint.h"

/* Prints a line for every op and shape: for one token and for a chunk of a prompt, on a GPU of compute capability 9.0. ck may be
 * NULL (no weights): then only what follows from the config. SL_ERR_NO_MEMORY. */
sl_status sl_cli_inspect_kernels(const sl_local_checkpoint *m, sl_checkpoint *ck, sl_err *err);

#endif
