/*
 * The specification of every compute op restated as scalar loops over ordinary memory: sums in double, values
 * rounded only where kernels/params.h says so, conversions by search and arithmetic instead of bit tricks.
 * It shares only the parameter structs and sizes with the code in kernels/. It is simple on purpose; where that
 * would take minutes, eight independent sums are computed together (ref_lanes), each in its own order. Parameters
 * must be valid.
 */
#ifndef SL_TESTS_KERNELS_REF_H
#define SL_TESTS_KERNELS_REF_H

#include "kernels/backend.h"

void ref_run(sl_op op, const void *params);

void ref_sample(const void *params); /* ref_sample.c */

/* Conversions, for the tests of formats. */
double ref_e4m3_value(uint8_t code);
uint8_t ref_e4m3(double v);
double ref_bf16_value(uint16_t code);
uint16_t ref_bf16(double v);
/* 2^ceil(log2(t)). */
double ref_pow2_ceil(double t);

/* ref_cache.c: the ops on the cache; ref_residency.c: ref_resolve, ref_gather, ref_hot_reset. */
void ref_kv_append(const void *params);
void ref_index_append(const void *params);
void ref_index_query(const void *params);
void ref_index_scores(const void *params);
void ref_topk(const void *params);
void ref_resolve(const void *params);
void ref_gather(const void *params);
void ref_hot_reset(const void *params);
void ref_sparse_attn(const void *params);

/* ref_streams.c: parallel streams, gates, and the activation of an MLP. */
void ref_streams_out(const void *params);
void ref_streams_add(const void *params);
void ref_sigmoid_mul(const void *params);
void ref_join(const void *params);
void ref_silu_mul(const void *params);
/* ref_state.c */
void ref_conv(const void *params);
void ref_delta(const void *params);
void ref_gated_norm(const void *params);
void ref_pool_append(const void *params);
void ref_pool_scores(const void *params);
void ref_open_units(const void *params);
void ref_ngram(const void *params);
void ref_ngram_mix(const void *params);
void ref_streams_mix(const void *params);
void ref_unary(const void *params);
double ref_glu(double g, double u, const sl_glu *v);

/* Of n scores: minus their places, by the order of SL_GROUP_UNION, counted one by one. In ref_labels.c. */
void ref_places(const double *x, int64_t n, double *out);

/* ref_gqa.c: the ops of kernels/gqa.h. */
void ref_gqa_query(const void *params);
void ref_gqa_append(const void *params);
void ref_gqa_attn(const void *params);
/* and those of kernels/bounds.h. */
void ref_bounds_append(const void *params);
void ref_bounds_scores(const void *params);
/* and those of kernels/labels.h, in ref_labels.c. */
void ref_labels_append(const void *params);
void ref_labels_scores(const void *params);
/* and those of kernels/blocks.h, in ref_blocks.c. */
void ref_block_scores(const void *params);
void ref_block_lists(const void *params);
/* ref_entries.c: the ops of kernels/entries.h. */
void ref_head_rotate(const void *params);
void ref_entries_append(const void *params);
void ref_entry_scores(const void *params);
void ref_ring_attn(const void *params);
void ref_ring_store(const void *params);
/* ref_state.c: the op of kernels/turns.h. */
void ref_state_keep(const void *params);
/* and those of kernels/window.h. */
void ref_prompt_scores(const void *params);
void ref_window_votes(const void *params);
void ref_kept_lists(const void *params);
/* ref_clusters.c: the ops of kernels/clusters.h and kernels/codes.h. */
void ref_kmeans(const void *params);
void ref_cluster_lists(const void *params);
void ref_codes(const void *params);
void ref_code_scores(const void *params);
/* and those of kernels/retained.h, in ref_retained.c, with one of kernels/window.h. */
void ref_kept_store(const void *params);
void ref_retained_append(const void *params);
void ref_retained_scores(const void *params);
void ref_retained_lists(const void *params);

/* The page of a position of a sequence, in one of the page tables of s. */
int32_t ref_page_of(const int32_t *table, const sl_seq_tables *s, int64_t seq, int64_t pos);
/* Writes the encoded row of a position to the device (pool page or tail) and, if host has a base, to the host. Called
 * in the order of tokens: where two positions share a row of the tail, the later token's row remains. */
void ref_store_row(const sl_seq_tables *s, const sl_row_view *rows, const sl_host_plane *host, int64_t seq,
                   int64_t pos, const uint8_t *row);

typedef double ref_lanes __attribute__((vector_size(64)));
/* n of them, zero, to be freed. */
ref_lanes *ref_lanes_alloc(size_t n);

/* Element i of an array of dtype; v stored as f32 or bf16. */
double ref_at(const void *base, sl_dtype dtype, int64_t i);
void ref_put(void *base, sl_dtype dtype, int64_t i, double v);
/* v as a float32, rounded to bf16 when act is. */
double ref_act(double v, sl_dtype act);
/* RoPE on doubles holding float32 values; every product and sum rounded to float32, results rounded to act.
 */
void ref_rope(double *x, int32_t n, const float *cos_sin, int64_t pos, bool interleaved, sl_dtype act);

#endif
