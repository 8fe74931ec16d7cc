/* The flags of `sluice bench decode`; see decode.h. */
#include <stdlib.h>

#include "base/args.h"
#include "bench/decode/decode.h"
#include "engine/choose.h"
#include "kernels/cache.h"
#include "model/synthetic.h"
#include "sparse/algorithm.h"

/* The flags that take lists, as they were given. */
typedef struct list_flags {
    const char *contexts, *modes, *profiles, *rows, *batches, *algorithms, *accept;
} list_flags;

static bool parse_accept(sl_bench_decode_opts *o, const char *text)
{
    sl_err err = {0};
    if (sl_drawn_accept(text, ',', o->accept, &err) == SL_OK)
        return true;
    fprintf(stderr, "bench decode: --draft-accept: %s\n", err.text);
    return false;
}

static bool parse_lists(sl_bench_decode_opts *o, const list_flags *l)
{
    static const char cmd[] = "bench decode";
    return parse_accept(o, l->accept) &&
           sl_bench_list_flag(cmd, "contexts", l->contexts, NULL, 1, &o->contexts) &&
           sl_bench_list_flag(cmd, "profiles", l->profiles, sl_coord_profile_names(), 1, &o->profiles) &&
           (!l->modes || sl_bench_list_flag(cmd, "modes", l->modes, sl_bench_mode_names, 1, &o->modes)) &&
           (!l->rows || sl_bench_list_flag(cmd, "rows", l->rows, sl_row_format_names(), 1, &o->rows)) &&
           (!l->algorithms ||
            sl_bench_list_flag(cmd, "algorithm", l->algorithms, sl_algo_names(), 1, &o->algorithms)) &&
           (!l->batches || sl_bench_list_flag(cmd, "batch", l->batches, NULL, 1, &o->batches));
}

