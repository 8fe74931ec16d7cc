/*
 * The components of tokenizer.json around the model: normalizer, pre-tokenizer, post-processor and decoder.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_load.h"

/* The regex by which ByteLevel splits when use_regex is set: that of GPT-2. */
static const char GPT2_SPLIT[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- normalizer ---- */

sl_status tk_load_normalizer(tk_loader *l, const json_t *n)
{
    static const struct {
        const char *type;
        int options;
    } known[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    if (!n || json_is_null(n))
        return SL_OK;
    const char *type = tk_type(n);
    if (strcmp(type, "Sequence") == 0) {
        size_t i;
        json_t *item, *list = json_object_get(n, "normalizers");
        if (!json_is_array(list))
            return sl_fail(l->err, SL_ERR_INVALID, "normalizers: must be an array");
        json_array_foreach(list, i, item)
        {
            sl_status st = tk_load_normalizer(l, item);
            if (st != SL_OK)
                return sl_fail_in(l->err, st, "normalizers[%zu]", i);
        }
        return SL_OK;
    }
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (strcmp(type, known[i].type) != 0)
            continue;
        int *p = realloc(l->t->norm, (l->t->n_norm + 1) * sizeof *p);
        if (!p)
            return tk_no_memory(l);
        l->t->norm = p;
        p[l->t->n_norm++] = known[i].options;
        return SL_OK;
    }
    return sl_fail(l->err, SL_ERR_UNSUPPORTED, "type \"%.64s\" is not implemented", type);
}

/* ---- pre-tokenizer ---- */

static tk_step *new_step(tk_loader *l)
{
    tk_step *p = realloc(l->t->steps, (l->t->n_steps + 1) * sizeof *p);
    if (!p)
        return NULL;
    l->t->steps = p;
    p += l->t->n_steps++;
    *p = (tk_step){0};
    return p;
}

static sl_status add_regex(tk_loader *l, const char *pattern, size_t len, tk_behavior behavior, bool invert)
{
    tk_step *s = new_step(l);
    if (!s)
        return tk_no_memory(l);
    s->behavior = behavior;
    s->invert = invert;
    return tk_regex_compile(pattern, len, &s->regex, l->err);
}

static sl_status add_literal(tk_loader *l, const json_t *pattern, tk_behavior behavior, bool invert)
{
    if (json_string_length(pattern) == 0)
        return sl_fail(l->err, SL_ERR_INVALID, "pattern.String: must not be empty");
    tk_step *s = new_step(l);
    if (!s)
        return tk_no_memory(l);
    s->literal = tk_arena_copy(&l->t->arena, json_string_value(pattern), json_string_length(pattern));
    s->n_literal = json_string_length(pattern);
    s->behavior = behavior;
    s->invert = invert;
    return s->literal ? SL_OK : tk_no_memory(l);
}

static sl_status get_behavior(tk_loader *l, const json_t *split, tk_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *s = json_string_value(json_object_get(split, "behavior"));
    for (size_t i = 0; s && i < SL_COUNT(names); i++) {
        if (strcmp(s, names[i]) == 0) {
            *out = (tk_behavior)i;
            return SL_OK;
        }
    }
    return sl_fail(l->err, SL_ERR_INVALID, "behavior: \"%.64s\" is unknown", s ? s : "");
}

static sl_status add_split(tk_loader *l, const json_t *split)
{
    tk_behavior behavior = TK_ISOLATED;
    bool invert = false;
    SL_TRY(get_behavior(l, split, &behavior));
    SL_TRY(tk_get_bool(l, split, "invert", false, &invert));
    const json_t *pattern = json_object_get(split, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    if (json_is_string(regex)) {
        sl_status st = add_regex(l, json_string_value(regex), json_string_length(regex), behavior, invert);
        return st == SL_OK ? st : sl_fail_in(l->err, st, "pattern.Regex");
    }
    if (json_is_string(text))
        return add_literal(l, text, behavior, invert);
    return sl_fail(l->err, SL_ERR_INVALID, "pattern: must hold String or Regex");
}

static sl_status add_byte_level(tk_loader *l, const json_t *p)
{
    bool prefix, regex;
    SL_TRY(tk_get_bool(l, p, "add_prefix_space", true, &prefix));
    SL_TRY(tk_get_bool(l, p, "use_regex", true, &regex));
    l->byte_level = true;
    if (prefix && !new_step(l)) /* a step without a pattern inserts the space, see tk_step */
        return tk_no_memory(l);
    return regex ? add_regex(l, GPT2_SPLIT, sizeof GPT2_SPLIT - 1, TK_ISOLATED, false) : SL_OK;
}

static sl_status add_digits(tk_loader *l, const json_t *p)
{
    static const char digit[] = "\\p{N}";
    bool each;
    SL_TRY(tk_get_bool(l, p, "individual_digits", false, &each));
    return add_regex(l, digit, sizeof digit - 1, each ? TK_ISOLATED : TK_CONTIGUOUS, false);
}

sl_status tk_load_pretokenizer(tk_loader *l, const json_t *p)
{
    const char *type = tk_type(p);
    if (l->byte_level)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "\"%.64s\" after ByteLevel is not implemented", type);
    if (strcmp(type, "Split") == 0)
        return add_split(l, p);
    if (strcmp(type, "ByteLevel") == 0)
        return add_byte_level(l, p);
    if (strcmp(type, "Digits") == 0)
        return add_digits(l, p);
    if (strcmp(type, "Sequence") != 0)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "type \"%.64s\" is not implemented", type);
    size_t i;
    json_t *item, *list = json_object_get(p, "pretokenizers");
    if (!json_is_array(list))
        return sl_fail(l->err, SL_ERR_INVALID, "pretokenizers: must be an array");
    json_array_foreach(list, i, item)
    {
        sl_status st = tk_load_pretokenizer(l, item);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "pretokenizers[%zu]", i);
    }
    return SL_OK;
}

