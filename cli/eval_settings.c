/* See eval_settings.h. */
#include "cli/eval_settings.h"

#include <stdlib.h>
#include <string.h>

#include "eval/ideal.h"
#include "worker/select.h"

enum { KEY_BYTES = 256 };

/* Sets sparse_attention.KEY=VALUE, of which text has the first n bytes after the dot. */
static sl_status set_key(sl_config *cfg, const char *text, size_t n, sl_err *err)
{
    char assignment[KEY_BYTES];
    if (n >= sizeof assignment - 32)
        return sl_fail(err, SL_ERR_TOO_LARGE, "\"%.40s...\" is too long", text);
    snprintf(assignment, sizeof assignment, "sparse_attention.%.*s", (int)n, text);
    return sl_config_set(cfg, assignment, err);
}

/* Sets the algorithm and the keys of an entry. */
static sl_status set_entry(sl_config *cfg, const char *entry, sl_err *err)
{
    char name[KEY_BYTES];
    size_t n = strcspn(entry, ":");
    if (n >= SL_CFG_CHOICE_BYTES)
        return sl_fail(err, SL_ERR_TOO_LARGE, "\"%.40s\" is no name of an algorithm", entry);
    snprintf(name, sizeof name, "algorithm=%.*s", (int)n, entry);
    SL_TRY(set_key(cfg, name, strlen(name), err));
    for (const char *at = entry + n; *at == ':';) {
        at++;
        n = strcspn(at, ":");
        SL_TRY(set_key(cfg, at, n, err));
        at += n;
    }
    return SL_OK;
}

/* A window gets what the sinks leave. */
static sl_status set_budget(sl_config *cfg, const sl_algo_desc *a, int32_t budget, sl_err *err)
{
    char text[KEY_BYTES];
    int sinks = cfg->sparse_attention.sink_tokens;
    if (strcmp(a->budget_key, "recent_tokens") == 0) {
        sinks = sinks ? sinks : a->default_sinks;
        if (budget <= sinks)
            return sl_fail(err, SL_ERR_INVALID, "a budget of %d tokens has no room for more than %d sinks",
                           budget, sinks);
        snprintf(text, sizeof text, "sink_tokens=%d", sinks);
        SL_TRY(set_key(cfg, text, strlen(text), err));
        budget -= sinks;
    }
    if (a->budget_unit) {
        const int32_t unit = a->budget_unit(sl_config_part(cfg, a->options));
        if (budget < unit)
            return sl_fail(err, SL_ERR_INVALID, "a budget of %d tokens is less than a page of %d", budget,
                           unit);
        budget /= unit;
    }
    snprintf(text, sizeof text, "%s=%d", a->budget_key, budget);
    return set_key(cfg, text, strlen(text), err);
}

/* The tokens of the longest list that the model fixes; 0: it grows with the context. */
static int32_t fixed_budget(const sl_local_checkpoint *c, const sl_setup_selection *s)
{
    sl_algo_dims d = {.n_layers = c->cfg.n_layers,
                      .max_step_tokens = 1,
                      .max_context = c->cfg.max_context,
                      .cache = sl_engine_cache_dims(&c->cfg, c->row_format, c->index_format)};
    d.cache.select = s->select;
    if (!s->algorithm->constant_k || sl_algo_cache_shape(s->algorithm, &d.cache, &d.shape, NULL) != SL_OK)
        return 0;
    return s->algorithm->width(&d, s->gates.min_tokens);
}

static sl_status add_setting(const sl_cli_eval_choice *c, const char *entry, const sl_algo_desc *a,
                             int32_t budget, sl_cli_eval_settings *out, sl_err *err)
{
    sl_config *cfg = &out->configs[out->n];
    sl_setup_selection chosen = {0};
    *cfg = *c->cfg;
    SL_TRY(set_entry(cfg, entry, err));
    if (budget)
        SL_TRY(set_budget(cfg, a, budget, err));
    SL_TRY(sl_config_check_read(cfg, err));
    SL_TRY(sl_setup_select(cfg, &c->checkpoint->cfg, &chosen, err));
    out->v[out->n] = (sl_eval_setting){
        .name = entry,
        .budget = budget ? budget : fixed_budget(c->checkpoint, &chosen),
        .chosen = {.algorithm = chosen.algorithm, .select = chosen.select, .gates = chosen.gates},
        .baseline = out->n == 0,
    };
    out->n++;
    return SL_OK;
}

