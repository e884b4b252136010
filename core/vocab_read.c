/* SPDX-License-Identifier: MIT */
/* The tokenizer arrays of a GGUF file. Everything here was written by a stranger: lengths, types,
 * spellings and ids are checked, and what is wrong is named by key and index. */
#include "vocab.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "gguf.h"
#include "log.h"
#include "mem.h"

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"
#define KEY_MERGES "tokenizer.ggml.merges"

/* "file: what", as the reader of the container says it. */
static enum bl_status fail(const struct bl_vocab_source *src, enum bl_status code, const char *fmt,
                           ...) BL_PRINTF(3, 4);
static enum bl_status fail(const struct bl_vocab_source *src, enum bl_status code, const char *fmt,
                           ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bl_fail(code, "%s: %s", src->file, text);
}

/* ---- what kind of vocabulary ---- */

/* An untrusted string of the file for a message. */
static const char *show(char out[BL_SHOWN_BYTES], const char *s, uint64_t n)
{
    char text[BL_SHOWN_BYTES + 1];
    n = n < BL_SHOWN_BYTES ? n : BL_SHOWN_BYTES;
    memcpy(text, s, (size_t)n);
    text[n] = 0;
    return bl_gguf_show(out, text);
}

static enum bl_status read_kind(struct bl_vocab_source *src, const struct bl_gguf *g)
{
    char shown[BL_SHOWN_BYTES];
    const char *s = NULL;
    uint64_t n = 0;
    BL_TRY(bl_gguf_str(g, "tokenizer.ggml.model", false, &s, &n));
    if (!s || bl_vocab_text_is(s, n, "none") || bl_vocab_text_is(s, n, "no_vocab"))
        return fail(src, BL_EUNAVAILABLE, "has no vocabulary (tokenizer.ggml.model is %s)",
                    s ? "'none'" : "missing");
    if (bl_vocab_text_is(s, n, "llama"))
        src->kind = BL_VOCAB_SPM;
    else if (bl_vocab_text_is(s, n, "gpt2"))
        src->kind = BL_VOCAB_BPE;
    else if (bl_vocab_text_is(s, n, "gemma4"))
        src->kind = BL_VOCAB_BPE_UTF8;
    else
        return fail(src, BL_EUNSUPPORTED,
                    "tokenizer.ggml.model '%s' is not supported; llama, gpt2 and gemma4 are",
                    show(shown, s, n));
    return BL_OK;
}

static enum bl_status read_rule(struct bl_vocab_source *src, const struct bl_gguf *g)
{
    char shown[BL_SHOWN_BYTES];
    const char *s = "default";
    uint64_t n = strlen(s);
    if (src->kind == BL_VOCAB_SPM)
        return BL_OK;
    if (src->kind == BL_VOCAB_BPE) {
        BL_TRY(bl_gguf_str(g, "tokenizer.ggml.pre", false, &s, &n));
        if (!bl_gguf_find(g, "tokenizer.ggml.pre"))
            bl_warn("tokenizer.ggml.pre is missing: words are cut the way of old files");
    } else {
        s = "gemma4";
        n = strlen(s);
    }
    src->rule = bl_pretok_rule_find(s, (size_t)n);
    if (src->rule && src->kind == BL_VOCAB_BPE && bl_vocab_text_is(s, n, "gemma4"))
        return fail(src, BL_EUNSUPPORTED,
                    "tokenizer.ggml.pre 'gemma4' needs tokenizer.ggml.model 'gemma4', not 'gpt2'");
    if (!src->rule)
        return fail(src, BL_EUNSUPPORTED, "tokenizer.ggml.pre '%s' is not supported; %s are",
                    show(shown, s, n), bl_pretok_kind_names());
    return BL_OK;
}

/* ---- the arrays, by length and type ---- */

static enum bl_status find_strings(const struct bl_vocab_source *src, const struct bl_gguf *g,
                                   const char *key, const struct bl_kv **out)
{
    *out = bl_gguf_find(g, key);
    if (*out && ((*out)->type != BL_VAL_ARRAY || (*out)->item != BL_VAL_STRING))
        return fail(src, BL_EFORMAT, "%s is not an array of strings", key);
    if (*out && (*out)->n > INT32_MAX)
        return fail(src, BL_EFORMAT, "%s has %" PRIu64 " elements; ids are 31 bits", key,
                    (*out)->n);
    if (*out && (*out)->data_bytes - 8 * (*out)->n > UINT32_MAX)
        return fail(src, BL_EFORMAT, "%s holds more than 4 GiB of text", key);
    return BL_OK;
}

