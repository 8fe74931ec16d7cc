/*
 * SL_OP_SAMPLE, and the specification of its result: kernels/sample.h. A row is read a few times by the loops of
 * sample_loops.h; the cut of top_k and top_p is found with counters, by one digit after another, among fewer and fewer
 * tokens. A row of equal logits has all tokens among the candidates to the end, and takes twice the time of an ordinary
 * one. Rows are independent; threads share them out.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/sample_loops.h"
#include "kernels/sample_math.h"

enum { BLOCK = 1024 };

/* Memory for one row. */
typedef struct row_memory {
    float *w, *allowed; /* allowed: the logits under a mask */
    uint16_t *bin;
    int32_t *ids;    /* candidates */
    uint64_t *count; /* two counters of each value, for even and odd tokens: neighbours are often equal */
} row_memory;

/* The last token that is kept: those of larger logits are kept as well, and those of equal ones up to this id. */
typedef struct cut {
    float logit;
    size_t last;
} cut;

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

size_t sl_sample_scratch_bytes(int32_t vocab)
{
    size_t n = (size_t)vocab;

    return 64 + 2 * up64(n * sizeof(float)) + up64(n * sizeof(uint16_t)) + up64(n * sizeof(int32_t)) +
           2 * SL_SAMPLE_BINS * sizeof(uint64_t);
}

static row_memory divide(void *scratch, int32_t vocab)
{
    size_t n = (size_t)vocab;
    uint8_t *at = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
    row_memory m;

    m.w = (float *)(void *)at;
    m.allowed = (float *)(void *)(at += up64(n * sizeof(float)));
    m.bin = (uint16_t *)(void *)(at += up64(n * sizeof(float)));
    m.ids = (int32_t *)(void *)(at += up64(n * sizeof(uint16_t)));
    m.count = (uint64_t *)(void *)(at + up64(n * sizeof(int32_t)));
    return m;
}

/* ---- the cut ---- */

/* A token counts with its mass, or with 1 where w is NULL. */
static uint64_t worth(const float *w, size_t i)
{
    return w ? sl_sample_mass(w[i]) : 1;
}

/* The counter in which *need is reached, which becomes what is needed of that counter. */
static uint32_t reach(const uint64_t *count, uint64_t *need)
{
    uint32_t b = 0;

    for (; b < SL_SAMPLE_BINS - 1 && count[b] + count[SL_SAMPLE_BINS + b] < *need; b++)
        *need -= count[b] + count[SL_SAMPLE_BINS + b];
    return b;
}

/* The tokens of the first bin that *need reaches, in ascending order of id. */
static size_t candidates(const row_memory *m, const float *x, size_t n, float max, const float *w,
                         uint64_t *need)
{
    size_t have = 0;

    memset(m->count, 0, 2 * SL_SAMPLE_BINS * sizeof *m->count);
    sl_sample_bins(x, n, max, m->bin);
    for (size_t i = 0; i < n; i++)
        m->count[i % 2 * SL_SAMPLE_BINS + m->bin[i]] += worth(w, i);
    uint32_t b = reach(m->count, need);
    for (size_t i = 0; i < n; i++) {
        m->ids[have] = (int32_t)i;
        have += m->bin[i] == b;
    }
    return have;
}

/* Of the candidates, those of the first value of a digit that *need reaches. */
static size_t narrow(const row_memory *m, const float *x, size_t have, const float *w, int digit,
                     uint64_t *need)
{
    size_t kept = 0;

    memset(m->count, 0, 2 * SL_SAMPLE_BINS * sizeof *m->count);
    for (size_t k = 0; k < have; k++) {
        size_t i = (size_t)m->ids[k];
        m->count[k % 2 * SL_SAMPLE_BINS + sl_sample_digit(sl_sample_key(x[i]), digit)] += worth(w, i);
    }
    uint32_t b = reach(m->count, need);
    for (size_t k = 0; k < have; k++) {
        int32_t i = m->ids[k];
        m->ids[kept] = i;
        kept += sl_sample_digit(sl_sample_key(x[i]), digit) == b;
    }
    return kept;
}

static bool all_equal(const row_memory *m, const float *x, size_t have)
{
    size_t k = 1;

    while (k < have && x[m->ids[k]] == x[m->ids[0]])
        k++;
    return k == have;
}

