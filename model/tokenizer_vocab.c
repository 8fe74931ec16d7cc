/*
 * The token tables of tokenizer.json: the BPE model's vocabulary and merges, and the added tokens.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_load.h"
#include "model/tokenizer_utf8.h"

/* ---- vocabulary ---- */

static sl_status grow_tokens(tk_loader *l, int32_t n)
{
    sl_tokenizer *t = l->t;
    if (n <= t->n_tokens)
        return SL_OK;
    tk_token *p = realloc(t->tokens, (size_t)n * sizeof *p);
    if (!p)
        return tk_no_memory(l);
    memset(p + t->n_tokens, 0, (size_t)(n - t->n_tokens) * sizeof *p);
    t->tokens = p;
    t->n_tokens = n;
    return SL_OK;
}

/* Sets the bytes to which the spelling decodes: the spelling itself if it has a character outside the byte alphabet. */
static bool set_bytes(tk_loader *l, tk_token *tok, const char *text, size_t len)
{
    char *out = tk_arena_copy(&l->t->arena, text, len);
    if (!out)
        return false;
    size_t n = 0, step;
    tok->alphabet = true;
    for (size_t at = 0; at < len; at += step) {
        sl_utf8_step((const unsigned char *)text + at, len - at, &step);
        int b = tk_char_byte(sl_utf8_get((const unsigned char *)text + at));
        if (b < 0) {
            memcpy(out, text, len);
            n = len;
            tok->alphabet = false;
            break;
        }
        out[n++] = (char)b;
    }
    tok->bytes = out;
    tok->n_bytes = (uint32_t)n;
    if (n > l->t->max_bytes)
        l->t->max_bytes = n;
    return true;
}

static sl_status set_token(tk_loader *l, int32_t id, const char *text, size_t len)
{
    tk_token *tok = &l->t->tokens[id];
    tok->text = tk_arena_copy(&l->t->arena, text, len);
    tok->n_text = (uint32_t)len;
    if (!tok->text || !set_bytes(l, tok, text, len))
        return tk_no_memory(l);
    tk_map_set(&l->t->by_text, tok->text, len, id);
    return SL_OK;
}

static sl_status load_vocab(tk_loader *l, json_t *vocab, size_t n_added)
{
    if (!json_is_object(vocab))
        return sl_fail(l->err, SL_ERR_INVALID, "model.vocab: must be an object of token: id");
    size_t n = json_object_size(vocab);
    if (!tk_map_reserve(&l->t->by_text, n + n_added))
        return tk_no_memory(l);
    const char *key;
    json_t *v;
    int32_t id, limit = 0;
    json_object_foreach(vocab, key, v)
    {
        sl_status st = tk_get_id(l, v, &id);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "model.vocab[\"%.64s\"]", key);
        if (id >= limit)
            limit = id + 1;
    }
    SL_TRY(grow_tokens(l, limit));
    json_object_foreach(vocab, key, v)
    {
        id = (int32_t)json_integer_value(v);
        if (l->t->tokens[id].text)
            return sl_fail(l->err, SL_ERR_INVALID,
                           "model.vocab: id %d belongs to both \"%.64s\" and \"%.64s\"", id,
                           l->t->tokens[id].text, key);
        SL_TRY(set_token(l, id, key, strlen(key)));
    }
    return SL_OK;
}

static sl_status index_bytes(tk_loader *l)
{
    sl_tokenizer *t = l->t;
    char spelled[4];
    for (unsigned b = 0; b < 256; b++) {
        size_t n = sl_utf8_put(tk_byte_char((unsigned char)b), spelled);
        t->byte_id[b] = tk_map_get(&t->by_text, spelled, n);
    }
    if (!t->ignore_merges)
        return SL_OK;
    if (!tk_map_reserve(&t->by_bytes, t->by_text.n))
        return tk_no_memory(l);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        const tk_token *tok = &t->tokens[id];
        if (tok->alphabet)
            tk_map_set(&t->by_bytes, tok->bytes, tok->n_bytes, id);
    }
    return SL_OK;
}

/* ---- merges ---- */

typedef struct half {
    const char *text;
    size_t len;
} half;

static bool split_merge(const json_t *m, half *a, half *b)
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
        *a = (half){json_string_value(x), json_string_length(x)};
        *b = (half){json_string_value(y), json_string_length(y)};
        return a->text && b->text;
    }
    const char *s = json_string_value(m);
    const char *space = s ? strchr(s, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    *a = (half){s, (size_t)(space - s)};
    *b = (half){space + 1, json_string_length(m) - a->len - 1};
    return true;
}

