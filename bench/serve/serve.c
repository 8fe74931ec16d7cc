/* The cluster, the prompts and the table; see serve.h. */
#include "bench/serve/serve.h"

#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/log.h"
#include "bench/csv.h"
#include "kernels/params.h"
#include "kernels/synth.h"
#include "model/tokenizer.h"

enum { SEED = 20261, FIRST_ID = 10, IDS = 200, LINE_MAX_BYTES = 1 << 20 };

typedef struct prompts {
    int32_t **ids; /* [n] */
    int32_t *lengths;
    int32_t n;
} prompts;

static void free_prompts(prompts *p)
{
    for (int32_t i = 0; p->ids && i < p->n; i++)
        free(p->ids[i]);
    free(p->ids);
    free(p->lengths);
}

static sl_status room_for(prompts *p, int32_t n, sl_err *err)
{
    p->ids = calloc((size_t)n, sizeof *p->ids);
    p->lengths = calloc((size_t)n, sizeof *p->lengths);
    p->n = n;
    return p->ids && p->lengths ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

/* Prompts of different tokens; shared ones differ after their last whole page. */
static sl_status generate(const serve_flags *f, prompts *p, sl_err *err)
{
    int32_t same = f->shared ? (f->prompt - 1) / SL_PAGE_TOKENS * SL_PAGE_TOKENS : 0;
    for (int32_t i = 0; i < p->n; i++) {
        p->ids[i] = malloc(sizeof **p->ids * (size_t)f->prompt);
        p->lengths[i] = f->prompt;
        if (!p->ids[i])
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        for (int32_t k = 0; k < f->prompt; k++)
            p->ids[i][k] = FIRST_ID + (int32_t)(sl_synth_hash(SEED + (uint64_t)(k < same ? 0 : i + 1),
                                                              (uint64_t)(uint32_t)k) %
                                                IDS);
    }
    return SL_OK;
}

/* The lines of the file, again from the beginning when there are fewer than streams. */
static sl_status read_lines(FILE *in, const char *path, const sl_tokenizer *tok, prompts *p, sl_err *err)
{
    char *line = malloc(LINE_MAX_BYTES);
    sl_status st = line ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (int32_t i = 0; st == SL_OK && i < p->n; i++) {
        size_t n = 0;
        if (!fgets(line, LINE_MAX_BYTES, in)) {
            rewind(in);
            if (i == 0 || !fgets(line, LINE_MAX_BYTES, in)) {
                st = sl_fail(err, SL_ERR_INVALID, "--prompts: %s has no lines", path);
                break;
            }
        }
        st = sl_tokenizer_encode(tok, line, strcspn(line, "\n"), 0, &p->ids[i], &n, err);
        p->lengths[i] = (int32_t)n;
        if (st == SL_OK && n == 0)
            st = sl_fail(err, SL_ERR_INVALID, "--prompts: %s has an empty line", path);
    }
    free(line);
    return st;
}

static sl_status read_prompts(const char *path, const char *model, prompts *p, sl_err *err)
{
    sl_tokenizer *tok = NULL;
    FILE *in = fopen(path, "re");
    if (!in)
        return sl_fail(err, SL_ERR_NOT_FOUND, "--prompts: cannot read %s", path);
    sl_status st = sl_tokenizer_load(model, &tok, err);
    if (st == SL_OK)
        st = read_lines(in, path, tok, p, err);
    sl_tokenizer_destroy(tok);
    fclose(in);
    return st;
}

/* ---- the cluster ---- */

static sl_status parse_url(const serve_flags *f, serve_target *t, sl_err *err)
{
    static const char scheme[] = "http://";
    const char *host = f->url + sizeof scheme - 1, *colon = strrchr(f->url, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (strncmp(f->url, scheme, sizeof scheme - 1) != 0 || !colon || colon <= host || port < 1 ||
        port > 65535 || (*end && strcmp(end, "/") != 0) || (size_t)(colon - host) >= sizeof t->host)
        return sl_fail(err, SL_ERR_INVALID, "--url %s: want http://HOST:PORT", f->url);
    snprintf(t->host, sizeof t->host, "%.*s", (int)(colon - host), host);
    t->http_port = (int)port;
    t->grpc_port = f->grpc_port;
    return SL_OK;
}

/* The configuration, as the processes will read it; it names their roles. Settings of one role are theirs to check. */
static sl_status load_config(const serve_flags *f, sl_config *cfg, sl_err *err)
{
    sl_config_init(cfg);
    if (f->config)
        SL_TRY(sl_config_load_file(cfg, f->config, err));
    for (int i = 0; i < f->n_sets; i++) {
        const char *colon = strchr(f->sets[i], ':'), *equal = strchr(f->sets[i], '=');
        if (!colon || (equal && equal < colon))
            SL_TRY(sl_config_set(cfg, f->sets[i], err));
    }
    cfg->bench.cached_tokens = f->cached ? serve_cached(f) : cfg->bench.cached_tokens;
    return sl_config_finish(cfg, err);
}

/* What is drawn in a cluster with these drafts, as bench.selection says it. False: nothing is. */
static bool drawn_setting(const serve_flags *f, const char *drafts, char *out, size_t n)
{
    const bool accept = f->accept && strcmp(drafts, "0") != 0;
    int at = snprintf(out, n, "bench.selection=%s%s%s", f->selection ? f->selection : "off",
                      accept ? "/" : "", accept ? f->accept : "");
    for (int i = 0; i < at && (size_t)i < n; i++)
        out[i] = out[i] == ',' ? '/' : out[i];
    return f->selection || accept;
}

static sl_status start(const serve_flags *f, const sl_config *cfg, const char *drafts, sl_bench_cluster *c,
                       sl_err *err)
{
    static const sl_role usual[] = {SL_ROLE_ROUTER, SL_ROLE_BOTH};
    const char *settings[SERVE_SET_MAX + 4] = {"log.level=warn"};
    char cached[48], selection[200], draft_tokens[48];
    sl_role roles[SL_BENCH_PROCESSES];
    sl_bench_cluster_opts o = {
        .roles = usual, .n_roles = SL_COUNT(usual), .config = f->config, .settings = settings};
    o.ready_s = f->ready_s;
    for (int i = 0; i < cfg->cluster.roles.n && i < SL_BENCH_PROCESSES; i++)
        roles[i] = cfg->cluster.roles.v[i];
    if (cfg->cluster.roles.n) {
        o.roles = roles;
        o.n_roles = cfg->cluster.roles.n;
    }
    if (cfg->cluster.groups.n)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cluster.groups: start a cluster with groups by mpirun, and give its router with --url");
    o.n = 1;
    memcpy(settings + o.n, f->sets, sizeof *f->sets * (size_t)f->n_sets);
    o.n += (size_t)f->n_sets;
    if (f->cached) {
        snprintf(cached, sizeof cached, "bench.cached_tokens=%d", serve_cached(f));
        settings[o.n++] = cached;
    }
    if (drafts) {
        snprintf(draft_tokens, sizeof draft_tokens, "model.draft_tokens=%s", drafts);
        settings[o.n++] = draft_tokens;
    }
    if (drawn_setting(f, drafts ? drafts : "0", selection, sizeof selection))
        settings[o.n++] = selection;
    return sl_bench_cluster_start(&o, c, err);
}

/* ---- the table ---- */

/* What the rows of one number of streams and one kind of sampling are compared with. */
typedef struct serve_plain {
    const char *drafts; /* of the cluster that is measured; NULL: drafts are not a column */
    double tokens_s;    /* of the first cluster; 0: not measured yet */
} serve_plain;

static void print_head(const serve_flags *f, FILE *out, bool csv)
{
    if (f->tokens == 1)
        serve_print_prompts_head(out, csv);
    else
        serve_print_head(out, csv, f->drafts.n > 0);
}

static void print_row(const serve_flags *f, FILE *out, bool csv, const serve_row *r)
{
    (f->tokens == 1 ? serve_print_prompts : serve_print_row)(out, csv, r);
}

static sl_status point(const serve_flags *f, const serve_target *t, const prompts *p, int32_t n, int mode,
                       serve_row *row, sl_err *err)
{
    return f->tokens == 1 ? serve_prompts(f, t, p->ids, p->lengths, n, row, err)
                          : serve_point(f, t, p->ids, p->lengths, n, mode, row, err);
}

/* One point, and its row. A failure is reported here as well. */
static sl_status run_point(const serve_flags *f, const serve_target *t, const prompts *p, int32_t n, int mode,
                           serve_plain *of, FILE *csv)
{
    serve_row row = {.plain = of->tokens_s, .drafts = of->drafts};
    sl_err why = {0};
    sl_status st = point(f, t, p, n, mode, &row, &why);
    if (st == SL_OK) {
        print_row(f, stdout, false, &row);
        if (csv)
            print_row(f, csv, true, &row);
        if (f->drafts.n && of->tokens_s <= 0)
            of->tokens_s = serve_tokens_s(&row);
    } else {
        fprintf(stderr, "sluice bench serve: %d streams, %s: %s\n", n, serve_mode_names[mode], why.text);
    }
    sl_bench_load_result_free(&row.load);
    return st;
}

/* The others follow while the cluster answers. */
static sl_status run_points(const serve_flags *f, const serve_target *t, const prompts *p, serve_plain *plain,
                            const char *drafts, FILE *csv, sl_err *err)
{
    sl_status worst = SL_OK;
    for (int i = 0; i < f->streams.n; i++)
        for (int k = 0; k < f->modes.n; k++) {
            serve_plain *of = &plain[i * SL_BENCH_LIST_MAX + k];
            of->drafts = drafts;
            sl_status st = run_point(f, t, p, f->streams.v[i], f->modes.v[k], of, csv);
            if (st != SL_OK)
                worst = sl_fail(err, st, "a measurement failed; its reason was printed before");
        }
    return worst;
}

static sl_status measure(const serve_flags *f, const sl_config *cfg, serve_target *t, serve_plain *plain,
                         const char *drafts, FILE *csv, sl_err *err)
{
    prompts p = {0};
    sl_status st = room_for(&p, sl_bench_list_most(&f->streams), err);
    if (st == SL_OK)
        st = f->prompts ? read_prompts(f->prompts, cfg->model.path, &p, err) : generate(f, &p, err);
    if (st == SL_OK)
        st = serve_model(t, err);
    if (st == SL_OK)
        st = run_points(f, t, &p, plain, drafts, csv, err);
    free_prompts(&p);
    return st;
}

/* A cluster that is started for this, with model.draft_tokens of this value, or NULL: as the configuration says. */
static sl_status run_cluster(const serve_flags *f, const sl_config *cfg, serve_plain *plain,
                             const char *drafts, FILE *csv, sl_err *err)
{
    serve_target t = {.host = "127.0.0.1"};
    sl_bench_cluster c = {0};
    uint64_t began = sl_now_ns();
    sl_status st = start(f, cfg, drafts, &c, err);
    if (st == SL_OK) {
        t.http_port = c.http_port;
        t.grpc_port = c.grpc_port;
        printf("# %d processes were ready after %.1f s\n", c.n, (double)(sl_now_ns() - began) / 1e9);
        st = measure(f, cfg, &t, plain, drafts, csv, err);
    }
    sl_bench_cluster_stop(&c);
    return st;
}

static sl_status run_all(const serve_flags *f, const sl_config *cfg, FILE *csv, sl_err *err)
{
    static serve_plain plain[SL_BENCH_LIST_MAX * SL_BENCH_LIST_MAX]; /* by streams and sampling */
    sl_status worst = SL_OK;
    print_head(f, stdout, false);
    if (csv)
        print_head(f, csv, true);
    if (f->url) {
        serve_target t = {0};
        SL_TRY(parse_url(f, &t, err));
        return measure(f, cfg, &t, plain, NULL, csv, err);
    }
    if (f->drafts.n == 0)
        return run_cluster(f, cfg, plain, NULL, csv, err);
    if (f->accept)
        printf("# synthetic acceptance of drafts, drawn from a seed: %s\n", f->accept);
    for (int i = 0; i < f->drafts.n; i++) {
        sl_status st = run_cluster(f, cfg, plain, serve_draft_names[f->drafts.v[i]], csv, err);
        worst = st == SL_OK ? worst : st;
    }
    return worst;
}

int sl_bench_serve_main(int argc, char **argv)
{
    static sl_config cfg; /* large */
    serve_flags f;
    sl_err err = {0};
    FILE *csv;
    int exit_code;
    if (!serve_flags_parse(&f, argc, argv, &exit_code))
        return exit_code;
    sl_log_init(SL_LOG_WARN, false, "bench");
    if (!sl_bench_csv_open("bench serve", f.csv, &csv))
        return SL_EXIT_FAILED;
    sl_status st = load_config(&f, &cfg, &err);
    if (st == SL_OK)
        st = run_all(&f, &cfg, csv, &err);
    return sl_bench_csv_end("bench serve", f.csv, csv, st, &err);
}
