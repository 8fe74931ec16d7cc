/* Binding of weights: walks the tensors that a family lists. */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ep.h"
#include "model/weights_impl.h"

/* A tensor by one of its names: parts > 1, part `part` of as many that the tensor of the file holds. */
typedef struct found_name {
    char text[128];
    int part, parts;
} found_name;

static void take_name(const char *prefix, const char *at, found_name *out)
{
    int n = (int)strcspn(at, "|#");
    *out = (found_name){.parts = 1};
    snprintf(out->text, sizeof out->text, "%s%.*s", prefix, n, at);
    if (at[n] == '#') /* written by a family's table: #0/2 */
        out->part = at[n + 1] - '0', out->parts = at[n + 3] - '0';
}

/* The first of the names that the checkpoint has, of names that are separated by |; the first one if it has none. */
static void choose_name(const sl_loader *l, const char *prefix, const char *names, found_name *out)
{
    for (const char *at = names;; at += strcspn(at, "|") + 1) {
        take_name(prefix, at, out);
        if (sl_checkpoint_find(l->ck, out->text))
            return;
        if (!at[strcspn(at, "|")])
            break;
    }
    take_name(prefix, names, out);
}

static sl_status bind_rows(sl_loader *l, const sl_tensor_spec *s, const char *name, int64_t rows,
                           sl_weight *out)
{
    if (s->kind == SL_K_VECTOR)
        return sl_bind_vector(l, name, rows, out);
    if (s->kind == SL_K_FLOATS || s->kind == SL_K_TAPS) {
        const bool taps = s->kind == SL_K_TAPS;
        const int64_t cols = s->cols(l->c), dims[3] = {rows, taps ? 1 : cols, cols};
        return sl_bind_floats(l, name, dims,
                              taps       ? 3
                              : cols > 1 ? 2
                                         : 1,
                              s->flags & SL_SPEC_CENTRED ? 1 : 0, out);
    }
    if (s->kind == SL_K_LONGS)
        return sl_bind_longs(l, name, rows, out);
    if (s->kind == SL_K_EXPERTS)
        return sl_bind_expert_ids(l, name, rows, s->cols(l->c), out);
    return sl_bind_matrix(l, name, rows, s->cols(l->c), s->kind == SL_K_LINEAR, out);
}

/* Whether no row leaves its block, so that the scales of F8 blocks stay as they are. */
static bool keeps_blocks(const sl_loader *l, const sl_row_map *map, int64_t rows)
{
    bool kept = map->file_rows(l->c) == rows;
    for (int64_t r = 0; kept && r < rows; r++)
        kept = map->row_of(l->c, r) / SL_F8_BLOCK == r / SL_F8_BLOCK;
    return kept;
}

/* A tensor of all rows of the file, whose placements begin at `first`, becomes its rows in another order, or some of them;
 * so do the multipliers of its groups. */
static sl_status bind_map(sl_loader *l, const sl_tensor_spec *s, const char *name, const sl_row_map *map,
                          size_t first, sl_weight *out)
{
    int64_t rows = s->rows(l->c), file_rows = map->file_rows(l->c);
    bool blocks = out->dtype == SL_F8_E4M3 && out->scale_type == SL_SCALE_BLOCKS;
    if (blocks && !keeps_blocks(l, map, rows))
        return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                       "%s: tensor %s: its rows must be reordered beyond the F8 blocks of %d rows",
                       sl_checkpoint_dir(l->ck), name, SL_F8_BLOCK);
    for (size_t i = first; i < l->n; i++) {
        sl_placement *p = &l->places[i];
        if ((blocks && i > first))
            continue;
        if (p->weight.data || (i > first && p->items))
            return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s: weights that are converted cannot be reordered",
                           sl_checkpoint_dir(l->ck), name);
        p->map = map, p->rows = rows, p->row_bytes = p->bytes / (size_t)file_rows;
        l->w->bytes -= p->bytes - p->row_bytes * (size_t)rows;
    }
    out->out = (int32_t)rows;
    return SL_OK;
}

