/* SPDX-License-Identifier: MIT */
/* simt.h — an open card of CUDA or HIP; private to backends/simt, but for what cuda/ and hip/ make their backends of.
 *
 * Purpose   what memory, streams and segments of one device share; the contract of core/device.h, once for both vendors.
 * Ownership a device owns its driver, modules and the stream that segments are captured on.
 * Units     bytes.
 * Errors    as the device contract.
 * Threads   as the device contract: one thread at a time per device; poll and join from any.
 */
#ifndef BL_SIMT_H
#define BL_SIMT_H

#include "simt_api.h"

enum {
    BL_SIMT_GRANULE = 2 << 20,       /* pages of cards: drivers take whole ones */
    BL_SIMT_PEERS = 16
};
struct bl_simt_peer {                /* another card of the vendor */
    int handle;
    bool tried, trusted;
};
struct bl_simt_device {
    struct bl_device base;           /* first */
    const struct bl_simt_vendor *vendor;
    struct bl_simt_driver *driver;
    const struct bl_simt_fns *fn;    /* the driver's */
    struct bl_simt_card card;
    void *context;
    bool is_open;
    void **module;                   /* by number of the unit */
    uint32_t n_modules;
    void *kernel[BL_SIMT_N_KERNELS];
    void *recorder;                  /* stream of captures */
    struct bl_simt_peer peer[BL_SIMT_PEERS];
    uint32_t n_peers;
    _Atomic bool lost;               /* does not answer: what it holds is left to it */
};
static inline struct bl_simt_device *bl_simt_of(const struct bl_device *dev)
{
    return (struct bl_simt_device *)(uintptr_t)dev;
}
/* Makes the card the calling thread's, which every call but those to the driver as a whole wants. */
enum bl_status bl_simt_use(const struct bl_simt_device *);
static inline enum bl_status bl_simt_try(const struct bl_simt_device *d, int code, const char *what)
{
    return code ? bl_simt_check(d->driver, code, d->base.name, what) : BL_OK;
}

/* ---- simt_device.c: what backends are made of ---- */

extern const struct bl_device_ops bl_simt_ops;
enum bl_status bl_simt_count(const struct bl_simt_vendor *, uint32_t *n);
enum bl_status bl_simt_caps(const struct bl_device_config *, struct bl_caps *out);
/* BL_EUNAVAILABLE without kernels for it, too: then out has its names and memory all the same. */
enum bl_status bl_simt_facts(const struct bl_simt_vendor *, uint32_t index, struct bl_device_facts *out);
enum bl_status bl_simt_open(const struct bl_simt_vendor *, uint32_t index, const struct bl_device_config *,
                            struct bl_device **out);

/* ---- simt_kernels.c ---- */

/* Modules and kernels of the card's architecture; a line naming the build option where there are none. */
enum bl_status bl_simt_kernels_load(struct bl_simt_device *);
/* BL_EUNAVAILABLE: there is neither a folder of kernels nor an image of this build for the card. It need not be open. */
enum bl_status bl_simt_kernels_exist(const struct bl_simt_device *);
void bl_simt_kernels_unload(struct bl_simt_device *);
/* The architecture, where its kernels come from, with what they multiply. */
void bl_simt_kernels_say(const struct bl_simt_device *, char *text, size_t cap);

/* ---- simt_mem.c ---- */

enum bl_status bl_simt_mem_alloc(struct bl_device *, size_t bytes, bool host_visible, struct bl_mem *out);
enum bl_status bl_simt_mem_import(struct bl_device *, void *host, size_t bytes, struct bl_mem *out);
void bl_simt_mem_free(struct bl_mem *);

/* ---- simt_peer.c ---- */

/* Whether copies may be directly with the other card's memory; tried when it is first asked. */
bool bl_simt_reaches_card(struct bl_device *, struct bl_device *other);
/* As the driver says, neither opened. */
bool bl_simt_reach(const struct bl_simt_vendor *, uint32_t index, uint32_t other);

/* ---- simt_segment.c ---- */

enum bl_status bl_simt_segment_build(struct bl_device *, const struct bl_graph *, const struct bl_bound *, uint32_t n,
                                     const struct bl_mem *scratch, const struct bl_mem *params,
                                     struct bl_segment **out);
void bl_simt_segment_free(struct bl_segment *);
/* One replay where the driver has graphs, otherwise launch by launch. */
enum bl_status bl_simt_segment_enqueue(const struct bl_segment *, void *stream);

#endif
