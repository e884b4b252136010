/* SPDX-License-Identifier: MIT */
/* The table of backends/simt, filled from libcuda. */
#include "cuda.h"

#include "cuda_symbols.h"
#include "mem.h"
#include "simt/simt.h"

#include <stdio.h>
#include <stdlib.h>

struct cuda {
    struct bl_simt_driver base; /* first */
#define X(name, params) int(*name) params;
    CUDA_SYMBOLS(X)
    CUDA_OPTIONAL(X)
#undef X
};

enum {
    ATTR_MAX_THREADS = 1,
    ATTR_MAX_GRID_X = 5,
    ATTR_SHARED = 8,
    ATTR_WARP = 10,
    ATTR_UNITS = 16,
    ATTR_INTEGRATED = 18,
    ATTR_PCI_BUS = 33,
    ATTR_PCI_DEVICE = 34,
    ATTR_PCI_DOMAIN = 50,
    ATTR_MAJOR = 75,
    ATTR_MINOR = 76,
    ATTR_SHARED_OPTIN = 97,
    FUNC_MAX_THREADS = 0,
    FUNC_STATIC_SHARED = 1,
    FUNC_DYNAMIC_SHARED = 8,
    CAPTURE_RELAXED = 2,
    USUAL_SHARED = 48 << 10
};

static const struct cuda *of(const struct bl_simt_driver *self)
{
    return (const struct cuda *)self;
}

#define X(name, params, args, cuda, hip)                                                           \
    static int name params                                                                         \
    {                                                                                              \
        return of(self)->cuda args;                                                                \
    }
BL_SIMT_ALIKE(X)
#undef X

/* ---- the driver and its cards ---- */

static void error_text(const struct bl_simt_driver *self, int code, char *out, size_t cap)
{
    const char *text = NULL;

    if (!of(self)->cuGetErrorString(code, &text) && text)
        snprintf(out, cap, "%s", text);
}

/* Attributes in the order of `want`, until one cannot be had. */
static int ask(const struct cuda *c, int device, const int want[], int *const out[], unsigned n)
{
    int code = 0;

    for (unsigned i = 0; i < n && !code; i++)
        code = c->cuDeviceGetAttribute(out[i], want[i], device);
    return code;
}

static int card_limits(const struct cuda *c, int device, struct bl_simt_card *out)
{
    int threads, x, y, z, shared, most, warp, units, major, minor;
    const int want[] = {ATTR_MAX_THREADS,    ATTR_MAX_GRID_X, ATTR_MAX_GRID_X + 1,
                        ATTR_MAX_GRID_X + 2, ATTR_SHARED,     ATTR_WARP,
                        ATTR_UNITS,          ATTR_MAJOR,      ATTR_MINOR};
    int *const got[] = {&threads, &x, &y, &z, &shared, &warp, &units, &major, &minor};
    const int code = ask(c, device, want, got, BL_COUNT(want));

    if (code)
        return code;
    if (c->cuDeviceGetAttribute(&most, ATTR_SHARED_OPTIN, device) || most < shared)
        most = shared;
    snprintf(out->arch, sizeof out->arch, "sm_%d", 10 * major + minor);
    out->limits = (struct bl_simt_limits){.vendor = BL_SIMT_CUDA,
                                          .warp = (uint8_t)warp,
                                          .arch = (uint32_t)(10 * major + minor),
                                          .units = (uint32_t)units,
                                          .max_threads = (uint32_t)threads,
                                          .shared_bytes = (uint32_t)most,
                                          .max_grid = {(uint32_t)x, (uint32_t)y, (uint32_t)z}};
    return 0;
}

