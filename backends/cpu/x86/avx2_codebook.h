/* SPDX-License-Identifier: MIT */
/* avx2_codebook.h — steps of the codebook types that the AVX2 dots and panels share.
 *
 * Purpose   entries loaded one by one, and signs by bits.
 * Ownership none.
 * Units     lanes.
 * Errors    none.
 * Threads   pure.
 */
#ifndef BL_X86_AVX2_CODEBOOK_H
#define BL_X86_AVX2_CODEBOOK_H

#include "avx2.h"
#include "codebooks.h"

BL_ALWAYS_INLINE __m256i load_entries(const uint64_t *table, unsigned a, unsigned b, unsigned c,
                                      unsigned d)
{
    return _mm256_setr_epi64x((long long)table[a], (long long)table[b], (long long)table[c],
                              (long long)table[d]);
}

BL_ALWAYS_INLINE __m256i load_entries4(const uint32_t *t, const uint8_t i[8])
{
    return _mm256_setr_epi32((int)t[i[0]], (int)t[i[1]], (int)t[i[2]], (int)t[i[3]], (int)t[i[4]], (int)t[i[5]],
                             (int)t[i[6]], (int)t[i[7]]);
}
/* IQ3_S: bit j of `high` is bit 8 of index j. */
BL_ALWAYS_INLINE int iq3_s_entry(uint8_t low, unsigned high, int at)
{
    return (int)iq3_s_bytes[low | (high << (8 - at) & 0x100)];
}
BL_ALWAYS_INLINE __m256i load_entries9(const uint8_t i[8], unsigned high)
{
    return _mm256_setr_epi32(iq3_s_entry(i[0], high, 0), iq3_s_entry(i[1], high, 1), iq3_s_entry(i[2], high, 2),
                             iq3_s_entry(i[3], high, 3), iq3_s_entry(i[4], high, 4), iq3_s_entry(i[5], high, 5),
                             iq3_s_entry(i[6], high, 6), iq3_s_entry(i[7], high, 7));
}
/* 32 bytes, below zero where the bit is set, 1 elsewhere: for vpsignb */
BL_ALWAYS_INLINE __m256i plus_or_minus(uint32_t signs)
{
    const __m256i which =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i select = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)signs), which);
    const __m256i minus = _mm256_cmpeq_epi8(_mm256_and_si256(v, select), select);
    return _mm256_or_si256(minus, _mm256_set1_epi8(1));
}
/* Bytes with seven sign bits (bit 7 clear) -> bit 7 makes the number of minuses even. */
BL_ALWAYS_INLINE __m256i with_parity(__m256i s)
{
    const char e = 0, o = (char)0x80;
    const __m256i parity = _mm256_setr_epi8(e, o, o, e, o, e, e, o, o, e, e, o, e, o, o, e, e, o, o,
                                            e, o, e, e, o, o, e, e, o, e, o, o, e);
    const __m256i both = and_bytes(_mm256_xor_si256(s, _mm256_srli_epi16(s, 4)), 15);
    return _mm256_or_si256(s, _mm256_shuffle_epi8(parity, both));
}
/* Words of IQ2_XXS and IQ3_XXS: four times seven signs, four bits of scale on top. */
BL_ALWAYS_INLINE __m256i xxs_signs(__m256i word)
{
    const __m256i s01 =
        _mm256_or_si256(_mm256_and_si256(word, _mm256_set1_epi32(0x7f)),
                        _mm256_and_si256(_mm256_slli_epi32(word, 1), _mm256_set1_epi32(0x7f00)));
    const __m256i s23 = _mm256_or_si256(
        _mm256_and_si256(_mm256_slli_epi32(word, 2), _mm256_set1_epi32(0x7f0000)),
        _mm256_and_si256(_mm256_slli_epi32(word, 3), _mm256_set1_epi32(0x7f000000)));
    return with_parity(_mm256_or_si256(s01, s23));
}
/* 2 in the bytes of the groups whose bit of shift (3 of each nibble of 16 bits) is clear */
BL_ALWAYS_INLINE __m256i iq1_m_plus(uint16_t high)
{
    const __m256i which = _mm256_setr_epi64x(0, 0, 0x0101010101010101, 0x0101010101010101);
    const __m256i select = _mm256_setr_epi64x(0x0808080808080808, (long long)0x8080808080808080u,
                                              0x0808080808080808, (long long)0x8080808080808080u);
    const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi16((short)high), which);
    const __m256i clear = _mm256_cmpeq_epi8(_mm256_and_si256(v, select), _mm256_setzero_si256());
    return and_bytes(clear, 2);
}
/* IQ1_M keeps a nibble of d on top of each of its four words of scales. */
BL_ALWAYS_INLINE uint16_t iq1_m_d(uint64_t s)
{
    return (uint16_t)((s >> 12 & 0xf) | (s >> 24 & 0xf0) | (s >> 36 & 0xf00) | (s >> 48 & 0xf000));
}

#endif
