/* SPDX-License-Identifier: MIT */
/* The template engine against renderings by Python's jinja2: our own small ones, and the recorded
 * ones of BALLAST_REFERENCE/templates (micro.json, cases.json) where that is set. */
#include "support.h"

#include <cjson/cJSON.h>
#include <pthread.h>

#include "alloc_fail.h"
#include "jinja.h"

/* Sanitizers are slow and take several times the stack. */
#if defined(BL_ASAN) || defined(__SANITIZE_THREAD__)
enum { MOST_SECONDS = 30, STACK_BYTES = 8 << 20 };
#else
enum { MOST_SECONDS = 2, STACK_BYTES = 1 << 20 };
#endif

/* The clock of the recorded renderings: 2026-11-29 12:34:56, a Sunday. */
static const struct tm now = {.tm_year = 126,
                              .tm_mon = 10,
                              .tm_mday = 29,
                              .tm_hour = 12,
                              .tm_min = 34,
                              .tm_sec = 56,
                              .tm_wday = 0,
                              .tm_yday = 332};

static const char *text_of(const cJSON *j, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(j, key));
}

static cJSON *parse_file(const char *dir, const char *name, const char *sub)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s", dir, sub, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, f), n);
    text[n] = 0;
    fclose(f);
    cJSON *j = cJSON_Parse(text);
    if (!j)
        j = cJSON_CreateString(text); /* a template */
    free(text);
    assert_non_null(j);
    return j;
}

enum { MOST_VARS = 64 };
struct context {
    struct bl_jinja_var var[MOST_VARS];
    size_t n;
};

static void add(struct context *c, const char *name, const cJSON *tree)
{
    assert_true(c->n < MOST_VARS);
    c->var[c->n++] = (struct bl_jinja_var){.name = name, .value.tree = tree};
}

static enum bl_status render(const char *source, const struct context *c, bool mutable_values,
                             struct bl_jinja_text *out)
{
    struct bl_jinja *t = NULL;
    struct bl_jinja_options o = {.now = &now, .mutable_values = mutable_values};
    *out = (struct bl_jinja_text){0};
    enum bl_status st = bl_jinja_compile(&t, source, strlen(source), NULL);
    if (!st)
        st = bl_jinja_render(t, c->var, c->n, &o, out);
    bl_jinja_destroy(t);
    return st;
}

/* The message without "template line N: ". */
static const char *bare_error(void)
{
    const char *e = bl_error(), *colon = strstr(e, ": ");
    return strncmp(e, "template line ", 14) == 0 && colon ? colon + 2 : e;
}

struct tally {
    int n, wrong, reworded; /* reworded: fails as it should, in other words than jinja2 */
};

/* Around the first byte that differs. */
static void show(const char *group, const char *name, const char *expected, const char *got)
{
    size_t at = 0;
    while (expected[at] && expected[at] == got[at])
        at++;
    size_t from = at > 30 ? at - 30 : 0;
    print_message("%s: %s: differs at byte %zu\n  want \"%.90s\"\n  have \"%.90s\"\n", group, name,
                  at, expected + from, got + from);
}

static bool is_raised(const cJSON *e)
{
    const char *kind = text_of(e, "kind");
    return kind && strcmp(kind, "raise") == 0;
}

static void check_case(struct tally *t, const char *group, const cJSON *e, const char *source,
                       const struct context *c)
{
    struct bl_jinja_text out;
    const char *expected = text_of(e, "expected"), *error = text_of(e, "error");
    const char *needs = text_of(e, "needs"), *name = text_of(e, "name");
    enum bl_status st = render(source, c, needs && strcmp(needs, "append") == 0, &out);
    bool good = expected ? !st && strcmp(expected, out.bytes) == 0
                         : st && (!is_raised(e) || strcmp(bl_error(), error) == 0);
    t->n++;
    t->wrong += !good;
    t->reworded += good && error && strcmp(bare_error(), error) != 0;
    if (!good)
        show(group, name, expected ? expected : error, st ? bl_error() : out.bytes);
    else if (error && strcmp(bare_error(), error) != 0 && getenv("BALLAST_VERBOSE"))
        print_message("%s: %s: \"%s\", jinja2: \"%s\"\n", group, name, bare_error(), error);
    bl_jinja_text_finish(&out);
}

