/*
 * The configuration table and everything derived from it: defaults, YAML, --set, errors that name file, line, key and
 * reason, choices with and without names, and a dump that can be loaded again. The registries themselves and the
 * generated reference are tested in tests/unit/cli/test_config_reference.c.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config_impl.h"
#include "tests/unit/run_suite.h"

static sl_config cfg;
static sl_err err;

static void fresh(void)
{
    sl_config_init(&cfg);
    err.text[0] = '\0';
}

static sl_status load(const char *yaml)
{
    fresh();
    return sl_config_load_text(&cfg, yaml, strlen(yaml), "t.yaml", &err);
}

static void rejects(const char *yaml, const char *where, const char *reason)
{
    sl_status st = load(yaml);
    ck_assert_msg(st < 0, "accepted: %s", yaml);
    ck_assert_msg(!strncmp(err.text, where, strlen(where)), "want \"%s...\", got: %s", where, err.text);
    ck_assert_msg(strstr(err.text, reason), "want \"%s\" in: %s", reason, err.text);
}

START_TEST(table_is_sound)
{
    size_t section = 0;
    fresh();
    ck_assert_uint_eq(sl_cfg_nrows, sl_cfg_nown); /* nothing is bound */
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        const sl_cfg_row *r = &sl_cfg_rows[i];
        const sl_option *o = r->o;
        const char *dot = strchr(r->key, '.');
        ck_assert_ptr_nonnull(dot);
        const char *group = strchr(dot + 1, '.'); /* "section.group.name": its rows are adjacent */
        ck_assert(!group || !strchr(group + 1, '.'));
        for (size_t k = 0; group && k + 1 < i; k++) {
            size_t in_group = (size_t)(group + 1 - r->key);
            ck_assert(strncmp(sl_cfg_rows[k].key, r->key, in_group) != 0 ||
                      strncmp(sl_cfg_rows[k + 1].key, r->key, in_group) == 0);
        }
        size_t n = (size_t)(dot - r->key);
        /* rows follow the sections in order, so documents are grouped and no row is left out; a section may have only rows
         * of implementations */
        while (section < sl_cfg_nsections && (strlen(sl_cfg_sections[section].name) != n ||
                                              strncmp(sl_cfg_sections[section].name, r->key, n)))
            section++;
        ck_assert_msg(section < sl_cfg_nsections, "%s: no section, or out of order", r->key);
        ck_assert_msg(sl_cfg_find(r->key) == r && r->first && r->next < 0, "%s: twice in the table", r->key);
        ck_assert_msg(strlen(o->doc) > 8, "%s: no doc", r->key);
        if (o->type == SL_OPTION_CHOICE)
            ck_assert_uint_eq(o->size, sizeof(sl_cfg_choice));
        if (o->type == SL_OPTION_INT || o->type == SL_OPTION_ENUM)
            ck_assert_uint_eq(o->size, sizeof(int));
        if (o->type == SL_OPTION_SIZE)
            ck_assert_uint_eq(o->size, sizeof(uint64_t));
        if (o->type == SL_OPTION_INT)
            ck_assert(o->min >= INT32_MIN && o->max <= INT32_MAX && o->min <= o->max);
        if (o->type == SL_OPTION_INT && o->names) /* a word for 0 */
            ck_assert(o->min > 0 && o->names[0] && !o->names[1]);
        else if (o->type != SL_OPTION_CHOICE)
            ck_assert((o->type == SL_OPTION_ENUM || o->type == SL_OPTION_ENUMS) == (o->names != NULL));
        ck_assert_ptr_null(sl_cfg_gone(r->key));
    }
}
END_TEST

/* ---- options of implementations ---- */

typedef struct near_options {
    int reach, width;
} near_options;
typedef struct far_options {
    int reach;
    double slope;
} far_options;
typedef struct tape_options {
    char device[32], label[16];
    uint64_t bytes;
} tape_options;

static sl_status tape_finish(void *values, sl_err *why)
{
    tape_options *o = values;
    return o->bytes ? SL_OK : sl_fail(why, SL_ERR_INVALID, "bytes: is mandatory with kvstore.tape.device");
}

