/* SPDX-License-Identifier: MIT */
/* cpu_kernels.h — the table of CPU kernels, filled from CPU flags.
 *
 * Purpose   every inner loop behind one struct of function pointers: scalar first, better ones overwrite entries.
 * Ownership none; kernels are static functions, inputs and outputs are the caller's.
 * Units     k, n in elements; strides in bytes.
 * Errors    none: callers guarantee whole blocks (k a multiple of the type's block) and at least one row.
 * Threads   kernels are pure; the table is filled before threads use it.
 */
#ifndef BL_CPU_KERNELS_H
#define BL_CPU_KERNELS_H

#include "attend_tile.h"
#include "compiler.h"
#include "dtype.h"
#include "panel.h"

/* Activations of quantised weights: 256 values a block in natural order, whatever the weight type. Laws Q8_0 and Q8_1
 * give eight scales (d = max|x|/127 of the 32), law Q8_K the same scale eight times (of the 256, as bl_dtype_encode
 * to Q8_K up to its sign convention). The last block is padded with zeros. A kernel may read all of a block. */
struct bl_act_block {
    int8_t q[256];
    int16_t sum[16]; /* of 16 values each */
    float d[8];      /* of 32 values each */
} BL_ALIGNED(64);
static inline uint64_t bl_act_blocks(uint64_t k)
{
    return (k + 255) / 256;
}

/* out[r] = dot(row r of w, x) for r < rows, any rows >= 1; w_stride bytes from row to row; nothing outside the rows is
 * read. x: float[k] or struct bl_act_block[], by the entry's law. next: memory the caller will want next, or NULL:
 * while byte i of the rows is consumed, next + i is prefetched. */
typedef void bl_dot_fn(uint32_t k, uint32_t rows, float *out, const void *w, size_t w_stride, const void *x,
                       const void *next);
typedef void bl_quant_fn(uint32_t k, struct bl_act_block *dst, const float *src);

struct bl_matmul_kernel {
    const char *dot_name; /* "dot_q4k_act_4__avx512"; printed by `ballast info --cpu`, matched by kernel_check --func */
    bl_dot_fn *dot;       /* NULL: type is no weight */
    uint8_t act;          /* enum bl_act_law of x */
    uint8_t rows;         /* rows it likes to take together */
};
/* One head's keys and values for a KV type. Rows are found through row[]: byte offsets from base. */
typedef void bl_qk_fn(uint32_t dk, uint32_t n, float *score, const float *q, const void *base, const uint64_t *row,
                      float scale);                 /* score[j] = scale * q·k_j */
typedef void bl_pv_fn(uint32_t dv, uint32_t n, float *acc, const float *p, const void *base, const uint64_t *row);
                                                    /* acc += sum p[j] v_j */
struct bl_kv_kernel {
    const char *name;
    bl_qk_fn *qk;
    bl_pv_fn *pv;                                   /* NULL: type cannot hold K or V */
};
/* A token of one head for the delta rule: S = decay S + k d, d = beta (v - decay S k), y = S q, for `rows` rows of S, each
 * of dk elements, with one element of v and y. What a row becomes does not depend on the others. */
struct bl_delta_token {
    const float *q, *k;
    float decay, beta;
};
typedef void bl_delta_fn(uint32_t dk, uint32_t rows, float *y, float *s, const float *v, const struct bl_delta_token *);
/* Tokens of one head together, and up to BL_DELTA_COLUMNS rows of S, which are columns here. With total[t] the product of
 * the decays up to token t and ratio = total[t] / total[i] below,
 *     d_t = beta_t (v_t - total_t S k_t) + sum over i < t of lower[t][i] d_i,   lower = -beta_t ratio k_i·k_t,
 *     y_t = total_t S q_t                + sum over i <= t of mix[t][i] d_i,    mix = ratio k_i·q_t,
 * and behind the last token S = total S + sum of rest_i k_i d_i, rest being the last ratio. All arrays are aligned to 64
 * bytes. Tokens beyond the last are zeros in beta, keys, queries, lower and mix, and repeat its total. */
