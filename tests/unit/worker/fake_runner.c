/* See fake_runner.h. A hash chain gives the contents of each row and key, and all of them are read again for every
 * token. */
#include "tests/unit/worker/fake_runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"

typedef struct fake_seq {
    int32_t *pages;
    int32_t n_pages, len;
    /* Checksums [n_loaded / 64][layers] of pages at the moment at which they were loaded, before later pages were there: what
     * such a page has when a step reads it must be what was loaded. */
    uint32_t *loaded;
    int32_t first_loaded, n_loaded; /* tokens [first_loaded, n_loaded) */
    int32_t chosen;                 /* by the step of this number: the token that follows */
    int chosen_in, flying;
} fake_seq;

/* A step whose results the caller does not have yet. */
typedef struct fake_flight {
    sl_step_item *items;
    int32_t n;
    bool open; /* late items have no token yet */
    sl_sampled *out;
} fake_flight;

struct fake_runner {
    sl_arena *arena;
    fake_opts o;
    float *logits; /* [max_seqs + 64][vocab] */
    sl_sampler *sampler;
    int open, steps, hidden_set;
    fake_flight flight[SL_STEPS_IN_FLIGHT];
    int oldest, in_flight;
    _Atomic bool hang, hangs;
    _Atomic int hang_at; /* steps until then; 0: not set */
    sl_engine_stats st;
};

/* Content of token `pos` in `layer`: depends on `state`, the hash of all tokens up to it. */
static void fill(uint8_t *at, int64_t n, uint64_t state, int32_t layer, int plane)
{
    uint64_t x = state + (uint64_t)(layer * 3 + plane) * 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < n; i++) {
        if (i % 8 == 0)
            x = x * 6364136223846793005u + 1442695040888963407u;
        at[i] = (uint8_t)(x >> (8 * (i % 8)));
    }
}

static uint64_t advance(uint64_t state, int32_t token, int32_t pos)
{
    int32_t in[2] = {token, pos};
    sl_key k = sl_hash_chain((sl_key){state, 7}, in, sizeof in);
    return k.lo ^ k.hi;
}

typedef struct place {
    uint8_t *row, *key, *scale;
    int64_t row_bytes, key_bytes, scale_bytes;
} place;

static place place_of(sl_arena *a, int32_t page, int32_t layer, int32_t i)
{
    const sl_geometry *g = sl_arena_geometry(a);
    sl_host_plane r = sl_geometry_plane(g, sl_arena_base(a), sl_arena_pages(a), layer, SL_CACHE_ROWS);
    sl_host_plane x = sl_geometry_index_plane(g, sl_arena_base(a), sl_arena_pages(a), layer);
    place p = {.row = r.base + page * r.page_stride + i * r.row_stride,
               .row_bytes = sl_geometry_row_bytes(g)};
    if (!x.base)
        return p;
    const sl_cache_plane *index = &g->shape.planes[sl_cache_find(&g->shape, SL_PLANE_INDEX)];
    bool official = index->n_parts == 2;
    p.key_bytes = sl_cache_part_bytes(index, 0) / SL_PAGE_TOKENS;
    p.key = x.base + page * x.page_stride + i * p.key_bytes;
    if (official) {
        p.scale = x.base + page * x.page_stride + SL_PAGE_TOKENS * p.key_bytes + 4 * i;
        p.scale_bytes = 4;
    }
    return p;
}

static void write_token(sl_arena *a, const fake_seq *s, int32_t pos, int32_t layer, uint64_t state)
{
    place p = place_of(a, s->pages[pos / SL_PAGE_TOKENS], layer, pos % SL_PAGE_TOKENS);
    fill(p.row, p.row_bytes, state, layer, 0);
    if (p.key)
        fill(p.key, p.key_bytes, state, layer, 1);
    if (p.scale)
        fill(p.scale, p.scale_bytes, state, layer, 2);
}

static uint32_t read_token(sl_arena *a, const fake_seq *s, int32_t pos, int32_t layer, uint32_t crc)
{
    place p = place_of(a, s->pages[pos / SL_PAGE_TOKENS], layer, pos % SL_PAGE_TOKENS);
    crc = sl_crc32c(crc, p.row, (size_t)p.row_bytes);
    if (p.key)
        crc = sl_crc32c(crc, p.key, (size_t)p.key_bytes);
    if (p.scale)
        crc = sl_crc32c(crc, p.scale, (size_t)p.scale_bytes);
    return crc;
}

