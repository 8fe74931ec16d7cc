/*
 * Whether a program built for some GPU architectures may run on a device: decided at start, because a kernel
 * without code for the device fails at its first launch only, and one that was built for the device without
 * the instructions it is chosen for would be empty. Pure functions over text and numbers.
 */
#ifndef SL_KERNELS_ARCH_H
#define SL_KERNELS_ARCH_H

#include "base/status.h"

/*
 * archs: what the program has code for, "90a" or "80,90a,100"; cc: the device's compute capability, 10 *
 * major
 * + minor. A plain architecture serves its own and later minor versions of the same major version, one with a
 * letter exactly itself. 9.0 wants 90a: the kernels that are chosen there exist in that code alone.
 */
bool sl_arch_runs(const char *archs, int cc);

/* As above, and whether the driver found code in this program (loads). SL_ERR_UNSUPPORTED says what the
 * device is, what the program has, and what to build. */
sl_status sl_arch_check(const char *archs, int cc, bool loads, const char *device, sl_err *err);

#endif
