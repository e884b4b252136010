/* SPDX-License-Identifier: MIT */
/* This machine as data: for now its host CPU, which is device 0 of every machine. */
#include "planner.h"

#include "backends.h"
#include "log.h"
#include "mem.h"
#include "topology.h"

#include <stdio.h>
#include <stdlib.h>

static enum bl_status configure(struct bl_device_config *c, const struct bl_options *opt)
{
    struct bl_threads t;

    c->threads = opt->threads;
    c->cpu_mask = opt->scalar ? 0 : opt->cpu_mask ? opt->cpu_mask : UINT32_MAX;
    c->exact = opt->exact;
    enum bl_status st = bl_threads_choose(&t, opt->topology, opt->cgroup_root);
    if (c->threads) { /* their number is settled, yet what else depends on the topology is not */
        if (st)
            bl_warn("%s; %u threads as asked for", bl_error(), c->threads);
        return BL_OK;
    }
    if (st) /* files that cannot be read are the options' fault, not the model's */
        return st == BL_EIO ? BL_EINVAL : st;
    bl_info("threads: %u (%s)", t.n, t.reason);
    c->threads = t.n;
    return BL_OK;
}

enum bl_status bl_machine_probe(struct bl_machine *out, const struct bl_options *opt)
{
    struct bl_machine_device *d = bl_calloc(1, sizeof *d);
    struct bl_host_memory mem;
    enum bl_status st;

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for the machine");
    snprintf(d->id, sizeof d->id, "cpu0");
    d->backend = bl_backend_find("cpu");
    if ((st = configure(&d->config, opt)) || (st = bl_topology_memory(&mem, opt->cgroup_root)) ||
        (st = d->backend->caps(0, &d->config, &d->caps))) {
        free(d);
        return st;
    }
    d->mem_bytes = mem.total_bytes;
    d->usable_bytes = mem.usable_bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "%s", mem.source);
    *out = (struct bl_machine){d, 1};
    return BL_OK;
}
