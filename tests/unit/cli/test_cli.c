/*
 * The commands of the `sluice` program: exit codes, messages, and the JSON of generate, plan and inspect. argv[1] is
 * the path of the program.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "model/safetensors.h"
#include "simulate/random.h"
#include "tests/unit/cli/program.h"

#define YARN "tests/golden/model/ds-yarn"

static json_t *run_json(const char *args)
{
    int status = run(args, false);
    ck_assert_msg(status == 0, "%s: status %d: %s", args, status, said());
    json_error_t e;
    json_t *j = json_loads(output, 0, &e);
    ck_assert_msg(j != NULL, "%s: %s", args, e.text);
    return j;
}

START_TEST(messages)
{
    fails("", 2, "usage");
    fails("nonsense", 2, "unknown command \"nonsense\"");
    fails("generate --bogus", 2, "unknown flag --bogus");
    fails("generate", 2, "--model DIR is required");
    fails("generate --model", 2, "missing value of --model");
    fails("generate --model " YARN " extra", 2, "unexpected argument extra");
    fails("generate --mode sideways", 2, "resident, hierarchical");
    fails("generate --max-new-tokens x", 2, "integer");
    fails("generate --json=1", 2, "takes no value");
    fails("generate --presence-penalty 2.5", 2, "--presence-penalty");
    fails("generate --frequency-penalty -3", 2, "--frequency-penalty");
    fails("generate --model " YARN " --ids 1 --repetition-penalty 0.001", 1, "repetition_penalty");
    fails("plan --gpu-bytes 12Q", 2, "16G");
    fails("generate --model " YARN, 1, "--prompt or --ids");
    fails("generate --model " YARN " --ids 1,,2", 1, "--ids");
    fails("generate --model " YARN " --ids 1,128", 1, "vocabulary of 128");
    fails("generate --model " YARN " --prompt hello", 1, "tokenizer");
    fails("generate --model /nonexistent --ids 1", 1, "config.json");
    fails("generate --model " YARN " --ids 1 --max-new-tokens 4096", 1, "context of 4096");
    fails("generate --model " YARN " --ids 1 --algorithm none", 1, "dsa, dense");
    fails("generate --model " YARN " --ids 1 --mode hierarchical --hot-rows 3 --max-new-tokens 100", 1,
          "hot_rows 3");
    fails("config --set decode.nothing=1", 1, "nothing");
    fails("config check /nonexistent.yaml", 1, "/nonexistent.yaml");
    fails("config check configs/one-host.yaml --set model.path=/nonexistent", 1, "model.path: /nonexistent");
    fails("config check configs/one-host.yaml --set model.max_context=4096 --set kvstore.bytes=1M", 1,
          "kvstore.bytes: 1.0 MiB");
    fails("config check configs/one-host.yaml --set sparse_attention.hot_rows=3", 1,
          "sparse_attention.hot_rows is 3");
    fails("config check configs/one-host.yaml --set sparse_attention.algorithm=quest", 1, "KV heads");
    fails(
        "config check configs/one-host.yaml --elsewhere --set model.path=models/facts-llama --set "
        "sparse_attention.algorithm=xattention --set prefill.chunk_tokens=63",
        1,
        "prefill.chunk_tokens: 63, but sparse_attention.algorithm xattention computes prompts by pages of 64");
    ck_assert_int_eq(run("config check configs/one-host.yaml --elsewhere", false), 0);
    fails("inspect --model /nonexistent", 1, "config.json");
    fails("verify", 2, "--model DIR is required");
    fails("verify --model " YARN " --tokens 100000", 1, "context of 4096");
    fails("verify --model " YARN " --hot-rows 3", 1, "hot_rows 3");
    fails("simulate --generate 5 --costs simulate/costs/h200-v32.yaml --both 2 --prefill 1", 1, "--both");
    fails(
        "simulate --generate 5 --costs simulate/costs/h200-v32.yaml --set cluster.groups=[decode=2] --decode 3",
        1, "groups of 2 ranks");
}
END_TEST

/* Which routers there are is checked before anything is loaded. */
START_TEST(lists_of_routers)
{
#define SET "--config configs/no-mpi.yaml --set metrics.port=0 --set cluster.routers="
    fails("decode " SET "foo", 1, "cluster.routers: \"foo\" is not HOST:PORT");
    fails("decode " SET "h:0", 1, "cluster.routers: \"h:0\" is not HOST:PORT");
    fails("decode " SET "127.0.0.1:7300,192.0.2.1:7300", 1, "cluster.secret_file: not set");
    fails("router --index 3 " SET "127.0.0.1:7300,127.0.0.1:7301", 1, "has 2 addresses, none for router 3");
    fails("router --index 9 --set router.http_port=65530 " SET, 1, "router.http_port: 65530 is too high");
    fails("router --index 2147483647 " SET, 1, "router.http_port: 8080 is too high");
    fails("router " SET "127.0.0.1:7301,127.0.0.1:7302", 1,
          "cluster.routers: no entry has cluster.router_port 7300");
    fails("router --set kvstore.share=tenant " SET, 1, "kvstore.share: tenant needs router.keys_file");
#undef SET
}
END_TEST

