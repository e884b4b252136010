/* SPDX-License-Identifier: MIT */
/* gguf_bytes.h — GGUF files byte by byte, right and wrong ones, for tests and fuzz seeds.
 *
 * Purpose   knows nothing of core/gguf.h, so that a mistake there is not repeated here.
 * Ownership zeroed = empty; gb_finish frees.
 * Units     bytes.
 * Errors    prints and exits: test code.
 * Threads   one.
 */
#ifndef BL_GGUF_BYTES_H
#define BL_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* Value types of the format. */
enum { GB_U8, GB_I8, GB_U16, GB_I16, GB_U32, GB_I32, GB_F32, GB_BOOL, GB_STRING, GB_ARRAY, GB_U64, GB_I64, GB_F64 };
/* Tensor types of the format that the tests use. */
enum { GB_TENSOR_F32 = 0, GB_TENSOR_Q4_K = 12, GB_TENSOR_I32 = 26 };

struct gb {
    unsigned char *p;
    size_t n, cap;
};
void gb_finish(struct gb *);
void gb_save(const struct gb *, const char *path);
void gb_bytes(struct gb *, const void *p, size_t n);
void gb_zeros(struct gb *, size_t n);
void gb_pad(struct gb *, size_t align);
void gb_int(struct gb *, unsigned n_bytes, uint64_t v);                      /* little-endian */
void gb_set(struct gb *, size_t at, unsigned n_bytes, uint64_t v);           /* overwrites */
void gb_str(struct gb *, const char *s);                                     /* length and bytes */
void gb_header(struct gb *, uint64_t n_tensors, uint64_t n_kv);              /* version 3 */
void gb_key(struct gb *, const char *key, uint32_t type);                    /* the value follows */
void gb_array(struct gb *, const char *key, uint32_t item, uint64_t n);      /* the elements follow */
void gb_kv_str(struct gb *, const char *key, const char *s);
void gb_kv_int(struct gb *, const char *key, uint32_t type, uint64_t v);     /* any integer type, or bool */
void gb_tensor(struct gb *, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t off);

/* Where the fields of gb_small's file stand, so that a test can spoil one. */
struct gb_marks {
    size_t version, n_tensors, n_kv;
    size_t arch_len, arch_text, arch_type, arch_value; /* general.architecture */
    size_t align_type, align_value;                    /* general.alignment */
    size_t bool_value;                                 /* test.bool */
    size_t words_item, words_n, words_len, words_last; /* test.words: string[3]; lengths of elements 0 and 2 */
    size_t numbers_n;                                  /* test.numbers: u32[3] */
    size_t flags_value;                                /* test.flags: bool[2] */
    size_t twin_text;                                  /* last byte of key test.ac; test.ab is before it */
    size_t a_len, a_text, a_n_dims, a_ne0, a_ne1, a_type, a_off; /* tensor t.a: f32 32 x 2, 256 bytes */
    size_t b_text, b_ne0, b_ne1, b_type, b_off;                  /* last byte of the name; t.b: q4_k 256 x 1, 144 bytes */
    size_t c_off;                                      /* t.c: f32 5, 20 bytes */
    size_t data, end;                                  /* data start, last tensor byte + 1 */
};
/* A valid file of about 900 bytes: 8 keys, 3 tensors; it ends with the last tensor byte. */
void gb_small(struct gb *, struct gb_marks *);

/* Shard `no` (0-based) of `count`: first_tensors of 32 floats named t<k>, k from first. Shard 0 has the architecture. */
struct gb_shard {
    uint32_t no, count, total, first, n_tensors;
};
void gb_shard(struct gb *, const struct gb_shard *);

#endif
