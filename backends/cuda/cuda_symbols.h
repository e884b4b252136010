/* SPDX-License-Identifier: MIT */
/* cuda_symbols.h — the functions of libcuda that are used, with their parameters; private to backends/cuda and to tests.
 *
 * Purpose   one list for who calls them and for who stands in for them in tests. All return the vendor's code as an int
 *           where nothing else is said. Names as the library exports them: its header hides that many end in _v2.
 * Ownership none.
 * Units     bytes.
 * Errors    none: names only.
 * Threads   none.
 */
#ifndef BL_CUDA_SYMBOLS_H
#define BL_CUDA_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#define CUDA_SYMBOLS(X)                                                                                                \
    X(cuInit, (unsigned flags))                                                                                        \
    X(cuDriverGetVersion, (int *version))                                                                              \
    X(cuDeviceGetCount, (int *n))                                                                                      \
    X(cuDeviceGet, (int *device, int ordinal))                                                                         \
    X(cuDeviceGetName, (char *name, int cap, int device))                                                              \
    X(cuDeviceTotalMem_v2, (size_t * bytes, int device))                                                               \
    X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                   \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                          \
    X(cuDevicePrimaryCtxRelease_v2, (int device))                                                                      \
    X(cuCtxSetCurrent, (void *context))                                                                                \
    X(cuGetErrorString, (int code, const char **text))                                                                 \
    X(cuMemGetInfo_v2, (size_t * free_bytes, size_t * all_bytes))                                                      \
    X(cuMemAlloc_v2, (unsigned long long *addr, size_t bytes))                                                         \
    X(cuMemFree_v2, (unsigned long long addr))                                                                         \
    X(cuMemHostAlloc, (void **host, size_t bytes, unsigned flags))                                                     \
    X(cuMemFreeHost, (void *host))                                                                                     \
    X(cuMemHostGetDevicePointer_v2, (unsigned long long *addr, void *host, unsigned flags))                            \
    X(cuMemHostRegister_v2, (void *host, size_t bytes, unsigned flags))                                                \
    X(cuMemHostUnregister, (void *host))                                                                               \
    X(cuStreamCreate, (void **stream, unsigned flags))                                                                 \
    X(cuStreamDestroy_v2, (void *stream))                                                                              \
    X(cuStreamQuery, (void *stream))                                                                                   \
    X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                                                  \
    X(cuLaunchHostFunc, (void *stream, void (*fn)(void *), void *arg))                                                 \
    X(cuMemcpyAsync, (unsigned long long dst, unsigned long long src, size_t bytes, void *stream))                     \
    X(cuMemsetD32Async, (unsigned long long addr, unsigned word, size_t words, void *stream))                          \
    X(cuEventCreate, (void **event, unsigned flags))                                                                   \
    X(cuEventDestroy_v2, (void *event))                                                                                \
    X(cuEventRecord, (void *event, void *stream))                                                                      \
    X(cuEventQuery, (void *event))                                                                                     \
    X(cuEventElapsedTime, (float *ms, void *from, void *to))                                                           \
    X(cuModuleLoadData, (void **module, const void *image))                                                            \
    X(cuModuleUnload, (void *module))                                                                                  \
    X(cuModuleGetFunction, (void **kernel, void *module, const char *name))                                            \
    X(cuFuncGetAttribute, (int *value, int attribute, void *kernel))                                                   \
    X(cuFuncSetAttribute, (void *kernel, int attribute, int value))                                                    \
    X(cuLaunchKernel,                                                                                                  \
      (void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,                     \
       unsigned shared_bytes, void *stream, void **args, void **extra))                                                \
    X(cuDeviceCanAccessPeer, (int *can, int from, int to))                                                             \
    X(cuCtxEnablePeerAccess, (void *context, unsigned flags))

/* What drivers may lack that do the rest. */
#define CUDA_OPTIONAL(X)                                                                                               \
    X(cuStreamWaitValue32_v2,                                                                                          \
      (void *stream, unsigned long long addr, unsigned value, unsigned flags))                                         \
    X(cuStreamBeginCapture_v2, (void *stream, int mode))                                                               \
    X(cuStreamEndCapture, (void *stream, void **graph))                                                                \
    X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))                               \
    X(cuGraphDestroy, (void *graph))                                                                                   \
    X(cuGraphExecDestroy, (void *exec))                                                                                \
    X(cuGraphLaunch, (void *exec, void *stream))

#endif
