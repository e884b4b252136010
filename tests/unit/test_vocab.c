/* SPDX-License-Identifier: MIT */
/* Tokenising with generated vocabularies: the encoders against the slow way of doing the same,
 * special tokens, what goes around a text, where generation ends, and what it costs. */
#include "support.h"

#include "gguf.h"
#include "vocab_bytes.h"

#include <time.h>

static uint32_t seed = 4711;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

#define SPACE "\xE2\x96\x81" /* U+2581 */

/* ---- helpers ---- */

static void check_ids(const struct bl_vocab *v, const char *s, size_t n_bytes, unsigned flags,
                      const int32_t *want, size_t n_want)
{
    int32_t *id = NULL;
    size_t n = 0;
    if (bl_tokenize(v, s, n_bytes, flags, &id, &n))
        fail_msg("%s", bl_error());
    bool same = n == n_want && (n == 0 || memcmp(id, want, n * sizeof *id) == 0);
    for (size_t i = 0; !same && i < n; i++)
        print_error("[%zu] %d, %d is right\n", i, id[i], i < n_want ? want[i] : -1);
    free(id);
    if (!same)
        fail_msg("\"%.*s\": %zu ids, %zu are right", (int)n_bytes, s, n, n_want);
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4
#define CHECK(v, s, flags, ...) check_ids(v, s, sizeof s - 1, flags, IDS(__VA_ARGS__))
#define CHECK_NONE(v, s, flags) check_ids(v, s, sizeof s - 1, flags, NULL, 0)

static void vb_llama(struct vb *b) /* ids 0 to 258 */
{
    b->model = "llama";
    vb_word(b, "<unk>", VB_UNKNOWN, 0);
    vb_word(b, "<s>", VB_CONTROL, 0);
    vb_word(b, "</s>", VB_CONTROL, 0);
    vb_byte_tokens(b);
}

/* ---- the slow way: a list of parts, the best pair found by looking at all ---- */

struct part {
    size_t start, n;
};

/* Smaller is better; -1 = no merge. */
typedef int64_t rank_fn(const struct bl_vocab *, const char *s, size_t n_left, size_t n_right);

static size_t merge_slowly(const struct bl_vocab *v, const char *s, struct part *p, size_t n,
                           rank_fn *rank)
{
    for (;;) {
        size_t best = n;
        int64_t best_rank = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int64_t r = rank(v, s + p[i].start, p[i].n, p[i + 1].n);
            if (r >= 0 && (best == n || r < best_rank)) {
                best = i;
                best_rank = r;
            }
        }
        if (best == n)
            return n;
        p[best].n += p[best + 1].n;
        memmove(&p[best + 1], &p[best + 2], (n - best - 2) * sizeof *p);
        n--;
    }
}

static int32_t slow_find(const struct bl_vocab *v, const char *s, size_t n)
{
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        uint32_t len;
        const char *text = bl_vocab_piece(v, (int32_t)i, &len);
        unsigned type = bl_vocab_type(v, (int32_t)i);
        if (len == n && memcmp(text, s, n) == 0 && (type == VB_NORMAL || type == VB_USER))
            return (int32_t)i;
    }
    return -1;
}

static size_t char_bytes(unsigned char lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* ---- SentencePiece ---- */

static float scores[2000]; /* of the vocabulary under test */

static int64_t rank_by_score(const struct bl_vocab *v, const char *s, size_t n_left, size_t n_right)
{
    int32_t id = slow_find(v, s, n_left + n_right);
    return id < 0 ? -1 : (int64_t)(1000000 - scores[id] * 1000); /* scores here are thousandths */
}

static void check_spm_slowly(const struct bl_vocab *v, const char *text, size_t n_bytes)
{
    char s[400] = " ";
    struct part p[400];
    int32_t want[400];
    size_t n = 0, n_want = 0;
    memcpy(s + 1, text, n_bytes);
    for (size_t at = 0; at < n_bytes + 1; at += p[n++].n)
        p[n] = (struct part){at, char_bytes((unsigned char)s[at])};
    n = merge_slowly(v, s, p, n, rank_by_score);
    for (size_t i = 0; i < n; i++) {
        int32_t id = slow_find(v, s + p[i].start, p[i].n);
        for (size_t k = 0; id < 0 && k < p[i].n; k++)
            want[n_want++] = 3 + (unsigned char)s[p[i].start + k];
        if (id >= 0)
            want[n_want++] = id;
    }
    check_ids(v, text, n_bytes, 0, want, n_bytes ? n_want : 0);
}

static size_t random_word(char *out, const char *const *letters, uint32_t n_letters, uint32_t n)
{
    size_t len = 0;
    while (n--) {
        const char *c = letters[rnd(n_letters)];
        memcpy(out + len, c, strlen(c));
        len += strlen(c);
    }
    return len;
}

static void test_spm_merges(void **state)
{
    static const char *const in_file[] = {"a", "b", "c", SPACE, "\xC3\xA9"};
    static const char *const in_text[] = {"a", "b", "c", " ", "\xC3\xA9", "z", "\xF0\x9F\x98\x80"};
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct vb b = {0};
        char s[400];
        vb_llama(&b);
        for (uint32_t i = 0; i < 5 + 200; i++) {
            size_t n =
                i < 5 ? random_word(s, in_file + i, 1, 1) : random_word(s, in_file, 5, 2 + rnd(4));
            scores[b.n_tokens] =
                -(float)rnd(round % 2 ? 20 : 2000) / 8; /* many ties in odd rounds */
            vb_token(&b, s, n, VB_NORMAL, scores[b.n_tokens]);
        }
        struct bl_vocab *v = vb_open(&b);
        vb_finish(&b);
        for (int k = 0; k < 40; k++)
            check_spm_slowly(v, s, random_word(s, in_text, 7, rnd(60)));
        bl_vocab_close(v);
    }
}

