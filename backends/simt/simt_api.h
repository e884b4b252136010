/* SPDX-License-Identifier: MIT */
/* simt_api.h — what is asked of a driver for CUDA or HIP, as one table.
 *
 * Purpose   backends/simt is written once against it; cuda/cuda_api.c and hip/hip_api.c fill it from libraries that are
 *           looked for when the program runs. No vendor's header is needed to build. Entries are adapters of ours: a
 *           function of theirs is never called through a type that is not its own.
 * Ownership a driver owns its library handle; whoever loads it unloads it.
 * Units     bytes; versions as the vendor counts them.
 * Errors    entries return the vendor's code, 0: no error. The codes named here are the same for both. load:
 *           BL_EUNAVAILABLE where there is none or no card, with the reason: not an error.
 * Threads   any; all but use, card and what asks about the driver need a card made current in the calling thread.
 */
#ifndef BL_SIMT_API_H
#define BL_SIMT_API_H

#include "simt_ops.h"
#include "status.h"

enum {
    BL_SIMT_NO_MEMORY = 2,
    BL_SIMT_NO_DEVICE = 100,
    BL_SIMT_BAD_IMAGE = 200,
    BL_SIMT_NO_IMAGE = 209,           /* none for this architecture in what was loaded */
    BL_SIMT_NEWER_CODE = 222,         /* than the driver understands */
    BL_SIMT_NOT_FOUND = 500,
    BL_SIMT_NOT_READY = 600,
    BL_SIMT_PEER_IS_ON = 704,
    BL_SIMT_IS_REGISTERED = 712,
    BL_SIMT_NOT_SUPPORTED = 801
};

/* What a card is; asked for without opening it. */
struct bl_simt_card {
    char name[64];
    char pci[16];                     /* "0000:01:00.0"; empty: not known */
    char arch[16];                    /* "sm_86", "gfx1100" */
    struct bl_simt_limits limits;
    int handle;                       /* the vendor's number for it */
    uint64_t mem_bytes;
    bool integrated;                  /* its memory is the host's */
    bool wait_value;                  /* a stream can wait for a number in the host's memory */
};

enum {
    BL_SIMT_HOST_FOR_ALL_CARDS = 1 | 2, /* portable, mapped */
    BL_SIMT_STREAM_NON_BLOCKING = 1,
    BL_SIMT_EVENT_NO_TIMES = 2
};

/* Entries, their parameters, and what is called with which arguments: alike for both vendors but for its name. */
#define BL_SIMT_ALIKE(X)                                                                                               \
    X(device_count, (BL_SIMT_SELF, int *n), (n), cuDeviceGetCount, hipGetDeviceCount)                                  \
    X(driver_version, (BL_SIMT_SELF, int *version), (version), cuDriverGetVersion, hipRuntimeGetVersion)               \
    X(mem_info, (BL_SIMT_SELF, size_t *free_bytes, size_t *all_bytes), (free_bytes, all_bytes),                        \
      cuMemGetInfo_v2, hipMemGetInfo)                                                                                  \
    X(host_alloc, (BL_SIMT_SELF, void **host, size_t bytes), (host, bytes, BL_SIMT_HOST_FOR_ALL_CARDS),                \
      cuMemHostAlloc, hipHostMalloc)                                                                                   \
    X(host_free, (BL_SIMT_SELF, void *host), (host), cuMemFreeHost, hipHostFree)                                       \
    X(host_register, (BL_SIMT_SELF, void *host, size_t bytes), (host, bytes, BL_SIMT_HOST_FOR_ALL_CARDS),              \
      cuMemHostRegister_v2, hipHostRegister)                                                                           \
    X(host_unregister, (BL_SIMT_SELF, void *host), (host), cuMemHostUnregister, hipHostUnregister)                     \
    X(stream_create, (BL_SIMT_SELF, void **stream), (stream, BL_SIMT_STREAM_NON_BLOCKING),                             \
      cuStreamCreate, hipStreamCreateWithFlags)                                                                        \
    X(stream_destroy, (BL_SIMT_SELF, void *stream), (stream), cuStreamDestroy_v2, hipStreamDestroy)                    \
    X(stream_query, (BL_SIMT_SELF, void *stream), (stream), cuStreamQuery, hipStreamQuery)                             \
    X(stream_wait_event, (BL_SIMT_SELF, void *stream, void *event), (stream, event, 0),                                \
      cuStreamWaitEvent, hipStreamWaitEvent)                                                                           \
    X(stream_call, (BL_SIMT_SELF, void *stream, void (*fn)(void *), void *arg), (stream, fn, arg),                     \
      cuLaunchHostFunc, hipLaunchHostFunc)                                                                             \
    X(event_create, (BL_SIMT_SELF, void **event, bool timed), (event, timed ? 0 : BL_SIMT_EVENT_NO_TIMES),             \
      cuEventCreate, hipEventCreateWithFlags)                                                                          \
    X(event_destroy, (BL_SIMT_SELF, void *event), (event), cuEventDestroy_v2, hipEventDestroy)                         \
    X(event_record, (BL_SIMT_SELF, void *event, void *stream), (event, stream), cuEventRecord, hipEventRecord)         \
    X(event_query, (BL_SIMT_SELF, void *event), (event), cuEventQuery, hipEventQuery)                                  \
    X(event_elapsed, (BL_SIMT_SELF, float *ms, void *from, void *to), (ms, from, to),                                  \
      cuEventElapsedTime, hipEventElapsedTime)                                                                         \
    X(module_load, (BL_SIMT_SELF, void **module, const void *image), (module, image),                                  \
      cuModuleLoadData, hipModuleLoadData)                                                                             \
    X(module_unload, (BL_SIMT_SELF, void *module), (module), cuModuleUnload, hipModuleUnload)                          \
    X(module_kernel, (BL_SIMT_SELF, void **kernel, void *module, const char *name), (kernel, module, name),            \
      cuModuleGetFunction, hipModuleGetFunction)                                                                       \
    X(launch,                                                                                                          \
      (BL_SIMT_SELF, void *kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, void *stream,\
       void **args),                                                                                                   \
      (kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, stream, args, NULL),             \
      cuLaunchKernel, hipModuleLaunchKernel)                                                                           \
    X(capture_end, (BL_SIMT_SELF, void *stream, void **graph), (stream, graph),                                        \
      cuStreamEndCapture, hipStreamEndCapture)                                                                         \
    X(graph_make, (BL_SIMT_SELF, void **exec, void *graph), (exec, graph, 0),                                          \
      cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)                                                       \
    X(graph_forget, (BL_SIMT_SELF, void *graph), (graph), cuGraphDestroy, hipGraphDestroy)                             \
    X(graph_free, (BL_SIMT_SELF, void *exec), (exec), cuGraphExecDestroy, hipGraphExecDestroy)                         \
    X(graph_launch, (BL_SIMT_SELF, void *exec, void *stream), (exec, stream), cuGraphLaunch, hipGraphLaunch)           \
    X(peer_can, (BL_SIMT_SELF, int *can, int from, int to), (can, from, to),                                           \
      cuDeviceCanAccessPeer, hipDeviceCanAccessPeer)
