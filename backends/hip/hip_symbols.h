/* SPDX-License-Identifier: MIT */
/* hip_symbols.h — the functions of the HIP runtime that are used, with their parameters; private to backends/hip and to tests.
 *
 * Purpose   one list for who calls them and for who stands in for them in tests. All return the vendor's code as an int
 *           where nothing else is said. Device addresses are pointers here.
 * Ownership none.
 * Units     bytes.
 * Errors    none: names only.
 * Threads   none.
 */
#ifndef BL_HIP_SYMBOLS_H
#define BL_HIP_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#define HIP_SYMBOLS(X)                                                                                                 \
    X(hipInit, (unsigned flags))                                                                                       \
    X(hipRuntimeGetVersion, (int *version))                                                                            \
    X(hipGetDeviceCount, (int *n))                                                                                     \
    X(hipDeviceGetName, (char *name, int cap, int device))                                                             \
    X(hipDeviceTotalMem, (size_t * bytes, int device))                                                                 \
    X(hipDeviceGetAttribute, (int *value, int attribute, int device))                                                  \
    X(hipDeviceGetPCIBusId, (char *out, int cap, int device))                                                          \
    X(hipSetDevice, (int device))                                                                                      \
    X(hipMemGetInfo, (size_t * free_bytes, size_t * all_bytes))                                                        \
    X(hipMalloc, (void **addr, size_t bytes))                                                                          \
    X(hipFree, (void *addr))                                                                                           \
    X(hipHostMalloc, (void **host, size_t bytes, unsigned flags))                                                      \
    X(hipHostFree, (void *host))                                                                                       \
    X(hipHostGetDevicePointer, (void **addr, void *host, unsigned flags))                                              \
    X(hipHostRegister, (void *host, size_t bytes, unsigned flags))                                                     \
    X(hipHostUnregister, (void *host))                                                                                 \
    X(hipStreamCreateWithFlags, (void **stream, unsigned flags))                                                       \
    X(hipStreamDestroy, (void *stream))                                                                                \
    X(hipStreamQuery, (void *stream))                                                                                  \
    X(hipStreamWaitEvent, (void *stream, void *event, unsigned flags))                                                 \
    X(hipLaunchHostFunc, (void *stream, void (*fn)(void *), void *arg))                                                \
    X(hipMemcpyAsync, (void *dst, const void *src, size_t bytes, int kind, void *stream))                              \
    X(hipMemsetD32Async, (void *addr, int word, size_t words, void *stream))                                           \
    X(hipEventCreateWithFlags, (void **event, unsigned flags))                                                         \
    X(hipEventDestroy, (void *event))                                                                                  \
    X(hipEventRecord, (void *event, void *stream))                                                                     \
    X(hipEventQuery, (void *event))                                                                                    \
    X(hipEventElapsedTime, (float *ms, void *from, void *to))                                                          \
    X(hipModuleLoadData, (void **module, const void *image))                                                           \
    X(hipModuleUnload, (void *module))                                                                                 \
    X(hipModuleGetFunction, (void **kernel, void *module, const char *name))                                           \
    X(hipFuncGetAttribute, (int *value, int attribute, void *kernel))                                                  \
    X(hipModuleLaunchKernel,                                                                                           \
      (void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,                     \
       unsigned shared_bytes, void *stream, void **args, void **extra))                                                \
    X(hipDeviceCanAccessPeer, (int *can, int from, int to))                                                            \
    X(hipDeviceEnablePeerAccess, (int to, unsigned flags))

/* What releases may lack that do the rest. */
#define HIP_OPTIONAL(X)                                                                                                \
    X(hipGetDevicePropertiesR0600, (void *properties, int device))                                                     \
    X(hipGetDeviceProperties, (void *properties, int device))                                                          \
    X(hipStreamWaitValue64,                                                                                            \
      (void *stream, void *addr, uint64_t value, unsigned flags, uint64_t mask))                                       \
    X(hipStreamBeginCapture, (void *stream, int mode))                                                                 \
    X(hipStreamEndCapture, (void *stream, void **graph))                                                               \
    X(hipGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))                              \
    X(hipGraphDestroy, (void *graph))                                                                                  \
    X(hipGraphExecDestroy, (void *exec))                                                                               \
    X(hipGraphLaunch, (void *exec, void *stream))

#endif
