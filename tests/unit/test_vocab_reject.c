/* SPDX-License-Identifier: MIT */
/* Vocabularies that are wrong, absent or of an unknown kind, and every allocation that may fail. */
#include "support.h"

#include "alloc_fail.h"
#include "gguf.h"
#include "vocab_bytes.h"

/* ---- one fault at a time ---- */

static void start(struct vb *b, const char *model)
{
    *b = (struct vb){.model = model, .pre = strcmp(model, "gpt2") ? NULL : "gpt-2"};
    vb_word(b, "a", VB_NORMAL, -1);
    vb_word(b, "b", VB_NORMAL, -2);
    vb_word(b, "ab", VB_NORMAL, -3);
    vb_merge(b, "a b", 3);
}

/* What opening says must name the key, and the element where there is one, on one line. */
static void refused(struct vb *b, enum bl_status want, const char *key, const char *what)
{
    struct bl_vocab *v = NULL;
    struct bl_gguf *g = vb_gguf(b);
    enum bl_status st = bl_vocab_open(&v, g);
    if (st != want)
        fail_msg("%s: status %d, %d is right", key, st, want);
    assert_null(v);
    if (!strstr(bl_error(), "ballast-vocab-") || !strstr(bl_error(), key) ||
        !strstr(bl_error(), what) || strchr(bl_error(), '\n'))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", bl_error(), key, what);
    bl_gguf_close(g);
    vb_finish(b);
}

static void test_lengths(void **state)
{
    struct vb b;
    (void)state;
    start(&b, "llama");
    b.n_scores--;
    b.scores.n -= 4;
    refused(&b, BL_EFORMAT, "tokenizer.ggml.scores", "2 elements for 3 tokens");
    start(&b, "llama");
    b.n_scores = 0;
    refused(&b, BL_EFORMAT, "tokenizer.ggml.scores", "missing");
    start(&b, "gpt2");
    b.n_types--;
    b.types.n -= 4;
    refused(&b, BL_EFORMAT, "tokenizer.ggml.token_type", "2 elements for 3 tokens");
    start(&b, "llama"); /* longer than the tokens is fine */
    gb_int(&b.types, 4, 1);
    b.n_types++;
    assert_int_equal(vb_try(&b), BL_OK);
    vb_finish(&b);
}

static void array_of(struct vb *b, const char *key, uint32_t item, unsigned item_bytes)
{
    gb_array(&b->other, key, item, 3);
    gb_zeros(&b->other, 3 * item_bytes);
    b->n_other++;
}

static void test_types_of_keys(void **state)
{
    struct vb b;
    (void)state;
    start(&b, "llama");
    b.n_scores = 0;
    array_of(&b, "tokenizer.ggml.scores", GB_F64, 8);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.scores", "f32");
    start(&b, "llama");
    b.n_scores = 0;
    vb_key_int(&b, "tokenizer.ggml.scores", GB_U32, 0);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.scores", "f32");
    start(&b, "gpt2");
    b.n_types = 0;
    array_of(&b, "tokenizer.ggml.token_type", GB_I64, 8);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.token_type", "i32");
    start(&b, "gpt2");
    b.n_merges = 0;
    array_of(&b, "tokenizer.ggml.merges", GB_U32, 4);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.merges", "strings");
    start(&b, "gpt2");
    b.n_tokens = 0;
    array_of(&b, "tokenizer.ggml.tokens", GB_U8, 1);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.tokens", "strings");
    start(&b, "gpt2");
    vb_key_str(&b, "tokenizer.ggml.bos_token_id", "1");
    refused(&b, BL_EFORMAT, "tokenizer.ggml.bos_token_id", "integer");
    start(&b, "gpt2");
    vb_key_str(&b, "tokenizer.ggml.eot_token_id", "1");
    refused(&b, BL_EFORMAT, "tokenizer.ggml.eot_token_id", "integer");
    start(&b, "gpt2");
    vb_key_int(&b, "tokenizer.ggml.add_bos_token", GB_U32, 2);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.add_bos_token", "bool");
    start(&b, "gpt2");
    b.pre = NULL;
    vb_key_int(&b, "tokenizer.ggml.pre", GB_U32, 2);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.pre", "string");
    start(&b, "gpt2");
    b.model = NULL;
    vb_key_int(&b, "tokenizer.ggml.model", GB_U32, 2);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.model", "string");
    start(&b, "llama");
    vb_key_int(&b, "general.name", GB_U32, 2);
    refused(&b, BL_EFORMAT, "general.name", "string");
}

