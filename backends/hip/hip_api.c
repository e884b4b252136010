/* SPDX-License-Identifier: MIT */
/* The table of backends/simt, filled from the HIP runtime. */
#include "hip.h"

#include "hip_symbols.h"
#include "mem.h"
#include "simt/simt.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

struct hip {
    struct bl_simt_driver base; /* first */
    const char *(*hipGetErrorString)(int code);
#define X(name, params) int(*name) params;
    HIP_SYMBOLS(X)
    HIP_OPTIONAL(X)
#undef X
};

/* Of this vendor; since release 5.0. */
enum {
    ATTR_INTEGRATED = 16,
    ATTR_MAX_GRID_X = 29,
    ATTR_MAX_THREADS = 56,
    ATTR_UNITS = 63,
    ATTR_SHARED = 74,
    ATTR_WARP = 87,
    FUNC_MAX_THREADS = 0,
    FUNC_STATIC_SHARED = 1,
    COPY_BY_ADDRESS = 4,
    WAIT_AT_LEAST = 0,
    CAPTURE_RELAXED = 2
};

static const struct hip *of(const struct bl_simt_driver *self)
{
    return (const struct hip *)self;
}

static void *pointer(uint64_t addr)
{
    return (void *)(uintptr_t)addr;
}

#define X(name, params, args, cuda, hip)                                                           \
    static int name params                                                                         \
    {                                                                                              \
        return of(self)->hip args;                                                                 \
    }
BL_SIMT_ALIKE(X)
#undef X

/* ---- the driver and its cards ---- */

static void error_text(const struct bl_simt_driver *self, int code, char *out, size_t cap)
{
    const char *text = of(self)->hipGetErrorString(code);

    if (text)
        snprintf(out, cap, "%s", text);
}

/* Attributes in the order of `want`, until one cannot be had. */
static int ask(const struct hip *c, int device, const int want[], int *const out[], unsigned n)
{
    int code = 0;

    for (unsigned i = 0; i < n && !code; i++)
        code = c->hipDeviceGetAttribute(out[i], want[i], device);
    return code;
}

/* The name of the architecture stands in a struct of properties that differs between releases: what
 * follows the card's own name there and looks like one is it, up to a colon. */
static void find_arch(const struct hip *c, int device, char *out, size_t cap)
{
    enum { MOST_BYTES = 16 << 10, NAME_BYTES = 256 };
    char *bytes = bl_calloc(1, MOST_BYTES);
    size_t n = 0;

    *out = 0;
    if (!bytes)
        return;
    if (c->hipGetDevicePropertiesR0600)
        (void)c->hipGetDevicePropertiesR0600(bytes, device);
    else if (c->hipGetDeviceProperties)
        (void)c->hipGetDeviceProperties(bytes, device);
    for (size_t i = NAME_BYTES; !n && i + 16 < MOST_BYTES; i++)
        if (!memcmp(bytes + i, "gfx", 3) && isxdigit((unsigned char)bytes[i + 3])) {
            n = strcspn(bytes + i, ":");
            snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), bytes + i);
        }
    free(bytes);
}

static int card_limits(const struct hip *c, int device, struct bl_simt_card *out)
{
    int threads, x, y, z, shared, warp, units;
    const int want[] = {ATTR_MAX_THREADS, ATTR_MAX_GRID_X, ATTR_MAX_GRID_X + 1, ATTR_MAX_GRID_X + 2,
                        ATTR_SHARED,      ATTR_WARP,       ATTR_UNITS};
    int *const got[] = {&threads, &x, &y, &z, &shared, &warp, &units};
    const int code = ask(c, device, want, got, BL_COUNT(want));

    if (code)
        return code;
    find_arch(c, device, out->arch, sizeof out->arch);
    out->limits =
        (struct bl_simt_limits){.vendor = BL_SIMT_HIP,
                                .warp = (uint8_t)warp,
                                .arch = *out->arch ? (uint32_t)strtoul(out->arch + 3, NULL, 16) : 0,
                                .units = (uint32_t)units,
                                .max_threads = (uint32_t)threads,
                                .shared_bytes = (uint32_t)shared,
                                .max_grid = {(uint32_t)x, (uint32_t)y, (uint32_t)z}};
    return 0;
}

