/* SPDX-License-Identifier: MIT */
/* compiler.h — the only place for compiler extensions.
 *
 * Purpose   attributes, unaligned little-endian loads, address-sanitizer poisoning.
 * Ownership none.
 * Units     none.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_COMPILER_H
#define BL_COMPILER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define BL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define BL_API __attribute__((visibility("default")))
#define BL_ALWAYS_INLINE static inline __attribute__((always_inline))
#define BL_NOINLINE __attribute__((noinline))
#define BL_ALIGNED(n) __attribute__((aligned(n)))
#define BL_UNREACHABLE() __builtin_unreachable()
typedef float bl_float4 __attribute__((vector_size(16))); /* operators work lane by lane */
#else
#error "ballast builds with gcc or clang"
#endif

/* As many floats as a register holds, of the instruction set that the file is compiled for: + and * work by elements, a
 * float takes part as if repeated. Memory at it is aligned to its size. */
#if defined(__AVX512F__)
#define BL_LANES 16
#elif defined(__AVX__)
#define BL_LANES 8
#else
#define BL_LANES 4
#endif
typedef float bl_lanes __attribute__((vector_size(4 * BL_LANES), may_alias));

/* Asks for the cache line at p, into the second-level cache, NEAR: the first; p may lie anywhere. Volatile, because gcc
 * takes a function that does nothing but prefetch for one without effect and drops its calls. */
#if defined(__x86_64__) || defined(__i386__)
#define BL_PREFETCH(p) __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)(p)))
#define BL_PREFETCH_NEAR(p) __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)(p)))
#elif defined(__aarch64__)
#define BL_PREFETCH(p) __asm__ volatile("prfm pldl2keep, %0" : : "Q"(*(const char *)(p)))
#define BL_PREFETCH_NEAR(p) __asm__ volatile("prfm pldl1keep, %0" : : "Q"(*(const char *)(p)))
#else
#define BL_PREFETCH(p) ((void)(p))
#define BL_PREFETCH_NEAR(p) ((void)(p))
#endif

/* Tells the core that it is in a loop that waits for another thread. */
#if defined(__x86_64__) || defined(__i386__)
#define BL_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define BL_PAUSE() __asm__ volatile("yield")
#else
#define BL_PAUSE() ((void)0)
#endif

#if defined(__SANITIZE_ADDRESS__)
#define BL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BL_ASAN 1
#endif
#endif
#ifdef BL_ASAN
#include <sanitizer/asan_interface.h>
#define BL_POISON(p, n) __asan_poison_memory_region((p), (n))
#define BL_UNPOISON(p, n) __asan_unpoison_memory_region((p), (n))
#else
#define BL_POISON(p, n) ((void)(p), (void)(n))
#define BL_UNPOISON(p, n) ((void)(p), (void)(n))
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "ballast runs on little-endian machines only"
#endif

/* Block fields in GGUF files are not naturally aligned. */
static inline uint16_t bl_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint32_t bl_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline uint64_t bl_load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#define BL_COUNT(a) (sizeof(a) / sizeof((a)[0]))

#endif
