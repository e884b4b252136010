/* SPDX-License-Identifier: MIT */
/* Panels by products of matrices of bytes (i8mm): two rows by two tokens of eight columns.
 *
 * Codes lie as [group of eight columns][row][8], activations as [group][token][8]; a last token
 * without a partner is paired with itself. Sixteen integer sums of 2 x 2 stay in registers. Float
 * sums keep that shape until a part of 256 columns is done. */
#include "neon_panel.h"

#define ISA "i8mm"
enum { TOKENS = 8, UNIT = 8, MOST = 16 /* sums */ };

BL_ALWAYS_INLINE void put(const struct row_quad *to, int i, const int8x16_t q[4])
{
    int8_t *code = to->part->code + 2 * i * 8 * BL_PANEL_ROWS + 8 * to->first;
    for (int r = 0; r < 4; r += 2) {
        const int64x2_t a = vreinterpretq_s64_s8(q[r]), b = vreinterpretq_s64_s8(q[r + 1]);
        vst1q_s8(code + 8 * r, vreinterpretq_s8_s64(vtrn1q_s64(a, b)));
        vst1q_s8(code + 8 * r + 8 * BL_PANEL_ROWS, vreinterpretq_s8_s64(vtrn2q_s64(a, b)));
    }
}

/* ---- pairs of tokens: t is the first, T how many there are ---- */

BL_ALWAYS_INLINE int8x16_t load_pair(const char *x, int t, int T)
{
    const int64_t *p = (const int64_t *)(const void *)(x + 8 * t);
    return vreinterpretq_s8_s64(t + 1 < T ? vld1q_s64(p) : vld1q_dup_s64(p));
}
/* A value for each: both for the first row, both for the second. */
BL_ALWAYS_INLINE float32x4_t floats_pair(const float *x, int t, int T)
{
    const float32x2_t v = t + 1 < T ? vld1_f32(x + t) : vld1_dup_f32(x + t);
    return vcombine_f32(v, v);
}
/* Four rows of both tokens, as two sums of 2 x 2. */
struct quad {
    float32x4_t lo, hi;
};
BL_ALWAYS_INLINE struct quad load_rows(const float *c, int t, int T)
{
    const float32x4_t a = vld1q_f32(c + t * BL_PANEL_ROWS);
    const float32x4_t b = t + 1 < T ? vld1q_f32(c + (t + 1) * BL_PANEL_ROWS) : a;
    return (struct quad){vzip1q_f32(a, b), vzip2q_f32(a, b)};
}
BL_ALWAYS_INLINE void store_rows(float *c, int t, int T, struct quad v)
{
    vst1q_f32(c + t * BL_PANEL_ROWS, vuzp1q_f32(v.lo, v.hi));
    if (t + 1 < T)
        vst1q_f32(c + (t + 1) * BL_PANEL_ROWS, vuzp2q_f32(v.lo, v.hi));
}
/* The same for values of rows only. */
BL_ALWAYS_INLINE struct quad both_tokens(const float *rows)
{
    const float32x4_t a = vld1q_f32(rows);
    return (struct quad){vzip1q_f32(a, a), vzip2q_f32(a, a)};
}

/* ---- one part ---- */

/* The integer sums of scale i: P pairs of tokens by R pairs of rows. */
BL_ALWAYS_INLINE void int_sums(const struct form *f, int T, int R, int32x4_t *acc,
                               const int8_t *code, const char *x, int i)
{
    const int groups = f->columns / 8, P = (T + 1) / 2;
    code += (size_t)(i * groups) * 8 * BL_PANEL_ROWS;
    x += (size_t)(i * groups * 8 * T);
    for (int j = 0; j < P * R; j++)
        acc[j] = vdupq_n_s32(0);
    for (int g = 0; g < groups; g++, code += 8 * BL_PANEL_ROWS, x += 8 * T) {
        int8x16_t q[4];
        for (int p = 0; p < P; p++)
            q[p] = load_pair(x, 2 * p, T);
        for (int r = 0; r < R; r++) {
            const int8x16_t w = vld1q_s8(code + 16 * r);
            for (int p = 0; p < P; p++)
                acc[p * R + r] = vmmlaq_s32(acc[p * R + r], w, q[p]);
        }
    }
}
BL_ALWAYS_INLINE float32x4_t add_scaled(const struct form *f, float32x4_t sum, int32x4_t acc,
                                        float32x4_t d, float32x4_t scale)
{
    const float32x4_t v = vcvtq_f32_s32(acc);
    return vfmaq_f32(sum, f->q8_k ? v : vmulq_f32(v, d), scale);
}
/* c += a part of 2 R rows, n scales of which are in use. */
BL_ALWAYS_INLINE void add_part(const struct form *f, int T, int R, float *c,
                               const struct panel_part *part, int first, const char *tile, int n)
{
    const struct tile_floats x = floats_of(tile, T);
    struct quad sum[MOST / 2];
    for (int t = 0, j = 0; t < T; t += 2)
        for (int r = 0; r < R; r += 2, j++)
            sum[j] = f->q8_k ? (struct quad){vdupq_n_f32(0), vdupq_n_f32(0)}
                             : load_rows(c + 2 * r, t, T);
    for (int i = 0; i < n; i++) {
        int32x4_t acc[MOST];
        int_sums(f, T, R, acc, part->code + 8 * first, tile, i);
        for (int r = 0; r < R; r += 2) {
            const struct quad scale = both_tokens(&part->scale[i][first + 2 * r]);
            for (int t = 0; t < T; t += 2) {
                struct quad *s = &sum[(t * R / 2 + r) / 2];
                const int32x4_t *a = &acc[t * R / 2 + r];
                const float32x4_t d = floats_pair(x.d + i * f->columns / 32 * T, t, T);
                s->lo = add_scaled(f, s->lo, a[0], d, scale.lo);
                s->hi = add_scaled(f, s->hi, a[1], d, scale.hi);
                if (f->add) {
                    const struct quad addend = both_tokens(&part->addend[i][first + 2 * r]);
                    const float32x4_t q = floats_pair(x.sum + i * T, t, T);
                    s->lo = vfmaq_f32(s->lo, addend.lo, q);
                    s->hi = vfmaq_f32(s->hi, addend.hi, q);
                }
            }
        }
    }
    for (int t = 0, j = 0; t < T; t += 2)
        for (int r = 0; r < R; r += 2, j++) {
            struct quad v = sum[j];
            if (f->q8_k) {
                const float32x4_t d = floats_pair(x.d, t, T);
                const struct quad before = load_rows(c + 2 * r, t, T);
                v.lo = vfmaq_f32(before.lo, v.lo, d);
                v.hi = vfmaq_f32(before.hi, v.hi, d);
            }
            store_rows(c + 2 * r, t, T, v);
        }
}
BL_ALWAYS_INLINE void multiply_width(const struct form *f, int T, float *c,
                                     const struct panel_part *part, const char *tile,
                                     uint32_t n_cols)
{
    const int R = T <= 4 ? 8 : 4;
    for (uint32_t at = 0; at < n_cols; at += 256, part++, tile += token_bytes(f) * (uint32_t)T) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (int first = 0; first < BL_PANEL_ROWS; first += 2 * R)
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

void bl_cpu_i8mm(struct bl_cpu_kernels *t)
{
    PANEL_BLOCKS(PANEL_ENTRY)
    PANEL_K(PANEL_ENTRY)
    PANEL_CODEBOOK(PANEL_ENTRY)
    PANEL_UNPACKED(PANEL_ENTRY)
}
