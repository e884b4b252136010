/* SPDX-License-Identifier: MIT */
/* AMX panels: what the AVX-512 packers make, multiplied by tiles of 16 tokens.
 *
 * These kernels have not run on a processor with tiles: kernel_check runs them on the same
 * operations in plain C (tests/kernels/amx_emulate.h), and they are chosen only where one product
 * of tiles, made beforehand, is what plain C makes of it. Their results are those of the AVX-512
 * panels to the last bit. What follows is counted, not measured.
 *
 * A product of tiles is 16 tokens by 16 rows by up to 64 columns in 16 cycles, one a token, however
 * few the columns are: 1024 multiply-adds a cycle at 64 columns, where AVX-512 has 128. A scale
 * ends it: the sums go through memory to the vector units, which take two instructions of 512 bits
 * a cycle, as there are two loads a cycle. For each scale, cycles of tiles / vectors / loads, and
 * multiply-adds a cycle beside those of the AVX-512 kernel:
 *     of 256, both halves      128 / 64 / 152                                862 : 126
 *     of 32, law Q8_K           16 / 16 /  28                                293 : 114
 *     of 32, law Q8_0 or Q8_1   16 / 24 /  44                                186 : 102
 *     of 16, law Q8_K           16 / 16 /  26                                157 : 102
 *     of 16, law Q8_0           16 / 24 /  42                                 98 :  85
 * The last is left to AVX-512: what else a tile costs would take the rest. The configuration is
 * loaded for every call, as a thread may have been given another; a call is 2^18 multiply-adds. */
#include "avx512_panel.h"

#include "amx_tile.h"

enum { TOKENS = 16, HALF = 16 /* rows */, START = 0x4b400000 /* bits of 1.5 * 2^23 */ };
_Static_assert((int)TOKENS <= (int)BL_TILE_TOKENS, "tiles are as wide as the frames allow");

/* 256 columns of a token: rows of the tile that is the left factor, then what the scales need. A
 * scale is of 16 columns or of 32, where there are eight. */
struct token {
    int8_t q[256];
    int32_t
        start[16]; /* of the sums: START, or 0 for whole parts, minus offset * sum of activations */
    float d[16];   /* law Q8_K: one; otherwise eight and eight times 1.5 * 2^23 */
    union {
        float sums[8];    /* scaled, for addends */
        int16_t pair[16]; /* for minima, two at a time */
    } more;
    int32_t unused[8];
} BL_ALIGNED(64);

/* What differs between the forms; constant in each kernel. */
struct form {
    int groups; /* of four columns, of a scale */
    bool act;   /* activations have scales of their own */
    bool minima, addends;
};

/* Tiles: 0 and 1 sums, 2 and 3 activations, 4 and 5 weights. */
#define CONFIG(T, groups)                                                                          \
    {                                                                                              \
        .palette = 1, .rows = {T, T, T, T, groups, groups}, .row_bytes = {                         \
            64,                                                                                    \
            64,                                                                                    \
            4 * (groups),                                                                          \
            4 * (groups),                                                                          \
            64,                                                                                    \
            64                                                                                     \
        }                                                                                          \
    }

struct sums {
    int32_t at[2][TOKENS][HALF] BL_ALIGNED(64);
};

/* ---- scales of 16 and 32 columns: one half of one part ---- */

/* A statement for each token of a constant number: sums stay in registers. */
#define EACH_TOKEN(M)                                                                              \
    M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)

/* The sums of scale i; those of the next are on their way while these are scaled. */
#define PRODUCT(c, a, b)                                                                           \
    do {                                                                                           \
        TILE_LOAD(a, x->q + 4 * groups * i, sizeof *x);                                            \
        TILE_LOAD(b, p->code[groups * i][first], sizeof p->code[0]);                               \
        TILE_ZERO(c);                                                                              \
        TILE_DOT(c, a, b);                                                                         \
        TILE_STORE(to->at[c], sizeof to->at[0][0], c);                                             \
    } while (0)
