/*
 * Hostile schemas, regular expressions and grammars that are made at random: copies of one piece, which is drawn, in something that holds
 * many. Whatever they are, they are accepted or refused within the processor time and the memory that model/grammar.h promises. Before
 * them what grammar/bounds.c refuses.
 *
 * SL_GRAMMAR_SEEDS=N and SL_GRAMMAR_FIRST=SEED make others, SL_TEST_LOG=1 prints each.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <check.h>

#include "base/log.h"
#include "base/strbuf.h"
#include "model/grammar.h"
#include "tests/unit/llguidance.h"
#include "tests/unit/peak_memory.h"
#include "tests/unit/run_suite.h"

static sl_tokenizer *tok;
static sl_grammars *engine;

static sl_status open_engine(sl_err *err)
{
    SL_TRY(sl_tokenizer_load("models/tiny-v32", &tok, err));
    static int32_t eos;
    eos = sl_tokenizer_eos(tok);
    sl_grammars_opts o = {.library = llguidance_library(),
                          .tokenizer = tok,
                          .vocab = sl_tokenizer_vocab_size(tok),
                          .eos = &eos,
                          .n_eos = 1};
    return sl_grammars_open(&o, &engine, err);
}

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 24) % n;
}

static size_t most_bytes; /* of a generated text: of some all that there may be, others are short */

/* A piece of a regular expression. `i` makes pieces of different copies differ. */
static void put_regex(sl_strbuf *sb, int depth, int i)
{
    static const char *const leaves[] = {".",   "[a-z]", "\\p{L}", "a",   "[^x]",
                                         "\\d", "(a|b)", "\\w+",   "\\S", "[0-9a-f]"};
    static const char *const after[] = {"", "*", "+", "?", "{0,20}", "{3,9}", "{100}", "{0,1000}", "{3000}"};
    for (uint32_t n = 1 + below(3); n; n--) {
        if (depth && below(3) == 0) {
            sl_sb_str(sb, "(");
            put_regex(sb, depth - 1, i);
            sl_sb_str(sb, below(2) ? "|" : "");
            put_regex(sb, depth - 1, i);
            sl_sb_str(sb, ")");
        } else if (below(4) == 0) {
            sl_sb_printf(sb, "k%d", i);
        } else {
            sl_sb_str(sb, leaves[below(SL_COUNT(leaves))]);
        }
        sl_sb_str(sb, after[below(SL_COUNT(after))]);
    }
}

static void put_schema(sl_strbuf *sb, int depth, int i);

static void put_list(sl_strbuf *sb, const char *open, int depth, int i, const char *close)
{
    sl_sb_str(sb, open);
    for (uint32_t n = 1 + below(3), k = 0; k < n; k++) {
        sl_sb_str(sb, k ? "," : "");
        put_schema(sb, depth, i);
    }
    sl_sb_str(sb, close);
}

/* A piece of a schema. */
static void put_schema(sl_strbuf *sb, int depth, int i)
{
    static const char *const formats[] = {"date-time", "email",    "uuid", "ipv6", "uri",
                                          "hostname",  "duration", "date", "ipv4"};
    switch (below(depth > 0 ? 14 : 7)) {
    case 0:
        sl_sb_str(sb, "{\"type\":\"string\",\"pattern\":\"");
        put_regex(sb, 2, i);
        sl_sb_str(sb, "\"}");
        break;
    case 1:
        sl_sb_printf(sb, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", below(50),
                     50 + below(9000));
        break;
    case 2:
        sl_sb_printf(sb, "{\"type\":\"number\",\"minimum\":%d.%u,\"maximum\":%u.5}", -(int)below(99999),
                     below(999), below(999999));
        break;
    case 3:
        sl_sb_printf(sb, "{\"type\":\"integer\",\"multipleOf\":%u,\"minimum\":%d}",
                     1 + below(below(4)   ? 99
                               : below(2) ? 99999
                                          : 999999999),
                     below(2) ? i : 0);
        break;
    case 4:
        sl_sb_printf(sb, "{\"enum\":[\"e%d\",%d,null,[%u],{\"a\":%d}]}", i, i, below(9), i);
        break;
    case 5:
        sl_sb_printf(sb, "{\"type\":\"string\",\"format\":\"%s\"}", formats[below(SL_COUNT(formats))]);
        break;
    case 6:
        sl_sb_str(sb, below(2) ? "{}" : "{\"$ref\":\"#/$defs/d\"}");
        break;
    case 7:
        sl_sb_printf(sb, "{\"type\":\"object\",\"properties\":{\"p%d\":", i);
        put_schema(sb, depth - 1, i);
        sl_sb_printf(sb, ",\"q%d\":", i);
        put_schema(sb, depth - 1, i);
        sl_sb_printf(sb, below(2) ? "},\"required\":[\"p%d\"]}" : "},\"additionalProperties\":false}", i);
        break;
    case 8:
        sl_sb_str(sb, "{\"patternProperties\":{\"^");
        put_regex(sb, 1, i);
        sl_sb_str(sb, "$\":");
        put_schema(sb, depth - 1, i);
        sl_sb_str(sb, "}}");
        break;
    case 9:
        put_list(sb, "{\"prefixItems\":[", depth - 1, i, "]}");
        break;
    case 10:
        sl_sb_str(sb, "{\"items\":");
        put_schema(sb, depth - 1, i);
        sl_sb_printf(sb, ",\"minItems\":%u,\"maxItems\":%u}", below(20), 20 + below(2000));
        break;
    case 11:
        put_list(sb, "{\"anyOf\":[", depth - 1, i, "]}");
        break;
    case 12:
        put_list(sb, "{\"allOf\":[", depth - 1, i, "]}");
        break;
    default:
        sl_sb_str(sb, "{\"additionalProperties\":");
        put_schema(sb, depth - 1, i);
        sl_sb_str(sb, "}");
    }
}

