/* SPDX-License-Identifier: MIT */
/* Panels: 32 rows of every type against tiles of every width, beside the scalar dot of the same
 * activations; and every token alone, which has to give the same bits. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "dtype_unpack.h"

/* What a kernel may lose, in FLT_EPSILON.
 * C + sqrt(k): of the sum of |terms|. Scales of activations may be rounded to 22 bits; sums may be
 *     floats, one column after another.
 * C_BASE: law Q8_K, of 1.5 * 2^23 times the sum of |scales| of 32 columns: integer sums may be
 *     scaled as floats with that constant in them, and lose it at the end.
 * NMSE: of the sum over all results of the terms' squares: random errors do not add up to the bound
 *     of a single one. */
static const double C = 4, C_BASE = 4, BASE = 0x1.8p23, NMSE = 3e-6;

enum { MAX_K = 1088, MAX_TOKENS = BL_TILE_TOKENS };

/* Folded weights: rounded to bytes of one scale for 256 columns, whose largest is near 127; codes
 * that a block has no use for may make that up to 2.5 times as coarse. */
static const double FOLD_STEP = 0.51 * 2.5 / 127, FOLD_NMSE = 5e-4;

const struct bl_panel_kernel *check_panel_kernel(const struct bl_cpu_kernels *k,
                                                 const struct subject *s)
{
    return s->kind == FOLD ? k->panel[s->type].fold : &k->panel[s->type];
}

/* ---- shapes: k in whole blocks, place = tokens of the tile ---- */

static uint32_t next_k(const struct subject *s, uint32_t k)
{
    static const uint32_t floats[] = {1, 3, 15, 16, 17, 33, 64, 255, 256, 257, 511, 512, 513, 1037};
    const uint32_t block = bl_dtypes[s->type].block_elems;
    if (block > 1)
        return k + block <= MAX_K ? k + block : 0;
    for (size_t i = 0; i < BL_COUNT(floats); i++)
        if (floats[i] > k)
            return floats[i];
    return 0;
}

void check_panel_shapes(struct context *c, const struct subject *s, bool quick, visit_fn *visit)
{
    static const uint32_t pads[] = {0, 2, 0, 30, 64}, row_counts[] = {32, 1, 16, 17, 31, 15, 32, 7};
    const uint32_t tokens = check_panel_kernel(c->now, s)->tokens;
    uint32_t turn = 0;
    for (uint32_t k = next_k(s, 0); k; k = next_k(s, k))
        for (uint32_t n_tok = 1; n_tok <= tokens; n_tok++)
            for (uint32_t fill = 0; fill < N_FILLS; fill++, turn++) {
                const struct shape shape = {k, row_counts[turn % 8], pads[turn % 5], n_tok, fill};
                if ((quick && turn % 7) || (k > 64 && turn % 3))
                    continue;
                if (!visit(c, s, &shape))
                    return;
            }
}

/* ---- one case ---- */

struct matrices {
    const uint8_t *w;
    size_t stride;
    const void *x[MAX_TOKENS];
    float base[MAX_TOKENS][BL_PANEL_ROWS]; /* of c, before */
    double nmse, squares;
};

