/* The benchmarks as commands of the `sluice` program: refused arguments, and real clusters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "tests/unit/cli/program.h"
#include "tests/unit/llguidance.h"

START_TEST(messages)
{
    fails("bench decode --contexts 256,x", 2, "bench decode: --contexts 256,x is not a list");
    fails("bench decode --batch 0", 2, "bench decode: --batch 0 is not a list");
    fails("bench decode --rows mla_fp", 2,
          "bench decode: --rows mla_fp is not a list of at most 8 names; there are: mla_f32,");
    fails("bench decode --batch 1,2,3,4,5,6,7,8,9", 2, "is not a list");
    fails("bench decode --draft-accept 0.5,0.6", 2,
          "bench decode: --draft-accept: 0.5,0.6 is not a list of at most 4 numbers");
    fails("bench decode --draft-accept 1,1,1,1,1", 2, "--draft-accept: 1,1,1,1,1 is not a list");
    fails("bench decode --backend cpu --model tiny_llama --draft 1", 1, "no MTP layer");
    fails("bench decode --backend cpu --model tiny --group 2 --draft 1", 1, "does not draft in a group");
    fails("bench prefill --chunks 1", 2, "bench prefill: --chunks 1 is not a list");
    fails("bench prefill --ttft 0", 2, "bench prefill: --ttft 0 is not a list");
    fails("bench prefill --ttft 100 --backend cpu --model tiny", 1, "tiny has no KV heads");
    fails("bench prefill --ttft 200000 --backend cpu --model tiny_llama", 1,
          "exceed the model's context of 131072");
    fails("bench prefill --ttft 100 --backend cpu --model tiny_llama --algorithms quest,xatention", 1,
          "xatention");
    fails("bench prefill --ttft 100 --backend cpu --model tiny_llama --algorithms xattention:list_mass=2", 1,
          "list_mass");
    fails("bench prefill --ttft 100 --chunks 63 --backend cpu --model tiny_llama", 1, "prompts by 64 tokens");
    fails("bench prefill --contexts ,", 2,
          "bench prefill: --contexts , is not a list of at most 8 whole numbers from 0");
}
END_TEST

/* Drafts with synthetic acceptance: tokens a step lie near what was asked for, and every draft stands when all do. */
START_TEST(drafts_of_decode)
{
    static const struct {
        const char *flags;
        double least, most;
    } runs[] = {{"--draft 0", 1, 1},
                {"--draft 3 --draft-accept 1,1,1", 4, 4},
                {"--draft 3 --draft-accept 0", 1, 1},
                {"--draft 2 --draft-accept 0.8,0.5", 2.0, 2.6}};
    for (size_t i = 0; i < SL_COUNT(runs); i++) {
        char cmd[300];
        snprintf(
            cmd, sizeof cmd,
            "bench decode --backend cpu --model tiny --ranks 4 --contexts 1024 --host-bytes 64M --kv-bytes 32M --batch 4 "
            "--max-batch 8 --threads 2 --steps 30 --warmup 1 --modes hierarchical %s",
            runs[i].flags);
        ck_assert_int_eq(run(cmd, false), 0);
        const char *at = strstr(output, "tokens of a request in a step");
        ck_assert_ptr_nonnull(at);
        while (at > output && at[-1] != '\n')
            at--;
        double got = strtod(at, NULL);
        ck_assert_msg(got >= runs[i].least && got <= runs[i].most, "%s: %g tokens a step", runs[i].flags,
                      got);
    }
}
END_TEST

/* Whole prompts: dense and two shares of the attention, of which one is everything. */
START_TEST(ttft_of_prefill)
{
    ck_assert_int_eq(
        run("bench prefill --backend cpu --model tiny_llama --layers 2 --ttft 500 --chunks 200 --repeats 1 "
            "--threads 1 --ops --algorithms xattention:list_mass=0.3,xattention:list_mass=1",
            false),
        0);
    static const char *const says[] = {"chunks of   200  dense ", "tiles read 100.00 %  1.0000 of dense\n",
                                       "xattention:list_mass=1 ", "logits of dense, bit by bit\n",
                                       "prompt_scores "};
    for (size_t i = 0; i < SL_COUNT(says); i++)
        ck_assert_msg(strstr(output, says[i]) != NULL, "no \"%s\" in\n%s", says[i], output);
    const char *at = strstr(output, "xattention:list_mass=0.3 ");
    ck_assert_ptr_nonnull(at);
    const double read = strtod(strstr(at, "tiles read") + strlen("tiles read"), NULL);
    ck_assert(read > 20 && read < 90);
}
END_TEST

