/* SPDX-License-Identifier: MIT */
/* SHORT_CONV, DELTA_RULE and COMPRESS: what keeps a state that every token changes. */
#include "simt/kv.hpp"
#include "simt/params.hpp"

/* ---- SHORT_CONV ----
 *   a: x, w, y, state, params   n: elements, taps, rows of a sequence, silu   grid: elements, tokens */

constexpr uint32_t THREADS = 128;

/* The token before t of the same sequence in this batch, or t where there is none. Mostly its neighbour. */
BL_DEV uint32_t before(uint64_t params, uint32_t t)
{
    const uint32_t seq = seq_of(params, t);
    for (uint32_t u = t; u > 0; u--)
        if (seq_of(params, u - 1) == seq)
            return u - 1;
    return t;
}

BL_DEV float *conv_state(const struct bl_simt_args &p, uint32_t slot, uint32_t pos, uint32_t i)
{
    return floats(p.a[3]) + static_cast<uint64_t>(p.n[0]) * row_of(p.n[2], slot, pos) + i;
}

/* Every element convolved over the last tokens of its sequence, in the batch or, before them, in the state. */
BL_KERNEL(short_conv, THREADS)
{
    const uint32_t n = p.n[0], taps = p.n[1], i = block_x() * THREADS + thread_x(), t = block_y();
    if (i >= n || t >= step_of(p.a[4])->n_tok)
        return;
    const uint32_t slot = slot_of(p.a[4], seq_of(p.a[4], t)), pos = pos_of(p.a[4], t);
    const float *w = floats(p.a[1]) + static_cast<uint64_t>(taps) * i, *x = floats(p.a[0]);
    float sum = 0;
    uint32_t from = t;
    bool inside = true;
    for (uint32_t back = 0; back < taps && back <= pos; back++) {
        if (back > 0 && inside) {
            const uint32_t u = before(p.a[4], from);
            inside = u != from;
            from = u;
        }
        const float v = inside ? x[static_cast<uint64_t>(n) * from + i] : *conv_state(p, slot, pos - back, i);
        sum = fmaf(w[taps - 1 - back], v, sum);
    }
    floats(p.a[2])[static_cast<uint64_t>(n) * t + i] = p.n[3] ? sum * sigmoid(sum) : sum;
}

/* The state, of what the next step may look back on; it runs behind. */
BL_KERNEL(short_conv_keep, THREADS)
{
    const uint32_t n = p.n[0], i = block_x() * THREADS + thread_x(), t = block_y();
    if (i >= n || t >= step_of(p.a[4])->n_tok)
        return;
    const uint32_t seq = seq_of(p.a[4], t), slot = slot_of(p.a[4], seq), pos = pos_of(p.a[4], t);
    if (kv_of(p.a[4], seq) - pos <= p.n[2])
        *conv_state(p, slot, pos, i) = floats(p.a[0])[static_cast<uint64_t>(n) * t + i];
}

/* ---- DELTA_RULE: a warp takes one row of a head's state through the tokens of the batch, in their order ----
 *   a: qkv, beta, alpha, a, dt, y, state, params
 *   n: key heads, value heads, dk, dv, tiled, eps, scale, versions of the state, elements of a token of qkv
 *   grid: rows, value heads */

constexpr uint32_t MOST_DK = 256, OWN = MOST_DK / BL_WARP;

struct row_part { /* elements lane, lane + BL_WARP, ... */
    float v[OWN];
};

BL_DEV void load_part(row_part &r, const float *from, uint32_t n)
{
    BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
        r.v[o] = lane() + o * BL_WARP < n ? from[lane() + o * BL_WARP] : 0;
}
BL_DEV float dot_parts(const row_part &a, const row_part &b)
{
    float sum = 0;
    BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
        sum = fmaf(a.v[o], b.v[o], sum);
    return sum_lanes(sum);
}
BL_DEV void unit_length(row_part &r, float times, float eps)
{
    const float c = times / fmaxf(sqrtf(dot_parts(r, r)), eps);
    BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
        r.v[o] *= c;
}

BL_DEV float *delta_state(const struct bl_simt_args &p, uint32_t slot, uint32_t pos, uint32_t head, uint32_t row)
{
    const uint64_t version = row_of(p.n[7], slot, pos);
    return floats(p.a[6]) + ((version * p.n[1] + head) * p.n[3] + row) * p.n[2];
}

struct delta_gates {
    float decay, beta;
};
BL_DEV delta_gates gates_of(const struct bl_simt_args &p, uint32_t t, uint32_t head)
{
    const uint64_t gate = static_cast<uint64_t>(p.n[1]) * t + head;
    const float alpha = floats(p.a[2])[gate] + floats(p.a[4])[head];
    return {expf(floats(p.a[3])[head] * softplus(alpha)), sigmoid(floats(p.a[1])[gate])};
}