/* How many bytes of a half are shown in an error text. */
static int shown(half h)
{
    return h.len < 64 ? (int)h.len : 64;
}

static sl_status add_merge(tk_loader *l, const json_t *m, uint32_t rank)
{
    half a, b;
    if (!split_merge(m, &a, &b))
        return sl_fail(l->err, SL_ERR_INVALID, "must be \"left right\" or [left, right]");
    const tk_map *vocab = &l->t->by_text;
    int32_t left = tk_map_get(vocab, a.text, a.len), right = tk_map_get(vocab, b.text, b.len);
    if (left < 0 || right < 0)
        return sl_fail(l->err, SL_ERR_INVALID, "\"%.*s\" is not in model.vocab", shown(left < 0 ? a : b),
                       left < 0 ? a.text : b.text);
    char stack[256], *joined = stack;
    if (a.len + b.len > sizeof stack && !(joined = malloc(a.len + b.len)))
        return tk_no_memory(l);
    memcpy(joined, a.text, a.len);
    memcpy(joined + a.len, b.text, b.len);
    int32_t id = tk_map_get(vocab, joined, a.len + b.len);
    if (joined != stack)
        free(joined);
    if (id < 0)
        return sl_fail(l->err, SL_ERR_INVALID, "the merged token \"%.*s%.*s\" is not in model.vocab",
                       shown(a), a.text, shown(b), b.text);
    tk_merges_set(&l->t->merges, left, right, rank, id);
    return SL_OK;
}

static sl_status load_merges(tk_loader *l, const json_t *merges)
{
    if (!json_is_array(merges))
        return sl_fail(l->err, SL_ERR_INVALID, "model.merges: must be an array");
    if (!tk_merges_reserve(&l->t->merges, json_array_size(merges)))
        return tk_no_memory(l);
    size_t i;
    json_t *m;
    uint32_t rank = 0;
    json_array_foreach(merges, i, m)
    {
        const char *s = json_string_value(m);
        if (s && strncmp(s, "#version", 8) == 0)
            continue;
        sl_status st = add_merge(l, m, rank++);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "model.merges[%zu]", i);
    }
    return SL_OK;
}

/* Keys of the BPE model that change ids and are not implemented must be off. */
static sl_status refuse_model_keys(tk_loader *l, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < SL_COUNT(affixes); i++) {
        if (json_string_length(json_object_get(model, affixes[i])) > 0)
            return sl_fail(l->err, SL_ERR_UNSUPPORTED, "model.%s: is not implemented", affixes[i]);
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "model.dropout: is not implemented");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "model.byte_fallback: is not implemented");
    return SL_OK;
}

sl_status tk_load_model(tk_loader *l, const json_t *model, size_t n_added)
{
    if (!json_is_object(model))
        return sl_fail(l->err, SL_ERR_INVALID, "model: missing");
    const char *type = tk_type(model);
    /* older files do not give the type of a BPE model */
    if (type[0] && strcmp(type, "BPE") != 0)
        return sl_fail(l->err, SL_ERR_UNSUPPORTED, "model.type: \"%.64s\" is not implemented, only BPE",
                       type);
    SL_TRY(refuse_model_keys(l, model));
    SL_TRY(tk_get_bool(l, model, "fuse_unk", false, &l->t->fuse_unk));
    SL_TRY(tk_get_bool(l, model, "ignore_merges", false, &l->t->ignore_merges));
    SL_TRY(load_vocab(l, json_object_get(model, "vocab"), n_added));
    SL_TRY(load_merges(l, json_object_get(model, "merges")));
    SL_TRY(index_bytes(l));
    const json_t *unk = json_object_get(model, "unk_token");
    if (!json_is_string(unk))
        return SL_OK;
    l->t->unk = tk_map_get(&l->t->by_text, json_string_value(unk), json_string_length(unk));
    if (l->t->unk < 0)
        return sl_fail(l->err, SL_ERR_INVALID, "model.unk_token: \"%.64s\" is not in model.vocab",
                       json_string_value(unk));
    return SL_OK;
}

/* ---- added tokens ---- */

static sl_status get_flags(tk_loader *l, const json_t *item, uint32_t *flags)
{
    static const struct {
        const char *name;
        uint32_t bit;
        bool fallback;
    } known[] = {
        {"special", TK_SPECIAL, false}, {"normalized", TK_NORMALIZED, true},    {"lstrip", TK_LSTRIP, false},
        {"rstrip", TK_RSTRIP, false},   {"single_word", TK_SINGLE_WORD, false},
    };
    *flags = TK_ADDED;
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        bool on;
        SL_TRY(tk_get_bool(l, item, known[i].name, known[i].fallback, &on));
        *flags |= on ? known[i].bit : 0;
    }
    return SL_OK;
}

