/* Files of a tokenizer: what is wrong in one is named with file, key and reason; the smallest valid file works. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer.h"
#include "tests/unit/run_suite.h"

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define TAIL                                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{\"type\":"           \
    "\"ByteLevel\"}"

static const struct {
    const char *json;
    sl_status st;
    const char *says;
} broken[] = {
    {"", SL_ERR_INVALID, "x.json: line 1"},
    {"{", SL_ERR_INVALID, "x.json: line 1"},
    {"[]", SL_ERR_INVALID, "model: missing"},
    {"{\"model\":{\"type\":\"Unigram\"}}", SL_ERR_UNSUPPORTED, "model.type: \"Unigram\""},
    {"{\"model\":{\"type\":\"BPE\"}}", SL_ERR_INVALID, "model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", SL_ERR_INVALID, "model.vocab[\"a\"]"},
    {"{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", SL_ERR_INVALID, "model.vocab[\"a\"]"},
    {"{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", SL_ERR_INVALID, "an id must be an integer"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", SL_ERR_INVALID, "id 0 belongs to both"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", SL_ERR_INVALID, "model.merges: must be an array"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", SL_ERR_INVALID, "model.merges[0]"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}", SL_ERR_INVALID, "model.merges[0]"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", SL_ERR_INVALID, "model.merges[0]"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", SL_ERR_INVALID, "\"b\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", SL_ERR_INVALID,
     "merged token \"aa\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", SL_ERR_UNSUPPORTED, "model.dropout"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":true}}", SL_ERR_UNSUPPORTED,
     "byte_fallback"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", SL_ERR_INVALID,
     "model.unk_token"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"u\"}}", SL_ERR_UNSUPPORTED,
     "end_of_word"},
    {"{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}," TAIL "}", SL_ERR_UNSUPPORTED,
     "normalizer: type \"Lowercase\""},
    {"{" MODEL ",\"added_tokens\":{}," TAIL "}", SL_ERR_INVALID, "added_tokens: must be an array"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":3}]," TAIL "}", SL_ERR_INVALID, "added_tokens[0]: content"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":7,\"content\":\"x\"}]," TAIL "}", SL_ERR_INVALID,
     "would be token 3"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"x\",\"special\":1}]," TAIL "}", SL_ERR_INVALID,
     "special"},
    {"{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":3,\"content\":\"x\"}]," TAIL "}",
     SL_ERR_INVALID, "added_tokens[1]: content: \"x\" is listed twice"},
    {"{" MODEL "}", SL_ERR_UNSUPPORTED, "pre_tokenizer"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Whitespace\"}}", SL_ERR_UNSUPPORTED,
     "pre_tokenizer: type \"Whitespace\""},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\","
     "\"behavior\":\"Isolated\","
     "\"pattern\":{\"Regex\":\"(\"}}]}}",
     SL_ERR_INVALID, "pre_tokenizer: pretokenizers[0]: pattern.Regex: regex does not compile"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\",\"pattern\":{\"Regex\":\"a\"}}}",
     SL_ERR_INVALID, "behavior: \"Odd\""},
    {"{" MODEL
     ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"String\":\"\"}}}",
     SL_ERR_INVALID, "pattern.String"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":\"a\"}}",
     SL_ERR_INVALID, "pattern: must hold"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":3}}", SL_ERR_INVALID, "use_regex"},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}", SL_ERR_UNSUPPORTED, "decoder"},
    {"{" MODEL "," TAIL ",\"post_processor\":{\"type\":\"BertProcessing\"}}", SL_ERR_UNSUPPORTED,
     "post_processor"},
    {"{" MODEL "," TAIL
     ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"z\"}}]}}",
     SL_ERR_INVALID, "special_tokens: lacks \"z\""},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"WordPiece\"}}",
     SL_ERR_UNSUPPORTED, "decoder: \"WordPiece\""},
    {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
     "{\"type\":\"Fuse\"}]}}",
     SL_ERR_UNSUPPORTED, "decoders[0]: \"Fuse\""},
};

START_TEST(broken_file_is_explained)
{
    sl_tokenizer *t = NULL;
    sl_err err = {{0}};
    sl_status st = sl_tokenizer_parse(broken[_i].json, strlen(broken[_i].json), "x.json", &t, &err);
    ck_assert_msg(st == broken[_i].st, "%s: %s (%s)", broken[_i].json, sl_status_name(st), err.text);
    ck_assert_msg(strncmp(err.text, "x.json: ", 8) == 0 && strstr(err.text, broken[_i].says) != NULL,
                  "\"%s\" lacks \"%s\"", err.text, broken[_i].says);
    ck_assert_ptr_null(t);
}
END_TEST

START_TEST(smallest_file_works)
{
    static const char json[] = "{" MODEL "," TAIL "}";
    sl_tokenizer *t;
    sl_err err = {{0}};
    int32_t *ids;
    size_t n;
    ck_assert_msg(sl_tokenizer_parse(json, sizeof json - 1, "x", &t, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_tokenizer_encode(t, "abba", 4, 0, &ids, &n, NULL), SL_OK);
    ck_assert_uint_eq(n, 3);
    ck_assert(ids[0] == 2 && ids[1] == 1 && ids[2] == 0);
    free(ids);
    ck_assert_int_eq(sl_tokenizer_encode(t, "zz", 2, 0, &ids, &n, NULL), SL_OK); /* bytes without tokens */
    ck_assert_uint_eq(n, 0);
    ck_assert_ptr_null(ids);
    sl_tokenizer_destroy(t);
    sl_tokenizer_destroy(NULL);
}
END_TEST

START_TEST(missing_file_is_named)
{
    sl_tokenizer *t = NULL;
    sl_err err = {{0}};
    ck_assert_int_eq(sl_tokenizer_load("/nonexistent/dir/tokenizer.json", &t, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/dir/tokenizer.json: "));
    ck_assert_int_eq(sl_tokenizer_load("tests/unit", &t, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "tests/unit/tokenizer.json"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer_files");
    TCase *c = tcase_create("files");
    tcase_add_loop_test(c, broken_file_is_explained, 0, (int)SL_COUNT(broken));
    tcase_add_test(c, smallest_file_works);
    tcase_add_test(c, missing_file_is_named);
    suite_add_tcase(s, c);
    return run_suite(s);
}