static void test_elements(void **state)
{
    static const char *const bytes[] = {"<0x4>", "<0x441>", "<0xG1>", "<0x-1>", "<0X41>",
                                        "0x41",  "<0x41",   "A",      ""};
    static const char *const merges[] = {"ab", "", " ", "a", " ab", "a ", "ab "};
    struct vb b;
    float nan_score;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bytes); i++) {
        start(&b, i % 2 ? "llama" : "gpt2");
        vb_word(&b, bytes[i], VB_BYTE, 0);
        refused(&b, BL_EFORMAT, "tokenizer.ggml.tokens[3]", "<0xHH>");
    }
    for (size_t i = 0; i < BL_COUNT(merges); i++) {
        start(&b, i % 2 ? "gemma4" : "gpt2");
        vb_merge(&b, merges[i], strlen(merges[i]));
        refused(&b, BL_EFORMAT, "tokenizer.ggml.merges[1]", "space");
    }
    for (int type = -1; type < 9; type += type < 0 ? 8 : 1) {
        start(&b, "gpt2");
        vb_word(&b, "c", type, 0);
        refused(&b, BL_EFORMAT, "tokenizer.ggml.token_type[3]", type < 0 ? "-1" : "0 to 6");
    }
    memcpy(&nan_score, &(uint32_t){0x7FC00000}, 4);
    start(&b, "llama");
    vb_word(&b, "c", VB_NORMAL, nan_score);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.scores[3]", "number");
}

/* Odd, but every one of these exists in the wild. */
static void test_odd_but_valid(void **state)
{
    struct vb b;
    (void)state;
    start(&b, "gpt2");
    vb_word(&b, "a", VB_NORMAL, 0); /* a second time */
    vb_word(&b, "", VB_NORMAL, 0);  /* nothing */
    vb_word(&b, "", VB_CONTROL, 0);
    vb_word(&b, "\xFF\xFE", VB_NORMAL, 0); /* not UTF-8 */
    vb_token(&b, "\0x", 2, VB_USER, 0);
    vb_word(&b, "<0xfe>", VB_BYTE, 0); /* lower case */
    vb_word(&b, "u", 0, 0);            /* undefined */
    vb_merge(&b, "a b", 3);            /* a second time */
    vb_merge(&b, "x y", 3);            /* of what is no token */
    vb_merge(&b, "b a", 3);            /* into what is no token */
    vb_merge(&b, "a b c", 5);          /* the first space separates */
    assert_int_equal(vb_try(&b), BL_OK);
    b.pre = NULL; /* a file of 2023 */
    assert_int_equal(vb_try(&b), BL_OK);
    vb_finish(&b);
    start(&b, "llama");
    vb_word(&b, "c", VB_NORMAL, -1.0f / 0.0f);
    vb_word(&b, "d", VB_NORMAL, -0.0f);
    assert_int_equal(vb_try(&b), BL_OK);
    vb_finish(&b);
}

static void test_no_vocabulary(void **state)
{
    struct vb b;
    (void)state;
    start(&b, "gpt2");
    b.model = NULL;
    refused(&b, BL_EUNAVAILABLE, "tokenizer.ggml.model", "no vocabulary");
    start(&b, "none");
    refused(&b, BL_EUNAVAILABLE, "tokenizer.ggml.model", "no vocabulary");
    start(&b, "gpt2");
    b.n_tokens = 0;
    refused(&b, BL_EUNAVAILABLE, "tokenizer.ggml.tokens", "no vocabulary");
    start(&b, "llama");
    b.n_tokens = 0;
    array_of(&b, "tokenizer.ggml.tokens", GB_STRING, 8);
    gb_set(&b.other, b.other.n - 32, 8, 0); /* the count: an empty array */
    b.other.n -= 24;
    refused(&b, BL_EUNAVAILABLE, "tokenizer.ggml.tokens", "no vocabulary");
}

static void test_unsupported(void **state)
{
    static const char *const models[] = {"bert", "t5", "rwkv",  "plamo2",
                                         "gpt3", "",   "LLAMA", "a\nb"};
    struct vb b;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(models); i++) {
        start(&b, models[i]);
        refused(&b, BL_EUNSUPPORTED, i == 7 ? "a?b" : models[i], "llama, gpt2 and gemma4");
    }
    start(&b, "gpt2");
    b.pre = "viking";
    refused(&b, BL_EUNSUPPORTED, "tokenizer.ggml.pre 'viking'", "llama-bpe, qwen2");
    start(&b, "gpt2");
    b.pre = "a pre-tokenizer with a name that goes on and on and on and on and on and on and on "
            "and on and on and on";
    refused(&b, BL_EUNSUPPORTED, "tokenizer.ggml.pre 'a pre-tokenizer", "and their aliases");
    start(&b, "gpt2");
    b.pre = "gemma4";
    refused(&b, BL_EUNSUPPORTED, "tokenizer.ggml.pre 'gemma4'", "tokenizer.ggml.model 'gemma4'");
    start(&b, "llama");
    b.pre = "viking"; /* means nothing here */
    assert_int_equal(vb_try(&b), BL_OK);
    vb_finish(&b);
}

/* Nothing is planned for what cannot be opened. */
static void test_plan_of_nothing(void **state)
{
    struct vb b;
    (void)state;
    start(&b, "bert");
    struct bl_gguf *g = vb_gguf(&b);
    vb_finish(&b);
    assert_int_equal(bl_vocab_plan_bytes(g), 0);
    bl_gguf_close(g);
    bl_vocab_close(NULL);
}

/* ---- made to collide ---- */

/* The tables' hash, as core/vocab.c has it: a file may be written by someone who read it too. */
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)