/* Copies of one piece, which the same draws make, in something that holds many. */
static void generated_schema(sl_strbuf *sb, uint64_t seed)
{
    static const char *const holders[][3] = {
        {"{\"$defs\":{\"d\":{\"type\":\"integer\"}},\"anyOf\":[{\"const\":0}", ",", "]}"},
        {"{\"$defs\":{\"d\":{\"type\":\"string\"}},\"allOf\":[{}", ",", "]}"},
        {"{\"$defs\":{\"d\":{\"type\":\"array\"}},\"properties\":{\"x\":{}", ",\"n%d\":", "}}"},
        {"{\"$defs\":{\"d\":{\"type\":\"object\"}},\"prefixItems\":[{}", ",", "]}"},
        {"{\"$defs\":{\"d\":{\"type\":\"null\"}", ",\"d%d\":", "},\"$ref\":\"#/$defs/d1\"}"},
        {"{\"$defs\":{\"d\":{\"$ref\":\"#\"}},\"items\":{\"anyOf\":[{}", ",", "]}}"},
        {"{\"$defs\":{\"d\":{}},\"patternProperties\":{\"^x$\":{}", ",\"^n%d.*$\":", "}}"},
    };
    rng = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        below(2);
    const uint32_t h = below(SL_COUNT(holders)), depth = below(4);
    const uint64_t piece = rng;
    sl_sb_str(sb, holders[h][0]);
    for (int i = 1;; i++) {
        const size_t before = sb->len;
        sl_sb_printf(sb, holders[h][1], i);
        rng = piece;
        put_schema(sb, (int)depth, i);
        if (i > 1 && sb->len + 200 > most_bytes) {
            sb->len = before;
            break;
        }
    }
    sl_sb_str(sb, holders[h][2]);
    sl_sb_char(sb, 0);
    sb->len--;
}

static void generated_regex(sl_strbuf *sb, uint64_t seed)
{
    rng = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        below(2);
    const char *between = below(2) ? "|" : "";
    const int depth = (int)below(4);
    const uint64_t piece = rng;
    for (int i = 1;; i++) {
        const size_t before = sb->len;
        sl_sb_str(sb, i > 1 ? between : "");
        rng = piece;
        put_regex(sb, depth, i);
        if (i > 1 && (sb->len > SL_GRAMMAR_REGEX_MAX || sb->len > most_bytes)) {
            sb->len = before;
            break;
        }
    }
    for (char *p = sb->data; (p = memmem(p, sb->len - (size_t)(p - sb->data), "\\\\", 2)); p++) {
        memmove(p, p + 1, sb->len - (size_t)(p + 1 - sb->data)); /* not in JSON: one backslash */
        sb->len--;
    }
}