/* Of a tensor whose placements begin at `first`, one of its parts; so of the multipliers of its groups. */
static sl_status bind_part(sl_loader *l, const found_name *name, size_t first, sl_weight *out)
{
    const bool blocks = out->dtype == SL_F8_E4M3 && out->scale_type == SL_SCALE_BLOCKS;
    const int32_t rows = out->out / name->parts;
    if (blocks && rows % SL_F8_BLOCK)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                       "%s: tensor %s: an F8 block would contain rows of two parts of %d rows",
                       sl_checkpoint_dir(l->ck), name->text, rows);
    for (size_t i = first; i < l->n; i++) {
        sl_placement *p = &l->places[i];
        if (p->weight.data || p->items)
            return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s: weights that are converted cannot be divided",
                           sl_checkpoint_dir(l->ck), name->text);
        const size_t bytes = p->bytes / (size_t)name->parts;
        l->w->bytes -= p->bytes - bytes;
        p->src = (const uint8_t *)p->src + bytes * (size_t)name->part;
        p->bytes = bytes;
    }
    out->out = rows;
    return SL_OK;
}

static sl_status bind_spec(sl_loader *l, const sl_tensor_spec *s, const found_name *name,
                           const sl_row_map *map, sl_weight *out)
{
    const size_t first = l->n;
    SL_CHECK(!map || name->parts == 1, "%s: a part whose rows are reordered", name->text);
    SL_TRY(bind_rows(l, s, name->text, map ? map->file_rows(l->c) : s->rows(l->c) * name->parts, out));
    if (name->parts > 1)
        return bind_part(l, name, first, out);
    return map ? bind_map(l, s, name->text, map, first, out) : SL_OK;
}

/* Where checkpoints have routed experts, and how they name gate, up and down of each. */
static const struct {
    const char *stem, *parts[3];
} expert_names[] = {
    {"mlp.experts", {"gate_proj", "up_proj", "down_proj"}},
    {"block_sparse_moe.experts", {"w1", "w3", "w2"}},
    {"ffn.experts", {"w1", "w3", "w2"}},
};

/* Whether a tensor of this name's beginning exists, whatever form its weight has. */
static bool has_stem(const sl_loader *l, const char *stem)
{
    static const char *const tails[] = {"weight", "weight_packed", "qweight"};
    char name[160];
    for (size_t i = 0; i < SL_COUNT(tails); i++) {
        snprintf(name, sizeof name, "%s.%s", stem, tails[i]);
        if (sl_checkpoint_find(l->ck, name))
            return true;
    }
    return false;
}

/* The row of expert_names that the checkpoint follows; the first one if it has none of them. */
static size_t names_of_experts(const sl_loader *l, int32_t layer)
{
    char stem[128];
    for (size_t i = 0; i < SL_COUNT(expert_names); i++) {
        snprintf(stem, sizeof stem, "model.layers.%d.%s.0.%s", layer, expert_names[i].stem,
                 expert_names[i].parts[0]);
        if (has_stem(l, stem))
            return i;
    }
    return 0;
}

static sl_status bind_experts(sl_loader *l, int32_t layer)
{
    const sl_model_config *c = l->c;
    sl_layer_weights *lw = &l->w->layers[layer];
    int64_t inter = c->moe.intermediate_size, hidden = c->hidden_size;
    char name[128], down[128];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    snprintf(down, sizeof down, "model.layers.%d.mlp.experts.down_proj", layer);
    if (sl_checkpoint_find(l->ck, name)) {
        sl_weight *both[2] = {lw->gate, lw->up}, *one[1] = {lw->down};
        SL_TRY(sl_bind_fused(l, name, 2, inter, hidden, both));
        return sl_bind_fused(l, down, 1, hidden, inter, one);
    }
    const size_t by = names_of_experts(l, layer);
    for (int32_t e = 0; e < c->moe.n_routed; e++) {
        sl_weight *outs[] = {&lw->gate[e], &lw->up[e], &lw->down[e]};
        l->elsewhere = sl_is_elsewhere(l, e);
        l->expert = e;
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.%d.%s.weight", layer, expert_names[by].stem, e,
                     expert_names[by].parts[p]);
            SL_TRY(sl_bind_matrix(l, name, p < 2 ? inter : hidden, p < 2 ? hidden : inter, true, outs[p]));
        }
    }
    l->elsewhere = false;
    l->expert = SL_CK_COMMON;
    return SL_OK;
}