BL_ALWAYS_INLINE void product(int groups, struct sums *to, const struct panel_part *p, int first,
                              const struct token *x, int i)
{
    if (i % 2)
        PRODUCT(1, 3, 5);
    else
        PRODUCT(0, 2, 4);
}
BL_ALWAYS_INLINE __m512 of_bits(__m512i v)
{
    return _mm512_castsi512_ps(v);
}
BL_ALWAYS_INLINE void scale_sums(const struct form *f, int T, __m512 acc[TOKENS],
                                 const struct sums *sums, const struct panel_part *p, int first,
                                 const struct token *x, int i)
{
    const __m512 scale = _mm512_load_ps(&p->scale[i][first]);
    const __m512 addend = f->addends ? _mm512_load_ps(&p->addend[i][first]) : scale;
#define SCALE(t)                                                                                   \
    if ((t) < T) {                                                                                 \
        __m512 v = of_bits(                                                                        \
            _mm512_add_epi32(load512(sums->at[i % 2][t]), _mm512_set1_epi32(x[t].start[i])));      \
        if (f->act)                                                                                \
            v = _mm512_fmsub_ps(v, _mm512_set1_ps(x[t].d[i]), _mm512_set1_ps(x[t].d[8 + i % 8]));  \
        acc[t] = _mm512_fmadd_ps(v, scale, acc[t]);                                                \
        if (f->addends)                                                                            \
            acc[t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t].more.sums[i % 8]), addend, acc[t]);       \
    }
    EACH_TOKEN(SCALE)
#undef SCALE
}
/* The sum of n pairs of minima times pairs of sums of activations. */
BL_ALWAYS_INLINE __m512 minima_of(int n, const struct panel_part *p, int first,
                                  const struct token *x)
{
    __m512i v = _mm512_setzero_si512();
    for (int j = 0; j < n; j++) {
        int32_t pair;
        memcpy(&pair, x->more.pair + 2 * j, sizeof pair);
        v = _mm512_dpwssd_epi32(v, load512(&p->minima[j][first]), _mm512_set1_epi32(pair));
    }
    return to_float(v);
}
/* c[t] += the part times the tile; n: scales in use */
BL_ALWAYS_INLINE void add_half(const struct form *f, int T, float *c, const struct panel_part *p,
                               int first, const struct token *x, int n)
{
    const __m512 undo = f->act ? _mm512_setzero_ps() : _mm512_load_ps(p->undo + first);
    const __m512 min_scale = f->minima ? _mm512_load_ps(p->min_scale + first) : undo;
    struct sums sums;
    __m512 acc[TOKENS];
#define CLEAR(t)                                                                                   \
    if ((t) < T)                                                                                   \
        acc[t] = undo;
    EACH_TOKEN(CLEAR)
#undef CLEAR
    product(f->groups, &sums, p, first, x, 0);
    for (int i = 0; i < n; i++) {
        if (i + 1 < n)
            product(f->groups, &sums, p, first, x, i + 1);
        scale_sums(f, T, acc, &sums, p, first, x, i);
    }
#define FINISH(t)                                                                                  \
    if ((t) < T) {                                                                                 \
        float *to = c + (t)*BL_PANEL_ROWS + first;                                                 \
        const __m512 before = _mm512_load_ps(to);                                                  \
        if (f->minima)                                                                             \
            acc[t] = _mm512_fnmadd_ps(minima_of(4, p, first, x + (t)), min_scale, acc[t]);         \
        _mm512_store_ps(to, f->act ? _mm512_add_ps(acc[t], before)                                 \
                                   : _mm512_fmadd_ps(acc[t], _mm512_set1_ps(x[t].d[0]), before));  \
    }
    EACH_TOKEN(FINISH)
#undef FINISH
}

/* ---- one scale of 256 columns ---- */

BL_ALWAYS_INLINE void add_whole(bool minima, float *c, const struct panel_part *p,
                                const struct token *x, uint32_t n_tok)
{
    struct sums sums;
    TILE_ZERO(0);
    TILE_ZERO(1);
    for (int i = 0; i < 4; i++) {
        TILE_LOAD(2, x->q + 64 * i, sizeof *x);
        TILE_LOAD(4, p->code[16 * i][0], sizeof p->code[0]);
        TILE_DOT(0, 2, 4);
        TILE_LOAD(5, p->code[16 * i][HALF], sizeof p->code[0]);
        TILE_DOT(1, 2, 5);
    }
    TILE_STORE(sums.at[0], sizeof sums.at[0][0], 0);
    TILE_STORE(sums.at[1], sizeof sums.at[0][0], 1);
    for (uint32_t t = 0; t < n_tok; t++)
        for (int half = 0; half < 2; half++) {
            const int first = HALF * half;
            const __m512 d = _mm512_set1_ps(x[t].d[0]), scale = _mm512_load_ps(p->scale[0] + first);
            const __m512i v =
                _mm512_add_epi32(load512(sums.at[half][t]), _mm512_set1_epi32(x[t].start[0]));
            float *to = c + t * BL_PANEL_ROWS + first;
            __m512 sum = _mm512_fmadd_ps(_mm512_mul_ps(to_float(v), scale), d, _mm512_load_ps(to));
            if (minima) {
                const __m512 less = _mm512_mul_ps(minima_of(8, p, first, x + t),
                                                  _mm512_load_ps(p->min_scale + first));
                sum = _mm512_fnmadd_ps(less, d, sum);
            }
            _mm512_store_ps(to, sum);
        }
}

