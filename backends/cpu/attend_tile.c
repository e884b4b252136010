/* SPDX-License-Identifier: MIT */
/* Portable tile kernels, in vectors of four floats that every compiler knows; products and sums may
 * be contracted here. */
#include <math.h>

#include "dtype_unpack.h"
#include "scalar.h"

enum {
    ROWS = 4, /* queries whose sums are in registers together */
#if defined(__aarch64__)
    VECTORS = 4, /* of keys or values beside them: half of the registers */
#else
    VECTORS = 2,
#endif
    LANES = 4,
    COLUMNS = VECTORS * LANES,
    PIECE = 256 /* elements decoded at once: whole blocks of every type */
};

static inline bl_float4 load(const float *p)
{
    bl_float4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float *p, bl_float4 v)
{
    memcpy(p, &v, sizeof v);
}

static inline bl_float4 all(float x)
{
    return (bl_float4){x, x, x, x};
}

/* ---- rows ---- */

static void decode_keys(enum bl_dtype type, uint32_t dk, float *panel, const uint8_t *base,
                        const uint64_t *row)
{
    const size_t piece_bytes = (size_t)bl_dtype_row_bytes(type, PIECE);
    float x[PIECE];
    for (uint32_t j = 0; j < BL_TILE_PANEL; j++) {
        const uint8_t *src = base + row[j];
        for (uint32_t at = 0; at < dk; at += PIECE, src += piece_bytes) {
            const uint32_t n = dk - at < PIECE ? dk - at : PIECE;
            bl_dtype_decode(type, n, x, src);
            for (uint32_t i = 0; i < n; i++)
                panel[(size_t)(at + i) * BL_TILE_PANEL + j] = x[i];
        }
    }
}

static void decode_values(enum bl_dtype type, uint32_t dv, uint32_t n, float *out,
                          const uint8_t *base, const uint64_t *row)
{
    const uint32_t width = bl_tile_padded(dv);
    for (uint32_t j = 0; j < n; j++, out += width) {
        bl_dtype_decode(type, dv, out, base + row[j]);
        memset(out + dv, 0, (width - dv) * sizeof *out);
    }
}

#define ROWS_OF(e)                                                                                 \
    static void keys_##e(uint32_t dk, float *panel, const void *base, const uint64_t *row)         \
    {                                                                                              \
        decode_keys(BL_##e, dk, panel, base, row);                                                 \
    }                                                                                              \
    static void values_##e(uint32_t dv, uint32_t n, float *out, const void *base,                  \
                           const uint64_t *row)                                                    \
    {                                                                                              \
        decode_values(BL_##e, dv, n, out, base, row);                                              \
    }
ROWS_OF(F32)
ROWS_OF(F16)
ROWS_OF(BF16)
ROWS_OF(Q8_0)
ROWS_OF(Q4_0)

/* ---- scores ---- */

/* R queries and a few keys of the panel. */
BL_ALWAYS_INLINE void score_some(int R, uint32_t dk, float *score, const float *q,
                                 const float *panel)
{
    bl_float4 sum[ROWS][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = all(0);
    for (uint32_t i = 0; i < dk; i++, panel += BL_TILE_PANEL)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] += all(q[(size_t)r * dk + i]) * load(panel + v * LANES);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++)
            store(score + r * BL_TILE_KEYS + v * LANES, sum[r][v]);
}

static void ask(uint32_t n, bl_tile_ahead *ahead)
{
    for (uint32_t i = 0; ahead && i < n; i++)
        BL_PREFETCH(ahead[i]);
}

static void scores(uint32_t dk, uint32_t n, float *score, const float *q, const float *panel,
                   bl_tile_ahead *ahead)
{
    ask(dk, ahead);
    for (uint32_t c = 0; c < BL_TILE_PANEL; c += COLUMNS) {
        uint32_t r = 0;
        for (; r + ROWS <= n; r += ROWS)
            score_some(ROWS, dk, score + r * BL_TILE_KEYS + c, q + (size_t)r * dk, panel + c);
        for (; r < n; r++)
            score_some(1, dk, score + r * BL_TILE_KEYS + c, q + (size_t)r * dk, panel + c);
    }
}

/* ---- weights ---- */