/* The figures of one line of the decode benchmark: of `mode`, `profile` and `algorithm`. */
static void line_of(const char *mode, const char *profile, const char *algorithm, int *batch, double *misses)
{
    for (const char *at = output; at; at = strchr(at, '\n')) {
        char line[512], m[32], p[32];
        at += *at == '\n';
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        size_t n = strlen(line), k = strlen(algorithm);
        const char *after = strstr(line, "misses");
        if (sscanf(line, "gqa_bf16 %*d %31s %31s batch %d", m, p, batch) == 3 && after &&
            strcmp(m, mode) == 0 && strcmp(p, profile) == 0 && n > k &&
            strcmp(line + n - k, algorithm) == 0) {
            ck_assert_int_eq(sscanf(after, "misses %lf", misses), 1);
            return;
        }
    }
    ck_abort_msg("no line of %s, %s, %s in:\n%s", mode, profile, algorithm, output);
}

/*
 * A model with lists per KV head. The memory of 5 dense requests (and 1 MiB for the changed logits of 32 that are sampled) holds more hierarchical ones, and what is missing follows
 * from the drawn lists: of 2 lists of 8 blocks, or of 128 tokens, whose parts are 8 entries wide. With hot rows for one
 * list only, an entry that is drawn anew is a miss unless it is the one that it replaces.
 */
START_TEST(decode_of_kv_heads)
{
    static const struct {
        const char *name;
        double entries;
    } algorithms[] = {{"quest", 16}, {"double_sparsity", 256}};
    int status =
        run("bench decode --backend cpu --model tiny_llama --contexts 1056 --algorithm quest,double_sparsity "
            "--budget 128 --hot-rows 128 --channels 8 --profiles keep85,random --host-bytes 8M "
            "--shared-host-pages --kv-bytes 7M --max-batch 32 --threads 2 --steps 4 --warmup 2",
            true);
    ck_assert_msg(status == 0, "status %d: %s", status, output);
    int dense, batch, quest_batch = 0;
    double misses;
    line_of("dense", "any", "dense", &dense, &misses);
    ck_assert_int_eq(dense, 5);
    for (size_t i = 0; i < SL_COUNT(algorithms); i++) {
        const char *name = algorithms[i].name;
        line_of("resident", "any", name, &batch, &misses);
        ck_assert_msg(batch <= dense && misses <= 0, "%s", output);
        line_of("hierarchical", "keep85", name, &batch, &misses);
        ck_assert_msg(batch >= 2 * dense, "%s: %d of %d", name, batch, dense);
        if (i == 0)
            quest_batch = batch;
        ck_assert_double_eq_tol(misses / algorithms[i].entries, 0.15 * 7 / 8, 0.05);
        line_of("free_rows", "random", name, &batch, &misses);
        ck_assert_double_eq_tol(misses / algorithms[i].entries, 7.0 / 8, 0.1);
    }
    const char *table = strstr(output, "of dense");
    ck_assert_msg(table && strstr(table, "double_sparsity  free_rows"), "%s", output);
    fails("bench decode --backend cpu --model tiny_llama --algorithm snapkv", 1, "end of a prompt");
    fails(
        "bench decode --backend cpu --model tiny_llama --algorithm quest --bounds-dtype int4 --modes hierarchical "
        "--contexts 1056 --host-bytes 8M --kv-bytes 7M",
        1, "--bounds-dtype: \"int4\" is not known");
    status = run(
        "bench decode --backend cpu --model tiny_llama --contexts 1056 --bounds-dtype int8 --budget 128 --hot-rows 128 --modes "
        "hierarchical --host-bytes 8M --shared-host-pages --kv-bytes 7M --max-batch 32 --threads 2 --steps 2 "
        "--warmup 1",
        true);
    ck_assert_msg(status == 0 && strstr(output, "# bounds_dtype int8"), "status %d: %s", status, output);
    int batch_of_codes;
    line_of("hierarchical", "keep85", "quest", &batch_of_codes, &misses);
    ck_assert_msg(batch_of_codes > quest_batch, "%d after %d", batch_of_codes, quest_batch);
    fails("bench decode --algorithm best", 2,
          "--algorithm best is not a list of at most 8 names; there are:");
}
END_TEST

/* Models whose layers themselves say what is read: the default algorithm is theirs, and a list that measures nothing is an error. */
START_TEST(decode_of_models_that_choose)
{
    static const struct {
        const char *model, *algorithm, *modes;
    } models[] = {{"tiny-deepseek_v4", "dense", "resident,hierarchical"},
                  {"tiny-minimax_m3", "msa", "resident,hierarchical"},
                  {"tiny-qwen4", "pooled", "resident,hierarchical"}};
    char command[300];
    int batch;
    double misses;
    for (size_t i = 0; i < SL_COUNT(models); i++) {
        snprintf(
            command, sizeof command,
            "bench decode --backend cpu --model %s --ranks 1 --contexts 512 --host-bytes 16M --kv-bytes 32M --batch 2 --threads 2 "
            "--steps 2 --warmup 1 --modes %s",
            models[i].model, models[i].modes);
        int status = run(command, true);
        ck_assert_msg(status == 0, "%s: status %d: %s", command, status, output);
        line_of("resident", "any", models[i].algorithm, &batch, &misses);
        line_of("hierarchical", "keep85", models[i].algorithm, &batch, &misses);
    }
    fails(
        "bench decode --backend cpu --model tiny-deepseek_v4 --ranks 1 --contexts 512 --host-bytes 16M --kv-bytes 32M --modes dense",
        1, "nothing was measured");
}
END_TEST

