/* Lists of tokens by cluster (kernels/clusters.h). A task is one list of one token. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/group.h"
#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"
#include "kernels/mass.h"
#include "kernels/clusters.h"

typedef struct ranked {
    float score;
    int32_t cluster;
} ranked;

typedef struct lists_ctx {
    const sl_cluster_lists_params *p;
    int32_t group; /* query heads per KV head */
    int32_t rows;  /* queries whose products are computed: group, or 1 of their mean */
} lists_ctx;

/* A worker's scratch. */
typedef struct scratch {
    float *mean, *each, *score; /* [dim]; [rows][ld_clusters]; [ld_clusters] */
    ranked *order;              /* [ld_clusters] */
    int32_t *take;              /* [ld_clusters] tokens that a list takes of a cluster */
    uint32_t *own;              /* of the reduction */
} scratch;

static size_t scratch_bytes(const lists_ctx *c)
{
    const size_t clusters = (size_t)c->p->ld_clusters;
    return 4 * ((size_t)c->p->dim + clusters * ((size_t)c->rows + 2)) + sizeof(ranked) * clusters +
           4 * sl_group_words(c->p->reduce, c->p->ld_clusters);
}

static scratch scratch_of(const lists_ctx *c, float *own)
{
    const int64_t clusters = c->p->ld_clusters;
    scratch s = {.mean = own};

    s.each = s.mean + c->p->dim;
    s.score = s.each + clusters * c->rows;
    s.take = (int32_t *)(s.score + clusters);
    s.order = (ranked *)(s.take + clusters);
    s.own = (uint32_t *)(void *)(s.order + clusters);
    return s;
}

static int better(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->cluster > y->cluster) - (x->cluster < y->cluster);
}

/* The clusters in the order in which the queries of one KV head take them. */
static void rank_clusters(const lists_ctx *c, int64_t t, int32_t list, const float *centroids, int32_t n,
                          const scratch *s)
{
    const sl_cluster_lists_params *p = c->p;
    const float *q = p->q + (t * p->heads + (int64_t)list * c->group) * p->dim;

    if (p->reduce == SL_GROUP_MEAN) {
        sl_group_mean(q, c->group, p->dim, s->mean);
        q = s->mean;
    }
    sl_vec_products((sl_vec_rows){centroids, p->dim, n}, (sl_vec_rows){q, p->dim, c->rows}, p->dim, s->each,
                    p->ld_clusters);
    for (int32_t r = 0; r < c->rows; r++)
        sl_group_add(p->reduce, p->scale, s->each + (int64_t)r * p->ld_clusters, n, r == 0, s->own, s->score);
    for (int32_t i = 0; i < n; i++)
        s->order[i] = (ranked){s->score[i], i};
    qsort(s->order, (size_t)n, sizeof *s->order, better);
}

/* The units of weight (kernels/mass.h) that a list of n clusters needs; take[] has their numbers of tokens. */
static uint64_t units_needed(const lists_ctx *c, int32_t n, const scratch *s)
{
    uint64_t all = 0;

    if (c->p->mass <= 0)
        return UINT64_MAX;
    for (int32_t i = 0; i < n; i++)
        all += (uint64_t)s->take[i] * sl_mass_units(s->score[i], s->order[0].score);
    all = sl_mass_need(c->p->mass, all);
    return all > 0 ? all : 1;
}

/* take[cluster]: all tokens of the best clusters, together at most `room`, and some of the last one. */
static void fill_room(const lists_ctx *c, const uint16_t *labels, int32_t to, int32_t n, int32_t room,
                      const scratch *s)
{
    uint64_t have = 0;

    memset(s->take, 0, (size_t)n * sizeof *s->take);
    for (int32_t i = c->p->rule.sinks; i < to; i++)
        s->take[labels[i]]++;
    const uint64_t need = units_needed(c, n, s);
    for (int32_t i = 0; i < n; i++) {
        int32_t *take = &s->take[s->order[i].cluster];
        const int32_t tokens = *take;

        *take = have >= need ? 0 : tokens < room ? tokens : room;
        room -= *take;
        if (need < UINT64_MAX)
            have += (uint64_t)tokens * sl_mass_units(s->order[i].score, s->order[0].score);
    }
}

/* The number of ids, or -1 when they do not fit. */
static int32_t make_list(const lists_ctx *c, int64_t t, int32_t list, const sl_place *at, const scratch *s,
                         int32_t *ids)
{
    const sl_cluster_lists_params *p = c->p;
    const int32_t prompt = p->prompts[at->seq];
    const int64_t row = (int64_t)at->seq * p->kv_heads + list;
    const uint16_t *labels = p->labels + row * p->ld_labels;
    const sl_cluster_state g = sl_clusters_at(&p->rule, prompt, at->pos);

    if (at->pos < prompt || at->pos < p->dense_below || g.groups == 0)
        return sl_put_range(ids, p->ld_ids, 0, 0, at->pos);
    if (g.count > p->ld_clusters || g.end > p->ld_labels || p->rule.budget > p->ld_ids)
        return -1;
    int32_t room = p->rule.budget;
    if (p->take_of && p->take_of[list] < room)
        room = p->take_of[list];
    room = room > p->rule.sinks ? room - p->rule.sinks : 0;
    rank_clusters(c, t, list, p->centroids + row * p->ld_clusters * p->dim, g.count, s);
    fill_room(c, labels, g.end, g.count, room, s);
    int32_t n = sl_put_range(ids, p->ld_ids, 0, 0, p->rule.sinks - 1);
    for (int32_t i = p->rule.sinks; i < g.end; i++)
        if (s->take[labels[i]] > 0)
            s->take[labels[i]]--, ids[n++] = i;
    return sl_put_range(ids, p->ld_ids, n, g.end, at->pos);
}

static uint32_t list_task(const void *arg, int64_t i, void *own)
{
    const lists_ctx *c = arg;
    const sl_cluster_lists_params *p = c->p;
    const int64_t t = p->token_first + i / p->kv_heads;
    const scratch s = scratch_of(c, own);
    int32_t *ids = p->ids + i * p->ld_ids;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    return sl_list_end(ids, p->ld_ids, bad ? 0 : make_list(c, t, (int32_t)(i % p->kv_heads), &at, &s, ids),
                       bad);
}

static sl_status run_cluster_lists(sl_backend *be, const void *params, sl_err *err)
{
    const sl_cluster_lists_params *p = params;
    const int32_t group = p->heads / p->kv_heads;
    const lists_ctx c = {p, group, p->reduce == SL_GROUP_MEAN ? 1 : group};
    return sl_cpu_run(be, "cluster_lists", scratch_bytes(&c), (int64_t)p->token_count * p->kv_heads,
                      (int64_t)p->ld_clusters * p->dim * c.rows / 8 + p->ld_labels, list_task, &c, err);
}

const sl_op_impl sl_cpu_cluster_lists = {.run = run_cluster_lists};
