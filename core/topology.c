/* SPDX-License-Identifier: MIT */
#include "topology.h"

#include "cgroup.h"
#include "file.h"
#include "log.h"
#include "mem.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* hwloc builds a synthetic machine in the square of its size: a second for 16,384 processors. */
enum { SYNTHETIC_PUS = 16384, XML_BYTES = 64 << 20 };

/* A machine as hwloc sees it, and the part of it that threads may use. */
struct layout {
    hwloc_topology_t topo;
    hwloc_bitmap_t allowed;   /* processors this process may run on */
    hwloc_bitmap_t chosen;    /* of these, the ones of the performance cores */
    hwloc_obj_type_t unit;    /* CORE, or PU where cores are unknown */
    bool foreign;             /* described by a text, not the machine we run on */
    uint32_t n_machine;       /* logical processors before affinity */
    uint32_t n_units, n_fast; /* units in allowed, in chosen */
    hwloc_bitmap_t home;      /* chosen processors of the memory node with most of them */
    uint32_t n_home;          /* units in it */
};

static uint32_t weight(hwloc_const_bitmap_t set)
{
    int n = hwloc_bitmap_weight(set);
    return n > 0 ? (uint32_t)n : 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Product of the counts in "pack:2 core:4 pu:2", brackets apart; at most SYNTHETIC_PUS + 1. */
static uint64_t synthetic_size(const char *text)
{
    uint64_t product = 1;
    int depth = 0;
    for (const char *p = text; *p; p++) {
        depth += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
        if (depth > 0 || *p < '0' || *p > '9' || (p > text && p[-1] != ':' && p[-1] != ' '))
            continue;
        uint64_t count = strtoull(p, NULL, 10);
        if (count > SYNTHETIC_PUS || product * count > SYNTHETIC_PUS)
            return SYNTHETIC_PUS + 1;
        product *= count;
    }
    return product;
}

/* How often `name` stands between two places. */
static size_t occurrences(const char *from, const char *end, const char *name)
{
    size_t n = 0, len = strlen(name);
    for (; (from = memmem(from, (size_t)(end - from), name, len)) != NULL; from += len)
        n++;
    return n;
}

/* hwloc 2.9 falls over objects with a set but no complete set, and over sets that do not start with
 * a number. */
static bool sets_are_whole(const char *xml)
{
    for (const char *end, *p = xml; (p = strchr(p, '<')) != NULL; p = end) {
        bool object = strncmp(p, "<object", 7) == 0;
        end = strchr(p, '>');
        if (!end || occurrences(p, end, "set=\"") != occurrences(p, end, "set=\"0x"))
            return false;
        if (object &&
            (occurrences(p, end, " cpuset=") > occurrences(p, end, " complete_cpuset=") ||
             occurrences(p, end, " nodeset=") > occurrences(p, end, " complete_nodeset=")))
            return false;
    }
    return true;
}

static enum bl_status set_xml(hwloc_topology_t topo, const char *path)
{
    struct bl_file *file = NULL;
    char *xml = NULL;
    enum bl_status st = bl_file_open(&file, path);
    if (st)
        return bl_fail_in(st == BL_EFORMAT ? BL_EINVAL : st, "topology");
    uint64_t n = bl_file_bytes(file);
    if (n > XML_BYTES) {
        st = bl_fail(BL_EINVAL, "topology %s: %" PRIu64 " bytes are not a machine", path, n);
        goto out;
    }
    xml = bl_calloc((size_t)n + 1, 1);
    if (!xml) {
        st = bl_fail(BL_ENOMEM, "topology %s: no memory to read it", path);
        goto out;
    }
    if ((st = bl_file_read(file, 0, n, xml)))
        goto out;
    if (!sets_are_whole(xml) || hwloc_topology_set_xmlbuffer(topo, xml, (int)n + 1) != 0)
        st = bl_fail(BL_EINVAL, "topology %s: hwloc cannot read this as XML of a machine", path);
out:
    free(xml);
    bl_file_close(file);
    return st;
}

static enum bl_status set_source(hwloc_topology_t topo, const char *text)
{
    struct stat info;
    size_t len = strlen(text);
    bool xml_name = len > 4 && strcmp(text + len - 4, ".xml") == 0;
    if (xml_name || strchr(text, '/') || stat(text, &info) == 0)
        return set_xml(topo, text);
    if (synthetic_size(text) > SYNTHETIC_PUS)
        return bl_fail(BL_EINVAL, "topology \"%s\" has more than %d processors", text,
                       SYNTHETIC_PUS);
    if (hwloc_topology_set_synthetic(topo, text) != 0)
        return bl_fail(BL_EINVAL,
                       "topology \"%s\" is neither an hwloc XML file nor a description such as "
                       "\"pack:1 core:8 pu:2\"",
                       text);
    return BL_OK;
}

/* What hwloc knows may run, and on this machine the affinity new threads inherit. */
static enum bl_status find_allowed(struct layout *l)
{
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    l->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(l->topo));
    if (!bound || !l->allowed) {
        hwloc_bitmap_free(bound);
        return bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
    }
    l->n_machine = weight(hwloc_topology_get_topology_cpuset(l->topo));
    if (!l->foreign && hwloc_get_cpubind(l->topo, bound, HWLOC_CPUBIND_THREAD) == 0)
        hwloc_bitmap_and(l->allowed, l->allowed, bound);
    hwloc_bitmap_free(bound);
    return hwloc_bitmap_iszero(l->allowed)
               ? bl_fail(BL_EINVAL, "topology: no processor that may be used")
               : BL_OK;
}

