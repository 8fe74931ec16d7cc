/* How a request is divided into groups of clusters, and what the ops of clusters require of their parameters; see
 * kernels/clusters.h. */
#include "kernels/clusters.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

enum { MAX_LABEL = 1 << 16 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

sl_cluster_state sl_clusters_at(const sl_cluster_rule *r, int32_t prompt, int32_t tokens)
{
    const int32_t first = prompt > r->budget ? prompt : r->budget;
    sl_cluster_state s = {0};

    if (tokens < first)
        return s;
    s.groups = 1 + (tokens - first) / r->window;
    s.begin = r->sinks, s.end = first;
    s.count = (int32_t)ceil_div(first - r->sinks, r->cluster_tokens);
    if (s.groups > 1) {
        s.end = first + (s.groups - 1) * r->window;
        s.begin = s.end - r->window;
        s.before = s.count + (s.groups - 2) * r->window_nlist;
        s.count = s.before + r->window_nlist;
    }
    return s;
}

/* The number is largest where the first group is as short or as long as it can be, because it is at most one more than a linear
 * function of its length. */
int64_t sl_clusters_most(const sl_cluster_rule *r, int32_t tokens)
{
    const int64_t shortest = r->budget < tokens ? r->budget : tokens;
    const int64_t early = ceil_div(shortest, r->cluster_tokens) +
                          ceil_div((tokens - shortest) * r->window_nlist, r->window),
                  late = ceil_div(tokens, r->cluster_tokens);

    return (early > late ? early : late) + 1;
}

void sl_chk_request_keys(sl_chk *c, const sl_key_source *s)
{
    const sl_row_view *r = &s->rows;

    sl_chk_key_heads(c, s->heads, s->dim);
    sl_chk_key_format(c, s->format, r);
    sl_chk_can(c, r->block_log2 == 0, "keys.rows.block_log2", "must be 0: rows of one token");
    sl_chk_need(c, r->heads == 0 || r->heads == s->heads, "keys.rows.heads",
                "is neither 0 nor the number of KV heads");
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_need(c, r->row_bytes == sl_gqa_row_bytes(s->format, sl_gqa_row_slots(r, s->heads), s->dim),
                "keys.rows.row_bytes", "is not the format's row size");
    sl_chk_ptr(c, "keys.pages", s->pages, 4);
    if (s->host.base)
        sl_chk_host(c, &s->host, r->row_bytes * sl_row_lists(r));
    else
        sl_chk_ptr(c, "keys.rows.base", r->base, 4);
}

void sl_chk_kmeans(sl_chk *c, const void *params)
{
    const sl_kmeans_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_count(c, "first", p->first);
    sl_chk_pos(c, "parts", p->parts);
    sl_chk_pos(c, "k", p->k);
    sl_chk_count(c, "iterations", p->iterations);
    sl_chk_count(c, "label_base", p->label_base);
    sl_chk_request_keys(c, &p->keys);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->keys.dim % p->parts == 0, "parts", "does not divide dim");
    sl_chk_need(c, (unsigned)p->metric <= SL_KMEANS_L2, "metric", "is unknown");
    sl_chk_can(c, (int64_t)p->label_base + p->k <= MAX_LABEL, "k", "has labels above 65535");
    sl_chk_ld(c, "ld_centroids", p->ld_centroids, p->k);
    sl_chk_size(c, "ld_centroids", p->ld_centroids, (int64_t)p->keys.heads * p->keys.dim);
    sl_chk_ptr(c, "centroids", p->centroids, 4);
    if (p->labels)
        sl_chk_ld(c, "ld_labels", p->ld_labels, p->tokens);
}

void sl_chk_cluster_lists(sl_chk *c, const void *params)
{
    const sl_cluster_lists_params *p = params;
    const sl_cluster_rule *r = &p->rule;

    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_group(c, p->heads, p->kv_heads);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_pos(c, "ld_ids", p->ld_ids);
    sl_chk_pos(c, "ld_clusters", p->ld_clusters);
    sl_chk_pos(c, "ld_labels", p->ld_labels);
    sl_chk_count(c, "dense_below", p->dense_below);
    sl_chk_count(c, "rule.sinks", r->sinks);
    sl_chk_pos(c, "rule.cluster_tokens", r->cluster_tokens);
    sl_chk_pos(c, "rule.window", r->window);
    sl_chk_pos(c, "rule.window_nlist", r->window_nlist);
    sl_chk_need(c, r->budget > r->sinks, "rule.budget", "must be more than the sinks");
    sl_chk_need(c, (unsigned)p->reduce <= SL_GROUP_UNION, "reduce", "is unknown");
    sl_chk_need(c, p->reduce != SL_GROUP_SOFTMAX || p->scale > 0, "scale", "must be positive");
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "ld_ids", (int64_t)p->token_count * p->kv_heads, p->ld_ids);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "prompts", p->prompts, 4);
    sl_chk_ptr(c, "centroids", p->centroids, 4);
    sl_chk_ptr(c, "labels", p->labels, 2);
    sl_chk_ptr(c, "ids", p->ids, 4);
}