/* ---- multiply ---- */

static void clear_sums(float *c, uint32_t n_tok)
{
    for (uint32_t i = 0; i < 2 * n_tok; i++)
        _mm512_store_ps(c + 16 * i, _mm512_setzero_ps());
}
BL_ALWAYS_INLINE void multiply_scales(const struct form *f, int T, const struct tile_config *config,
                                      float *c, const struct panel_part *part,
                                      const struct token *x, uint32_t n_cols)
{
    tile_configure(config);
    for (uint32_t at = 0; at < n_cols; at += 256, part++, x += T) {
        const uint32_t n = n_cols - at < 256 ? n_cols - at : 256;
        for (int first = 0; first < BL_PANEL_ROWS; first += HALF)
            add_half(f, T, c, part, first, x, (int)n / (4 * f->groups));
    }
    tile_release();
}
typedef void width_fn(float *c, const struct panel_part *, const struct token *, uint32_t n_cols);
#define WIDTH(name, T)                                                                             \
    static void name##_##T(float *c, const struct panel_part *part, const struct token *x,         \
                           uint32_t n_cols)                                                        \
    {                                                                                              \
        static const struct tile_config config = CONFIG(T, name##_GROUPS);                         \
        multiply_scales(&name##_traits, T, &config, c, part, x, n_cols);                           \
    }
#define SCALES(name, n_groups, ...)                                                                \
    enum { name##_GROUPS = n_groups };                                                             \
    static const struct form name##_traits = {n_groups, __VA_ARGS__};                              \
    WIDTH(name, 1)                                                                                 \
    WIDTH(name, 2)                                                                                 \
    WIDTH(name, 3)                                                                                 \
    WIDTH(name, 4)                                                                                 \
    WIDTH(name, 5)                                                                                 \
    WIDTH(name, 6)                                                                                 \
    WIDTH(name, 7)                                                                                 \
    WIDTH(name, 8)                                                                                 \
    WIDTH(name, 9)                                                                                 \
    WIDTH(name, 10)                                                                                \
    WIDTH(name, 11)                                                                                \
    WIDTH(name, 12)                                                                                \
    WIDTH(name, 13)                                                                                \
    WIDTH(name, 14)                                                                                \
    WIDTH(name, 15)                                                                                \
    WIDTH(name, 16)                                                                                \
    static void multiply_##name(float *c, const void *panel, const void *tile, uint32_t n_tok,     \
                                uint32_t n_cols, bool add)                                         \
    {                                                                                              \
        static width_fn *const of_width[] = {                                                      \
            NULL,      name##_1,  name##_2,  name##_3,  name##_4,  name##_5,                       \
            name##_6,  name##_7,  name##_8,  name##_9,  name##_10, name##_11,                      \
            name##_12, name##_13, name##_14, name##_15, name##_16};                                \
        if (!add)                                                                                  \
            clear_sums(c, n_tok);                                                                  \
        of_width[n_tok](c, panel, tile, n_cols);                                                   \
    }
/* groups, act, minima, addends */
SCALES(FORM_BY_32, 8, false, false, false)
SCALES(FORM_BY_32_MIN, 8, false, true, false)
SCALES(FORM_BY_16, 4, false, false, false)
SCALES(FORM_ACT_32, 8, true, false, false)
SCALES(FORM_ACT_32_ADD, 8, true, false, true)

BL_ALWAYS_INLINE void multiply_whole(bool minima, float *c, const struct panel_part *part,
                                     const struct token *x, uint32_t n_tok, uint32_t n_cols,
                                     bool add)
{
    static const struct tile_config config[] = {
        CONFIG(1, 16),  CONFIG(2, 16),  CONFIG(3, 16),  CONFIG(4, 16),
        CONFIG(5, 16),  CONFIG(6, 16),  CONFIG(7, 16),  CONFIG(8, 16),
        CONFIG(9, 16),  CONFIG(10, 16), CONFIG(11, 16), CONFIG(12, 16),
        CONFIG(13, 16), CONFIG(14, 16), CONFIG(15, 16), CONFIG(16, 16)};
    if (!add)
        clear_sums(c, n_tok);
    tile_configure(&config[n_tok - 1]);
    for (uint32_t at = 0; at < n_cols; at += 256, part++, x += n_tok)
        add_whole(minima, c, part, x, n_tok);
    tile_release();
}
static void multiply_FORM_WHOLE(float *c, const void *panel, const void *tile, uint32_t n_tok,
                                uint32_t n_cols, bool add)
{
    multiply_whole(false, c, panel, tile, n_tok, n_cols, add);
}
static void multiply_FORM_WHOLE_MIN(float *c, const void *panel, const void *tile, uint32_t n_tok,
                                    uint32_t n_cols, bool add)
{
    multiply_whole(true, c, panel, tile, n_tok, n_cols, add);
}

/* ---- arrange ---- */

BL_ALWAYS_INLINE void put_starts(struct token *to, __m512i sums, int offset, int from)
{
    const __m512i less = _mm512_mullo_epi32(sums, _mm512_set1_epi32(offset));
    _mm512_store_si512(to->start, _mm512_sub_epi32(_mm512_set1_epi32(from), less));
}
/* d rounded to 22 bits, so that 1.5 * 2^23 d is exact (a change of at most 2^-22) */
BL_ALWAYS_INLINE __m256 short_scale(__m256 d)
{
    const __m256i up = _mm256_add_epi32(_mm256_castps_si256(d), _mm256_set1_epi32(2));
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(-4)));
}
BL_ALWAYS_INLINE void fill_token(enum panel_form form, int offset, struct token *to,
                                 const struct bl_act_block *x)
{
    const __m256i words = load256(x->sum);
    const __m256i by_32 = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const __m512i by_16 = _mm512_cvtepi16_epi32(words);
    memcpy(to->q, x->q, sizeof to->q);
    if (form == FORM_WHOLE || form == FORM_WHOLE_MIN) {
        put_starts(to, _mm512_set1_epi32(_mm512_reduce_add_epi32(by_16)), offset, 0);
        _mm256_store_si256((void *)to->more.pair, words);
    } else {
        const __m512i sums = form == FORM_BY_16 ? by_16 : _mm512_castsi256_si512(by_32);
        put_starts(to, sums, offset, START);
        _mm256_store_si256((void *)to->more.pair,
                           _mm256_zextsi128_si256(_mm256_cvtepi32_epi16(by_32)));
    }
    _mm512_store_ps(to->d, _mm512_set1_ps(x->d[0]));
    if (form == FORM_ACT_32 || form == FORM_ACT_32_ADD) {
        const __m256 d = short_scale(_mm256_load_ps(x->d));
        _mm256_store_ps(to->d, d);
        _mm256_store_ps(to->d + 8, _mm256_mul_ps(d, _mm256_set1_ps(0x1.8p23f)));
        _mm256_store_ps(to->more.sums, _mm256_mul_ps(d, _mm256_cvtepi32_ps(by_32)));
    }
}
BL_ALWAYS_INLINE void arrange(enum panel_form form, int offset, struct token *to, uint32_t n_tok,
                              uint32_t k, const void *const *x)
{
    for (uint32_t b = 0; b < bl_act_blocks(k); b++)
        for (uint32_t t = 0; t < n_tok; t++, to++)
            fill_token(form, offset, to, (const struct bl_act_block *)x[t] + b);
}

/* ---- whether the processor means what these kernels do ---- */

bool bl_cpu_amx_works(void)
{
    static const struct tile_config config = CONFIG(16, 16);
    uint8_t act[16][64], code[16][16][4];
    int32_t sums[16][16];
    for (int i = 0; i < 1024; i++) {
        act[i / 64][i % 64] = (uint8_t)(i * 37 + i / 64);
        code[i / 64][i % 64 / 4][i % 4] = (uint8_t)(i * 101 + 7);
    }
    tile_configure(&config);
    TILE_LOAD(2, act, sizeof act[0]);
    TILE_LOAD(4, code, sizeof code[0]);
    TILE_ZERO(0);
    TILE_DOT(0, 2, 4);
    TILE_STORE(sums, sizeof sums[0], 0);
    tile_release();
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 64; k++)
                sums[m][n] -= (int8_t)act[m][k] * code[k / 4][n][k % 4];
    for (int i = 0; i < 256; i++)
        if (sums[i / 16][i % 16])
            return false;
    return true;
}