static void check_part(struct tally *t, const cJSON *micro, const char *part)
{
    const cJSON *e, *v;
    cJSON_ArrayForEach(e, cJSON_GetObjectItemCaseSensitive(micro, part))
    {
        struct context c = {.n = 0};
        cJSON_ArrayForEach(v, cJSON_GetObjectItemCaseSensitive(e, "context")) add(&c, v->string, v);
        check_case(t, part, e, text_of(e, "template"), &c);
    }
}

static const char *reference(void)
{
    const char *dir = getenv("BALLAST_REFERENCE");
    if (!dir)
        print_message("BALLAST_REFERENCE is not set: recorded renderings are not checked\n");
    return dir;
}

static void test_micro(void **state)
{
    (void)state;
    struct tally t = {0, 0, 0};
    if (!reference())
        skip();
    cJSON *micro = parse_file(reference(), "micro.json", "templates/");
    check_part(&t, micro, "render");
    check_part(&t, micro, "fail");
    cJSON_Delete(micro);
    print_message("%d snippets, %d errors in other words\n", t.n, t.reworded);
    assert_true(t.n > 300);
    assert_int_equal(t.wrong, 0);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* A template, or pieces with how often each is repeated. */
static char *assemble(const cJSON *e)
{
    const char *whole = text_of(e, "template");
    const cJSON *part, *parts = cJSON_GetObjectItemCaseSensitive(e, "template_parts");
    size_t n = whole ? strlen(whole) : 0, at = 0;
    cJSON_ArrayForEach(part, parts) n +=
        strlen(part->child->valuestring) * (size_t)part->child->next->valueint;
    char *s = malloc(n + 1);
    assert_non_null(s);
    if (whole)
        memcpy(s, whole, n);
    cJSON_ArrayForEach(part, parts) for (int i = 0; i < part->child->next->valueint; i++)
    {
        size_t len = strlen(part->child->valuestring);
        memcpy(s + at, part->child->valuestring, len);
        at += len;
    }
    s[n] = 0;
    return s;
}

static void check_limit(const cJSON *e)
{
    struct bl_jinja_text out;
    const struct context none = {.n = 0};
    char *source = assemble(e);
    clock_t begin = clock();
    enum bl_status st = render(source, &none, false, &out);
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    const char *how = text_of(e, "jinja2");
    print_message("%-20s %.2f s: %s\n", text_of(e, "name"), seconds, st ? bl_error() : "renders");
    if (how && strncmp(how, "ok:", 3) == 0)
        assert_string_equal(st ? bl_error() : out.bytes, how + 3);
    else if (st)
        assert_int_equal(st, BL_ELIMIT);
    assert_true(seconds < 10 * MOST_SECONDS);
    bl_jinja_text_finish(&out);
    free(source);
}

static void test_limits(void **state)
{
    const cJSON *e;
    (void)state;
    if (!reference())
        skip();
    cJSON *micro = parse_file(reference(), "micro.json", "templates/");
    cJSON_ArrayForEach(e, cJSON_GetObjectItemCaseSensitive(micro, "limit")) check_limit(e);
    cJSON_Delete(micro);
}

/* ---- whole templates ------------------------------------------------------------------------- */

static bool is_omitted(const cJSON *e, const char *name)
{
    const cJSON *o;
    cJSON_ArrayForEach(o, cJSON_GetObjectItemCaseSensitive(
                              e, "omit")) if (strcmp(o->valuestring, name) == 0) return true;
    return false;
}

static void add_variables(struct context *c, const cJSON *data, const cJSON *entry, const cJSON *e)
{
    static cJSON null = {.type = cJSON_NULL};
    const char *tools = text_of(e, "tools");
    const cJSON *v;
    if (!is_omitted(e, "tools"))
        add(c, "tools",
            tools ? cJSON_GetObjectItemCaseSensitive(
                        cJSON_GetObjectItemCaseSensitive(data, "tools"), tools)
                  : &null);
    if (!is_omitted(e, "documents"))
        add(c, "documents", &null);
    cJSON_ArrayForEach(v, entry) if (strcmp(v->string, "cases") != 0) add(c, v->string, v);
    add(c, "messages",
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(data, "messages"),
                                         text_of(e, "messages")));
    add(c, "add_generation_prompt", cJSON_GetObjectItemCaseSensitive(e, "add_generation_prompt"));
    cJSON_ArrayForEach(v, cJSON_GetObjectItemCaseSensitive(e, "context")) add(c, v->string, v);
}

