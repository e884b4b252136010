/* SPDX-License-Identifier: MIT */
/* neon_panel.h — panels of signed bytes: forms, tiles and packers, shared by the kernels with dot products and with i8mm.
 *
 * Purpose   weights of any quantised type become signed bytes with a float scale, and for some types an addend, per 16, 32
 *           or 256 columns; the two instruction sets differ in the order of the bytes and in the innermost loop only.
 *           Both do the same operations in the same order for a row and a token: their results are the same bits.
 *           Included by the files of the panels only.
 * Ownership none.
 * Units     columns in elements.
 * Errors    none.
 * Threads   pure.
 *
 * A tile's part of 256 columns of T tokens: 256 T activations in the order of the instruction set, then floats [row][token]:
 * 8 rows of scales; where the form has addends, a row of what each of them is multiplied by.
 *   law Q8_K        f = sum of scale * (integer sum) + addend * (sum of activations), in order; c += f * d
 *   laws Q8_0, Q8_1 c += scale * (integer sum * d) + addend * (sum of activations * d), one after the other */
#ifndef BL_ARM_NEON_PANEL_H
#define BL_ARM_NEON_PANEL_H

#include "neon_codebook.h"
#include "neon_decode.h"
#include "dtype_unpack.h"

/* 256 columns of 32 rows. */
struct panel_part {
    int8_t code[256 * BL_PANEL_ROWS];
    float scale[16][BL_PANEL_ROWS];
    float addend[16][BL_PANEL_ROWS];
} BL_ALIGNED(64);

/* What differs between types once they are packed; constant in each kernel. */
struct form {
    int columns; /* of a scale: 16, 32, 256 */
    bool add;    /* has addends */
    bool q8_k;   /* activations have one scale in 256 */
};
/* X(name, columns, add, q8_k) */
#define PANEL_FORMS(X)                                                                                                   \
    X(ACT_32, 32, false, false)                                                                                          \
    X(ACT_32_ADD, 32, true, false)                                                                                       \
    X(ACT_16, 16, false, false)                                                                                          \
    X(BY_32, 32, false, true)                                                                                            \
    X(BY_32_ADD, 32, true, true)                                                                                         \
    X(BY_16, 16, false, true)                                                                                            \
    X(BY_16_ADD, 16, true, true)                                                                                         \
    X(WHOLE, 256, false, true)

/* Every type with its form and the least tokens for which a panel pays: 8 where rows are decoded in registers, which dots
 * do too; more where the portable unpackers decode. By instruction counts, not by measurement. */
#define PANEL_BLOCKS(X)                                                                                                  \
    X(Q8_0, q8_0, ACT_32, 8)                                                                                             \
    X(Q4_0, q4_0, ACT_32, 8)                                                                                             \
    X(Q4_1, q4_1, ACT_32_ADD, 8)                                                                                         \
    X(Q5_0, q5_0, ACT_32, 8)                                                                                             \
    X(Q5_1, q5_1, ACT_32_ADD, 8)                                                                                         \
    X(IQ4_NL, iq4_nl, ACT_32, 8)                                                                                         \
    X(MXFP4, mxfp4, ACT_32, 8)
#define PANEL_K(X)                                                                                                       \
    X(Q2_K, q2_k, BY_16_ADD, 8)                                                                                          \
    X(Q3_K, q3_k, BY_16, 8)                                                                                              \
    X(Q4_K, q4_k, BY_32_ADD, 8)                                                                                          \
    X(Q5_K, q5_k, BY_32_ADD, 8)                                                                                          \
    X(Q6_K, q6_k, BY_16, 8)                                                                                              \
    X(IQ4_XS, iq4_xs, BY_32, 8)                                                                                          \
    X(TQ2_0, tq2_0, WHOLE, 8)
