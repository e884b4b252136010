/* SPDX-License-Identifier: MIT */
/* device.h — the backend contract.
 *
 * Purpose   memory, streams, copies and segments of nodes on one device; implemented by backends, used by the scheduler.
 * Ownership the caller of an open/alloc/build closes what it got; memory outlives the segments that use it.
 * Units     bytes, nanoseconds; addresses are 64-bit on every device.
 * Errors    enqueueing functions report what they can at once; a failed stream stays failed and join returns its error.
 * Threads   one thread at a time per device, different devices in parallel. poll and join from any thread.
 */
#ifndef BL_DEVICE_H
#define BL_DEVICE_H

#include "graph.h"
#include "stop.h"

#include <stdatomic.h>

struct bl_device;
struct bl_pins;
struct bl_simulated;
struct bl_stream; /* the backend's own; begins with its struct bl_device * */
struct bl_segment;

struct bl_mem {
    struct bl_device *dev;
    uint64_t addr;
    void *host;              /* NULL if the host cannot touch it */
    size_t bytes;            /* as asked */
    size_t granted_bytes;    /* what was really taken from the system; 0 for imported memory */
    void *impl;              /* backend's own */
};
struct bl_point { struct bl_stream *stream; uint32_t value; }; /* "stream reached value" */
static inline bool bl_mem_inside(const struct bl_mem *m, size_t off, size_t bytes)
{
    return off <= m->bytes && bytes <= m->bytes - off;
}

/* When a stream did a command: copy, fill, signal, wait or segment, in the order they were enqueued. */
struct bl_lapse {
    uint64_t begin_ns, end_ns;
    bool host_bound;         /* simulated, and real arithmetic took longer than what it stands for */
};
struct bl_lapse_log {         /* lent to a stream; what does not fit is not written down */
    struct bl_lapse *lapse;
    uint32_t cap;
    _Atomic uint32_t n;
};

/* One node with the addresses of its values, in the node's order; absent sources are 0. Sources of origin PARAM are 0:
 * kernels find them in the params block. A weight of EXPERTS, bias and scale too, is the address of a table of 64-bit
 * addresses, one per expert, each pointing at that expert's first row in file layout, or 0: the device does not have the
 * expert, which adds nothing then. State: address of row 0 of sequence 0. */
struct bl_bound {
    const struct bl_node *node;
    const uint64_t *src, *dst;
};

/* copy: one side belongs to the stream's device; the other does too, or is host visible, or on a device that it reaches.
 * Anything else is lowered to two copies through host memory. Host memory that a stream has copied with stays until the
 * stream is closed: drivers hold it down. */
struct bl_device_ops {
    void (*close)(struct bl_device *);
    /* memory */
    enum bl_status (*mem_alloc)(struct bl_device *, size_t bytes, bool host_visible, struct bl_mem *out);
    enum bl_status (*mem_import)(struct bl_device *, void *host, size_t bytes, struct bl_mem *out); /* may be NULL */
    void (*mem_free)(struct bl_mem *); /* zeroed is fine */
    /* streams: one producer, values count up from 1 */
    enum bl_status (*stream_open)(struct bl_device *, struct bl_stream **out);
    void (*stream_close)(struct bl_stream *);
    bool (*reaches)(struct bl_device *, struct bl_device *other); /* without the host; may be NULL: none */
    enum bl_status (*copy)(struct bl_stream *, const struct bl_mem *dst, size_t dst_off, const struct bl_mem *src,
                           size_t src_off, size_t bytes);
    enum bl_status (*fill)(struct bl_stream *, const struct bl_mem *dst, size_t off, uint32_t word, size_t bytes);
    enum bl_status (*signal)(struct bl_stream *, struct bl_point *out);
    enum bl_status (*wait)(struct bl_stream *, struct bl_point); /* may be another device's */
    bool (*poll)(struct bl_point);
    enum bl_status (*join)(struct bl_point, uint64_t timeout_ns); /* host blocks; BL_ETIMEDOUT = watchdog */
    /* compute: scratch holds scratch_bytes of its largest node, params is the device's copy of the block (args.h);
     * both, all addresses and the graph must stay valid until segment_free. */
    enum bl_status (*segment_build)(struct bl_device *, const struct bl_graph *, const struct bl_bound *, uint32_t n,
                                    const struct bl_mem *scratch, const struct bl_mem *params, struct bl_segment **out);
    enum bl_status (*segment_run)(struct bl_stream *, struct bl_segment *);
    void (*segment_free)(struct bl_segment *);
    /* Watching; each may be NULL. progress: commands enqueued so far and done so far; of a failed
     * stream those that the driver got, and once it is idle all of them. cancel: what
     * has not begun is skipped, waiting ends, and the stream has failed with BL_ECANCELLED. trace: into the log from the
     * next command on, NULL: no more; only while the stream is idle. patience: with a queue that is full, at first without
     * end; beyond it what enqueues gives BL_ETIMEDOUT, has enqueued nothing and may be asked again. */
    void (*progress)(const struct bl_stream *, uint32_t *enqueued, uint32_t *done);
    void (*cancel)(struct bl_stream *);
    void (*trace)(struct bl_stream *, struct bl_lapse_log *);
    void (*patience)(struct bl_stream *, uint64_t ns);
    /* Times of steps by kind; both may be NULL. op_time returns how many kinds there are. */
    void (*profile)(struct bl_device *, bool on, bool from_zero);
    uint32_t (*op_time)(const struct bl_device *, uint32_t i, struct bl_op_time *out);
};

