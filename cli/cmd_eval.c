/*
 * `sluice eval`: the accuracy of a model's answers about generated documents or those of a file (eval/eval.h), for several
 * algorithms and budgets on a checkpoint in this process, or for servers of the OpenAI HTTP API. The first SIGINT or SIGTERM ends
 * the run after the present document, and what was measured until then is printed; a second one ends the process at once.
 * Lines of the CSV are written as soon as they are complete.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/config_load.h"
#include "cli/eval_http.h"
#include "cli/eval_lists.h"
#include "cli/eval_settings.h"
#include "cli/model_args.h"
#include "eval/dump.h"
#include "model/chat.h"

enum { FACTS_NEW = 64, PLAIN_NEW = 192, KEY_BYTES = 4096 };

typedef struct flags {
    sl_local_opts local;
    const char *indexer, *row_format, *csv, *svg, *style, *key_file, *chat, *too_long, *dump;
    sl_cli_eval_flags lists;
    sl_arg_list urls;
    sl_cli_config_args config;
    int32_t documents, max_new, chunk, measured;
    uint64_t seed;
    bool no_bounds;
} flags;

/* What the flags say, and what belongs to the run. */
typedef struct evaluation {
    const flags *f;
    sl_cli_eval_lists lists;
    sl_config cfg;
    sl_local local;
    sl_tokenizer *tok;
    sl_cli_eval_settings settings;
    sl_http_server servers[SL_ARG_LIST_MAX]; /* by setting, and their names */
    char names[SL_ARG_LIST_MAX][128];
    char key[KEY_BYTES];
    sl_eval_target target;
    sl_eval_opts opts;
    FILE *csv, *svg, *dump;
} evaluation;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static const char *const chat_names[] = {"auto", "none", NULL};