/* The hash of all tokens so far is stored in the last row of layer 0, so that it has to be shipped like the rows of a
 * model. */
static uint64_t state_at(sl_arena *a, const fake_seq *s, int32_t pos)
{
    uint64_t state = 0;
    if (pos < 0)
        return 1;
    place p = place_of(a, s->pages[pos / SL_PAGE_TOKENS], 0, pos % SL_PAGE_TOKENS);
    memcpy(&state, p.row, sizeof state);
    return state;
}

static sl_status f_open(void *impl, sl_residency r, const int32_t *pages, int32_t n_pages, int32_t n_cached,
                        void **seq, sl_err *err)
{
    (void)r;
    fake_runner *f = impl;
    if (f->open >= f->o.max_seqs)
        return sl_fail(err, SL_ERR_EXHAUSTED, "no slot");
    fake_seq *s = calloc(1, sizeof *s);
    s->pages = malloc((size_t)n_pages * sizeof *pages);
    memcpy(s->pages, pages, (size_t)n_pages * sizeof *pages);
    s->n_pages = n_pages;
    s->len = n_cached;
    f->open++;
    *seq = s;
    return SL_OK;
}

static sl_status f_add_pages(void *impl, void *seq, const int32_t *pages, int32_t n, sl_err *err)
{
    (void)impl;
    (void)err;
    fake_seq *s = seq;
    s->pages = realloc(s->pages, (size_t)(s->n_pages + n) * sizeof *pages);
    memcpy(s->pages + s->n_pages, pages, (size_t)n * sizeof *pages);
    s->n_pages += n;
    return SL_OK;
}

static sl_status f_load(void *impl, void *seq, int32_t n_cached, sl_err *err)
{
    sl_arena *a = ((fake_runner *)impl)->arena;
    fake_seq *s = seq;
    size_t layers = (size_t)sl_arena_geometry(a)->n_layers, pages = (size_t)n_cached / SL_PAGE_TOKENS;
    if (s->len % SL_PAGE_TOKENS || n_cached < s->len || n_cached > s->n_pages * SL_PAGE_TOKENS)
        return sl_fail(err, SL_ERR_INVALID, "load of %d after %d", n_cached, s->len);
    if (!s->loaded)
        s->first_loaded = s->len;
    s->loaded = realloc(s->loaded, pages * layers * sizeof *s->loaded + 1);
    for (size_t i = (size_t)s->len / SL_PAGE_TOKENS; i < pages; i++)
        for (size_t l = 0; l < layers; l++)
            s->loaded[i * layers + l] = sl_arena_page_crc(a, s->pages[i], (int32_t)l, SL_PAGE_TOKENS);
    s->len = s->n_loaded = n_cached;
    return SL_OK;
}

/* A device would compute with the rows that it was given: if the page is another one now, the result must differ. */
static uint32_t fold_loaded(sl_arena *a, const fake_seq *s, uint32_t crc)
{
    int32_t layers = sl_arena_geometry(a)->n_layers;
    for (int32_t i = s->first_loaded / SL_PAGE_TOKENS; i < s->n_loaded / SL_PAGE_TOKENS; i++)
        for (int32_t l = 0; l < layers; l++)
            crc ^= s->loaded[i * layers + l] ^ sl_arena_page_crc(a, s->pages[i], l, SL_PAGE_TOKENS);
    return crc;
}

static sl_status f_spill(void *impl, void *seq, sl_err *err)
{
    (void)impl;
    (void)seq;
    return sl_fail(err, SL_ERR_EXHAUSTED, "nothing to spill");
}

static void f_close(void *impl, void *seq)
{
    fake_seq *s = seq;
    SL_CHECK(s->flying == 0, "a sequence is closed that is in flight");
    ((fake_runner *)impl)->open--;
    free(s->pages);
    free(s->loaded);
    free(s);
}

static int32_t f_len(const void *seq)
{
    return ((const fake_seq *)seq)->len;
}

static void f_seq_stats(const void *impl, const void *seq, sl_layer_stats *out)
{
    (void)impl;
    (void)seq;
    *out = (sl_layer_stats){0};
}