START_TEST(cache_arguments)
{
    fails("cache", 2, "usage: sluice cache ACTION");
    fails("cache melt", 2, "unknown action 'melt'");
    fails("cache stat", 2, "give either --dir or --router");
    fails("cache stat --dir x --router y", 2, "give either --dir or --router");
    fails("cache warm --dir tests", 2, "needs --router");
    fails("cache warm --router http://127.0.0.1:9", 2, "--file is missing");
    fails("cache verify --router http://127.0.0.1:9", 1, "127.0.0.1:9: Connection refused");
    fails("cache verify --dir x --tier disk", 2, "need --router");
    fails("cache drop --router http://127.0.0.1:9 --worker decode/0", 2, "--worker needs --tier");
    fails("cache ls --router http://127.0.0.1:9 --limit -1", 2, "--limit");
    fails("cache ls --dir tests/nowhere", 1, "tests/nowhere: No such file");
    fails("cache drop --dir tests", 1, "tests/pages.sluice: No such file");
    fails("cache stat --router https://x:1", 1, "only http:// is possible");
    fails("cache stat --router http://x", 1, "is not http://HOST:PORT");
    fails("cache stat --router http://x:1/path", 1, "is not http://HOST:PORT");
    fails("cache stat --router x:80y", 1, "is not http://HOST:PORT");
    fails("cache stat --router http://127.0.0.1:9", 1, "127.0.0.1:9: Connection refused");
    fails("cache stat --router http://[::1]:9 --key-file tests/nowhere", 1,
          "--key-file tests/nowhere: No such");
}
END_TEST

/* The kernels of a checkpoint: which shapes have a fast one, from the functions by which the backend chooses. */
START_TEST(inspect_kernels)
{
    ck_assert_int_eq(run("inspect --kernels --model tests/golden/model/llama-bf16", false), 0);
    ck_assert_msg(
        strstr(output, "512 x 64 bf16            stream                 library, one chain     3: ") != NULL,
        "%s", output);
    ck_assert(strstr(output, "gqa_attn "));
    ck_assert_int_eq(run("inspect --kernels --model tests/golden/model/ds-fp8", false), 0);
    ck_assert_msg(strstr(output,
                         "136 x 160 fp8            plain                  plain                  (slow) 16: "
                         "model.layers.1.mlp.experts.0.gate_proj.weight, ...") != NULL,
                  "%s", output);
    ck_assert(strstr(output, "sparse_attn ") && strstr(output, "index_scores "));
}
END_TEST

