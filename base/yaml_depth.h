/* A bound for the nesting of YAML texts. libyaml's time grows with the square of the brackets that are open at once. */
#ifndef SL_BASE_YAML_DEPTH_H
#define SL_BASE_YAML_DEPTH_H

#include "base/status.h"

enum { SL_YAML_DEPTH_MAX = 64 };

/* SL_ERR_INVALID: the text has more than SL_YAML_DEPTH_MAX lists and maps in one another, before anything that is wrong with it
 * otherwise. name: of the file, for err. SL_ERR_NO_MEMORY. */
sl_status sl_yaml_check_depth(const char *text, size_t n, const char *name, sl_err *err);

#endif
