/*
 * SL_OP_SAMPLE: the next token of many requests from their logits, each with parameters of its own, and the
 * log-probabilities that they asked for. This header is the specification; kernels/sample_math.h has its arithmetic, which
 * C and CUDA share, and every backend gives the same token and the same bits.
 *
 * Of a row x of logits, in this order:
 *
 *   1  changes    each entry of the request's list changes the logit of one token: its bias is added; a token that ends
 *                 the stream becomes -inf while position < hold_until; repetition, frequency and presence penalties.
 *                 Then every token that the request's mask does not allow becomes -inf, whatever its entry says
 *   2  greedy     inv_t == 0 or top_k == 1: the largest logit
 *   3  weights    w[i] = exp((x[i] - max) * inv_t) in float32, and mass[i] = w[i] * 2^40, rounded to a whole number.
 *                 Sums of masses are exact, so their order has no influence
 *   4  the cut    the tokens in order of descending logit, of equal ones the smaller id first. top_k keeps the first k.
 *                 top_p keeps the shortest beginning of the order whose mass is at least top_p of what top_k has kept.
 *                 Then min_p removes every token with w[i] < min_p. The best token always stays
 *   5  the draw   r: 64 random bits of (seed, position). Of the kept tokens in ascending order of id, the first one with
 *                 which the sum of masses exceeds floor(r * total / 2^64)
 *
 * Nothing is sorted: a cut is the logit and the id of the last token that is kept. Log-probabilities are natural logarithms
 * of the probabilities that the logits have before step 1, at temperature 1; the n best are in the order of step 4, without
 * tokens of -inf.
 *
 * Tokens that the draw reaches with a mass of 0 (less than 2^-41 of the best one's probability) are never drawn.
 */
#ifndef SL_KERNELS_SAMPLE_H
#define SL_KERNELS_SAMPLE_H

#include "base/status.h"

enum { SL_LOGPROBS_MAX = 20 };

/* Sums of masses of a row have 64 bits. */
#define SL_SAMPLE_VOCAB_MAX (1 << 20)

/* What an entry says of its token, in the low bits of `seen`; the bits above count the token in the output. */
enum {
    SL_SAMPLE_STOPS = 1u, /* ends the stream */
    SL_SAMPLE_KNOWN = 2u, /* is in the prompt or in the output */
    SL_SAMPLE_ONCE = 4u,  /* one occurrence in the output */
};

typedef struct sl_sample_entry {
    int32_t id; /* one outside the vocabulary has no effect */
    float bias;
    uint32_t seen;
    float logit; /* private to the op: the logit before its change */
} sl_sample_entry;

/* The list of a request in device memory: n entries, each token once, in any order. With sl_sample_row.track the op adds
 * the token that it has chosen. */
typedef struct sl_sample_list {
    int32_t n, room;
    int32_t unused[2];
    sl_sample_entry entry[]; /* [room] */
} sl_sample_list;

/* One request. */
typedef struct sl_sample_row {
    uint64_t seed;
    uint64_t top_p;       /* times 2^32; at least 2^32: all */
    sl_sample_list *list; /* NULL: no changes */
    /* Device memory, (vocab + 31) / 32 words: bit i % 32 of word i / 32 says that token i is allowed. NULL: all are */
    const uint32_t *mask;
    int32_t row;        /* of the logits; no two requests have the same one */
    int32_t position;   /* the index that the token will have in prompt + output */
    int32_t hold_until; /* no token ends the stream at a position below this */
    int32_t top_k;      /* 0: all */
    int32_t n_logprobs; /* -1 none, 0 only the chosen token's, n: the n best as well (<= SL_LOGPROBS_MAX) */
    float inv_t;        /* 1 / temperature; 0: greedy */
    float min_p, frequency, presence;
    float repetition; /* > 0; 1: off */
    bool track;
} sl_sample_row;

/* Why a request has no token. */
typedef enum {
    SL_SAMPLE_FINE,
    SL_SAMPLE_NOT_FINITE,   /* a logit is NaN or +inf */
    SL_SAMPLE_ALL_INFINITE, /* every logit is -inf */
    SL_SAMPLE_NONE_LEFT,    /* step 1 leaves no token, or an infinite one */
    SL_SAMPLE_LIST_FULL,    /* the list has no room for the chosen token */
    SL_SAMPLE_NO_MASK, /* no mask could be made: set by who asks the op, which never runs for this request */
} sl_sample_fault;

typedef struct sl_logprob {
    int32_t id;
    float logprob;
} sl_logprob;

typedef struct sl_sampled {
    int32_t id;     /* -1 with a fault */
    float logprob;  /* of id; 0 when n_logprobs < 0 */
    uint32_t fault; /* sl_sample_fault; with one, the other fields but id are 0 */
    uint32_t n_top;
    sl_logprob top[SL_LOGPROBS_MAX]; /* best first; 0 from n_top on */
} sl_sampled;

typedef struct sl_sample_params {
    float *logits; /* [n_logits][ld]; rows with a list are changed meanwhile and get their old bits back */
    const sl_sample_row *rows; /* [n] */
    sl_sampled *out;           /* [n] */
    int32_t *next; /* [n]: the token of out as the id of a next step, 0 with a fault; NULL: not wanted */
    int32_t n, n_logits, vocab, ld;
} sl_sample_params;

/* Bytes of a list with room for this number of entries. */
static inline size_t sl_sample_list_bytes(int32_t room)
{
    return sizeof(sl_sample_list) + (size_t)room * sizeof(sl_sample_entry);
}

/* Words of a mask. */
static inline size_t sl_sample_mask_words(int32_t vocab)
{
    return ((size_t)vocab + 31) / 32;
}

/* The fault as a status; `position` is named in the message. */
sl_status sl_sample_fault_status(uint32_t fault, int32_t position, sl_err *err);

/* The CPU's implementation of one request, for hosts that have a row of logits: r->row is not used. scratch has
 * sl_sample_scratch_bytes() and any contents. */
size_t sl_sample_scratch_bytes(int32_t vocab);
void sl_sample_on_host(const sl_sample_row *r, float *logits, int32_t vocab, void *scratch, sl_sampled *out);

#endif
