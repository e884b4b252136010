/* SPDX-License-Identifier: MIT */
/* bytes.glsl — what blocks are made of: loads by address, and arithmetic on the four bytes of a word. */

/* ---- loads ---- */

float half_at(const uint64_t at) { return unpackHalf2x16(uint(halves_at(at).v[0])).x; }
uint byte_at(const uint64_t at) { return uint(bytes_at(at).v[0]); }
uint half_word(const uint64_t at) { return uint(halves_at(at).v[0]); }
/* A word at an even address. */
uint word_at(const uint64_t at) { return uint(halves_at(at).v[0]) | uint(halves_at(at).v[1]) << 16; }

uvec2 pair_at(const uint64_t at) { return pairs_at(at).v[0]; }
/* Eight bytes at a multiple of 4. */
uvec2 words2_at(const uint64_t at) { return uvec2(words_at(at).v[0], words_at(at).v[1]); }
/* Eight bytes anywhere: the two or three words that hold them. */
uvec2 bytes8_at(const uint64_t at)
{
    const uint shift = 8 * (uint(at) & 3u);
    words_at w = words_at(at & ~uint64_t(3));
    const uvec3 x = uvec3(w.v[0], w.v[1], words_at(at + 7 & ~uint64_t(3)).v[0]);
    return uvec2(x.x >> shift | x.y << 1 << 31 - shift, x.y >> shift | x.z << 1 << 31 - shift);
}

/* ---- four bytes in a word ---- */

const uint ONES = 0x01010101u, TOPS = 0x80808080u;
/* Bytes below 128, less n each. */
uint less(const uint x, const uint n) { return ((x | TOPS) - n * ONES) ^ TOPS; }
uvec2 less(const uvec2 x, const uint n) { return uvec2(less(x.x, n), less(x.y, n)); }
/* Bytes below 128, negated where bit 0 of the byte of s is set. */
uint negate(const uint x, const uint s)
{
    const uint y = x ^ s * 255;
    return (y & ~TOPS) + s ^ y & TOPS;
}
/* Bit j, bits 2 j and 2 j + 1, bits 3 j to 3 j + 2 to byte j. */
uint spread1(const uint bits) { return (bits & 15u) * 0x00204081u & ONES; }
uint spread2(const uint bits)
{
    const uint x = (bits & 255u | (bits & 255u) << 12) & 0x000f000fu;
    return (x | x << 6) & 0x03030303u;
}
uint spread3(const uint bits) { return bits & 7u | (bits & 0x38u) << 5 | (bits & 0x1c0u) << 10 | (bits & 0xe00u) << 15; }
uvec2 spread1x2(const uint bits) { return uvec2(spread1(bits), spread1(bits >> 4)); }
uvec2 spread2x2(const uint bits) { return uvec2(spread2(bits), spread2(bits >> 8)); }
uint byte_of(const uint x, const uint j) { return x >> 8 * j & 255u; }
uint byte_of(const uvec2 x, const uint j) { return byte_of(j < 4 ? x.x : x.y, j & 3u); }
int signed_byte(const uint x, const uint j) { return bitfieldExtract(int(x), int(8 * j), 8); }
void floats_of(const uvec2 q, out float w[8])
{
    [[unroll]] for (uint j = 0; j < 8; j++)
        w[j] = float(signed_byte(q[j / 4], j % 4));
}
