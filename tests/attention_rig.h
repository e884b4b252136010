/* SPDX-License-Identifier: MIT */
/* attention_rig.h — how near attention comes to its reference on the CPU.
 *
 * Where the CPU multiplies pairs of bfloat16, attention of many tokens rounds values and weights to it. Without, and of few
 * tokens, it differs by the rounding of floats.
 */
#ifndef BL_TEST_ATTENTION_RIG_H
#define BL_TEST_ATTENTION_RIG_H

#include "cpu_rig.h"

#include "cpu/segment.h"

enum { RIG_FEW_TOKENS = 4, RIG_FEW_HEADS = 8 };

/* As rig_cases, and on this CPU without bfloat16. */
static inline void rig_attention_cases(rig_make_fn *make, rig_check_fn *check, const void *arg)
{
    rig_cases(make, check, arg);
    rig_case(make, check, arg, false, UINT32_MAX & ~(uint32_t)BL_CPU_BF16);
}

/* What a result, of values of at most 1 and of a batch of `bound` tokens at most, may differ by; group: query heads of a key
 * head; floats: without bfloat16. Half a last place of the value, the same of the weight, and some for scores. */
static inline double rig_attention_error(const struct rig *r, uint32_t bound, uint32_t group, double floats)
{
    const struct bl_cpu_device *cpu = (const struct bl_cpu_device *)r->dev;
    const bool few = bound <= RIG_FEW_TOKENS && group <= RIG_FEW_HEADS;
    return !few && cpu->kernels.pair.queries ? 0x1.8p-8 : floats;
}

#endif
