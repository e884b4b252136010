/* SPDX-License-Identifier: MIT */
/* A byte-level vocabulary of any size: the 256 bytes, special tokens, then words of small letters,
 * of which those of two letters have merges. */
#include "synth.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    N_BYTES = 256,
    LETTERS = 26,
    PAIRS = LETTERS * LETTERS,
    MOST_TEXT = 16, /* bytes of any token */
    NORMAL = 1,     /* token types of the format */
    CONTROL = 3
};
static const char *const special[] = {"<|bos|>", "<|eos|>", "<|pad|>", "<|unk|>"};
enum { BOS = N_BYTES, EOS, PAD, FIRST_WORD = N_BYTES + BL_COUNT(special) };

/* Packed strings of an array. */
struct strings {
    unsigned char *p;
    uint64_t n_bytes, n;
};

static void push(struct strings *s, const char *text)
{
    uint64_t n = strlen(text);
    memcpy(s->p + s->n_bytes, &n, sizeof n);
    memcpy(s->p + s->n_bytes + sizeof n, text, n);
    s->n_bytes += sizeof n + n;
    s->n++;
}

/* The visible characters that stand for bytes in such vocabularies: printable ones for themselves,
 * the others, in order, from U+0100 on. */
static void byte_text(unsigned byte, char out[MOST_TEXT])
{
    unsigned hidden = 0, cp = byte;
    for (unsigned b = 0; b <= byte; b++) {
        bool shown = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        cp = shown ? b : 0x100 + hidden++;
    }
    if (cp < 0x80)
        snprintf(out, MOST_TEXT, "%c", (int)cp);
    else
        snprintf(out, MOST_TEXT, "%c%c", (int)(0xc0 | cp >> 6), (int)(0x80 | (cp & 0x3f)));
}

/* Number w, from two letters on: aa, ab, ..., zz, aaa, ... */
static void word_text(uint32_t w, char out[MOST_TEXT])
{
    uint32_t n = 2, count = PAIRS;
    for (; w >= count; n++, count *= LETTERS)
        w -= count;
    out[n] = 0;
    for (; n--; w /= LETTERS)
        out[n] = (char)('a' + w % LETTERS);
}

static void fill_tokens(struct strings *s, int32_t *type, uint32_t n)
{
    char text[MOST_TEXT];
    for (uint32_t i = 0; i < n; i++) {
        type[i] = i >= N_BYTES && i < FIRST_WORD ? CONTROL : NORMAL;
        if (i < N_BYTES)
            byte_text(i, text);
        else if (i < FIRST_WORD)
            snprintf(text, sizeof text, "%s", special[i - N_BYTES]);
        else
            word_text(i - FIRST_WORD, text);
        push(s, text);
    }
}

static void fill_merges(struct strings *s, uint32_t n_words)
{
    char word[MOST_TEXT], merge[MOST_TEXT];
    for (uint32_t w = 0; w < n_words && w < PAIRS; w++) {
        word_text(w, word);
        snprintf(merge, sizeof merge, "%c %c", word[0], word[1]);
        push(s, merge);
    }
}

static enum bl_status add_array(struct bl_gguf *g, const char *key, enum bl_value_type item,
                                uint64_t n, const void *data, uint64_t bytes)
{
    return bl_gguf_add_kv(g, &(struct bl_kv){key, BL_VAL_ARRAY, item, n, data, bytes});
}

static enum bl_status add_text(struct bl_gguf *g, const char *key, const char *text)
{
    unsigned char packed[80];
    uint64_t n = strlen(text);
    if (n > sizeof packed - sizeof n)
        return bl_fail(BL_EINVAL, "%s: tokenizer '%s' has a long name", bl_gguf_path(g), text);
    memcpy(packed, &n, sizeof n);
    memcpy(packed + sizeof n, text, n);
    return bl_gguf_add_kv(
        g, &(struct bl_kv){key, BL_VAL_STRING, BL_VAL_STRING, 1, packed, sizeof n + n});
}

static enum bl_status add_ids(struct bl_gguf *g)
{
    static const struct {
        const char *key;
        uint32_t id;
    } ids[] = {{"tokenizer.ggml.bos_token_id", BOS},
               {"tokenizer.ggml.eos_token_id", EOS},
               {"tokenizer.ggml.padding_token_id", PAD}};
    const unsigned char no = 0;
    for (unsigned i = 0; i < BL_COUNT(ids); i++)
        BL_TRY(bl_gguf_add_kv(g, &(struct bl_kv){ids[i].key, BL_VAL_U32, BL_VAL_U32, 1, &ids[i].id,
                                                 sizeof ids[i].id}));
    return bl_gguf_add_kv(
        g, &(struct bl_kv){"tokenizer.ggml.add_bos_token", BL_VAL_BOOL, BL_VAL_BOOL, 1, &no, 1});
}

enum bl_status bl_synth_add_vocab(struct bl_gguf *g, const char *pre, uint32_t n)
{
    struct strings tokens = {.p = bl_calloc(n, 8 + MOST_TEXT)},
                   merges = {.p = bl_calloc(PAIRS, 16)};
    int32_t *type = bl_calloc(n, sizeof *type);
    enum bl_status st = BL_OK;
    if (!tokens.p || !merges.p || !type) {
        st = bl_fail(BL_ENOMEM, "%s: out of memory for %u tokens", bl_gguf_path(g), n);
        goto out;
    }
    fill_tokens(&tokens, type, n);
    fill_merges(&merges, n - FIRST_WORD);
    if ((st = add_text(g, "tokenizer.ggml.model", "gpt2")) ||
        (st = add_text(g, "tokenizer.ggml.pre", pre)) ||
        (st = add_array(g, "tokenizer.ggml.tokens", BL_VAL_STRING, tokens.n, tokens.p,
                        tokens.n_bytes)) ||
        (st = add_array(g, "tokenizer.ggml.token_type", BL_VAL_I32, n, type, n * sizeof *type)) ||
        (st = add_array(g, "tokenizer.ggml.merges", BL_VAL_STRING, merges.n, merges.p,
                        merges.n_bytes)))
        goto out;
    st = add_ids(g);
out:
    free(tokens.p);
    free(merges.p);
    free(type);
    return st;
}
