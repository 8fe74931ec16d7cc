/* See sampling.h and choice.h. */
#include "engine/sampling.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine_impl.h"

enum { LIST_GROWS = 512 }; /* tokens for which a list has room when it is made */

sl_status sl_chosen_make(sl_engine *e, sl_chosen *c, sl_err *err)
{
    const size_t most = (size_t)e->choices.most;
    c->of = calloc(most, sizeof *c->of);
    if (!c->of)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    SL_TRY(sl_be_alloc(e->be, SL_MEM_HOST, most * sizeof *c->rows, (void **)&c->rows, err));
    SL_TRY(sl_be_alloc(e->be, SL_MEM_HOST, most * sizeof *c->out, (void **)&c->out, err));
    return sl_be_alloc(e->be, SL_MEM_HOST, most * e->choices.words * sizeof *c->masks, (void **)&c->masks,
                       err);
}

void sl_chosen_free(sl_engine *e, sl_chosen *c)
{
    free(c->of);
    sl_be_free(e->be, SL_MEM_HOST, c->rows);
    sl_be_free(e->be, SL_MEM_HOST, c->out);
    sl_be_free(e->be, SL_MEM_HOST, c->masks);
}

sl_status sl_choices_init(sl_engine *e, sl_err *err)
{
    sl_choices *c = &e->choices;
    const sl_model_config *cfg = e->cfg;
    size_t most = (size_t)e->max_logits;
    c->most = e->max_logits;
    c->words = sl_sample_mask_words(cfg->vocab_size);
    SL_TRY(sl_sampler_create(cfg->vocab_size, cfg->eos_ids, (size_t)cfg->n_eos, &c->host));
    SL_TRY(sl_dmem_alloc(e->mem, most * sizeof *c->rows_dev, (void **)&c->rows_dev, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * sizeof *c->out_dev, (void **)&c->out_dev, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * sizeof *c->next_dev, (void **)&c->next_dev, err));
    SL_TRY(sl_dmem_alloc(e->mem, most * c->words * sizeof *c->masks_dev, (void **)&c->masks_dev, err));
    c->pool_bytes = e->o.list_bytes > 0 ? e->o.list_bytes : (int64_t)most * SL_LIST_POOL;
    SL_TRY(sl_dmem_alloc(e->mem, (uint64_t)c->pool_bytes, (void **)&c->pool, err));
    c->op = (sl_sample_params){.logits = e->logits_dev,
                               .rows = c->rows_dev,
                               .out = c->out_dev,
                               .next = c->next_dev,
                               .n_logits = c->most,
                               .vocab = cfg->vocab_size,
                               .ld = cfg->vocab_size};
    c->device = sl_be_supports(e->be, SL_OP_SAMPLE, &c->op, NULL) == SL_OK;
    return SL_OK;
}

void sl_choices_fini(sl_engine *e)
{
    sl_choices *c = &e->choices;
    sl_sampler_destroy(c->host);
    sl_be_free(e->be, SL_MEM_DEVICE, c->rows_dev);
    sl_be_free(e->be, SL_MEM_DEVICE, c->out_dev);
    sl_be_free(e->be, SL_MEM_DEVICE, c->next_dev);
    sl_be_free(e->be, SL_MEM_DEVICE, c->masks_dev);
    sl_be_free(e->be, SL_MEM_DEVICE, c->pool);
}

/* ---- lists ---- */

/* The first place of the pool that no list of an open sequence has. */
static bool find_place(const sl_engine *e, int64_t bytes, int64_t *at)
{
    bool moved = true;
    *at = 0;
    while (moved) {
        moved = false;
        for (int32_t i = 0; i < e->o.max_seqs; i++) {
            const sl_seq_list *l = &e->seqs[i].list;
            if (l->bytes > 0 && *at < l->at + l->bytes && l->at < *at + bytes) {
                *at = l->at + l->bytes;
                moved = true;
            }
        }
    }
    return *at + bytes <= e->choices.pool_bytes;
}

