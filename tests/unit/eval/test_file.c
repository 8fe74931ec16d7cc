/* Task files: each published form as it is on disk, own lines, names, and every line that is refused with file, line and field. */
#include "eval/file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static sl_eval_file parse(const char *text, const char *path, const sl_eval_file_opts *o)
{
    sl_eval_file f;
    sl_err err = {""};
    const sl_eval_file_opts none = {0};
    ck_assert_msg(sl_eval_file_parse(text, strlen(text), path, o ? o : &none, &f, &err) == SL_OK, "%s: %s",
                  err.text, text);
    return f;
}

START_TEST(own_lines)
{
    sl_eval_file f =
        parse("\xef\xbb\xbf{\"prompt\":\"p\\u00e9\",\"answers\":[\"a\",7],\"scorer\":\"f1\",\"prefix\":\"x\","
              "\"max_new_tokens\":9,\"kind\":1,\"id\":\"q\"}\r\n\n  \n"
              "{\"prompt\":\"q\",\"answer\":\"blue\",\"scorer\":\"choice\",\"choices\":[\"red\",\"blue\"]}\n"
              "{\"prompt\":\"q\",\"answer\":0,\"scorer\":\"choice\",\"choices\":[\"red\",\"blue\"]}\n"
              "{\"prompt\":\"q\",\"answer\":\"b\",\"scorer\":\"choice\"}",
              "some/where/my.tasks.jsonl", NULL);
    ck_assert_str_eq(f.name, "my");
    ck_assert_int_eq(f.n, 4);
    ck_assert_int_eq(f.form, SL_EVAL_OWN);
    ck_assert_str_eq(f.items[0].prompt, "pé");
    ck_assert_str_eq(f.items[0].prefix, "x");
    ck_assert_str_eq(f.items[0].answers[1], "7");
    ck_assert_int_eq(f.items[0].max_new, 9);
    ck_assert_int_eq(f.items[0].line, 1);
    ck_assert_int_eq(f.items[1].line, 4);
    ck_assert_str_eq(f.items[1].answers[0], "B");
    ck_assert_str_eq(f.items[2].answers[0], "A");
    ck_assert_str_eq(f.items[3].answers[0], "B");
    ck_assert_int_eq(f.n_unread, 1);
    ck_assert_str_eq(f.unread[0], "kind");
    ck_assert_double_eq(sl_eval_item_score(&f.items[1], "The answer is (B)."), 1);
    ck_assert_double_eq(sl_eval_item_score(&f.items[1], "It is red."), 0);
    sl_eval_file_free(&f);
    static const struct {
        const char *text;
        sl_eval_scorer scorer;
    } spelt[] = {{"F1", SL_EVAL_F1},
                 {"ROUGE-L", SL_EVAL_ROUGE_L},
                 {"rougeL", SL_EVAL_ROUGE_L},
                 {"Contains-All", SL_EVAL_CONTAINS_ALL}};
    for (size_t i = 0; i < SL_COUNT(spelt); i++) {
        sl_eval_scorer how;
        ck_assert(sl_eval_scorer_find(spelt[i].text, &how, NULL) == SL_OK && how == spelt[i].scorer);
    }
    f = parse("{\"prompt\":\"q\",\"answer\":\"(C).\",\"scorer\":\"choice\"}", "x", NULL);
    ck_assert_str_eq(f.items[0].answers[0], "C");
    sl_eval_file_free(&f);
    const sl_eval_file_opts o = {.scorer = "contains"};
    f = parse("{\"prompt\":\"q\",\"answer\":\"1\"}\n{\"prompt\":\"q\",\"answer\":\"1\",\"scorer\":\"exact\"}",
              "x", &o);
    ck_assert_int_eq(f.items[0].scorer, SL_EVAL_CONTAINS);
    ck_assert_int_eq(f.items[1].scorer, SL_EVAL_EXACT);
    sl_eval_file_free(&f);
}
END_TEST

/* The names and order of fields of the published data. */
static void longbench_line(FILE *to, const char *dataset, const char *answer, const char *classes)
{
    fprintf(
        to,
        "{\"input\": \"What?\", \"context\": \"Text {input}.\", \"answers\": [\"%s\"], \"length\": 1234, \"dataset\": \"%s\", "
        "\"language\": \"en\", \"all_classes\": %s, \"_id\": \"0b1\"}\n",
        answer, dataset, classes);
}

