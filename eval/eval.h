/*
 * `sluice eval`: what an algorithm and a budget cost in accuracy. Documents with a question, made from a seed
 * (eval/document.h) or read from a file (eval/file.h), are put to a model under every setting, the answers are compared with
 * the right ones, and the results are written as a table, CSV or SVG. A text without questions (eval/next.h) is predicted token by
 * token instead.
 *
 * A target answers: sl_eval_local_create() runs a checkpoint in this process, the command's HTTP client asks a server.
 * The room knows no algorithm by name: a setting carries one that was chosen (engine/choose.h).
 *
 * The caller owns everything that it passes; results belong to the caller until sl_eval_result_free(). One thread, but for
 * `stop`, which a signal handler may set.
 */
#ifndef SL_EVAL_EVAL_H
#define SL_EVAL_EVAL_H

#include <signal.h>
#include <stdio.h>

#include "eval/document.h"
#include "eval/file.h"
#include "eval/next.h"
#include "eval/reads.h"
#include "local/run.h"
#include "model/chat.h"

/* One line of the result: an algorithm with parameters, or a server. */
typedef struct sl_eval_setting {
    const char *name;
    /* Tokens that a query reads at most, as the user asked or as the model fixes it; 0: it reads all, or this is unknown. */
    int32_t budget;
    sl_local_chosen chosen; /* local targets */
    int32_t server;         /* HTTP targets: number of the server */
    bool baseline;          /* the accuracy of the others is compared with this one */
    bool ideal;             /* a ceiling or a floor, no strategy (eval/ideal.h) */
} sl_eval_setting;

/* Where questions come from; exactly one of the pointers is set. */
typedef struct sl_eval_source {
    const char *name;
    const sl_eval_task *made;
    const sl_eval_file *file;
    const sl_eval_text *text;
} sl_eval_source;

typedef struct sl_eval_question {
    const char *user;   /* the user's message, or the whole prompt */
    const char *prefix; /* begins the answer, scorers do not see it; NULL: nothing does */
    int32_t max_new;    /* tokens of the answer */
    bool chat;          /* in the chat format of the model */
    bool cut;           /* the middle of `user` is left out where it is too long */
} sl_eval_question;

typedef struct sl_eval_answer {
    char *text; /* malloc'ed; freed by sl_eval_run() */
    int32_t prompt_tokens;
    sl_eval_reads reads; /* 0 where they are not measured */
} sl_eval_answer;

/* Tokens of a text that are fed one by one; seen gets the logits after each. */
typedef struct sl_eval_follow {
    const int32_t *tokens; /* [n_prompt + n] */
    int32_t n_prompt, n;
    void (*seen)(void *ctx, int32_t i, const float *logits, int32_t vocab);
    void *ctx;
} sl_eval_follow;

/* Who answers. No function is NULL unless it says so. */
typedef struct sl_eval_target {
    void *ctx;
    /* From now on questions are of this setting, with at most `length` tokens of prompt and answer together. */
    sl_status (*begin)(void *ctx, const sl_eval_setting *s, int32_t length, sl_err *err);
    sl_status (*answer)(void *ctx, const sl_eval_question *q, sl_eval_answer *out, sl_err *err);
    /* Tokens of the prompt, before begin, too. NULL: only who answers knows. */
    sl_status (*measure)(void *ctx, const sl_eval_question *q, int32_t *tokens, sl_err *err);
    /* NULL: logits cannot be seen. */
    sl_status (*follow)(void *ctx, const sl_eval_follow *f, sl_eval_reads *reads, sl_err *err);
    sl_eval_counter counter;
    int32_t frame_tokens; /* of a prompt in addition to the user's message: the chat format */
    int32_t vocab;        /* with follow */
    void (*destroy)(void *ctx);
} sl_eval_target;

/* What becomes of questions of files that are longer than the length. */
typedef enum { SL_EVAL_LONG_REFUSE, SL_EVAL_LONG_CUT, SL_EVAL_LONG_SKIP } sl_eval_long;
extern const char *const sl_eval_long_names[]; /* by number; ends with NULL */

struct sl_eval_result;
struct sl_eval_row;

