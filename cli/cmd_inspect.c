/*
 * `sluice inspect`: shows what a checkpoint directory contains, or what a built-in model has. It reads the config and the headers of
 * the tensors, and loads no weights.
 */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/inspect_kernels.h"
#include "cli/model_args.h"
#include "engine/choose.h"
#include "engine/engine.h"
#include "model/checkpoint.h"

/* Sums over the tensors of a checkpoint. */
typedef struct tally {
    uint64_t count, bytes, params;
    uint64_t count_of[SL_ST_DTYPES], bytes_of[SL_ST_DTYPES];
    uint64_t mtp, mtp_bytes; /* tensors of the first MTP layer */
} tally;

static tally tally_of(sl_checkpoint *ck, const sl_model_config *c)
{
    tally t = {0};
    char mtp[48];
    const size_t n = (size_t)snprintf(mtp, sizeof mtp, "model.layers.%d.", c->n_layers);
    for (size_t i = 0; i < sl_checkpoint_count(ck); i++) {
        const sl_ck_tensor *of = sl_checkpoint_at(ck, i);
        const sl_st_tensor *x = of->t;
        t.count++;
        t.bytes += x->bytes;
        t.params += x->bytes / sl_st_dtype_bytes(x->dtype);
        t.count_of[x->dtype]++;
        t.bytes_of[x->dtype] += x->bytes;
        if (strncmp(of->name, mtp, n) == 0)
            t.mtp++, t.mtp_bytes += x->bytes;
    }
    return t;
}

static void print_tensors(sl_checkpoint *ck)
{
    for (size_t i = 0; i < sl_checkpoint_count(ck); i++) {
        const sl_st_tensor *x = sl_checkpoint_at(ck, i)->t;
        printf("%-72s %-8s [", x->name, sl_st_dtype_name(x->dtype));
        for (int32_t d = 0; d < x->rank; d++)
            printf("%s%lld", d ? ", " : "", (long long)x->shape[d]);
        printf("]\n");
    }
}

static int indexers(const sl_model_config *c)
{
    int n = 0;
    for (int32_t l = 0; l < c->n_layers; l++)
        n += c->layer_has_indexer[l];
    return n;
}

static int moe_layers(const sl_model_config *c)
{
    int n = 0;
    for (int32_t l = 0; l < c->n_layers; l++)
        n += c->layer_is_moe[l];
    return n;
}

static void print_config(const sl_model_config *c)
{
    printf("family         %s (%s)\n", c->family, c->architecture);
    printf("layers         %d, of which %d with experts, %d with an indexer\n", c->n_layers, moe_layers(c),
           indexers(c));
    printf("hidden         %d, vocabulary %d, context %d\n", c->hidden_size, c->vocab_size, c->max_context);
    printf("attention      %d heads, q_lora %d, kv_lora %d, nope %d, rope %d, v %d, scale %.9g\n",
           c->attn.n_heads, c->attn.q_lora_rank, c->attn.kv_lora_rank, c->attn.qk_nope_head_dim,
           c->attn.qk_rope_head_dim, c->attn.v_head_dim, (double)c->attn.softmax_scale);
    printf("indexer        %d heads of %d, top %d, RoPE %s\n", c->index.n_heads, c->index.head_dim,
           c->index.topk, c->index.rope_interleaved ? "interleaved" : "half-split");
    if (c->index.blocks.tokens)
        printf("blocks         of %d tokens, %d for each KV head, the newest %d always\n",
               c->index.blocks.tokens, c->index.topk / c->index.blocks.tokens, c->index.blocks.local);
    printf("experts        %d routed (%d per token, %d of %d groups), %d shared\n", c->moe.n_routed,
           c->moe.per_token, c->moe.topk_group, c->moe.n_group, c->moe.n_shared);
    bool plain = c->rope.type == SL_ROPE_PLAIN;
    printf("rope           theta %g%s%s\n", c->rope.theta, plain ? "" : ", ",
           plain ? "" : sl_rope_type_name(c->rope.type));
    printf("end tokens    ");
    for (int32_t i = 0; i < c->n_eos; i++)
        printf(" %d", c->eos_ids[i]);
    printf("\n");
}