static void test_cases(void **state)
{
    (void)state;
    struct tally t = {0, 0, 0};
    const cJSON *entry, *e;
    if (!reference())
        skip();
    cJSON *data = parse_file(reference(), "cases.json", "templates/");
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(data, "templates"))
    {
        cJSON *source = parse_file(reference(), entry->string, "templates/");
        cJSON_ArrayForEach(e, cJSON_GetObjectItemCaseSensitive(entry, "cases"))
        {
            struct context c = {.n = 0};
            add_variables(&c, data, entry, e);
            check_case(&t, entry->string, e, source->valuestring, &c);
        }
        cJSON_Delete(source);
    }
    cJSON_Delete(data);
    print_message("%d renderings, %d errors in other words\n", t.n, t.reworded);
    assert_true(t.n > 3000);
    assert_int_equal(t.wrong, 0);
}

/* ---- our own cases --------------------------------------------------------------------------- */

static void test_own(void **state)
{
    (void)state;
    struct tally t = {0, 0, 0};
    const cJSON *e, *v;
    cJSON *cases = parse_file(BL_TEST_DATA, "cases.json", "templates/");
    cJSON_ArrayForEach(e, cases)
    {
        struct context c = {.n = 0};
        cJSON_ArrayForEach(v, cJSON_GetObjectItemCaseSensitive(e, "context")) add(&c, v->string, v);
        check_case(&t, "own", e, text_of(e, "template"), &c);
    }
    cJSON_Delete(cases);
    assert_true(t.n > 100);
    assert_int_equal(t.wrong, 0);
    assert_true(t.reworded <= 1); /* jinja2 ends one message with a line of the Python it made */
}

static void expect_error(const char *source, enum bl_status code, const char *message)
{
    struct bl_jinja_text out;
    const struct context none = {.n = 0};
    assert_int_equal(render(source, &none, false, &out), code);
    assert_string_equal(bl_error(), message);
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("a\nb\n  {{ x.y }}", BL_EINVAL, "template line 3: 'x' is undefined");
    expect_error("{% if true %}\n{% endif %}\n{{ (1,\n2) + 'a' }}", BL_EINVAL,
                 "template line 4: can only concatenate tuple (not \"str\") to tuple");
    expect_error("{% macro m() %}\n\n{{ 1 }}{% endmacro %}\n{{ m() + 1 }}", BL_EINVAL,
                 "template line 4: can only concatenate str (not \"int\") to str");
    expect_error("\n{% if %}", BL_EFORMAT,
                 "template line 2: Expected an expression, got 'end of statement block'");
    expect_error("{{ raise_exception('two\nlines') }}", BL_EINVAL, "two lines");
    expect_error("{{ 'a\nb'.c.d }}", BL_EINVAL,
                 "template line 2: 'str object' has no attribute 'c'");
    expect_error("{{ 2 ** 63 }}", BL_ELIMIT, "template line 1: an integer does not fit 64 bits");
    expect_error("{{ -9223372036854775807 - 2 }}", BL_ELIMIT,
                 "template line 1: an integer does not fit 64 bits");
    expect_error("{% include 'x' %}", BL_EUNSUPPORTED,
                 "template line 1: the statement 'include' needs other templates: there are none");
    expect_error("{{ 9999999999999999999 }}", BL_EFORMAT, "template line 1: a number is too long");
}

