/* SPDX-License-Identifier: MIT */
/* AVX-512 panels: tiles of tokens, and their products with a panel.
 *
 * A tile's part of 256 columns is a matrix of dwords [row][token]: 64 rows of four activations,
 * then rows of start values, of scales and of what else the form needs. The tokens of a row lie
 * side by side, so a tile has any width.
 *
 * The inner loops are assembly: they need 31 registers, and of the same in intrinsics gcc spills
 * some and clang reorders the rest (5 to 30 % lost). Every width does the same operations in the
 * same order for a token. */
#include "avx512_panel.h"

enum { START = 0x4b400000 }; /* bits of 1.5 * 2^23 */

/* ---- registers: M(token, int32 sums of rows 0-15, of rows 16-31, float sums of both) ---- */

#define TOKENS_1(M) M(0, 0, 1, 14, 15)
#define TOKENS_2(M) TOKENS_1(M) M(1, 2, 3, 16, 17)
#define TOKENS_3(M) TOKENS_2(M) M(2, 4, 5, 18, 19)
#define TOKENS_4(M) TOKENS_3(M) M(3, 6, 7, 20, 21)
#define TOKENS_5(M) TOKENS_4(M) M(4, 8, 9, 22, 23)
#define TOKENS_6(M) TOKENS_5(M) M(5, 10, 11, 24, 25)
#define TOKENS_7(M) TOKENS_6(M) M(6, 12, 13, 26, 27)
/* the float sums of wider tiles are in memory only */
#define TOKENS_8(M) TOKENS_7(M) M(7, 14, 15, 0, 0)
#define TOKENS_9(M) TOKENS_8(M) M(8, 16, 17, 0, 0)
#define TOKENS_10(M) TOKENS_9(M) M(9, 18, 19, 0, 0)
#define TOKENS_11(M) TOKENS_10(M) M(10, 20, 21, 0, 0)
#define TOKENS_12(M) TOKENS_11(M) M(11, 22, 23, 0, 0)
#define TOKENS_13(M) TOKENS_12(M) M(12, 24, 25, 0, 0)
#define TOKENS_14(M) TOKENS_13(M) M(13, 26, 27, 0, 0)
#define WIDTHS_7(M) M(1) M(2) M(3) M(4) M(5) M(6) M(7)
#define WIDTHS_14(M) WIDTHS_7(M) M(8) M(9) M(10) M(11) M(12) M(13) M(14)

#define Z(n) "%%zmm" #n
#define I1(op) op "\n\t"
#define I2(op, a, b) op " " a "," b "\n\t"
#define I3(op, a, b, c) op " " a "," b "," c "\n\t"
#define CLOBBERED                                                                                  \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",  \
        "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30",  \
        "xmm31", "memory", "cc"

/* ---- pieces. w: codes, x: activations, i: the rows behind them, s: scales, u: undo, m: minima,
 * d: their scale, c: the sums of the tile; all pointers. zmm28, zmm29: 32 rows of the panel ---- */

#define PANEL(from) I2("vmovaps", "(" from ")", Z(28)) I2("vmovaps", "64(" from ")", Z(29))
#define NEXT(pointer, bytes) I2("add", "$" bytes, pointer)

