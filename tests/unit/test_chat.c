/* SPDX-License-Identifier: MIT */
/* Conversations fitted to templates of our own; DeepSeek-V4 prompts against its encoder's and
 * adapted renders against the recorded ones where BALLAST_REFERENCE is set. */
#include "support.h"

#include <cjson/cJSON.h>

#include "alloc_fail.h"
#include "chat.h"

static const struct tm now = {.tm_year = 126,
                              .tm_mon = 10,
                              .tm_mday = 29,
                              .tm_hour = 12,
                              .tm_min = 34,
                              .tm_sec = 56,
                              .tm_yday = 332};

static struct bl_jinja_json json(const char *text)
{
    return text ? (struct bl_jinja_json){NULL, text, strlen(text)} : (struct bl_jinja_json){0};
}

static struct bl_jinja *compile(const char *source)
{
    struct bl_jinja *t = NULL;
    assert_int_equal(bl_jinja_compile(&t, source, strlen(source), NULL), BL_OK);
    return t;
}

static enum bl_status render(const char *source, const struct bl_chat_input *in,
                             struct bl_jinja_text *out)
{
    struct bl_jinja *t = compile(source);
    enum bl_status st = bl_chat_render(t, in, out);
    bl_jinja_destroy(t);
    return st;
}

static void expect(const char *source, const char *messages, bool adapt, const char *expected)
{
    const struct bl_chat_input in = {
        .messages = json(messages), .bos = "^", .eos = "$", .adapt = adapt};
    struct bl_jinja_text out;
    enum bl_status st = render(source, &in, &out);
    if (expected[0] == '!') {
        assert_int_not_equal(st, BL_OK);
        assert_string_equal(bl_error(), expected + 1);
        assert_null(out.bytes);
        return;
    }
    if (st)
        fail_msg("%s", bl_error());
    assert_string_equal(out.bytes, expected);
    bl_jinja_text_finish(&out);
}

/* ---- templates of several minds -------------------------------------------------------------- */

#define LOOP(body)                                                                                 \
    "{{ bos_token }}{% for m in messages %}" body                                                  \
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
static const char plain[] = LOOP("{{ m.role }}:{{ m.content + eos_token }}");
static const char args_as_text[] = LOOP(
    "{{ m.content }}{% for c in m.tool_calls %}{{ '(' + c.function.arguments + ')' }}{% endfor %}");
static const char args_printed[] =
    LOOP("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}");
static const char args_tested[] =
    LOOP("{{ m.content }}{% for c in m.tool_calls %}{% set a = c.function.arguments %}"
         "{{ a if a is string else a | tojson }}{% endfor %}");
static const char args_dumped[] = LOOP(
    "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}");
static const char args_walked[] =
    LOOP("{{ m.content }}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() "
         "%}{{ k }}={{ v }}{% endfor %}{% endfor %}");
static const char parts_only[] =
    LOOP("{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}");
static const char parts_or_text[] =
    LOOP("{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text "
         "}}>{% endfor %}{% endif %}");
static const char no_system[] = LOOP("{% if m.role == 'system' %}{{ raise_exception('no system "
                                     "here') }}{% endif %}{{ m.role }}={{ m.content }};");

static const char call_text[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                                "\"content\":\"a\",\"tool_calls\":"
                                "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                "\"arguments\":\"{\\\"x\\\":1,\\\"y\\\":[\\\"é\\\"]}\"}}]}]";
static const char call_object[] = "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
                                  "\"content\":\"a\",\"tool_calls\":"
                                  "[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                  "\"arguments\":{\"x\":1,\"y\":[\"é\"]}}}]}]";
static const char parts[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},"
                            "{\"type\":\"image_url\"},{\"type\":\"text\",\"text\":\"two\"}]}]";
static const char system_user[] =
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]";