static int card(const struct bl_simt_driver *self, int ordinal, struct bl_simt_card *out)
{
    const struct cuda *c = of(self);
    int device, code, domain = 0, bus = 0, slot = 0, integrated = 0;
    const int want[] = {ATTR_PCI_DOMAIN, ATTR_PCI_BUS, ATTR_PCI_DEVICE, ATTR_INTEGRATED};
    int *const got[] = {&domain, &bus, &slot, &integrated};
    size_t bytes = 0;

    *out = (struct bl_simt_card){.wait_value = c->cuStreamWaitValue32_v2 != NULL};
    if ((code = c->cuDeviceGet(&device, ordinal)) ||
        (code = c->cuDeviceGetName(out->name, sizeof out->name, device)) ||
        (code = c->cuDeviceTotalMem_v2(&bytes, device)) || (code = card_limits(c, device, out)))
        return code;
    out->handle = device;
    out->name[sizeof out->name - 1] = 0;
    out->mem_bytes = bytes;
    if (!ask(c, device, want, got, BL_COUNT(want)))
        snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", (unsigned)domain & 0xffff,
                 (unsigned)bus & 0xff, (unsigned)slot & 0xff);
    out->integrated = integrated != 0;
    return 0;
}

static int open_card(const struct bl_simt_driver *self, int handle, void **context)
{
    return of(self)->cuDevicePrimaryCtxRetain(context, handle);
}

static int close_card(const struct bl_simt_driver *self, int handle, void *context)
{
    (void)context;
    return of(self)->cuDevicePrimaryCtxRelease_v2(handle);
}

static int use(const struct bl_simt_driver *self, int handle, void *context)
{
    (void)handle;
    return of(self)->cuCtxSetCurrent(context);
}

/* ---- memory ---- */

static int mem_alloc(const struct bl_simt_driver *self, uint64_t *addr, size_t bytes)
{
    unsigned long long at = 0;
    const int code = of(self)->cuMemAlloc_v2(&at, bytes);

    *addr = at;
    return code;
}

static int mem_free(const struct bl_simt_driver *self, uint64_t addr)
{
    return of(self)->cuMemFree_v2(addr);
}

static int host_addr(const struct bl_simt_driver *self, uint64_t *addr, void *host)
{
    unsigned long long at = 0;
    const int code = of(self)->cuMemHostGetDevicePointer_v2(&at, host, 0);

    *addr = at;
    return code;
}

/* ---- streams and events ---- */

/* The lower half: whether it has come so far is told by the sign of the difference. */
static int stream_wait_value(const struct bl_simt_driver *self, void *stream, uint64_t addr,
                             uint64_t at_least)
{
    return of(self)->cuStreamWaitValue32_v2(stream, addr, (uint32_t)at_least, 0);
}

static int copy(const struct bl_simt_driver *self, uint64_t dst, uint64_t src, size_t bytes,
                void *stream)
{
    return of(self)->cuMemcpyAsync(dst, src, bytes, stream);
}

static int fill(const struct bl_simt_driver *self, uint64_t addr, uint32_t word, size_t words,
                void *stream)
{
    return of(self)->cuMemsetD32Async(addr, word, words, stream);
}

/* ---- kernels and graphs ---- */

static int kernel_limits(const struct bl_simt_driver *self, void *kernel, int *max_threads,
                         int *static_bytes)
{
    const int code = of(self)->cuFuncGetAttribute(max_threads, FUNC_MAX_THREADS, kernel);
    return code ? code : of(self)->cuFuncGetAttribute(static_bytes, FUNC_STATIC_SHARED, kernel);
}

/* A block that has more than is usual, what the kernel declares included, is asked for once. */
static int kernel_dynamic(const struct bl_simt_driver *self, void *kernel, int bytes)
{
    const struct cuda *c = of(self);
    int fixed = 0, now = 0, code = c->cuFuncGetAttribute(&fixed, FUNC_STATIC_SHARED, kernel);

    if (code || bytes + fixed <= USUAL_SHARED)
        return code;
    code = c->cuFuncGetAttribute(&now, FUNC_DYNAMIC_SHARED, kernel);
    return code || bytes <= now ? code : c->cuFuncSetAttribute(kernel, FUNC_DYNAMIC_SHARED, bytes);
}

