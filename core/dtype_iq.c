/* SPDX-License-Identifier: MIT */
/* Types whose elements come from codebooks: groups of 8 or 4 at once (IQ1, IQ2, IQ3) or one by one
 * (IQ4). */
#include "dtype_unpack.h"
#include "dtype_grids.h"

static float load_f16(const uint8_t *p)
{
    return bl_f16_to_f32(bl_load_u16(p));
}

/* IQ2_XXS, IQ2_XS and IQ3_XXS store seven of eight signs; the eighth makes the number of minuses
 * even. */
static unsigned signs_of(unsigned code)
{
    unsigned p = code ^ code >> 4;
    p ^= p >> 2;
    p ^= p >> 1;
    return code | (p & 1) << 7;
}

static int8_t with_sign(int8_t v, unsigned negative)
{
    return (int8_t)(negative & 1 ? -v : v);
}

static void put_iq2(int8_t *q, unsigned entry, unsigned signs)
{
    for (unsigned j = 0; j < 8; j++)
        q[j] = with_sign(iq2_levels[entry >> 2 * j & 3], signs >> j);
}

static void put_iq3(int8_t *q, const int8_t levels[8], unsigned entry, unsigned signs)
{
    for (unsigned j = 0; j < 4; j++)
        q[j] = with_sign(levels[entry >> 3 * j & 7], signs >> j);
}

/* Element + delta with delta = 1/8 or -1/8, as eighths. */
static void put_iq1(int8_t *q, unsigned entry, bool minus)
{
    for (unsigned j = 0; j < 8; j++)
        q[j] = (int8_t)(8 * ((int)(entry >> 2 * j & 3) - 1) + (minus ? -1 : 1));
}

void bl_unpack_iq2_xxs(struct bl_unpacked *u, const uint8_t *b)
{
    float d = load_f16(b);
    for (unsigned ib = 0; ib < 8; ib++) {
        const uint8_t *index = b + 2 + 8 * ib;
        uint32_t a = bl_load_u32(index + 4);
        u->scale[2 * ib] = u->scale[2 * ib + 1] = d * (0.5f + (float)(a >> 28)) * 0.25f;
        for (unsigned l = 0; l < 4; l++)
            put_iq2(u->q + 32 * ib + 8 * l, iq2xxs_grid[index[l]], signs_of(a >> 7 * l & 127));
    }
}

/* IQ2_XS and IQ2_S: two 4-bit scales a byte, one for each 16 elements. */
static void iq2_scales(struct bl_unpacked *u, float d, const uint8_t scales[8])
{
    for (unsigned i = 0; i < 16; i++)
        u->scale[i] = d * (0.5f + (float)(scales[i / 2] >> 4 * (i % 2) & 15)) * 0.25f;
}

void bl_unpack_iq2_xs(struct bl_unpacked *u, const uint8_t *b)
{
    iq2_scales(u, load_f16(b), b + 66);
    for (unsigned g = 0; g < 32; g++) {
        unsigned code = bl_load_u16(b + 2 + 2 * g);
        put_iq2(u->q + 8 * g, iq2xs_grid[code & 511], signs_of(code >> 9));
    }
}

void bl_unpack_iq2_s(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *qs = b + 2, *signs = b + 34, *qh = b + 66;
    iq2_scales(u, load_f16(b), b + 74);
    for (unsigned g = 0; g < 32; g++) {
        unsigned high = qh[g / 4] >> 2 * (g % 4) & 3u;
        put_iq2(u->q + 8 * g, iq2s_grid[qs[g] | high << 8], signs[g]);
    }
}