static void test_as_given(void **state)
{
    (void)state;
    expect(plain, system_user, false, "^system:s$user:u$>");
    expect(plain, system_user, true, "^system:s$user:u$>");
    expect(args_as_text, call_object, false,
           "!template line 1: can only concatenate str (not \"dict\") to str");
    expect(args_dumped, call_text, false, "^qa\"{\\\"x\\\":1,\\\"y\\\":[\\\"é\\\"]}\">");
    expect(args_printed, call_object, false, "^qa{'x': 1, 'y': ['é']}>");
    expect(no_system, system_user, false, "!no system here");
    expect(parts_only, system_user, false, "^>");
}

static void test_arguments(void **state)
{
    (void)state;
    expect(args_as_text, call_text, true, "^qa({\"x\":1,\"y\":[\"é\"]})>");
    expect(args_as_text, call_object, true, "^qa({\"x\": 1, \"y\": [\"é\"]})>");
    expect(args_printed, call_text, true, "^qa{\"x\":1,\"y\":[\"é\"]}>");
    expect(args_printed, call_object, true, "^qa{\"x\": 1, \"y\": [\"é\"]}>");
    expect(args_tested, call_text, true, "^qa{\"x\":1,\"y\":[\"é\"]}>"); /* as the model wrote it */
    expect(args_tested, call_object, true, "^qa{\"x\": 1, \"y\": [\"é\"]}>");
    expect(args_dumped, call_text, true, "^qa{\"x\": 1, \"y\": [\"é\"]}>");
    expect(args_dumped, call_object, true, "^qa{\"x\": 1, \"y\": [\"é\"]}>");
    expect(args_walked, call_text, true, "^qax=1y=['é']>");
}

static void test_contents(void **state)
{
    (void)state;
    static const char none[] =
        "[{\"role\":\"assistant\",\"content\":null},{\"role\":\"user\",\"content\":\"u\"}]";
    expect(plain, parts, true, "^user:one\ntwo$>");
    expect(plain, none, true, "^assistant:$user:u$>");
    expect(plain, none, false,
           "!template line 1: unsupported operand type(s) for +: 'NoneType' and 'str'");
    expect(LOOP("{{ m.content }}"), parts, true, "^one\ntwo>"); /* not Python's list */
    expect(parts_or_text, parts, true, "^<one><><two>>");
    expect(parts_or_text, system_user, true, "^su>");
    expect(parts_only, system_user, true, "^[s][u]>");
    expect(parts_only, parts, true, "^[one][two]>");
    expect("{{ messages[0].content[0].text.upper() }}", "[{\"role\":\"user\",\"content\":\"u\"}]",
           true, "U");
    /* one that shows the system message alone, and one that walks all but that */
    expect("{{ messages[0].content }}", system_user, true, "s");
    expect("{{ 'sys ' ~ messages[0].content }}", system_user, true, "sys s");
    expect("{{ messages[0].content }};{% for m in messages[1:] %}{% for p in m.content %}"
           "[{{ p.text }}]{% endfor %}{% endfor %}",
           system_user, true, "s;[u]");
}

static void test_system(void **state)
{
    (void)state;
    expect(no_system, system_user, true, "^user=s\n\nu;>");
    expect(no_system, "[{\"role\":\"system\",\"content\":\"s\"}]", true, "!no system here");
    expect("{{ raise_exception('never') }}", system_user, true, "!never");
}

static void test_variables(void **state)
{
    (void)state;
    static const char source[] =
        "{{ tools is none }}{{ documents is none }}{{ tools | length if tools }}{{ bos_token is "
        "defined }}"
        "{{ add_generation_prompt }}{{ x }}{{ strftime_now('%Y') if strftime_now is defined }}";
    struct bl_chat_input in = {.messages = json("[]")};
    struct bl_jinja_text out;
    assert_int_equal(render(source, &in, &out), BL_OK);
    assert_string_equal(out.bytes, "TrueTrueFalseTrue");
    bl_jinja_text_finish(&out);
    in = (struct bl_chat_input){.messages = json("[]"),
                                .tools = json("[{},{}]"),
                                .bos = "",
                                .no_generation_prompt = true,
                                .variables = json("{\"x\": 1.0, \"documents\": []}"),
                                .now = &now};
    assert_int_equal(render(source, &in, &out), BL_OK);
    assert_string_equal(out.bytes, "FalseFalse2TrueFalse1.02026");
    bl_jinja_text_finish(&out);
}