static struct bl_vocab *open_small_llama(void (*more)(struct vb *))
{
    struct vb b = {0};
    vb_llama(&b);
    vb_word(&b, SPACE, VB_NORMAL, -1);       /* 259 */
    vb_word(&b, "a", VB_NORMAL, -2);         /* 260 */
    vb_word(&b, SPACE "a", VB_NORMAL, -3);   /* 261 */
    vb_word(&b, "<", VB_NORMAL, -4);         /* 262 */
    vb_word(&b, "s", VB_NORMAL, -5);         /* 263 */
    vb_word(&b, ">", VB_NORMAL, -6);         /* 264 */
    vb_word(&b, "<s", VB_NORMAL, -7);        /* 265 */
    vb_word(&b, SPACE SPACE, VB_NORMAL, -8); /* 266 */
    vb_word(&b, "aa", VB_UNUSED, -9);        /* 267 */
    vb_word(&b, "<x>", VB_USER, 0);          /* 268 */
    if (more)
        more(&b);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    return v;
}

enum { ADD = BL_TOK_ADD_SPECIAL, PARSE = BL_TOK_PARSE_SPECIAL };

static void test_spm_by_hand(void **state)
{
    struct bl_vocab *v = open_small_llama(NULL);
    (void)state;
    CHECK_NONE(v, "", 0);
    CHECK(v, "", ADD, 1);
    CHECK(v, "a", 0, 261);
    CHECK(v, " a", 0, 259, 261);
    CHECK(v, "a  a", 0, 261, 259, 261);
    CHECK(v, "aaa", 0, 261, 267);     /* unused tokens merge */
    CHECK(v, SPACE "a", 0, 259, 261); /* a spelt space in the text is a space */
    CHECK(v, "\xFF", 0, 259, 3 + 0xFF);
    CHECK(v, "\0", 0, 259, 3);
    CHECK(v, "\xE4\xB8", 0, 259, 3 + 0xE4, 3 + 0xB8);
    CHECK(v, "<s>a", 0, 259, 265, 264, 260); /* typed, it stays text */
    CHECK(v, "<s>a", PARSE, 1, 261);         /* after a special token the prefix comes again */
    CHECK(v, "<s>", ADD | PARSE, 1);         /* one BOS */
    CHECK(v, "a<s>", ADD | PARSE, 1, 261, 1);
    CHECK(v, "<x>a", 0, 268, 261); /* user-defined tokens count always */
    CHECK(v, "a</s>a", PARSE, 261, 2, 261);
    bl_vocab_close(v);
}

static void both_zeros(struct vb *b)
{
    vb_word(b, "ba", VB_NORMAL, -0.0f); /* 269 */
    vb_word(b, "ab", VB_NORMAL, 0.0f);  /* 270 */
}

/* Scores of 0 and -0 are equal, and of equal ones the leftmost merges. */
static void test_spm_zero_scores(void **state)
{
    struct bl_vocab *v = open_small_llama(both_zeros);
    (void)state;
    CHECK(v, "bab", 0, 259, 269, 3 + 'b');
    CHECK(v, "bbab", 0, 259, 3 + 'b', 269, 3 + 'b');
    bl_vocab_close(v);
}

static void no_prefix_add_eos(struct vb *b)
{
    vb_key_int(b, "tokenizer.ggml.add_space_prefix", GB_BOOL, 0);
    vb_key_int(b, "tokenizer.ggml.add_bos_token", GB_BOOL, 0);
    vb_key_int(b, "tokenizer.ggml.add_eos_token", GB_BOOL, 1);
}

static void test_spm_keys(void **state)
{
    struct bl_vocab *v = open_small_llama(no_prefix_add_eos);
    (void)state;
    CHECK(v, "a", ADD, 260, 2);
    CHECK(v, "", ADD, 2);
    CHECK(v, "<s>a", PARSE, 1, 260);
    bl_vocab_close(v);
}