/* A real cluster of three processes answers what one process answers (the benchmark compares), and ships
 * rows. */
START_TEST(bench_ttft)
{
    fails("bench ttft --lengths 0", 1, "--lengths");
    fails("bench ttft --model tests/nowhere", 1, "nowhere");
    int status = run("bench ttft --lengths 200 --repeats 1", false);
    ck_assert_msg(status == 0, "status %d: %s%s", status, output, said());
    const char *row = strstr(output, "\n200,1,");
    ck_assert_msg(row != NULL, "%s", output);
    double v[6], bytes;
    ck_assert_int_eq(sscanf(row, " 200,1,%lf,%lf,%lf,%lf,%lf,%lf", &v[0], &v[1], &v[2], &v[3], &v[4], &bytes),
                     6);
    ck_assert(v[0] > 0 && v[1] > 0);
    ck_assert_msg(bytes > 200 * 2000, "%f bytes shipped", bytes);
}
END_TEST

#define SERVED                                                                                                   \
    "bench serve --set model.path=models/tiny-v32 --set model.load_format=dummy --set model.row_format=mla_fp8 " \
    "--set kvstore.bytes=64MiB --set decode.device_bytes=32MiB --set backend.threads=1 --set model.max_context=1024 "

/* One row of its table for every kind of sampling that was asked for, each with figures that belong together. */
static void check_served(int streams, int prompt, const char *mode)
{
    char head[64];
    double ttft[2], itl[3], rate, served, engine, ratio, sent, written, whole;
    snprintf(head, sizeof head, "\n%7d %7d %-11s", streams, prompt, mode);
    const char *row = strstr(output, head);
    ck_assert_msg(row != NULL, "no row%s in:\n%s", head, output);
    ck_assert_int_eq(sscanf(row + strlen(head),
                            "%lf %lf %lf %lf %lf %lf %lf %lf %lf %*s %*s %*s %*s %lf %lf %lf", &ttft[0],
                            &ttft[1], &itl[0], &itl[1], &itl[2], &rate, &served, &engine, &ratio, &sent,
                            &written, &whole),
                     12);
    ck_assert_msg(sent > 0 && written > 0 && whole > 0, "%s", row); /* all processes are on this host */
    ck_assert_msg(ttft[0] > 0 && ttft[1] >= ttft[0] && itl[0] > 0 && itl[1] >= 0 && itl[2] >= itl[1], "%s",
                  row);
    /* a step that began before the measurement counts whole, and may be long on a machine with other work */
    ck_assert_msg(engine > 0 && ratio >= 0.5 && ratio <= 1.01 * served / engine &&
                      ratio >= 0.99 * served / engine,
                  "%s", row);
    ck_assert_msg(rate > 0 && rate <= 1.1e3 * streams / served, "%s",
                  row); /* a token of each stream in a step */
}

/*
 * A router and a worker of role both with random weights. --whole fails unless every answer has the tokens that were asked for.
 * Two clusters of two processes: 2 s.
 */
START_TEST(bench_serve)
{
    fails("bench serve --selection keep85", 2, "--selection needs --cached");
    fails("bench serve --tokens 1 --cached", 2, "--tokens 1 measures prompts");
    fails("bench serve --url x", 2, "name --grpc-port");
    fails("bench serve --url http://nowhere:1x --api http", 1, "want http://HOST:PORT");
    fails("bench serve --set model.path=models/tiny-v32 --cached", 1, "needs model.load_format dummy");
    fails("bench serve --set bench.selection=keep85 --set model.load_format=dummy", 1,
          "needs bench.cached_tokens");
    fails("bench serve --draft-accept 0.5", 2, "--draft-accept needs --drafts");
    fails("bench serve --drafts 0,5", 2, "drafts");
    fails("bench serve --drafts 1 --draft-accept 0.5,0.6", 2, "that do not rise");
    fails("bench serve --url http://a:1 --api http --drafts 1", 2, "of clusters that are started");
    fails("bench serve --set bench.selection=off/0.5 --set model.load_format=dummy", 1,
          "model.draft_tokens is 0");
    fails(SERVED "--set cluster.roles=[router,prefill,decode] --prompt 200 --cached", 1,
          "bench.cached_tokens: only workers of");
    int status =
        run(SERVED "--streams 3 --modes greedy,logprobs --prompt 100 --tokens 200 --whole --seconds 1", true);
    ck_assert_msg(status == 0, "status %d: %s", status, output);
    check_served(3, 100, "greedy");
    check_served(3, 100, "logprobs");
    if (llguidance_library())
        setenv("SL_LLGUIDANCE", llguidance_library(), 1);
    if (getenv("SL_LLGUIDANCE")) {
        status =
            run(SERVED "--streams 3 --modes constrained --prompt 100 --tokens 300 --whole --seconds 1", true);
        ck_assert_msg(status == 0, "status %d: %s", status, output);
        check_served(3, 100, "constrained");
    }
    status = run(
        SERVED
        "--streams 2 --modes own --temperature 0.7 --top-p 0.9 --prompt 500 --cached --shared --selection layered "
        "--api http --tokens 40 --whole --seconds 1",
        true);
    ck_assert_msg(status == 0, "status %d: %s", status, output);
    check_served(2, 500, "own");
}
END_TEST