START_TEST(help_and_version)
{
    static const char *const names[] = {"generate", "plan", "inspect", "config"};
    ck_assert_int_eq(run("--help", false), 0);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        ck_assert(strstr(output, names[i]));
    }
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char args[64];
        snprintf(args, sizeof args, "%s --help", names[i]);
        ck_assert_int_eq(run(args, false), 0);
        ck_assert(strstr(output, "usage: sluice "));
    }
    ck_assert_int_eq(run("--version", false), 0);
    ck_assert(strncmp(output, "sluice ", 7) == 0);
    ck_assert_int_eq(run("config --reference md", false), 0);
    ck_assert(strstr(output, "hot_rows"));
}
END_TEST

/* Writes the ids of a golden prompt as "1,2,3". */
static void golden_ids(sl_safetensors *st, char *out, size_t cap)
{
    const sl_st_tensor *t = sl_st_find(st, "p2.ids");
    size_t n = 0;
    for (int64_t i = 0; i < t->shape[t->rank - 1]; i++) {
        int id = t->dtype == SL_ST_I64 ? (int)((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
        n += (size_t)snprintf(out + n, cap - n, "%s%d", i ? "," : "", id);
    }
}

START_TEST(generate_matches_golden)
{
    static const char *const flags[] = {
        "", "--mode hierarchical --hot-rows 16 --poison --tail-rows 1",
        "--mode hierarchical --hot-rows 20 --policy clock --chunk 5 --layout page_head",
        "--chunk 1 --threads 2 --layout layer_first"};
    sl_safetensors *st;
    ck_assert_int_eq(sl_st_open(YARN "/golden.safetensors", &st, NULL), SL_OK);
    char ids[3000], args[3500];
    golden_ids(st, ids, sizeof ids);
    snprintf(args, sizeof args,
             "generate --model %s --ids %s --max-new-tokens 64 --ignore-eos --logits --json %s", YARN, ids,
             flags[_i]);
    json_t *j = run_json(args), *got = json_object_get(j, "ids"), *logits = json_object_get(j, "logits");
    const sl_st_tensor *greedy = sl_st_find(st, "p2.greedy"), *want = sl_st_find(st, "p2.logits");
    ck_assert_uint_eq(json_array_size(got), 64);
    for (size_t i = 0; i < 64; i++) {
        int id = greedy->dtype == SL_ST_I64 ? (int)((const int64_t *)greedy->data)[i]
                                            : ((const int32_t *)greedy->data)[i];
        ck_assert_int_eq(json_integer_value(json_array_get(got, i)), id);
    }
    ck_assert_uint_eq(json_array_size(logits), 128);
    for (size_t i = 0; i < 128; i++)
        ck_assert(fabs(json_real_value(json_array_get(logits, i)) - (double)((const float *)want->data)[i]) <=
                  1e-4);
    ck_assert_str_eq(json_string_value(json_object_get(j, "finish_reason")), "length");
    json_t *swap = json_object_get(j, "swap");
    bool hierarchical = strcmp(json_string_value(json_object_get(j, "mode")), "hierarchical") == 0;
    ck_assert_int_eq(hierarchical, json_integer_value(json_object_get(swap, "misses")) > 0);
    json_decref(j);
    sl_st_close(st);
}
END_TEST

START_TEST(generate_samples_by_seed)
{
    const char *args = "generate --model " YARN
                       " --ids 5,6,7 --max-new-tokens 40 --ignore-eos --temperature 1 --json --seed %s";
    char cmd[256];
    snprintf(cmd, sizeof cmd, args, "3");
    json_t *a = run_json(cmd), *b = run_json(cmd);
    ck_assert(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
    snprintf(cmd, sizeof cmd, args, "4");
    json_t *c = run_json(cmd);
    ck_assert(!json_equal(json_object_get(a, "ids"), json_object_get(c, "ids")));
    snprintf(cmd, sizeof cmd, args, "3 --mode hierarchical --hot-rows 16");
    json_t *d = run_json(cmd);
    ck_assert(json_equal(json_object_get(a, "ids"), json_object_get(d, "ids")));
    json_decref(a), json_decref(b), json_decref(c), json_decref(d);
}
END_TEST

START_TEST(generate_text)
{
    json_t *j =
        run_json("generate --model models/tiny-v32 --prompt 'The cache lives' --max-new-tokens 8 --json");
    ck_assert(json_is_string(json_object_get(j, "text")));
    ck_assert_uint_gt(json_array_size(json_object_get(j, "prompt_ids")), 1);
    json_decref(j);
}
END_TEST

START_TEST(plan_and_inspect)
{
    json_t *p = run_json("plan --model " YARN
                         " --gpu-bytes 64M --host-bytes 1G --hot-rows 16 --max-context 4096 --json");
    ck_assert_int_eq(json_integer_value(json_object_get(p, "hot_rows")), 16);
    ck_assert_int_eq(json_integer_value(json_object_get(p, "gpu_bytes")), 64 << 20);
    ck_assert_uint_eq(json_array_size(json_object_get(p, "contexts")), 4);
    json_t *i = run_json("inspect --model " YARN " --json");
    ck_assert_int_eq(json_integer_value(json_object_get(i, "layers")), 4);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(i, "page"), "bytes")),
                     json_integer_value(json_object_get(p, "page_bytes")));
    ck_assert_int_eq(json_integer_value(json_object_get(i, "mtp_tensors")), 0);
    json_decref(p), json_decref(i);
    i = run_json("inspect --model tests/golden/model/ds-mtp --json");
    ck_assert_int_eq(json_integer_value(json_object_get(i, "mtp_tensors")), 47);
    ck_assert_int_eq(json_integer_value(json_object_get(i, "layers")), 3);
    json_decref(i);
}
END_TEST