/* "F8_E4M3", "I4 in groups of 32". */
static void write_form(const sl_weight *w, char *out, size_t cap)
{
    static const char *const names[] = {
        [SL_F32] = "F32",         [SL_BF16] = "BF16", [SL_F16] = "F16",
        [SL_F8_E4M3] = "F8_E4M3", [SL_I4] = "I4",     [SL_F4_E2M1] = "F4_E2M1"};
    size_t n = (size_t)snprintf(out, cap, "%s", names[w->dtype]);
    if (w->group)
        snprintf(out + n, cap - n, " in groups of %d", w->group);
}

/*
 * One kernel computes all experts of a layer, those of every rank: the order of sums would depend on the rank otherwise, or on the
 * expert. Every rank looks at all of them, so all refuse.
 */
static sl_status check_forms(const sl_loader *l, int32_t layer)
{
    static const char *const parts[] = {"gate", "up", "down"};
    const sl_layer_weights *lw = &l->w->layers[layer];
    const sl_weight *all[] = {lw->gate, lw->up, lw->down};
    char is[48], other[48];
    for (int p = 0; p < 3; p++)
        for (int32_t e = 1; e < l->c->moe.n_routed; e++) {
            if (sl_weight_same_form(&all[p][e], &all[p][0]))
                continue;
            write_form(&all[p][e], is, sizeof is);
            write_form(&all[p][0], other, sizeof other);
            return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                           "%s: layer %d: the %s projection of expert %d is %s, that of expert 0 %s: the "
                           "experts of a layer must be stored in one form",
                           sl_checkpoint_dir(l->ck), layer, parts[p], e, is, other);
        }
    return SL_OK;
}

static sl_status bind_moe(sl_loader *l, int32_t layer)
{
    sl_layer_weights *lw = &l->w->layers[layer];
    SL_TRY(bind_experts(l, layer));
    SL_TRY(check_forms(l, layer));
    lw->quantised = true;
    for (int32_t e = 0; e < l->c->moe.n_routed; e++)
        lw->quantised =
            lw->quantised && sl_weight_takes_e4m3(&lw->gate[e]) && sl_weight_takes_e4m3(&lw->up[e]);
    return SL_OK;
}

static sl_status bind_layer(sl_loader *l, const sl_family *f, int32_t layer)
{
    found_name name;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
    for (size_t i = 0; i < f->n_layer_tensors; i++) {
        const sl_tensor_spec *s = &f->layer_tensors[i];
        if (!sl_when_holds(s->when, l->c, layer))
            continue;
        choose_name(l, prefix, s->name, &name);
        l->to_bf16 = (s->flags & SL_SPEC_ABSORBED) && l->o->act == SL_BF16;
        SL_TRY(bind_spec(l, s, &name, f->row_map ? f->row_map(l->c, s->slot) : NULL,
                         &l->w->layers[layer].w[s->slot]));
        l->to_bf16 = false;
    }
    if (f->table && sl_when_holds(f->table->when, l->c, layer))
        SL_TRY(sl_bind_table(l, f->table, layer));
    return l->c->layer_is_moe[layer] ? bind_moe(l, layer) : SL_OK;
}

static sl_status alloc_tables(sl_loader *l)
{
    const sl_model_config *c = l->c;
    size_t moe = 0, e = (size_t)c->moe.n_routed;
    for (int32_t i = 0; i < c->n_layers; i++)
        moe += c->layer_is_moe[i];
    l->w->rank = l->o->rank;
    l->w->ranks = l->o->ranks > 1 ? l->o->ranks : 1;
    if (moe && l->w->ranks > c->moe.n_routed)
        return sl_fail(l->err, SL_ERR_INVALID, "%s: %d ranks share %d routed experts, every rank needs one",
                       sl_checkpoint_dir(l->ck), l->w->ranks, c->moe.n_routed);
    sl_ep_split(c->moe.n_routed, l->w->ranks, l->w->expert_first);
    l->w->n_layers = c->n_layers;
    l->w->layers = calloc((uint32_t)c->n_layers, sizeof *l->w->layers);
    l->w->experts = calloc(moe ? moe * e * 3 : 1, sizeof *l->w->experts);
    if (!l->w->layers || !l->w->experts)
        return sl_fail(l->err, SL_ERR_NO_MEMORY, "no memory for the tables of %d layers", c->n_layers);
    sl_weight *next = l->w->experts;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!c->layer_is_moe[i])
            continue;
        l->w->layers[i].gate = next;
        l->w->layers[i].up = next + e;
        l->w->layers[i].down = next + 2 * e;
        next += 3 * e;
    }
    return SL_OK;
}