static const sl_option near_rows[] = {
    SL_OPTION(near_options, reach, SL_OPTION_INT, SL_OPTION_PAGES, "5", 1, 100, "How far it reaches."),
    SL_OPTION(near_options, width, SL_OPTION_INT, 0, "2", 1, 100, "How wide it is."),
};
static const sl_option far_rows[] = {
    SL_OPTION(far_options, slope, SL_OPTION_FLOAT, SL_OPTION_PAGES, "0.5", 0, 1, "How steep it is."),
    SL_OPTION(far_options, reach, SL_OPTION_INT, SL_OPTION_PAGES, "50", 1, 100, "How far it reaches."),
};
static const sl_option tape_rows[] = {
    SL_OPTION(tape_options, device, SL_OPTION_TEXT, 0, "", 0, 0, "The device. Empty: none."),
    SL_OPTION(tape_options, label, SL_OPTION_TEXT, SL_OPTION_SECRET, "x", 0, 0, "What is on it."),
    SL_OPTION(tape_options, bytes, SL_OPTION_SIZE, 0, "0", 0, 1 << 30, "Its size."),
};
static const sl_options near_table = {.section = "sparse_attention",
                                      .name = "near",
                                      .seam = "sparse_attention.algorithm",
                                      .rows = near_rows,
                                      .n = SL_COUNT(near_rows),
                                      .bytes = sizeof(near_options)};
static const sl_options far_table = {.section = "sparse_attention",
                                     .name = "far",
                                     .seam = "sparse_attention.algorithm",
                                     .rows = far_rows,
                                     .n = SL_COUNT(far_rows),
                                     .bytes = sizeof(far_options)};
static const sl_options tape_table = {.section = "kvstore.tape",
                                      .name = "tape",
                                      .on = "device",
                                      .needs_reuse = true,
                                      .rows = tape_rows,
                                      .n = SL_COUNT(tape_rows),
                                      .bytes = sizeof(tape_options),
                                      .finish = tape_finish};
static const sl_options *const parts[] = {&near_table, &far_table, &tape_table, NULL};

static void loads_and_finishes(const char *yaml, sl_status want, const char *reason)
{
    sl_status st = load(yaml);
    st = st ? st : sl_config_finish(&cfg, &err);
    ck_assert_msg(st == want && (!reason || strstr(err.text, reason)), "%s: %s", yaml, err.text);
}

START_TEST(options_of_implementations)
{
    sl_config_bind(NULL, parts);
    loads_and_finishes("sparse_attention: {algorithm: near, reach: 7}\n", SL_OK, NULL);
    const near_options *near = sl_config_part(&cfg, &near_table);
    const far_options *far = sl_config_part(&cfg, &far_table);
    ck_assert(near->reach == 7 && near->width == 2 && far->slope == 0.5);
    ck_assert(sl_config_uses(&cfg, &near_table) && !sl_config_uses(&cfg, &far_table));
    ck_assert(!sl_config_uses(&cfg, &tape_table));
    loads_and_finishes("", SL_OK, NULL); /* each implementation has its own default */
    ck_assert(((const near_options *)sl_config_part(&cfg, &near_table))->reach == 5);
    ck_assert(((const far_options *)sl_config_part(&cfg, &far_table))->reach == 50);
    ck_assert_ptr_null(sl_config_part(&cfg, NULL));
    rejects("sparse_attention:\n  reach: 101\n", "t.yaml:2: sparse_attention.reach", "out of bounds");
    rejects("sparse_attention:\n  slope: nan\n", "t.yaml:2: sparse_attention.slope", "is not a number");
    rejects("sparse_attention:\n  slope: 1.01\n", "t.yaml:2: sparse_attention.slope", "out of bounds");
    rejects("sparse_attention:\n  slop: 1\n", "t.yaml:2: sparse_attention.slop",
            "did you mean sparse_attention.slope?");
    /* What is not read is refused with file, line, key and reason. */
    loads_and_finishes(
        "sparse_attention:\n  algorithm: near\n  slope: 1\n", SL_ERR_INVALID,
        "t.yaml:3: sparse_attention.slope: is not read when sparse_attention.algorithm is near, only when "
        "it is far");
    loads_and_finishes(
        "sparse_attention:\n  reach: 7\n", SL_ERR_INVALID,
        "t.yaml:2: sparse_attention.reach: is not read when sparse_attention.algorithm is auto, only when "
        "it is near, far");
    loads_and_finishes("kvstore:\n  tape:\n    bytes: 64K\n", SL_ERR_INVALID,
                       "t.yaml:3: kvstore.tape.bytes: has no effect without kvstore.tape.device");
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, "sparse_attention.width=3", &err), SL_OK);
    ck_assert_int_eq(sl_config_finish(&cfg, &err), SL_ERR_INVALID);
    ck_assert_msg(!strncmp(err.text, "--set sparse_attention.width: is not read", 41), "%s", err.text);
    /* Rules of the implementation, and those that concern other keys. */
    loads_and_finishes("kvstore.tape.device: /t\n", SL_ERR_INVALID, "kvstore.tape.bytes: is mandatory");
    loads_and_finishes("kvstore: {share: none, tape: {device: /t, bytes: 1M}}\n", SL_ERR_INVALID,
                       "kvstore.tape.device: has no use with kvstore.share: none");
    loads_and_finishes("kvstore: {required: [tape], tape: {device: /t, bytes: 1.5M, label: hidden}}\n", SL_OK,
                       NULL);
    const tape_options *tape = sl_config_part(&cfg, &tape_table);
    ck_assert(tape->bytes == 3 << 19);
    ck_assert(sl_config_requires(&cfg.kvstore, "tape") && !sl_config_requires(&cfg.kvstore, "disk"));
    loads_and_finishes("kvstore.required: [tape, disc]\n", SL_ERR_INVALID,
                       "kvstore.required: \"disc\" is no storage tier");
    loads_and_finishes("kvstore: {required: [tape], tape: {device: /t, bytes: 1.5M, label: hidden}}\n", SL_OK,
                       NULL);
    /* The dump has what is used and nothing else, and loads again. */
    char *dump = sl_config_dump(&cfg);
    ck_assert(strstr(dump, "  tape:\n    device: \"/t\"\n") && !strstr(dump, "hidden") &&
              !strstr(dump, "slope"));
    loads_and_finishes(dump, SL_OK, NULL);
    free(dump);
    sl_config_bind(NULL, NULL);
}
END_TEST

