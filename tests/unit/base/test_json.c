/*
 * JSON helpers: errors of getters have path and reason; the writer gives the same bytes as Python's, with floats
 * compared with what repr() of CPython prints.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/strbuf.h"
#include "tests/unit/base/py_floats.h"
#include "tests/unit/run_suite.h"

static sl_err err;

static json_t *parse(const char *text)
{
    json_t *v = NULL;
    ck_assert_msg(sl_json_parse(text, strlen(text), "t", &v, &err) == SL_OK, "%s", err.text);
    return v;
}

START_TEST(parse_errors)
{
    json_t *v;
    const char *bad[] = {"", "{", "{\"a\":1,\"a\":2}", "[1,]", "nul", "\"\\ud800\"", "\"\xff\"", "1 2"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_int_eq(sl_json_parse(bad[i], strlen(bad[i]), "body", &v, &err), SL_ERR_INVALID);
        ck_assert_msg(!strncmp(err.text, "body:", 5), "%s", err.text);
    }
    static char deep[100000];
    memset(deep, '[', sizeof deep);
    ck_assert_int_eq(sl_json_parse(deep, sizeof deep, "body", &v, &err), SL_ERR_INVALID);
}
END_TEST

/* Every byte below 0x80 and some UTF-8 as jansson writes them. */
START_TEST(strings_as_the_library_writes_them)
{
    char text[256];
    size_t n = 0;
    for (int c = 0; c < 0x80; c++)
        text[n++] = (char)c;
    n += (size_t)snprintf(text + n, sizeof text - n, "\u00e9\u20ac\U0001f600\"\\/");
    for (size_t from = 0; from <= n; from += from < 0x80 ? 1 : n - from + 1) {
        json_t *s = json_stringn(text + from, n - from);
        char *want = json_dumps(s, JSON_ENCODE_ANY);
        sl_strbuf sb = {0};
        sl_sb_json(&sb, text + from, n - from);
        ck_assert_str_eq(sb.data, want);
        ck_assert_uint_eq(sb.len, strlen(want));
        sl_sb_free(&sb);
        free(want);
        json_decref(s);
    }
}
END_TEST

START_TEST(load_files)
{
    json_t *v;
    ck_assert_int_eq(sl_json_load("/nonexistent.json", 100, &v, &err), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_json_load("/", 100, &v, &err), SL_ERR_IO);
    char path[] = "/tmp/sluice_json_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, "{\"a\": [1, 2]}", 13), 13);
    close(fd);
    ck_assert_int_eq(sl_json_load(path, 12, &v, &err), SL_ERR_TOO_LARGE);
    ck_assert_msg(sl_json_load(path, 13, &v, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(json_array_size(json_object_get(v, "a")), 2);
    json_decref(v);
    unlink(path);
}
END_TEST

START_TEST(getters)
{
    json_t *o = parse("{\"i\":3,\"f\":2.5,\"w\":4.0,\"b\":true,\"s\":\"x\",\"a\":[1],\"o\":{},\"n\":null,"
                      "\"z\":\"a\\u0000b\",\"big\":1e300}");
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    json_t *v = NULL;
    ck_assert_int_eq(sl_json_get_int(o, "t", "i", 0, 10, &i, &err), SL_OK);
    ck_assert_int_eq(i, 3);
    ck_assert_int_eq(sl_json_get_int(o, "t", "w", 0, 10, &i, &err), SL_OK);
    ck_assert_int_eq(i, 4);
    ck_assert_int_eq(sl_json_opt_double(o, "t", "f", 0, 3, &d, &err), SL_OK);
    ck_assert(d == 2.5);
    ck_assert_int_eq(sl_json_opt_double(o, "t", "i", 0, 3, &d, &err), SL_OK);
    ck_assert(d == 3);
    ck_assert_int_eq(sl_json_opt_bool(o, "t", "b", &b, &err), SL_OK);
    ck_assert(b);
    ck_assert_int_eq(sl_json_get_string(o, "t", "s", &s, &err), SL_OK);
    ck_assert_str_eq(s, "x");
    ck_assert_int_eq(sl_json_get_array(o, "t", "a", &v, &err), SL_OK);
    ck_assert_int_eq(sl_json_get_object(o, "t", "o", &v, &err), SL_OK);

    i = 77; /* optional: missing and null keep the default */
    ck_assert_int_eq(sl_json_opt_int(o, "t", "n", 0, 1, &i, &err), SL_OK);
    ck_assert_int_eq(sl_json_opt_int(o, "t", "absent", 0, 1, &i, &err), SL_OK);
    ck_assert_int_eq(i, 77);

    ck_assert_int_eq(sl_json_get_int(o, "t.x", "absent", 0, 1, &i, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "t.x.absent: is missing");
    ck_assert_int_eq(sl_json_get_int(o, "t", "n", 0, 1, &i, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_get_int(o, "t", "i", 4, 10, &i, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "t.i: 3 is out of bounds (4 to 10)");
    ck_assert_int_eq(sl_json_get_int(o, "t", "f", 0, 9, &i, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "t.f: want an integer, got a number");
    ck_assert_int_eq(sl_json_get_int(o, "t", "big", 0, 9, &i, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_get_string(o, "t", "z", &s, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "t.z: has a NUL character");
    ck_assert_int_eq(sl_json_opt_bool(o, "t", "i", &b, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_opt_string(o, "t", "i", &s, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_opt_array(o, "t", "o", &v, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_opt_object(o, "t", "a", &v, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_json_opt_double(o, "t", "s", 0, 1, &d, &err), SL_ERR_INVALID);
    ck_assert_int_eq(i, 77);
    json_decref(o);
}
END_TEST

START_TEST(python_floats)
{
    char buf[40];
    for (size_t i = 0; i < SL_COUNT(py_floats); i++) {
        double v;
        memcpy(&v, &py_floats[i].bits, sizeof v);
        sl_py_float(v, buf, sizeof buf);
        ck_assert_str_eq(buf, py_floats[i].repr);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("json");
    TCase *t = tcase_create("json");
    tcase_add_test(t, parse_errors);
    tcase_add_test(t, strings_as_the_library_writes_them);
    tcase_add_test(t, load_files);
    tcase_add_test(t, getters);
    tcase_add_test(t, python_floats);
    suite_add_tcase(s, t);
    return run_suite(s);
}