typedef struct sl_eval_opts {
    const sl_eval_source *tasks;     /* [n_tasks]; texts are alone */
    const int32_t *lengths;          /* [n_lengths], tokens of prompt and answer */
    const sl_eval_setting *settings; /* [n_settings]; the baseline, if there is one, is the first */
    int32_t n_tasks, n_lengths, n_settings;
    int32_t documents;     /* of each task, at most; windows of a text; 0: all of a file, 10 of others */
    int32_t max_new;       /* tokens of an answer where the question does not say it */
    bool max_new_given;    /* whatever the question says */
    int32_t measured;      /* tokens of a window that are predicted */
    bool no_chat;          /* questions of files are put without the chat format */
    sl_eval_long too_long; /* of files */
    sl_eval_style style;
    uint64_t seed;
    FILE *dump; /* lists of decode steps are written to it (eval/dump.h); NULL: they are not */
    const volatile sig_atomic_t
        *stop; /* NULL, or ends the run after the document whose answer is being made */
    /* Called after each row that has answers, also the last one of a run that ends early. NULL: no caller wants that. */
    void (*row_done)(void *ctx, const struct sl_eval_result *r, const struct sl_eval_row *row);
    void *row_ctx;
} sl_eval_opts;

/* One task, length and setting. Rows of settings whose budget holds the whole length are left out. */
typedef struct sl_eval_row {
    int32_t task, length, setting; /* indices into the options */
    int32_t documents, right,
        skipped;           /* answers, how many of them are wholly right, and questions that were too long */
    double score;          /* sum of the answers' scores, each 0 to 1 */
    int64_t prompt_tokens; /* of all documents */
    sl_eval_reads reads;
    sl_eval_next next; /* of a text */
} sl_eval_row;

typedef struct sl_eval_result {
    const sl_eval_opts *opts; /* borrowed */
    sl_eval_row *rows;        /* by length, setting, task */
    int32_t n_rows;
} sl_eval_result;

/* Tokens of the longest prompt of the files with its answer, for the length of a run; questions are measured by the target.
 * SL_ERR_UNSUPPORTED: it cannot. */
sl_status sl_eval_longest(const sl_eval_opts *o, const sl_eval_target *t, int32_t *out, sl_err *err);

/*
 * Shows its progress on stderr. After a failure, and after SL_ERR_CANCELLED (`stop`), the result has what was answered
 * until then. SL_ERR_INVALID: a length that a task does not fit, found before the first question; for questions of files where
 * the target can measure them.
 */
sl_status sl_eval_run(const sl_eval_opts *o, const sl_eval_target *t, sl_eval_result *out, sl_err *err);
void sl_eval_result_free(sl_eval_result *r);

/* ---- output (eval/table.c, eval/plot.c) ---- */

/* The row of a task, length and setting; NULL: it was not measured. */
const sl_eval_row *sl_eval_row_of(const sl_eval_result *r, int32_t task, int32_t length, int32_t setting);
/* Mean score of the answers, which is the share of right ones where scores are 0 or 1; of a text the agreement. -1 for NULL or
 * without answers. */
double sl_eval_accuracy(const sl_eval_row *row);
/* On how many answers, or tokens of a text, this rests. */
int64_t sl_eval_answers(const sl_eval_row *row);
/* Whether the tasks are texts. */
bool sl_eval_of_texts(const sl_eval_opts *o);
/* Whether a setting has no row at a length, by their numbers: a budget that holds every token gives what the baseline gives. */
bool sl_eval_left_out(const sl_eval_opts *o, int32_t length, int32_t setting);
/* Number of the baseline setting; -1: there is none. */
int32_t sl_eval_baseline(const sl_eval_opts *o);

void sl_eval_print(const sl_eval_result *r, FILE *to);
/* The head of a CSV, and the line of one row; fields that were not measured are empty. */
void sl_eval_csv_head(FILE *to);
void sl_eval_csv_row(const sl_eval_result *r, const sl_eval_row *row, FILE *to);
/* Accuracy over budget: for each length one panel with the mean of the tasks and one for each task, a line for each name
 * of a setting. */
void sl_eval_svg(const sl_eval_result *r, FILE *to);

/* ---- a checkpoint in this process (eval/local.c) ---- */

/*
 * model: opened by the caller for sequences of the longest length, and closed after the target. tok: of the checkpoint,
 * borrowed. chunk: most prompt tokens of a step, at most the model's max_tokens (local/open.h). What is read is measured
 * where device memory is host memory.
 */
sl_status sl_eval_local_create(const sl_local *model, const sl_tokenizer *tok, sl_chat_format format,
                               int32_t chunk, sl_eval_target *out, sl_err *err);
/* Lists of such a target are written to this file from the next begin on (eval/dump.h). SL_ERR_UNSUPPORTED: device memory is not host
 * memory. */
sl_status sl_eval_local_dump(sl_eval_target *t, FILE *to, sl_err *err);
/* Whether the checkpoint was trained on documents of style facts: its tokenizer has the words as single tokens, and only
 * few others. */
bool sl_eval_knows_facts(const sl_tokenizer *tok);

#endif
