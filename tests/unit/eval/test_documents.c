/*
 * Generated documents: their words and sentences are those of the training code, they depend on the seed alone, they keep
 * to their length, and a search of the text, which shares no code with the generator, finds every answer exactly once.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/document.h"
#include "eval/eval.h"
#include "eval/words.h"
#include "model/tokenizer.h"
#include "tests/unit/run_suite.h"

static sl_eval_document make(const char *task, sl_eval_style style, int32_t length, uint64_t seed,
                             int32_t index)
{
    sl_eval_spec spec = {.task = sl_eval_task_find(task),
                         .style = style,
                         .length = length,
                         .seed = seed,
                         .index = index,
                         .counter = {.count = sl_eval_count_pieces}};
    sl_eval_document d = {0};
    sl_err err = {""};
    ck_assert_ptr_nonnull(spec.task);
    ck_assert_msg(sl_eval_document_make(&spec, &d, &err) == SL_OK, "%s: %s", task, err.text);
    return d;
}

START_TEST(words_are_those_of_training)
{
    json_t *all = json_load_file("models/train/words.json", 0, NULL);
    ck_assert_ptr_nonnull(all);
    ck_assert_uint_eq(json_object_size(all), SL_EVAL_WORD_LISTS);
    for (int i = 0; i < SL_EVAL_WORD_LISTS; i++) {
        const sl_eval_words *have = &sl_eval_word_lists[i];
        const json_t *want = json_object_get(all, have->name);
        ck_assert_int_eq((int)json_array_size(want), have->n);
        for (int32_t k = 0; k < have->n; k++)
            ck_assert_str_eq(json_string_value(json_array_get(want, (size_t)k)), have->v[k]);
    }
    json_decref(all);
}
END_TEST

/* Every word, mark and pair of digits of a document is one token of the trained checkpoints, so it has no sentence that
 * they do not know. */
START_TEST(every_piece_is_a_token_of_the_checkpoint)
{
    sl_tokenizer *tok;
    sl_err err = {""};
    ck_assert_msg(sl_tokenizer_load("models/facts-llama", &tok, &err) == SL_OK, "%s", err.text);
    ck_assert(sl_eval_knows_facts(tok));
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++)
        for (int32_t i = 0; i < 4; i++) {
            sl_eval_document d = make(t->name, SL_EVAL_FACTS, 1000, 7, i);
            const char *texts[] = {d.user, d.answer};
            for (int k = 0; k < 2; k++) {
                int32_t *ids;
                size_t n;
                ck_assert_int_eq(sl_tokenizer_encode(tok, texts[k], strlen(texts[k]), 0, &ids, &n, &err),
                                 SL_OK);
                ck_assert_int_eq((int)n, sl_eval_count_pieces(NULL, texts[k], strlen(texts[k])));
                free(ids);
            }
            sl_eval_document_free(&d);
        }
    sl_tokenizer_destroy(tok);
}
END_TEST

START_TEST(a_document_is_a_function_of_its_seed)
{
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++) {
        sl_eval_document a = make(t->name, SL_EVAL_FACTS, 500, 1, 3),
                         b = make(t->name, SL_EVAL_FACTS, 500, 1, 3);
        sl_eval_document c = make(t->name, SL_EVAL_FACTS, 500, 2, 3),
                         d = make(t->name, SL_EVAL_FACTS, 500, 1, 4);
        ck_assert_str_eq(a.user, b.user);
        ck_assert_str_eq(a.answer, b.answer);
        ck_assert_str_ne(a.user, c.user);
        ck_assert_str_ne(a.user, d.user);
        sl_eval_document_free(&a);
        sl_eval_document_free(&b);
        sl_eval_document_free(&c);
        sl_eval_document_free(&d);
    }
}
END_TEST

START_TEST(keeps_to_its_length)
{
    const int32_t lengths[] = {300, 1000, 5000};
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++)
        for (size_t l = 0; l < SL_COUNT(lengths); l++)
            for (int style = 0; style < 2; style++) {
                sl_eval_document d = make(t->name, (sl_eval_style)style, lengths[l], 5, (int32_t)l);
                int32_t n = sl_eval_count_pieces(NULL, d.user, strlen(d.user));
                ck_assert_msg(n <= lengths[l] && n > lengths[l] - 75, "%s: %d of %d tokens", t->name, n,
                              lengths[l]);
                sl_eval_document_free(&d);
            }
}
END_TEST

START_TEST(a_length_without_room_is_refused)
{
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++) {
        sl_eval_spec spec = {.task = t, .length = 20, .counter = {.count = sl_eval_count_pieces}};
        sl_eval_document d = {0};
        sl_err err = {""};
        ck_assert_int_eq(sl_eval_document_make(&spec, &d, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, t->name) && strstr(err.text, "not 20"), "%s", err.text);
        ck_assert_ptr_null(d.user);
    }
}
END_TEST

/* ---- answers by search ---- */

/* What follows `before` in the text, up to the next dot; the place is there exactly once. */
static void found(const char *text, const char *before, char out[64])
{
    const char *at = strstr(text, before);
    ck_assert_msg(at != NULL, "\"%s\" is not in the text", before);
    ck_assert_msg(strstr(at + 1, before) == NULL, "\"%s\" is there twice", before);
    at += strlen(before);
    size_t n = strcspn(at, ".");
    ck_assert_uint_lt(n, 64);
    memcpy(out, at, n);
    out[n] = 0;
}

