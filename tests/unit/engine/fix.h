/*
 * Engines over the golden checkpoints, for tests: opens model, arena and engine in any combination of formats,
 * allocates scattered host pages, runs prompts and greedy decode, and keeps a hash of the logits of every position,
 * so that "bit-identical" is one comparison.
 */
#ifndef SL_TEST_ENGINE_FIX_H
#define SL_TEST_ENGINE_FIX_H

#include "base/hash.h"
#include "engine/engine.h"
#include "tests/unit/sparse/select_params.h"

/* ck_assert reports every success to the parent process; this is for inner loops. */
#define MUST(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            ck_abort_msg("%s", #cond);                                                                       \
    } while (0)

typedef struct fix_opts {
    const char *dir;
    sl_index_format index;
    sl_row_format rows;
    sl_dtype act;
    sl_layout layout;
    int threads;
    int32_t max_tokens;  /* of a step; 0 = 128 */
    int32_t item_tokens; /* of a sequence in a decode step; 0 = 1 */
    int32_t max_context; /* 0 = 1600 or the model's */
    int32_t max_graphs, groups, list_bytes;
    sl_graph_use graphs;
    int32_t max_seqs, max_hot, hot_rows, tail_rows; /* hot_rows 0: index_topk */
    const int32_t *hot_rows_layer;                  /* NULL: all layers alike */
    sl_evict_policy policy;
    const char *algorithm;            /* NULL: dsa */
    select_params select;             /* its options */
    const sl_select_options *options; /* not NULL: instead of select */
    sl_gates gates;
    const sl_algo_desc *desc;       /* a test double, instead of a name of the registry */
    sl_arena *arena;                /* borrowed; NULL: one is made */
    int32_t host_pages;             /* 0: enough for all sequences */
    int64_t index_pages, row_pages; /* 0: enough */
    uint64_t pool_bytes;            /* as in sl_engine_opts */
    bool draft;                     /* the model's MTP layer is loaded */
    bool plain_acts;                /* inputs are not quantised, whatever the weights are */
    bool row_sums;                  /* rows have the checksums that the test makes */
    void (*wrap)(sl_backend *be);   /* called on the new backend; NULL: nothing */
} fix_opts;

typedef struct fix {
    fix_opts o;
    sl_backend *be;
    sl_model *model;
    sl_arena *arena;
    sl_row_sums *row_sums; /* or NULL */
    sl_engine *engine;
    const sl_model_config *cfg;
    sl_engine_opts eo;
    int32_t *free_pages, n_free;
} fix;

/* A text: tokens, and the hash of the logits that follow each position (0: not computed). */
enum { FIX_MAX_LEN = 2048 };
typedef struct fix_text {
    int32_t ids[FIX_MAX_LEN];
    sl_key logits[FIX_MAX_LEN]; /* logits[p]: after tokens 0..p */
    int32_t n;
} fix_text;

/* A sequence and the host pages it holds. */
typedef struct fix_run {
    sl_seq *seq;
    int32_t pages[FIX_MAX_LEN / SL_PAGE_TOKENS], n_pages;
    int32_t prompt; /* tokens of its prompt, 0: not said */
} fix_run;

void fix_open(fix *f, const fix_opts *o);
void fix_close(fix *f);
/* Takes pages until the run can hold n tokens; tells the engine when the sequence is open. */
void fix_grow(fix *f, fix_run *r, int32_t n_tokens);
void fix_seq_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t n_tokens);
/* The same, and says that the first `prompt` tokens are the prompt. */
void fix_prompt_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t n_tokens,
                     int32_t prompt);
void fix_seq_close(fix *f, fix_run *r, bool keep_pages);

/* Random prompt of n tokens. */
void fix_prompt(const fix *f, fix_text *t, int32_t n, uint64_t seed);
sl_key fix_hash(const fix *f, const float *logits);
int32_t fix_argmax(const fix *f, const float *logits);
/* Feeds t->ids[len..to) in chunks and records the last logits; the sequence must hold `len` tokens. Returns
 * them. Chunks that an algorithm refuses (sl_engine_prompt_unit()) are made longer. */
const float *fix_feed(fix *f, fix_run *r, fix_text *t, int32_t to, int32_t chunk);
/* Greedy decode until t has `to` tokens, recording every hash. The sequence must lack at least t's last
 * token. */
void fix_greedy(fix *f, fix_run *r, fix_text *t, int32_t to);
/* The reference: resident, whole prompt in steps of the engine's size, greedy up to n tokens; closes again.
 */
void fix_reference(fix *f, fix_text *t, int32_t n_prompt, int32_t n, uint64_t seed);
/* Fails the test unless an engine with these options is refused with this status and a message that contains `says`. */
/* Sets one option of the algorithm in an engine's options, as a configuration writes it. */
void fix_option(sl_engine_opts *eo, const char *name, const char *text);
void fix_refused(fix *f, const sl_engine_opts *eo, sl_status want, const char *says);

#endif