static int capture_begin(const struct bl_simt_driver *self, void *stream)
{
    const struct cuda *c = of(self);
    const bool all = c->cuStreamBeginCapture_v2 && c->cuStreamEndCapture &&
                     c->cuGraphInstantiateWithFlags && c->cuGraphDestroy && c->cuGraphExecDestroy &&
                     c->cuGraphLaunch;

    return all ? c->cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED) : BL_SIMT_NOT_SUPPORTED;
}

/* ---- peers ---- */

static int peer_enable(const struct bl_simt_driver *self, int to, void *to_context)
{
    (void)to;
    return of(self)->cuCtxEnablePeerAccess(to_context, 0);
}

/* ---- loading ---- */

static const struct bl_simt_fns fns = {
#define X(name, ...) .name = name,
    BL_SIMT_ALIKE(X) BL_SIMT_OWN(X)
#undef X
        .error_text = error_text,
};

static enum bl_status take_symbols(struct cuda *c)
{
    const char *missing = NULL;

#define X(name, params)                                                                            \
    if (!bl_simt_symbol(c->base.library, #name, &c->name, sizeof c->name))                         \
        missing = #name;
    CUDA_SYMBOLS(X)
#undef X
#define X(name, params) (void)bl_simt_symbol(c->base.library, #name, &c->name, sizeof c->name);
    CUDA_OPTIONAL(X)
#undef X
    return missing ? bl_fail(BL_EDEVICE, "cuda: the driver lacks %s", missing) : BL_OK;
}

/* No card is nothing to speak of; everything else is. */
static enum bl_status start(struct cuda *c)
{
    enum { ONLY_TO_LINK = 34 }; /* the toolkit's library to link with, which is no driver */
    const int code = c->cuInit(0);

    if (code == BL_SIMT_NO_DEVICE || code == ONLY_TO_LINK)
        return bl_fail(BL_EUNAVAILABLE, "cuda: a driver without cards");
    return bl_simt_check(&c->base, code, "cuda", "the driver does not start");
}

static void unload(struct bl_simt_driver *d)
{
    free(d);
}

static enum bl_status load(struct bl_simt_driver **out)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    struct cuda *c = bl_calloc(1, sizeof *c);
    enum bl_status st;

    if (!c)
        return bl_fail(BL_ENOMEM, "cuda: out of memory");
    c->base.fns = &fns;
    st = bl_simt_library("cuda", "BALLAST_CUDA_LIBRARY", names, &c->base.library);
    if (!st && !(st = take_symbols(c)))
        st = start(c);
    if (st) {
        unload(&c->base);
        return st;
    }
    *out = &c->base;
    return BL_OK;
}

/* ---- backend ---- */

static const struct bl_simt_vendor vendor = {.name = "cuda",
                                             .option = "BALLAST_CUDA_ARCHS",
                                             .folder_variable = "BALLAST_CUDA_KERNELS",
                                             .suffix = ".fatbin",
                                             .images = &bl_cuda_images,
                                             .load = load,
                                             .unload = unload};

static enum bl_status cuda_count(uint32_t *n)
{
    return bl_simt_count(&vendor, n);
}

static enum bl_status cuda_caps(uint32_t index, const struct bl_device_config *c,
                                struct bl_caps *out)
{
    (void)index;
    return bl_simt_caps(c, out);
}

static enum bl_status cuda_open(uint32_t index, const struct bl_device_config *c,
                                struct bl_device **out)
{
    return bl_simt_open(&vendor, index, c, out);
}

static enum bl_status cuda_facts(uint32_t index, struct bl_device_facts *out)
{
    return bl_simt_facts(&vendor, index, out);
}

static bool cuda_reach(uint32_t index, uint32_t other)
{
    return bl_simt_reach(&vendor, index, other);
}

const struct bl_backend bl_cuda_backend = {
    .name = "cuda",
    .count = cuda_count,
    .caps = cuda_caps,
    .open = cuda_open,
    .facts = cuda_facts,
    .reach = cuda_reach,
    .supports = bl_simt_supports,
    .scratch_bytes = bl_simt_scratch_bytes,
};
