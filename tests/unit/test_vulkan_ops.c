/* SPDX-License-Identifier: MIT */
/* Every op on the first Vulkan device against the float reference of the CPU.
 *
 *     test_vulkan_ops [--all] [--bytes] [--validated] [case]
 *         --all        the full product of types and shapes
 *         --bytes      what multiplies weights, activations being signed bytes where they may
 *         --validated  is skipped unless the validation layer is there; VK_INSTANCE_LAYERS asks for
 *                      it, and the loader goes on silently without
 *         case         a name; * and ? stand for parts of one
 */
#include "ops_rig.h"

#include "vulkan_rig.h"

#ifdef BL_VULKAN
#include "vulkan/vk_device.h"
#endif

#include <dlfcn.h>

static bool layer_here(void)
{
    struct { /* VkLayerProperties */
        char name[256];
        uint32_t version[2];
        char about[256];
    } layer[64];
    int (*list)(uint32_t *, void *) = NULL;
    uint32_t n = OPS_N(layer);
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    void *symbol = loader ? dlsym(loader, "vkEnumerateInstanceLayerProperties") : NULL;
    memcpy(&list, &symbol, sizeof list);
    if (!list || list(&n, layer) < 0)
        n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(layer[i].name, "VK_LAYER_KHRONOS_validation"))
            return true;
    printf("skipped: there is no VK_LAYER_KHRONOS_validation; install vulkan-validationlayers\n");
    return false;
}

/* Wherever a device multiplies bytes at all, at whatever speed. */
static bool bytes_here(void)
{
#ifdef BL_VULKAN
    if (bl_vk_of(ops.dev)->int_dot)
        return true;
#endif
    printf("skipped: the device has no products of four bytes\n");
    return false;
}

/* Experts are of every type, few and many: what is left out multiplies as they do. */
static int run_bytes(void)
{
    static const char *const cases[] = {"matmul_*", "experts*", "matmul", "heads"};
    int failed = 0;

    ops.bound = 1e-3; /* one part in 127, rounded, of 32 activations: 1e-5 and below for most */
    ops.least = 0.1;
    for (size_t i = 0; i < (ops.all ? 4 : 2); i++) {
        cmocka_set_test_filter(cases[i]);
        failed += ops_run(cases[i]);
    }
    return failed;
}

int main(int argc, char **argv)
{
    bool all = false, bytes = false;
    int failed = 77;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all"))
            all = true;
        else if (!strcmp(argv[i], "--bytes"))
            bytes = !setenv("BALLAST_VULKAN_INT_DOT", "1", 1);
        else if (strcmp(argv[i], "--validated") != 0)
            cmocka_set_test_filter(argv[i]);
        else if (!layer_here())
            return 77;
    }
    if (!vulkan_here())
        return 77;
    ops_start(vulkan_backend(), 0, &(struct bl_device_config){.threads = 1, .exact = !bytes}, all);
    if (!bytes)
        failed = ops_run("vulkan_ops");
    else if (bytes_here())
        failed = run_bytes();
    printf("%u cases\n", ops.n_cases);
    ops_stop();
    return failed;
}
