/*
 * Where tests find NIXL, which is not a package of Debian: the environment variable SL_NIXL_LIBRARY, or the Python environment
 * .venv, into which `scripts/install-deps --nixl` installs it.
 */
#ifndef SL_TEST_NIXL_RIG_H
#define SL_TEST_NIXL_RIG_H

/* The path of libnixl_capi.so; NULL with the reason. */
const char *nixl_rig_library(const char **why);
/* Removes a directory with everything in it. */
void nixl_rig_remove(const char *directory);

#endif
