/*
 * See file_forms.h. What the fields of published files mean is that of their authors' programs: LongBench's pred.py, eval.py and
 * config/ (github.com/THUDM/LongBench), RULER's scripts/data and scripts/eval (github.com/NVIDIA/RULER).
 */
#include "eval/file_forms.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

/* ---- fields ---- */

static const char *kind_of(const json_t *v)
{
    static const char *const kinds[] = {"an object", "an array", "a text", "a number",
                                        "a number",  "true",     "false",  "null"};
    return v ? kinds[json_typeof(v)] : "missing";
}

static sl_status text_field(const sl_eval_line *l, const char *field, bool required, const char **out,
                            sl_err *err)
{
    const json_t *v = json_object_get(l->object, field);
    *out = json_string_value(v);
    if (*out || (!required && (!v || json_is_null(v))))
        return SL_OK;
    return sl_fail(err, SL_ERR_INVALID, "field \"%s\" is %s and must be a text", field, kind_of(v));
}

static char *text_of(const json_t *v)
{
    char number[64];
    if (json_is_string(v))
        return strdup(json_string_value(v));
    if (json_is_integer(v))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else
        snprintf(number, sizeof number, "%.15g", json_real_value(v));
    return strdup(number);
}

/* Texts, or numbers as texts, of a field that is an array of them or a single one. */
static sl_status list_field(const sl_eval_line *l, const char *field, char ***out, int32_t *n, sl_err *err)
{
    enum { MOST = 4096 };
    const json_t *v = json_object_get(l->object, field);
    const size_t many = json_is_array(v) ? json_array_size(v) : 1;
    if (!v || (json_is_array(v) && !many))
        return sl_fail(err, SL_ERR_INVALID, "field \"%s\" is %s", field, v ? "empty" : "missing");
    if (many > MOST)
        return sl_fail(err, SL_ERR_TOO_LARGE, "field \"%s\" has more than %d entries", field, MOST);
    *out = calloc(many, sizeof **out);
    for (size_t i = 0; i < many; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(one) && !json_is_number(one))
            return sl_fail(err, SL_ERR_INVALID, "field \"%s\": entry %zu is %s and must be a text", field,
                           i + 1, kind_of(one));
        if (!*out || !((*out)[*n] = text_of(one)))
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        ++*n;
    }
    return SL_OK;
}