/* Writes a list to its place. */
static sl_status write_list(sl_engine *e, int64_t at, const sl_sample_list *from, int32_t room, sl_err *err)
{
    sl_sample_list head = {.n = from->n, .room = room};
    uint8_t *to = e->choices.pool + at;
    e->stats.sample_lists++;
    SL_TRY(sl_be_copy(e->be, to, &head, sizeof head, err));
    return sl_be_copy(e->be, to + sizeof head, from->entry, (size_t)from->n * sizeof from->entry[0], err);
}

static int64_t list_bytes(int32_t room)
{
    return ((int64_t)sl_sample_list_bytes(room) + 63) / 64 * 64;
}

/* Makes the list of a sequence from its history. SL_ERR_EXHAUSTED: the pool has no room for it. */
static sl_status make_list(sl_engine *e, sl_seq *s, const sl_sample_list *from, bool grows, sl_err *err)
{
    sl_seq_list *l = &s->list;
    int32_t room = from->n + (grows ? LIST_GROWS : 0);
    int64_t bytes = list_bytes(room), at;
    l->bytes = 0;
    if (!find_place(e, bytes, &at))
        return SL_ERR_EXHAUSTED;
    *l = (sl_seq_list){.at = at, .bytes = bytes, .n = from->n, .room = room};
    return write_list(e, at, from, room, err);
}

static bool has_changes(const sl_engine *e, const sl_sampling *s, const sl_history *h)
{
    bool held = h->n_output < (size_t)s->min_tokens && (s->n_stop_ids || (e->cfg->n_eos && !s->ignore_eos));
    return s->n_bias > 0 || held || sl_sampling_penalises(s);
}

/* Whether the list has what the op counted in the last step, and the item adds just that to the sequence. */
static bool fits(const sl_seq_list *l, const sl_step_item *it, bool grows)
{
    return l->bytes > 0 && it->n_tokens == 1 && l->length == it->seq->len + 1 &&
           (it->follows || it->tokens[0] == l->last) && (!grows || l->n < l->room);
}

bool sl_engine_can_follow(const sl_engine *e, const sl_step_item *it)
{
    const sl_seq *s = it->seq;
    const sl_step_sample *w = it->sample;
    if (sl_engine_in_flight(e) == 0 || s->chosen_in != e->choices.steps || s->chosen_at < 0 ||
        it->n_tokens != 1)
        return false;
    return !w || !has_changes(e, w->sampling, &w->history) ||
           fits(&s->list, it, sl_sampling_penalises(w->sampling));
}

/* Brings the list of an item's sequence up to date; *list NULL: it has none. */
static sl_status current_list(sl_engine *e, const sl_step_item *it, sl_sample_list **list, sl_err *err)
{
    const sl_step_sample *w = it->sample;
    sl_seq_list *l = &it->seq->list;
    bool grows = sl_sampling_penalises(w->sampling);
    *list = NULL;
    if (!has_changes(e, w->sampling, &w->history)) {
        l->bytes = 0;
        return SL_OK;
    }
    bool as_is = fits(l, it, grows);
    if (!as_is && it->follows) /* its last token is not in the history */
        return sl_fail(err, SL_ERR_INTERNAL, "step: an item follows, but its list must be made anew");
    if (!as_is)
        SL_TRY(make_list(e, it->seq, sl_sampler_list(e->choices.host, w->sampling, &w->history), grows, err));
    *list = (sl_sample_list *)(void *)(e->choices.pool + l->at);
    return SL_OK;
}

/* The list of the k-th of several tokens of an item, which follows those of the tokens before it; *list NULL: it has none. Each token
 * adds an entry at most, and the op one for the token that it chooses. */