/* --ranks plans for the rank with the most experts; the preset needs no directory. */
START_TEST(plan_of_a_group)
{
#define V32 "plan --preset deepseek_v32 --gpu-bytes 139G --host-bytes 1536G "
    json_t *p = run_json(V32 "--ranks 8 --json"), *g = json_object_get(p, "group");
    json_int_t weights = json_integer_value(json_object_get(p, "weight_bytes"));
    ck_assert_int_eq(json_integer_value(json_object_get(g, "ranks_per_host")), 8);
    ck_assert_int_eq(json_integer_value(json_object_get(g, "experts")), 32);
    ck_assert_int_eq(weights, json_integer_value(json_object_get(g, "replicated_bytes")) +
                                  json_integer_value(json_object_get(g, "expert_bytes")));
    ck_assert_int_eq(json_integer_value(json_object_get(p, "host_bytes")), 192ll << 30);
    ck_assert_uint_eq(json_array_size(json_object_get(g, "needed")), 4);
    json_decref(p);
    p = run_json(V32 "--ranks 3 --ranks-per-host 2 --json"), g = json_object_get(p, "group");
    ck_assert_int_eq(json_integer_value(json_object_get(g, "rank")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(g, "experts")), 86);
    json_t *need = json_array_get(json_object_get(g, "needed"), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(need, "device_bytes")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(need, "ranks")), 3);
    json_decref(p);
    ck_assert_int_eq(run(V32 "--ranks 4", true), 0);
    ck_assert_msg(strstr(output, "a request of 16384 tokens does not fit: it needs ") != NULL, "%s", output);
    fails("plan --preset tiny", 2, "--host-bytes is required");
    fails("plan --preset nothing --host-bytes 1G", 1, "no synthetic model \"nothing\"");
    fails("plan --preset tiny --host-bytes 1.5G --ranks 17", 1, "17 ranks share 16 routed experts");
    fails("plan --preset tiny --host-bytes 1.5G --ranks 2 --ranks-per-host 3", 1,
          "3 ranks on a host, of a group of 2");
    fails("plan --preset tiny --ranks-per-host 2", 2, "--ranks-per-host needs --ranks");
    /* the weights of the config are counted with and without a group, and of each mode it is said what is the limit */
    json_t *one = run_json(V32 "--ranks 1 --json"), *alone = run_json(V32 "--json");
    ck_assert_int_gt(json_integer_value(json_object_get(alone, "weight_bytes")), 600ll << 30);
    ck_assert_int_eq(json_integer_value(json_object_get(alone, "weight_bytes")),
                     json_integer_value(json_object_get(one, "weight_bytes")));
    json_decref(one), json_decref(alone);
    p = run_json(V32 "--ranks 8 --json");
    for (size_t i = 0; i < json_array_size(json_object_get(p, "contexts")); i++) {
        json_t *row = json_array_get(json_object_get(p, "contexts"), i);
        static const char *const modes[] = {"resident", "hierarchical"};
        for (size_t k = 0; k < SL_COUNT(modes); k++) {
            char batch[32], device[32], limit[32];
            snprintf(batch, sizeof batch, "%s_batch", modes[k]);
            snprintf(device, sizeof device, "%s_device", modes[k]);
            snprintf(limit, sizeof limit, "%s_limit", modes[k]);
            json_int_t d = json_integer_value(json_object_get(row, device));
            json_int_t h = json_integer_value(json_object_get(row, "host_batch"));
            ck_assert_int_eq(json_integer_value(json_object_get(row, batch)), d < h ? d : h);
            ck_assert_str_eq(json_string_value(json_object_get(row, limit)), h < d ? "host" : "device");
        }
    }
    json_decref(p);
    fails("plan --preset tiny --model " YARN, 2, "exclude each other");
    fails("plan --preset tiny --ranks 65", 2, "64");
    fails("inspect --preset tiny --model " YARN, 2, "exclude each other");
    fails("inspect --preset nothing", 1, "no synthetic model \"nothing\"");
    json_t *i = run_json("inspect --preset deepseek_v32 --json");
    ck_assert_int_eq(json_integer_value(json_object_get(i, "layers")), 61);
    json_decref(i);
}
END_TEST