/* Keys of former versions: refused with what replaces them, which is a key that exists where it names one. */
START_TEST(keys_that_are_gone)
{
    rejects("prefill:\n  ranks: 2\n", "t.yaml:2: prefill.ranks",
            "this key of former versions is gone: cluster.groups: [prefill=RANKS] says it");
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, "decode.verify_checksums=false", &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "kvstore.verify says what is compared"), "%s", err.text);
}
END_TEST

START_TEST(groups_of_workers)
{
    static const char *const bad[][2] = {
        {"2", "does not begin with a role"},        {"router=2", "does not begin with a role"},
        {"decode=", "has no number of ranks"},      {"decode=0", "has no number of ranks"},
        {"decode=65", "has no number of ranks"},    {"decode=2x", "has no number of ranks"},
        {"decode=2@host", "has no HOST:PORT"},      {"decode=2@:1", "has no HOST:PORT"},
        {"decode=2,decode=4", "names a role twice"}};
    loads_and_finishes("cluster: {groups: [prefill=2, \"both=8@10.0.0.1:7390\"]}\n", SL_OK, NULL);
    ck_assert_int_eq(cfg.cluster.group[SL_ROLE_PREFILL].ranks, 2);
    ck_assert_str_eq(cfg.cluster.group[SL_ROLE_PREFILL].address, "127.0.0.1:7310");
    ck_assert_int_eq(cfg.cluster.group[SL_ROLE_DECODE].ranks, 1);
    ck_assert_int_eq(cfg.cluster.group[SL_ROLE_BOTH].ranks, 8);
    ck_assert_str_eq(cfg.cluster.group[SL_ROLE_BOTH].address, "10.0.0.1:7390");
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char set[64];
        fresh();
        snprintf(set, sizeof set, "cluster.groups=%s", bad[i][0]);
        ck_assert_int_eq(sl_config_set(&cfg, set, &err), SL_OK);
        ck_assert_int_eq(sl_config_finish(&cfg, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, bad[i][1]), "%s: %s", set, err.text);
    }
}
END_TEST

START_TEST(sections_have_neighbours)
{
    rejects("modle:\n  path: /m\n", "t.yaml:1: modle", "unknown key; did you mean model:?");
    rejects("rooter: {http_port: 1}\n", "t.yaml:1: rooter", "did you mean router:?");
    rejects("modle.path: /m\n", "t.yaml:1: modle.path", "did you mean model.path?");
}
END_TEST

/* One reading of bytes, for files, --set and flags. */
START_TEST(bytes)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: it is none */
    } cases[] = {{"4096", 4096},
                 {"64K", 64 << 10},
                 {"64KiB", 64 << 10},
                 {"64kib", 64 << 10},
                 {"1.5G", 3ull << 29},
                 {"0.5KiB", 512},
                 {"2 T", 2ull << 40},
                 {"16777216T", 0},
                 {"16777215T", ~0ull << 40},
                 {"1P", 1ull << 50},
                 {"7B", 7},
                 {"1MB", 0},
                 {"1e3", 0},
                 {"0x10", 0},
                 {"-1", 0},
                 {"+1", 0},
                 {"1.", 0},
                 {".5G", 0},
                 {"0.3", 0},
                 {"G", 0},
                 {"", 0},
                 {"1KK", 0},
                 {"1 i", 0}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        uint64_t v = 0;
        bool is = sl_parse_bytes(cases[i].text, &v);
        ck_assert_msg(is == (cases[i].bytes != 0) && v == cases[i].bytes, "%s: %d %lu", cases[i].text, is,
                      (unsigned long)v);
    }
}
END_TEST

