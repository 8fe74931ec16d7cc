/* Results: the loop with a target of known answers, cancelling, CSV, the table, and SVG as well-formed XML. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "tests/unit/run_suite.h"

/* A target that answers right as long as the budget is at least 100, without a model. */
typedef struct fake {
    const sl_eval_setting *setting;
    int32_t asked;
    volatile sig_atomic_t stop;
    int32_t stop_at;
    sl_status fails;
    int32_t rows_done, documents_done;
} fake;

static sl_eval_source task_list[2];
static const int32_t lengths[] = {256, 512};
static const sl_eval_setting settings[] = {{.name = "dense", .baseline = true},
                                           {.name = "a,<b>&\"c\"", .budget = 64},
                                           {.name = "a,<b>&\"c\"", .budget = 300},
                                           {.name = "fixed"}};

static sl_status begin(void *ctx, const sl_eval_setting *s, int32_t length, sl_err *err)
{
    (void)length, (void)err;
    ((fake *)ctx)->setting = s;
    return SL_OK;
}

/* Searches the only code in the text. */
static sl_status answer(void *ctx, const sl_eval_question *q, sl_eval_answer *out, sl_err *err)
{
    fake *f = ctx;
    char text[256] = "Answer:";
    const char *at = strstr(q->user, " The code of the ");
    if (f->fails)
        return sl_fail(err, f->fails, "the target failed");
    if (at && (f->setting->budget == 0 || f->setting->budget >= 100))
        strncat(text, at, strcspn(at, ".") + 1);
    out->text = strdup(text);
    out->prompt_tokens = 200;
    if (f->setting->budget)
        out->reads = (sl_eval_reads){.all = 2,
                                     .kept = 1,
                                     .middle = 1,
                                     .middle_kept = 0.25,
                                     .steps = 4,
                                     .row_bytes = 4096,
                                     .meta_bytes = 8,
                                     .tiles = 8,
                                     .tiles_skipped = 2};
    f->stop = ++f->asked == f->stop_at;
    return SL_OK;
}

static void done(void *ctx, const sl_eval_result *r, const sl_eval_row *row)
{
    fake *f = ctx;
    ck_assert_ptr_eq(row, &r->rows[f->rows_done++]);
    f->documents_done += row->documents;
}

static sl_status run(fake *f, sl_eval_result *r, sl_eval_opts *o, sl_err *err)
{
    task_list[0] = (sl_eval_source){.name = "needle", .made = sl_eval_task_find("needle")};
    task_list[1] = (sl_eval_source){.name = "chain", .made = sl_eval_task_find("chain")};
    *o = (sl_eval_opts){.tasks = task_list,
                        .lengths = lengths,
                        .settings = settings,
                        .n_tasks = 2,
                        .n_lengths = 2,
                        .n_settings = 4,
                        .documents = 3,
                        .max_new = 64,
                        .seed = 1,
                        .stop = &f->stop,
                        .row_done = done,
                        .row_ctx = f};
    sl_eval_target t = {
        .ctx = f, .begin = begin, .answer = answer, .counter = {.count = sl_eval_count_pieces}};
    return sl_eval_run(o, &t, r, err);
}

typedef void writer(const sl_eval_result *, FILE *);

static char *written(const sl_eval_result *r, writer *write)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    ck_assert_ptr_nonnull(to);
    write(r, to);
    fclose(to);
    return text;
}

static void csv_of(const sl_eval_result *r, FILE *to)
{
    sl_eval_csv_head(to);
    for (int32_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].documents)
            sl_eval_csv_row(r, &r->rows[i], to);
}

START_TEST(counts_right_answers)
{
    fake f = {0};
    sl_eval_result r;
    sl_eval_opts o;
    sl_err err = {""};
    ck_assert_msg(run(&f, &r, &o, &err) == SL_OK, "%s", err.text);
    /* Budget 300 holds the whole of length 256. */
    ck_assert_int_eq(r.n_rows, 3 * 2 + 4 * 2);
    ck_assert_int_eq(f.asked, 3 * r.n_rows);
    ck_assert(f.rows_done == r.n_rows && f.documents_done == f.asked);
    ck_assert_ptr_null(sl_eval_row_of(&r, 0, 0, 2));
    ck_assert_double_eq(sl_eval_accuracy(sl_eval_row_of(&r, 0, 0, 0)), 1);
    ck_assert_double_eq(sl_eval_accuracy(sl_eval_row_of(&r, 0, 1, 1)), 0);
    ck_assert_double_eq(sl_eval_accuracy(sl_eval_row_of(&r, 0, 1, 2)), 1);
    ck_assert_double_eq(sl_eval_accuracy(sl_eval_row_of(&r, 1, 1, 0)), 0); /* chains have no code */
    ck_assert_double_eq(sl_eval_mass(&sl_eval_row_of(&r, 0, 1, 1)->reads), 0.5);
    ck_assert_double_eq(sl_eval_middle_mass(&sl_eval_row_of(&r, 0, 1, 1)->reads), 0.25);
    sl_eval_result_free(&r);
}
END_TEST

