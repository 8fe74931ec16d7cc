/*
 * Tokenizer: the functions of model/tokenizer.h, which use the tables that tokenizer_load.c has built, and the small
 * containers.
 *
 * Encoding goes through these stages: added tokens in the raw text, normalizer, added tokens in the normalized text,
 * pre-tokenizer, merges, template. All scratch memory belongs to the call, so threads share a tokenizer without locks.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tokenizer_impl.h"
#include "model/tokenizer_utf8.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- containers ---- */

char *tk_arena_copy(tk_arena *a, const void *bytes, size_t n)
{
    enum { BLOCK = 1 << 18 };
    if (n >= a->left) {
        size_t size = n + 1 > BLOCK ? n + 1 : BLOCK;
        tk_block *b = malloc(sizeof *b + size);
        if (!b)
            return NULL;
        b->next = a->blocks;
        a->blocks = b;
        a->at = (char *)(b + 1);
        a->left = size;
    }
    char *p = a->at;
    memcpy(p, bytes, n);
    p[n] = '\0';
    a->at += n + 1;
    a->left -= n + 1;
    return p;
}

void tk_arena_free(tk_arena *a)
{
    while (a->blocks) {
        tk_block *next = a->blocks->next;
        free(a->blocks);
        a->blocks = next;
    }
}

bool tk_spans_push(tk_spans *s, uint32_t start, uint32_t end, bool match)
{
    if (s->n == s->cap && sl_guard_grow(s->guard, (void **)&s->v, &s->cap, s->n + 1, sizeof *s->v, NULL))
        return false;
    s->v[s->n++] = (tk_span){start, end, match};
    return true;
}

bool tk_ids_push(tk_ids *s, int32_t id)
{
    if (s->n == s->cap && sl_guard_grow(s->guard, (void **)&s->v, &s->cap, s->n + 1, sizeof *s->v, NULL))
        return false;
    s->v[s->n++] = id;
    return true;
}

bool tk_map_reserve(tk_map *m, size_t n)
{
    size_t slots = 16;
    while (slots < n * 2)
        slots *= 2;
    m->slots = calloc(slots, sizeof *m->slots);
    m->mask = slots - 1;
    return m->slots != NULL;
}

static tk_map_slot *map_find(const tk_map *m, const char *key, size_t len)
{
    size_t at = XXH3_64bits(key, len) & m->mask;
    while (m->slots[at].key && !(m->slots[at].len == len && memcmp(m->slots[at].key, key, len) == 0))
        at = (at + 1) & m->mask;
    return &m->slots[at];
}

int32_t tk_map_get(const tk_map *m, const char *key, size_t len)
{
    const tk_map_slot *s = map_find(m, key, len);
    return s->key ? s->id : -1;
}

void tk_map_set(tk_map *m, const char *key, size_t len, int32_t id)
{
    tk_map_slot *s = map_find(m, key, len);
    m->n += s->key == NULL;
    *s = (tk_map_slot){key, (uint32_t)len, id};
}

/* Printable Latin-1 characters stand for themselves; the 68 other bytes are numbered from U+0100 on. */
static bool plain_byte(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t tk_byte_char(unsigned char b)
{
    if (plain_byte(b))
        return b;
    if (b <= 0x20)
        return 0x100u + b;
    return b == 0xAD ? 0x143u : 0x121u + (b - 0x7Fu);
}

int tk_char_byte(uint32_t c)
{
    if (c < 0x100)
        return plain_byte(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)(c - 0x100);
    if (c <= 0x142)
        return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

/* ---- encode ---- */

static sl_status normalized_text(tk_work *w, const char *text, size_t len)
{
    return tk_added_split(w, &w->t->added_normalized, text, len, tk_pretokenize);
}

static bool is_ascii(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] >= 0x80)
            return false;
    }
    return true;
}

static sl_status raw_text(tk_work *w, const char *text, size_t len)
{
    if (w->t->n_norm == 0 || is_ascii(text, len))
        return normalized_text(w, text, len);
    return tk_normalize(w, text, len, normalized_text);
}

static bool push_all(tk_ids *out, const tk_ids *in)
{
    for (size_t i = 0; i < in->n; i++) {
        if (!tk_ids_push(out, in->v[i]))
            return false;
    }
    return true;
}