static void test_spm_without_bytes(void **state)
{
    struct vb b = {.model = "llama"};
    (void)state;
    vb_word(&b, "<unk>", VB_UNKNOWN, 0);
    vb_word(&b, SPACE, VB_NORMAL, -1);
    vb_word(&b, "<0xC3>", VB_BYTE, 0);
    vb_key_int(&b, "tokenizer.ggml.add_bos_token", GB_BOOL, 0);
    struct bl_vocab *v = vb_open(&b);
    CHECK(v, "\xC3\xA9", 0, 1, 0); /* one unknown for the character, no half of it */
    CHECK(v, "\xC3", 0, 1, 2);
    CHECK(v, "<0xC3>", 0, 1, 0, 0, 0, 0, 0, 0); /* spelt out it is text */
    bl_vocab_close(v);
    vb_key_int(&b, "tokenizer.ggml.unknown_token_id", GB_U32, 3); /* there is none */
    v = vb_open(&b);
    vb_finish(&b);
    CHECK(v, "\xC3\xA9", 0, 1, 0); /* ignored: the default stays */
    bl_vocab_close(v);
}

/* Files without token_type mean <0xHH> all the same. */
static void test_spm_without_types(void **state)
{
    struct vb b = {0};
    (void)state;
    vb_llama(&b);
    vb_word(&b, SPACE, VB_NORMAL, -1);
    b.n_types = 0;
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    CHECK(v, "b\n", 0, 259, 3 + 'b', 3 + '\n');
    bl_vocab_close(v);
}

/* ---- what a user typed ---- */

#define SPAN(...)                                                                                  \
    (const struct bl_span[]){__VA_ARGS__},                                                         \
        sizeof((const struct bl_span[]){__VA_ARGS__}) / sizeof(struct bl_span)

static void check_chat(const struct bl_vocab *v, const char *s, const struct bl_span *user,
                       size_t n_user, const int32_t *want, size_t n_want)
{
    int32_t *id = NULL;
    size_t n = 0;
    assert_int_equal(bl_tokenize_chat(v, s, strlen(s), user, n_user, PARSE, &id, &n), BL_OK);
    bool same = n == n_want && memcmp(id, want, n * sizeof *id) == 0;
    for (size_t i = 0; !same && i < n; i++)
        print_error("[%zu] %d, %d is right\n", i, id[i], i < n_want ? want[i] : -1);
    free(id);
    if (!same)
        fail_msg("\"%s\", %zu spans: %zu ids, %zu are right", s, n_user, n, n_want);
}

/* In "<s>a<s>" a span takes from the tokens at 0 and 4 whatever they have in common with it. */
static void test_user_spans(void **state)
{
    static const char s[] = "<s>a<s>";
    struct bl_vocab *v = open_small_llama(NULL);
    (void)state;
    check_chat(v, s, NULL, 0, IDS(1, 261, 1));
    check_chat(v, s, SPAN({3, 4}), IDS(1, 261, 1)); /* next to both, in neither */
    check_chat(v, s, SPAN({0, 3}), IDS(259, 265, 264, 260, 1));
    check_chat(v, s, SPAN({4, 7}), IDS(1, 261, 265, 264));
    check_chat(v, s, SPAN({0, 7}), IDS(259, 265, 264, 260, 265, 264));
    for (size_t i = 0; i < 3; i++) {
        check_chat(v, s, SPAN({i, i + 1}), IDS(259, 265, 264, 260, 1)); /* one byte is enough */
        check_chat(v, s, SPAN({4 + i, 5 + i}), IDS(1, 261, 265, 264));
    }
    check_chat(v, s, SPAN({2, 5}), IDS(259, 265, 264, 260, 265, 264));
    check_chat(v, s, SPAN({0, 1}, {6, 7}), IDS(259, 265, 264, 260, 265, 264));
    check_chat(v, s, SPAN({0, 2}, {2, 3}, {3, 4}), IDS(259, 265, 264, 260, 1)); /* adjacent */
    check_chat(v, "<x>a", SPAN({0, 4}), IDS(268, 261)); /* user-defined tokens are text */
    bl_vocab_close(v);
}

/* Without spans, or with spans where no token stands, it is the plain call. */
static void test_user_spans_elsewhere(void **state)
{
    static const char *const parts[] = {"<s>", "</s>", "a", "<", "s", ">", " ", "<x>", "\xC3\xA9"};
    struct bl_vocab *v = open_small_llama(NULL);
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct bl_span at[40];
        char s[400];
        size_t n = random_word(s, parts, 9, rnd(40)), n_at = 0, n_want = 0;
        int32_t *want = NULL;
        for (size_t i = 0; i < n && n_at < 40; i++)
            if (s[i] == 'a')
                at[n_at++] = (struct bl_span){i, i + 1};
        s[n] = 0;
        assert_int_equal(bl_tokenize(v, s, n, PARSE, &want, &n_want), BL_OK);
        check_chat(v, s, NULL, 0, want, n_want);
        check_chat(v, s, at, n_at, want, n_want);
        free(want);
        assert_int_equal(bl_tokenize(v, s, n, 0, &want, &n_want), BL_OK);
        check_chat(v, s, SPAN({0, n}), want, n_want); /* all of it typed: no control token */
        free(want);
    }
    bl_vocab_close(v);
}