static sl_status take(char *text, char **out, sl_err *err)
{
    *out = text;
    return text ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

/* ---- own lines ---- */

static sl_status own_scorer(sl_eval_line *l, sl_err *err)
{
    const char *name;
    SL_TRY(text_field(l, "scorer", false, &name, err));
    if (!name && !l->o->scorer)
        return sl_fail(err, SL_ERR_INVALID,
                       "field \"scorer\" is missing, and no --scorer is given for such lines");
    sl_status st = sl_eval_scorer_find(name ? name : l->o->scorer, &l->item->scorer, err);
    return st == SL_OK ? SL_OK : sl_fail_in(err, SL_ERR_INVALID, "field \"scorer\"");
}

/* A letter of the choices: given as such, as the number of the choice from 0, or as its text. 0: none of these. */
static char letter_of(const sl_eval_item *item, const json_t *given, const char *text)
{
    const int32_t n = item->n_choices ? item->n_choices : SL_EVAL_CHOICES;
    const json_int_t number = json_integer_value(given);
    if (json_is_integer(given))
        return number >= 0 && number < item->n_choices ? (char)('A' + number) : 0;
    for (int32_t i = 0; i < item->n_choices; i++)
        if (strcmp(item->choices[i], text) == 0)
            return (char)('A' + i);
    text += text[0] == '(';
    const char c = (char)toupper((unsigned char)text[0]);
    return c >= 'A' && c < 'A' + n && strspn(text + 1, ").") == strlen(text + 1) ? c : 0;
}

static sl_status to_letters(sl_eval_line *l, const char *field, sl_err *err)
{
    const json_t *given = json_object_get(l->object, field);
    for (int32_t i = 0; i < l->item->n_answers; i++) {
        const char c[2] = {letter_of(l->item, json_is_array(given) ? json_array_get(given, (size_t)i) : given,
                                     l->item->answers[i])};
        if (!c[0])
            return sl_fail(
                err, SL_ERR_INVALID,
                "field \"%s\": \"%.40s\" is no choice: neither a letter from A to %c, nor the text or the number of "
                "one of \"choices\"",
                field, l->item->answers[i],
                'A' + (l->item->n_choices ? l->item->n_choices : SL_EVAL_CHOICES) - 1);
        free(l->item->answers[i]);
        SL_TRY(take(strdup(c), &l->item->answers[i], err));
    }
    return SL_OK;
}

static sl_status own_choices(sl_eval_line *l, const char *field, sl_err *err)
{
    sl_eval_item *it = l->item;
    if (json_object_get(l->object, "choices"))
        SL_TRY(list_field(l, "choices", &it->choices, &it->n_choices, err));
    if (it->scorer == SL_EVAL_CLASSES && !it->n_choices)
        return sl_fail(err, SL_ERR_INVALID,
                       "field \"choices\" is missing, which has the names for scorer classes");
    if (it->scorer != SL_EVAL_CHOICE)
        return SL_OK;
    if (it->n_choices == 1 || it->n_choices > SL_EVAL_CHOICES)
        return sl_fail(err, SL_ERR_INVALID, "field \"choices\" has %d entries, and there can be 2 to %d",
                       it->n_choices, SL_EVAL_CHOICES);
    return to_letters(l, field, err);
}

static sl_status own_answers(sl_eval_line *l, sl_err *err)
{
    const bool many = json_object_get(l->object, "answers") != NULL,
               one = json_object_get(l->object, "answer") != NULL;
    const char *field = one && !many ? "answer" : "answers";
    if (many && one)
        return sl_fail(err, SL_ERR_INVALID, "fields \"answers\" and \"answer\" are both there");
    SL_TRY(list_field(l, field, &l->item->answers, &l->item->n_answers, err));
    for (int32_t i = 0; i < l->item->n_answers; i++)
        if (!l->item->answers[i][strspn(l->item->answers[i], " \t\r\n")])
            return sl_fail(err, SL_ERR_INVALID, "field \"%s\": entry %d is empty", field, i + 1);
    return own_choices(l, field, err);
}

static sl_status own_limit(sl_eval_line *l, sl_err *err)
{
    const json_t *v = json_object_get(l->object, "max_new_tokens");
    if (!v || json_is_null(v))
        return SL_OK;
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 1 || n > SL_EVAL_ITEM_NEW)
        return sl_fail(err, SL_ERR_INVALID, "field \"max_new_tokens\" must be a whole number from 1 to %d",
                       SL_EVAL_ITEM_NEW);
    l->item->max_new = (int32_t)n;
    return SL_OK;
}

static sl_status not_empty(const char *field, const char *text, sl_err *err)
{
    return *text ? SL_OK : sl_fail(err, SL_ERR_INVALID, "field \"%s\" is empty", field);
}

static sl_status read_own(sl_eval_line *l, sl_err *err)
{
    const char *prompt, *prefix;
    SL_TRY(text_field(l, "prompt", true, &prompt, err));
    SL_TRY(not_empty("prompt", prompt, err));
    SL_TRY(text_field(l, "prefix", false, &prefix, err));
    SL_TRY(own_scorer(l, err));
    SL_TRY(own_limit(l, err));
    SL_TRY(own_answers(l, err));
    if (prefix && *prefix)
        SL_TRY(take(strdup(prefix), &l->item->prefix, err));
    return take(strdup(prompt), &l->item->prompt, err);
}

/* ---- LongBench ---- */

static const struct dataset {
    const char *name;
    sl_eval_scorer scorer;
    int32_t max_new;
    bool first_line, no_chat;
} datasets[] = {
    {"narrativeqa", SL_EVAL_F1, 128, false, false},
    {"qasper", SL_EVAL_F1, 128, false, false},
    {"multifieldqa_en", SL_EVAL_F1, 64, false, false},
    {"multifieldqa_zh", SL_EVAL_F1, 64, false, false},
    {"hotpotqa", SL_EVAL_F1, 32, false, false},
    {"2wikimqa", SL_EVAL_F1, 32, false, false},
    {"musique", SL_EVAL_F1, 32, false, false},
    {"dureader", SL_EVAL_ROUGE_WORDS, 128, false, false},
    {"gov_report", SL_EVAL_ROUGE_WORDS, 512, false, false},
    {"qmsum", SL_EVAL_ROUGE_WORDS, 512, false, false},
    {"multi_news", SL_EVAL_ROUGE_WORDS, 512, false, false},
    {"vcsum", SL_EVAL_ROUGE_WORDS, 512, false, false},
    {"trec", SL_EVAL_CLASSES, 64, true, true},
    {"triviaqa", SL_EVAL_F1, 32, true, true},
    {"samsum", SL_EVAL_ROUGE_WORDS, 128, true, true},
    {"lsht", SL_EVAL_CLASSES, 64, true, true},
    {"passage_count", SL_EVAL_NUMBERS, 32, false, false},
    {"passage_retrieval_en", SL_EVAL_NUMBERS, 32, false, false},
    {"passage_retrieval_zh", SL_EVAL_NUMBERS, 32, false, false},
    {"lcc", SL_EVAL_CODE, 64, false, true},
    {"repobench-p", SL_EVAL_CODE, 64, false, true},
};