START_TEST(defaults)
{
    fresh();
    ck_assert_uint_eq(cfg.kvstore.bytes, 256u << 20);
    ck_assert_int_eq(cfg.sparse_attention.tail_rows, 64);
    ck_assert_int_eq(cfg.cluster.router_port, 7300);
    ck_assert_int_eq(cfg.prefill.chunk_tokens, 0); /* auto */
    ck_assert_int_eq(sl_config_set(&cfg, "prefill.chunk_tokens=640", &err), SL_OK);
    ck_assert_int_eq(cfg.prefill.chunk_tokens, 640);
    ck_assert_int_eq(sl_config_set(&cfg, "prefill.chunk_tokens=auto", &err), SL_OK);
    ck_assert_int_eq(cfg.prefill.chunk_tokens, 0);
    ck_assert_int_eq(sl_config_set(&cfg, "prefill.chunk_tokens=0", &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_config_set(&cfg, "prefill.chunk_tokens=automatic", &err), SL_ERR_INVALID);
    ck_assert_int_eq(cfg.decode.max_batch, 64);
    ck_assert_uint_eq(cfg.router.max_body_bytes, 8u << 20);
    ck_assert_str_eq(cfg.router.host, "127.0.0.1");
    ck_assert_int_eq(cfg.log.level, SL_LOG_INFO);
    ck_assert(!cfg.router.parse_special);
    ck_assert_str_eq(cfg.kvstore.layout, "auto");
    ck_assert_int_eq(sl_config_finish(&cfg, &err), SL_OK);
}
END_TEST

START_TEST(enums_match_their_names)
{
    ck_assert_str_eq(sl_config_enum_name("sparse_attention.mode", SL_CFG_MODE_HIERARCHICAL), "hierarchical");
    ck_assert_str_eq(sl_config_enum_name("kvstore.lock", SL_CFG_TRI_OFF), "off");
    ck_assert_str_eq(sl_config_enum_name("cluster.roles", SL_ROLE_DECODE), "decode");
    ck_assert_str_eq(sl_config_enum_name("log.level", SL_LOG_TRACE), "trace");
    ck_assert_ptr_null(sl_config_enum_name("log.level", 5));
    ck_assert_ptr_null(sl_config_enum_name("log.json", 0));
    ck_assert_ptr_null(sl_config_enum_name("model.row_format", 0));
    ck_assert_ptr_null(sl_config_enum_name("cluster.shipping", 0));
}
END_TEST

START_TEST(yaml_all_types)
{
    ck_assert_msg(load("model: {path: /m/tiny, served_name: \"a \\\"b\\\"\"}\n"
                       "kvstore:\n  bytes: 3GiB\n  layout: page_head\n  workers: {enabled: false}\n"
                       "sparse_attention:\n  dense_layers: [0, 3]\n"
                       "cluster:\n  roles:\n    - router\n    - prefill\n    - decode\n    - decode\n"
                       "kvstore.patrol_rate: 1.5MiB\n"
                       "log:\n  # nothing set\n") == SL_OK,
                  "%s", err.text);
    ck_assert_str_eq(cfg.model.path, "/m/tiny");
    ck_assert_str_eq(cfg.model.served_name, "a \"b\"");
    ck_assert_uint_eq(cfg.kvstore.bytes, 3ull << 30);
    ck_assert_str_eq(cfg.kvstore.layout, "page_head");
    ck_assert(!cfg.kvstore.workers.enabled);
    ck_assert_int_eq(cfg.sparse_attention.dense_layers.n, 2);
    ck_assert_int_eq(cfg.sparse_attention.dense_layers.v[1], 3);
    ck_assert_int_eq(cfg.cluster.roles.n, 4);
    ck_assert_int_eq(cfg.cluster.roles.v[3], SL_ROLE_DECODE);
    ck_assert_uint_eq(cfg.kvstore.patrol_rate, 3u << 19);
    ck_assert(load("sparse_attention: {hot_rows: 512}\n") == SL_OK && cfg.sparse_attention.hot_rows.n == 1);
    ck_assert(sl_config_hot_rows(&cfg.sparse_attention) == 512 &&
              !sl_config_hot_by_layer(&cfg.sparse_attention));
    ck_assert(load("sparse_attention: {hot_rows: -1}\n") == SL_OK &&
              sl_config_hot_by_layer(&cfg.sparse_attention));
    ck_assert(load("sparse_attention: {hot_rows: [512, 0]}\n") == SL_OK &&
              sl_config_hot_by_layer(&cfg.sparse_attention));
    ck_assert_int_eq(sl_config_hot_rows(&cfg.sparse_attention), 0);
    ck_assert_int_eq(load(""), SL_OK);
    ck_assert_int_eq(load("# only a comment\n"), SL_OK);
}
END_TEST

START_TEST(yaml_errors)
{
    rejects("decode:\n  max_btch: 3\n", "t.yaml:2: decode.max_btch", "did you mean decode.max_batch?");
    rejects("prefill:\n  hot_rows: 3\n", "t.yaml:2: prefill.hot_rows",
            "did you mean sparse_attention.hot_rows?");
    rejects("xyzzy: 1\n", "t.yaml:1: xyzzy", "unknown key");
    rejects("decoder:\n  max_batch: 3\n", "t.yaml:1: decoder", "unknown key");
    rejects("decode:\n  max_batch: 3\n  max_batch: 4\n", "t.yaml:3: decode.max_batch", "first set on line 2");
    rejects("decode: {max_batch: 1}\ndecode.max_batch: 2\n", "t.yaml:2: decode.max_batch", "duplicate");
    rejects("decode:\n  max_batch: lots\n", "t.yaml:2: decode.max_batch", "\"lots\" is not an integer");
    rejects("decode:\n  max_batch: 1.5\n", "t.yaml:2: decode.max_batch", "is not an integer");
    rejects("decode:\n  max_batch: \"5\"\n", "t.yaml:2: decode.max_batch", "quoted text");
    rejects("decode:\n  max_batch:\n", "t.yaml:2: decode.max_batch", "is not an integer");
    rejects("decode:\n  max_batch: ~\n", "t.yaml:2: decode.max_batch", "null");
    rejects("decode:\n  max_batch: 0\n", "t.yaml:2: decode.max_batch",
            "out of bounds (want integer, 1 to 4096)");
    rejects("decode:\n  max_batch: 99999999999999999999\n", "t.yaml:2: decode.max_batch", "out of bounds");
    rejects("decode:\n  max_batch: [1]\n", "t.yaml:2: decode.max_batch", "single value");
    rejects("decode:\n  max_batch: {a: 1}\n", "t.yaml:2: decode.max_batch", "single value");
    rejects("decode: 3\n", "t.yaml:1: decode", "section");
    rejects("decode: [1]\n", "t.yaml:1: decode", "section");
    rejects("kvstore:\n  bytes: 12MB\n", "t.yaml:2: kvstore.bytes", "is not a size");
    rejects("kvstore:\n  bytes: 99999999TiB\n", "t.yaml:2: kvstore.bytes", "out of bounds");
    rejects("kvstore:\n  bytes: -1\n", "t.yaml:2: kvstore.bytes", "is not a size");
    rejects("log:\n  json: maybe\n", "t.yaml:2: log.json", "true or false");
    rejects("cluster:\n  roles: router\n", "t.yaml:2: cluster.roles", "list");
    rejects("sparse_attention:\n  hot_rows: lots\n", "t.yaml:2: sparse_attention.hot_rows", "not an integer");
    rejects("sparse_attention:\n  hot_rows:\n", "t.yaml:2: sparse_attention.hot_rows", "list");
    rejects("cluster:\n  roles: [router, boss]\n", "t.yaml:2: cluster.roles", "\"boss\" is not known");
    rejects("cluster:\n  roles: [[router]]\n", "t.yaml:2: cluster.roles", "plain values");
    rejects("model:\n  path: \"a\\nb\"\n", "t.yaml:2: model.path", "control character");
    rejects("model:\n  path: \"a\\x83b\"\n", "t.yaml:2: model.path", "control character");
    rejects("model:\n  path: \"a\\Nb\"\n", "t.yaml:2: model.path", "control character");
    rejects("model:\n  path: \"a\\Lb\"\n", "t.yaml:2: model.path", "control character");
    rejects("model:\n  path: \"a\\uFFFEb\"\n", "t.yaml:2: model.path", "control character");
    rejects("model:\n  path: \"a\\0b\"\n", "t.yaml:2: model.path", "NUL");
    rejects("? [a]\n: 1\n", "t.yaml:1", "plain words");
    rejects("- a\n", "t.yaml:1", "map of sections");
    rejects("a: [\n", "t.yaml:", "not valid YAML");
    rejects("log: {json: true}\n---\nlog: {json: false}\n", "t.yaml:3", "second YAML document");
    rejects("router:\n  api_key: \"se\\tcret\"\n", "t.yaml:2: router.api_key", "control character");
    ck_assert_ptr_null(strstr(err.text, "cret"));
}
END_TEST

static const char *const *layout_names(void)
{
    static const char *const names[] = {"page_first", "round", NULL};
    return names;
}

static const char *const *row_names(void)
{
    static const char *const names[] = {"mla_f32", NULL};
    return names;
}

START_TEST(choices)
{
    static const sl_config_choice bound[] = {
        {"kvstore.layout", layout_names}, {"model.row_format", row_names}, {NULL, NULL}};
    static const sl_config_choice wrong[] = {{"kvstore.bytes", layout_names}, {NULL, NULL}};
    /* not bound: any word, but only a word */
    ck_assert_int_eq(load("kvstore: {layout: column}\n"), SL_OK);
    ck_assert_str_eq(cfg.kvstore.layout, "column");
    rejects("kvstore:\n  layout: a b\n", "t.yaml:2: kvstore.layout", "is not known");
    rejects("kvstore:\n  layout: \"column\"\n", "t.yaml:2: kvstore.layout", "quoted text");
    rejects("kvstore:\n  layout: [column]\n", "t.yaml:2: kvstore.layout", "single value");
    rejects("kvstore:\n  layout:\n", "t.yaml:2: kvstore.layout", "is not known");
    rejects("kvstore:\n  layout: abcdefghijklmnopqrstuvwxyz_abcdef\n", "t.yaml:2: kvstore.layout",
            "is not known");
    fresh();
    /* a dump could not represent it */
    ck_assert_int_eq(sl_config_set(&cfg, "kvstore.layout=null", &err), SL_ERR_INVALID);
    sl_config_bind(bound, NULL);
    ck_assert_int_eq(load("kvstore: {layout: round}\nmodel: {row_format: mla_f32}\n"), SL_OK);
    ck_assert_str_eq(cfg.kvstore.layout, "round");
    rejects("kvstore:\n  layout: column\n", "t.yaml:2: kvstore.layout",
            "\"column\" is not known (want one of: auto, page_first, round)");
    rejects("model:\n  row_format: f8\n", "t.yaml:2: model.row_format", "(want one of: auto, mla_f32)");
    ck_assert_int_eq(sl_config_set(&cfg, "model.row_format=auto", &err), SL_OK);
    ck_assert_str_eq(sl_config_unbound(bound), "model.indexer");
    ck_assert_str_eq(sl_config_unbound(wrong), "kvstore.bytes");
    sl_config_bind(NULL, NULL);
}
END_TEST

START_TEST(bounds_of_strings_and_lists)
{
    char text[4096];
    fresh();
    memset(text, 'a', sizeof text);
    int n = snprintf(text, sizeof text, "model.path=");
    text[n] = 'a';
    text[n + SL_CFG_PATH_BYTES] = '\0';
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "too long"));
    text[n + SL_CFG_PATH_BYTES - 1] = '\0';
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_OK);
    ck_assert_uint_eq(strlen(cfg.model.path), SL_CFG_PATH_BYTES - 1);

    size_t len = (size_t)snprintf(text, sizeof text, "sparse_attention.dense_layers=1");
    for (int i = 1; i <= SL_CFG_MAX_LAYERS; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, ",1");
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_ERR_TOO_LARGE);
    text[len - 2] = '\0';
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_OK);
    ck_assert_int_eq(cfg.sparse_attention.dense_layers.n, SL_CFG_MAX_LAYERS);

    n = snprintf(text, sizeof text, "cluster.routers=a:1,");
    memset(text + n, 'b', SL_CFG_ITEM_BYTES);
    text[n + SL_CFG_ITEM_BYTES] = '\0';
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "too long"));
    text[n + SL_CFG_ITEM_BYTES - 1] = '\0';
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_OK);
    ck_assert_uint_eq(strlen(cfg.cluster.routers.v[1]), SL_CFG_ITEM_BYTES - 1);
    len = (size_t)snprintf(text, sizeof text, "cluster.routers=h:1");
    for (int i = 0; i < SL_CFG_MAX_ROUTERS; i++)
        len += (size_t)snprintf(text + len, sizeof text - len, ",h:%d", i + 2);
    ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_ERR_TOO_LARGE);
}
END_TEST