static sl_status list_of_several(sl_engine *e, const sl_step_item *it, int32_t k, sl_sample_list **list,
                                 sl_err *err)
{
    const sl_step_sample *w = &it->sample[k];
    sl_seq_list *l = &it->seq->list;
    *list = NULL;
    if (k == 0)
        l->bytes = 0;
    if (!has_changes(e, w->sampling, &w->history))
        return SL_OK;
    const sl_sample_list *from = sl_sampler_list(e->choices.host, w->sampling, &w->history);
    if (k == 0) {
        int64_t bytes = list_bytes(from->n + it->n_samples), at;
        if (find_place(e, bytes * it->n_samples, &at))
            *l = (sl_seq_list){.at = at, .bytes = bytes * it->n_samples};
    }
    if (l->bytes == 0)
        return SL_ERR_EXHAUSTED;
    int64_t at = l->at + l->bytes / it->n_samples * k;
    SL_TRY(write_list(e, at, from, from->n + 1, err));
    *list = (sl_sample_list *)(void *)(e->choices.pool + at);
    return SL_OK;
}

/* ---- a step ---- */

sl_status sl_choices_check(const sl_engine *e, const sl_step_item *it, sl_err *err)
{
    const int32_t n = sl_item_samples(it);
    if (it->n_samples < 0 || n > it->n_tokens || n > e->item_tokens)
        return sl_fail(err, SL_ERR_INVALID, "step: %d tokens to choose after %d, at most %d", it->n_samples,
                       it->n_tokens, e->item_tokens);
    for (int32_t k = 0; k < n; k++) {
        const sl_step_sample *w = &it->sample[k];
        int32_t length = it->seq->len + it->n_tokens - (n - 1 - k);
        if (!w->sampling)
            return sl_fail(err, SL_ERR_INVALID, "step: an item to sample has no parameters");
        if (w->history.n_prompt + w->history.n_output != (size_t)length)
            return sl_fail(err, SL_ERR_INVALID,
                           "step: a history of %zu and %zu tokens, the sequence will have %d",
                           w->history.n_prompt, w->history.n_output, length);
    }
    return SL_OK;
}

/* The k-th token of an item of which the last row of logits is `last`. */
static sl_status prepare_choice(sl_engine *e, sl_chosen *c, const sl_step_item *it, int32_t k, int32_t last,
                                sl_err *err)
{
    const int32_t n = sl_item_samples(it);
    sl_step_sample *w = &it->sample[k];
    sl_choice *o = &c->of[c->n];
    *o = (sl_choice){
        .seq = it->seq, .sample = w, .several = n > 1, .on_host = !e->choices.device, .mask_at = -1};
    if (w->mask)
        o->mask_at = c->n_masks++;
    sl_sample_row *r = &c->rows[c->n++];
    *r = sl_sampling_row(w->sampling, w->history.n_prompt + w->history.n_output, w->history.n_output);
    r->row = last - (n - 1 - k);
    sl_status st = o->on_host ? SL_OK
                   : n > 1    ? list_of_several(e, it, k, &r->list, err)
                              : current_list(e, it, &r->list, err);
    if (st != SL_OK && st != SL_ERR_EXHAUSTED)
        return st;
    o->on_host |= st == SL_ERR_EXHAUSTED;
    c->n_host += o->on_host;
    return SL_OK;
}

sl_status sl_choices_prepare(sl_engine *e, sl_flight *f, int32_t per, sl_err *err)
{
    sl_chosen *c = &f->chosen;
    int32_t row = 0;
    c->n = c->n_host = c->n_masks = 0;
    for (int32_t i = 0; i < f->n_items; i++) {
        const sl_step_item *it = &f->items[i];
        row += sl_item_rows(it);
        for (int32_t k = 0; k < sl_item_samples(it); k++)
            SL_TRY(prepare_choice(e, c, it, k, (per ? i * per + it->n_tokens : row) - 1, err));
    }
    return SL_OK;
}

/* Asks for the masks of the step. */
static sl_status take_masks(sl_engine *e, sl_chosen *c, sl_err *err)
{
    const size_t words = e->choices.words;
    for (int32_t i = 0; i < c->n; i++) {
        sl_choice *o = &c->of[i];
        if (o->mask_at < 0)
            continue;
        size_t at = (size_t)o->mask_at * words;
        o->mask = o->sample->mask(o->sample->mask_ctx);
        if (!o->mask.bits)
            continue;
        memcpy(c->masks + at, o->mask.bits, words * sizeof *c->masks);
        o->mask.bits = c->masks + at;
        c->rows[i].mask = e->choices.masks_dev + at;
        if (o->mask.ends)
            c->rows[i].hold_until = 0;
    }
    size_t bytes = (size_t)c->n_masks * words * sizeof *c->masks;
    return bytes ? sl_be_copy(e->be, e->choices.masks_dev, c->masks, bytes, err) : SL_OK;
}