static void generated_grammar(sl_strbuf *sb, uint64_t seed)
{
    static const char *const parts[] = {"\"a%d\"", "[a-z]",  "r%d",         "(\"x\" | [0-9]+)",
                                        "[^\\n]*", "(r%d)?", "\"b\"{2,40}", "(\"c%d\" | r%d)*"};
    rng = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 8; i++)
        below(2);
    const uint64_t piece = rng;
    int i = 1;
    sl_sb_str(sb, "root ::= r1\n");
    for (; i == 1 || sb->len + 300 < most_bytes; i++) {
        rng = piece;
        sl_sb_printf(sb, "r%d ::= \"k\"", i);
        for (uint32_t n = 1 + below(4); n; n--) {
            sl_sb_str(sb, below(3) ? " " : " | ");
            sl_sb_printf(sb, parts[below(SL_COUNT(parts))], i + 1, i + 1 + (int)below(2));
        }
        sl_sb_str(sb, "\n");
    }
    sl_sb_printf(sb, "r%d ::= \"z\"\nr%d ::= \"y\"\nr%d ::= \"w\"\n", i, i + 1, i + 2);
}

/* The most processor time of a mask, over those that lead through the first allowed token, the last, and ones between. */
static double slowest_mask(const char *name, sl_grammar_kind kind, const sl_strbuf *sb)
{
    static uint32_t bits[4096];
    sl_err err = {0};
    sl_grammar *c = NULL;
    double most = 0;
    const int32_t vocab = sl_tokenizer_vocab_size(tok);
    if (sl_grammar_open(engine, kind, sb->data, sb->len, &c, &err) != SL_OK)
        return 0;
    for (int step = 0; step < 8 && !sl_grammar_must_end(c); step++) {
        const clock_t from = clock();
        const sl_status st = sl_grammar_mask(c, bits, &err);
        const double took = (double)(clock() - from) / CLOCKS_PER_SEC;
        most = took > most ? took : most;
        int32_t id = st == SL_OK ? (int32_t)below((uint32_t)vocab) : vocab, n = vocab;
        while (n && st == SL_OK && !(bits[id / 32] >> id % 32 & 1))
            id = (id + 1) % vocab, n--;
        if (st != SL_OK || !n || sl_grammar_take(c, &id, 1, &err) != SL_OK)
            break;
    }
    sl_grammar_close(c);
    if (getenv("SL_TEST_LOG"))
        printf("%s: mask %.3f s\n", name, most);
    return most;
}

/* Three times what the header promises; and the memory that is taken from the budget. */
START_TEST(generated_grammars_are_bounded)
{
    static const struct {
        const char *name;
        sl_grammar_kind kind;
        void (*make)(sl_strbuf *sb, uint64_t seed);
    } kinds[] = {{"schema", SL_GRAMMAR_SCHEMA, generated_schema},
                 {"expression", SL_GRAMMAR_REGEX, generated_regex},
                 {"grammar", SL_GRAMMAR_GBNF, generated_grammar}};
    const char *more = getenv("SL_GRAMMAR_SEEDS"), *first = getenv("SL_GRAMMAR_FIRST");
    /* Among them those that took most of many thousands. */
    static const uint64_t worst[3][2] = {{1577, 690}, {494, 621}, {28, 564}};
    const uint64_t begin = first ? strtoull(first, NULL, 10) : 1, n = more ? strtoull(more, NULL, 10)
                                                                      : RUN_SUITE_SANITIZED ? 6
                                                                                            : 40;
    for (uint64_t k = 0; k < n + SL_COUNT(worst[0]); k++) {
        const uint64_t seed = k < n ? begin + k : worst[_i][k - n];
        sl_strbuf sb = {0};
        sl_err err = {0};
        most_bytes = (size_t)SL_GRAMMAR_BYTES_MAX >> (seed % 3 ? 0 : seed / 3 % 6);
        kinds[_i].make(&sb, seed);
        const bool peak = forget_peak();
        const long had = status_kib("VmRSS:");
        const clock_t from = clock();
        sl_status st = sl_grammar_check(engine, kinds[_i].kind, sb.data, sb.len, &err);
        const double took = (double)(clock() - from) / CLOCKS_PER_SEC;
        const double mask = st == SL_OK ? slowest_mask(kinds[_i].name, kinds[_i].kind, &sb) : 0;
        const long most = status_kib("VmHWM:") - had;
        if (getenv("SL_TEST_LOG"))
            printf("%s %lu: %s, %zu bytes, %.3f s, %ld KiB %.100s\n", kinds[_i].name, seed,
                   sl_status_name(st), sb.len, took, most, err.text);
        ck_assert_msg(st == SL_OK || st == SL_ERR_INVALID || st == SL_ERR_TOO_LARGE, "%s", err.text);
        ck_assert_msg(RUN_SUITE_SANITIZED || took < 3 * SL_GRAMMAR_SECONDS_MAX,
                      "%s %lu takes %.1f s of processor time", kinds[_i].name, seed, took);
        ck_assert_msg(RUN_SUITE_SANITIZED || !peak || most <= (long)(sl_grammar_bytes(sb.len) >> 10),
                      "%s %lu of %zu bytes takes %ld KiB", kinds[_i].name, seed, sb.len, most);
        ck_assert_msg(RUN_SUITE_SANITIZED || mask < 3 * SL_GRAMMAR_MASK_SECONDS_MAX,
                      "%s %lu: a mask takes %.2f s of processor time", kinds[_i].name, seed, mask);
        sl_sb_free(&sb);
    }
}
END_TEST