/* What a simulation finds fits the plan of the model: sizes that do not are refused, and a search never ends with them. */
START_TEST(simulation_by_plan)
{
#define SIM                                                                                                            \
    "simulate --generate 40 --costs simulate/costs/h200-v32.yaml --preset deepseek_v32 --set cluster.groups=decode=8 " \
    "--prefill 2 --decode 8 "
    fails(SIM "--host-bytes 64M --gpu-bytes 139G", 1, "the plan refuses a host store");
    fails(SIM "--host-bytes 64G --gpu-bytes 90G", 1, "--gpu-bytes, with decode.max_batch 64");
    fails("simulate --generate 5 --costs simulate/costs/h200-v32.yaml --gpu-bytes 1G --preset nothing", 1,
          "nothing");
    ck_assert_msg(run(SIM "--host-bytes 64G --gpu-bytes 139G --set decode.max_batch=16", true) == 0, "%s",
                  output);
    /* a search that may halve the store at will stops where the longest request fits */
    ck_assert_msg(
        run(SIM "--host-bytes 64G --gpu-bytes 139G --set decode.max_batch=16 --search 0.01", true) == 0, "%s",
        output);
    const char *at = strstr(output, "host store ");
    ck_assert_ptr_nonnull(at);
    const double gib = strtod(at + strlen("host store "), NULL);
    char again[512];
    snprintf(again, sizeof again, SIM "--host-bytes %.0fM --gpu-bytes 139G --set decode.max_batch=16",
             gib * 1024);
    ck_assert_msg(run(again, true) == 0, "%s: %s", again, output);
#undef SIM
}
END_TEST

/* How many requests of 64K host memory holds is said alike for every device, and follows from the bytes of a page: 72 of DeepSeek-V3.2 in
 * 212 GiB of each of eight GPUs, 29 of Llama-3.1-8B in an eighth of 2 TB. */
