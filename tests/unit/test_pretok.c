/* SPDX-License-Identifier: MIT */
/* The pre-tokeniser: recorded pieces, the patterns as their models give them, and texts no pattern
 * was made for. */
#include "support.h"

#include "pretok.h"

#include <cjson/cJSON.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

static uint32_t seed = 99;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* ---- pieces as ends ---- */

enum { MAX_PIECES = 4096 };
struct pieces {
    const char *text;
    size_t n, at, end[MAX_PIECES];
};

static enum bl_status keep_piece(void *arg, const char *s, size_t n_bytes)
{
    struct pieces *p = arg;
    assert_ptr_equal(s, p->text + p->at); /* in order, without gaps */
    assert_true(n_bytes > 0);
    assert_true(p->n < MAX_PIECES);
    p->at += n_bytes;
    p->end[p->n++] = p->at;
    return BL_OK;
}

static void split(struct pieces *p, const struct bl_pretok *t, const char *s, size_t n)
{
    *p = (struct pieces){.text = s};
    if (bl_pretok_split(t, s, n, keep_piece, p))
        fail_msg("%s", bl_error());
    assert_int_equal(p->at, n);
}

static struct bl_pretok *open_kind(const char *name)
{
    struct bl_pretok *t = NULL;
    for (uint32_t i = 0; bl_pretok_rule_at(i) && !t; i++)
        if (strcmp(bl_pretok_rule_at(i)->kind->name, name) == 0)
            assert_int_equal(bl_pretok_create(&t, bl_pretok_rule_at(i)->kind), BL_OK);
    if (!t)
        fail_msg("no kind %s", name);
    return t;
}

/* ---- recorded pieces ---- */

/* The recording took \p{Han} with PCRE2's reading, script extensions, where U+3002 is Han too. The
 * model's own tokenizer and the recorded ids take the script. */
static bool is_deviation(const char *kind, const char *text)
{
    return strcmp(kind, "kimi-k2") == 0 && strstr(text, "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82");
}

static bool same_pieces(const struct pieces *p, const cJSON *want)
{
    size_t at = 0, i = 0;
    const cJSON *piece;
    cJSON_ArrayForEach(piece, want)
    {
        at += strlen(piece->valuestring);
        if (i >= p->n || p->end[i++] != at)
            return false;
    }
    return i == p->n;
}

static void test_recorded_pieces(void **state)
{
    FILE *f = fopen(BL_TEST_DATA "/tokenizer/pretok_vectors.jsonl", "r");
    char line[4096];
    int n = 0, n_deviations = 0;
    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        static struct pieces p;
        cJSON *v = cJSON_Parse(line);
        assert_non_null(v);
        const char *kind = cJSON_GetObjectItem(v, "pre")->valuestring;
        const char *text = cJSON_GetObjectItem(v, "text")->valuestring;
        struct bl_pretok *t = open_kind(kind);
        split(&p, t, text, strlen(text));
        bool same = same_pieces(&p, cJSON_GetObjectItem(v, "pieces"));
        if (same == is_deviation(kind, text))
            fail_msg("%s: \"%s\": %s", kind, text, same ? "no longer differs" : "other pieces");
        n_deviations += !same;
        n++;
        bl_pretok_destroy(t);
        cJSON_Delete(v);
    }
    fclose(f);
    assert_int_equal(n, 12 * 26);
    assert_int_equal(n_deviations, 1);
}

/* ---- the models' patterns, stage by stage, each from its text ---- */

struct stages {
    char kind[32];
    pcre2_code *code[BL_PRETOK_STAGES];
    int n;
};

static pcre2_code *compile(const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                  &error, &at, NULL);
    assert_non_null(c);
    return c;
}

/* The script again, as above. */
static void name_the_script(char *pattern, size_t size)
{
    static const char *const script = "sc:Han}";
    for (char *at = pattern; (at = strstr(at, "p{Han}")); at += strlen(script)) {
        size_t rest = strlen(at + 6) + 1;
        assert_true((size_t)(at - pattern) + 2 + strlen(script) + rest <= size);
        memmove(at + 2 + strlen(script), at + 6, rest);
        memcpy(at + 2, script, strlen(script));
    }
}

