/* SPDX-License-Identifier: MIT */
/* check.h — the parts of kernel_check: subjects, shapes, guarded memory, comparison.
 *
 * Purpose   every entry of the kernel table that a flag mask changes is run beside the scalar entry on inputs that end
 *           (or begin) at a guard page, with outputs framed by poison.
 * Ownership a struct bench of guarded regions lives as long as the program.
 * Units     elements and bytes as in cpu_kernels.h; errors in FLT_EPSILON times the sum of |terms|.
 * Errors    a case returns false after check_fail has kept the reason; set-up failures end the program.
 * Threads   one.
 */
#ifndef BL_TESTS_KERNELS_CHECK_H
#define BL_TESTS_KERNELS_CHECK_H

#include "cpu_kernels.h"

/* ---- what is tested ---- */

enum subject_kind {
    DOT, PANEL, FOLD, QK, PV, QUANTIZE_32, QUANTIZE_256, RMS_NORM, EXP_SUM, SILU_MUL, GELU_MUL, SWIGLU_OAI,
    SIGMOID_MUL, ADD, AXPY, MIX, CONV, ROPE_NORM, ROPE_NEOX, DELTA, DELTA_CHUNK, RELU_SUM,
    TILE_KEYS, TILE_VALUES, TILE_SCORES, TILE_WEIGHTS, TILE_SUM,
    ROW_SCORES, ROW_SUM,
    PAIR_KEYS, PAIR_VALUES, PAIR_QUERIES, PAIR_SCORES, PAIR_WEIGHTS, PAIR_SUM
};
struct subject {
    char name[80];  /* "dot_q4_k_act_4__avx512", "qk.kv_f16_f32_4__avx512", "axpy.add_f32_f32_16__avx512" */
    enum subject_kind kind;
    enum bl_dtype type; /* of DOT, PANEL, FOLD, QK, PV, TILE_KEYS, TILE_VALUES, ROW_*, PAIR_KEYS, PAIR_VALUES */
    void (*fn)(void);   /* for comparing entries, never called */
};
enum { MAX_SUBJECTS = 5 * BL_N_DTYPES + 64 };
/* Every entry of the table that is there, in a fixed order; returns the count. */
uint32_t check_subjects(struct subject out[MAX_SUBJECTS], const struct bl_cpu_kernels *);

/* ---- one case ---- */

/* SPECIAL: weights are zero; of vectors, the values at which the function turns (ties, masks, saturation). */
enum fill { FILL_RANDOM, FILL_SPECIAL, FILL_ZERO_INPUT, FILL_LARGE, FILL_TINY, N_FILLS };
/* A case is a subject, a seed and this: printed and read as "k,rows,pad,place,fill". */
struct shape {
    uint32_t k;     /* elements of a row or vector */
    uint32_t rows;  /* of DOT; cached rows of QK and PV; rows of state; queries of a tile */
    uint32_t pad;   /* bytes between rows */
    uint32_t place; /* DOT: what `next` is; PANEL, FOLD: tokens; TILE_SUM, ROW_*, PAIR_SUM: keys - 1;
                     * vectors: 1 = the output is the first input */
    uint32_t fill;  /* enum fill */
};
struct memory; /* guarded regions */
struct context {
    const struct bl_cpu_kernels *ref, *now;
    const struct bl_cpu_kernels *same; /* whose panels give the same bits; NULL: none known */
    unsigned flags;     /* that `now` was selected with */
    struct memory *mem;
    uint64_t random;    /* state, set from seed, subject and shape */
    double worst;       /* largest error of the subject in units of what is allowed */
    char reason[160];   /* of the failed case */
};
/* Calls visit for each shape of the subject until it returns false. */
typedef bool visit_fn(struct context *, const struct subject *, const struct shape *);
void check_dot_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
/* Which entry of its type a PANEL or FOLD is. */
const struct bl_panel_kernel *check_panel_kernel(const struct bl_cpu_kernels *, const struct subject *);
void check_panel_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
void check_kv_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
void check_vector_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
void check_delta_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
void check_tile_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
/* Runs reference and subject once. */
bool check_dot(struct context *, const struct subject *, const struct shape *);
bool check_panel(struct context *, const struct subject *, const struct shape *);
bool check_kv(struct context *, const struct subject *, const struct shape *);
bool check_vector(struct context *, const struct subject *, const struct shape *);
void check_chunk_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
void check_conv_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
bool check_delta(struct context *, const struct subject *, const struct shape *);
bool check_tile(struct context *, const struct subject *, const struct shape *);
bool check_pair(struct context *, const struct subject *, const struct shape *); /* shapes as tiles */