/* Appends the ids of text to w->ids, between those of the post-processor if SL_TOK_ADD_SPECIAL is set. */
static sl_status encode_into(tk_work *w, const char *text, size_t len)
{
    bool wrap = w->flags & SL_TOK_ADD_SPECIAL;
    if (wrap && !push_all(&w->ids, &w->t->pre))
        return SL_ERR_NO_MEMORY;
    tk_work_cache(w, len);
    if (len)
        SL_TRY(tk_added_split(w, &w->t->added_raw, text, len, raw_text));
    if (wrap && !push_all(&w->ids, &w->t->post))
        return SL_ERR_NO_MEMORY;
    return SL_OK;
}

sl_status sl_tokenizer_encode(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                              int32_t **ids, size_t *n, sl_err *err)
{
    return sl_tokenizer_encode_mixed(t, text, len, flags, NULL, 0, ids, n, err);
}

sl_status sl_tokenizer_encode_mixed(const sl_tokenizer *t, const char *text, size_t len, unsigned flags,
                                    const sl_tok_range *plain, size_t n_plain, int32_t **ids, size_t *n,
                                    sl_err *err)
{
    const sl_tok_input in = {
        .text = text, .len = len, .flags = flags, .plain = plain, .n_plain = n_plain, .max_ids = SIZE_MAX};
    return sl_tokenizer_encode_input(t, &in, ids, n, err);
}

/* Normalizers compose characters, so that a text may become shorter than it was; the longest composition of several
 * characters into one keeps at least this part of their bytes. */
enum { SHRINK = 6 };

static sl_status too_many(size_t max, sl_err *err)
{
    return sl_fail(err, SL_ERR_TOO_LARGE, "the text has more than %zu tokens", max);
}

/* No id stands for more bytes than the longest token, so that some texts need not be looked at. */
static sl_status check_size(const sl_tokenizer *t, const sl_tok_input *in, sl_err *err)
{
    if (in->len > UINT32_MAX / 8)
        return sl_fail(err, SL_ERR_TOO_LARGE, "text has %zu bytes, at most %u are tokenized at once", in->len,
                       UINT32_MAX / 8);
    uint64_t longest = (uint64_t)t->max_bytes * (t->n_norm ? SHRINK : 1);
    bool hopeless = t->lossless && longest && in->len / longest > in->max_ids;
    return hopeless ? too_many(in->max_ids, err) : SL_OK;
}

/* The status of a failure: scratch memory that the guard has refused is not memory that the process does not have. */
static sl_status failed(const tk_work *w, sl_status st)
{
    if (st == SL_ERR_NO_MEMORY && w->guard && w->guard->refused)
        return sl_guard_refused(w->guard, w->err);
    return st;
}

sl_status sl_tokenizer_encode_input(const sl_tokenizer *t, const sl_tok_input *in, int32_t **ids, size_t *n,
                                    sl_err *err)
{
    SL_TRY(check_size(t, in, err));
    size_t valid = sl_utf8_valid_len(in->text, in->len);
    if (valid < in->len)
        return sl_fail(err, SL_ERR_INVALID, "text is not UTF-8 at byte %zu", valid);
    uint64_t held = in->guard ? in->guard->held : 0;
    tk_work w = {.t = t,
                 .flags = in->flags,
                 .plain = in->plain,
                 .n_plain = in->n_plain,
                 .base = in->text,
                 .guard = in->guard,
                 .max_ids = in->max_ids,
                 .err = err};
    w.ids.guard = w.a.guard = w.b.guard = w.matches.guard = in->guard;
    sl_status st = encode_into(&w, in->text, in->len);
    if (st == SL_OK && w.ids.n > in->max_ids)
        st = too_many(in->max_ids, err);
    if (st == SL_OK) {
        *ids = w.ids.n ? w.ids.v : NULL;
        *n = w.ids.n;
        held += w.ids.n ? w.ids.cap * sizeof *w.ids.v : 0;
        if (w.ids.n)
            w.ids.v = NULL; /* the caller's */
    }
    tk_work_free(&w);
    if (in->guard && in->guard->held > held)
        sl_guard_give(in->guard, in->guard->held - held);
    return failed(&w, st);
}

/* ---- decode ---- */

static const tk_token *token_at(const sl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_tokens && t->tokens[id].text ? &t->tokens[id] : NULL;
}

