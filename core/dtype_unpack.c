/* SPDX-License-Identifier: MIT */
/* Blocks of the legacy, K, FP4, ternary and one/two-bit types, and the table of all. */
#include "dtype_unpack.h"

static float load_f16(const uint8_t *p)
{
    return bl_f16_to_f32(bl_load_u16(p));
}

static void fill(float *dst, unsigned n, float v)
{
    for (unsigned i = 0; i < n; i++)
        dst[i] = v;
}

static void copy_i8(int8_t *q, const uint8_t *bytes, unsigned n)
{
    memcpy(q, bytes, n);
}

/* Low nibbles are elements 0..n-1, high nibbles n..2n-1; zero is the nibble that means 0. */
static void put_nibbles(int8_t *q, const uint8_t *p, unsigned n, int zero)
{
    for (unsigned i = 0; i < n; i++) {
        q[i] = (int8_t)((p[i] & 15) - zero);
        q[i + n] = (int8_t)((p[i] >> 4) - zero);
    }
}

/* ---- 32 elements --------------------------------------------------------------------------- */

static void unpack_q4_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    put_nibbles(u->q, b + 2, 16, 8);
}

static void unpack_q4_1(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    fill(u->add, 2, load_f16(b + 2));
    put_nibbles(u->q, b + 4, 16, 0);
}

static void put_q5(int8_t q[32], const uint8_t *qh, int zero)
{
    uint32_t high = bl_load_u32(qh);
    put_nibbles(q, qh + 4, 16, zero);
    for (unsigned i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] + 16 * (int)(high >> i & 1));
}

static void unpack_q5_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    put_q5(u->q, b + 2, 16);
}

static void unpack_q5_1(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    fill(u->add, 2, load_f16(b + 2));
    put_q5(u->q, b + 4, 0);
}

static void unpack_q8_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    copy_i8(u->q, b + 2, 32);
}

static void unpack_q8_1(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, load_f16(b));
    copy_i8(u->q, b + 4, 32);
}

/* ---- 256 elements -------------------------------------------------------------------------- */

/* 64 bytes hold 256 codes: bits 2s, 2s+1 of 32 bytes are 32 elements in a row, then the next 32
 * bytes follow. */
static void put_planes(int8_t q[256], const uint8_t qs[64], int zero)
{
    for (unsigned s = 0; s < 8; s++)
        for (unsigned l = 0; l < 32; l++)
            q[32 * s + l] = (int8_t)((qs[32 * (s / 4) + l] >> 2 * (s % 4) & 3) - zero);
}

static void unpack_q2_k(struct bl_unpacked *u, const uint8_t *b)
{
    float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (unsigned i = 0; i < 16; i++) {
        u->scale[i] = d * (float)(b[i] & 15);
        u->add[i] = -(dmin * (float)(b[i] >> 4));
    }
    put_planes(u->q, b + 16, 0);
}

static void unpack_q3_k(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *hmask = b, *scales = b + 96;
    float d = load_f16(b + 108);
    for (unsigned i = 0; i < 16; i++) {
        unsigned low = scales[i % 8] >> 4 * (i / 8) & 15u,
                 high = scales[8 + i % 4] >> 2 * (i / 4) & 3u;
        u->scale[i] = d * (float)((int)(low | high << 4) - 32);
    }
    put_planes(u->q, b + 32, 4);
    for (unsigned s = 0; s < 8; s++)
        for (unsigned l = 0; l < 32; l++)
            u->q[32 * s + l] = (int8_t)(u->q[32 * s + l] + 4 * (hmask[l] >> s & 1));
}

/* Q4_K and Q5_K: d, dmin, then eight scales and eight minima of 6 bits in 12 bytes. */
static void k4_scales(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *s = b + 4;
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (unsigned j = 0; j < 8; j++) {
        int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        fill(u->scale + 2 * j, 2, d * (float)scale);
        fill(u->add + 2 * j, 2, -(dmin * (float)min));
    }
}

static void unpack_q4_k(struct bl_unpacked *u, const uint8_t *b)
{
    k4_scales(u, b);
    for (unsigned c = 0; c < 4; c++)
        put_nibbles(u->q + 64 * c, b + 16 + 32 * c, 32, 0);
}

static void unpack_q5_k(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *qh = b + 16;
    k4_scales(u, b);
    for (unsigned c = 0; c < 4; c++)
        put_nibbles(u->q + 64 * c, b + 48 + 32 * c, 32, 0);
    for (unsigned j = 0; j < 8; j++)
        for (unsigned l = 0; l < 32; l++)
            u->q[32 * j + l] = (int8_t)(u->q[32 * j + l] + 16 * (qh[l] >> j & 1));
}

static void unpack_q6_k(struct bl_unpacked *u, const uint8_t *b)
{
    const uint8_t *ql = b, *qh = b + 128, *scales = b + 192;
    float d = load_f16(b + 208);
    for (unsigned i = 0; i < 16; i++)
        u->scale[i] = d * (float)(int8_t)scales[i];
    for (unsigned n = 0; n < 2; n++)
        put_nibbles(u->q + 128 * n, ql + 64 * n, 64, 32);
    for (unsigned s = 0; s < 8; s++)
        for (unsigned l = 0; l < 32; l++) {
            int high = qh[32 * (s / 4) + l] >> 2 * (s % 4) & 3;
            u->q[32 * s + l] = (int8_t)(u->q[32 * s + l] + 16 * high);
        }
}

