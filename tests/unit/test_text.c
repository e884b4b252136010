/* SPDX-License-Identifier: MIT */
/* UTF-8 and the streaming detokeniser: what is emitted is always valid, and streaming loses
 * nothing. */
#include "support.h"

#include "vocab_bytes.h"

static uint32_t seed = 12345;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* ---- bl_utf8_next against an enumeration of what there is ---- */

static size_t encode(char out[4], uint32_t c)
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

static void test_all_code_points(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char s[5] = {0, 0, 0, 0, 0x55};
        enum bl_utf8 what;
        if (c == 0xD800)
            c = 0xE000; /* surrogates are no characters */
        size_t n = encode(s, c);
        if (bl_utf8_next(s, 5, &what) != n || what != BL_UTF8_OK)
            fail_msg("U+%04X", c);
        for (size_t k = 1; k < n; k++)
            if (bl_utf8_next(s, k, &what) != k || what != BL_UTF8_CUT)
                fail_msg("U+%04X cut to %zu bytes", c, k);
    }
}

/* Every sequence of three bytes: exactly the encodings are OK, the rest splits into maximal
 * prefixes of some encoding. */
static void test_all_short_sequences(void **state)
{
    static unsigned char is_prefix[1 << 24]; /* by 3 bytes: how many of them begin an encoding, 0x80
                                                = one is whole */
    (void)state;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        char s[4] = {0};
        if (c == 0xD800)
            c = 0xE000;
        size_t n = encode(s, c), shown = n < 3 ? n : 3;
        for (size_t k = 1; k <= shown; k++) {
            uint32_t key = 0;
            for (size_t i = 0; i < 3; i++)
                key = key << 8 | (i < k ? (unsigned char)s[i] : 0);
            is_prefix[key] |= (unsigned char)(1u << k | (k == n ? 0x80u : 0u));
        }
    }
    for (uint32_t key = 0; key < 1 << 24; key++) {
        char s[3] = {(char)(key >> 16), (char)(key >> 8), (char)key};
        size_t longest = 0, whole = 0;
        for (size_t k = 1; k <= 3; k++) {
            unsigned char p = is_prefix[key & ~((1u << (24 - 8 * k)) - 1)];
            if (p & 1u << k)
                longest = k;
            if ((p & 1u << k) && (p & 0x80) && !whole)
                whole = k;
        }
        enum bl_utf8 what, want = whole ? BL_UTF8_OK : longest == 3 ? BL_UTF8_CUT : BL_UTF8_BAD;
        size_t n = bl_utf8_next(s, 3, &what), want_n = whole ? whole : longest ? longest : 1;
        if (n != want_n || what != want)
            fail_msg("%06X: %zu bytes, kind %d; %zu, %d are right", key, n, what, want_n, want);
    }
}

/* ---- streaming ---- */

static struct bl_vocab *open_bytes(void)
{
    struct vb b = {.model = "gpt2", .pre = "gpt-2"};
    vb_byte_alphabet(&b);
    vb_word(&b, "<|eot|>", VB_CONTROL, 0);     /* 256 */
    vb_word(&b, "[user]", VB_USER, 0);         /* 257 */
    vb_word(&b, "\xE4\xB8\xAD", VB_NORMAL, 0); /* 258: not spelt in the alphabet, prints as it is */
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    return v;
}

static struct bl_text *open_text(const struct bl_vocab *v, bool special)
{
    struct bl_text *t = NULL;
    assert_int_equal(bl_text_create(&t, v, special), BL_OK);
    return t;
}

/* One push per byte, then flush, appended to out; checks that every piece is valid UTF-8. */
static void check_valid(const char *s, size_t n)
{
    enum bl_utf8 what;
    for (size_t at = 0; at < n; at += bl_utf8_next(s + at, n - at, &what))
        if (bl_utf8_next(s + at, n - at, &what), what != BL_UTF8_OK)
            fail_msg("a piece is not UTF-8");
}

static size_t stream(const struct bl_vocab *v, const int32_t *id, size_t n_ids, bool special,
                     char *out)
{
    struct bl_text *t = open_text(v, special);
    size_t n = 0, n_piece;
    const char *piece;
    for (size_t i = 0; i <= n_ids; i++) {
        assert_int_equal(i < n_ids ? bl_text_push(t, id[i], &piece, &n_piece)
                                   : bl_text_flush(t, &piece, &n_piece),
                         BL_OK);
        check_valid(piece, n_piece);
        memcpy(out + n, piece, n_piece);
        n += n_piece;
    }
    bl_text_destroy(t);
    return n;
}