/* What is known of one result. */
struct magnitude {
    double terms, squares, base, units, folded;
};
static void add_terms(struct magnitude *m, const struct bl_unpacked *u, bool has_add,
                      const struct bl_act_block *a, uint32_t at, uint32_t elems)
{
    for (uint32_t i = 0; i < elems; i++) {
        const uint32_t col = (at + i) % 256;
        const double q = abs(a->q[col]), d = fabs((double)a->d[col / 32]);
        const double add = has_add ? fabs((double)u->add[i / 16]) : 0;
        const double term = (fabs((double)u->scale[i / 16]) * abs(u->q[i]) + add) * q * d;
        m->terms += term;
        m->squares += term * term;
        m->units += (abs(u->q[i]) + (add != 0)) * q;
        if (col % 16 == 0)
            m->base += BASE / 2 * fabs((double)u->scale[i / 16]) * d;
    }
}
/* What a step of folded weights amounts to: the largest weight of each 256 with their |x|. */
static void add_folded(struct magnitude m[MAX_TOKENS], enum bl_dtype t, uint32_t k,
                       const uint8_t *w, uint32_t n_tok, const void *const *x)
{
    static float decoded[MAX_K];
    bl_dtype_decode(t, k, decoded, w);
    for (uint32_t at = 0; at < k; at += 256) {
        const uint32_t n = k - at < 256 ? k - at : 256;
        double most = 0x1p-93; /* weights below 2^-100 count for nothing */
        for (uint32_t i = at; i < at + n; i++)
            most = fmax(most, fabs((double)decoded[i]));
        for (uint32_t i = 0; i < n_tok; i++) {
            const struct bl_act_block *a = (const struct bl_act_block *)x[i] + at / 256;
            for (uint32_t j = 0; j < n; j++)
                m[i].folded += most * abs(a->q[j]) * fabs((double)a->d[j / 32]);
        }
    }
}
/* The magnitudes of one row with all tokens. */
static void row_magnitudes(struct magnitude m[MAX_TOKENS], enum bl_dtype t, uint32_t k,
                           const uint8_t *w, uint32_t n_tok, const void *const *x)
{
    static float decoded[MAX_K];
    const struct bl_dtype_info *info = &bl_dtypes[t];
    struct bl_unpacked u;
    memset(m, 0, n_tok * sizeof *m);
    if (info->act == BL_ACT_F32) {
        bl_dtype_decode(t, k, decoded, w);
        for (uint32_t n = 0; n < n_tok; n++)
            for (uint32_t i = 0; i < k; i++) {
                const double term = fabs((double)decoded[i] * (double)((const float *)x[n])[i]);
                m[n].terms += term;
                m[n].squares += term * term;
                m[n].units += 1;
            }
        return;
    }
    for (uint32_t at = 0; at < k; at += info->block_elems, w += info->block_bytes) {
        bl_unpackers[t].unpack(&u, w);
        for (uint32_t n = 0; n < n_tok; n++)
            add_terms(&m[n], &u, bl_unpackers[t].has_add,
                      (const struct bl_act_block *)x[n] + at / 256, at, info->block_elems);
    }
}

static void make_inputs(struct context *c, const struct subject *s, const struct shape *shape,
                        struct matrices *m, bool from_start)
{
    const uint8_t law = c->ref->matmul[s->type].act;
    const uint32_t n_tok = shape->place;
    const size_t row_bytes = (size_t)bl_dtype_row_bytes(s->type, shape->k);
    const size_t act_bytes = law == BL_ACT_F32
                                 ? shape->k * sizeof(float)
                                 : bl_act_blocks(shape->k) * sizeof(struct bl_act_block);
    static float values[MAX_K];
    m->stride = row_bytes + shape->pad;
    uint8_t *w = memory_take(c->mem, REGION_W, m->stride * shape->rows - shape->pad, from_start);
    uint8_t *x = memory_take(c->mem, REGION_X, n_tok * act_bytes, from_start);
    for (uint32_t r = 0; r < shape->rows; r++)
        check_fill_weights(c, s->type, w + r * m->stride, shape->k, shape->fill);
    for (uint32_t t = 0; t < n_tok; t++) {
        uint8_t *to = x + t * act_bytes;
        check_fill_floats(c, values, shape->k, shape->fill);
        if (law == BL_ACT_F32)
            memcpy(to, values, act_bytes);
        else
            (law == BL_ACT_Q8_K ? c->ref->quantize_256 : c->ref->quantize_32)(
                shape->k, (struct bl_act_block *)(void *)to, values);
        m->x[t] = to;
        check_fill_floats(c, m->base[t], BL_PANEL_ROWS, shape->fill);
    }
    m->w = w;
}

/* The whole product as the frames form it, for tokens [first, first + n_tok), into c. Where `add`,
 * to what c has. */
static bool multiply(struct context *c, const struct subject *s, const struct shape *shape,
                     const struct matrices *m, uint32_t first, uint32_t n_tok, bool add, float *out)
{
    const struct bl_panel_kernel *kernel = check_panel_kernel(c->now, s);
    const size_t part = (size_t)kernel->part_bytes * n_tok, parts = (shape->k + 255) / 256;
    const size_t tile_bytes = part * parts, spare = (64 - tile_bytes % 64) % 64;
    void *panel = memory_take(c->mem, REGION_Y, BL_PANEL_BYTES, false);
    uint8_t *tile = memory_take(c->mem, REGION_Z, tile_bytes + spare, false);
    kernel->arrange(tile, n_tok, shape->k, m->x + first);
    for (uint32_t at = 0; at < shape->k; at += BL_PANEL_COLS) {
        const uint32_t n = shape->k - at < BL_PANEL_COLS ? shape->k - at : BL_PANEL_COLS;
        const size_t skip = (size_t)bl_dtype_row_bytes(s->type, at);
        kernel->pack(panel, shape->rows, n, m->w + skip, m->stride);
        kernel->multiply(out, panel, tile + at / 256 * part, n_tok, n, add || at);
    }
    if (!memory_is_poison(tile + tile_bytes, spare) || !memory_frame_intact(c->mem, REGION_Y) ||
        !memory_frame_intact(c->mem, REGION_Z))
        return check_fail(c, "wrote beside panel or tile");
    return true;
}