/* The shortest beginning of the order with a worth of at least `need`, which the row has. */
static cut find_cut(const row_memory *m, const float *x, size_t n, float max, const float *w, uint64_t need)
{
    size_t have = candidates(m, x, n, max, w, &need);

    for (int digit = 0; digit < SL_SAMPLE_DIGITS && !all_equal(m, x, have); digit++)
        have = narrow(m, x, have, w, digit, &need);
    size_t first = (size_t)m->ids[0];
    uint64_t each = worth(w, first), ties = (need + each - 1) / each;
    return (cut){x[first], (size_t)m->ids[ties - 1]};
}

/* ---- the steps of kernels/sample.h ---- */

static void change(const sl_sample_row *r, float *x, int32_t vocab)
{
    for (int32_t k = 0; r->list && k < r->list->n; k++) {
        sl_sample_entry *e = &r->list->entry[k];

        if (e->id < 0 || e->id >= vocab)
            continue;
        e->logit = x[e->id];
        x[e->id] = sl_sample_changed(e->logit, e, r);
    }
}

/* Undoes change(), in the opposite order; *raw: the old logit of `id`, if it was changed. */
static void restore(const sl_sample_row *r, float *x, int32_t vocab, int32_t id, float *raw)
{
    for (int32_t k = r->list ? r->list->n : 0; k-- > 0;) {
        const sl_sample_entry *e = &r->list->entry[k];

        if (e->id < 0 || e->id >= vocab)
            continue;
        x[e->id] = e->logit;
        if (e->id == id)
            *raw = e->logit;
    }
}

static int32_t first_equal(const float *x, size_t n, float value)
{
    size_t i = 0;

    while (i + 1 < n && x[i] != value)
        i++;
    return (int32_t)i;
}

/* The first token with which the sum of masses exceeds target, which is below their sum. */
static int32_t reach_mass(const float *w, size_t n, uint64_t target)
{
    uint64_t done = 0, sum;
    size_t i = 0;

    for (; i + BLOCK < n; i += BLOCK) {
        sum = sl_sample_total(w + i, BLOCK);
        if (done + sum > target)
            break;
        done += sum;
    }
    for (; i + 1 < n; i++) {
        done += sl_sample_mass(w[i]);
        if (done > target)
            break;
    }
    return (int32_t)i;
}

static int32_t choose(const sl_sample_row *r, const row_memory *m, const float *x, size_t n, float max)
{
    bool by_k = r->top_k > 0 && (size_t)r->top_k < n, by_p = r->top_p < SL_SAMPLE_P_ONE;
    cut c;

    if (r->inv_t == 0.0f || r->top_k == 1)
        return first_equal(x, n, max);
    sl_sample_weigh(x, n, max, r->inv_t, m->w);
    if (by_k) {
        c = find_cut(m, x, n, max, NULL, (uint64_t)r->top_k);
        sl_sample_keep(x, n, c.logit, c.last, 0, m->w);
    }
    uint64_t total = sl_sample_total(m->w, n);
    if (by_p) {
        c = find_cut(m, x, n, max, m->w, sl_sample_enough(total, r->top_p));
        sl_sample_keep(x, n, c.logit, c.last, 0, m->w);
    }
    if (r->min_p > 0)
        sl_sample_keep(x, n, -INFINITY, n, r->min_p, m->w);
    if (by_p || r->min_p > 0)
        total = sl_sample_total(m->w, n);
    uint64_t random = sl_sample_random(r->seed, (uint64_t)r->position);
    return reach_mass(m->w, n, sl_sample_high(random, total));
}

static void put_best(sl_sampled *out, int32_t id, float x)
{
    uint32_t at = out->n_top++;

    for (; at > 0 && out->top[at - 1].logprob < x; at--)
        out->top[at] = out->top[at - 1];
    out->top[at] = (sl_logprob){id, x};
}

static void best(const sl_sample_row *r, const row_memory *m, const float *x, size_t n, float max,
                 sl_sampled *out)
{
    size_t want = (size_t)r->n_logprobs < n ? (size_t)r->n_logprobs : n;
    cut c = find_cut(m, x, n, max, NULL, want);

    for (size_t i = 0; i < n; i++)
        if ((x[i] > c.logit || (x[i] == c.logit && i <= c.last)) && x[i] > -INFINITY)
            put_best(out, (int32_t)i, x[i]);
}