static void check_stream(const struct bl_vocab *v, const char *bytes, size_t n_bytes,
                         const char *want, size_t n_want)
{
    int32_t id[64];
    char out[256];
    for (size_t i = 0; i < n_bytes; i++)
        id[i] = (unsigned char)bytes[i];
    size_t n = stream(v, id, n_bytes, false, out);
    assert_int_equal(n, n_want);
    assert_memory_equal(out, want, n);
}

#define R "\xEF\xBF\xBD"
#define CHECK(bytes, want) check_stream(v, bytes, sizeof bytes - 1, want, sizeof want - 1)

static void test_replacement_rules(void **state)
{
    struct bl_vocab *v = open_bytes();
    (void)state;
    CHECK("plain", "plain");
    CHECK("a\0b", "a\0b");
    CHECK("\xF0\x9F\x98\x80!", "\xF0\x9F\x98\x80!");
    CHECK("\xE4\xB8", R); /* one unfinished character: one replacement */
    CHECK("\xE4\xB8"
          "A",
          R "A"); /* the maximal prefix is replaced once */
    CHECK("\xF0\x9F\x98", R);
    CHECK("\xF0\x9F\x98\xC3\xA9", R "\xC3\xA9");
    CHECK("\x80\x80", R R); /* bytes that begin nothing: one each */
    CHECK("\xC0\xAF", R R); /* overlong */
    CHECK("\xE0\x80\x80", R R R);
    CHECK("\xED\xA0\x80", R R R); /* surrogate */
    CHECK("\xF4\x90\x80\x80", R R R R);
    CHECK("\xF5\xFF", R R);
    CHECK("\xC3\xC3\xA9", R "\xC3\xA9");
    bl_vocab_close(v);
}

static void test_holds_back(void **state)
{
    struct bl_vocab *v = open_bytes();
    struct bl_text *t = open_text(v, false);
    const char *s;
    size_t n;
    (void)state;
    for (int i = 0; i < 2; i++) { /* flush leaves it ready for more */
        assert_int_equal(bl_text_push(t, 0xE4, &s, &n), BL_OK);
        assert_int_equal(n, 0);
        assert_int_equal(bl_text_push(t, 0xB8, &s, &n), BL_OK);
        assert_int_equal(n, 0);
        assert_int_equal(bl_text_push(t, 256, &s, &n), BL_OK); /* a hidden token changes nothing */
        assert_int_equal(n, 0);
        assert_int_equal(bl_text_push(t, 0xAD, &s, &n), BL_OK);
        assert_int_equal(n, 3);
        assert_memory_equal(s, "\xE4\xB8\xAD", 3);
        assert_int_equal(bl_text_push(t, 0xF0, &s, &n), BL_OK);
        assert_int_equal(bl_text_flush(t, &s, &n), BL_OK);
        assert_int_equal(n, 3);
        assert_memory_equal(s, R, 3);
        assert_int_equal(bl_text_flush(t, &s, &n), BL_OK);
        assert_int_equal(n, 0);
    }
    bl_text_destroy(t);
    bl_vocab_close(v);
}

static void test_special_tokens(void **state)
{
    struct bl_vocab *v = open_bytes();
    char out[64];
    (void)state;
    const int32_t id[] = {'a', 256, 257, 258};
    assert_int_equal(stream(v, id, 4, false, out), 10);
    assert_memory_equal(out, "a[user]\xE4\xB8\xAD", 10);
    assert_int_equal(stream(v, id, 4, true, out), 17);
    assert_memory_equal(out, "a<|eot|>[user]\xE4\xB8\xAD", 17);
    bl_vocab_close(v);
}

static void test_bad_ids(void **state)
{
    struct bl_vocab *v = open_bytes();
    struct bl_text *t = open_text(v, false);
    const char *s;
    size_t n;
    (void)state;
    assert_int_equal(bl_text_push(t, -1, &s, &n), BL_EINVAL);
    assert_int_equal(bl_text_push(t, 259, &s, &n), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "259"));
    assert_int_equal(bl_text_push(t, INT32_MAX, &s, &n), BL_EINVAL);
    bl_text_destroy(t);
    bl_text_destroy(NULL);
    bl_vocab_close(v);
}

