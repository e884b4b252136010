/* SPDX-License-Identifier: MIT */
/* This machine as data: for now its host CPU, which is device 0 of every machine. */
#include "planner.h"

#include "backends.h"
#include "calibrate.h"
#include "log.h"
#include "mem.h"
#include "topology.h"

#include <stdio.h>
#include <stdlib.h>

static const uint64_t calibration_ns = 250000000;

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Processors to keep threads to: not where others have a claim on them or threads must share them,
 * and not where it would change nothing. */
static bool should_bind(const struct bl_cpus *c, uint32_t n_threads, const struct bl_options *opt)
{
    return !opt->no_bind && c->whole && n_threads <= c->n_cpus &&
           (c->n_nodes > 1 || c->n_home < c->threads.n_logical);
}

static bool should_calibrate(const struct bl_cpus *c, const struct bl_options *opt)
{
    if (opt->threads || c->described || opt->no_calibrate)
        return false;
    return opt->calibrate || bl_calibrate_in_doubt(c);
}

static void calibrate(struct bl_machine *m, uint64_t usable_bytes, const struct bl_options *opt)
{
    const struct bl_cpus *c = m->cpus;
    const uint32_t most = c->threads.quota > 0 ? c->threads.n_prefill : 0;
    if (bl_calibrate(c, most, should_bind(c, c->threads.n_prefill, opt), usable_bytes,
                     calibration_ns, &m->home, &m->spread))
        bl_info("%s", bl_error());
}

static void set_threads(struct bl_machine *m, struct bl_device_config *d,
                        const struct bl_options *opt)
{
    const struct bl_cpus *c = m->cpus;
    d->threads = opt->threads ? opt->threads : m->home.threads;
    d->threads_prefill = opt->threads_prefill ? opt->threads_prefill
                         : opt->threads       ? opt->threads
                                              : c->threads.n_prefill;
    if (should_bind(c, larger(d->threads, d->threads_prefill), opt)) {
        d->cpus = c->cpu;
        d->n_home = c->n_home;
        d->n_cpus = c->n_cpus;
    }
}

static enum bl_status configure(struct bl_machine *m, struct bl_device_config *d,
                                uint64_t usable_bytes, const struct bl_options *opt)
{
    d->cpu_mask = opt->scalar ? 0 : opt->cpu_mask ? opt->cpu_mask : UINT32_MAX;
    d->exact = opt->exact;
    m->cpus = bl_calloc(1, sizeof *m->cpus);
    if (!m->cpus)
        return bl_fail(BL_ENOMEM, "out of memory for the machine");
    const enum bl_status st = bl_topology_cpus(m->cpus, opt->topology, opt->cgroup_root);
    if (st &&
        opt->threads) { /* their number is settled, yet what else depends on the topology is not */
        bl_warn("%s; %u threads as asked for", bl_error(), opt->threads);
        free(m->cpus);
        m->cpus = NULL;
        d->threads = opt->threads;
        d->threads_prefill = opt->threads_prefill;
        return BL_OK;
    }
    if (st) /* files that cannot be read are the options' fault, not the model's */
        return st == BL_EIO ? BL_EINVAL : st;
    m->home.threads = m->spread.threads = m->cpus->threads.n;
    if (should_calibrate(m->cpus, opt))
        calibrate(m, usable_bytes, opt);
    set_threads(m, d, opt);
    return BL_OK;
}

static void log_line(void *arg, const char *text)
{
    (void)arg;
    bl_info("%s", text);
}

static enum bl_status probe(struct bl_machine *out, const struct bl_options *opt)
{
    struct bl_machine m = {.device = bl_calloc(1, sizeof *m.device), .n_devices = 1};
    struct bl_machine_device *d = m.device;
    struct bl_host_memory mem;
    enum bl_status st;

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for the machine");
    snprintf(d->id, sizeof d->id, "cpu0");
    d->shares = BL_NO_DEVICE;
    d->backend = bl_backend_find("cpu");
    if ((st = bl_topology_memory(&mem, opt->cgroup_root)) ||
        (st = configure(&m, &d->config, mem.usable_bytes, opt)) ||
        (st = d->backend->caps(0, &d->config, &d->caps))) {
        bl_machine_finish(&m);
        return st;
    }
    d->mem_bytes = mem.total_bytes;
    d->usable_bytes = mem.usable_bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "%s", mem.source);
    *out = m;
    return BL_OK;
}

enum bl_status bl_machine_probe(struct bl_machine *out, const struct bl_options *opt)
{
    BL_TRY(probe(out, opt));
    bl_machine_print(out, opt, log_line, NULL);
    return BL_OK;
}

/* ---- in words -------------------------------------------------------------------------------- */

enum { MIB = 1 << 20 };

static void print_threads(const struct bl_machine *m, const struct bl_options *opt,
                          void (*line)(void *arg, const char *text), void *arg)
{
    const struct bl_device_config *d = &m->device[0].config;
    const bool timed = m->home.gb_per_s > 0;
    char text[256];

    snprintf(text, sizeof text, "threads %u: %s%s", d->threads,
             opt->threads ? "asked for with -t" : m->cpus->threads.reason,
             timed ? "; as timed" : "");
    line(arg, text);
    if (d->threads_prefill != d->threads) {
        snprintf(text, sizeof text, "threads for prompts %u%s", d->threads_prefill,
                 opt->threads_prefill ? ": asked for with -tb" : "");
        line(arg, text);
    }
    if (timed) {
        snprintf(text, sizeof text, "read test: %u threads read %.1f GB/s", m->home.threads,
                 m->home.gb_per_s);
        line(arg, text);
    }
    if (timed && m->cpus->n_nodes > 1) {
        snprintf(text, sizeof text, "read test over all memory nodes: %u threads read %.1f GB/s",
                 m->spread.threads, m->spread.gb_per_s);
        line(arg, text);
    }
    if (d->cpus) {
        snprintf(text, sizeof text, "threads are kept to %u processors, a core each", d->n_cpus);
        line(arg, text);
    }
}

static void print_nodes(const struct bl_cpus *c, void (*line)(void *arg, const char *text),
                        void *arg)
{
    char text[160];
    for (uint32_t i = 0; c->n_nodes > 1 && i < c->n_nodes; i++) {
        const struct bl_memory_node *n = &c->node[i];
        snprintf(text, sizeof text, "memory node %u: %u cores, %llu MiB, %llu MiB free", n->id,
                 n->n_cores, (unsigned long long)(n->bytes / MIB),
                 (unsigned long long)(n->free_bytes / MIB));
        line(arg, text);
    }
}

void bl_machine_print(const struct bl_machine *m, const struct bl_options *opt,
                      void (*line)(void *arg, const char *text), void *arg)
{
    char text[96];
    if (m->cpus) {
        print_threads(m, opt, line, arg);
        print_nodes(m->cpus, line, arg);
    }
    snprintf(text, sizeof text, "huge pages %s", bl_pages_huge());
    line(arg, text);
}

enum bl_status bl_machine_describe(void (*line)(void *arg, const char *text), void *arg,
                                   const struct bl_options *opt)
{
    struct bl_machine m;
    BL_TRY(probe(&m, opt));
    bl_machine_print(&m, opt, line, arg);
    bl_machine_finish(&m);
    return BL_OK;
}