static bool parse(int argc, char **argv, flags *f, int *exit_code)
{
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &f->local.dir, "DIR", "Checkpoint directory. Required unless --url is given.",
         0, 0, NULL},
        {"url", SL_ARG_LIST, &f->urls, "[NAME=]URL",
         "Instead of --model: a server of the OpenAI HTTP API, http://HOST:PORT. May be given several times; a server "
         "named dense is compared with the others.",
         0, 0, NULL},
        {"key-file", SL_ARG_TEXT, &f->key_file, "FILE", "With --url: file with the API key.", 0, 0, NULL},
        {"tasks", SL_ARG_LIST, &f->lists.tasks, "LIST",
         "Tasks that are made from a seed: needle, several, multikey, persons, chain, early (the question before the text). "
         "Default: all. Or files with questions, FILE.jsonl: lines with prompt, answers and scorer, or those of LongBench or "
         "RULER; or folders of such files.",
         0, 0, NULL},
        {"text", SL_ARG_LIST, &f->lists.texts, "FILE",
         "Instead of --tasks: any text, in windows of a length. Measures how often the next token is that of dense attention, "
         "KL divergence and perplexity.",
         0, 0, NULL},
        {"measured", SL_ARG_INT, &f->measured, "N",
         "With --text: tokens at the end of each window that are predicted. Default 64.", 1, 1 << 20, NULL},
        {"scorer", SL_ARG_CHOICE, &f->lists.files.scorer, "NAME",
         "With files: of lines that name no scorer: exact, contains, contains_all, f1, rouge_l, choice, rouge_words, classes, "
         "numbers or code.",
         0, 0, sl_eval_scorer_names},
        {"longbench-prompts", SL_ARG_TEXT, &f->lists.files.prompts, "FILE",
         "LongBench's dataset2prompt.json. Without it a prompt is the context and the input.", 0, 0, NULL},
        {"chat", SL_ARG_CHOICE, &f->chat, "NAME",
         "With files: auto puts questions in the chat format of the model, except those that LongBench puts without; none puts them "
         "as they are. Default auto.",
         0, 0, chat_names},
        {"too-long", SL_ARG_CHOICE, &f->too_long, "NAME",
         "With files: what becomes of questions that are longer than the length. refuse (default); cut: the middle of the prompt "
         "is left out, as LongBench does; skip: they are not asked.",
         0, 0, sl_eval_long_names},
        {"lengths", SL_ARG_LIST, &f->lists.lengths, "LIST",
         "Tokens of prompt and answer. Default 1024; with files that of the longest question, as far as the model's context "
         "reaches.",
         0, 0, NULL},
        {"budgets", SL_ARG_LIST, &f->lists.budgets, "LIST",
         "Tokens that a query reads, for algorithms that have a budget; those that hold a whole length are left out for "
         "it. Default 64,128,256,512, as far as they are below the largest length.",
         0, 0, NULL},
        {"algorithms", SL_ARG_LIST, &f->lists.algorithms, "LIST",
         "Sparse algorithms, each with keys of sparse_attention as NAME:KEY=VALUE:KEY=VALUE. dense is always there. "
         "Default: all that can serve the model.",
         0, 0, NULL},
        {"no-bounds", SL_ARG_FLAG, &f->no_bounds, NULL,
         "Without the rows exact_topk and random, between which a strategy with this budget lies.", 0, 0,
         NULL},
        {"samples", SL_ARG_INT, &f->documents, "N",
         "Documents of each task and length, at most: the first ones of a file, windows of a text. Default: all of a file, else "
         "10.",
         1, 100000, NULL},
        {"documents", SL_ARG_INT, &f->documents, "N", "The same as --samples.", 1, 100000, NULL},
        {"seed", SL_ARG_U64, &f->seed, "N", "Seed of the documents. Default 1.", 0, 0, NULL},
        {"documents-style", SL_ARG_AUTO, &f->style, "NAME",
         "facts: as the checkpoints models/facts-* were trained on, answers right word by word. plain: with an "
         "instruction, answers right if they have the values. auto, the default, is facts for a checkpoint of that "
         "vocabulary.",
         0, 0, sl_eval_style_names},
        {"max-new-tokens", SL_ARG_INT, &f->max_new, "N",
         "Tokens of an answer at most. Default 64, or 192 with plain.", 1, 1 << 16, NULL},
        {"csv", SL_ARG_TEXT, &f->csv, "FILE", "Write one line for each task, length and setting.", 0, 0,
         NULL},
        {"dump-lists", SL_ARG_TEXT, &f->dump, "FILE",
         "Write the selected tokens of every decode step with their shares of attention; docs/examples/read_lists.py reads them.",
         0, 0, NULL},
        {"svg", SL_ARG_TEXT, &f->svg, "FILE", "Draw the accuracy over the budget.", 0, 0, NULL},
        {"chunk", SL_ARG_INT, &f->chunk, "N", "Number of prompt tokens per prefill step. Default 512.", 1,
         1 << 20, NULL},
        SL_CLI_CONFIG_ARGS(f->config),
        SL_CLI_INDEXER_ARG(f->indexer),
        SL_CLI_ROW_FORMAT_ARG(f->row_format),
        SL_CLI_ACT_ARG(f->local.act),
        SL_CLI_BACKEND_ARG(f->local.backend),
        SL_CLI_THREADS_ARG(f->local.threads),
    };
    return sl_args_ready("(--model DIR | --url URL) [flags]", args, SL_COUNT(args), argc, argv, exit_code);
}

/* ---- a checkpoint in this process ---- */

static sl_status choose_style(evaluation *e, sl_err *err)
{
    const char *name = e->f->style;
    (void)err;
    e->opts.style = SL_EVAL_PLAIN;
    if (!name || strcmp(name, "auto") == 0) {
        if (e->tok && sl_eval_knows_facts(e->tok))
            e->opts.style = SL_EVAL_FACTS;
    } else if (strcmp(name, sl_eval_style_names[SL_EVAL_FACTS]) == 0) {
        e->opts.style = SL_EVAL_FACTS;
    }
    e->opts.max_new_given = e->f->max_new > 0;
    e->opts.max_new = e->f->max_new                                        ? e->f->max_new
                      : e->opts.style == SL_EVAL_FACTS || e->lists.n_files ? FACTS_NEW
                                                                           : PLAIN_NEW;
    return SL_OK;
}