static const char *dtype_name(sl_dtype d)
{
    static const char *const names[] = {"F32", "BF16", "F16", "F8_E4M3", "I32"};
    return (unsigned)d < SL_COUNT(names) ? names[d] : "?";
}

/* What the layers of a class keep, and the parts of their state. */
static void print_class(const sl_geometry *g, int32_t class)
{
    const sl_geometry_class *k = &g->classes[class];
    int32_t layers = 0;
    int64_t bytes = 0;
    for (int32_t l = 0; l < g->n_layers; l++) {
        if (g->layer_class[l] != class)
            continue;
        layers++;
        bytes = sl_geometry_layer_bytes(g, l);
    }
    printf("  %-12s %d layers of kind %s: each %lld B of a page, and %lld B of a request\n", k->name, layers,
           sl_layer_kind_name(k->kind), (long long)bytes, (long long)k->state.bytes);
    for (int32_t i = 0; i < k->state.n_parts; i++) {
        const sl_state_part *p = &k->state.parts[i];
        printf("    %-22s %s %lld x %lld x %lld, %lld B at byte %lld\n", p->name, dtype_name(p->dtype),
               (long long)p->shape[0], (long long)p->shape[1], (long long)p->shape[2],
               (long long)sl_state_part_bytes(p), (long long)sl_layer_state_at(&k->state, i));
    }
}

/* The MTP layer that the checkpoint has, or why the model drafts no tokens. */
static void print_mtp(const sl_model_config *c, const tally *t)
{
    sl_err err = {0};
    sl_model_config drafting = *c;
    const bool drafts = sl_model_config_draft(&drafting, &err) == SL_OK;
    if (drafts && t->mtp)
        printf("MTP layer      %llu tensors, %.1f MiB; loaded with model.draft_tokens or --draft-tokens\n",
               (unsigned long long)t->mtp, (double)t->mtp_bytes / 1048576);
    else if (!drafts)
        printf("MTP layer      none is loaded: %s\n", err.text);
}

static void print_all(const sl_local_checkpoint *m, const tally *t, const sl_geometry *g)
{
    print_config(&m->cfg);
    printf("tensors        %llu, %.1f MiB, %.3f million values\n", (unsigned long long)t->count,
           (double)t->bytes / 1048576, (double)t->params / 1e6);
    for (int d = 0; d < SL_ST_DTYPES; d++)
        if (t->count_of[d])
            printf("  %-12s %llu tensors, %.1f MiB\n", sl_st_dtype_name((sl_st_dtype)d),
                   (unsigned long long)t->count_of[d], (double)t->bytes_of[d] / 1048576);
    print_mtp(&m->cfg, t);
    printf("formats        %s rows, %s indexer\n", sl_row_format_name(m->row_format),
           sl_index_format_name(m->index_format));
    printf("page           %d tokens: %lld B; a row %lld B, an index block %lld B; %.1f B per token\n",
           SL_PAGE_TOKENS, (long long)g->page_bytes, (long long)sl_geometry_row_bytes(g),
           (long long)sl_geometry_index_bytes(g), (double)g->page_bytes / SL_PAGE_TOKENS);
    for (int32_t c = 0; c < g->n_classes; c++)
        print_class(g, c);
}

static int print_json(const sl_local_checkpoint *m, const tally *t, const sl_geometry *g)
{
    const sl_model_config *c = &m->cfg;
    json_t *j = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:s, s:s, s:s, "
        "s:{s:i, s:I, s:I, s:I}}",
        "family", c->family, "architecture", c->architecture, "layers", c->n_layers, "moe_layers",
        moe_layers(c), "indexer_layers", indexers(c), "hidden_size", c->hidden_size, "vocab_size",
        c->vocab_size, "max_context", c->max_context, "heads", c->attn.n_heads, "index_topk", c->index.topk,
        "tensors", (json_int_t)t->count, "tensor_bytes", (json_int_t)t->bytes, "parameters",
        (json_int_t)t->params, "mtp_tensors", (json_int_t)t->mtp, "stored",
        m->has_weights ? dtype_name(m->stored) : "none", "row_format", sl_row_format_name(m->row_format),
        "indexer", sl_index_format_name(m->index_format), "page", "tokens", SL_PAGE_TOKENS, "bytes",
        (json_int_t)g->page_bytes, "row_bytes", (json_int_t)sl_geometry_row_bytes(g), "index_block_bytes",
        (json_int_t)sl_geometry_index_bytes(g));
    if (!j)
        return sl_args_fail("inspect", SL_ERR_NO_MEMORY, NULL);
    int bad = json_dumpf(j, stdout, 0);
    json_decref(j);
    printf("\n");
    return bad ? SL_EXIT_FAILED : SL_EXIT_OK;
}

