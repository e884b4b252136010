/* SPDX-License-Identifier: MIT */
/* EMBED, and KV_STORE: rows of a table, rows into state. */
#include "simt/kv.hpp"
#include "simt/params.hpp"

constexpr uint32_t THREADS = 64;

/* ---- EMBED: a thread decodes 32 elements. a: table, y, params   n: elements, bytes of a row, scale   grid: 32s, tokens ---- */

template <class W> BL_DEV void embed(const struct bl_simt_args &p)
{
    const uint32_t n = p.n[0], t = block_y(), i = block_x() * THREADS + thread_x();
    if (t >= step_of(p.a[2])->n_tok || 32 * i >= n)
        return;
    piece w;
    W::piece_of(w, bytes(p.a[0]) + static_cast<uint64_t>(p.n[1]) * token_of(p.a[2], t), i);
    float *y = floats(p.a[1]) + static_cast<uint64_t>(n) * t + 32 * i;
    BL_UNROLL for (uint32_t j = 0; j < 8; j++) {
        float v[4];
        values<W>(v, w, j);
        BL_UNROLL for (uint32_t e = 0; e < 4; e++)
            y[4 * j + e] = num(p, 2) * v[e];
    }
}

template <class W> BL_DEV void embed_plain(const struct bl_simt_args &p)
{
    const uint32_t n = p.n[0], t = block_y(), first = 32 * (block_x() * THREADS + thread_x());
    if (t >= step_of(p.a[2])->n_tok)
        return;
    const uint8_t *row = bytes(p.a[0]) + static_cast<uint64_t>(p.n[1]) * token_of(p.a[2], t);
    for (uint32_t i = first; i < least(first + 32, n); i++)
        floats(p.a[1])[static_cast<uint64_t>(n) * t + i] = num(p, 2) * W::one(row, i);
}

#define EMBED(W, w)                                                                                \
    BL_KERNEL(embed__##w, THREADS)                                                                 \
    {                                                                                              \
        embed<W>(p);                                                                               \
    }
#define EMBED_PLAIN(W, w)                                                                          \
    BL_KERNEL(embed__##w, THREADS)                                                                 \
    {                                                                                              \
        embed_plain<W>(p);                                                                         \
    }
BL_QUANT_A(EMBED)
BL_QUANT_B(EMBED)
BL_QUANT_C(EMBED)
BL_QUANT_D(EMBED)
BL_PLAIN(EMBED_PLAIN)

/* ---- KV_STORE: a thread encodes 32 elements; rounding is to nearest, of two equally near to the even: core/dtype.c ---- */

BL_DEV uint16_t to_bf16(float x)
{
    const uint32_t b = bits_as<uint32_t>(x);
    return static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? b >> 16 | 64u : (b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

BL_DEV void encode_q8_0(uint8_t *y, const float *v)
{
    float most = 0;
    for (uint32_t j = 0; j < 32; j++)
        most = fmaxf(most, fabsf(v[j]));
    const float d = most / 127;
    *reinterpret_cast<uint16_t *>(y) = float_to_half(d);
    for (uint32_t j = 0; j < 32; j++)
        y[2 + j] = static_cast<uint8_t>(d != 0 ? static_cast<int>(rintf(fminf(fmaxf(v[j] / d, -127.0f), 127.0f))) : 0);
}

BL_DEV void encode_q4_0(uint8_t *y, const float *v)
{
    float most = 0, signed_most = 0;
    for (uint32_t j = 0; j < 32; j++)
        if (fabsf(v[j]) > most) {
            most = fabsf(v[j]);
            signed_most = v[j];
        }
    const float d = signed_most / -8, inverse = d != 0 ? 1 / d : 0;
    *reinterpret_cast<uint16_t *>(y) = float_to_half(d);
    for (uint32_t j = 0; j < 16; j++) {
        const int low = static_cast<int>(v[j] * inverse + 8.5f), high = static_cast<int>(v[j + 16] * inverse + 8.5f);
        y[2 + j] = static_cast<uint8_t>((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
    }
}

/* Of groups of tokens a row for each that a token completes.
 *   a: x, state, params   n: elements, bytes of a row, rows of a sequence, tokens of a group, type   grid: 32s, tokens */
BL_KERNEL(kv_store, THREADS)
{
    const uint32_t n = p.n[0], i = block_x() * THREADS + thread_x(), t = block_y(), group = p.n[3];
    if (32 * i >= n || t >= step_of(p.a[2])->n_tok)
        return;
    const uint32_t pos = pos_of(p.a[2], t);
    if ((pos + 1) % group != 0)
        return;
    const uint32_t row = row_of(p.n[2], slot_of(p.a[2], seq_of(p.a[2], t)), pos / group);
    uint8_t *y = at<uint8_t>(p.a[1]) + static_cast<uint64_t>(p.n[1]) * row;
    const float *x = floats(p.a[0]) + static_cast<uint64_t>(n) * t;
    if (p.n[4] == KV_Q8_0)
        encode_q8_0(y + 34 * i, x + 32 * i);
    else if (p.n[4] == KV_Q4_0)
        encode_q4_0(y + 18 * i, x + 32 * i);
    else
        for (uint32_t j = 32 * i; j < least(32 * i + 32, n); j++) {
            if (p.n[4] == KV_F32)
                reinterpret_cast<float *>(y)[j] = x[j];
            else
                reinterpret_cast<uint16_t *>(y)[j] = p.n[4] == KV_F16 ? float_to_half(x[j]) : to_bf16(x[j]);
        }
}
