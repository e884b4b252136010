/* SPDX-License-Identifier: MIT */
/* matvec.hpp — products with few tokens: every byte of weights is read once, wide, and everything else gives way to that.
 *
 *   grid: row groups of all products, tokens / TOKENS or pairs, heads   block: MV_THREADS
 *
 * Purpose   n[LANES] lanes, a power of two, share a row of weights, or, with w of up, its two rows; else two rows that lie
 *           beside each other. A block takes n[PASSES] groups of rows one after the other.
 *           Activations become signed bytes with a scale for each 32, in shared memory, once in every block: a launch of its
 *           own would cost more than the fraction of a block's time that this takes.
 * Ownership none.
 * Units     elements.
 * Errors    none.
 * Threads   all lanes of a warp go through all turns: rows that are not there are read as the last one.
 */
#ifndef BL_SIMT_MATVEC_HPP
#define BL_SIMT_MATVEC_HPP

#include "simt/product.hpp"

constexpr uint32_t MV_THREADS = 256;

/* What a group of lanes multiplies. */
template <uint32_t T> struct rows {
    const uint8_t *w[2];
    const float *x[T];
    float sum[2][T];
    uint32_t row, n_tok, expert, pair, first; /* first: token */
    uint32_t product;                          /* which one the block belongs to */
    bool twin, there, skip;                    /* skip: the block has nothing to do */
};

/* Of the products that share x. */
BL_DEV uint32_t product_of(const struct bl_simt_args &p)
{
    uint32_t j = 0;
    while (j + 1 < p.n[PRODUCTS] && block_x() >= p.n[EACH_N * (j + 1) + FIRST])
        j++;
    return j;
}

template <uint32_t T> BL_DEV void begin(rows<T> &r, const struct bl_simt_args &p)
{
    const uint32_t in = p.n[IN];
    r.product = product_of(p);
    r.twin = p.a[W_UP] != 0;
    r.skip = false;
    if (p.a[IDS]) {
        r.pair = block_y();
        r.n_tok = 1;
        r.skip = r.pair >= step_of(p.a[PARAMS])->n_tok * p.n[USED];
        r.expert = r.skip ? 0 : at<const uint32_t>(p.a[IDS])[r.pair];
        r.skip = r.skip || r.expert >= p.n[N_EXPERTS] || !entry_of(p.a[W_OF], r.expert);
        BL_UNROLL for (uint32_t t = 0; t < T; t++)
            r.x[t] = floats(p.a[X]) + static_cast<uint64_t>(in) * (r.pair / p.n[DIVISOR]);
        return;
    }
    r.first = block_y() * T;
    r.n_tok = least(T, p.n[TOKENS] - r.first);
    BL_UNROLL for (uint32_t t = 0; t < T; t++)
        r.x[t] = floats(p.a[X]) + static_cast<uint64_t>(p.n[X_STRIDE]) * (r.first + least(t, r.n_tok - 1)) +
                 in * block_z();
}

/* The rows of a pass of this group of lanes. */
template <uint32_t T> BL_DEV void begin_rows(rows<T> &r, const struct bl_simt_args &p, uint32_t pass)
{
    const uint32_t out = p.n[EACH_N * r.product + OUT], block = block_x() - p.n[EACH_N * r.product + FIRST];
    const uint32_t group = thread_x() / p.n[LANES], n_groups = MV_THREADS / p.n[LANES];
    const uint32_t row = (block * p.n[PASSES] + pass) * n_groups + group;
    const uint64_t bytes_of = p.n[ROW_BYTES];
    r.row = r.twin ? row : 2 * row;
    r.there = r.row < out;
    const uint32_t a = least(r.row, out - 1), b = least(r.row + 1, out - 1);
    if (p.a[IDS]) {
        const uint8_t *w = bytes(entry_of(p.a[W_OF], r.expert));
        r.w[0] = w + bytes_of * a;
        r.w[1] = r.twin ? bytes(entry_of(p.a[W_UP], r.expert)) + bytes_of * a : w + bytes_of * b;
    } else {
        const uint8_t *w = bytes(p.a[EACH_A * r.product + W_OF]) + static_cast<uint64_t>(p.n[HEAD_BYTES]) * block_z();
        r.w[0] = w + bytes_of * a;
        r.w[1] = r.twin ? bytes(p.a[W_UP]) + bytes_of * a : w + bytes_of * b;
    }
    BL_UNROLL for (uint32_t t = 0; t < T; t++)
        r.sum[0][t] = r.sum[1][t] = 0;
}

