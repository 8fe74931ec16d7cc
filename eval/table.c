/* Results as a table for people and as CSV; see eval.h. */
#include <string.h>

#include "eval/eval.h"

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

/* Mean over the tasks that have answers; *reads: their sums. */
static double mean_accuracy(const sl_eval_result *r, int32_t length, int32_t setting, sl_eval_reads *reads)
{
    double sum = 0;
    int32_t n = 0;
    for (int32_t t = 0; t < r->opts->n_tasks; t++) {
        const sl_eval_row *row = sl_eval_row_of(r, t, length, setting);
        if (sl_eval_accuracy(row) < 0)
            continue;
        sum += sl_eval_accuracy(row), n++;
        sl_eval_reads_add(reads, &row->reads);
    }
    return n ? sum / n : -1;
}

static void print_head(const sl_eval_result *r, int32_t length, int width, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    fprintf(to, "%d tokens of prompt and answer, %d documents per task\n", o->lengths[length], o->documents);
    fprintf(to, "%-*s %8s", width, "algorithm", "budget");
    for (int32_t t = 0; t < o->n_tasks; t++)
        fprintf(to, " %8s", o->tasks[t]->name);
    fprintf(to, " %8s %8s %8s %8s %10s %10s\n", "mean", "/ dense", "mass", "middle", "rows KiB", "meta KiB");
}

static void print_setting(const sl_eval_result *r, int32_t length, int32_t setting, int width, FILE *to)
{
    const sl_eval_setting *s = &r->opts->settings[setting];
    sl_eval_reads reads = {0}, unused = {0};
    const double mean = mean_accuracy(r, length, setting, &reads);
    const int32_t baseline = sl_eval_baseline(r->opts);
    const double dense = baseline < 0 ? -1 : mean_accuracy(r, length, baseline, &unused);
    if (mean < 0)
        return;
    fprintf(to, "%-*s ", width, s->name);
    if (s->budget)
        fprintf(to, "%8d", s->budget);
    else
        fprintf(to, "%8s", "-");
    for (int32_t t = 0; t < r->opts->n_tasks; t++)
        print_share(to, 8, sl_eval_accuracy(sl_eval_row_of(r, t, length, setting)));
    print_share(to, 8, mean);
    print_share(to, 8, dense > 0 ? mean / dense : -1);
    print_share(to, 8, sl_eval_mass(&reads));
    print_share(to, 8, sl_eval_middle_mass(&reads));
    print_bytes(to, 10, reads.row_bytes, reads.steps);
    print_bytes(to, 10, reads.meta_bytes, reads.steps);
    fputc('\n', to);
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
    fprintf(
        to,
        "\nRight answers and shares in percent. mass: attention on the tokens that were read; middle: without the first "
        "%d and the newest %d. rows, meta: what a new token reads, of rows and to select them.\n",
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

static void csv_row(const sl_eval_result *r, const sl_eval_row *row, FILE *to)
{
    const sl_eval_opts *o = r->opts;
    const sl_eval_setting *s = &o->settings[row->setting];
    const int32_t baseline = sl_eval_baseline(o);
    fprintf(to, "%s,%d,%.0f,", o->tasks[row->task]->name, o->lengths[row->length],
            (double)row->prompt_tokens / row->documents);
    csv_text(to, s->name);
    if (s->budget)
        fprintf(to, ",%d", s->budget);
    else
        fputc(',', to);
    fprintf(to, ",%d,%d", row->documents, row->right);
    csv_share(to, sl_eval_accuracy(row));
    csv_share(to, baseline < 0 ? -1 : sl_eval_accuracy(sl_eval_row_of(r, row->task, row->length, baseline)));
    csv_share(to, sl_eval_mass(&row->reads));
    csv_share(to, sl_eval_middle_mass(&row->reads));
    if (row->reads.steps)
        fprintf(to, ",%.0f,%.0f\n", (double)row->reads.row_bytes / (double)row->reads.steps,
                (double)row->reads.meta_bytes / (double)row->reads.steps);
    else
        fputs(",,\n", to);
}

void sl_eval_csv(const sl_eval_result *r, FILE *to)
{
    fputs(
        "task,length,prompt_tokens,algorithm,budget,documents,right,accuracy,dense_accuracy,mass,middle_mass,"
        "row_bytes,meta_bytes\n",
        to);
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].documents)
            csv_row(r, &r->rows[i], to);
}
