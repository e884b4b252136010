/* SPDX-License-Identifier: MIT */
/* Panels by dot products: four rows are the lanes of a register, four columns of a token one lane
 * of another.
 *
 * Codes lie as [group of four columns][row][4], activations as [group][token][4]. Sixteen integer
 * sums stay in registers: sixteen rows by four tokens, or eight rows by eight. */
#include "neon_panel.h"

#define ISA "neon"
enum { TOKENS = 8, UNIT = 4, MOST = 16 /* sums */ };

BL_ALWAYS_INLINE void put(const struct row_quad *to, int i, const int8x16_t q[4])
{
    int8_t *code = to->part->code + 4 * i * 4 * BL_PANEL_ROWS + 4 * to->first;
    const int32x4_t a = vreinterpretq_s32_s8(q[0]), b = vreinterpretq_s32_s8(q[1]);
    const int32x4_t c = vreinterpretq_s32_s8(q[2]), d = vreinterpretq_s32_s8(q[3]);
    const int64x2_t ab[2] = {vreinterpretq_s64_s32(vtrn1q_s32(a, b)),
                             vreinterpretq_s64_s32(vtrn2q_s32(a, b))};
    const int64x2_t cd[2] = {vreinterpretq_s64_s32(vtrn1q_s32(c, d)),
                             vreinterpretq_s64_s32(vtrn2q_s32(c, d))};
    for (int j = 0; j < 2; j++) {
        vst1q_s8(code + 4 * j * BL_PANEL_ROWS, vreinterpretq_s8_s64(vtrn1q_s64(ab[j], cd[j])));
        vst1q_s8(code + 4 * (j + 2) * BL_PANEL_ROWS,
                 vreinterpretq_s8_s64(vtrn2q_s64(ab[j], cd[j])));
    }
}

/* acc + four rows of w times the four columns of token t % 4 in x */
BL_ALWAYS_INLINE int32x4_t dot_token(int32x4_t acc, int8x16_t w, int8x16_t x, int t)
{
    switch (t % 4) {
    case 0:
        return vdotq_laneq_s32(acc, w, x, 0);
    case 1:
        return vdotq_laneq_s32(acc, w, x, 1);
    case 2:
        return vdotq_laneq_s32(acc, w, x, 2);
    default:
        return vdotq_laneq_s32(acc, w, x, 3);
    }
}

/* The integer sums of scale i: T tokens by R registers of four rows. The last load of a row reads
 * up to twelve bytes of what follows it in the tile. */
BL_ALWAYS_INLINE void int_sums(const struct form *f, int T, int R, int32x4_t *acc,
                               const int8_t *code, const char *x, int i)
{
    const int groups = f->columns / 4;
    code += (size_t)(i * groups) * 4 * BL_PANEL_ROWS;
    x += (size_t)(i * groups * 4 * T);
    for (int j = 0; j < T * R; j++)
        acc[j] = vdupq_n_s32(0);
    for (int g = 0; g < groups; g++, code += 4 * BL_PANEL_ROWS, x += 4 * T) {
        int8x16_t w[4], q[2];
        for (int r = 0; r < R; r++)
            w[r] = vld1q_s8(code + 16 * r);
        for (int t = 0; t < T; t += 4)
            q[t / 4] = vld1q_s8((const int8_t *)x + 4 * t);
        for (int t = 0; t < T; t++)
            for (int r = 0; r < R; r++)
                acc[t * R + r] = dot_token(acc[t * R + r], w[r], q[t / 4], t);
    }
}

/* c += a part of 4 R rows, n scales of which are in use. */
BL_ALWAYS_INLINE void add_part(const struct form *f, int T, int R, float *c,
                               const struct panel_part *part, int first, const char *tile, int n)
{
    const struct tile_floats x = floats_of(tile, T);
    float32x4_t sum[MOST];
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++)
            sum[t * R + r] = f->q8_k ? vdupq_n_f32(0) : vld1q_f32(c + t * BL_PANEL_ROWS + 4 * r);
    for (int i = 0; i < n; i++) {
        int32x4_t acc[MOST];
        int_sums(f, T, R, acc, part->code + 4 * first, tile, i);
        for (int r = 0; r < R; r++) {
            const float32x4_t scale = vld1q_f32(&part->scale[i][first + 4 * r]);
            for (int t = 0; t < T; t++) {
                float32x4_t v = vcvtq_f32_s32(acc[t * R + r]), *s = &sum[t * R + r];
                if (!f->q8_k)
                    v = vmulq_n_f32(v, x.d[i * f->columns / 32 * T + t]);
                *s = vfmaq_f32(*s, v, scale);
                if (f->add)
                    *s = vfmaq_n_f32(*s, vld1q_f32(&part->addend[i][first + 4 * r]),
                                     x.sum[i * T + t]);
            }
        }
    }
    for (int t = 0; t < T; t++)
        for (int r = 0; r < R; r++) {
            float *to = c + t * BL_PANEL_ROWS + 4 * r;
            const float32x4_t s = sum[t * R + r];
            vst1q_f32(to, f->q8_k ? vfmaq_n_f32(vld1q_f32(to), s, x.d[t]) : s);
        }
}

BL_ALWAYS_INLINE void multiply_width(const struct form *f, int T, float *c,
                                     const struct panel_part *part, const char *tile,
                                     uint32_t n_cols)
{
    const int R = T <= 4 ? 4 : 2;
    for (uint32_t at = 0; at < n_cols; at += 256, part++, tile += token_bytes(f) * (uint32_t)T) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (int first = 0; first < BL_PANEL_ROWS; first += 4 * R)
            add_part(f, T, R, c + first, part, first, tile, (int)n / f->columns);
    }
}
BL_ALWAYS_INLINE void multiply(const struct form *f, float *c, const void *panel, const void *tile,
                               uint32_t n_tok, uint32_t n_cols, bool add)
{
    if (!add)
        memset(c, 0, n_tok * BL_PANEL_ROWS * sizeof *c);
    switch (n_tok) {
#define WIDTH(n)                                                                                   \
    case n:                                                                                        \
        multiply_width(f, n, c, panel, tile, n_cols);                                              \
        break;
        WIDTH(1)
        WIDTH(2)
        WIDTH(3)
        WIDTH(4)
        WIDTH(5)
        WIDTH(6)
        WIDTH(7)
        WIDTH(8)
#undef WIDTH
    default:
        break;
    }
}

PANEL_FORMS(FORM_FUNCTIONS)
PANEL_BLOCKS(PACK_BLOCK)
PANEL_K(PACK_K)
PANEL_CODEBOOK(PACK_CODEBOOK)
PANEL_UNPACKED(PACK_UNPACKED)

void bl_cpu_neon_panel(struct bl_cpu_kernels *t)
{
    PANEL_BLOCKS(PANEL_ENTRY)
    PANEL_K(PANEL_ENTRY)
    PANEL_CODEBOOK(PANEL_ENTRY)
    PANEL_UNPACKED(PANEL_ENTRY)
}
