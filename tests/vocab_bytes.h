/* SPDX-License-Identifier: MIT */
/* vocab_bytes.h — vocabularies written token by token, right and wrong ones, for tests.
 *
 * Purpose   a GGUF file with nothing but tokenizer keys, built without the library's writer.
 * Ownership zeroed = empty; vb_finish frees. Opened objects are the caller's.
 * Units     bytes.
 * Errors    fails the running test.
 * Threads   one.
 */
#ifndef BL_VOCAB_BYTES_H
#define BL_VOCAB_BYTES_H

#include "gguf_bytes.h"
#include "vocab.h"

/* token_type of the format */
enum { VB_NORMAL = 1, VB_UNKNOWN, VB_CONTROL, VB_USER, VB_UNUSED, VB_BYTE };

struct vb {
    const char *model, *pre; /* NULL: no such key */
    struct gb tokens, types, scores, merges, other;
    uint64_t n_tokens, n_types, n_scores, n_merges, n_other;
};
void vb_finish(struct vb *);
void vb_token(struct vb *, const void *s, size_t n_bytes, int type, float score);
void vb_word(struct vb *, const char *s, int type, float score);
void vb_merge(struct vb *, const void *s, size_t n_bytes);
void vb_key_int(struct vb *, const char *key, uint32_t type, uint64_t v);
void vb_key_str(struct vb *, const char *key, const char *s);
void vb_byte_tokens(struct vb *);           /* <0x00> to <0xFF> */
void vb_byte_alphabet(struct vb *);         /* the 256 characters of the byte-level alphabet, id = byte */
size_t vb_spell(char *out, const char *s, size_t n_bytes); /* bytes in that alphabet; out: 2 * n_bytes */

struct bl_gguf *vb_gguf(const struct vb *); /* saved, opened, unlinked */
struct bl_vocab *vb_open(const struct vb *);
enum bl_status vb_try(const struct vb *);   /* opens and closes */

#endif