/* What is said of the unchanged logits: out->top. Returns the logarithm of the total mass. */
static double describe(const sl_sample_row *r, const row_memory *m, const float *x, size_t n, float max,
                       sl_sampled *out)
{
    sl_sample_weigh(x, n, max, 1.0f, m->w);
    double log_total = sl_sample_log(sl_sample_total(m->w, n));

    if (r->n_logprobs > 0)
        best(r, m, x, n, max, out);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = sl_sample_logprob(out->top[i].logprob, max, log_total);
    return log_total;
}

/* Counts the chosen token. False: it is not in the list, which is full. */
static bool track(sl_sample_list *list, int32_t id)
{
    for (int32_t k = 0; k < list->n; k++)
        if (list->entry[k].id == id) {
            list->entry[k].seen = (list->entry[k].seen | SL_SAMPLE_KNOWN) + SL_SAMPLE_ONCE;
            return true;
        }
    if (list->n >= list->room)
        return false;
    list->entry[list->n++] = (sl_sample_entry){.id = id, .seen = SL_SAMPLE_KNOWN | SL_SAMPLE_ONCE};
    return true;
}

/* The logits with -inf for what the mask does not allow. */
static const float *allow(const row_memory *m, const float *x, size_t n, const uint32_t *mask)
{
    for (size_t i = 0; i < n; i++)
        m->allowed[i] = mask[i / 32] >> i % 32 & 1 ? x[i] : -INFINITY;
    return m->allowed;
}

/* The choice among the changed logits; the row is unchanged afterwards. raw: the chosen token's unchanged logit. */
static sl_sample_fault choose_changed(const sl_sample_row *r, const row_memory *m, float *x, int32_t vocab,
                                      float raw_max, int32_t *id, float *raw)
{
    size_t n = (size_t)vocab;
    float max = raw_max;
    bool bad = false;

    change(r, x, vocab);
    const float *y = r->mask ? allow(m, x, n, r->mask) : x;
    if (r->list || r->mask)
        max = sl_sample_max(y, n, &bad);
    bool none = bad || max == -INFINITY;
    *id = none ? -1 : choose(r, m, y, n, max);
    *raw = none ? 0 : x[*id];
    restore(r, x, vocab, *id, raw);
    return none ? SL_SAMPLE_NONE_LEFT : SL_SAMPLE_FINE;
}

void sl_sample_on_host(const sl_sample_row *r, float *x, int32_t vocab, void *scratch, sl_sampled *out)
{
    row_memory m = divide(scratch, vocab);
    size_t n = (size_t)vocab;
    double log_total = 0;
    bool bad;
    float max = sl_sample_max(x, n, &bad), raw;
    int32_t id = -1;
    sl_sample_fault fault = bad                ? SL_SAMPLE_NOT_FINITE
                            : max == -INFINITY ? SL_SAMPLE_ALL_INFINITE
                                               : SL_SAMPLE_FINE;

    memset(out, 0, sizeof *out);
    if (!fault && r->n_logprobs >= 0)
        log_total = describe(r, &m, x, n, max, out);
    if (!fault)
        fault = choose_changed(r, &m, x, vocab, max, &id, &raw);
    if (!fault && r->list && r->track && !track(r->list, id))
        fault = SL_SAMPLE_LIST_FULL;
    if (fault) {
        *out = (sl_sampled){.id = -1, .fault = fault};
        return;
    }
    out->id = id;
    if (r->n_logprobs >= 0)
        out->logprob = sl_sample_logprob(raw, max, log_total);
}

/* ---- the op ---- */

static uint32_t sample_row(const void *arg, int64_t i, void *own)
{
    const sl_sample_params *p = arg;
    const sl_sample_row *r = &p->rows[i];

    sl_sample_on_host(r, p->logits + (int64_t)r->row * p->ld, p->vocab, own, &p->out[i]);
    if (p->next)
        p->next[i] = p->out[i].fault ? 0 : p->out[i].id;
    return 0;
}

static sl_status run_sample(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sample_params *p = params;

    for (int32_t i = 0; i < p->n; i++)
        if (p->rows[i].row < 0 || p->rows[i].row >= p->n_logits)
            return sl_deverr(SL_DEVERR_ID, "sample", err);
    return sl_cpu_run(be, "sample", sl_sample_scratch_bytes(p->vocab), p->n, 5 * (int64_t)p->vocab,
                      sample_row, p, err);
}

const sl_op_impl sl_cpu_sample = {.run = run_sample};
