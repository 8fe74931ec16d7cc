/* See document.h and maker.h: random numbers, room, filler sentences, and the parts of a document put together. */
#include "eval/document.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "eval/maker.h"

const char *const sl_eval_style_names[] = {"facts", "plain", NULL};

/* What surrounds the statements: before the text, and the question after it. */
static const struct frame {
    const char *text;                 /* opens the text */
    const char *question, *early;     /* opens the question: after the text, or before it */
    const char *late_text, *reminder; /* with an early question: opens the text, and ends the message */
} frames[] = {
    [SL_EVAL_FACTS] = {"Text:", " Question:", "Text: Question:", "", " Answer the question."},
    [SL_EVAL_PLAIN] =
        {"Read this text, which has many short statements, and answer the question after it in one short "
         "sentence, with the facts of the text alone.\n\nText:",
         "\n\nQuestion:",
         "Read this question and then the text, which has many short statements, and answer in one short "
         "sentence, with the facts of the text alone.\n\nQuestion:",
         "\n\nText:", "\n\nAnswer the question."},
};

int32_t sl_eval_count_pieces(void *ctx, const char *text, size_t len)
{
    int32_t n = 0;
    (void)ctx;
    for (size_t i = 0; i < len; n++) {
        i += text[i] == ' ' && i + 1 < len; /* a blank belongs to what follows */
        size_t from = i;
        while (i < len && isalpha((unsigned char)text[i]))
            i++;
        while (i < len && i < from + 2 && isdigit((unsigned char)text[i]))
            i++;
        i += i == from;
    }
    return n;
}

/* ---- what tasks call ---- */

