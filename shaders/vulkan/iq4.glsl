/* SPDX-License-Identifier: MIT */
/* iq4.glsl — the levels of four nibbles, each in a byte. */
const uint iq4_levels[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
uint iq4(const uint x)
{
    uint v = 0;
    [[unroll]] for (uint j = 0; j < 32; j += 8)
        v |= (iq4_levels[x >> j + 2 & 3u] >> 8 * (x >> j & 3u) & 255u) << j;
    return v;
}
uvec2 iq4(const uvec2 x) { return uvec2(iq4(x.x), iq4(x.y)); }
