/* Results as a table for people and as CSV; see eval.h. */
#include <string.h>

#include "eval/ask.h"

/* A share as percent, or a dash. */
static void print_share(FILE *to, int width, double share)
{
    if (share < 0)
        fprintf(to, " %*s", width, "-");
    else
        fprintf(to, " %*.1f", width, 100 * share);
}

static void print_bytes(FILE *to, int width, uint64_t bytes, uint64_t steps)
{
    if (!steps)
        fprintf(to, " %*s", width, "-");
    else
        fprintf(to, " %*.1f", width, (double)bytes / (double)steps / 1024);
}

static int name_width(const sl_eval_opts *o)
{
    size_t most = strlen("algorithm");
    for (int32_t s = 0; s < o->n_settings; s++)
        most = strlen(o->settings[s].name) > most ? strlen(o->settings[s].name) : most;
    return (int)most;
}

/* A share and its interval: "80.0 [49,94]". */
enum { SHARE_WIDTH = 14 };

static void print_interval(FILE *to, double share, int64_t answers)
{
    char text[32];
    double low, high;
    sl_eval_wilson(share < 0 ? 0 : share, answers, &low, &high);
    if (share < 0)
        snprintf(text, sizeof text, "-");
    else
        snprintf(text, sizeof text, "%.1f [%.0f,%.0f]", 100 * share, 100 * low, 100 * high);
    fprintf(to, " %*s", SHARE_WIDTH, text);
}

/* Of all tasks of a setting that have answers. */
typedef struct overall {
    double mean; /* of the tasks' accuracies; -1: there are none */
    int64_t answers;
    sl_eval_reads reads;
    sl_eval_next next;
} overall;

static overall over_tasks(const sl_eval_result *r, int32_t length, int32_t setting)
{
    overall all = {0};
    int32_t n = 0;
    for (int32_t t = 0; t < r->opts->n_tasks; t++) {
        const sl_eval_row *row = sl_eval_row_of(r, t, length, setting);
        if (sl_eval_accuracy(row) < 0)
            continue;
        all.mean += sl_eval_accuracy(row), n++;
        all.answers += sl_eval_answers(row);
        sl_eval_reads_add(&all.reads, &row->reads);
        sl_eval_next_add(&all.next, &row->next);
    }
    all.mean = n ? all.mean / n : -1;
    return all;
}

static void print_head(const sl_eval_result *r, int32_t length, int width, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    fprintf(to, "%d tokens of prompt and answer", o->lengths[length]);
    for (int32_t t = 0; t < o->n_tasks; t++)
        fprintf(to, "%s%s: %d", t ? ", " : "; documents: ", o->tasks[t].name, sl_eval_count(o, t, length));
    fprintf(to, "\n%-*s %8s", width, "algorithm", "budget");
    for (int32_t t = 0; t < o->n_tasks; t++)
        fprintf(to, " %*.*s", SHARE_WIDTH, SHARE_WIDTH, o->tasks[t].name);
    fprintf(to, " %*s", SHARE_WIDTH, "mean");
    if (sl_eval_of_texts(o))
        fprintf(to, " %9s %10s", "KL nats", "perplexity");
    fprintf(to, " %8s %8s %8s %9s %9s %9s %8s\n", "/ dense", "mass", "middle", "rows KiB", "meta KiB",
            "read KiB", "tiles");
}

static void print_next(const sl_eval_next *n, FILE *to)
{
    if (n->tokens)
        fprintf(to, " %9.4f %10.4f", sl_eval_kl(n), sl_eval_perplexity(n));
    else
        fprintf(to, " %9s %10s", "-", "-");
}

static void print_setting(const sl_eval_result *r, int32_t length, int32_t setting, int width, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    const sl_eval_setting *s = &o->settings[setting];
    const overall all = over_tasks(r, length, setting);
    const int32_t baseline = sl_eval_baseline(o);
    const double dense = baseline < 0 ? -1 : over_tasks(r, length, baseline).mean;
    if (all.mean < 0)
        return;
    fprintf(to, "%-*s ", width, s->name);
    if (s->budget)
        fprintf(to, "%8d", s->budget);
    else
        fprintf(to, "%8s", "-");
    for (int32_t t = 0; t < o->n_tasks; t++) {
        const sl_eval_row *row = sl_eval_row_of(r, t, length, setting);
        print_interval(to, sl_eval_accuracy(row), sl_eval_answers(row));
    }
    print_interval(to, all.mean, all.answers);
    if (sl_eval_of_texts(o))
        print_next(&all.next, to);
    print_share(to, 8, dense > 0 ? all.mean / dense : -1);
    print_share(to, 8, sl_eval_mass(&all.reads));
    print_share(to, 8, sl_eval_middle_mass(&all.reads));
    print_bytes(to, 9, all.reads.row_bytes, all.reads.steps);
    print_bytes(to, 9, all.reads.meta_bytes, all.reads.steps);
    print_bytes(to, 9, all.reads.row_bytes + all.reads.meta_bytes, all.reads.steps);
    print_share(to, 8, sl_eval_tiles(&all.reads));
    fputc('\n', to);
}