bool check_chunk(struct context *, const struct subject *, const struct shape *);
bool check_conv(struct context *, const struct subject *, const struct shape *); /* MIX as well */
void check_relu_shapes(struct context *, const struct subject *, bool quick, visit_fn *);
bool check_relu(struct context *, const struct subject *, const struct shape *);

bool check_fail(struct context *, const char *fmt, ...) BL_PRINTF(2, 3); /* keeps the reason, returns false */
/* |got - want| <= c * eps * magnitude + floor; keeps the worst ratio. NaN fails unless both are. */
bool check_close(struct context *, const char *what, uint32_t i, double got, double want, double magnitude, double c,
                 double floor);

#ifdef __x86_64__
/* As bl_cpu_amx, over the same table, with tiles in plain C. */
void bl_cpu_amx_emulated(struct bl_cpu_kernels *);
bool bl_cpu_amx_works_emulated(void);
#endif

/* ---- inputs ---- */

uint32_t check_random(struct context *);
float check_uniform(struct context *, float from, float to);
/* n floats of the fill's kind */
void check_fill_floats(struct context *, float *x, uint32_t n, enum fill);
/* One row of weights of any type with finite scales; FILL_LARGE: extreme codes, large scales; FILL_TINY: subnormal. */
void check_fill_weights(struct context *, enum bl_dtype, uint8_t *row, uint32_t k, enum fill);

/* Rows of the subject's type, each at row[j] from base, in REGION_W and REGION_ROWS. */
const uint64_t *check_rows_of(struct context *, const struct subject *, const struct shape *, uint32_t n, uint8_t **base);
/* Tiles that have seen nothing yet, something larger or something smaller; rows that may look at all, at some, at none. */
struct bl_tile check_tile_state(struct context *, uint32_t n);
void check_fill_scores(struct context *, float *score, uint32_t n, uint32_t fill);

/* ---- guarded memory ---- */

enum region { REGION_W, REGION_X, REGION_Y, REGION_Z, REGION_ROWS, REGION_OUT, N_REGIONS };
struct memory *memory_open(void); /* ends the program when there is no memory */
/* `bytes` that end at a guard page, or begin behind one where from_start; filled with poison. */
void *memory_take(struct memory *, enum region, size_t bytes, bool from_start);
/* Aligned to 64 bytes, and so is the size, so that it may end at the guard page as well. */
void *check_aligned(struct context *, enum region, size_t bytes);
/* Whether everything of the region around the last taken bytes is still poison. */
bool memory_frame_intact(const struct memory *, enum region);
bool memory_is_poison(const void *p, size_t bytes);
enum { MEMORY_REGION_BYTES = 1 << 20 };

/* ---- speed ---- */

struct bench_options {
    size_t matrix_bytes; /* of the large matrix */
    double seconds;      /* per number */
};
void bench_header(const struct bench_options *);
void bench_subject(struct context *, const struct subject *, const struct bench_options *);
/* Prompts and single tokens at a depth, by tiles and by single queries in turns. */
void bench_attention(struct context *, unsigned flags, bool prompts, bool decode);
/* Prints, for rows of 2048 and 4096: percent of bench_peak for 8, 16, 32, 64, 128, 512 and 2048 tokens, packing
 * included; of two full tiles without packing; packing in tokens and arranging in rows that the peak would do in that
 * time; the least tokens for which panels, all included, take less time than dots. */
void bench_panel(struct context *, const struct subject *);
/* Multiply-adds a second, bytes or floats, that the widest instructions of these flags allow; 0: not known. */
double bench_peak(unsigned flags, bool floats);

#endif