/* Patterns that hold for one text, by each way to join parts of a schema, are few; alternatives may be many. */
START_TEST(joined_patterns_are_few)
{
    static const struct {
        const char *begin, *part, *end;
        bool many;
    } ways[] = {
        {"{\"allOf\":[{\"type\":\"string\"}", ",{\"pattern\":\"x%d\"}", "]}", false},
        {"{\"$ref\":\"#/$defs/0\",\"$defs\":{\"z\":{}",
         ",\"%1$d\":{\"pattern\":\"x%1$d\",\"$ref\":\"#/$defs/z\"}", "}}", false},
        {"{\"anyOf\":[{\"type\":\"null\"}", ",{\"type\":\"string\",\"pattern\":\"x%d\"}",
         "],\"minLength\":1}", false},
        {"{\"properties\":{\"a\":{}},\"patternProperties\":{\"q\":{}",
         ",\"^a{0,%1$d}$\":{\"pattern\":\"x%1$d\"}", "}}", false},
        {"{\"anyOf\":[{\"type\":\"null\"}", ",{\"type\":\"string\",\"pattern\":\"x%d\"}", "]}", true},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}",
         ",\"p%1$d\":{\"type\":\"string\",\"pattern\":\"x%1$d\"}", "}}", true},
    };
    for (size_t w = 0; w < SL_COUNT(ways); w++)
        for (int n = 8; n <= 9; n++) {
            sl_strbuf sb = {0};
            sl_err err = {0};
            sl_sb_str(&sb, ways[w].begin);
            for (int i = 0; i < n; i++)
                sl_sb_printf(&sb, ways[w].part, i);
            sl_sb_str(&sb, ways[w].end);
            sl_grammar_check(engine, SL_GRAMMAR_SCHEMA, sb.data, sb.len, &err);
            const bool few = strstr(err.text, "patterns of texts") != NULL;
            ck_assert_msg(few == (n == 9 && !ways[w].many), "%s... %d: %s", ways[w].begin, n, err.text);
            sl_sb_free(&sb);
        }
}
END_TEST

/* No text follows it, which is not found before the first mask. */
START_TEST(a_circle_allows_nothing)
{
    static const char text[] = "{\"$ref\":\"#\"}";
    static uint32_t bits[4096];
    sl_err err = {0};
    sl_grammar *c;
    ck_assert_int_eq(sl_grammar_open(engine, SL_GRAMMAR_SCHEMA, text, strlen(text), &c, &err), SL_OK);
    ck_assert_int_eq(sl_grammar_mask(c, bits, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "allows no token"), "%s", err.text);
    sl_grammar_close(c);
}
END_TEST

