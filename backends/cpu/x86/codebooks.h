/* SPDX-License-Identifier: MIT */
/* codebooks.h — the codebooks of the IQ types as vector kernels look them up.
 *
 * Purpose   for byte permutations: entries have few distinct values per element, so an entry of 4 or 8 elements becomes
 *           two bytes of codes, each in a table of its own; 64 look-ups are a few permutations and no gather. A pick table
 *           turns one code field of a byte into its magnitude. For loads: entries with a byte for each element. All are
 *           made by the preprocessor from the lists in core, which are part of the file format.
 * Ownership none; constant data of the file that includes this.
 * Units     none.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_X86_CODEBOOKS_H
#define BL_X86_CODEBOOKS_H

#include "compiler.h"

/* E of each of sixteen entries, as a list */
#define GRID_EACH(E, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                                     \
    E(a), E(b), E(c), E(d), E(e), E(f), E(g), E(h), E(i), E(j), E(k), E(l), E(m), E(n), E(o), E(p),

/* ---- byte permutations ---- */

/* Eight elements of two bits: a byte of elements 0-3 and one of 4-7. */
#define GRID_LOW(v) (v) & 0xff
#define GRID_HIGH(v) (v) >> 8
/* Four elements of three bits: a byte of elements 0, 1 and one of 2, 3. */
#define GRID_LOW6(v) (v) & 0x3f
#define GRID_HIGH6(v) (v) >> 6
/* The same as nibbles, each the element's value 2 c + 1. */
#define GRID_ODD2(v) 0x11 + 2 * ((v) & 7) + 32 * ((v) >> 3 & 7)
#define GRID_LOW_ODD(v) GRID_ODD2(v)
#define GRID_HIGH_ODD(v) GRID_ODD2((v) >> 6)

static const uint8_t iq3_codes[2][256] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW6, __VA_ARGS__)
    {
#include "grid_iq3_xxs.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH6, __VA_ARGS__)
    {
#include "grid_iq3_xxs.def"
    },
#undef G
};
static const uint8_t iq3_s_codes[2][512] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW_ODD, __VA_ARGS__)
    {
#include "grid_iq3_s.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH_ODD, __VA_ARGS__)
    {
#include "grid_iq3_s.def"
    },
#undef G
};
static const uint8_t iq2_codes[2][256] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW, __VA_ARGS__)
    {
#include "grid_iq2_xxs.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH, __VA_ARGS__)
    {
#include "grid_iq2_xxs.def"
    },
#undef G
};
static const uint8_t iq2_xs_codes[2][512] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW, __VA_ARGS__)
    {
#include "grid_iq2_xs.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH, __VA_ARGS__)
    {
#include "grid_iq2_xs.def"
    },
#undef G
};
static const uint8_t iq2_s_codes[2][1024] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW, __VA_ARGS__)
    {
#include "grid_iq2_s.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH, __VA_ARGS__)
    {
#include "grid_iq2_s.def"
    },
#undef G
};
static const uint8_t iq1_codes[2][2048] BL_ALIGNED(64) = {
#define G(...) GRID_EACH(GRID_LOW, __VA_ARGS__)
    {
#include "grid_iq1_s.def"
    },
#undef G
#define G(...) GRID_EACH(GRID_HIGH, __VA_ARGS__)
    {
#include "grid_iq1_s.def"
    },
#undef G
};

