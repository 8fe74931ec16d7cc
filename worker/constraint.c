/* See constraint.h. All constraints of a worker share one lock, which is never held while a grammar works. */
#include "worker/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/engine.h"
#include "worker/mask_limit.h"
#include "worker/worker_impl.h"

/* 64 masks of 129,280 ids take 1 to 25 ms of one core (tests/bench/masks), and a step of a large model 12. */
enum { MASKERS_MAX = 8, CORES_OF_A_MASKER = 4 };

/* A mask that took more processor time than this, some ten times what the slowest ordinary one takes, makes its constraint heavy
 * permanently: a thread of its own makes the masks of these, so that they wait for each other, and no step of other requests for them. */
#define HEAVY_NS 20000000ull

typedef enum { COMPILING, HEAVY, MASKING, QUEUES } queue_kind;

typedef struct queue {
    sl_constraint *first, *last;
    pthread_cond_t more;
} queue;

struct sl_constraint {
    sl_constraints *of;
    sl_constraint *next;        /* in a queue */
    sl_constraint *after, **to; /* in the list of all */
    sl_grammar_kind kind;
    int32_t begins; /* as sl_sampling.constraint_after */
    char *text;     /* until it is compiled */
    size_t n_text;
    int32_t *output; /* n_output tokens, of which the grammar has taken n_taken */
    size_t n_output, n_taken, room;
    bool working, queued, closed, compiled, slow, heavy, ends;
    bool awaited;        /* its request sits out steps */
    sl_grammar *grammar; /* of the thread that works on it */
    uint32_t *bits;      /* of the token after n_taken tokens */
    bool has_mask;
    sl_status status;
    sl_err err;
};

struct sl_constraints {
    sl_grammars *grammars;
    size_t words;
    sl_mailbox *wake;
    pthread_mutex_t lock; /* of the queues and of all constraints, but for what a thread works on */
    pthread_cond_t done;  /* a mask was made */
    queue queues[QUEUES];
    sl_constraint *all;
    pthread_t threads[QUEUES - 1 + MASKERS_MAX];
    int n_threads;
    bool stop;
    uint64_t heavy_ns;
    uint64_t limit_ns, waited_ns; /* a mask that took longer makes its constraint slow; since the last step */
    sl_grammars_stats seen;
    struct {
        sl_counter *compiled, *kept, *refused, *seconds;
        sl_histogram *mask;
    } m;
};

/* ---- queues; with the lock ---- */

/* What is compiled waits for shorter texts, because long ones can take a second each and one client can send hundreds of them; masks
 * are made in turn. */
static void enqueue(sl_constraint *c)
{
    queue *q = &c->of->queues[!c->compiled ? COMPILING : c->heavy ? HEAVY : MASKING];
    sl_constraint **at = &q->first;
    if (c->compiled && q->first)
        at = &q->last->next;
    while (*at && (*at)->n_text <= c->n_text)
        at = &(*at)->next;
    c->next = *at;
    *at = c;
    if (!c->next)
        q->last = c;
    c->queued = true;
    pthread_cond_signal(&q->more);
}

static sl_constraint *dequeue(queue *q)
{
    sl_constraint *c = q->first;
    q->first = c->next;
    c->queued = false;
    return c;
}

static void unlink_and_free(sl_constraint *c)
{
    *c->to = c->after;
    if (c->after)
        c->after->to = c->to;
    sl_grammar_close(c->grammar);
    free(c->text);
    free(c->output);
    free(c->bits);
    free(c);
}

/* The loop of the engine thread looks again. Without memory for the mail it does so within a tenth of a second. */
static void wake(sl_constraints *cs)
{
    sl_wmail *m = cs->wake ? calloc(1, sizeof *m) : NULL;
    if (!m)
        return;
    m->kind = SL_WMAIL_WAKE;
    sl_mailbox_post(cs->wake, &m->link);
}

/* ---- threads ---- */