/* Runs the normalizers over text; *out is malloc'ed. */
static sl_status normalize(tk_loader *l, const char *text, size_t len, char **out, size_t *n)
{
    char *now = malloc(len + 1);
    if (!now)
        return tk_no_memory(l);
    memcpy(now, text, len);
    for (size_t i = 0; i < l->t->n_norm; i++) {
        utf8proc_uint8_t *next = NULL;
        utf8proc_ssize_t rc = utf8proc_map((utf8proc_uint8_t *)now, (utf8proc_ssize_t)len, &next,
                                           (utf8proc_option_t)l->t->norm[i]);
        free(now);
        if (rc < 0)
            return sl_fail(l->err, SL_ERR_INVALID, "normalizer: %s", utf8proc_errmsg(rc));
        now = (char *)next;
        len = (size_t)rc;
    }
    *out = now;
    *n = len;
    return SL_OK;
}

/* Adds token id to the trie in which it is found: a token with the flag "normalized" by its normalized spelling. */
static sl_status match_token(tk_loader *l, int32_t id)
{
    sl_tokenizer *t = l->t;
    tk_token *tok = &t->tokens[id];
    tok->skip = tok->flags & TK_SPECIAL;
    if (!(tok->flags & TK_NORMALIZED))
        return tk_trie_add(&t->added_raw, tok->text, tok->n_text, id);
    char *spelled = NULL;
    size_t n = 0;
    SL_TRY(normalize(l, tok->text, tok->n_text, &spelled, &n));
    bool changed = n != tok->n_text || memcmp(spelled, tok->text, n) != 0;
    sl_status st = n ? tk_trie_add(&t->added_normalized, spelled, n, id) : SL_OK;
    if (st != SL_OK)
        goto free_spelled;
    /* A token whose spelling the normalizer changes decodes to the changed spelling, which is not in the list of
     * special tokens. */
    if (changed) {
        tok->skip = false;
        st = set_bytes(l, tok, spelled, n) ? SL_OK : tk_no_memory(l);
    }
free_spelled:
    free(spelled);
    return st;
}

/* An added token that is not in the vocabulary: sets its text. */
static sl_status new_token(tk_loader *l, int32_t id, const char *text, size_t len)
{
    SL_TRY(grow_tokens(l, id + 1));
    if (l->t->tokens[id].text)
        return sl_fail(l->err, SL_ERR_INVALID, "id: %d is already that of \"%.64s\"", id,
                       l->t->tokens[id].text);
    return set_token(l, id, text, len);
}

static sl_status add_token(tk_loader *l, const json_t *item, int32_t *next_id)
{
    sl_tokenizer *t = l->t;
    const json_t *content = json_object_get(item, "content");
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    int32_t id;
    if (!text)
        return sl_fail(l->err, SL_ERR_INVALID, "content: must be a string");
    sl_status st = tk_get_id(l, json_object_get(item, "id"), &id);
    if (st != SL_OK)
        return sl_fail_in(l->err, st, "id");
    if (len == 0)
        return SL_OK;
    int32_t known = tk_map_get(&t->by_text, text, len), expected = known >= 0 ? known : *next_id;
    if (id != expected)
        return sl_fail(l->err, SL_ERR_INVALID, "id: is %d, but \"%.64s\" would be token %d", id, text,
                       expected);
    if (known < 0) {
        ++*next_id;
        SL_TRY(new_token(l, id, text, len));
    } else if (t->tokens[id].flags & TK_ADDED) {
        return sl_fail(l->err, SL_ERR_INVALID, "content: \"%.64s\" is listed twice", text);
    }
    SL_TRY(get_flags(l, item, &t->tokens[id].flags));
    st = match_token(l, id);
    return st == SL_ERR_INVALID && l->err && !l->err->text[0]
               ? sl_fail(l->err, st, "content: \"%.64s\", when normalized, equals another added token", text)
               : st;
}

sl_status tk_load_added(tk_loader *l, const json_t *list)
{
    size_t i;
    json_t *item;
    int32_t next_id = (int32_t)l->t->by_text.n;
    json_array_foreach(list, i, item)
    {
        sl_status st = add_token(l, item, &next_id);
        if (st != SL_OK)
            return sl_fail_in(l->err, st, "added_tokens[%zu]", i);
    }
    return SL_OK;
}