/* ---- byte-level BPE ---- */

static struct { /* the merges under test, in order */
    char text[16];
    size_t left, n;
} merges[400];
static size_t n_merges;

static int64_t rank_by_list(const struct bl_vocab *v, const char *s, size_t n_left, size_t n_right)
{
    (void)v;
    for (size_t i = 0; i < n_merges; i++)
        if (merges[i].left == n_left && merges[i].n == n_left + n_right &&
            memcmp(merges[i].text, s, n_left + n_right) == 0)
            return (int64_t)i;
    return -1;
}

static void add_merge(struct vb *b, const char *s, size_t n_left, size_t n, bool token)
{
    char line[80];
    size_t at = vb_spell(line, s, n_left);
    line[at++] = ' ';
    at += vb_spell(line + at, s + n_left, n - n_left);
    vb_merge(b, line, at);
    at = vb_spell(line, s, n);
    if (token)
        vb_token(b, line, at, VB_NORMAL, 0);
    merges[n_merges].left = n_left;
    merges[n_merges].n = n;
    memcpy(merges[n_merges++].text, s, n);
}

/* Merges of earlier results, as training makes them; some results are made to be no tokens. */
static void add_random_merges(struct vb *b)
{
    char known[200][16];
    size_t length[200], n = 0;
    for (const char *c = "abc\xC3\xA9"; *c; c++) {
        known[n][0] = *c;
        length[n++] = 1;
    }
    n_merges = 0;
    while (n < 150) {
        char s[32];
        size_t l = rnd((uint32_t)n), r = rnd((uint32_t)n);
        if (length[l] + length[r] > 12)
            continue;
        memcpy(s, known[l], length[l]);
        memcpy(s + length[l], known[r], length[r]);
        bool token = rnd(12) != 0;
        add_merge(b, s, length[l], length[l] + length[r], token);
        if (!token) /* nothing merges further from there, so that the slow way agrees */
            continue;
        memcpy(known[n], s, length[l] + length[r]);
        length[n++] = length[l] + length[r];
    }
}

static void check_bpe_slowly(const struct bl_vocab *v, const char *s, size_t n_bytes)
{
    struct part p[400];
    int32_t want[400];
    size_t n = n_bytes, n_want = 0;
    for (size_t i = 0; i < n; i++)
        p[i] = (struct part){i, 1};
    n = merge_slowly(v, s, p, n, rank_by_list);
    for (size_t i = 0; i < n; i++) {
        int32_t id = slow_find(v, s + p[i].start, p[i].n);
        for (size_t k = 0; id < 0 && k < p[i].n; k++)
            want[n_want++] = (unsigned char)s[p[i].start + k];
        if (id >= 0)
            want[n_want++] = id;
    }
    check_ids(v, s, n_bytes, 0, want, n_want);
}

static void test_bpe_merges(void **state)
{
    static const char *const letters[] = {"a", "b", "c", "\xC3\xA9", "z"};
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct vb b = {.model = "gpt2", .pre = "gpt-2"};
        char s[400];
        vb_byte_alphabet(&b);
        add_random_merges(&b);
        struct bl_vocab *v = vb_open(&b);
        vb_finish(&b);
        for (int k = 0; k < 40; k++)
            check_bpe_slowly(v, s, random_word(s, letters, 5, rnd(120)));
        bl_vocab_close(v);
    }
}

/* The file of the format notes against what opening makes of its characters. */
static void test_byte_alphabet(void **state)
{
    FILE *f = fopen(BL_TEST_DATA "/tokenizer/byte_level.txt", "r");
    struct vb b = {.model = "gpt2", .pre = "gpt-2"};
    char line[128];
    (void)state;
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#')
            continue;
        unsigned c = (unsigned)atoi(line);
        char s[2] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F))};
        vb_token(&b, c < 0x80 ? (char[]){(char)c} : s, c < 0x80 ? 1 : 2, VB_NORMAL, 0);
    }
    fclose(f);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    assert_int_equal(v->n_tokens, 256);
    for (int i = 0; i < 256; i++) {
        uint32_t n;
        const char *s = bl_vocab_piece(v, i, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)*s, i);
        assert_int_equal(v->byte_id[i], i);
    }
    bl_vocab_close(v);
}

static struct bl_vocab *open_bpe(const char *pre, bool with_merges, void (*more)(struct vb *))
{
    struct vb b = {.model = "gpt2", .pre = pre};
    vb_byte_alphabet(&b);
    vb_word(&b, "ab", VB_NORMAL, 0);       /* 256 */
    vb_word(&b, "bc", VB_NORMAL, 0);       /* 257 */
    vb_word(&b, "abc", VB_NORMAL, 0);      /* 258 */
    vb_word(&b, "<|end|>", VB_CONTROL, 0); /* 259 */
    vb_word(&b, "de", VB_CONTROL, 0);      /* 260 */
    if (with_merges) {
        vb_merge(&b, "b c", 3);
        vb_merge(&b, "a b", 3);
        vb_merge(&b, "d e", 3); /* into a control token */
        vb_merge(&b, "a b", 3); /* the first counts */
    }
    if (more)
        more(&b);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    return v;
}

