/* SPDX-License-Identifier: MIT */
/* Kernels that break the rules, each in its own way, and some that do not: what run.cpp says of them, and what sanitizers do.
 *
 *     test_host_run [kernel]
 *         kernel     runs that one alone, as the program itself does where a sanitizer ends the process */
#include "simt/simt.hpp"

#include "host_kernels.h"

#include <stdio.h>
#include <stdlib.h>

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
BL_KERNEL(different_barriers, THREADS)
{
    if (lane() < 16)
        sync();
    else
        sync();
    floats(p.a[0])[thread_x()] = 1;
}
BL_KERNEL(different_shuffles, THREADS)
{
    float v = 1;
    if (lane() % 2)
        v += shuffle_xor(v, 2);
    else
        v -= shuffle_xor(v, 2);
    floats(p.a[0])[thread_x()] = v;
}

/* What no value shows: a sanitizer must. */
BL_KERNEL(reads_beyond, THREADS)
{
    floats(p.a[0])[thread_x()] = floats(p.a[1])[thread_x() + 1];
}
BL_KERNEL(writes_beyond, THREADS)
{
    floats(p.a[1])[thread_x() == THREADS - 1 ? THREADS : thread_x()] = 1;
}
BL_KERNEL(reads_beyond_shared, THREADS)
{
    BL_SHARED float s[THREADS];
    s[thread_x()] = 1;
    sync();
    floats(p.a[0])[thread_x()] = s[thread_x() + p.n[0]];
}
BL_KERNEL(reads_beyond_own, THREADS)
{
    float own[4];
    for (uint32_t i = 0; i < 4; i++)
        own[i] = sum_lanes(1);
    floats(p.a[0])[thread_x()] = own[3 + p.n[0]];
}
BL_KERNEL(lacks_barrier, THREADS)
{
    BL_SHARED float s[THREADS];
    s[thread_x()] = static_cast<float>(thread_x());
    floats(p.a[0])[thread_x()] = s[THREADS - 1 - thread_x()];
}
BL_KERNEL(lacks_second_barrier, THREADS)
{
    BL_SHARED float s[THREADS];
    for (uint32_t turn = 0; turn < 2; turn++) {
        s[thread_x()] = static_cast<float>(turn);
        sync();
        floats(p.a[0])[thread_x()] = s[THREADS - 1 - thread_x()];
    }
}
BL_KERNEL(meets_in_warps_alone, THREADS) /* where the block must */
{
    BL_SHARED float s[THREADS];
    s[thread_x()] = sum_lanes(1);
    floats(p.a[0])[thread_x()] = s[THREADS - 1 - thread_x()] + sum_lanes(1);
}
BL_KERNEL(all_write_one, THREADS)
{
    floats(p.a[0])[0] = static_cast<float>(thread_x());
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
    {"different_barriers", "different barriers", 0},
    {"different_shuffles", "different meetings", 0},
};
#if defined(__SANITIZE_ADDRESS__)
static const char *const reported[][2] = {
    {"reads_beyond", "heap-buffer-overflow"},
    {"writes_beyond", "heap-buffer-overflow"},
    {"reads_beyond_shared", "global-buffer-overflow"},
    {"reads_beyond_own", "stack-buffer-overflow"},
};
#elif defined(__SANITIZE_THREAD__)
static const char *const reported[][2] = {
    {"lacks_barrier", "data race"},
    {"lacks_second_barrier", "data race"},
    {"meets_in_warps_alone", "data race"},
    {"all_write_one", "data race"},
};
#else
static const char *const reported[0][2] = {};
#endif

static bool check(const char *name, const char *says, float first)
{
    const uint32_t grid[3] = {2, 1, 1}, block[3] = {THREADS, 1, 1};
    float *x = static_cast<float *>(calloc(THREADS, sizeof *x)), *y = static_cast<float *>(calloc(THREADS, sizeof *y));
    struct bl_simt_args args = {};
    char why[200] = "";
    args.a[0] = reinterpret_cast<uintptr_t>(y);
    args.a[1] = reinterpret_cast<uintptr_t>(x);
    args.n[0] = 1;
    const struct bl_host_kernel *k = bl_host_kernel_find("test_host_run", name);
    const int code = k && x && y ? bl_host_kernel_run(k, &args, grid, block, 0, why, sizeof why) : 1;
    const bool good = says ? code == -1 && strstr(why, says) : code == 0 && y[0] == first;
    printf("%s %s: %d, \"%s\", %g\n", good ? "ok  " : "BAD ", name, code, why, y ? static_cast<double>(y[0]) : 0);
    free(x);
    free(y);
    return good;
}

/* The program once more, for a kernel that a sanitizer ends it for. */
static bool ends(const char *self, const char *name, const char *with)
{
    char command[1000], text[4096];
    bool said = false;
    snprintf(command, sizeof command, "'%s' %s 2>&1", self, name);
    FILE *f = popen(command, "r");
    while (f && fgets(text, sizeof text, f))
        said |= strstr(text, with) != nullptr;
    const bool good = f && pclose(f) != 0 && said;
    printf("%s %s: %s\n", good ? "ok  " : "BAD ", name, with);
    return good;
}

int main(int argc, char **argv)
{
    bool good = true;
    if (argc > 1)
        return check(argv[1], nullptr, 0) ? 0 : 1;
    for (const auto &r : reported)
        good &= ends(argv[0], r[0], r[1]);
    for (const auto &c : cases)
        good &= check(c.name, c.says, c.first);
    /* blocks of another size than a kernel is made for are refused */
    const uint32_t one[3] = {1, 1, 1};
    struct bl_simt_args args = {};
    char why[200];
    good &= bl_host_kernel_run(bl_host_kernel_find("test_host_run", "reverses"), &args, one, one, 0, why, sizeof why) == -1;
    return good ? 0 : 1;
}