/* Everything but the weights, which the lengths of questions do not need. */
static sl_status open_checkpoint(evaluation *e, sl_err *err)
{
    const flags *f = e->f;
    sl_chat_format format;
    SL_TRY(sl_local_checkpoint_read(f->local.dir, f->indexer, f->row_format, &e->local.checkpoint, err));
    SL_TRY(sl_tokenizer_load(f->local.dir, &e->tok, err));
    SL_TRY(sl_cli_eval_lists_load_texts(&f->lists, e->tok, &e->lists, err));
    format = sl_chat_format_for(e->local.checkpoint.cfg.family, e->tok);
    if (strcmp(e->cfg.router.chat_template, "auto") != 0)
        SL_TRY(sl_chat_format_parse(e->cfg.router.chat_template, &format));
    SL_TRY(choose_style(e, err));
    return sl_eval_local_create(&e->local, e->tok, format, f->chunk, &e->target, err);
}

/* The longest question gives the length of files; the model's context bounds it. */
static sl_status choose_length(evaluation *e, sl_err *err)
{
    const int32_t most = e->local.checkpoint.cfg.max_context;
    if (!e->lists.n_lengths) {
        SL_TRY(sl_eval_longest(&e->opts, &e->target, &e->lists.length[0], err));
        if (e->lists.length[0] > most)
            e->lists.length[0] = most;
        e->lists.n_lengths = 1;
        SL_TRY(sl_cli_eval_lists_bound(&e->f->lists, &e->lists, err));
    }
    const int32_t longest = e->lists.length[e->lists.n_lengths - 1];
    return longest <= most ? SL_OK
                           : sl_fail(err, SL_ERR_TOO_LARGE,
                                     "--lengths: %d tokens exceed the model's context of %d", longest, most);
}

static sl_status open_model(evaluation *e, sl_err *err)
{
    const flags *f = e->f;
    const int32_t longest = e->lists.length[e->lists.n_lengths - 1];
    sl_local_opts o = f->local;
    o.max_tokens = f->chunk < longest ? f->chunk : longest;
    o.max_logit_rows = 1;
    o.max_context = longest;
    SL_TRY(sl_local_open_backend(&e->local, &o, err));
    return sl_local_open_model(&e->local, &o, err);
}

/* The entries of --algorithms, or every algorithm of the registry; dense is there without an entry. */
static sl_status make_settings(evaluation *e, sl_err *err)
{
    const char *entries[SL_EVAL_ITEMS];
    sl_cli_eval_choice c = {.cfg = &e->cfg,
                            .checkpoint = &e->local.checkpoint,
                            .entries = entries,
                            .budgets = e->lists.budget,
                            .n_budgets = e->lists.n_budgets,
                            .no_bounds = e->f->no_bounds,
                            .possible = !e->f->lists.algorithms.n};
    for (int32_t i = 0; i < e->lists.algorithms.n; i++)
        if (strcmp(e->lists.algorithms.v[i], sl_algo_dense.name) != 0)
            entries[c.n_entries++] = e->lists.algorithms.v[i];
    for (int32_t i = 0; c.possible && sl_algo_names()[i] && c.n_entries < SL_EVAL_ITEMS; i++)
        if (strcmp(sl_algo_names()[i], sl_algo_dense.name) != 0)
            entries[c.n_entries++] = sl_algo_names()[i];
    SL_TRY(sl_cli_eval_settings_make(&c, &e->settings, err));
    return SL_OK;
}

/* Opens every setting once. One that was named must open; of all others, those that cannot serve the model are left out. */
static sl_status try_settings(evaluation *e, sl_err *err)
{
    for (int32_t i = 0; i < e->settings.n;) {
        sl_err why = {""};
        sl_status st = e->target.begin(e->target.ctx, &e->settings.v[i], e->lists.length[0], &why);
        if (st == SL_OK)
            i++;
        else if ((e->f->lists.algorithms.n && !e->settings.v[i].ideal) || i == 0)
            return sl_fail(err, st, "--algorithms: %s: %s", e->settings.v[i].name, why.text);
        else
            sl_cli_eval_settings_drop(&e->settings, i, &why);
    }
    return SL_OK;
}

