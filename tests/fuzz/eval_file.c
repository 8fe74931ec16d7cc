/*
 * Arbitrary bytes as a file of tasks: what is accepted can be asked and scored, and an error has a text and leaves nothing.
 * The first byte chooses the name of the file and whether lines need a scorer.
 */
#include <stdlib.h>
#include <string.h>

#include "eval/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const sl_eval_item *it)
{
    if (!it->prompt || !*it->prompt || it->n_answers < 1 || it->scorer >= SL_EVAL_SCORERS || it->max_new < 0)
        abort();
    const char *const texts[] = {"", "The answer is (B).", it->answers[0], it->prompt};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        if (strlen(texts[i]) > 2000)
            continue;
        const double s = sl_eval_item_score(it, texts[i]);
        if (!(s >= 0 && s <= 1))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"own.jsonl", "a/qa_1/validation.jsonl", "trec_e.jsonl",
                                        "/validation.jsonl"};
    const sl_eval_file_opts o = {.scorer = size && data[0] & 4 ? "rouge_words" : NULL};
    sl_eval_file f;
    sl_err err = {""};
    if (!size)
        return 0;
    if (sl_eval_file_parse((const char *)data + 1, size - 1, paths[data[0] & 3], &o, &f, &err) != SL_OK) {
        if (!err.text[0] || f.items || f.path)
            abort();
        return 0;
    }
    if (!f.n || !f.name[0])
        abort();
    for (int32_t i = 0; i < f.n; i++)
        use(&f.items[i]);
    sl_eval_file_free(&f);
    return 0;
}
