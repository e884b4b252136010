/* SPDX-License-Identifier: MIT */
/* Answers parted into reasoning and text: every form, every way to cut the stream in two and byte
 * by byte, where prompts leave off, what a history gives back to the template. */
#include "support.h"

#include "alloc_fail.h"
#include "vocab_bytes.h"

struct parted {
    char text[600]; /* reasoning in braces */
    size_t n;
    bool inside;
    int left; /* pieces until the callback says stop; -1: never */
};

static void put(struct parted *p, const char *bytes, size_t n)
{
    assert_true(p->n + n < sizeof p->text);
    memcpy(p->text + p->n, bytes, n);
    p->n += n;
    p->text[p->n] = 0;
}

static bool take(void *arg, enum bl_answer_part part, const char *bytes, size_t n)
{
    struct parted *p = arg;
    bool reasoning = part == BL_ANSWER_REASONING;

    assert_true(n > 0);
    if (reasoning != p->inside)
        put(p, reasoning ? "{" : "}", 1);
    p->inside = reasoning;
    put(p, bytes, n);
    return p->left < 0 || p->left-- > 0;
}

static struct bl_chat *chat_of(const char *template)
{
    struct bl_chat *c = NULL;
    assert_int_equal(bl_chat_open(&c, NULL, NULL, template, strlen(template)), BL_OK);
    return c;
}

/* `cut`: the stream comes in two pieces; 0: byte by byte. */
static void part(struct parted *p, const struct bl_chat *c, const struct bl_prompt *prompt,
                 const char *stream, size_t cut)
{
    struct bl_answer *a = NULL;
    size_t n = strlen(stream);

    *p = (struct parted){.left = -1};
    assert_int_equal(bl_answer_create(&a, c, prompt), BL_OK);
    for (size_t at = 0; at < n;) {
        size_t len = !cut ? 1 : at ? n - at : cut;
        assert_true(bl_answer_push(a, stream + at, len, take, p));
        at += len;
    }
    assert_true(bl_answer_end(a, take, p));
    bl_answer_destroy(a);
}

static void expect(const char *template, const char *prompt, const char *stream,
                   const char *expected)
{
    char bytes[300];
    struct bl_prompt given = {.text = bytes};
    struct parted p;

    given.n_bytes = (size_t)snprintf(bytes, sizeof bytes, "%s", prompt ? prompt : "");
    struct bl_chat *c = chat_of(template);
    for (size_t cut = 0; cut <= strlen(stream); cut++) {
        part(&p, c, prompt ? &given : NULL, stream, cut);
        assert_string_equal(p.text, expected);
    }
    bl_chat_close(c);
}

static const char thinks[] = "{# <think> </think> #}";
static const char harmony[] = "{# <|channel|> #}";
static const char cohere[] = "{# <|START_THINKING|><|END_THINKING|> #}";

static void test_think(void **state)
{
    (void)state;
    expect(thinks, NULL, "<think>\nwhy\n\nso\n</think>\n\nBecause.\n", "{why\n\nso}Because.\n");
    expect(thinks, NULL, "\n<think>a</think>b", "{a}b");
    expect(thinks, NULL, " plain < text </thin", " plain < text </thin");
    expect(thinks, NULL, "say <think>x</think>", "say <think>x</think>");
    expect(thinks, NULL, "<think></think>b", "b");
    expect(thinks, NULL, "<think>a < b </thinking", "{a < b </thinking");
    expect(thinks, NULL, "<think>a</think>b<think>c</think>", "{a}b<think>c</think>");
    expect(thinks, NULL, "<think>a</think>\n<response>\nb</response>\n", "{a}b\n");
    expect(thinks, NULL, "<response>b</response>", "<response>b</response>");
    expect(thinks, NULL, "</think>b", "b");
    expect(thinks, NULL, " \n ", " \n ");
    expect(thinks, NULL, "", "");
    expect("{{ messages }}", NULL, "<think>a</think>b", "<think>a</think>b");
}