static int card(const struct bl_simt_driver *self, int ordinal, struct bl_simt_card *out)
{
    const struct hip *c = of(self);
    int code, integrated = 0;
    size_t bytes = 0;

    *out = (struct bl_simt_card){.wait_value = c->hipStreamWaitValue64 != NULL};
    if ((code = c->hipDeviceGetName(out->name, sizeof out->name, ordinal)) ||
        (code = c->hipDeviceTotalMem(&bytes, ordinal)) || (code = card_limits(c, ordinal, out)))
        return code;
    out->handle = ordinal;
    out->name[sizeof out->name - 1] = 0;
    out->mem_bytes = bytes;
    if (c->hipDeviceGetPCIBusId(out->pci, sizeof out->pci, ordinal))
        out->pci[0] = 0;
    for (char *p = out->pci; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    if (!c->hipDeviceGetAttribute(&integrated, ATTR_INTEGRATED, ordinal))
        out->integrated = integrated != 0;
    return 0;
}

static int open_card(const struct bl_simt_driver *self, int handle, void **context)
{
    *context = NULL;
    return of(self)->hipSetDevice(handle);
}

static int close_card(const struct bl_simt_driver *self, int handle, void *context)
{
    (void)self, (void)handle, (void)context;
    return 0;
}

static int use(const struct bl_simt_driver *self, int handle, void *context)
{
    (void)context;
    return of(self)->hipSetDevice(handle);
}

/* ---- memory ---- */

static int mem_alloc(const struct bl_simt_driver *self, uint64_t *addr, size_t bytes)
{
    void *at = NULL;
    const int code = of(self)->hipMalloc(&at, bytes);

    *addr = (uintptr_t)at;
    return code;
}

static int mem_free(const struct bl_simt_driver *self, uint64_t addr)
{
    return of(self)->hipFree(pointer(addr));
}

static int host_addr(const struct bl_simt_driver *self, uint64_t *addr, void *host)
{
    void *at = NULL;
    const int code = of(self)->hipHostGetDevicePointer(&at, host, 0);

    *addr = (uintptr_t)at;
    return code;
}

/* ---- streams and events ---- */

static int stream_wait_value(const struct bl_simt_driver *self, void *stream, uint64_t addr,
                             uint64_t at_least)
{
    return of(self)->hipStreamWaitValue64(stream, pointer(addr), at_least, WAIT_AT_LEAST,
                                          UINT64_MAX);
}

static int copy(const struct bl_simt_driver *self, uint64_t dst, uint64_t src, size_t bytes,
                void *stream)
{
    return of(self)->hipMemcpyAsync(pointer(dst), pointer(src), bytes, COPY_BY_ADDRESS, stream);
}

static int fill(const struct bl_simt_driver *self, uint64_t addr, uint32_t word, size_t words,
                void *stream)
{
    return of(self)->hipMemsetD32Async(pointer(addr), (int)word, words, stream);
}

/* ---- kernels and graphs ---- */

static int kernel_limits(const struct bl_simt_driver *self, void *kernel, int *max_threads,
                         int *static_bytes)
{
    const int code = of(self)->hipFuncGetAttribute(max_threads, FUNC_MAX_THREADS, kernel);
    return code ? code : of(self)->hipFuncGetAttribute(static_bytes, FUNC_STATIC_SHARED, kernel);
}

static int kernel_dynamic(const struct bl_simt_driver *self, void *kernel, int bytes)
{
    (void)self, (void)kernel, (void)bytes;
    return 0; /* may always be all there is */
}

static int capture_begin(const struct bl_simt_driver *self, void *stream)
{
    const struct hip *c = of(self);
    const bool all = c->hipStreamBeginCapture && c->hipStreamEndCapture &&
                     c->hipGraphInstantiateWithFlags && c->hipGraphDestroy &&
                     c->hipGraphExecDestroy && c->hipGraphLaunch;

    return all ? c->hipStreamBeginCapture(stream, CAPTURE_RELAXED) : BL_SIMT_NOT_SUPPORTED;
}

/* ---- peers ---- */

static int peer_enable(const struct bl_simt_driver *self, int to, void *to_context)
{
    (void)to_context;
    return of(self)->hipDeviceEnablePeerAccess(to, 0);
}

/* ---- loading ---- */

static const struct bl_simt_fns fns = {
#define X(name, ...) .name = name,
    BL_SIMT_ALIKE(X) BL_SIMT_OWN(X)
#undef X
        .error_text = error_text,
};

static enum bl_status take_symbols(struct hip *c)
{
    const char *missing = NULL;

#define X(name, params)                                                                            \
    if (!bl_simt_symbol(c->base.library, #name, &c->name, sizeof c->name))                         \
        missing = #name;
    HIP_SYMBOLS(X)
#undef X
#define X(name, params) (void)bl_simt_symbol(c->base.library, #name, &c->name, sizeof c->name);
    HIP_OPTIONAL(X)
#undef X
    if (!bl_simt_symbol(c->base.library, "hipGetErrorString", &c->hipGetErrorString,
                        sizeof c->hipGetErrorString))
        missing = "hipGetErrorString";
    return missing ? bl_fail(BL_EDEVICE, "hip: the runtime lacks %s", missing) : BL_OK;
}

/* No card is nothing to speak of; everything else is. */
static enum bl_status start(struct hip *c)
{
    enum {
        NO_CARD_EITHER = 101
    }; /* what it says where the kernel's part of the driver is missing */
    const int code = c->hipInit(0);

    if (code == BL_SIMT_NO_DEVICE || code == NO_CARD_EITHER)
        return bl_fail(BL_EUNAVAILABLE, "hip: a runtime without cards");
    return bl_simt_check(&c->base, code, "hip", "the runtime does not start");
}

static void unload(struct bl_simt_driver *d)
{
    free(d);
}

static enum bl_status load(struct bl_simt_driver **out)
{
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so", NULL};
    struct hip *c = bl_calloc(1, sizeof *c);
    enum bl_status st;

    if (!c)
        return bl_fail(BL_ENOMEM, "hip: out of memory");
    c->base.fns = &fns;
    st = bl_simt_library("hip", "BALLAST_HIP_LIBRARY", names, &c->base.library);
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

static const struct bl_simt_vendor vendor = {.name = "hip",
                                             .option = "BALLAST_HIP_ARCHS",
                                             .folder_variable = "BALLAST_HIP_KERNELS",
                                             .suffix = ".co",
                                             .by_arch = true,
                                             .images = &bl_hip_images,
                                             .load = load,
                                             .unload = unload};

static enum bl_status hip_count(uint32_t *n)
{
    return bl_simt_count(&vendor, n);
}

static enum bl_status hip_caps(uint32_t index, const struct bl_device_config *c,
                               struct bl_caps *out)
{
    (void)index;
    return bl_simt_caps(c, out);
}

static enum bl_status hip_open(uint32_t index, const struct bl_device_config *c,
                               struct bl_device **out)
{
    return bl_simt_open(&vendor, index, c, out);
}

static enum bl_status hip_facts(uint32_t index, struct bl_device_facts *out)
{
    return bl_simt_facts(&vendor, index, out);
}

static bool hip_reach(uint32_t index, uint32_t other)
{
    return bl_simt_reach(&vendor, index, other);
}

const struct bl_backend bl_hip_backend = {
    .name = "hip",
    .count = hip_count,
    .caps = hip_caps,
    .open = hip_open,
    .facts = hip_facts,
    .reach = hip_reach,
    .supports = bl_simt_supports,
    .scratch_bytes = bl_simt_scratch_bytes,
};