static void set_opts(evaluation *e)
{
    const flags *f = e->f;
    e->opts.tasks = e->lists.source;
    e->opts.lengths = e->lists.length;
    e->opts.documents = f->documents;
    e->opts.measured = f->measured;
    e->opts.no_chat = f->chat && strcmp(f->chat, "none") == 0;
    for (int i = 0; f->too_long && sl_eval_long_names[i]; i++)
        if (strcmp(f->too_long, sl_eval_long_names[i]) == 0)
            e->opts.too_long = (sl_eval_long)i;
    e->opts.seed = f->seed;
    e->opts.stop = &interrupted;
    e->opts.n_tasks = e->lists.n_sources;
    e->opts.n_lengths = e->lists.n_lengths;
    e->opts.settings = e->settings.v;
    e->opts.n_settings = e->settings.n;
}

static sl_status prepare_local(evaluation *e, sl_err *err)
{
    SL_TRY(sl_cli_config_load_several(&e->f->config, "sparse_attention", &e->cfg, err));
    SL_TRY(open_checkpoint(e, err));
    set_opts(e);
    SL_TRY(choose_length(e, err));
    SL_TRY(open_model(e, err));
    SL_TRY(make_settings(e, err));
    return try_settings(e, err);
}

/* ---- servers ---- */

static sl_status read_key(evaluation *e, sl_err *err)
{
    FILE *from = fopen(e->f->key_file, "re");
    if (!from)
        return sl_fail(err, SL_ERR_IO, "--key-file: %s: %s", e->f->key_file, strerror(errno));
    const size_t n = fread(e->key, 1, sizeof e->key - 1, from);
    fclose(from);
    e->key[strcspn(e->key, "\r\n")] = 0;
    return n && e->key[0] ? SL_OK : sl_fail(err, SL_ERR_INVALID, "--key-file: %s is empty", e->f->key_file);
}

/* [NAME=]URL, of which the whole is the name if there is none. */
static sl_status add_server(evaluation *e, const char *entry, sl_err *err)
{
    const int32_t i = e->settings.n;
    const char *equals = strchr(entry, '=');
    sl_eval_setting *s = &e->settings.v[i];
    SL_TRY(sl_http_server_parse(equals ? equals + 1 : entry, &e->servers[i], err));
    e->servers[i].key = e->key;
    snprintf(e->names[i], sizeof e->names[i], "%.*s",
             (int)(equals ? equals - entry : (ptrdiff_t)strlen(entry)), entry);
    *s = (sl_eval_setting){.name = e->names[i], .server = i};
    s->baseline = strcmp(s->name, sl_algo_dense.name) == 0;
    e->settings.n++;
    return SL_OK;
}

static sl_status prepare_servers(evaluation *e, sl_err *err)
{
    if (e->f->lists.algorithms.n || e->f->lists.budgets.n)
        return sl_fail(
            err, SL_ERR_INVALID,
            "--%s: with --url the server's own configuration says how it reads; give one --url NAME=URL for "
            "each server",
            e->f->lists.algorithms.n ? "algorithms" : "budgets");
    e->settings.v = calloc(SL_ARG_LIST_MAX, sizeof *e->settings.v);
    if (!e->settings.v)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (!e->lists.n_lengths)
        return sl_fail(err, SL_ERR_INVALID,
                       "--lengths: give the tokens of the longest question; only a server can count them");
    if (e->f->lists.texts.n)
        return sl_fail(err, SL_ERR_INVALID,
                       "--text: compares logits, which a server does not give; use --model");
    if (e->f->key_file)
        SL_TRY(read_key(e, err));
    for (int i = 0; i < e->f->urls.n; i++)
        SL_TRY(add_server(e, e->f->urls.v[i], err));
    SL_TRY(choose_style(e, err));
    return sl_cli_eval_http_create(e->servers, &e->target, err);
}

/* ---- output ---- */

static sl_status open_file(const char *flag, const char *path, FILE **out, sl_err *err)
{
    if (!path || (*out = fopen(path, "we")))
        return SL_OK;
    return sl_fail(err, SL_ERR_IO, "--%s: %s: %s", flag, path, strerror(errno));
}

static sl_status close_file(const char *path, FILE **file, sl_err *err)
{
    if (!*file)
        return SL_OK;
    const bool bad = ferror(*file) | fclose(*file);
    *file = NULL;
    return bad ? sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno)) : SL_OK;
}

