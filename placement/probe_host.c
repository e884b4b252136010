/* SPDX-License-Identifier: MIT */
/* What the system says about this host. */
#include "probe.h"

#include "machine_file.h"

#include <stdio.h>

/* ---- /proc/cpuinfo --------------------------------------------------------------------------- */

/* The value behind "key : " of the first processor that has one. */
static size_t value_of(const char *text, const char *key, const char **out)
{
    const size_t n = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, key, n))
            continue;
        const char *v = line + n;
        while (*v == '\t' || *v == ' ')
            v++;
        if (*v++ != ':')
            continue;
        while (*v == ' ')
            v++;
        *out = v;
        return strcspn(v, "\n");
    }
    return 0;
}

static bool has_flag(const char *flags, size_t n, const char *flag)
{
    const size_t len = strlen(flag);
    for (size_t i = 0; i + len <= n; i++)
        if (!strncmp(flags + i, flag, len) && (i == 0 || flags[i - 1] == ' ') &&
            (i + len == n || flags[i + len] == ' '))
            return true;
    return false;
}

/* Zen 4 (AMD family 25) passes 512 bits in two halves, as Zen 5 does in laptops. */
static bool is_narrow(const char *text)
{
    const char *vendor, *family;
    const size_t n = value_of(text, "vendor_id", &vendor);
    return n == 12 && !strncmp(vendor, "AuthenticAMD", n) &&
           value_of(text, "cpu family", &family) == 2 && !strncmp(family, "25", 2);
}

static enum bl_isa isa_of(const char *text)
{
    const char *f = "";
    size_t n = value_of(text, "flags", &f);
    if (has_flag(f, n, "amx_int8"))
        return BL_ISA_AMX;
    if (has_flag(f, n, "avx512_vnni") && has_flag(f, n, "avx512bw"))
        return is_narrow(text) ? BL_ISA_VNNI : BL_ISA_VNNI_WIDE;
    if (has_flag(f, n, "avx512bw"))
        return BL_ISA_AVX512;
    if (has_flag(f, n, "avx2"))
        return BL_ISA_AVX2;
    n = value_of(text, "Features", &f); /* Arm's name for them */
    if (has_flag(f, n, "i8mm"))
        return BL_ISA_I8MM;
    return has_flag(f, n, "asimddp") ? BL_ISA_NEON : BL_ISA_NONE;
}

enum bl_isa bl_probe_cpuinfo(const char *text, char *name, size_t cap)
{
    const char *v;
    size_t n = value_of(text, "model name", &v);
    if (!n)
        n = value_of(text, "Hardware", &v);
    if (!n) {
        v = "CPU";
        n = 3;
    }
    n = n < cap ? n : cap - 1;
    memcpy(name, v, n);
    name[n] = 0;
    return isa_of(text);
}

static void read_cpuinfo(struct bl_machine_device *d)
{
    char text[8192] = "";
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (f) {
        const size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    d->isa = (uint8_t)bl_probe_cpuinfo(text, d->name, sizeof d->name);
}

/* ---- memory and cores ------------------------------------------------------------------------ */

static void add_reading(struct bl_machine_device *d, const char *source, uint64_t bytes)
{
    struct bl_memory_reading *r = &d->reading[d->n_readings++];
    snprintf(r->source, sizeof r->source, "%.47s", source);
    r->bytes = bytes;
}

static uint64_t node_bytes(const struct bl_cpus *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; c && i < c->n_nodes; i++)
        sum += c->node[i].bytes;
    return sum;
}

/* The strictest possible answer counts. hwloc only says what there is, but that may be less than
 * the system has: nodes that this process may not use. */
static void read_memory(struct bl_machine_device *d, const struct bl_host_memory *mem,
                        const struct bl_cpus *c, const struct bl_options *opt)
{
    uint32_t chosen;
    d->mem_bytes = mem->total_bytes;
    add_reading(d, "MemAvailable", mem->available_bytes);
    if (strcmp(mem->source, "MemAvailable"))
        add_reading(d, mem->source, mem->usable_bytes);
    if (c && !c->described && !opt->cgroup_root) /* otherwise it speaks of another system */
        add_reading(d, "memory nodes (hwloc)", node_bytes(c));
    d->usable_bytes = mem->usable_bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "%s", mem->source);
    if (!bl_memory_judge(d->reading, d->n_readings, d->mem_bytes, &d->usable_bytes, &chosen))
        return;
    if (strncmp(d->mem_source, d->reading[chosen].source, sizeof d->reading[0].source - 1))
        snprintf(d->mem_source, sizeof d->mem_source, "%s", d->reading[chosen].source);
}

static void fill_domains(struct bl_machine_device *d, const struct bl_cpus *c)
{
    const uint64_t sum = node_bytes(c);
    const double fit = sum > d->mem_bytes ? (double)d->mem_bytes / (double)sum : 1;
    for (uint32_t i = 0; c->n_nodes > 1 && i < c->n_nodes; i++) {
        const struct bl_memory_node *n = &c->node[i];
        if (n->id >= BL_MAX_DOMAINS || !n->n_cores || !n->bytes)
            continue;
        struct bl_domain *o = &d->domain[d->n_domains++];
        *o = (struct bl_domain){.node = n->id, .n_cores = n->n_cores};
        o->mem_bytes = (uint64_t)((double)n->bytes * fit);
        o->usable_bytes = n->free_bytes < o->mem_bytes ? n->free_bytes : o->mem_bytes;
    }
}

void bl_probe_host(struct bl_machine *m, const struct bl_host_memory *mem,
                   const struct bl_options *opt)
{
    struct bl_machine_device *d = &m->device[0];
    const struct bl_cpus *c = m->cpus;
    read_cpuinfo(d);
    snprintf(d->backend_name, sizeof d->backend_name, "%s", d->backend->name);
    read_memory(d, mem, c, opt);
    d->threads = c ? c->threads.n_logical : opt->threads;
    d->cores = c ? c->n_cpus : opt->threads;
    d->cache_bytes = c ? (double)c->cache_bytes : 0;
    if (c)
        fill_domains(d, c);
    snprintf(m->name, sizeof m->name, "%.60s, %.1f GiB", d->name, (double)d->mem_bytes / 0x1p30);
}