/* Fixed scales of inputs, and of the rows of a cache, that a quantised checkpoint may carry and nothing uses: inputs are
 * quantised by their content, or not at all. */
static bool is_input_scale(const sl_model_config *c, const char *name)
{
    static const char *const tails[] = {".input_scale", ".input_global_scale", ".k_scale", ".v_scale"};
    const size_t n = strlen(name);
    for (size_t i = 0; c->quant.n > 0 && i < SL_COUNT(tails); i++)
        if (n > strlen(tails[i]) && strcmp(name + n - strlen(tails[i]), tails[i]) == 0)
            return true;
    return false;
}

/* Finds every tensor of the model and decides where each is placed. The caller frees what was allocated, also after an
 * error. */
static sl_status bind_all(sl_loader *l, const sl_family *f)
{
    l->expert = SL_CK_COMMON;
    SL_TRY(alloc_tables(l));
    for (size_t i = 0; i < f->n_model_tensors; i++) {
        const sl_tensor_spec *s = &f->model_tensors[i];
        found_name name;
        choose_name(l, "", s->name, &name);
        if (s->slot != SL_T_HEAD || !l->c->tie_word_embeddings)
            SL_TRY(bind_spec(l, s, &name, NULL, &l->w->w[s->slot]));
    }
    for (int32_t i = 0; i < l->c->n_layers; i++)
        SL_TRY(bind_layer(l, f, i));
    for (size_t i = 0; i < sl_checkpoint_count(l->ck); i++) {
        const sl_ck_tensor *t = sl_checkpoint_at(l->ck, i);
        if (!t->used && !sl_family_ignores(f, l->c, t->name) && !is_input_scale(l->c, t->name))
            return sl_fail(l->err, SL_ERR_INVALID, "%s: tensor %s is not part of a %s model of this config",
                           sl_st_label(t->file), t->t->name, f->model_type);
    }
    return SL_OK;
}

static void end_load(sl_loader *l)
{
    for (size_t i = 0; i < l->n_made; i++)
        free(l->made[i]);
    free(l->made);
    sl_end_tables(l);
    free(l->places);
}

sl_status sl_weights_load(sl_backend *be, sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, sl_weights *out, sl_err *err)
{
    sl_weights w = {.be = be};
    sl_loader l = {.be = be, .ck = ck, .c = c, .o = o, .w = &w, .err = err};
    sl_status rc = bind_all(&l, f);
    if (rc == SL_OK)
        rc = sl_weights_place_all(&l);
    if (rc == SL_OK)
        rc = sl_weights_place_tables(&l);
    end_load(&l);
    if (rc != SL_OK) {
        sl_weights_free(&w);
        return rc;
    }
    if (c->tie_word_embeddings)
        w.w[SL_T_HEAD] = w.w[SL_T_EMBED];
    *out = w;
    return SL_OK;
}

sl_status sl_weights_find(sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, uint64_t *bytes, sl_err *err)
{
    sl_weights w = {0};
    sl_loader l = {.ck = ck, .c = c, .o = o, .w = &w, .err = err};
    sl_status rc = bind_all(&l, f);
    if (bytes)
        *bytes = 0;
    for (size_t i = 0; bytes && i < l.n; i++)
        *bytes += sl_placed_bytes(&l.places[i]);
    end_load(&l);
    sl_weights_free(&w);
    return rc;
}

void sl_weights_free(sl_weights *w)
{
    if (w->block)
        sl_be_free(w->be, SL_MEM_DEVICE, w->block);
    sl_free_tables(w);
    free(w->experts);
    free(w->layers);
    *w = (sl_weights){0};
}
