/* SPDX-License-Identifier: MIT */
#include "topology_layout.h"

#include "cgroup.h"
#include "log.h"
#include "mem.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory nodes ---------------------------------------------------------------------------- */

/* "Node 0 MemFree:  12345 kB" */
static uint64_t node_line(const char *text, const char *key)
{
    uint64_t kib = 0;
    const char *p = strstr(text, key);
    return p && sscanf(p + strlen(key), " %" SCNu64 " kB", &kib) == 1 ? kib * 1024 : 0;
}

/* What new blocks may take of it: as the kernel counts, else all. */
static uint64_t node_free(const struct bl_topology *l, const struct bl_memory_node *n,
                          const char *root)
{
    char path[64], *text = NULL;
    uint64_t bytes = n->bytes;
    snprintf(path, sizeof path, "sys/devices/system/node/node%u/meminfo", n->id);
    if ((l->foreign && !root) || bl_cgroup_text(&text, root, path) || !text)
        return bytes;
    const uint64_t free_bytes = node_line(text, "MemFree:");
    const uint64_t files = node_line(text, "Active(file):") + node_line(text, "Inactive(file):");
    free(text);
    return free_bytes ? free_bytes + files : bytes;
}

/* Adds a node unless it has no cores of its own: memory of another sort beside the same ones. */
static void add_node(struct bl_cpus *out, struct bl_topology *l, hwloc_obj_t obj,
                     hwloc_bitmap_t taken, hwloc_bitmap_t own, const char *root)
{
    struct bl_memory_node *n = &out->node[out->n_nodes];
    if (!obj->cpuset || out->n_nodes == BL_MAX_MEMORY_NODES ||
        hwloc_bitmap_intersects(obj->cpuset, taken))
        return;
    hwloc_bitmap_or(taken, taken, obj->cpuset);
    hwloc_bitmap_and(own, obj->cpuset, l->allowed);
    *n = (struct bl_memory_node){.id = obj->os_index,
                                 .n_cores = bl_topology_count(l, own),
                                 .bytes = obj->attr ? obj->attr->numanode.local_memory : 0};
    if (!n->n_cores)
        return;
    n->free_bytes = node_free(l, n, root);
    hwloc_bitmap_and(own, own, l->chosen);
    const uint32_t fast = bl_topology_count(l, own);
    if (!out->n_nodes || fast > l->n_home) {
        out->home = out->n_nodes;
        l->n_home = fast;
        hwloc_bitmap_copy(l->home, own);
    }
    out->n_nodes++;
}

static enum bl_status find_nodes(struct bl_cpus *out, struct bl_topology *l, const char *root)
{
    hwloc_bitmap_t taken = hwloc_bitmap_alloc(), own = hwloc_bitmap_alloc();
    hwloc_obj_t obj = NULL;
    enum bl_status st = BL_OK;
    if (!taken || !own)
        st = bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
    while (!st && (obj = hwloc_get_next_obj_by_type(l->topo, HWLOC_OBJ_NUMANODE, obj)) != NULL)
        add_node(out, l, obj, taken, own, root);
    if (!st && !l->n_home) { /* nodes without fast cores, or none */
        hwloc_bitmap_copy(l->home, l->chosen);
        l->n_home = l->n_fast;
    }
    hwloc_bitmap_free(own);
    hwloc_bitmap_free(taken);
    for (unsigned i = 0; i < bl_topology_objects(l, HWLOC_OBJ_L3CACHE); i++)
        out->cache_bytes += hwloc_get_obj_by_type(l->topo, HWLOC_OBJ_L3CACHE, i)->attr->cache.size;
    return st;
}

/* ---- the count and its reason ---------------------------------------------------------------- */

struct sentence {
    char *text;
    size_t bytes, n;
};

static void BL_PRINTF(2, 3) say(struct sentence *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s->text + s->n, s->bytes - s->n, fmt, ap);
    va_end(ap);
    if (n > 0)
        s->n = s->n + (size_t)n < s->bytes ? s->n + (size_t)n : s->bytes - 1;
}

static void say_cores(struct sentence *s, const struct bl_topology *l, uint32_t n_nodes)
{
    if (l->n_home < l->n_fast)
        say(s, "%u of %u physical cores, those of one of %u memory nodes", l->n_home, l->n_units,
            n_nodes);
    else if (l->n_fast < l->n_units)
        say(s, "%u performance core%s, %u slower one%s left out", l->n_fast, bl_plural(l->n_fast),
            l->n_units - l->n_fast, bl_plural(l->n_units - l->n_fast));
    else if (l->unit == HWLOC_OBJ_CORE)
        say(s, "%u physical core%s", l->n_units, bl_plural(l->n_units));
    else
        say(s, "%u logical CPU%s, cores unknown", l->n_units, bl_plural(l->n_units));
    if (bl_topology_weight(l->allowed) < l->n_machine)
        say(s, "; affinity allows %u of %u logical CPUs", bl_topology_weight(l->allowed),
            l->n_machine);
}

static void limit(uint32_t *n, uint32_t most)
{
    *n = *n > most ? most : *n;
}

/* Lowers both counts to what quota and table allow. */
static void limit_threads(struct bl_threads *out, const struct bl_cgroup_cpu *group,
                          struct sentence *s)
{
    out->quota = group->quota;
    if (out->n > BL_MAX_CPUS)
        say(s, "; at most %d threads", BL_MAX_CPUS);
    limit(&out->n, BL_MAX_CPUS);
    limit(&out->n_prefill, BL_MAX_CPUS);
    if (group->quota > 0 && group->quota < out->n_prefill) {
        /* a thread over quota stalls all */
        const uint32_t most = group->quota < 1 ? 1 : (uint32_t)group->quota;
        limit(&out->n, most);
        limit(&out->n_prefill, most);
        say(s, "; cgroup quota %.2f CPUs", floor(group->quota * 100 + 1e-6) / 100);
    }
}