/* splitmix64. */
static uint64_t next_random(sl_eval_maker *m)
{
    uint64_t z = m->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

int32_t sl_eval_below(sl_eval_maker *m, int32_t n)
{
    return (int32_t)((next_random(m) >> 32) * (uint64_t)n >> 32);
}

double sl_eval_place(sl_eval_maker *m)
{
    return (double)(next_random(m) >> 11) / 9007199254740992.0;
}

const char *sl_eval_pick(sl_eval_maker *m, sl_eval_word list)
{
    return sl_eval_word_lists[list].v[sl_eval_below(m, sl_eval_word_lists[list].n)];
}

int32_t *sl_eval_distinct(sl_eval_maker *m, int32_t n, int32_t of)
{
    int32_t *all = malloc((size_t)of * sizeof *all);
    m->bad |= !all;
    for (int32_t i = 0; all && i < of; i++)
        all[i] = i;
    for (int32_t i = 0; all && i < n; i++) {
        int32_t j = i + sl_eval_below(m, of - i), t = all[i];
        all[i] = all[j], all[j] = t;
    }
    return all;
}

int32_t sl_eval_cost(const sl_eval_maker *m, const char *text)
{
    return m->spec->counter.count(m->spec->counter.ctx, text, strlen(text));
}

void sl_eval_tell(sl_eval_maker *m, const char *text)
{
    if (m->n == m->cap) {
        int32_t cap = m->cap ? 2 * m->cap : 256;
        sl_eval_statement *v = realloc(m->v, (size_t)cap * sizeof *v);
        m->bad |= !v;
        if (!v)
            return;
        m->v = v, m->cap = cap;
    }
    sl_eval_statement *s = &m->v[m->n++];
    s->place = sl_eval_place(m);
    snprintf(s->text, sizeof s->text, "%s", text);
    m->room -= sl_eval_cost(m, text);
}

void sl_eval_value(sl_eval_maker *m, const char *value)
{
    if (m->out->n_values < SL_EVAL_VALUES)
        snprintf(m->out->values[m->out->n_values++], SL_EVAL_VALUE_BYTES, "%s", value);
}

/* ---- a document ---- */

static void filler_sentence(sl_eval_maker *m, char out[SL_EVAL_SENTENCE])
{
    const int32_t form = sl_eval_below(m, 3);
    const char *mood = sl_eval_pick(m, SL_EVAL_MOOD), *verb = sl_eval_pick(m, SL_EVAL_VERB);
    const char *time = sl_eval_pick(m, SL_EVAL_TIME), *place = sl_eval_pick(m, SL_EVAL_PLACE);
    const char *job = sl_eval_pick(m, SL_EVAL_JOB), *animal = sl_eval_pick(m, SL_EVAL_ANIMAL);
    const char *thing = sl_eval_pick(m, SL_EVAL_THING);
    if (form == 0)
        snprintf(out, SL_EVAL_SENTENCE, " In the %s, the %s %s %s near the %s.", time, mood, job, verb,
                 place);
    else if (form == 1)
        snprintf(out, SL_EVAL_SENTENCE, " The %s %s %s under the %s all day.", mood, animal, verb, thing);
    else
        snprintf(out, SL_EVAL_SENTENCE, " %s knows why the %s %s %s in the %s.", "Nobody", mood, animal, verb,
                 place);
}

/* Sentences without facts, until the next one has no room. */
static void fill(sl_eval_maker *m)
{
    char text[SL_EVAL_SENTENCE];
    for (;;) {
        filler_sentence(m, text);
        if (m->bad || sl_eval_cost(m, text) > m->room)
            return;
        sl_eval_tell(m, text);
    }
}

static int by_place(const void *a, const void *b)
{
    const sl_eval_statement *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

static void put_together(sl_eval_maker *m, sl_strbuf *user)
{
    const struct frame *f = &frames[m->spec->style];
    qsort(m->v, (size_t)m->n, sizeof *m->v, by_place);
    sl_sb_str(user, m->early ? f->early : f->text);
    if (m->early)
        sl_sb_printf(user, "%s%s", m->question, f->late_text);
    for (int32_t i = 0; i < m->n; i++)
        sl_sb_str(user, m->v[i].text);
    if (m->early)
        sl_sb_str(user, f->reminder);
    else
        sl_sb_printf(user, "%s%s", f->question, m->question);
}

/* The tokens of everything but the statements, with the question of the task or, before it is known, a long one. */
static int32_t frame_cost(const sl_eval_maker *m)
{
    const struct frame *f = &frames[m->spec->style];
    const char *question =
        m->question[0] ? m->question
                       : " What are the codes of the polished vase, the polished vase and the polished vase?";
    int32_t late = sl_eval_cost(m, f->text) + sl_eval_cost(m, f->question);
    int32_t early = sl_eval_cost(m, f->early) + sl_eval_cost(m, f->late_text) + sl_eval_cost(m, f->reminder);
    return (late > early ? late : early) + sl_eval_cost(m, question);
}

/* Depends on everything that the document is a function of. */
static uint64_t seed_of(const sl_eval_spec *s)
{
    const uint64_t numbers[] = {s->seed, (uint64_t)s->length, (uint64_t)s->index};
    return sl_hash_chain(sl_hash_chain((sl_key){0}, s->task->name, strlen(s->task->name)), numbers,
                         sizeof numbers)
        .lo;
}

static sl_status finish(sl_eval_maker *m, int32_t reserved, sl_strbuf *user, sl_err *err)
{
    if (m->room < 0)
        return sl_fail(err, SL_ERR_INVALID, "task %s needs %d tokens for its text and question, not %d",
                       m->spec->task->name, m->spec->length - m->room, m->spec->length);
    m->room += reserved - frame_cost(m);
    fill(m);
    put_together(m, user);
    m->out->user = sl_sb_take(user);
    m->out->answer = sl_sb_take(&m->answer);
    if (m->bad || !m->out->user || !m->out->answer)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for a document of %d tokens", m->spec->length);
    return SL_OK;
}

sl_status sl_eval_document_make(const sl_eval_spec *spec, sl_eval_document *out, sl_err *err)
{
    sl_eval_document made = {0};
    sl_eval_maker m = {.spec = spec, .random = seed_of(spec), .out = &made};
    sl_strbuf user = {0};
    const int32_t reserved = frame_cost(&m);
    m.room = spec->length - reserved;
    sl_sb_str(&m.answer, "Answer:");
    spec->task->make(&m);
    sl_status st = finish(&m, reserved, &user, err);
    free(m.v);
    sl_sb_free(&m.answer);
    sl_sb_free(&user);
    if (st == SL_OK)
        *out = made;
    else
        sl_eval_document_free(&made);
    return st;
}

void sl_eval_document_free(sl_eval_document *d)
{
    free(d->user);
    free(d->answer);
    *d = (sl_eval_document){0};
}

/* ---- answers ---- */

static bool equal_trimmed(const char *text, const char *want)
{
    size_t n;
    while (isspace((unsigned char)*text))
        text++;
    for (n = strlen(text); n && isspace((unsigned char)text[n - 1]);)
        n--;
    return n == strlen(want) && strncmp(text, want, n) == 0;
}

static bool has_word(const char *text, const char *want)
{
    size_t n = strlen(want);
    for (const char *at = text; (at = strcasestr(at, want)); at++)
        if ((at == text || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[n]))
            return true;
    return false;
}

bool sl_eval_right(const sl_eval_document *d, sl_eval_style style, const char *text)
{
    if (style == SL_EVAL_FACTS)
        return equal_trimmed(text, d->answer);
    for (int32_t i = 0; i < d->n_values; i++)
        if (!has_word(text, d->values[i]))
            return false;
    return true;
}