#define FROM_ZERO(t, a, b, f, g) I3("vpxord", Z(a), Z(a), Z(a)) I3("vpxord", Z(b), Z(b), Z(b))
#define FROM_START(t, a, b, f, g)                                                                  \
    I2("vpbroadcastd", "4*" #t "(%[i])", Z(a)) I2("vmovdqa64", Z(a), Z(b))
#define FLOATS_FROM_ZERO(t, a, b, f, g)                                                            \
    I3("vpxord", Z(f), Z(f), Z(f)) I3("vpxord", Z(g), Z(g), Z(g))
#define FLOATS_FROM_UNDO(t, a, b, f, g)                                                            \
    I2("vmovaps", "(%[u])", Z(f)) I2("vmovaps", "64(%[u])", Z(g))

/* four columns */
#define DOT(t, a, b, f, g)                                                                         \
    I2("vpbroadcastd", "4*" #t "(%[x])", Z(30))                                                    \
    I3("vpdpbusd", Z(30), Z(28), Z(a)) I3("vpdpbusd", Z(30), Z(29), Z(b))
#define COLUMNS_4(T) PANEL("%[w]") TOKENS_##T(DOT) NEXT("%[w]", "128") NEXT("%[x]", "4*" #T)
#define COLUMNS_16(T) I1(".rept 4") COLUMNS_4(T) I1(".endr")
#define COLUMNS_32(T) I1(".rept 8") COLUMNS_4(T) I1(".endr")

/* law Q8_K: scale of the weights only */
#define SCALE(t, a, b, f, g)                                                                       \
    I3("vfmadd231ps", Z(28), Z(a), Z(f)) I3("vfmadd231ps", Z(29), Z(b), Z(g))
/* laws Q8_0, Q8_1, N scales a part: rows i + N have the activation's scale d, rows i + 2 N
 * 1.5 * 2^23 d; s = (1.5 * 2^23 + sum) d - 1.5 * 2^23 d, f += s * scale of the weights */
#define SCALE_ACT(N, t, a, b, f, g)                                                                \
    I2("vbroadcastss", "4*" #t "+" #N "*%c[row](%[i])", Z(30))                                     \
    I2("vbroadcastss", "4*" #t "+2*" #N "*%c[row](%[i])", Z(31))                                   \
    I3("vfmsub132ps", Z(30), Z(31), Z(a)) I3("vfmsub132ps", Z(30), Z(31), Z(b)) SCALE(t, a, b, f, g)
#define SCALE_ACT_32(t, a, b, f, g) SCALE_ACT(8, t, a, b, f, g)
#define SCALE_ACT_16(t, a, b, f, g) SCALE_ACT(16, t, a, b, f, g)
/* rows i + 24: the sum of the 32 activations times d; %c[add]: from a scale to the addend */
#define ADDENDS(t, a, b, f, g)                                                                     \
    I2("vbroadcastss", "4*" #t "+24*%c[row](%[i])", Z(30))                                         \
    I3("vfmadd231ps", "%c[add](%[s])", Z(30), Z(f))                                                \
    I3("vfmadd231ps", "64+%c[add](%[s])", Z(30), Z(g))

/* pairs of minima times pairs of sums of activations */
#define PAIR(t, a, b, f, g)                                                                        \
    I2("vpbroadcastd", "4*" #t "(%[i])", Z(30))                                                    \
    I3("vpdpwssd", Z(30), Z(28), Z(a)) I3("vpdpwssd", Z(30), Z(29), Z(b))
#define PAIRS_1(T) PANEL("%[m]") TOKENS_##T(PAIR) NEXT("%[m]", "128") NEXT("%[i]", "4*" #T)
#define PAIRS_4(T) I1(".rept 4") PAIRS_1(T) I1(".endr")
#define TO_FLOAT(t, a, b, f, g) I2("vcvtdq2ps", Z(a), Z(a)) I2("vcvtdq2ps", Z(b), Z(b))
#define SUBTRACT(t, a, b, f, g)                                                                    \
    I3("vfnmadd231ps", Z(28), Z(a), Z(f)) I3("vfnmadd231ps", Z(29), Z(b), Z(g))
#define MINIMA_32(T)                                                                               \
    TOKENS_##T(FROM_ZERO) PAIRS_4(T) PANEL("%[d]") TOKENS_##T(TO_FLOAT) TOKENS_##T(SUBTRACT)

/* c[token] += f times the row i of activation scales; the same without scale */
#define ADD_SCALED(t, a, b, f, g)                                                                  \
    I2("vbroadcastss", "4*" #t "(%[i])", Z(30))                                                    \
    I3("vfmadd213ps", "128*" #t "(%[c])", Z(30), Z(f))                                             \
    I3("vfmadd213ps", "128*" #t "+64(%[c])", Z(30), Z(g))                                          \
    I2("vmovaps", Z(f), "128*" #t "(%[c])") I2("vmovaps", Z(g), "128*" #t "+64(%[c])")
#define ADD(t, a, b, f, g)                                                                         \
    I3("vaddps", "128*" #t "(%[c])", Z(f), Z(f))                                                   \
    I3("vaddps", "128*" #t "+64(%[c])", Z(g), Z(g))                                                \
    I2("vmovaps", Z(f), "128*" #t "(%[c])") I2("vmovaps", Z(g), "128*" #t "+64(%[c])")

/* whole parts, where the int32 sums take all registers: sums times zmm28 and zmm29 are added to c
 * in place of float sums */
#define TO_FLOAT_SCALED(t, a, b, f, g)                                                             \
    TO_FLOAT(t, a, b, f, g) I3("vmulps", Z(28), Z(a), Z(a)) I3("vmulps", Z(29), Z(b), Z(b))
#define ADD_SUMS(t, a, b, f, g) ADD_SCALED(t, , , a, b)
#define SUBTRACT_SUMS(t, a, b, f, g)                                                               \
    I2("vbroadcastss", "4*" #t "(%[i])", Z(30))                                                    \
    I3("vfnmadd213ps", "128*" #t "(%[c])", Z(30), Z(a))                                            \
    I3("vfnmadd213ps", "128*" #t "+64(%[c])", Z(30), Z(b))                                         \
    I2("vmovaps", Z(a), "128*" #t "(%[c])") I2("vmovaps", Z(b), "128*" #t "+64(%[c])")

/* ---- one part of each form and width: c[t] += part x tile. n: scales in use, at least one ---- */

#pragma GCC diagnostic ignored "-Woverlength-strings" /* of assembly; 4095 are portable */

typedef void tile_fn(float *c, const struct panel_part *, const char *x, long n);

#define EACH_SCALE(T, columns, scale)                                                              \
    I1("1:")                                                                                       \
    TOKENS_##T(FROM_START) columns(T) PANEL("%[s]") scale NEXT("%[s]", "128")                      \
        NEXT("%[i]", "4*" #T) I1("dec %[n]") I1("jnz 1b")
#define OPERANDS(T)                                                                                \
    [row] "i"(4 * (T)), [u] "r"(p->undo), [c] "r"(c), [d] "r"(p->min_scale),                       \
        [add] "i"(offsetof(struct panel_part, addend) - offsetof(struct panel_part, scale))
#define TILE(form, T, body)                                                                        \
    static void form##_##T(float *c, const struct panel_part *p, const char *x, long n)            \
    {                                                                                              \
        const void *w = p->code, *i = x + 4 * 64 * (T), *s = p->scale, *m = p->minima;             \
        __asm__ volatile(                                                                          \
            body                                                                                   \
            : [w] "+&r"(w), [x] "+&r"(x), [i] "+&r"(i), [s] "+&r"(s), [m] "+&r"(m), [n] "+&r"(n)   \
            : OPERANDS(T)                                                                          \
            : CLOBBERED);                                                                          \
    }

#define BY_32(T)                                                                                   \
    TILE(by_32, T,                                                                                 \
         TOKENS_##T(FLOATS_FROM_UNDO) EACH_SCALE(T, COLUMNS_32, TOKENS_##T(SCALE))                 \
             TOKENS_##T(ADD_SCALED))
#define BY_32_MIN(T)                                                                               \
    TILE(by_32_min, T,                                                                             \
         TOKENS_##T(FLOATS_FROM_UNDO) EACH_SCALE(T, COLUMNS_32, TOKENS_##T(SCALE)) MINIMA_32(T)    \
             TOKENS_##T(ADD_SCALED))
#define BY_16(T)                                                                                   \
    TILE(by_16, T,                                                                                 \
         TOKENS_##T(FLOATS_FROM_UNDO) EACH_SCALE(T, COLUMNS_16, TOKENS_##T(SCALE))                 \
             TOKENS_##T(ADD_SCALED))
#define ACT_32(T)                                                                                  \
    TILE(act_32, T,                                                                                \
         TOKENS_##T(FLOATS_FROM_ZERO) EACH_SCALE(T, COLUMNS_32, TOKENS_##T(SCALE_ACT_32))          \
             TOKENS_##T(ADD))
#define ACT_32_ADD(T)                                                                              \
    TILE(act_32_add, T,                                                                            \
         TOKENS_##T(FLOATS_FROM_ZERO)                                                              \
             EACH_SCALE(T, COLUMNS_32, TOKENS_##T(SCALE_ACT_32) TOKENS_##T(ADDENDS))               \
                 TOKENS_##T(ADD))
#define ACT_16(T)                                                                                  \
    TILE(act_16, T,                                                                                \
         TOKENS_##T(FLOATS_FROM_ZERO) EACH_SCALE(T, COLUMNS_16, TOKENS_##T(SCALE_ACT_16))          \
             TOKENS_##T(ADD))
/* n counts 32 columns */
#define WHOLE_SUMS(T)                                                                              \
    TOKENS_##T(FROM_START) NEXT("%[i]", "4*" #T) I1("1:") COLUMNS_32(T) I1("dec %[n]")             \
        I1("jnz 1b") PANEL("%[s]") TOKENS_##T(TO_FLOAT_SCALED)
#define WHOLE(T) TILE(whole, T, WHOLE_SUMS(T) TOKENS_##T(ADD_SUMS))
#define WHOLE_MIN(T)                                                                               \
    TILE(whole_min, T,                                                                             \
         WHOLE_SUMS(T) TOKENS_##T(ADD_SUMS) NEXT("%[i]", "4*" #T) TOKENS_##T(FROM_ZERO) PAIRS_4(T) \
             PAIRS_4(T) PANEL("%[d]") TOKENS_##T(TO_FLOAT_SCALED) I2("sub", "$9*4*" #T, "%[i]")    \
                 TOKENS_##T(SUBTRACT_SUMS))

WIDTHS_7(BY_32)
WIDTHS_7(BY_32_MIN)
WIDTHS_7(BY_16)
WIDTHS_7(ACT_32)
WIDTHS_7(ACT_32_ADD)
WIDTHS_7(ACT_16)
WIDTHS_14(WHOLE)
WIDTHS_14(WHOLE_MIN)

/* ---- float: n columns; [n] counts them ---- */

#define FMA(t, a, b, f, g)                                                                         \
    I2("vbroadcastss", "4*" #t "(%[x])", Z(30))                                                    \
    I3("vfmadd231ps", Z(30), Z(28), Z(a)) I3("vfmadd231ps", Z(30), Z(29), Z(b))
#define ADD_FLOATS(t, a, b, f, g) ADD(t, , , a, b)
#define FLOATS(T)                                                                                  \
    static void floats_##T(float *c, const float *w, const char *x, long n)                        \
    {                                                                                              \
        __asm__ volatile(TOKENS_##T(FROM_ZERO) I1("1:") PANEL("%[w]") TOKENS_##T(FMA)              \
                             NEXT("%[w]", "128") NEXT("%[x]", "4*" #T) I1("dec %[n]") I1("jnz 1b") \
                                 TOKENS_##T(ADD_FLOATS)                                            \
                         : [w] "+&r"(w), [x] "+&r"(x), [n] "+&r"(n)                                \
                         : [c] "r"(c)                                                              \
                         : CLOBBERED);                                                             \
    }
WIDTHS_14(FLOATS)

/* ---- multiply ---- */

static void clear_sums(float *c, uint32_t n_tok)
{
    for (uint32_t i = 0; i < 2 * n_tok; i++)
        _mm512_store_ps(c + 16 * i, _mm512_setzero_ps());
}
/* columns: those of one scale */
BL_ALWAYS_INLINE void multiply_parts(tile_fn *tile_of_width, uint32_t columns, uint32_t part_bytes,
                                     float *c, const struct panel_part *part, const char *tile,
                                     uint32_t n_tok, uint32_t n_cols, bool add)
{
    if (!add)
        clear_sums(c, n_tok);
    for (uint32_t at = 0; at < n_cols; at += 256, part++, tile += part_bytes * n_tok) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        tile_of_width(c, part, tile, n / columns);
    }
    _mm256_zeroupper(); /* the compiler does not know that assembly needs it */
}

/* Dwords of a token in a part; see fill_record. */
enum {
    BY_32_ROWS = 64 + 8 + 1,
    BY_32_MIN_ROWS = 64 + 8 + 4 + 1,
    BY_16_ROWS = 64 + 16 + 1,
    WHOLE_ROWS = 64 + 1 + 1,
    WHOLE_MIN_ROWS = 64 + 1 + 1 + 8,
    ACT_32_ROWS = 64 + 3 * 8,
    ACT_32_ADD_ROWS = 64 + 4 * 8,
    ACT_16_ROWS = 64 + 3 * 16,
    FLOAT_ROWS = 256
};
#define ENTRY_7(form) form##_1, form##_2, form##_3, form##_4, form##_5, form##_6, form##_7
#define ENTRY_14(form)                                                                             \
    ENTRY_7(form), form##_8, form##_9, form##_10, form##_11, form##_12, form##_13, form##_14
#define MULTIPLY(form, widths, columns, rows)                                                      \
    static void multiply_##form(float *c, const void *panel, const void *tile, uint32_t n_tok,     \
                                uint32_t n_cols, bool add)                                         \
    {                                                                                              \
        static tile_fn *const of_width[] = {NULL, widths(form)};                                   \
        multiply_parts(of_width[n_tok], columns, 4 * (rows), c, panel, tile, n_tok, n_cols, add);  \
    }
MULTIPLY(by_32, ENTRY_7, 32, BY_32_ROWS)
MULTIPLY(by_32_min, ENTRY_7, 32, BY_32_MIN_ROWS)
MULTIPLY(by_16, ENTRY_7, 16, BY_16_ROWS)
MULTIPLY(act_32, ENTRY_7, 32, ACT_32_ROWS)
MULTIPLY(act_32_add, ENTRY_7, 32, ACT_32_ADD_ROWS)
MULTIPLY(act_16, ENTRY_7, 16, ACT_16_ROWS)
MULTIPLY(whole, ENTRY_14, 32, WHOLE_ROWS)
MULTIPLY(whole_min, ENTRY_14, 32, WHOLE_MIN_ROWS)

/* A float panel has no parts: the tile's columns follow each other, too. */
static void multiply_float(float *c, const void *panel, const void *tile, uint32_t n_tok,
                           uint32_t n_cols, bool add)
{
    static void (*const of_width[])(float *, const float *, const char *,
                                    long) = {NULL, ENTRY_14(floats)};
    if (!add)
        clear_sums(c, n_tok);
    of_width[n_tok](c, panel, tile, n_cols);
    _mm256_zeroupper();
}

/* ---- arrange ---- */

/* What follows a token's 64 dwords of activations, in the order of the rows. */
struct record {
    int32_t dword[48] BL_ALIGNED(64);
};
BL_ALWAYS_INLINE __m512i starts(__m512i sums, int offset, int from)
{
    const __m512i off = _mm512_mullo_epi32(sums, _mm512_set1_epi32(offset));
    return _mm512_sub_epi32(_mm512_set1_epi32(from), off);
}
/* d rounded to 22 bits, so that 1.5 * 2^23 d is exact (a change of at most 2^-22) */
BL_ALWAYS_INLINE __m512 short_scale(__m512 d)
{
    const __m512i up = _mm512_add_epi32(_mm512_castps_si512(d), _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(-4)));
}
BL_ALWAYS_INLINE void fill_act_32(struct record *r, const struct bl_act_block *x, __m256i sums,
                                  int offset, bool add)
{
    const __m512i start = starts(_mm512_castsi256_si512(sums), offset, START);
    const __m256 d =
        _mm512_castps512_ps256(short_scale(_mm512_castps256_ps512(_mm256_load_ps(x->d))));
    _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start));
    _mm256_store_ps((void *)(r->dword + 8), d);
    _mm256_store_ps((void *)(r->dword + 16), _mm256_mul_ps(d, _mm256_set1_ps(0x1.8p23f)));
    if (add)
        _mm256_store_ps((void *)(r->dword + 24), _mm256_mul_ps(d, _mm256_cvtepi32_ps(sums)));
}
BL_ALWAYS_INLINE void fill_act_16(struct record *r, const struct bl_act_block *x, __m512i sums,
                                  int offset)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512 d =
        short_scale(_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_load_ps(x->d))));
    _mm512_store_si512(r->dword, starts(sums, offset, START));
    _mm512_store_ps(r->dword + 16, d);
    _mm512_store_ps(r->dword + 32, _mm512_mul_ps(d, _mm512_set1_ps(0x1.8p23f)));
}
BL_ALWAYS_INLINE void fill_record(enum panel_form form, int offset, struct record *r,
                                  const struct bl_act_block *x)
{
    const __m256i words = load256(x->sum);
    const __m512i by_16 = _mm512_cvtepi16_epi32(words);
    const __m256i by_32 = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const __m512i start_32 = starts(_mm512_castsi256_si512(by_32), offset, START);
    const int32_t total = _mm512_reduce_add_epi32(by_16);
    int32_t d;
    memcpy(&d, x->d, sizeof d);
    switch (form) {
    case FORM_BY_32:
        _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start_32));
        r->dword[8] = d;
        break;
    case FORM_BY_32_MIN:
        _mm256_store_si256((void *)r->dword, _mm512_castsi512_si256(start_32));
        _mm_store_si128((void *)(r->dword + 8), _mm256_cvtepi32_epi16(by_32));
        r->dword[12] = d;
        break;
    case FORM_BY_16:
        _mm512_store_si512(r->dword, starts(by_16, offset, START));
        r->dword[16] = d;
        break;
    case FORM_WHOLE:
    case FORM_WHOLE_MIN: /* one conversion for 256 columns is no reason to lose bits */
        r->dword[0] = -offset * total;
        r->dword[1] = d;
        if (form == FORM_WHOLE_MIN)
            memcpy(r->dword + 2, x->sum, sizeof x->sum);
        break;
    case FORM_ACT_16:
        fill_act_16(r, x, by_16, offset);
        break;
    default:
        fill_act_32(r, x, by_32, offset, form == FORM_ACT_32_ADD);
    }
}

/* dst[row][token] = dword `row` of four tokens of a tile that has n_tok, for `rows` rows, at most
 * 16. m: which of the four, all = all. */
BL_ALWAYS_INLINE void deal_four(int32_t *dst, size_t n_tok, uint32_t rows, bool all, __mmask8 m,
                                const int32_t *const x[4])
{
    const __m512i v0 = load512(x[0]), v1 = load512(x[1]), v2 = load512(x[2]), v3 = load512(x[3]);
    const __m512i a = _mm512_unpacklo_epi32(v0, v1), b = _mm512_unpackhi_epi32(v0, v1);
    const __m512i c = _mm512_unpacklo_epi32(v2, v3), d = _mm512_unpackhi_epi32(v2, v3);
    const __m512i q[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                          _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
/* The store apart from the extraction: gcc makes them one instruction, which faults at what the
 * mask leaves out. */
#define PUT(row)                                                                                   \
    if (row < rows) {                                                                              \
        __m128i four = _mm512_extracti32x4_epi32(q[row % 4], row / 4);                             \
        if (!all)                                                                                  \
            __asm__("" : "+v"(four));                                                              \
        if (all)                                                                                   \
            _mm_storeu_si128((void *)(dst + row * n_tok), four);                                   \
        else                                                                                       \
            _mm_mask_storeu_epi32(dst + row * n_tok, m, four);                                     \
    }
#define PUT_4(row) PUT((row)) PUT((row + 1)) PUT((row + 2)) PUT((row + 3))
    PUT_4(0)
    PUT_4(4)
    PUT_4(8)
    PUT_4(12)
#undef PUT_4
#undef PUT
}
BL_ALWAYS_INLINE void deal_rows(int32_t *dst, uint32_t n_tok, uint32_t rows,
                                const int32_t *const *x, uint32_t from)
{
    if (n_tok < 4) {
        const int32_t *four[4];
        for (uint32_t t = 0; t < 4; t++)
            four[t] = x[t < n_tok ? t : 0] + from;
        deal_four(dst, n_tok, rows, false, (__mmask8)((1u << n_tok) - 1), four);
        return;
    }
    /* the last four tokens overlap the four before where n_tok is no multiple of four */
    for (uint32_t t = 0; t < n_tok; t += 4) {
        const uint32_t first = t + 4 <= n_tok ? t : n_tok - 4;
        const int32_t *const four[4] = {x[first] + from, x[first + 1] + from, x[first + 2] + from,
                                        x[first + 3] + from};
        deal_four(dst + first, n_tok, rows, true, 15, four);
    }
}
/* x[t]: `rows` dwords of each token, readable to a multiple of 16 */
BL_ALWAYS_INLINE void deal(int32_t *dst, uint32_t n_tok, uint32_t rows, const int32_t *const *x)
{
    uint32_t r = 0;
    for (; r + 16 <= rows; r += 16, dst += 16 * (size_t)n_tok)
        deal_rows(dst, n_tok, 16, x, r);
    if (r < rows)
        deal_rows(dst, n_tok, rows - r, x, r);
}
/* apart, so that it is there once */
static void deal_activations(int32_t *dst, uint32_t n_tok, const int32_t *const *x)
{
    deal(dst, n_tok, 64, x);
}

BL_ALWAYS_INLINE void arrange_act(enum panel_form form, int offset, uint32_t rows, int32_t *tile,
                                  uint32_t n_tok, uint32_t k, const void *const *x)
{
    const int32_t *q[BL_TILE_TOKENS], *rest[BL_TILE_TOKENS];
    struct record record[BL_TILE_TOKENS];
    for (uint32_t b = 0; b < bl_act_blocks(k); b++, tile += rows * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[t] + b;
            q[t] = (const int32_t *)(const void *)a->q;
            rest[t] = record[t].dword;
            fill_record(form, offset, &record[t], a);
        }
        deal_activations(tile, n_tok, q);
        deal(tile + 64 * n_tok, n_tok, rows - 64, rest);
    }
}
#define ARRANGE(name, form, offset, rows)                                                          \
    static void name(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)                 \
    {                                                                                              \
        arrange_act(form, offset, rows, tile, n_tok, k, x);                                        \
    }
ARRANGE(arrange_by_32, FORM_BY_32, 128, BY_32_ROWS)
ARRANGE(arrange_by_32_min, FORM_BY_32_MIN, 0, BY_32_MIN_ROWS)
ARRANGE(arrange_by_16, FORM_BY_16, 128, BY_16_ROWS)
ARRANGE(arrange_by_16_off_32, FORM_BY_16, 32, BY_16_ROWS)
ARRANGE(arrange_whole_off_1, FORM_WHOLE, 1, WHOLE_ROWS)
ARRANGE(arrange_whole_off_127, FORM_WHOLE, 127, WHOLE_ROWS)
ARRANGE(arrange_whole_min, FORM_WHOLE_MIN, 0, WHOLE_MIN_ROWS)
ARRANGE(arrange_act_32, FORM_ACT_32, 128, ACT_32_ROWS)
ARRANGE(arrange_act_32_off_16, FORM_ACT_32, 16, ACT_32_ROWS)
ARRANGE(arrange_act_32_off_8, FORM_ACT_32, 8, ACT_32_ROWS)
ARRANGE(arrange_act_32_add, FORM_ACT_32_ADD, 0, ACT_32_ADD_ROWS)
ARRANGE(arrange_act_16, FORM_ACT_16, 128, ACT_16_ROWS)

static void arrange_float(void *tile, uint32_t n_tok, uint32_t k, const void *const *x)
{
    const int32_t *row[BL_TILE_TOKENS];
    int32_t *to = tile, last[BL_TILE_TOKENS][256];
    for (uint32_t at = 0; at < k; at += 256, to += 256 * n_tok) {
        for (uint32_t t = 0; t < n_tok; t++) {
            row[t] = (const int32_t *)x[t] + at;
            if (k - at >= 256)
                continue;
            memset(last[t], 0, sizeof last[t]);
            memcpy(last[t], row[t], (k - at) * sizeof(float));
            row[t] = last[t];
        }
        deal(to, n_tok, 256, row);
    }
}

/* ---- entries ---- */

struct form {
    bl_multiply_fn *multiply;
    uint16_t rows;
    uint8_t tokens;
    struct {
        int offset;
        bl_arrange_fn *arrange;
    } arrange[3];
};
static const struct form forms[] = {
    [FORM_BY_32] = {multiply_by_32, BY_32_ROWS, 7, {{128, arrange_by_32}}},
    [FORM_BY_32_MIN] = {multiply_by_32_min, BY_32_MIN_ROWS, 7, {{0, arrange_by_32_min}}},
    [FORM_BY_16] = {multiply_by_16,
                    BY_16_ROWS,
                    7,
                    {{32, arrange_by_16_off_32}, {128, arrange_by_16}}},
    [FORM_WHOLE] = {multiply_whole,
                    WHOLE_ROWS,
                    14,
                    {{1, arrange_whole_off_1}, {127, arrange_whole_off_127}}},
    [FORM_WHOLE_MIN] = {multiply_whole_min, WHOLE_MIN_ROWS, 14, {{0, arrange_whole_min}}},
    [FORM_ACT_32] = {multiply_act_32,
                     ACT_32_ROWS,
                     7,
                     {{8, arrange_act_32_off_8},
                      {16, arrange_act_32_off_16},
                      {128, arrange_act_32}}},
    [FORM_ACT_32_ADD] = {multiply_act_32_add, ACT_32_ADD_ROWS, 7, {{0, arrange_act_32_add}}},
    [FORM_ACT_16] = {multiply_act_16, ACT_16_ROWS, 7, {{128, arrange_act_16}}},
    [FORM_FLOAT] = {multiply_float, FLOAT_ROWS, 14, {{0, arrange_float}}},
};
struct bl_panel_kernel bl_avx512_panel(enum panel_form form, int offset, const char *name,
                                       bl_pack_fn *pack, uint8_t from)
{
    const struct form *f = &forms[form];
    size_t i = 0;
    while (i + 1 < BL_COUNT(f->arrange) && f->arrange[i].offset != offset)
        i++;
    return (struct bl_panel_kernel){.name = name,
                                    .pack = pack,
                                    .arrange = f->arrange[i].arrange,
                                    .multiply = f->multiply,
                                    .part_bytes = (uint16_t)(4 * f->rows),
                                    .tokens = f->tokens,
                                    .from = from};
}
void bl_cpu_avx512_panel(struct bl_cpu_kernels *t)
{
    bl_cpu_avx512_panel32(t);
    bl_cpu_avx512_panel_kquant(t);
    bl_cpu_avx512_panel_iquant(t);
    bl_cpu_avx512_panel_lowbit(t);
}
