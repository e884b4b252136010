/* SPDX-License-Identifier: MIT */
/* bl_chat_open and bl_chat_prompt: which template is taken, begin and end tokens, the bytes that
 * came from the conversation and what the tokenizer makes of them; every allocation that can fail.
 */
#include "support.h"

#include "alloc_fail.h"
#include "vocab_bytes.h"

static const char small[] =
    "{% for m in messages %}{{ bos_token }}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}";

static void fill(struct vb *b, const char *template, const char *arch)
{
    b->model = "llama";
    vb_word(b, "<unk>", VB_UNKNOWN, 0);
    vb_word(b, "<s>", VB_CONTROL, 0);
    vb_word(b, "</s>", VB_CONTROL, 0);
    vb_byte_tokens(b);
    vb_key_int(b, "tokenizer.ggml.add_space_prefix", GB_BOOL, 0);
    if (template)
        vb_key_str(b, "tokenizer.chat_template", template);
    vb_key_str(b, "general.architecture", arch);
}

struct opened {
    struct bl_gguf *gguf;
    struct bl_vocab *vocab;
};

static struct opened open_file(const char *template, const char *arch)
{
    struct vb b = {0};
    struct opened o = {0};

    fill(&b, template, arch);
    o.gguf = vb_gguf(&b);
    vb_finish(&b);
    assert_int_equal(bl_vocab_open(&o.vocab, o.gguf), BL_OK);
    return o;
}

static void close_file(struct opened *o)
{
    bl_vocab_close(o->vocab);
    bl_gguf_close(o->gguf);
}

static const struct bl_conversation hello = {.messages =
                                                 "[{\"role\": \"user\", \"content\": \"a</s>b\"}]"};

static struct bl_prompt prompt_of(const struct bl_chat *c, const struct bl_conversation *what)
{
    struct bl_prompt p = {0};

    if (bl_chat_prompt(c, what, &p))
        fail_msg("%s", bl_error());
    assert_int_equal(strlen(p.text), p.n_bytes);
    return p;
}

static void expect(const struct bl_chat *c, const struct bl_conversation *what, const char *text)
{
    struct bl_prompt p = prompt_of(c, what);

    assert_string_equal(p.text, text);
    bl_prompt_finish(&p);
    assert_null(p.text);
}

static void test_template_of_file(void **state)
{
    struct opened o = open_file(small, "llama");
    struct bl_chat *c = NULL;
    (void)state;

    assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, NULL, 0), BL_OK);
    close_file(&o); /* nothing of it is needed any more */
    expect(c, &hello, "<s>user:a</s>b</s>>");
    struct bl_conversation more = hello;
    more.no_generation_prompt = true;
    more.variables = "{\"eos_token\": \"!\"}";
    expect(c, &more, "<s>user:a</s>b!");
    bl_chat_close(c);
}

static void test_template_of_caller(void **state)
{
    static const char mine[] = "{{ messages[0].content }}{{ bos_token is defined }}, unread";
    struct opened o = open_file(small, "llama");
    struct bl_chat *c = NULL;
    (void)state;

    assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, mine, sizeof mine - 1 - 8), BL_OK);
    expect(c, &hello, "a</s>bTrue");
    bl_chat_close(c);
    assert_int_equal(bl_chat_open(&c, NULL, NULL, mine, sizeof mine - 1 - 8), BL_OK);
    expect(c, &hello, "a</s>bFalse");
    bl_chat_close(c);
    assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, "", 0), BL_OK); /* empty, not none */
    expect(c, &hello, "");
    bl_chat_close(c);
    close_file(&o);
}

