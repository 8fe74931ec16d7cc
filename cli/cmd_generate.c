/*
 * `sluice generate`: runs one request on one checkpoint in one process: chunked prefill, then decode, resident or
 * hierarchical. Its output is the reference for the output of a cluster, so it uses the same engine, sampler and
 * tokenizer, and nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "cli/generate.h"
#include "cli/model_args.h"
#include "local/selection.h"

/* The values of the flags. */
typedef struct flags {
    sl_local_run_opts run;
    const char *mode, *load, *prompt, *ids, *plugin;
    bool json;
} flags;

static const char *const modes[] = {"resident", "hierarchical", NULL};
static const char *const loads[] = {"auto", "dummy", NULL};

/* Parses "1,2,3" into token ids, which the caller frees. */
static sl_status parse_ids(const char *text, int32_t **out, size_t *n, sl_err *err)
{
    size_t cap = 1;
    for (const char *c = text; *c; c++)
        cap += *c == ',';
    int32_t *ids = calloc(cap, sizeof *ids);
    if (!ids)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    size_t k = 0;
    for (const char *p = text;; p++) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < 0 || v > INT32_MAX || (*end && *end != ',')) {
            free(ids);
            return sl_fail(err, SL_ERR_INVALID, "--ids: \"%.20s\" is not a list of token ids such as 1,2,3",
                           p);
        }
        ids[k++] = (int32_t)v;
        p = end;
        if (!*p)
            break;
    }
    *out = ids, *n = k;
    return SL_OK;
}

static sl_status read_prompt(const flags *f, sl_local_run *r, sl_err *err)
{
    if (!f->prompt == !f->ids)
        return sl_fail(err, SL_ERR_INVALID, "give either --prompt or --ids");
    sl_status st = sl_tokenizer_load(f->run.dir, &r->tok, f->ids ? NULL : err);
    if (f->ids) /* with --ids the tokenizer only makes the text of the output, and may be missing */
        return parse_ids(f->ids, &r->prompt, &r->n_prompt, err);
    SL_TRY(st);
    SL_TRY(sl_tokenizer_encode(r->tok, f->prompt, strlen(f->prompt), SL_TOK_ADD_SPECIAL, &r->prompt,
                               &r->n_prompt, err));
    return r->n_prompt ? SL_OK : sl_fail(err, SL_ERR_INVALID, "--prompt is empty");
}

/* The object of --plugin, before the flags are made to which it adds. */
static bool load_plugin(int argc, char **argv)
{
    static const char flag[] = "--plugin";
    const size_t n = sizeof flag - 1;
    const char *given = NULL;
    sl_err err = {""};
    for (int i = 1; i < argc; i++) {
        const char *path = strncmp(argv[i], flag, n) == 0 && argv[i][n] == '=' ? argv[i] + n + 1
                           : strcmp(argv[i], flag) == 0 && i + 1 < argc        ? argv[i + 1]
                                                                               : NULL;
        if (!path)
            continue;
        if (!given ? sl_config_load_plugin(path, &err) == SL_OK : strcmp(given, path) == 0) {
            given = path;
            continue;
        }
        if (given)
            snprintf(err.text, sizeof err.text,
                     "there is one already, %s; an object may have several algorithms", given);
        fprintf(stderr, "sluice generate: --plugin: %s\n", err.text);
        return false;
    }
    return true;
}