/* A constraint that says nothing: no token is chosen. */
static bool has_no_mask(const sl_choice *o)
{
    return o->mask_at >= 0 && !o->mask.bits;
}

/* The rows of requests that the device chooses for are put first: ops have no gaps. */
static int32_t gather_rows(const sl_chosen *c)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->of[i].on_host && !has_no_mask(&c->of[i]))
            c->rows[n++] = c->rows[i];
    return n;
}

sl_status sl_choices_enqueue(sl_engine *e, sl_flight *f, sl_err *err)
{
    sl_choices *all = &e->choices;
    sl_chosen *c = &f->chosen;
    size_t vocab = (size_t)e->cfg->vocab_size;
    for (int32_t i = 0; i < c->n && !e->unified; i++) {
        size_t at = (size_t)c->rows[i].row * vocab;
        if (c->of[i].on_host)
            SL_TRY(sl_be_copy(e->be, e->logits_host + at, e->logits_dev + at, vocab * sizeof(float), err));
    }
    for (int32_t i = 0; i < c->n; i++)
        c->of[i].row = c->rows[i].row;
    SL_TRY(take_masks(e, c, err));
    all->op.n = gather_rows(c);
    if (all->op.n == 0)
        return SL_OK;
    SL_TRY(sl_be_copy(e->be, all->rows_dev, c->rows, (size_t)all->op.n * sizeof *c->rows, err));
    SL_TRY(sl_be_run(e->be, SL_OP_SAMPLE, &all->op, err));
    return sl_be_copy(e->be, c->out, all->out_dev, (size_t)all->op.n * sizeof *c->out, err);
}

void sl_choices_stepped(sl_engine *e)
{
    e->choices.steps++;
}

void sl_choices_submitted(sl_engine *e, sl_flight *f)
{
    int32_t k = 0;
    for (int32_t i = 0; i < f->chosen.n; i++) {
        const sl_choice *o = &f->chosen.of[i];
        sl_seq *s = o->seq;
        s->chosen_in = e->choices.steps;
        bool on_device = !o->on_host && !has_no_mask(o);
        s->chosen_at = on_device ? k++ : -1;
        if (o->several) { /* which of them counts is not known yet */
            s->list = (sl_seq_list){.length = -1};
            s->chosen_at = -1;
        }
        if (!on_device || o->several)
            continue;
        s->list.length = s->len + 1;
        s->list.last = -1;
        s->list.n++;
    }
}

void sl_choices_finish(sl_engine *e, sl_flight *f)
{
    int32_t k = 0;
    for (int32_t i = 0; i < f->chosen.n; i++) {
        sl_choice *o = &f->chosen.of[i];
        sl_step_sample *w = o->sample;
        uint64_t position = w->history.n_prompt + w->history.n_output;
        if (has_no_mask(o)) {
            w->out = (sl_sampled){.id = -1, .fault = SL_SAMPLE_NO_MASK};
            o->seq->list.bytes = 0;
        } else if (o->on_host) {
            const float *row = e->logits_host + (size_t)o->row * (size_t)e->cfg->vocab_size;
            sl_sampler_sample_or_fault(e->choices.host, row, w->sampling, &w->history, position,
                                       o->mask_at >= 0 ? &o->mask : NULL, &w->out);
            e->stats.sampled_on_host++;
        } else {
            w->out = f->chosen.out[k++];
            if (o->seq->list.length ==
                (int32_t)position + 1) /* else a later step has counted its token, too */
                o->seq->list.last = w->out.id;
        }
        e->stats.sampled++;
    }
    f->chosen.n = 0;
}

void sl_choices_abort(sl_flight *f)
{
    for (int32_t i = 0; i < f->chosen.n; i++)
        f->chosen.of[i].seq->list.bytes = 0;
    f->chosen.n = 0;
}
