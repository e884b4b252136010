/* SPDX-License-Identifier: MIT */
/* cuda.hpp — the dialect under nvcc; simt.hpp says what the names mean. */
#ifndef BL_SIMT_CUDA_HPP
#define BL_SIMT_CUDA_HPP

#define BL_WARP 32
#define BL_DEV static __device__ __forceinline__
#define BL_MEMBER static __device__ __forceinline__
#define BL_TABLE static __device__ const
#define BL_SHARED __shared__
#define BL_UNROLL _Pragma("unroll")
#define BL_ROLLED _Pragma("unroll 1")
#define BL_KERNEL(name, threads)                                                                   \
    extern "C" __global__ void __launch_bounds__(threads, 1) name(const struct bl_simt_args p)

BL_DEV uint32_t thread_x()
{
    return threadIdx.x;
}
BL_DEV uint32_t block_x()
{
    return blockIdx.x;
}
BL_DEV uint32_t block_y()
{
    return blockIdx.y;
}
BL_DEV uint32_t block_z()
{
    return blockIdx.z;
}
BL_DEV void sync()
{
    __syncthreads();
}

BL_DEV void keep_here(uint32_t &)
{
}
BL_DEV uint32_t thread_here()
{
    return thread_x();
}
template <class T> BL_DEV T shuffle_xor(T v, uint32_t m)
{
    return __shfl_xor_sync(0xffffffffu, v, m);
}
template <class T> BL_DEV T shuffle(T v, uint32_t from)
{
    return __shfl_sync(0xffffffffu, v, from);
}

/* c + sum of four products of signed bytes */
BL_DEV int dot4(uint32_t a, uint32_t b, int c)
{
    return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
/* Of the eight bytes {high, low} those that the low nibbles of selector name, 0 to 7. */
BL_DEV uint32_t pick_bytes(uint32_t high, uint32_t low, uint32_t selector)
{
    const uint32_t two = (selector & 0x000f000fu) | (selector >> 4 & 0x00f000f0u);
    return __byte_perm(low, high, (two & 0xffu) | (two >> 8 & 0xff00u));
}
BL_DEV float half_to_float(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
/* To the nearest, of two equally near to the even; beyond the range infinite. */
BL_DEV uint16_t float_to_half(float f)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
BL_DEV uint32_t count_bits(uint32_t v)
{
    return __popc(v);
}
BL_DEV uint32_t add_shared(uint32_t *at, uint32_t v)
{
    return atomicAdd(at, v);
}

/* N words from an address of which ALIGN bytes are known. Below 4 they come as whole words that hold at least one byte asked
 * for, so nothing beyond the last word of an allocation is touched. */
template <uint32_t ALIGN, uint32_t N> BL_DEV void load_words(uint32_t (&w)[N], const uint8_t *from)
{
    if constexpr (ALIGN >= 16 && N % 4 == 0) {
        BL_UNROLL for (uint32_t i = 0; i < N; i += 4) {
            const uint4 v = reinterpret_cast<const uint4 *>(from)[i / 4];
            w[i] = v.x;
            w[i + 1] = v.y;
            w[i + 2] = v.z;
            w[i + 3] = v.w;
        }
    } else if constexpr (ALIGN >= 8 && N % 2 == 0) {
        BL_UNROLL for (uint32_t i = 0; i < N; i += 2) {
            const uint2 v = reinterpret_cast<const uint2 *>(from)[i / 2];
            w[i] = v.x;
            w[i + 1] = v.y;
        }
    } else if constexpr (ALIGN >= 4) {
        BL_UNROLL for (uint32_t i = 0; i < N; i++)
            w[i] = reinterpret_cast<const uint32_t *>(from)[i];
    } else {
        const uintptr_t addr = reinterpret_cast<uintptr_t>(from);
        const uint32_t odd = addr & 3u;
        const uint32_t *whole = reinterpret_cast<const uint32_t *>(addr - odd);
        uint32_t next = whole[0];
        BL_UNROLL for (uint32_t i = 0; i < N; i++) {
            const uint32_t here = next;
            next = i + 1 < N || odd ? whole[i + 1] : 0;
            w[i] = __funnelshift_r(here, next, 8 * odd);
        }
    }
}

#endif
