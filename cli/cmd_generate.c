/*
 * `sluice generate`: one checkpoint, one process, one request: chunked prefill, then decode, resident or
 * hierarchical. It is the reference that the cluster's output is compared with, so it uses the same engine,
 * sampler and tokenizer and nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/generate.h"

static const char *const modes[] = {"resident", "hierarchical", NULL};
static const char *const policies[] = {"lru", "clock", NULL};
static const char *const layouts[] = {"page_first", "layer_first", "page_head", NULL};

/* "1,2,3" to ids. */
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

static sl_status read_prompt(const sl_generate_opts *o, const char *text, const char *ids, sl_gen *g,
                             sl_err *err)
{
    if (!text == !ids)
        return sl_fail(err, SL_ERR_INVALID, "give either --prompt or --ids");
    sl_status st = sl_tokenizer_load(o->dir, &g->tok, ids ? NULL : err);
    if (ids) /* text is a courtesy then */
        return parse_ids(ids, &g->prompt, &g->n_prompt, err);
    if (st != SL_OK)
        return st;
    st = sl_tokenizer_encode(g->tok, text, strlen(text), SL_TOK_ADD_SPECIAL, &g->prompt, &g->n_prompt, err);
    if (st == SL_OK && g->n_prompt == 0)
        return sl_fail(err, SL_ERR_INVALID, "--prompt is empty");
    return st;
}

/* The flags; fills o and the prompt's source. */
static sl_args_result parse_flags(int argc, char **argv, sl_generate_opts *o, const char **prompt,
                                  const char **ids)
{
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &o->dir, "DIR", "checkpoint directory (required)", 0, 0, NULL},
        {"prompt", SL_ARG_TEXT, prompt, "TEXT", "prompt as text, needs a tokenizer.json", 0, 0, NULL},
        {"ids", SL_ARG_TEXT, ids, "1,2,3", "prompt as token ids", 0, 0, NULL},
        {"max-new-tokens", SL_ARG_INT, &o->max_new, "N", "tokens to produce (16)", 0, 1 << 24, NULL},
        {"mode", SL_ARG_CHOICE, &o->mode, "MODE", "where the cache lives", 0, 0, modes},
        {"logits", SL_ARG_FLAG, &o->want_logits, NULL, "print the logits of the last prompt position", 0, 0,
         NULL},
        {"json", SL_ARG_FLAG, &o->json, NULL, "print one JSON object", 0, 0, NULL},
        {"ignore-eos", SL_ARG_FLAG, &o->ignore_eos, NULL, "end-of-sequence tokens are ordinary", 0, 0, NULL},
        {"temperature", SL_ARG_REAL, &o->temperature, "X", "0 takes the best token (0)", 0, 100, NULL},
        {"top-k", SL_ARG_INT, &o->top_k, "N", "0 = all", 0, INT32_MAX, NULL},
        {"top-p", SL_ARG_REAL, &o->top_p, "X", "1 = all", 0, 1, NULL},
        {"min-p", SL_ARG_REAL, &o->min_p, "X", "0 = off", 0, 1, NULL},
        {"seed", SL_ARG_U64, &o->seed, "N", "of the random stream (0)", 0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N", "rows per layer on the device (2 x index_topk)", 0, 65534,
         NULL},
        {"tail-rows", SL_ARG_INT, &o->tail_rows, "N", "newest rows that never leave (64)", 1, 65536, NULL},
        {"policy", SL_ARG_CHOICE, &o->policy, "NAME", "victims of the swap-in", 0, 0, policies},
        {"chunk", SL_ARG_INT, &o->chunk, "N", "prefill tokens per step (512)", 1, 1 << 20, NULL},
        {"indexer", SL_ARG_CHOICE, &o->indexer, "NAME", "numeric convention", 0, 0, sl_cli_indexers},
        {"row-format", SL_ARG_CHOICE, &o->rows, "NAME", "cache rows", 0, 0, sl_cli_row_formats},
        {"act", SL_ARG_CHOICE, &o->act, "NAME", "activations", 0, 0, sl_cli_acts},
        {"layout", SL_ARG_CHOICE, &o->layout, "NAME", "of the host pages", 0, 0, layouts},
        {"algorithm", SL_ARG_TEXT, &o->algorithm, "NAME", "sparse algorithm: dsa (default), dense", 0, 0,
         NULL},
        {"sinks", SL_ARG_INT, &o->sinks, "N", "first tokens always selected (0)", 0, 1 << 20, NULL},
        {"recent", SL_ARG_INT, &o->recent, "N", "newest tokens always selected (0)", 0, 1 << 20, NULL},
        {"min-tokens", SL_ARG_INT, &o->min_tokens, "N", "attend to everything below this length (0)", 0,
         1 << 24, NULL},
        {"backend", SL_ARG_CHOICE, &o->backend, "NAME", "compute backend", 0, 0, sl_cli_backends},
        {"threads", SL_ARG_INT, &o->threads, "N", "CPU threads, 0 = all cores", 0, 1024, NULL},
        {"poison", SL_ARG_FLAG, &o->poison, NULL, "testing: stale device rows are NaN", 0, 0, NULL},
    };
    return sl_args_parse("--model DIR (--prompt TEXT | --ids 1,2,3) [flags]", args, SL_COUNT(args), argc,
                         argv);
}

int sl_cmd_generate(int argc, char **argv)
{
    sl_generate_opts o = {.max_new = 16, .top_p = 1, .tail_rows = 64, .chunk = 512, .algorithm = "dsa"};
    const char *prompt = NULL, *ids = NULL;
    switch (parse_flags(argc, argv, &o, &prompt, &ids)) {
    case SL_ARGS_HELP:
        return SL_EXIT_OK;
    case SL_ARGS_WRONG:
        return SL_EXIT_USAGE;
    case SL_ARGS_RUN:
        break;
    }
    if (!o.dir) {
        fprintf(stderr, "sluice generate: --model DIR is required\n");
        return SL_EXIT_USAGE;
    }
    o.backend_name = sl_cli_backends[o.backend];
    sl_err err = {0};
    sl_gen g = {0};
    sl_status st = read_prompt(&o, prompt, ids, &g, &err);
    if (st == SL_OK)
        st = sl_gen_open(&g, &o, &err);
    if (st == SL_OK)
        st = sl_gen_run(&g, &o, &err);
    if (st == SL_OK)
        st = sl_gen_print(&g, &o, stdout, &err);
    sl_gen_close(&g);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("generate", st, &err);
}
