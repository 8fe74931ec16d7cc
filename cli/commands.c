/* The table of subcommands; see cli.h for how to add one. */
#include "cli/cli.h"

#include <stdio.h>

#include "cli/version.h"

int sl_cmd_version(int argc, char **argv)
{
    if (sl_args_parse("", NULL, 0, argc, argv) == SL_ARGS_WRONG)
        return SL_EXIT_USAGE;
    printf("sluice %s\n", SL_VERSION);
    return SL_EXIT_OK;
}

const sl_command sl_commands[] = {
    {"serve", "one process of a cluster; the MPI rank decides its role", sl_cmd_serve},
    {"router", "the router of a cluster", sl_cmd_router},
    {"prefill", "a prefill worker; joins the router named in the configuration", sl_cmd_prefill},
    {"decode", "a decode worker; joins the router named in the configuration", sl_cmd_decode},
    {"both", "a worker that computes prompts and decodes; joins the router named in the configuration",
     sl_cmd_both},
    {"generate", "run a checkpoint in one process and print what it produces", sl_cmd_generate},
    {"plan", "memory per request and largest batch of a model", sl_cmd_plan},
    {"calibrate", "measure on a text what an algorithm needs to know about a model", sl_cmd_calibrate},
    {"verify", "check that a checkpoint's logits do not depend on where its rows are", sl_cmd_verify},
    {"eval", "accuracy of a model's answers for several sparse algorithms and budgets", sl_cmd_eval},
    {"inspect", "the contents of a checkpoint: config, tensors, formats, page geometry", sl_cmd_inspect},
    {"simulate", "what a cluster of given sizes would do with a trace of requests, in virtual time",
     sl_cmd_simulate},
    {"config", "the effective values of a configuration, or the reference of its keys", sl_cmd_config},
    {"cache", "what is cached where, and checks, filling and emptying of caches", sl_cmd_cache},
    {"bench", "benchmarks of single parts", sl_cmd_bench},
    {"version", "the version", sl_cmd_version},
    {NULL, NULL, NULL},
};
