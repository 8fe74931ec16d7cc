/*
 * The choices of the configuration, bound to the registries of the rooms that own them: the one place that knows both.
 * A new choice is a CHOICE row in base/config_table.c and a row here.
 */
#ifndef SL_CLI_CONFIG_CHOICES_H
#define SL_CLI_CONFIG_CHOICES_H

#include "base/config.h"

/* For sl_config_bind(). Constant. */
extern const sl_config_choice sl_cli_choices[];

#endif