static void test_no_template(void **state)
{
    static const char *const arch[] = {"llama", "an-architecture-whose-name-is-longer-than-any-"
                                                "that-a-template-is-brought-for"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct opened o = open_file(NULL, arch[i]);
        struct bl_chat *c = NULL;
        assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, NULL, 0), BL_EUNAVAILABLE);
        assert_null(c);
        close_file(&o);
    }
    struct opened o = open_file(NULL, "deepseek4");
    struct bl_chat *c = NULL;
    assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, NULL, 0), BL_OK);
    struct bl_prompt p = prompt_of(c, &hello);
    assert_non_null(strstr(p.text, "a</s>b"));
    bl_prompt_finish(&p);
    bl_chat_close(c);
    close_file(&o);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *messages, *tools, *variables, *says;
    } bad[] = {
        {"[{", NULL, NULL, "messages"},
        {"{}", NULL, NULL, "messages"},
        {"[{\"content\": \"\"}]", NULL, NULL, "role"},
        {"[]", "[", NULL, "tools"},
        {"[]", NULL, "[1]", "variables"},
    };
    struct bl_chat *c = NULL;
    (void)state;

    assert_int_equal(bl_chat_open(&c, NULL, NULL, "{% for %}", 9), BL_EFORMAT);
    assert_null(c);
    assert_int_equal(bl_chat_open(&c, NULL, NULL, small, sizeof small - 1), BL_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bl_prompt p = {0};
        assert_int_equal(bl_chat_prompt(c,
                                        &(struct bl_conversation){.messages = bad[i].messages,
                                                                  .tools = bad[i].tools,
                                                                  .variables = bad[i].variables},
                                        &p),
                         BL_EINVAL);
        if (!strstr(bl_error(), bad[i].says))
            fail_msg("%zu: %s", i, bl_error());
        assert_null(p.text);
    }
    bl_chat_close(c);
    bl_chat_close(NULL);
}

static size_t count(const int32_t *ids, size_t n, int32_t id)
{
    size_t found = 0;

    for (size_t i = 0; i < n; i++)
        found += ids[i] == id;
    return found;
}

/* The template's control tokens count, the same spelling in a message does not. */
static void test_user_text_stays_text(void **state)
{
    struct opened o = open_file(small, "llama");
    struct bl_chat *c = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    (void)state;

    assert_int_equal(bl_chat_open(&c, o.gguf, o.vocab, NULL, 0), BL_OK);
    struct bl_prompt p = prompt_of(c, &hello);
    const char *at = strstr(p.text, "a</s>b");
    bool covered = false;
    for (size_t i = 0; i < p.n_user; i++)
        covered |=
            p.user[i].begin <= (size_t)(at - p.text) && p.user[i].end >= (size_t)(at - p.text) + 6;
    assert_true(covered);
    assert_int_equal(bl_tokenize_chat(o.vocab, p.text, p.n_bytes, p.user, p.n_user,
                                      BL_TOK_PARSE_SPECIAL, &ids, &n),
                     BL_OK);
    assert_int_equal(count(ids, n, 1), 1);
    assert_int_equal(count(ids, n, 2), 1);
    assert_int_equal(count(ids, n, 3 + '<'), 1);
    free(ids);
    bl_prompt_finish(&p);
    bl_chat_close(c);
    close_file(&o);
}

static void test_out_of_memory(void **state)
{
    struct opened o = open_file(small, "llama");
    (void)state;

    for (uint64_t n = 1;; n++) {
        struct bl_chat *c = NULL;
        struct bl_prompt p = {0};
        alloc_fail_at(n);
        enum bl_status st = bl_chat_open(&c, o.gguf, o.vocab, NULL, 0);
        if (!st)
            st = bl_chat_prompt(c, &hello, &p);
        bool failed = alloc_fail_stop();
        assert_int_equal(st, failed ? BL_ENOMEM : BL_OK);
        assert_true(failed ? !p.text : !strcmp(p.text, "<s>user:a</s>b</s>>"));
        bl_prompt_finish(&p);
        bl_chat_close(c);
        if (!failed)
            break;
    }
    close_file(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_template_of_file),     cmocka_unit_test(test_template_of_caller),
        cmocka_unit_test(test_no_template),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_user_text_stays_text), cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