static void make_logits(float *row, int32_t vocab, uint32_t crc)
{
    for (int32_t v = 0; v < vocab; v++) {
        uint32_t x = (crc ^ (uint32_t)v * 2654435761u) * 2246822519u;
        row[v] = (float)((x ^ x >> 15) % 100000u) / 10000.0f;
    }
}

static uint32_t read_all(sl_arena *a, const fake_seq *s, int32_t len)
{
    uint32_t crc = 0;
    for (int32_t l = 0; l < sl_arena_geometry(a)->n_layers; l++) {
        for (int32_t i = 0; i < len; i++)
            crc = read_token(a, s, i, l, crc);
    }
    return fold_loaded(a, s, crc);
}

static void pretend(uint32_t us)
{
    if (us)
        nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

void fake_hang(fake_runner *f, bool on)
{
    atomic_store(&f->hang, on);
}

void fake_hang_at(fake_runner *f, int n)
{
    atomic_store(&f->hang_at, n);
}

bool fake_hangs(const fake_runner *f)
{
    return atomic_load(&f->hangs);
}

static void hang(fake_runner *f)
{
    if (atomic_load(&f->hang_at) && atomic_fetch_sub(&f->hang_at, 1) == 1)
        atomic_store(&f->hang, true);
    while (atomic_load(&f->hang)) {
        atomic_store(&f->hangs, true);
        pretend(1000);
    }
    atomic_store(&f->hangs, false);
}

/* The mask of an item that follows comes when the caller has the token before: f_choose(). */
static bool is_late(const sl_step_item *it)
{
    return it->follows && it->sample && it->sample->mask;
}

static void choose_one(fake_runner *f, fake_seq *s, sl_step_sample *w, int32_t len)
{
    sl_token_mask mask = w->mask ? w->mask(w->mask_ctx) : (sl_token_mask){0};
    float *row = f->logits + (size_t)(f->o.max_seqs + 63) * (size_t)f->o.vocab; /* that no item has */
    make_logits(row, f->o.vocab, read_all(f->arena, s, len));
    sl_sampler_sample_or_fault(f->sampler, row, w->sampling, &w->history, (uint64_t)len,
                               w->mask ? &mask : NULL, &w->out);
}

static sl_status f_step(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err)
{
    fake_runner *f = impl;
    const sl_geometry *g = sl_arena_geometry(f->arena);
    int32_t total = 0;
    hang(f);
    if (++f->steps == f->o.fail_step)
        return sl_fail(err, f->o.fail_with, "step made to fail");
    for (int32_t k = 0; k < n; k++)
        total += items[k].n_tokens;
    if (total > f->o.max_step_tokens)
        return sl_fail(err, SL_ERR_INVALID, "%d tokens in a step", total);
    for (int32_t l = 0; l < g->n_layers; l++) {
        pretend(f->o.layer_us);
        for (int32_t k = 0; k < n; k++) {
            fake_seq *s = (fake_seq *)(void *)items[k].seq;
            if (s->len + items[k].n_tokens > s->n_pages * SL_PAGE_TOKENS)
                return sl_fail(err, SL_ERR_INVALID, "beyond its pages");
            uint64_t state = state_at(f->arena, s, s->len - 1);
            for (int32_t i = 0; i < items[k].n_tokens; i++) {
                uint8_t first[8];
                state = advance(state, items[k].follows ? s->chosen : items[k].tokens[i], s->len + i);
                write_token(f->arena, s, s->len + i, l, state);
                memcpy(first, &state, sizeof first);
                if (l == 0)
                    memcpy(place_of(f->arena, s->pages[(s->len + i) / SL_PAGE_TOKENS], 0,
                                    (s->len + i) % SL_PAGE_TOKENS)
                               .row,
                           first, sizeof first);
            }
        }
        if (hooks && hooks->layer_done)
            hooks->layer_done(hooks->ctx, l);
    }
    for (int32_t k = 0; k < n; k++) {
        fake_seq *s = (fake_seq *)(void *)items[k].seq;
        s->len += items[k].n_tokens;
        items[k].logits = NULL;
        if (!items[k].want_logits && !items[k].sample)
            continue;
        float *row = f->logits + (size_t)k * (size_t)f->o.vocab;
        make_logits(row, f->o.vocab, read_all(f->arena, s, s->len));
        items[k].logits = items[k].want_logits ? row : NULL;
        sl_step_sample *w = items[k].sample;
        const int32_t several = w && items[k].n_samples > 1 ? items[k].n_samples : 1;
        for (int32_t j = 0; w && j < several; j++) {
            const int32_t len = s->len - (several - 1 - j);
            if (w[j].history.n_prompt + w[j].history.n_output != (size_t)len)
                return sl_fail(err, SL_ERR_INVALID, "a history of another length");
            if (!is_late(&items[k]))
                choose_one(f, s, &w[j], len);
        }
        s->chosen = w && !is_late(&items[k]) ? w[several - 1].out.id : -1;
        s->chosen_in = f->steps;
    }
    f->st.steps++;
    f->st.tokens += (uint64_t)total;
    f->st.swap_bytes += (uint64_t)total * f->o.row_bytes;
    f->st.swap_exposed_ns += (uint64_t)total * f->o.row_bytes * f->o.row_wait_ns;
    return SL_OK;
}

/* Writes the rows of drafts after those of the sequence, as the model does. */
static sl_status f_draft(void *impl, sl_draft_item *items, int32_t n, sl_err *err)
{
    fake_runner *f = impl;
    const sl_engine_stats before = f->st; /* the steps of this are none */
    for (int32_t k = 0; k < n; k++) {
        fake_seq *s = (fake_seq *)(void *)items[k].seq;
        const int32_t len = s->len;
        for (int32_t j = 0; j < items[k].n; j++) {
            sl_step_item it = {.seq = items[k].seq,
                               .tokens = j ? &items[k].out[j - 1] : &items[k].token,
                               .n_tokens = 1,
                               .want_logits = 1};
            sl_status st = f_step(impl, &it, 1, NULL, err);
            if (st != SL_OK)
                return st;
            f->steps--, f->st = before;
            int32_t best = 0;
            for (int32_t v = 1; v < f->o.vocab; v++)
                best = it.logits[v] > it.logits[best] ? v : best;
            items[k].out[j] = (f->o.noise || s->len % 5 == 0 ? best + 1 : best) % f->o.vocab;
        }
        s->len = len;
    }
    return SL_OK;
}

static sl_status f_truncate(void *impl, void *seq, int32_t len, sl_err *err)
{
    fake_seq *s = seq;
    (void)impl;
    if (len < 1 || len > s->len)
        return sl_fail(err, SL_ERR_INVALID, "%d of %d tokens", len, s->len);
    s->len = len;
    return SL_OK;
}

/* Stands for a hidden state: it is right for one length of a sequence. */
uint64_t fake_hidden(uint64_t tokens)
{
    return 0x9e3779b97f4a7c15u * tokens;
}

static uint64_t hidden_of(const fake_seq *s)
{
    return fake_hidden((uint64_t)s->len);
}

static bool f_hidden(void *impl, const void *seq, void *out)
{
    const uint64_t h = hidden_of(seq);
    (void)impl;
    memcpy(out, &h, sizeof h);
    return true;
}

static void f_set_hidden(void *impl, void *seq, const void *bytes)
{
    const uint64_t h = hidden_of(seq);
    fake_runner *f = impl;
    f->hidden_set += memcmp(bytes, &h, sizeof h) == 0;
}

int fake_hidden_set(const fake_runner *f)
{
    return f->hidden_set;
}

static fake_flight *last_flight(fake_runner *f)
{
    return &f->flight[(f->oldest + f->in_flight - 1) % SL_STEPS_IN_FLIGHT];
}

/* Computes at once; the caller must not read the results before it has collected them. */
static sl_status f_submit(void *impl, sl_step_item *items, int32_t n, sl_err *err)
{
    fake_runner *f = impl;
    bool open = false;
    if (f->in_flight == SL_STEPS_IN_FLIGHT)
        return sl_fail(err, SL_ERR_INVALID, "%d steps in flight", f->in_flight);
    if (f->in_flight > 0 && last_flight(f)->open)
        return sl_fail(err, SL_ERR_INVALID, "the step before has not chosen");
    SL_TRY(f_step(impl, items, n, NULL, err));
    for (int32_t k = 0; k < n; k++)
        open |= is_late(&items[k]);
    f->in_flight++;
    fake_flight *t = last_flight(f);
    *t = (fake_flight){items, n, open, calloc(n > 0 ? (size_t)n : 1, sizeof *t->out)};
    for (int32_t k = 0; k < n; k++) {
        ((fake_seq *)(void *)items[k].seq)->flying++;
        if (!items[k].sample)
            continue;
        t->out[k] = items[k].sample->out;
        memset(&items[k].sample->out, 0x5a, sizeof t->out[k]); /* not known yet */
    }
    return SL_OK;
}

static sl_status f_choose(void *impl, sl_err *err)
{
    fake_runner *f = impl;
    fake_flight *t = last_flight(f);
    if (f->in_flight == 0 || !t->open)
        return SL_OK;
    if (f->in_flight > 1)
        return sl_fail(err, SL_ERR_INVALID, "the step before was not collected");
    for (int32_t k = 0; k < t->n; k++) {
        fake_seq *s = (fake_seq *)(void *)t->items[k].seq;
        if (!is_late(&t->items[k]))
            continue;
        choose_one(f, s, t->items[k].sample, s->len);
        t->out[k] = t->items[k].sample->out;
        memset(&t->items[k].sample->out, 0x5a, sizeof t->out[k]);
        s->chosen = t->out[k].id;
    }
    t->open = false;
    return SL_OK;
}

static sl_status f_collect(void *impl, sl_err *err)
{
    fake_runner *f = impl;
    if (f->in_flight == 0)
        return sl_fail(err, SL_ERR_INVALID, "no step in flight");
    SL_TRY(f->in_flight == 1 ? f_choose(impl, err) : SL_OK);
    fake_flight *t = &f->flight[f->oldest];
    for (int32_t k = 0; k < t->n; k++) {
        ((fake_seq *)(void *)t->items[k].seq)->flying--;
        if (t->items[k].sample)
            t->items[k].sample->out = t->out[k];
    }
    free(t->out);
    f->oldest = (f->oldest + 1) % SL_STEPS_IN_FLIGHT;
    f->in_flight--;
    return SL_OK;
}

void fake_lose(fake_runner *f)
{
    for (; f->in_flight > 0; f->in_flight--) {
        fake_flight *t = &f->flight[f->oldest];
        for (int32_t k = 0; k < t->n; k++)
            ((fake_seq *)(void *)t->items[k].seq)->flying--;
        free(t->out);
        f->oldest = (f->oldest + 1) % SL_STEPS_IN_FLIGHT;
    }
}

static bool f_can_follow(const void *impl, const sl_step_item *it)
{
    const fake_runner *f = impl;
    const fake_seq *s = (const fake_seq *)(const void *)it->seq;
    return f->in_flight > 0 && s->chosen_in == f->steps && s->chosen >= 0 &&
           !(it->sample && sl_sampling_penalises(it->sample->sampling));
}

static uint64_t f_step_ns(const void *impl)
{
    const fake_runner *f = impl;
    return (uint64_t)f->o.layer_us * 1000 * (uint64_t)sl_arena_geometry(f->arena)->n_layers + 1;
}

static void f_rest(void *impl)
{
    SL_CHECK(((fake_runner *)impl)->in_flight == 0, "a rest with steps in flight");
}

static void f_stats(const void *impl, sl_engine_stats *out)
{
    *out = ((const fake_runner *)impl)->st;
}

static void f_layer_stats(const void *impl, sl_layer_stats *out)
{
    const fake_runner *f = impl;
    memset(out, 0, sizeof *out * (size_t)sl_arena_geometry(f->arena)->n_layers);
}

fake_runner *fake_create(sl_arena *arena, const fake_opts *opts)
{
    fake_runner *f = calloc(1, sizeof *f);
    f->arena = arena;
    f->o = *opts;
    SL_CHECK(sl_sampler_create(opts->vocab, NULL, 0, &f->sampler) == SL_OK, "out of memory");
    f->logits = calloc((size_t)(opts->max_seqs + 64) * (size_t)opts->vocab, sizeof *f->logits);
    return f;
}

void fake_destroy(fake_runner *f)
{
    if (!f)
        return;
    SL_CHECK(f->open == 0, "%d sequences open", f->open);
    free(f->logits);
    sl_sampler_destroy(f->sampler);
    free(f);
}

/* The arena itself stands for device memory. */
static void f_device_layers(const void *impl, sl_device_layer *out)
{
    const fake_runner *f = impl;
    const sl_geometry *g = sl_arena_geometry(f->arena);
    uint8_t *base = sl_arena_base(f->arena);
    int64_t n = sl_arena_pages(f->arena);
    for (int32_t l = 0; l < g->n_layers; l++) {
        out[l] = (sl_device_layer){.rows_by_index_page = l == 1};
        for (int32_t p = 0; p < g->shape.n_planes; p++) {
            sl_host_plane *at = &out[l].planes[p];
            *at = sl_geometry_plane(g, base, n, l, p);
            if (at->base)
                out[l].bytes[p] = (n - 1) * at->page_stride + sl_cache_page_bytes(&g->shape.planes[p]);
        }
    }
}

static void f_device_pages(const void *seq, int32_t *row_pages, int32_t *index_pages, int32_t n)
{
    const fake_seq *s = seq;
    memcpy(row_pages, s->pages, (size_t)n * sizeof *row_pages);
    memcpy(index_pages, s->pages, (size_t)n * sizeof *index_pages);
}

sl_runner fake_runner_of(fake_runner *f)
{
    return (sl_runner){.impl = f,
                       .vocab = f->o.vocab,
                       .n_layers = sl_arena_geometry(f->arena)->n_layers,
                       .max_context = f->o.max_context,
                       .max_step_tokens = f->o.max_step_tokens,
                       .open = f_open,
                       .add_pages = f_add_pages,
                       .load = f_load,
                       .spill = f_spill,
                       .close = f_close,
                       .len = f_len,
                       .seq_stats = f_seq_stats,
                       .step = f_step,
                       .overlaps = f->o.overlaps,
                       .submit = f_submit,
                       .choose = f_choose,
                       .collect = f_collect,
                       .can_follow = f_can_follow,
                       .draft = f->o.drafts ? f_draft : NULL,
                       .truncate = f->o.drafts ? f_truncate : NULL,
                       .hidden = {sizeof(uint64_t), f->o.drafts ? f_hidden : NULL, f_set_hidden},
                       .step_ns = f_step_ns,
                       .rest = f_rest,
                       .stats = f_stats,
                       .layer_stats = f_layer_stats,
                       .device_layers = f_device_layers,
                       .device_pages = f_device_pages};
}

int fake_open_seqs(const fake_runner *f)
{
    return f->open;
}

void fake_reference(const sl_geometry *g, int32_t vocab, const int32_t *prompt, int n_prompt, int32_t *out,
                    int n)
{
    sl_arena *a;
    sl_err err = {0};
    int32_t n_pages = (n_prompt + n) / SL_PAGE_TOKENS + 1;
    sl_arena_opts ao = {.bytes = (uint64_t)(n_pages * g->page_bytes), .lock = SL_OFF, .numa_node = -1};
    SL_CHECK(sl_arena_create(g, &ao, &a, &err) == SL_OK, "%s", err.text);
    fake_opts fo = {.vocab = vocab, .max_context = 1 << 20, .max_step_tokens = 1 << 20, .max_seqs = 1};
    fake_runner *f = fake_create(a, &fo);
    int32_t *pages = malloc((size_t)n_pages * sizeof *pages);
    for (int32_t i = 0; i < n_pages; i++)
        pages[i] = i;
    void *seq;
    SL_CHECK(f_open(f, SL_RESIDENT, pages, n_pages, 0, &seq, &err) == SL_OK, "%s", err.text);
    sl_step_item it = {.seq = seq, .tokens = prompt, .n_tokens = n_prompt, .want_logits = true};
    for (int i = 0; i < n; i++) {
        SL_CHECK(f_step(f, &it, 1, NULL, &err) == SL_OK, "%s", err.text);
        int32_t best = 0;
        for (int32_t v = 1; v < vocab; v++)
            best = it.logits[v] > it.logits[best] ? v : best;
        out[i] = best;
        it.tokens = &out[i];
        it.n_tokens = 1;
    }
    f_close(f, seq);
    fake_destroy(f);
    sl_arena_destroy(a);
    free(pages);
}