static int read_patterns(struct stages kinds[16])
{
    FILE *f = fopen(BL_TEST_DATA "/tokenizer/pretok_patterns.txt", "r");
    char line[2048], kind[32], pattern[2048];
    int stage, n = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#' || sscanf(line, "%31[^\t]\t%d\t%2000[^\n]", kind, &stage, pattern) != 3)
            continue;
        name_the_script(pattern, sizeof pattern);
        if (stage == 0) {
            assert_true(n < 16);
            kinds[n] = (struct stages){0};
            strcpy(kinds[n++].kind, kind);
        }
        assert_int_equal(kinds[n - 1].n, stage);
        kinds[n - 1].code[kinds[n - 1].n++] = compile(pattern);
    }
    fclose(f);
    return n;
}

static void naive_split(struct pieces *p, const struct stages *k, int stage, const char *s,
                        size_t n)
{
    if (n == 0)
        return;
    if (stage == k->n) {
        keep_piece(p, s, n);
        return;
    }
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m);
    size_t at = 0;
    while (at < n && pcre2_match(k->code[stage], (PCRE2_SPTR)s, n, at, PCRE2_NO_JIT, m, NULL) > 0) {
        size_t from = range[0], to = range[1];
        naive_split(p, k, stage + 1, s + at, from - at);
        naive_split(p, k, stage + 1, s + from, to - from);
        at = to;
    }
    pcre2_match_data_free(m);
    naive_split(p, k, stage + 1, s + at, n - at);
}

static size_t random_text(char *s, size_t cap)
{
    static const char *const words[] = {"a",
                                        "b",
                                        "X",
                                        "Yz",
                                        " ",
                                        "  ",
                                        "\t",
                                        "\n",
                                        "\r\n",
                                        "0",
                                        "12",
                                        "345",
                                        "'s",
                                        "'LL",
                                        "'re",
                                        ".",
                                        ",",
                                        "~",
                                        "$",
                                        "!?",
                                        "/",
                                        "(",
                                        "_",
                                        "\xC3\xA9",
                                        "\xC3\x89",
                                        "\xC5\xBF",
                                        "\xC2\xB2",
                                        "\xC2\xA0",
                                        "\xE3\x80\x80",
                                        "\xE2\x80\xA8",
                                        "\xE4\xB8\xAD",
                                        "\xE6\x96\x87",
                                        "\xE3\x80\x82",
                                        "\xE3\x81\x8B",
                                        "\xE3\x82\xAB",
                                        "\xED\x95\x9C",
                                        "\xE0\xA4\xA8",
                                        "\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D",
                                        "\xE0\xB9\x84\xE0\xB8\x97\xE0\xB8\xB1",
                                        "\xD8\xA7",
                                        "\xD9\xA1",
                                        "\xF0\x9F\x98\x80",
                                        "\xCC\x81",
                                        "\xC7\x85",
                                        "\xCA\xB0",
                                        "\xE2\x85\xA7",
                                        "\xEF\xBC\x8C",
                                        "\xEF\xBC\xA1"};
    size_t n = 0;
    for (uint32_t k = 1 + rnd(30); k; k--) {
        const char *w = words[rnd(BL_COUNT(words))];
        for (uint32_t times = rnd(4) ? 1 : 1 + rnd(6); times && n + 16 < cap; times--) {
            memcpy(s + n, w, strlen(w));
            n += strlen(w);
        }
    }
    return n;
}

static void test_patterns_as_given(void **state)
{
    struct stages kinds[16];
    int n_kinds = read_patterns(kinds);
    (void)state;
    assert_int_equal(n_kinds, 12);
    for (int k = 0; k < n_kinds; k++) {
        struct bl_pretok *t = open_kind(kinds[k].kind);
        for (int round = 0; round < 300; round++) {
            static struct pieces have, want;
            char s[1024];
            size_t n = random_text(s, sizeof s);
            split(&have, t, s, n);
            want = (struct pieces){.text = s};
            naive_split(&want, &kinds[k], 0, s, n);
            if (have.n != want.n || memcmp(have.end, want.end, have.n * sizeof *have.end) != 0)
                fail_msg("%s cuts \"%.*s\" otherwise", kinds[k].kind, (int)n, s);
        }
        bl_pretok_destroy(t);
        for (int i = 0; i < kinds[k].n; i++)
            pcre2_code_free(kinds[k].code[i]);
    }
}