START_TEST(longbench)
{
    char *text;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    longbench_line(to, "hotpotqa", "Paris", "null");
    longbench_line(to, "trec", "Food", "[\"Food\", \"Animal\"]");
    longbench_line(to, "passage_retrieval_en", "Paragraph 12", "null");
    longbench_line(to, "passage_retrieval_zh", "段落7", "null");
    longbench_line(to, "passage_count", "3", "null");
    longbench_line(to, "gov_report", "A report.", "null");
    longbench_line(to, "repobench-p", "x = 1", "null");
    fclose(to);
    sl_eval_file f = parse(text, "data/mixed.jsonl", NULL);
    static const sl_eval_scorer scorers[] = {SL_EVAL_F1,      SL_EVAL_CLASSES, SL_EVAL_NUMBERS,
                                             SL_EVAL_NUMBERS, SL_EVAL_NUMBERS, SL_EVAL_ROUGE_WORDS,
                                             SL_EVAL_CODE};
    static const int32_t most[] = {32, 64, 32, 32, 32, 512, 64};
    ck_assert_int_eq(f.n, 7);
    ck_assert_int_eq(f.n_unread, 0);
    for (int i = 0; i < 7; i++) {
        ck_assert_int_eq(f.items[i].scorer, scorers[i]);
        ck_assert_int_eq(f.items[i].max_new, most[i]);
        ck_assert_str_eq(f.items[i].prompt, "Text {input}.\n\nWhat?");
    }
    ck_assert(f.items[1].no_chat && f.items[1].first_line && f.items[6].no_chat && !f.items[0].no_chat);
    ck_assert_double_eq(sl_eval_item_score(&f.items[1], "\nFood\nAnimal"), 1); /* the first line alone */
    ck_assert_double_eq(sl_eval_item_score(&f.items[2], "Paragraph 12 or 13"), 0.5);
    ck_assert_double_eq(sl_eval_item_score(&f.items[3], "段落7"), 1);
    sl_eval_file_free(&f);
    free(text);
}
END_TEST

START_TEST(longbench_prompts_and_e)
{
    char path[] = "/tmp/sl-prompts-XXXXXX";
    const int fd = mkstemp(path);
    FILE *to = fdopen(fd, "w");
    fputs("{\"qasper\": \"Read {context} and say {input}: {{\\\"a\\\"}}\"}", to);
    fclose(to);
    const sl_eval_file_opts o = {.prompts = path};
    /* LongBench-E: the file has the ending, the field does not. Without the field the file's name says the dataset. */
    sl_eval_file f =
        parse("{\"input\":\"I\",\"context\":\"C\",\"answers\":[\"a\"]}", "/data/qasper_e.jsonl", &o);
    ck_assert_str_eq(f.items[0].prompt, "Read C and say I: {\"a\"}");
    sl_eval_file_free(&f);
    sl_err err = {""};
    const char *other = "{\"input\":\"I\",\"context\":\"C\",\"answers\":[\"a\"],\"dataset\":\"lcc\"}";
    ck_assert_int_eq(sl_eval_file_parse(other, strlen(other), "d/lcc.jsonl", &o, &f, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "d/lcc.jsonl:1") && strstr(err.text, "has no prompt for dataset lcc"),
                  "%s", err.text);
    unlink(path);
}
END_TEST

START_TEST(longbench2)
{
    static const char text[] =
        "[\n {\"_id\":\"1\",\"domain\":\"d\",\"sub_domain\":\"s\",\"difficulty\":\"easy\",\"length\":\"short\",\"question\":\"Which?\","
        "\"choice_A\":\"one\",\"choice_B\":\"two\",\"choice_C\":\"three\",\"choice_D\":\"four\",\"answer\":\"C\",\"context\":\"T\"}\n]\n";
    sl_eval_file f = parse(text, "data.json", NULL);
    ck_assert_int_eq(f.form, SL_EVAL_LONGBENCH2);
    ck_assert_int_eq(f.n_unread, 0);
    ck_assert_ptr_nonnull(strstr(f.items[0].prompt, "(C) three\n"));
    ck_assert_double_eq(sl_eval_item_score(&f.items[0], "The correct answer is (C)"), 1);
    ck_assert_double_eq(sl_eval_item_score(&f.items[0], "The correct answer is (A)"), 0);
    sl_eval_file_free(&f);
}
END_TEST