/* False: the benchmark ends at once with *exit_code. */
static bool parse_flags(sl_bench_decode_opts *o, list_flags *l, int argc, char **argv, int *exit_code)
{
    const sl_arg args[] = {
        {"backend", SL_ARG_TEXT, &o->backend, "NAME", "Compute backend: cuda, the default, or cpu.", 0, 0,
         NULL},
        {"model", SL_ARG_TEXT, &o->model, "NAME",
         "Model whose dimensions are used: deepseek_v32, the default, glm_5_2, llama3_8b, qwen3_8b, or tiny and tiny_llama, which are for tests.",
         0, 0, NULL},
        {"layers", SL_ARG_INT, &o->layers, "N", "Run only the first N layers. Default: all.", 1,
         SL_MAX_LAYERS, NULL},
        {"ranks", SL_ARG_INT, &o->ranks, "N",
         "Number of ranks of expert parallelism; the benchmark runs one of them. Default 8.", 1, 256, NULL},
        {"group", SL_ARG_INT, &o->group, "N",
         "Run a real group: N processes, rank r on device r, that share the experts and exchange rows; then the same ranks without the exchange, and the ratio. Rank 0 prints. --ranks is not used.",
         2, SL_COMM_RANKS_MAX, NULL},
        {"experts", SL_ARG_INT, &o->experts, "N",
         "Number of routed experts of a layer, of all ranks together. Default: the model's.", 1, 1024, NULL},
        {"weights", SL_ARG_TEXT, &o->weights, "NAME",
         "Form of the routed experts: " SL_SYNTHETIC_EXPERTS
         ". Default: the model's, which is fp8 for models with experts.",
         0, 0, NULL},
        {"contexts", SL_ARG_TEXT, &l->contexts, "LIST", "Lengths of the requests in tokens. Default 65536.",
         0, 0, NULL},
        {"modes", SL_ARG_TEXT, &l->modes, "LIST",
         "Where the cache is: dense (resident, and every row is read), resident, hierarchical, free_rows (hierarchical, but fetching rows takes no time), first_resident (hierarchical, but all rows of the first layers are on the device), checked (hierarchical, with kvstore.verify rows), in_turn (hierarchical, but the rows of layers that share a list are fetched at the layer's turn and not ahead). Default: resident,hierarchical,free_rows, and for models with KV heads dense before them.",
         0, 0, NULL},
        {"profiles", SL_ARG_TEXT, &l->profiles, "LIST",
         "How the selection changes between steps: keep70, keep85, keep95, keep98 (this percentage stays), layered, random. Default keep85.",
         0, 0, NULL},
        {"algorithm", SL_ARG_TEXT, &l->algorithms, "LIST",
         "Sparse algorithms, one after the other. Default: dsa, for models with KV heads quest; msa, pooled or dense where the model chooses.",
         0, 0, NULL},
        {"budget", SL_ARG_INT, &o->budget, "N",
         "Tokens that a list holds, of every algorithm that has a token_budget. Default 2048.", 1, 1 << 24,
         NULL},
        {"channels", SL_ARG_INT, &o->channels, "N",
         "Channels of a label of double_sparsity. Default: the algorithm's.", 1, 1024, NULL},
        {"rows", SL_ARG_TEXT, &l->rows, "LIST",
         "Row formats, for instance mla_fp8,mla_bf16. Default mla_fp8, and for models with KV heads gqa_bf16.",
         0, 0, NULL},
        {"hot-rows", SL_ARG_INT, &o->hot_rows, "N",
         "Tokens of the hot buffer per request and layer. Default: twice the selection.", 1, SL_HOT_ROWS_MAX,
         NULL},
        {"resident-layers", SL_ARG_INT, &o->resident_layers, "N",
         "In mode first_resident: number of layers of which all rows stay on the device. Default 3.", 1,
         SL_MAX_LAYERS, NULL},
        {"tail-rows", SL_ARG_INT, &o->tail_rows, "N",
         "Number of newest tokens per request and layer that never leave the device. Default 64.", 1, 65536,
         NULL},
        {"batch", SL_ARG_TEXT, &l->batches, "LIST", "Batch sizes. Default: the largest that fits.", 0, 0,
         NULL},
        {"max-batch", SL_ARG_INT, &o->max_batch, "N", "Largest batch. Default 256.", 1, 4096, NULL},
        {"groups", SL_ARG_INT, &o->groups, "N",
         "Request groups per decode step: one group's rows are fetched while another group computes. Default: 2 for batches of 32 requests or more, else 1.",
         1, SL_COORD_GROUPS_MAX, NULL},
        {"steps", SL_ARG_INT, &o->steps, "N", "Timed steps. Default 20.", 1, 100000, NULL},
        {"warmup", SL_ARG_INT, &o->warmup, "N", "Steps before the timed ones. Default 6.", 1, 100000, NULL},
        {"kv-bytes", SL_ARG_BYTES, &o->kv_bytes, "N",
         "Device bytes for the cache. Default: the free bytes less --reserve-bytes.", 0, 0, NULL},
        {"reserve-bytes", SL_ARG_BYTES, &o->reserve_bytes, "N",
         "Device bytes that stay free when --kv-bytes is not given. Default 2G.", 0, 0, NULL},
        {"host-bytes", SL_ARG_BYTES, &o->host_bytes, "N", "Size of the host store. Default 16G.", 0, 0, NULL},
        {"layout", SL_ARG_TEXT, &o->layout, "NAME",
         "Order of the rows in the host store: page_first, layer_first, page_head or auto. Default auto, which chooses by backend as a worker does.",
         0, 0, NULL},
        {"shared-host-pages", SL_ARG_FLAG, &o->shared, NULL,
         "Requests share host pages if the store is too small for all of them.", 0, 0, NULL},
        {"ops", SL_ARG_FLAG, &o->ops, NULL, "Print the profile of one step by op.", 0, 0, NULL},
        {"draft", SL_ARG_INT, &o->draft, "N",
         "The model has its MTP layer, which drafts N tokens for each step; tokens are chosen on the device, also with 0. Not with "
         "--group. Default: no MTP layer.",
         0, SL_DRAWN_DRAFTS, NULL},
        {"draft-accept", SL_ARG_TEXT, &l->accept, "LIST",
         "Synthetic acceptance: the part of the steps in which at least the first, the first two, .. drafts stand, drawn from a fixed "
         "seed. Default 0.85,0.68,0.50,0.35.",
         0, 0, NULL},
        {"threads", SL_ARG_INT, &o->threads, "N",
         "Number of threads that fill the host store, and that compute on the cpu backend. Default 8.", 1,
         256, NULL},
        {"csv", SL_ARG_TEXT, &o->csv, "FILE", "Also write the results as CSV.", 0, 0, NULL},
    };
    sl_arg all[SL_COUNT(args) + SL_LOCAL_FLAGS];
    sl_local_selection_init(&o->selection);
    size_t n = sl_local_selection_args(&o->selection, args, SL_COUNT(args), all);
    return sl_args_ready("[flags]", all, n, argc, argv, exit_code);
}

bool sl_bench_decode_flags(sl_bench_decode_opts *o, int argc, char **argv, int *exit_code)
{
    *o = (sl_bench_decode_opts){.backend = "cuda",
                                .layout = "auto",
                                .model = sl_synthetic_name(0),
                                .ranks = 8,
                                .tail_rows = 64,
                                .resident_layers = 3,
                                .steps = 20,
                                .warmup = 6,
                                .max_batch = 256,
                                .threads = 8,
                                .budget = 2048,
                                .draft = -1,
                                .host_bytes = 16ull << 30,
                                .reserve_bytes = 2ull << 30};
    list_flags lists = {.contexts = "65536", .profiles = "keep85", .accept = "0.85,0.68,0.50,0.35"};
    if (!parse_flags(o, &lists, argc, argv, exit_code))
        return false;
    *exit_code = SL_EXIT_USAGE;
    return parse_lists(o, &lists);
}