static void tell(sl_cli_eval_settings *s, const char *entry, const sl_err *why)
{
    if (s->told != entry)
        fprintf(stderr, "sluice eval: left out: %s: %s\n", entry, why->text);
    s->told = entry;
}

/* One setting of an entry; a refusal is an error or a line on stderr. */
static sl_status try_setting(const sl_cli_eval_choice *c, const char *entry, const sl_algo_desc *a,
                             int32_t budget, sl_cli_eval_settings *out, sl_err *err)
{
    sl_err why = {""};
    sl_status st = add_setting(c, entry, a, budget, out, &why);
    if (st == SL_OK)
        return SL_OK;
    if (!c->possible)
        return sl_fail(err, st, "--algorithms: %s: %s", entry, why.text);
    tell(out, entry, &why);
    return SL_OK;
}

static sl_status add_entry(const sl_cli_eval_choice *c, const char *entry, sl_cli_eval_settings *out,
                           sl_err *err)
{
    char name[SL_CFG_CHOICE_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, ":"), entry);
    const sl_algo_desc *a = sl_algo_find(name);
    if (!a)
        return sl_fail_unknown(err, "--algorithms: sparse algorithm", name, sl_algo_names());
    if (!a->budget_key)
        return try_setting(c, entry, a, 0, out, err);
    for (int32_t i = 0; i < c->n_budgets; i++)
        SL_TRY(try_setting(c, entry, a, c->budgets[i], out, err));
    return SL_OK;
}

static bool has_budget(const sl_cli_eval_settings *s, int32_t budget)
{
    for (int32_t i = 0; i < s->n; i++)
        if (s->v[i].budget == budget && !s->v[i].ideal)
            return true;
    return false;
}

/* Rows of the most and the least that a list of that number of tokens can keep. */
static sl_status add_ideal(const sl_cli_eval_choice *c, const sl_algo_desc *ideal, sl_cli_eval_settings *out,
                           sl_err *err)
{
    for (int32_t i = 0; i < c->n_budgets; i++) {
        sl_eval_setting s = {.name = ideal->name, .budget = c->budgets[i], .ideal = true};
        if (!has_budget(out, c->budgets[i]))
            continue;
        s.chosen.algorithm = ideal;
        SL_TRY(sl_eval_ideal_select(ideal, c->budgets[i], &s.chosen.select, err));
        s.chosen.gates.min_tokens = c->cfg->sparse_attention.min_tokens;
        out->v[out->n++] = s;
    }
    return SL_OK;
}

sl_status sl_cli_eval_settings_make(const sl_cli_eval_choice *c, sl_cli_eval_settings *out, sl_err *err)
{
    *out = (sl_cli_eval_settings){.cap = 1 + (c->n_entries + 2) * (c->n_budgets > 1 ? c->n_budgets : 1)};
    out->v = calloc((size_t)out->cap, sizeof *out->v);
    out->configs = calloc((size_t)out->cap, sizeof *out->configs);
    if (!out->v || !out->configs)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for %d settings", out->cap);
    SL_TRY(add_setting(c, sl_algo_dense.name, &sl_algo_dense, 0, out, err));
    for (int32_t i = 0; i < c->n_entries; i++)
        SL_TRY(add_entry(c, c->entries[i], out, err));
    if (c->no_bounds)
        return SL_OK;
    SL_TRY(add_ideal(c, &sl_eval_exact_topk, out, err));
    return add_ideal(c, &sl_eval_random, out, err);
}

void sl_cli_eval_settings_free(sl_cli_eval_settings *s)
{
    free(s->v);
    free(s->configs);
    *s = (sl_cli_eval_settings){0};
}

void sl_cli_eval_settings_drop(sl_cli_eval_settings *s, int32_t i, const sl_err *why)
{
    tell(s, s->v[i].name, why);
    memmove(s->v + i, s->v + i + 1, (size_t)(s->n - i - 1) * sizeof *s->v);
    s->n--; /* the configurations stay where they are */
}
