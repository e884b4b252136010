/* SPDX-License-Identifier: MIT */
/* The emulated driver's face as libcuda. */
#include "emu.hpp"

#include "cuda/cuda_symbols.h"
#include "host_kernels.h"

#include <cstdio>

using namespace emu;

const int emu_face_shared_bytes = 99 << 10, emu_face_usual_shared = 48 << 10;
const char emu_face_mask[] = "CUDA_VISIBLE_DEVICES";

extern "C" {
#define X(name, params) __attribute__((visibility("default"))) int name params;
CUDA_SYMBOLS(X)
#ifndef EMU_OLD
CUDA_OPTIONAL(X)
#endif
#undef X
}

#define ENTER                                                                                                          \
    if (const int code_ = enter())                                                                                     \
    return code_
typedef unsigned long long address;

int cuInit(unsigned flags)
{
    return flags ? invalid : start();
}

int cuDriverGetVersion(int *version)
{
    return *version = driver_version(), ok;
}

int cuDeviceGetCount(int *n)
{
    ENTER;
    return *n = n_cards(), ok;
}

int cuDeviceGet(int *device, int ordinal)
{
    ENTER;
    *device = ordinal + 100; /* so that nobody takes one for the other */
    return card_at(ordinal) ? ok : bad_device;
}

int cuDeviceGetName(char *name, int cap, int device)
{
    ENTER;
    card *c = card_at(device - 100);
    if (!c)
        return bad_device;
    snprintf(name, (size_t)cap, "Emulated card %d", number_of(c));
    return ok;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    ENTER;
    card *c = card_at(device - 100);
    return c ? (*bytes = total_bytes(c), ok) : bad_device;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    ENTER;
    card *c = card_at(device - 100);
    if (!c)
        return bad_device;
    switch (attribute) {
    case 1: return *value = 1024, ok;
    case 5: return *value = 0x7fffffff, ok;
    case 6:
    case 7: return *value = 65535, ok;
    case 8: return *value = emu_face_usual_shared, ok;
    case 10: return *value = (int)bl_host_warp(), ok;
    case 16: return *value = 4, ok;
    case 18: return *value = 0, ok;
    case 33: return *value = number_of(c) + 1, ok;
    case 34:
    case 50: return *value = 0, ok;
    case 75: return *value = 8, ok;
    case 76: return *value = 6, ok;
    case 97: return *value = emu_face_shared_bytes, ok;
    default: return invalid;
    }
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    ENTER;
    card *c = card_at(device - 100);
    return c ? (*context = c, retain(c)) : bad_device;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    card *c = card_at(device - 100);
    return c ? release(c) : bad_device;
}

int cuCtxSetCurrent(void *context)
{
    set_current(static_cast<card *>(context));
    return ok;
}

int cuGetErrorString(int code, const char **text)
{
    *text = code == no_memory ? "out of memory" : code == launch_failed ? "a launch failed" : "an emulated error";
    return ok;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *all_bytes)
{
    return mem_info(free_bytes, all_bytes);
}

int cuMemAlloc_v2(address *addr, size_t bytes)
{
    ENTER;
    uint64_t at = 0;
    const int code = mem_alloc(&at, bytes);
    *addr = at;
    return code;
}

int cuMemFree_v2(address addr)
{
    return mem_free(addr);
}

int cuMemHostAlloc(void **host, size_t bytes, unsigned flags)
{
    ENTER;
    return flags == 3 ? host_alloc(host, bytes) : (int)invalid;
}

int cuMemFreeHost(void *host)
{
    return host_free(host);
}

int cuMemHostGetDevicePointer_v2(address *addr, void *host, unsigned flags)
{
    ENTER;
    *addr = (uintptr_t)host;
    return flags ? (int)invalid : host_address(host);
}

int cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags)
{
    ENTER;
    return flags == 3 ? host_register(host, bytes) : (int)invalid;
}

int cuMemHostUnregister(void *host)
{
    return host_unregister(host);
}

int cuStreamCreate(void **stream, unsigned flags)
{
    ENTER;
    return flags == 1 ? stream_create(stream) : (int)invalid;
}

int cuStreamDestroy_v2(void *stream)
{
    return stream_destroy(stream);
}

int cuStreamQuery(void *stream)
{
    return stream_query(stream);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER;
    return flags ? (int)invalid : stream_wait_event(stream, event);
}

int cuLaunchHostFunc(void *stream, void (*fn)(void *), void *arg)
{
    ENTER;
    return stream_call(stream, fn, arg);
}

int cuMemcpyAsync(address dst, address src, size_t bytes, void *stream)
{
    ENTER;
    return copy(dst, src, bytes, stream);
}

int cuMemsetD32Async(address addr, unsigned word, size_t words, void *stream)
{
    ENTER;
    return fill(addr, word, words, stream);
}

int cuEventCreate(void **event, unsigned flags)
{
    ENTER;
    return event_create(event, !(flags & 2));
}

int cuEventDestroy_v2(void *event)
{
    return event_destroy(event);
}

int cuEventRecord(void *event, void *stream)
{
    ENTER;
    return event_record(event, stream);
}

int cuEventQuery(void *event)
{
    return event_query(event);
}

int cuEventElapsedTime(float *ms, void *from, void *to)
{
    return event_elapsed(ms, from, to);
}

int cuModuleLoadData(void **module, const void *image)
{
    ENTER;
    return module_load(module, image);
}

int cuModuleUnload(void *module)
{
    return module_unload(module);
}

int cuModuleGetFunction(void **kernel, void *module, const char *name)
{
    ENTER;
    return module_function(kernel, module, name);
}

int cuFuncGetAttribute(int *value, int attribute, void *kernel)
{
    ENTER;
    return attribute == 0   ? function_threads(kernel, value)
           : attribute == 1 ? function_static(kernel, value)
           : attribute == 8 ? function_dynamic(kernel, value)
                            : (int)invalid;
}

int cuFuncSetAttribute(void *kernel, int attribute, int value)
{
    ENTER;
    return attribute == 8 ? function_allow(kernel, value) : (int)invalid;
}

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void *stream, void **args, void **extra)
{
    ENTER;
    const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return extra ? (int)invalid : launch_kernel(kernel, grid, block, shared_bytes, stream, args);
}

int cuDeviceCanAccessPeer(int *can, int from, int to)
{
    ENTER;
    return can_peer(can, from - 100, to - 100);
}

int cuCtxEnablePeerAccess(void *context, unsigned flags)
{
    ENTER;
    return flags ? (int)invalid : enable_peer(static_cast<card *>(context));
}

#ifndef EMU_OLD
int cuStreamWaitValue32_v2(void *stream, address addr, unsigned value, unsigned flags)
{
    ENTER;
    return flags ? (int)invalid : stream_wait_value(stream, addr, value, false);
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    ENTER;
    return mode == 2 ? capture_begin(stream) : (int)invalid;
}

int cuStreamEndCapture(void *stream, void **graph)
{
    ENTER;
    return capture_end(stream, graph);
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, address flags)
{
    ENTER;
    return flags ? (int)invalid : graph_instantiate(exec, graph);
}

int cuGraphDestroy(void *graph)
{
    return graph_destroy(graph);
}

int cuGraphExecDestroy(void *exec)
{
    return graph_exec_destroy(exec);
}

int cuGraphLaunch(void *exec, void *stream)
{
    ENTER;
    return graph_launch(exec, stream);
}
#endif
