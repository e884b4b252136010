/* SPDX-License-Identifier: MIT */
/* mma.hpp — 16 × 16 sums of products of halves by one warp, on whatever the device has for it.
 *
 *   fragment f; load_fragment(f, tile, pitch);    16 rows of 16 halves, two in a word, `pitch` words apart, in shared memory
 *   sums s; multiply(s, a, b);                    s[row][column] += a[row] · b[column]
 *   sum_row(i), sum_column(i)                     where this lane's s.v[i] belongs
 *
 * Purpose   one loop for tensor cores (mma.sync), WMMA and MFMA; without any of them the lanes multiply themselves.
 * Ownership none.
 * Units     halves; rows begin at multiples of 16 bytes.
 * Errors    none.
 * Threads   all lanes of a warp together.
 */
#ifndef BL_SIMT_MMA_HPP
#define BL_SIMT_MMA_HPP

#include "simt/simt.hpp"

BL_DEV uint32_t two_halves(float a, float b)
{
    return float_to_half(a) | static_cast<uint32_t>(float_to_half(b)) << 16;
}

struct alignas(16) four_words {
    uint32_t v[4];
};
BL_DEV void store_four(uint32_t *to, const uint32_t *w)
{
    *reinterpret_cast<four_words *>(to) = {{w[0], w[1], w[2], w[3]}};
}

constexpr uint32_t SUMS = 256 / BL_WARP;
struct sums {
    float v[SUMS];
};

#if defined(BL_SIMT_HOST) && BL_WARP == 32
#define BL_MMA_QUADS 1
#elif defined(BL_SIMT_HOST)
#define BL_MMA_COLUMNS 1
#elif !defined(__HIP__)
#define BL_MMA_QUADS 1
#else
#define BL_MMA_COLUMNS 1
#endif

#if defined(BL_MMA_QUADS)
/* ---- mma.sync: lane 4 g + q holds pairs of rows g and g + 8 ---- */

struct fragment {
    uint32_t r[4];
};
BL_DEV void load_fragment(fragment &f, const uint32_t *tile, uint32_t pitch)
{
    const uint32_t *w = tile + lane() / 4 * pitch + lane() % 4;
    f.r[0] = w[0];
    f.r[1] = w[8 * pitch];
    f.r[2] = w[4];
    f.r[3] = w[8 * pitch + 4];
}
BL_DEV uint32_t sum_row(uint32_t i)
{
    return lane() / 4 + 8 * (i % 4 / 2);
}
BL_DEV uint32_t sum_column(uint32_t i)
{
    return i / 4 * 8 + lane() % 4 * 2 + i % 2;
}
#if defined(BL_SIMT_HOST)
/* Every lane sees the others' registers until all have read them. */
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    struct both {
        float a[8], b[8];
    } own;
    uint64_t other[BL_WARP];
    for (uint32_t i = 0; i < 8; i++) {
        own.a[i] = half_to_float(static_cast<uint16_t>(a.r[i / 2] >> 16 * (i % 2)));
        own.b[i] = half_to_float(static_cast<uint16_t>(b.r[i / 2] >> 16 * (i % 2)));
    }
    memcpy(other, bl_host_meet(reinterpret_cast<uintptr_t>(&own), BL_HOST_MMA), sizeof other);
    for (uint32_t i = 0; i < SUMS; i++) {
        const uint32_t row = sum_row(i), column = sum_column(i);
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t q = k % 8 / 2, in_reg = k / 8 * 4 + k % 2;
            s.v[i] += reinterpret_cast<const both *>(other[row % 8 * 4 + q])->a[in_reg + row / 8 * 2] *
                      reinterpret_cast<const both *>(other[column % 8 * 4 + q])->b[in_reg + column / 8 * 2];
        }
    }
    bl_host_meet(0, BL_HOST_MMA);
}
#else
BL_DEV void multiply_eight(float *s, const fragment &a, uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
        : "r"(a.r[2]), "r"(a.r[3]), "r"(b1));
#endif
}
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    multiply_eight(s.v, a, b.r[0], b.r[2]);
    multiply_eight(s.v + 4, a, b.r[1], b.r[3]);
}
#endif

#else
/* ---- AMD: a lane holds halves of row lane % 16, and sums of column lane % 16 ---- */

BL_DEV uint32_t sum_column(uint32_t)
{
    return lane() % 16;
}

