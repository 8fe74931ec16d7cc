/*
 * A chat request made of arbitrary JSON, in every format: the result is a prompt or a reason, never a crash. The first
 * byte: bits 0, 1, 6 and 7 are the format, bit 2 thinking, with bit 4 at the model's will, bit 3 kept reasoning; bits 0 and 1 of the
 * length of the input are the effort.
 */
#include <stdlib.h>

#include "model/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    static const char *const efforts[] = {NULL, "low", "high", "max"};
    json_t *j = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    sl_chat_request req = {.messages = json_object_get(j, "messages"),
                           .tools = json_object_get(j, "tools"),
                           .tool_choice = json_object_get(j, "tool_choice"),
                           .response_format = json_object_get(j, "response_format"),
                           .thinking = !(data[0] & 4) ? SL_CHAT_THINK_NO
                                       : data[0] & 16 ? SL_CHAT_THINK_ADAPTIVE
                                                      : SL_CHAT_THINK_YES,
                           .effort = efforts[size & 3],
                           .keep_reasoning = data[0] & 8};
    sl_chat_prompt p = {0};
    sl_err err = {{0}};
    sl_status st = sl_chat_render((sl_chat_format)(((data[0] & 3) | (data[0] >> 4 & 12)) % SL_CHAT_FORMATS),
                                  &req, &p, &err);
    if ((st == SL_OK) != (p.text != NULL) || (st != SL_OK && !err.text[0]))
        abort();
    for (size_t i = 0, at = 0; i < p.n_client;
         at = p.client[i++].end) { /* ascending, apart, inside the text */
        if (p.client[i].start < at || p.client[i].start >= p.client[i].end || p.client[i].end > p.len)
            abort();
    }
    sl_chat_prompt_free(&p);
    json_decref(j);
    return 0;
}
