/* SPDX-License-Identifier: MIT */
/* This machine as data: its host CPU is device 0. */
#include "planner.h"

#include "adopt.h"
#include "backends.h"
#include "calibrate.h"
#include "devices.h"
#include "log.h"
#include "machine_file.h"
#include "mem.h"
#include "probe.h"
#include "topology.h"
#include "variables.h"

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
        bl_warn("%s; %u thread%s as asked for", bl_error(), opt->threads, bl_plural(opt->threads));
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
    if ((st = bl_variables_check())) {
        bl_machine_finish(&m);
        return st;
    }
    snprintf(d->id, sizeof d->id, "cpu0");
    d->shares = BL_NO_DEVICE;
    d->backend = bl_backend_find("cpu");
    st = bl_topology_memory(&mem, opt->cgroup_root);
    if (st == BL_EIO && opt->cgroup_root)
        st = BL_EINVAL; /* the options' fault, not the model's */
    if (st || (st = configure(&m, &d->config, mem.usable_bytes, opt)) ||
        (st = d->backend->caps(0, &d->config, &d->caps))) {
        bl_machine_finish(&m);
        return st;
    }
    bl_probe_host(&m, &mem, opt);
    *out = m;
    return BL_OK;
}

/* ---- with what was written down -------------------------------------------------------------- */

static enum bl_status apply_sets(struct bl_machine *m, const struct bl_options *opt)
{
    for (uint32_t i = 0; i < opt->n_device_set; i++)
        BL_TRY(bl_machine_set(m, opt->device_set[i]));
    return BL_OK;
}

/* A file that is wrong is the options' fault, not the model's. */
static enum bl_status load_file(struct bl_machine *out, const struct bl_options *opt)
{
    const enum bl_status st = bl_machine_load(out, opt->machine_file);
    return st == BL_EIO || st == BL_EFORMAT ? BL_EINVAL : st;
}

enum bl_status bl_machine_probe(struct bl_machine *out, const struct bl_options *opt)
{
    struct bl_machine m, file = {.n_devices = 0};
    BL_TRY(probe(&m, opt));
    enum bl_status st = opt->machine_file ? load_file(&file, opt) : BL_OK;
    if (!st && file.n_devices)
        st = bl_machine_adopt_host(&m, &file, opt->machine_file);
    if (!st)
        st = bl_machine_add_devices(&m, opt->devices);
    if (!st && file.n_devices)
        st = opt->devices ? bl_machine_adopt_figures(&m, &file) : bl_machine_adopt_cards(&m, &file);
    bl_machine_finish(&file);
    if (!st)
        st = apply_sets(&m, opt);
    if (!st && opt->virtual_clock)
        st = bl_machine_simulate_host(&m);
    if (st) {
        bl_machine_finish(&m);
        return st;
    }
    *out = m;
    bl_machine_print(out, opt, log_line, NULL);
    return BL_OK;
}

enum bl_status bl_machine_choose(struct bl_machine *out, const struct bl_options *opt)
{
    struct bl_machine m;
    if (!opt->machine_file)
        return bl_machine_probe(out, opt);
    BL_TRY(bl_variables_check());
    BL_TRY(load_file(&m, opt));
    enum bl_status st = bl_machine_add_devices(&m, opt->devices);
    if (!st)
        st = apply_sets(&m, opt);
    if (st)
        bl_machine_finish(&m);
    else
        *out = m;
    return st;
}

enum bl_status bl_probe(char **json, size_t *n_bytes, const struct bl_options *opt,
                        const struct bl_probe_options *po)
{
    struct bl_machine m;
    BL_TRY(bl_machine_probe(&m, opt));
    const struct bl_probe_plan plan = {.quick = po->quick, .note = po->note, .arg = po->arg};
    enum bl_status st = opt->devices ? BL_OK : bl_machine_add_found(&m, po->note, po->arg);
    if (!st)
        st = bl_probe_measure(&m, &plan);
    for (uint16_t d = 1; !st && d < m.n_devices; d++)
        if (m.device[d].backend->facts)
            st = bl_probe_card(&m, d, &plan);
    if (!st)
        st = bl_machine_write(&m, json, n_bytes);
    if (!st && po->line)
        bl_machine_table(&m, po->line, po->arg);
    bl_machine_finish(&m);
    return st;
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
        snprintf(text, sizeof text, "read test: %.1f GB/s with %u thread%s", m->home.gb_per_s,
                 m->home.threads, bl_plural(m->home.threads));
        line(arg, text);
    }
    if (timed && m->cpus->n_nodes > 1) {
        snprintf(text, sizeof text, "read test over all memory nodes: %.1f GB/s with %u thread%s",
                 m->spread.gb_per_s, m->spread.threads, bl_plural(m->spread.threads));
        line(arg, text);
    }
    if (d->cpus) {
        snprintf(text, sizeof text, "threads are kept to %u processor%s, a core each", d->n_cpus,
                 bl_plural(d->n_cpus));
        line(arg, text);
    }
}

static void print_nodes(const struct bl_cpus *c, void (*line)(void *arg, const char *text),
                        void *arg)
{
    char text[160];
    for (uint32_t i = 0; c->n_nodes > 1 && i < c->n_nodes; i++) {
        const struct bl_memory_node *n = &c->node[i];
        snprintf(text, sizeof text, "memory node %u: %u core%s, %llu MiB, %llu MiB free", n->id,
                 n->n_cores, bl_plural(n->n_cores), (unsigned long long)(n->bytes / MIB),
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

static void print_cards(const struct bl_machine *m, void (*line)(void *arg, const char *text),
                        void *arg)
{
    char text[400];
    for (const struct bl_machine_device *d = m->device + 1; d < m->device + m->n_devices; d++) {
        snprintf(text, sizeof text, "%s: %s, %.2f GiB usable: %s%s%s", d->id, d->name,
                 (double)d->usable_bytes / 0x1p30, d->mem_source, d->kernels[0] ? "; " : "",
                 d->kernels);
        line(arg, text);
    }
}

enum bl_status bl_machine_describe(void (*line)(void *arg, const char *text), void *arg,
                                   const struct bl_options *opt)
{
    struct bl_machine m;
    enum bl_status st;
    if (opt->machine_file) {
        BL_TRY(bl_machine_choose(&m, opt));
        bl_machine_table(&m, line, arg);
        bl_machine_finish(&m);
        return BL_OK;
    }
    BL_TRY(probe(&m, opt));
    if (!(st = bl_machine_add_devices(&m, opt->devices)) && !(st = apply_sets(&m, opt))) {
        bl_machine_print(&m, opt, line, arg);
        print_cards(&m, line, arg);
    }
    bl_machine_finish(&m);
    return st;
}
