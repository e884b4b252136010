/* SPDX-License-Identifier: MIT */
/* product.hpp — arguments of every kernel that multiplies weights, and what becomes of a sum.
 *
 *   a: of each of MOST_PRODUCTS products w, y, [bias], [scale]; then x, [ids], params, [w of up], [products of gate],
 *      [bias of up], [its scale], [order], [tiles], [scales of rows of x], [what is added], [weights of streams], [streams]
 *   n: of each product out, first block; then in, tokens, bytes of a row, floats of a row of x, of y; bytes of a head's
 *      matrix, heads' own scales; lanes of a row, experts used, row of x of a pair is pair / n[DIVISOR], glu kind, alpha,
 *      limit; row groups of a block, wide, products, streams, experts (ids beyond them are of none)
 *
 * Purpose   one set of numbers for MATMUL, MATMUL_HEADS (the grid's z is the head) and EXPERTS. With ids, matrices, biases
 *           and scales are tables of addresses, one for each expert, 0 where the device has none; a pair is a token and one
 *           of the experts chosen for it. With w of up, act(gate) * up is written; with products of gate, act(those) * these.
 *           Of few tokens several products of one x may share a grid, and a result may be added to another value or
 *           written into streams.
 * Ownership none.
 * Units     elements, bytes.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_SIMT_PRODUCT_HPP
#define BL_SIMT_PRODUCT_HPP

#include "simt/params.hpp"
#include "simt/quant.hpp"

constexpr uint32_t MOST_PRODUCTS = 8;
enum {
    W_OF, Y, BIAS, SCALE, EACH_A,
    X = EACH_A * MOST_PRODUCTS, IDS, PARAMS, W_UP, GATES, BIAS_UP, SCALE_UP, ORDER, TILES, ROW_SCALES, ADDEND, MIX, STREAMS
};
enum {
    OUT, FIRST, EACH_N,
    IN = EACH_N * MOST_PRODUCTS, TOKENS, ROW_BYTES, X_STRIDE, Y_STRIDE, HEAD_BYTES, OWN_SCALES, LANES, USED, DIVISOR, KIND,
    ALPHA, LIMIT, PASSES, WIDE, PRODUCTS, N_STREAMS, N_EXPERTS
};

/* Of expert e; 0: absent. */
BL_DEV uint64_t entry_of(uint64_t table, uint32_t e)
{
    return table ? at<const uint64_t>(table)[e] : 0;
}

BL_DEV float act(const struct bl_simt_args &p, float g, float u)
{
    return glu_of(p.n[KIND], num(p, ALPHA), num(p, LIMIT), g, u);
}

/* A sum of an expert's row, times scale, plus bias. */
BL_DEV float expert_sum(uint64_t scales, uint64_t biases, uint32_t e, uint32_t row, float sum)
{
    const uint64_t scale = entry_of(scales, e), bias = entry_of(biases, e);
    if (scale)
        sum *= floats(scale)[0];
    if (bias)
        sum += floats(bias)[row];
    return sum;
}

/* Writes row `row` of pair `pair`. */
BL_DEV void put_pair(const struct bl_simt_args &p, uint32_t e, uint32_t pair, uint32_t row, float sum)
{
    const uint64_t i = static_cast<uint64_t>(p.n[OUT]) * pair + row;
    float v = expert_sum(p.a[SCALE], p.a[BIAS], e, row, sum);
    if (p.a[GATES])
        v = act(p, floats(p.a[GATES])[i], v);
    floats(p.a[Y])[i] = v;
}

/* The scale and the bias of a product whose addresses begin at p.a[base]. */
BL_DEV float scaled(const struct bl_simt_args &p, uint32_t base, uint32_t head, uint32_t row, float sum)
{
    const float scale = p.a[base + SCALE] ? floats(p.a[base + SCALE])[p.n[OWN_SCALES] ? head : 0] : 1;
    const float bias = p.a[base + BIAS] ? floats(p.a[base + BIAS])[row] : 0;
    return sum * scale + bias;
}

/* Writes row `row` of token `t`. */
BL_DEV void put_row(const struct bl_simt_args &p, uint32_t head, uint32_t t, uint32_t row, float sum)
{
    floats(p.a[Y])[static_cast<uint64_t>(p.n[Y_STRIDE]) * t + p.n[OUT] * head + row] = scaled(p, 0, head, row, sum);
}

#endif