static void test_bpe_variants(void **state)
{
    (void)state;
    struct bl_vocab *v = open_bpe("qwen2", true, NULL);
    CHECK(v, "abc", 0, 'a', 257);
    CHECK(v, "de", 0, 'd', 'e'); /* text never turns into a control token */
    CHECK(v, "de<|end|>", PARSE, 260, 259);
    CHECK(v,
          "\xFF"
          "ab\0",
          0, 0xFF, 256, 0);
    bl_vocab_close(v);
    v = open_bpe("llama-bpe", true, NULL);
    CHECK(v, "abc", 0, 258); /* a piece that is a token stays whole */
    CHECK(v, "abcd", 0, 'a', 257, 'd');
    CHECK(v, "de", 0, 'd', 'e');
    bl_vocab_close(v);
    v = open_bpe("qwen2", false, NULL); /* no merges: ids are ranks */
    CHECK(v, "abc", 0, 258);
    CHECK(v, "bcd", 0, 257, 'd');
    bl_vocab_close(v);
}

static void user_defined(struct vb *b)
{
    vb_word(b,
            "\xC4\xA0"
            "a",
            VB_USER, 0); /* 261: two characters and a letter, not a space */
    vb_merge(b, "\xC4\xA0 a", 4);
}

/* User-defined tokens stand for their letters; that these spell something else in the alphabet is
 * an accident. */
static void test_bpe_user_defined(void **state)
{
    struct bl_vocab *v = open_bpe("qwen2", true, user_defined);
    (void)state;
    CHECK(v, " a", 0, ' ', 'a');
    CHECK(v,
          "\xC4\xA0"
          "a",
          0, 261);
    bl_vocab_close(v);
}

/* A vocabulary without all bytes loses what it cannot spell, and nothing else. */
static void test_bpe_missing_bytes(void **state)
{
    struct vb b = {.model = "gpt2", .pre = "gpt-2"};
    (void)state;
    vb_word(&b, "a", VB_NORMAL, 0);
    vb_word(&b, "", VB_NORMAL, 0);
    vb_word(&b, "a", VB_NORMAL, 0); /* twice: the first is found, both print */
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    uint32_t n;
    CHECK(v, "aba", 0, 0, 0);
    assert_int_equal(*bl_vocab_piece(v, 2, &n), 'a');
    bl_vocab_piece(v, 1, &n);
    assert_int_equal(n, 0);
    bl_vocab_close(v);
}

/* ---- gemma4: merges on characters ---- */

static void test_gemma4(void **state)
{
    struct vb b = {.model = "gemma4"};
    (void)state;
    vb_word(&b, "<bos>", VB_CONTROL, 0);
    vb_word(&b, "<unk>", VB_UNKNOWN, 0);
    vb_byte_tokens(&b);                           /* 2 to 257 */
    vb_word(&b, SPACE, VB_NORMAL, 0);             /* 258 */
    vb_word(&b, "\xC3\xA9", VB_NORMAL, 0);        /* 259 */
    vb_word(&b, "t", VB_NORMAL, 0);               /* 260 */
    vb_word(&b, "\xC3\xA9t", VB_NORMAL, 0);       /* 261 */
    vb_word(&b, SPACE "\xC3\xA9t", VB_NORMAL, 0); /* 262 */
    vb_word(&b, "\n", VB_NORMAL, 0);              /* 263 */
    vb_word(&b, "\n\n\n", VB_NORMAL, 0);          /* 264: reached by no merge */
    vb_merge(&b, "\xC3\xA9 t", 4);
    vb_merge(&b, SPACE " \xC3\xA9t", 7);
    vb_key_int(&b, "tokenizer.ggml.bos_token_id", GB_U32, 0);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    CHECK(v, "\xC3\xA9t \xC3\xA9t", ADD, 0, 261, 262);
    CHECK(v, "t\n\n\nt", 0, 260, 264, 260);
    CHECK(v, "\n\n", 0, 263, 263);
    CHECK(v, "z\xF0\x9F\x98\x80", 0, 2 + 'z', 2 + 0xF0, 2 + 0x9F, 2 + 0x98, 2 + 0x80);
    CHECK(v, "\xFF", 0, 2 + 0xFF);
    bl_vocab_close(v);
}

/* ---- special tokens ---- */

/* The rule as it is written: longest first, each cut out of every fragment that is still raw. */
static void cut_slowly(const char *s, size_t n, char tokens[][16], size_t n_tokens, int32_t *owner)
{
    for (size_t i = 0; i < n; i++)
        owner[i] = -1; /* the start of a cut-out token has its id, its other bytes -2 */
    for (size_t t = 0; t < n_tokens; t++) {
        size_t len = strlen(tokens[t]);
        for (size_t at = 0; at + len <= n; at++) {
            bool raw = memcmp(s + at, tokens[t], len) == 0;
            for (size_t k = 0; k < len; k++)
                raw = raw && owner[at + k] == -1;
            for (size_t k = 0; raw && k < len; k++)
                owner[at + k] = k ? -2 : (int32_t)(256 + t);
        }
    }
}

