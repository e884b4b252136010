/* SPDX-License-Identifier: MIT */
/* Bounded reading by tables, units, the nearest name, canonical writing; every allocation that can
 * fail does. */
#include "support.h"

#include "alloc_fail.h"
#include "json.h"

#include <math.h>
#include <time.h>

static const struct bl_json_limits limits = {1 << 24, 8, 1000};
static const char *const words[] = {"red", "green", NULL};
struct thing {
    char name[8];
    uint8_t colour;
    bool on;
    uint16_t small;
    uint32_t count;
    uint64_t bytes;
    double bps, ns, rate, hz, size;
};
#define AT(m) offsetof(struct thing, m)
static const struct bl_json_field rows[] = {
    {"name", BL_JSON_TEXT, AT(name), 0, 8, NULL, true, true},
    {"colour", BL_JSON_WORD, AT(colour), 0, 0, words, false, true},
    {"on", BL_JSON_FLAG, AT(on), 0, 0, NULL, false, false},
    {"small", BL_JSON_U16, AT(small), 0, 9, NULL, false, false},
    {"count", BL_JSON_U32, AT(count), 1, 100, NULL, false, false},
    {"mem_bytes", BL_JSON_BYTES, AT(bytes), 1, 0x1p50, NULL, false, false},
    {"read_bps", BL_JSON_BPS, AT(bps), 1, 1e16, NULL, false, false},
    {"launch_ns", BL_JSON_NS, AT(ns), 1, 1e12, NULL, false, false},
    {"macs_per_s", BL_JSON_PER_S, AT(rate), 1, 1e18, NULL, false, false},
    {"clock_hz", BL_JSON_HZ, AT(hz), 1, 1e12, NULL, false, false},
    {"cache_bytes", BL_JSON_SIZE, AT(size), 1, 1e12, NULL, false, false},
    {"rest", BL_JSON_OTHER, 0, 0, 0, NULL, false, false},
};

static enum bl_status read_thing(struct thing *t, const char *text)
{
    struct cJSON *tree;
    memset(t, 0, sizeof *t);
    enum bl_status st = bl_json_parse(&tree, "thing x", text, strlen(text), &limits);
    if (st)
        return st;
    const struct bl_json root = bl_json_root(tree, "thing x");
    st = bl_json_fields(&root, rows, BL_COUNT(rows), t);
    bl_json_free(tree);
    return st;
}

static void members(void **state)
{
    struct thing t;
    (void)state;
    assert_int_equal(
        read_thing(&t, "{\"name\": \"ab\", \"colour\": \"green\", \"on\": true, \"small\": 9,"
                       "\"count\": 7, \"mem_bytes\": \"1.5GiB\", \"read_bps\": \"64 GB/s\","
                       "\"launch_ns\": \"5us\", \"macs_per_s\": \"2T/s\", \"clock_hz\": "
                       "\"3.5GHz\", \"cache_bytes\": 1024, \"rest\": [[]]} \n"),
        BL_OK);
    assert_string_equal(t.name, "ab");
    assert_int_equal(t.colour, 1);
    assert_true(t.on);
    assert_int_equal(t.small, 9);
    assert_int_equal(t.count, 7);
    assert_int_equal(t.bytes, 3ull << 29);
    assert_true(t.bps == 64e9 && t.ns == 5000 && t.rate == 2e12 && t.hz == 3.5e9);
    assert_true(t.size == 1024);
}