static bool compare(struct context *c, const struct subject *s, const struct shape *shape,
                    struct matrices *m, bool add, const float (*got)[BL_PANEL_ROWS])
{
    const uint32_t n_tok = shape->place;
    struct magnitude size[MAX_TOKENS];
    for (uint32_t r = 0; r < BL_PANEL_ROWS; r++) {
        const uint8_t *w = m->w + r * m->stride;
        const bool there = r < shape->rows;
        memset(size, 0, sizeof size);
        if (there)
            row_magnitudes(size, s->type, shape->k, w, n_tok, m->x);
        if (there && s->kind == FOLD)
            add_folded(size, s->type, shape->k, w, n_tok, m->x);
        for (uint32_t t = 0; t < n_tok; t++) {
            const double before = add ? (double)m->base[t][r] : 0;
            const bool q8_k = c->ref->matmul[s->type].act == BL_ACT_Q8_K;
            float dot = 0;
            if (there)
                c->ref->matmul[s->type].dot(shape->k, 1, &dot, w, m->stride, m->x[t], NULL);
            const double want = (double)dot + before, error = (double)got[t][r] - want;
            const double terms = size[t].terms + fabs(before);
            const double limit = C + sqrt(shape->k);
            const double magnitude = terms + (q8_k ? C_BASE / limit * size[t].base : 0) +
                                     FOLD_STEP / (limit * (double)FLT_EPSILON) * size[t].folded;
            m->nmse += error * error;
            m->squares += size[t].squares + before * before;
            if (!check_close(c, "result", t * BL_PANEL_ROWS + r, (double)got[t][r], want, magnitude,
                             limit, size[t].units * (double)FLT_TRUE_MIN))
                return false;
        }
    }
    const double nmse = s->kind == FOLD ? FOLD_NMSE : NMSE;
    if (m->nmse > nmse * m->squares + (double)FLT_MIN)
        return check_fail(c, "mean square error %.3g of the terms'", m->nmse / m->squares);
    return true;
}

static bool same_alone(struct context *c, const struct subject *s, const struct shape *shape,
                       const struct matrices *m, bool add, const float (*got)[BL_PANEL_ROWS])
{
    float alone[BL_PANEL_ROWS] BL_ALIGNED(64);
    for (uint32_t t = 0; t < shape->place; t++) {
        memcpy(alone, m->base[t], sizeof alone);
        if (!multiply(c, s, shape, m, t, 1, add, alone))
            return false;
        if (memcmp(alone, got[t], sizeof alone) != 0)
            return check_fail(c, "token %u of %u differs from itself alone", t, shape->place);
    }
    return true;
}

bool check_panel(struct context *c, const struct subject *s, const struct shape *shape)
{
    static struct matrices m;
    const size_t bytes = shape->place * sizeof *m.base;
    const bool from_start = check_random(c) & 1, add = check_random(c) & 1;
    float(*got)[BL_PANEL_ROWS] = memory_take(c->mem, REGION_OUT, bytes, from_start);
    memset(&m, 0, sizeof m);
    make_inputs(c, s, shape, &m, from_start);
    memcpy(got, m.base, bytes);
    if (!multiply(c, s, shape, &m, 0, shape->place, add, *got))
        return false;
    if (!memory_frame_intact(c->mem, REGION_OUT))
        return check_fail(c, "wrote beside c[]");
    const float(*result)[BL_PANEL_ROWS] = (const float(*)[BL_PANEL_ROWS])got;
    if (!compare(c, s, shape, &m, add, result) || !same_alone(c, s, shape, &m, add, result))
        return false;
    if (!c->same)
        return true;
    const struct bl_cpu_kernels *now = c->now;
    c->now = c->same;
    const bool same = same_alone(c, s, shape, &m, add, result);
    c->now = now;
    return same || check_fail(c, "not the bits of %s", check_panel_kernel(c->same, s)->name);
}