#define ROUTERS_4 "router,router,router,router"
#define ROUTERS_16 ROUTERS_4 "," ROUTERS_4 "," ROUTERS_4 "," ROUTERS_4

/* Which roles make a cluster. */
START_TEST(roles_of_a_cluster)
{
    static const struct {
        const char *roles, *wrong;
    } cases[] = {
        {"router,prefill,decode", NULL},
        {"router,both", NULL},
        {"router,both,prefill,decode,both", NULL},
        {"router,router,both", NULL},
        {"both", "has 0 routers"},
        {"router,prefill", "needs at least one prefill and one decode worker, or one of role both"},
        {"router", "needs at least one prefill and one decode worker, or one of role both"},
        {"router,both,prefill", "has prefill workers without decode workers"},
        {ROUTERS_16 ",both", NULL},
        {ROUTERS_16 ",router,both", "has 17 routers, want 1 to 16"},
        {"router,decode,both", "has decode workers without prefill workers"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char text[200];
        fresh();
        snprintf(text, sizeof text, "cluster.roles=%s", cases[i].roles);
        ck_assert_int_eq(sl_config_set(&cfg, text, &err), SL_OK);
        sl_status st = sl_config_finish(&cfg, &err);
        ck_assert_msg(!cases[i].wrong == (st == SL_OK || !strstr(err.text, "cluster.roles")), "%s: %s", text,
                      err.text);
        ck_assert_msg(!cases[i].wrong || strstr(err.text, cases[i].wrong), "%s: %s", text, err.text);
    }
}
END_TEST

START_TEST(set_values)
{
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.roles=router, prefill,decode", &err), SL_OK);
    ck_assert_int_eq(cfg.cluster.roles.n, 3);
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.roles=[router,decode]", &err), SL_OK);
    ck_assert_int_eq(cfg.cluster.roles.n, 2);
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.roles=", &err), SL_OK);
    ck_assert_int_eq(cfg.cluster.roles.n, 0);
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.tls=rc_verbs,self", &err), SL_OK);
    ck_assert_str_eq(cfg.cluster.tls, "rc_verbs,self");
    ck_assert_int_eq(sl_config_set(&cfg, "kvstore.bytes=1073741824", &err), SL_OK);
    ck_assert_uint_eq(cfg.kvstore.bytes, 1u << 30);
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.routers=[[::1]:7300, node-2:7301]", &err), SL_OK);
    ck_assert_int_eq(cfg.cluster.routers.n, 2);
    ck_assert_str_eq(cfg.cluster.routers.v[0], "[::1]:7300");
    ck_assert_str_eq(cfg.cluster.routers.v[1], "node-2:7301");
    ck_assert_int_eq(sl_config_set(&cfg, "cluster.routers=", &err), SL_OK);
    ck_assert_int_eq(cfg.cluster.routers.n, 0);
    ck_assert_int_eq(sl_config_set(&cfg, "model.served_name=a=b", &err), SL_OK);
    ck_assert_str_eq(cfg.model.served_name, "a=b");
    const char *bad[][2] = {{"decode.max_batch", "want key=value"},
                            {"decode.maxbatch=1", "did you mean decode.max_batch?"},
                            {"decode.max_batch=0", "--set decode.max_batch: \"0\" is out of bounds"},
                            {"decode.max_batch=", "is not an integer"},
                            {"decode.max_batch= 4", "is not an integer"},
                            {"cluster.roles=router,", "comma"},
                            {"cluster.roles=router,,decode", "is not known"},
                            {"cluster.routers=a:1,,b:2", "is empty"},
                            {"=1", "unknown key"},
                            {"cluster.tag=a\xb5", "UTF-8"}};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_int_lt(sl_config_set(&cfg, bad[i][0], &err), 0);
        ck_assert_msg(strstr(err.text, bad[i][1]), "want \"%s\" in: %s", bad[i][1], err.text);
    }
}
END_TEST