static void test_prompt_opens(void **state)
{
    (void)state;
    expect(thinks, "<|im_start|>assistant\n<think>\n", "why</think>\n\nso", "{why}so");
    expect(thinks, "<think>", "\nwhy", "{why");
    expect("{# <think> #}", "<think>", "\nwhy\n</think>so", "{why}so");
    expect(thinks, "<think>\n\n</think>\n\n", "<think>a</think>", "<think>a</think>");
    expect(thinks, "</think>", "\na", "a");
    expect(thinks, "assistant\n", "<think>a</think>b", "{a}b");
    expect(harmony, "<|start|>user<|message|>q<|end|><|start|>assistant",
           "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>"
           "so",
           "{why}so");
    expect(harmony, "<|start|>assistant", "no header at all", "no header at all");
    expect(harmony, "<|start|>assistant", "", "");
    expect(harmony, "<|start|>assistant<|channel|>final<|message|>", "so", "so");
    expect(harmony, "<|start|>assistant<|channel|>analysis<|message|>", "why", "{why");
    expect(cohere, "<|START_THINKING|>", "why<|END_THINKING|><|START_RESPONSE|>so<|END_RESPONSE|>",
           "{why}so");
    expect(cohere, "<|START_THINKING|><|END_THINKING|>", "<|START_RESPONSE|>so<|END_RESPONSE|>",
           "so");
}

static void test_harmony(void **state)
{
    (void)state;
    expect(harmony, NULL,
           "<|channel|>analysis<|message|>why<|start|>assistant<|channel|>final"
           "<|constrain|>json<|message|>{}",
           "{why}{}");
    expect(harmony, NULL, "<|channel|>commentary<|message|>I look.<|end|>", "I look.");
    expect(harmony, NULL,
           "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>call", "{call");
    expect(harmony, NULL, "<|channel|>commentary to=functions.f json<|message|>call", "{call");
    expect(harmony, NULL,
           "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b"
           "<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>assistant"
           "<|channel|>final<|message|>d",
           "{a\n\nb}c\n\nd");
    expect(harmony, NULL, "<|message|>x", "<|message|>x");
    expect(harmony, NULL, "a<|channel|>final", "a");
}

static void test_other_forms(void **state)
{
    (void)state;
    expect("{# [/THINK] #}", NULL, "[THINK]why[/THINK]so", "{why}so");
    expect("{# </seed:think> #}", NULL, "<seed:think>why</seed:think>so", "{why}so");
    expect("{# <channel|> #}", NULL, "<|channel>thought\nwhy<channel|>so", "{why}so");
    expect("{# <channel|> #}", "<|channel>thought\n<channel|>", "so", "so");
}

/* Longer than any buffer in between. */
static void test_long(void **state)
{
    char stream[560], expected[560];
    (void)state;

    int n = snprintf(stream, sizeof stream, "<think>a%*s", 200, "");
    memset(stream + n, 'x', 250);
    snprintf(stream + n + 250, sizeof stream - (size_t)n - 250, "</think>so");
    n = snprintf(expected, sizeof expected, "{a%*s", 200, "");
    memset(expected + n, 'x', 250);
    snprintf(expected + n + 250, sizeof expected - (size_t)n - 250, "}so");
    expect(thinks, NULL, stream, expected);

    memset(stream, 'h', 300);
    stream[300] = 0;
    expect(harmony, "<|start|>assistant", stream, stream);
}

/* What a user wrote last opens nothing. */
static void test_user_bytes(void **state)
{
    struct bl_span user = {0, 9};
    struct bl_prompt prompt = {
        .text = (char[]){"q <think>"}, .n_bytes = 9, .user = &user, .n_user = 1};
    struct bl_chat *c = chat_of(thinks);
    struct parted p;
    (void)state;

    part(&p, c, &prompt, "so", 0);
    assert_string_equal(p.text, "so");
    prompt.n_user = 0;
    part(&p, c, &prompt, "so", 0);
    assert_string_equal(p.text, "{so");
    bl_chat_close(c);
}

static void test_stop(void **state)
{
    struct bl_chat *c = chat_of(thinks);
    struct bl_answer *a = NULL;
    struct parted p = {.left = 0};
    (void)state;

    assert_int_equal(bl_answer_create(&a, c, NULL), BL_OK);
    assert_false(bl_answer_is_reasoning(a));
    assert_false(bl_answer_push(a, "<think>why</think>so", 20, take, &p));
    assert_string_equal(p.text, "{why");
    p.left = -1;
    assert_true(bl_answer_push(a, "!", 1, take, &p));
    assert_true(bl_answer_end(a, take, &p));
    bl_answer_destroy(a);
    bl_answer_destroy(NULL);
    bl_chat_close(c);
}

