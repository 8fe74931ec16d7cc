/*
 * What an engine keeps to choose tokens on its device (sampling.c): the rows and results of a step, and the lists of changes
 * (kernels/sample.h) of the sequences that have bias, penalties or min_tokens. Internal to the engine.
 *
 * A list stays on the device while its sequence takes steps: the op counts each token that it chooses. It is made anew from
 * the history when it does not fit the sequence's length (a first step, a step that failed) or when it has no more room.
 * Masks of constraints are asked for when the step's work is enqueued, so a device computes meanwhile; only those of requests that
 * have one are copied.
 *
 * When the device has no memory for a list, or no such op, that request alone is sampled on the host, from its row of
 * logits, with the same result bit by bit.
 */
#ifndef SL_ENGINE_CHOICE_H
#define SL_ENGINE_CHOICE_H

#include "kernels/backend.h"
#include "model/sampler.h"

struct sl_seq;

/* The list of a sequence in the pool. For an item that chooses several tokens there is one for each of them, made anew in every
 * step and forgotten when it is submitted: what such a step counts may be taken back. */
typedef struct sl_seq_list {
    int64_t at, bytes; /* bytes 0: none */
    int32_t length;    /* of the sequence whose next token the list is for */
    int32_t last;      /* the token that it counted last; -1: the host does not know it */
    int32_t n, room;   /* entries at most, and places */
} sl_seq_list;

/* One token that is to be chosen. An item with several has as many of these, one after the other. */
typedef struct sl_choice {
    struct sl_seq *seq;
    struct sl_step_sample *sample;
    bool several; /* its item has several */
    int32_t row;  /* of the logits */
    bool on_host;
    int32_t mask_at; /* number of its mask in the step, or -1 */
    sl_token_mask mask;
} sl_choice;

/* Those of one step. */
typedef struct sl_chosen {
    sl_choice *of;       /* [most] */
    sl_sample_row *rows; /* [most] */
    sl_sampled *out;     /* [most] */
    uint32_t *masks;     /* [most][words] */
    int32_t n, n_host, n_masks;
} sl_chosen;

typedef struct sl_choices {
    bool device; /* the backend has the op */
    sl_sampler *host;
    sl_sample_row *rows_dev; /* [most] */
    sl_sampled *out_dev;     /* [most] */
    int32_t *next_dev;       /* [most]: the tokens as ids of the next step */
    uint32_t *masks_dev;     /* [most][words] */
    size_t words;            /* of a mask */
    uint8_t *pool;
    int64_t pool_bytes;
    int32_t most;
    uint64_t steps; /* that were submitted */
    sl_sample_params op;
} sl_choices;

enum { SL_LIST_POOL = 32 << 10 }; /* bytes of the pool for each row of logits */

/* Device bytes of a row that is scored (score.c): the row of logits, its request, its list, its result. */
static inline uint64_t sl_scoring_bytes(void)
{
    return sizeof(int32_t) + sizeof(sl_sample_row) + sl_sample_list_bytes(1) + sizeof(sl_sampled);
}

/* Device bytes for this number of rows. */
static inline uint64_t sl_choices_bytes(uint64_t rows, int32_t vocab)
{
    return rows * (sizeof(sl_sample_row) + sizeof(sl_sampled) + sizeof(int32_t) + SL_LIST_POOL +
                   sl_sample_mask_words(vocab) * sizeof(uint32_t) + sl_scoring_bytes());
}

#endif