/* A variable that is no JSON is named. */
static void test_variables(void **state)
{
    (void)state;
    struct bl_jinja *t = NULL;
    struct bl_jinja_text out;
    const char *source = "{{ v }}|{{ v | tojson }}|{{ w }}";
    assert_int_equal(bl_jinja_compile(&t, source, strlen(source), NULL), BL_OK);
    const char *good =
        "[1, 1.0, 9007199254740993, -0.0, \"a\\u0000b\", 1e400, 123456789012345678901]";
    struct bl_jinja_var var[] = {{.name = "w", .value = {NULL, "0", 1}},
                                 {.name = "v", .value = {NULL, good, strlen(good)}}};
    assert_int_equal(bl_jinja_render(t, var, 2, NULL, &out), BL_OK);
    assert_string_equal(out.bytes,
                        "[1, 1.0, 9007199254740993, -0.0, 'a\\x00b', inf, 1.2345678901234568e+20]|"
                        "[1, 1.0, 9007199254740993, -0.0, \"a\\u0000b\", Infinity, "
                        "1.2345678901234568e+20]|0");
    bl_jinja_text_finish(&out);
    const char *bad[] = {"",      "[1,]", "{\"a\" 1}", "01",      "1.",       "\"a",
                         "[1] 2", "nul",  "{a: 1}",    "\"\\x\"", "\"\\u12\""};
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        var[1].value.text = bad[i];
        var[1].value.n_bytes = strlen(bad[i]);
        assert_int_equal(bl_jinja_render(t, var, 2, NULL, &out), BL_EINVAL);
        assert_non_null(strstr(bl_error(), "variable 'v': JSON: "));
    }
    bl_jinja_destroy(t);
}

/* ---- where bytes came from ------------------------------------------------------------------- */

/* The output with the user's bytes in angle quotes. */
static char *marked(const char *source)
{
    static char text[4096];
    static const char user[] =
        "{\"a\": \"one\", \"b\": \"<b>\", \"l\": [\"x\", \"y\"], \"n\": 5, \"p\": \" pad \"}";
    static const char ours[] = "\"T\"";
    const struct bl_jinja_var var[] = {
        {.name = "u", .value = {NULL, user, sizeof user - 1}},
        {.name = "t", .value = {NULL, ours, sizeof ours - 1}, .trusted = true}};
    struct bl_jinja *t = NULL;
    struct bl_jinja_text out;
    assert_int_equal(bl_jinja_compile(&t, source, strlen(source), NULL), BL_OK);
    assert_int_equal(bl_jinja_render(t, var, 2, NULL, &out), BL_OK);
    size_t n = 0, at = 0;
    for (size_t i = 0; i <= out.n_user; i++) {
        size_t begin = i < out.n_user ? out.user[i].begin : out.n_bytes;
        assert_true(begin >= at && begin <= out.n_bytes &&
                    (i == 0 || i == out.n_user || begin > at));
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s", (int)(begin - at), out.bytes + at);
        if (i == out.n_user)
            break;
        at = out.user[i].end;
        assert_true(at > begin && at <= out.n_bytes);
        n += (size_t)snprintf(text + n, sizeof text - n, "«%.*s»", (int)(at - begin),
                              out.bytes + begin);
    }
    bl_jinja_text_finish(&out);
    bl_jinja_destroy(t);
    return text;
}

