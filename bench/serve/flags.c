/* The flags of `sluice bench serve`; see serve.h. */
#include <string.h>

#include "base/args.h"
#include "base/drawn.h"
#include "bench/serve/serve.h"
#include "kernels/params.h"
#include "sparse/profile.h"

const char *const serve_mode_names[] = {"greedy",   "temperature", "top_p", "top_k", "penalties",
                                        "logprobs", "constrained", "own",   NULL};
const char *const serve_draft_names[] = {"0", "1", "2", "3", "4", "auto", NULL};
enum { GREEDY, TEMPERATURE, TOP_P, TOP_K, PENALTIES, LOGPROBS, CONSTRAINED, OWN };

/* Mode constrained: lines of two fields, of which there may always be another. */
static const char FIELDS[] = "(name: [a-z]{1,12}, number: [0-9]{1,6}; )+";

void serve_mode_set(const serve_flags *f, int mode, sl_bench_ask *a)
{
    if (mode == OWN) {
        *a = f->own;
        return;
    }
    *a = (sl_bench_ask){0};
    if (mode == TEMPERATURE)
        a->temperature = 1;
    if (mode == TOP_P || mode == TOP_K)
        a->temperature = 0.7f;
    if (mode == TOP_P)
        a->top_p = 0.95f;
    if (mode == TOP_K)
        a->top_k = 50;
    if (mode == PENALTIES)
        a->presence_penalty = 0.5f;
    if (mode == LOGPROBS)
        a->logprobs = 5;
    if (mode == CONSTRAINED)
        a->regex = FIELDS;
}

int32_t serve_cached(const serve_flags *f)
{
    return f->cached ? (f->prompt - 1) / SL_PAGE_TOKENS * SL_PAGE_TOKENS : 0;
}

typedef struct own_sampling {
    double temperature, top_p, min_p, presence, frequency, repetition;
    int32_t top_k, logprobs;
} own_sampling;

static sl_bench_ask ask_of(const own_sampling *s)
{
    return (sl_bench_ask){.temperature = (float)s->temperature,
                          .top_p = (float)s->top_p,
                          .min_p = (float)s->min_p,
                          .presence_penalty = (float)s->presence,
                          .frequency_penalty = (float)s->frequency,
                          .repetition_penalty = (float)s->repetition,
                          .top_k = s->top_k,
                          .logprobs = s->logprobs};
}

static bool parse(serve_flags *f, own_sampling *s, sl_arg_list *sets, int argc, char **argv, int *exit_code)
{
    static const char *const apis[] = {"grpc", "http", NULL};
    const sl_arg args[] = {
        {"config", SL_ARG_TEXT, &f->config, "FILE", "YAML configuration file of the cluster.", 0, 0, NULL},
        {"set", SL_ARG_LIST, sets, "KEY=VALUE",
         "Set a key to a value that overrides the file; ROLE:KEY=VALUE for the processes of one role. May be given several times.",
         0, 0, NULL},
        {"url", SL_ARG_TEXT, &f->url, "URL",
         "Measure the running cluster with this router, http://HOST:PORT, in place of starting one.", 0, 0,
         NULL},
        {"grpc-port", SL_ARG_INT, &f->grpc_port, "N", "With --url and --api grpc: the router's gRPC port.", 1,
         65535, NULL},
        {"api", SL_ARG_CHOICE, &f->api, "NAME",
         "Protocol of the clients: grpc, the default, which has every token, or http, which has events.", 0,
         0, apis},
        {"streams", SL_ARG_TEXT, &f->streams_list, "LIST",
         "Numbers of streams, one after the other. Default 1.", 0, 0, NULL},
        {"modes", SL_ARG_TEXT, &f->modes_list, "LIST",
         "Kinds of sampling, one after the other: greedy, temperature (1), top_p (0.7 and 0.95), top_k (0.7 and 50), penalties (presence 0.5), logprobs (5), constrained (by a regular expression, which needs a tokenizer and llguidance), own (by the flags below). Default greedy.",
         0, 0, NULL},
        {"prompt", SL_ARG_INT, &f->prompt, "N", "Tokens of a generated prompt. Default 512.", 2, 1 << 24,
         NULL},
        {"prompts", SL_ARG_TEXT, &f->prompts, "FILE",
         "Prompts in place of generated ones: a text in each line, for the tokenizer of model.path.", 0, 0,
         NULL},
        {"shared", SL_ARG_FLAG, &f->shared, NULL,
         "Generated prompts differ only in their last page, so the host store keeps the others once.", 0, 0,
         NULL},
        {"cached", SL_ARG_FLAG, &f->cached, NULL,
         "Prompts count as cached but for their last tokens: their pages are filled with random rows (bench.cached_tokens; needs model.load_format dummy and workers of role both).",
         0, 0, NULL},
        {"selection", SL_ARG_CHOICE, &f->selection, "NAME",
         "With --cached: draw what attention reads, of which this share stays from step to step, as `sluice bench decode --profiles` (bench.selection).",
         0, 0, sl_coord_profile_names()},
        {"drafts", SL_ARG_TEXT, &f->drafts_list, "LIST",
         "Values of model.draft_tokens, for each of which a cluster is started, one after the other: 0 to 4, auto. tokens/s are compared with the first.",
         0, 0, NULL},
        {"draft-accept", SL_ARG_TEXT, &f->accept, "LIST",
         "With --drafts and random weights: the part of the steps in which at least the first, the first two, .. drafts stand, drawn from a fixed seed (bench.selection).",
         0, 0, NULL},
        {"tokens", SL_ARG_INT, &f->tokens, "N",
         "Tokens of a stream at most; 1: prompts alone are measured. Default 2000.", 1, 1 << 24, NULL},
        {"seconds", SL_ARG_REAL, &f->seconds, "S", "Length of a measurement. Default 4.", 0.01, 3600, NULL},
        {"whole", SL_ARG_FLAG, &f->whole, NULL,
         "Let every stream run to its end and check that it has all its tokens; without it streams are ended after the measurement.",
         0, 0, NULL},
        {"ready-s", SL_ARG_INT, &f->ready_s, "N", "How long the cluster may take to start. Default 300.", 1,
         86400, NULL},
        {"temperature", SL_ARG_REAL, &s->temperature, "X", "Of mode own. Default 0.", 0, 100, NULL},
        {"top-p", SL_ARG_REAL, &s->top_p, "X", "Of mode own.", 0, 1, NULL},
        {"min-p", SL_ARG_REAL, &s->min_p, "X", "Of mode own.", 0, 1, NULL},
        {"top-k", SL_ARG_INT, &s->top_k, "N", "Of mode own.", 0, 1 << 24, NULL},
        {"presence-penalty", SL_ARG_REAL, &s->presence, "X", "Of mode own.", -2, 2, NULL},
        {"frequency-penalty", SL_ARG_REAL, &s->frequency, "X", "Of mode own.", -2, 2, NULL},
        {"repetition-penalty", SL_ARG_REAL, &s->repetition, "X", "Of mode own.", 0, 2, NULL},
        {"logprobs", SL_ARG_INT, &s->logprobs, "N",
         "Of mode own: log-probabilities of this number of tokens.", 0, 20, NULL},
        {"csv", SL_ARG_TEXT, &f->csv, "FILE", "Also write the results as CSV.", 0, 0, NULL},
    };
    return sl_args_ready("[flags]", args, SL_COUNT(args), argc, argv, exit_code);
}