START_TEST(plan_of_host_memory)
{
    char dir[] = "/tmp/sluice-llama-XXXXXX", path[64], args[512], v32[128], llama[128];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fputs(
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 4096, \"intermediate_size\": 14336,"
        "\"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"head_dim\": 128, \"vocab_size\": 128256,"
        "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 500000.0, \"torch_dtype\": \"bfloat16\","
        "\"hidden_act\": \"silu\"}",
        f);
    ck_assert_int_eq(fclose(f), 0);
    snprintf(v32, sizeof v32, "plan --preset deepseek_v32 --ranks 8");
    snprintf(llama, sizeof llama, "plan --model %s --row-format gqa_bf16", dir);
    const struct {
        const char *plan;
        uint64_t host;
        int32_t share, expected; /* GPUs that have the host's memory together; requests, -1: any */
    } cases[] = {{v32, 1696ull << 30, 8, 72}, {llama, 250000000000, 1, 29},    {v32, 3ull << 40, 8, -1},
                 {v32, 777ull << 30, 8, -1},  {llama, 123456789012ull, 1, -1}, {llama, 9ull << 30, 1, 1}};
    static const int gpu_gib[] = {110, 141, 180};
    for (size_t i = 0; i < SL_COUNT(cases) * SL_COUNT(gpu_gib); i++) {
        const int32_t expected = cases[i / 3].expected;
        snprintf(args, sizeof args, "%s --host-bytes %lu --gpu-bytes %dG --json", cases[i / 3].plan,
                 cases[i / 3].host, gpu_gib[i % 3]);
        json_t *p = run_json(args), *row = json_array_get(json_object_get(p, "contexts"), 2);
        const json_int_t page = json_integer_value(json_object_get(p, "page_bytes")),
                         batch = json_integer_value(json_object_get(row, "host_batch"));
        ck_assert_int_eq(json_integer_value(json_object_get(row, "context")), 65536);
        ck_assert_int_eq(batch, (json_int_t)cases[i / 3].host / cases[i / 3].share / page / 1024);
        ck_assert_msg(expected < 0 || batch == expected, "%s: %lld", args, (long long)batch);
        json_decref(p);
    }
    ck_assert(remove(path) == 0 && remove(dir) == 0);
}
END_TEST

/* A search from random sizes: what it prints at the end is accepted by the same plan, and so is every run that it made. */
START_TEST(searches_keep_to_the_plan)
{
#define MANY                                                                                                                       \
    "simulate --generate 30 --length %s --costs simulate/costs/h200-v32.yaml --preset deepseek_v32 --set cluster.groups=decode=8 " \
    "--prefill 2 --decode 8 --gpu-bytes 139G --set decode.max_batch=%d --host-bytes %ldM"
    static const char *const lengths[] = {"1", "0.25", "4"};
    char args[512];
    int found = 0;
    for (int seed = 0; seed < 6; seed++) {
        uint64_t r = (uint64_t)seed;
        const char *length = lengths[sl_sim_random(&r) % 3];
        const int batch = 4 + (int)(sl_sim_random(&r) % 12);
        const long mib = 1L << (12 + sl_sim_random(&r) % 6);
        snprintf(args, sizeof args, MANY " --search 0.01 --max-runs 12", length, batch, mib);
        if (run(args, true) != 0) {
            ck_assert_msg(strstr(output, "the plan refuses a host store") ||
                              strstr(output, "decode.max_batch"),
                          "%s: %s", args, output);
            continue;
        }
        found++;
        char *all = strdup(output);
        for (const char *at = all; (at = strstr(at, " host "));
             at++) { /* "host X GiB" of the runs, "host store X GiB" of the result */
            const double gib = strtod(at + (strncmp(at, " host store ", 12) ? 6 : 12), NULL);
            if (gib <= 0)
                continue;
            snprintf(args, sizeof args, MANY " --requests 1", length, batch, (long)(gib * 1024 + 0.5));
            ck_assert_msg(run(args, true) == 0, "%s: %s", args, output);
        }
        free(all);
    }
    ck_assert_int_ge(found, 2);
#undef MANY
}
END_TEST

