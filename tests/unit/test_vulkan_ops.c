/* SPDX-License-Identifier: MIT */
/* Every op on the first Vulkan device against the float reference of the CPU.
 *
 *     test_vulkan_ops [--all] [--validated] [case]
 *         --all        the full product of types and shapes
 *         --validated  is skipped unless the validation layer is there; VK_INSTANCE_LAYERS asks for
 *                      it, and the loader goes on silently without
 *         case         a name; * and ? stand for parts of one
 */
#include "ops_rig.h"

#include "vulkan_rig.h"

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

int main(int argc, char **argv)
{
    bool all = false;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--all"))
            all = true;
        else if (strcmp(argv[i], "--validated") != 0)
            cmocka_set_test_filter(argv[i]);
        else if (!layer_here())
            return 77;
    }
    if (!vulkan_here())
        return 77;
    ops_start(vulkan_backend(), 0, &(struct bl_device_config){.threads = 1}, all);
    const int failed = ops_run("vulkan_ops");
    printf("%u cases\n", ops.n_cases);
    ops_stop();
    return failed;
}