void bl_unpack_iq3_xxs(struct bl_unpacked *u, const uint8_t *b)
{
    float d = load_f16(b);
    for (unsigned ib = 0; ib < 8; ib++) {
        const uint8_t *index = b + 2 + 8 * ib;
        uint32_t a = bl_load_u32(b + 66 + 4 * ib);
        u->scale[2 * ib] = u->scale[2 * ib + 1] = d * (0.5f + (float)(a >> 28)) * 0.5f;
        for (unsigned l = 0; l < 4; l++) {
            unsigned signs = signs_of(a >> 7 * l & 127);
            int8_t *q = u->q + 32 * ib + 8 * l;
            put_iq3(q, iq3xxs_levels, iq3xxs_grid[index[2 * l]], signs);
            put_iq3(q + 4, iq3xxs_levels, iq3xxs_grid[index[2 * l + 1]], signs >> 4);
        }
    }
}

void bl_unpack_iq3_s(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *qs = b + 2, *qh = b + 66, *signs = b + 74, *scales = b + 106;
    float d = load_f16(b);
    for (unsigned ib = 0; ib < 8; ib++) {
        int s = scales[ib / 2] >> 4 * (ib % 2) & 15;
        u->scale[2 * ib] = u->scale[2 * ib + 1] = d * (float)(1 + 2 * s);
    }
    for (unsigned k = 0; k < 64; k++) {
        unsigned high = qh[k / 8] >> k % 8 & 1u;
        put_iq3(u->q + 4 * k, iq3s_levels, iq3s_grid[qs[k] | high << 8],
                (unsigned)signs[k / 2] >> 4 * (k % 2));
    }
}

void bl_unpack_iq1_s(struct bl_unpacked *u, const uint8_t *b)
{
    float d = load_f16(b);
    for (unsigned ib = 0; ib < 8; ib++) {
        const uint8_t *qs = b + 2 + 4 * ib;
        unsigned h = bl_load_u16(b + 34 + 2 * ib);
        u->scale[2 * ib] = u->scale[2 * ib + 1] = d * (float)(2 * (h >> 12 & 7) + 1) * 0.125f;
        for (unsigned l = 0; l < 4; l++)
            put_iq1(u->q + 32 * ib + 8 * l, iq1s_grid[qs[l] | (h >> 3 * l & 7) << 8], h & 0x8000);
    }
}

/* The f16 scale has no field of its own: a nibble of it is on top of each of the four words of
 * scales. */
void bl_unpack_iq1_m(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *qs = b, *qh = b + 32;
    unsigned s[4], bits = 0;
    for (unsigned k = 0; k < 4; k++) {
        s[k] = bl_load_u16(b + 48 + 2 * k);
        bits |= (s[k] >> 12) << 4 * k;
    }
    float d = bl_f16_to_f32((uint16_t)bits);
    for (unsigned i = 0; i < 16; i++)
        u->scale[i] = d * (float)(2 * (s[i / 4] >> 3 * (i % 4) & 7) + 1) * 0.125f;
    for (unsigned g = 0; g < 32; g++) {
        unsigned h = qh[g / 2] >> 4 * (g % 2) & 15u;
        put_iq1(u->q + 8 * g, iq1s_grid[qs[g] | (h & 7) << 8], h & 8);
    }
}

static void put_iq4(int8_t q[32], const uint8_t nibbles[16])
{
    static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
    for (unsigned i = 0; i < 16; i++) {
        q[i] = levels[nibbles[i] & 15];
        q[i + 16] = levels[nibbles[i] >> 4];
    }
}

void bl_unpack_iq4_nl(struct bl_unpacked *u, const uint8_t *b)
{
    u->scale[0] = u->scale[1] = load_f16(b);
    put_iq4(u->q, b + 2);
}

void bl_unpack_iq4_xs(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *low = b + 4, *qs = b + 8;
    unsigned high = bl_load_u16(b + 2);
    float d = load_f16(b);
    for (unsigned ib = 0; ib < 8; ib++) {
        unsigned s = (low[ib / 2] >> 4 * (ib % 2) & 15u) | (high >> 2 * ib & 3) << 4;
        u->scale[2 * ib] = u->scale[2 * ib + 1] = d * (float)((int)s - 32);
        put_iq4(u->q + 32 * ib, qs + 16 * ib);
    }
}
