/* SPDX-License-Identifier: MIT */
/* panel_f32.h — panels of floats, for any type of weight; included by one file of each instruction set.
 *
 * Purpose   rows decoded and transposed to [column][32 rows], tokens as [column][token], products and sums in float. It
 *           serves the types and the instruction sets that have no kernels for packed codes.
 *           The includer may define BL_PANEL_ISA, the suffix of the names, and BL_PANEL_TOKENS, the widest tile: twice
 *           as many registers hold its sums.
 * Ownership as panel.h.
 * Units     as panel.h.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_PANEL_F32_H
#define BL_PANEL_F32_H

#include "cpu_kernels.h"

#if !defined(BL_PANEL_ISA) && defined(__aarch64__)
#define BL_PANEL_ISA "12__scalar"
#define BL_PANEL_TOKENS 12
#elif !defined(BL_PANEL_ISA)
#define BL_PANEL_ISA "6__scalar"
#define BL_PANEL_TOKENS 6
#endif

enum { PART = BL_PANEL_STEP, GROUP = 8, LANES = 2 * BL_LANES };

/* Eight rows are decoded side by side, so that what is written then are pieces of rows of the panel. */
static void pack_rows(enum bl_dtype type, float *panel, uint32_t n_rows, uint32_t n_cols, const uint8_t *w,
                      size_t w_stride)
{
    const size_t part_bytes = (size_t)bl_dtype_row_bytes(type, PART);
    float decoded[GROUP][PART];
    for (uint32_t c = 0; c < n_cols; c += PART, w += part_bytes, panel += PART * BL_PANEL_ROWS) {
        const uint32_t n = n_cols - c < PART ? n_cols - c : PART;
        for (uint32_t r = 0; r < BL_PANEL_ROWS; r += GROUP) {
            for (uint32_t i = 0; i < GROUP; i++) {
                const uint32_t from = r + i < n_rows ? n : 0;
                if (from)
                    bl_dtype_decode(type, from, decoded[i], w + (r + i) * w_stride);
                memset(decoded[i] + from, 0, (PART - from) * sizeof **decoded);
            }
            for (uint32_t k = 0; k < PART; k++)
                for (uint32_t i = 0; i < GROUP; i++)
                    panel[k * BL_PANEL_ROWS + r + i] = decoded[i][k];
        }
    }
}

/* One part of one token: 256 values, every n_tok-th place. */
static void place(float *tile, uint32_t n_tok, const float *x)
{
    for (uint32_t k = 0; k < PART; k++)
        tile[k * n_tok] = x[k];
}

static void arrange_f32(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)
{
    float *part = tile, padded[PART];
    for (uint32_t c = 0; c < k; c += PART, part += PART * n_tok)
        for (uint32_t t = 0; t < n_tok; t++) {
            const float *from = (const float *)x[t] + c;
            if (k - c < PART) {
                memset(padded, 0, sizeof padded);
                from = memcpy(padded, from, (k - c) * sizeof *from);
            }
            place(part + t, n_tok, from);
        }
}

static void arrange_act(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)
{
    float *part = tile, decoded[PART];
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, part += PART * n_tok)
        for (uint32_t t = 0; t < n_tok; t++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[t] + b;
            for (uint32_t i = 0; i < PART; i++)
                decoded[i] = a->d[i / 32] * (float)a->q[i];
            place(part + t, n_tok, decoded);
        }
}

/* Two registers of rows by n_tok tokens, all sums in registers. */
BL_ALWAYS_INLINE void multiply_tile(uint32_t n_tok, float *c, const float *panel, const float *x, uint32_t n_cols,
                                    bool add)
{
    for (uint32_t r = 0; r < BL_PANEL_ROWS; r += LANES) {
        bl_lanes sum[BL_PANEL_TOKENS][2];
        for (uint32_t t = 0; t < n_tok; t++)
            for (uint32_t i = 0; i < 2; i++)
                sum[t][i] = add ? *(const bl_lanes *)&c[t * BL_PANEL_ROWS + r + i * BL_LANES] : (bl_lanes){0};
        for (uint32_t k = 0; k < n_cols; k++) {
            const bl_lanes *w = (const bl_lanes *)&panel[k * BL_PANEL_ROWS + r];
            const bl_lanes w0 = w[0], w1 = w[1];
            for (uint32_t t = 0; t < n_tok; t++) {
                sum[t][0] += x[k * n_tok + t] * w0;
                sum[t][1] += x[k * n_tok + t] * w1;
            }
        }
        for (uint32_t t = 0; t < n_tok; t++)
            for (uint32_t i = 0; i < 2; i++)
                *(bl_lanes *)&c[t * BL_PANEL_ROWS + r + i * BL_LANES] = sum[t][i];
    }
}

static void multiply(float *c, const void *panel, const void *tile, uint32_t n_tok, uint32_t n_cols, bool add)
{
    switch (n_tok) {
#define TILE(n)                                                                                                        \
    case n:                                                                                                            \
        multiply_tile(n, c, panel, tile, n_cols, add);                                                                 \
        break;
        TILE(1)
        TILE(2)
        TILE(3)
        TILE(4)
        TILE(5)
        TILE(6)
#if BL_PANEL_TOKENS > 6
        TILE(7)
        TILE(8)
        TILE(9)
        TILE(10)
        TILE(11)
        TILE(12)
#endif
#undef TILE
    default:
        break;
    }
}

/* A kernel has no type argument: every row of dtype.def becomes a function. */
#define X(e, id, name, elems, bytes, law)                                                                              \
    static void pack_##e(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride)                \
    {                                                                                                                  \
        pack_rows(BL_##e, panel, n_rows, n_cols, w, w_stride);                                                         \
    }
#include "dtype.def"
#undef X

/* The panel of a weight type whose dots take x by that law. */
static inline struct bl_panel_kernel panel_of(enum bl_dtype type, uint8_t law, uint8_t from)
{
    static const struct {
        bl_pack_fn *pack;
        const char *f32_name, *act_name;
    } packs[BL_N_DTYPES] = {
#define X(e, id, name, elems, bytes, law)                                                                              \
    [BL_##e] = {pack_##e, "panel_" name "_f32_" BL_PANEL_ISA, "panel_" name "_act_" BL_PANEL_ISA},
#include "dtype.def"
#undef X
    };
    const bool is_float = law == BL_ACT_F32;
    return (struct bl_panel_kernel){.name = is_float ? packs[type].f32_name : packs[type].act_name,
                                    .pack = packs[type].pack,
                                    .arrange = is_float ? arrange_f32 : arrange_act,
                                    .multiply = multiply,
                                    .part_bytes = PART * sizeof(float),
                                    .tokens = BL_PANEL_TOKENS,
                                    .from = from};
}

#endif
