/* SPDX-License-Identifier: MIT */
#include "topology.h"

#include "cgroup.h"
#include "log.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
