/*
 * Whether an algorithm of a library sums k in one chain: no split of k, no reduction across blocks. Otherwise the bits of a
 * token could depend on the number of other tokens. The library's calls are given as functions, so that the decision can be
 * tested without it.
 */
#ifndef SL_KERNELS_CHAIN_H
#define SL_KERNELS_CHAIN_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sl_chain_calls {
    /* False: the library refused to say, or to set. scheme 0: no reduction. */
    bool (*get)(const void *algo, int32_t *split, uint32_t *scheme);
    bool (*set)(void *algo, int32_t split, uint32_t scheme);
    /* The kind of an algorithm's kernel; algorithms of one kind add up k in the same order. */
    bool (*kind)(const void *algo, uint32_t *kind);
} sl_chain_calls;

/* The algorithm is configured to one chain where it allows that, and what it then says is read back: one that keeps its
 * split is refused, and so is one that does not say. */
bool sl_chain_make(const sl_chain_calls *calls, void *algo);
/* Both say their kind, and it is the same. */
bool sl_chain_alike(const sl_chain_calls *calls, const void *a, const void *b);

#ifdef __cplusplus
}
#endif
#endif