START_TEST(ruler)
{
    static const char now[] =
        "{\"index\": 0, \"input\": \"Some. What are all the special magic numbers?\", \"outputs\": [\"8231\", \"77\"], "
        "\"length\": 4050, \"length_w_model_temp\": 4050, \"answer_prefix\": \" The special magic numbers are\", "
        "\"token_position_answer\": 12}\n";
    static const char before[] =
        "{\"index\": 5, \"input\": \"Q Answer:\", \"outputs\": [\"Paris\", \"the city of Paris\"], \"length\": 90}\n";
    sl_eval_file f = parse(now, "save/niah_multivalue/validation.jsonl", NULL);
    ck_assert_str_eq(f.name, "niah_multivalue");
    ck_assert_int_eq(f.n_unread, 0);
    ck_assert_str_eq(f.items[0].prefix, " The special magic numbers are");
    ck_assert_int_eq(f.items[0].max_new, 128);
    ck_assert_double_eq(sl_eval_item_score(&f.items[0], " 8231 and 12"), 0.5);
    sl_eval_file_free(&f);
    f = parse(before, "save/qa_1/validation.jsonl", NULL);
    ck_assert_ptr_null(f.items[0].prefix);
    ck_assert_int_eq(f.items[0].max_new, 32);
    ck_assert_double_eq(sl_eval_item_score(&f.items[0], "PARIS."), 1); /* one of them is enough */
    sl_eval_file_free(&f);
    f = parse(before, "validation.jsonl", NULL);
    ck_assert_str_eq(f.name, "validation"); /* there is no folder */
    sl_eval_file_free(&f);
}
END_TEST

static void refused(const char *line, const char *says)
{
    char text[4096];
    sl_eval_file f;
    sl_err err = {""};
    const sl_eval_file_opts none = {0};
    snprintf(text, sizeof text, "{\"prompt\":\"q\",\"answer\":\"1\",\"scorer\":\"exact\"}\n\n%s\n", line);
    ck_assert_int_lt(sl_eval_file_parse(text, strlen(text), "d/f.jsonl", &none, &f, &err), SL_OK);
    ck_assert_msg(strstr(err.text, "d/f.jsonl:3") != NULL, "no file and line in \"%s\"", err.text);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" is not in \"%s\"", says, err.text);
    ck_assert(f.items == NULL && f.path == NULL);
}

START_TEST(refused_lines)
{
    refused("{\"prompt\":\"q\"", "not JSON");
    refused("[1]", "not an object");
    refused("7", "not JSON");
    refused("{\"prompt\":\"q\",\"prompt\":\"q\"}", "duplicate");
    refused("{\"answer\":\"1\"}", "fields are missing");
    refused("{\"prompt\":7,\"answer\":\"1\",\"scorer\":\"exact\"}",
            "field \"prompt\" is a number and must be a text");
    refused("{\"prompt\":\"\",\"answer\":\"1\",\"scorer\":\"exact\"}", "field \"prompt\" is empty");
    refused("{\"prompt\":\"q\",\"scorer\":\"exact\"}", "field \"answers\" is missing");
    refused("{\"prompt\":\"q\",\"answers\":[],\"scorer\":\"exact\"}", "field \"answers\" is empty");
    refused("{\"prompt\":\"q\",\"answers\":[\"a\",null],\"scorer\":\"exact\"}", "entry 2 is null");
    refused("{\"prompt\":\"q\",\"answers\":[\" \"],\"scorer\":\"contains\"}", "entry 1 is empty");
    refused("{\"prompt\":\"q\",\"answers\":[\"a\"],\"answer\":\"a\",\"scorer\":\"exact\"}", "both there");
    refused("{\"prompt\":\"q\",\"answer\":\"1\"}", "field \"scorer\" is missing");
    refused("{\"prompt\":\"q\",\"answer\":\"1\",\"scorer\":\"bleu\"}",
            "field \"scorer\": scorer \"bleu\" does not exist");
    refused("{\"prompt\":\"q\",\"answer\":\"1\",\"scorer\":\"exact\",\"max_new_tokens\":0}",
            "field \"max_new_tokens\"");
    refused("{\"prompt\":\"q\",\"answer\":\"1\",\"scorer\":\"exact\",\"prefix\":[]}",
            "field \"prefix\" is an array");
    refused("{\"prompt\":\"q\",\"answer\":\"E\",\"scorer\":\"choice\",\"choices\":[\"a\",\"b\"]}",
            "\"E\" is no choice");
    refused("{\"prompt\":\"q\",\"answer\":2,\"scorer\":\"choice\",\"choices\":[\"a\",\"b\"]}",
            "\"2\" is no choice");
    refused("{\"prompt\":\"q\",\"answer\":\"A\",\"scorer\":\"choice\",\"choices\":[\"a\"]}",
            "field \"choices\" has 1 entries");
    refused("{\"prompt\":\"q\",\"answer\":\"A\",\"scorer\":\"classes\"}", "field \"choices\" is missing");
    refused("{\"input\":\"q\",\"context\":\"c\",\"answers\":[\"a\"],\"dataset\":\"squad\"}",
            "\"squad\" is no dataset of LongBench");
    refused(
        "{\"input\":\"q\",\"context\":\"c\",\"answers\":[\"a\"],\"dataset\":\"trec\",\"all_classes\":null}",
        "field \"all_classes\"");
    refused("{\"input\":\"q\",\"context\":\"c\",\"answers\":[\"no\"],\"dataset\":\"passage_count\"}",
            "\"no\" has no number");
    refused("{\"input\":\"q\",\"context\":null,\"answers\":[\"a\"],\"dataset\":\"lcc\"}",
            "field \"context\" is null");
    refused("{\"input\":\"q\",\"outputs\":{}}", "field \"outputs\": entry 1 is an object");
    refused("{\"input\":[\"q\"],\"outputs\":[\"a\"]}", "field \"input\" is an array");
    refused("{\"prompt\":\"\\ud800\",\"answer\":\"1\"}", "not JSON");
    refused("{\"prompt\":\"\xff\",\"answer\":\"1\"}", "not JSON");
    refused("{\"prompt\":\"a\\u0000\",\"answer\":\"1\"}", "a text has the character \\u0000");
}
END_TEST

