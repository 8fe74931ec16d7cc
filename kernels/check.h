/*
 * Parameter checks: the functions in which kernels/check*.c state what every op requires. Internal to kernels/.
 *
 * A check records only the first failure; sl_chk_need() and sl_chk_can() ignore everything after it. A function
 * that checks an op is therefore a plain list of requirements. Only the params struct and the host structs that it
 * points to are dereferenced.
 */
#ifndef SL_KERNELS_CHECK_H
#define SL_KERNELS_CHECK_H

#include "kernels/ops.h"
#include "kernels/params.h"

typedef struct sl_chk {
    const char *op;
    sl_err *err;
    sl_status st;  /* first failure */
    bool pointers; /* also check data pointers */
    size_t align;  /* of the first row where rows are multiples of SL_ROW_ALIGN; 1: the backend needs none */
} sl_chk;

/* SL_ERR_INVALID "op: field why" unless ok. */
void sl_chk_need(sl_chk *c, bool ok, const char *field, const char *why);
/* The same as SL_ERR_UNSUPPORTED. */
void sl_chk_can(sl_chk *c, bool ok, const char *field, const char *why);
/* Not NULL and aligned to align bytes. */
void sl_chk_ptr(sl_chk *c, const char *field, const void *ptr, size_t align);
/* The same of rows of `bytes` bytes, of elements of `size`: where rows are multiples of SL_ROW_ALIGN, the first one is aligned to
 * it, if the backend asks for that. Backends choose a path by shape, never by where memory lies; this is what makes that possible. */
void sl_chk_rows(sl_chk *c, const char *field, const void *ptr, size_t size, int64_t bytes);
/* In this order: value >= 1; a stride, value >= min; a count, value >= 0. */
void sl_chk_pos(sl_chk *c, const char *field, int64_t value);
void sl_chk_ld(sl_chk *c, const char *field, int64_t value, int64_t min);
void sl_chk_count(sl_chk *c, const char *field, int64_t value);
/* a * b * 4 bytes is a possible array size. */
void sl_chk_size(sl_chk *c, const char *field, int64_t a, int64_t b);
/* SL_F32 or SL_BF16. */
void sl_chk_act(sl_chk *c, const char *field, sl_dtype d);
/* Values of a type, that is their pointer. */
void sl_chk_values(sl_chk *c, const char *field, const void *ptr, sl_dtype d);
/* SL_F32, SL_BF16 or SL_F16: a norm or a table. */
void sl_chk_float(sl_chk *c, const char *field, sl_dtype d);
/* A linear weight of out x in (out < 0: any). */
void sl_chk_weight(sl_chk *c, const char *field, const sl_weight *w, int64_t out, int64_t in);
/* The weights of a layer's experts, all with the dtypes of the first: otherwise a rank of a group, which has some of them,
 * could take another path than one process. */
void sl_chk_experts(sl_chk *c, const sl_weight *gate, const sl_weight *up, const sl_weight *down,
                    int32_t experts, int32_t inter, int32_t hidden);
/* Even, 0 or more, at most dim. */
void sl_chk_rope(sl_chk *c, int32_t rope, int32_t dim, const float *cos_sin);
void sl_chk_eps(sl_chk *c, float eps);
void sl_chk_glu(sl_chk *c, const sl_glu *glu);
void sl_chk_seqs(sl_chk *c, const sl_seq_tables *s);
/* Tables as above, and tokens first .. first + count - 1 of the step. */
void sl_chk_slice(sl_chk *c, const sl_seq_tables *s, int32_t first, int32_t count);
/* The tables that a step of tokens reads, next to those of its tokens. */
enum { SL_CHK_INDEX_PAGES = 1, SL_CHK_HOST_PAGES = 2, SL_CHK_ROW_PAGES = 4, SL_CHK_HOT_SLOT = 8 };
void sl_chk_tables(sl_chk *c, const sl_seq_tables *s, unsigned which);
/* Query heads that share KV heads. */
void sl_chk_group(sl_chk *c, int32_t heads, int32_t kv_heads);
void sl_chk_host(sl_chk *c, const sl_host_plane *h, int64_t row_bytes);
void sl_chk_hot(sl_chk *c, const sl_hot_state *h, sl_evict_policy policy);
/* How a view divides tokens and heads into rows. */
void sl_chk_row_blocks(sl_chk *c, const sl_row_view *r);

/* kernels/check_gqa.c: what several ops of KV heads require. */
/* Metadata of a step's tokens that are made from their keys, and written to a page of the device and of the host. */
typedef struct sl_chk_keys {
    const sl_seq_tables *seqs;
    const sl_row_view *rows;
    const sl_host_plane *host_rows, *host;
    int64_t host_bytes; /* of one entry of the host plane */
    int32_t heads, dim;
    sl_row_format format;
    bool device_rows; /* the op needs them; otherwise host_rows are enough */
} sl_chk_keys;

/* Scores of a step's tokens, by lists of query heads. */
typedef struct sl_chk_scores {
    const sl_seq_tables *seqs;
    const void *q, *scores;
    int32_t heads, kv_heads, lists, ld_scores, token_first, token_count;
    bool reduce_known, softmax;
    float scale;
} sl_chk_scores;

void sl_chk_key_heads(sl_chk *c, int32_t kv_heads, int32_t dim);
void sl_chk_key_format(sl_chk *c, sl_row_format format, const sl_row_view *rows);
/* How rows are divided, and their size. */
void sl_chk_key_rows(sl_chk *c, const sl_row_view *r, sl_row_format f, int32_t kv_heads, int32_t dim);
void sl_chk_key_source(sl_chk *c, const sl_chk_keys *k);
void sl_chk_list_scores(sl_chk *c, const sl_chk_scores *s);

/* The keys of a request can be read from there. kernels/clusters.c */
struct sl_key_source;
void sl_chk_request_keys(sl_chk *c, const struct sl_key_source *s);

/* What each op requires (kernels/ops.h), in kernels/check*.c or in the file of its family. */
#define X(op, name, items, field, text) void sl_chk_##name(sl_chk *c, const void *params);
SL_OPS(X)
#undef X

#endif
