/*
 * The settings of `sluice eval`: algorithms and budgets of the command line, as they are chosen for a model by the
 * configuration's table of keys. So every algorithm of the registry can be evaluated with all of its keys.
 *
 * An entry of --algorithms is NAME or NAME:KEY=VALUE:KEY=VALUE, with keys of sparse_attention. Main thread.
 */
#ifndef SL_CLI_EVAL_SETTINGS_H
#define SL_CLI_EVAL_SETTINGS_H

#include "base/config.h"
#include "eval/eval.h"

typedef struct sl_cli_eval_settings {
    sl_eval_setting *v; /* [n] */
    sl_config *configs; /* [n], whose lists the settings borrow */
    int32_t n, cap;
    const char *told; /* the entry about which stderr has a line; one is enough for all of its budgets */
} sl_cli_eval_settings;

typedef struct sl_cli_eval_choice {
    const sl_config *cfg;                  /* the configuration to which entries add their keys */
    const sl_local_checkpoint *checkpoint; /* the model */
    const char *const
        *entries; /* [n_entries], exist as long as the settings; without dense, which is always there */
    const int32_t *budgets; /* [n_budgets] */
    int32_t n_entries, n_budgets;
    bool no_bounds; /* without the rows of the ceiling and the floor */
    /* leave out what cannot serve the model, with a line on stderr; otherwise it is an error */
    bool possible;
} sl_cli_eval_choice;

/*
 * dense, then every entry with every budget, or once if its algorithm has none, then the ceiling and the floor (eval/ideal.h) with
 * every budget that an entry has. Errors name the entry and the key. The caller
 * frees, also after a failure.
 */
sl_status sl_cli_eval_settings_make(const sl_cli_eval_choice *c, sl_cli_eval_settings *out, sl_err *err);
void sl_cli_eval_settings_free(sl_cli_eval_settings *s);
/* Leaves out one setting, with the reason on stderr. */
void sl_cli_eval_settings_drop(sl_cli_eval_settings *s, int32_t i, const sl_err *why);

#endif
