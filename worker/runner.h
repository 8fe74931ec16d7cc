/*
 * Runner: a table of the engine's functions that prefill and decode call, so that their protocols can be tested without
 * a model. sl_runner_for_engine() makes the one for production; tests/unit/worker/fake_runner.h has the test double.
 *
 * Semantics, errors and threads of each function are those of the function of the same name in engine/engine.h.
 */
#ifndef SL_WORKER_RUNNER_H
#define SL_WORKER_RUNNER_H

#include "engine/device.h"
#include "engine/engine.h"

typedef struct sl_runner {
    void *impl;
    int32_t vocab, n_layers, max_context, max_step_tokens;
    sl_status (*open)(void *impl, sl_residency r, const int32_t *pages, int32_t n_pages, int32_t n_cached,
                      void **seq, sl_err *err);
    /* Between open and the first step; NULL: not needed. */
    sl_status (*prompt)(void *impl, void *seq, int32_t tokens, sl_err *err);
    int32_t prompt_window; /* sl_engine_prompt_window() */
    int32_t prompt_unit;   /* sl_engine_prompt_unit(); 0: 1 */
    sl_status (*add_pages)(void *impl, void *seq, const int32_t *pages, int32_t n_pages, sl_err *err);
    /* NULL: sequences are opened when all their cached pages are there. */
    sl_status (*load)(void *impl, void *seq, int32_t n_cached, sl_err *err);
    sl_status (*spill)(void *impl, void *seq, sl_err *err);
    /* sl_engine_row_room() and sl_engine_spill_pages(), of a runner with one pool of memory; NULL and 0: row pages have their own. */
    int64_t (*row_room)(const void *impl);
    int32_t spill_pages;
    /* Of models with states (engine/engine.h); NULL: the runner has none. */
    sl_status (*save)(void *impl, const void *seq, sl_key key, const int32_t *pages, sl_err *err);
    sl_status (*restore)(void *impl, void *seq, sl_key key, const int32_t *pages, sl_err *err);
    bool (*keeps)(const void *impl, const void *seq, int32_t tokens);
    void (*close)(void *impl, void *seq);
    int32_t (*len)(const void *seq);
    void (*seq_stats)(const void *impl, const void *seq, sl_layer_stats *out);
    /* items[i].seq is the sequence that open returned. */
    sl_status (*step)(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err);
    int32_t (*damaged)(void *impl, void (*found)(void *ctx, int32_t page),
                       void *ctx); /* NULL: it finds none */
    /* Steps in flight: all of them or none. overlaps: a step in flight costs the caller no time. */
    bool overlaps;
    sl_status (*submit)(void *impl, sl_step_item *items, int32_t n, sl_err *err);
    sl_status (*choose)(void *impl, sl_err *err);
    sl_status (*collect)(void *impl, sl_err *err);
    bool (*can_follow)(const void *impl, const sl_step_item *it);
    uint64_t (*step_ns)(const void *impl);
    uint64_t (*ended_ns)(const void *impl); /* NULL: a step has ended when it is collected */
    /* Both, or NULL: it drafts nothing. items[i].seq as in step. */
    sl_status (*draft)(void *impl, sl_draft_item *items, int32_t n, sl_err *err);
    sl_status (*truncate)(void *impl, void *seq, int32_t len, sl_err *err);
    /* The hidden state of a sequence's last token (sl_engine_seq_hidden()); get NULL: the runner has none. */
    struct {
        size_t bytes;
        bool (*get)(void *impl, const void *seq, void *out);
        void (*set)(void *impl, void *seq, const void *bytes);
    } hidden;
    void (*rest)(void *impl);
    bool (*wants_rest)(const void *impl); /* NULL: never */
    void (*stats)(const void *impl, sl_engine_stats *out);
    void (*layer_stats)(const void *impl, sl_layer_stats *out); /* [n_layers] */
    /* Either both are set or both are NULL (engine/device.h). */
    void (*device_layers)(const void *impl, sl_device_layer *out); /* [n_layers] */
    void (*device_pages)(const void *seq, int32_t *row_pages, int32_t *index_pages, int32_t n);
    /* Of a rank of a group, used by worker/group.c; else they may be NULL. */
    void (*set_comm)(void *impl, sl_comm *comm);
    void (*set_flags)(void *impl, uint32_t flags);
    const sl_step_share *(*shares)(const void *impl, uint64_t *steps);
    sl_ep_load (*expert_load)(const void *impl);
    /* Set by sl_wgroup_attach() (worker/group.h); NULL: this worker is no rank of a group. */
    struct sl_wgroup *group;
    uint32_t group_number, group_rank, group_ranks; /* as in HELLO */
    sl_status (*group_step)(struct sl_wgroup *g, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                            sl_err *err);
    bool (*group_whole)(const struct sl_wgroup *g);
} sl_runner;

/* The tokens of a request whose pages it may share with the prefix tree, as the n_tokens of sl_store_match(). Not those
 * whose computing selects what is kept of its prompt, nor those after its prompt. */
static inline int32_t sl_runner_shared(const sl_runner *r, int32_t n_prompt, int32_t n_tokens)
{
    int32_t n = n_prompt - r->prompt_window + 1;
    return r->prompt_window ? (n > 0 ? n : 0) : n_tokens;
}

/* Of n_tokens complete tokens, those whose pages other requests may use. What follows the prompt depends on where the prompt
 * ended, if the algorithm selects there. */
static inline int32_t sl_runner_public(const sl_runner *r, int32_t n_prompt, int32_t n_tokens)
{
    return r->prompt_window && n_tokens > n_prompt ? n_prompt : n_tokens;
}

/* Says where the prompt of a sequence ends. */
static inline sl_status sl_runner_prompt(const sl_runner *r, void *seq, int32_t n_prompt, sl_err *err)
{
    return r->prompt ? r->prompt(r->impl, seq, n_prompt, err) : SL_OK;
}

/* Opens a sequence and says where its prompt ends. */
static inline sl_status sl_runner_open(const sl_runner *r, sl_residency residency, const int32_t *pages,
                                       int32_t n_pages, int32_t n_cached, int32_t n_prompt, void **seq,
                                       sl_err *err)
{
    SL_TRY(r->open(r->impl, residency, pages, n_pages, n_cached, seq, err));
    sl_status st = sl_runner_prompt(r, *seq, n_prompt, err);
    if (st != SL_OK) {
        r->close(r->impl, *seq);
        *seq = NULL;
    }
    return st;
}

/* A step of this worker: in a group a step of all its ranks. */
static inline sl_status sl_runner_step(const sl_runner *r, sl_step_item *items, int32_t n,
                                       const sl_step_hooks *hooks, sl_err *err)
{
    return r->group ? r->group_step(r->group, items, n, hooks, err) : r->step(r->impl, items, n, hooks, err);
}

/* After a step that failed: whether the group broke, which ends every request of this worker without further messages. */
static inline bool sl_runner_broken(const sl_runner *r)
{
    return r->group && !r->group_whole(r->group);
}

/* A runner over an engine and the config of its model; borrows both. */
sl_runner sl_runner_for_engine(sl_engine *e, const sl_model_config *cfg, const sl_engine_opts *opts);

#endif
