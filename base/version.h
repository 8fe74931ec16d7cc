/* The version of this tree, and the only place that has it: `sluice version`, the build_info metric of every process, and the version
 * of the CMake project, which reads this line. */
#ifndef SL_BASE_VERSION_H
#define SL_BASE_VERSION_H

#define SL_VERSION "0.3.0"

#endif
