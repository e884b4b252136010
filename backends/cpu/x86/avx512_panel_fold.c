/* SPDX-License-Identifier: MIT */
/* AVX-512 panels folded: codes become bytes of one scale for a row's 256 columns, so that int32
 * sums run on to the end. A panel is folded where it lies, in the first-level cache. The factors of
 * all of it come first: they wait for a maximum and a division, the codes then for nothing. */
#include "avx512_panel.h"

enum {
    PARTS = BL_PANEL_COLS / BL_PANEL_STEP,
    LINES = 2 * PARTS * 16 /* blocks of a panel, of 16 rows and 16 columns or more */
};

/* What the codes of a block become: code * factor + add, words that are 256 times the new code,
 * modulo 2^16. */
struct line {
    __m512i factor, add;
};
/* The values of codes of a block: of one, and of `offset`. */
struct values {
    __m512 scale, middle;
};
BL_ALWAYS_INLINE struct values values_of(enum panel_fold_more more, const struct panel_half *h,
                                         int offset, int j)
{
    const struct panel_part *p = h->part;
    struct values v = {get_scale(h, j), _mm512_setzero_ps()};
    if (more == FOLD_MINIMA) {
        const __m512i pair = _mm512_load_si512(&p->minima[j / 2][h->first]);
        const __m512i min =
            j % 2 ? _mm512_srli_epi32(pair, 16) : _mm512_and_si512(pair, _mm512_set1_epi32(0xffff));
        v.middle =
            _mm512_fnmadd_ps(to_float(min), _mm512_load_ps(&p->min_scale[h->first]), v.middle);
    }
    if (more != FOLD_PLAIN)
        v.middle = _mm512_fmadd_ps(v.scale, _mm512_set1_ps((float)offset), v.middle);
    return v;
}
/* The most that codes of the block amount to. */
BL_ALWAYS_INLINE __m512 reach(enum panel_fold_more more, const struct panel_fold *f,
                              const struct values *v)
{
    const __m512 least = _mm512_set1_ps(f->least), most = _mm512_set1_ps(f->most);
    if (more == FOLD_PLAIN)
        return _mm512_mul_ps(_mm512_abs_ps(v->scale),
                             _mm512_max_ps(_mm512_abs_ps(least), _mm512_abs_ps(most)));
    return _mm512_max_ps(_mm512_abs_ps(_mm512_fmadd_ps(v->scale, least, v->middle)),
                         _mm512_abs_ps(_mm512_fmadd_ps(v->scale, most, v->middle)));
}
/* Of 16 rows and a part; the scale of the new codes is stored. Factors are rounded before the
 * offset is taken from what they make of it. */
BL_ALWAYS_INLINE void lines_of(enum panel_fold_more more, int n_scales, struct line *line,
                               const struct panel_half *h, const struct panel_fold *f)
{
    const __m512i twice =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
    const __m512 offset = _mm512_set1_ps((float)f->offset);
    struct values v[16];
    __m512 size = _mm512_setzero_ps();
    for (int j = 0; j < n_scales; j++) {
        v[j] = values_of(more, h, f->offset, j);
        size = _mm512_max_ps(size, reach(more, f, &v[j]));
    }
    const __mmask16 some = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
    const __m512 per = _mm512_maskz_div_ps(some, _mm512_set1_ps(127 * 256), size);
    for (int j = 0; j < n_scales; j++) {
        const __m512 factor = _mm512_roundscale_ps(_mm512_mul_ps(v[j].scale, per), 0);
        const __m512 middle = _mm512_fmadd_ps(v[j].middle, per, _mm512_set1_ps(128.5f * 256));
        const __m512 add = _mm512_fnmadd_ps(factor, offset, middle);
        line[j].factor = _mm512_shuffle_epi8(_mm512_cvtps_epi32(factor), twice);
        line[j].add = _mm512_shuffle_epi8(_mm512_cvtps_epi32(add), twice);
    }
    put_scale(h, 0, _mm512_mul_ps(size, _mm512_set1_ps(1 / 127.0f)));
}

BL_ALWAYS_INLINE __m512i fold_codes(__m512i v, const struct line *line)
{
    const __m512i upper =
        _mm512_broadcast_i32x4(_mm_setr_epi8(1, 0, 3, 0, 5, 0, 7, 0, 9, 0, 11, 0, 13, 0, 15, 0));
    const __m512i even = _mm512_and_si512(v, _mm512_set1_epi16(0xff));
    const __m512i odd = _mm512_srli_epi16(v, 8);
    const __m512i low = _mm512_add_epi16(_mm512_mullo_epi16(even, line->factor), line->add);
    const __m512i high = _mm512_add_epi16(_mm512_mullo_epi16(odd, line->factor), line->add);
    return _mm512_mask_shuffle_epi8(high, 0x5555555555555555, low, upper);
}
BL_ALWAYS_INLINE void fold_part(int columns, int n_scales, const struct line *line, uint8_t *code)
{
    for (int j = 0; j < n_scales; j++, line++) {
        const struct line l = *line;
        for (int i = 0; i < columns / 4; i++, code += 4 * BL_PANEL_ROWS)
            _mm512_store_si512(code, fold_codes(_mm512_load_si512(code), &l));
    }
}
BL_ALWAYS_INLINE void fold_panel(enum panel_fold_more more, int columns, struct panel_part *part,
                                 uint32_t n_cols, const struct panel_fold *f)
{
    struct line line[LINES], *at = line;
    for (uint32_t p = 0; 256 * p < n_cols; p++)
        for (int first = 0; first < BL_PANEL_ROWS; first += 16, at += 256 / columns) {
            const struct panel_half h = {part + p, first};
            const uint32_t left = n_cols - 256 * p;
            lines_of(more, (int)(left < 256 ? left : 256) / columns, at, &h, f);
        }
    at = line;
    for (uint32_t p = 0; 256 * p < n_cols; p++)
        for (int first = 0; first < BL_PANEL_ROWS; first += 16, at += 256 / columns) {
            const uint32_t left = n_cols - 256 * p;
            fold_part(columns, (int)(left < 256 ? left : 256) / columns, at,
                      part[p].code[0][first]);
        }
}
void bl_avx512_fold(void *panel, uint32_t n_cols, const struct panel_fold *f)
{
    if (f->columns == 16)
        fold_panel(FOLD_PLAIN, 16, panel, n_cols, f);
    else if (f->more == FOLD_PLAIN)
        fold_panel(FOLD_PLAIN, 32, panel, n_cols, f);
    else
        fold_panel(FOLD_MINIMA, 32, panel, n_cols, f);
}
