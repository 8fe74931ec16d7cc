/* The table of subcommands; see cli.h for how to add one. */
#include "cli/cli.h"

#include <stdio.h>

#include "base/msg.h"
#include "cli/version.h"

int sl_cmd_version(int argc, char **argv)
{
    if (sl_args_parse("", NULL, 0, argc, argv) == SL_ARGS_WRONG)
        return SL_EXIT_USAGE;
    printf("sluice %s, messages %d\n", SL_VERSION, SL_MSG_VERSION);
    return SL_EXIT_OK;
}

const sl_command sl_commands[] = {
    {"serve", "one process of a cluster; the MPI rank decides its role",
     "mpirun -n 4 sluice serve --config configs/one-host.yaml", sl_cmd_serve},
    {"router", "the router of a cluster", "sluice router --config configs/no-mpi.yaml", sl_cmd_router},
    {"prefill", "a prefill worker; joins the router named in the configuration",
     "sluice prefill --config configs/no-mpi.yaml", sl_cmd_prefill},
    {"decode", "a decode worker; joins the router named in the configuration",
     "sluice decode --config configs/no-mpi.yaml --index 0", sl_cmd_decode},
    {"both", "a worker that computes prompts and decodes; joins the router named in the configuration",
     "sluice both --config configs/no-mpi.yaml", sl_cmd_both},
    {"generate", "run a checkpoint in one process and print what it produces",
     "sluice generate --model models/tiny-v32 --prompt 'The cache lives' --max-new-tokens 8",
     sl_cmd_generate},
    {"plan", "memory per request and largest batch of a model",
     "sluice plan --preset deepseek_v32 --ranks 8 --gpu-bytes 139G --host-bytes 2T", sl_cmd_plan},
    {"doctor", "what of this host a cluster needs, what is wrong, and what to do",
     "sluice doctor --config configs/one-host.yaml", sl_cmd_doctor},
    {"calibrate", "measure on a text what an algorithm needs to know about a model",
     "sluice calibrate --algorithm double_sparsity --model DIR --text FILE --output double_sparsity.json",
     sl_cmd_calibrate},
    {"verify", "check that a checkpoint's logits do not depend on where its rows are",
     "sluice verify --model models/tiny-v32 --steps 8", sl_cmd_verify},
    {"eval", "accuracy of a model's answers for several sparse algorithms and budgets",
     "sluice eval --model models/facts-dsa", sl_cmd_eval},
    {"inspect", "the contents of a checkpoint: config, tensors, formats, page geometry",
     "sluice inspect --model models/tiny-v32 --tensors", sl_cmd_inspect},
    {"simulate", "what a cluster of given sizes would do with a trace of requests, in virtual time",
     "sluice simulate --generate 1000 --costs simulate/costs/h200-v32.yaml --prefill 2 --decode 6",
     sl_cmd_simulate},
    {"config", "the effective values of a configuration, or the reference of its keys",
     "sluice config check configs/one-host.yaml --set model.max_context=32768", sl_cmd_config},
    {"cache", "what is cached where, and checks, filling and emptying of caches",
     "sluice cache stat --router http://127.0.0.1:8080", sl_cmd_cache},
    {"top", "what the router's live page shows, in a terminal", "sluice top --router http://127.0.0.1:8080",
     sl_cmd_top},
    {"trace", "where the time of one of the last requests went, for chrome://tracing",
     "sluice trace chatcmpl-0123456789abcdef01234567 --output trace.json", sl_cmd_trace},
    {"bench", "benchmarks of single parts", "sluice bench transport --help", sl_cmd_bench},
    {"version", "the version", "sluice version", sl_cmd_version},
    {NULL, NULL, NULL, NULL},
};