/* An array of 4-byte numbers with one element for every token. */
static enum bl_status find_numbers(const struct bl_vocab_source *src, const struct bl_gguf *g,
                                   const char *key, bool real, const struct bl_kv **out)
{
    const struct bl_kv *kv = *out = bl_gguf_find(g, key);
    if (!kv)
        return BL_OK;
    bool fits = real ? kv->item == BL_VAL_F32 : kv->item == BL_VAL_I32 || kv->item == BL_VAL_U32;
    if (kv->type != BL_VAL_ARRAY || !fits)
        return fail(src, BL_EFORMAT, "%s is not an array of %s", key, real ? "f32" : "i32");
    if (kv->n < src->n_tokens)
        return fail(src, BL_EFORMAT, "%s has %" PRIu64 " elements for %" PRIu32 " tokens", key,
                    kv->n, src->n_tokens);
    return BL_OK;
}

/* The file's token_type; absent or 0 (undefined) counts as normal. */
static unsigned type_of(const struct bl_vocab_source *src, uint32_t i)
{
    unsigned type = src->types ? bl_load_u32((const char *)src->types->data + 4 * (size_t)i) : 0;
    return type ? type : BL_TOKEN_NORMAL;
}

static bool is_special(unsigned type)
{
    return type == BL_TOKEN_CONTROL || type == BL_TOKEN_UNKNOWN || type == BL_TOKEN_USER_DEFINED;
}

static enum bl_status check_types(struct bl_vocab_source *src)
{
    for (uint32_t i = 0; i < src->n_tokens; i++) {
        unsigned type = type_of(src, i);
        if (type > BL_TOKEN_BYTE)
            return fail(src, BL_EFORMAT, KEY_TYPES "[%" PRIu32 "] is %d; 0 to 6 are known", i,
                        (int)type);
        src->n_specials += is_special(type);
    }
    return BL_OK;
}

enum bl_status bl_vocab_source_read(struct bl_vocab_source *src, const struct bl_gguf *g)
{
    *src = (struct bl_vocab_source){.file = bl_path_tail(bl_gguf_path(g))};
    BL_TRY(read_kind(src, g));
    BL_TRY(find_strings(src, g, KEY_TOKENS, &src->tokens));
    if (!src->tokens || src->tokens->n == 0)
        return fail(src, BL_EUNAVAILABLE, "has no vocabulary (" KEY_TOKENS " is %s)",
                    src->tokens ? "empty" : "missing");
    src->n_tokens = (uint32_t)src->tokens->n;
    BL_TRY(read_rule(src, g));
    BL_TRY(find_numbers(src, g, KEY_TYPES, false, &src->types));
    BL_TRY(check_types(src));
    if (src->kind == BL_VOCAB_SPM) {
        BL_TRY(find_numbers(src, g, KEY_SCORES, true, &src->scores));
        if (!src->scores)
            return fail(src, BL_EFORMAT, KEY_SCORES " is missing; a llama vocabulary merges by it");
        return BL_OK;
    }
    BL_TRY(find_strings(src, g, KEY_MERGES, &src->merges));
    src->n_merges = src->merges ? (uint32_t)src->merges->n : 0;
    return BL_OK;
}

/* ---- spelling: a token's text in the file to its output bytes ---- */

/* The byte that a character of the byte-level alphabet stands for, -1 = not one of the 256.
 * Printable Latin-1 is itself; the other bytes were moved, in order, to U+0100 and up. */
static int byte_of(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xFF && c != 0xAD))
        return (int)c;
    if (c < 0x100 || c > 0x143)
        return -1;
    int k = (int)c - 0x100;
    return k <= 0x20 ? k : k < 67 ? 0x7F + (k - 0x21) : 0xAD;
}

/* Characters outside the alphabet stay as they are; such a token prints, but no text leads to it.
 */