/* act(gate) * up of an expert's row, or of token `t`. */
template <uint32_t T> BL_DEV void put_twin(const rows<T> &r, const struct bl_simt_args &p, uint32_t t)
{
    const float a = r.sum[0][t], b = r.sum[1][t];
    if (p.a[IDS])
        floats(p.a[Y])[static_cast<uint64_t>(p.n[OUT]) * r.pair + r.row] =
            act(p, expert_sum(p.a[SCALE], p.a[BIAS], r.expert, r.row, a),
                expert_sum(p.a[SCALE_UP], p.a[BIAS_UP], r.expert, r.row, b));
    else
        floats(p.a[Y])[static_cast<uint64_t>(p.n[OUT]) * (r.first + t) + r.row] =
            act(p, scaled(p, 0, 0, r.row, a), scaled(p, W_UP - W_OF, 0, r.row, b));
}

/* A row of a token, and what becomes of it. */
template <uint32_t T> BL_DEV void put_further(const rows<T> &r, const struct bl_simt_args &p, uint32_t t, uint32_t row, float sum)
{
    const uint32_t base = EACH_A * r.product, out = p.n[EACH_N * r.product + OUT], s = p.n[N_STREAMS];
    const uint32_t stride = p.n[PRODUCTS] > 1 ? out : p.n[Y_STRIDE];
    const uint64_t i = static_cast<uint64_t>(stride) * t + out * block_z() + row;
    float v = scaled(p, base, block_z(), row, sum);
    if (p.a[ADDEND])
        v += floats(p.a[ADDEND])[i];
    if (p.a[MIX])
        mix_streams(floats(p.a[Y]) + static_cast<uint64_t>(s * stride) * t + row,
                    floats(p.a[STREAMS]) + static_cast<uint64_t>(s * stride) * t + row,
                    floats(p.a[MIX]) + static_cast<uint64_t>(2 * s + s * s) * t, s, stride, v);
    else
        floats(p.a[base + Y])[i] = v;
}

template <uint32_t T> BL_DEV void finish_rows(rows<T> &r, const struct bl_simt_args &p)
{
    BL_UNROLL for (uint32_t t = 0; t < T; t++)
        BL_UNROLL for (uint32_t i = 0; i < 2; i++)
            r.sum[i][t] = sum_lanes(r.sum[i][t], p.n[LANES]);
    if (!r.there || thread_x() % p.n[LANES])
        return;
    BL_UNROLL for (uint32_t t = 0; t < T; t++) {
        if (t >= r.n_tok)
            break;
        if (r.twin) {
            put_twin(r, p, t);
            continue;
        }
        BL_ROLLED for (uint32_t i = 0; i < least(2, p.n[EACH_N * r.product + OUT] - r.row); i++) {
            const float sum = i == 0 ? r.sum[0][t] : r.sum[1][t];
            if (p.a[IDS])
                put_pair(p, r.expert, r.pair, r.row + i, sum);
            else
                put_further(r, p, r.first + t, r.row + i, sum);
        }
    }
}

/* ---- activations as bytes ---- */

/* 64 elements: 16 words of bytes, the scales of their halves, and those times the sums of the bytes. Eight threads that read
 * neighbouring units in wide pieces meet different banks. */
constexpr uint32_t UNIT_WORDS = 20;
template <uint32_t T, uint32_t WORDS> struct alignas(16) bytes_of_x {
    uint32_t x[T][WORDS];
};