/* A template that names no marks: the vocabulary's tokens tell, and are printed. */
static void test_vocabulary(void **state)
{
    static const char template[] = "{{ messages[0].content }}";
    struct vb b = {.model = "llama"};
    struct bl_vocab *v = NULL;
    struct bl_chat *c = NULL;
    struct bl_text *t = NULL;
    struct parted p;
    const char *bytes;
    size_t n;
    (void)state;

    vb_word(&b, "<unk>", VB_UNKNOWN, 0);
    vb_word(&b, "<s>", VB_CONTROL, 0);
    vb_word(&b, "</s>", VB_CONTROL, 0);
    vb_word(&b, "<|START_THINKING|>", VB_CONTROL, 0);
    vb_word(&b, "<|END_THINKING|>", VB_CONTROL, 0);
    vb_word(&b, "<|channel>", VB_CONTROL, 0);
    vb_byte_tokens(&b);
    vb_key_str(&b, "general.architecture", "llama");
    struct bl_gguf *g = vb_gguf(&b);
    vb_finish(&b);
    assert_int_equal(bl_vocab_open(&v, g), BL_OK);
    assert_int_equal(bl_chat_open(&c, g, v, template, sizeof template - 1), BL_OK);
    part(&p, c, NULL, "<|START_THINKING|>why<|END_THINKING|>so", 0);
    assert_string_equal(p.text, "{why}so");

    static const char *const shown[] = {
        "", "", "", "<|START_THINKING|>", "<|END_THINKING|>", "<|channel>"};
    assert_int_equal(bl_text_create(&t, v, false), BL_OK);
    for (int32_t id = 0; id < 6; id++) {
        assert_int_equal(bl_text_push(t, id, &bytes, &n), BL_OK);
        assert_int_equal(n, strlen(shown[id]));
        assert_memory_equal(bytes, shown[id], n);
    }
    bl_text_destroy(t);
    bl_chat_close(c);
    bl_vocab_close(v);
    bl_gguf_close(g);
}

/* What the library brings for an architecture is known as well as what comes with a file. */
static void test_builtin(void **state)
{
    const struct bl_conversation ask = {.messages = "[{\"role\": \"user\", \"content\": \"q\"}]"};
    struct vb b = {.model = "llama"};
    struct bl_chat *c = NULL;
    struct bl_prompt p = {0};
    struct parted parts;
    (void)state;

    vb_word(&b, "<unk>", VB_UNKNOWN, 0);
    vb_key_str(&b, "general.architecture", "deepseek4");
    struct bl_gguf *g = vb_gguf(&b);
    vb_finish(&b);
    assert_int_equal(bl_chat_open(&c, g, NULL, NULL, 0), BL_OK);
    assert_int_equal(bl_chat_prompt(c, &ask, &p), BL_OK);
    part(&parts, c, &p, "why</think>so", 0);
    assert_string_equal(parts.text, "{why}so");
    bl_prompt_finish(&p);
    bl_chat_close(c);
    bl_gguf_close(g);
}

static void test_history(void **state)
{
#define LOOP(body) "{% for m in messages %}" body ";{% endfor %}"
    static const struct {
        const char *template, *expected;
    } row[] = {
        {LOOP("{{ m.reasoning_content }}|{{ m.content }}") "{# </think> #}", "|q;why|so;"},
        {LOOP("{{ m.thinking }}|{{ m.content }}") "{# <|channel|> #}", "|q;why|so;"},
        {LOOP("{{ m['thinking'] }}|{{ m.content }}"), "|q;why|so;"},
        {LOOP("{{ m.content.split('</think>') | last }}|{{ m.content }}"),
         "q|q;\n\nso|<think>\nwhy\n</think>\n\nso;"},
        {LOOP("{{ m.content.split('[/THINK]') | first }}"), "q;[THINK]\nwhy\n;"},
        {LOOP("{{ m.content }}"), "q;so;"},
        {LOOP("{{ m.content }}") "{# <|channel|> #}", "q;so;"},
        {LOOP("{{ m.content }}") "{% set thinking = thinking or false %}", "q;so;"},
    };
    const struct bl_conversation talk = {
        .messages = "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                    "\"content\": \"so\", \"reasoning_content\": \"why\"}]"};
    (void)state;

    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct bl_chat *c = chat_of(row[i].template);
        struct bl_prompt p = {0};
        assert_int_equal(bl_chat_prompt(c, &talk, &p), BL_OK);
        assert_string_equal(p.text, row[i].expected);
        bl_prompt_finish(&p);
        bl_chat_close(c);
    }
}

