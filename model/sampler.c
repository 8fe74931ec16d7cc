/*
 * Sampling of one token on the host: the request's parameters and history become a row of kernels/sample.h, whose
 * implementation chooses. An engine gives the same row to its device (engine/sampling.c).
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/sample_math.h"
#include "model/sampler.h"

/* Below this temperature the weight of every token but the best one is 0 in float32. */
#define GREEDY_BELOW 1e-4f

struct sl_sampler {
    int32_t vocab;
    int32_t *eos;
    size_t n_eos;
    float *logits; /* the caller's row, where it has to be changed */
    void *scratch;
    sl_sample_list *list;
    int32_t *place; /* by token: its entry of the list, where that entry has its id */
};

sl_status sl_sampler_create(int32_t vocab, const int32_t *eos_ids, size_t n_eos, sl_sampler **out)
{
    if (vocab <= 0)
        return SL_ERR_INVALID;
    size_t n = (size_t)vocab;
    sl_sampler *sp = calloc(1, sizeof *sp);
    if (!sp)
        return SL_ERR_NO_MEMORY;
    sp->vocab = vocab;
    sp->n_eos = n_eos;
    sp->eos = malloc((n_eos + 1) * sizeof *sp->eos);
    sp->logits = malloc(n * sizeof *sp->logits);
    sp->scratch = malloc(sl_sample_scratch_bytes(vocab));
    sp->list = malloc(sl_sample_list_bytes(vocab));
    sp->place = calloc(n, sizeof *sp->place);
    if (!sp->eos || !sp->logits || !sp->scratch || !sp->list || !sp->place) {
        sl_sampler_destroy(sp);
        return SL_ERR_NO_MEMORY;
    }
    sp->list->room = vocab;
    if (n_eos)
        memcpy(sp->eos, eos_ids, n_eos * sizeof *eos_ids);
    *out = sp;
    return SL_OK;
}

void sl_sampler_destroy(sl_sampler *sp)
{
    if (!sp)
        return;
    free(sp->eos);
    free(sp->logits);
    free(sp->scratch);
    free(sp->list);
    free(sp->place);
    free(sp);
}

bool sl_sampling_is_stop(const sl_sampling *s, const sl_sampler *sp, int32_t id)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    for (size_t i = 0; !s->ignore_eos && i < sp->n_eos; i++) {
        if (sp->eos[i] == id)
            return true;
    }
    return false;
}

/* ---- the list of changes ---- */

/* The entry of a token, made if there is none; NULL: not in the vocabulary. */
static sl_sample_entry *entry_of(sl_sampler *sp, int32_t id)
{
    sl_sample_list *l = sp->list;
    if (id < 0 || id >= sp->vocab)
        return NULL;
    int32_t at = sp->place[id];
    if (at >= l->n || l->entry[at].id != id) {
        at = sp->place[id] = l->n++;
        l->entry[at] = (sl_sample_entry){.id = id};
    }
    return &l->entry[at];
}

static void mark(sl_sampler *sp, const int32_t *ids, size_t n, uint32_t seen, uint32_t count)
{
    for (size_t i = 0; i < n; i++) {
        sl_sample_entry *e = entry_of(sp, ids[i]);
        if (e)
            e->seen = (e->seen | seen) + count;
    }
}

bool sl_sampling_penalises(const sl_sampling *s)
{
    return s->frequency_penalty != 0.0f || s->presence_penalty != 0.0f || s->repetition_penalty != 1.0f;
}

const sl_sample_list *sl_sampler_list(sl_sampler *sp, const sl_sampling *s, const sl_history *h)
{
    sp->list->n = 0;
    for (uint32_t i = 0; i < s->n_bias; i++) {
        sl_sample_entry *e = entry_of(sp, s->bias[i].id);
        if (e)
            e->bias = s->bias[i].bias;
    }
    if (h->n_output < (size_t)s->min_tokens) {
        mark(sp, s->stop_ids, s->n_stop_ids, SL_SAMPLE_STOPS, 0);
        if (!s->ignore_eos)
            mark(sp, sp->eos, sp->n_eos, SL_SAMPLE_STOPS, 0);
    }
    if (sl_sampling_penalises(s)) {
        mark(sp, h->output, h->n_output, SL_SAMPLE_KNOWN, SL_SAMPLE_ONCE);
        if (s->repetition_penalty != 1.0f)
            mark(sp, h->prompt, h->n_prompt, SL_SAMPLE_KNOWN, 0);
    }
    return sp->list;
}

/* ---- the row ---- */

sl_sample_row sl_sampling_row(const sl_sampling *s, uint64_t position, size_t n_output)
{
    bool greedy = s->temperature < GREEDY_BELOW;
    int64_t left = n_output < (size_t)s->min_tokens ? s->min_tokens - (int64_t)n_output : 0;
    int64_t hold = (int64_t)position + left;
    return (sl_sample_row){.seed = s->seed,
                           .top_p = s->top_p < 1.0f ? (uint64_t)((double)s->top_p * (double)SL_SAMPLE_P_ONE)
                                                    : SL_SAMPLE_P_ONE,
                           .position = (int32_t)position,
                           .hold_until = hold < INT32_MAX ? (int32_t)hold : INT32_MAX,
                           .top_k = s->top_k,
                           .n_logprobs = s->n_logprobs,
                           .inv_t = greedy ? 0.0f : 1.0f / s->temperature,
                           .min_p = s->min_p,
                           .frequency = s->frequency_penalty,
                           .presence = s->presence_penalty,
                           .repetition = s->repetition_penalty,
                           .track = sl_sampling_penalises(s)};
}

void sl_sampler_sample_or_fault(sl_sampler *sp, const float *logits, const sl_sampling *s,
                                const sl_history *h, uint64_t position, const sl_token_mask *mask,
                                sl_sampled *out)
{
    sl_sample_row row = sl_sampling_row(s, position, h->n_output);
    if (mask)
        row.mask = mask->bits;
    if (mask && mask->ends)
        row.hold_until = 0;
    row.track = false;                     /* the list is made anew for each token */
    float *x = (float *)(uintptr_t)logits; /* changed only with a list, and then it is a copy */
    if (sl_sampler_list(sp, s, h)->n > 0) {
        row.list = sp->list;
        x = memcpy(sp->logits, logits, (size_t)sp->vocab * sizeof *logits);
    }
    sl_sample_on_host(&row, x, sp->vocab, sp->scratch, out);
}

sl_status sl_sample(sl_sampler *sp, const float *logits, const sl_sampling *s, const sl_history *h,
                    uint64_t position, sl_sampled *out, sl_err *err)
{
    sl_sampled got;
    sl_sampler_sample_or_fault(sp, logits, s, h, position, NULL, &got);
    SL_TRY(sl_sample_fault_status(got.fault, (int32_t)position, err));
    *out = got;
    return SL_OK;
}

/* ---- generator ---- */

void sl_philox4x32(uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi, uint32_t out[4])
{
    sl_sample_philox(key, ctr_lo, ctr_hi, out);
}

double sl_sampler_uniform(uint64_t seed, uint64_t position)
{
    return (double)(sl_sample_random(seed, position) >> 11) * 0x1p-53;
}
