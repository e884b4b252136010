/* SPDX-License-Identifier: MIT */
/* vk_api.h — the Vulkan functions that are used, taken from the loader at run time.
 *
 * Purpose   a program that runs where no Vulkan is installed; the headers are needed to build, the library is not.
 * Ownership an instance owns its library handle.
 * Units     none.
 * Errors    BL_EUNAVAILABLE: no loader, or none of version 1.2: silent, not an error. BL_EDEVICE: what a driver refused.
 * Threads   an instance is one thread's; functions of a device are called as Vulkan says.
 */
#ifndef BL_VK_API_H
#define BL_VK_API_H

#include "status.h"

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#define BL_VK_INSTANCE_FNS(X)                                                                                          \
    X(DestroyInstance) X(EnumeratePhysicalDevices) X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceFeatures2)       \
    X(GetPhysicalDeviceMemoryProperties2) X(GetPhysicalDeviceQueueFamilyProperties)                                    \
    X(EnumerateDeviceExtensionProperties) X(CreateDevice) X(GetDeviceProcAddr)
#define BL_VK_DEVICE_FNS(X)                                                                                            \
    X(DestroyDevice) X(GetDeviceQueue) X(DeviceWaitIdle) X(CreateBuffer) X(DestroyBuffer)                              \
    X(GetBufferMemoryRequirements) X(GetBufferDeviceAddress) X(AllocateMemory) X(FreeMemory) X(BindBufferMemory)       \
    X(MapMemory) X(CreateShaderModule) X(DestroyShaderModule) X(CreatePipelineLayout) X(DestroyPipelineLayout)         \
    X(CreateComputePipelines) X(DestroyPipeline) X(CreateCommandPool) X(DestroyCommandPool) X(AllocateCommandBuffers)  \
    X(FreeCommandBuffers) X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants)             \
    X(CmdDispatch) X(CmdPipelineBarrier) X(CmdCopyBuffer) X(CmdFillBuffer) X(QueueSubmit) X(CreateSemaphore)           \
    X(CreateQueryPool) X(DestroyQueryPool) X(CmdResetQueryPool) X(CmdWriteTimestamp) X(GetQueryPoolResults)            \
    X(DestroySemaphore) X(GetSemaphoreCounterValue) X(WaitSemaphores) X(SignalSemaphore)
/* Of extensions: NULL where the device lacks them. */
#define BL_VK_OPTIONAL_FNS(X) X(GetMemoryHostPointerPropertiesEXT)

struct bl_vk_instance {
    void *library;
    VkInstance handle;
    PFN_vkGetInstanceProcAddr get;
#define X(fn) PFN_vk##fn fn;
    BL_VK_INSTANCE_FNS(X)
#undef X
};
struct bl_vk_fns {
#define X(fn) PFN_vk##fn fn;
    BL_VK_DEVICE_FNS(X)
    BL_VK_OPTIONAL_FNS(X)
#undef X
};

enum bl_status bl_vk_instance_open(struct bl_vk_instance *);
void bl_vk_instance_close(struct bl_vk_instance *); /* zeroed is fine */
/* Of an extension of a device. */
bool bl_vk_has(const struct bl_vk_instance *, VkPhysicalDevice, const char *extension);
enum bl_status bl_vk_device_fns(const struct bl_vk_instance *, VkDevice, struct bl_vk_fns *out);

const char *bl_vk_result_name(VkResult);
/* BL_OK, or BL_ENOMEM, BL_EDEVICE with a line: who, what, the driver's answer. */
enum bl_status bl_vk_check(VkResult, const char *who, const char *what);

#endif
