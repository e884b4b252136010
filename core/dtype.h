/* SPDX-License-Identifier: MIT */
/* dtype.h — tensor element types: sizes, names, reference decoders and encoders.
 *
 * Purpose   one row per type (dtype.def); the decoders here are the specification every kernel is tested against.
 * Ownership none; everything is static.
 * Units     k and n are elements; sizes are bytes.
 * Errors    by_gguf_id reports retired and unknown ids; decode and encode cannot fail (k is a whole number of blocks).
 * Threads   any.
 */
#ifndef BL_DTYPE_H
#define BL_DTYPE_H

#include "status.h"

enum bl_dtype {
#define X(e, ...) BL_##e,
#include "dtype.def"
#undef X
    BL_N_DTYPES
};
/* What activations become before a dot with weights of the type. */
enum bl_act_law { BL_ACT_NONE, BL_ACT_F32, BL_ACT_Q8_0, BL_ACT_Q8_1, BL_ACT_Q8_K };

struct bl_dtype_info {
    const char *name;
    uint32_t gguf_id;
    uint16_t block_elems, block_bytes;
    uint8_t act; /* enum bl_act_law */
};
extern const struct bl_dtype_info bl_dtypes[BL_N_DTYPES];

/* BL_EFORMAT with a line naming the id, and the way out where the id is a retired or a fork's type. */
enum bl_status bl_dtype_by_gguf_id(uint32_t id, enum bl_dtype *out);
enum bl_status bl_dtype_by_name(const char *name, enum bl_dtype *out); /* BL_EINVAL: lists near names */

/* Bytes of a row of k elements; 0 when k is not a whole number of blocks or the bytes exceed 64 bits. */
uint64_t bl_dtype_row_bytes(enum bl_dtype, uint64_t k);

/* dst[0..k) = the row's values, bit for bit as ggml decodes them. Every type with a law but NONE, and Q8_1, Q8_K. */
void bl_dtype_decode(enum bl_dtype, uint64_t k, float *dst, const void *src);
/* Encodes to F32, F16, BF16, Q8_0, Q8_1, Q8_K, Q4_0 (KV caches, activations). Others: bl_dtype_can_encode is false. */
bool bl_dtype_can_encode(enum bl_dtype);
bool bl_dtype_can_cache(enum bl_dtype); /* of them those that dots take as weights: rows of state */
void bl_dtype_encode(enum bl_dtype, uint64_t k, void *dst, const float *src);

float bl_f16_to_f32(uint16_t);
uint16_t bl_f32_to_f16(float); /* round to nearest even; overflow gives infinity */

#endif