/* Elements [first, first + n) of a row, n in whole 32s. */
BL_DEV void quantise(uint32_t *to, const float *x, uint32_t n)
{
    for (uint32_t i0 = 0; i0 < n / 4; i0 += MV_THREADS) {
        const uint32_t i = i0 + thread_x();
        const bool mine = i < n / 4;
        quad v = {{0, 0, 0, 0}};
        if (mine)
            v = reinterpret_cast<const quad *>(x)[i];
        const float most = most_lanes(fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3]))), 8);
        const float inverse = most > 0 ? 127 / most : 0;
        uint32_t word = 0;
        float sum = 0;
        BL_UNROLL for (uint32_t e = 0; e < 4; e++) {
            const float q = rintf(v.v[e] * inverse);
            word |= (static_cast<uint32_t>(static_cast<int>(q)) & 255u) << 8 * e;
            sum += q;
        }
        sum = sum_lanes(sum, 8);
        if (!mine)
            continue;
        uint32_t *unit = to + i / 16 * UNIT_WORDS;
        unit[i % 16] = word;
        if (i % 8 == 0) {
            unit[16 + i % 16 / 8] = bits_as<uint32_t>(most / 127);
            unit[18 + i % 16 / 8] = bits_as<uint32_t>(most / 127 * sum);
        }
    }
}

/* A piece of weights · the same 32 activations: q, their scale, it times their sum. */
template <class W> BL_DEV float dot_piece(const piece &p, const uint32_t *q, float d, float d_sum)
{
    float sum;
    int a = 0, b = 0;
    BL_UNROLL for (uint32_t j = 0; j < 4; j++) {
        a = dot4(p.q[j], q[j], a);
        b = dot4(p.q[4 + j], q[4 + j], b);
    }
    if constexpr (W::SCALES == 2)
        sum = d * (p.scale[0] * static_cast<float>(a) + p.scale[1] * static_cast<float>(b));
    else
        sum = d * p.scale[0] * static_cast<float>(a + b);
    if constexpr (W::MINS == 1)
        sum += p.min[0] * d_sum;
    if constexpr (W::MINS == 2) {
        int ones = 0;
        BL_UNROLL for (uint32_t j = 0; j < 4; j++)
            ones = dot4(0x01010101u, q[j], ones);
        const float half_sum = d * static_cast<float>(ones);
        sum += p.min[0] * half_sum + p.min[1] * (d_sum - half_sum);
    }
    return sum;
}

/* `units`: of the chunk in shared memory, of which the first is unit `from` of the row; `pieces` of the row in all. */
template <class W, uint32_t T, uint32_t WORDS>
BL_DEV void dot_chunk(rows<T> &r, uint32_t (&xs)[T][WORDS], uint32_t from, uint32_t units, uint32_t pieces, uint32_t lanes)
{
    for (uint32_t u = thread_x() % lanes; u < units; u += lanes)
        BL_UNROLL for (uint32_t h = 0; h < 2; h++) {
            const uint32_t i = 2 * (from + u) + h;
            if (i >= pieces)
                break;
            piece p[2];
            W::piece_of(p[0], r.w[0], i);
            W::piece_of(p[1], r.w[1], i);
            BL_UNROLL for (uint32_t t = 0; t < T; t++) {
                const uint32_t *unit = xs[t] + u * UNIT_WORDS;
                uint32_t q[8];
                __builtin_memcpy(q, __builtin_assume_aligned(unit + 8 * h, 16), sizeof q);
                const float d = bits_as<float>(unit[16 + h]), d_sum = bits_as<float>(unit[18 + h]);
                BL_UNROLL for (uint32_t k = 0; k < 2; k++)
                    r.sum[k][t] += dot_piece<W>(p[k], q, d, d_sum);
            }
        }
}

/* W in pieces, activations as bytes. */
template <class W, uint32_t T> BL_DEV void matvec(const struct bl_simt_args &p)
{
    constexpr uint32_t CHUNK = T == 1 ? 8192 : 4096;
    BL_SHARED bytes_of_x<T, CHUNK / 64 * UNIT_WORDS> s;
    const uint32_t in = p.n[IN];
    rows<T> r;
    begin(r, p);
    if (r.skip)
        return;
    for (uint32_t pass = 0; pass < p.n[PASSES]; pass++) {
        begin_rows(r, p, pass);
        for (uint32_t from = 0; from < in; from += CHUNK) {
            const uint32_t n = least(CHUNK, in - from);
            if (pass == 0 || in > CHUNK) {
                sync();
                BL_UNROLL for (uint32_t t = 0; t < T; t++)
                    quantise(s.x[t], r.x[t] + from, n);
                sync();
            }
            dot_chunk<W, T>(r, s.x, from / 64, (n + 63) / 64, in / 32, p.n[LANES]);
        }
        finish_rows(r, p);
    }
}