static uint64_t mix(uint64_t x)
{
    x *= FACTOR;
    return x ^ x >> 32;
}

static uint64_t unmix(uint64_t x)
{
    uint64_t inverse =
        FACTOR; /* Newton: each round doubles the bits that are right, 3 to begin with */
    for (int i = 0; i < 5; i++)
        inverse *= 2 - FACTOR * inverse;
    return (x ^ x >> 32) * inverse;
}

/* Texts that all want one slot: refused, where looking each up among all others would take hours.
 */
static void test_colliding_texts(void **state)
{
    struct vb b = {.model = "llama"};
    (void)state;
    for (uint64_t i = 0; b.n_tokens < 600; i++) {
        uint64_t word = unmix(unmix(i << 32 | 77)) ^ mix(9); /* of 8 bytes, with hash 77 */
        if (!memchr(&word, ' ', 8))
            vb_token(&b, &word, 8, VB_NORMAL, 0);
    }
    refused(&b, BL_EFORMAT, "tokenizer.ggml.tokens[", "share a hash");
}

static void test_colliding_pairs(void **state)
{
    struct vb b = {.model = "gpt2", .pre = "gpt-2"};
    char line[32];
    (void)state;
    for (unsigned i = 0; i < 1100; i++)
        vb_token(&b, line, (size_t)snprintf(line, sizeof line, "t%u", i), VB_NORMAL, 0);
    for (uint64_t i = 0; i < 1100 && b.n_merges < 700; i++)
        for (uint64_t k = 0; k < 1100 && b.n_merges < 700; k++)
            if ((mix(mix(i << 32 | k)) & 2047) < 2) /* 700 pairs get 2048 slots */
                vb_merge(&b, line, (size_t)snprintf(line, sizeof line, "t%d t%d", (int)i, (int)k));
    assert_int_equal(b.n_merges, 700);
    refused(&b, BL_EFORMAT, "tokenizer.ggml.merges[", "share a hash");
}

/* ---- failing allocations ---- */

static void build_each_kind(struct vb *b, int kind)
{
    start(b, kind == 0 ? "llama" : kind == 1 ? "gpt2" : "gemma4");
    b->pre = "deepseek-llm"; /* several stages */
    vb_word(b, "<s>", VB_CONTROL, 0);
    vb_word(b, "<u>", VB_USER, 0);
    vb_key_int(b, "tokenizer.ggml.bos_token_id", GB_U32, 3);
    vb_key_int(b, "tokenizer.ggml.add_bos_token", GB_BOOL, 1);
}

static void test_open_out_of_memory(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct vb b;
        build_each_kind(&b, kind);
        struct bl_gguf *g = vb_gguf(&b);
        vb_finish(&b);
        for (uint64_t n = 1;; n++) {
            struct bl_vocab *v = NULL;
            alloc_fail_at(n);
            enum bl_status st = bl_vocab_open(&v, g);
            bool failed = alloc_fail_stop();
            if (st != BL_OK && st != BL_ENOMEM)
                fail_msg("allocation %d: %s", (int)n, bl_error());
            assert_int_equal(st == BL_OK, v != NULL);
            bl_vocab_close(v);
            if (!failed)
                break;
            if (kind == 0)
                assert_int_equal(st, BL_ENOMEM); /* PCRE2 may live without its JIT */
            assert_true(n < 1000);
        }
        bl_gguf_close(g);
    }
}

static void test_tokenize_out_of_memory(void **state)
{
    char text[3000];
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "ab<s><u>b \n"[i % 11];
    for (int kind = 0; kind < 3; kind++) {
        struct vb b;
        build_each_kind(&b, kind);
        struct bl_vocab *v = vb_open(&b);
        vb_finish(&b);
        for (uint64_t n = 1;; n++) {
            int32_t *id = NULL;
            size_t n_ids;
            alloc_fail_at(n);
            enum bl_status st = bl_tokenize(v, text, sizeof text,
                                            BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL, &id, &n_ids);
            bool failed = alloc_fail_stop();
            free(id);
            if (!failed)
                break;
            assert_int_equal(st, BL_ENOMEM);
            assert_null(id);
            assert_true(n < 1000);
        }
        bl_vocab_close(v);
    }
}

static void test_text_out_of_memory(void **state)
{
    struct vb b;
    (void)state;
    build_each_kind(&b, 1);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    for (uint64_t n = 1; n <= 3; n++) {
        struct bl_text *t = NULL;
        alloc_fail_at(n);
        enum bl_status st = bl_text_create(&t, v, false);
        assert_int_equal(st, alloc_fail_stop() ? BL_ENOMEM : BL_OK);
        assert_int_equal(st == BL_OK, t != NULL);
        bl_text_destroy(t);
    }
    bl_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_types_of_keys),
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_odd_but_valid),
        cmocka_unit_test(test_no_vocabulary),
        cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_plan_of_nothing),
        cmocka_unit_test(test_colliding_texts),
        cmocka_unit_test(test_colliding_pairs),
        cmocka_unit_test(test_open_out_of_memory),
        cmocka_unit_test(test_tokenize_out_of_memory),
        cmocka_unit_test(test_text_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
