/* SPDX-License-Identifier: MIT */
/* simt_host.hpp — the dialect of shaders/simt on the CPU: a fibre per thread, warps of BL_WARP (32 or 64), blocks one after
 * the other.
 *
 * Purpose   kernels run with the semantics of a GPU: lanes meet at shuffles, threads at barriers, whoever does not come is
 *           reported. A sanitizer sees them as it sees any C++: ASan steps over edges, TSan a missing barrier.
 * Ownership the runtime (run.cpp) owns the fibres of the thread that runs a grid.
 * Units     bytes.
 * Errors    a kernel that breaks the rules ends the grid with a reason.
 * Threads   a grid runs on the thread that starts it.
 */
#ifndef BL_SIMT_HOST_HPP
#define BL_SIMT_HOST_HPP

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef BL_WARP
#error "BL_WARP is 32 or 64"
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#define BL_DEV static inline
#define BL_MEMBER static inline
#define BL_TABLE static const
/* Sanitizers put red zones around static variables, not around those of threads: there, one grid runs at a time. */
#if defined(__SANITIZE_ADDRESS__)
#define BL_SHARED static
#else
#define BL_SHARED static thread_local
#endif
#define BL_UNROLL
#define BL_ROLLED

typedef void bl_host_body(const struct bl_simt_args);
struct bl_host_kernel {
    const char *file, *name;
    bl_host_body *body;
    unsigned threads;
    const bl_host_kernel *next;
    bl_host_kernel(const char *file, const char *name, bl_host_body *body, unsigned threads);
};
#define BL_KERNEL(name, n_threads)                                                                 \
    static void name(const struct bl_simt_args p);                                                 \
    static const bl_host_kernel kernel_##name(__FILE__, #name, name, n_threads);                   \
    static void name([[maybe_unused]] const struct bl_simt_args p)

/* ---- where a thread is: run.cpp ---- */

enum bl_host_meeting { BL_HOST_XOR = 1, BL_HOST_FROM, BL_HOST_MMA };
struct bl_host_at {
    uint32_t thread, block[3];
};
extern __thread bl_host_at *bl_host_here;
/* line: where in the source; all that meet have come from one. */
void bl_host_sync(uint32_t line);
/* Every lane of the warp brings 8 bytes and gets all of them; good until the lane's next meeting. */
const uint64_t *bl_host_meet(uint64_t brought, bl_host_meeting, uint32_t line = __builtin_LINE());

BL_DEV uint32_t thread_x()
{
    return bl_host_here->thread;
}
BL_DEV uint32_t block_x()
{
    return bl_host_here->block[0];
}
BL_DEV uint32_t block_y()
{
    return bl_host_here->block[1];
}
BL_DEV uint32_t block_z()
{
    return bl_host_here->block[2];
}
BL_DEV void sync(uint32_t line = __builtin_LINE())
{
    bl_host_sync(line);
}

BL_DEV void keep_here(uint32_t &)
{
}
BL_DEV uint32_t thread_here()
{
    return thread_x();
}
template <class T> BL_DEV T shuffle_of(T v, bl_host_meeting why, uint32_t from, uint32_t line)
{
    uint64_t word = 0;
    memcpy(&word, &v, sizeof v);
    word = bl_host_meet(word, why, line)[from % BL_WARP];
    memcpy(&v, &word, sizeof v);
    return v;
}
template <class T> BL_DEV T shuffle_xor(T v, uint32_t m, uint32_t line = __builtin_LINE())
{
    return shuffle_of(v, BL_HOST_XOR, thread_x() % BL_WARP ^ m, line);
}
template <class T> BL_DEV T shuffle(T v, uint32_t from, uint32_t line = __builtin_LINE())
{
    return shuffle_of(v, BL_HOST_FROM, from, line);
}

BL_DEV int dot4(uint32_t a, uint32_t b, int c)
{
    for (uint32_t i = 0; i < 32; i += 8)
        c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
    return c;
}
BL_DEV uint32_t pick_bytes(uint32_t high, uint32_t low, uint32_t selector)
{
    const uint64_t all = static_cast<uint64_t>(high) << 32 | low;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 32; i += 8)
        r |= static_cast<uint32_t>(all >> 8 * (selector >> i & 7u) & 255u) << i;
    return r;
}
float bl_host_half_to_float(uint16_t);
uint16_t bl_host_float_to_half(float);
BL_DEV float half_to_float(uint16_t h)
{
    return bl_host_half_to_float(h);
}
BL_DEV uint16_t float_to_half(float f)
{
    return bl_host_float_to_half(f);
}
BL_DEV uint32_t count_bits(uint32_t v)
{
    return static_cast<uint32_t>(__builtin_popcount(v));
}
BL_DEV uint32_t add_shared(uint32_t *at, uint32_t v)
{
    return __atomic_fetch_add(at, v, __ATOMIC_RELAXED);
}
template <uint32_t ALIGN, uint32_t N> BL_DEV void load_words(uint32_t (&w)[N], const uint8_t *from)
{
    memcpy(w, from, sizeof w);
}

#endif
