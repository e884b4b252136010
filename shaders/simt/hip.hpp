/* SPDX-License-Identifier: MIT */
/* hip.hpp — the dialect under clang's HIP mode without ROCm: compiler builtins only; simt.hpp says what the names mean. */
#ifndef BL_SIMT_HIP_HPP
#define BL_SIMT_HIP_HPP

#if defined(__GFX9__)
#define BL_WARP 64
#else
#define BL_WARP 32
#endif
#define BL_DEV static __attribute__((device, always_inline)) inline
#define BL_MEMBER static __attribute__((device, always_inline)) inline
#define BL_TABLE static __attribute__((device)) const
#define BL_SHARED __attribute__((shared))
#define BL_UNROLL _Pragma("unroll")
#define BL_ROLLED _Pragma("unroll 1")
#define BL_KERNEL(name, threads)                                                                   \
    extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name(   \
        const struct bl_simt_args p)

#define sqrtf __builtin_sqrtf
#define fabsf __builtin_fabsf
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
#define fmaf __builtin_fmaf
#define expf __builtin_expf
#define logf __builtin_logf
#define rintf __builtin_rintf
#define ldexpf __builtin_ldexpf
#define floor __builtin_floor
#define fma __builtin_fma

BL_DEV uint32_t thread_x()
{
    return __builtin_amdgcn_workitem_id_x();
}
BL_DEV uint32_t block_x()
{
    return __builtin_amdgcn_workgroup_id_x();
}
BL_DEV uint32_t block_y()
{
    return __builtin_amdgcn_workgroup_id_y();
}
BL_DEV uint32_t block_z()
{
    return __builtin_amdgcn_workgroup_id_z();
}
BL_DEV void sync()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/* What comes of v is made where it stands: moved out of a loop, addresses of every turn would be kept in registers. */
BL_DEV void keep_here(uint32_t &v)
{
    __asm__ volatile("" : "+s"(v));
}
/* The same of what threads differ in. */
BL_DEV uint32_t thread_here()
{
    uint32_t v = thread_x();
    __asm__ volatile("" : "+v"(v));
    return v;
}

BL_DEV uint32_t own_lane()
{
#if BL_WARP == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
    return __builtin_amdgcn_mbcnt_lo(~0u, 0);
#endif
}
template <class T> BL_DEV T shuffle(T v, uint32_t from)
{
    int i;
    static_assert(sizeof i == sizeof v, "words are shuffled");
    __builtin_memcpy(&i, &v, sizeof i);
    i = __builtin_amdgcn_ds_bpermute(static_cast<int>(from) << 2, i);
    __builtin_memcpy(&v, &i, sizeof i);
    return v;
}
template <class T> BL_DEV T shuffle_xor(T v, uint32_t m)
{
    return shuffle(v, own_lane() ^ m);
}

BL_DEV int dot4(uint32_t a, uint32_t b, int c)
{
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, static_cast<int>(a), true, static_cast<int>(b), c, false);
#elif defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) ||  \
    defined(__gfx1011__) || defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || \
    defined(__gfx1032__)
    return __builtin_amdgcn_sdot4(static_cast<int>(a), static_cast<int>(b), c, false);
#else
    BL_UNROLL for (uint32_t i = 0; i < 32; i += 8)
        c += static_cast<int>(a << (24 - i)) / 16777216 * (static_cast<int>(b << (24 - i)) / 16777216);
    return c;
#endif
}
BL_DEV uint32_t pick_bytes(uint32_t high, uint32_t low, uint32_t selector)
{
    return __builtin_amdgcn_perm(high, low, selector);
}
BL_DEV float half_to_float(uint16_t h)
{
    _Float16 f;
    __builtin_memcpy(&f, &h, sizeof f);
    return static_cast<float>(f);
}
BL_DEV uint16_t float_to_half(float f)
{
    const _Float16 v = static_cast<_Float16>(f);
    uint16_t h;
    __builtin_memcpy(&h, &v, sizeof h);
    return h;
}
BL_DEV uint32_t count_bits(uint32_t v)
{
    return static_cast<uint32_t>(__builtin_popcount(v));
}
BL_DEV uint32_t add_shared(uint32_t *at, uint32_t v)
{
    return __hip_atomic_fetch_add(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

/* The hardware reads words at any address. */
template <uint32_t ALIGN, uint32_t N> BL_DEV void load_words(uint32_t (&w)[N], const uint8_t *from)
{
    __builtin_memcpy(w, __builtin_assume_aligned(from, ALIGN), sizeof w);
}

#endif