static uint64_t processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The work on c, without the lock: what is after the first `have` tokens of output is taken and the mask made. */
static sl_status work(sl_constraint *c, const int32_t *output, size_t have, sl_err *err)
{
    if (!c->grammar) {
        SL_TRY(sl_grammar_open(c->of->grammars, c->kind, c->text, c->n_text, &c->grammar, err));
        if (c->begins)
            sl_grammar_after(c->grammar, c->begins - 1);
    }
    SL_TRY(sl_grammar_take(c->grammar, output, have, err));
    SL_TRY(sl_grammar_mask(c->grammar, c->bits, err));
    c->ends = sl_grammar_must_end(c->grammar);
    return SL_OK;
}

/* mask_ns: the time of a mask; 0: it was compiled as well. */
static void count(sl_constraints *cs, uint64_t mask_ns)
{
    sl_grammars_stats now;
    sl_grammars_stats_get(cs->grammars, &now);
    sl_counter_add(cs->m.compiled, now.compiled - cs->seen.compiled);
    sl_counter_add(cs->m.kept, now.kept - cs->seen.kept);
    sl_counter_add(cs->m.refused, now.refused - cs->seen.refused);
    sl_counter_add(cs->m.seconds, (uint64_t)((now.seconds - cs->seen.seconds) * 1e9));
    cs->seen = now;
    if (mask_ns)
        sl_histogram_observe(cs->m.mask, (double)mask_ns / 1e9);
}

/* With the lock, which it gives back while it works. */
static void work_on(sl_constraints *cs, sl_constraint *c)
{
    const size_t n = c->n_output - c->n_taken;
    int32_t *output = malloc((n + 1) * sizeof *output);
    sl_err err = {{0}};
    sl_status st = SL_ERR_NO_MEMORY;
    if (output && n)
        memcpy(output, c->output + c->n_taken, n * sizeof *output);
    c->working = true;
    c->has_mask = false;
    pthread_mutex_unlock(&cs->lock);
    const uint64_t begin = sl_now_ns(), used = processor_ns();
    if (output)
        st = work(c, output, n, &err);
    const uint64_t ns = sl_now_ns() - begin, work_ns = processor_ns() - used;
    free(output);
    pthread_mutex_lock(&cs->lock);
    c->working = false;
    c->n_taken += n;
    c->has_mask = st == SL_OK;
    const bool compiles = !c->compiled;
    c->compiled = true;
    c->heavy |= !compiles && work_ns > cs->heavy_ns;
    c->slow = c->heavy || (!compiles && ns > cs->limit_ns);
    c->status = st;
    c->err = err;
    count(cs, compiles ? 0 : ns);
    if (c->awaited)
        wake(cs);
    c->awaited = false;
    if (c->closed)
        unlink_and_free(c);
    else if (st == SL_OK && c->n_taken < c->n_output)
        enqueue(c);
    pthread_cond_broadcast(&cs->done);
}

typedef struct thread_arg {
    sl_constraints *cs;
    queue_kind kind;
} thread_arg;

static void *run(void *arg)
{
    thread_arg a = *(thread_arg *)arg;
    sl_constraints *cs = a.cs;
    queue *q = &cs->queues[a.kind];
    free(arg);
    pthread_mutex_lock(&cs->lock);
    while (!cs->stop) {
        if (q->first)
            work_on(cs, dequeue(q));
        else
            pthread_cond_wait(&q->more, &cs->lock);
    }
    pthread_mutex_unlock(&cs->lock);
    return NULL;
}

static sl_status start_thread(sl_constraints *cs, queue_kind kind)
{
    thread_arg *a = malloc(sizeof *a);
    if (!a)
        return SL_ERR_NO_MEMORY;
    *a = (thread_arg){cs, kind};
    if (pthread_create(&cs->threads[cs->n_threads], NULL, run, a) != 0) {
        free(a);
        return SL_ERR_NO_MEMORY;
    }
    cs->n_threads++;
    return SL_OK;
}

/* One thread of each kind is enough; the others are tried. */
static sl_status start_threads(sl_constraints *cs)
{
    long more = sysconf(_SC_NPROCESSORS_ONLN) / CORES_OF_A_MASKER;
    while (cs->n_threads < QUEUES)
        SL_TRY(start_thread(cs, (queue_kind)cs->n_threads));
    while (cs->n_threads < QUEUES - 1 + MASKERS_MAX && cs->n_threads < QUEUES + more - 1 &&
           start_thread(cs, MASKING) == SL_OK)
        ;
    return SL_OK;
}

