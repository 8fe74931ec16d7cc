/* The flags that several commands have: the checkpoint's directory and formats, and where it is computed. */
#ifndef SL_CLI_MODEL_ARGS_H
#define SL_CLI_MODEL_ARGS_H

#include "cli/cli.h"
#include "engine/choose.h"
#include "local/checkpoint.h"

/* False, with a message on stderr, when the flag --model was not given. */
bool sl_cli_model_given(const char *command, const char *dir);

/*
 * Rows of the command's table of flags. Each variable but that of --threads is a const char *, which receives the name;
 * NULL or "auto" means that the stored weights decide.
 */
#define SL_CLI_INDEXER_ARG(variable)                                                                         \
    {                                                                                                        \
        "indexer", SL_ARG_AUTO, &(variable), "NAME",                                                         \
            "Numeric convention of the indexer. auto, the default, chooses by the stored weights.", 0, 0,    \
            sl_index_format_names()                                                                          \
    }
#define SL_CLI_ROW_FORMAT_ARG(variable)                                                                      \
    {                                                                                                        \
        "row-format", SL_ARG_AUTO, &(variable), "NAME",                                                      \
            "Format of the rows of the KV cache. auto, the default, chooses by the stored weights.", 0, 0,   \
            sl_row_format_names()                                                                            \
    }
#define SL_CLI_ACT_ARG(variable)                                                                             \
    {                                                                                                        \
        "act", SL_ARG_AUTO, &(variable), "NAME",                                                             \
            "Data type of the activations. auto, the default, chooses by the stored weights.", 0, 0,         \
            sl_local_act_names                                                                               \
    }
/* Twenty-five rows, for an sl_selection_keys, which begins as SL_CLI_SELECTION_DEFAULTS. */
#define SL_CLI_SELECTION_DEFAULTS                                                                            \
    {                                                                                                        \
        .token_budget = 1024, .block_tokens = 16, .heavy_channels = 32, .prompt_budget = 2048,               \
        .window_size = 32, .output_tokens = 1024, .niter = 20, .cluster_tokens = 80, .cluster_window = 320,  \
        .window_nlist = 8, .n_subvec = 2, .n_subbits = 6, .recent_ratio = 0.5, .topk = 64, .topr = 128,      \
        .page_size = 4                                                                                       \
    }