/* ---- kinds that are not in the pattern file ---- */

static void check_ends(const char *kind, const char *s, const size_t *end, size_t n)
{
    static struct pieces p;
    struct bl_pretok *t = open_kind(kind);
    split(&p, t, s, strlen(s));
    assert_int_equal(p.n, n);
    assert_memory_equal(p.end, end, n * sizeof *end);
    bl_pretok_destroy(t);
}

static void test_other_kinds(void **state)
{
    (void)state;
    check_ends("llama-bpe", "a  1", (size_t[]){1, 2, 3, 4}, 4);
    check_ends("minicpm5", "a  1", (size_t[]){1, 3, 4},
               3); /* digits first: the spaces end their piece */
    check_ends("minicpm5", "12345", (size_t[]){3, 5}, 2);
    check_ends("jais-2", "a          b", (size_t[]){1, 9, 10, 12},
               4); /* 8, 1 and the one before b */
    check_ends("jais-2", "It's 1234", (size_t[]){2, 4, 5, 8, 9}, 5);
}

static void test_names(void **state)
{
    (void)state;
    const struct bl_pretok_rule *r = bl_pretok_rule_find("llama3", 6);
    assert_non_null(r);
    assert_string_equal(r->kind->name, "llama-bpe");
    assert_true(r->ignore_merges && r->add_bos);
    r = bl_pretok_rule_find("dbrx", 4);
    assert_string_equal(r->kind->name, "llama-bpe");
    assert_false(r->ignore_merges || r->add_bos);
    assert_null(bl_pretok_rule_find("llama", 5)); /* no prefixes */
    assert_null(bl_pretok_rule_find("llama3 ", 7));
    assert_null(bl_pretok_rule_find("dbrx smaug-bpe", 14));
    assert_null(bl_pretok_rule_find("", 0));
    for (uint32_t i = 0; (r = bl_pretok_rule_at(i)); i++)
        if (strcmp(r->kind->name, "gemma4")) /* goes with its model, not with a name */
            assert_non_null(strstr(bl_pretok_kind_names(), r->kind->name));
}

/* ---- any bytes, any size ---- */

static void test_any_bytes(void **state)
{
    (void)state;
    for (uint32_t i = 0; bl_pretok_rule_at(i); i++) {
        struct bl_pretok *t = NULL;
        assert_int_equal(bl_pretok_create(&t, bl_pretok_rule_at(i)->kind), BL_OK);
        assert_true(bl_pretok_heap_bytes(t) <= BL_PRETOK_MAX_BYTES);
        for (int round = 0; round < 100; round++) {
            static struct pieces p;
            char s[256];
            size_t n = rnd(sizeof s);
            for (size_t k = 0; k < n; k++)
                s[k] = (char)(rnd(2) ? rnd(256) : ' ' + rnd(64));
            split(&p, t, s, n);
        }
        bl_pretok_destroy(t);
    }
}

static void test_bad_bytes_are_pieces(void **state)
{
    static struct pieces p;
    struct bl_pretok *t = open_kind("gpt-2");
    (void)state;
    split(&p, t,
          "ab\xFF\xFE"
          "cd\xE4\xB8",
          8);
    assert_int_equal(p.n, 4);
    assert_int_equal(p.end[0], 2);
    assert_int_equal(p.end[1], 4);
    assert_int_equal(p.end[2], 6);
    bl_pretok_destroy(t);
}

struct count {
    size_t n_pieces, n_bytes, longest;
};

static enum bl_status count_piece(void *arg, const char *s, size_t n_bytes)
{
    struct count *c = arg;
    (void)s;
    c->n_pieces++;
    c->n_bytes += n_bytes;
    c->longest = n_bytes > c->longest ? n_bytes : c->longest;
    return BL_OK;
}

/* `unit` over and over, then `last`. */
static struct count count_run(const char *kind, const char *unit, size_t n_bytes, const char *last)
{
    struct bl_pretok *t = open_kind(kind);
    struct count c = {0};
    char *s = malloc(n_bytes);
    assert_non_null(s);
    for (size_t i = 0; i < n_bytes; i++)
        s[i] = unit[i % strlen(unit)];
    memcpy(s + n_bytes - strlen(last), last, strlen(last));
    assert_int_equal(bl_pretok_split(t, s, n_bytes, count_piece, &c), BL_OK);
    assert_int_equal(c.n_bytes, n_bytes);
    free(s);
    bl_pretok_destroy(t);
    return c;
}

