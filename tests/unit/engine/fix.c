/* Engines over golden checkpoints; see fix.h. */
#include "fix.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/paths.h"

static void open_model(fix *f)
{
    sl_err err = {0};
    sl_backend_opts bo = {.threads = f->o.threads ? f->o.threads : 1};
    const char *name = getenv("SLUICE_TEST_BACKEND"); /* by hand, on a machine with a GPU */
    ck_assert_msg(sl_backend_create(name ? name : "cpu", &bo, &f->be, &err) == SL_OK, "%s", err.text);
    static sl_gpu h200;
    h200 = sl_gpu_of(90, 132, 227 << 10);
    sl_be_scratch_as(f->be, &h200); /* what the CPU does not need is planned as on a GPU: kernels/scratch.h */
    if (f->o.wrap)
        f->o.wrap(f->be);
    sl_model_opts mo = {.index_format = f->o.index,
                        .row_format = f->o.rows,
                        .act = f->o.act,
                        .draft = f->o.draft,
                        .fp8_acts = f->o.plain_acts ? SL_FP8_ACTS_OFF : SL_FP8_ACTS_AUTO,
                        .max_tokens = f->o.max_tokens,
                        .max_logit_rows = f->o.max_seqs * (f->o.item_tokens ? f->o.item_tokens : 1)};
    ck_assert_msg(sl_model_load(f->be, f->o.dir, &mo, &f->model, &err) == SL_OK, "%s", err.text);
    f->cfg = sl_model_get_config(f->model);
}

static const sl_algo_desc *algorithm_of(const fix_opts *o)
{
    return o->desc ? o->desc : o->algorithm ? sl_algo_find(o->algorithm) : &sl_algo_dsa;
}

static sl_select_options options_of(const fix_opts *o)
{
    return o->options ? *o->options : select_options(algorithm_of(o), &o->select);
}

static void open_arena(fix *f)
{
    sl_err err = {0};
    sl_geometry g;
    f->arena = f->o.arena;
    if (f->arena)
        return;
    sl_cache_dims cache = sl_engine_cache_dims(f->cfg, f->o.rows, f->o.index);
    cache.select = options_of(&f->o);
    ck_assert_msg(sl_engine_geometry(f->cfg, &cache, algorithm_of(&f->o), f->o.layout,
                                     sl_model_fingerprint(f->model), &g, &err) == SL_OK,
                  "%s", err.text);
    int32_t n = f->o.host_pages ? f->o.host_pages : f->o.max_seqs * sl_pages_for(f->o.max_context);
    sl_arena_opts ao = {
        .bytes = (uint64_t)(n * g.page_bytes), .huge_pages = SL_OFF, .lock = SL_OFF, .numa_node = -1};
    ck_assert_msg(sl_arena_create(&g, &ao, &f->arena, &err) == SL_OK, "%s", err.text);
    if (f->o.row_sums)
        ck_assert_int_eq(sl_row_sums_create(f->arena, &f->row_sums, &err), SL_OK);
    /* Bytes that are never written are NaN. */
    memset(sl_arena_base(f->arena), 0xff, sl_arena_bytes(f->arena));
    n = sl_arena_pages(f->arena);
    f->free_pages = calloc((size_t)n, sizeof *f->free_pages);
    uint64_t x = 88172645463325252ull;
    for (int32_t i = 0; i < n; i++) { /* shuffled: pages of a sequence are never in order */
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        int32_t j = (int32_t)(x % (uint64_t)(i + 1));
        f->free_pages[i] = f->free_pages[j];
        f->free_pages[j] = i;
    }
    f->n_free = n;
}

void fix_open(fix *f, const fix_opts *o)
{
    *f = (fix){.o = *o};
    f->o.max_tokens = o->max_tokens ? o->max_tokens : 128;
    f->o.max_seqs = o->max_seqs ? o->max_seqs : 1;
    open_model(f);
    if (!f->o.max_context)
        f->o.max_context = f->cfg->max_context < 1600 ? f->cfg->max_context : 1600;
    open_arena(f);
    int64_t pages = f->o.max_seqs * (int64_t)sl_pages_for(f->o.max_context);
    f->eo = (sl_engine_opts){
        .algorithm = algorithm_of(o),
        .select = options_of(o),
        .gates = o->gates,
        .max_seqs = f->o.max_seqs,
        .max_hot_seqs = o->max_hot,
        .max_step_tokens = f->o.max_tokens,
        .max_item_tokens = o->item_tokens,
        .max_context = f->o.max_context,
        .hot_rows = o->hot_rows ? o->hot_rows : f->cfg->index.topk,
        .tail_rows = o->tail_rows ? o->tail_rows : 1,
        .hot_rows_layer = o->hot_rows_layer,
        .policy = o->policy,
        .index_pages = o->index_pages ? o->index_pages : pages,
        .row_pages = o->row_pages ? o->row_pages : pages,
        .pool_bytes = o->pool_bytes,
        .max_graphs = o->max_graphs,
        .groups = o->groups,
        .list_bytes = o->list_bytes,
        .graphs = o->graphs,
        .poison = true,
        .row_sums = f->row_sums,
    };
    sl_err err = {0};
    ck_assert_msg(sl_engine_create(f->be, f->model, f->arena, &f->eo, &f->engine, &err) == SL_OK, "%s",
                  err.text);
}

void fix_close(fix *f)
{
    sl_engine_destroy(f->engine);
    sl_row_sums_destroy(f->row_sums);
    if (!f->o.arena)
        sl_arena_destroy(f->arena);
    sl_model_destroy(f->model);
    sl_backend_destroy(f->be);
    free(f->free_pages);
}

