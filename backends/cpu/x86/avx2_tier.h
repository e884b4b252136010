/* SPDX-License-Identifier: MIT */
/* avx2_tier.h — the three tiers that kernels of 256 bits are compiled for, and their dot products of bytes.
 *
 * Purpose   the files of dots and panels are compiled once for plain AVX2 and, with BL_TIER_AVXVNNI or BL_TIER_VNNI256,
 *           for vpdpbusd and vpdpwssd in 256 bits: in VEX encoding (Alder Lake, Sierra Forest, Zen 5), and in EVEX with 32
 *           registers for processors that have AVX-512 VNNI but not what the AVX-512 kernels need (Cascade Lake).
 *           TIER() names what a file defines after its tier.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX2_TIER_H
#define BL_X86_AVX2_TIER_H

#include "dot.h"

#if defined(BL_TIER_AVXVNNI)
#define TIER(name) name##__avxvnni
#define TIER_NAME "__avxvnni"
#define TIER_FN(name) bl_cpu_avxvnni_##name
#define DPBUSD _mm256_dpbusd_avx_epi32
#define DPWSSD _mm256_dpwssd_avx_epi32
#elif defined(BL_TIER_VNNI256)
#define TIER(name) name##__vnni256
#define TIER_NAME "__vnni256"
#define TIER_FN(name) bl_cpu_vnni256_##name
#define DPBUSD _mm256_dpbusd_epi32
#define DPWSSD _mm256_dpwssd_epi32
#else
#define TIER(name) name##__avx2
#define TIER_NAME "__avx2"
#define TIER_FN(name) bl_cpu_avx2_##name
#endif
#define TIER_SET_NAMED(...) DOT_SET(__VA_ARGS__) /* after the name is made */
#define TIER_SET(t, type, name, R) TIER_SET_NAMED(t, type, TIER(name), R)

/* Sums of two products, unsigned times signed; |u| <= 128 and |s| <= 127 fit the 16 bits. */
BL_ALWAYS_INLINE __m256i dot2(__m256i u, __m256i s)
{
    return _mm256_maddubs_epi16(u, s);
}
/* acc + sums of two products of words */
BL_ALWAYS_INLINE __m256i add_words(__m256i acc, __m256i a, __m256i b)
{
#ifdef DPWSSD
    return DPWSSD(acc, a, b);
#else
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
#endif
}
/* acc + sums of four products */
BL_ALWAYS_INLINE __m256i dot4(__m256i acc, __m256i u, __m256i s)
{
#ifdef DPBUSD
    return DPBUSD(acc, u, s);
#else
    return add_words(acc, dot2(u, s), _mm256_set1_epi16(1));
#endif
}

/* Products of small codes, of which sums over several vectors fit 16 bits: those of two products in words, or those of
 * four in dwords where they cost the same. Sums are all of one kind: start from zero or dot_small. */
BL_ALWAYS_INLINE __m256i dot_small(__m256i u, __m256i s)
{
#ifdef DPBUSD
    return DPBUSD(_mm256_setzero_si256(), u, s);
#else
    return dot2(u, s);
#endif
}
BL_ALWAYS_INLINE __m256i add_small(__m256i sum, __m256i u, __m256i s)
{
#ifdef DPBUSD
    return DPBUSD(sum, u, s);
#else
    return _mm256_add_epi16(sum, dot2(u, s));
#endif
}
BL_ALWAYS_INLINE __m256i sub_small(__m256i a, __m256i b)
{
#ifdef DPBUSD
    return _mm256_sub_epi32(a, b);
#else
    return _mm256_sub_epi16(a, b);
#endif
}
/* To dwords. */
BL_ALWAYS_INLINE __m256i widen_small(__m256i sum)
{
#ifdef DPBUSD
    return sum;
#else
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
#endif
}

#endif