/* 2^x for x <= 0: 2^n 2^f, |f| <= 1/2, by a polynomial of degree 6, within 1e-7; 0 below -126. */
static inline float power(float x)
{
    const float magic = 12582912.0f, limited = x < -126 ? -126 : x; /* NaN stays */
    const float shifted = limited + magic, f = limited - (shifted - magic);
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* the last bits of the shifted number are n */
    float p = 0x1.414ebcp-13f, scale;
    p = p * f + 0x1.5f03ecp-10f;
    p = p * f + 0x1.3b2e0cp-7f;
    p = p * f + 0x1.c6af8ap-5f;
    p = p * f + 0x1.ebfbdcp-3f;
    p = p * f + 0x1.62e43p-1f;
    p = p * f + 1;
    memcpy(&scale, &bits, sizeof scale);
    return x < -126 ? 0 : p * scale;
}

/* A NaN never wins. */
static float largest(const float x[BL_TILE_KEYS], uint32_t first, uint32_t end, float max)
{
    for (uint32_t j = first; j < end; j++)
        max = x[j] > max ? x[j] : max;
    return max;
}

static void weights_of_row(float x[BL_TILE_KEYS], struct bl_tile *t, uint32_t r)
{
    const uint32_t first = t->first[r], end = t->end[r];
    const float max = largest(x, first, end, t->max[r]), from = max == -INFINITY ? 0 : max;
    float part[8] = {0};
    for (uint32_t j = 0; j < BL_TILE_KEYS; j++) {
        const float p = power(x[j] - from);
        x[j] = j >= first && j < end ? p : 0;
    }
    for (uint32_t j = 0; j < BL_TILE_KEYS; j += 8)
        for (uint32_t c = 0; c < 8; c++)
            part[c] += x[j + c];
    t->keep[r] = power(t->max[r] - from);
    t->max[r] = max;
    t->sum[r] = t->sum[r] * t->keep[r] + (((part[0] + part[4]) + (part[2] + part[6])) +
                                          ((part[1] + part[5]) + (part[3] + part[7])));
}

static void weights(uint32_t n, float *score, struct bl_tile *t)
{
    for (uint32_t r = 0; r < n; r++)
        weights_of_row(score + r * BL_TILE_KEYS, t, r);
}

/* ---- sums ---- */

BL_ALWAYS_INLINE void sum_some(int R, uint32_t width, uint32_t n_keys, float *acc,
                               const float *weight, const float *values, const float *keep)
{
    bl_float4 sum[ROWS][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = load(acc + (size_t)r * width + v * LANES) * all(keep ? keep[r] : 1);
    for (uint32_t j = 0; j < n_keys; j++, values += width)
        for (int r = 0; r < R; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] += all(weight[r * BL_TILE_KEYS + j]) * load(values + v * LANES);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++)
            store(acc + (size_t)r * width + v * LANES, sum[r][v]);
}

static void sum(uint32_t dv, uint32_t n, uint32_t n_keys, float *acc, const float *weight,
                const float *values, const float *keep, bl_tile_ahead *ahead)
{
    const uint32_t width = bl_tile_padded(dv);
    ask(n_keys * (width / 32), ahead);
    for (uint32_t c = 0; c < width; c += COLUMNS) {
        uint32_t r = 0;
        for (; r + ROWS <= n; r += ROWS)
            sum_some(ROWS, width, n_keys, acc + (size_t)r * width + c, weight + r * BL_TILE_KEYS,
                     values + c, keep ? keep + r : NULL);
        for (; r < n; r++)
            sum_some(1, width, n_keys, acc + (size_t)r * width + c, weight + r * BL_TILE_KEYS,
                     values + c, keep ? keep + r : NULL);
    }
}

void bl_scalar_tiles(struct bl_cpu_kernels *kernels)
{
    kernels->rows[BL_F32] =
        (struct bl_rows_kernel){"rows_f32_f32_1__scalar", keys_F32, values_F32, NULL, NULL};
    kernels->rows[BL_F16] =
        (struct bl_rows_kernel){"rows_f16_f32_1__scalar", keys_F16, values_F16, NULL, NULL};
    kernels->rows[BL_BF16] =
        (struct bl_rows_kernel){"rows_bf16_f32_1__scalar", keys_BF16, values_BF16, NULL, NULL};
    kernels->rows[BL_Q8_0] =
        (struct bl_rows_kernel){"rows_q8_0_f32_1__scalar", keys_Q8_0, values_Q8_0, NULL, NULL};
    kernels->rows[BL_Q4_0] =
        (struct bl_rows_kernel){"rows_q4_0_f32_1__scalar", keys_Q4_0, values_Q4_0, NULL, NULL};
    kernels->tile = (struct bl_tile_kernel){"tile_f32_f32_4x8__scalar", scores, weights, sum};
}
