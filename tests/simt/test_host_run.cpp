/* SPDX-License-Identifier: MIT */
/* Kernels that break the rules, each in its own way, and some that do not: what run.cpp says of them. */
#include "simt/simt.hpp"

#include "host_kernels.h"

#include <stdio.h>

constexpr uint32_t THREADS = 64;

BL_KERNEL(reverses, THREADS)
{
    BL_SHARED float s[THREADS];
    for (uint32_t turn = 0; turn < 3; turn++) {
        s[thread_x()] = static_cast<float>(thread_x() + turn);
        sync();
        floats(p.a[0])[thread_x()] = s[THREADS - 1 - thread_x()];
        sync();
    }
}
BL_KERNEL(adds_up, THREADS)
{
    const float sum = sum_lanes(static_cast<float>(thread_x()));
    floats(p.a[0])[thread_x()] = sum + shuffle(sum, 3) * 0;
}
BL_KERNEL(leaves_before_barrier, THREADS)
{
    if (thread_x() == 0)
        return;
    sync();
    floats(p.a[0])[thread_x()] = 1;
}
BL_KERNEL(leaves_behind_others, THREADS)
{
    if (thread_x() == 63)
        return;
    sync();
}
BL_KERNEL(lane_leaves, THREADS)
{
    if (thread_x() == 5)
        return;
    floats(p.a[0])[0] = sum_lanes(1);
}
BL_KERNEL(different_meetings, THREADS)
{
    floats(p.a[0])[thread_x()] = thread_x() % 2 ? shuffle_xor(1.0f, 2) : shuffle(1.0f, 2);
}
BL_KERNEL(barrier_against_meeting, THREADS)
{
    if (thread_x() < 8)
        sync();
    floats(p.a[0])[thread_x()] = shuffle_xor(1.0f, 1);
}

static const struct {
    const char *name, *says; /* NULL: nothing is wrong */
    float first;
} cases[] = {
    {"reverses", nullptr, 65},
    {"adds_up", nullptr, 496},
    {"leaves_before_barrier", "they have left", 0},
    {"leaves_behind_others", "while others wait at a barrier", 0},
    {"lane_leaves", "a lane leaves while its warp waits", 0},
    {"different_meetings", "different meetings", 0},
    {"barrier_against_meeting", "a barrier", 0},
};

static bool check(const char *name, const char *says, float first)
{
    const uint32_t grid[3] = {2, 1, 1}, block[3] = {THREADS, 1, 1};
    float y[THREADS] = {};
    struct bl_simt_args args = {};
    char why[200] = "";
    args.a[0] = reinterpret_cast<uintptr_t>(y);
    const struct bl_host_kernel *k = bl_host_kernel_find("test_host_run", name);
    const int code = k ? bl_host_kernel_run(k, &args, grid, block, 0, why, sizeof why) : 1;
    const bool good = says ? code == -1 && strstr(why, says) : code == 0 && y[0] == first;
    printf("%s %s: %d, \"%s\", %g\n", good ? "ok  " : "BAD ", name, code, why, static_cast<double>(y[0]));
    return good;
}

int main()
{
    bool good = true;
    for (const auto &c : cases)
        good &= check(c.name, c.says, c.first);
    /* blocks of another size than a kernel is made for are refused */
    const uint32_t one[3] = {1, 1, 1};
    struct bl_simt_args args = {};
    char why[200];
    good &= bl_host_kernel_run(bl_host_kernel_find("test_host_run", "reverses"), &args, one, one, 0, why, sizeof why) == -1;
    return good ? 0 : 1;
}
