/*
 * `sluice config`: prints the effective values of a configuration file with --set values, or the reference of all keys.
 * `sluice config check FILE`: exits 1 with the reason for what would fail at the start of its processes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/config_load.h"
#include "cli/config_start.h"

static int print_text(char *text)
{
    if (!text)
        return sl_args_fail("config", SL_ERR_NO_MEMORY, NULL);
    int bad = fputs(text, stdout) < 0;
    free(text);
    return bad ? SL_EXIT_FAILED : SL_EXIT_OK;
}

/* argv: "check", FILE and --set values. */
static int check_file(int argc, char **argv)
{
    static sl_config cfg; /* large; this runs once per process */
    sl_cli_config_args config = {0};
    bool elsewhere = false;
    const sl_arg args[] = {
        SL_CLI_CONFIG_ARGS(config),
        {"elsewhere", SL_ARG_FLAG, &elsewhere, NULL,
         "The processes start on other hosts, or already run: ports, memory and devices of this host do not matter.",
         0, 0, NULL},
    };
    sl_err err = {0};
    int32_t context = 0;
    int exit_code;
    const bool named = argc > 1 && argv[1][0] != '-';
    char *first = argv[0];
    if (named) { /* the flags begin after it */
        argv[0] = argv[1];
        argv[1] = first;
    }
    if (!sl_args_ready("FILE [--set KEY=VALUE]... [--elsewhere]", args, SL_COUNT(args), argc - named,
                       argv + named, &exit_code))
        return exit_code;
    if (named)
        config.file = argv[0];
    sl_status st = sl_cli_config_load(&config, &cfg, &err);
    if (st == SL_OK)
        st = sl_cli_check_start(&cfg, !elsewhere, &context, &err);
    if (st != SL_OK)
        return sl_args_fail("config check", st, &err);
    if (cfg.model.max_context > context)
        printf("note: model.max_context is %d, but the checkpoint and kvstore.bytes allow %d tokens\n",
               cfg.model.max_context, context);
    printf("ok: %s with requests of at most %d tokens\n", cfg.model.served_name, context);
    return SL_EXIT_OK;
}

int sl_cmd_config(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "check") == 0) {
        static char name[] = "config check";
        argv[1] = name;
        return check_file(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "--help=commands") == 0) {
        printf("check\twhat of a file would fail at the start of its processes\n");
        return SL_EXIT_OK;
    }
    static const char *const formats[] = {"md", "yaml", NULL};
    static sl_config cfg; /* large; this runs once per process */
    sl_cli_config_args config = {0};
    const char *reference = NULL;
    const sl_arg args[] = {
        SL_CLI_CONFIG_ARGS(config),
        {"reference", SL_ARG_CHOICE, &reference, "FORMAT",
         "Print the reference of all keys instead of the values.", 0, 0, formats},
    };
    int exit_code;
    if (!sl_args_ready("[--config FILE] [--set KEY=VALUE]... | --reference md|yaml | check FILE", args,
                       SL_COUNT(args), argc, argv, &exit_code))
        return exit_code;
    if (reference)
        return print_text(strcmp(reference, "md") == 0 ? sl_config_reference() : sl_config_reference_yaml());
    sl_err err = {0};
    sl_status st = sl_cli_config_load(&config, &cfg, &err);
    if (st != SL_OK)
        return sl_args_fail("config", st, &err);
    return print_text(sl_config_dump(&cfg));
}
