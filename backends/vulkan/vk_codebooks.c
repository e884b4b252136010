/* SPDX-License-Identifier: MIT */
/* The codebooks of the IQ types in memory of the device. As constants of a shader they would be for
 * every driver to place: one that does not move them out of the kernel writes thousands of words in
 * each invocation, and compiles for minutes. */
#include "vk_device.h"

#include "dtype.h"

#define G(...) __VA_ARGS__,
static const struct books {
    uint16_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq3_xxs[256], iq3_s[512], iq1_s[2048];
} books = {
    {
#include "grid_iq2_xxs.def"
    },
    {
#include "grid_iq2_xs.def"
    },
    {
#include "grid_iq2_s.def"
    },
    {
#include "grid_iq3_xxs.def"
    },
    {
#include "grid_iq3_s.def"
    },
    {
#include "grid_iq1_s.def"
    },
};
#undef G

enum bl_status bl_vk_codebooks_open(struct bl_vk_device *d)
{
    BL_TRY(bl_vk_mem_alloc(&d->base, sizeof books, true, &d->codebooks));
    memcpy(d->codebooks.host, &books, sizeof books);
    return BL_OK;
}

uint64_t bl_vk_codebook(const struct bl_vk_device *d, int type)
{
    const uint64_t at = d->codebooks.addr;
    switch (type) {
    case BL_IQ2_XXS:
        return at + offsetof(struct books, iq2_xxs);
    case BL_IQ2_XS:
        return at + offsetof(struct books, iq2_xs);
    case BL_IQ2_S:
        return at + offsetof(struct books, iq2_s);
    case BL_IQ3_XXS:
        return at + offsetof(struct books, iq3_xxs);
    case BL_IQ3_S:
        return at + offsetof(struct books, iq3_s);
    case BL_IQ1_S:
    case BL_IQ1_M:
        return at + offsetof(struct books, iq1_s);
    default:
        return 0;
    }
}
