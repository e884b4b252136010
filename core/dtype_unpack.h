/* SPDX-License-Identifier: MIT */
/* dtype_unpack.h — a quantised block as integers and scales.
 *
 * Purpose   every quantised type is small integers with one scale, and for some types one addend,
 *           per 16 elements. Written once per type, this serves decoding, the scalar dot and whoever
 *           repacks weights.
 * Ownership none; everything is static, results go to the caller's struct.
 * Units     elements; a block has bl_dtypes[].block_elems of them, at most 256, in whole sixteens.
 * Errors    none: any bytes are a block; the scales of a damaged one may be infinite or NaN.
 * Threads   any.
 */
#ifndef BL_DTYPE_UNPACK_H
#define BL_DTYPE_UNPACK_H

#include "dtype.h"

/* Element i is scale[i/16] * q[i], + add[i/16] where the type has addends; formed in float in this
 * order, it is the value bl_dtype_decode gives, bit for bit. Entries beyond the block, and add of
 * types without, are left alone. */
struct bl_unpacked {
    int8_t q[256];
    float scale[16], add[16];
};
typedef void bl_unpack_fn(struct bl_unpacked *, const uint8_t *block);

struct bl_unpacker {
    bl_unpack_fn *unpack; /* NULL: not a quantised type */
    bool has_add;
};
extern const struct bl_unpacker bl_unpackers[BL_N_DTYPES];

/* The codebook types, of dtype_iq.c; their callers go through the table. */
bl_unpack_fn bl_unpack_iq2_xxs, bl_unpack_iq2_xs, bl_unpack_iq2_s, bl_unpack_iq3_xxs;
bl_unpack_fn bl_unpack_iq3_s, bl_unpack_iq1_s, bl_unpack_iq1_m, bl_unpack_iq4_nl, bl_unpack_iq4_xs;

/* The 8-bit law of activations: returns d = max|x| / 127, q = x / d rounded to nearest even. A NaN
 * or an infinity among x makes d one too, so that it is seen downstream. */
float bl_quantize_i8(uint32_t n, int8_t *q, const float *x);

#endif