/* ---- processors for threads ------------------------------------------------------------------ */

static unsigned reversed(unsigned i, unsigned n_bits)
{
    unsigned r = 0;
    for (unsigned b = 0; b < n_bits; b++)
        r |= (i >> b & 1) << (n_bits - 1 - b);
    return r;
}

/* Numbers 0 ... n - 1 in an order of which every beginning is spread over them. */
static void spread(const int *from, uint32_t n, int *to)
{
    unsigned n_bits = 0;
    uint32_t k = 0;
    while (1u << n_bits < n)
        n_bits++;
    for (unsigned i = 0; i < 1u << n_bits; i++)
        if (reversed(i, n_bits) < n)
            to[k++] = from[reversed(i, n_bits)];
}

/* Appends a processor of each unit that has one in `among` and none in `without`. */
static void list_units(const struct bl_topology *l, hwloc_const_bitmap_t among,
                       hwloc_const_bitmap_t without, struct bl_cpus *out)
{
    int found[BL_MAX_CPUS];
    uint32_t n = 0;
    for (unsigned i = 0; i < bl_topology_objects(l, l->unit) && out->n_cpus + n < BL_MAX_CPUS;
         i++) {
        const int pu = bl_topology_first(l, among, i);
        if (pu >= 0 && (!without || bl_topology_first(l, without, i) < 0))
            found[n++] = pu;
    }
    if (!l->foreign)
        spread(found, n, out->cpu + out->n_cpus);
    out->n_cpus += n;
}

/* The same processors by node. */
static void list_nodes(const struct bl_topology *l, struct bl_cpus *out)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < out->n_nodes; k++) {
        struct bl_memory_node *node = &out->node[k];
        const hwloc_obj_t obj = hwloc_get_numanode_obj_by_os_index(l->topo, node->id);
        node->first_cpu = n;
        for (uint32_t i = 0; obj && !l->foreign && i < out->n_cpus; i++)
            if (hwloc_bitmap_isset(obj->cpuset, (unsigned)out->cpu[i]))
                out->by_node[n++] = out->cpu[i];
        node->n_cpus = n - node->first_cpu;
    }
}

static void list_cpus(const struct bl_topology *l, struct bl_cpus *out)
{
    list_units(l, l->home, NULL, out);
    out->n_home = out->n_cpus;
    list_units(l, l->allowed, l->home, out);
    list_nodes(l, out);
    out->described = l->foreign;
    out->whole = !l->foreign && bl_topology_weight(l->allowed) == l->n_machine &&
                 (out->threads.quota == 0 || out->threads.quota >= l->n_machine);
}

/* Without hwloc: every processor of the affinity mask, physical or not. */
static void count_affinity(struct bl_cpus *out, struct sentence *s)
{
    cpu_set_t set;
    uint32_t n = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (size_t i = 0; i < CPU_SETSIZE && n < BL_MAX_CPUS; i++)
            if (CPU_ISSET(i, &set))
                out->cpu[n++] = (int)i;
        out->n_home = out->n_cpus = n;
    } else {
        long online = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than a cpu_set_t holds */
        n = online > 0 ? (uint32_t)online : 1;
    }
    out->threads.n = out->threads.n_prefill = n;
    out->threads.n_physical = out->threads.n_logical = n;
    say(s, "%u logical CPU%s of the affinity mask, cores unknown", n, bl_plural(n));
}

/* What hwloc knows; without hwloc what the affinity mask tells. */
static enum bl_status look(struct bl_cpus *out, struct bl_topology *l, struct sentence *s,
                           const char *topology, const char *cgroup_root)
{
    enum bl_status st = bl_topology_load(l, topology);
    if (st && topology)
        return st;
    if (st) {
        bl_warn("%s; threads are counted by affinity", bl_error());
        count_affinity(out, s);
        return BL_OK;
    }
    BL_TRY(find_nodes(out, l, cgroup_root));
    out->threads.n = l->n_home;
    out->threads.n_prefill = l->n_units;
    out->threads.n_physical = l->n_units;
    out->threads.n_logical = bl_topology_weight(l->allowed);
    out->threads.n_nodes = out->n_nodes;
    say_cores(s, l, out->n_nodes);
    return BL_OK;
}

enum bl_status bl_topology_cpus(struct bl_cpus *out, const char *topology, const char *cgroup_root)
{
    struct bl_topology l = {0};
    struct bl_cgroup_cpu group = {0};
    struct bl_cpus found = {0};
    struct sentence s = {found.threads.reason, sizeof found.threads.reason, 0};

    for (size_t i = 0; i < BL_MAX_CPUS; i++)
        found.cpu[i] = -1;
    enum bl_status st = look(&found, &l, &s, topology, cgroup_root);
    /* the quota of this process says nothing about a machine that is only described */
    if (!st && (cgroup_root || !l.foreign))
        st = bl_cgroup_cpu(&group, cgroup_root);
    if (!st) {
        limit_threads(&found.threads, &group, &s);
        if (l.n_home)
            list_cpus(&l, &found);
        *out = found;
    }
    bl_topology_close(&l);
    return st;
}

enum bl_status bl_threads_choose(struct bl_threads *out, const char *topology,
                                 const char *cgroup_root)
{
    struct bl_cpus cpus;
    BL_TRY(bl_topology_cpus(&cpus, topology, cgroup_root));
    *out = cpus.threads;
    return BL_OK;
}
