/* SPDX-License-Identifier: MIT */
#include "vocab_bytes.h"

#include "support.h"

#include "gguf.h"

#include <unistd.h>

void vb_finish(struct vb *b)
{
    gb_finish(&b->tokens);
    gb_finish(&b->types);
    gb_finish(&b->scores);
    gb_finish(&b->merges);
    gb_finish(&b->other);
    *b = (struct vb){0};
}

static void put_text(struct gb *b, const void *s, size_t n_bytes)
{
    gb_int(b, 8, n_bytes);
    gb_bytes(b, s, n_bytes);
}

void vb_token(struct vb *b, const void *s, size_t n_bytes, int type, float score)
{
    put_text(&b->tokens, s, n_bytes);
    gb_int(&b->types, 4, (uint32_t)type);
    gb_bytes(&b->scores, &score, sizeof score);
    b->n_tokens++;
    b->n_types++;
    b->n_scores++;
}

void vb_word(struct vb *b, const char *s, int type, float score)
{
    vb_token(b, s, strlen(s), type, score);
}

void vb_merge(struct vb *b, const void *s, size_t n_bytes)
{
    put_text(&b->merges, s, n_bytes);
    b->n_merges++;
}

void vb_key_int(struct vb *b, const char *key, uint32_t type, uint64_t v)
{
    gb_kv_int(&b->other, key, type, v);
    b->n_other++;
}

void vb_key_str(struct vb *b, const char *key, const char *s)
{
    gb_kv_str(&b->other, key, s);
    b->n_other++;
}

void vb_byte_tokens(struct vb *b)
{
    char s[8];
    for (unsigned i = 0; i < 256; i++) {
        snprintf(s, sizeof s, "<0x%02X>", i);
        vb_word(b, s, VB_BYTE, 0);
    }
}

/* Told the other way round than the library does: count the bytes that are not themselves. */
static unsigned code_point(unsigned byte)
{
    unsigned moved = 0;
    for (unsigned i = 0; i <= byte; i++) {
        int printable = (i > ' ' && i < 0x7F) || (i > 0xA0 && i != 0xAD);
        if (i == byte)
            return printable ? byte : 256 + moved;
        moved += !printable;
    }
    return 0;
}

size_t vb_spell(char *out, const char *s, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned c = code_point((unsigned char)s[i]);
        if (c >= 0x80)
            out[n++] = (char)(0xC0 | c >> 6);
        out[n++] = (char)(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    }
    return n;
}

void vb_byte_alphabet(struct vb *b)
{
    for (unsigned i = 0; i < 256; i++) {
        char byte = (char)i, s[2];
        vb_token(b, s, vb_spell(s, &byte, 1), VB_NORMAL, 0);
    }
}

static void put_array(struct gb *out, const char *key, uint32_t item, uint64_t n,
                      const struct gb *b)
{
    gb_array(out, key, item, n);
    gb_bytes(out, b->p, b->n);
}

static void build(struct gb *out, const struct vb *b)
{
    uint64_t n_kv = b->n_other + (b->model != NULL) + (b->pre != NULL) + (b->n_tokens > 0) +
                    (b->n_types > 0) + (b->n_scores > 0) + (b->n_merges > 0);
    gb_header(out, 0, n_kv);
    if (b->model)
        gb_kv_str(out, "tokenizer.ggml.model", b->model);
    if (b->pre)
        gb_kv_str(out, "tokenizer.ggml.pre", b->pre);
    if (b->n_tokens)
        put_array(out, "tokenizer.ggml.tokens", GB_STRING, b->n_tokens, &b->tokens);
    if (b->n_types)
        put_array(out, "tokenizer.ggml.token_type", GB_I32, b->n_types, &b->types);
    if (b->n_scores)
        put_array(out, "tokenizer.ggml.scores", GB_F32, b->n_scores, &b->scores);
    if (b->n_merges)
        put_array(out, "tokenizer.ggml.merges", GB_STRING, b->n_merges, &b->merges);
    gb_bytes(out, b->other.p, b->other.n);
}

struct bl_gguf *vb_gguf(const struct vb *b)
{
    char path[] = "/tmp/ballast-vocab-XXXXXX";
    struct gb bytes = {0};
    struct bl_gguf *g = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    build(&bytes, b);
    gb_save(&bytes, path);
    gb_finish(&bytes);
    enum bl_status st = bl_gguf_open(&g, path);
    unlink(path);
    if (st)
        fail_msg("%s", bl_error());
    return g;
}

struct bl_vocab *vb_open(const struct vb *b)
{
    struct bl_vocab *v = NULL;
    struct bl_gguf *g = vb_gguf(b);
    enum bl_status st = bl_vocab_open(&v, g);
    bl_gguf_close(g);
    if (st)
        fail_msg("%s", bl_error());
    return v;
}

enum bl_status vb_try(const struct vb *b)
{
    struct bl_vocab *v = NULL;
    struct bl_gguf *g = vb_gguf(b);
    enum bl_status st = bl_vocab_open(&v, g);
    bl_gguf_close(g);
    bl_vocab_close(v);
    return st;
}