enum { BL_DELTA_CHUNK = 32, BL_DELTA_COLUMNS = 32, BL_DELTA_GRAIN = 8 };
struct bl_delta_chunk {
    uint32_t n, dk;                   /* multiples of BL_DELTA_GRAIN; n at most BL_DELTA_CHUNK */
    const float *keys, *queries;      /* [n][dk] */
    const float *lower, *mix;         /* [n][BL_DELTA_CHUNK]; mix is zero for i > t */
    const float *beta, *total, *rest; /* [n] */
    float *d, *y;                     /* [n][BL_DELTA_COLUMNS]; d is v before, of no use behind */
    float *s;                         /* [dk][BL_DELTA_COLUMNS] */
};
/* Kernels of one instruction set for all of it. A column does not depend on those beside it. */
struct bl_delta_kernel {
    /* kk[t][i] = k_i·k_t and qk[t][i] = k_i·q_t for i <= t, [n][BL_DELTA_CHUNK] each, anything for other i; work: room
     * for keys once more */
    void (*products)(uint32_t dk, uint32_t n, float *kk, float *qk, const float *keys, const float *queries, float *work);
    void (*columns)(const struct bl_delta_chunk *);
    /* s = rows of S [n][dk] by columns, with zeros beyond n and beyond dk up to dk_padded; and back */
    void (*load)(uint32_t dk, uint32_t dk_padded, uint32_t n, float *s, const float *rows);
    void (*store)(uint32_t dk, uint32_t n, float *rows, const float *s);
};
struct bl_cpu_kernels {
    struct bl_matmul_kernel matmul[BL_N_DTYPES];
    struct bl_panel_kernel panel[BL_N_DTYPES]; /* x by the law of matmul[] */
    struct bl_kv_kernel kv[BL_N_DTYPES];
    struct bl_rows_kernel rows[BL_N_DTYPES]; /* the same types, for tiles */
    struct bl_tile_kernel tile;
    struct bl_pair_rows pair_rows[BL_N_DTYPES]; /* the same types or none */
    struct bl_pair_kernel pair;
    const char *quantize_name, *norm_name, *softmax_name, *glu_name, *add_name, *rope_name, *delta_name,
        *delta_chunk_name, *conv_name, *relu_sum_name;
    bl_quant_fn *quantize_32;  /* law Q8_0, Q8_1 */
    bl_quant_fn *quantize_256; /* law Q8_K */
    void (*rms_norm)(uint32_t n, float *y, const float *x, const float *w, float eps);
    /* x[j] = exp(x[j] - max) for all j, returns the sum; max is the largest x or given */
    float (*exp_sum)(uint32_t n, float *x, float max);
    void (*silu_mul)(uint32_t n, float *y, const float *gate, const float *up);
    void (*gelu_mul)(uint32_t n, float *y, const float *gate, const float *up); /* tanh form */
    void (*swiglu_oai)(uint32_t n, float *y, const float *gate, const float *up, float alpha, float limit);
    void (*sigmoid_mul)(uint32_t n, float *y, const float *gate, const float *up);
    void (*add)(uint32_t n, float *y, const float *a, const float *b);
    void (*axpy)(uint32_t n, float *y, float a, const float *x); /* y += a x */
    /* y[i] = sum over j < m of a[j] x[j][i], m >= 1, in that order */
    void (*mix)(uint32_t n, uint32_t m, float *y, const float *a, const float *const *x);
    /* y[i] += sum over j < m of a[j] max(0, x[j * BL_TILE_KEYS + i]) for i < BL_TILE_PANEL, in that order, y and x aligned
     * to 64 bytes; what is not a number stays so */
    void (*relu_sum)(uint32_t m, float *y, const float *a, const float *x);
    /* one head, first n_dims of x rotated into y; angles = cos, sin pairs; y may be x */
    void (*rope_norm)(uint32_t n_dims, float *y, const float *x, const float *angles);
    void (*rope_neox)(uint32_t n_dims, float *y, const float *x, const float *angles);
    bl_delta_fn *delta_rule;
    /* y[i] = sum over j < taps of w[i][j] row[j][i] */
    void (*short_conv)(uint32_t n, uint32_t taps, float *y, const float *const *row, const float *w);
    struct bl_delta_kernel delta_chunk; /* zeros: token by token alone */
};

/* A flag is a bundle of instruction sets that appear together. */
enum bl_cpu_flags {
    BL_CPU_AVX2 = 1 << 0,   /* AVX2, FMA, F16C */
    BL_CPU_AVX512 = 1 << 1, /* F, BW, DQ, VL, VNNI, VBMI, GFNI: Ice Lake, Zen 4 and later */
    BL_CPU_NEON = 1 << 2,   /* 64-bit Arm with dot products: Armv8.2 and later */
    BL_CPU_I8MM = 1 << 3,   /* and products of matrices of bytes: Armv8.6 and later */
    BL_CPU_ONE_STREAM = 1 << 4, /* with AVX512: memory is read faster by one row at a time than by four (Zen 5) */
    BL_CPU_SVE = 1 << 5,    /* 64-bit Arm with vectors of 256 bits or more */
    BL_CPU_AVXVNNI = 1 << 6, /* with AVX2: products of bytes in VEX encoding: Alder Lake, Sierra Forest, Zen 5 */
    BL_CPU_VNNI256 = 1 << 7, /* with AVX2: the same in EVEX encoding, AVX-512 VL and VNNI: Cascade Lake */
    BL_CPU_AMX = 1 << 8,     /* with AVX512: tiles of bytes, which the system allows: Sapphire Rapids */
    BL_CPU_BF16 = 1 << 9,    /* with AVX512: products of bfloat16: Zen 4, Sapphire Rapids and later */
};
unsigned bl_cpu_flags(void);                                    /* what this CPU and OS have */
void bl_cpu_select(struct bl_cpu_kernels *, unsigned flags);    /* scalar, then better ones in ascending order */
void bl_cpu_exact(struct bl_cpu_kernels *);                     /* the float reference: laws are all F32 */

void bl_cpu_scalar(struct bl_cpu_kernels *);                    /* fills every entry: the specification */
void bl_cpu_avx2(struct bl_cpu_kernels *);                      /* each ISA file exports exactly one symbol */
void bl_cpu_avxvnni(struct bl_cpu_kernels *);                   /* over bl_cpu_avx2 */
void bl_cpu_vnni256(struct bl_cpu_kernels *);
void bl_cpu_avx512(struct bl_cpu_kernels *);
void bl_cpu_avx512_one(struct bl_cpu_kernels *);                /* for ONE_STREAM, over bl_cpu_avx512 */
void bl_cpu_amx(struct bl_cpu_kernels *);                       /* over bl_cpu_avx512 */
void bl_cpu_avx512_bf16(struct bl_cpu_kernels *);               /* over bl_cpu_avx512 */
bool bl_cpu_amx_works(void);                                    /* a product of tiles; only where tiles may be used */
void bl_cpu_neon(struct bl_cpu_kernels *);
void bl_cpu_i8mm(struct bl_cpu_kernels *);
void bl_cpu_sve(struct bl_cpu_kernels *);

#endif