/* A token; s is the row before it, and after. */
BL_DEV float delta_step(const struct bl_simt_args &p, row_part &s, uint32_t t, uint32_t head, uint32_t row)
{
    const uint32_t heads_k = p.n[0], dk = p.n[2], key = p.n[4] ? head % heads_k : head / (p.n[1] / heads_k);
    const float *x = floats(p.a[0]) + static_cast<uint64_t>(p.n[8]) * t;
    const delta_gates g = gates_of(p, t, head);
    row_part q, k;
    load_part(q, x + key * dk, dk);
    load_part(k, x + (heads_k + key) * dk, dk);
    unit_length(q, num(p, 6), num(p, 5));
    unit_length(k, 1, num(p, 5));
    const float d = g.beta * (x[2 * heads_k * dk + head * p.n[3] + row] - g.decay * dot_parts(s, k));
    BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
        s.v[o] = g.decay * s.v[o] + k.v[o] * d;
    return dot_parts(s, q);
}

BL_KERNEL(delta_rule, THREADS)
{
    const uint32_t dk = p.n[2], dv = p.n[3], head = block_y(), row = block_x() * (THREADS / BL_WARP) + warp_x();
    if (row >= dv)
        return;
    const uint32_t n_tok = step_of(p.a[7])->n_tok;
    uint32_t last = ~0u; /* sequence that s is of */
    row_part s;
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint32_t seq = seq_of(p.a[7], t), slot = slot_of(p.a[7], seq), pos = pos_of(p.a[7], t);
        if (seq != last)
            load_part(s, delta_state(p, slot, pos ? pos - 1 : 0, head, row), pos ? dk : 0);
        const float y = delta_step(p, s, t, head, row);
        if (lane() == 0)
            floats(p.a[5])[(static_cast<uint64_t>(p.n[1]) * t + head) * dv + row] = y;
        float *to = delta_state(p, slot, pos, head, row);
        BL_UNROLL for (uint32_t o = 0; o < OWN; o++)
            if (lane() + o * BL_WARP < dk)
                to[lane() + o * BL_WARP] = s.v[o];
        last = seq;
    }
}

/* ---- COMPRESS: a thread takes one element of the result through the tokens of the batch, in their order, as a ring holds
 * just what a group looks back on. Of several nodes each has its own row of the grid ----
 *   a: params, then of each x, gate, ape, y, state
 *   n: of each elements, halves, tokens of a group, rows of a sequence, bytes of a row of ape, its type
 *   grid: elements, nodes */

constexpr uint32_t RING_THREADS = 64;

struct ring {
    const float *x, *gate;
    const uint8_t *ape;
    float *y, *state;
    uint32_t n, halves, group, rows, ape_bytes, ape_type;
};

BL_DEV ring ring_of(const struct bl_simt_args &p, uint32_t i)
{
    const uint32_t a = 1 + 5 * i, n = 6 * i;
    return {floats(p.a[a]), floats(p.a[a + 1]), bytes(p.a[a + 2]), floats(p.a[a + 3]), floats(p.a[a + 4]),
            p.n[n],         p.n[n + 1],         p.n[n + 2],        p.n[n + 3],         p.n[n + 4],         p.n[n + 5]};
}

/* The ring's row of a position: x, then its gate. */
BL_DEV float *ring_row(const ring &r, uint32_t slot, uint32_t pos)
{
    return r.state + static_cast<uint64_t>(row_of(r.rows, slot, pos)) * 2 * r.halves * r.n;
}

BL_DEV void keep_token(const ring &r, uint32_t t, uint32_t slot, uint32_t pos, uint32_t i)
{
    const uint64_t from = static_cast<uint64_t>(r.halves * r.n) * t;
    const uint8_t *ape = r.ape + static_cast<uint64_t>(r.ape_bytes) * (pos % r.group);
    float *row = ring_row(r, slot, pos);
    for (uint32_t half_n = 0; half_n < r.halves; half_n++) {
        const uint32_t e = half_n * r.n + i;
        row[e] = r.x[from + e];
        row[r.halves * r.n + e] = r.gate[from + e] + kv_one(r.ape_type, ape, e);
    }
}

BL_DEV float pool(const ring &r, uint32_t slot, uint32_t pos, uint32_t i)
{
    const uint32_t n = r.n, halves = r.halves, own = pos + 1 - r.group;
    const uint32_t first = halves == 2 && own > 0 ? own - r.group : own;
    float most = -INFINITE, sum = 0, y = 0;
    for (uint32_t b = first; b <= pos; b++)
        most = fmaxf(most, ring_row(r, slot, b)[(halves + (b >= own ? halves - 1 : 0)) * n + i]);
    for (uint32_t b = first; b <= pos; b++) {
        const float *row = ring_row(r, slot, b);
        const uint32_t e = (b >= own ? halves - 1 : 0) * n + i;
        const float w = expf(row[halves * n + e] - most);
        sum += w;
        y = fmaf(w, row[e], y);
    }
    return y / sum;
}

BL_KERNEL(compress, RING_THREADS)
{
    const ring r = ring_of(p, block_y());
    const uint32_t i = block_x() * RING_THREADS + thread_x();
    if (i >= r.n)
        return;
    const uint32_t n_tok = step_of(p.a[0])->n_tok;
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint32_t slot = slot_of(p.a[0], seq_of(p.a[0], t)), pos = pos_of(p.a[0], t);
        keep_token(r, t, slot, pos, i);
        r.y[static_cast<uint64_t>(r.n) * t + i] = (pos + 1) % r.group ? 0 : pool(r, slot, pos, i);
    }
}
