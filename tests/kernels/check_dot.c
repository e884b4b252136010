/* SPDX-License-Identifier: MIT */
/* Dot kernels: rows of every type against the scalar dot, at c * eps * sum of |terms|. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "dtype_unpack.h"

/* Scales are products of two or three floats and a row is summed in float in some order; the
 * integers below are exact. The scalar kernels round once. */
static const double C_INTEGER = 2, C_FLOAT = 3;

/* ---- shapes ---- */

static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13};
enum { NEXT_NONE, NEXT_ROWS, NEXT_LOW, NEXT_HIGH, N_NEXT };

/* k in steps of the block up to more than two of 256, then some that models have */
static uint32_t next_k(const struct subject *s, uint32_t k)
{
    static const uint32_t wide[] = {224, 288, 576, 768, 1536, 2048, 2880, 4096};
    const uint32_t block = bl_dtypes[s->type].block_elems;
    const uint32_t fine = block == 1 ? 70 : block < 256 ? 608 : 768;
    if (k + block <= fine)
        return k + block;
    for (size_t i = 0; i < BL_COUNT(wide); i++)
        if (wide[i] > k && wide[i] % block == 0)
            return wide[i];
    return 0;
}

/* Each k with every number of rows; strides, next and fills take turns, so that all pairs occur but
 * not all products. */
void check_dot_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t pads[] = {0, 2, 0, 30, 0, 256};
    uint32_t turn = 0;
    for (uint32_t k = next_k(s, 0); k; k = next_k(s, k))
        for (size_t i = 0; i < BL_COUNT(row_counts); i++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {k, row_counts[i], pads[turn % 6], turn / 3 % N_NEXT,
                                            fill};
                if (quick && turn % 7)
                    continue;
                if (!visit(c, s, &shape))
                    return;
            }
}

/* ---- one case ---- */

/* Sum of |terms| of a row with quantised activations, and of the products of integers alone. */
struct magnitude {
    double terms, units;
};
static struct magnitude act_magnitude(enum bl_dtype t, uint32_t k, const uint8_t *w,
                                      const struct bl_act_block *x)
{
    const struct bl_dtype_info *info = &bl_dtypes[t];
    struct magnitude m = {0, 0};
    struct bl_unpacked u;
    for (uint32_t at = 0; at < k; at += info->block_elems, w += info->block_bytes) {
        bl_unpackers[t].unpack(&u, w);
        for (uint32_t i = 0; i < info->block_elems; i++) {
            const struct bl_act_block *a = x + (at + i) / 256;
            const double q = abs(a->q[(at + i) % 256]), d = fabs((double)a->d[(at + i) % 256 / 32]);
            const double add = bl_unpackers[t].has_add ? fabs((double)u.add[i / 16]) : 0;
            m.terms += (fabs((double)u.scale[i / 16]) * abs(u.q[i]) + add) * q * d;
            m.units += (abs(u.q[i]) + (add != 0)) * q;
        }
    }
    return m;
}
static struct magnitude float_magnitude(enum bl_dtype t, uint32_t k, const uint8_t *w,
                                        const float *x)
{
    static float decoded[4096];
    struct magnitude m = {0, k};
    bl_dtype_decode(t, k, decoded, w);
    for (uint32_t i = 0; i < k; i++)
        m.terms += fabs((double)decoded[i] * (double)x[i]);
    return m;
}

static const void *make_activations(struct context *c, uint8_t law, const struct shape *s,
                                    bool from_start)
{
    float *x = memory_take(c->mem, REGION_X, s->k * sizeof *x, from_start);
    /* subnormal weights against small and against large activations, where they count */
    const bool lift = s->fill == FILL_TINY && check_random(c) & 1;
    check_fill_floats(c, x, s->k, lift ? FILL_LARGE : s->fill);
    if (law == BL_ACT_F32)
        return x;
    struct bl_act_block *a =
        memory_take(c->mem, REGION_Y, bl_act_blocks(s->k) * sizeof *a, from_start);
    (law == BL_ACT_Q8_K ? c->ref->quantize_256 : c->ref->quantize_32)(s->k, a, x);
    return a;
}

/* Any address may be prefetched, whether something is there or not. */
static const void *next_address(uint32_t which, const void *rows)
{
    switch (which) {
    case NEXT_ROWS:
        return rows;
    case NEXT_LOW:
        return (const void *)(uintptr_t)64;
    case NEXT_HIGH:
        return (const void *)(UINTPTR_MAX - 64);
    default:
        return NULL;
    }
}

/* The bytes between rows belong to others. They cannot be guarded, but a sanitizer can watch them.
 */
static void poison_gaps(uint8_t *w, const struct shape *s, size_t row_bytes, bool on)
{
    for (uint32_t r = 0; s->pad && r + 1 < s->rows; r++) {
        uint8_t *gap = w + r * (row_bytes + s->pad) + row_bytes;
        if (on)
            BL_POISON(gap, s->pad);
        else
            BL_UNPOISON(gap, s->pad);
    }
}

static bool compare_rows(struct context *c, const struct subject *s, const struct shape *shape,
                         const float *want, const uint8_t *w, size_t stride, const void *x,
                         const float *got)
{
    const bool floats = c->ref->matmul[s->type].act == BL_ACT_F32;
    for (uint32_t r = 0; r < shape->rows; r++) {
        const struct magnitude m = floats ? float_magnitude(s->type, shape->k, w + r * stride, x)
                                          : act_magnitude(s->type, shape->k, w + r * stride, x);
        const double floor = m.units * (double)FLT_TRUE_MIN;
        if (!check_close(c, "row", r, got[r], want[r], m.terms, floats ? C_FLOAT : C_INTEGER,
                         floor))
            return false;
    }
    return true;
}

bool check_dot(struct context *c, const struct subject *s, const struct shape *shape)
{
    const struct bl_matmul_kernel *ref = &c->ref->matmul[s->type], *now = &c->now->matmul[s->type];
    const size_t row_bytes = (size_t)bl_dtype_row_bytes(s->type, shape->k);
    const size_t stride = row_bytes + shape->pad, bytes = stride * shape->rows - shape->pad;
    const bool from_start = check_random(c) & 1;
    float want[16];
    uint8_t *w = memory_take(c->mem, REGION_W, bytes, from_start);
    float *out = memory_take(c->mem, REGION_OUT, shape->rows * sizeof *out, from_start);
    const void *x = make_activations(c, ref->act, shape, from_start);
    for (uint32_t r = 0; r < shape->rows; r++)
        check_fill_weights(c, s->type, w + r * stride, shape->k, shape->fill);
    if (now->act != ref->act)
        return check_fail(c, "law %u, scalar has %u", now->act, ref->act);
    ref->dot(shape->k, shape->rows, want, w, stride, x, NULL);
    poison_gaps(w, shape, row_bytes, true);
    now->dot(shape->k, shape->rows, out, w, stride, x, next_address(shape->place, w));
    poison_gaps(w, shape, row_bytes, false);
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside out[]");
    return compare_rows(c, s, shape, want, w, stride, x, out);
}