static bool wrong(const char *why)
{
    fprintf(stderr, "sluice bench serve: %s\n", why);
    return false;
}

static bool check_drafts(const serve_flags *f)
{
    double accept[SL_DRAWN_DRAFTS];
    sl_err err = {0};
    if (f->drafts_list && (f->url || f->tokens == 1))
        return wrong("--drafts is for streams of clusters that are started");
    if (f->accept && !f->drafts_list)
        return wrong("--draft-accept needs --drafts");
    if (!f->accept || sl_drawn_accept(f->accept, ',', accept, &err) == SL_OK)
        return true;
    fprintf(stderr, "sluice bench serve: --draft-accept: %s\n", err.text);
    return false;
}

static bool check(const serve_flags *f)
{
    if (!check_drafts(f))
        return false;
    if (f->selection && !f->cached)
        return wrong("--selection needs --cached, from whose tokens it draws");
    if (f->tokens == 1 && (f->cached || f->modes.n > 1))
        return wrong("--tokens 1 measures prompts: --cached and several --modes are for streams");
    if (f->url && (f->cached || f->config || f->n_sets))
        return wrong(
            "--url: the cluster runs; --config, --set, --cached and --selection are for one that is started");
    if (f->url && strcmp(f->api, "grpc") == 0 && !f->grpc_port)
        return wrong("--url: name --grpc-port, or --api http");
    if (f->prompts && (f->cached || f->shared))
        return wrong("--prompts: --cached and --shared are for generated prompts");
    return true;
}

bool serve_flags_parse(serve_flags *f, int argc, char **argv, int *exit_code)
{
    own_sampling s = {0};
    sl_arg_list sets = {0};
    *f = (serve_flags){.api = "grpc",
                       .streams_list = "1",
                       .modes_list = "greedy",
                       .prompt = 512,
                       .tokens = 2000,
                       .seconds = 4,
                       .ready_s = 300};
    if (!parse(f, &s, &sets, argc, argv, exit_code))
        return false;
    *exit_code = SL_EXIT_USAGE;
    f->own = ask_of(&s);
    f->n_sets = sets.n;
    memcpy(f->sets, sets.v, sizeof *sets.v * (size_t)sets.n);
    return sl_bench_list_flag("bench serve", "streams", f->streams_list, NULL, 1, &f->streams) &&
           (!f->drafts_list ||
            sl_bench_list_flag("bench serve", "drafts", f->drafts_list, serve_draft_names, 0, &f->drafts)) &&
           sl_bench_list_flag("bench serve", "modes", f->modes_list, serve_mode_names, 0, &f->modes) &&
           check(f);
}