static void finish_rejects(const char *a, const char *b, const char *reason)
{
    fresh();
    ck_assert_int_eq(sl_config_set(&cfg, a, &err), SL_OK);
    if (b)
        ck_assert_int_eq(sl_config_set(&cfg, b, &err), SL_OK);
    ck_assert_int_lt(sl_config_finish(&cfg, &err), 0);
    ck_assert_msg(strstr(err.text, reason), "want \"%s\" in: %s", reason, err.text);
}

/* A cluster that gives requests up sooner needs no other key: the default follows. */
START_TEST(the_wait_for_other_workers_follows_the_stage_timeout)
{
    static const struct {
        const char *stage, *wait;
        int expected;
    } cases[] = {{"30000", "0", 5000}, {"4000", "0", 2000}, {"30000", "700", 700}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char stage[64], wait[64];
        snprintf(stage, sizeof stage, "router.stage_timeout_ms=%s", cases[i].stage);
        snprintf(wait, sizeof wait, "kvstore.load_timeout_ms=%s", cases[i].wait);
        fresh();
        ck_assert_int_eq(sl_config_set(&cfg, stage, &err), SL_OK);
        ck_assert_int_eq(sl_config_set(&cfg, wait, &err), SL_OK);
        ck_assert_int_eq(sl_config_finish(&cfg, &err), SL_OK);
        ck_assert_int_eq(sl_config_load_timeout_ms(&cfg), cases[i].expected);
    }
}
END_TEST