static void test_provenance(void **state)
{
    (void)state;
    static const struct {
        const char *source, *expected;
    } cases[] = {
        {"a{{ u.a }}b{{ t }}", "a«one»bT"},
        {"{{ '<' + u.a + '>' }}{{ '<' ~ u.a ~ u.n ~ t }}", "<«one»><«one»5T"},
        {"{{ (('<' + u.a + '>')[1:3]) }}{{ ('<' + u.a)[::-1] }}",
         "«oneno»<"}, /* two ranges that touch */
        {"{{ u.p | trim }}{{ ('.' + u.p + '.').strip('.') }}", "«pad pad »"},
        {"{{ u.a | upper }}{{ (u.a ~ 'x') | capitalize }}", "«ONEOne»x"},
        {"{{ 'a-b'.replace('-', u.a) }}{{ (u.a ~ '-').replace('-', '+') }}", "a«one»b«one»+"},
        {"{{ u.l | join(', ') }}{{ ', '.join(u.l) }}", "«x», «yx», «y»"},
        {"{{ u.l }}{{ u.l | tojson }}", "['«x»', '«y»'][\"«x»\", \"«y»\"]"},
        {"{{ {'k': u.b, u.a: 1} | tojson }}", "{\"k\": \"«<b>»\", \"«one»\": 1}"},
        {"{{ u.b | e }}{{ '%s!' % u.a }}{{ '{}?'.format(u.a) }}", "&lt;«b»&gt;«one»!«one»?"},
        {"{{ (u.a ~ ',' ~ t).split(',') | join('/') }}", "«one»/T"},
        {"{% set x %}({{ u.a }}){% endset %}{% macro m(v) %}[{{ v }}]{% endmacro %}{{ m(x) }}",
         "[(«one»)]"},
        {"{% set n = namespace(s='') %}{% for c in u.l %}{% set n.s = n.s + '.' + c %}{% endfor "
         "%}{{ n.s }}{{ n.s }}",
         ".«x».«y».«x».«y»"},
        {"{{ u.a | indent(2, true) }}{{ u.a | center(7) }}{{ u.a.zfill(5) }}",
         "  «one»  «one»  00«one»"},
        {"{{ ('[\"' ~ u.a ~ '\\\\n\"]') | from_json | first }}|", "«one»\n|"},
        {"{% for k in u %}{{ k[0] }}{% endfor %}{{ u.a[0] }}{{ u.n }}{{ u.a | length }}",
         "«ablnpo»53"},
    };
    for (size_t i = 0; i < BL_COUNT(cases); i++)
        assert_string_equal(marked(cases[i].source), cases[i].expected);
}

/* ---- resources ------------------------------------------------------------------------------- */

static const char busy[] =
    "{% macro m(a, n=2) %}{% if n %}{{ a ~ n }}{{ m(a, n - 1) }}{% endif %}{% endmacro %}"
    "{% set ns = namespace(s='') %}{% for k, v in {'a': 1, 'b': [1, 2.5, none]}.items() %}"
    "{% set ns.s = ns.s ~ k ~ v %}{% endfor %}{{ ns.s | upper | replace('1', 'one') }}{{ m('x') }}"
    "{{ range(20) | map('string') | join(',') | tojson }}{{ '%s{}' % 1 }}{{ [3, 1, 2] | sort }}"
    "{{ 'a\\tb' + '!' }}{{ 'c' 'd' + '!' }}" /* constants are shared, nobody may append to them */
    "{{ '{\"a\": [1]}' | from_json }}{% set z %}{{ 1 }}{% endset %}{{ z.split('1') }}";

static void test_out_of_memory(void **state)
{
    (void)state;
    const struct context none = {.n = 0};
    struct bl_jinja_text out;
    for (uint64_t n = 1;; n++) {
        alloc_fail_at(n);
        enum bl_status st = render(busy, &none, false, &out);
        if (!alloc_fail_stop()) {
            assert_int_equal(st, BL_OK);
            bl_jinja_text_finish(&out);
            assert_true(n > 3);
            return;
        }
        assert_int_equal(st, BL_ENOMEM);
        assert_null(out.bytes);
    }
}

