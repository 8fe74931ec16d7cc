/*
 * Internals of the engine: its state, shared by create.c, seq.c (sequences and device pages), step.c and
 * stats.c. Not for other rooms.
 *
 * Page tables exist twice: a host mirror that seq.c edits, and the device's copy, which is brought up to date at
 * the start of a step for the sequences of that step. A sequence keeps its row of the tables while it is open.
 */
#ifndef SL_ENGINE_IMPL_H
#define SL_ENGINE_IMPL_H

#include "engine/engine.h"
#include "engine/agree.h"
#include "engine/choice.h"
#include "engine/device_mem.h"
#include "engine/graph.h"
#include "engine/reports.h"
#include "sparse/sparse.h"

struct sl_seq {
    sl_engine *e;
    bool open;
    int32_t row; /* of the page tables */
    int32_t len, n_pages;
    int32_t state_len;            /* tokens for which its states stand (states.h) */
    int32_t kept, kept_at;        /* versions of its states, of the tokens before this number of tokens */
    int32_t n_index, prompt;      /* pages that have index pages; tokens of the prompt, 0: not known yet */
    int32_t hot_slot;             /* -1: resident */
    int32_t dirty_from, dirty_to; /* page entries the device does not know yet */
    bool dirty_slot;
    bool lost;       /* it was not spilled, and its rows are gone: it can only be closed */
    int32_t flights; /* steps in flight that append to it */
    sl_seq_list list;
    /* The step that chose a token for it last, and the token's place in sl_choices.next_dev; -1: the host chose. */
    uint64_t chosen_in;
    int32_t chosen_at;
    void *user;
};

/* The same four tables on the host and on the device. */
typedef struct sl_tables {
    int32_t *host_pages, *index_pages, *row_pages; /* [max_seqs][ld] */
    int32_t *hot_slot;                             /* [max_seqs] */
} sl_tables;

/* A step's small arrays, one allocation: ids, token_seq, token_pos [max_step_tokens], logit_rows
 * [max_logits]; with an MTP layer prev [max_step_tokens] and keep [max_seqs] (sl_draft_pass); with versions of states
 * turns [versions + 1][max_step_tokens] (sl_turns). */
typedef struct sl_step_arrays {
    int32_t *ids, *token_seq, *token_pos, *logit_rows, *prev, *keep, *turns;
} sl_step_arrays;

typedef struct sl_step_plan {
    int32_t tokens, logits, context;
    int32_t per; /* most tokens of an item */
    sl_step_shape shape;
    bool graph;   /* the shape may be captured: a decode step, or a step of a group without own tokens */
    int32_t own;  /* tokens without padding */
    int32_t rows; /* of logits that are copied to the host */
} sl_step_plan;

/* A step in flight, and the memory of one: what the device reads or writes while the host prepares the next step. */
typedef struct sl_flight {
    sl_step_item *items;
    int32_t n_items;
    sl_step_plan p;
    sl_step_arrays in;
    sl_tables tables; /* what is uploaded of them; none where a copy is complete when its call returns */
    sl_chosen chosen;
    sl_event *end;
    uint64_t *stamps, *stamps_dev; /* the device's time at its beginning and end */
    uint64_t began_ns, waited_ns;
    bool open; /* its tokens are not chosen yet: a mask follows from the step before */
    bool done; /* waited for, with this result: */
    sl_status st;
    sl_err err;
} sl_flight;

/* damage.c. The first two: [pages of the arena / 32 + 1]. */
typedef struct sl_marks {
    uint32_t *device, *host, *any; /* any: NULL when rows have no checksums */
    uint64_t bytes;
    bool registered;
} sl_marks;

struct sl_engine {
    sl_backend *be;
    sl_model *model;
    sl_arena *arena;
    sl_agree *agree; /* the model's group, if it has one */
    sl_engine_opts o;
    const sl_model_config *cfg;
    sl_cache_dims cache;
    sl_geometry geo;
    bool sync;       /* ops are complete when run returns */
    bool unified;    /* device memory is host memory */
    bool registered; /* this engine has registered the arena with the backend */
    sl_coord *coord;
    sl_coord_layer *layers;   /* [n_layers]; the engine owns rows.base and planes[].device */
    struct sl_states *states; /* states.h */
    struct sl_blocks *blocks; /* blocks.h; NULL: no units of blocks are swapped in */
    int32_t ld;               /* pages of the longest sequence */
    int32_t max_logits;
    sl_seq *seqs; /* [max_seqs] */
    /* a request has index pages for the tokens that need state alone (sl_algo_desc.state_tokens) */
    bool few_index;
    sl_dmem *mem; /* what is allocated, and the numbers of sequences, hot slots and pages */
    sl_tables host, dev;
    sl_step_arrays in_dev;
    struct sl_flights *flights; /* flight.h */
    sl_coord_run *runs;
    float *logits_dev, *logits_host; /* the same memory when unified */
    sl_choices choices;
    struct sl_drafts *drafts;   /* draft.h; NULL: no MTP layer */
    struct sl_scoring *scoring; /* score.c */
    sl_marks marks;
    int32_t item_tokens; /* sl_engine_opts.max_item_tokens, at least 1 */
    sl_graphs *graphs;   /* of decode steps */
    sl_reports *reports; /* of the layers of the running step */
    sl_engine_stats stats;
};

