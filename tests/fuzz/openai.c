/*
 * HTTP bodies: for every input the parser of each API returns a request, an answer or an error, and an answer made from a request is
 * valid JSON, or consists of events that are.
 */
#include <stdlib.h>
#include <string.h>

#include "router/http/openai.h"
#include "bench/mock/mock.h"

/* A token that is a NUL byte may be the name of a member, which jansson writes and does not read. */
static void check_json(const char *text, size_t n)
{
    json_error_t e;
    json_t *o = json_loadb(text, n, JSON_ALLOW_NUL, &e);
    if (!o && json_error_code(&e) != json_error_null_byte_in_key)
        abort();
    json_decref(o);
}

static void check_events(const sl_oai_answer *a)
{
    size_t n;
    const char *at = sl_oai_answer_bytes(a, &n), *end = at + n;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        if (!line)
            abort();
        if (line - at > 7 && !memcmp(at, "data: {", 7))
            check_json(at + 6, (size_t)(line - at - 6));
        at = line + 1;
    }
}

static void check_answer(const sl_oai_env *env, sl_oai_request *q, const uint8_t *data, size_t n)
{
    uint32_t k = (uint32_t)(q->spec.n_prompts * q->spec.n);
    if (!k || k > 8)
        return;
    sl_oai_answer *a = sl_oai_answer_create(env, q, "id", 1, k, q->spec.n);
    for (uint32_t i = 0; a && i < k; i++) {
        sl_msg_token t = {
            .id = n ? data[i % n] : 1, .n_top = 1, .top_ids = {'x'}}; /* jansson reads no key with a zero */
        sl_output o = {
            .index = i, .tokens = &t, .n_tokens = 1, .text = "a<b>{\"", .text_len = 6, .matched_token = -1};
        if (!(i % q->spec.n)) { /* the log-probabilities of a prompt come before its output */
            sl_output s = {.index = i, .scores = &t, .n_scores = 1, .matched_token = -1};
            sl_oai_answer_feed(a, &s);
        }
        sl_oai_answer_feed(a, &o);
        sl_output e = {.index = i, .finished = true, .finish = SL_FINISH_STOP, .matched_token = -1};
        sl_oai_answer_feed(a, &e);
    }
    if (a && !sl_oai_answer_stream(a) && !sl_oai_answer_status(a)) {
        char *text = sl_oai_answer_json(a, NULL);
        if (text)
            check_json(text, strlen(text));
        free(text);
    }
    if (a && sl_oai_answer_stream(a) && n % 2)
        sl_oai_answer_fail(a, SL_ERR_PEER, "lost");
    if (a && sl_oai_answer_stream(a))
        check_events(a);
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
    sl_oai_api api = data[0] < 128 ? data[0] & 1 : OAI_RESPONSES + data[0] % 6;
    char *reply = NULL;
    sl_status st = api < OAI_TOKENIZE ? sl_oai_parse(&env, api, body, n - 1, &q, &err)
                                      : sl_oai_reply(&env, api, body, n - 1, &reply, &err);
    if (reply)
        check_json(reply, strlen(reply));
    free(reply);
    if (!st && api >= OAI_TOKENIZE)
        return 0;
    if (st) {
        int code;
        char *text = sl_oai_error_json(st, err.text, &code);
        if (!text || code < 400)
            abort();
        free(text);
        text = sl_oai_messages_error(code, err.text);
        if (!text)
            abort();
        free(text);
        return 0;
    }
    check_answer(&env, &q, data, n);
    sl_oai_request_free(&q);
    return 0;
}