/* W in pieces, activations as they are: what the exact mode asks for. */
template <class W> BL_DEV void matvec_exact(const struct bl_simt_args &p)
{
    rows<1> r;
    begin(r, p);
    if (r.skip)
        return;
    for (uint32_t pass = 0; pass < p.n[PASSES]; pass++) {
        begin_rows(r, p, pass);
        for (uint32_t i = thread_x() % p.n[LANES]; i < p.n[IN] / 32; i += p.n[LANES]) {
            piece w[2];
            W::piece_of(w[0], r.w[0], i);
            W::piece_of(w[1], r.w[1], i);
            BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
                const quad x = reinterpret_cast<const quad *>(r.x[0])[8 * i + j];
                BL_UNROLL for (uint32_t k = 0; k < 2; k++) {
                    float v[4];
                    values<W>(v, w[k], j);
                    BL_UNROLL for (uint32_t e = 0; e < 4; e++)
                        r.sum[k][0] = fmaf(v[e], x.v[e], r.sum[k][0]);
                }
            }
        }
        finish_rows(r, p);
    }
}

/* W of single values; n[WIDE]: rows of both are whole eights at multiples of 16 bytes. */
template <class W, uint32_t T> BL_DEV void matvec_plain(const struct bl_simt_args &p)
{
    const uint32_t in = p.n[IN], lanes = p.n[LANES];
    rows<T> r;
    begin(r, p);
    if (r.skip)
        return;
    for (uint32_t pass = 0; pass < p.n[PASSES]; pass++) {
        begin_rows(r, p, pass);
        for (uint32_t i = thread_x() % lanes; p.n[WIDE] && i < in / 8; i += lanes) {
            float w[2][8];
            W::eight(w[0], r.w[0], i);
            W::eight(w[1], r.w[1], i);
            BL_UNROLL for (uint32_t t = 0; t < T; t++)
                BL_UNROLL for (uint32_t j = 0; j < 2; j++) {
                    const quad x = reinterpret_cast<const quad *>(r.x[t])[2 * i + j];
                    BL_UNROLL for (uint32_t k = 0; k < 2; k++)
                        BL_UNROLL for (uint32_t e = 0; e < 4; e++)
                            r.sum[k][t] = fmaf(w[k][4 * j + e], x.v[e], r.sum[k][t]);
                }
        }
        for (uint32_t i = thread_x() % lanes; !p.n[WIDE] && i < in; i += lanes)
            BL_UNROLL for (uint32_t t = 0; t < T; t++)
                BL_UNROLL for (uint32_t k = 0; k < 2; k++)
                    r.sum[k][t] = fmaf(W::one(r.w[k], i), r.x[t][i], r.sum[k][t]);
        finish_rows(r, p);
    }
}

#define BL_MATVEC(W, w)                                                                            \
    BL_KERNEL(matvec__##w, MV_THREADS)                                                             \
    {                                                                                              \
        matvec<W, 1>(p);                                                                           \
    }                                                                                              \
    BL_KERNEL(matvec4__##w, MV_THREADS)                                                            \
    {                                                                                              \
        matvec<W, 4>(p);                                                                           \
    }                                                                                              \
    BL_KERNEL(matvecx__##w, MV_THREADS)                                                            \
    {                                                                                              \
        matvec_exact<W>(p);                                                                        \
    }

#define BL_MATVEC_PLAIN(W, w)                                                                      \
    BL_KERNEL(matvec__##w, MV_THREADS)                                                             \
    {                                                                                              \
        matvec_plain<W, 1>(p);                                                                     \
    }                                                                                              \
    BL_KERNEL(matvec4__##w, MV_THREADS)                                                            \
    {                                                                                              \
        matvec_plain<W, 4>(p);                                                                     \
    }

#endif