static void unpack_q8_k(struct bl_unpacked *u, const uint8_t *b)
{
    float d;
    memcpy(&d, b, sizeof d);
    fill(u->scale, 16, d);
    copy_i8(u->q, b + 4, 256);
}

/* ---- 4-bit floats -------------------------------------------------------------------------- */

/* Twice the value of E2M1, low nibbles first. */
static void put_fp4(int8_t *q, const uint8_t *p, unsigned n)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (unsigned i = 0; i < n; i++) {
        q[i] = twice[p[i] & 15];
        q[i + n] = twice[p[i] >> 4];
    }
}

/* Half of the E8M0 scale, 2^(e - 128): the other half is in put_fp4. Zero and one are subnormal
 * floats. */
static float half_e8m0(uint8_t e)
{
    uint32_t bits = e < 2 ? UINT32_C(0x00200000) << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float ue4m3(uint8_t x)
{
    uint32_t exponent = x >> 3 & 15, bits = (exponent + 120) << 23 | (uint32_t)(x & 7) << 20;
    float f;
    if (x == 0 || x == 0x7f)
        return 0;
    if (exponent == 0)
        return (float)(x & 7) * 0x1p-9f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void unpack_mxfp4(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 2, half_e8m0(b[0]));
    put_fp4(u->q, b + 1, 16);
}

static void unpack_nvfp4(struct bl_unpacked *u, const uint8_t *b)
{
    for (unsigned s = 0; s < 4; s++) {
        u->scale[s] = ue4m3(b[s]) * 0.5f;
        put_fp4(u->q + 16 * s, b + 4 + 8 * s, 8);
    }
}

/* ---- one and two bits, ternary ------------------------------------------------------------- */

/* A byte holds base-3 digits as a fraction of 256: times 3^n and modulo 256, the next digit is the
 * carry of times 3. */
static void put_trits(int8_t *q, const uint8_t *bytes, unsigned n_bytes, unsigned n_digits)
{
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (unsigned n = 0; n < n_digits; n++)
        for (unsigned m = 0; m < n_bytes; m++)
            q[n * n_bytes + m] = (int8_t)(((bytes[m] * power[n] & 255) * 3 >> 8) - 1);
}

static void unpack_tq1_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 16, load_f16(b + 52));
    put_trits(u->q, b, 32, 5);
    put_trits(u->q + 160, b + 32, 16, 5);
    put_trits(u->q + 240, b + 48, 4, 4);
}

static void unpack_tq2_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 16, load_f16(b + 64));
    put_planes(u->q, b, 1);
}

static void unpack_q1_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 8, load_f16(b));
    for (unsigned i = 0; i < 128; i++)
        u->q[i] = (int8_t)(2 * (b[2 + i / 8] >> i % 8 & 1) - 1);
}

static void unpack_q2_0(struct bl_unpacked *u, const uint8_t *b)
{
    fill(u->scale, 4, load_f16(b));
    for (unsigned i = 0; i < 64; i++)
        u->q[i] = (int8_t)((b[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
}

const struct bl_unpacker bl_unpackers[BL_N_DTYPES] = {
    [BL_Q4_0] = {unpack_q4_0, false},          [BL_Q4_1] = {unpack_q4_1, true},
    [BL_Q5_0] = {unpack_q5_0, false},          [BL_Q5_1] = {unpack_q5_1, true},
    [BL_Q8_0] = {unpack_q8_0, false},          [BL_Q8_1] = {unpack_q8_1, false},
    [BL_Q2_K] = {unpack_q2_k, true},           [BL_Q3_K] = {unpack_q3_k, false},
    [BL_Q4_K] = {unpack_q4_k, true},           [BL_Q5_K] = {unpack_q5_k, true},
    [BL_Q6_K] = {unpack_q6_k, false},          [BL_Q8_K] = {unpack_q8_k, false},
    [BL_IQ2_XXS] = {bl_unpack_iq2_xxs, false}, [BL_IQ2_XS] = {bl_unpack_iq2_xs, false},
    [BL_IQ2_S] = {bl_unpack_iq2_s, false},     [BL_IQ3_XXS] = {bl_unpack_iq3_xxs, false},
    [BL_IQ3_S] = {bl_unpack_iq3_s, false},     [BL_IQ1_S] = {bl_unpack_iq1_s, false},
    [BL_IQ1_M] = {bl_unpack_iq1_m, false},     [BL_IQ4_NL] = {bl_unpack_iq4_nl, false},
    [BL_IQ4_XS] = {bl_unpack_iq4_xs, false},   [BL_MXFP4] = {unpack_mxfp4, false},
    [BL_NVFP4] = {unpack_nvfp4, false},        [BL_TQ1_0] = {unpack_tq1_0, false},
    [BL_TQ2_0] = {unpack_tq2_0, false},        [BL_Q1_0] = {unpack_q1_0, false},
    [BL_Q2_0] = {unpack_q2_0, false},
};
