/* SPDX-License-Identifier: MIT */
/* gguf_impl.h — what the files of the GGUF reader share: the object and the parser of one file.
 *
 * Purpose   gguf_parse.c turns one untrusted file into tables; gguf.c joins the shards and finds by name.
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
    BL_GGUF_MAX_SHARDS = 1000
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
    uint64_t content_bytes; /* of a single file: where its last tensor, or without tensors its header, ends */
    uint32_t alignment;
};

/* Fills kv, by_key, tensor, content_bytes and alignment of an object that holds one open file. Tensor ranges lie
 * inside the file and do not overlap; strings and arrays lie inside it too, so walking them cannot run out. */
enum bl_status bl_gguf_parse(struct bl_gguf *);

/* Puts an untrusted name into `out` for a message: cut to fit, control bytes shown as '?'. Returns out. */
enum { BL_SHOWN_BYTES = 80 };
const char *bl_gguf_show(char out[BL_SHOWN_BYTES], const char *name);

#endif