static enum bl_status render_limited(const char *source, struct bl_jinja_limits limits)
{
    struct bl_jinja *t = NULL;
    struct bl_jinja_text out = {0};
    const struct bl_jinja_options o = {.limits = limits};
    enum bl_status st = bl_jinja_compile(&t, source, strlen(source), &limits);
    if (!st)
        st = bl_jinja_render(t, NULL, 0, &o, &out);
    bl_jinja_text_finish(&out);
    bl_jinja_destroy(t);
    return st;
}

/* Just enough is enough, one less is not. */
static void test_tight_limits(void **state)
{
    (void)state;
    const char *loop = "{% for i in range(10) %}{{ i }}{% endfor %}";
    uint64_t steps = 1;
    while (render_limited(loop, (struct bl_jinja_limits){.steps = steps}))
        assert_true(++steps < 100);
    assert_true(steps > 20);
    assert_int_equal(render_limited(loop, (struct bl_jinja_limits){.output_bytes = 10}), BL_OK);
    assert_int_equal(render_limited(loop, (struct bl_jinja_limits){.output_bytes = 9}), BL_ELIMIT);
    assert_int_equal(render_limited("{{ ((((1)))) }}", (struct bl_jinja_limits){.depth = 5}),
                     BL_OK);
    assert_int_equal(render_limited("{{ (((((1))))) }}", (struct bl_jinja_limits){.depth = 5}),
                     BL_ELIMIT);
    assert_int_equal(render_limited(busy, (struct bl_jinja_limits){.memory_bytes = 65536}),
                     BL_ELIMIT);
    assert_int_equal(render_limited("{% for i in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
                                    (struct bl_jinja_limits){0}),
                     BL_ELIMIT); /* ten megabytes */
}

/* Whatever looks at a long string is charged for its length. */
static void test_work(void **state)
{
    (void)state;
    static const char *const operation[] = {"s | length",     "s.strip()",
                                            "s | trim('a')",  "s.startswith(s)",
                                            "{s: 1}[s]",      "d[s]",
                                            "s | int",        "s | float",
                                            "s | center(9)",  "'b' in s",
                                            "s == s ~ ''",    "s < s ~ 'a'",
                                            "s | upper",      "s.find('b')",
                                            "s.rfind('b')",   "s.count('b')",
                                            "s.split()",      "s.split('b')",
                                            "s.splitlines()", "s | wordcount",
                                            "s.isspace()",    "s.isupper()",
                                            "s[-1:]",         "s[::2]",
                                            "s[2000000]",     "s[-2000000]",
                                            "s | tojson",     "s | list",
                                            "s | reverse",    "s | replace('b', 'c')",
                                            "s ~ 'x'",        "'x' + s",
                                            "[s] | join",     "s | e",
                                            "s | urlencode",  "s | indent",
                                            "s.zfill(1)",     "s.partition('b')",
                                            "s | striptags",  "[s] | unique | list",
                                            "[s, s] | sort",  "'%s' % s",
                                            "'{}'.format(s)", "s | truncate",
                                            "s | first",      "(s ~ '1') | from_json(1)",
                                            "s.join('ab')",   "s is lower"};
    for (size_t i = 0; i < BL_COUNT(operation); i++) {
        char source[200];
        snprintf(source, sizeof source,
                 "{%% set s, d = ' ' * 3000000, {} %%}{%% for i in range(100000) %%}{%% set x = %s "
                 "%%}{%% endfor %%}",
                 operation[i]);
        clock_t begin = clock();
        enum bl_status st = render_limited(source, (struct bl_jinja_limits){.steps = 20000});
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (getenv("BALLAST_VERBOSE"))
            print_message("%-24s %.2f s\n", operation[i], seconds);
        if (seconds > MOST_SECONDS || (st && st != BL_ELIMIT))
            fail_msg("%s: %.1f s, %s", operation[i], seconds, st ? bl_error() : "renders");
    }
}