static void layout_finish(struct layout *l)
{
    hwloc_bitmap_free(l->home);
    hwloc_bitmap_free(l->chosen);
    hwloc_bitmap_free(l->allowed);
    if (l->topo)
        hwloc_topology_destroy(l->topo);
    *l = (struct layout){0};
}

/* The first allowed processor of unit i; -1: none is allowed. */
static int first_pu(const struct layout *l, hwloc_const_bitmap_t among, unsigned i)
{
    hwloc_obj_t obj = hwloc_get_obj_by_type(l->topo, l->unit, i);
    for (int pu = hwloc_bitmap_first(obj->cpuset); pu >= 0; pu = hwloc_bitmap_next(obj->cpuset, pu))
        if (hwloc_bitmap_isset(among, (unsigned)pu))
            return pu;
    return -1;
}

static unsigned n_objects(const struct layout *l, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(l->topo, type);
    return n > 0 ? (unsigned)n : 0;
}

static uint32_t count_units(const struct layout *l, hwloc_const_bitmap_t among)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < n_objects(l, l->unit); i++)
        n += first_pu(l, among, i) >= 0;
    return n;
}

/* ---- performance and efficiency cores -------------------------------------------------------- */

struct kind {
    hwloc_bitmap_t set;
    int rank;                 /* higher = faster, -1 = unknown */
    const char *core_type;    /* borrowed from the topology, NULL = not told */
    double capacity, max_mhz; /* 0 = not told */
};

/* Processors of kind i that may be used. */
static bool read_kind(const struct layout *l, unsigned i, struct kind *k)
{
    unsigned n = 0;
    struct hwloc_info_s *info = NULL;
    *k = (struct kind){.set = k->set, .rank = -1};
    if (hwloc_cpukinds_get_info(l->topo, i, k->set, &k->rank, &n, &info, 0) != 0)
        return false;
    for (unsigned j = 0; j < n; j++) {
        if (strcmp(info[j].name, "CoreType") == 0)
            k->core_type = info[j].value;
        else if (strcmp(info[j].name, "LinuxCapacity") == 0)
            k->capacity = strtod(info[j].value, NULL);
        else if (strcmp(info[j].name, "FrequencyMaxMHz") == 0)
            k->max_mhz = strtod(info[j].value, NULL);
    }
    hwloc_bitmap_and(k->set, k->set, l->allowed);
    return k->rank >= 0 && !hwloc_bitmap_iszero(k->set);
}

/* Speed of a core of kind k as a share of `best`; 0: another sort of core, or ranked below it
 * without a number. */
static double relative_speed(const struct kind *k, const struct kind *best)
{
    bool typed = k->core_type && best->core_type;
    if (typed && strcmp(k->core_type, best->core_type) != 0)
        return 0;
    if (k->capacity > 0 && best->capacity > 0)
        return k->capacity / best->capacity;
    if (k->max_mhz > 0 && best->max_mhz > 0)
        return k->max_mhz / best->max_mhz;
    return typed ? 1 : 0;
}

/* Adds kinds of cores from the fastest down for as long as it pays. Work is cut into equal shares,
 * so all cores run at the pace of the slowest: 4 + 4 cores of which half run at 0.4 are worth 3.2,
 * fewer than the 4. Favoured cores with a slightly higher clock are kinds of their own to hwloc;
 * this rule keeps the others. */
static void choose_kinds(struct layout *l, struct kind *best, struct kind *k)
{
    int n = hwloc_cpukinds_get_nr(l->topo, 0);
    hwloc_bitmap_t tried = best->set;
    double worth = 0;
    for (int i = n - 1; i >= 0; i--) { /* hwloc lists them slowest first */
        if (worth == 0) {
            if (read_kind(l, (unsigned)i, best)) {
                worth = count_units(l, tried);
                hwloc_bitmap_copy(l->chosen, tried);
            }
            continue;
        }
        if (!read_kind(l, (unsigned)i, k))
            continue;
        hwloc_bitmap_or(tried, tried, k->set);
        double now = relative_speed(k, best) * count_units(l, tried);
        if (now > worth) {
            worth = now;
            hwloc_bitmap_copy(l->chosen, tried);
        }
    }
    /* unranked kinds, or processors that belong to none: no ground to leave any out */
    if (!hwloc_bitmap_isequal(tried, l->allowed))
        hwloc_bitmap_copy(l->chosen, l->allowed);
}