/* ---- post-processor ---- */

static sl_status prepend(tk_loader *l, tk_ids *to, const tk_ids *front)
{
    tk_ids all = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < front->n; i++)
        ok = tk_ids_push(&all, front->v[i]);
    for (size_t i = 0; ok && i < to->n; i++)
        ok = tk_ids_push(&all, to->v[i]);
    free(ok ? to->v : all.v);
    if (!ok)
        return tk_no_memory(l);
    *to = all;
    return SL_OK;
}

/* Appends the ids that special_tokens gives for a template piece. */
static sl_status template_ids(tk_loader *l, const json_t *tmpl, const json_t *piece, tk_ids *out)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(tmpl, "special_tokens"), name ? name : ""), "ids");
    if (!json_is_array(ids))
        return sl_fail(l->err, SL_ERR_INVALID, "special_tokens: lacks \"%.64s\"", name ? name : "");
    size_t i;
    json_t *v;
    json_array_foreach(ids, i, v)
    {
        int32_t id;
        SL_TRY(tk_get_id(l, v, &id));
        if (!tk_ids_push(out, id))
            return tk_no_memory(l);
    }
    return SL_OK;
}

static sl_status read_template(tk_loader *l, const json_t *tmpl, tk_ids *pre, tk_ids *post)
{
    const json_t *single = json_object_get(tmpl, "single");
    if (!json_is_array(single))
        return sl_fail(l->err, SL_ERR_INVALID, "single: must be an array");
    size_t i;
    json_t *piece;
    bool seen = false;
    json_array_foreach(single, i, piece)
    {
        const json_t *seq = json_object_get(piece, "Sequence"),
                     *special = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(seq, "id"));
        sl_status st = SL_OK;
        if (special)
            st = template_ids(l, tmpl, special, seen ? post : pre);
        else if (name && strcmp(name, "A") == 0 && !seen)
            seen = true;
        else
            st =
                sl_fail(l->err, SL_ERR_UNSUPPORTED, "only one sequence A and special tokens are implemented");
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "single[%zu]", i);
    }
    return seen ? SL_OK : sl_fail(l->err, SL_ERR_UNSUPPORTED, "single: a template without the sequence");
}

static sl_status add_template(tk_loader *l, const json_t *tmpl)
{
    tk_ids pre = {0}, post = {0};
    sl_status st = read_template(l, tmpl, &pre, &post);
    if (st != SL_OK)
        goto free_ids;
    st = prepend(l, &l->t->pre, &pre);
    if (st != SL_OK)
        goto free_ids;
    for (size_t i = 0; i < post.n; i++) {
        if (!tk_ids_push(&l->t->post, post.v[i])) {
            st = tk_no_memory(l);
            break;
        }
    }
free_ids:
    free(pre.v);
    free(post.v);
    return st;
}

sl_status tk_load_postprocessor(tk_loader *l, const json_t *p)
{
    if (!p || json_is_null(p))
        return SL_OK;
    const char *type = tk_type(p);
    if (strcmp(type, "ByteLevel") == 0)
        return SL_OK; /* it changes only offsets, which are not kept */
    if (strcmp(type, "TemplateProcessing") == 0)
        return add_template(l, p);
    if (strcmp(type, "Sequence") != 0)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "type \"%.64s\" is not implemented", type);
    size_t i;
    json_t *item, *list = json_object_get(p, "processors");
    if (!json_is_array(list))
        return sl_fail(l->err, SL_ERR_INVALID, "processors: must be an array");
    json_array_foreach(list, i, item)
    {
        sl_status st = tk_load_postprocessor(l, item);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "processors[%zu]", i);
    }
    return SL_OK;
}

/* ---- decoder ---- */

/* ByteLevel first; Fuse after it changes nothing. */
sl_status tk_check_decoder(tk_loader *l, const json_t *d, bool *bytes)
{
    const char *type = tk_type(d);
    if (strcmp(type, "ByteLevel") == 0 && !*bytes) {
        *bytes = true;
        return SL_OK;
    }
    if (strcmp(type, "Fuse") == 0 && *bytes)
        return SL_OK;
    if (strcmp(type, "Sequence") != 0)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED,
                       "\"%.64s\" here is not implemented, only ByteLevel then Fuse", type);
    size_t i;
    json_t *item, *list = json_object_get(d, "decoders");
    if (!json_is_array(list))
        return sl_fail(l->err, SL_ERR_INVALID, "decoders: must be an array");
    json_array_foreach(list, i, item)
    {
        sl_status st = tk_check_decoder(l, item, bytes);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "decoders[%zu]", i);
    }
    return SL_OK;
}