/* What each does in its own way. */
#define BL_SIMT_OWN(X)                                                                                                 \
    X(card, (BL_SIMT_SELF, int ordinal, struct bl_simt_card *out))                                                     \
    X(open_card, (BL_SIMT_SELF, int handle, void **context))                                                           \
    X(close_card, (BL_SIMT_SELF, int handle, void *context))                                                           \
    X(use, (BL_SIMT_SELF, int handle, void *context))                                                                  \
    X(mem_alloc, (BL_SIMT_SELF, uint64_t *addr, size_t bytes))                                                         \
    X(mem_free, (BL_SIMT_SELF, uint64_t addr))                                                                         \
    X(host_addr, (BL_SIMT_SELF, uint64_t *addr, void *host))                                                           \
    X(stream_wait_value, (BL_SIMT_SELF, void *stream, uint64_t addr, uint64_t at_least))                               \
    X(copy, (BL_SIMT_SELF, uint64_t dst, uint64_t src, size_t bytes, void *stream))                                    \
    X(fill, (BL_SIMT_SELF, uint64_t addr, uint32_t word, size_t words, void *stream))                                  \
    X(kernel_limits, (BL_SIMT_SELF, void *kernel, int *max_threads, int *static_bytes))                                \
    X(kernel_dynamic, (BL_SIMT_SELF, void *kernel, int bytes))                                                         \
    X(capture_begin, (BL_SIMT_SELF, void *stream))                                                                     \
    X(peer_enable, (BL_SIMT_SELF, int to, void *to_context))

struct bl_simt_driver;
#define BL_SIMT_SELF const struct bl_simt_driver *self
struct bl_simt_fns {
#define X(name, params, ...) int (*name) params;
    BL_SIMT_ALIKE(X)
#undef X
#define X(name, params) int (*name) params;
    BL_SIMT_OWN(X)
#undef X
    void (*error_text)(BL_SIMT_SELF, int code, char *out, size_t cap);
};
/* Vendors' own begin with it. */
struct bl_simt_driver {
    const struct bl_simt_fns *fns;
    void *library;
};

/* Code for one architecture, or for several in the vendor's own wrapping. */
struct bl_simt_image {
    const char *unit;                 /* of kernels.def */
    const char *arch;                 /* "gfx1100"; NULL: the driver chooses within */
    const unsigned char *bytes;
};
/* What this build has; made by shaders/simt/kernels.cmake. */
struct bl_simt_images {
    const char *archs;                /* for people; "": none */
    uint32_t built_with;              /* version of the vendor's compiler, as its drivers count; 0: does not matter */
    const struct bl_simt_image *image;/* ends with unit NULL */
};
extern const struct bl_simt_images bl_cuda_images, bl_hip_images;
/* What differs between the two besides the functions. */
struct bl_simt_vendor {
    const char *name;                 /* "cuda": of devices, too */
    const char *option;               /* of the build, that names architectures */
    const char *folder_variable;      /* of the environment: names a folder with other kernels */
    const char *suffix;               /* of files there: unit + suffix, of HIP unit + "." + arch + suffix */
    bool by_arch;                     /* images are for one architecture each */
    const struct bl_simt_images *images;
    enum bl_status (*load)(struct bl_simt_driver **out);
    void (*unload)(struct bl_simt_driver *);
};

/* Opens the library that the variable of the environment names, otherwise the first of names (NULL-terminated) that is
 * there. It stays in memory: drivers are not made to be loaded again and again. */
enum bl_status bl_simt_library(const char *vendor, const char *variable, const char *const names[], void **out);
/* Of the library, into a function pointer of `bytes` bytes, which becomes NULL without it. */
bool bl_simt_symbol(void *library, const char *name, void *out, size_t bytes);
/* BL_OK, or BL_ENOMEM, BL_EDEVICE with a line: who, what, the driver's answer. */
enum bl_status bl_simt_check(const struct bl_simt_driver *, int code, const char *who, const char *what);

#endif
