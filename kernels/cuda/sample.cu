/* SL_OP_SAMPLE: not on this backend yet; sl_be_supports() says so, and callers sample on the host. */
#include "kernels/cuda/cuda_impl.h"
#include "kernels/sample.h"

const sl_op_impl sl_cuda_sample = {NULL, NULL};
