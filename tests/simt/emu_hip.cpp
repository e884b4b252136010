/* SPDX-License-Identifier: MIT */
/* The emulated driver's face as the HIP runtime; by the width of warps that kernels were compiled for, of one card or
 * another. */
#include "emu.hpp"

#include "hip/hip_symbols.h"
#include "host_kernels.h"

#include <cstdio>

using namespace emu;

const int emu_face_shared_bytes = 64 << 10, emu_face_usual_shared = 64 << 10;
const char emu_face_mask[] = "HIP_VISIBLE_DEVICES";

extern "C" {
#define X(name, params) __attribute__((visibility("default"))) int name params;
HIP_SYMBOLS(X)
HIP_OPTIONAL(X)
#undef X
__attribute__((visibility("default"))) const char *hipGetErrorString(int code);
}

#define ENTER                                                                                                          \
    if (const int code_ = entered())                                                                                   \
    return code_

/* Without a word of which card, it is the first. */
static int entered()
{
    if (!current())
        set_current(card_at(0));
    return enter();
}

static uint64_t at(const void *p)
{
    return (uintptr_t)p;
}

int hipInit(unsigned flags)
{
    return flags ? invalid : start();
}

int hipRuntimeGetVersion(int *version)
{
    return *version = driver_version(), ok;
}

int hipGetDeviceCount(int *n)
{
    ENTER;
    return *n = n_cards(), n_cards() ? ok : no_device;
}

int hipDeviceGetName(char *name, int cap, int device)
{
    ENTER;
    card *c = card_at(device);
    if (!c)
        return bad_device;
    snprintf(name, (size_t)cap, "Emulated card %d", number_of(c));
    return ok;
}

int hipDeviceTotalMem(size_t *bytes, int device)
{
    ENTER;
    card *c = card_at(device);
    return c ? (*bytes = total_bytes(c), ok) : bad_device;
}

int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER;
    if (!card_at(device))
        return bad_device;
    switch (attribute) {
    case 16: return *value = 0, ok;
    case 29: return *value = 0x7fffffff, ok;
    case 30:
    case 31: return *value = 65535, ok;
    case 56: return *value = 1024, ok;
    case 63: return *value = 4, ok;
    case 74: return *value = emu_face_shared_bytes, ok;
    case 87: return *value = (int)bl_host_warp(), ok;
    default: return invalid;
    }
}

int hipDeviceGetPCIBusId(char *out, int cap, int device)
{
    ENTER;
    card *c = card_at(device);
    if (!c)
        return bad_device;
    snprintf(out, (size_t)cap, "0000:C%d:00.0", number_of(c));
    return ok;
}

/* Where the name of the architecture stands since release 6. */
int hipGetDevicePropertiesR0600(void *properties, int device)
{
    ENTER;
    if (!card_at(device))
        return bad_device;
    char *p = static_cast<char *>(properties);
    strcpy(p, "Emulated gfx card");
    strcpy(p + 1160, bl_host_warp() == 64 ? "gfx90a:sramecc+:xnack-" : "gfx1100");
    return ok;
}

int hipGetDeviceProperties(void *, int)
{
    return not_supported;
}

int hipSetDevice(int device)
{
    card *c = card_at(device);
    return c ? (set_current(c), ok) : bad_device;
}

const char *hipGetErrorString(int code)
{
    return code == no_memory ? "out of memory" : code == launch_failed ? "a launch failed" : "an emulated error";
}

int hipMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    return mem_info(free_bytes, all_bytes);
}

int hipMalloc(void **addr, size_t bytes)
{
    ENTER;
    uint64_t a = 0;
    const int code = mem_alloc(&a, bytes);
    *addr = (void *)(uintptr_t)a;
    return code;
}

int hipFree(void *addr)
{
    return mem_free(at(addr));
}

int hipHostMalloc(void **host, size_t bytes, unsigned flags)
{
    ENTER;
    return flags == 3 ? host_alloc(host, bytes) : (int)invalid;
}

