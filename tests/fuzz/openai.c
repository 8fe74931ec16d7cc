/*
 * HTTP bodies: for every input the OpenAI parser returns a request or an error, and an answer made from a request is
 * valid JSON and consists of valid events.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/openai.h"
#include "bench/mock/mock.h"

static void check_answer(const sl_oai_env *env, sl_oai_request *q, const uint8_t *data, size_t n)
{
    uint32_t k = (uint32_t)(q->spec.n_prompts * q->spec.n);
    if (!k || k > 8)
        return;
    sl_oai_answer *a = sl_oai_answer_create(env, q, "id", 1, k, q->spec.n);
    for (uint32_t i = 0; a && i < k; i++) {
        sl_msg_token t = {.id = n ? data[i % n] : 1, .n_top = 1};
        sl_output o = {
            .index = i, .tokens = &t, .n_tokens = 1, .text = "a<b>{\"", .text_len = 6, .matched_token = -1};
        sl_oai_answer_feed(a, &o);
        sl_output e = {.index = i, .finished = true, .finish = SL_FINISH_STOP, .matched_token = -1};
        sl_oai_answer_feed(a, &e);
    }
    if (a && !sl_oai_answer_stream(a) && !sl_oai_answer_status(a)) {
        char *text = sl_oai_answer_json(a);
        json_t *o = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
        if (text && !o)
            abort();
        json_decref(o);
        free(text);
    }
    sl_oai_answer_destroy(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static sl_tokenizer *tok;
    if (!tok && sl_mock_tokenizer(&tok, NULL))
        abort();
    if (!n)
        return 0;
    sl_oai_env env = {
        .tok = tok, .chat = (sl_chat_format)(data[0] / 2 % SL_CHAT_FORMATS), .served_name = "m"};
    sl_oai_request q;
    sl_err err = {""};
    const char *body = (const char *)data + 1;
    sl_status st = sl_oai_parse(&env, data[0] & 1, body, n - 1, &q, &err);
    if (st) {
        int code;
        char *text = sl_oai_error_json(st, err.text, &code);
        if (!text || code < 400)
            abort();
        free(text);
        return 0;
    }
    check_answer(&env, &q, data, n);
    sl_oai_request_free(&q);
    return 0;
}
