/*
 * The simplest owner of a cache: all rows are resident in pools on the device, and the ops are called directly. The
 * model is tested with it, and it is a reference for real owners. It has no hot buffers, no host arena, and no pages
 * that sequences share.
 *
 * Works on any backend. One instance serves one model; sequences are numbered 0..max_seqs-1 and own fixed pages, which
 * are scattered on purpose. Threads: one.
 */
#ifndef SL_TEST_ATTEND_RESIDENT_H
#define SL_TEST_ATTEND_RESIDENT_H

#include "model/model.h"

typedef struct sl_resident sl_resident;

/* Tokens of one sequence in one step, which follow those that it has already. */
typedef struct sl_resident_chunk {
    int32_t seq;
    const int32_t *ids; /* host */
    int32_t n;
} sl_resident_chunk;

sl_status sl_resident_create(sl_backend *be, sl_model *m, int32_t max_seqs, int32_t max_len,
                             sl_resident **out, sl_err *err);
void sl_resident_destroy(sl_resident *r);
/* Removes all tokens of a sequence. */
void sl_resident_reset(sl_resident *r, int32_t seq);
int32_t sl_resident_length(const sl_resident *r, int32_t seq);

/*
 * One forward pass over all chunks. logits (host): with all = false [n_chunks][vocab], the last position of
 * each chunk; with all = true [T][vocab]. NULL: none are computed.
 */
sl_status sl_resident_step(sl_resident *r, const sl_resident_chunk *chunks, int32_t n_chunks, bool all,
                           float *logits, sl_err *err);
/* The tokens that `layer` selected for token t of the last step: index_topk entries, ascending, -1 padded. Host
 * memory. */
const int32_t *sl_resident_selected(sl_resident *r, int32_t layer, int32_t t);

/* The attend hook; ctx is the sl_resident. */
sl_status sl_resident_attend(void *ctx, const sl_attn_call *call, sl_err *err);

#endif