/* All ways have equal logits. A way in which no row is swapped in is not counted as shown to be equal. */
START_TEST(verify_shows_equal_logits)
{
    ck_assert_int_eq(run("verify --steps 8 --model " YARN, true), 0);
    ck_assert_msg(strstr(output, "from host pages  equal, ") != NULL, "%s", output);
    ck_assert_msg(strstr(output, "6 of 6 ways shown to be equal") != NULL, "%s", output);
    ck_assert_int_eq(run("verify --steps 4 --tokens 20 --hot-rows 64 --model " YARN, true), 1);
    ck_assert_msg(strstr(output, "no row was ever missed") != NULL, "%s", output);
    ck_assert_msg(strstr(output, "3 of 6 ways shown to be equal") != NULL, "%s", output);
}
END_TEST

START_TEST(plan_by_locality)
{
    char path[] = "/tmp/sluice-locality-XXXXXX", args[512];
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    for (int l = 0; l < 4; l++)
        fprintf(f,
                "sluice_swap_rows_total{layer=\"%d\",result=\"hit\"} %d\n"
                "sluice_swap_rows_total{layer=\"%d\",result=\"miss\"} %d\n",
                l, l ? 900 : 10, l, l ? 100 : 990);
    fputs("sluice_decode_step_seconds_sum 10\nsluice_swap_exposed_seconds_total 0\n", f);
    fclose(f);
    snprintf(args, sizeof args, "plan --model " YARN " --hot-rows 24 --context 4096 --locality %s --json",
             path);
    json_t *p = run_json(args), *rows = json_object_get(p, "hot_rows");
    ck_assert_uint_eq(json_array_size(rows), 4);
    ck_assert_int_lt(json_integer_value(json_array_get(rows, 0)), 24);
    ck_assert_int_ge(json_integer_value(json_array_get(rows, 1)), 24);
    unlink(path);
    snprintf(args, sizeof args, "plan --model " YARN " --locality %s", path);
    fails(args, 1, path);
    json_decref(p);
}
END_TEST

/* A model without an indexer needs no flags, hierarchical or not. */
START_TEST(algorithm_is_chosen_by_the_model)
{
#define RUN " --ids 3,4,5,6 --max-new-tokens 6 --ignore-eos --json"
    json_t *a = run_json("generate --model tests/golden/model/llama-odd --mode hierarchical --poison" RUN);
    json_t *b = run_json("generate --model tests/golden/model/llama-odd --algorithm dense" RUN);
    json_t *c = run_json("generate --model " YARN RUN);
    ck_assert_str_eq(json_string_value(json_object_get(a, "algorithm")), "dense");
    ck_assert_str_eq(json_string_value(json_object_get(c, "algorithm")), "dsa");
    ck_assert(json_equal(json_object_get(a, "ids"), json_object_get(b, "ids")));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    ck_assert_int_eq(run("plan --model tests/golden/model/llama-odd --host-bytes 64G", false), 0);
    ck_assert_ptr_nonnull(strstr(output, "algorithm dense"));
#undef RUN
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("cli");
    TCase *c = tcase_create("cli");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, messages);
    tcase_add_test(c, lists_of_routers);
    tcase_add_test(c, cache_arguments);
    tcase_add_test(c, help_and_version);
    tcase_add_test(c, simulation_by_plan);
    tcase_add_test(c, plan_of_host_memory);
    tcase_add_test(c, searches_keep_to_the_plan);
    tcase_add_test(c, inspect_kernels);
    tcase_add_loop_test(c, generate_matches_golden, 0, 4);
    tcase_add_test(c, generate_samples_by_seed);
    tcase_add_test(c, generate_text);
    tcase_add_test(c, algorithm_is_chosen_by_the_model);
    tcase_add_test(c, plan_and_inspect);
    tcase_add_test(c, verify_shows_equal_logits);
    tcase_add_test(c, plan_by_locality);
    tcase_add_test(c, plan_of_a_group);
    suite_add_tcase(s, c);
    return program_main(argc, argv, s);
}
