/*
 * The tasks: what a document says and what is asked. Statements, questions and answers are those of
 * models/train/language.py, word by word (tests/unit/eval compares them), and the mixtures of statements those of
 * models/train/evaluate.py. Everything that is asked about is unique within its document.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/maker.h"

enum { DEPTH = 4, CODES = 8, ASKED = 3, MOST_CODES = 1000, MOST_CHAINS = 60, MOST_NAMES = 500 };

static int32_t count_of(sl_eval_word list)
{
    return sl_eval_word_lists[list].n;
}

static const char *word(sl_eval_word list, int32_t i)
{
    return sl_eval_word_lists[list].v[i];
}

/* ---- codes ---- */

typedef struct code {
    const char *quality, *thing;
    char value[8];
} code;

static void say_code(const code *c, char out[SL_EVAL_SENTENCE])
{
    snprintf(out, SL_EVAL_SENTENCE, " The code of the %s %s is %s.", c->quality, c->thing, c->value);
}

static void random_code(sl_eval_maker *m, char out[8])
{
    snprintf(out, 8, "%04d", sl_eval_below(m, 10000));
}

/* Tells n codes of different things (fewer if there are not as many); returns them, malloc'ed. */
static code *tell_codes(sl_eval_maker *m, int32_t *n)
{
    int32_t all = count_of(SL_EVAL_QUALITY) * count_of(SL_EVAL_THING), things = count_of(SL_EVAL_THING);
    *n = *n < all ? *n : all;
    int32_t *keys = sl_eval_distinct(m, *n, all);
    code *c = keys ? calloc((size_t)*n, sizeof *c) : NULL;
    m->bad |= !c;
    for (int32_t i = 0; c && i < *n; i++) {
        char text[SL_EVAL_SENTENCE];
        c[i].quality = word(SL_EVAL_QUALITY, keys[i] / things);
        c[i].thing = word(SL_EVAL_THING, keys[i] % things);
        random_code(m, c[i].value);
        say_code(&c[i], text);
        sl_eval_tell(m, text);
    }
    free(keys);
    return c;
}

static void answer_code(sl_eval_maker *m, const code *c)
{
    char text[SL_EVAL_SENTENCE];
    say_code(c, text);
    sl_sb_str(&m->answer, text);
    sl_eval_value(m, c->value);
}

static void ask_code(sl_eval_maker *m, const code *c)
{
    snprintf(m->question, sizeof m->question, " What is the code of the %s %s?", c->quality, c->thing);
    answer_code(m, c);
}

/* As many codes as cost about this number of tokens, at least `least`. */
static int32_t codes_in(const sl_eval_maker *m, int32_t tokens, int32_t least)
{
    int32_t n = tokens / sl_eval_cost(m, " The code of the crystal violin is 4711.");
    n = n < MOST_CODES ? n : MOST_CODES;
    return n > least ? n : least;
}

static void one_code_of(sl_eval_maker *m, int32_t n)
{
    code *c = tell_codes(m, &n);
    if (c)
        ask_code(m, &c[sl_eval_below(m, n)]);
    free(c);
}

static void needle(sl_eval_maker *m)
{
    one_code_of(m, 1);
}

static void multikey(sl_eval_maker *m)
{
    one_code_of(m, codes_in(m, m->room, 4));
}

static void several(sl_eval_maker *m)
{
    int32_t n = CODES;
    code *c = tell_codes(m, &n); /* in random order: the first ones are asked for */
    for (int32_t i = 0; c && i < ASKED; i++)
        answer_code(m, &c[i]);
    if (c)
        snprintf(m->question, sizeof m->question,
                 " What are the codes of the %s %s, the %s %s and the %s %s?", c[0].quality, c[0].thing,
                 c[1].quality, c[1].thing, c[2].quality, c[2].thing);
    free(c);
}

/* ---- persons ---- */

static const struct person_kind {
    const char *statement, *question; /* %s %s: first and last name; the value */
    sl_eval_word value;
} kinds[] = {
    {" %s %s lives in %s.", " Where does %s %s live?", SL_EVAL_CITY},
    {" %s %s likes the colour %s.", " Which colour does %s %s like?", SL_EVAL_COLOUR},
    {" %s %s works as a %s.", " What is the job of %s %s?", SL_EVAL_JOB},
    {" %s %s owns a %s.", " Which animal does %s %s own?", SL_EVAL_ANIMAL},
};

typedef struct person {
    const struct person_kind *kind;
    const char *first, *last, *value;
} person;

