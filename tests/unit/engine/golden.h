/* The values that transformers has computed for the checkpoints of tests/golden/model: for each prompt its ids, logits and greedy tokens. */
#ifndef SL_TEST_ENGINE_GOLDEN_H
#define SL_TEST_ENGINE_GOLDEN_H

#include "model/safetensors.h"

#include "fix.h"

enum { GOLDEN_GREEDY = 64 };

/* golden.safetensors of a directory; for sl_st_close(). The test fails if there is none. */
sl_safetensors *golden_open(const char *dir);
/* "ids", "logits", "greedy" or "all_logits" of a prompt; NULL: there is none. */
const sl_st_tensor *golden_part(const sl_safetensors *g, int prompt, const char *what);
/* The number of the last prompt, which is the longest. */
int golden_last(const sl_safetensors *g);
/* A prompt of n tokens, and after these the GOLDEN_GREEDY that follow it. */
void golden_read(const sl_safetensors *g, int prompt, fix_text *t);
/* The same of the last prompt of a directory. */
void golden_read_last(const char *dir, fix_text *t);

#endif
