/* SPDX-License-Identifier: MIT */
/* Random inputs that a reader of the failure can make again: all from one state. */
#include <float.h>

#include "check.h"

uint32_t check_random(struct context *c)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (uint32_t)(c->random >> 16);
}

float check_uniform(struct context *c, float from, float to)
{
    return from + (to - from) * (float)(check_random(c) >> 8) * 0x1p-24f;
}

static float one_float(struct context *c, enum fill fill)
{
    switch (fill) {
    case FILL_ZERO_INPUT:
        return 0;
    case FILL_LARGE: /* equal magnitudes: quantised to +-127 */
        return check_random(c) & 1 ? 1e6f : -1e6f;
    case FILL_TINY:
        return check_uniform(c, -1, 1) * 1e-4f;
    default:
        return check_uniform(c, -2, 2);
    }
}

void check_fill_floats(struct context *c, float *x, uint32_t n, enum fill fill)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = one_float(c, fill);
}

/* ---- weights ---- */

/* Where a block has its f16 scale and its second f16; -1 = none. */
struct scale_fields {
    int d, m;
};
static struct scale_fields scale_fields(enum bl_dtype t)
{
    switch (t) {
    case BL_Q4_1:
    case BL_Q5_1:
    case BL_Q4_K:
    case BL_Q5_K:
        return (struct scale_fields){0, 2};
    case BL_Q2_K:
        return (struct scale_fields){80, 82};
    case BL_Q3_K:
        return (struct scale_fields){108, -1};
    case BL_Q6_K:
        return (struct scale_fields){208, -1};
    case BL_TQ1_0:
        return (struct scale_fields){52, -1};
    case BL_TQ2_0:
        return (struct scale_fields){64, -1};
    case BL_F32:
    case BL_BF16:
    case BL_MXFP4:
    case BL_NVFP4:
    case BL_IQ1_M:
        return (struct scale_fields){-1, -1};
    default: /* f16 itself too */
        return (struct scale_fields){0, -1};
    }
}

static uint16_t random_f16(struct context *c, enum fill fill)
{
    const uint32_t r = check_random(c), sign = r >> 31 << 15;
    if (fill == FILL_LARGE)
        return (uint16_t)(sign | 0x7bff); /* 65504 */
    if (fill == FILL_TINY)
        return (uint16_t)(sign | (r & 0x3ff)); /* subnormal */
    return bl_f32_to_f16(check_uniform(c, -0.02f, 0.02f));
}

static uint8_t extreme_byte(struct context *c)
{
    static const uint8_t bytes[8] = {0x00, 0xff, 0x80, 0x7f, 0xf0, 0x0f, 0xaa, 0x55};
    return bytes[check_random(c) & 7];
}

static void store_f16(uint8_t *p, uint16_t h)
{
    memcpy(p, &h, sizeof h);
}

static void fill_scales(struct context *c, enum bl_dtype t, uint8_t *b, enum fill fill)
{
    const struct scale_fields f = scale_fields(t);
    if (f.d >= 0)
        store_f16(b + f.d, random_f16(c, fill));
    if (f.m >= 0)
        store_f16(b + f.m, random_f16(c, fill));
    if (t == BL_MXFP4) /* exponents 0 and 1 give subnormal floats, 200 a large one */
        b[0] = (uint8_t)(fill == FILL_TINY    ? check_random(c) % 4
                         : fill == FILL_LARGE ? 180 + check_random(c) % 8
                                              : 118 + check_random(c) % 8);
    if (t == BL_IQ1_M) { /* the f16 is spread over the top nibbles of four words */
        const uint16_t h = random_f16(c, fill);
        for (int i = 0; i < 4; i++)
            b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (h >> (4 * i) & 15) << 4);
    }
}

static void fill_float_row(struct context *c, enum bl_dtype t, uint8_t *row, uint32_t k,
                           enum fill fill)
{
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t r = check_random(c);
        float v = check_uniform(c, -1, 1);
        if (fill == FILL_LARGE)
            v = r & 1 ? 0x1p40f : -0x1p40f;
        if (fill == FILL_TINY)
            v *= t == BL_F32 ? FLT_MIN : 0x1p-120f;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        if (t == BL_F32)
            memcpy(row + 4 * (size_t)i, &bits, 4);
        else
            store_f16(row + 2 * (size_t)i,
                      t == BL_BF16 ? (uint16_t)(bits >> 16) : random_f16(c, fill));
    }
}

void check_fill_weights(struct context *c, enum bl_dtype t, uint8_t *row, uint32_t k,
                        enum fill fill)
{
    const struct bl_dtype_info *info = &bl_dtypes[t];
    const size_t bytes = (size_t)bl_dtype_row_bytes(t, k);
    if (fill == FILL_SPECIAL) {
        memset(row, 0, bytes);
        return;
    }
    if (info->block_elems == 1) {
        fill_float_row(c, t, row, k, fill);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        row[i] = fill == FILL_LARGE ? extreme_byte(c) : (uint8_t)check_random(c);
    for (size_t at = 0; at < bytes; at += info->block_bytes)
        fill_scales(c, t, row + at, fill);
}
