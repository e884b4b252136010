/* SPDX-License-Identifier: MIT */
/* gguf_impl.h — what the files of the GGUF reader and writer share.
 *
 * Purpose   gguf_parse.c turns one untrusted file into tables; gguf.c joins shards and finds names.
 * Ownership the object owns its files, tables and the names in its arena.
 * Units     bytes, elements.
 * Errors    as gguf.h.
 * Threads   one while it is built, any number after.
 */
#ifndef BL_GGUF_IMPL_H
#define BL_GGUF_IMPL_H

#include "gguf.h"
#include "mem.h"

/* Far above any real file; they bound what a hostile header can make us allocate. */
enum {
    BL_GGUF_MAX_KV = 1 << 16,
    BL_GGUF_MAX_TENSORS = 1 << 18,
    BL_GGUF_MAX_SHARDS = 1000,
    BL_GGUF_MAX_KEY_BYTES = 1 << 16,
    BL_GGUF_MAX_NAME_BYTES = 256, /* the specification says 64; some writers do not care */
    BL_GGUF_MAX_STRING_BYTES = 1 << 30,
    BL_GGUF_MAX_ITEMS = 1 << 30,
    BL_GGUF_MAX_VISITED = 1 << 24, /* strings or bools in an array: each is checked at open */
    BL_GGUF_MAX_ALIGNMENT = 1 << 16
};

struct bl_gguf {
    struct bl_file **file; /* one per shard */
    uint32_t n_files;
    struct bl_arena names; /* keys and tensor names */
    struct bl_kv *kv;      /* in file order, of the first shard */
    uint32_t n_kv;
    struct bl_tensor_info *tensor; /* in file order, shard after shard */
    uint32_t n_tensors;
    const struct bl_kv **by_key; /* sorted, no duplicates */
    const struct bl_tensor_info **by_name;
    uint64_t content_bytes; /* of a single file: where its last tensor or its header ends */
    uint32_t alignment;
    bool header_only;       /* tensor data may be missing, */
    uint64_t missing_bytes; /* and how much of it is, over all files */
    const char *label;      /* made in memory: no file, this in messages, */
    uint32_t cap_kv, cap_tensors; /* and no more than these */
};

/* Fills kv, by_key, tensor, content_bytes and alignment of an object that holds one open file.
 * Tensor ranges lie inside the file, unless header_only was set, and do not overlap; strings and arrays lie inside it too, so
 * walking them cannot run out. */
enum bl_status bl_gguf_parse(struct bl_gguf *);

/* Bytes of one element in the file; 0 for strings, arrays and unknown types. */
uint64_t bl_gguf_item_bytes(enum bl_value_type);
/* Most elements of an array. */
uint64_t bl_gguf_most_items(enum bl_value_type);
/* Bytes of a tensor; unused dimensions are 1. Fails, without saying where, when a row is no whole
 * number of blocks, a dimension is 0, or a product exceeds what a file can hold. */
enum bl_status bl_gguf_tensor_bytes(enum bl_dtype, const uint64_t ne[4], uint64_t *out);

#endif