/* What an expression asks for at least, and the automaton of multiples, from both sides: 20,000. */
START_TEST(counts_and_multiples_are_bounded)
{
    static const struct {
        sl_grammar_kind kind;
        const char *text;
        bool fits;
    } rows[] = {
        {SL_GRAMMAR_REGEX, "a{20000}", true},
        {SL_GRAMMAR_REGEX, "a{20001}", false},
        {SL_GRAMMAR_REGEX, "a{19999}b", true},
        {SL_GRAMMAR_REGEX, "a{19999}bc", false},
        {SL_GRAMMAR_REGEX, "a{10000}b{10001}", false},
        {SL_GRAMMAR_REGEX, "(a{100}){200}", true},
        {SL_GRAMMAR_REGEX, "(a{100}){201}", false},
        {SL_GRAMMAR_REGEX, "(a{1000}){1000}", false},
        {SL_GRAMMAR_REGEX, "(((a{30}){30}){30}){30}", false},
        {SL_GRAMMAR_REGEX, "(?:(?:ab){150}){150}", false},
        {SL_GRAMMAR_REGEX, "a{150}{150}", false},
        {SL_GRAMMAR_REGEX, "(a{150}){150,}", false},
        {SL_GRAMMAR_REGEX, "(a{150}){150,99999}", false},
        {SL_GRAMMAR_REGEX, "(a{150})+{150}", false},
        {SL_GRAMMAR_REGEX, "(a{150}b|c){150}", false},
        {SL_GRAMMAR_REGEX, "(?x)(a{150}) #c\n {150}", false},
        {SL_GRAMMAR_REGEX, "(?x)(a{150} ){ 150 }", false},
        {SL_GRAMMAR_REGEX, "[(]{150}[{]{150}\\({150}", true},
        {SL_GRAMMAR_REGEX, "[a&&[ab]]{20000}", true},
        {SL_GRAMMAR_REGEX, ".{0,100000}x{0,100000}", true},
        {SL_GRAMMAR_REGEX, "a{99999999999999999999999}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a{150}){150}$\"}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a{150}){130}$\"}", true},
        {SL_GRAMMAR_SCHEMA, "{\"items\":{\"pattern\":\"a{15000}\"},\"allOf\":[{\"pattern\":\"b{15000}\"}]}",
         false},
        {SL_GRAMMAR_SCHEMA, "{\"patternProperties\":{\"(a{150}){150}\":{}}}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":20000}", true},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":20001}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":20001}", true},
        {SL_GRAMMAR_SCHEMA, "{\"const\":\"(a{150}){150}\"}", true},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":19997}", true},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":20011}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":99999989}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.99999989}", false},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"integer\",\"multipleOf\":1000000}", true},
        {SL_GRAMMAR_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.01}", true},
        {SL_GRAMMAR_SCHEMA, "{\"allOf\":[{\"multipleOf\":97},{\"multipleOf\":89}],\"type\":\"integer\"}",
         true},
        {SL_GRAMMAR_SCHEMA,
         "{\"allOf\":[{\"multipleOf\":97},{\"multipleOf\":89},{\"multipleOf\":83}],\"type\":\"integer\"}",
         false},
        {SL_GRAMMAR_SCHEMA, "{\"anyOf\":[{\"multipleOf\":997},{\"multipleOf\":991}],\"type\":\"integer\"}",
         false},
        {SL_GRAMMAR_TAGS,
         "{\"triggers\":[\"<\"],\"structures\":[{\"begin\":\"<a\",\"end\":\">\",\"schema\":{\"type\":\"integer\","
         "\"multipleOf\":99999989}}]}",
         false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_err err = {0};
        const clock_t begin = clock();
        sl_grammar *c = NULL;
        sl_status st = sl_grammar_open(engine, rows[i].kind, rows[i].text, strlen(rows[i].text), &c, &err);
        ck_assert_msg((st == SL_OK) == rows[i].fits, "%s: %s %s", rows[i].text, sl_status_name(st), err.text);
        ck_assert_msg(st == SL_OK || st == SL_ERR_TOO_LARGE, "%s: %s", rows[i].text, err.text);
        static uint32_t bits[4096];
        if (c)
            ck_assert_int_eq(sl_grammar_mask(c, bits, &err), SL_OK);
        const double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        ck_assert_msg(RUN_SUITE_SANITIZED || took < 3 * SL_GRAMMAR_SECONDS_MAX, "%s: %.1f s", rows[i].text,
                      took);
        sl_grammar_close(c);
    }
}
END_TEST

int main(void)
{
    sl_err err = {0};
    sl_log_init(SL_LOG_ERROR, false, "test");
    if (open_engine(&err) != SL_OK) {
        printf("skipped: %s; scripts/install-deps installs it\n", err.text);
        return 77;
    }
    Suite *s = suite_create("grammar_made");
    TCase *t = tcase_create("grammar_made");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, generated_grammars_are_bounded, 0, 3);
    tcase_add_test(t, joined_patterns_are_few);
    tcase_add_test(t, a_circle_allows_nothing);
    tcase_add_test(t, counts_and_multiples_are_bounded);
    suite_add_tcase(s, t);
    int bad = run_suite(s);
    sl_grammars_close(engine);
    sl_tokenizer_destroy(tok);
    return bad;
}
