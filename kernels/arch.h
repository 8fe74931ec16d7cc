/*
 * Whether a program that was built for some GPU architectures may run on a device. This is decided at start: a
 * kernel without code for the device would fail only at its first launch, and a kernel that is compiled for an
 * architecture without the instructions it needs is empty and would compute nothing. Pure functions over text and
 * numbers.
 */
#ifndef SL_KERNELS_ARCH_H
#define SL_KERNELS_ARCH_H

#include "base/status.h"

/*
 * archs: the architectures that the program has code for, "90a" or "80,90a,100"; cc: the device's compute
 * capability, 10 * major + minor. A plain architecture serves its own and later minor versions of the same major
 * version, one with a letter serves exactly its own version. A device of 9.0 requires 90a, because the kernels that
 * are chosen there exist only in that code.
 */
bool sl_arch_runs(const char *archs, int cc);

/* The same check, and whether the driver found code for the device in this program (loads). The text of
 * SL_ERR_UNSUPPORTED names the device, what the program has been built for, and what to build. */
sl_status sl_arch_check(const char *archs, int cc, bool loads, const char *device, sl_err *err);

#endif