static size_t spell_byte_level(char *out, const char *s, size_t n, bool *exact)
{
    size_t n_out = 0;
    for (size_t at = 0, len; at < n; at += len) {
        enum bl_utf8 what;
        len = bl_utf8_next(s + at, n - at, &what);
        unsigned char a = (unsigned char)s[at], b = len > 1 ? (unsigned char)s[at + 1] : 0;
        uint32_t c = len == 1 ? a : (uint32_t)(a & 0x1F) << 6 | (b & 0x3F);
        int byte = what == BL_UTF8_OK && len <= 2 ? byte_of(c) : -1;
        if (byte >= 0) {
            out[n_out++] = (char)byte;
            continue;
        }
        *exact = false;
        memcpy(out + n_out, s + at, len);
        n_out += len;
    }
    return n_out;
}

/* U+2581 stands for a space. A real space in the file's text is therefore never met by an encoder.
 */
static size_t spell_spaces(char *out, const char *s, size_t n, bool *exact)
{
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        bool space = n - at >= 3 && memcmp(s + at, "\xE2\x96\x81", 3) == 0;
        *exact = *exact && s[at] != ' ';
        out[n_out++] = space ? ' ' : s[at];
        at += space ? 3 : 1;
    }
    return n_out;
}

static size_t spell(enum bl_vocab_kind kind, char *out, const char *s, size_t n, bool *exact)
{
    return kind == BL_VOCAB_BPE ? spell_byte_level(out, s, n, exact)
                                : spell_spaces(out, s, n, exact);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte of "<0xHH>", -1 = spelt otherwise. */
static int byte_token(const char *s, uint64_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* ---- tokens ---- */

static enum bl_status read_token(struct bl_vocab *v, const struct bl_vocab_source *src, uint32_t i,
                                 const char *s, size_t n)
{
    char *out = v->bytes + v->start[i];
    unsigned type = type_of(src, i);
    int byte = byte_token(s, n);
    bool exact = true;
    if (!src->types && v->kind != BL_VOCAB_BPE && byte >= 0)
        type = BL_TOKEN_BYTE; /* a file without types still means them */
    size_t n_out = spell(v->kind, out, s, n, &exact);
    if (type == BL_TOKEN_BYTE && byte < 0)
        return fail(src, BL_EFORMAT, KEY_TOKENS "[%" PRIu32 "] is a byte token but not <0xHH>", i);
    if (type == BL_TOKEN_BYTE) {
        out[0] = (char)byte;
        n_out = 1;
    } else if (is_special(type)) { /* these stand in the text literally */
        memcpy(out, s, n);
        n_out = n;
    }
    v->attr[i] = (uint8_t)(type | (exact ? 0 : BL_TOKEN_INEXACT));
    v->start[i + 1] = v->start[i] + (uint32_t)n_out;
    v->max_bytes = n_out > v->max_bytes ? (uint32_t)n_out : v->max_bytes;
    return BL_OK;
}

/* Control, unknown and byte tokens are no candidates: text typed by a user must not merge into
 * them. */
static bool found_by_text(const struct bl_vocab *v, uint32_t i)
{
    unsigned type = v->attr[i] & BL_TOKEN_TYPE;
    return (type == BL_TOKEN_NORMAL || type == BL_TOKEN_UNUSED || type == BL_TOKEN_USER_DEFINED) &&
           !(v->attr[i] & BL_TOKEN_INEXACT) && v->start[i + 1] > v->start[i];
}

static enum bl_status index_token(struct bl_vocab *v, const struct bl_vocab_source *src,
                                  struct bl_token_table *t, uint32_t i)
{
    if (!bl_vocab_index(v, t, (int32_t)i))
        return fail(src, BL_EFORMAT, KEY_TOKENS "[%" PRIu32 "]: too many texts share a hash", i);
    return BL_OK;
}

static enum bl_status index_tokens(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    for (uint32_t i = 0; i < v->n_tokens; i++)
        if (found_by_text(v, i))
            BL_TRY(index_token(v, src, &v->by_text, i));
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->byte_id[b] = v->kind == BL_VOCAB_BPE ? bl_vocab_find(v, &v->by_text, &c, 1) : -1;
    }
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        if (bl_vocab_type(v, (int32_t)i) != BL_TOKEN_BYTE)
            continue;
        int32_t *id = &v->byte_id[(unsigned char)v->bytes[v->start[i]]];
        *id = *id < 0 ? (int32_t)i : *id;
    }
    return BL_OK;
}