#define PANEL_CODEBOOK(X)                                                                                                \
    X(IQ3_XXS, iq3_xxs, BY_32, 8)                                                                                        \
    X(IQ3_S, iq3_s, BY_32, 8)                                                                                            \
    X(IQ2_XXS, iq2_xxs, BY_32, 8)                                                                                        \
    X(IQ2_XS, iq2_xs, BY_16, 8)                                                                                          \
    X(IQ2_S, iq2_s, BY_16, 8)                                                                                            \
    X(IQ1_S, iq1_s, BY_32, 8)                                                                                            \
    X(IQ1_M, iq1_m, BY_16, 8)
#define PANEL_UNPACKED(X)                                                                                                \
    X(TQ1_0, tq1_0, WHOLE, 12)                                                                                           \
    X(NVFP4, nvfp4, ACT_16, 12)                                                                                          \
    X(Q1_0, q1_0, ACT_32, 12)                                                                                            \
    X(Q2_0, q2_0, ACT_32, 12)

/* ---- tiles ---- */

BL_ALWAYS_INLINE uint32_t scales_of(const struct form *f)
{
    return 256 / (uint32_t)f->columns;
}
/* Of a token in a part. */
BL_ALWAYS_INLINE uint32_t token_bytes(const struct form *f)
{
    return 256 + 4 * (8 + (f->add ? scales_of(f) : 0));
}
/* The floats of a part behind the activations of T tokens. */
struct tile_floats {
    const float *d;   /* [8][T] */
    const float *sum; /* [scales_of][T] */
};
BL_ALWAYS_INLINE struct tile_floats floats_of(const char *tile, int T)
{
    const float *d = (const float *)(const void *)(tile + 256 * T);
    return (struct tile_floats){d, d + 8 * T};
}
/* unit: bytes of a token that stay together. */
BL_ALWAYS_INLINE void arrange_tile(const struct form *f, uint32_t unit, void *tile, uint32_t n_tok, uint32_t k,
                                   const void *const *x)
{
    char *part = tile;
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, part += token_bytes(f) * n_tok)
        for (uint32_t t = 0; t < n_tok; t++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[t] + b;
            float *d = (float *)(void *)(part + 256 * n_tok) + t, *sum = d + 8 * n_tok;
            for (uint32_t i = 0; i < 256 / unit; i++)
                memcpy(part + (i * n_tok + t) * unit, a->q + i * unit, unit);
            for (uint32_t i = 0; i < 8; i++)
                d[i * n_tok] = a->d[i];
            for (uint32_t i = 0; f->add && i < scales_of(f); i++) {
                const int s = f->columns == 16 ? a->sum[i] : a->sum[2 * i] + a->sum[2 * i + 1];
                sum[i * n_tok] = f->q8_k ? (float)s : (float)s * a->d[i];
            }
        }
}

/* ---- packing: four rows at a time ---- */

/* Where they go, and where they come from. */
struct row_quad {
    struct panel_part *part;
    int first;
    const char *w;
    size_t stride;
};
BL_ALWAYS_INLINE const char *row_of(const struct row_quad *to, int r)
{
    return to->w + (size_t)r * to->stride;
}
/* Stores columns 16 i to 16 i + 15 of four rows, in the order of the instruction set. */
typedef void put_fn(const struct row_quad *to, int i, const int8x16_t q[4]);