/* Text worked on piece by piece costs more than its bytes: here twelve times as many. */
static void test_pieces(void **state)
{
    (void)state;
    static const char *const operation[] = {
        "s.replace('a', '')", "s.replace('a', 'b')",    "s.split('a')", "s.rsplit('a')",
        "s.strip('ab')",      "s.count('a')",           "s | upper",    "s | title",
        "s.replace('', 'b')", "s.replace('a', '<') | e"};
    for (size_t i = 0; i < BL_COUNT(operation); i++) {
        char source[100];
        snprintf(source, sizeof source, "{%% set s = 'a' * 300000 %%}{%% set x = %s %%}",
                 operation[i]);
        if (render_limited(source, (struct bl_jinja_limits){.steps = 12 * 300}) != BL_ELIMIT)
            fail_msg("%s: costs next to nothing", operation[i]);
        assert_int_equal(render_limited(source, (struct bl_jinja_limits){.steps = 100 * 300}),
                         BL_OK);
    }
}

static void *render_deep(void *arg)
{
    (void)arg;
    /* Every level of recursion goes through the longest chain of calls the evaluator has. */
    static const char *const deep[] = {
        "{% macro m(n) %}{% for i in [1] %}{% if true %}{% filter upper %}"
        "{{ [(1 if m(n + 1) else 2)] | map('string') | join }}{% endfilter %}{% endif %}{% endfor "
        "%}"
        "{% endmacro %}{{ m(0) }}",
        "{% set n = namespace(v=[]) %}{% for i in range(2000) %}{% set n.v = {'k': [n.v]} %}{% "
        "endfor %}"
        "{{ n.v == n.v }}{% set o = namespace(v=[]) %}{% for i in range(2000) %}{% set o.v = {'k': "
        "[o.v]} %}{% endfor %}"
        "{{ n.v == o.v }}",
        ("{% set n = namespace(v=()) %}{% for i in range(2000) %}{% set n.v = (n.v,) %}{% endfor "
         "%}{{ {n.v: 1} }}"),
    };
    for (size_t i = 0; i < BL_COUNT(deep); i++)
        if (render_limited(deep[i], (struct bl_jinja_limits){0}) != BL_ELIMIT)
            return (void *)deep[i];
    char *source = malloc(5000);
    if (!source)
        return (void *)"no memory";
    memset(source, '(', 100); /* as deep as the parser goes */
    memcpy(source, "{{ not -", 8);
    source[100] = 0;
    enum bl_status st = render_limited(source, (struct bl_jinja_limits){0});
    free(source);
    return st == BL_EFORMAT ? NULL : (void *)"brackets";
}

/* The header promises a megabyte; sanitizers take several times as much. */
static void test_stack(void **state)
{
    (void)state;
    pthread_attr_t attr;
    pthread_t thread;
    void *failed = NULL;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK_BYTES), 0);
    assert_int_equal(pthread_create(&thread, &attr, render_deep, NULL), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    pthread_attr_destroy(&attr);
    if (failed)
        fail_msg("no limit was met by: %.100s", (const char *)failed);
}

static void *render_shared(void *arg)
{
    for (int i = 0; i < 200; i++) {
        struct bl_jinja_text out;
        if (bl_jinja_render(arg, NULL, 0, NULL, &out))
            return arg;
        bool good = strncmp(out.bytes, "AoneB[one, 2.5, NONE]x2x1\"0,1,", 30) == 0;
        bl_jinja_text_finish(&out);
        if (!good)
            return arg;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct bl_jinja *t = NULL;
    pthread_t thread[2];
    void *failed = NULL;
    assert_int_equal(bl_jinja_compile(&t, busy, strlen(busy), NULL), BL_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_shared, t), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
    }
    bl_jinja_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own),           cmocka_unit_test(test_errors),
        cmocka_unit_test(test_variables),     cmocka_unit_test(test_provenance),
        cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_tight_limits),
        cmocka_unit_test(test_work),          cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_stack),         cmocka_unit_test(test_threads),
        cmocka_unit_test(test_micro),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_cases),
    };
    return cmocka_run_group_tests_name("jinja", tests, NULL, NULL);
}