void fix_grow(fix *f, fix_run *r, int32_t n_tokens)
{
    int32_t from = r->n_pages;
    while (r->n_pages * SL_PAGE_TOKENS < n_tokens) {
        MUST(f->n_free > 0);
        r->pages[r->n_pages++] = f->free_pages[--f->n_free];
    }
    sl_err err = {0};
    if (r->seq && r->n_pages > from)
        ck_assert_msg(sl_engine_seq_add_pages(f->engine, r->seq, r->pages + from, r->n_pages - from, &err) ==
                          SL_OK,
                      "%s", err.text);
}

void fix_seq_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t n_tokens)
{
    fix_grow(f, r, n_tokens);
    sl_err err = {0};
    ck_assert_msg(
        sl_engine_seq_open(f->engine, residency, r->pages, r->n_pages, n_cached, r, &r->seq, &err) == SL_OK,
        "%s", err.text);
    MUST(sl_engine_seq_len(r->seq) == n_cached && sl_engine_seq_user(r->seq) == r);
}

void fix_seq_close(fix *f, fix_run *r, bool keep_pages)
{
    sl_engine_seq_close(f->engine, r->seq);
    r->seq = NULL;
    while (!keep_pages && r->n_pages > 0) {
        int32_t p = r->pages[--r->n_pages];
        const sl_geometry *g = sl_arena_geometry(f->arena);
        const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
        for (int32_t l = 0; l < f->cfg->n_layers; l++) { /* freed rows are NaN again */
            sl_host_plane h =
                sl_geometry_plane(g, sl_arena_base(f->arena), sl_arena_pages(f->arena), l, SL_CACHE_ROWS);
            for (int i = 0; h.base && i < sl_cache_page_units(rows) / rows->heads; i++)
                memset(h.base + p * h.page_stride + i * h.row_stride, 0xff,
                       (size_t)(rows->heads * sl_cache_unit_bytes(rows)));
        }
        f->free_pages[f->n_free++] = p;
    }
}

void fix_prompt(const fix *f, fix_text *t, int32_t n, uint64_t seed)
{
    *t = (fix_text){.n = n};
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        t->ids[i] = (int32_t)((seed >> 33) % (uint64_t)f->cfg->vocab_size);
    }
}

sl_key fix_hash(const fix *f, const float *logits)
{
    return sl_hash_chain((sl_key){1, 2}, logits, (size_t)f->cfg->vocab_size * sizeof *logits);
}

int32_t fix_argmax(const fix *f, const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 0; i < f->cfg->vocab_size; i++) {
        MUST(logits[i] == logits[i]); /* no NaN reached the logits */
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

void fix_prompt_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t n_tokens,
                     int32_t prompt)
{
    sl_err err = {0};
    fix_seq_open(f, r, residency, n_cached, n_tokens);
    r->prompt = prompt;
    ck_assert_msg(sl_engine_seq_prompt(f->engine, r->seq, prompt, &err) == SL_OK, "%s", err.text);
}

/* The end of a step that would end at `end`: no page that lies in the prompt is divided. */
static int32_t whole_pages(const fix *f, const fix_run *r, int32_t end)
{
    const int32_t unit = sl_engine_prompt_unit(f->engine), whole = r->prompt - r->prompt % unit;
    return end < whole ? (end + unit - 1) / unit * unit : end;
}

const float *fix_feed(fix *f, fix_run *r, fix_text *t, int32_t to, int32_t chunk)
{
    const float *logits = NULL;
    sl_err err = {0};
    for (int32_t at = sl_engine_seq_len(r->seq); at < to;) {
        int32_t n = whole_pages(f, r, to - at < chunk ? to : at + chunk) - at;
        sl_step_item it = {.seq = r->seq, .tokens = t->ids + at, .n_tokens = n, .want_logits = true};
        fix_grow(f, r, at + n);
        if (sl_engine_step(f->engine, &it, 1, NULL, &err) != SL_OK)
            ck_abort_msg("%s", err.text);
        at += n;
        MUST(sl_engine_seq_len(r->seq) == at);
        logits = it.logits;
        t->logits[at - 1] = fix_hash(f, logits);
    }
    return logits;
}

void fix_greedy(fix *f, fix_run *r, fix_text *t, int32_t to)
{
    const float *logits = fix_feed(f, r, t, t->n, f->o.max_tokens);
    while (t->n < to) {
        t->ids[t->n++] = fix_argmax(f, logits);
        logits = fix_feed(f, r, t, t->n, 1);
    }
}

void fix_reference(fix *f, fix_text *t, int32_t n_prompt, int32_t n, uint64_t seed)
{
    fix_run r = {0};
    fix_prompt(f, t, n_prompt, seed);
    fix_prompt_open(f, &r, SL_RESIDENT, 0, n, n_prompt);
    fix_greedy(f, &r, t, n);
    fix_seq_close(f, &r, false);
}

void fix_option(sl_engine_opts *eo, const char *name, const char *text)
{
    sl_err err = {0};
    ck_assert_msg(sl_options_set(eo->algorithm->options, eo->select.values, name, text, &err) == SL_OK, "%s",
                  err.text);
}

void fix_refused(fix *f, const sl_engine_opts *eo, sl_status want, const char *says)
{
    sl_engine *e;
    sl_err err = {0};
    ck_assert_int_eq(sl_engine_create(f->be, f->model, f->arena, eo, &e, &err), want);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say %s", err.text, says);
}