/* Longest first, then by id: the length is the high half, complemented. */
static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum bl_status index_specials(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        uint32_t n;
        const char *s = bl_vocab_piece(v, (int32_t)i, &n);
        unsigned type = bl_vocab_type(v, (int32_t)i);
        if (!is_special(type) || n == 0)
            continue;
        v->special[k++] = (uint64_t)~n << 32 | i;
        v->special_first[(unsigned char)s[0] / 64] |= UINT64_C(1) << ((unsigned char)s[0] % 64);
        v->has_user_defined |= type == BL_TOKEN_USER_DEFINED;
        BL_TRY(index_token(v, src, &v->by_special, i));
    }
    v->n_specials = k;
    qsort(v->special, k, sizeof *v->special, by_key);
    return BL_OK;
}

enum bl_status bl_vocab_read_tokens(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    uint64_t cursor = 0, n;
    const char *s;
    for (uint32_t i = 0; i < v->n_tokens && bl_gguf_next_string(src->tokens, &cursor, &s, &n); i++)
        BL_TRY(read_token(v, src, i, s, (size_t)n));
    BL_TRY(index_tokens(v, src));
    return index_specials(v, src);
}

/* ---- scores and merges ---- */

/* Orders floats as unsigned numbers, the largest score first; both zeros are one. */
static uint32_t score_priority(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

enum bl_status bl_vocab_read_scores(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    for (uint32_t i = 0; v->kind == BL_VOCAB_SPM && i < v->n_tokens; i++) {
        float score;
        memcpy(&score, (const char *)src->scores->data + 4 * (size_t)i, sizeof score);
        if (isnan(score))
            return fail(src, BL_EFORMAT, KEY_SCORES "[%" PRIu32 "] is not a number", i);
        v->priority[i] = score_priority(score);
    }
    return BL_OK;
}

/* One "left right": the separator is the first space after the first byte. A merge of texts that
 * are no tokens can never happen and is left out; its rank stays. */
static enum bl_status read_merge(struct bl_vocab *v, const struct bl_vocab_source *src,
                                 uint32_t rank, const char *s, size_t n, char *scratch)
{
    struct bl_merge *m = &v->merge[rank];
    const char *space = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
    if (!space || space == s + n - 1)
        return fail(src, BL_EFORMAT,
                    KEY_MERGES "[%" PRIu32 "] is not two parts with a space between", rank);
    bool exact = true;
    size_t left = spell(v->kind, scratch, s, (size_t)(space - s), &exact);
    size_t right = spell(v->kind, scratch + left, space + 1, (size_t)(s + n - space) - 1, &exact);
    *m = (struct bl_merge){
        .left = bl_vocab_find(v, &v->by_text, scratch, left),
        .right = bl_vocab_find(v, &v->by_text, scratch + left, right),
        .result = bl_vocab_find(v, &v->by_text, scratch, left + right),
    };
    if (!exact || m->left < 0 || m->right < 0)
        *m = (struct bl_merge){-1, -1, -1};
    else if (!bl_vocab_index_merge(v, rank))
        return fail(src, BL_EFORMAT, KEY_MERGES "[%" PRIu32 "]: too many pairs share a hash", rank);
    return BL_OK;
}

enum bl_status bl_vocab_read_merges(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    enum bl_status st = BL_OK;
    uint64_t cursor = 0, n, longest = 0;
    uint32_t rank = 0, n_idle = 0;
    const char *s;
    if (v->n_merges == 0)
        return BL_OK;
    while (bl_gguf_next_string(src->merges, &cursor, &s, &n))
        longest = n > longest ? n : longest;
    char *scratch = bl_calloc((size_t)longest, 1);
    if (!scratch)
        return fail(src, BL_ENOMEM, "vocabulary: out of memory for a merge of %" PRIu64 " bytes",
                    longest);
    for (cursor = 0; !st && bl_gguf_next_string(src->merges, &cursor, &s, &n); rank++)
        st = read_merge(v, src, rank, s, (size_t)n, scratch);
    free(scratch);
    for (rank = 0; !st && rank < v->n_merges; rank++)
        n_idle += v->merge[rank].left < 0;
    if (n_idle)
        bl_warn(KEY_MERGES ": %" PRIu32 " of %" PRIu32 " join texts that are no tokens", n_idle,
                v->n_merges);
    return st;
}