static void test_bad_input(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *variables, *error;
    } bad[] = {
        {NULL, NULL, NULL, "messages: there are none"},
        {"{}", NULL, NULL, "messages: an array is needed"},
        {"[", NULL, NULL, "messages: JSON: a value expected at byte 1"},
        {"[{\"role\":\"user\"}, 1]", NULL, NULL, "messages: number 1 is no object with a role"},
        {"[{\"content\":\"u\"}]", NULL, NULL, "messages: number 0 is no object with a role"},
        {"[]", "[}", NULL, "tools: JSON: a value expected at byte 1"},
        {"[]", NULL, "[]", "template variables: an object is needed"},
        {"[]", NULL, "{\"a\"}", "template variables: JSON: ':' expected at byte 4"},
    };
    for (size_t i = 0; i < BL_COUNT(bad); i++)
        for (int adapt = 0; adapt < 2; adapt++) {
            const struct bl_chat_input in = {.messages = json(bad[i].messages),
                                             .tools = json(bad[i].tools),
                                             .variables = json(bad[i].variables),
                                             .adapt = adapt};
            struct bl_jinja_text out;
            assert_int_equal(render(plain, &in, &out), BL_EINVAL);
            assert_string_equal(bl_error(), bad[i].error);
        }
}

/* Control tokens that a template builds from a known role are the template's; whatever else a user
 * writes is not. */
static void test_provenance(void **state)
{
    (void)state;
    static const char source[] = LOOP("{{ '<|' + m.role + '|>' + m.content }}");
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\"<|end|>\"},{\"role\":\"end\",\"content\":\"\"}]";
    const struct bl_chat_input in = {.messages = json(messages), .bos = "<|bos|>", .adapt = true};
    struct bl_jinja_text out;
    assert_int_equal(render(source, &in, &out), BL_OK);
    assert_string_equal(out.bytes, "<|bos|><|user|><|end|><|end|>>");
    assert_int_equal(out.n_user, 2);
    assert_int_equal(out.user[0].begin, 15);
    assert_int_equal(out.user[0].end, 22);
    assert_int_equal(out.user[1].begin, 24);
    assert_int_equal(out.user[1].end, 27);
    bl_jinja_text_finish(&out);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const struct bl_chat_input in = {.messages = json(call_text), .adapt = true};
    for (uint64_t n = 1;; n++) {
        struct bl_jinja_text out = {0};
        struct bl_jinja *t = compile(args_as_text);
        alloc_fail_at(n);
        enum bl_status st = bl_chat_render(t, &in, &out);
        bool failed = alloc_fail_stop();
        assert_true(st == (out.bytes ? BL_OK : BL_ENOMEM));
        bl_jinja_text_finish(&out);
        bl_jinja_destroy(t);
        if (!failed)
            break;
    }
}

/* ---- DeepSeek-V4 ----------------------------------------------------------------------------- */

static void expect_builtin(const char *messages, const char *variables, const char *expected)
{
    struct bl_jinja *t = NULL;
    struct bl_jinja_text out;
    const struct bl_chat_input in = {
        .messages = json(messages), .variables = json(variables), .bos = "^", .eos = "$"};
    assert_int_equal(bl_chat_compile_builtin(&t, "deepseek4"), BL_OK);
    if (bl_chat_render(t, &in, &out))
        fail_msg("%s", bl_error());
    assert_string_equal(out.bytes, expected);
    bl_jinja_text_finish(&out);
    bl_jinja_destroy(t);
}