static void test_specials_longest_first(void **state)
{
    static const char *const letters[] = {"a", "b"};
    (void)state;
    for (int round = 0; round < 100; round++) {
        struct vb b = {.model = "gpt2", .pre = "gpt-2"};
        char tokens[6][16] = {{0}}, s[200];
        vb_byte_alphabet(&b);
        for (uint32_t t = 0; t < 6; t++) { /* lengths 7 to 2: each once */
            random_word(tokens[t], letters, 2, 7 - t);
            vb_word(&b, tokens[t], rnd(2) ? VB_CONTROL : VB_USER, 0);
        }
        struct bl_vocab *v = vb_open(&b);
        vb_finish(&b);
        for (int k = 0; k < 20; k++) {
            int32_t owner[200], want[200];
            size_t n = random_word(s, letters, 2, rnd(60)), n_want = 0;
            cut_slowly(s, n, tokens, 6, owner);
            for (size_t i = 0; i < n; i++)
                if (owner[i] != -2)
                    want[n_want++] = owner[i] < 0 ? s[i] : owner[i];
            check_ids(v, s, n, PARSE, want, n_want);
        }
        bl_vocab_close(v);
    }
}

static void name_phi3(struct vb *b)
{
    vb_key_str(b, "general.name", "Phi-3 Mini");
}

static void test_phi3_strips(void **state)
{
    struct bl_vocab *v = open_small_llama(name_phi3);
    (void)state;
    CHECK(v, "</s> \n\t a", PARSE, 2, 261);
    CHECK(v, "</s>  ", PARSE, 2);
    CHECK(v, "<x>  </s> a", PARSE, 268, 2, 261);
    CHECK(v, "<s> a", PARSE, 1, 259, 261); /* not after these */
    CHECK(v, "<unk> a", PARSE, 0, 259, 261);
    bl_vocab_close(v);
    v = open_small_llama(NULL);
    CHECK(v, "</s> a", PARSE, 2, 259, 261);
    bl_vocab_close(v);
}

/* ---- rules ---- */

static int n_warnings;
static char warning[1000];

static void count_warning(void *arg, enum bl_log_level level, const char *line)
{
    (void)arg;
    n_warnings += level == BL_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", line);
}

static void ids_beyond(struct vb *b)
{
    vb_key_int(b, "tokenizer.ggml.bos_token_id", GB_U32, 261);
    vb_key_int(b, "tokenizer.ggml.eos_token_id", GB_I32, (uint32_t)-1);
    vb_key_int(b, "tokenizer.ggml.eot_token_id", GB_U64, UINT64_C(1) << 40);
}

/* Old files carry ids beyond the vocabulary: ignored, and said. */
static void test_ids_beyond_the_vocabulary(void **state)
{
    (void)state;
    n_warnings = 0;
    bl_log_set(count_warning, NULL, BL_LOG_WARN);
    struct bl_vocab *v = open_bpe("qwen2", true, ids_beyond);
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
    assert_int_equal(n_warnings, 2); /* -1 is how files say none */
    assert_non_null(strstr(warning, "tokenizer.ggml.eot_token_id is 1099511627776"));
    assert_int_equal(bl_vocab_bos(v), -1);
    bl_vocab_close(v);
}

static void idle_merges(struct vb *b)
{
    vb_merge(b, "ab xy", 5);
    vb_merge(b, "zz a", 4);
}

static void test_idle_merges_are_said(void **state)
{
    (void)state;
    n_warnings = 0;
    bl_log_set(count_warning, NULL, BL_LOG_WARN);
    struct bl_vocab *v = open_bpe("qwen2", true, idle_merges);
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
    assert_int_equal(n_warnings, 1);
    assert_non_null(strstr(warning, "tokenizer.ggml.merges: 2 of 6"));
    bl_vocab_close(v);
}

static void bos_id(struct vb *b)
{
    vb_key_int(b, "tokenizer.ggml.bos_token_id", GB_U32, 259);
    vb_key_int(b, "tokenizer.ggml.eos_token_id", GB_U32, 260);
}

static void bos_id_no_bos(struct vb *b)
{
    bos_id(b);
    vb_key_int(b, "tokenizer.ggml.add_bos_token", GB_BOOL, 0);
    vb_key_int(b, "tokenizer.ggml.add_eos_token", GB_U32, 1); /* an integer is a bool too */
}