/* The words between two texts of the question. */
static void between(const char *question, const char *from, const char *to, char out[64])
{
    const char *at = strstr(question, from);
    ck_assert_ptr_nonnull(at);
    at += strlen(from);
    const char *end = strstr(at, to);
    ck_assert_ptr_nonnull(end);
    ck_assert_uint_lt((size_t)(end - at), 64);
    memcpy(out, at, (size_t)(end - at));
    out[end - at] = 0;
}

static void code_of(const char *text, const char *thing, char out[64])
{
    char before[256];
    snprintf(before, sizeof before, " The code of the %s is ", thing);
    found(text, before, out);
}

static void search_person(const char *text, const char *question, char out[64])
{
    static const char *const kinds[][4] = {{"Where does ", " live?", " lives in "},
                                           {"Which colour does ", " like?", " likes the colour "},
                                           {"What is the job of ", "?", " works as a "},
                                           {"Which animal does ", " own?", " owns a "}};
    for (size_t k = 0; k < SL_COUNT(kinds); k++)
        if (strstr(question, kinds[k][0])) {
            char name[64], before[256];
            between(question, kinds[k][0], kinds[k][1], name);
            snprintf(before, sizeof before, " %s%s", name, kinds[k][2]);
            found(text, before, out);
            return;
        }
    ck_abort_msg("no question about a person: %.80s", question);
}

static void search_chain(const char *text, const char *question, char out[64])
{
    between(question, "What is the value of ", "?", out);
    for (int i = 0; i < 4; i++) {
        char before[256];
        snprintf(before, sizeof before, " Let %s = ", out);
        found(text, before, out);
    }
}

/* The values of the document are what a reader finds. */
static void check(const sl_eval_document *d)
{
    const char *question = strstr(d->user, "Question: ");
    char got[64], thing[3][64];
    ck_assert_ptr_nonnull(question);
    if (strstr(question, "What are the codes of ")) {
        between(question, "codes of the ", ", the ", thing[0]);
        between(question, ", the ", " and the ", thing[1]);
        between(question, " and the ", "?", thing[2]);
        ck_assert_int_eq(d->n_values, 3);
        for (int i = 0; i < 3; i++) {
            code_of(d->user, thing[i], got);
            ck_assert_str_eq(got, d->values[i]);
        }
        return;
    }
    if (strstr(question, "What is the code of ")) {
        between(question, "What is the code of the ", "?", thing[0]);
        code_of(d->user, thing[0], got);
    } else if (strstr(question, "What is the value of ")) {
        search_chain(d->user, question, got);
    } else {
        search_person(d->user, question, got);
    }
    ck_assert_int_eq(d->n_values, 1);
    ck_assert_str_eq(got, d->values[0]);
}

START_TEST(answers_are_found_by_search)
{
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++)
        for (int32_t i = 0; i < 20; i++)
            for (int style = 0; style < 2; style++) {
                sl_eval_document d = make(t->name, (sl_eval_style)style, i < 15 ? 400 : 3000, 11, i);
                check(&d);
                for (int32_t k = 0; k < d.n_values; k++)
                    ck_assert_ptr_nonnull(strstr(d.answer, d.values[k]));
                sl_eval_document_free(&d);
            }
}
END_TEST

START_TEST(the_early_question_is_before_the_text)
{
    sl_eval_document d = make("early", SL_EVAL_FACTS, 400, 1, 0);
    ck_assert_int_eq(strncmp(d.user, "Text: Question: What is the code of the ", 40), 0);
    ck_assert_str_eq(d.user + strlen(d.user) - 21, " Answer the question.");
    sl_eval_document_free(&d);
}
END_TEST

/* ---- scoring ---- */

START_TEST(scores)
{
    char right[] = "Answer: The code of the old vase is 0421.";
    sl_eval_document d = {.answer = right, .values = {"0421", "Rome"}, .n_values = 2};
    ck_assert(sl_eval_right(&d, SL_EVAL_FACTS, " Answer: The code of the old vase is 0421.\n"));
    ck_assert(!sl_eval_right(&d, SL_EVAL_FACTS, "Answer: The code of the old vase is 0421"));
    ck_assert(!sl_eval_right(&d, SL_EVAL_FACTS, ""));
    ck_assert(sl_eval_right(&d, SL_EVAL_PLAIN, "It is **0421**, and she lives in rome."));
    ck_assert(!sl_eval_right(&d, SL_EVAL_PLAIN, "It is 10421, and she lives in Rome."));
    ck_assert(!sl_eval_right(&d, SL_EVAL_PLAIN, "It is 0421."));
    ck_assert(!sl_eval_right(&d, SL_EVAL_PLAIN, "It is 04215 or 0421x, in Romeo."));
    ck_assert(sl_eval_right(&d, SL_EVAL_PLAIN, "10421 0421 Rome"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval documents");
    TCase *t = tcase_create("documents");
    tcase_add_test(t, words_are_those_of_training);
    tcase_add_test(t, every_piece_is_a_token_of_the_checkpoint);
    tcase_add_test(t, a_document_is_a_function_of_its_seed);
    tcase_add_test(t, keeps_to_its_length);
    tcase_add_test(t, a_length_without_room_is_refused);
    tcase_add_test(t, answers_are_found_by_search);
    tcase_add_test(t, the_early_question_is_before_the_text);
    tcase_add_test(t, scores);
    suite_add_tcase(s, t);
    return run_suite(s);
}