/* LongBench-E's files have the same names with _e. */
static const struct dataset *dataset_of(const char *name)
{
    const size_t n = strlen(name), short_n = n > 2 && strcmp(name + n - 2, "_e") == 0 ? n - 2 : n;
    for (size_t i = 0; i < SL_COUNT(datasets); i++)
        if (strlen(datasets[i].name) == short_n && strncmp(datasets[i].name, name, short_n) == 0)
            return &datasets[i];
    return NULL;
}

/* The answer of a passage is "Paragraph 12" or the same in Chinese; its number counts. */
static sl_status to_number(char **answer, sl_err *err)
{
    const char *at = *answer + strcspn(*answer, "0123456789");
    char *number = strndup(at, strspn(at, "0123456789"));
    if (number && !*number) {
        free(number);
        return sl_fail(err, SL_ERR_INVALID, "field \"answers\": \"%.40s\" has no number", *answer);
    }
    free(*answer);
    return take(number, answer, err);
}

/* A text with {context} and {input} in their places; {{ and }} are braces, as Python's format has it. */
static char *fill_in(const char *form, const char *context, const char *input)
{
    sl_strbuf sb = {0};
    while (*form) {
        if (strncmp(form, "{context}", 9) == 0)
            sl_sb_str(&sb, context), form += 9;
        else if (strncmp(form, "{input}", 7) == 0)
            sl_sb_str(&sb, input), form += 7;
        else if ((form[0] == '{' || form[0] == '}') && form[1] == form[0])
            sl_sb_char(&sb, form[0]), form += 2;
        else
            sl_sb_char(&sb, *form++);
    }
    return sl_sb_take(&sb);
}

static sl_status longbench_prompt(sl_eval_line *l, const struct dataset *d, sl_err *err)
{
    const char *context, *input, *form;
    SL_TRY(text_field(l, "context", true, &context, err));
    SL_TRY(text_field(l, "input", true, &input, err));
    form = json_string_value(json_object_get(l->prompts, d->name));
    if (l->prompts && !form)
        return sl_fail(err, SL_ERR_INVALID, "%s has no prompt for dataset %s", l->o->prompts, d->name);
    if (!form)
        form = *input ? "{context}\n\n{input}" : "{context}";
    SL_TRY(take(fill_in(form, context, input), &l->item->prompt, err));
    return not_empty("context", l->item->prompt, err);
}

static sl_status read_longbench(sl_eval_line *l, sl_err *err)
{
    const char *name;
    sl_eval_item *it = l->item;
    SL_TRY(text_field(l, "dataset", false, &name, err));
    const struct dataset *d = dataset_of(name ? name : l->task);
    if (!d)
        return sl_fail(err, SL_ERR_INVALID, "field \"dataset\": \"%.40s\" is no dataset of LongBench",
                       name ? name : l->task);
    SL_TRY(longbench_prompt(l, d, err));
    SL_TRY(list_field(l, "answers", &it->answers, &it->n_answers, err));
    it->scorer = d->scorer, it->max_new = d->max_new;
    it->first_line = d->first_line, it->no_chat = d->no_chat;
    if (it->scorer == SL_EVAL_CLASSES)
        SL_TRY(list_field(l, "all_classes", &it->choices, &it->n_choices, err));
    for (int32_t i = 0; it->scorer == SL_EVAL_NUMBERS && i < it->n_answers; i++)
        SL_TRY(to_number(&it->answers[i], err));
    return SL_OK;
}

/* ---- LongBench v2 ---- */