static void test_builtin(void **state)
{
    (void)state;
    struct bl_jinja *t = NULL;
    assert_int_equal(bl_chat_compile_builtin(&t, "llama"), BL_EUNAVAILABLE);
    expect_builtin(system_user, "{\"thinking\":false}", "^s<｜User｜>u<｜Assistant｜></think>");
    expect_builtin(system_user, NULL, "^s<｜User｜>u<｜Assistant｜><think>");
    expect_builtin("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_"
                   "content\":\"r\",\"content\":\"b\"},"
                   "{\"role\":\"user\",\"content\":\"c\"}]",
                   NULL, "^<｜User｜>a<｜Assistant｜></think>b$<｜User｜>c<｜Assistant｜><think>");
    expect_builtin("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"reasoning_"
                   "content\":\"r\",\"content\":\"b\"}]",
                   NULL, "^<｜User｜>a<｜Assistant｜><think>r</think>b$");
    expect_builtin("[{\"role\":\"user\",\"content\":\"a\",\"task\":\"query\"}]",
                   "{\"enable_thinking\":false}", "^<｜User｜>a<｜query｜>");
    expect_builtin(
        call_text, "{\"thinking\":false}",
        "^<｜User｜>q<｜Assistant｜></think>a\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
        "name=\"f\">\n"
        "<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"y\" "
        "string=\"false\">[\"é\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>$");
}

static cJSON *parse_reference(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/templates/%s", getenv("BALLAST_REFERENCE"), name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, n, f), n);
    text[n] = 0;
    fclose(f);
    cJSON *j = cJSON_Parse(text);
    if (!j)
        j = cJSON_CreateString(text); /* a template */
    free(text);
    return j;
}

static void skip_without_reference(void)
{
    if (getenv("BALLAST_REFERENCE"))
        return;
    print_message("BALLAST_REFERENCE is not set: recorded prompts are not checked\n");
    skip();
}

static void check_prompt(const struct bl_jinja *t, const cJSON *e, bool adapt)
{
    char variables[100];
    struct bl_jinja_text out;
    const char *expected = cJSON_GetObjectItem(e, "expected")->valuestring;
    snprintf(variables, sizeof variables, "{\"thinking\": %s, \"reasoning_effort\": \"%s\"}",
             cJSON_IsTrue(cJSON_GetObjectItem(e, "thinking")) ? "true" : "false",
             cJSON_GetObjectItem(e, "effort")->valuestring);
    const struct bl_chat_input in = {.messages.tree = cJSON_GetObjectItem(e, "messages"),
                                     .tools.tree = cJSON_GetObjectItem(e, "tools"),
                                     .variables = json(variables),
                                     .bos = "<｜begin▁of▁sentence｜>",
                                     .eos = "<｜end▁of▁sentence｜>",
                                     .adapt = adapt};
    if (bl_chat_render(t, &in, &out))
        fail_msg("%s: %s", cJSON_GetObjectItem(e, "name")->valuestring, bl_error());
    if (strcmp(out.bytes, expected) != 0)
        fail_msg("%s, adapt %d:\nwant %s\nhave %s", cJSON_GetObjectItem(e, "name")->valuestring,
                 adapt, expected, out.bytes);
    bl_jinja_text_finish(&out);
}

static void test_encoder(void **state)
{
    (void)state;
    skip_without_reference();
    const cJSON *e;
    int n = 0;
    struct bl_jinja *t = NULL;
    assert_int_equal(bl_chat_compile_builtin(&t, "deepseek4"), BL_OK);
    cJSON *data = parse_reference("deepseek-v4-encoder.json");
    cJSON_ArrayForEach(e, cJSON_GetObjectItem(data, "cases"))
    {
        check_prompt(t, e, false);
        check_prompt(t, e, true);
        n++;
    }
    cJSON_Delete(data);
    bl_jinja_destroy(t);
    assert_true(n >= 86);
}