/* ---- all of a worker ---- */

static void find_metrics(sl_constraints *cs, sl_metrics *m)
{
    cs->m.compiled = sl_metrics_counter(m, "sluice_constraints_compiled_total", SL_LABELS("compiled"));
    cs->m.kept = sl_metrics_counter(m, "sluice_constraints_compiled_total", SL_LABELS("kept"));
    cs->m.refused = sl_metrics_counter(m, "sluice_constraints_compiled_total", SL_LABELS("refused"));
    cs->m.seconds = sl_metrics_counter(m, "sluice_constraints_compile_seconds_total", NULL);
    cs->m.mask = sl_metrics_histogram(m, "sluice_constraint_mask_seconds", NULL);
}

sl_status sl_constraints_create(const sl_constraints_opts *o, sl_constraints **out, sl_err *err)
{
    sl_constraints *cs = calloc(1, sizeof *cs);
    if (!cs)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_grammars_opts late = o->grammars;
    late.late = true;
    cs->wake = o->wake;
    cs->limit_ns = SL_MASK_LIMIT_LEAST_NS;
    cs->heavy_ns = o->heavy_ns ? o->heavy_ns : HEAVY_NS;
    pthread_mutex_init(&cs->lock, NULL);
    pthread_cond_init(&cs->done, NULL);
    for (int i = 0; i < QUEUES; i++)
        pthread_cond_init(&cs->queues[i].more, NULL);
    if (o->metrics)
        find_metrics(cs, o->metrics);
    sl_status st = sl_grammars_open(&late, &cs->grammars, err);
    if (st == SL_OK) {
        cs->words = sl_grammar_mask_words(cs->grammars);
        *out = cs;
    } else {
        sl_constraints_destroy(cs);
    }
    return st;
}

void sl_constraints_destroy(sl_constraints *cs)
{
    if (!cs)
        return;
    pthread_mutex_lock(&cs->lock);
    cs->stop = true;
    for (int i = 0; i < QUEUES; i++)
        pthread_cond_broadcast(&cs->queues[i].more);
    pthread_mutex_unlock(&cs->lock);
    for (int i = 0; i < cs->n_threads; i++)
        pthread_join(cs->threads[i], NULL);
    while (cs->all)
        unlink_and_free(cs->all);
    sl_grammars_close(cs->grammars);
    for (int i = 0; i < QUEUES; i++)
        pthread_cond_destroy(&cs->queues[i].more);
    pthread_cond_destroy(&cs->done);
    pthread_mutex_destroy(&cs->lock);
    free(cs);
}

void sl_constraints_stepped(sl_constraints *cs, uint64_t step_ns)
{
    if (!cs)
        return;
    pthread_mutex_lock(&cs->lock);
    cs->limit_ns = sl_mask_limit(cs->limit_ns, step_ns, cs->waited_ns);
    cs->waited_ns = 0;
    pthread_mutex_unlock(&cs->lock);
}

/* ---- of one request ---- */

/* With the lock. */
static sl_status add_output(sl_constraint *c, const int32_t *output, size_t n)
{
    if (n <= c->n_output)
        return SL_OK;
    if (n > c->room) {
        size_t room = n + n / 2 + 64;
        int32_t *more = realloc(c->output, room * sizeof *more);
        if (!more)
            return SL_ERR_NO_MEMORY;
        c->output = more;
        c->room = room;
    }
    memcpy(c->output + c->n_output, output + c->n_output, (n - c->n_output) * sizeof *output);
    c->n_output = n;
    return SL_OK;
}

/* With the lock. */
static sl_status add(sl_constraints *cs, sl_constraint *c, const int32_t *output, size_t n)
{
    if (!c || !c->bits || !c->text || add_output(c, output, n) != SL_OK)
        return SL_ERR_NO_MEMORY;
    if (!cs->n_threads)
        SL_TRY(start_threads(cs));
    c->to = &cs->all;
    c->after = cs->all;
    if (c->after)
        c->after->to = &c->after;
    cs->all = c;
    enqueue(c);
    return SL_OK;
}