/* ---- templates in use ------------------------------------------------------------------------ */

static char *read_template(const char *folder, const char *name)
{
    char path[600];
    long n;

    snprintf(path, sizeof path, "%s/templates/%s.jinja", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is missing", path);
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    rewind(f);
    char *text = calloc((size_t)n + 1, 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, f), n);
    fclose(f);
    return text;
}

/* A second question: what the template makes of the reasoning before it, and how the answer to it
 * is parted. */
static void check_template(const struct bl_chat *c, const char *name, const char *variables,
                           const char *stream, bool keeps)
{
    const struct bl_conversation talk = {
        .messages = "[{\"role\": \"user\", \"content\": \"q1\"}, {\"role\": \"assistant\", "
                    "\"content\": \"a1\", \"reasoning_content\": \"r1\"}, {\"role\": \"user\", "
                    "\"content\": \"q2\"}]",
        .variables = variables};
    struct bl_prompt p = {0};
    struct parted parts;

    if (bl_chat_prompt(c, &talk, &p))
        fail_msg("%s: %s", name, bl_error());
    if (!strstr(p.text, "a1") || !strstr(p.text, "q2") || !!strstr(p.text, "r1") != keeps)
        fail_msg("%s: %s", name, p.text);
    part(&parts, c, &p, stream, 0);
    if (strcmp(parts.text, "{why}so") != 0)
        fail_msg("%s: %s", name, parts.text);
    bl_prompt_finish(&p);
}

static void test_templates(void **state)
{
    static const char opened[] = "why\n</think>\n\nso", whole[] = "<think>\nwhy</think>\nso";
    static const struct {
        const char *name, *variables, *stream;
        bool keeps;
    } row[] = {
        {"openai-gpt-oss-120b", NULL,
         "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so",
         false},
        {"MiniMax-M2", NULL, opened, false},
        {"GLM-4.6", NULL, whole, false},
        {"GLM-4.7-Flash", NULL, opened, false},
        {"Qwen-Qwen3-0.6B", NULL, whole, false},
        {"Qwen3.5-4B", NULL, opened, false},
        {"Qwen-QwQ-32B", "{\"enable_thinking\": true}", opened, false},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", NULL, opened, false},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "{\"enable_thinking\": true}", opened, false},
        {"deepseek-ai-DeepSeek-V3.1", "{\"thinking\": true}", opened, false},
        {"deepseek-ai-DeepSeek-V4", "{\"thinking\": true}", opened, false},
        {"HuggingFaceTB-SmolLM3-3B", NULL, whole, true},
        {"Kimi-K2-Thinking", NULL, whole, false},
        {"ByteDance-Seed-OSS", NULL, "<seed:think>why</seed:think>so", true},
        {"mistralai-Ministral-3-14B-Reasoning-2512", NULL, "[THINK]why[/THINK]so", false},
        {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "{\"enable_thinking\": true}",
         "<|START_THINKING|>why<|END_THINKING|><|START_RESPONSE|>so<|END_RESPONSE|>", false},
        {"google-gemma-4-31B-it", "{\"enable_thinking\": true}",
         "<|channel>thought\nwhy<channel|>so", false},
    };
    const char *folder = getenv("BALLAST_REFERENCE");
    (void)state;

    if (!folder) {
        print_message("BALLAST_REFERENCE is not set: templates in use are not tried\n");
        skip();
    }
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char *text = read_template(folder, row[i].name);
        struct bl_chat *c = chat_of(text);
        check_template(c, row[i].name, row[i].variables, row[i].stream, row[i].keeps);
        bl_chat_close(c);
        free(text);
    }
}

static void test_out_of_memory(void **state)
{
    struct bl_chat *c = chat_of(thinks);
    struct bl_answer *a = NULL;
    (void)state;

    alloc_fail_at(1);
    assert_int_equal(bl_answer_create(&a, c, NULL), BL_ENOMEM);
    alloc_fail_at(0);
    assert_null(a);
    bl_chat_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_think),     cmocka_unit_test(test_prompt_opens),
        cmocka_unit_test(test_harmony),   cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_long),      cmocka_unit_test(test_user_bytes),
        cmocka_unit_test(test_stop),      cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_history),   cmocka_unit_test(test_builtin),
        cmocka_unit_test(test_templates), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