/* n columns, at most 256 and whole blocks. */
BL_ALWAYS_INLINE void pack_blocks(const struct block_type *t, put_fn *put, const struct row_quad *to, int n)
{
    const int blocks = n / 32;
    for (int b = 0; b < blocks; b++) {
        int8x16_t q[2][4];
        for (int r = 0; r < 4; r++) {
            const struct bytes32 u = unpack_block(t, row_of(to, r) + b * t->bytes);
            q[0][r] = u.lo, q[1][r] = u.hi;
        }
        put(to, 2 * b, q[0]);
        put(to, 2 * b + 1, q[1]);
    }
    for (int r = 0; r < 4; r++) {
        const char *p = row_of(to, r);
        const struct floats8 d = t->e8m0 ? load_e8m0(p, t->bytes, blocks) : load_scales(p, t->bytes, blocks);
        const struct floats8 m = t->has_min ? load_scales(p + 2, t->bytes, blocks) : d;
        float scale[8], addend[8];
        vst1q_f32(scale, d.lo), vst1q_f32(scale + 4, d.hi);
        vst1q_f32(addend, m.lo), vst1q_f32(addend + 4, m.hi);
        for (int b = 0; b < blocks; b++) {
            to->part->scale[b][to->first + r] = scale[b];
            if (t->has_min)
                to->part->addend[b][to->first + r] = addend[b];
        }
    }
}
/* 256 columns. */
BL_ALWAYS_INLINE void pack_k(enum bl_dtype t, const struct form *f, put_fn *put, const struct row_quad *to)
{
    for (int r = 0; r < 4; r++) {
        struct k_header h;
        load_header(t, &h, row_of(to, r));
        for (int i = 0; i < (int)scales_of(f); i++) {
            to->part->scale[i][to->first + r] = f->columns == 256 ? h.d : h.d * (float)h.scale[i];
            if (f->add)
                to->part->addend[i][to->first + r] = -h.dmin * (float)h.min[i];
        }
    }
    for (int i = 0; i < 16; i++) {
        int8x16_t q[4];
        for (int r = 0; r < 4; r++)
            q[r] = unpack16(t, row_of(to, r), i / 2, i % 2);
        put(to, i, q);
    }
}
BL_ALWAYS_INLINE void pack_codebook(enum bl_dtype t, const struct form *f, put_fn *put, const struct row_quad *to)
{
    const int step = f->columns / 16;
    for (int r = 0; r < 4; r++) {
        float scale[16];
        codebook_scales(t, scale, (const uint8_t *)row_of(to, r));
        for (int i = 0; i < (int)scales_of(f); i++)
            to->part->scale[i][to->first + r] = scale[i * step];
    }
    for (int i = 0; i < 16; i++) {
        int8x16_t q[4];
        for (int r = 0; r < 4; r++)
            q[r] = codebook16(t, (const uint8_t *)row_of(to, r), i);
        put(to, i, q);
    }
}
/* n columns, by way of the portable unpackers. */
BL_ALWAYS_INLINE void pack_unpacked(enum bl_dtype t, const struct form *f, put_fn *put, const struct row_quad *to, int n)
{
    const int elems = bl_dtypes[t].block_elems, bytes = bl_dtypes[t].block_bytes;
    int8_t code[4][256];
    struct bl_unpacked u;
    for (int r = 0; r < 4; r++)
        for (int at = 0; at < n; at += elems) {
            bl_unpackers[t].unpack(&u, (const uint8_t *)row_of(to, r) + at / elems * bytes);
            memcpy(code[r] + at, u.q, (size_t)elems);
            for (int i = at; i < at + elems; i += f->columns)
                to->part->scale[i / f->columns][to->first + r] = u.scale[(i - at) / 16];
        }
    for (int i = 0; i < n / 16; i++) {
        int8x16_t q[4];
        for (int r = 0; r < 4; r++)
            q[r] = vld1q_s8(code[r] + 16 * i);
        put(to, i, q);
    }
}

/* The body of a packer: n columns of four rows. */
typedef void pack_quad_fn(const struct row_quad *to, int n);

/* Less than four rows: those there are, and zeros, which decode to zero in every type. A row of a part has at most 272
 * bytes. */