static void wrong_members(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "thing x: no JSON, or cut off, at byte 0"},
        {"{\"name\": \"a\"", "thing x: no JSON, or cut off, at byte 11"},
        {"{\"name\": \"a\"} x", "thing x: no JSON, or cut off, at byte 14"},
        {"{\"name\": NaN}", "thing x: no JSON, or cut off, at byte 9"},
        {"[[[[[[[[[]]]]]]]]]", "thing x: nested deeper than 8 at byte 8"},
        {"7", "thing x: must be a JSON object"},
        {"{}", "thing x: must have a member 'name'"},
        {"{\"name\": \"\"}",
         "thing x: name must be a text, neither empty nor with control characters"},
        {"{\"name\": \"a\\nb\"}",
         "thing x: name must be a text, neither empty nor with control characters"},
        {"{\"name\": \"12345678\"}", "thing x: name is longer than 7 bytes"},
        {"{\"name\": \"a\", \"nmae\": 1}", "thing x: nmae is not known; the nearest is 'name'"},
        {"{\"name\": \"a\", \"zzzzzzzz\": 1}", "thing x: zzzzzzzz is not known"},
        {"{\"name\": \"a\", \"name\": \"b\"}", "thing x: name is there twice"},
        {"{\"name\": \"a\", \"colour\": \"grene\"}",
         "thing x: colour 'grene' is not known; the nearest is 'green'"},
        {"{\"name\": \"a\", \"colour\": 3}", "thing x: colour must be one of red, green"},
        {"{\"name\": \"a\", \"on\": 1}", "thing x: on must be true or false"},
        {"{\"name\": \"a\", \"count\": 0}", "thing x: count is 0; it must lie between 1 and 100"},
        {"{\"name\": \"a\", \"count\": 1.5}", "thing x: count is 1.5; it must be a whole number"},
        {"{\"name\": \"a\", \"count\": \"7\"}", "thing x: count must be a number"},
        {"{\"name\": \"a\", \"mem_bytes\": -1}",
         "thing x: mem_bytes is -1; it must lie between 1 and 1.1259e+15"},
        {"{\"name\": \"a\", \"mem_bytes\": 1e999}",
         "thing x: mem_bytes is inf; it must lie between 1 and 1.1259e+15"},
        {"{\"name\": \"a\", \"mem_bytes\": \"24G\"}",
         "thing x: mem_bytes must be bytes, or a text such as \"24GiB\""},
        {"{\"name\": \"a\", \"read_bps\": \"nan\"}",
         "thing x: read_bps must be bytes per second, or a text such as \"64GB/s\""},
        {"{\"name\": \"a\", \"read_bps\": 0}",
         "thing x: read_bps is 0; it must lie between 1 and 1e+16"},
    };
    struct thing t;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        assert_int_equal(read_thing(&t, bad[i].text), BL_EFORMAT);
        assert_string_equal(bl_error(), bad[i].message);
    }
}

static void assignments(void **state)
{
    struct thing t = {.name = "a"};
    (void)state;
    assert_int_equal(bl_json_assign(&rows[5], "x.mem_bytes", "24GiB", &t), BL_OK);
    assert_int_equal(t.bytes, 24ull << 30);
    assert_int_equal(bl_json_assign(&rows[1], "x.colour", "green", &t), BL_OK);
    assert_int_equal(t.colour, 1);
    assert_int_equal(bl_json_assign(&rows[5], "x.mem_bytes", "-3", &t), BL_EINVAL);
    assert_string_equal(bl_error(), "x.mem_bytes is -3; it must lie between 1 and 1.1259e+15");
    assert_int_equal(bl_json_assign(&rows[7], "x.launch_ns", "5 lightyears", &t), BL_EINVAL);
    assert_string_equal(bl_error(), "x.launch_ns '5 lightyears': must be nanoseconds, or a text "
                                    "such as \"5us\"");
    assert_int_equal(bl_json_assign(&rows[11], "x.rest", "1", &t), BL_EINVAL);
    assert_int_equal(t.bytes, 24ull << 30);
}

static void quantities(void **state)
{
    static const struct {
        const char *text;
        enum bl_json_kind kind;
        double value; /* < 0: none */
    } q[] = {
        {"24GiB", BL_JSON_BYTES, 24 * 0x1p30},
        {"24 GB", BL_JSON_BYTES, 24e9},
        {"1e3", BL_JSON_BYTES, 1000},
        {".5MiB", BL_JSON_BYTES, 0x1p19},
        {"24GiB/s", BL_JSON_BYTES, -1},
        {"24GiB/s", BL_JSON_BPS, 24 * 0x1p30},
        {"1.5ms", BL_JSON_NS, 1.5e6},
        {"3s", BL_JSON_NS, 3e9},
        {"inf", BL_JSON_NS, -1},
        {"1e999", BL_JSON_NS, -1},
        {" 1", BL_JSON_NS, -1},
        {"", BL_JSON_NS, -1},
        {"0x10", BL_JSON_U32, 16},
        {"3 apples", BL_JSON_U32, -1},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(q); i++) {
        double v = -1;
        assert_int_equal(bl_quantity(q[i].kind, q[i].text, &v), q[i].value >= 0);
        assert_true(v == q[i].value);
    }
}

