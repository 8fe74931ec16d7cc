/*
 * Binds each choice of the configuration to the registry of the room that owns it; no other file knows both. A new
 * choice needs a CHOICE row in base/config_table.c and a row in config_choices.c.
 */
#ifndef SL_CLI_CONFIG_CHOICES_H
#define SL_CLI_CONFIG_CHOICES_H

#include "base/config.h"

/* Both for sl_config_bind(). The choices are constant; the parts are the options of every implementation of the registries of
 * sparse algorithms, tiers, policies and event sinks, made by the first call. */
extern const sl_config_choice sl_cli_choices[];
const sl_options *const *sl_cli_parts(void);

#endif