/* The same with drafts of which most are said to stand, next to the same streams without: every answer has all of its tokens, and a step
 * has as many as were drawn. Two clusters, one after the other. */
START_TEST(bench_serve_drafts)
{
    int status = run(
        "bench serve --set model.path=models/facts-dsa --set model.load_format=dummy --set kvstore.bytes=256MiB "
        "--set decode.device_bytes=164MiB --set decode.max_batch=4 --set backend.threads=1 --set model.max_context=1024 "
        "--streams 2 --prompt 300 --cached --selection keep85 --tokens 300 --whole --seconds 1 --drafts 0,2 --draft-accept 0.9,0.6",
        true);
    ck_assert_msg(status == 0, "status %d: %s", status, output);
    const char *plain = strstr(output, "drafts 0: "), *with = strstr(output, "drafts 2: ");
    double tokens, stood, ms, over;
    ck_assert_msg(plain && with && strstr(output, "# synthetic acceptance"), "%s", output);
    ck_assert_int_eq(sscanf(plain, "drafts 0: %lf tokens a step, %lf stood, %lf ms, %lf of the first",
                            &tokens, &stood, &ms, &over),
                     4);
    ck_assert_msg(tokens > 0.9 && tokens < 1.1 && stood <= 0 && ms <= 0 && over >= 1 && over <= 1, "%s",
                  plain);
    ck_assert_int_eq(sscanf(with, "drafts 2: %lf tokens a step, %lf stood, %lf ms, %lf of the first", &tokens,
                            &stood, &ms, &over),
                     4);
    ck_assert_msg(tokens > 2.2 && tokens < 2.8 && stood > 0.8 && stood < 1 && ms > 0 && over > 0, "%s", with);
}
END_TEST

/* Prompts alone: all of their tokens are computed, in chunks whose time is part of the whole. */
START_TEST(bench_serve_prompts)
{
    int status = run(SERVED "--streams 5 --prompt 300 --tokens 1 --set prefill.chunk_tokens=128", true);
    ck_assert_msg(status == 0, "status %d: %s", status, output);
    const char *row = strstr(output, "\n      5     300 ");
    double ttft[2], rate, chunks, each, own, ratio;
    ck_assert_msg(row != NULL, "%s", output);
    ck_assert_int_eq(sscanf(row, "%*d %*d %lf %lf %lf %lf %lf %lf %lf", &ttft[0], &ttft[1], &rate, &chunks,
                            &each, &own, &ratio),
                     7);
    ck_assert_msg(ttft[0] > 0 && ttft[1] >= ttft[0] && ratio > 0 && ratio <= 1 && own >= rate, "%s", row);
    ck_assert_msg(chunks >= 12 && chunks * each > 1495 && chunks * each < 1505, "%s", row);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("bench");
    TCase *c = tcase_create("bench");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, messages);
    tcase_add_test(c, drafts_of_decode);
    tcase_add_test(c, ttft_of_prefill);
    tcase_add_test(c, decode_of_kv_heads);
    tcase_add_test(c, decode_of_models_that_choose);
#if !defined __SANITIZE_ADDRESS__ &&                                                                         \
    !defined __SANITIZE_THREAD__ /* clusters under sanitizers: end-to-end tests */
    tcase_add_test(c, bench_ttft);
    tcase_add_test(c, bench_serve);
    tcase_add_test(c, bench_serve_prompts);
    tcase_add_test(c, bench_serve_drafts);
#else
    (void)bench_ttft, (void)bench_serve, (void)bench_serve_prompts, (void)bench_serve_drafts;
#endif
    suite_add_tcase(s, c);
    return program_main(argc, argv, s);
}