START_TEST(rules_across_keys)
{
    finish_rejects("router.tls_cert=/c.pem", NULL, "tls_key");
    finish_rejects("router.tls_client_ca=/ca.pem", NULL, "router.tls_client_ca");
    finish_rejects("cluster.encrypt=true", NULL, "needs cluster.secret_file");
    finish_rejects("router.http_port=9", "router.grpc_port=9", "both 9");
    finish_rejects("cluster.roles=router,decode", NULL, "prefill");
    finish_rejects("cluster.roles=prefill,decode", NULL, "0 routers");
    finish_rejects("cluster.roles=router,router,prefill,decode", "cluster.routers=a:1",
                   "1 addresses for the 2 routers");
    finish_rejects("cluster.routers=a:1,b:2,a:1", NULL, "has a:1 twice");
    finish_rejects("kvstore.load_timeout_ms=4000", "router.stage_timeout_ms=4000",
                   "kvstore.load_timeout_ms (4000) must be less than");
    finish_rejects("router.api_key_file=/nonexistent/key", NULL, "/nonexistent/key");
    finish_rejects("router.api_key_file=/nonexistent/key", "router.api_key=x", "both set");
}
END_TEST

START_TEST(derived_defaults)
{
    const char *paths[][2] = {{"/m/tiny/", "tiny"}, {"tiny", "tiny"}, {"/m/a.b", "a.b"}, {".", "model"}};
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        fresh();
        snprintf(cfg.model.path, sizeof cfg.model.path, "%s", paths[i][0]);
        ck_assert_int_eq(sl_config_finish(&cfg, &err), SL_OK);
        ck_assert_str_eq(cfg.model.served_name, paths[i][1]);
    }
    char path[] = "/tmp/sluice_key_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "topsecret\nrest\n", 15), 15);
    close(fd);
    fresh();
    snprintf(cfg.router.api_key_file, sizeof cfg.router.api_key_file, "%s", path);
    ck_assert_msg(sl_config_finish(&cfg, &err) == SL_OK, "%s", err.text);
    ck_assert_str_eq(cfg.router.api_key, "topsecret");
    char *dump = sl_config_dump(&cfg);
    ck_assert_ptr_null(strstr(dump, "topsecret"));
    ck_assert_ptr_nonnull(strstr(dump, "api_key: \"***\""));
    free(dump);
    unlink(path);
}
END_TEST