/* index: the low six bits of a code byte; [j]: magnitude of its field j */
static const uint8_t iq3_pick[2][64] BL_ALIGNED(64) = {
    {
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e,
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e,
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e,
        0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e, 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e,
    },
    {
        0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0c, 0x0c, 0x0c, 0x0c, 0x0c, 0x0c, 0x0c, 0x0c,
        0x14, 0x14, 0x14, 0x14, 0x14, 0x14, 0x14, 0x14, 0x1c, 0x1c, 0x1c, 0x1c, 0x1c, 0x1c, 0x1c, 0x1c,
        0x24, 0x24, 0x24, 0x24, 0x24, 0x24, 0x24, 0x24, 0x2c, 0x2c, 0x2c, 0x2c, 0x2c, 0x2c, 0x2c, 0x2c,
        0x34, 0x34, 0x34, 0x34, 0x34, 0x34, 0x34, 0x34, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e, 0x3e,
    },
};
/* as iq3_pick, but the index of [3] is the code byte >> 2 */
static const uint8_t iq2_pick[4][64] BL_ALIGNED(64) = {
    {
        0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00,
        0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00,
        0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00,
        0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00, 0x08, 0x19, 0x2b, 0x00,
    },
    {
        0x08, 0x08, 0x08, 0x08, 0x19, 0x19, 0x19, 0x19, 0x2b, 0x2b, 0x2b, 0x2b, 0x00, 0x00, 0x00, 0x00,
        0x08, 0x08, 0x08, 0x08, 0x19, 0x19, 0x19, 0x19, 0x2b, 0x2b, 0x2b, 0x2b, 0x00, 0x00, 0x00, 0x00,
        0x08, 0x08, 0x08, 0x08, 0x19, 0x19, 0x19, 0x19, 0x2b, 0x2b, 0x2b, 0x2b, 0x00, 0x00, 0x00, 0x00,
        0x08, 0x08, 0x08, 0x08, 0x19, 0x19, 0x19, 0x19, 0x2b, 0x2b, 0x2b, 0x2b, 0x00, 0x00, 0x00, 0x00,
    },
    {
        0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08,
        0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19,
        0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    },
    {
        0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08, 0x08,
        0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19, 0x19,
        0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b, 0x2b,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    },
};

/* ---- loads ---- */

#define GRID_IQ2_LEVEL(c) ((c) == 0 ? 8 : (c) == 1 ? 25 : 43)
#define GRID_IQ3_LEVEL(c) ((c) == 7 ? 62 : 8 * (c) + 4)
#define GRID_IQ3S_LEVEL(c) (2 * (c) + 1)
#define GRID_IQ1_CODE(c) (8 * (c))
#define GRID_BYTE2(L, v, j) ((uint64_t)L((v) >> (2 * (j)) & 3) << (8 * (j)))
#define GRID_BYTE3(L, v, j) ((uint32_t)L((v) >> (3 * (j)) & 7) << (8 * (j)))
#define GRID_BYTES8(L, v)                                                                                                \
    (GRID_BYTE2(L, v, 0) | GRID_BYTE2(L, v, 1) | GRID_BYTE2(L, v, 2) | GRID_BYTE2(L, v, 3) | GRID_BYTE2(L, v, 4) |       \
     GRID_BYTE2(L, v, 5) | GRID_BYTE2(L, v, 6) | GRID_BYTE2(L, v, 7))
#define GRID_BYTES4(L, v) (GRID_BYTE3(L, v, 0) | GRID_BYTE3(L, v, 1) | GRID_BYTE3(L, v, 2) | GRID_BYTE3(L, v, 3))
#define GRID_IQ2(v) GRID_BYTES8(GRID_IQ2_LEVEL, v)
#define GRID_IQ1(v) GRID_BYTES8(GRID_IQ1_CODE, v)
#define GRID_IQ3(v) GRID_BYTES4(GRID_IQ3_LEVEL, v)
#define GRID_IQ3S(v) GRID_BYTES4(GRID_IQ3S_LEVEL, v)

#define G(...) GRID_EACH(GRID_IQ2, __VA_ARGS__)
static const uint64_t iq2_xxs_bytes[256] BL_ALIGNED(64) = {
#include "grid_iq2_xxs.def"
};
static const uint64_t iq2_xs_bytes[512] BL_ALIGNED(64) = {
#include "grid_iq2_xs.def"
};
static const uint64_t iq2_s_bytes[1024] BL_ALIGNED(64) = {
#include "grid_iq2_s.def"
};
#undef G
/* 0, 8, 16: eighths of the values -1, 0, 1 plus 1 */
#define G(...) GRID_EACH(GRID_IQ1, __VA_ARGS__)
static const uint64_t iq1_bytes[2048] BL_ALIGNED(64) = {
#include "grid_iq1_s.def"
};
#undef G
#define G(...) GRID_EACH(GRID_IQ3, __VA_ARGS__)
static const uint32_t iq3_xxs_bytes[256] BL_ALIGNED(64) = {
#include "grid_iq3_xxs.def"
};
#undef G
#define G(...) GRID_EACH(GRID_IQ3S, __VA_ARGS__)
static const uint32_t iq3_s_bytes[512] BL_ALIGNED(64) = {
#include "grid_iq3_s.def"
};
#undef G

#endif
