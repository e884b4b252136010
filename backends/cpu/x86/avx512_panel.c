/* SPDX-License-Identifier: MIT */
/* AVX-512 panels: products with tiles of tokens.
 *
 * The inner loops are assembly: they need 31 registers, and of the same in intrinsics gcc spills
 * some and clang reorders the rest (5 to 30 % lost). Every width does the same operations in the
 * same order for a token. */
#include "avx512_panel.h"

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

#define ENTRY_7(form) form##_1, form##_2, form##_3, form##_4, form##_5, form##_6, form##_7
#define ENTRY_14(form)                                                                             \
    ENTRY_7(form), form##_8, form##_9, form##_10, form##_11, form##_12, form##_13, form##_14
#define MULTIPLY(name, form, widths, columns, rows)                                                \
    void name(float *c, const void *panel, const void *tile, uint32_t n_tok, uint32_t n_cols,      \
              bool add)                                                                            \
    {                                                                                              \
        static tile_fn *const of_width[] = {NULL, widths(form)};                                   \
        multiply_parts(of_width[n_tok], columns, 4 * (rows), c, panel, tile, n_tok, n_cols, add);  \
    }
/* clang-format off */
static MULTIPLY(multiply_by_32, by_32, ENTRY_7, 32, BY_32_ROWS)
static MULTIPLY(multiply_by_32_min, by_32_min, ENTRY_7, 32, BY_32_MIN_ROWS)
static MULTIPLY(multiply_by_16, by_16, ENTRY_7, 16, BY_16_ROWS)
static MULTIPLY(multiply_act_32, act_32, ENTRY_7, 32, ACT_32_ROWS)
static MULTIPLY(multiply_act_32_add, act_32_add, ENTRY_7, 32, ACT_32_ADD_ROWS)
static MULTIPLY(multiply_act_16, act_16, ENTRY_7, 16, ACT_16_ROWS)
MULTIPLY(bl_avx512_multiply_whole, whole, ENTRY_14, 32, WHOLE_ROWS)
static MULTIPLY(multiply_whole_min, whole_min, ENTRY_14, 32, WHOLE_MIN_ROWS)

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

/* clang-format on */

/* ---- entries ---- */

struct bl_panel_kernel bl_avx512_panel(enum panel_form form, int offset, const char *name,
                                       bl_pack_fn *pack, uint8_t from)
{
    static const struct {
        bl_multiply_fn *multiply;
        uint16_t rows;
        uint8_t tokens;
    } forms[] = {
        [FORM_BY_32] = {multiply_by_32, BY_32_ROWS, 7},
        [FORM_BY_32_MIN] = {multiply_by_32_min, BY_32_MIN_ROWS, 7},
        [FORM_BY_16] = {multiply_by_16, BY_16_ROWS, 7},
        [FORM_WHOLE] = {bl_avx512_multiply_whole, WHOLE_ROWS, WHOLE_TOKENS},
        [FORM_WHOLE_MIN] = {multiply_whole_min, WHOLE_MIN_ROWS, WHOLE_TOKENS},
        [FORM_ACT_32] = {multiply_act_32, ACT_32_ROWS, 7},
        [FORM_ACT_32_ADD] = {multiply_act_32_add, ACT_32_ADD_ROWS, 7},
        [FORM_ACT_16] = {multiply_act_16, ACT_16_ROWS, 7},
        [FORM_FLOAT] = {multiply_float, FLOAT_ROWS, 14},
    };
    return (struct bl_panel_kernel){.name = name,
                                    .pack = pack,
                                    .arrange = bl_avx512_arrange(form, offset),
                                    .multiply = forms[form].multiply,
                                    .part_bytes = (uint16_t)(4 * forms[form].rows),
                                    .tokens = forms[form].tokens,
                                    .from = from};
}
void bl_cpu_avx512_panel(struct bl_cpu_kernels *t)
{
    bl_cpu_avx512_panel32(t);
    bl_cpu_avx512_panel_kquant(t);
    bl_cpu_avx512_panel_iquant(t);
    bl_cpu_avx512_panel_lowbit(t);
}