/* damage.c: init after the layers are made, before the coordinator is. */
sl_status sl_marks_init(sl_engine *e, sl_err *err);
void sl_marks_fini(sl_engine *e);

/* seq.c, called by create and step. */
sl_status sl_seqs_init(sl_engine *e, sl_err *err);
void sl_seqs_fini(sl_engine *e);
/* The four tables in one kind of memory, freed by host_pages; on the host with -1 everywhere. */
sl_status sl_tables_make(sl_engine *e, sl_mem_kind kind, sl_tables *out, sl_err *err);
/* Brings the device's tables up to date for one sequence, by way of `stage`, if that has tables. */
sl_status sl_engine_seq_upload(sl_seq *s, sl_tables *stage, sl_err *err);

/* Tokens that are chosen for an item. */
static inline int32_t sl_item_samples(const sl_step_item *it)
{
    return !it->sample ? 0 : it->n_samples > 1 ? it->n_samples : 1;
}

/* The last tokens of an item for which rows of logits are computed. */
static inline int32_t sl_item_rows(const sl_step_item *it)
{
    int32_t samples = sl_item_samples(it);
    return samples > it->want_logits ? samples : it->want_logits;
}

/* step.c: the places of a step's arrays, which are contiguous, so that one copy sends them all; how many words that copies. */
void sl_step_place(sl_engine *e, sl_flight *f);
int32_t sl_step_words(const sl_engine *e, const sl_flight *f);

/* score.c: the tokens that a step scores. check as sl_choices_check(). of: whether an item of the step has any. rows: for
 * sl_forward.rows, with the engine as ctx, between begin and end of a step that has some; waits for the device. */
sl_status sl_scoring_init(sl_engine *e, sl_err *err);
void sl_scoring_fini(sl_engine *e);
sl_status sl_scoring_check(const sl_step_item *it, sl_err *err);
bool sl_scoring_of(const sl_flight *f);
void sl_scoring_begin(sl_engine *e, const sl_flight *f);
bool sl_scoring_runs(const sl_engine *e);
sl_status sl_scoring_rows(void *ctx, sl_pass *p, sl_err *err);
void sl_scoring_end(sl_engine *e);

/* step.c: enqueues one forward pass over what was uploaded; captured or not. */
sl_status sl_step_forward(sl_engine *e, int32_t n_tokens, int32_t n_logits, sl_err *err);
/* The parts of a step, in this order; f->items are set. measure checks the items. shape decides how it runs, between the
 * coordinator's beginning and the first op. run enqueues everything, of a step that is open all but the results; *fresh: the
 * shape is to be captured when it is done. results: its tokens are chosen, and what the host reads is copied. */
sl_status sl_step_measure(sl_engine *e, sl_flight *f, sl_err *err);
void sl_step_shape_of(sl_engine *e, sl_flight *f, const sl_step_hooks *hooks);
sl_status sl_step_run(sl_engine *e, sl_flight *f, bool *fresh, sl_err *err);
sl_status sl_step_results(sl_engine *e, sl_flight *f, sl_err *err);
void sl_step_capture(sl_engine *e, const sl_flight *f);
/* Captures the shape that is due, if one is, in the memory of f. No step is in flight. */
void sl_step_capture_due(sl_engine *e, sl_flight *f);
/* A step of padding alone, in the memory of f: it runs every op of its shape once, changes no cache, and is captured. */
sl_status sl_step_warm(sl_engine *e, sl_flight *f, int32_t batch, int32_t per, int32_t context, sl_err *err);
/* The arrays of a step in one kind of memory, [0] of each that the model has; freed by their ids. */
sl_status sl_step_arrays_make(sl_engine *e, sl_mem_kind kind, sl_step_arrays *out, sl_err *err);

#endif