/* How many tokens are arranged to meet weights in panels (backends/cpu/panel.h). */
struct bl_tile_caps {
    uint16_t part_bytes;     /* per token and 256 columns */
    uint8_t from;            /* least tokens, 0: never */
    uint8_t same_as;         /* first type whose tiles are the same */
};

enum bl_copies_from {
    BL_COPIES_FROM_ALL,      /* of the host, mapped files too */
    BL_COPIES_FROM_BLOCKS    /* blocks of the host's devices, which a driver can pin; not mapped files */
};

/* Limits and layout choices: plain data, stored in machine files, so that a plan needs no device. */
struct bl_caps {
    uint32_t granule_bytes;  /* allocations are rounded up to this */
    uint32_t threads;        /* cpu: workers, the most of any step; sizes per-thread scratch */
    uint32_t exact;          /* cpu: float weights and activations */
    struct bl_tile_caps tiles[BL_N_DTYPES]; /* cpu: of activations that meet weights of the type */
    uint32_t import_host;    /* weights can be used where the file is mapped */
    uint32_t copies_from;    /* enum bl_copies_from: what of the host copies can take at the full speed of the link */
    uint64_t block_bytes;    /* the largest allocation; 0: any */
    uint32_t visible_on_host;/* of its blocks those that the host sees are memory of the host */
};
struct bl_device {
    const struct bl_device_ops *ops;
    char name[16];           /* "cpu0" */
    bool unified;            /* its memory is the host's: weights are read to where they stay */
    uint64_t nodes;          /* cpu: memory nodes that its blocks are put on, a bit each; 0: any */
    uint16_t number;         /* in the machine, as it was configured */
    struct bl_caps caps;
    const struct bl_stop *stop; /* what computes here ends early when this says so; NULL: never */
    struct bl_pins *pins;    /* the host: what drivers hold down of its blocks (backends/pins.h); NULL: they hold none */
};
static inline const struct bl_device_ops *bl_point_ops(struct bl_point p)
{
    struct bl_device *dev; /* every backend's streams begin with theirs */
    memcpy(&dev, p.stream, sizeof dev);
    return dev->ops;
}

enum { BL_FEW_TOKENS = 8 };  /* up to here a step waits for memory, beyond for arithmetic */
struct bl_device_config {    /* what the plan asks of a device at open */
    uint32_t threads;        /* of steps of few tokens (BL_FEW_TOKENS); 0 = 1 */
    uint32_t threads_prefill;/* of the others; 0 = as threads */
    const int *cpus;         /* [n_cpus] logical processors to keep workers to, or NULL; outlives the device */
    uint32_t n_home, n_cpus; /* cpus: the first n_home are for threads below n_home, the rest for the others */
    uint64_t nodes;          /* memory nodes for blocks, a bit each: one is filled alone, several by turns; 0 = any */
    uint32_t cpu_mask;       /* CPU flags allowed, all bits = everything */
    bool exact;
    bool unified;            /* its memory is the host's, which sees all of it */
    uint64_t block_bytes;    /* no larger allocations than this, whatever the driver would give; 0: no such limit */
    bool in_line;            /* who enqueues may do the work: no other device could go on meanwhile */
    uint16_t number;         /* in the machine: how devices tell each other apart */
    const struct bl_simulated *sim; /* sim: pace.h; NULL: no limits */
};
struct bl_device_facts {     /* before it is opened */
    char id[32];             /* stays when others come and go, the same to all backends: "pci-0000:01:00.0"; empty: not known */
    char name[64];           /* for people */
    char kernels[128];       /* which of its variants run there, and why; empty: there are no variants */
    uint64_t mem_bytes, free_bytes; /* free 0: not known */
    uint64_t block_bytes;    /* the largest allocation; 0: any */
    bool integrated;         /* its memory is the host's */
    bool software;           /* it is the host's processors */
};
struct bl_backend {
    const char *name;                              /* "cpu" */
    enum bl_status (*count)(uint32_t *n);          /* BL_EUNAVAILABLE: no driver here; not an error */
    /* Pure: caps that open would give for this configuration. */
    enum bl_status (*caps)(uint32_t index, const struct bl_device_config *, struct bl_caps *out);
    enum bl_status (*open)(uint32_t index, const struct bl_device_config *, struct bl_device **out);
    enum bl_status (*facts)(uint32_t index, struct bl_device_facts *out); /* may be NULL; BL_EUNAVAILABLE: none */
    /* Whether a device copies to another's memory without the host, as the driver says; reaches tries it. May be NULL. */
    bool (*reach)(uint32_t index, uint32_t other);
    /* pure functions of caps */
    bool (*supports)(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
    uint64_t (*scratch_bytes)(const struct bl_caps *, const struct bl_graph *, const struct bl_node *);
};

#endif