/* The reference: the bytes at once, in maximal prefixes. */
static size_t sanitise(char *out, const char *s, size_t n)
{
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        enum bl_utf8 what;
        size_t len = bl_utf8_next(s + at, n - at, &what);
        memcpy(out + n_out, what == BL_UTF8_OK ? s + at : R, what == BL_UTF8_OK ? len : 3);
        n_out += what == BL_UTF8_OK ? len : 3;
        at += len;
    }
    return n_out;
}

static size_t random_bytes(char *s, size_t n)
{
    static const char *const some[] = {"\xE4\xB8\xAD", "\xF0\x9F\x98\x80", "\xC3\xA9", " ", "ab\n"};
    for (size_t i = 0; i < n;) {
        const char *word = some[rnd(5)];
        size_t len = rnd(2) ? 1 + rnd((uint32_t)strlen(word)) : 1;
        len = len < n - i ? len : n - i;
        if (rnd(3))
            memcpy(s + i, word, len);
        else
            s[i] = (char)rnd(256), len = 1;
        i += len;
    }
    return n;
}

/* Random bytes, also not UTF-8 and NUL: tokens give them back exactly, streaming gives their clean
 * form. */
static void test_round_trip(void **state)
{
    struct bl_vocab *v = open_bytes();
    (void)state;
    for (int round = 0; round < 2000; round++) {
        char s[100], back[100], clean[300], out[300];
        size_t n = random_bytes(s, rnd(sizeof s)), n_ids, n_back = 0;
        int32_t *id;
        assert_int_equal(bl_tokenize(v, s, n, 0, &id, &n_ids), BL_OK);
        for (size_t i = 0; i < n_ids; i++) {
            uint32_t len;
            const char *piece = bl_vocab_piece(v, id[i], &len);
            assert_true(n_back + len <= n);
            memcpy(back + n_back, piece, len);
            n_back += len;
        }
        assert_int_equal(n_back, n);
        assert_memory_equal(back, s, n);
        size_t n_clean = sanitise(clean, s, n);
        assert_int_equal(stream(v, id, n_ids, false, out), n_clean);
        assert_memory_equal(out, clean, n_clean);
        free(id);
    }
    bl_vocab_close(v);
}

/* SentencePiece: the space that tokenising puts before a text goes again where the sequence starts
 * with BOS, and stays where the tokens continue one. */
static void test_space_prefix(void **state)
{
    struct vb b = {.model = "llama"};
    (void)state;
    vb_word(&b, "<unk>", VB_UNKNOWN, 0);
    vb_word(&b, "<s>", VB_CONTROL, 0);
    vb_word(&b, "</s>", VB_CONTROL, 0);
    vb_byte_tokens(&b);
    vb_word(&b, "\xE2\x96\x81", VB_NORMAL, -1); /* 259 */
    vb_word(&b, "\xE2\x96\x81hi", VB_NORMAL, -2);
    struct bl_vocab *v = vb_open(&b);
    vb_finish(&b);
    char out[64];
    assert_int_equal(stream(v, (int32_t[]){1, 260, 260}, 3, false, out), 5);
    assert_memory_equal(out, "hi hi", 5);
    assert_int_equal(stream(v, (int32_t[]){1, 259, 260}, 3, false, out), 3);
    assert_memory_equal(out, " hi", 3);
    assert_int_equal(stream(v, (int32_t[]){260, 260}, 2, false, out), 6);
    assert_memory_equal(out, " hi hi", 6);
    assert_int_equal(stream(v, (int32_t[]){1, 260}, 2, true, out), 5);
    assert_memory_equal(out, "<s>hi", 5);
    assert_int_equal(stream(v, (int32_t[]){260, 1, 260}, 3, false, out), 6);
    assert_memory_equal(out, " hi hi", 6);
    bl_vocab_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_code_points),   cmocka_unit_test(test_all_short_sequences),
        cmocka_unit_test(test_replacement_rules), cmocka_unit_test(test_holds_back),
        cmocka_unit_test(test_special_tokens),    cmocka_unit_test(test_bad_ids),
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_space_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