sl_status sl_constraint_open(sl_constraints *cs, const sl_sampling *s, const int32_t *output, size_t n,
                             sl_constraint **out)
{
    *out = NULL;
    if (s->constraint == SL_GRAMMAR_NONE)
        return SL_OK;
    sl_constraint *c = calloc(1, sizeof *c);
    if (!c)
        return SL_ERR_NO_MEMORY;
    *c = (sl_constraint){
        .of = cs, .kind = s->constraint, .begins = s->constraint_after, .n_text = s->n_grammar};
    c->text = malloc(c->n_text + 1);
    c->bits = calloc(cs->words, sizeof *c->bits);
    if (c->text && c->n_text)
        memcpy(c->text, s->grammar, c->n_text);
    pthread_mutex_lock(&cs->lock);
    sl_status st = add(cs, c, output, n);
    pthread_mutex_unlock(&cs->lock);
    if (st == SL_OK) {
        *out = c;
    } else {
        free(c->text);
        free(c->output);
        free(c->bits);
        free(c);
    }
    return st;
}

/* With the lock: a constraint that waits in a queue leaves it. */
static void leave_queue(sl_constraint *c)
{
    for (int k = 0; k < QUEUES && c->queued; k++) {
        queue *q = &c->of->queues[k];
        sl_constraint *before = NULL;
        for (sl_constraint *x = q->first; x; before = x, x = x->next) {
            if (x != c)
                continue;
            *(before ? &before->next : &q->first) = c->next;
            if (q->last == c)
                q->last = before;
            c->queued = false;
            break;
        }
    }
}

void sl_constraint_close(sl_constraint *c)
{
    if (!c)
        return;
    sl_constraints *cs = c->of;
    pthread_mutex_lock(&cs->lock);
    leave_queue(c);
    c->closed = true;
    if (!c->working)
        unlink_and_free(c);
    pthread_mutex_unlock(&cs->lock);
}

void sl_constraint_follow(sl_constraint *c, const int32_t *output, size_t n)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->of->lock);
    if (c->status == SL_OK && n > c->n_output) {
        c->has_mask = false;
        c->status = add_output(c, output, n);
        if (c->status == SL_OK && !c->working && !c->queued)
            enqueue(c);
    }
    pthread_mutex_unlock(&c->of->lock);
}

/* With the lock: the mask of the next token is there. */
static bool is_made(const sl_constraint *c)
{
    return c->has_mask && c->n_taken == c->n_output && !c->working;
}

bool sl_constraint_ready(sl_constraint *c)
{
    if (!c)
        return true;
    pthread_mutex_lock(&c->of->lock);
    bool ready = c->status != SL_OK || is_made(c) || (c->compiled && !c->slow);
    c->awaited |= !ready;
    pthread_mutex_unlock(&c->of->lock);
    return ready;
}

bool sl_constraint_keeps_up(sl_constraint *c)
{
    if (!c)
        return true;
    pthread_mutex_lock(&c->of->lock);
    bool quick = c->status == SL_OK && c->compiled && !c->slow;
    pthread_mutex_unlock(&c->of->lock);
    return quick;
}

sl_status sl_constraint_failed(sl_constraint *c, sl_err *err)
{
    if (!c)
        return SL_OK;
    pthread_mutex_lock(&c->of->lock);
    sl_status st = c->status;
    if (st != SL_OK && err)
        *err = c->err;
    pthread_mutex_unlock(&c->of->lock);
    return st;
}

sl_token_mask sl_constraint_token_mask(void *ctx)
{
    sl_constraint *c = ctx;
    pthread_mutex_lock(&c->of->lock);
    const bool waits = c->status == SL_OK && !is_made(c);
    const uint64_t begin = waits ? sl_now_ns() : 0;
    while (c->status == SL_OK && !is_made(c))
        pthread_cond_wait(&c->of->done, &c->of->lock);
    c->of->waited_ns += waits ? sl_now_ns() - begin : 0;
    sl_token_mask mask = {c->status == SL_OK ? c->bits : NULL, c->ends};
    pthread_mutex_unlock(&c->of->lock);
    return mask;
}

void sl_constraint_apply(sl_constraint *c, struct sl_step_sample *w)
{
    w->mask = c ? sl_constraint_token_mask : NULL;
    w->mask_ctx = c;
}
