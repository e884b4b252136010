/* SPDX-License-Identifier: MIT */
#include "vk_api.h"

#include <dlfcn.h>
#include <stdlib.h>

const char *bl_vk_result_name(VkResult r)
{
    switch (r) {
    case VK_SUCCESS:
        return "no error";
    case VK_TIMEOUT:
        return "timeout";
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case VK_ERROR_INITIALIZATION_FAILED:
        return "initialisation failed";
    case VK_ERROR_DEVICE_LOST:
        return "device lost";
    case VK_ERROR_MEMORY_MAP_FAILED:
        return "memory cannot be mapped";
    case VK_ERROR_FEATURE_NOT_PRESENT:
        return "a feature is missing";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
        return "an extension is missing";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
        return "incompatible driver";
    case VK_ERROR_TOO_MANY_OBJECTS:
        return "too many objects";
    case VK_ERROR_INVALID_EXTERNAL_HANDLE:
        return "memory of the host is not accepted";
    default:
        return "unknown error";
    }
}

enum bl_status bl_vk_check(VkResult r, const char *who, const char *what)
{
    if (r == VK_SUCCESS)
        return BL_OK;
    const bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return bl_fail(memory ? BL_ENOMEM : BL_EDEVICE, "%s: %s: %s (%d)", who, what,
                   bl_vk_result_name(r), (int)r);
}

/* ---- functions ---- */

/* POSIX lets a pointer to an object be one to a function; C wants it said byte for byte. */
static void take_symbol(void *library, const char *name, PFN_vkGetInstanceProcAddr *out)
{
    void *symbol = dlsym(library, name);
    memcpy(out, &symbol, sizeof symbol);
}

/* PFN_vk* are all of one size and differ in type only. */
#define TAKE(from, get, handle, fn) ((from)->fn = (PFN_vk##fn)(get)((handle), "vk" #fn))

static bool take_instance_fns(struct bl_vk_instance *i)
{
    bool all = true;
#define X(fn) all = TAKE(i, i->get, i->handle, fn) && all;
    BL_VK_INSTANCE_FNS(X)
#undef X
    return all;
}

enum bl_status bl_vk_device_fns(const struct bl_vk_instance *i, VkDevice dev, struct bl_vk_fns *out)
{
    const char *missing = NULL;
#define X(fn)                                                                                      \
    if (!TAKE(out, i->GetDeviceProcAddr, dev, fn))                                                 \
        missing = "vk" #fn;
    BL_VK_DEVICE_FNS(X)
#undef X
#define X(fn) TAKE(out, i->GetDeviceProcAddr, dev, fn);
    BL_VK_OPTIONAL_FNS(X)
#undef X
    return missing ? bl_fail(BL_EDEVICE, "vulkan: the driver lacks %s", missing) : BL_OK;
}

/* ---- instance ---- */

static enum bl_status create(struct bl_vk_instance *i)
{
    const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                   .pApplicationName = "ballast",
                                   .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pApplicationInfo = &app};
    PFN_vkEnumerateInstanceVersion version =
        (PFN_vkEnumerateInstanceVersion)i->get(NULL, "vkEnumerateInstanceVersion");
    PFN_vkCreateInstance make = (PFN_vkCreateInstance)i->get(NULL, "vkCreateInstance");
    uint32_t v = 0;

    if (!version || !make || version(&v) || v < VK_API_VERSION_1_2)
        return bl_fail(BL_EUNAVAILABLE, "vulkan: the loader is older than version 1.2");
    const VkResult r = make(&info, NULL, &i->handle);
    if (r == VK_ERROR_INCOMPATIBLE_DRIVER || r == VK_ERROR_EXTENSION_NOT_PRESENT)
        return bl_fail(BL_EUNAVAILABLE, "vulkan: no driver");
    return bl_vk_check(r, "vulkan", "an instance cannot be made");
}

/* The library stays: drivers keep what they found out, and are not made to be loaded again and
 * again. */
enum bl_status bl_vk_instance_open(struct bl_vk_instance *out)
{
    struct bl_vk_instance i = {.library =
                                   dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)};
    enum bl_status st = BL_OK;

    if (!i.library)
        return bl_fail(BL_EUNAVAILABLE, "vulkan: no libvulkan.so.1");
    take_symbol(i.library, "vkGetInstanceProcAddr", &i.get);
    if (!i.get)
        st = bl_fail(BL_EUNAVAILABLE, "vulkan: libvulkan.so.1 is not a loader");
    if (!st)
        st = create(&i);
    if (!st && !take_instance_fns(&i))
        st = bl_fail(BL_EDEVICE, "vulkan: the loader lacks functions of version 1.2");
    if (st)
        bl_vk_instance_close(&i);
    else
        *out = i;
    return st;
}

void bl_vk_instance_close(struct bl_vk_instance *i)
{
    if (i->handle && i->DestroyInstance)
        i->DestroyInstance(i->handle, NULL);
    if (i->library)
        dlclose(i->library);
    *i = (struct bl_vk_instance){0};
}

bool bl_vk_has(const struct bl_vk_instance *i, VkPhysicalDevice phys, const char *extension)
{
    VkExtensionProperties *p = NULL;
    uint32_t n = 0;
    bool found = false;

    if (i->EnumerateDeviceExtensionProperties(phys, NULL, &n, NULL) ||
        !(p = calloc(n + 1, sizeof *p)))
        return false;
    if (i->EnumerateDeviceExtensionProperties(phys, NULL, &n, p) == VK_SUCCESS)
        for (uint32_t k = 0; k < n; k++)
            found |= !strcmp(p[k].extensionName, extension);
    free(p);
    return found;
}