START_TEST(dump_round_trips)
{
    fresh();
    const char *sets[] = {"model.path=/a b/\"c\\d\"",
                          "sparse_attention.dense_layers=1,2,5",
                          "cluster.roles=router,prefill,decode",
                          "cluster.routers=[::1]:7300",
                          "kvstore.quotas=* share=0.1, a limit=0.5",
                          "kvstore.bytes=1048577",
                          "backend.devices=3",
                          "log.json=true"};
    for (size_t i = 0; i < SL_COUNT(sets); i++)
        ck_assert_msg(sl_config_set(&cfg, sets[i], &err) == SL_OK, "%s", err.text);
    char *dump = sl_config_dump(&cfg);
    sl_config before = cfg;
    ck_assert_msg(load(dump) == SL_OK, "%s", err.text);
    char *again = sl_config_dump(&cfg);
    ck_assert_str_eq(dump, again);
    memcpy(cfg.given, before.given, sizeof cfg.given); /* who has set a key may differ */
    memcpy(cfg.file, before.file, sizeof cfg.file);
    ck_assert_int_eq(memcmp(&before, &cfg, sizeof cfg), 0);
    free(dump);
    free(again);
}
END_TEST

START_TEST(files)
{
    fresh();
    ck_assert_int_eq(sl_config_load_file(&cfg, "/nonexistent.yaml", &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent.yaml"));
    ck_assert_int_eq(sl_config_load_file(&cfg, "/", &err), SL_ERR_IO);
    char *big = malloc((1 << 20) + 2);
    memset(big, '#', (1 << 20) + 1);
    ck_assert_int_eq(sl_config_load_text(&cfg, big, (1 << 20) + 1, "big.yaml", &err), SL_ERR_TOO_LARGE);
    free(big);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_test(t, table_is_sound);
    tcase_add_test(t, defaults);
    tcase_add_test(t, options_of_implementations);
    tcase_add_test(t, keys_that_are_gone);
    tcase_add_test(t, groups_of_workers);
    tcase_add_test(t, sections_have_neighbours);
    tcase_add_test(t, bytes);
    tcase_add_test(t, enums_match_their_names);
    tcase_add_test(t, yaml_all_types);
    tcase_add_test(t, yaml_errors);
    tcase_add_test(t, choices);
    tcase_add_test(t, bounds_of_strings_and_lists);
    tcase_add_test(t, set_values);
    tcase_add_test(t, roles_of_a_cluster);
    tcase_add_test(t, rules_across_keys);
    tcase_add_test(t, derived_defaults);
    tcase_add_test(t, the_wait_for_other_workers_follows_the_stage_timeout);
    tcase_add_test(t, dump_round_trips);
    tcase_add_test(t, files);
    suite_add_tcase(s, t);
    return run_suite(s);
}