#if defined(__GFX11__)
typedef _Float16 halves __attribute__((ext_vector_type(16)));
typedef float eight_sums __attribute__((ext_vector_type(8)));
struct fragment {
    halves h;
};
BL_DEV void load_fragment(fragment &f, const uint32_t *tile, uint32_t pitch)
{
    __builtin_memcpy(&f.h, __builtin_assume_aligned(tile + lane() % 16 * pitch, 16), sizeof f.h);
}
BL_DEV uint32_t sum_row(uint32_t i)
{
    return 2 * i + lane() / 16;
}
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    const eight_sums v = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a.h, b.h, bits_as<eight_sums>(s));
    s = bits_as<sums>(v);
}
#else
/* 256 / BL_WARP halves of 16 in a lane: k = its part */
constexpr uint32_t PART = 256 / BL_WARP;
BL_DEV uint32_t sum_row(uint32_t i)
{
    return lane() / 16 * PART + i;
}
#if defined(__GFX12__)
typedef _Float16 halves __attribute__((ext_vector_type(8)));
typedef float part_sums __attribute__((ext_vector_type(8)));
#define BL_MMA(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c)
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__)
typedef _Float16 halves __attribute__((ext_vector_type(4)));
typedef float part_sums __attribute__((ext_vector_type(4)));
#define BL_MMA(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0)
#endif

#if defined(BL_MMA)
struct fragment {
    halves h;
};
BL_DEV void load_fragment(fragment &f, const uint32_t *tile, uint32_t pitch)
{
    const uint32_t *from = tile + lane() % 16 * pitch + lane() / 16 * (PART / 2);
    __builtin_memcpy(&f.h, __builtin_assume_aligned(from, 2 * PART), sizeof f.h);
}
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    const part_sums v = BL_MMA(a.h, b.h, bits_as<part_sums>(s));
    s = bits_as<sums>(v);
}
#elif defined(BL_SIMT_HOST)
struct fragment {
    uint16_t h[PART];
};
BL_DEV void load_fragment(fragment &f, const uint32_t *tile, uint32_t pitch)
{
    memcpy(f.h, tile + lane() % 16 * pitch + lane() / 16 * (PART / 2), sizeof f.h);
}
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    struct both {
        float a[PART], b[PART];
    } own;
    uint64_t other[BL_WARP];
    for (uint32_t i = 0; i < PART; i++) {
        own.a[i] = half_to_float(a.h[i]);
        own.b[i] = half_to_float(b.h[i]);
    }
    memcpy(other, bl_host_meet(reinterpret_cast<uintptr_t>(&own), BL_HOST_MMA), sizeof other);
    for (uint32_t i = 0; i < SUMS; i++)
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t part = k / PART * 16;
            s.v[i] += reinterpret_cast<const both *>(other[part + sum_row(i)])->a[k % PART] *
                      reinterpret_cast<const both *>(other[part + sum_column(i)])->b[k % PART];
        }
    bl_host_meet(0, BL_HOST_MMA);
}
#else
/* No matrix hardware: lanes read rows of shared memory, two halves at a time where there is an instruction. */
struct fragment {
    const uint32_t *tile;
    uint32_t pitch;
};
BL_DEV void load_fragment(fragment &f, const uint32_t *tile, uint32_t pitch)
{
    f.tile = tile;
    f.pitch = pitch;
}
BL_DEV void multiply(sums &s, const fragment &a, const fragment &b)
{
    typedef _Float16 two __attribute__((ext_vector_type(2)));
    two y[8];
    __builtin_memcpy(y, __builtin_assume_aligned(b.tile + lane() % 16 * b.pitch, 16), sizeof y);
    BL_UNROLL for (uint32_t i = 0; i < SUMS; i++) {
        two x[8];
        __builtin_memcpy(x, __builtin_assume_aligned(a.tile + sum_row(i) * a.pitch, 16), sizeof x);
        BL_UNROLL for (uint32_t k = 0; k < 8; k++)
#if defined(__gfx906__) || defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) ||  \
    defined(__gfx1031__) || defined(__gfx1032__)
            s.v[i] = __builtin_amdgcn_fdot2(x[k], y[k], s.v[i], false);
#else
            s.v[i] += static_cast<float>(x[k].x) * static_cast<float>(y[k].x) +
                      static_cast<float>(x[k].y) * static_cast<float>(y[k].y);
#endif
    }
}
#endif
#endif
#endif

#endif