/* ---- entries ---- */

/* X(form, offset), as in avx512_panel.h */
#define ARRANGES(X)                                                                                \
    X(FORM_BY_32, 128)                                                                             \
    X(FORM_BY_32_MIN, 0)                                                                           \
    X(FORM_BY_16, 32)                                                                              \
    X(FORM_BY_16, 128)                                                                             \
    X(FORM_WHOLE, 1)                                                                               \
    X(FORM_WHOLE, 127)                                                                             \
    X(FORM_WHOLE_MIN, 0)                                                                           \
    X(FORM_ACT_32, 8)                                                                              \
    X(FORM_ACT_32, 16)                                                                             \
    X(FORM_ACT_32, 128)                                                                            \
    X(FORM_ACT_32_ADD, 0)
#define X(form, offset)                                                                            \
    static void form##_arrange_##offset(void *tile, uint32_t n_tok, uint32_t k,                    \
                                        const void *const *x)                                      \
    {                                                                                              \
        arrange(form, offset, tile, n_tok, k, x);                                                  \
    }
ARRANGES(X)
#undef X

/* X(type, name, form, offset): what the packer of the AVX-512 panel of the type stores */
#define TYPES(X)                                                                                   \
    X(BL_Q8_0, "q8_0", FORM_ACT_32, 128)                                                           \
    X(BL_Q4_0, "q4_0", FORM_ACT_32, 8)                                                             \
    X(BL_Q4_1, "q4_1", FORM_ACT_32_ADD, 0)                                                         \
    X(BL_Q5_0, "q5_0", FORM_ACT_32, 16)                                                            \
    X(BL_Q5_1, "q5_1", FORM_ACT_32_ADD, 0)                                                         \
    X(BL_IQ4_NL, "iq4_nl", FORM_ACT_32, 128)                                                       \
    X(BL_MXFP4, "mxfp4", FORM_ACT_32, 128)                                                         \
    X(BL_Q1_0, "q1_0", FORM_ACT_32, 128)                                                           \
    X(BL_Q2_0, "q2_0", FORM_ACT_32, 128)                                                           \
    X(BL_Q2_K, "q2_k", FORM_WHOLE_MIN, 0)                                                          \
    X(BL_Q3_K, "q3_k", FORM_WHOLE, 127)                                                            \
    X(BL_Q4_K, "q4_k", FORM_BY_32_MIN, 0)                                                          \
    X(BL_Q5_K, "q5_k", FORM_BY_32_MIN, 0)                                                          \
    X(BL_Q6_K, "q6_k", FORM_BY_16, 32)                                                             \
    X(BL_IQ4_XS, "iq4_xs", FORM_BY_32, 128)                                                        \
    X(BL_IQ3_XXS, "iq3_xxs", FORM_BY_32, 128)                                                      \
    X(BL_IQ3_S, "iq3_s", FORM_BY_32, 128)                                                          \
    X(BL_IQ2_XXS, "iq2_xxs", FORM_BY_32, 128)                                                      \
    X(BL_IQ2_XS, "iq2_xs", FORM_BY_16, 128)                                                        \
    X(BL_IQ2_S, "iq2_s", FORM_BY_16, 128)                                                          \
    X(BL_IQ1_S, "iq1_s", FORM_BY_32, 128)                                                          \
    X(BL_IQ1_M, "iq1_m", FORM_BY_16, 128)                                                          \
    X(BL_TQ1_0, "tq1_0", FORM_WHOLE, 1)                                                            \
    X(BL_TQ2_0, "tq2_0", FORM_WHOLE, 1)

void bl_cpu_amx(struct bl_cpu_kernels *table)
{
    static const struct {
        enum bl_dtype type;
        const char *name;
        bl_arrange_fn *arrange;
        bl_multiply_fn *multiply;
    } entries[] = {
#define X(type, name, form, offset)                                                                \
    {type, "panel_" name "_act_16__amx", form##_arrange_##offset, multiply_##form},
        TYPES(X)
#undef X
    };
    for (size_t i = 0; i < BL_COUNT(entries); i++) {
        struct bl_panel_kernel *k = &table->panel[entries[i].type];
        k->name = entries[i].name;
        k->arrange = entries[i].arrange;
        k->multiply = entries[i].multiply;
        k->part_bytes = sizeof(struct token);
        k->tokens = TOKENS;
        k->fold = NULL; /* products of tiles are faster */
    }
}
