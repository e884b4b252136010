/* SPDX-License-Identifier: MIT */
/* machine.h — the machine as plain data: what a plan is made for.
 *
 * Purpose   devices, their memory, what they compute and what that costs besides; links between them. Can be probed, read
 *           from a file (placement/machine_file.h) or typed. Two kinds of figure are told apart: rated, from a data sheet,
 *           and measured, by `ballast probe` or by somebody named in the source.
 * Ownership the machine owns its arrays.
 * Units     bytes, nanoseconds; bps: bytes per second; macs_per_s: multiply-adds per second, half of what vendors call
 *           FLOPS. 0: not known, but for counts.
 * Errors    none: data only.
 * Threads   read-only once made.
 */
#ifndef BL_MACHINE_H
#define BL_MACHINE_H

#include "device.h"
#include "pace.h"
#include "topology.h"

#include <stdlib.h>

enum bl_device_kind { BL_KIND_CPU, BL_KIND_GPU, BL_N_DEVICE_KINDS };
enum bl_memory_kind {
    BL_MEMORY_HOST,      /* RAM, of a CPU */
    BL_MEMORY_DEDICATED, /* a card's own */
    BL_MEMORY_UNIFIED,   /* the RAM of the device named by shares, or a part carved out of it */
    BL_N_MEMORY_KINDS
};
enum bl_isa {            /* by what multiplies bytes */
    BL_ISA_NONE, BL_ISA_AVX2, BL_ISA_AVX512 /* without VNNI */, BL_ISA_VNNI /* AVX-512, 256 bits at a time */,
    BL_ISA_VNNI_WIDE /* 512 */, BL_ISA_AMX, BL_ISA_NEON /* with dot products */, BL_ISA_I8MM, BL_ISA_APPLE, BL_N_ISAS
};
enum bl_hub_kind { BL_HUB_SWITCH, BL_HUB_ROOT, BL_HUB_DRAM, BL_N_HUB_KINDS };

/* What one kind of weight costs: bytes read for one token, multiply-adds with 8, 64 and 512 tokens. */
enum { BL_N_RATE_TOKENS = 3 };
static const uint16_t bl_rate_tokens[BL_N_RATE_TOKENS] = {8, 64, 512};
struct bl_type_rate {
    double decode_bps;
    double macs_per_s[BL_N_RATE_TOKENS];
};
/* What steps of other kinds do, all threads of few tokens or of many together. */
struct bl_step_rate {
    double state_values_per_s;    /* of recurrent layers: updated for a token, with few tokens from memory */
    double moved_bps;             /* activations read and written, element by element */
    double arranged_per_s;        /* activations made ready for products with a matrix */
};
/* What attention to a cache of one type does, likewise: scores are pairs of a token's head and a row that it sees, macs
 * what they multiply, values what is read of the cache for them, with few tokens from memory. */
struct bl_kv_rate {
    double scores_per_s, macs_per_s, values_per_s;
    double latent_macs_per_s;     /* where one row serves as key and value of all heads: everything is in it */
};
enum bl_step_team { BL_STEP_FEW, BL_STEP_MANY, BL_N_STEP_TEAMS }; /* of up to BL_FEW_TOKENS tokens, of more */
struct bl_read_rate {             /* what some threads read together */
    uint32_t threads, domains;    /* domains: memory nodes that threads and bytes are spread over */
    double bps;
};
struct bl_barrier_cost { uint32_t threads; double ns; };
struct bl_memory_reading {        /* what one source says may be used */
    char source[48];
    uint64_t bytes;
    bool refused;                 /* impossible */
};
struct bl_domain {                /* a memory node of a CPU */
    uint32_t node, n_cores;       /* the system's number; cores beside it */
    uint64_t mem_bytes, usable_bytes;
    double read_rated_bps, read_measured_bps; /* by its own cores */
    double far_bps;               /* by the cores of one other domain */
};
enum {
    BL_MAX_DEVICES = 64, BL_MAX_DOMAINS = BL_MAX_MEMORY_NODES, BL_MAX_READINGS = 6, BL_MAX_READ_RATES = 16,
    BL_MAX_BARRIERS = 12
};
#define BL_NO_DEVICE UINT16_MAX