BL_ALWAYS_INLINE void pack_parts(pack_quad_fn *body, uint32_t elems, uint32_t bytes, struct panel_part *part,
                                 uint32_t n_rows, uint32_t n_cols, const char *w, size_t w_stride)
{
    enum { STRIDE = 320 };
    char spare[4 * STRIDE];
    for (uint32_t at = 0; at < n_cols; at += 256, part++, w += 256 / elems * bytes) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (uint32_t first = 0; first < BL_PANEL_ROWS; first += 4) {
            struct row_quad to = {part, (int)first, w + first * w_stride, w_stride};
            if (n_rows < first + 4) {
                memset(spare, 0, sizeof spare);
                for (uint32_t r = first; r < n_rows; r++)
                    memcpy(spare + (r - first) * STRIDE, w + r * w_stride, n / elems * bytes);
                to.w = spare, to.stride = STRIDE;
            }
            body(&to, (int)n);
        }
    }
}
#define PACK_ENTRY(name, body, elems, bytes)                                                                             \
    static void name(void *panel, uint32_t n_rows, uint32_t n_cols, const void *w, size_t w_stride)                      \
    {                                                                                                                    \
        pack_parts(body, elems, bytes, panel, n_rows, n_cols, w, w_stride);                                              \
    }
/* The packers of all types, once `put` says in which order bytes lie. */
#define PACK_BLOCK(e, id, form, from)                                                                                    \
    static void quad_##id(const struct row_quad *to, int n)                                                              \
    {                                                                                                                    \
        pack_blocks(&id##_type, put, to, n);                                                                             \
    }                                                                                                                    \
    PACK_ENTRY(pack_##id, quad_##id, 32, (uint32_t)id##_type.bytes)
#define PACK_K(e, id, form, from)                                                                                        \
    static void quad_##id(const struct row_quad *to, int n)                                                              \
    {                                                                                                                    \
        (void)n;                                                                                                         \
        pack_k(BL_##e, &form##_traits, put, to);                                                                         \
    }                                                                                                                    \
    PACK_ENTRY(pack_##id, quad_##id, 256, (uint32_t)block_bytes(BL_##e))
#define PACK_CODEBOOK(e, id, form, from)                                                                                        \
    static void quad_##id(const struct row_quad *to, int n)                                                              \
    {                                                                                                                    \
        (void)n;                                                                                                         \
        pack_codebook(BL_##e, &form##_traits, put, to);                                                                         \
    }                                                                                                                    \
    PACK_ENTRY(pack_##id, quad_##id, 256, (uint32_t)codebook_bytes(BL_##e))
#define PACK_UNPACKED(e, id, form, from)                                                                                 \
    static void quad_##id(const struct row_quad *to, int n)                                                              \
    {                                                                                                                    \
        pack_unpacked(BL_##e, &form##_traits, put, to, n);                                                               \
    }                                                                                                                    \
    PACK_ENTRY(pack_##id, quad_##id, bl_dtypes[BL_##e].block_elems, bl_dtypes[BL_##e].block_bytes)

/* The functions of a form, once `multiply` and UNIT are there. */
#define FORM_FUNCTIONS(name, columns, add, q8_k)                                                                         \
    static const struct form name##_traits = {columns, add, q8_k};                                                       \
    static void name##_arrange(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)                             \
    {                                                                                                                    \
        arrange_tile(&name##_traits, UNIT, tile, n_tok, k, x);                                                           \
    }                                                                                                                    \
    static void name##_multiply(float *c, const void *panel, const void *tile, uint32_t n_tok, uint32_t n_cols,          \
                                bool add_to)                                                                             \
    {                                                                                                                    \
        multiply(&name##_traits, c, panel, tile, n_tok, n_cols, add_to);                                                 \
    }
#define PANEL_ENTRY(e, id, form, least)                                                                                  \
    t->panel[BL_##e] = (struct bl_panel_kernel){.name = "panel_" #id "_act_8__" ISA,                                     \
                                                .pack = pack_##id,                                                       \
                                                .arrange = form##_arrange,                                               \
                                                .multiply = form##_multiply,                                             \
                                                .part_bytes = (uint16_t)token_bytes(&form##_traits),                     \
                                                .tokens = TOKENS,                                                        \
                                                .from = least};

#endif