/* What is hostile is refused before it costs anything. */
static void large_texts(void **state)
{
    enum { N = 10 << 20 };
    char *text = malloc(N);
    struct cJSON *tree;
    const clock_t start = clock();
    (void)state;
    assert_non_null(text);
    memset(text, '[', N);
    assert_int_equal(bl_json_parse(&tree, "brackets", text, N, &limits), BL_EFORMAT);
    for (int i = 1; i < N; i += 2)
        text[i] = ',';
    for (int i = 0; i < N; i += 2)
        text[i] = i ? '0' : '[';
    assert_int_equal(bl_json_parse(&tree, "numbers", text, N, &limits), BL_EFORMAT);
    assert_string_equal(bl_error(), "numbers: more than 1000 values");
    memset(text, '"', N);
    assert_int_equal(bl_json_parse(&tree, "quotes", text, N, &limits), BL_EFORMAT);
    memset(text, '\\', N);
    text[0] = '"';
    assert_int_equal(bl_json_parse(&tree, "backslashes", text, N, &limits), BL_EFORMAT);
    assert_int_equal(bl_json_parse(&tree, "large", text, N, &(struct bl_json_limits){1000, 8, 8}),
                     BL_EFORMAT);
    assert_true(clock() - start < 2 * CLOCKS_PER_SEC);
    free(text);
}

static char *write_thing(const struct thing *t)
{
    struct bl_json_out o = {0};
    bl_json_open(&o, NULL, '{', false);
    bl_json_put_fields(&o, rows, BL_COUNT(rows), t);
    bl_json_open(&o, "list", '[', false);
    bl_json_open(&o, NULL, '{', true);
    bl_json_put_number(&o, "third", 1.0 / 3);
    bl_json_put_text(&o, "text", "a\"\\\n\x01z");
    bl_json_close(&o, '}');
    bl_json_open(&o, NULL, '{', true);
    bl_json_close(&o, '}');
    bl_json_close(&o, ']');
    bl_json_open(&o, "empty", '[', false);
    bl_json_close(&o, ']');
    bl_json_close(&o, '}');
    return bl_json_out_end(&o) ? NULL : o.text;
}

static void writing(void **state)
{
    const struct thing t = {.name = "ab", .bytes = 3ull << 29, .bps = 64e9, .ns = 71.1};
    (void)state;
    char *text = write_thing(&t);
    assert_non_null(text);
    assert_string_equal(text, "{\n"
                              "  \"name\": \"ab\",\n"
                              "  \"colour\": \"red\",\n"
                              "  \"mem_bytes\": 1610612736,\n"
                              "  \"read_bps\": 64000000000,\n"
                              "  \"launch_ns\": 71.1,\n"
                              "  \"list\": [\n"
                              "    {\"third\": 0.3333333333333333, \"text\": "
                              "\"a\\\"\\\\\\u000a\\u0001z\"},\n"
                              "    {}\n"
                              "  ],\n"
                              "  \"empty\": []\n"
                              "}\n");
    free(text);
}

static void writing_without_memory(void **state)
{
    const struct thing t = {.name = "ab"};
    uint64_t n = 1;
    (void)state;
    for (;; n++) {
        alloc_fail_at(n);
        char *text = write_thing(&t);
        if (!alloc_fail_stop()) {
            free(text);
            break;
        }
        assert_null(text);
    }
    assert_true(n > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members),
        cmocka_unit_test(wrong_members),
        cmocka_unit_test(assignments),
        cmocka_unit_test(quantities),
        cmocka_unit_test(large_texts),
        cmocka_unit_test(writing),
        cmocka_unit_test(writing_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