static enum bl_status find_chosen(struct layout *l)
{
    struct kind best = {.set = hwloc_bitmap_alloc()}, other = {.set = hwloc_bitmap_alloc()};
    enum bl_status st = BL_OK;
    l->chosen = hwloc_bitmap_dup(l->allowed);
    if (best.set && other.set && l->chosen)
        choose_kinds(l, &best, &other);
    else
        st = bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
    hwloc_bitmap_free(other.set);
    hwloc_bitmap_free(best.set);
    return st;
}

static enum bl_status layout_load(struct layout *l, const char *text)
{
    if (hwloc_topology_init(&l->topo) != 0) {
        l->topo = NULL;
        return bl_fail(BL_ENOMEM, "hwloc: %s", strerror(errno));
    }
    if (text)
        BL_TRY(set_source(l->topo, text));
    if (hwloc_topology_load(l->topo) != 0)
        return text ? bl_fail(BL_EINVAL, "topology %s: hwloc refuses it: %s", text, strerror(errno))
                    : bl_fail(BL_EUNAVAILABLE, "hwloc cannot tell this machine: %s",
                              strerror(errno));
    l->foreign = !hwloc_topology_is_thissystem(l->topo);
    l->unit = n_objects(l, HWLOC_OBJ_CORE) ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    BL_TRY(find_allowed(l));
    BL_TRY(find_chosen(l));
    l->n_units = count_units(l, l->allowed);
    l->n_fast = count_units(l, l->chosen);
    l->n_home = l->n_fast;
    l->home = hwloc_bitmap_dup(l->chosen);
    return l->home ? BL_OK : bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
}

/* ---- memory nodes ---------------------------------------------------------------------------- */

/* "Node 0 MemFree:  12345 kB" */
static uint64_t node_line(const char *text, const char *key)
{
    uint64_t kib = 0;
    const char *p = strstr(text, key);
    return p && sscanf(p + strlen(key), " %" SCNu64 " kB", &kib) == 1 ? kib * 1024 : 0;
}

/* What new blocks may take of it: as the kernel counts, else all. */
static uint64_t node_free(const struct layout *l, const struct bl_memory_node *n, const char *root)
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
static void add_node(struct bl_cpus *out, struct layout *l, hwloc_obj_t obj, hwloc_bitmap_t taken,
                     hwloc_bitmap_t own, const char *root)
{
    struct bl_memory_node *n = &out->node[out->n_nodes];
    if (!obj->cpuset || out->n_nodes == BL_MAX_MEMORY_NODES ||
        hwloc_bitmap_intersects(obj->cpuset, taken))
        return;
    hwloc_bitmap_or(taken, taken, obj->cpuset);
    hwloc_bitmap_and(own, obj->cpuset, l->allowed);
    *n = (struct bl_memory_node){.id = obj->os_index,
                                 .n_cores = count_units(l, own),
                                 .bytes = obj->attr ? obj->attr->numanode.local_memory : 0};
    if (!n->n_cores)
        return;
    n->free_bytes = node_free(l, n, root);
    hwloc_bitmap_and(own, own, l->chosen);
    const uint32_t fast = count_units(l, own);
    if (!out->n_nodes || fast > l->n_home) {
        out->home = out->n_nodes;
        l->n_home = fast;
        hwloc_bitmap_copy(l->home, own);
    }
    out->n_nodes++;
}

static enum bl_status find_nodes(struct bl_cpus *out, struct layout *l, const char *root)
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
    for (unsigned i = 0; i < n_objects(l, HWLOC_OBJ_L3CACHE); i++)
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

static void say_cores(struct sentence *s, const struct layout *l, uint32_t n_nodes)
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
    if (weight(l->allowed) < l->n_machine)
        say(s, "; affinity allows %u of %u logical CPUs", weight(l->allowed), l->n_machine);
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
static void list_units(const struct layout *l, hwloc_const_bitmap_t among,
                       hwloc_const_bitmap_t without, struct bl_cpus *out)
{
    int found[BL_MAX_CPUS];
    uint32_t n = 0;
    for (unsigned i = 0; i < n_objects(l, l->unit) && out->n_cpus + n < BL_MAX_CPUS; i++) {
        const int pu = first_pu(l, among, i);
        if (pu >= 0 && (!without || first_pu(l, without, i) < 0))
            found[n++] = pu;
    }
    if (!l->foreign)
        spread(found, n, out->cpu + out->n_cpus);
    out->n_cpus += n;
}