static void test_what_goes_around(void **state)
{
    (void)state;
    struct bl_vocab *v = open_bpe("qwen2", true, bos_id); /* BPE: nothing, unless ... */
    CHECK(v, "a", ADD, 'a');
    assert_int_equal(bl_vocab_bos(v), 259);
    bl_vocab_close(v);
    v = open_bpe("llama3", true, bos_id); /* ... the pre-tokeniser's models want it */
    CHECK(v, "a", ADD, 259, 'a');
    CHECK(v, "a", 0, 'a');
    CHECK(v, "<|end|>a", ADD | PARSE, 259, 'a');
    bl_vocab_close(v);
    v = open_bpe("tekken", true, bos_id_no_bos); /* ... or the file says otherwise */
    CHECK(v, "a", ADD, 'a', 260);
    bl_vocab_close(v);
    v = open_bpe("llama3", true, NULL); /* wanted, but the file has none */
    CHECK(v, "a", ADD, 'a');
    bl_vocab_close(v);
}

static void check_ends(const struct vb *b, const char *ends)
{
    struct bl_vocab *v = vb_open(b);
    for (int32_t i = 256; i < (int32_t)bl_vocab_size(v); i++)
        if (bl_vocab_is_end(v, i) != (ends[i - 256] == '1'))
            fail_msg("token %d of %s", i, ends);
    assert_int_equal(strlen(ends), bl_vocab_size(v) - 256);
    assert_false(bl_vocab_is_end(v, -1));
    assert_false(bl_vocab_is_end(v, (int32_t)bl_vocab_size(v)));
    bl_vocab_close(v);
}

static void test_end_by_text(void **state)
{
    static const char *const texts[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|flush|>",
                                        "<|calls|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "<|eom_id|>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<|end_of_text|>",
                                        "<end_of_utterance>",
                                        "<eos>",
                                        "<turn|>",
                                        "</s>",
                                        ("<\xEF\xBD\x9C"
                                         "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>")};
    struct vb b = {.model = "gpt2", .pre = "gpt-2"};
    char ends[64] = "0";
    (void)state;
    vb_byte_alphabet(&b);
    vb_word(&b, "<|im_start|>", VB_CONTROL, 0);
    for (size_t i = 0; i < BL_COUNT(texts); i++) {
        vb_word(&b, texts[i], i % 2 ? VB_CONTROL : VB_NORMAL, 0);
        strcat(ends, "1");
    }
    check_ends(&b, ends);
    vb_finish(&b);
}

static void test_end_by_id(void **state)
{
    struct vb b = {.model = "gpt2", .pre = "glm4"};
    (void)state;
    vb_byte_alphabet(&b);
    for (char c = 'A'; c < 'H'; c++)
        vb_word(&b, (char[]){'<', c, '>', 0}, VB_CONTROL, 0);
    vb_key_int(&b, "tokenizer.ggml.eos_token_id", GB_U32, 256);
    vb_key_int(&b, "tokenizer.ggml.eot_token_id", GB_I32, 257);
    vb_key_int(&b, "tokenizer.ggml.eom_token_id", GB_U64, 258);
    vb_key_int(&b, "tokenizer.ggml.fim_pad_token_id", GB_U32, 259);
    vb_key_int(&b, "tokenizer.ggml.fim_rep_token_id", GB_U32, 260);
    vb_key_int(&b, "tokenizer.ggml.fim_sep_token_id", GB_U32, 261);
    vb_key_int(&b, "tokenizer.ggml.bos_token_id", GB_U32, 262);
    check_ends(&b, "1111110");
    vb_finish(&b);
}

static void test_end_exceptions(void **state)
{
    struct vb b = {.model = "gpt2", .pre = "gpt-4o"};
    (void)state;
    vb_byte_alphabet(&b);
    vb_word(&b, "<|end|>", VB_CONTROL, 0);
    vb_word(&b, "<|return|>", VB_CONTROL, 0);
    vb_word(&b, "<|channel|>", VB_CONTROL, 0);
    check_ends(&b, "110");
    vb_word(&b, "<|call|>", VB_CONTROL, 0);
    check_ends(&b, "0101"); /* with both, a message may end in mid-answer */
    struct bl_vocab *v = vb_open(&b);
    struct bl_text *t = NULL;
    const char *s;
    size_t n;
    assert_int_equal(bl_text_create(&t, v, false), BL_OK);
    assert_int_equal(bl_text_push(t, 258, &s, &n), BL_OK);
    assert_int_equal(n, 11); /* its parser wants to see it ... */
    CHECK(v, "<|channel|>", PARSE, 258);
    int32_t *id;
    assert_int_equal(bl_tokenize(v, "<|channel|>", 11, 0, &id, &n), BL_OK);
    assert_int_equal(n, 11); /* ... but nobody may type it */
    free(id);
    bl_text_destroy(t);
    bl_vocab_close(v);
    vb_word(&b, "</s>", VB_CONTROL, 0);
    check_ends(&b, "01011");
    vb_word(&b, "<|tool_response>", VB_CONTROL, 0);
    check_ends(&b, "010101");
    vb_finish(&b);
    b = (struct vb){.model = "gpt2", .pre = "gpt-4o"};
    vb_byte_alphabet(&b);
    vb_word(&b, "<|end|>", VB_CONTROL, 0);
    vb_word(&b, "</s>", VB_CONTROL, 0);
    vb_word(&b, "<|tool_response>", VB_CONTROL, 0);
    check_ends(&b, "101");
    vb_finish(&b);
}