START_TEST(keeps_what_was_measured_before_the_end)
{
    fake stopped = {.stop_at = 7}, failed = {.fails = SL_ERR_PEER};
    sl_eval_result r;
    sl_eval_opts o;
    sl_err err = {""};
    ck_assert_int_eq(run(&stopped, &r, &o, &err), SL_ERR_CANCELLED);
    ck_assert_msg(strstr(err.text, "7 of 42 documents"), "%s", err.text);
    ck_assert_int_eq(r.n_rows, 3);
    ck_assert_int_eq(r.rows[2].documents, 1);
    ck_assert(stopped.rows_done == 3 && stopped.documents_done == 7); /* the unfinished row, too */
    char *table = written(&r, sl_eval_print);
    ck_assert_ptr_nonnull(strstr(table, "dense "));
    free(table);
    sl_eval_result_free(&r);
    ck_assert_int_eq(run(&failed, &r, &o, &err), SL_ERR_PEER);
    char *csv = written(&r, csv_of);
    ck_assert_uint_eq(strcspn(csv, "\n") + 1, strlen(csv)); /* the head alone */
    free(csv);
    sl_eval_result_free(&r);
}
END_TEST

START_TEST(writes_csv)
{
    fake f = {0};
    sl_eval_result r;
    sl_eval_opts o;
    sl_err err = {""};
    ck_assert_int_eq(run(&f, &r, &o, &err), SL_OK);
    char *csv = written(&r, csv_of), *rest = csv;
    const char *first = strsep(&rest, "\n");
    ck_assert_str_eq(
        first, "task,length,prompt_tokens,algorithm,budget,documents,right,accuracy,dense_accuracy,mass,"
               "middle_mass,row_bytes,meta_bytes,low,high,tokens,kl,perplexity,tiles");
    ck_assert_str_eq(strsep(&rest, "\n"), "needle,256,200,dense,,3,3,1.0000,1.0000,,,,,0.4385,1.0000,,,,");
    (void)strsep(&rest, "\n");
    ck_assert_str_eq(
        strsep(&rest, "\n"),
        "needle,256,200,\"a,<b>&\"\"c\"\"\",64,3,0,0.0000,1.0000,0.5000,0.2500,1024,2,0.0000,0.5615,,,,0.7500");
    free(csv);
    sl_eval_result_free(&r);
}
END_TEST

/* Refuses tags that do not match, attributes without quotes, and bare < and &. */
static void check_xml(const char *text)
{
    char open[16][32];
    int depth = 0, roots = 0;
    for (const char *at = text; *at; at++) {
        if (*at == '&')
            ck_assert_msg(!strncmp(at, "&lt;", 4) || !strncmp(at, "&gt;", 4) || !strncmp(at, "&amp;", 5) ||
                              !strncmp(at, "&quot;", 6),
                          "%.20s", at);
        if (*at != '<')
            continue;
        const char *end = strchr(at, '>');
        ck_assert_ptr_nonnull(end);
        if (at[1] == '?') {
            ck_assert(at == text && end[-1] == '?');
        } else if (at[1] == '/') {
            ck_assert_int_gt(depth, 0);
            depth--;
            ck_assert_uint_eq(strlen(open[depth]), (size_t)(end - at - 2));
            ck_assert(strncmp(open[depth], at + 2, strlen(open[depth])) == 0);
        } else {
            int quotes = 0;
            for (const char *c = at + 1; c < end; c++) {
                ck_assert_int_ne(*c, '<');
                quotes += *c == '"';
            }
            ck_assert_int_eq(quotes % 2, 0);
            roots += depth == 0;
            if (end[-1] != '/') {
                ck_assert_int_lt(depth, 16);
                snprintf(open[depth++], 32, "%.*s", (int)strcspn(at + 1, " >"), at + 1);
            }
        }
        at = end;
    }
    ck_assert_int_eq(depth, 0);
    ck_assert_int_eq(roots, 1);
}

START_TEST(draws_well_formed_svg)
{
    fake f = {0}, stopped = {.stop_at = 1};
    sl_eval_result r;
    sl_eval_opts o;
    sl_err err = {""};
    ck_assert_int_eq(run(&f, &r, &o, &err), SL_OK);
    char *svg = written(&r, sl_eval_svg);
    check_xml(svg);
    ck_assert_ptr_nonnull(strstr(svg, "a,&lt;b&gt;&amp;&quot;c&quot;"));
    ck_assert_ptr_nonnull(strstr(svg, ">needle<"));
    ck_assert_ptr_nonnull(strstr(svg, ">mean of the tasks<"));
    ck_assert_ptr_nonnull(strstr(svg, ">mean, over bytes read<"));
    ck_assert_ptr_nonnull(strstr(svg, ">1 K<")); /* 1,026 bytes a token are between 1 and 2 KiB */
    ck_assert_ptr_nonnull(strstr(svg, ">2 K<"));
    ck_assert_ptr_null(strstr(svg, "nan"));
    ck_assert_ptr_null(strstr(svg, "inf"));
    free(svg);
    sl_eval_result_free(&r);
    ck_assert_int_eq(run(&stopped, &r, &o, &err), SL_ERR_CANCELLED);
    svg = written(&r, sl_eval_svg);
    check_xml(svg);
    ck_assert_ptr_null(strstr(svg, "nan"));
    free(svg);
    sl_eval_result_free(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval results");
    TCase *t = tcase_create("results");
    tcase_add_test(t, counts_right_answers);
    tcase_add_test(t, keeps_what_was_measured_before_the_end);
    tcase_add_test(t, writes_csv);
    tcase_add_test(t, draws_well_formed_svg);
    suite_add_tcase(s, t);
    return run_suite(s);
}
