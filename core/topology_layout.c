/* SPDX-License-Identifier: MIT */
#include "topology_layout.h"

#include "file.h"
#include "mem.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* hwloc builds a synthetic machine in the square of its size: a second for 16,384 processors. */
enum { SYNTHETIC_PUS = 16384, XML_BYTES = 64 << 20 };

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

uint32_t bl_topology_weight(hwloc_const_bitmap_t set)
{
    int n = hwloc_bitmap_weight(set);
    return n > 0 ? (uint32_t)n : 0;
}

/* What hwloc knows may run, and on this machine the affinity new threads inherit. */
static enum bl_status find_allowed(struct bl_topology *l)
{
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    l->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(l->topo));
    if (!bound || !l->allowed) {
        hwloc_bitmap_free(bound);
        return bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
    }
    l->n_machine = bl_topology_weight(hwloc_topology_get_topology_cpuset(l->topo));
    if (!l->foreign && hwloc_get_cpubind(l->topo, bound, HWLOC_CPUBIND_THREAD) == 0)
        hwloc_bitmap_and(l->allowed, l->allowed, bound);
    hwloc_bitmap_free(bound);
    return hwloc_bitmap_iszero(l->allowed)
               ? bl_fail(BL_EINVAL, "topology: no processor that may be used")
               : BL_OK;
}

void bl_topology_close(struct bl_topology *l)
{
    hwloc_bitmap_free(l->home);
    hwloc_bitmap_free(l->chosen);
    hwloc_bitmap_free(l->allowed);
    if (l->topo)
        hwloc_topology_destroy(l->topo);
    *l = (struct bl_topology){0};
}

int bl_topology_first(const struct bl_topology *l, hwloc_const_bitmap_t among, unsigned i)
{
    hwloc_obj_t obj = hwloc_get_obj_by_type(l->topo, l->unit, i);
    for (int pu = hwloc_bitmap_first(obj->cpuset); pu >= 0; pu = hwloc_bitmap_next(obj->cpuset, pu))
        if (hwloc_bitmap_isset(among, (unsigned)pu))
            return pu;
    return -1;
}

unsigned bl_topology_objects(const struct bl_topology *l, hwloc_obj_type_t type)
{
    int n = hwloc_get_nbobjs_by_type(l->topo, type);
    return n > 0 ? (unsigned)n : 0;
}

uint32_t bl_topology_count(const struct bl_topology *l, hwloc_const_bitmap_t among)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < bl_topology_objects(l, l->unit); i++)
        n += bl_topology_first(l, among, i) >= 0;
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
static bool read_kind(const struct bl_topology *l, unsigned i, struct kind *k)
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
static void choose_kinds(struct bl_topology *l, struct kind *best, struct kind *k)
{
    int n = hwloc_cpukinds_get_nr(l->topo, 0);
    hwloc_bitmap_t tried = best->set;
    double worth = 0;
    for (int i = n - 1; i >= 0; i--) { /* hwloc lists them slowest first */
        if (worth == 0) {
            if (read_kind(l, (unsigned)i, best)) {
                worth = bl_topology_count(l, tried);
                hwloc_bitmap_copy(l->chosen, tried);
            }
            continue;
        }
        if (!read_kind(l, (unsigned)i, k))
            continue;
        hwloc_bitmap_or(tried, tried, k->set);
        double now = relative_speed(k, best) * bl_topology_count(l, tried);
        if (now > worth) {
            worth = now;
            hwloc_bitmap_copy(l->chosen, tried);
        }
    }
    /* unranked kinds, or processors that belong to none: no ground to leave any out */
    if (!hwloc_bitmap_isequal(tried, l->allowed))
        hwloc_bitmap_copy(l->chosen, l->allowed);
}

static enum bl_status find_chosen(struct bl_topology *l)
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

enum bl_status bl_topology_load(struct bl_topology *l, const char *text)
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
    l->unit = bl_topology_objects(l, HWLOC_OBJ_CORE) ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    BL_TRY(find_allowed(l));
    BL_TRY(find_chosen(l));
    l->n_units = bl_topology_count(l, l->allowed);
    l->n_fast = bl_topology_count(l, l->chosen);
    l->n_home = l->n_fast;
    l->home = hwloc_bitmap_dup(l->chosen);
    return l->home ? BL_OK : bl_fail(BL_ENOMEM, "topology: no memory for processor sets");
}