size_t sl_detok_bound(const sl_tokenizer *t)
{
    return (t->max_bytes + 4) * 3;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/* Emits the complete characters of tail + bytes; an incomplete character at the end becomes the new tail. */
static size_t scan(sl_detok *d, const unsigned char *p, size_t n, char *out)
{
    size_t at = 0, made = 0, len;
    while (at < n) {
        if (p[at] < 0x80) {
            out[made++] = (char)p[at++];
            continue;
        }
        sl_utf8_kind kind = sl_utf8_step(p + at, n - at, &len);
        if (kind == SL_UTF8_PARTIAL)
            break;
        if (kind == SL_UTF8_CHAR) {
            memcpy(out + made, p + at, len);
            made += len;
        } else {
            made += put_replacement(out + made);
        }
        at += len;
    }
    d->n_tail = (unsigned)(n - at);
    memcpy(d->tail, p + at, n - at);
    return made;
}

/* Feeds bytes that follow a tail. Bytes are added to the tail until its character is complete or invalid; all others
 * are scanned where they are, without a copy. */
static size_t feed(sl_detok *d, const char *bytes, size_t n, char *out)
{
    const unsigned char *p = (const unsigned char *)bytes;
    size_t made = 0;
    while (d->n_tail && n) {
        unsigned char head[4];
        unsigned had = d->n_tail;
        memcpy(head, d->tail, had);
        head[had] = *p++;
        n--;
        made += scan(d, head, had + 1u, out + made);
    }
    return n ? made + scan(d, p, n, out + made) : made;
}

size_t sl_detok_push(sl_detok *d, const sl_tokenizer *t, int32_t id, bool skip_special, char *out)
{
    const tk_token *tok = token_at(t, id);
    if (!tok || (skip_special && tok->skip))
        return 0;
    return feed(d, tok->bytes, tok->n_bytes, out);
}

size_t sl_detok_flush(sl_detok *d, char *out)
{
    bool left = d->n_tail > 0;
    d->n_tail = 0;
    return left ? put_replacement(out) : 0;
}

sl_status sl_tokenizer_decode(const sl_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                              char **text, size_t *len)
{
    size_t room = 8;
    for (size_t i = 0; i < n; i++) {
        const tk_token *tok = token_at(t, ids[i]);
        room += tok ? tok->n_bytes * 3u : 0;
    }
    char *out = malloc(room);
    if (!out)
        return SL_ERR_NO_MEMORY;
    sl_detok d = {{0}, 0};
    size_t made = 0;
    for (size_t i = 0; i < n; i++)
        made += sl_detok_push(&d, t, ids[i], skip_special, out + made);
    made += sl_detok_flush(&d, out + made);
    out[made] = '\0';
    *text = out;
    *len = made;
    return SL_OK;
}

/* ---- queries ---- */

const char *sl_tokenizer_piece(const sl_tokenizer *t, int32_t id, size_t *len)
{
    const tk_token *tok = token_at(t, id);
    *len = tok ? tok->n_bytes : 0;
    return tok ? tok->bytes : NULL;
}

const char *sl_tokenizer_token(const sl_tokenizer *t, int32_t id)
{
    const tk_token *tok = token_at(t, id);
    return tok ? tok->text : NULL;
}

int32_t sl_tokenizer_id(const sl_tokenizer *t, const char *token, size_t len)
{
    return tk_map_get(&t->by_text, token, len);
}

int32_t sl_tokenizer_vocab_size(const sl_tokenizer *t)
{
    return t->n_tokens;
}

bool sl_tokenizer_is_special(const sl_tokenizer *t, int32_t id)
{
    const tk_token *tok = token_at(t, id);
    return tok && (tok->flags & TK_SPECIAL);
}

bool sl_tokenizer_is_added(const sl_tokenizer *t, int32_t id)
{
    const tk_token *tok = token_at(t, id);
    return tok && (tok->flags & TK_ADDED);
}

int32_t sl_tokenizer_bos(const sl_tokenizer *t)
{
    return t->bos;
}

int32_t sl_tokenizer_eos(const sl_tokenizer *t)
{
    return t->eos;
}

void sl_tokenizer_destroy(sl_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_steps; i++)
        onig_free(t->steps[i].regex);
    free(t->steps);
    free(t->norm);
    free(t->pre.v);
    free(t->post.v);
    free(t->added_raw.nodes);
    free(t->added_normalized.nodes);
    free(t->merges.slots);
    free(t->by_text.slots);
    free(t->by_bytes.slots);
    free(t->tokens);
    tk_arena_free(&t->arena);
    free(t);
}