static int inspect(const char *dir, const sl_local_checkpoint *m, bool tensors, bool kernels, bool json)
{
    sl_err err = {0};
    sl_geometry g;
    sl_cache_dims cache = sl_engine_cache_dims(&m->cfg, m->row_format, m->index_format);
    tally t = {0};
    sl_checkpoint *ck = NULL;
    const sl_algo_desc *algorithm = NULL;
    sl_status st = sl_choose_algorithm(NULL, &m->cfg, &algorithm, &err);
    if (st == SL_OK)
        st = sl_engine_geometry(&m->cfg, &cache, algorithm, SL_LAYOUT_PAGE_FIRST, (sl_key){1, 1}, &g, &err);
    if (st != SL_OK)
        return sl_args_fail("inspect", st, &err);
    if (m->has_weights) {
        st = sl_checkpoint_open(dir, &ck, &err);
        if (st != SL_OK)
            return sl_args_fail("inspect", st, &err);
        t = tally_of(ck, &m->cfg);
    }
    int rc = SL_EXIT_OK;
    if (json)
        rc = print_json(m, &t, &g);
    else
        print_all(m, &t, &g);
    if (tensors && !json && ck)
        print_tensors(ck);
    if (kernels && !json) {
        st = sl_cli_inspect_kernels(m, ck, &err);
        rc = st == SL_OK ? rc : sl_args_fail("inspect", st, &err);
    }
    sl_checkpoint_close(ck);
    return rc;
}

int sl_cmd_inspect(int argc, char **argv)
{
    const char *dir = NULL, *preset = NULL;
    const char *indexer = NULL, *rows = NULL;
    bool json = false, tensors = false, kernels = false;
    const sl_arg args[] = {
        {"model", SL_ARG_TEXT, &dir, "DIR", "Checkpoint directory. Required without --preset.", 0, 0, NULL},
        {"preset", SL_ARG_TEXT, &preset, "NAME",
         "Dimensions of a built-in model instead of a directory, for instance deepseek_v32.", 0, 0, NULL},
        {"tensors", SL_ARG_FLAG, &tensors, NULL, "List every tensor.", 0, 0, NULL},
        {"kernels", SL_ARG_FLAG, &kernels, NULL,
         "List which kernels of a GPU of compute capability 9.0 run the model.", 0, 0, NULL},
        SL_CLI_INDEXER_ARG(indexer),
        SL_CLI_ROW_FORMAT_ARG(rows),
        {"json", SL_ARG_FLAG, &json, NULL, "Print one JSON object.", 0, 0, NULL},
    };
    int exit_code;
    if (!sl_args_ready("--model DIR|--preset NAME [--tensors] [--kernels] [--json]", args, SL_COUNT(args),
                       argc, argv, &exit_code))
        return exit_code;
    if (dir && preset)
        fprintf(stderr, "sluice inspect: --model and --preset exclude each other\n");
    if ((dir && preset) || (!preset && !sl_cli_model_given("inspect", dir)))
        return SL_EXIT_USAGE;
    sl_err err = {0};
    sl_local_checkpoint m;
    sl_status st = preset ? sl_local_checkpoint_preset(preset, indexer, rows, &m, &err)
                          : sl_local_checkpoint_read(dir, indexer, rows, &m, &err);
    return st == SL_OK ? inspect(dir, &m, tensors, kernels, json) : sl_args_fail("inspect", st, &err);
}
