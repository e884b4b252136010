/* SPDX-License-Identifier: MIT */
/* topology.h — processors and memory this process may really use.
 *
 * Purpose   physical cores by hwloc limited by affinity and cgroup quota; memory limited by cgroups; each overridable,
 *           so that every rule is testable on any machine.
 * Ownership results are plain data.
 * Units     bytes, CPUs.
 * Errors    BL_EINVAL: a topology text hwloc refuses; BL_EIO: a file that cannot be read.
 * Threads   any; nothing is cached.
 */
#ifndef BL_TOPOLOGY_H
#define BL_TOPOLOGY_H

#include "status.h"

enum { BL_MAX_CPUS = 1024, BL_MAX_MEMORY_NODES = 64 };
struct bl_memory_node {
    uint32_t id;                 /* the system's number */
    uint32_t n_cores;            /* physical cores beside it that threads may use */
    uint64_t bytes, free_bytes;  /* free: unused or holding files that can be dropped */
    uint32_t first_cpu, n_cpus;  /* in by_node */
};
struct bl_cpus {
    struct bl_threads threads;   /* what bl_threads_choose reports */
    /* One logical processor per core: those of decode's memory node first, in an order of which every beginning is
     * spread over the node. All -1 when not this machine. */
    int cpu[BL_MAX_CPUS];
    int by_node[BL_MAX_CPUS];    /* the same, node after node, each in such an order */
    uint32_t n_home, n_cpus;     /* cores of decode's node, of all; limited by no quota */
    uint32_t home;               /* index of that node */
    bool whole;                  /* neither quota nor affinity: threads may be kept to their cores */
    bool described;              /* by a text, not the machine we run on */
    uint64_t cache_bytes;        /* last-level caches, 0 = unknown */
    struct bl_memory_node node[BL_MAX_MEMORY_NODES];
    uint32_t n_nodes;            /* with cores that may be used */
};
/* A machine that is only described has neither this one's affinity nor, unless cgroup_root is given, its quota. */
enum bl_status bl_topology_cpus(struct bl_cpus *out, const char *topology, const char *cgroup_root);

struct bl_host_memory {
    uint64_t total_bytes;        /* of the machine */
    uint64_t available_bytes;    /* free + reclaimable, of the machine */
    uint64_t limit_bytes;        /* strictest cgroup limit, UINT64_MAX = none */
    uint64_t usable_bytes;       /* what the process may take: least of the above less what its cgroup already holds
                                    and cannot reclaim */
    char source[96];             /* "MemAvailable", "cgroup v2 memory.max of /a/b" */
};
/* root: NULL = this system; otherwise a folder holding proc/meminfo, proc/self/cgroup, sys/fs/cgroup as there; without
 * meminfo the memory is this system's. */
enum bl_status bl_topology_memory(struct bl_host_memory *out, const char *cgroup_root);

#endif
