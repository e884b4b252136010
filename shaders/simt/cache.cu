/* SPDX-License-Identifier: MIT */
/* EMBED, and KV_STORE: rows of a table, rows into state. */
#include "simt/encode.hpp"
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

/* ---- KV_STORE: a thread encodes 32 elements ---- */

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
    encode(p.n[4], y, x, i, n);
}