/* The same processors by node. */
static void list_nodes(const struct layout *l, struct bl_cpus *out)
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

static void list_cpus(const struct layout *l, struct bl_cpus *out)
{
    list_units(l, l->home, NULL, out);
    out->n_home = out->n_cpus;
    list_units(l, l->allowed, l->home, out);
    list_nodes(l, out);
    out->described = l->foreign;
    out->whole = !l->foreign && weight(l->allowed) == l->n_machine &&
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
static enum bl_status look(struct bl_cpus *out, struct layout *l, struct sentence *s,
                           const char *topology, const char *cgroup_root)
{
    enum bl_status st = layout_load(l, topology);
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
    out->threads.n_logical = weight(l->allowed);
    out->threads.n_nodes = out->n_nodes;
    say_cores(s, l, out->n_nodes);
    return BL_OK;
}

enum bl_status bl_topology_cpus(struct bl_cpus *out, const char *topology, const char *cgroup_root)
{
    struct layout l = {0};
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
    layout_finish(&l);
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

/* ---- memory ---------------------------------------------------------------------------------- */

static bool meminfo_bytes(const char *text, const char *key, uint64_t *out)
{
    uint64_t kib;
    if (!bl_cgroup_value(text, key, &kib) || kib > UINT64_MAX / 1024)
        return false;
    *out = kib * 1024;
    return true;
}

static bool read_meminfo(const char *root, struct bl_host_memory *m, enum bl_status *st)
{
    char *text;
    if ((*st = bl_cgroup_text(&text, root, "proc/meminfo")) || !text)
        return false;
    bool good = meminfo_bytes(text, "MemTotal", &m->total_bytes) && m->total_bytes > 0;
    snprintf(m->source, sizeof m->source, "MemAvailable");
    if (good && !meminfo_bytes(text, "MemAvailable", &m->available_bytes)) {
        /* before Linux 3.14; page cache counts as free, for most of it can be dropped */
        uint64_t cached = 0, buffers = 0, *sum = &m->available_bytes;
        good = meminfo_bytes(text, "MemFree", sum) && meminfo_bytes(text, "Cached", &cached) &&
               meminfo_bytes(text, "Buffers", &buffers) && bl_size_add(*sum, cached, sum) &&
               bl_size_add(*sum, buffers, sum);
        snprintf(m->source, sizeof m->source, "MemFree + Cached + Buffers");
    }
    if (!good || m->available_bytes > m->total_bytes) {
        bl_warn("%s/proc/meminfo makes no sense; ignored", root ? root : "");
        good = false;
    }
    free(text);
    return good;
}

static enum bl_status ask_sysconf(struct bl_host_memory *m)
{
    long total = sysconf(_SC_PHYS_PAGES), available = sysconf(_SC_AVPHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    if (total <= 0 || available < 0 || page <= 0)
        return bl_fail(BL_EIO, "neither /proc/meminfo nor sysconf tells the size of memory");
    m->total_bytes = (uint64_t)total * (uint64_t)page;
    m->available_bytes = (uint64_t)available * (uint64_t)page;
    snprintf(m->source, sizeof m->source, "free pages by sysconf");
    return BL_OK;
}

/* What ulimit -v leaves: pages count when they are mapped, used or not. */
static void limit_address_space(struct bl_host_memory *m)
{
    struct rlimit limit;
    char text[64] = "";
    FILE *f = NULL;

    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        !(f = fopen("/proc/self/statm", "r")))
        return;
    const uint64_t taken =
        fgets(text, sizeof text, f) ? strtoull(text, NULL, 10) * bl_page_bytes() : 0;
    fclose(f);
    const uint64_t room = limit.rlim_cur > taken ? limit.rlim_cur - taken : 0;
    if (room < m->usable_bytes) {
        m->usable_bytes = room;
        snprintf(m->source, sizeof m->source, "the limit on address space (ulimit -v)");
    }
}

enum bl_status bl_topology_memory(struct bl_host_memory *out, const char *cgroup_root)
{
    struct bl_host_memory m = {0};
    struct bl_cgroup_memory group;
    enum bl_status st;

    BL_TRY(bl_cgroup_memory(&group, cgroup_root));
    bool known = read_meminfo(cgroup_root, &m, &st);
    if (!known && !st && cgroup_root) /* a folder without meminfo overrides the groups only */
        known = read_meminfo(NULL, &m, &st);
    if (st)
        return st;
    if (!known)
        BL_TRY(ask_sysconf(&m));
    m.limit_bytes = group.limit_bytes;
    m.usable_bytes = m.available_bytes;
    if (group.room_bytes < m.usable_bytes) {
        m.usable_bytes = group.room_bytes;
        memcpy(m.source, group.source, sizeof m.source);
    }
    if (!cgroup_root)
        limit_address_space(&m);
    *out = m;
    return BL_OK;
}