struct bl_machine_device {
    char id[32];                      /* stable name: "cpu0", "pci-0000:01:00.0" */
    char name[64];                    /* for people */
    char kernels[128];                /* as struct bl_device_facts has it */
    char backend_name[16];            /* as written; a build without it plans through null */
    uint8_t kind, mem_kind;           /* enum bl_device_kind, bl_memory_kind */
    uint16_t shares;                  /* unified: index of the device whose memory it is; else BL_NO_DEVICE */
    bool described;                   /* from a file: can be planned for, not opened */
    bool integrated;                  /* a GPU in the CPU's package; beside a card of its own it is left out unless asked for */
    const struct bl_backend *backend; /* answers supports and scratch_bytes from caps alone */
    uint32_t index;                   /* within the backend, at this moment */
    struct bl_device_config config;   /* how it is to be opened */
    struct bl_caps caps;              /* what that gives */
    struct bl_fault fault;            /* sim: what is to go wrong */
    bool caps_assumed;                /* they are the defaults of its kind, enough for any backend */
    /* memory */
    uint64_t mem_bytes, usable_bytes;
    uint64_t carve_out_bytes;         /* unified: of the RAM, set apart at start-up; the CPU cannot use them */
    uint64_t driver_bytes;            /* taken by the driver on the device as soon as it is opened */
    char mem_source[96];              /* where usable_bytes came from */
    struct bl_memory_reading reading[BL_MAX_READINGS];
    double read_rated_bps, read_measured_bps; /* of all its memory together */
    /* processors; of a GPU only clock and name matter */
    uint32_t sockets, cores, threads;
    uint8_t isa;                      /* enum bl_isa */
    double clock_hz, cache_bytes;     /* clock when all cores work */
    struct bl_domain domain[BL_MAX_DOMAINS];
    struct bl_read_rate read_rate[BL_MAX_READ_RATES];
    /* arithmetic */
    double f32_macs_per_s, f16_macs_per_s, i8_macs_per_s; /* rated */
    struct bl_type_rate rate[BL_N_DTYPES], rate_default;  /* measured; zeroed rows: see bl_type_rate_of */
    struct bl_step_rate step_rate[BL_N_STEP_TEAMS];       /* measured; zeroed: nothing was */
    struct bl_kv_rate kv_rate[BL_N_STEP_TEAMS][BL_N_DTYPES]; /* measured, by the cache's type; zeroed: see bl_kv_rate_of */
    /* fixed costs */
    double launch_ns;                 /* to start work and learn that it is done, from the submitting thread */
    double layer_ns;                  /* of a layer so narrow that neither memory nor arithmetic matter, when decoding */
    double step_ns;                   /* of one of its steps */
    struct bl_barrier_cost barrier[BL_MAX_BARRIERS];
    uint32_t n_readings, n_domains, n_read_rates, n_barriers;
};
struct bl_hub {                       /* what links have in common; bytes that cross it share its bandwidth */
    char id[32];
    uint8_t kind;                     /* enum bl_hub_kind */
    uint16_t up;                      /* the hub above; BL_NO_DEVICE: none */
    double bps;                       /* each way; 0: more than its links need */
};
struct bl_link {                      /* between two cards: copies from one to the other do not pass the host */
    uint16_t a, b;                    /* devices */
    uint16_t via;                     /* hub; BL_NO_DEVICE: none, a wire of their own */
    char name[32];                    /* "PCIe 4.0 x16" */
    double ab_rated_bps, ba_rated_bps, ab_measured_bps, ba_measured_bps;
    double latency_ns;                /* of a small copy */
    double cross_ns;                  /* of a step that waits for one on the other side: signal, wake-up, merge */
};
struct bl_decode_way {                /* threads for decode where weights lie so */
    uint32_t threads;                 /* 0: not known */
    double gb_per_s;                  /* what they read; 0: by rule, not timed */
};
struct bl_machine {
    struct bl_machine_device *device;
    uint32_t n_devices;               /* device 0 is always the host CPU */
    struct bl_cpus *cpus;             /* the host's processors and memory nodes; NULL: not known */
    struct bl_decode_way home, spread; /* weights on decode's memory node; over all of them */
    char name[96], source[512];       /* of the whole description */
    struct bl_link *link;
    struct bl_hub *hub;
    uint32_t n_links, n_hubs;
    bool by_node;                     /* each CPU is one memory node of the host, threads and memory */
};
static inline void bl_machine_finish(struct bl_machine *m) /* zeroed is fine */
{
    free(m->device);
    free(m->cpus);
    free(m->link);
    free(m->hub);
    *m = (struct bl_machine){0};
}

/* The measured figure where there is one. */
static inline double bl_measured_or(double measured, double rated)
{
    return measured > 0 ? measured : rated;
}
static inline double bl_device_read_bps(const struct bl_machine_device *d)
{
    return bl_measured_or(d->read_measured_bps, d->read_rated_bps);
}
static inline bool bl_machine_direct(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    for (uint32_t i = 0; a && b && i < m->n_links; i++)
        if ((m->link[i].a == a && m->link[i].b == b) || (m->link[i].a == b && m->link[i].b == a))
            return true;
    return false;
}
/* From device `from` to the link's other end. */
static inline double bl_link_bps(const struct bl_link *l, uint16_t from)
{
    return from == l->a ? bl_measured_or(l->ab_measured_bps, l->ab_rated_bps)
                        : bl_measured_or(l->ba_measured_bps, l->ba_rated_bps);
}
/* What was measured for the type, or for types in general; zeroed: nothing was. */
static inline const struct bl_type_rate *bl_type_rate_of(const struct bl_machine_device *d, enum bl_dtype t)
{
    return d->rate[t].decode_bps > 0 || d->rate[t].macs_per_s[0] > 0 ? &d->rate[t] : &d->rate_default;
}
/* What was measured for a cache of the type, or for one of f16. */
static inline const struct bl_kv_rate *bl_kv_rate_of(const struct bl_machine_device *d, enum bl_step_team team,
                                                     enum bl_dtype t)
{
    return &d->kv_rate[team][d->kv_rate[team][t].macs_per_s > 0 ? t : BL_F16];
}

#endif
