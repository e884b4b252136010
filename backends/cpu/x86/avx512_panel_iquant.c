/* SPDX-License-Identifier: MIT */
/* AVX-512 panels of the types with values from tables, and of rare types by way of their scalar
 * unpackers.
 *
 * A codebook entry is gathered for 16 rows at once, which is the transposition, too; its 2 or 3 bit
 * fields are spread to bytes and go through a table of the levels. */
#include "avx512_panel.h"
#include "dtype_unpack.h"

/* ---- unpacked by rows, then transposed ---- */

BL_ALWAYS_INLINE void unpacked_half(enum bl_dtype type, int n_scales, int offset,
                                    const struct panel_half *h, const uint8_t *w, size_t stride,
                                    int n)
{
    const int elems = bl_dtypes[type].block_elems, bytes = bl_dtypes[type].block_bytes;
    const int step = 256 / n_scales; /* columns of a scale */
    const __m512i off = _mm512_set1_epi8((char)offset);
    int8_t code[16][256 + 64] BL_ALIGNED(64); /* rows a power of two apart share cache sets */
    struct bl_unpacked u;
    for (int r = 0; r < 16; r++)
        for (int at = 0; at < n; at += elems) {
            bl_unpackers[type].unpack(&u, w + (size_t)r * stride + at / elems * bytes);
            memcpy(code[r] + at, u.q, (size_t)elems);
            for (int i = at; i < at + elems; i += step)
                h->part->scale[i / step][h->first + r] = u.scale[(i - at) / 16];
        }
    for (int c = 0; c < n / 16; c++) {
        __m512i q[4];
        columns((const uint8_t *)code[0] + 16 * c, sizeof code[0], q);
        for (int i = 0; i < 4; i++)
            put_code(h, 4 * c + i, _mm512_add_epi8(q[i], off));
    }
}
#define UNPACKED(type, name, n_scales, offset, elems, bytes, with_undo)                            \
    BL_ALWAYS_INLINE void name##_half(const struct panel_half *h, const uint8_t *w, size_t stride, \
                                      int n)                                                       \
    {                                                                                              \
        unpacked_half(type, n_scales, offset, h, w, stride, n);                                    \
        if (with_undo)                                                                             \
            put_undo(h, n_scales);                                                                 \
    }                                                                                              \
    PACK_ENTRY(pack_##name, name##_half, elems, bytes)
UNPACKED(BL_TQ1_0, tq1_0, 1, 1, 256, 54, false)
UNPACKED(BL_TQ2_0, tq2_0, 1, 1, 256, 66, false)
UNPACKED(BL_NVFP4, nvfp4, 16, 128, 64, 36, false)
UNPACKED(BL_Q1_0, q1_0, 8, 128, 128, 18, false)
UNPACKED(BL_Q2_0, q2_0, 8, 128, 64, 18, false)
UNPACKED(BL_IQ4_XS, iq4_xs, 8, 128, 256, 136, true)
UNPACKED(BL_IQ3_XXS, iq3_xxs, 8, 128, 256, 98, true)
UNPACKED(BL_IQ3_S, iq3_s, 8, 128, 256, 110, true)
UNPACKED(BL_IQ2_XXS, iq2_xxs, 8, 128, 256, 66, true)
UNPACKED(BL_IQ2_XS, iq2_xs, 16, 128, 256, 74, true)
UNPACKED(BL_IQ2_S, iq2_s, 16, 128, 256, 82, true)
UNPACKED(BL_IQ1_S, iq1_s, 8, 128, 256, 50, true)
UNPACKED(BL_IQ1_M, iq1_m, 16, 128, 256, 56, true)

void bl_cpu_avx512_panel_iquant(struct bl_cpu_kernels *t)
{
    PANEL_SET(t, IQ4_XS, FORM_BY_32, 128, "iq4_xs_act_7", pack_iq4_xs, 4);
    PANEL_SET(t, IQ3_XXS, FORM_BY_32, 128, "iq3_xxs_act_7", pack_iq3_xxs, 4);
    PANEL_SET(t, IQ3_S, FORM_BY_32, 128, "iq3_s_act_7", pack_iq3_s, 4);
    PANEL_SET(t, IQ2_XXS, FORM_BY_32, 128, "iq2_xxs_act_7", pack_iq2_xxs, 4);
    PANEL_SET(t, IQ2_XS, FORM_BY_16, 128, "iq2_xs_act_7", pack_iq2_xs, 4);
    PANEL_SET(t, IQ2_S, FORM_BY_16, 128, "iq2_s_act_7", pack_iq2_s, 4);
    PANEL_SET(t, IQ1_S, FORM_BY_32, 128, "iq1_s_act_7", pack_iq1_s, 4);
    PANEL_SET(t, IQ1_M, FORM_BY_16, 128, "iq1_m_act_7", pack_iq1_m, 4);
    PANEL_SET(t, TQ1_0, FORM_WHOLE, 1, "tq1_0_act_14", pack_tq1_0, 8);
    PANEL_SET(t, TQ2_0, FORM_WHOLE, 1, "tq2_0_act_14", pack_tq2_0, 8);
    PANEL_SET(t, NVFP4, FORM_ACT_16, 128, "nvfp4_act_7", pack_nvfp4, 8);
    PANEL_SET(t, Q1_0, FORM_ACT_32, 128, "q1_0_act_7", pack_q1_0, 8);
    PANEL_SET(t, Q2_0, FORM_ACT_32, 128, "q2_0_act_7", pack_q2_0, 8);
}