/* What lies on disks under such a name and is no text of lines: the message says what it is. */
START_TEST(other_kinds_of_files)
{
    static const struct {
        const char *bytes, *says;
        size_t n;
    } files[] = {
        {"\x1f\x8b\x08\x00", "gzip", 4},  {"\x28\xb5\x2f\xfd\x24", "zstd", 5},
        {"BZh91AY", "bzip2", 7},          {"PK\x03\x04\x14", "zip", 5},
        {"PAR1\x15", "Parquet", 5},       {"version https://git-lfs.github.com/spec/v1\n", "Git LFS", 43},
        {"\xff\xfe{\0\"\0", "UTF-16", 6}, {"\xfe\xff\0{", "UTF-16", 4}};
    const sl_eval_file_opts none = {0};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        sl_eval_file f;
        sl_err err = {""};
        ck_assert_int_lt(sl_eval_file_parse(files[i].bytes, files[i].n, "d/f.jsonl", &none, &f, &err), SL_OK);
        ck_assert_msg(strstr(err.text, files[i].says) && strstr(err.text, "d/f.jsonl"), "%s", err.text);
    }
}
END_TEST

/* A file that is cut anywhere is a whole file of fewer lines or is refused with a reason. */
START_TEST(cut_files)
{
    static const char text[] = "{\"prompt\":\"q\",\"answers\":[\"1\",\"2\"],\"scorer\":\"exact\"}\n"
                               "{\"index\":1,\"input\":\"q\",\"outputs\":[\"a\"],\"answer_prefix\":\"b\"}\n";
    const size_t all = strlen(text), first = strcspn(text, "\n");
    const sl_eval_file_opts none = {0};
    for (size_t n = 0; n <= all; n++) {
        sl_eval_file f;
        sl_err err = {""};
        sl_status st = sl_eval_file_parse(text, n, "f", &none, &f, &err);
        const bool whole = n == first || n == first + 1 || n >= all - 1;
        ck_assert_msg((st == SL_OK) == whole, "%zu bytes: %s", n, err.text);
        ck_assert(st == SL_OK || err.text[0]);
        if (st == SL_OK)
            sl_eval_file_free(&f);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval files");
    TCase *t = tcase_create("files");
    tcase_add_test(t, own_lines);
    tcase_add_test(t, longbench);
    tcase_add_test(t, longbench_prompts_and_e);
    tcase_add_test(t, longbench2);
    tcase_add_test(t, ruler);
    tcase_add_test(t, refused_lines);
    tcase_add_test(t, other_kinds_of_files);
    tcase_add_test(t, cut_files);
    suite_add_tcase(s, t);
    return run_suite(s);
}
