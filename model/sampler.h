/*
 * Sampler: chooses one token from one row of logits, with the parameters of a request. Pure and deterministic.
 *
 * The random number of a token depends on (seed, position) alone, where position is the token's place in the whole
 * sequence (prompt + output): a stream that is resumed on another worker draws the same numbers. What is chosen is
 * specified in kernels/sample.h, for this sampler and for devices: the same token and log-probabilities, bit by bit. The
 * steps: logit_bias, the mask of min_tokens and the penalties; temperature, where 0 takes the largest logit; top_k, then
 * top_p of what top_k has left, then min_p; the draw, in ascending order of ids. Of equal logits the one with the smaller
 * id comes first.
 *
 * Logprobs are natural logarithms of the probabilities that the unchanged logits of the model have.
 *
 * Ownership: sl_sampling owns its lists (sl_sampling_free). A sampler is scratch memory for one thread; calls allocate
 * nothing. The sampler does not end a stream: sl_sampling_is_stop() tells whether a token ends it, and model/stop.h
 * looks for stop strings.
 */
#ifndef SL_MODEL_SAMPLER_H
#define SL_MODEL_SAMPLER_H

#include "base/status.h"
#include "base/wire.h"
#include "kernels/sample.h"
#include "model/grammar.h"

enum { SL_BIAS_MAX = 1024, SL_STOP_IDS_MAX = 64 };

/* A smaller repetition penalty would make a logit infinite when it is divided by it. */
#define SL_REPETITION_MIN 0.01f

typedef struct sl_logit_bias {
    int32_t id;
    float bias; /* added to the logit, -100..100 */
} sl_logit_bias;

typedef struct sl_sampling {
    float temperature;        /* 0..100; 0 (or below 1e-4) = greedy */
    int32_t top_k;            /* 0 = all */
    float top_p;              /* (0, 1]; 1 = all */
    float min_p;              /* [0, 1]; 0 = off */
    float frequency_penalty;  /* [-2, 2], over output tokens */
    float presence_penalty;   /* [-2, 2], over output tokens */
    float repetition_penalty; /* [SL_REPETITION_MIN, 10]; 1 = off; over prompt and output tokens */
    uint64_t seed;            /* the router draws one when the client gives none */
    int32_t n_logprobs; /* -1 none, 0 only the chosen token's, n: the n best as well (<= SL_LOGPROBS_MAX) */
    /* 0 none; 1 + n: of each token of the prompt but the first, and the n best there */
    int32_t prompt_logprobs;
    int32_t min_tokens; /* eos and stop ids are impossible before this many output tokens */
    /* output tokens, >= 1; SL_SAMPLING_MAX_TOKENS: no limit. The caller ends the stream */
    int32_t max_tokens;
    bool ignore_eos;     /* eos ids are ordinary tokens */
    sl_logit_bias *bias; /* owned, n_bias entries, each id once */
    uint32_t n_bias;
    int32_t *stop_ids; /* owned, n_stop_ids */
    uint32_t n_stop_ids;
    sl_grammar_kind constraint; /* SL_GRAMMAR_NONE: none */
    char *grammar;              /* owned: the text of the constraint, n_grammar bytes and a NUL; NULL: none */
    uint32_t n_grammar;
    /* 0: the constraint holds from the first token; 1 + id: after the first token id */
    int32_t constraint_after;
} sl_sampling;

#define SL_SAMPLING_MAX_TOKENS INT32_MAX

/* temperature 1, everything else off, max_tokens unlimited, no logprobs, seed 0. */
void sl_sampling_default(sl_sampling *s);
void sl_sampling_free(sl_sampling *s); /* frees the lists and leaves the defaults */
/* Deep copy; out is overwritten (not freed first) and only on success. */
sl_status sl_sampling_copy(const sl_sampling *s, sl_sampling *out);
/* Checks every bound against a vocabulary of `vocab` ids; err names the field. */
sl_status sl_sampling_validate(const sl_sampling *s, int32_t vocab, sl_err *err);
/* Replaces the lists by copies. */
sl_status sl_sampling_set_bias(sl_sampling *s, const sl_logit_bias *bias, uint32_t n);
sl_status sl_sampling_set_stop_ids(sl_sampling *s, const int32_t *ids, uint32_t n);
/* Replaces the constraint; the text is copied. */
sl_status sl_sampling_set_constraint(sl_sampling *s, sl_grammar_kind kind, const char *text, size_t n);

/* Wire form, whose first byte is a version. Read writes *out only on success and checks the lengths of lists; other
 * bounds are checked by sl_sampling_validate(). Errors: SL_ERR_CORRUPT (also sets r->bad), SL_ERR_NO_MEMORY. */
void sl_sampling_write(sl_wr *w, const sl_sampling *s);
sl_status sl_sampling_read(sl_rd *r, sl_sampling *out);

/* The tokens of a request so far; borrowed. After a recovery the output still begins where the client's prompt ended,
 * although another worker has computed a part of the output. */
typedef struct sl_history {
    const int32_t *prompt;
    size_t n_prompt;
    const int32_t *output;
    size_t n_output;
} sl_history;

/* Which tokens a constraint (model/grammar.h) allows next. */
typedef struct sl_token_mask {
    const uint32_t *bits; /* [sl_sample_mask_words(vocab)], as sl_sample_row.mask; NULL: it cannot say */
    bool ends;            /* only tokens that end the answer, which min_tokens then does not hold back */
} sl_token_mask;

typedef struct sl_sampler sl_sampler;

/* Scratch for a vocabulary of `vocab` logits; eos_ids (copied) are the model's end tokens. */
sl_status sl_sampler_create(int32_t vocab, const int32_t *eos_ids, size_t n_eos, sl_sampler **out);
void sl_sampler_destroy(sl_sampler *sp);

/*
 * Chooses the token at `position`, the index (from 0) that it will have in prompt + output, from logits[vocab], which
 * are not changed. SL_ERR_CORRUPT: a logit is NaN or +inf, or all are -inf.
 */
sl_status sl_sample(sl_sampler *sp, const float *logits, const sl_sampling *s, const sl_history *h,
                    uint64_t position, sl_sampled *out, sl_err *err);

/* The same under a constraint (mask NULL: none), with an error as a fault in *out (kernels/sample.h). */
void sl_sampler_sample_or_fault(sl_sampler *sp, const float *logits, const sl_sampling *s,
                                const sl_history *h, uint64_t position, const sl_token_mask *mask,
                                sl_sampled *out);

/*
 * The parts of sl_sample(), for those who choose on a device. The row has no list; it counts the chosen token if the
 * request has penalties (track). The list has the changes to the logits of the next token and is valid until the sampler is
 * used again; it is empty when there are none.
 */
sl_sample_row sl_sampling_row(const sl_sampling *s, uint64_t position, size_t n_output);
const sl_sample_list *sl_sampler_list(sl_sampler *sp, const sl_sampling *s, const sl_history *h);
/* Whether the output so far changes the logits of the next token. */
bool sl_sampling_penalises(const sl_sampling *s);

/* True when id ends the stream: a stop id, or an eos id unless ignore_eos. */
bool sl_sampling_is_stop(const sl_sampling *s, const sl_sampler *sp, int32_t id);

/* Philox4x32-10: four random words from a 64-bit key and a 128-bit counter. Public for tests and for other draws. */
void sl_philox4x32(uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t out[4]);
/* The uniform number in [0,1) (53 bits) of a token. */
double sl_sampler_uniform(uint64_t seed, uint64_t position);

#endif
