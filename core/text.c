/* SPDX-License-Identifier: MIT */
#include "vocab.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* How many bytes `lead` begins and what the second one may be (later ones are 80..BF); 1 for ASCII,
 * 0 for a byte that begins nothing. Overlong forms, surrogates and what lies above U+10FFFF fail at
 * the second byte. */
static size_t utf8_form(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    if (lead == 0xE0)
        *low = 0xA0;
    if (lead == 0xED)
        *high = 0x9F;
    if (lead == 0xF0)
        *low = 0x90;
    if (lead == 0xF4)
        *high = 0x8F;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

size_t bl_utf8_next(const char *s, size_t n_bytes, enum bl_utf8 *what)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char low, high;
    size_t need = utf8_form(u[0], &low, &high), have = 1;
    while (have < need && have < n_bytes && u[have] >= low && u[have] <= high) {
        have++;
        low = 0x80;
        high = 0xBF;
    }
    *what = have == need ? BL_UTF8_OK : need && have == n_bytes ? BL_UTF8_CUT : BL_UTF8_BAD;
    return have;
}

enum { PENDING_MAX = 3, REPLACEMENT_BYTES = 3 };
static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

struct bl_text {
    const struct bl_vocab *vocab;
    bool special;
    bool started;    /* some token came already */
    bool drop_space; /* the next piece loses the space that tokenising put before the text */
    size_t n_pending;
    char *in;  /* pending bytes, then the piece */
    char *out; /* what the caller sees */
};

enum bl_status bl_text_create(struct bl_text **out, const struct bl_vocab *vocab, bool special)
{
    /* The worst piece is all invalid: every byte becomes a replacement character. */
    size_t in_bytes = (size_t)vocab->max_bytes + PENDING_MAX;
    struct bl_text *t = bl_calloc(1, sizeof *t);
    char *in = bl_calloc(in_bytes, 1 + REPLACEMENT_BYTES);
    if (!t || !in) {
        free(t);
        free(in);
        return bl_fail(BL_ENOMEM, "detokeniser: out of memory for %zu bytes", in_bytes * 4);
    }
    *t = (struct bl_text){.vocab = vocab, .special = special, .in = in, .out = in + in_bytes};
    *out = t;
    return BL_OK;
}

void bl_text_destroy(struct bl_text *t)
{
    if (!t)
        return;
    free(t->in);
    free(t);
}

static bool is_hidden(const struct bl_text *t, int32_t id)
{
    unsigned type = bl_vocab_type(t->vocab, id);
    return (type == BL_TOKEN_CONTROL || type == BL_TOKEN_UNKNOWN) && !t->special &&
           !(t->vocab->attr[id] & BL_TOKEN_PRINT);
}

/* A sequence that begins with BOS is a whole text, and tokenising put a space before it; any other
 * one continues a text, where every space counts. */
static void note_start(struct bl_text *t, int32_t id)
{
    if (!t->started && t->vocab->space_prefix && id == t->vocab->bos)
        t->drop_space = true;
    t->started = true;
}

/* Moves whole characters from in to out and keeps the beginning of an unfinished one. */
static size_t take_ready(struct bl_text *t, size_t n)
{
    size_t n_out = 0, at = 0, len;
    enum bl_utf8 what = BL_UTF8_OK;
    for (; at < n; at += len) {
        len = bl_utf8_next(t->in + at, n - at, &what);
        if (what == BL_UTF8_CUT)
            break;
        const char *s = what == BL_UTF8_OK ? t->in + at : replacement;
        size_t s_bytes = what == BL_UTF8_OK ? len : REPLACEMENT_BYTES;
        memcpy(t->out + n_out, s, s_bytes);
        n_out += s_bytes;
    }
    t->n_pending = n - at;
    memmove(t->in, t->in + at, t->n_pending);
    return n_out;
}

enum bl_status bl_text_push(struct bl_text *t, int32_t id, const char **bytes, size_t *n_bytes)
{
    if (id < 0 || (uint32_t)id >= t->vocab->n_tokens)
        return bl_fail(BL_EINVAL, "token id %d: the vocabulary has %u", id, t->vocab->n_tokens);
    note_start(t, id);
    uint32_t n = 0;
    const char *piece = bl_vocab_piece(t->vocab, id, &n);
    if (is_hidden(t, id))
        n = 0;
    if (n && id != t->vocab->bos && t->drop_space) {
        bool space = piece[0] == ' ';
        piece += space;
        n -= space;
        t->drop_space = false;
    }
    memcpy(t->in + t->n_pending, piece, n);
    *n_bytes = take_ready(t, t->n_pending + n);
    *bytes = t->out;
    return BL_OK;
}

enum bl_status bl_text_flush(struct bl_text *t, const char **bytes, size_t *n_bytes)
{
    *n_bytes = t->n_pending ? REPLACEMENT_BYTES : 0; /* one unfinished character at most */
    memcpy(t->out, replacement, *n_bytes);
    *bytes = t->out;
    t->n_pending = 0;
    return BL_OK;
}
