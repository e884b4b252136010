/* SPDX-License-Identifier: MIT */
/* Memory nodes as devices of their own: "cpu0,cpu1". */
#include "devices.h"

#include "machine_file.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

static void scale(double *rate, double by)
{
    *rate *= by;
}

static void scale_type(struct bl_type_rate *r, double by)
{
    scale(&r->decode_bps, by);
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        scale(&r->macs_per_s[i], by);
}

static void scale_steps(struct bl_machine_device *d, double by)
{
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++) {
        scale(&d->step_rate[i].state_values_per_s, by);
        scale(&d->step_rate[i].moved_bps, by);
        scale(&d->step_rate[i].arranged_per_s, by);
        for (unsigned t = 0; t < BL_N_DTYPES; t++) {
            struct bl_kv_rate *r = &d->kv_rate[i][t];
            scale(&r->scores_per_s, by);
            scale(&r->macs_per_s, by);
            scale(&r->values_per_s, by);
            scale(&r->latent_macs_per_s, by);
        }
    }
}

/* What cores beside each other do together, each its share. */
static void scale_figures(struct bl_machine_device *d, double by)
{
    scale(&d->read_rated_bps, by);
    scale(&d->read_measured_bps, by);
    scale(&d->f32_macs_per_s, by);
    scale(&d->f16_macs_per_s, by);
    scale(&d->i8_macs_per_s, by);
    scale(&d->cache_bytes, by);
    scale_type(&d->rate_default, by);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        scale_type(&d->rate[t], by);
    scale_steps(d, by);
    d->threads = (uint32_t)((double)d->threads * by + 0.5);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void fill_memory(struct bl_machine_device *d, const struct bl_memory_node *n)
{
    d->mem_bytes = least(d->mem_bytes, n->bytes);
    d->usable_bytes = least(d->usable_bytes, n->free_bytes - n->free_bytes / 16);
    d->usable_bytes = least(d->usable_bytes, d->mem_bytes);
    d->n_readings = d->n_domains = d->n_read_rates = 0;
    snprintf(d->mem_source, sizeof d->mem_source, "memory node %u", n->id);
}

/* Threads and blocks are kept to the node where they are kept anywhere. */
static void fill_config(struct bl_device_config *c, const struct bl_cpus *cpus,
                        const struct bl_memory_node *n)
{
    c->threads = (uint32_t)least(c->threads, n->n_cores);
    c->threads_prefill =
        (uint32_t)least(c->threads_prefill ? c->threads_prefill : c->threads, n->n_cores);
    if (c->cpus) {
        c->cpus = &cpus->by_node[n->first_cpu];
        c->n_home = c->n_cpus = n->n_cpus;
    }
    c->nodes = cpus->described || n->id >= BL_MAX_MEMORY_NODES ? 0 : UINT64_C(1) << n->id;
}

/* d has the figures of `cores` cores of the same kind. */
static enum bl_status fill_node(struct bl_machine_device *d, const struct bl_cpus *cpus, uint32_t k,
                                uint32_t cores)
{
    const struct bl_memory_node *n = &cpus->node[k];

    scale_figures(d, (double)n->n_cores / (cores ? cores : 1));
    d->cores = n->n_cores;
    d->sockets = 1;
    d->index = k;
    snprintf(d->id, sizeof d->id, "cpu%u", k);
    fill_memory(d, n);
    fill_config(&d->config, cpus, n);
    return d->backend->caps(d->index, &d->config, &d->caps);
}

static enum bl_status add_wire(struct bl_machine *m, uint16_t to)
{
    const double bps = bl_device_read_bps(&m->device[to]) / 2; /* half of what is near, about */

    return bl_machine_add_link(m, &(struct bl_link){.a = 0,
                                                    .b = to,
                                                    .via = BL_NO_DEVICE,
                                                    .name = "memory nodes",
                                                    .ab_rated_bps = bps,
                                                    .ba_rated_bps = bps,
                                                    .latency_ns = 1000,
                                                    .cross_ns = 5000});
}

static enum bl_status check_node(const struct bl_machine *m, uint32_t k)
{
    const struct bl_cpus *c = m->cpus;

    if (!c)
        return bl_fail(BL_EINVAL,
                       "--devices: 'cpu%u': the memory nodes of this machine are not "
                       "known",
                       k);
    if (k >= c->n_nodes)
        return bl_fail(BL_EINVAL,
                       "--devices: 'cpu%u': there %s %u memory node%s, of which cpu0 is "
                       "the first",
                       k, c->n_nodes == 1 ? "is" : "are", c->n_nodes, bl_plural(c->n_nodes));
    if (!c->node[k].bytes)
        return bl_fail(BL_EINVAL, "--devices: 'cpu%u': memory node %u has no memory", k,
                       c->node[k].id);
    for (uint32_t d = 1; d < m->n_devices; d++)
        if (m->device[d].kind == BL_KIND_CPU && m->device[d].index == k)
            return bl_fail(BL_EINVAL, "--devices: 'cpu%u': name it once", k);
    return BL_OK;
}

enum bl_status bl_machine_add_node(struct bl_machine *m, uint32_t k)
{
    BL_TRY(check_node(m, k));
    if (!m->by_node)
        BL_TRY(fill_node(&m->device[0], m->cpus, 0, m->device[0].cores));
    m->by_node = true;
    struct bl_machine_device *d = bl_machine_new_device(m), *first = m->device;
    if (!d)
        return BL_ENOMEM;
    *d = *first;
    /* what the first was cut down to is no bound for the others */
    d->mem_bytes = d->usable_bytes = m->cpus->node[k].bytes;
    const bool fewer =
        first->config.threads < m->cpus->node[0].n_cores; /* as asked for, or by quota */
    if (!fewer)
        d->config.threads = d->config.threads_prefill = m->cpus->node[k].n_cores;
    BL_TRY(fill_node(d, m->cpus, k, first->cores));
    d->config.number = (uint16_t)m->n_devices;
    return add_wire(m, (uint16_t)m->n_devices++);
}
