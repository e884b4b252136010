/* SPDX-License-Identifier: MIT */
/* dot_rows.h — how every dot kernel walks its rows: a few at a time, prefetching in memory order.
 *
 * Purpose   a kernel body takes 1 or n rows together, so that all that belongs to the activation (loads, reordering,
 *           offset corrections) is paid once; this header cuts the rows and runs the prefetch pointers along.
 *           Included by kernel files compiled for one instruction set only: everything here is inlined into them.
 * Ownership none.
 * Units     bytes, except k (elements) and rows.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_DOT_ROWS_H
#define BL_DOT_ROWS_H

#include "cpu_kernels.h"

/* Rows taken together, and where to prefetch while their first byte is consumed. The prefetch addresses may lie
 * anywhere, so they are numbers and not pointers. */
struct row_group {
    const char *w;
    size_t stride;
    uintptr_t near; /* into L1 */
    uintptr_t far;  /* into L2 */
};

/* The body of a kernel. R is 1 or the kernel's own number of rows, always a constant after inlining. */
typedef void group_fn(int R, uint32_t k, float *out, const struct row_group *g, const void *x);

/* L1 runs this far ahead. Flat between 3 and 6 KiB. */
enum { PREFETCH_NEAR = 4096 };

/* `at`: bytes of the group consumed so far, `bytes`: what the current step consumes, over all rows. One per 64 bytes:
 * sparser prefetches lose (measured). Never functions of their own: gcc drops calls of functions that only prefetch. */
BL_ALWAYS_INLINE void prefetch_far(const struct row_group *g, size_t at, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)(g->far + at + (size_t)i), 0, 2);
}
/* Both levels, where decoding keeps the core busy: L2 misses and L1 misses compete for the same buffers. Of a plain read,
 * 4-bit types reach 48 % without prefetch, 70 to 90 % with one level, 91 to 97 % with both (Zen 5; 40, 80 to 88 and 90 to
 * 95 % on Emerald Rapids). */
BL_ALWAYS_INLINE void prefetch(const struct row_group *g, size_t at, int bytes)
{
    for (int i = 0; i < bytes; i += 64) {
        __builtin_prefetch((const void *)(g->far + at + (size_t)i), 0, 2);
        __builtin_prefetch((const void *)(g->near + at + (size_t)i), 0, 3);
    }
}

/* An array that was just stored, from now on in memory and nowhere else: single elements are then broadcast by the load
 * (or by the FMA that loads them), where gcc would otherwise put two shuffles. */
#define THROUGH_MEMORY(array) __asm__("" : "+m"(array))

struct dot_rows {
    uint32_t k, rows;
    float *out;
    const char *w;
    size_t stride;
    const void *x;
    uintptr_t end;       /* of all rows */
    uintptr_t next, far; /* where the prefetch goes on; how far it has come there */
};

/* Without `next` the prefetch goes on past the rows, which in a matrix is what comes next. */
BL_ALWAYS_INLINE struct dot_rows dot_rows_of(uint32_t k, uint32_t rows, float *out, const void *w, size_t stride,
                                             const void *x, const void *next)
{
    const uintptr_t end = (uintptr_t)w + rows * stride, then = next ? (uintptr_t)next : end;
    return (struct dot_rows){k, rows, out, w, stride, x, end, then, then};
}

/* Takes rows R at a time while there are that many. The far pointer walks `next` at the pace of the rows; the near one
 * walks the rows and crosses into `next` at their end. */
BL_ALWAYS_INLINE void walk_rows(group_fn *body, uint32_t R, struct dot_rows *a)
{
    for (; a->rows >= R; a->rows -= R, a->out += R, a->w += R * a->stride) {
        const uintptr_t left = a->end - (uintptr_t)a->w;
        const uintptr_t near = left > PREFETCH_NEAR ? (uintptr_t)a->w + PREFETCH_NEAR
                                                    : a->next + (PREFETCH_NEAR - left);
        const struct row_group g = {a->w, a->stride, near, a->far};
        a->far += R * a->stride;
        body((int)R, a->k, a->out, &g, a->x);
    }
}

/* A table entry from a body. Two loops and not one with a choice: clang would merge the two calls into one body with a
 * variable R. */
#define DOT_ENTRY(name, body, R)                                                                   \
    static void name(uint32_t k, uint32_t rows, float *out, const void *w, size_t w_stride,        \
                     const void *x, const void *next)                                              \
    {                                                                                              \
        struct dot_rows a = dot_rows_of(k, rows, out, w, w_stride, x, next);                       \
        walk_rows(body, R, &a);                                                                    \
        walk_rows(body, 1, &a);                                                                    \
    }

#define DOT_SET(table, type, fn, R)                                                                \
    ((table)->matmul[type] = (struct bl_matmul_kernel){#fn, fn, bl_dtypes[type].act, R})

#endif