/* The formats are those of the table above. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void say_person(const person *p, char out[SL_EVAL_SENTENCE])
{
    snprintf(out, SL_EVAL_SENTENCE, p->kind->statement, p->first, p->last, p->value);
}

static void ask_person(sl_eval_maker *m, const person *p)
{
    char text[SL_EVAL_SENTENCE];
    snprintf(m->question, sizeof m->question, p->kind->question, p->first, p->last);
    say_person(p, text);
    sl_sb_str(&m->answer, text);
    sl_eval_value(m, p->value);
}
#pragma GCC diagnostic pop

/* Tells facts of about `tokens` tokens, at least four, and returns one of the first `of_kinds` kinds. False: no memory. */
static bool tell_persons(sl_eval_maker *m, int32_t tokens, int32_t of_kinds, person *asked)
{
    const int32_t n_kinds = SL_COUNT(kinds), lasts = count_of(SL_EVAL_LAST);
    int32_t *names = sl_eval_distinct(m, MOST_NAMES, count_of(SL_EVAL_FIRST) * lasts);
    int32_t *facts = names ? sl_eval_distinct(m, MOST_NAMES * n_kinds, MOST_NAMES * n_kinds) : NULL;
    int32_t end = m->room - tokens, matching = 0;
    for (int32_t i = 0; facts && i < MOST_NAMES * n_kinds && (i < 4 || !matching || m->room > end); i++) {
        int32_t name = names[facts[i] / n_kinds];
        char text[SL_EVAL_SENTENCE];
        person p = {.kind = &kinds[facts[i] % n_kinds],
                    .first = word(SL_EVAL_FIRST, name / lasts),
                    .last = word(SL_EVAL_LAST, name % lasts)};
        p.value = sl_eval_pick(m, p.kind->value);
        say_person(&p, text);
        sl_eval_tell(m, text);
        if (facts[i] % n_kinds < of_kinds && sl_eval_below(m, ++matching) == 0)
            *asked = p; /* every fact with the same probability */
    }
    bool good = facts != NULL;
    free(facts);
    free(names);
    return good;
}

static void persons(sl_eval_maker *m)
{
    person p;
    if (tell_persons(m, m->room - 16, SL_COUNT(kinds), &p))
        ask_person(m, &p);
}

/* ---- chains of variables ---- */

static void variable_name(int32_t i, char out[16])
{
    snprintf(out, 16, "%s%d", word(SL_EVAL_VARIABLE, i / 10), i % 10);
}

/* One chain: the first variable is a number, every further one is the variable before it. Asks for the last one. */
static void tell_chain(sl_eval_maker *m, const int32_t *variables, bool ask)
{
    char name[DEPTH][16], value[8], text[SL_EVAL_SENTENCE];
    random_code(m, value);
    for (int32_t i = 0; i < DEPTH; i++) {
        variable_name(variables[i], name[i]);
        snprintf(text, sizeof text, " Let %s = %s.", name[i], i ? name[i - 1] : value);
        sl_eval_tell(m, text);
    }
    if (!ask)
        return;
    snprintf(m->question, sizeof m->question, " What is the value of %s?", name[DEPTH - 1]);
    for (int32_t i = DEPTH; i-- > 0;)
        sl_sb_printf(&m->answer, " %s =", name[i]);
    sl_sb_printf(&m->answer, " %s.", value);
    sl_eval_value(m, value);
}

static void chain(sl_eval_maker *m)
{
    int32_t link = sl_eval_cost(m, " Let omega0 = upsilon7."), n = m->room / 10 * 7 / (DEPTH * link);
    n = n < 1 ? 1 : n < MOST_CHAINS ? n : MOST_CHAINS;
    int32_t *names = sl_eval_distinct(m, n * DEPTH, count_of(SL_EVAL_VARIABLE) * 10);
    int32_t asked = sl_eval_below(m, n);
    for (int32_t i = 0; names && i < n; i++)
        tell_chain(m, names + (int64_t)i * DEPTH, i == asked);
    free(names);
}

/* ---- the question before the text ---- */

static void early(sl_eval_maker *m)
{
    int32_t part = m->room / 10 * 3, n = codes_in(m, part, 2);
    code *c = tell_codes(m, &n);
    person p;
    m->early = true;
    if (!c || !tell_persons(m, part, 1, &p))
        m->bad = true;
    else if (m->spec->index % 2)
        ask_person(m, &p);
    else
        ask_code(m, &c[sl_eval_below(m, n)]);
    free(c);
}

const sl_eval_task sl_eval_tasks[] = {
    {"needle", "one code among sentences without facts", needle},
    {"several", "three of eight codes, in one answer", several},
    {"multikey", "one of as many codes as the text holds, at most 1,000", multikey},
    {"persons", "one of as many facts about persons as the text holds, at most 2,000", persons},
    {"chain", "a variable at the end of a chain of four, among as many chains as the text holds, at most 60",
     chain},
    {"early", "a code or a city, with the question before the text", early},
    {NULL, NULL, NULL},
};

const sl_eval_task *sl_eval_task_find(const char *name)
{
    for (const sl_eval_task *t = sl_eval_tasks; t->name; t++)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}

const char *const *sl_eval_task_names(void)
{
    static const char *names[SL_COUNT(sl_eval_tasks)];
    for (size_t i = 0; i < SL_COUNT(sl_eval_tasks); i++)
        names[i] = sl_eval_tasks[i].name;
    return names;
}
