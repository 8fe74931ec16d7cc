/*
 * What the live page shows of a worker beyond its reports: figures from its page of metrics (/metrics), of which only the
 * rows that the page needs are read. The text comes from another process: any bytes are accepted, what is not understood
 * is left out. Pure, any thread.
 */
#ifndef SL_ROUTER_PAGE_FIGURES_H
#define SL_ROUTER_PAGE_FIGURES_H

#include <stddef.h>

enum { SL_FIGURES_LAYERS = 512, SL_FIGURES_TIERS = 4 };

/* Cumulative counts and seconds, and values of this moment; finite and not negative. */
typedef struct sl_figures {
    double step_seconds, steps, batch_sum, batches, idle_seconds;
    double hidden_seconds, exposed_seconds, swap_bytes;
    double prefill_tokens, reused_tokens, chunk_seconds, chunks, shipped_bytes, ship_exposed_seconds;
    double device_used, device_total;
    double pages_total, pages_free, pages_cached, pages_active, pages_landing;
    double damaged_pages;
    double tier_pages[SL_FIGURES_TIERS], tier_hits[SL_FIGURES_TIERS], tier_state[SL_FIGURES_TIERS];
    int n_layers; /* layers of which rows were selected: 0..n_layers - 1 */
    double hits[SL_FIGURES_LAYERS], misses[SL_FIGURES_LAYERS];
} sl_figures;

/* Names of the tiers, in the order of the arrays. */
extern const char *const sl_figures_tiers[SL_FIGURES_TIERS];

/* text: n bytes of an exposition, not necessarily ended by a zero. Replaces *out. */
void sl_figures_read(const char *text, size_t n, sl_figures *out);

#endif
