/* The runner over a real engine: one function for each entry of the table. */
#include "worker/runner.h"

#include <stdlib.h>

static sl_status e_open(void *impl, sl_residency r, const int32_t *pages, int32_t n_pages, int32_t n_cached,
                        void **seq, sl_err *err)
{
    sl_seq *s;
    SL_TRY(sl_engine_seq_open(impl, r, pages, n_pages, n_cached, NULL, &s, err));
    *seq = s;
    return SL_OK;
}

static sl_status e_prompt(void *impl, void *seq, int32_t tokens, sl_err *err)
{
    return sl_engine_seq_prompt(impl, seq, tokens, err);
}

static sl_status e_add_pages(void *impl, void *seq, const int32_t *pages, int32_t n_pages, sl_err *err)
{
    return sl_engine_seq_add_pages(impl, seq, pages, n_pages, err);
}

static sl_status e_load(void *impl, void *seq, int32_t n_cached, sl_err *err)
{
    return sl_engine_seq_load(impl, seq, n_cached, err);
}

static sl_status e_spill(void *impl, void *seq, sl_err *err)
{
    return sl_engine_seq_spill(impl, seq, err);
}

static int64_t e_row_room(const void *impl)
{
    return sl_engine_row_room(impl);
}

static sl_status e_save(void *impl, const void *seq, sl_key key, const int32_t *pages, sl_err *err)
{
    return sl_engine_seq_save(impl, seq, key, pages, err);
}

static sl_status e_restore(void *impl, void *seq, sl_key key, const int32_t *pages, sl_err *err)
{
    return sl_engine_seq_restore(impl, seq, key, pages, err);
}

static bool e_keeps(const void *impl, const void *seq, int32_t tokens)
{
    return sl_engine_seq_keeps(impl, seq, tokens);
}

static void e_close(void *impl, void *seq)
{
    sl_engine_seq_close(impl, seq);
}

static int32_t e_len(const void *seq)
{
    return sl_engine_seq_len(seq);
}

static void e_seq_stats(const void *impl, const void *seq, sl_layer_stats *out)
{
    sl_engine_seq_stats(impl, seq, out);
}

static sl_status e_step(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err)
{
    return sl_engine_step(impl, items, n, hooks, err);
}

static int32_t e_damaged(void *impl, void (*found)(void *ctx, int32_t page), void *ctx)
{
    return sl_engine_damaged(impl, found, ctx);
}

static sl_status e_submit(void *impl, sl_step_item *items, int32_t n, sl_err *err)
{
    return sl_engine_submit(impl, items, n, NULL, err);
}

static sl_status e_choose(void *impl, sl_err *err)
{
    return sl_engine_choose(impl, err);
}

static sl_status e_collect(void *impl, sl_err *err)
{
    return sl_engine_collect(impl, err);
}

static bool e_can_follow(const void *impl, const sl_step_item *it)
{
    return sl_engine_can_follow(impl, it);
}

static uint64_t e_step_ns(const void *impl)
{
    return sl_engine_step_ns(impl);
}

static uint64_t e_ended_ns(const void *impl)
{
    return sl_engine_ended_ns(impl);
}

static sl_status e_draft(void *impl, sl_draft_item *items, int32_t n, sl_err *err)
{
    return sl_engine_draft(impl, items, n, err);
}

static sl_status e_truncate(void *impl, void *seq, int32_t len, sl_err *err)
{
    return sl_engine_seq_truncate(impl, seq, len, err);
}

static bool e_hidden(void *impl, const void *seq, void *out)
{
    return sl_engine_seq_hidden(impl, seq, out);
}

static void e_set_hidden(void *impl, void *seq, const void *bytes)
{
    sl_engine_seq_set_hidden(impl, seq, bytes);
}

static bool e_wants_rest(const void *impl)
{
    return sl_engine_wants_rest(impl);
}

static void e_rest(void *impl)
{
    sl_engine_rest(impl);
}

/* SLUICE_OVERLAP=0 or 1 is for comparisons and tests: the results are the same. */
static bool overlaps(const sl_engine *e)
{
    const char *asked = getenv("SLUICE_OVERLAP");
    return asked && *asked ? *asked != '0' : sl_engine_overlaps(e);
}

static void e_stats(const void *impl, sl_engine_stats *out)
{
    sl_engine_stats_peek(impl, out);
}

static void e_layer_stats(const void *impl, sl_layer_stats *out)
{
    sl_engine_layer_stats_peek(impl, out);
}

static void e_device_layers(const void *impl, sl_device_layer *out)
{
    sl_engine_device_layers(impl, out);
}

static void e_device_pages(const void *seq, int32_t *row_pages, int32_t *index_pages, int32_t n)
{
    sl_engine_device_pages(seq, row_pages, index_pages, n);
}

static void e_set_comm(void *impl, sl_comm *comm)
{
    sl_engine_set_comm(impl, comm);
}

static void e_set_flags(void *impl, uint32_t flags)
{
    sl_engine_set_flags(impl, flags);
}

static const sl_step_share *e_shares(const void *impl, uint64_t *steps)
{
    return sl_engine_shares(impl, steps);
}

static sl_ep_load e_expert_load(const void *impl)
{
    return sl_engine_expert_load(impl);
}

sl_runner sl_runner_for_engine(sl_engine *e, const sl_model_config *cfg, const sl_engine_opts *opts)
{
    return (sl_runner){.impl = e,
                       .vocab = cfg->vocab_size,
                       .n_layers = cfg->n_layers,
                       .max_context = opts->max_context,
                       .max_step_tokens = opts->max_step_tokens,
                       .open = e_open,
                       .prompt = e_prompt,
                       .prompt_window = sl_engine_prompt_window(e),
                       .prompt_unit = sl_engine_prompt_unit(e),
                       .add_pages = e_add_pages,
                       .load = e_load,
                       .spill = e_spill,
                       .row_room = opts->pool_bytes > 0 ? e_row_room : NULL,
                       .spill_pages = sl_engine_spill_pages(e),
                       .save = e_save,
                       .restore = e_restore,
                       .keeps = e_keeps,
                       .close = e_close,
                       .len = e_len,
                       .seq_stats = e_seq_stats,
                       .step = e_step,
                       .damaged = e_damaged,
                       .overlaps = overlaps(e),
                       .submit = e_submit,
                       .choose = e_choose,
                       .collect = e_collect,
                       .can_follow = e_can_follow,
                       .step_ns = e_step_ns,
                       .ended_ns = e_ended_ns,
                       .draft = cfg->n_draft ? e_draft : NULL,
                       .truncate = cfg->n_draft ? e_truncate : NULL,
                       .hidden = {sl_engine_hidden_bytes(e), cfg->n_draft ? e_hidden : NULL, e_set_hidden},
                       .rest = e_rest,
                       .wants_rest = e_wants_rest,
                       .stats = e_stats,
                       .layer_stats = e_layer_stats,
                       .device_layers = e_device_layers,
                       .device_pages = e_device_pages,
                       .set_comm = e_set_comm,
                       .set_flags = e_set_flags,
                       .shares = e_shares,
                       .expert_load = e_expert_load};
}
