/*
 * Where tests find NIXL's library, which is not a package of Debian: the environment variable SL_NIXL_LIBRARY, or
 * the Python environment .venv, into which `scripts/install-deps --nixl` installs it. Without it they use the test
 * double (fake_nixl.h).
 */
#ifndef SL_TEST_NIXL_RIG_H
#define SL_TEST_NIXL_RIG_H

#include "tests/unit/kvstore/fake_nixl.h"

/* The path of the library to test with. */
const char *nixl_rig_library(void);
/* Removes a directory with everything in it. */
void nixl_rig_remove(const char *directory);

#endif
