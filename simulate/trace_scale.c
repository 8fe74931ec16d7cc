/* See trace.h: changed and made-up traces. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate/random.h"
#include "simulate/trace.h"

static bool allocate(sl_sim_trace *t, size_t requests, size_t ids)
{
    *t = (sl_sim_trace){.requests = calloc(requests ? requests : 1, sizeof *t->requests),
                        .ids = malloc((ids ? ids : 1) * sizeof *t->ids)};
    if (t->requests && t->ids)
        return true;
    sl_sim_trace_free(t);
    return false;
}

static int by_arrival(const void *a, const void *b)
{
    const sl_sim_request *x = a, *y = b;
    if (x->arrival_ns != y->arrival_ns)
        return x->arrival_ns < y->arrival_ns ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Copy number c of the first n requests. Its times go round: what is shifted over the end comes at the beginning. */
static void add_copy(sl_sim_trace *out, const sl_sim_trace *t, size_t n, uint32_t c, double speed,
                     uint64_t shift)
{
    uint64_t last = t->requests[n - 1].arrival_ns + 1;
    size_t ids = t->requests[n - 1].first + t->requests[n - 1].n_blocks;
    for (size_t i = 0; i < n; i++) {
        sl_sim_request q = t->requests[i];
        uint64_t at = shift ? (q.arrival_ns + shift) % last : q.arrival_ns;
        q.arrival_ns = (uint64_t)((double)at / speed);
        q.first += (uint32_t)out->n_ids;
        out->requests[out->n++] = q;
    }
    for (size_t i = 0; i < ids; i++)
        out->ids[out->n_ids++] = t->ids[i] + c * t->n_blocks;
}

sl_status sl_sim_trace_scale(const sl_sim_trace *t, const sl_sim_scale *how, sl_sim_trace *out, sl_err *err)
{
    size_t n = how->max_requests > 0 && (size_t)how->max_requests < t->n ? (size_t)how->max_requests : t->n;
    size_t copies = how->copies > 1 ? (size_t)how->copies : 1;
    size_t ids = t->requests[n - 1].first + t->requests[n - 1].n_blocks;
    uint64_t seed = how->seed, span = t->requests[n - 1].arrival_ns + 1;
    if (!(how->speed > 0) || ids * copies > UINT32_MAX || t->n_blocks * copies > 1u << 29)
        return sl_fail(err, SL_ERR_INVALID,
                       "a trace of %zu times %zu requests at a speed of %g is not possible", copies, n,
                       how->speed);
    if (!allocate(out, n * copies, ids * copies))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory for %zu requests", n * copies);
    for (size_t c = 0; c < copies; c++)
        add_copy(out, t, n, (uint32_t)c, how->speed, c ? sl_sim_random(&seed) % span : 0);
    out->n_blocks = t->n_blocks * (uint32_t)copies;
    if (copies > 1)
        qsort(out->requests, out->n, sizeof *out->requests, by_arrival);
    return SL_OK;
}

/* ---- made-up traces ---- */

/*
 * Users talk in conversations. A request either begins one, with a first block that all conversations have in
 * common, or continues one: its prompt is the full blocks of the former prompt and some more. How many requests ago
 * the former turn was is log-normal. The constants are near those of the conversation trace, of which 38.7 % of the
 * requests continue a prompt after 423 others (median); they were then adjusted until the hit rates of LRU caches
 * of 1K to 50K blocks agreed.
 */
enum { MAX_BLOCKS = 247 };
static const double CONTINUES = 0.387, RATE_PER_S = 3.4, AGE = 550, AGE_SPREAD = 1.0;

/* Numbers of blocks or tokens: `few` of them are 1 to few_most, the others log-normal. */
typedef struct lengths {
    double few, few_most, median, spread, most;
} lengths;

static const lengths BEGUN = {0.27, 2, 17, 0.95, MAX_BLOCKS}, CONTINUED = {0.45, 2, 6, 1.1, MAX_BLOCKS},
                     OUTPUT = {0.15, 60, 400, 0.45, 2000};

typedef struct talk {
    uint32_t first, n_blocks;
    bool continued;
} talk;

static double log_normal(uint64_t *rng, double median, double spread)
{
    double u = sl_sim_random_real(rng), v = sl_sim_random_real(rng);
    return median * exp(spread * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
}

static uint32_t draw(uint64_t *rng, const lengths *l)
{
    bool few = sl_sim_random_real(rng) < l->few;
    double n = few ? 1 + l->few_most * sl_sim_random_real(rng) : log_normal(rng, l->median, l->spread);
    return n < 1 ? 1 : n > l->most ? (uint32_t)l->most : (uint32_t)n;
}

/* The request that is continued, of the n so far: one that was not continued yet; n: there is none. */
static size_t draw_talk(uint64_t *rng, const talk *talks, size_t n)
{
    double age = log_normal(rng, AGE, AGE_SPREAD);
    for (size_t i = age < (double)n ? n - (size_t)age : 0; i > 0; i--)
        if (!talks[i - 1].continued)
            return i - 1;
    return n;
}

/* Appends the blocks of one request; old: the blocks that it repeats. */
static void add_request(sl_sim_trace *t, uint64_t *rng, const talk *old, uint32_t more, uint64_t at)
{
    uint32_t keep = old ? old->n_blocks : 1, n = keep + more > MAX_BLOCKS ? MAX_BLOCKS : keep + more;
    keep = keep < n ? keep : n - 1;
    sl_sim_request *q = &t->requests[t->n++];
    *q = (sl_sim_request){.arrival_ns = at, .first = (uint32_t)t->n_ids, .n_blocks = n};
    for (uint32_t i = 0; i < n; i++)
        t->ids[t->n_ids++] = i >= keep ? t->n_blocks++ : old ? t->ids[old->first + i] : 0;
    uint32_t rest = 1 + (uint32_t)(sl_sim_random(rng) % SL_SIM_BLOCK_TOKENS);
    q->input = (int32_t)((n - 1) * SL_SIM_BLOCK_TOKENS + rest);
    q->output = (int32_t)draw(rng, &OUTPUT);
}

sl_status sl_sim_trace_make(size_t n, uint64_t seed, sl_sim_trace *out)
{
    uint64_t rng = seed;
    double at = 0;
    if (!allocate(out, n, n * (MAX_BLOCKS + 1)))
        return SL_ERR_NO_MEMORY;
    talk *talks = malloc((n ? n : 1) * sizeof *talks);
    if (!talks) {
        sl_sim_trace_free(out);
        return SL_ERR_NO_MEMORY;
    }
    out->n_blocks = 1;
    for (size_t i = 0; i < n; i++) {
        size_t from = sl_sim_random_real(&rng) < CONTINUES ? draw_talk(&rng, talks, i) : i;
        bool again = from < i;
        if (again)
            talks[from].continued = true;
        add_request(out, &rng, again ? &talks[from] : NULL, draw(&rng, again ? &CONTINUED : &BEGUN),
                    (uint64_t)(at * 1e3) * 1000000u);
        talks[i] = (talk){out->requests[i].first, out->requests[i].n_blocks - 1,
                          false}; /* the last block is not full */
        if (!talks[i].n_blocks)
            talks[i].n_blocks = 1;
        at += -log(1 - sl_sim_random_real(&rng)) / RATE_PER_S;
    }
    free(talks);
    return SL_OK;
}