static void write_row(void *ctx, const sl_eval_result *r, const sl_eval_row *row)
{
    evaluation *e = ctx;
    if (!e->csv)
        return;
    sl_eval_csv_row(r, row, e->csv);
    fflush(e->csv);
}

static sl_status write_all(evaluation *e, const sl_eval_result *r, sl_err *err)
{
    sl_eval_print(r, stdout);
    fflush(stdout);
    if (e->svg)
        sl_eval_svg(r, e->svg);
    SL_TRY(close_file(e->f->csv, &e->csv, err));
    SL_TRY(close_file(e->f->dump, &e->dump, err));
    return close_file(e->f->svg, &e->svg, err);
}

static sl_status open_files(evaluation *e, sl_err *err)
{
    SL_TRY(open_file("csv", e->f->csv, &e->csv, err));
    if (e->csv) {
        sl_eval_csv_head(e->csv);
        fflush(e->csv);
    }
    SL_TRY(open_file("dump-lists", e->f->dump, &e->dump, err));
    if (e->dump) {
        sl_eval_dump_begin(e->dump);
        e->opts.dump = e->dump;
        if (e->f->urls.n)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "--dump-lists: needs --model");
        sl_status st = sl_eval_local_dump(&e->target, e->dump, err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "--dump-lists");
    }
    return open_file("svg", e->f->svg, &e->svg, err);
}

/* No row is missing without a word. */
static void say_left_out(const sl_eval_opts *o)
{
    for (int32_t l = 0; l < o->n_lengths; l++)
        for (int32_t i = 0; i < o->n_settings; i++)
            if (sl_eval_left_out(o, l, i))
                fprintf(
                    stderr,
                    "sluice eval: %s: no row for %d tokens, because lists of %d hold them all, as dense does\n",
                    o->settings[i].name, o->lengths[l], o->settings[i].budget);
}

static sl_status evaluate(evaluation *e, sl_err *err)
{
    struct sigaction act = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sl_eval_result result = {0};
    sl_err unwritten = {""};
    set_opts(e);
    say_left_out(&e->opts);
    e->opts.row_done = write_row;
    e->opts.row_ctx = e;
    SL_TRY(open_files(e, err));
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sl_status st = sl_eval_run(&e->opts, &e->target, &result, err), written = SL_OK;
    if (result.n_rows)
        written = write_all(e, &result, &unwritten);
    sl_eval_result_free(&result);
    if (st == SL_OK && written != SL_OK)
        return sl_fail(err, written, "%s", unwritten.text);
    return st;
}

static void close_all(evaluation *e)
{
    if (e->csv)
        fclose(e->csv);
    if (e->svg)
        fclose(e->svg);
    if (e->dump)
        fclose(e->dump);
    if (e->target.destroy)
        e->target.destroy(e->target.ctx);
    sl_cli_eval_settings_free(&e->settings);
    sl_tokenizer_destroy(e->tok);
    sl_local_close(&e->local);
    sl_cli_eval_lists_free(&e->lists);
}

int sl_cmd_eval(int argc, char **argv)
{
    flags f = {.local = {.backend = "cpu"}, .chunk = 512, .measured = 64, .seed = 1};
    static evaluation e; /* large; this runs once per process */
    sl_err err = {""};
    int exit_code;
    if (!parse(argc, argv, &f, &exit_code))
        return exit_code;
    if (!f.local.dir == !f.urls.n) {
        fprintf(stderr, "sluice eval: give either --model DIR or --url URL\n");
        return SL_EXIT_USAGE;
    }
    sl_log_init(SL_LOG_WARN, false, "eval");
    e.f = &f;
    sl_status st = sl_cli_eval_lists_read(&f.lists, &e.lists, &err);
    if (st == SL_OK)
        st = f.urls.n ? prepare_servers(&e, &err) : prepare_local(&e, &err);
    if (st == SL_OK)
        st = evaluate(&e, &err);
    close_all(&e);
    return st == SL_OK ? SL_EXIT_OK : sl_args_fail("eval", st, &err);
}