/* ---- cost ---- */

static void test_plan_covers_heap(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (uint32_t n = 1; n <= 30000; n *= 30) {
            struct vb b = {.model = kind == 0   ? "llama"
                                    : kind == 1 ? "gpt2"
                                                : "gemma4",
                           .pre = "deepseek-llm"};
            for (uint32_t i = 0; i < n; i++) {
                char s[32];
                snprintf(s, sizeof s, "t%ut%u", i, i * 7919);
                vb_word(&b, s, i % 10 ? VB_NORMAL : VB_CONTROL, -(float)i);
                if (kind)
                    vb_merge(&b, s, (size_t)snprintf(s, sizeof s, "t%u t%u", i, i * 7919));
            }
            struct bl_gguf *g = vb_gguf(&b);
            struct bl_vocab *v = NULL;
            vb_finish(&b);
            uint64_t plan = bl_vocab_plan_bytes(g);
            assert_int_equal(bl_vocab_open(&v, g), BL_OK);
            bl_gguf_close(g);
            uint64_t heap = bl_vocab_heap_bytes(v);
            if (heap > plan || plan > 2 * heap + (1 << 20))
                fail_msg("kind %d, %u tokens: planned %zu, holds %zu", kind, n, (size_t)plan,
                         (size_t)heap);
            bl_vocab_close(v);
        }
}

/* Texts of 1 MB that are all one piece or all noise. Anything quadratic takes minutes. */
static void check_large(const struct bl_vocab *v)
{
    enum { N = 1 << 20 };
    char *s = malloc(N);
    assert_non_null(s);
    for (int kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < N; i++)
            s[i] = (char)(kind == 0   ? 'a'
                          : kind == 1 ? ' '
                          : kind == 2 ? (int)rnd(256)
                                      : "<s>"[i % 3]);
        clock_t start = clock();
        int32_t *id;
        size_t n;
        assert_int_equal(bl_tokenize(v, s, N, PARSE, &id, &n), BL_OK);
        free(id);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        if (seconds > 20) /* 0.05 to 0.4 without sanitizers */
            fail_msg("text %d takes %.1f s", kind, seconds);
    }
    free(s);
}

static void add_runs(struct vb *b)
{
    char run[64] = "aa", line[80];
    for (size_t n = 2; n <= 32; n *= 2) {
        memset(run, 'a', n);
        run[n] = 0;
        if (b->pre)
            vb_merge(b, line,
                     (size_t)snprintf(line, sizeof line, "%.*s %.*s", (int)(n / 2), run,
                                      (int)(n / 2), run));
        if (n > 2 || b->pre) /* the others have it */
            vb_word(b, run, VB_NORMAL, -(float)n);
    }
}

static void test_large_texts(void **state)
{
    (void)state;
    struct bl_vocab *v = open_small_llama(add_runs);
    check_large(v);
    bl_vocab_close(v);
    v = open_bpe("deepseek-llm", true, add_runs);
    check_large(v);
    bl_vocab_close(v);
}

static void test_too_large(void **state)
{
    struct bl_vocab *v = open_bpe("gpt-2", true, NULL);
    int32_t *id = NULL;
    size_t n = 7;
    (void)state;
    assert_int_equal(bl_tokenize(v, "", (size_t)INT32_MAX + 1, 0, &id, &n), BL_ELIMIT);
    assert_null(id);
    assert_int_equal(n, 7);
    bl_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm_merges),
        cmocka_unit_test(test_spm_by_hand),
        cmocka_unit_test(test_spm_zero_scores),
        cmocka_unit_test(test_spm_keys),
        cmocka_unit_test(test_spm_without_bytes),
        cmocka_unit_test(test_spm_without_types),
        cmocka_unit_test(test_user_spans),
        cmocka_unit_test(test_user_spans_elsewhere),
        cmocka_unit_test(test_bpe_merges),
        cmocka_unit_test(test_byte_alphabet),
        cmocka_unit_test(test_bpe_variants),
        cmocka_unit_test(test_bpe_user_defined),
        cmocka_unit_test(test_bpe_missing_bytes),
        cmocka_unit_test(test_gemma4),
        cmocka_unit_test(test_specials_longest_first),
        cmocka_unit_test(test_phi3_strips),
        cmocka_unit_test(test_ids_beyond_the_vocabulary),
        cmocka_unit_test(test_idle_merges_are_said),
        cmocka_unit_test(test_what_goes_around),
        cmocka_unit_test(test_end_by_text),
        cmocka_unit_test(test_end_by_id),
        cmocka_unit_test(test_end_exceptions),
        cmocka_unit_test(test_plan_covers_heap),
        cmocka_unit_test(test_large_texts),
        cmocka_unit_test(test_too_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