static sl_status read_longbench2(sl_eval_line *l, sl_err *err)
{
    enum { CHOICES = 4, NEW = 128 };
    static const char *const fields[CHOICES] = {"choice_A", "choice_B", "choice_C", "choice_D"};
    const char *context, *question, *choice;
    sl_eval_item *it = l->item;
    sl_strbuf sb = {0};
    SL_TRY(text_field(l, "context", true, &context, err));
    SL_TRY(text_field(l, "question", true, &question, err));
    it->choices = calloc(CHOICES, sizeof *it->choices);
    for (; it->n_choices < CHOICES; it->n_choices++) {
        SL_TRY(text_field(l, fields[it->n_choices], true, &choice, err));
        if (!it->choices || !(it->choices[it->n_choices] = strdup(choice)))
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    SL_TRY(list_field(l, "answer", &it->answers, &it->n_answers, err));
    it->scorer = SL_EVAL_CHOICE, it->max_new = NEW;
    SL_TRY(to_letters(l, "answer", err));
    sl_sb_printf(&sb, "Read the text and answer the question about it.\n\n%s\n\nQuestion: %s\nChoices:\n",
                 context, question);
    for (int32_t i = 0; i < CHOICES; i++)
        sl_sb_printf(&sb, "(%c) %s\n", 'A' + i, it->choices[i]);
    sl_sb_str(&sb, "\nAnswer in this form: The correct answer is (your letter).");
    return take(sl_sb_take(&sb), &it->prompt, err);
}

/* ---- RULER ---- */

/* Tokens of the answer, by the beginning of the task's name; only those of qa are alternatives. */
static const struct ruler {
    const char *begin;
    int32_t max_new;
    sl_eval_scorer scorer;
} rulers[] = {
    {"niah", 128, SL_EVAL_CONTAINS_ALL},
    {"vt", 30, SL_EVAL_CONTAINS_ALL},
    {"variable_tracking", 30, SL_EVAL_CONTAINS_ALL},
    {"cwe", 120, SL_EVAL_CONTAINS_ALL},
    {"common_words", 120, SL_EVAL_CONTAINS_ALL},
    {"fwe", 50, SL_EVAL_CONTAINS_ALL},
    {"freq_words", 50, SL_EVAL_CONTAINS_ALL},
    {"qa", 32, SL_EVAL_CONTAINS},
    {"", 128, SL_EVAL_CONTAINS_ALL},
};

static sl_status read_ruler(sl_eval_line *l, sl_err *err)
{
    const char *input, *prefix;
    sl_eval_item *it = l->item;
    const struct ruler *r = rulers;
    while (strncmp(l->task, r->begin, strlen(r->begin)) != 0)
        r++;
    SL_TRY(text_field(l, "input", true, &input, err));
    SL_TRY(not_empty("input", input, err));
    SL_TRY(text_field(l, "answer_prefix", false, &prefix, err));
    SL_TRY(list_field(l, "outputs", &it->answers, &it->n_answers, err));
    it->scorer = r->scorer, it->max_new = r->max_new;
    if (prefix && *prefix)
        SL_TRY(take(strdup(prefix), &it->prefix, err));
    return take(strdup(input), &it->prompt, err);
}

/* ---- the table ---- */

static const char *const own_marks[] = {"prompt", NULL};
static const char *const own_fields[] = {"prompt",         "answers", "answer", "scorer", "choices", "prefix",
                                         "max_new_tokens", "id",      "_id",    "index",  NULL};
static const char *const longbench_marks[] = {"context", "input", NULL};
static const char *const longbench_fields[] = {"input",    "context",     "answers", "length", "dataset",
                                               "language", "all_classes", "_id",     NULL};
static const char *const longbench2_marks[] = {"choice_A", "question", NULL};
static const char *const longbench2_fields[] = {
    "_id",      "domain",   "sub_domain", "difficulty", "length",  "question", "choice_A",
    "choice_B", "choice_C", "choice_D",   "answer",     "context", NULL};
static const char *const ruler_marks[] = {"input", "outputs", NULL};
static const char *const ruler_fields[] = {"index",
                                           "input",
                                           "outputs",
                                           "length",
                                           "others",
                                           "length_w_model_temp",
                                           "answer_prefix",
                                           "truncation",
                                           "token_position_answer",
                                           NULL};

const sl_eval_form_reader sl_eval_forms[] = {
    [SL_EVAL_OWN] = {"own", own_marks, own_fields, read_own},
    [SL_EVAL_LONGBENCH] = {"LongBench", longbench_marks, longbench_fields, read_longbench},
    [SL_EVAL_LONGBENCH2] = {"LongBench v2", longbench2_marks, longbench2_fields, read_longbench2},
    [SL_EVAL_RULER] = {"RULER", ruler_marks, ruler_fields, read_ruler},
};