static void print_skipped(const sl_eval_result *r, FILE *to)
{
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].setting == 0 && r->rows[i].skipped)
            fprintf(to, "%s: %d questions were too long and not asked.\n",
                    r->opts->tasks[r->rows[i].task].name, r->rows[i].skipped);
}

void sl_eval_print(const sl_eval_result *r, FILE *to)
{
    const int width = name_width(r->opts);
    for (int32_t l = 0; l < r->opts->n_lengths; l++) {
        if (l)
            fputc('\n', to);
        print_head(r, l, width, to);
        for (int32_t s = 0; s < r->opts->n_settings; s++)
            print_setting(r, l, s, width, to);
    }
    print_skipped(r, to);
    fprintf(to, "\n%s in percent, with Wilson intervals of 95 %%. ",
            sl_eval_of_texts(r->opts) ? "Next tokens that are those of dense attention"
                                      : "Scores of answers");
    fprintf(
        to,
        "mass: attention on the tokens that were read; middle: without the first %d and the newest %d. rows, meta: what a new "
        "token reads, of rows and to select them; read: both. tiles: those of attention that were not left out, of prompts, too.\n",
        SL_EVAL_SINKS, SL_EVAL_NEWEST);
}

/* ---- CSV ---- */

/* A field with a comma, a quote or a line break is quoted. */
static void csv_text(FILE *to, const char *text)
{
    if (!strpbrk(text, ",\"\n")) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (const char *c = text; *c; c++)
        fprintf(to, *c == '"' ? "\"\"" : "%c", *c);
    fputc('"', to);
}

static void csv_share(FILE *to, double share)
{
    if (share >= 0)
        fprintf(to, ",%.4f", share);
    else
        fputc(',', to);
}

static void csv_reads(const sl_eval_reads *r, FILE *to)
{
    const double n = (double)r->steps;
    if (r->steps)
        fprintf(to, ",%.0f,%.0f", (double)r->row_bytes / n, (double)r->meta_bytes / n);
    else
        fputs(",,", to);
}

static void csv_interval(const sl_eval_row *row, FILE *to)
{
    double low, high;
    sl_eval_wilson(sl_eval_accuracy(row), sl_eval_answers(row), &low, &high);
    fprintf(to, ",%.4f,%.4f", low, high);
}

static void csv_next(const sl_eval_next *n, FILE *to)
{
    if (n->tokens)
        fprintf(to, ",%lld,%.6f,%.6f", (long long)n->tokens, sl_eval_kl(n), sl_eval_perplexity(n));
    else
        fputs(",,,", to);
}

void sl_eval_csv_head(FILE *to)
{
    fputs(
        "task,length,prompt_tokens,algorithm,budget,documents,right,accuracy,dense_accuracy,mass,middle_mass,"
        "row_bytes,meta_bytes,low,high,tokens,kl,perplexity,tiles\n",
        to);
}

void sl_eval_csv_row(const sl_eval_result *r, const sl_eval_row *row, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    const sl_eval_setting *s = &o->settings[row->setting];
    const int32_t baseline = sl_eval_baseline(o);
    csv_text(to, o->tasks[row->task].name);
    fprintf(to, ",%d,%.0f,", o->lengths[row->length], (double)row->prompt_tokens / row->documents);
    csv_text(to, s->name);
    if (s->budget)
        fprintf(to, ",%d", s->budget);
    else
        fputc(',', to);
    if (row->next.tokens)
        fprintf(to, ",%d,", row->documents);
    else
        fprintf(to, ",%d,%d", row->documents, row->right);
    csv_share(to, sl_eval_accuracy(row));
    csv_share(to, baseline < 0 ? -1 : sl_eval_accuracy(sl_eval_row_of(r, row->task, row->length, baseline)));
    csv_share(to, sl_eval_mass(&row->reads));
    csv_share(to, sl_eval_middle_mass(&row->reads));
    csv_reads(&row->reads, to);
    csv_interval(row, to);
    csv_next(&row->next, to);
    csv_share(to, sl_eval_tiles(&row->reads));
    fputc('\n', to);
}