static sl_args_result parse_flags(int argc, char **argv, flags *f, sl_local_selection *selection)
{
    sl_local_run_opts *o = &f->run;
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &o->dir, "DIR", "Checkpoint directory. Required.", 0, 0, NULL},
        {"load-format", SL_ARG_CHOICE, &f->load, "NAME",
         "auto, the default: the weights of the checkpoint. dummy: random ones; DIR needs only config.json, and what is "
         "generated has no meaning.",
         0, 0, loads},
        {"prompt", SL_ARG_TEXT, &f->prompt, "TEXT",
         "The prompt as text; the checkpoint needs a tokenizer.json.", 0, 0, NULL},
        {"ids", SL_ARG_TEXT, &f->ids, "1,2,3", "The prompt as token ids.", 0, 0, NULL},
        {"max-new-tokens", SL_ARG_INT, &o->max_new, "N", "Number of tokens to produce. Default 16.", 0,
         1 << 24, NULL},
        {"mode", SL_ARG_CHOICE, &f->mode, "MODE",
         "Where the KV cache is kept during decode: on the device (resident, the default), or in host memory with "
         "a hot buffer on the device (hierarchical).",
         0, 0, modes},
        {"logits", SL_ARG_FLAG, &o->want_logits, NULL, "Print the logits of the last prompt position.", 0, 0,
         NULL},
        {"json", SL_ARG_FLAG, &f->json, NULL, "Print the result as one JSON object.", 0, 0, NULL},
        {"ignore-eos", SL_ARG_FLAG, &o->ignore_eos, NULL, "Do not stop at end-of-sequence tokens.", 0, 0,
         NULL},
        {"temperature", SL_ARG_REAL, &o->temperature, "X",
         "Sampling temperature; 0 always takes the most likely token. Default 0.", 0, 100, NULL},
        {"top-k", SL_ARG_INT, &o->top_k, "N",
         "Sample from the N most likely tokens only; 0 means all. Default 0.", 0, INT32_MAX, NULL},
        {"top-p", SL_ARG_REAL, &o->top_p, "X",
         "Sample from the most likely tokens whose probabilities add up to X; 1 means all. Default 1.", 0, 1,
         NULL},
        {"min-p", SL_ARG_REAL, &o->min_p, "X",
         "Leave out tokens less likely than X times the most likely one; 0 leaves out none. Default 0.", 0, 1,
         NULL},
        {"presence-penalty", SL_ARG_REAL, &o->penalty.presence, "X",
         "Taken off the logit of every token that the output has. Default 0.", -2, 2, NULL},
        {"frequency-penalty", SL_ARG_REAL, &o->penalty.frequency, "X",
         "The same for each time that the output has it. Default 0.", -2, 2, NULL},
        {"repetition-penalty", SL_ARG_REAL, &o->penalty.repetition, "X",
         "Divides the positive logit of a token that prompt or output has, and multiplies a negative one; 1 changes "
         "nothing. Default 1.",
         0, 10, NULL},
        {"seed", SL_ARG_U64, &o->seed, "N", "Seed of the sampler. Default 0.", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N",
         "Number of rows per layer in the hot buffer of hierarchical mode; 0 means twice the longest list of the "
         "algorithm, or the whole context for one that reads all rows. Default 0.",
         0, SL_HOT_ROWS_MAX, NULL},
        {"tail-rows", SL_ARG_INT, &o->tail_rows, "N",
         "Number of newest rows per layer that never leave the device, in addition to the hot rows. Default 64.",
         1, 65536, NULL},
        {"policy", SL_ARG_AUTO, &o->policy, "NAME",
         "How the hot row that a missing row replaces is chosen. auto, the default, decides by the backend.",
         0, 0, sl_evict_policy_names()},
        {"chunk", SL_ARG_INT, &o->chunk, "N", "Number of prompt tokens per prefill step. Default 512.", 1,
         1 << 20, NULL},
        {"draft-tokens", SL_ARG_INT, &o->draft_tokens, "N",
         "Number of tokens that the checkpoint's MTP layer drafts for a step. The output is the same with drafts and without. "
         "Default 0.",
         0, SL_LOCAL_DRAFTS_MAX, NULL},
        SL_CLI_INDEXER_ARG(o->indexer),
        SL_CLI_ROW_FORMAT_ARG(o->row_format),
        SL_CLI_ACT_ARG(o->act),
        {"layout", SL_ARG_AUTO, &o->layout, "NAME",
         "Order of the rows in host memory. auto, the default, decides by the backend.", 0, 0,
         sl_layout_names()},
        {"algorithm", SL_ARG_TEXT, &o->algorithm, "NAME",
         "Sparse algorithm: dsa selects rows with the checkpoint's indexer, msa blocks of rows; dense reads all rows; quest selects blocks "
         "of rows by bounds of their keys, for models with KV heads; double_sparsity selects rows by a few channels of "
         "their keys, likewise; snapkv keeps what the end of the prompt attends to; rocket_kv selects among that; skip_softmax reads all rows but leaves "
         "out tiles of attention; xattention reads all rows, but pages of a prompt read only the pages to which they attend most; streaming_llm reads the first --sinks and the "
         "newest --recent rows; cluster_kv selects rows by clusters of their keys; pq_cache selects rows by their quantised "
         "keys; pooled is for indexers whose keys are those of units of tokens. auto, the default, is dsa, msa or pooled for a model with an "
         "indexer and dense for every other model.",
         0, 0, NULL},
        {"plugin", SL_ARG_TEXT, &f->plugin, "FILE",
         "A shared object with algorithms (sparse_attention.plugin), whose options are flags too.", 0, 0,
         NULL},
        {"sinks", SL_ARG_INT, &o->sink_tokens, "N",
         "Number of first tokens that are always selected. Default 0; 4 with streaming_llm if --recent is not given "
         "either.",
         0, 1 << 20, NULL},
        {"recent", SL_ARG_INT, &o->recent_tokens, "N",
         "Number of newest tokens that are always selected. Default 0; 512 with streaming_llm if --sinks is not given "
         "either.",
         0, 1 << 20, NULL},
        {"min-tokens", SL_ARG_INT, &o->min_tokens, "N",
         "Sequences with fewer tokens than this read every row. Default 0.", 0, 1 << 24, NULL},
        SL_CLI_BACKEND_ARG(o->backend),
        SL_CLI_THREADS_ARG(o->threads),
        {"poison", SL_ARG_FLAG, &o->poison, NULL,
         "For tests: device rows that hold no valid data are filled with NaN.", 0, 0, NULL},
    };
    sl_arg all[SL_COUNT(args) + SL_LOCAL_FLAGS];
    if (!load_plugin(argc, argv))
        return SL_ARGS_WRONG;
    sl_local_selection_init(selection);
    o->selection = selection;
    size_t n = sl_local_selection_args(selection, args, SL_COUNT(args), all);
    return sl_args_parse("--model DIR (--prompt TEXT | --ids 1,2,3) [flags]", all, n, argc, argv);
}

/* The caller closes r, also after a failure. */
static sl_status generate(const flags *f, sl_local_run *r, sl_err *err)
{
    SL_TRY(read_prompt(f, r, err));
    SL_TRY(sl_local_run_open(r, &f->run, err));
    SL_TRY(sl_local_run_request(r, &f->run, err));
    return sl_cli_print_run(r, &f->run, f->json, stdout, err);
}

int sl_cmd_generate(int argc, char **argv)
{
    static sl_local_selection selection; /* large; this runs once per process */
    flags f = {.run = {.max_new = 16,
                       .top_p = 1,
                       .penalty = {.repetition = 1},
                       .tail_rows = 64,
                       .chunk = 512,
                       .backend = "cpu"},
               .mode = "resident",
               .load = "auto"};
    switch (parse_flags(argc, argv, &f, &selection)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!sl_cli_model_given("generate", f.run.dir))
        return SL_EXIT_USAGE;
    f.run.dummy = strcmp(f.load, "dummy") == 0;
    f.run.hierarchical = strcmp(f.mode, "hierarchical") == 0;
    sl_err err = {0};
    sl_local_run r = {0};
    sl_status st = generate(&f, &r, &err);
    sl_local_run_close(&r);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("generate", st, &err);
}
