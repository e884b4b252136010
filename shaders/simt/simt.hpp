/* SPDX-License-Identifier: MIT */
/* simt.hpp — the dialect of kernels: what differs between nvcc, clang's HIP mode and the host compiler.
 *
 * Purpose   one source for NVIDIA, AMD and, with BL_SIMT_HOST, threads of tests/simt/host that behave like theirs.
 * Ownership none.
 * Units     none.
 * Errors    none.
 * Threads   blocks have one dimension, their size is a constant of the kernel. Every lane of a warp that has not left the
 *           kernel takes part in a shuffle, every thread of the block in sync().
 *
 * A kernel:  BL_KERNEL(name, threads of a block) { ... p.a[], p.n[] ... }
 * No static device variables but constants, no lambdas, no inline assembly outside this file and mma.hpp. A warp has
 * BL_WARP lanes, 32 or 64. Halves travel as uint16_t.
 */
#ifndef BL_SIMT_HPP
#define BL_SIMT_HPP

#include "simt/simt_args.h"

#if defined(BL_SIMT_HOST)
#include "simt_host.hpp"
#elif defined(__HIP__)
#include "simt/hip.hpp"
#else
#include "simt/cuda.hpp"
#endif

BL_DEV uint32_t lane()
{
    return thread_x() % BL_WARP;
}
BL_DEV uint32_t warp_x()
{
    return thread_x() / BL_WARP;
}
BL_DEV uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

template <class To, class From> BL_DEV To bits_as(From from)
{
    To to;
    static_assert(sizeof to == sizeof from, "bits are kept");
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

/* Memory by address. */
template <class T> BL_DEV T *at(uint64_t addr)
{
    return reinterpret_cast<T *>(static_cast<uintptr_t>(addr));
}
BL_DEV float *floats(uint64_t addr)
{
    return at<float>(addr);
}
BL_DEV const uint8_t *bytes(uint64_t addr)
{
    return at<const uint8_t>(addr);
}

struct alignas(16) quad {
    float v[4];
};

/* Sum and maximum over groups of `lanes` lanes, a power of two; all of them get it. */
BL_DEV float sum_lanes(float v, uint32_t lanes = BL_WARP)
{
    for (uint32_t m = lanes / 2; m > 0; m /= 2)
        v += shuffle_xor(v, m);
    return v;
}
BL_DEV float most_lanes(float v, uint32_t lanes = BL_WARP)
{
    for (uint32_t m = lanes / 2; m > 0; m /= 2)
        v = fmaxf(v, shuffle_xor(v, m));
    return v;
}

/* Over a block of THREADS; `part` is shared and may be used again after the next sync(). */
template <uint32_t THREADS> BL_DEV float sum_block(float v, float *part)
{
    v = sum_lanes(v);
    if (lane() == 0)
        part[warp_x()] = v;
    sync();
    float all = 0;
    for (uint32_t i = 0; i < THREADS / BL_WARP; i++)
        all += part[i];
    return all;
}
template <uint32_t THREADS> BL_DEV float most_block(float v, float *part)
{
    v = most_lanes(v);
    if (lane() == 0)
        part[warp_x()] = v;
    sync();
    float all = part[0];
    for (uint32_t i = 1; i < THREADS / BL_WARP; i++)
        all = fmaxf(all, part[i]);
    return all;
}

BL_DEV float num(const struct bl_simt_args &p, uint32_t i)
{
    return bits_as<float>(p.n[i]);
}

constexpr float INFINITE = __builtin_inff();

#endif
