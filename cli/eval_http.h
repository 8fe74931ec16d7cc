/*
 * Servers as targets of `sluice eval`: each question is one chat completion of the OpenAI HTTP API, greedy, without
 * streaming and without reasoning. The server's own tokenizer and chat format are used, so tokens are counted by pieces
 * of words, and what the server reads is not known. Main thread.
 */
#ifndef SL_CLI_EVAL_HTTP_H
#define SL_CLI_EVAL_HTTP_H

#include "base/http_client.h"
#include "eval/eval.h"

/* servers: borrowed, one for each number that a setting may have; key: of all, "" for none. */
sl_status sl_cli_eval_http_create(const sl_http_server *servers, sl_eval_target *out, sl_err *err);

#endif