/* ---- recorded conversations ------------------------------------------------------------------ */

/* Those that transformers renders as no one would want: tool arguments as JSON in JSON, lists in
 * Python's spelling, reasoning left out under a name that the template does not know. */
static bool wants_adapting(const char *name, const char *source)
{
    return strstr(name, "tool-trip-string") || strstr(name, "tool-list-result") ||
           strncmp(name, "parts", 5) == 0 ||
           (strstr(name, "reasoning") && strstr(source, ".thinking") &&
            !strstr(source, "reasoning_content"));
}

static const cJSON *entry_of(const cJSON *data, const char *table, const cJSON *e)
{
    const cJSON *name = cJSON_GetObjectItem(e, table);
    return name ? cJSON_GetObjectItem(cJSON_GetObjectItem(data, table), name->valuestring) : NULL;
}

static cJSON *variables_of(const cJSON *entry, const cJSON *e)
{
    cJSON *all = cJSON_CreateObject();
    const cJSON *v;
    cJSON_ArrayForEach(v, entry) if (strcmp(v->string, "cases") != 0)
        cJSON_AddItemToObject(all, v->string, cJSON_Duplicate(v, true));
    cJSON_ArrayForEach(v, cJSON_GetObjectItem(e, "context"))
    {
        cJSON_DeleteItemFromObject(all, v->string);
        cJSON_AddItemToObject(all, v->string, cJSON_Duplicate(v, true));
    }
    return all;
}

static void check_recorded(const struct bl_jinja *t, const cJSON *data, const cJSON *entry,
                           const cJSON *e)
{
    cJSON *variables = variables_of(entry, e);
    struct bl_jinja_text out;
    const struct bl_chat_input in = {
        .messages.tree = entry_of(data, "messages", e),
        .tools.tree = entry_of(data, "tools", e),
        .variables.tree = variables,
        .no_generation_prompt = !cJSON_IsTrue(cJSON_GetObjectItem(e, "add_generation_prompt")),
        .adapt = true,
        .now = &now};
    const char *name = cJSON_GetObjectItem(e, "name")->valuestring;
    if (bl_chat_render(t, &in, &out))
        fail_msg("%s: %s: %s", entry->string, name, bl_error());
    if (strcmp(out.bytes, cJSON_GetObjectItem(e, "expected")->valuestring) != 0)
        fail_msg("%s: %s: adapting changed what was good", entry->string, name);
    bl_jinja_text_finish(&out);
    cJSON_Delete(variables);
}

static void test_adapting_is_shy(void **state)
{
    (void)state;
    skip_without_reference();
    const cJSON *entry, *e;
    int n = 0;
    cJSON *data = parse_reference("cases.json");
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(data, "templates"))
    {
        cJSON *source = parse_reference(entry->string);
        struct bl_jinja *t = compile(source->valuestring);
        cJSON_ArrayForEach(e, cJSON_GetObjectItem(entry, "cases"))
        {
            const char *name = cJSON_GetObjectItem(e, "name")->valuestring;
            if (!cJSON_GetObjectItem(e, "expected") || cJSON_GetObjectItem(e, "omit") ||
                wants_adapting(name, source->valuestring))
                continue;
            check_recorded(t, data, entry, e);
            n++;
        }
        bl_jinja_destroy(t);
        cJSON_Delete(source);
    }
    cJSON_Delete(data);
    print_message("%d renderings\n", n);
    assert_true(n > 2500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_given),        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_contents),        cmocka_unit_test(test_system),
        cmocka_unit_test(test_variables),       cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_provenance),      cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_builtin),         cmocka_unit_test(test_encoder),
        cmocka_unit_test(test_adapting_is_shy),
    };
    return cmocka_run_group_tests_name("chat", tests, NULL, NULL);
}
