/* SPDX-License-Identifier: MIT */
/* Every op of the CUDA and HIP backends against the float reference of the CPU, on the emulated
 * driver or on a card that is here. On the emulated one the address sanitizer sees whoever reads or
 * writes beyond a tensor.
 *
 *     test_simt_ops LIBRARY|cuda|hip [--all] [--every N] [--native] [--card N] [case]
 *
 * cuda, hip: this machine's driver and the kernels of this build. --all: the full product of types
 * and shapes. --every: the first case of a kind, and of all each N-th. --native: activations as
 * bytes or halves, as a plan has them that does not ask for exact ones. --card: the N-th, from 0.
 * case: a name; * and ? stand for parts of one. */
#include "ops_rig.h"

#include "backends.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
static void close_fence(uint64_t addr, uint64_t bytes, bool closed)
{
    const void *at = (const void *)(uintptr_t)addr;
    if (closed)
        __asan_poison_memory_region(at, (size_t)bytes);
    else
        __asan_unpoison_memory_region(at, (size_t)bytes);
}
static void (*const fence)(uint64_t, uint64_t, bool) = close_fence;
#else
static void (*const fence)(uint64_t, uint64_t, bool) = NULL;
#endif

static const struct bl_backend *over(const char *library)
{
    if (!strcmp(library, "cuda") || !strcmp(library, "hip"))
        return bl_backend_find(library);
    const bool hip = strstr(strrchr(library, '/') ? strrchr(library, '/') : library, "hip") != NULL;
    const struct bl_backend *b = bl_backend_find(hip ? "hip" : "cuda");

    setenv(hip ? "BALLAST_HIP_LIBRARY" : "BALLAST_CUDA_LIBRARY", library, 1);
    setenv(hip ? "BALLAST_HIP_KERNELS" : "BALLAST_CUDA_KERNELS", BL_TEST_IMAGES, 1);
    unsetenv(hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
    return b;
}

int main(int argc, char **argv)
{
    struct bl_device_config config = {.threads = 1, .exact = true};
    uint32_t card = 0, every = 1;
    bool all = false;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--all"))
            all = true;
        else if (!strcmp(argv[i], "--native"))
            config.exact = false;
        else if (!strcmp(argv[i], "--card") && i + 1 < argc)
            card = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--every") && i + 1 < argc)
            every = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            cmocka_set_test_filter(argv[i]);
    }
    const struct bl_backend *b = argc > 1 ? over(argv[1]) : NULL;
    if (!b) {
        printf("skipped: this build has no such backend\n");
        return 77;
    }
    ops_start(b, card, &config, all);
    ops.every = every ? every : 1;
    ops.fence = strchr(argv[1], '/') ? fence : NULL;
    if (!config.exact)
        ops.bound = 1e-3; /* one part in 127, rounded, of 32 activations: 1e-5 and below for most */
    const int failed = ops_run("simt_ops");
    printf("%u cases\n", ops.n_cases);
    const bool none = !ops.n_cases;
    ops_stop();
    return none ? 1 : failed;
}
