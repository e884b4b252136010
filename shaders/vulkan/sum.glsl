/* SPDX-License-Identifier: MIT */
/* sum.glsl — a sum and a maximum over the 128 invocations of a work group, the same bits whatever the subgroup. */
shared float sum_part[128];

float group_reduce(const float mine, const bool largest)
{
    const uint i = gl_LocalInvocationIndex;
    barrier();
    sum_part[i] = mine;
    barrier();
    for (uint half_n = 64; half_n > 0; half_n /= 2) {
        if (i < half_n)
            sum_part[i] = largest ? max(sum_part[i], sum_part[i + half_n]) : sum_part[i] + sum_part[i + half_n];
        barrier();
    }
    return sum_part[0];
}
float group_sum(const float mine) { return group_reduce(mine, false); }
float group_max(const float mine) { return group_reduce(mine, true); }
