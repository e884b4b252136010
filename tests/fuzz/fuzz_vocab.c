/* SPDX-License-Identifier: MIT */
/* Any vocabulary, any text: a GGUF file is opened, its vocabulary too, and a text goes through it
 * and back.
 *
 * Input: one byte of flags for bl_tokenize, u16 length of the text, the text, the file. */
#include "gguf.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* ---- promises ---- */

static void check_valid(const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        enum bl_utf8 what;
        at += bl_utf8_next(s + at, n - at, &what);
        must(what == BL_UTF8_OK, "what is printed is UTF-8");
    }
}

static void print_all(const struct bl_vocab *v, const int32_t *id, size_t n_ids, bool special)
{
    struct bl_text *t = NULL;
    const char *s;
    size_t n;
    must(!bl_text_create(&t, v, special), "there is memory");
    for (size_t i = 0; i < n_ids; i++) {
        must(!bl_text_push(t, id[i], &s, &n), "tokens of the vocabulary print");
        check_valid(s, n);
    }
    must(!bl_text_flush(t, &s, &n), "a text ends");
    check_valid(s, n);
    bl_text_destroy(t);
}

static bool has_all_bytes(const struct bl_vocab *v)
{
    for (int i = 0; i < 256; i++)
        if (v->byte_id[i] < 0)
            return false;
    return true;
}

/* Byte-level vocabularies that can spell everything give every text back. */
static void check_back(const struct bl_vocab *v, const int32_t *id, size_t n_ids, const char *text,
                       size_t n_bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t n;
        const char *s = bl_vocab_piece(v, id[i], &n);
        must(n <= n_bytes - at && memcmp(s, text + at, n) == 0, "tokens are the text");
        at += n;
    }
    must(at == n_bytes, "tokens are all of the text");
}

static void use_vocab(const struct bl_vocab *v, const char *text, size_t n_bytes, unsigned flags)
{
    int32_t *id = NULL;
    size_t n_ids = 0;
    must(!bl_tokenize(v, text, n_bytes, flags, &id, &n_ids), "every text has tokens");
    for (size_t i = 0; i < n_ids; i++)
        must(id[i] >= 0 && (uint32_t)id[i] < bl_vocab_size(v), "ids are in the vocabulary");
    print_all(v, id, n_ids, false);
    print_all(v, id, n_ids, true);
    if (v->kind == BL_VOCAB_BPE && !(flags & BL_TOK_ADD_SPECIAL) && has_all_bytes(v))
        check_back(v, id, n_ids, text, n_bytes);
    free(id);
}

static void use_file(const char *path, const char *text, size_t n_bytes, unsigned flags)
{
    struct bl_gguf *g = NULL;
    struct bl_vocab *v = NULL;
    if (bl_gguf_open(&g, path))
        return;
    uint64_t plan = bl_vocab_plan_bytes(g);
    enum bl_status st = bl_vocab_open(&v, g);
    bl_gguf_close(g); /* the vocabulary stands alone */
    must(!st == (v != NULL), "an object or a refusal");
    if (st) {
        must(strlen(bl_error()) > 10 && !strchr(bl_error(), '\n'), "a refusal is one line");
        return;
    }
    must(bl_vocab_heap_bytes(v) <= plan, "no more is held than was planned");
    use_vocab(v, text, n_bytes, flags);
    bl_vocab_close(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    if (n < 3)
        return 0;
    unsigned flags = data[0] & (BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL);
    size_t n_text = bl_load_u16(data + 1);
    n_text = n_text < n - 3 ? n_text : n - 3;
    size_t n_file = n - 3 - n_text;
    char *text = malloc(n_text ? n_text : 1); /* exact, for the address sanitizer */
    int fd = memfd_create("vocab", MFD_CLOEXEC);
    must(text && fd >= 0, "the harness has what it needs");
    memcpy(text, data + 3, n_text);
    must(write(fd, data + 3 + n_text, n_file) == (ssize_t)n_file, "the harness can write");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    use_file(path, text, n_text, flags);
    close(fd);
    free(text);
    return 0;
}