/* A pattern that needs memory for every character: a long word passes, one beyond all measure goes
 * in slices. */
static void test_slices(void **state)
{
    (void)state;
    struct count c = count_run("kimi-k2", "a", 60000, "");
    assert_int_equal(c.n_pieces, 1);
    c = count_run("kimi-k2", "a", 4 << 20, "");
    assert_int_equal(c.longest, 64 << 10);
    c = count_run("kimi-k2",
                  "\xC3\xA9"
                  "aa\xE0\xA4\xA8",
                  4 << 20, ""); /* 7 bytes: slices end between characters */
    assert_true(c.longest <= 64 << 10);
    assert_true(c.n_pieces <= 70);
}

/* White space that leads nowhere: each run is tried once. Quadratic, this would take minutes. */
static void test_long_runs(void **state)
{
    static const char *const units[] = {" ", "\n", " \n", "x ",          "1",
                                        "!", "A",  "\t ", "\xE3\x80\x80"};
    static const char *const lasts[] = {"", "x", "1"};
    (void)state;
    for (uint32_t i = 0; bl_pretok_rule_at(i); i++)
        for (size_t u = 0; u < BL_COUNT(units) * BL_COUNT(lasts); u++) {
            clock_t start = clock();
            count_run(bl_pretok_rule_at(i)->kind->name, units[u % BL_COUNT(units)], 200000,
                      lasts[u / BL_COUNT(units)]);
            if (clock() - start > 5 * CLOCKS_PER_SEC) /* at most 0.1, jais-2 on spaces */
                fail_msg("%s, text %zu", bl_pretok_rule_at(i)->kind->name, u);
        }
}

/* The same where PCRE2 has no JIT: all matches of one pattern in 50,000 characters. */
static void match_all(const char *pattern, const char *unit, const char *last)
{
    enum { N = 50000 };
    static char s[N];
    pcre2_code *c = compile(pattern);
    pcre2_match_data *m = pcre2_match_data_create(1, NULL);
    for (size_t i = 0; i < N; i++)
        s[i] = unit[i % strlen(unit)];
    memcpy(s + N - strlen(last), last, strlen(last));
    clock_t start = clock();
    for (size_t at = 0; at < N; at = pcre2_get_ovector_pointer(m)[1])
        if (pcre2_match(c, (PCRE2_SPTR)s, N, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m, NULL) < 0)
            break;
    if (clock() - start > 4 * CLOCKS_PER_SEC) /* quadratic: 10 seconds */
        fail_msg("%s: slow", pattern);
    pcre2_match_data_free(m);
    pcre2_code_free(c);
}

static void test_interpreter(void **state)
{
    (void)state;
    for (uint32_t i = 0; bl_pretok_rule_at(i); i++)
        for (int k = 0; k < BL_PRETOK_STAGES && bl_pretok_rule_at(i)->kind->stage[k]; k++) {
            match_all(bl_pretok_rule_at(i)->kind->stage[k], " ", "1");
            match_all(bl_pretok_rule_at(i)->kind->stage[k], "A", "");
        }
}

static enum bl_status stop_at_once(void *arg, const char *s, size_t n_bytes)
{
    (void)s;
    (void)n_bytes;
    ++*(int *)arg;
    return BL_ECANCELLED;
}

static void test_callers_status(void **state)
{
    struct bl_pretok *t = open_kind("deepseek-v3");
    int calls = 0;
    (void)state;
    assert_int_equal(bl_pretok_split(t, "one two", 7, stop_at_once, &calls), BL_ECANCELLED);
    assert_int_equal(calls, 1);
    assert_int_equal(bl_pretok_split(t, "", 0, stop_at_once, &calls), BL_OK);
    assert_int_equal(calls, 1);
    bl_pretok_destroy(t);
    bl_pretok_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_pieces), cmocka_unit_test(test_patterns_as_given),
        cmocka_unit_test(test_other_kinds),     cmocka_unit_test(test_names),
        cmocka_unit_test(test_any_bytes),       cmocka_unit_test(test_bad_bytes_are_pieces),
        cmocka_unit_test(test_slices),          cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_interpreter),     cmocka_unit_test(test_callers_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