int hipHostFree(void *host)
{
    return host_free(host);
}

int hipHostGetDevicePointer(void **addr, void *host, unsigned flags)
{
    ENTER;
    *addr = host;
    return flags ? (int)invalid : host_address(host);
}

int hipHostRegister(void *host, size_t bytes, unsigned flags)
{
    ENTER;
    return flags == 3 ? host_register(host, bytes) : (int)invalid;
}

int hipHostUnregister(void *host)
{
    return host_unregister(host);
}

int hipStreamCreateWithFlags(void **stream, unsigned flags)
{
    ENTER;
    return flags == 1 ? stream_create(stream) : (int)invalid;
}

int hipStreamDestroy(void *stream)
{
    return stream_destroy(stream);
}

int hipStreamQuery(void *stream)
{
    return stream_query(stream);
}

int hipStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER;
    return flags ? (int)invalid : stream_wait_event(stream, event);
}

int hipStreamWaitValue64(void *stream, void *addr, uint64_t value, unsigned flags, uint64_t mask)
{
    ENTER;
    return flags || ~mask ? (int)invalid : stream_wait_value(stream, at(addr), value, true);
}

int hipLaunchHostFunc(void *stream, void (*fn)(void *), void *arg)
{
    ENTER;
    return stream_call(stream, fn, arg);
}

int hipMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *stream)
{
    ENTER;
    return kind == 4 ? copy(at(dst), at(src), bytes, stream) : (int)invalid;
}

int hipMemsetD32Async(void *addr, int word, size_t words, void *stream)
{
    ENTER;
    return fill(at(addr), (uint32_t)word, words, stream);
}

int hipEventCreateWithFlags(void **event, unsigned flags)
{
    ENTER;
    return event_create(event, !(flags & 2));
}

int hipEventDestroy(void *event)
{
    return event_destroy(event);
}

int hipEventRecord(void *event, void *stream)
{
    ENTER;
    return event_record(event, stream);
}

int hipEventQuery(void *event)
{
    return event_query(event);
}

int hipEventElapsedTime(float *ms, void *from, void *to)
{
    return event_elapsed(ms, from, to);
}

int hipModuleLoadData(void **module, const void *image)
{
    ENTER;
    return module_load(module, image);
}

int hipModuleUnload(void *module)
{
    return module_unload(module);
}

int hipModuleGetFunction(void **kernel, void *module, const char *name)
{
    ENTER;
    return module_function(kernel, module, name);
}

int hipFuncGetAttribute(int *value, int attribute, void *kernel)
{
    ENTER;
    return attribute == 0   ? function_threads(kernel, value)
           : attribute == 1 ? function_static(kernel, value)
                            : (int)invalid;
}

int hipModuleLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared_bytes, void *stream, void **args, void **extra)
{
    ENTER;
    const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return extra ? (int)invalid : launch_kernel(kernel, grid, block, shared_bytes, stream, args);
}

int hipDeviceCanAccessPeer(int *can, int from, int to)
{
    ENTER;
    return can_peer(can, from, to);
}

int hipDeviceEnablePeerAccess(int to, unsigned flags)
{
    ENTER;
    return flags ? (int)invalid : enable_peer(card_at(to));
}

int hipStreamBeginCapture(void *stream, int mode)
{
    ENTER;
    return mode == 2 ? capture_begin(stream) : (int)invalid;
}

int hipStreamEndCapture(void *stream, void **graph)
{
    ENTER;
    return capture_end(stream, graph);
}

int hipGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    ENTER;
    return flags ? (int)invalid : graph_instantiate(exec, graph);
}

int hipGraphDestroy(void *graph)
{
    return graph_destroy(graph);
}

int hipGraphExecDestroy(void *exec)
{
    return graph_exec_destroy(exec);
}

int hipGraphLaunch(void *exec, void *stream)
{
    ENTER;
    return graph_launch(exec, stream);
}
