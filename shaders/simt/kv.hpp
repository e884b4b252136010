/* SPDX-License-Identifier: MIT */
/* kv.hpp — rows of state by type, which is a number of core/dtype.def that the host passes: branches on it are the same
 * for all threads.
 *
 * Purpose   reading and writing cached rows.
 * Ownership none.
 * Units     elements, bytes.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_SIMT_KV_HPP
#define BL_SIMT_KV_HPP

#include "simt/quant.hpp"

enum { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_Q4_0 }; /* backends/simt/simt_ops.c: bl_simt_kv */

BL_DEV uint32_t kv_bytes(uint32_t type, uint32_t n)
{
    return type == KV_F32 ? 4 * n : type == KV_Q8_0 ? n / 32 * 34 : type == KV_Q4_0 ? n / 32 * 18 : 2 * n;
}

BL_DEV float kv_one(uint32_t type, const uint8_t *row, uint32_t i)
{
    switch (type) {
    case KV_F32:
        return F32::one(row, i);
    case KV_F16:
        return F16::one(row, i);
    case KV_BF16:
        return BF16::one(row, i);
    case KV_Q8_0: {
        const uint8_t *b = row + 34 * (i / 32);
        return half_at(b) * static_cast<float>(static_cast<int8_t>(b[2 + i % 32]));
    }
    default: {
        const uint8_t *b = row + 18 * (i / 32);
        return half_at(b) * static_cast<float>(static_cast<int>(b[2 + i % 16] >> 4 * (i % 32 / 16) & 15) - 8);
    }
    }
}

/* Elements [8 i, 8 i + 8) of a row, which is whole blocks. */
BL_DEV void q8_eight(float (&v)[8], const uint8_t *row, uint32_t i)
{
    const uint8_t *b = row + 34 * (i / 4);
    const float d = half_at(b);
    uint32_t two[2];
    load_words<2>(two, b + 2 + 8 * (i % 4));
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        v[j] = d * static_cast<float>(static_cast<int8_t>(two[j / 4] >> 8 * (j % 4)));
}
BL_DEV void q4_eight(float (&v)[8], const uint8_t *row, uint32_t i)
{
    const uint8_t *b = row + 18 * (i / 4);
    const float d = half_at(b);
    uint32_t two[2];
    load_words<2>(two, b + 2 + 8 * (i % 2));
    BL_UNROLL for (uint32_t j = 0; j < 8; j++)
        v[j] = d * static_cast<float>(static_cast<int>(two[j / 4] >> 8 * (j % 4) >> 4 * (i % 4 / 2) & 15u) - 8);
}

/* Elements [8 i, 8 i + 8) of a row of n; what is beyond it is 0. */
BL_DEV void kv_eight(float (&v)[8], uint32_t type, const uint8_t *row, uint32_t i, uint32_t n)
{
    uint32_t four[8];
    if (8 * i + 8 > n || (type < KV_Q8_0 && (reinterpret_cast<uintptr_t>(row) & 15u))) {
        for (uint32_t j = 0; j < 8; j++)
            v[j] = 8 * i + j < n ? kv_one(type, row, 8 * i + j) : 0;
        return;
    }
    switch (type) {
    case KV_F32:
        load_words<16>(four, row + 32 * i);
        BL_UNROLL for (uint32_t j = 0; j < 8; j++)
            v[j] = bits_as<float>(four[j]);
        return;
    case KV_F16:
        F16::eight(v, row, i);
        return;
    case KV_BF16:
        BF16::eight(v, row, i);
        return;
    case KV_Q8_0:
        q8_eight(v, row, i);
        return;
    default:
        q4_eight(v, row, i);
        return;
    }
}

#endif
