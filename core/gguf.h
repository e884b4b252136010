/* SPDX-License-Identifier: MIT */
/* gguf.h — bounds-checked reader and writer of GGUF files; the parts behind the public accessors.
 *
 * Purpose   typed metadata with widening accessors, tensor lookup, access to the files behind it.
 * Ownership the reader owns copies of the key and name strings and the open files; kv data points into the mapping.
 * Units     bytes, elements.
 * Errors    BL_EFORMAT with file, what and where; wrong type is an error, absent is not (found = false or default).
 * Threads   read-only after open.
 */
#ifndef BL_GGUF_H
#define BL_GGUF_H

#include "dtype.h"
#include "file.h"

const char *bl_gguf_path(const struct bl_gguf *);       /* of the first shard */
struct bl_file *bl_gguf_file(const struct bl_gguf *, uint32_t shard);
uint64_t bl_gguf_heap_bytes(const struct bl_gguf *);    /* memory this object holds */
const struct bl_kv *bl_gguf_find(const struct bl_gguf *, const char *key);            /* NULL: absent */
const struct bl_tensor_info *bl_gguf_find_tensor(const struct bl_gguf *, const char *name, uint32_t *index);

/* Puts an untrusted name into `out` for a message: cut to fit, control bytes shown as '?'. Returns out. */
enum { BL_SHOWN_BYTES = 80 };
const char *bl_gguf_show(char out[BL_SHOWN_BYTES], const char *name);

/* Widening accessors: any integer width is accepted and range-checked. *out keeps its value when the key is absent.
 * `required` turns absence into BL_EFORMAT. */
enum bl_status bl_gguf_u32(const struct bl_gguf *, const char *key, bool required, uint32_t *out);
enum bl_status bl_gguf_i64(const struct bl_gguf *, const char *key, bool required, int64_t *out);
enum bl_status bl_gguf_f32(const struct bl_gguf *, const char *key, bool required, float *out);
enum bl_status bl_gguf_bool(const struct bl_gguf *, const char *key, bool required, bool *out);
/* String value: pointer into the file, not NUL-terminated. */
enum bl_status bl_gguf_str(const struct bl_gguf *, const char *key, bool required, const char **s, uint64_t *n_bytes);
/* Scalar broadcast to n, or an array of at least n entries. *found may be NULL. */
enum bl_status bl_gguf_u32_per_layer(const struct bl_gguf *, const char *key, bool required, uint32_t n,
                                     uint32_t *out, bool *found);
enum bl_status bl_gguf_f32_array(const struct bl_gguf *, const char *key, uint64_t i, float *out);  /* element i */
enum bl_status bl_gguf_i32_array(const struct bl_gguf *, const char *key, uint64_t i, int32_t *out);
/* Walks a string array front to back: start with *cursor = 0; false at the end. */
bool bl_gguf_next_string(const struct bl_kv *, uint64_t *cursor, const char **s, uint64_t *n_bytes);

/* ---- made in memory, without a file: keys and tensors are added, then it is read like any other ---- */
enum bl_status bl_gguf_create(struct bl_gguf **out, const char *label, uint32_t most_kv, uint32_t most_tensors);
enum bl_status bl_gguf_add_kv(struct bl_gguf *, const struct bl_kv *); /* copies */
enum bl_status bl_gguf_add_tensor(struct bl_gguf *, const char *name, enum bl_dtype, uint32_t n_dims,
                                  const uint64_t *ne);
enum bl_status bl_gguf_set_type(struct bl_gguf *, uint32_t tensor, enum bl_dtype);

/* ---- writer: metadata first, then tensor infos, then data in the same order ---- */
struct bl_gguf_writer;
enum bl_status bl_gguf_writer_create(struct bl_gguf_writer **out, const char *path, uint32_t alignment);
void bl_gguf_writer_abandon(struct bl_gguf_writer *); /* takes NULL; removes the unfinished file */
enum bl_status bl_gguf_put_u32(struct bl_gguf_writer *, const char *key, uint32_t);
enum bl_status bl_gguf_put_u64(struct bl_gguf_writer *, const char *key, uint64_t);
enum bl_status bl_gguf_put_f32(struct bl_gguf_writer *, const char *key, float);
enum bl_status bl_gguf_put_bool(struct bl_gguf_writer *, const char *key, bool);
enum bl_status bl_gguf_put_str(struct bl_gguf_writer *, const char *key, const char *s, uint64_t n_bytes);
enum bl_status bl_gguf_put_kv(struct bl_gguf_writer *, const struct bl_kv *); /* copies any value, arrays included */
enum bl_status bl_gguf_put_tensor(struct bl_gguf_writer *, const char *name, enum bl_dtype, uint32_t n_dims,
                                  const uint64_t *ne);
/* Data of the tensors in the order they were put; in pieces of any size. */
enum bl_status bl_gguf_write_data(struct bl_gguf_writer *, const void *bytes, uint64_t n);
uint64_t bl_gguf_writer_bytes(const struct bl_gguf_writer *); /* of the whole file, when all is put */
/* Checks that every byte was written, syncs, renames into place. Frees the writer, also on failure. */
enum bl_status bl_gguf_writer_finish(struct bl_gguf_writer *);
enum bl_status bl_gguf_writer_finish_header(struct bl_gguf_writer *); /* the same without any data */

#endif
