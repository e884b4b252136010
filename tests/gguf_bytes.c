/* SPDX-License-Identifier: MIT */
#include "gguf_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(EXIT_FAILURE);
}

void gb_finish(struct gb *b)
{
    free(b->p);
    *b = (struct gb){0};
}

void gb_save(const struct gb *b, const char *path)
{
    remove(path); /* cutting an old file down to nothing makes some file systems write to disk */
    FILE *f = fopen(path, "wb");
    need(f != NULL, path);
    need(fwrite(b->p, 1, b->n, f) == b->n, path);
    need(fclose(f) == 0, path);
}

void gb_bytes(struct gb *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->p = realloc(b->p, b->cap);
        need(b->p != NULL, "gguf bytes");
    }
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

void gb_zeros(struct gb *b, size_t n)
{
    while (n--)
        gb_bytes(b, "", 1);
}

void gb_pad(struct gb *b, size_t align)
{
    gb_zeros(b, (align - b->n % align) % align);
}

void gb_int(struct gb *b, unsigned n_bytes, uint64_t v)
{
    for (unsigned i = 0; i < n_bytes; i++)
        gb_bytes(b, &(unsigned char){(unsigned char)(v >> 8 * i)}, 1);
}

void gb_set(struct gb *b, size_t at, unsigned n_bytes, uint64_t v)
{
    for (unsigned i = 0; i < n_bytes; i++)
        b->p[at + i] = (unsigned char)(v >> 8 * i);
}

void gb_str(struct gb *b, const char *s)
{
    gb_int(b, 8, strlen(s));
    gb_bytes(b, s, strlen(s));
}

void gb_header(struct gb *b, uint64_t n_tensors, uint64_t n_kv)
{
    gb_bytes(b, "GGUF", 4);
    gb_int(b, 4, 3);
    gb_int(b, 8, n_tensors);
    gb_int(b, 8, n_kv);
}

void gb_key(struct gb *b, const char *key, uint32_t type)
{
    gb_str(b, key);
    gb_int(b, 4, type);
}

void gb_array(struct gb *b, const char *key, uint32_t item, uint64_t n)
{
    gb_key(b, key, GB_ARRAY);
    gb_int(b, 4, item);
    gb_int(b, 8, n);
}

void gb_kv_str(struct gb *b, const char *key, const char *s)
{
    gb_key(b, key, GB_STRING);
    gb_str(b, s);
}

void gb_kv_int(struct gb *b, const char *key, uint32_t type, uint64_t v)
{
    static const unsigned char n_bytes[] = {1, 1, 2, 2, 4, 4, 0, 1, 0, 0, 8, 8, 0};
    gb_key(b, key, type);
    gb_int(b, n_bytes[type], v);
}

void gb_tensor(struct gb *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
               uint64_t off)
{
    gb_str(b, name);
    gb_int(b, 4, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gb_int(b, 8, ne[i]);
    gb_int(b, 4, type);
    gb_int(b, 8, off);
}

static void small_metadata(struct gb *b, struct gb_marks *m)
{
    m->arch_len = b->n;
    m->arch_text = b->n + 8;
    m->arch_type = b->n + 8 + strlen("general.architecture");
    m->arch_value = m->arch_type + 4;
    gb_kv_str(b, "general.architecture", "llama");
    gb_kv_int(b, "general.alignment", GB_U32, 32);
    m->align_value = b->n - 4;
    m->align_type = b->n - 8;
    gb_kv_int(b, "test.bool", GB_BOOL, 1);
    m->bool_value = b->n - 1;
    gb_array(b, "test.words", GB_STRING, 3);
    m->words_item = b->n - 12;
    m->words_n = b->n - 8;
    m->words_len = b->n;
    gb_str(b, "a");
    gb_str(b, "bc");
    m->words_last = b->n;
    gb_str(b, "");
    gb_array(b, "test.numbers", GB_U32, 3);
    m->numbers_n = b->n - 8;
    for (unsigned i = 1; i <= 3; i++)
        gb_int(b, 4, i);
    gb_array(b, "test.flags", GB_BOOL, 2);
    m->flags_value = b->n;
    gb_int(b, 2, 0x0100);
    gb_kv_int(b, "test.ab", GB_U8, 7);
    gb_kv_int(b, "test.ac", GB_U8, 8);
    m->twin_text = b->n - 1 - 4 - 1;
}

void gb_small(struct gb *b, struct gb_marks *m)
{
    *m = (struct gb_marks){.version = 4, .n_tensors = 8, .n_kv = 16};
    gb_header(b, 3, 8);
    small_metadata(b, m);
    m->a_len = b->n;
    m->a_text = b->n + 8;
    m->a_n_dims = b->n + 11;
    m->a_ne0 = b->n + 15;
    m->a_ne1 = b->n + 23;
    m->a_type = b->n + 31;
    m->a_off = b->n + 35;
    gb_tensor(b, "t.a", 2, (uint64_t[]){32, 2}, GB_TENSOR_F32, 0);
    m->b_text = b->n + 10;
    m->b_ne0 = b->n + 15;
    m->b_ne1 = b->n + 23;
    m->b_type = b->n + 31;
    m->b_off = b->n + 35;
    gb_tensor(b, "t.b", 2, (uint64_t[]){256, 1}, GB_TENSOR_Q4_K, 256);
    gb_tensor(b, "t.c", 1, (uint64_t[]){5}, GB_TENSOR_F32, 416);
    m->c_off = b->n - 8;
    gb_pad(b, 32);
    m->data = b->n;
    for (unsigned i = 0; i < 416 + 20; i++)
        gb_int(b, 1, i >= 400 && i < 416 ? 0 : i); /* the gap before t.c */
    m->end = b->n;
}

void gb_shard(struct gb *b, const struct gb_shard *s)
{
    char name[16];
    gb_header(b, s->n_tensors, s->no ? 3 : 4);
    if (!s->no)
        gb_kv_str(b, "general.architecture", "llama");
    gb_kv_int(b, "split.no", GB_U16, s->no);
    gb_kv_int(b, "split.count", GB_U16, s->count);
    gb_kv_int(b, "split.tensors.count", GB_I32, s->total);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        snprintf(name, sizeof name, "t%u", (unsigned)(s->first + i));
        gb_tensor(b, name, 1, (uint64_t[]){32}, GB_TENSOR_F32, i * 128u);
    }
    gb_pad(b, 32);
    gb_zeros(b, s->n_tensors * 128u);
}