#define SL_CLI_SELECTION_ARGS(keys)                                                                                                   \
    {"token-budget",                                                                                                                  \
     SL_ARG_INT,                                                                                                                      \
     &(keys).token_budget,                                                                                                            \
     "N",                                                                                                                             \
     "quest, double_sparsity, cluster_kv, pq_cache: number of tokens that a query reads at most. Default 1024.",                      \
     1,                                                                                                                               \
     1 << 24,                                                                                                                         \
     NULL},                                                                                                                           \
        {"block-tokens",                                                                                                              \
         SL_ARG_INT,                                                                                                                  \
         &(keys).block_tokens,                                                                                                        \
         "N",                                                                                                                         \
         "quest: number of tokens of a block, which is selected as a whole; it divides 64. Default 16.",                              \
         1,                                                                                                                           \
         64,                                                                                                                          \
         NULL},                                                                                                                       \
        {"list-scope",                                                                                                                \
         SL_ARG_CHOICE,                                                                                                               \
         &(keys).list_scope,                                                                                                          \
         "NAME",                                                                                                                      \
         "quest, double_sparsity: who shares a list: the query heads of one KV head (kv_head, the default), or all "                  \
         "heads (request).",                                                                                                          \
         0,                                                                                                                           \
         0,                                                                                                                           \
         sl_list_scope_names()},                                                                                                      \
        {"gqa-reduction",                                                                                                             \
         SL_ARG_CHOICE,                                                                                                               \
         &(keys).gqa_reduction,                                                                                                       \
         "NAME",                                                                                                                      \
         "quest, double_sparsity, cluster_kv: how the scores for the query heads that share a list become one: the largest "          \
         "(max, the default), that of the mean query (mean), or the sum of their softmax (softmax).",                                 \
         0,                                                                                                                           \
         0,                                                                                                                           \
         sl_group_reduce_names()},                                                                                                    \
        {"bounds-dtype",                                                                                                              \
         SL_ARG_AUTO,                                                                                                                 \
         &(keys).bounds_dtype,                                                                                                        \
         "NAME",                                                                                                                      \
         "quest: data type of the stored bounds. auto, the default, is f32 for gqa_f32 rows, else bf16. int8 has half of the bytes.", \
         0,                                                                                                                           \
         0,                                                                                                                           \
         sl_bounds_dtype_names()},                                                                                                    \
        {"prompt-budget",                                                                                                             \
         SL_ARG_INT,                                                                                                                  \
         &(keys).prompt_budget,                                                                                                       \
         "N",                                                                                                                         \
         "snapkv, rocket_kv: number of tokens of the prompt that each KV head keeps, with the window. Default 2048.",                 \
         1,                                                                                                                           \
         1 << 24,                                                                                                                     \
         NULL},                                                                                                                       \
        {"window-size",                                                                                                               \
         SL_ARG_INT,                                                                                                                  \
         &(keys).window_size,                                                                                                         \
         "N",                                                                                                                         \
         "snapkv, rocket_kv: number of last tokens of the prompt, whose queries choose the kept tokens. Default 32.",                 \
         1,                                                                                                                           \
         4096,                                                                                                                        \
         NULL},                                                                                                                       \
        {"kernel-size",                                                                                                               \
         SL_ARG_INT,                                                                                                                  \
         &(keys).kernel_size,                                                                                                         \
         "N",                                                                                                                         \
         "snapkv, rocket_kv: number of tokens over which votes are pooled; odd. Default 5, rocket_kv 63.",                            \
         1,                                                                                                                           \
         4095,                                                                                                                        \
         NULL},                                                                                                                       \
        {"pooling",                                                                                                                   \
         SL_ARG_AUTO,                                                                                                                 \
         &(keys).pooling,                                                                                                             \
         "NAME",                                                                                                                      \
         "snapkv, rocket_kv: how the votes of neighbouring tokens are pooled. auto, the default, is avgpool, for rocket_kv maxpool.", \
         0,                                                                                                                           \
         0,                                                                                                                           \
         sl_pooling_names()},                                                                                                         \
        {"output-tokens",                                                                                                             \
         SL_ARG_INT,                                                                                                                  \
         &(keys).output_tokens,                                                                                                       \
         "N",                                                                                                                         \
         "snapkv: number of newest generated tokens that a query reads; 0 means all. Default 1024.",                                  \
         0,                                                                                                                           \
         1 << 24,                                                                                                                     \
         NULL},                                                                                                                       \
        {"topk", SL_ARG_INT, &(keys).topk, "N", "rocket_kv: number of pages that a query reads. Default 64.",                         \
         1,      1 << 24,    NULL},                                                                                                   \
        {"topr",                                                                                                                      \
         SL_ARG_INT,                                                                                                                  \
         &(keys).topr,                                                                                                                \
         "N",                                                                                                                         \
         "rocket_kv: number of channels by which pages are scored. Default 128.",                                                     \
         1,                                                                                                                           \
         1024,                                                                                                                        \
         NULL},                                                                                                                       \
        {"page-size",                                                                                                                 \
         SL_ARG_INT,                                                                                                                  \
         &(keys).page_size,                                                                                                           \
         "N",                                                                                                                         \
         "rocket_kv: number of tokens of a page; it divides 64. Default 4.",                                                          \
         1,                                                                                                                           \
         64,                                                                                                                          \
         NULL},                                                                                                                       \
        {"kt-cache-dtype",                                                                                                            \
         SL_ARG_CHOICE,                                                                                                               \
         &(keys).kt_cache_dtype,                                                                                                      \
         "NAME",                                                                                                                      \
         "rocket_kv: data type of the bounds of a page. Default float8_e5m2.",                                                        \
         0,                                                                                                                           \
         0,                                                                                                                           \
         sl_kt_type_names()},                                                                                                         \
        {"channel-config-path",                                                                                                       \
         SL_ARG_TEXT,                                                                                                                 \
         &(keys).channel_config_path,                                                                                                 \
         "FILE",                                                                                                                      \
         "double_sparsity: the calibrated channels of the model, as `sluice calibrate` writes them.",                                 \
         0,                                                                                                                           \
         0,                                                                                                                           \
         NULL},                                                                                                                       \
        {"heavy-channels",                                                                                                            \
         SL_ARG_INT,                                                                                                                  \
         &(keys).heavy_channels,                                                                                                      \
         "N",                                                                                                                         \
         "double_sparsity: number of channels of each key that selection reads. Default 32.",                                         \
         1,                                                                                                                           \
         1024,                                                                                                                        \
         NULL},                                                                                                                       \
        {"threshold-scale-factor",                                                                                                    \
         SL_ARG_REAL,                                                                                                                 \
         &(keys).threshold_scale_factor,                                                                                              \
         "X",                                                                                                                         \
         "skip_softmax: a query at position p leaves out tiles whose weights are below X / (p + 1) of the largest. Default 0: "       \
         "none.",                                                                                                                     \
         0,                                                                                                                           \
         1e9,                                                                                                                         \
         NULL},                                                                                                                       \
        {"cluster-tokens",                                                                                                            \
         SL_ARG_INT,                                                                                                                  \
         &(keys).cluster_tokens,                                                                                                      \
         "N",                                                                                                                         \
         "cluster_kv: number of tokens of the prompt per cluster, on average. Default 80.",                                           \
         1,                                                                                                                           \
         1 << 24,                                                                                                                     \
         NULL},                                                                                                                       \
        {"cluster-window",                                                                                                            \
         SL_ARG_INT,                                                                                                                  \
         &(keys).cluster_window,                                                                                                      \
         "N",                                                                                                                         \
         "cluster_kv: number of generated tokens that are divided into clusters together; until then they are read. Default 320.",    \
         1,                                                                                                                           \
         1 << 24,                                                                                                                     \
         NULL},                                                                                                                       \
        {"window-nlist",                                                                                                              \
         SL_ARG_INT,                                                                                                                  \
         &(keys).window_nlist,                                                                                                        \
         "N",                                                                                                                         \
         "cluster_kv: number of clusters of cluster-window tokens. Default 8.",                                                       \
         1,                                                                                                                           \
         65535,                                                                                                                       \
         NULL},                                                                                                                       \
        {"niter",                                                                                                                     \
         SL_ARG_INT,                                                                                                                  \
         &(keys).niter,                                                                                                               \
         "N",                                                                                                                         \
         "cluster_kv, pq_cache: number of iterations of k-means. Default 20.",                                                        \
         1,                                                                                                                           \
         10000,                                                                                                                       \
         NULL},                                                                                                                       \
        {"n-subvec",                                                                                                                  \
         SL_ARG_INT,                                                                                                                  \
         &(keys).n_subvec,                                                                                                            \
         "N",                                                                                                                         \
         "pq_cache: number of pieces of a key that are quantised by themselves. Default 2.",                                          \
         1,                                                                                                                           \
         1024,                                                                                                                        \
         NULL},                                                                                                                       \
        {"n-subbits",                                                                                                                 \
         SL_ARG_INT,                                                                                                                  \
         &(keys).n_subbits,                                                                                                           \
         "N",                                                                                                                         \
         "pq_cache: bits of the code of a piece. Default 6.",                                                                         \
         1,                                                                                                                           \
         8,                                                                                                                           \
         NULL},                                                                                                                       \
        {"recent-ratio",                                                                                                              \
         SL_ARG_REAL,                                                                                                                 \
         &(keys).recent_ratio,                                                                                                        \
         "X",                                                                                                                         \
         "pq_cache: share of the token budget, without the sinks, that the newest tokens get. Default 0.5.",                          \
         0,                                                                                                                           \
         1,                                                                                                                           \
         NULL},                                                                                                                       \
    {                                                                                                                                 \
        "klabel-dtype", SL_ARG_AUTO, &(keys).klabel_dtype, "NAME",                                                                    \
            "double_sparsity: data type of these stored channels. auto, the default, is f32 for gqa_f32 rows, else bf16.",            \
            0, 0, sl_label_dtype_names()                                                                                              \
    }
#define SL_CLI_BACKEND_ARG(variable)                                                                         \
    {                                                                                                        \
        "backend", SL_ARG_TEXT, &(variable), "NAME", "Compute backend: cpu, the default, or cuda.", 0, 0,    \
            NULL                                                                                             \
    }
#define SL_CLI_THREADS_ARG(variable)                                                                         \
    {                                                                                                        \
        "threads", SL_ARG_INT, &(variable), "N",                                                             \
            "Number of compute threads of the cpu backend; 0, the default, uses all cores.", 0, 1024, NULL   \
    }

#endif
